//! Losses of power and killed processes.

use std::time::Duration;

use braid_io::{Device, SimDevice};
use braid_rt::thread;

use super::watched::Watched;
use super::{History, Phase};
use crate::background::Archive;

/// The block size of files in persistent memory.
const MEMORY: usize = 64;

impl History {
    /// Cuts the power after some time, at any operation. A process is often killed while written
    /// data is not yet durable. In persistent memory, the power also often fails then: it tears words.
    pub(super) fn arm(&mut self, within: Duration) -> thread::JoinHandle {
        let devices: Vec<SimDevice> = self.devices().cloned().collect();
        let archive = self.archive.as_ref().map(Archive::medium);
        let phase = self.phase.clone();
        let after = within.mul_f64(self.rng.f64());
        let kill = self.kill;
        let target = self.spaces.target(&self.device);
        let tears_words = target.block_size_of("data.braid") == MEMORY;
        let watches = kill || tears_words && self.rng.bool();
        let watched = watches.then(|| Watched::choose(&target, archive.as_ref(), &mut self.rng));
        thread::spawn("power", move || {
            braid_rt::sleep(after);
            if let Some(watched) = watched.flatten() {
                watched.wait();
            }
            if !devices[0].has_crashed() {
                for device in devices.into_iter().chain(archive) {
                    if kill {
                        device.kill()
                    } else {
                        device.power_off()
                    }
                }
                // No task may be interrupted while it holds this lock, which does not support
                // tasks.
                let mut phase = phase.lock().expect("nobody panics with it");
                phase.1 = Some(phase.0);
            }
        })
        .expect("a task can be started")
    }

    /// Replaces all devices, as a crash or a new process does.
    pub(super) fn replace_devices(&mut self, with: impl Fn(&SimDevice) -> SimDevice) {
        self.device = with(&self.device);
        self.spaces.replace(with);
    }

    /// Returns the medium after the power is restored, or as the next process finds it.
    pub(super) fn restart(&mut self) {
        if self.device.has_crashed() {
            self.outcome.crashes += 1;
            let at = self.phase.lock().expect("nobody panics with it").1.take();
            self.count(match (self.kill, at) {
                (false, Some(Phase::Opening)) => "power cut while opening",
                (false, Some(Phase::Closing)) => "power cut while closing",
                (false, _) => "power cut while working",
                (true, Some(Phase::Opening)) => "killed while opening",
                (true, Some(Phase::Closing)) => "killed while closing",
                (true, _) => "killed while working",
            });
        }
        let kill = self.kill;
        self.replace_devices(|device| {
            if kill {
                device.after_kill()
            } else {
                device.after_crash()
            }
        });
        if let Some(archive) = &mut self.archive {
            archive.restart(self.kill);
        }
        // After a kill, usually the power fails next, and soon, while the killed process's writes
        // may be volatile.
        self.was_killed = self.kill;
        self.kill = self.rng.u32(..5) < if self.was_killed { 1 } else { 2 };
    }
}
