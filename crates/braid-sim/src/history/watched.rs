//! Times to kill a process, or to cut the power: often while data is written that is not durable yet.

use std::time::Duration;

use braid_io::SimDevice;
use fastrand::Rng;

/// A file that a killer watches: the process is killed, or the power fails, when data in it is visible
/// and not durable yet.
pub(super) struct Watched {
    device: SimDevice,
    /// The prefix of the files' names.
    name: &'static str,
}

impl Watched {
    /// The number of the killer's looks, and the time between them.
    const LOOKS: u32 = 500;
    const PAUSE: Duration = Duration::from_micros(5);

    pub(super) fn choose(
        device: &SimDevice,
        archive: Option<&SimDevice>,
        rng: &mut Rng,
    ) -> Option<Self> {
        let (device, name) = match (rng.u32(..6), archive) {
            (0, Some(archive)) => (archive, "archive"),
            // Superblocks: written pages without a sync are not significant.
            (0..3, _) => (device, "data.braid"),
            (3, _) => (device, ""),
            _ => return None,
        };
        let device = device.clone();
        Some(Self { device, name })
    }

    pub(super) fn wait(&self) {
        let is_data = self.name == "data.braid";
        let pick = |name: &str, is_write| name.starts_with(self.name) && (is_write || !is_data);
        for _ in 0..Self::LOOKS {
            if self.device.has_crashed() || self.device.is_syncing(pick) {
                return;
            }
            braid_rt::sleep(Self::PAUSE);
        }
    }
}
