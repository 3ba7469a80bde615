//! Reports of a recovery, while it runs and afterwards.

use std::time::Duration;

/// Progress of a recovery; see [`Builder::recovery_progress`](crate::Builder::recovery_progress).
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let builder = braid::Database::builder().pool_bytes(1 << 20);
/// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
/// let builder = builder.recovery_progress(|progress: &braid::stats::RecoveryProgress| {
///     println!("{} transactions after {:?}", progress.transactions, progress.elapsed);
/// });
/// let db = builder.open_on(device)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RecoveryProgress {
    /// Bytes of log scanned so far.
    pub scanned_bytes: u64,
    /// Maximum number of bytes of log to scan.
    pub total_bytes: u64,
    /// Transactions replayed so far; the scan comes first.
    pub transactions: u64,
    /// Time since opening began.
    pub elapsed: Duration,
}

/// Work of recovery when a database was opened; see
/// [`Database::recovery`](crate::Database::recovery).
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// let report: &braid::stats::RecoveryReport = db.recovery();
/// assert_eq!(report.transactions, 0); // it is new
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Bytes of log read.
    pub log_bytes: u64,
    /// Transactions replayed.
    pub transactions: u64,
    /// Complete transactions in the log that followed a gap, so none of them was acknowledged.
    pub discarded: u64,
    /// Time to read the log and find its end.
    pub scan: Duration,
    /// Total time of opening.
    pub duration: Duration,
}
