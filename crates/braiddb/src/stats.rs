//! What a database tells about itself.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use braid_log::{LogStats, ProtocolKind};
use braid_store::StoreStats;

use crate::archive::Archiver;
use crate::database::Inner;
use crate::error::Error;

const SHARDS: usize = 16;

#[derive(Debug, Default)]
struct Shard {
    commits: AtomicU64,
    conflicts: AtomicU64,
    checkpoints: AtomicU64,
}

/// Event counters, by thread so that counting contends for nothing.
#[derive(Debug)]
pub(crate) struct Counters(Box<[CachePadded<Shard>]>);

impl Counters {
    pub(crate) fn new() -> Self {
        Self((0..SHARDS).map(|_| CachePadded::default()).collect())
    }

    fn shard(&self) -> &Shard {
        &self.0[braid_rt::thread::index() % SHARDS]
    }

    // Relaxed throughout: the counts order nothing.

    pub(crate) fn commit(&self) {
        self.shard().commits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn conflict(&self) {
        self.shard().conflicts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn checkpoint(&self) {
        self.shard().checkpoints.fetch_add(1, Ordering::Relaxed);
    }

    fn sum(&self, counter: impl Fn(&Shard) -> &AtomicU64) -> u64 {
        self.0
            .iter()
            .map(|shard| counter(shard).load(Ordering::Relaxed))
            .sum()
    }
}

/// Counts since the database was opened, and present sizes; see [`crate::Database::stats`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
/// let braid::Stats { commits, conflicts, .. } = db.stats();
/// assert!(conflicts <= commits);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The commit protocol in use.
    pub protocol: ProtocolKind,
    /// Committed transactions, those without writes included.
    pub commits: u64,
    /// Transactions that failed with a conflict.
    pub conflicts: u64,
    /// Published checkpoints.
    pub checkpoints: u64,
    /// Open snapshots.
    pub snapshots: usize,
    /// The number of the oldest open snapshot.
    pub oldest_snapshot: Option<u64>,
    /// Old versions and tombstones that wait to be collected.
    pub garbage: usize,
    /// Entries removed because their time to live was over.
    pub expired: u64,
    /// The number up to which all transactions are durable.
    pub durable_horizon: u64,
    /// Bytes of log behind the newest checkpoint, which a recovery would read.
    pub log_bytes_to_recover: u64,
    /// Whether the last checkpoint failed; [`Health`] says why.
    pub checkpoint_failing: bool,
    /// Whether nothing can be written any more because a write or sync failed; [`Health`] says which.
    pub poisoned: bool,
    /// The log's counters.
    pub log: LogStats,
    /// The store's counters.
    pub store: StoreStats,
    /// The number up to which the log is archived, if it is: see [`crate::Builder::archive`].
    pub archived: Option<u64>,
    /// The number behind which all changes can still be read.
    pub changes_kept_from: u64,
}

/// Whether a database can be written to; see [`crate::Database::health`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
/// assert!(matches!(db.health(), braid::Health::Good));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Health {
    /// Everything works.
    Good,
    /// The last checkpoint failed. Commits go on while there is log space; checkpoints are tried again.
    CheckpointFailing {
        /// Why it failed.
        error: Error,
    },
    /// The last commit found no room in the log. Others that need less may succeed; a checkpoint, or
    /// freeing space on the medium, makes room.
    OutOfSpace {
        /// What needed the space.
        what: String,
    },
    /// The archive can't be written, and commits go on while the log, which is kept for it, has room; it is tried
    /// again. Or the archive lacks transactions that no backup has, see [`crate::Database::archive_now`].
    ArchiveFailing {
        /// Why it failed.
        error: Error,
    },
    /// A write or sync failed: reads go on, writes fail until the database is reopened.
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// Pages are damaged that recovery had to change, or that say what the database holds. It was opened read-only:
    /// what is not named can be read, and nothing is written, so the log keeps what the damaged pages lack. Save it
    /// into a new database with [`crate::salvage`] (`braid verify --repair DB --into DIR`), or restore a backup.
    Damaged {
        /// The tables and ranges of keys that can't be read, and why.
        what: String,
    },
    /// The database was closed.
    Closed,
}

impl Inner {
    pub(crate) fn stats(&self) -> Stats {
        let (snapshots, oldest_snapshot) = self.snapshots.census();
        let log = self.log.stats();
        Stats {
            log_bytes_to_recover: self.maintenance.log_bytes_to_recover(log.written_bytes),
            checkpoint_failing: self.maintenance.last_error.lock().is_some(),
            poisoned: self.poisoned().is_some(),
            commits: self.counters.sum(|s| &s.commits),
            conflicts: self.counters.sum(|s| &s.conflicts),
            checkpoints: self.counters.sum(|s| &s.checkpoints),
            snapshots,
            oldest_snapshot,
            garbage: self.garbage.len(),
            expired: self.sweeps.removed(),
            durable_horizon: self.log.horizon(),
            log,
            protocol: self.meta.protocol,
            store: self.store.stats(),
            archived: self.archiver.as_ref().map(Archiver::archived),
            changes_kept_from: self.retention.oldest(),
        }
    }
}
