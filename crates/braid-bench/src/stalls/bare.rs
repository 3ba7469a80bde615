//! The yardstick: what a bare log on the same device shows while the same bytes are written next to
//! it. A stall of that log is the device's, not the engine's.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use braid_io::{Device, File, OpenMode};
use fastrand::Rng;
use serde::Serialize;

use super::load::{self, Pace};
use super::report::{Latency, millis};
use super::services::Bare;
use crate::BenchError;
use crate::bare_log::{BareLog, FILE_BYTES};

/// Size of a write next to the log.
const WRITE_BYTES: usize = 1 << 20;

/// Maximum length of the file that is written next to the log; longer writes start over.
const NEIGHBOUR_BYTES: u64 = 256 << 20;

const LOG: &str = "stalls-log.tmp";
const NEIGHBOUR: &str = "stalls-neighbour.tmp";

/// Bounds of the duration of the measurement; at the same rate of bytes, it needs not be longer.
const SHORTEST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(20);

/// Bytes that a disturbance wrote, and how long that took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) bytes: u64,
    pub(super) during: Duration,
}

/// A bare log under the same load, with the same bytes written next to it in the same time.
#[derive(Clone, Debug, Serialize)]
pub struct BareStall {
    /// Latency from the intended start to durability.
    #[serde(flatten)]
    pub latency: Latency,
    /// Longest time without a durable record, in milliseconds.
    pub gap_ms: f64,
}

/// Measures the bare log while bytes are written next to it.
pub(super) fn measure(
    device: &Arc<dyn Device>,
    pace: Pace,
    record_bytes: usize,
    written: Written,
) -> Result<BareStall, BenchError> {
    let log = Temporary::create(device, LOG, FILE_BYTES)?;
    let length = NEIGHBOUR_BYTES.min(written.bytes.next_multiple_of(WRITE_BYTES as u64));
    let neighbour = Temporary::create(device, NEIGHBOUR, length.max(WRITE_BYTES as u64))?;
    let bare = Bare {
        log: BareLog::new(device, log.file.as_ref()),
        record_bytes,
    };
    let (outcome, ()) = load::run(&bare, pace, |window| {
        window.open();
        neighbour
            .write(written)
            .map_err(|error| BenchError::io("cannot write next to the bare log", error))
    })?;
    Ok(BareStall {
        latency: Latency::new(&outcome.latency),
        gap_ms: millis(outcome.gap),
    })
}

/// A preallocated file that is removed with its owner.
struct Temporary<'a> {
    device: &'a Arc<dyn Device>,
    name: &'static str,
    length: u64,
    file: Arc<dyn File>,
}

impl<'a> Temporary<'a> {
    fn create(
        device: &'a Arc<dyn Device>,
        name: &'static str,
        length: u64,
    ) -> Result<Self, BenchError> {
        let file = device.open(name, OpenMode::CreateNew);
        let file = file.map_err(|error| BenchError::io("cannot create a file", error))?;
        let temporary = Temporary {
            device,
            name,
            length,
            file,
        };
        let filled = temporary.file.fill_zero(0..length);
        filled
            .and_then(|()| temporary.file.sync())
            .map_err(|error| BenchError::io("cannot fill a file", error))?;
        Ok(temporary)
    }

    /// Writes bytes at an even rate, as volatile writes with a sync at the end.
    fn write(&self, written: Written) -> std::io::Result<()> {
        let during = written.during.clamp(SHORTEST, LONGEST);
        let per_s = written.bytes as f64 / written.during.max(SHORTEST).as_secs_f64();
        let writes = (per_s * during.as_secs_f64() / WRITE_BYTES as f64)
            .ceil()
            .max(1.0);
        let mut buffer = self.device.allocate(WRITE_BYTES);
        // The device might treat zeroes specially.
        Rng::with_seed(0).fill(&mut buffer);
        let start = Instant::now();
        for n in 0..writes as u64 {
            let due = during.mul_f64(n as f64 / writes);
            thread::sleep(due.saturating_sub(start.elapsed()));
            let offset = n * WRITE_BYTES as u64 % self.length;
            self.file.write_at(&[&buffer[..]], offset)?;
        }
        self.file.sync()
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // An error has no consequence here; the directory is usually temporary.
        let _ = self.device.remove(self.name);
    }
}
