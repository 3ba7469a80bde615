//! For how long background work holds locks that commits take.

use braid_rt::{HoldTime, LongestHold};

/// The longest holds of the store's locks by checkpoints, backups, and whatever frees many pages.
#[derive(Debug)]
pub(crate) struct Holds {
    /// The lock of the open checkpoint, which the first change of a page after an epoch switch
    /// takes, and every change of a block address.
    pub(crate) checkpoint: LongestHold,
    /// The free blocks, from which evictions take.
    pub(crate) space: LongestHold,
    /// The free page ids, from which splits and large values take.
    pub(crate) ids: LongestHold,
}

impl Default for Holds {
    fn default() -> Self {
        Self {
            checkpoint: LongestHold::new("open checkpoint"),
            space: LongestHold::new("free space"),
            ids: LongestHold::new("page ids"),
        }
    }
}

impl Holds {
    /// Returns the longest holds by the name of the lock.
    pub(crate) fn by_gate(&self) -> Vec<(&'static str, HoldTime)> {
        let holds = [&self.checkpoint, &self.space, &self.ids];
        holds.map(|hold| (hold.gate(), hold.time())).into()
    }
}
