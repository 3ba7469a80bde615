//! What the engine keeps for readers of older states: versions, and the registry of open snapshots.

pub(crate) mod gc;
pub(crate) mod range_reads;
pub(crate) mod registry;
pub(crate) mod versions;
