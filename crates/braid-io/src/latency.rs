//! A device with slower durable writes.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Device, File, Layer, LayeredDevice};

/// Latencies from here on sleep; shorter ones spin, because a sleep would take longer.
const SLEEP_FROM: Duration = Duration::from_micros(100);

/// Wraps a device and adds a minimum time to each durable write and sync, to measure in memory how
/// a protocol performs on persistent memory or flash.
///
/// Writes do not wait for each other: the device has unlimited parallelism.
pub type LatencyDevice = LayeredDevice<Latency>;

/// Additional time of each durable write and each sync of a file.
#[derive(Clone, Copy, Debug)]
pub struct Latency(Duration);

impl LatencyDevice {
    /// Wraps `inner`, and adds `latency` to each durable write and each sync of a file.
    pub fn new(inner: Arc<dyn Device>, latency: Duration) -> Self {
        Self::over(inner, Latency(latency))
    }
}

impl Layer for Latency {
    fn write_durable_at(&self, file: &dyn File, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        file.write_durable_at(bufs, offset)?;
        wait(self.0);
        Ok(())
    }

    fn sync(&self, file: &dyn File) -> io::Result<()> {
        file.sync()?;
        wait(self.0);
        Ok(())
    }
}

fn wait(latency: Duration) {
    if latency >= SLEEP_FROM {
        return braid_rt::sleep(latency);
    }
    let end = Instant::now() + latency;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, OpenMode};

    #[test]
    fn a_durable_write_takes_its_time_and_arrives() {
        for latency in [Duration::from_micros(20), Duration::from_micros(200)] {
            let device = LatencyDevice::new(Arc::new(MemoryDevice::new()), latency);
            let file = device.open("x", OpenMode::CreateNew).unwrap();
            let mut block = device.allocate(device.block_size());
            block.fill(7);
            let begun = Instant::now();
            file.write_durable_at(&[&block], 0).unwrap();
            file.sync().unwrap();
            assert!(begun.elapsed() >= 2 * latency);
            let mut found = device.allocate(block.len());
            file.read_at(&mut found, 0).unwrap();
            assert!(found[..] == block[..]);
        }
    }
}
