//! Multi-version concurrency control: old versions, their collection, and the snapshot registry.

pub(crate) mod gc;
pub(crate) mod range_reads;
pub(crate) mod registry;
pub(crate) mod versions;
