//! An archive of the log on a medium of its own: with the first backup it leads to any later state.

use std::sync::Arc;
use std::time::Duration;

use braid::{Builder, MemoryDevice, Restore, Result, Until};
use braid_io::SimDevice;
use fastrand::Rng;

use super::copies::{Copies, Copy, look};
use crate::check::Violation;
use crate::record::Found;

/// The archive of a history. Its medium loses power with the database's.
pub(crate) struct Archive(SimDevice);

impl Archive {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SimDevice::new(seed))
    }

    pub(crate) fn medium(&self) -> SimDevice {
        self.0.clone()
    }

    pub(crate) fn restart(&mut self, kill: bool) {
        self.0 = match kill {
            true => self.0.after_kill(),
            false => self.0.after_crash(),
        };
    }

    pub(crate) fn ask_for(&self, builder: Builder, rng: &mut Rng) -> Builder {
        let interval = Duration::from_micros(rng.u64(200..5_000));
        let medium = Arc::new(self.0.clone());
        builder.archive_on(medium).archive_interval(interval)
    }

    fn restore(&self, copy: &Copy, until: Until) -> Result<Found> {
        let device = MemoryDevice::new();
        let restore = Restore::new()
            .pool_bytes(1 << 20)
            .archive_on(Arc::new(self.0.clone()))
            .until(until);
        let restore = copy
            .chain
            .iter()
            .fold(restore, |restore, bytes| restore.stream(&bytes[..]));
        restore.run_on(Arc::new(device.clone()))?;
        look(device)
    }

    /// The archive was brought up to date: with the first backup it must lead to what is there now, and to what
    /// the last backup had.
    pub(crate) fn check(&self, copies: &Copies, now: &Found) -> std::result::Result<(), Violation> {
        let Some((first, last)) = copies.ends() else {
            return Ok(());
        };
        let targets = [(Until::End, now), (Until::Number(last.number), &last.found)];
        for (until, wanted) in targets {
            let found = self.restore(&first, until);
            let found = found.map_err(|error| format!("the archive up to {until:?}: {error}"))?;
            if let Some(id) = wanted.marks.symmetric_difference(&found.marks).next() {
                let there = found.marks.contains(id);
                return Err(format!(
                    "the archive up to {until:?} has {}{id}",
                    if there { "" } else { "not " }
                ));
            }
            if found.state != wanted.state {
                return Err(format!(
                    "the archive up to {until:?} leads to another state: {found}"
                ));
            }
        }
        Ok(())
    }
}
