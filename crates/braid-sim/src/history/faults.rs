//! Faults of the devices while clients work.

use braid_io::SimDevice;

use super::History;
use crate::background::Archive;

/// An injected fault, which may occur or not.
pub(super) struct Injected {
    what: &'static str,
    device: SimDevice,
    /// The device's count of faults before.
    before: u64,
}

impl Injected {
    fn new(what: &'static str, device: &SimDevice) -> Self {
        Self {
            what,
            device: device.clone(),
            before: device.faults(),
        }
    }
}

impl History {
    /// Injects faults that occur while the clients work.
    pub(super) fn inject(&mut self) -> Vec<Injected> {
        let mut injected = Vec::new();
        if !self.plan.errors {
            return injected;
        }
        let mut expect = |what, device: &SimDevice| injected.push(Injected::new(what, device));
        let n = self.rng.u64(1..60);
        if let Some(archive) = self.archive.as_ref().map(Archive::medium)
            && self.rng.u32(..3) == 0
        {
            expect("write error in the archive", &archive);
            archive.fail_write_after(self.rng.u64(1..10));
        }
        if self.plan.tight && self.rng.u32(..3) > 0 {
            expect("reads fail at random", &self.device);
            self.device.fail_reads_at_random(self.rng.u32(8..200));
        }
        if self.plan.tight && self.rng.u32(..3) == 0 {
            expect("device full with a small pool", &self.device);
            self.limit_room(400 << 10);
        }
        match self.rng.u32(..8) {
            0 => {
                expect("write error", &self.device);
                self.device.fail_write_after(n);
            }
            1 => {
                expect("sync error", &self.device);
                self.device.fail_sync_after(n);
            }
            2 => {
                expect("read error", &self.device);
                self.device.fail_read_after(n);
            }
            3 => {
                expect("device broken for good", &self.device);
                self.device.break_after(n);
            }
            4 | 5 => {
                expect("device full", &self.device);
                self.limit_room(200 << 10);
            }
            _ => {}
        }
        injected
    }

    /// Lets the device run full after fewer than `bytes` more.
    fn limit_room(&mut self, bytes: u64) {
        let room = self.rng.u64(..bytes);
        self.device.set_capacity(Some(self.device.used() + room));
    }

    /// Counts the injected faults that occurred, and disables further faults.
    pub(super) fn count_faults(&mut self, injected: Vec<Injected>) {
        for Injected {
            what,
            device,
            before,
        } in injected
        {
            if device.faults() > before {
                self.count(what);
            }
            device.repair();
        }
        self.device.repair();
    }
}
