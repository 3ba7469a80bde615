//! The database: what is shared by all its handles, and the handle.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use braid_rt::{Mutex, RwLock};
use bytes::Bytes;
use crossbeam_utils::CachePadded;

use braid_io::DirectoryLock;
use braid_log::{LockRelease, Log};
use braid_store::Store;

use crate::archive::Archiver;
use crate::changes::Bell;
use crate::codec::Clock;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::expiry::Sweeps;
use crate::garbage::Garbage;
use crate::health::HealthWatch;
use crate::held::HeldLocks;
use crate::horizon::{Registration, Snapshots};
use crate::locks::LockTable;
use crate::maintenance::{Maintenance, Ticker};
use crate::meta::Meta;
use crate::named::NamedSnapshots;
use crate::options::{Builder, TransactionOptions};
use crate::publish::Publisher;
use crate::range_reads::RangeReads;
use crate::recovery::RecoveryReport;
use crate::retention::Retention;
use crate::snapshot::Snapshot;
use crate::stats::{Counters, Health, Stats};
use crate::table::{Table, TableCore};
use crate::trace::PoisonTold;
use crate::transaction::Transaction;
use crate::types::{AsKey, Key, Value};

const POOL_SHARDS: usize = 16;

/// Contexts beyond these are freed: a burst of transactions must not keep its memory.
const POOLED_MAX: usize = 64;

/// After this many conflicts in a row [`Database::transact`] gives up.
const RETRIES_MAX: u32 = 1_000;

/// Keeps those who collided apart. A victim that began anew at once could take its locks again before the
/// one that waits for them is awake, and collide with it for ever; so the pauses grow, differently for
/// each thread.
fn back_off(tries: u32) {
    if tries < 3 {
        braid_rt::thread::yield_now();
    } else {
        let steps = 1 + (braid_rt::thread::index() as u64 * 7 + u64::from(tries)) % 8;
        braid_rt::sleep(Duration::from_micros(steps << tries.min(9)));
    }
}

/// A context and its database. The pool keeps both together, so that beginning a transaction touches no
/// shared reference count.
pub(crate) struct PooledContext {
    pub(crate) inner: Arc<Inner>,
    pub(crate) state: RefCell<Box<Context>>,
    /// What scans read. They note it here themselves, maybe on other threads, while the transaction goes on.
    pub(crate) ranges: Box<Mutex<RangeReads>>,
}

type ContextPool = Box<[CachePadded<Mutex<Vec<PooledContext>>>]>;

/// What all handles share.
pub(crate) struct Inner {
    pub(crate) log: Log,
    pub(crate) store: Store,
    pub(crate) locks: LockTable,
    pub(crate) held: HeldLocks,
    pub(crate) snapshots: Snapshots,
    pub(crate) garbage: Garbage,
    pub(crate) counters: Counters,
    pub(crate) maintenance: Maintenance,
    pub(crate) health: HealthWatch,
    pub(crate) named: NamedSnapshots,
    pub(crate) clock: Clock,
    pub(crate) sweeps: Sweeps,
    pub(crate) meta: Meta,
    /// Tables by name, as far as they were asked for. Changed only by who holds `catalog_change`, so that a table has
    /// one core.
    pub(crate) tables: RwLock<HashMap<String, Arc<TableCore>>>,
    /// Held while a table is created, renamed or dropped.
    pub(crate) catalog_change: Mutex<()>,
    /// Dropped tables whose pages are freed once no handle is left.
    pub(crate) dropped: Mutex<Vec<Arc<TableCore>>>,
    pub(crate) catalog: Arc<TableCore>,
    /// Shared by whoever changes pages outside of a commit; a checkpoint's flip takes it alone.
    pub(crate) page_gate: RwLock<()>,
    pub(crate) checkpoint_running: Mutex<()>,
    pub(crate) lock_release: LockRelease,
    /// Whether the log is told what a transaction depends on.
    pub(crate) wants_dependencies: bool,
    pub(crate) background: bool,
    pub(crate) transaction_bytes_max: usize,
    pub(crate) checkpoint_log_bytes: u64,
    pub(crate) retention: Retention,
    pub(crate) bell: Arc<Bell>,
    pub(crate) archiver: Option<Archiver>,
    pub(crate) archive_ticker: Ticker,
    pub(crate) archive_interval: Duration,
    /// The newest commit when the database was opened.
    pub(crate) opened_at: u64,
    pub(crate) identity: u64,
    pub(crate) recovery: RecoveryReport,
    pub(crate) lock: Mutex<Option<DirectoryLock>>,
    contexts: ContextPool,
    next_context: AtomicU64,
    pub(crate) publisher: Publisher,
    pub(crate) slow_commit: Option<Duration>,
    pub(crate) poison_told: PoisonTold,
    poison: OnceLock<String>,
    closed: AtomicBool,
    /// Nothing is written to the medium, whatever happens in memory.
    opened_read_only: bool,
}

