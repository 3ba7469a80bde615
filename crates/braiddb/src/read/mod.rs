//! Reads at one sequence number: snapshots, and the range scans that transactions share.

pub(crate) mod named;
pub(crate) mod scan;
pub(crate) mod snapshot;
