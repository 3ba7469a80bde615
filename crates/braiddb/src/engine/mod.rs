//! The engine: the state that transactions and snapshots share.
//!
//! The engine knows no service: it writes no checkpoint, keeps no log for an archive, and starts no
//! thread. [`crate::services::Instance`] adds the services.

mod access;
pub(crate) mod agents;
mod collect;
pub(crate) mod context;
mod contexts;
mod flush_timer;
mod health;
pub(crate) mod hint_cache;
mod holds;
pub(crate) mod leaves;
mod moved;
mod placement;
mod savepoints;
pub(crate) mod space_state;
pub(crate) mod spaces;
mod tables;
mod unlock;
mod version_limit;
pub(crate) mod write_set;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use braid_log::{LockRelease, Log, SeqNo};
use braid_rt::{Held, Marked, RwLock, RwLockReadGuard, RwLockWriteGuard};
use braid_store::Store;

use crate::error::{ConflictKind, Error};
use crate::locks::deferred::DeferredUnlocks;
use crate::locks::table::LockTable;
use crate::mvcc::gc::Gc;
use crate::mvcc::registry::{Registration, SnapshotRegistry};
use crate::observe::stats::Counters;
use crate::options::{Builder, Clock};

use self::access::Access;
use self::agents::Agents;
use self::contexts::ContextPool;
pub(crate) use self::contexts::PooledContext;
use self::flush_timer::FlushTimer;
pub(crate) use self::health::ArchiveError;
use self::health::HealthWatch;
use self::holds::Holds;
use self::spaces::Spaces;
pub(crate) use self::tables::{TableMap, Tables};

/// State that all transactions and snapshots of an open database share.
pub(crate) struct Engine {
    pub(crate) log: Log,
    /// The store of the main tablespace.
    pub(crate) store: Store,
    /// The other tablespaces.
    pub(crate) spaces: Spaces,
    pub(crate) locks: LockTable,
    pub(crate) deferred_unlocks: DeferredUnlocks,
    pub(crate) snapshots: SnapshotRegistry,
    pub(crate) gc: Gc,
    pub(crate) tables: Tables,
    contexts: ContextPool,
    access: Access,
    pub(crate) agents: Agents,
    pub(crate) health: HealthWatch,
    pub(crate) counters: Counters,
    pub(crate) clock: Clock,
    pub(crate) flush_timer: FlushTimer,
    /// Held shared while pages change outside of a commit ([`Engine::change_pages`]), and exclusively
    /// while a checkpoint switches the epoch.
    page_gate: RwLock<()>,
    pub(crate) holds: Holds,
    pub(crate) settings: Settings,
    /// Sequence number of the newest commit when the database was opened.
    pub(crate) opened_at: SeqNo,
}

/// Options that transactions consult.
pub(crate) struct Settings {
    pub(crate) lock_release: LockRelease,
    /// Whether the log needs to know which transactions a transaction depends on.
    pub(crate) wants_dependencies: bool,
    /// Whether the log has lanes for tablespaces.
    pub(crate) has_logs: bool,
    /// Whether the database has background threads.
    pub(crate) background: bool,
    pub(crate) transaction_bytes_max: usize,
    pub(crate) slow_commit: Option<Duration>,
    /// Most space of old versions, in bytes, for which snapshots stay open; 0 for no limit.
    pub(crate) max_version_bytes: usize,
    /// Longest wait of a transaction for a lock, unless it has its own.
    pub(crate) lock_timeout: Duration,
}

/// Components of an engine.
pub(crate) struct EngineParts {
    pub(crate) log: Log,
    pub(crate) store: Store,
    pub(crate) spaces: Spaces,
    pub(crate) tables: Tables,
    pub(crate) lock_release: LockRelease,
    pub(crate) opened_at: SeqNo,
    pub(crate) archive_error: Option<ArchiveError>,
}

