//! Making the data file as short as it can be.

use crate::database::Database;
use crate::error::Result;

/// Checkpoints that a compaction makes at most: what one replaces is free only for the next.
const ROUNDS_MAX: u32 = 16;

/// What [`Database::compact`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactReport {
    /// The data file's length before, in bytes.
    pub bytes_before: u64,
    /// Its length now.
    pub bytes_after: u64,
    /// How many checkpoints that took.
    pub checkpoints: u32,
}

impl Database {
    /// Moves the pages at the end of the data file into free space before them, and cuts the file.
    ///
    /// This is done by checkpoints, which write to free space and switch to it at once, so a crash at any
    /// moment leaves the state before or after one of them, and transactions go on meanwhile. Pages that are
    /// partly empty stay so. The file needs room for one checkpoint's page map beyond what it holds.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let logs = db.table::<u32, String>("logs")?;
    /// db.transact(|tx| (0..1_000).try_for_each(|n| tx.insert(&logs, &n, "a line".repeat(20).as_str())))?;
    /// db.checkpoint()?;
    /// db.drop_table("logs")?;
    /// drop(logs);
    /// let report = db.compact()?;
    /// assert!(report.bytes_after <= report.bytes_before);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::checkpoint`]; the checkpoint before stays good.
    pub fn compact(&self) -> Result<CompactReport> {
        let inner = self.inner();
        inner.check_writable()?;
        let bytes_before = self.stats().store.file_bytes;
        // What was dropped or removed gives its pages back first.
        inner.collect_all_garbage();
        inner.free_dropped_tables()?;
        inner.checkpoint()?;
        let mut bytes_after = self.stats().store.file_bytes;
        let mut checkpoints = 1;
        while checkpoints < ROUNDS_MAX {
            inner.shrinking_checkpoint()?;
            checkpoints += 1;
            inner.release_idle_room();
            let bytes = self.stats().store.file_bytes;
            if bytes >= bytes_after {
                break;
            }
            bytes_after = bytes;
        }
        Ok(CompactReport {
            bytes_before,
            bytes_after: self.stats().store.file_bytes,
            checkpoints,
        })
    }
}
