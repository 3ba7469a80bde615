//! What is shared by all handles of a database.

pub(crate) mod context;
pub(crate) mod hint_cache;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use braid_io::Gate;
use braid_log::{LockRelease, Log};
use braid_rt::{Mutex, Process, RwLock};
use braid_store::Store;

use crate::engine::context::Context;
use crate::error::{Error, Result};
use crate::format::meta::Meta;
use crate::locks::deferred::DeferredUnlocks;
use crate::locks::table::{LockTable, User, first_owner};
use crate::mvcc::gc::Gc;
use crate::mvcc::range_reads::RangeReads;
use crate::mvcc::registry::{Registration, SnapshotRegistry};
use crate::observe::health::HealthWatch;
use crate::observe::stats::Counters;
use crate::observe::trace::PoisonReported;
use crate::options::{Builder, TransactionOptions};
use crate::read::named::NamedSnapshots;
use crate::readers::{Readers, View};
use crate::recovery::RecoveryReport;
use crate::schema::table::{Identity, TableCore};
use crate::schema::value_format::Clock;
use crate::services::archive::Archiver;
use crate::services::changes::Notifier;
use crate::services::copies::Copies;
use crate::services::maintenance::{Maintenance, Ticker};
use crate::services::publish::Publisher;
use crate::services::retention::Retention;
use crate::services::ttl::Sweeps;
use crate::txn::transaction::Transaction;

const POOL_SHARDS: usize = 16;

/// Contexts beyond these are freed: a burst of transactions must not keep its memory.
const POOLED_MAX: usize = 64;

/// A context and its database. The pool keeps both together, so that beginning a transaction touches no
/// shared reference count.
pub(crate) struct PooledContext {
    pub(crate) inner: Arc<Inner>,
    pub(crate) state: RefCell<Box<Context>>,
    /// What scans read. They note it here themselves, maybe on other threads, while the transaction goes on.
    pub(crate) ranges: Box<Mutex<RangeReads>>,
}

impl Drop for PooledContext {
    /// Contexts are dropped when the pool has enough of them or is emptied, and then hold nothing but room in the data
    /// file. One that a panic drops on its way out of a commit releases here what it holds, or other transactions would
    /// wait for it forever.
    fn drop(&mut self) {
        if !braid_rt::mutant!("keep_locks_on_unwind") {
            let state = &mut **self.state.get_mut();
            self.inner.unlock_all(state);
            self.inner.close_snapshot(state);
        }
        let room = &mut self.state.get_mut().room;
        self.inner.store.release_room(room);
    }
}

type ContextPool = Box<[CachePadded<Mutex<Vec<PooledContext>>>]>;

/// What all handles share.
pub(crate) struct Inner {
    pub(crate) log: Log,
    pub(crate) store: Store,
    pub(crate) locks: LockTable,
    pub(crate) deferred_unlocks: DeferredUnlocks,
    pub(crate) snapshots: SnapshotRegistry,
    pub(crate) gc: Gc,
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
    /// Shared by whoever changes pages outside of a commit; a checkpoint's epoch switch takes it
    /// alone.
    pub(crate) page_gate: RwLock<()>,
    pub(crate) checkpoint_running: Mutex<()>,
    pub(crate) lock_release: LockRelease,
    /// Whether the log is told what a transaction depends on.
    pub(crate) wants_dependencies: bool,
    pub(crate) background: bool,
    pub(crate) transaction_bytes_max: usize,
    pub(crate) checkpoint_log_bytes: u64,
    pub(crate) retention: Retention,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) copies: Copies,
    pub(crate) archiver: Option<Archiver>,
    pub(crate) archive_ticker: Ticker,
    pub(crate) archive_interval: Duration,
    /// The newest commit when the database was opened.
    pub(crate) opened_at: u64,
    pub(crate) identity: Identity,
    pub(crate) recovery: RecoveryReport,
    /// I9: every operation on a file passes it; closing shuts it.
    pub(crate) gate: Gate,
    /// Readers in other processes, if this one writes.
    pub(crate) readers: Option<Arc<Readers>>,
    /// Where the state comes from, if it is only read.
    pub(crate) view: OnceLock<View>,
    /// The tables of this state by their numbers, once a handle from another state is used.
    pub(crate) tables_of_state: OnceLock<BTreeMap<u32, Arc<TableCore>>>,
    contexts: ContextPool,
    next_context: AtomicU64,
    pub(crate) publisher: Publisher,
    pub(crate) slow_commit: Option<Duration>,
    pub(crate) file_mode: u32,
    /// The database's directory, without links; none on a device.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) poison_reported: PoisonReported,
    process: Process,
    /// The number of `process`; that of no process once the database is closed.
    open_in: AtomicU64,
    /// What is damaged, in a database that was opened read-only for that.
    pub(crate) damage: OnceLock<String>,
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
    pub(crate) copies: Copies,
    pub(crate) archiver: Option<Archiver>,
    pub(crate) opened_at: u64,
    pub(crate) identity: Identity,
    pub(crate) recovery: RecoveryReport,
    pub(crate) gate: Gate,
    pub(crate) readers: Option<Arc<Readers>>,
}