impl Engine {
    pub(crate) fn new(parts: EngineParts, options: &Builder) -> Arc<Self> {
        let settings = Settings {
            lock_release: parts.lock_release,
            wants_dependencies: parts.log.wants_dependencies(),
            has_logs: parts.log.options().side_lanes > 0,
            background: options.background,
            transaction_bytes_max: options.transaction_bytes_max,
            slow_commit: options.slow_commit,
            max_version_bytes: options.max_version_bytes,
            lock_timeout: options.lock_timeout,
        };
        let engine = Arc::new(Self {
            deferred_unlocks: DeferredUnlocks::new(parts.log.options().all_strands()),
            log: parts.log,
            store: parts.store,
            spaces: parts.spaces,
            locks: LockTable::for_pool(options.pool_bytes, options.numa),
            snapshots: SnapshotRegistry::new(),
            gc: Gc::new(),
            tables: parts.tables,
            contexts: ContextPool::new(),
            access: Access::new(options.read_only),
            agents: Agents::default(),
            health: HealthWatch::new(options.health_listener.clone(), parts.archive_error),
            counters: Counters::new(),
            clock: options.clock.clone(),
            flush_timer: FlushTimer::default(),
            page_gate: RwLock::default(),
            holds: Holds::default(),
            settings,
            opened_at: parts.opened_at,
        });
        engine.watch_version_space();
        engine
    }

    /// Keeps checkpoints from switching the epoch while the caller changes pages outside of a commit,
    /// for a short time: the caller must not pause.
    pub(crate) fn change_pages(&self) -> Marked<RwLockReadGuard<'_, ()>> {
        Marked::new("page gate", self.page_gate.read())
    }

    /// As [`Engine::change_pages`]; `None` while a checkpoint switches the epoch.
    fn try_change_pages(&self) -> Option<Marked<RwLockReadGuard<'_, ()>>> {
        self.page_gate
            .try_read()
            .map(|gate| Marked::new("page gate", gate))
    }

    /// Keeps pages from changing outside of a commit, while a checkpoint switches the epoch. `None` if
    /// they are being changed, unless it `waits`.
    pub(crate) fn hold_pages(&self, waits: bool) -> Option<Held<'_, RwLockWriteGuard<'_, ()>>> {
        let gate = if waits {
            Some(self.page_gate.write())
        } else {
            self.page_gate.try_write()
        };
        gate.map(|gate| self.holds.page_gate.of(gate))
    }

    /// Opens a snapshot at the visible sequence number, after all that is acknowledged is visible.
    pub(crate) fn open_snapshot(&self) -> Registration {
        if self.is_inherited() {
            return Registration::unregistered(self.log.visible_seqno());
        }
        let acknowledged = self.log.acknowledged();
        if acknowledged > self.log.visible_seqno() {
            self.wait_visible(acknowledged);
        }
        self.snapshots.open(braid_rt::thread::index(), || {
            if braid_rt::mutant!("snapshot_of_the_newest") {
                return self.log.applied_before().prev();
            }
            self.log.visible_seqno()
        })
    }

    /// Waits until a snapshot shows everything up to `acknowledged`. A snapshot contains every
    /// acknowledged transaction, but `gsn` acknowledges ahead of the durable seqno, and every
    /// protocol acknowledges transactions while others with smaller numbers are still applied. Does
    /// not wait for the rest of a failed log.
    #[cold]
    #[inline(never)]
    pub(crate) fn wait_visible(&self, acknowledged: SeqNo) {
        if acknowledged > self.log.durable_seqno() {
            let _ = self.log.ticket(acknowledged).wait();
        }
        if !braid_rt::mutant!("snapshot_before_applied") {
            self.log
                .wait_finished(acknowledged.min(self.log.durable_seqno()));
        }
    }

    /// Opens a snapshot at the newest state that is complete in memory, durable or not; at the
    /// visible seqno if the database is poisoned.
    #[inline(never)]
    pub(crate) fn open_applied_snapshot(&self) -> Registration {
        let acknowledged = self.log.acknowledged();
        if acknowledged > self.log.visible_seqno() && !braid_rt::mutant!("snapshot_before_applied")
        {
            self.log.wait_finished(acknowledged);
        }
        self.snapshots.open(braid_rt::thread::index(), || {
            let applied = self.log.applied_before().prev();
            // In this order: a transaction that could not be applied poisons the log before it
            // leaves its commit slot.
            if self.log.is_poisoned() && !braid_rt::mutant!("read_failed_transactions") {
                self.log.visible_seqno()
            } else {
                applied
            }
        })
    }
}

impl Engine {
    /// Counts a conflict and returns its error, which tells the caller to retry.
    #[cold]
    pub(crate) fn conflict(&self, kind: ConflictKind) -> Error {
        self.counters.conflict();
        Error::Conflict(kind)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}
