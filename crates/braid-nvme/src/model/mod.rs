//! A model of a controller, with faults, that drives the very code of the driver.
//!
//! [`ModelHost`] is a [`Host`]: it has the registers, fetches commands from the queues in memory,
//! performs them on blocks in memory, and writes completions, all according to a seed: late, in any
//! order, twice, for commands that do not exist, or not at all. It fails commands, ignores aborts,
//! reports a fatal status, hangs in a reset, loses its cache in a reset, and disappears. It records
//! what a driver must not do: access memory after it was freed (rule N1 of [`crate::controller`]),
//! ring a doorbell with a wrong value, or send a malformed command.
//!
//! [`exercise`] runs random commands on it and checks the outcomes; see the function.

mod device;
mod exercise;
mod memory;

use std::sync::Arc;
use std::time::Duration;

use braid_rt::Mutex;

use crate::controller::Host;
use crate::{DmaBuffer, DriveError, DrivePath};
use device::Device;
use memory::Memory;

pub use exercise::{Exercise, exercise};

/// How a [`ModelHost`] misbehaves: each rate is a share of 256 commands, or of 256 resets.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelFaults {
    /// Completions that are never written.
    pub lost: u8,
    /// Commands that take as long as the driver's time limit, more or less.
    pub slow: u8,
    /// Completions that are written twice.
    pub duplicate: u8,
    /// Completions of commands that do not exist, in addition.
    pub foreign: u8,
    /// Commands that fail with a media error or another status.
    pub error: u8,
    /// Aborts that have no effect.
    pub deaf: u8,
    /// Commands after which the controller reports a fatal status, and stops.
    pub fatal: u8,
    /// Commands after which the drive is gone.
    pub removed: u8,
    /// Resets that do not end.
    pub stuck: u8,
    /// Resets that lose the volatile cache.
    pub forgetful: u8,
}

/// Properties of a [`ModelHost`].
#[derive(Clone, Copy, Debug)]
pub struct ModelOptions {
    /// Determines all that happens.
    pub seed: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Binary logarithm of the block size.
    pub block_shift: u8,
    /// Whether completed writes are volatile until a flush.
    pub volatile_cache: bool,
    /// Largest number of queues.
    pub queues: u16,
    /// Largest number of entries of a queue.
    pub entries: u16,
    /// Binary logarithm of the distance of doorbells, in units of four bytes.
    pub stride_shift: u8,
    /// Binary logarithm of the largest transfer, in pages.
    pub transfer_shift: u8,
    /// Faults.
    pub faults: ModelFaults,
}

impl Default for ModelOptions {
    /// 4,096 blocks of 512 bytes, a volatile cache, eight queues of 64 entries, no faults.
    fn default() -> Self {
        Self {
            seed: 0,
            blocks: 4096,
            block_shift: 9,
            volatile_cache: true,
            queues: 8,
            entries: 64,
            stride_shift: 0,
            transfer_shift: 5,
            faults: ModelFaults::default(),
        }
    }
}

/// A model of a controller; see the module's documentation. Clones share the controller.
#[derive(Clone)]
pub struct ModelHost {
    memory: Arc<Memory>,
    device: Arc<Mutex<Device>>,
}

impl ModelHost {
    /// Creates a controller after power-on.
    pub fn new(options: ModelOptions) -> Self {
        let memory = Arc::new(Memory::default());
        let device = Device::new(options, memory.clone());
        Self {
            memory,
            device: Arc::new(Mutex::new(device)),
        }
    }

    /// Returns what the driver did that it must not do.
    pub fn violations(&self) -> Vec<String> {
        self.device.lock().violations.clone()
    }

    /// Returns the contents of a block after a power failure, as `seed` determines.
    pub fn after_power_failure(&self, seed: u64) -> impl Fn(u64) -> Vec<u8> + use<> {
        let blocks = self.device.lock().blocks.survivors(seed);
        move |lba| blocks.newest(lba).to_vec()
    }

    /// Returns a controller without faults that has what a power failure leaves now, as `seed`
    /// determines.
    pub fn after_restart(&self, seed: u64) -> Self {
        let device = self.device.lock();
        let next = Self::new(ModelOptions {
            seed,
            faults: ModelFaults::default(),
            ..*device.options()
        });
        next.device.lock().blocks = device.blocks.survivors(seed);
        drop(device);
        next
    }

    /// Sets how the controller misbehaves from here on.
    pub fn set_faults(&self, faults: ModelFaults) {
        self.device.lock().set_faults(faults);
    }

    /// Pulls the drive out.
    pub fn remove(&self) {
        self.device.lock().removed = true;
    }
}

impl Host for ModelHost {
    fn read(&self, offset: usize) -> u32 {
        self.device.lock().read(offset)
    }

    fn write(&self, offset: usize, value: u32) {
        self.device.lock().write(offset, value);
    }

    fn registers(&self) -> usize {
        0x4000
    }

    fn allocate(&self, len: usize) -> Result<DmaBuffer, DriveError> {
        Ok(self.memory.allocate(len))
    }

    fn contains(&self, address: usize, len: usize) -> bool {
        self.memory.contains(address, len)
    }

    fn now(&self) -> Duration {
        self.device.lock().now
    }

    fn pause(&self, round: u32) {
        let micros = 20 << round.min(10);
        self.device.lock().advance(Duration::from_micros(micros));
    }

    fn step(&self) {
        self.device.lock().advance(Duration::from_micros(5));
    }

    fn quiesce(&self) {
        self.device.lock().quiesced = true;
    }

    fn path(&self) -> DrivePath {
        DrivePath::Model
    }
}

#[cfg(test)]
mod tests;
