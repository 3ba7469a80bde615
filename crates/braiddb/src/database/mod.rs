//! The database handle and its operations.

mod backup;
mod bulk;
mod changes;
mod compact;
pub(crate) mod estimate;
mod ingest;
mod open;
mod pages;
mod refresh;
mod snapshots;
mod tables;
mod tablespaces;
mod transact;
mod ttl;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use braid_io::DeviceChoice;
use braid_log::SeqNo;
use braid_store::ValueRef;

use crate::engine::Engine;
use crate::error::Result;
use crate::observe::health::Health;
use crate::observe::placement::NodePlacement;
use crate::observe::recovery::RecoveryReport;
use crate::observe::stats::Stats;
use crate::options::{Builder, TransactionOptions};
use crate::read::snapshot::Snapshot;
use crate::schema::table::Table;
use crate::services::{Closer, Instance};
use crate::txn::transaction::Transaction;
use crate::types::{AsKey, Key, Value};

/// Transactional database of ordered tables.
///
/// A handle is cheap to clone and can be used from any thread. The database closes when the last
/// handle is dropped, or with [`Database::close`].
///
/// A child process made by `fork` cannot use an inherited database or anything made from it: each
/// use fails with [`Error::Forked`](crate::Error::Forked), and dropping it does not touch the
/// files, the lock or the parent. Do not call functions there that cannot fail, such as
/// [`Database::stats`]: they may wait for a thread of the parent. The child may open another
/// database, or call `exec`. Until it exits or calls `exec`, the database stays locked even if the
/// parent is killed.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// use braid::{Database, Readable};
///
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path();
/// let db = Database::open(path)?;
/// let accounts = db.open_table::<String, u64>("accounts")?;
///
/// let mut tx = db.begin();
/// tx.insert(&accounts, "Ada", &100)?;
/// tx.insert(&accounts, "Grace", &50)?;
/// tx.commit()?; // both are on the disk now
///
/// db.transact(|tx| {
///     tx.fetch_update(&accounts, "Ada", |balance| Some(balance.unwrap_or(0) - 20))?;
///     tx.fetch_update(&accounts, "Grace", |balance| Some(balance.unwrap_or(0) + 20))?;
///     Ok(())
/// })?;
///
/// let snapshot = db.snapshot();
/// for entry in snapshot.iter(&accounts)? {
///     let (name, balance) = entry?;
///     println!("{name}: {balance}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Database {
    instance: Arc<Instance>,
    /// The instance's engine, stored here to save reads an indirection.
    engine: Arc<Engine>,
    _closer: Arc<Closer>,
}

impl Database {
    pub(crate) fn from_instance(instance: Arc<Instance>) -> Self {
        Self {
            _closer: Arc::new(Closer(instance.clone())),
            engine: instance.engine.clone(),
            instance,
        }
    }

