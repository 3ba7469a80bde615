//! End point of a restore.

use std::time::SystemTime;

/// Point to which a database is restored; see [`Restore::until`](crate::backup::Restore::until).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Until {
    /// The end of the backups and the archive.
    End,
    /// After the transaction with this sequence number.
    Seqno(u64),
    /// After the transactions that were durable at this time, with the resolution of the archive:
    /// it records the durable sequence number at intervals of [`crate::Builder::archive_interval`].
    Time(SystemTime),
}
