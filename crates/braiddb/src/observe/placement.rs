//! Where the memory of an open database lies.

/// The memory of a database on one memory node (NUMA), in bytes; from
/// [`Database::placement`](crate::Database::placement).
///
/// Memory that was not used yet lies on no node.
///
/// ```
/// let db = braid::Database::in_memory()?;
/// for node in db.placement() {
///     let of_tablespaces: u64 = node.tablespaces.iter().map(|part| part.pool_bytes).sum();
///     println!("node {}: {} of {} bytes", node.node, of_tablespaces, node.pool_bytes);
/// }
/// # Ok::<(), braid::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodePlacement {
    /// The system's number of the node.
    pub node: usize,
    /// Buffers of the strands, also of tablespaces' logs.
    pub strand_bytes: u64,
    /// Pages of the buffer pools of all tablespaces.
    pub pool_bytes: u64,
    /// The table of locks.
    pub lock_bytes: u64,
    /// The parts of tablespaces other than the main one, in the order of their numbers.
    pub tablespaces: Vec<TablespacePlacement>,
}

/// The memory of a tablespace on one memory node, in bytes; in [`NodePlacement::tablespaces`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TablespacePlacement {
    /// The tablespace's name.
    pub name: String,
    /// Pages of its buffer pool.
    pub pool_bytes: u64,
    /// Buffers of the strands of its own log.
    pub strand_bytes: u64,
}
