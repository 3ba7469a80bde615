//! What a database tells about itself.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use braid_log::{LogStats, ProtocolKind};
use braid_store::StoreStats;

use crate::engine::Inner;
use crate::error::Error;
use crate::services::archive::Archiver;

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

/// Counters since the database was opened, and current sizes; see [`crate::Database::stats`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
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
    /// Committed transactions, including those without writes.
    pub commits: u64,
    /// Transactions that failed with a conflict.
    pub conflicts: u64,
    /// Published checkpoints.
    pub checkpoints: u64,
    /// Open snapshots.
    pub snapshots: usize,
    /// Sequence number of the oldest open snapshot.
    pub oldest_snapshot: Option<u64>,
    /// Old versions and tombstones that await collection.
    pub old_versions: usize,
    /// Entries removed because their time to live had ended.
    pub expired: u64,
    /// Sequence number up to which all transactions are durable.
    pub durable_seqno: u64,
    /// Bytes of log after the newest checkpoint, which a recovery would read.
    pub log_bytes_to_recover: u64,
    /// Whether the last checkpoint failed; [`Health`] says why.
    pub checkpoint_failing: bool,
    /// Whether a failed write or sync has made the database read-only; [`Health`] says which.
    pub poisoned: bool,
    /// The log's counters.
    pub log: LogStats,
    /// The store's counters.
    pub store: StoreStats,
    /// Sequence number up to which the log is archived, if there is an archive; see
    /// [`crate::Builder::archive`].
    pub archived: Option<u64>,
    /// Sequence number after which all changes can still be read.
    pub changes_kept_from: u64,
}

/// State of a database, whether it can be written to; see [`crate::Database::health`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// assert!(matches!(db.health(), braid::Health::Good));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Health {
    /// Everything works.
    Good,
    /// The last checkpoint failed. Commits continue while there is log space; checkpoints are
    /// retried.
    CheckpointFailing {
        /// Why it failed.
        error: Error,
    },
    /// The last commit found no space in the log. Smaller ones may succeed; a checkpoint or free
    /// space on the medium helps.
    OutOfSpace {
        /// What needed the space.
        what: String,
    },
    /// Writing the archive fails and is retried; commits continue while the log, which is kept for
    /// the archive, has space. Or the archive lacks transactions that no backup contains, see
    /// [`crate::Database::archive_now`].
    ArchiveFailing {
        /// Why it failed.
        error: Error,
    },
    /// A write or sync failed: reads continue, writes fail until the database is reopened.
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// Pages that recovery must change, or that describe the database's contents, are damaged. The
    /// database was opened read-only: everything not named can be read, and nothing is written, so
    /// the log keeps the data for the damaged pages. Salvage it into a new database with
    /// [`crate::salvage`] (`braid verify --repair DB --into DIR`), or restore a backup.
    Damaged {
        /// Tables and ranges of keys that cannot be read, and why.
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
            old_versions: self.gc.len(),
            expired: self.sweeps.removed(),
            durable_seqno: self.log.durable_seqno(),
            log,
            protocol: self.meta.protocol,
            store: self.store.stats(),
            archived: self.archiver.as_ref().map(Archiver::archived),
            changes_kept_from: self.retention.oldest(),
        }
    }
}
