//! A device with a limited bandwidth.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_rt::Mutex;

use crate::{Device, File, Layer, LayeredDevice};

/// Wraps a device and limits the bytes that are written to it per second, to measure on one machine
/// what several slower devices do together.
///
/// Writes take turns: each lasts at least as long as its bytes take at that rate, after those before it.
pub type BandwidthDevice = LayeredDevice<Bandwidth>;

/// The rate of a device, and until when its earlier writes last.
#[derive(Clone, Debug)]
pub struct Bandwidth {
    bytes_per_s: u64,
    busy_until: Arc<Mutex<Option<Instant>>>,
}

impl BandwidthDevice {
    /// Wraps `inner`, and writes at most `bytes_per_s` bytes per second to it.
    ///
    /// # Panics
    /// If `bytes_per_s` is 0.
    pub fn new(inner: Arc<dyn Device>, bytes_per_s: u64) -> Self {
        assert!(bytes_per_s > 0, "a device writes something");
        let layer = Bandwidth {
            bytes_per_s,
            busy_until: Arc::default(),
        };
        Self::over(inner, layer)
    }
}

impl Bandwidth {
    /// Waits for the turn of a write of this size, and as long as it takes.
    fn take(&self, bytes: u64) {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let now = braid_rt::now();
        let end = {
            let mut busy_until = self.busy_until.lock();
            let begin = busy_until.map_or(now, |until| until.max(now));
            *busy_until.insert(begin + time)
        };
        braid_rt::sleep(end.saturating_duration_since(now));
    }
}

impl Layer for Bandwidth {
    fn before_write(&self, _name: &str, range: Range<u64>) {
        self.take(range.end - range.start);
    }

    fn write_durable_at(&self, file: &dyn File, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.take(bufs.iter().map(|buf| buf.len() as u64).sum());
        file.write_durable_at(bufs, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, OpenMode};

    #[test]
    fn writes_take_turns_at_the_rate() {
        let memory = Arc::new(MemoryDevice::new());
        let device = BandwidthDevice::new(memory, 10 << 20);
        let file = device.open("x", OpenMode::CreateNew).unwrap();
        let mut bytes = device.allocate(64 << 10);
        bytes.fill(7);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (file, bytes) = (&file, &bytes);
                scope.spawn(move || {
                    let at = thread * (128 << 10);
                    file.write_durable_at(&[bytes], at).unwrap();
                    file.write_at(&[bytes], at + (64 << 10)).unwrap();
                });
            }
        });
        // Half a MiB.
        assert!(begun.elapsed() >= Duration::from_millis(50));
        let mut found = device.allocate(bytes.len());
        file.read_at(&mut found, 7 * (64 << 10)).unwrap();
        assert!(found[..] == bytes[..]);
    }
}
