//! Where the engine's memory lies.

use braid_rt::numa;

use super::Engine;
use super::spaces::{Space, side_of};
use crate::observe::placement::{NodePlacement, TablespacePlacement};

impl Engine {
    /// Returns the bytes on each memory node; empty if the system does not tell.
    pub(crate) fn placement(&self) -> Vec<NodePlacement> {
        self.count_memory().unwrap_or_default()
    }

    fn count_memory(&self) -> Option<Vec<NodePlacement>> {
        let strands = by_node(|bytes| self.log.count_buffers(bytes))?;
        let mut pool = by_node(|bytes| self.store.count_pool(bytes))?;
        let locks = by_node(|bytes| self.locks.count(bytes))?;
        let mut tablespaces = vec![Vec::new(); numa::nodes()];
        for space in self.spaces.all() {
            for (node, part) in self.count_space(&space)?.into_iter().enumerate() {
                pool[node] += part.pool_bytes;
                tablespaces[node].push(part);
            }
        }
        let of = |(node, tablespaces)| NodePlacement {
            node: numa::system_id(node),
            strand_bytes: strands[node],
            pool_bytes: pool[node],
            lock_bytes: locks[node],
            tablespaces,
        };
        Some(tablespaces.into_iter().enumerate().map(of).collect())
    }

    fn count_space(&self, space: &Space) -> Option<Vec<TablespacePlacement>> {
        let pool = by_node(|bytes| space.store.count_pool(bytes))?;
        let side = side_of(space.number);
        let strands = by_node(|bytes| self.log.count_side_buffers(side, bytes))?;
        let of = |(pool_bytes, strand_bytes)| TablespacePlacement {
            name: space.name.clone(),
            pool_bytes,
            strand_bytes,
        };
        Some(pool.into_iter().zip(strands).map(of).collect())
    }
}

/// Returns the bytes on each memory node that `count` adds; `None` if the system does not tell.
fn by_node(count: impl FnOnce(&mut [u64]) -> bool) -> Option<Vec<u64>> {
    let mut bytes = vec![0; numa::nodes()];
    count(&mut bytes).then_some(bytes)
}
