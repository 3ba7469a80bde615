//! The disturbances by name, and the sizes of their data.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Something that runs next to the steady load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Nothing: the baseline.
    Quiet,
    /// Checkpoints in a loop, of data that changes in between.
    Checkpoints,
    /// One large transaction.
    LargeTransaction,
    /// One transaction of blind writes to scattered keys of a table larger than the pool.
    ScatteredWrites,
    /// Transactions of a hundred such writes, one after the other.
    ColdWrites,
    /// A bulk load.
    BulkLoad,
    /// The drop of a large table that is not in memory.
    DropTable,
    /// The end of a snapshot over old versions.
    SnapshotVersions,
    /// The end of a snapshot over removals.
    SnapshotRemovals,
    /// A sweep of expired entries.
    ExpiredEntries,
    /// A full backup.
    Backup,
    /// A compaction.
    Compaction,
    /// A change feed whose reader is slow.
    SlowFeed,
    /// `stats` in a loop.
    Stats,
    /// `verify` in a loop.
    Verify,
    /// Updates and reads of one key under an old snapshot.
    HotKey,
    /// Buffered commits and nothing else.
    BufferedQuiet,
    /// Buffered commits while the maintenance thread writes checkpoints.
    BufferedCheckpoints,
    /// Buffered commits while a large table is dropped.
    BufferedDrop,
}

impl Scenario {
    /// All scenarios, in the order in which they run.
    pub const ALL: [Scenario; 19] = [
        Scenario::Quiet,
        Scenario::Checkpoints,
        Scenario::LargeTransaction,
        Scenario::ScatteredWrites,
        Scenario::ColdWrites,
        Scenario::BulkLoad,
        Scenario::DropTable,
        Scenario::SnapshotVersions,
        Scenario::SnapshotRemovals,
        Scenario::ExpiredEntries,
        Scenario::Backup,
        Scenario::Compaction,
        Scenario::SlowFeed,
        Scenario::Stats,
        Scenario::Verify,
        Scenario::HotKey,
        Scenario::BufferedQuiet,
        Scenario::BufferedCheckpoints,
        Scenario::BufferedDrop,
    ];

    /// Returns the name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Quiet => "quiet",
            Scenario::Checkpoints => "checkpoints",
            Scenario::LargeTransaction => "large-transaction",
            Scenario::ScatteredWrites => "scattered-writes",
            Scenario::ColdWrites => "cold-writes",
            Scenario::BulkLoad => "bulk-load",
            Scenario::DropTable => "drop-table",
            Scenario::SnapshotVersions => "snapshot-versions",
            Scenario::SnapshotRemovals => "snapshot-removals",
            Scenario::ExpiredEntries => "expired-entries",
            Scenario::Backup => "backup",
            Scenario::Compaction => "compaction",
            Scenario::SlowFeed => "slow-feed",
            Scenario::Stats => "stats",
            Scenario::Verify => "verify",
            Scenario::HotKey => "hot-key",
            Scenario::BufferedQuiet => "buffered-quiet",
            Scenario::BufferedCheckpoints => "buffered-checkpoints",
            Scenario::BufferedDrop => "buffered-drop",
        }
    }

    /// Returns a sentence for the help, with the sizes at scale 1.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Scenario::Quiet => "nothing: the baseline, always measured",
            Scenario::Checkpoints => "checkpoints of 128 MiB in a loop",
            Scenario::LargeTransaction => "one transaction of 256 MiB",
            Scenario::ScatteredWrites => {
                "one transaction of a million blind writes to a table four times the pool"
            }
            Scenario::ColdWrites => {
                "transactions of 100 blind writes to a table four times the pool, in a loop"
            }
            Scenario::BulkLoad => "a bulk load of 2 GiB",
            Scenario::DropTable => "the drop of a table of 2 GiB that is not in memory",
            Scenario::SnapshotVersions => "the end of a snapshot over 5 million old versions",
            Scenario::SnapshotRemovals => "the end of a snapshot over 2 million removals",
            Scenario::ExpiredEntries => "the removal of 5 million expired entries",
            Scenario::Backup => "a full backup of 2 GiB to a file",
            Scenario::Compaction => "a compaction that moves 1 GiB",
            Scenario::SlowFeed => "a reader of changes that reads 100 transactions a second",
            Scenario::Stats => "statistics in a loop",
            Scenario::Verify => "a check of all data, 2 GiB, in a loop",
            Scenario::HotKey => "updates and snapshot reads of one key under an old snapshot",
            Scenario::BufferedQuiet => "lateness of buffered commits next to nothing",
            Scenario::BufferedCheckpoints => {
                "lateness of buffered commits during automatic checkpoints of 128 MiB"
            }
            Scenario::BufferedDrop => {
                "lateness of buffered commits during the drop of a table of 2 GiB"
            }
        }
    }

    /// Returns whether the commits of the load are buffered instead of waited for.
    #[must_use]
    pub fn is_buffered(self) -> bool {
        matches!(
            self,
            Scenario::BufferedQuiet | Scenario::BufferedCheckpoints | Scenario::BufferedDrop
        )
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Scenario::ALL.into_iter().find(|s| s.name() == name);
        found.ok_or_else(|| format!("there is no scenario {name}"))
    }
}

