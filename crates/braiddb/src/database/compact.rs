//! Compaction of the data file.

use super::Database;
use crate::error::Result;
use crate::services::compact::CompactReport;

impl Database {
    /// Shrinks the data file: fills partly empty pages, moves pages from the end of the file into
    /// free blocks, and truncates the file. Returns the sizes before and after, as a
    /// [`CompactReport`].
    ///
    /// Checkpoints write to free blocks and switch atomically, so a crash at any moment leaves the
    /// state before or after one of them. Transactions, snapshots and scans continue meanwhile.
    /// Filling pages needs space for the changed pages until the next checkpoint; if the device is
    /// full, pages stay partly empty. The rest needs free space for the page map of one checkpoint.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let logs = db.open_table::<u32, String>("logs")?;
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
    /// As [`Database::checkpoint`]; the previous checkpoint stays valid.
    pub fn compact(&self) -> Result<CompactReport> {
        self.instance().compact()
    }
}