/// The parts from which a database is opened.
pub(crate) struct Parts {
    pub(crate) log: Log,
    pub(crate) store: Store,
    pub(crate) meta: Meta,
    pub(crate) catalog: Arc<TableCore>,
    pub(crate) retention: Retention,
    pub(crate) archiver: Option<Archiver>,
    pub(crate) opened_at: u64,
    pub(crate) identity: u64,
    pub(crate) recovery: RecoveryReport,
    pub(crate) lock: Option<DirectoryLock>,
}

impl Inner {
    pub(crate) fn new(parts: Parts, options: &Builder) -> Self {
        Self {
            lock_release: parts.meta.protocol.lock_release(),
            wants_dependencies: parts.log.wants_dependencies(),
            held: HeldLocks::new(parts.log.options().strands),
            log: parts.log,
            store: parts.store,
            locks: LockTable::for_pool(options.pool_bytes),
            snapshots: Snapshots::new(),
            garbage: Garbage::new(),
            counters: Counters::new(),
            maintenance: Maintenance::new(),
            health: HealthWatch::new(options.health_listener.clone()),
            named: NamedSnapshots::default(),
            clock: options.clock.clone(),
            sweeps: Sweeps::default(),
            opened_read_only: options.read_only,
            meta: parts.meta,
            tables: RwLock::default(),
            catalog_change: Mutex::default(),
            dropped: Mutex::default(),
            catalog: parts.catalog,
            page_gate: RwLock::default(),
            checkpoint_running: Mutex::default(),
            background: options.background,
            transaction_bytes_max: options.transaction_bytes_max,
            checkpoint_log_bytes: options.checkpoint_log_bytes,
            retention: parts.retention,
            bell: Arc::default(),
            archiver: parts.archiver,
            archive_ticker: Ticker::default(),
            archive_interval: options.archive_interval,
            opened_at: parts.opened_at,
            identity: parts.identity,
            recovery: parts.recovery,
            lock: Mutex::new(parts.lock),
            contexts: (0..POOL_SHARDS).map(|_| CachePadded::default()).collect(),
            next_context: AtomicU64::new(1),
            publisher: Publisher::new(options),
            slow_commit: options.slow_commit,
            poison_told: PoisonTold::default(),
            poison: OnceLock::new(),
            closed: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn begin(self: &Arc<Self>, options: TransactionOptions) -> Transaction {
        let pooled = self.contexts[braid_rt::thread::index() % POOL_SHARDS]
            .lock()
            .pop();
        match pooled {
            Some(context) => Transaction::new(context, options),
            None => Transaction::new(self.new_context(), options),
        }
    }

    #[cold]
    fn new_context(self: &Arc<Self>) -> PooledContext {
        let number = self.next_context.fetch_add(1, Ordering::Relaxed);
        PooledContext {
            inner: self.clone(),
            state: crate::commit::cell(Context::new(number)),
            ranges: Box::default(),
        }
    }

    /// Takes a context back for the next transaction.
    #[inline(always)]
    pub(crate) fn give_back(mut context: PooledContext) {
        context.state.get_mut().clear();
        context.ranges.get_mut().clear();
        // The pool's pointer is taken without touching the shared reference count, which every
        // transaction of every core would otherwise write to twice.
        let inner = Arc::as_ptr(&context.inner);
        // SAFETY: `context.inner` keeps the database alive until `context` is moved into the pool, and
        // from then on the pool's copy does, because only `shutdown`, under a handle's reference, empties
        // it. If the database is closed, the context is dropped last, after the guard.
        let inner = unsafe { &*inner };
        let mut pool = inner.contexts[braid_rt::thread::index() % POOL_SHARDS].lock();
        // The flag is read under the pool's lock, and `shutdown` sets it before it takes that lock.
        if !inner.is_closed() && pool.len() < POOLED_MAX {
            pool.push(context);
        } else {
            drop(pool);
            drop(context);
        }
    }

    pub(crate) fn open_snapshot(&self) -> Registration {
        // `gsn` acknowledges ahead of the horizon: a snapshot holds what its user was told, so it waits for
        // what other lanes had before. A failed log's snapshot is at the horizon.
        let acknowledged = self.log.acknowledged();
        if acknowledged > self.log.horizon() {
            let _ = self.log.ticket(acknowledged).wait();
        }
        self.snapshots.open(braid_rt::thread::index(), || {
            if braid_rt::mutant!("snapshot_of_the_newest") {
                return self.log.applied_before() - 1;
            }
            self.log.horizon()
        })
    }

    /// A snapshot at the newest state that is complete in memory, durable or not.
    #[inline(never)]
    pub(crate) fn open_applied_snapshot(&self) -> Registration {
        self.snapshots
            .open(braid_rt::thread::index(), || self.log.applied_before() - 1)
    }

    /// Whether the table may be used here.
    #[inline]
    pub(crate) fn check_table(&self, table: &TableCore) -> Result<()> {
        if table.database != self.identity {
            return Err(table.foreign());
        }
        if self.is_closed() {
            return Err(Error::Closed);
        }
        table.check_alive()
    }

    pub(crate) fn is_closed(&self) -> bool {
        // Relaxed: whoever begins while another thread closes may come before or after it.
        self.closed.load(Ordering::Relaxed)
    }

    /// I8: after a failure that leaves the state in doubt nothing more is written.
    pub(crate) fn poison(&self, cause: String) {
        self.poison_told.tell(Some(&cause));
        let _ = self.poison.set(cause);
    }

    pub(crate) fn poisoned(&self) -> Option<String> {
        let cause = self.poison.get().cloned().or_else(|| self.log.poisoned());
        self.poison_told.tell(cause.as_deref());
        cause
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.opened_read_only || self.is_closed() || self.poison.get().is_some()
    }

    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_read_only() {
            return Err(self.not_writable());
        }
        Ok(())
    }

    #[cold]
    fn not_writable(&self) -> Error {
        match self.poison.get() {
            Some(cause) => Error::Poisoned {
                cause: cause.clone(),
            },
            None if self.is_closed() => Error::Closed,
            None => Error::OpenedReadOnly,
        }
    }

    /// Takes a write lock. Where locks are held until the flush, whoever meets one makes it happen.
    #[inline(always)]
    pub(crate) fn lock_stripe(
        &self,
        stripe: usize,
        owner: u64,
    ) -> Result<crate::locks::Locked, crate::locks::Deadlock> {
        if self.lock_release != LockRelease::Precommit && self.locks.is_held_by_other(stripe, owner)
        {
            self.flush_for_lock();
        }
        self.locks.lock(stripe, owner)
    }

    #[cold]
    fn flush_for_lock(&self) {
        // An error shows up at this transaction's own commit.
        let _ = self.log.sync();
    }

    /// Asks for a flush within `bound`.
    pub(crate) fn flush_within(&self, bound: Duration) {
        if self.background {
            self.maintenance.flush_within(bound);
        }
    }

    /// Ends the database: flushes, makes a last checkpoint, stops the threads, unlocks the directory.
    fn shutdown(&self) -> Result<()> {
        // SeqCst: whoever does not see it has its transaction in the log before that is closed, or fails
        // to enter it.
        if self.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.maintenance.stop();
        self.archive_ticker.stop();
        self.bell.ring();
        self.unpublish_stats();
        let result = self
            .final_checkpoint()
            .and(self.log.clone().close().map_err(Error::from));
        self.release();
        self.tell_health();
        result
    }

    /// Lets go of everything without writing anything, after opening failed half way.
    pub(crate) fn abandon(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.release();
    }

    /// Empties the pool, whose contexts refer back to the database, and unlocks the directory.
    fn release(&self) {
        for shard in &self.contexts {
            let contexts = std::mem::take(&mut *shard.lock());
            drop(contexts);
        }
        *self.lock.lock() = None;
    }

    fn final_checkpoint(&self) -> Result<()> {
        if let Some(cause) = self.poisoned() {
            return Err(Error::Poisoned { cause });
        }
        self.log.sync()?;
        if self.opened_read_only {
            return Ok(());
        }
        // If it fails, the log is kept, and the next opening goes on with it.
        let _ = self.run_archiver();
        self.checkpoint_if_changed()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

/// Closes the database when the last handle goes.
struct Closer(Arc<Inner>);

impl Drop for Closer {
    fn drop(&mut self) {
        // Nobody is left to take the error. What matters is on the log, and the next open finds it.
        let _ = self.0.shutdown();
    }
}

/// A transactional database of ordered tables.
///
/// A handle is cheap to clone and can be used from any thread. The database closes when the last handle
/// is dropped, or with [`Database::close`].
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
    /// [`Error::OutOfSpace`].
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

    /// Runs `body` in a transaction and commits it, again and again while that fails with a conflict.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// # use braid::Readable;
    /// let is_new = db.transact(|tx| {
    ///     let is_new = !tx.contains_key(&t, &1)?;
    ///     tx.insert(&t, &1, "one")?;
    ///     Ok(is_new)
    /// })?;
    /// assert!(is_new);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first error that a repetition does not help against, or the last conflict after 1,000 tries.
    pub fn transact<R>(&self, body: impl FnMut(&mut Transaction) -> Result<R>) -> Result<R> {
        self.transact_with(TransactionOptions::default(), body)
    }

    /// Runs `body` in a transaction with options, as [`Database::transact`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// use braid::{Durability, TransactionOptions};
    /// let in_memory_first = TransactionOptions {
    ///     durability: Durability::None,
    ///     ..TransactionOptions::default()
    /// };
    /// for i in 0..100 {
    ///     db.transact_with(in_memory_first, |tx| tx.insert(&t, &i, "x"))?;
    /// }
    /// db.sync()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::transact`].
    pub fn transact_with<R>(
        &self,
        options: TransactionOptions,
        mut body: impl FnMut(&mut Transaction) -> Result<R>,
    ) -> Result<R> {
        self.retry_with(options, |mut tx| {
            let result = body(&mut tx)?;
            tx.commit()?;
            Ok(result)
        })
    }

    /// Runs `body` with a new transaction, which it commits itself, again and again while it fails with a
    /// conflict: for bodies that end their transaction in another way than [`Database::transact`] does.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let numbers: braid::Table<u64, u64> = db.table("numbers")?;
    /// let ticket = db.retry(|mut tx| {
    ///     tx.fetch_update(&numbers, &7, |n| Some(n.unwrap_or(0) + 1))?;
    ///     tx.commit_async()
    /// })?;
    /// ticket.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::transact`].
    pub fn retry<R>(&self, body: impl FnMut(Transaction) -> Result<R>) -> Result<R> {
        self.retry_with(TransactionOptions::default(), body)
    }

    fn retry_with<R>(
        &self,
        options: TransactionOptions,
        mut body: impl FnMut(Transaction) -> Result<R>,
    ) -> Result<R> {
        let mut tries = 0;
        loop {
            match body(self.begin_with(options)) {
                Err(error) if error.is_retryable() && tries < RETRIES_MAX => {
                    tries += 1;
                    back_off(tries);
                }
                outcome => return outcome,
            }
        }
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
        Snapshot::new(self.inner.clone())
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
        let (inner, core) = (&self.inner, &*table.core);
        inner.check_table(core)?;
        let stored =
            key.with_key_bytes(|key| inner.read_durable(core, key, |value| value.to_bytes()))?;
        let found: Option<Bytes> = core.open(stored, || inner.clock.now())?;
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
        let (inner, core) = (&self.inner, &*table.core);
        inner.check_table(core)?;
        let read = |out: &mut Vec<u8>| {
            let found =
                key.with_key_bytes(|key| inner.read_durable(core, key, |value| value.copy_to(out)));
            Ok(found?.is_some())
        };
        core.with_value(read, || inner.clock.now(), f)
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
    /// [`Error::Poisoned`].
    pub fn sync(&self) -> Result<()> {
        Ok(self.inner.log.sync()?)
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
    /// [`Error::OutOfSpace`], [`Error::Io`] or [`Error::Poisoned`]; the checkpoint before stays good.
    pub fn checkpoint(&self) -> Result<()> {
        self.inner.check_writable()?;
        let outcome = self.inner.checkpoint();
        outcome.inspect_err(|error| self.inner.note_failure(error))
    }

    /// Brings the archive of the log up to all that is durable now, durably; returns the number up to which it
    /// goes. Without this it follows at intervals, or, without background threads, at checkpoints. `None` if
    /// there is no archive, see [`Builder::archive`].
    ///
    /// # Errors
    /// What the archive's medium fails with; the log is kept then, and the next attempt goes on.
    pub fn archive_now(&self) -> Result<Option<u64>> {
        self.inner.run_archiver()?;
        Ok(self.inner.archiver.as_ref().map(Archiver::archived))
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
    /// unlocks the directory. Other handles fail with [`Error::Closed`] from then on.
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
    /// [`Error::Poisoned`], or what a checkpoint can fail with; what was acknowledged is safe even so.
    pub fn close(self) -> Result<()> {
        self.inner.shutdown()
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