/// Bound of a buffered commit, and of its lateness.
pub(super) const BOUND: Duration = Duration::from_millis(20);

/// Size of the value of a small entry, in bytes.
pub(super) const SMALL: usize = 100;

/// Size of the value of a large entry, in bytes.
pub(super) const LARGE: usize = 1_000;

/// Amounts of data, at a scale.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    scale: f64,
    pub(super) pool_bytes: usize,
}

impl Sizes {
    /// Smallest default pool, which holds the records of the load.
    const POOL_MIN: usize = 32 << 20;

    /// Returns the sizes at a scale; the pool shrinks with the data, unless a size is given.
    pub(super) fn new(scale: f64, pool_bytes: Option<usize>) -> Self {
        let scaled = (f64::from(256 << 20) * scale) as usize;
        Sizes {
            scale,
            pool_bytes: pool_bytes.unwrap_or(scaled.max(Self::POOL_MIN)),
        }
    }

    fn scaled(self, full: u64) -> u64 {
        ((full as f64 * self.scale) as u64).max(1)
    }

    /// Returns the number of entries of [`LARGE`] values in a transaction of 256 MiB.
    pub(super) fn transaction_entries(self) -> u64 {
        self.scaled((256 << 20) / (LARGE as u64 + 8))
    }

    /// Returns the number of entries of [`LARGE`] values in a table of 2 GiB.
    pub(super) fn table_entries(self) -> u64 {
        self.scaled((2 << 30) / (LARGE as u64 + 8))
    }

    /// Returns the number of blind writes.
    pub(super) fn scattered_writes(self) -> u64 {
        self.scaled(1_000_000)
    }

    /// Returns the number of entries of [`SMALL`] values in a table four times the pool.
    pub(super) fn cold_entries(self) -> u64 {
        4 * self.pool_bytes as u64 / (SMALL as u64 + 8)
    }

    /// Returns the number of entries of [`SMALL`] values that a checkpoint writes the pages of.
    pub(super) fn checkpoint_entries(self) -> u64 {
        self.scaled((128 << 20) / (SMALL as u64 + 8))
    }

    /// Returns the number of old versions.
    pub(super) fn versions(self) -> u64 {
        self.scaled(5_000_000)
    }

    /// Returns the number of removals.
    pub(super) fn removals(self) -> u64 {
        self.scaled(2_000_000)
    }

    /// Returns the number of expired entries.
    pub(super) fn expired(self) -> u64 {
        self.scaled(5_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_different_and_parsed() {
        for scenario in Scenario::ALL {
            assert_eq!(scenario.name().parse(), Ok(scenario));
        }
        assert!("nothing".parse::<Scenario>().is_err());
    }

    #[test]
    fn sizes_are_the_full_ones_at_scale_1() {
        let full = Sizes::new(1.0, None);
        assert_eq!((full.pool_bytes, full.versions()), (256 << 20, 5_000_000));
        assert_eq!(full.table_entries(), 2_130_440);
        let tiny = Sizes::new(1e-9, None);
        assert_eq!((tiny.pool_bytes, tiny.versions()), (32 << 20, 1));
    }
}
