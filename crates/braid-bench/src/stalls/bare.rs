//! The yardstick: what a bare log on the same device shows while other threads write and read as
//! many bytes, and use as much processor time, as a disturbance did. A stall of that log is the
//! machine's, not the engine's.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_io::{Device, File, OpenMode};
use fastrand::Rng;
use serde::Serialize;

use super::load::{self, Pace};
use super::report::{Latency, millis};
use super::services::Bare;
use super::work::Work;
use crate::BenchError;
use crate::bare_log::{BareLog, FILE_BYTES};
use crate::tally::nanos;
use crate::usage::thread_cpu_time;

/// Size of a write next to the log.
const WRITE_BYTES: usize = 1 << 20;

/// Size of a read next to the log.
const READ_BYTES: usize = 256 << 10;

/// Maximum length of the file next to the log; longer writes and reads start over.
const NEIGHBOUR_BYTES: u64 = 256 << 20;

/// Time for which a thread sleeps that has nothing due.
const PAUSE: Duration = Duration::from_millis(1);

/// Number of spins between two readings of the clocks, some tens of microseconds.
const SPINS: usize = 1_000;

const LOG: &str = "stalls-log.tmp";
const NEIGHBOUR: &str = "stalls-neighbour.tmp";

/// Longest measurement: only the first part of the work of a longer disturbance is repeated.
const LONGEST: Duration = Duration::from_secs(30);

/// A bare log under the same load, next to the same work of the device and the processors.
#[derive(Clone, Debug, Serialize)]
pub struct BareStall {
    /// Latency from the intended start to durability.
    #[serde(flatten)]
    pub latency: Latency,
    /// Longest time without a durable record, in milliseconds.
    pub gap_ms: f64,
}

/// Measures the bare log while work is repeated next to it.
pub(super) fn measure(
    device: &Arc<dyn Device>,
    pace: Pace,
    record_bytes: usize,
    work: Work,
) -> Result<BareStall, BenchError> {
    let work = work.first(LONGEST);
    let log = Temporary::create(device, LOG, FILE_BYTES)?;
    let total = work.total();
    let length = (total.written.max(total.read) as u64).next_multiple_of(WRITE_BYTES as u64);
    let length = length.clamp(WRITE_BYTES as u64, NEIGHBOUR_BYTES);
    let neighbour = Temporary::create(device, NEIGHBOUR, length)?;
    if total.read > 0.0 {
        // A device need not read blocks that were never written.
        let filled = neighbour.fill();
        filled.map_err(|error| BenchError::io("cannot fill a file next to the bare log", error))?;
    }
    let bare = Bare {
        log: BareLog::new(device, log.file.as_ref()),
        record_bytes,
    };
    let (outcome, ()) = load::run(&bare, pace, |window| {
        window.open();
        repeat(&work, &neighbour)
            .map_err(|error| BenchError::io("cannot write or read next to the bare log", error))
    })?;
    Ok(BareStall {
        latency: Latency::new(&outcome.latency),
        gap_ms: millis(outcome.gap),
    })
}

/// Writes, reads and uses processor time as the work did, at the same times.
fn repeat(work: &Work, neighbour: &Temporary<'_>) -> io::Result<()> {
    let start = Instant::now();
    let (io_cpu, spinners) = (AtomicU64::new(0), work.processors());
    thread::scope(|scope| {
        let (io_cpu, total) = (&io_cpu, work.total());
        let writer = scope.spawn(move || {
            let mut buffer = neighbour.device.allocate(WRITE_BYTES);
            // The device might treat zeroes specially.
            Rng::with_seed(0).fill(&mut buffer);
            let due = |at| work.done_at(at).written;
            in_pieces(start, work.length(), due, WRITE_BYTES, io_cpu, |offset| {
                let offset = offset % neighbour.length;
                neighbour.file.write_at(&[&buffer[..]], offset)
            })?;
            // A file that was not written must not cost the device a flush.
            if total.written > 0.0 {
                neighbour.file.sync()
            } else {
                Ok(())
            }
        });
        let reader = scope.spawn(move || {
            let mut buffer = neighbour.device.allocate(READ_BYTES);
            let due = |at| work.done_at(at).read;
            in_pieces(start, work.length(), due, READ_BYTES, io_cpu, |offset| {
                let offset = offset % neighbour.length;
                neighbour.file.read_at(&mut buffer, offset)
            })
        });
        for _ in 0..spinners {
            scope.spawn(move || spin(work, spinners, start, io_cpu));
        }
        let failed = || Err(io::Error::other("a thread panicked"));
        writer.join().unwrap_or_else(|_| failed())?;
        reader.join().unwrap_or_else(|_| failed())
    })
}

/// Calls `transfer` with the offset of each piece of `piece` bytes when it is due, and adds the
/// thread's processor time to `io_cpu`. Ends when all are transferred, or after twice the length.
fn in_pieces(
    start: Instant,
    length: Duration,
    due: impl Fn(Duration) -> f64,
    piece: usize,
    io_cpu: &AtomicU64,
    mut transfer: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let (mut done, mut counted) = (0, 0);
    loop {
        let at = start.elapsed();
        if done as f64 + piece as f64 / 2.0 <= due(at) && at < 2 * length {
            transfer(done)?;
            done += piece as u64;
            let cpu = thread_cpu_time().map_or(0, nanos);
            // Relaxed: a count.
            io_cpu.fetch_add(cpu - counted, Ordering::Relaxed);
            counted = cpu;
        } else if at >= length {
            return Ok(());
        } else {
            thread::sleep(PAUSE.min(length - at));
        }
    }
}

/// Uses the processor time that is due, less that of the threads that write and read.
fn spin(work: &Work, spinners: usize, start: Instant, io_cpu: &AtomicU64) {
    loop {
        let at = start.elapsed();
        if at >= work.length() {
            return;
        }
        let io_cpu_s = io_cpu.load(Ordering::Relaxed) as f64 / 1e9;
        let due = (work.done_at(at).cpu_s - io_cpu_s) / spinners as f64;
        match thread_cpu_time() {
            Some(used) if used.as_secs_f64() < due => (0..SPINS).for_each(|_| {
                std::hint::spin_loop();
            }),
            _ => thread::sleep(PAUSE),
        }
    }
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

    /// Writes the whole file.
    fn fill(&self) -> io::Result<()> {
        let mut buffer = self.device.allocate(WRITE_BYTES);
        Rng::with_seed(0).fill(&mut buffer);
        for offset in (0..self.length).step_by(WRITE_BYTES) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use braid_io::MemoryDevice;

    #[test]
    fn every_piece_that_is_due_is_transferred_once() {
        let (length, cpu) = (Duration::from_millis(20), AtomicU64::new(0));
        let mut offsets = Vec::new();
        let due = |at: Duration| 10_400.0 * (at.as_secs_f64() / 0.02).min(1.0);
        in_pieces(Instant::now(), length, due, 1_000, &cpu, |offset| {
            offsets.push(offset);
            Ok(())
        })
        .unwrap();
        let wanted: Vec<u64> = (0..10).map(|piece| piece * 1_000).collect();
        assert_eq!(offsets, wanted);
    }

    #[test]
    fn the_bare_log_runs_next_to_no_work() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        let pace = Pace {
            threads: 2,
            per_s: 1_000.0,
            lead: Duration::from_millis(10),
        };
        let work = Work::none(Duration::from_millis(50));
        let bare = measure(&device, pace, 100, work).unwrap();
        assert!(bare.latency.p50_ms > 0.0 && bare.gap_ms > 0.0, "{bare:?}");
        assert!(device.list().unwrap().is_empty(), "its files are removed");
    }
}
