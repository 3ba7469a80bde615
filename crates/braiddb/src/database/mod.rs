//! The database: its handle, and what all handles share.

mod inner;
mod transact;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use braid_store::ValueRef;

use crate::archive::Archiver;
use crate::error::Result;
use crate::options::{Builder, TransactionOptions};
use crate::recovery::RecoveryReport;
use crate::snapshot::Snapshot;
use crate::stats::{Health, Stats};
use crate::table::Table;
use crate::transaction::Transaction;
use crate::types::{AsKey, Key, Value};

pub(crate) use self::inner::{Closer, Inner, Parts, PooledContext};

/// A transactional database of ordered tables.
///
/// A handle is cheap to clone and can be used from any thread. The database closes when the last handle
/// is dropped, or with [`Database::close`].
///
/// A child process made by `fork` cannot use what it inherits, a database as little as what was made from it: each use
/// fails with [`Error::Forked`](crate::Error::Forked), and dropping it leaves the files, the lock and the parent alone. (What
/// cannot fail, such as [`Database::stats`], should not be called there: it may wait for a thread of the parent.) The child
/// may open another database, or call `exec`. While it lives and has not done that, the database stays locked even if
/// the parent is killed.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// use braid::{Database, Readable};
///
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path();
/// let db = Database::open(path)?;
/// let accounts = db.table::<String, u64>("accounts")?;
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
    inner: Arc<Inner>,
    _closer: Arc<Closer>,
}

impl Database {
    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        Self {
            _closer: Arc::new(Closer(inner.clone())),
            inner,
        }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Opens the database in a directory, which is created if it is missing.
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

    /// Opens the database in a directory to read from it; see [`Builder::open_read_only`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use braid::{Database, Error, Readable};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// let db = Database::open(path)?;
    /// let table = db.table::<u32, String>("t")?;
    /// db.transact(|tx| tx.insert(&table, &1, "one"))?;
    /// drop((table, db));
    ///
    /// let db = Database::open_read_only(path)?;
    /// let table = db.table::<u32, String>("t")?;
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

    /// A database in memory, gone with its last handle.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// let db = braid::Database::in_memory()?;
    /// let table = db.table::<u32, u32>("t")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::OutOfSpace`].
    pub fn in_memory() -> Result<Self> {
        Self::builder().open_on(Arc::new(braid_io::MemoryDevice::new()))
    }

