//! For how long background work holds what commits wait for.

use braid_rt::LongestHold;

use super::Engine;
use crate::observe::stats::GateHold;

/// The longest holds of the engine's own locks.
#[derive(Debug)]
pub(crate) struct Holds {
    /// The page gate, held exclusively. What changes pages outside of a commit waits for it.
    pub(crate) page_gate: LongestHold,
    /// A shard of the garbage, while the collector works.
    pub(crate) garbage: LongestHold,
    /// The old versions of a bucket, while the collector works.
    pub(crate) versions: LongestHold,
}

impl Default for Holds {
    fn default() -> Self {
        Self {
            page_gate: LongestHold::new("page gate"),
            garbage: LongestHold::new("garbage"),
            versions: LongestHold::new("old versions"),
        }
    }
}

impl Engine {
    /// Returns the longest hold of each gate.
    pub(crate) fn gate_holds(&self) -> Vec<GateHold> {
        let Holds {
            page_gate,
            garbage,
            versions,
        } = &self.holds;
        let own = [page_gate, garbage, versions].map(|hold| (hold.gate(), hold.time()));
        let below = self.log.longest_holds().into_iter();
        let holds = below.chain(self.store.longest_holds()).chain(own);
        holds
            .map(|(gate, time)| GateHold {
                gate,
                longest: time.longest,
                elapsed: time.elapsed,
            })
            .collect()
    }
}