impl Inner {
    pub(crate) fn new(parts: Parts, options: &Builder) -> Self {
        let process = Process::current();
        Self {
            lock_release: parts.meta.protocol.lock_release(),
            wants_dependencies: parts.log.wants_dependencies(),
            deferred_unlocks: DeferredUnlocks::new(parts.log.options().strands),
            log: parts.log,
            store: parts.store,
            locks: LockTable::for_pool(options.pool_bytes),
            snapshots: SnapshotRegistry::new(),
            gc: Gc::new(),
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
            notifier: Arc::default(),
            copies: parts.copies,
            archiver: parts.archiver,
            archive_ticker: Ticker::default(),
            archive_interval: options.archive_interval,
            opened_at: parts.opened_at,
            identity: parts.identity,
            recovery: parts.recovery,
            gate: parts.gate,
            readers: parts.readers,
            view: OnceLock::new(),
            tables_of_state: OnceLock::new(),
            contexts: (0..POOL_SHARDS).map(|_| CachePadded::default()).collect(),
            next_context: AtomicU64::new(1),
            publisher: Publisher::new(options),
            slow_commit: options.slow_commit,
            file_mode: options.file_mode,
            directory: options.directory.clone(),
            poison_reported: PoisonReported::default(),
            process,
            open_in: AtomicU64::new(process.number()),
            damage: OnceLock::new(),
        }
    }

    #[inline]
    pub(crate) fn begin(self: &Arc<Self>, options: TransactionOptions) -> Transaction {
        if self.is_closed() {
            // In a child made by `fork` the pool's lock may be held for ever.
            return Transaction::new(self.new_context(), options);
        }
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
        let owner = first_owner(self.next_context.fetch_add(1, Ordering::Relaxed));
        let user = match self.is_inherited() {
            true => User::of_nobody(owner),
            false => self.locks.user(owner),
        };
        PooledContext {
            inner: self.clone(),
            state: crate::txn::commit::cell(Context::new(owner, user)),
            ranges: Box::default(),
        }
    }