    /// Options for opening a database.
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
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
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
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
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
        self.inner.begin(options)
    }

    /// A read-only view of what is durable now.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
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
        self.keep_open(Snapshot::new(self.inner.clone()))
    }

    /// A state that is only read stays open for its snapshots, though the handle moves on.
    pub(crate) fn keep_open(&self, snapshot: Snapshot) -> Snapshot {
        match self.inner.view.get() {
            None => snapshot,
            Some(_) => snapshot.keeping_open(self._closer.clone()),
        }
    }

    /// Reads one key as a [`Database::snapshot`] of its own would, at less cost.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
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
        let inner = &self.inner;
        let core = &**inner.table_here(&table.core)?;
        let mut found =
            key.with_key_bytes(|key| inner.read_durable(core, key, |value| value.to_bytes()))?;
        if core.codec.is_some() {
            found = core.open_stored(found, || inner.clock.now())?;
        }
        found.map(V::from_value_bytes).transpose()
    }

    /// Looks at one key's encoded value, as a [`Database::snapshot`] of its own would with
    /// [`Readable::get_with`](crate::Readable::get_with), at less cost: the cheapest read there is.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let table: braid::Table<u32, String> = db.table("t")?;
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
        let inner = &self.inner;
        let core = &**inner.table_here(&table.core)?;
        let read = |out: &mut Vec<u8>| {
            let found =
                key.with_key_bytes(|key| inner.read_durable(core, key, |value| value.copy_to(out)));
            Ok(found?.is_some())
        };
        core.with_value(read, || inner.clock.now(), f)
    }

    /// What `take` makes of a key's encoded value where it lies. Only what it returned last counts: others may be
    /// changing what it sees, and then it is called again. For interfaces to other languages, which have a place of their
    /// own for a value.
    #[doc(hidden)]
    #[inline(always)]
    pub fn get_by<K: Key, V: Value, R>(
        &self,
        table: &Table<K, V>,
        key: &[u8],
        take: impl FnMut(ValueRef<'_>) -> R,
    ) -> Result<Option<R>> {
        let inner = &self.inner;
        let core = &**inner.table_here(&table.core)?;
        match core.codec {
            None => inner.read_durable(core, key, take),
            Some(_) => core.take_opened(
                inner.read_durable(core, key, |value| value.to_bytes())?,
                || inner.clock.now(),
                take,
            ),
        }
    }

    /// Blocks until everything committed so far is durable, whatever its [`crate::Durability`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
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
        self.inner.check_open()?;
        Ok(self.inner.log.sync()?)
    }

    /// Blocks until the transaction of this [number](crate::Ticket::into_number), and all before it, are durable.
    ///
    /// A [`Ticket`](crate::Ticket) waits for its transaction's own flush, and with the protocol `gsn` not for those of
    /// other lanes; this is for those who would rather keep numbers than tickets.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// let mut newest = 0;
    /// for i in 0..100 {
    ///     let mut tx = db.begin();
    ///     tx.insert(&t, &i, "x")?;
    ///     newest = tx.commit_async()?.into_number();
    /// }
    /// db.wait_durable(newest)?; // and so all of them
    /// assert!(db.durable_horizon() >= newest);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned) if the log failed before;
    /// [`Error::NumberMissing`](crate::Error::NumberMissing) if no transaction has the number yet.
    #[inline]
    pub fn wait_durable(&self, number: u64) -> Result<()> {
        let log = &self.inner.log;
        if log.horizon() >= number {
            return Ok(());
        }
        let newest = log.last_number();
        if newest < number {
            return Err(crate::Error::NumberMissing { number, newest });
        }
        self.inner.check_open()?;
        Ok(log.ticket(number).wait()?)
    }

    /// The number up to which all transactions are durable.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let commit = tx.commit()?;
    /// assert!(db.durable_horizon() >= commit.number());
    /// # Ok(())
    /// # }
    /// ```
    pub fn durable_horizon(&self) -> u64 {
        self.inner.log.horizon()
    }

    /// Writes a checkpoint now: the log before it is no longer needed, and its space is reused.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// let before = db.stats().checkpoints;
    /// db.checkpoint()?;
    /// assert_eq!(db.stats().checkpoints, before + 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::OutOfSpace`], [`crate::Error::Io`] or [`crate::Error::Poisoned`]; the checkpoint before stays good.
    pub fn checkpoint(&self) -> Result<()> {
        // On a poisoned database the checkpoint itself fails, so that the failure is an event.
        if !self.inner.log.is_poisoned() {
            self.inner.check_writable()?;
        }
        let outcome = self.inner.checkpoint();
        outcome.inspect_err(|error| self.inner.note_failure(error))
    }

    /// Brings the archive of the log up to all that is durable now, durably; returns the number up to which it
    /// goes. Without this it follows at intervals, or, without background threads, at checkpoints. `None` if
    /// there is no archive, see [`Builder::archive`]. The newest backup and the archive then lead to every number
    /// from the backup's to this one; without a backup, the archive has everything since the database was created.
    ///
    /// # Errors
    /// What the archive's medium fails with; the log is kept then, and the next attempt goes on.
    /// [`BackupError::ArchiveGap`](crate::BackupError::ArchiveGap) if there are transactions that neither the archive
    /// nor a backup has, because the log had released them: make a backup. Everything else is archived then.
    pub fn archive_now(&self) -> Result<Option<u64>> {
        self.inner.check_open()?;
        self.inner.run_archiver()?;
        Ok(self.inner.archiver.as_ref().map(Archiver::archived))
    }

    /// Stops keeping log for the archive that the database had: the next opening with [`Builder::archive`] begins
    /// with a gap, and asks for a new backup. Does nothing if the database was opened with the archive.
    ///
    /// # Errors
    /// [`crate::Error::Io`], [`crate::Error::OpenedReadOnly`], [`crate::Error::Closed`].
    pub fn end_archive(&self) -> Result<()> {
        self.inner.check_writable()?;
        if self.inner.archiver.is_none() {
            self.inner.copies.end_archive()?;
            self.inner.retention.set_archive(None);
        }
        Ok(())
    }

    /// Counters and sizes.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// let stats = db.stats();
    /// println!("{} commits, {} flushes", stats.commits, stats.log.flushes);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Publishes the statistics through the facade `metrics` now, with a label `database` of this value;
    /// [`Builder::metrics`] does it once a second.
    #[cfg(feature = "metrics")]
    pub fn publish_metrics(&self, database: &str) {
        self.stats().publish(database);
    }

    /// Whether the database can be written to, and why not.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// use braid::Health;
    /// match db.health() {
    ///     Health::Good => {}
    ///     health => eprintln!("look after the database: {health:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn health(&self) -> Health {
        self.inner.health()
    }

    /// What opening the database had to recover.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// let recovery = db.recovery();
    /// println!("{} transactions replayed in {:?}", recovery.transactions, recovery.duration);
    /// # Ok(())
    /// # }
    /// ```
    pub fn recovery(&self) -> &RecoveryReport {
        &self.inner.recovery
    }

    /// Closes the database: waits for what is committed, writes a last checkpoint, stops the threads and
    /// unlocks the directory. Other handles fail with [`crate::Error::Closed`] from then on: nothing of the database reads or
    /// writes a file after this has returned, so it can be opened again at once. Commits in flight are waited for and made
    /// durable, whatever their [`crate::Durability`]; a commit that fails with `Closed` wrote nothing. Returns at once if
    /// another thread has closed the database, or is closing it.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// let other = db.clone();
    /// db.close()?;
    /// assert!(matches!(other.health(), braid::Health::Closed));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Poisoned`], or what a checkpoint can fail with; what was acknowledged is safe even so.
    pub fn close(self) -> Result<()> {
        self.inner.shutdown()
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
