//! Where the engine's memory lies.

use braid_rt::numa;

use super::Engine;
use crate::observe::placement::NodePlacement;

impl Engine {
    /// Returns the bytes on each memory node; empty if the system does not tell.
    pub(crate) fn placement(&self) -> Vec<NodePlacement> {
        let none = || vec![0; numa::nodes()];
        let (mut strands, mut pool, mut locks) = (none(), none(), none());
        let told = self.log.count_buffers(&mut strands)
            && self.stores().all(|store| store.count_pool(&mut pool))
            && self.locks.count(&mut locks);
        if !told {
            return Vec::new();
        }
        let of = |node| NodePlacement {
            node: numa::system_id(node),
            strand_bytes: strands[node],
            pool_bytes: pool[node],
            lock_bytes: locks[node],
        };
        (0..numa::nodes()).map(of).collect()
    }
}