    /// Takes a context back for the next transaction.
    #[inline(always)]
    pub(crate) fn recycle(mut context: PooledContext) {
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

    /// Makes contexts that nobody uses give dropped tables up. One that is in use does so when it comes back.
    pub(crate) fn forget_dropped_tables(&self) {
        if braid_rt::mutant!("remember_dropped_tables") {
            return;
        }
        for shard in &self.contexts {
            for context in &mut *shard.lock() {
                context.state.get_mut().forget_dropped_tables();
            }
        }
    }

    /// Makes contexts that nobody uses give up the room in the data file that they keep.
    pub(crate) fn release_idle_room(&self) {
        for shard in &self.contexts {
            for context in &mut *shard.lock() {
                self.store.release_room(&mut context.state.get_mut().room);
            }
        }
        self.store.give_room_back();
    }

    pub(crate) fn open_snapshot(&self) -> Registration {
        if self.is_inherited() {
            return Registration::of_nobody(self.log.durable_seqno());
        }
        // `gsn` acknowledges ahead of the durable seqno: a snapshot holds what its user was told,
        // so it waits for what other lanes had before. A failed log's snapshot is at the durable
        // seqno.
        let acknowledged = self.log.acknowledged();
        if acknowledged > self.log.durable_seqno() {
            let _ = self.log.ticket(acknowledged).wait();
        }
        self.snapshots.open(braid_rt::thread::index(), || {
            if braid_rt::mutant!("snapshot_of_the_newest") {
                return self.log.applied_before() - 1;
            }
            self.log.durable_seqno()
        })
    }

    /// A snapshot at the newest state that is complete in memory, durable or not; at the durable
    /// seqno, if the database is poisoned.
    #[inline(never)]
    pub(crate) fn open_applied_snapshot(&self) -> Registration {
        self.snapshots.open(braid_rt::thread::index(), || {
            let applied = self.log.applied_before() - 1;
            // In this order: a transaction that could not be applied poisons the log before it leaves it.
            match self.log.is_poisoned() && !braid_rt::mutant!("read_what_failed") {
                true => self.log.durable_seqno(),
                false => applied,
            }
        })
    }

    /// The table of a handle, as it is in this state of the database, to be read.
    #[inline]
    pub(crate) fn table_here<'a>(
        self: &'a Arc<Self>,
        table: &'a Arc<TableCore>,
    ) -> Result<&'a Arc<TableCore>> {
        if table.database.state != self.identity.state {
            return self.table_of_state(table);
        }
        self.check_open()?;
        table.check_alive()?;
        Ok(table)
    }

    /// Whether the table may be written here.
    #[inline]
    pub(crate) fn check_table(&self, table: &TableCore) -> Result<()> {
        if table.database.state != self.identity.state {
            return Err(table.foreign());
        }
        self.check_open()?;
        table.check_alive()
    }

    /// Whether the database is closed, or open in the parent of this process only.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        // Relaxed: whoever begins while another thread closes may come before or after it.
        !Process::from_number(self.open_in.load(Ordering::Relaxed)).is_current()
    }

    /// Whether the database may be used, by this process.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`].
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() {
            return Err(self.not_open());
        }
        Ok(())
    }

    #[cold]
    fn not_open(&self) -> Error {
        match self.process.is_current() {
            true => Error::Closed,
            false => Error::Forked,
        }
    }

    /// Whether a parent of this process opened the database: then its locks may be held by threads that this process
    /// does not have, and nothing of it may be touched.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        !self.process.is_current()
    }

    /// I8: after a failure that leaves the state in doubt, no transaction is acknowledged and no checkpoint is
    /// published. The log keeps the cause, since it acknowledges.
    pub(crate) fn poison(&self, cause: &str) {
        self.log.poison(cause);
        self.poison_reported.tell(Some(cause));
    }

    pub(crate) fn poisoned(&self) -> Option<String> {
        let cause = self.log.poisoned();
        self.poison_reported.tell(cause.as_deref());
        cause
    }

    /// Fails once the database is poisoned (I8).
    pub(crate) fn check_not_poisoned(&self) -> Result<()> {
        match self.poisoned() {
            Some(cause) => Err(Error::Poisoned { cause }),
            None => Ok(()),
        }
    }

    /// Whether a transaction may be shown what it reads in place, where `newest` is the newest version of it.
    ///
    /// After a failure, versions above the durable seqno may be a part of a transaction. All
    /// transactions up to the durable seqno are whole, so a reader that meets no greater version
    /// sees the state at the durable seqno.
    #[inline(always)]
    pub(crate) fn check_shown(&self, newest: impl FnOnce() -> u64) -> Result<()> {
        match self.log.is_poisoned() {
            true => self.check_durable(newest()),
            false => Ok(()),
        }
    }

    #[cold]
    fn check_durable(&self, newest: u64) -> Result<()> {
        if newest <= self.log.durable_seqno() || braid_rt::mutant!("read_what_failed") {
            return Ok(());
        }
        self.check_not_poisoned()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.opened_read_only || self.is_closed() || self.log.is_poisoned()
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
        match self.check_not_poisoned() {
            Err(error) => error,
            Ok(()) if self.is_closed() => self.not_open(),
            Ok(()) if let Some(damage) = self.damage.get() => Error::Corrupted {
                what: "cannot write: the database is damaged and was opened read-only".into(),
                location: damage.clone(),
            },
            Ok(()) => Error::OpenedReadOnly,
        }
    }

    /// Takes a write lock. Where locks are held until the flush, whoever meets one makes it happen.
    #[inline(always)]
    pub(crate) fn lock_stripe(
        &self,
        stripe: usize,
        owner: u64,
    ) -> Result<crate::locks::table::Locked, crate::locks::table::Deadlock> {
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

    /// Closes the database: refuses further commits, flushes, writes a last checkpoint, stops the threads, shuts the
    /// gate, and releases the lock on the directory.
    pub(crate) fn shutdown(&self) -> Result<()> {
        if self.is_inherited() {
            return Err(Error::Forked);
        }
        if !self.refuse_users() {
            return Ok(());
        }
        self.stop_threads();
        self.notifier.notify();
        // Commits that assign a number before this are in the log, and the flush takes them; others
        // fail.
        if !braid_rt::mutant!("accept_commits_after_close") {
            self.log.seal();
        }
        let written = {
            // A checkpoint that is under way ends first, and no other one begins.
            let _last = self.checkpoint_running.lock();
            self.final_checkpoint()
        };
        let result = written.and(self.log.clone().close().map_err(Error::from));
        self.release();
        self.tell_health();
        result
    }

    /// Ends what an opening that failed half way has begun, without writing anything. The opener shuts the gate, unless it
    /// tries again.
    pub(crate) fn abandon(&self) {
        self.refuse_users();
        self.stop_threads();
        self.empty_pool();
    }

    /// Refuses all further use. Returns whether the database was open.
    fn refuse_users(&self) -> bool {
        let none = Process::none().number();
        // SeqCst: whoever does not see it has its transaction in the log before that is sealed, or fails
        // to enter it.
        self.open_in.swap(none, Ordering::SeqCst) != none
    }

    fn stop_threads(&self) {
        self.maintenance.stop();
        self.archive_ticker.stop();
    }

    /// Empties the pool, whose contexts refer back to the database.
    fn empty_pool(&self) {
        for shard in &self.contexts {
            let contexts = std::mem::take(&mut *shard.lock());
            drop(contexts);
        }
    }

    /// Shuts the gate (I9), which releases the lock on the directory.
    fn release(&self) {
        self.empty_pool();
        self.store.give_room_back();
        self.gate.shut(|| {
            self.unpublish_stats();
            if let Some(archiver) = &self.archiver {
                archiver.release();
            }
            if let Some(readers) = &self.readers {
                readers.release();
            }
        });
    }

    fn final_checkpoint(&self) -> Result<()> {
        self.check_not_poisoned()?;
        self.log.sync()?;
        if self.opened_read_only {
            return Ok(());
        }
        // If it fails, the log is kept, and the next opening goes on with it.
        let _ = self.run_archiver();
        let noted = self.archiver.as_ref();
        let _ = noted.map(|archiver| archiver.note(&self.log, &self.copies));
        match self.is_checkpoint_due() {
            true => self.checkpoint_locked(),
            false => Ok(()),
        }
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
#[derive(Debug)]
pub(crate) struct Closer(pub(crate) Arc<Inner>);

impl Drop for Closer {
    fn drop(&mut self) {
        if self.0.is_inherited() {
            // What it is made of is the parent's, threads and locks included: it stays as it is, for ever.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        // Nobody is left to take the error. What matters is on the log, and the next open finds it.
        let _ = self.0.shutdown();
    }
}
