//! Write locks of keys.

pub(crate) mod deferred;
pub(crate) mod table;
#[cfg(all(test, not(loom)))]
mod tests;
pub(crate) mod wait_graph;
