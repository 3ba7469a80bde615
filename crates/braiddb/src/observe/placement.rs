//! Where the memory of an open database lies.

/// The memory of a database on one memory node (NUMA), in bytes; from
/// [`Database::placement`](crate::Database::placement).
///
/// Memory that was not used yet lies on no node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodePlacement {
    /// The system's number of the node.
    pub node: usize,
    /// Buffers of the strands.
    pub strand_bytes: u64,
    /// Pages of the buffer pool.
    pub pool_bytes: u64,
    /// The table of locks.
    pub lock_bytes: u64,
}