    pub(crate) fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Opens the database in a directory, and creates it if it is missing.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("library");
    /// let db = braid::Database::open(&path)?;
    /// assert!(braid::Database::open(&path).is_err()); // one at a time
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder().open(path)
    }

    /// Opens the database in a directory read-only; see [`Builder::open_read_only`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use braid::{Database, Error, Readable};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// let db = Database::open(path)?;
    /// let table = db.open_table::<u32, String>("t")?;
    /// db.transact(|tx| tx.insert(&table, &1, "one"))?;
    /// drop((table, db));
    ///
    /// let db = Database::open_read_only(path)?;
    /// let table = db.open_table::<u32, String>("t")?;
    /// assert_eq!(db.get(&table, &1)?.as_deref(), Some("one"));
    /// let written = db.transact(|tx| tx.insert(&table, &1, "uno"));
    /// assert!(matches!(written, Err(Error::OpenedReadOnly)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open_read_only`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder().open_read_only(path)
    }

    /// Creates a database in memory, which is freed with its last handle.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// let db = braid::Database::in_memory()?;
    /// let table = db.open_table::<u32, u32>("t")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::OutOfSpace`].
    pub fn in_memory() -> Result<Self> {
        Self::builder().open_on(Arc::new(braid_io::MemoryDevice::new()))
    }

    /// Returns options for opening a database.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// let db = braid::Database::builder().pool_bytes(64 << 20).open(path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Begins a serializable transaction whose commit is durable when it returns.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn begin(&self) -> Transaction {
        self.begin_with(TransactionOptions::default())
    }

    /// Begins a transaction.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// use std::time::Duration;
    /// use braid::{Durability, TransactionOptions};
    /// let mut tx = db.begin_with(TransactionOptions {
    ///     durability: Durability::Buffered(Duration::from_millis(100)),
    ///     ..TransactionOptions::default()
    /// });
    /// tx.insert(&t, &1, "a crash within a tenth of a second may lose this")?;
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn begin_with(&self, options: TransactionOptions) -> Transaction {
        Transaction::begin(&self.engine, options)
    }

    /// Takes a read-only view of the current durable state.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// # use braid::Readable;
    /// let snapshot = db.snapshot();
    /// db.transact(|tx| tx.insert(&t, &1, "one"))?;
    /// assert_eq!(snapshot.get(&t, &1)?, None);
    /// assert_eq!(db.snapshot().get(&t, &1)?.as_deref(), Some("one"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "a snapshot is there to be read"]
    pub fn snapshot(&self) -> Snapshot {
        self.keep_open(Snapshot::new(self.engine.clone()))
    }

    /// Keeps a read-only state open for its snapshots after the handle moves to a newer state.
    pub(crate) fn keep_open(&self, snapshot: Snapshot) -> Snapshot {
        match self.instance.view.get() {
            None => snapshot,
            Some(_) => snapshot.keeping_open(self._closer.clone()),
        }
    }

    /// Reads one key from the current durable state: the same as with a new [`Database::snapshot`],
    /// at less cost.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// db.transact(|tx| tx.insert(&t, &1, "one"))?;
    /// assert_eq!(db.get(&t, &1)?.as_deref(), Some("one"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`crate::Readable::get`].
    pub fn get<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
    ) -> Result<Option<V>> {
        let engine = &self.engine;
        let core = &**engine.table_here(&table.core)?;
        let mut found =
            key.with_key_bytes(|key| engine.read_durable(core, key, |value| value.to_bytes()))?;
        if core.value_format.is_some() {
            found = core.open_stored(found, || engine.clock.now())?;
        }
        found.map(V::from_value_bytes).transpose()
    }

    /// Calls a function with one key's encoded value, as
    /// [`Readable::get_with`](crate::Readable::get_with) of a new [`Database::snapshot`] does, at
    /// less cost: the cheapest read.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let table: braid::Table<u32, String> = db.open_table("t")?;
    /// db.transact(|tx| tx.insert(&table, &1, "one"))?;
    /// assert!(db.get_with(&table, &1, |bytes| bytes == Some(&b"one"[..]))?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`crate::Readable::get_with`].
    pub fn get_with<K: Key, V: Value, R>(
        &self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        let engine = &self.engine;
        let core = &**engine.table_here(&table.core)?;
        let read = |out: &mut Vec<u8>| {
            let found = key
                .with_key_bytes(|key| engine.read_durable(core, key, |value| value.copy_to(out)));
            Ok(found?.is_some())
        };
        core.with_value(read, || engine.clock.now(), f)
    }

    /// Calls `take` with a key's encoded value in place, and returns its result. If a concurrent
    /// write changes the bytes during the call, `take` is called again, and only its last result
    /// counts. For bindings to other languages, which copy the value to memory of their own.
    #[doc(hidden)]
    #[inline(always)]
    pub fn get_by<K: Key, V: Value, R>(
        &self,
        table: &Table<K, V>,
        key: &[u8],
        take: impl FnMut(ValueRef<'_>) -> R,
    ) -> Result<Option<R>> {
        let engine = &self.engine;
        let core = &**engine.table_here(&table.core)?;
        match core.value_format {
            None => engine.read_durable(core, key, take),
            Some(_) => core.take_opened(
                engine.read_durable(core, key, |value| value.to_bytes())?,
                || engine.clock.now(),
                take,
            ),
        }
    }

    /// Blocks until everything committed so far is durable, whatever its [`crate::Durability`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.set_durability(braid::Durability::None);
    /// tx.insert(&t, &1, "one")?;
    /// tx.commit()?; // perhaps only in memory
    /// db.sync()?; // on the device
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Poisoned`], [`crate::Error::Closed`].
    pub fn sync(&self) -> Result<()> {
        self.engine.check_open()?;
        Ok(self.engine.log.sync()?)
    }

    /// Blocks until the transaction with this [sequence number](crate::Ticket::into_seqno), and
    /// all before it, are durable.
    ///
    /// A [`Ticket`](crate::Ticket) waits for the flush of its own transaction, and with the
    /// protocol `gsn` not for flushes of other lanes. Use this function to keep sequence numbers
    /// instead of tickets.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut newest = 0;
    /// for i in 0..100 {
    ///     let mut tx = db.begin();
    ///     tx.insert(&t, &i, "x")?;
    ///     newest = tx.commit_async()?.into_seqno();
    /// }
    /// db.wait_durable(newest)?; // and so all of them
    /// assert!(db.durable_seqno() >= newest);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned) if the log failed before;
    /// [`Error::SeqnoNotFound`](crate::Error::SeqnoNotFound) if no transaction has this sequence
    /// number yet.
    #[inline]
    pub fn wait_durable(&self, number: u64) -> Result<()> {
        let log = &self.engine.log;
        let seqno = SeqNo::new(number);
        if log.durable_seqno() >= seqno {
            return Ok(());
        }
        let newest = log.last_seqno();
        if newest < seqno {
            return Err(crate::Error::SeqnoNotFound {
                seqno: number,
                newest: newest.get(),
            });
        }
        self.engine.check_open()?;
        Ok(log.ticket(seqno).wait()?)
    }

    /// Returns a ticket for the durability of the transaction with this
    /// [sequence number](crate::Ticket::into_seqno), and of all before it: one future for many
    /// commits.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut newest = 0;
    /// for i in 0..100 {
    ///     let mut tx = db.begin();
    ///     tx.insert(&t, &i, "x")?;
    ///     newest = tx.commit_async()?.into_seqno();
    /// }
    /// let (sender, done) = std::sync::mpsc::channel();
    /// db.ticket(newest)?.on_durable(move |outcome| {
    ///     let _ = sender.send(outcome.is_ok());
    /// });
    /// assert_eq!(done.recv(), Ok(true)); // all of them
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::SeqnoNotFound`](crate::Error::SeqnoNotFound) if no transaction has this sequence
    /// number yet; [`Error::Closed`](crate::Error::Closed).
    pub fn ticket(&self, number: u64) -> Result<crate::Ticket> {
        let log = &self.engine.log;
        let seqno = SeqNo::new(number);
        let newest = log.last_seqno();
        if newest < seqno && log.durable_seqno() < seqno {
            return Err(crate::Error::SeqnoNotFound {
                seqno: number,
                newest: newest.get(),
            });
        }
        self.engine.check_open()?;
        Ok(crate::Ticket::new(seqno, log.ticket(seqno)))
    }

    /// Returns the sequence number up to which all transactions are durable.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let commit = tx.commit()?;
    /// assert!(db.durable_seqno() >= commit.seqno());
    /// # Ok(())
    /// # }
    /// ```
    pub fn durable_seqno(&self) -> u64 {
        self.engine.log.durable_seqno().get()
    }

    /// Writes a checkpoint: the log before it is no longer needed, and its space is reused.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let before = db.stats().checkpoints;
    /// db.checkpoint()?;
    /// assert_eq!(db.stats().checkpoints, before + 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::OutOfSpace`], [`crate::Error::Io`] or [`crate::Error::Poisoned`]; the
    /// previous checkpoint stays valid.
    pub fn checkpoint(&self) -> Result<()> {
        // On a poisoned database the checkpoint itself fails, so that the failure is an event.
        if !self.engine.log.is_poisoned() {
            self.engine.check_writable()?;
        }
        let outcome = self.instance.checkpoint();
        outcome.inspect_err(|error| self.engine.note_failure(error))
    }

    /// Copies all durable transactions to the archive of the log, durably, and returns the last
    /// sequence number in the archive; `None` if there is no archive, see [`Builder::archive`].
    /// Otherwise the archive is updated at intervals or, without background threads, at
    /// checkpoints. The newest backup and the archive then cover every sequence number from the
    /// backup's to the returned one; without a backup, the archive contains everything since the
    /// database was created.
    ///
    /// # Errors
    /// Those of the archive's medium; the log is kept then, and the next attempt resumes.
    /// [`BackupError::ArchiveGap`](crate::backup::BackupError::ArchiveGap) if neither the archive
    /// nor a backup contains some transactions, because the log released them: make a backup.
    /// Everything else is archived then.
    pub fn archive_now(&self) -> Result<Option<u64>> {
        self.engine.check_open()?;
        self.instance.run_archiver()?;
        Ok(self.instance.archive.archived().map(SeqNo::get))
    }

    /// Stops keeping log for the database's archive: the next opening with [`Builder::archive`]
    /// finds a gap and requires a new backup. Has no effect if the database was opened with the
    /// archive.
    ///
    /// # Errors
    /// [`crate::Error::Io`], [`crate::Error::OpenedReadOnly`], [`crate::Error::Closed`].
    pub fn end_archive(&self) -> Result<()> {
        self.engine.check_writable()?;
        if !self.instance.archive.is_on() {
            self.instance.copies.end_archive()?;
            self.instance.retention.set_archive(None);
        }
        Ok(())
    }

    /// Returns counters and sizes, among them those of the log
    /// ([`LogStats`](crate::stats::LogStats)) and of the data file
    /// ([`StoreStats`](crate::stats::StoreStats)).
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let stats = db.stats();
    /// println!("{} commits, {} flushes", stats.commits, stats.log.flushes);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stats(&self) -> Stats {
        self.instance.stats()
    }

    /// Returns how much of the database's memory lies on each of the machine's memory nodes (NUMA),
    /// a [`NodePlacement`](crate::stats::NodePlacement) for each of those that have memory, and
    /// processors for this process; with a [`TablespacePlacement`](crate::stats::TablespacePlacement)
    /// for each tablespace. Asks the system for each page of the buffer pool: a large pool takes some
    /// milliseconds per GiB. Empty if the system does not tell.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// for node in db.placement() {
    ///     println!("node {}: {} bytes of the pool", node.node, node.pool_bytes);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn placement(&self) -> Vec<NodePlacement> {
        self.engine().placement()
    }

    /// Publishes the statistics through the facade `metrics`, with a label `database` of this
    /// value; [`Builder::metrics`] does it once a second.
    #[cfg(feature = "metrics")]
    pub fn publish_metrics(&self, database: &str) {
        self.stats().publish(database);
    }

    /// Returns whether the database can be written to, and if not, why.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// use braid::Health;
    /// match db.health() {
    ///     Health::Good => {}
    ///     health => eprintln!("look after the database: {health:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn health(&self) -> Health {
        self.engine.health()
    }

    /// Returns the directory of the log and how its files are accessed, if the log has a
    /// [directory of its own](Builder::log_directory). A handle that only reads reports how a writer
    /// accesses them.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let (data, log) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    /// let builder = braid::Database::builder().log_directory(log.path());
    /// let db = builder.open(data.path())?;
    /// let (directory, device) = db.log_directory().expect("the log is elsewhere");
    /// println!("log in {}, accessed as {device}", directory.display());
    /// # assert!(directory.ends_with(log.path().file_name().unwrap()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn log_directory(&self) -> Option<(&Path, DeviceChoice)> {
        let log = self.instance.files.log.as_ref()?;
        Some((&log.directory, log.device))
    }

    /// Returns what opening the database recovered.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let recovery = db.recovery();
    /// println!("{} transactions replayed in {:?}", recovery.transactions, recovery.duration);
    /// # Ok(())
    /// # }
    /// ```
    pub fn recovery(&self) -> &RecoveryReport {
        &self.instance.recovery
    }

    /// Closes the database: makes all committed transactions durable, writes a last checkpoint,
    /// stops the threads and unlocks the directory. Other handles fail with
    /// [`crate::Error::Closed`] from then on. After this has returned, the database reads and
    /// writes no file, so it can be opened again at once. Commits in flight become durable,
    /// whatever their [`crate::Durability`]; a commit that fails with `Closed` wrote nothing.
    /// Returns at once if another thread has closed the database or is closing it.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let other = db.clone();
    /// db.close()?;
    /// assert!(matches!(other.health(), braid::Health::Closed));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Poisoned`], or those of a checkpoint; acknowledged transactions are safe
    /// even then.
    pub fn close(self) -> Result<()> {
        self.instance.shutdown()
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.instance.fmt(f)
    }
}
