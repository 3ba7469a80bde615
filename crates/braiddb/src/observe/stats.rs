//! Statistics of a database.

use std::path::PathBuf;
use std::time::Duration;

use braid_rt::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use braid_log::{LogStats, ProtocolKind};
use braid_store::StoreStats;

use crate::base::remote_access::RemoteAccess;

const SHARDS: usize = 16;

#[derive(Debug, Default)]
struct Shard {
    read_only_commits: AtomicU64,
    conflicts: AtomicU64,
    checkpoints: AtomicU64,
    snapshots_ended: AtomicU64,
}

/// Sums of the event counters.
pub(crate) struct Counts {
    pub(crate) read_only_commits: u64,
    pub(crate) conflicts: u64,
    pub(crate) checkpoints: u64,
    pub(crate) snapshots_ended: u64,
}

/// Event counters, one shard for each thread, so that counting does not contend.
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

    /// Counts a commit without writes; [`crate::mvcc::gc::Gc::commits`] counts the others.
    pub(crate) fn read_only_commit(&self) {
        self.shard()
            .read_only_commits
            .fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn conflict(&self) {
        self.shard().conflicts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn checkpoint(&self) {
        self.shard().checkpoints.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshots_ended(&self, count: u64) {
        let ended = &self.shard().snapshots_ended;
        ended.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the current counts.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            read_only_commits: self.sum(|s| &s.read_only_commits),
            conflicts: self.sum(|s| &s.conflicts),
            checkpoints: self.sum(|s| &s.checkpoints),
            snapshots_ended: self.sum(|s| &s.snapshots_ended),
        }
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
    /// Open snapshots, without those that Braid has ended.
    pub snapshots: usize,
    /// Sequence number of the oldest open snapshot.
    pub oldest_snapshot: Option<u64>,
    /// Old versions and tombstones that await collection.
    pub old_versions: usize,
    /// Space of these, in bytes: memory, and the pages of large values.
    pub old_version_bytes: usize,
    /// Snapshots that ended because of
    /// [`Builder::max_version_bytes`](crate::Builder::max_version_bytes).
    pub snapshots_ended: u64,
    /// Entries removed because their time to live had ended.
    pub expired: u64,
    /// Sequence number up to which all transactions are durable.
    pub durable_seqno: u64,
    /// Bytes of log after the newest checkpoint, which a recovery would read.
    pub log_bytes_to_recover: u64,
    /// Whether the last checkpoint failed; [`Health`](crate::Health) says why.
    pub checkpoint_failing: bool,
    /// Whether a failed write or sync has made the database read-only; [`Health`](crate::Health)
    /// has the cause.
    pub poisoned: bool,
    /// The log's counters.
    pub log: LogStats,
    /// The store's counters: those of the main tablespace, if there are others.
    pub store: StoreStats,
    /// The other tablespaces.
    pub tablespaces: Vec<TablespaceStats>,
    /// Sequence number up to which the log is archived, if there is an archive; see
    /// [`crate::Builder::archive`].
    pub archived: Option<u64>,
    /// Sequence number after which all changes can still be read.
    pub changes_kept_from: u64,
    /// For how long work other than a commit has held what commits wait for, by gate.
    pub gate_holds: Vec<GateHold>,
}

/// A tablespace other than the main one; see
/// [`Database::create_tablespace`](crate::Database::create_tablespace).
///
/// ```
/// let db = braid::Database::in_memory()?;
/// for tablespace in db.stats().tablespaces {
///     println!("{} has {} bytes", tablespace.name, tablespace.store.file_bytes);
/// }
/// # Ok::<(), braid::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TablespaceStats {
    /// The name.
    pub name: String,
    /// The directory; `None` on a device of the caller.
    pub directory: Option<PathBuf>,
    /// The counters of its store.
    pub store: StoreStats,
    /// Whether it has a log of its own, or will have one with the next opening.
    pub own_log: bool,
    /// The directory of that log, if it is not that of the data.
    pub log_directory: Option<PathBuf>,
    /// Bytes written to that log since the database was opened.
    pub log_bytes: u64,
    /// The system's number of the memory node that was chosen for it.
    pub memory_node: Option<usize>,
    /// Whether its memory is placed there: otherwise the machine lacks the node, or
    /// [`Builder::numa`](crate::Builder::numa) is off. `false` without a node.
    pub is_on_node: bool,
    /// How threads of other nodes use it: by an [agent](crate::Builder::remote_access), or directly. Never
    /// [`RemoteAccess::Auto`].
    pub remote_access: RemoteAccess,
    /// Requests of other threads that its agent did.
    pub agent_requests: u64,
    /// Requests that the threads did themselves, because the agent had no room or did not begin soon.
    pub agent_refusals: u64,
    /// Whether its newest checkpoint could not be written: its tables can then only be read, unless
    /// space is all that it lacks.
    pub failing: bool,
    /// Bytes of log that are kept for it because of that, in all logs.
    pub log_kept_bytes: u64,
}

/// The longest time for which work other than a commit, such as a checkpoint or the collection of old
/// versions, has held a lock or gate for which commits wait. Aim of the engine: at most 1 ms.
///
/// ```
/// let db = braid::Database::in_memory()?;
/// for hold in db.stats().gate_holds {
///     println!("{} was held for at most {:?}", hold.gate, hold.longest);
/// }
/// # Ok::<(), braid::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GateHold {
    /// Name of the gate.
    pub gate: &'static str,
    /// The longest hold since the database was opened. If the system suspended the thread although it
    /// waited for nothing, its processor time counts. (Linux; elsewhere the same as `elapsed`.)
    pub longest: Duration,
    /// The longest hold, including the time in which the system ran other threads instead.
    pub elapsed: Duration,
}
