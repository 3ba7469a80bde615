//! A device whose durable writes take longer.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode, ReadOp, WriteOp};

/// Latencies from here on are slept; shorter ones are spun, since a sleep would take longer.
const SLEEP_FROM: Duration = Duration::from_micros(100);

/// A device in front of another, in which a durable write or a sync takes at least a given time more: to
/// see on a device in memory how a protocol fares on persistent memory or flash.
///
/// Writes do not wait for each other: it is a device without a limit to its parallelism.
#[derive(Clone, Debug)]
pub struct LatencyDevice {
    inner: Arc<dyn Device>,
    latency: Duration,
}

impl LatencyDevice {
    /// `inner` with `latency` added to each durable write and each sync of a file.
    pub fn new(inner: Arc<dyn Device>, latency: Duration) -> Self {
        Self { inner, latency }
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

impl Device for LatencyDevice {
    fn kind(&self) -> DeviceKind {
        self.inner.kind()
    }

    fn block_size(&self) -> usize {
        self.inner.block_size()
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        self.inner.allocate(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(LatencyFile {
            inner: self.inner.open(name, mode)?,
            latency: self.latency,
        }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        self.inner.list()
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.inner.sync_directory()
    }
}

#[derive(Debug)]
struct LatencyFile {
    inner: Arc<dyn File>,
    latency: Duration,
}

impl File for LatencyFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        self.inner.fill_zero(range)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.inner.punch_hole(range)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.inner.write_at(bufs, offset)
    }

    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.inner.write_durable_at(bufs, offset)?;
        wait(self.latency);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()?;
        wait(self.latency);
        Ok(())
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> io::Result<()> {
        self.inner.read_batch(ops)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> io::Result<()> {
        self.inner.write_batch(ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

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
