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
        // One of the devices, alone.
        let device = self.spaces.target(&self.device);
        if let Some(archive) = self.archive.as_ref().map(Archive::medium)
            && self.rng.u32(..3) == 0
        {
            expect("write error in the archive", &archive);
            archive.fail_write_after(self.rng.u64(1..10));
        }
        if self.plan.tight && self.rng.u32(..3) > 0 {
            expect("reads fail at random", &device);
            device.fail_reads_at_random(self.rng.u32(8..200));
        }
        if self.plan.tight && self.rng.u32(..3) == 0 {
            expect("device full with a small pool", &device);
            self.limit_room(&device, 400 << 10);
        }
        match self.rng.u32(..8) {
            0 => {
                expect("write error", &device);
                device.fail_write_after(n);
            }
            1 => {
                expect("sync error", &device);
                device.fail_sync_after(n);
            }
            2 => {
                expect("read error", &device);
                device.fail_read_after(n);
            }
            3 => {
                expect("device broken for good", &device);
                device.break_after(n);
            }
            4 | 5 => {
                expect("device full", &device);
                self.limit_room(&device, 200 << 10);
            }
            _ => {}
        }
        injected
    }

    /// Lets a device run full after fewer than `bytes` more.
    fn limit_room(&mut self, device: &SimDevice, bytes: u64) {
        let room = self.rng.u64(..bytes);
        device.set_capacity(Some(device.used() + room));
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
                if self.spaces.has(&device) {
                    self.count(match what {
                        "device broken for good" => "a tablespace's device broken for good",
                        "device full" | "device full with a small pool" => {
                            "a tablespace's device full"
                        }
                        "reads fail at random" | "read error" => "a tablespace's read error",
                        _ => "a tablespace's write or sync error",
                    });
                }
            }
            device.repair();
        }
        self.repair();
    }
}
