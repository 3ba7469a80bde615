//! Measurements of the device itself: the figures that decide how the log flushes, and the limits
//! for a database on the device.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use braid_io::{AlignedBuf, Device, File, OpenMode, ReadOp, Topology};
use fastrand::Rng;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::BenchError;
use crate::bare_log::{BareLogReport, bare_log};
use crate::exchange::exchange_ns;
use crate::tally::{histogram, nanos};

/// Size of each file that is written; preallocated, then overwritten circularly.
const FILE_BYTES: u64 = 8 << 20;

/// Size of the file that is read, and of the file that is written without syncs.
const READ_FILE_BYTES: u64 = 64 << 20;

/// Record size of the bare log.
const RECORD_BYTES: usize = 120;

/// The page size of the store.
const PAGE: usize = 8192;

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceRow {
    /// Name of the test.
    pub test: &'static str,
    /// Number of concurrent strands, threads or operations.
    pub depth: usize,
    /// Size of one operation, in bytes.
    pub bytes: usize,
    /// Operations per second; for the tests of strands, rounds after which all strands are durable.
    pub ops_per_s: f64,
    /// Median time of one operation (or round, or batch), in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
}

impl DeviceRow {
    /// Returns the throughput in MiB per second.
    #[must_use]
    pub fn mib_per_s(&self) -> f64 {
        self.ops_per_s * self.bytes as f64 / f64::from(1 << 20)
    }
}

/// Result of [`measure_device`].
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// How the device is accessed.
    pub device: String,
    /// The machine: numbers of processors, cores and NUMA nodes.
    pub machine: String,
    /// Nanoseconds in which a cache line goes from one processor to another; `None` with a single
    /// processor. Threads that commit at once pay this for each line that they share.
    pub exchange_ns: Option<f64>,
    /// Durable writes of 4 KiB per second, one at a time: the limit of one waiting thread.
    pub durable_4k_per_s: f64,
    /// All measurements.
    pub rows: Vec<DeviceRow>,
    /// Results of a bare group-commit log under several loads.
    pub bare_log: Vec<BareLogReport>,
}

impl DeviceReport {
    /// Returns one JSON object on one line, without a line break.
    ///
    /// # Errors
    ///
    /// None in practice: every field can be written as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

/// Measures the device, each test for `each`. Calls `progress` before each test, with the number of
/// tests.
///
/// # Errors
/// The device's error.
pub fn measure_device(
    device: &Arc<dyn Device>,
    each: Duration,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<DeviceReport, BenchError> {
    let mut rows = Vec::new();
    let mut logs = Vec::new();
    let plan = plan(device.block_size());
    for (i, step) in plan.iter().enumerate() {
        progress(step.what(), i, plan.len());
        match *step {
            Step::Device(test, depth, bytes) => rows.push(
                Bench { device, each }
                    .row(test, depth, bytes)
                    .map_err(|error| BenchError::io(test.name(), error))?,
            ),
            Step::BareLog(threads, in_flight) => {
                logs.push(bare_log(device, threads, in_flight, RECORD_BYTES, each)?);
            }
        }
    }
    let durable = rows.iter().find(|row| row.test == Test::Durable.name());
    Ok(DeviceReport {
        device: device.kind().to_string(),
        machine: Topology::read().to_string(),
        exchange_ns: exchange_ns(),
        durable_4k_per_s: durable.map_or(0.0, |row| row.ops_per_s),
        rows,
        bare_log: logs,
    })
}

#[derive(Clone, Copy)]
enum Test {
    /// Durable writes to one file, by as many threads as the depth.
    Durable,
    /// A write followed by a sync, one at a time.
    WriteSync,
    /// Strands: one file and one thread each, all written durably at once.
    StrandsApart,
    /// Strands: one gathered write of all strands to one file.
    StrandsGathered,
    /// Strands: a write to each file, then a sync of each.
    StrandsSynced,
    /// Writes without durability, by as many threads as the depth.
    Volatile,
    /// Random reads, in batches of the depth.
    Read,
    /// Random reads by as many threads as the depth, one at a time in each thread.
    ReadThreads,
}

impl Test {
    fn name(self) -> &'static str {
        match self {
            Test::Durable => "durable-write",
            Test::WriteSync => "write-then-sync",
            Test::StrandsApart => "strands-a-file-each",
            Test::StrandsGathered => "strands-gathered",
            Test::StrandsSynced => "strands-write-all-sync-all",
            Test::Volatile => "write-without-sync",
            Test::Read => "random-read",
            Test::ReadThreads => "random-read-threads",
        }
    }
}

/// Bytes that a U-1 transaction writes to the log in persistent memory: copied, flushed and fenced,
/// they are the limit of its commits.
const SMALL: usize = 192;

enum Step {
    Device(Test, usize, usize),
    BareLog(usize, usize),
}

impl Step {
    fn what(&self) -> &'static str {
        match self {
            Step::Device(test, ..) => test.name(),
            Step::BareLog(..) => "bare-log",
        }
    }
}

/// The tests of a device with this block size.
fn plan(block: usize) -> Vec<Step> {
    use Test::{
        Durable, Read, ReadThreads, StrandsApart, StrandsGathered, StrandsSynced, Volatile,
        WriteSync,
    };
    let mut plan: Vec<Step> = [1, 2, 4, 8, 16, 32]
        .map(|n| Step::Device(Durable, n, 4096))
        .into();
    if SMALL.is_multiple_of(block) {
        plan.extend([1, 2].map(|n| Step::Device(Durable, n, SMALL)));
    }
    plan.push(Step::Device(WriteSync, 1, 4096));
    // Before large files are removed, because the file system frees their space in the background.
    plan.extend([(1, 1), (8, 1), (32, 1), (2, 1_000)].map(|(t, k)| Step::BareLog(t, k)));
    for test in [StrandsGathered, StrandsApart, StrandsSynced] {
        plan.extend([1, 2, 4, 8].map(|n| Step::Device(test, n, 4096)));
    }
    plan.push(Step::Device(Durable, 8, 64 << 10));
    plan.push(Step::Device(Volatile, 8, 64 << 10));
    plan.push(Step::Device(Volatile, 8, 1 << 20));
    for bytes in [4096, PAGE] {
        plan.extend([1, 8, 32, 64].map(|n| Step::Device(Read, n, bytes)));
    }
    plan.extend([1, 2, 8].map(|n| Step::Device(ReadThreads, n, PAGE)));
    plan
}

/// A file that is removed with its owner.
struct Temporary<'a> {
    device: &'a Arc<dyn Device>,
    name: String,
    file: Arc<dyn File>,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // An error has no consequence here; the directory is usually temporary.
        let _ = self.device.remove(&self.name);
    }
}

struct Bench<'a> {
    device: &'a Arc<dyn Device>,
    each: Duration,
}

impl<'a> Bench<'a> {
    fn row(&self, test: Test, depth: usize, bytes: usize) -> io::Result<DeviceRow> {
        let started = Instant::now();
        let mut operations = 1;
        let latency = match test {
            Test::Durable => self.durable(depth, bytes)?,
            Test::Volatile => self.volatile(depth, bytes)?,
            Test::WriteSync => self.write_sync(bytes)?,
            Test::StrandsApart => self.strands_apart(depth, bytes)?,
            Test::StrandsGathered => self.strands_gathered(depth, bytes)?,
            Test::StrandsSynced => self.strands_synced(depth, bytes)?,
            Test::Read => {
                operations = depth;
                self.reads(depth, bytes)?
            }
            Test::ReadThreads => self.read_threads(depth, bytes)?,
        };
        debug_assert!(started.elapsed() >= self.each);
        let seconds = self.each.as_secs_f64();
        Ok(DeviceRow {
            test: test.name(),
            depth,
            bytes,
            ops_per_s: latency.len() as f64 * operations as f64 / seconds,
            p50_us: latency.value_at_quantile(0.5) as f64 / 1e3,
            p99_us: latency.value_at_quantile(0.99) as f64 / 1e3,
        })
    }

    fn file(&self, name: &str, bytes: u64) -> io::Result<Temporary<'a>> {
        let name = format!("bench-{name}.tmp");
        let file = self.device.open(&name, OpenMode::CreateNew)?;
        let temporary = Temporary {
            device: self.device,
            name,
            file,
        };
        temporary.file.fill_zero(0..bytes)?;
        temporary.file.sync()?;
        Ok(temporary)
    }

    fn buffer(&self, bytes: usize) -> AlignedBuf {
        let mut buffer = self.device.allocate(bytes);
        // The device might treat zeroes specially.
        Rng::with_seed(bytes as u64).fill(&mut buffer);
        buffer
    }

    /// Repeats `operation` on one thread for the time of a test.
    fn repeat(
        &self,
        mut operation: impl FnMut(u64) -> io::Result<()>,
    ) -> io::Result<Histogram<u64>> {
        let mut latency = histogram();
        let end = Instant::now() + self.each;
        let mut before = Instant::now();
        for i in 0.. {
            operation(i)?;
            let now = Instant::now();
            // Operations that end after the time are not counted, except the first one.
            if now > end && i > 0 {
                break;
            }
            latency.saturating_record(nanos(now - before));
            before = now;
        }
        Ok(latency)
    }

    /// Repeats `operation` on `threads` threads.
    fn repeat_threads(
        &self,
        threads: usize,
        operation: impl Fn(usize, u64) -> io::Result<()> + Sync,
    ) -> io::Result<Histogram<u64>> {
        let operation = &operation;
        let parts: Vec<_> = thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|thread| scope.spawn(move || self.repeat(|i| operation(thread, i))))
                .collect();
            running.into_iter().map(join).collect()
        });
        let mut sum = histogram();
        for part in parts {
            sum += part?;
        }
        Ok(sum)
    }

    fn durable(&self, threads: usize, bytes: usize) -> io::Result<Histogram<u64>> {
        let file = self.file("durable", FILE_BYTES)?;
        let buffer = self.buffer(bytes);
        self.repeat_threads(threads, |thread, i| {
            let place = place(i * threads as u64 + thread as u64, bytes, FILE_BYTES);
            file.file.write_durable_at(&[&buffer], place)
        })
    }

    fn volatile(&self, threads: usize, bytes: usize) -> io::Result<Histogram<u64>> {
        let file = self.file("volatile", READ_FILE_BYTES)?;
        let buffer = self.buffer(bytes);
        self.repeat_threads(threads, |thread, i| {
            let place = place(i * threads as u64 + thread as u64, bytes, READ_FILE_BYTES);
            file.file.write_at(&[&buffer], place)
        })
    }

    fn write_sync(&self, bytes: usize) -> io::Result<Histogram<u64>> {
        let file = self.file("sync", FILE_BYTES)?;
        let buffer = self.buffer(bytes);
        self.repeat(|i| {
            file.file
                .write_at(&[&buffer], place(i, bytes, FILE_BYTES))?;
            file.file.sync()
        })
    }

    fn strand_files(&self, strands: usize) -> io::Result<Vec<Temporary<'a>>> {
        (0..strands)
            .map(|i| self.file(&format!("strand-{i}"), FILE_BYTES))
            .collect()
    }

    fn strands_gathered(&self, strands: usize, bytes: usize) -> io::Result<Histogram<u64>> {
        let file = self.file("gathered", FILE_BYTES)?;
        let buffers: Vec<AlignedBuf> = (0..strands).map(|_| self.buffer(bytes)).collect();
        let chunks: Vec<&[u8]> = buffers.iter().map(|buffer| &buffer[..]).collect();
        self.repeat(|i| {
            file.file
                .write_durable_at(&chunks, place(i, bytes * strands, FILE_BYTES))
        })
    }

    fn strands_synced(&self, strands: usize, bytes: usize) -> io::Result<Histogram<u64>> {
        let files = self.strand_files(strands)?;
        let buffer = self.buffer(bytes);
        self.repeat(|i| {
            let place = place(i, bytes, FILE_BYTES);
            files
                .iter()
                .try_for_each(|file| file.file.write_at(&[&buffer], place))?;
            files.iter().try_for_each(|file| file.file.sync())
        })
    }

    /// A round ends when the slowest thread is durable.
    fn strands_apart(&self, strands: usize, bytes: usize) -> io::Result<Histogram<u64>> {
        let files = self.strand_files(strands)?;
        let buffer = self.buffer(bytes);
        let rounds = Rounds {
            begin: Barrier::new(strands),
            end: Barrier::new(strands),
        };
        let over = AtomicBool::new(false);
        let failed = AtomicBool::new(false);
        let strand = |thread: usize, over: &AtomicBool| {
            let write = |i| {
                files[thread]
                    .file
                    .write_durable_at(&[&buffer], place(i, bytes, FILE_BYTES))
            };
            // Relaxed: the barriers order both flags.
            for i in 0.. {
                rounds.begin.wait();
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let result = write(i);
                if result.is_err() {
                    failed.store(true, Ordering::Relaxed);
                }
                rounds.end.wait();
                result?;
                if failed.load(Ordering::Relaxed) {
                    break;
                }
            }
            io::Result::Ok(())
        };
        thread::scope(|scope| {
            let (strand, over) = (&strand, &over);
            let others: Vec<_> = (1..strands)
                .map(|i| scope.spawn(move || strand(i, over)))
                .collect();
            let latency = self.repeat(|i| {
                rounds.begin.wait();
                let place = place(i, bytes, FILE_BYTES);
                let result = files[0].file.write_durable_at(&[&buffer], place);
                if result.is_err() {
                    failed.store(true, Ordering::Relaxed);
                }
                rounds.end.wait();
                if failed.load(Ordering::Relaxed) {
                    return result.and(Err(io::Error::other("another strand's write failed")));
                }
                result
            });
            if latency.is_ok() {
                // The other threads would wait for a round that does not come.
                over.store(true, Ordering::Relaxed);
                rounds.begin.wait();
            }
            for other in others {
                join(other)?;
            }
            latency
        })
    }

    fn read_threads(&self, threads: usize, bytes: usize) -> io::Result<Histogram<u64>> {
        let file = self.file("read", READ_FILE_BYTES)?;
        self.repeat_threads(threads, |thread, i| {
            // Allocate, as the pool does to read a page.
            let mut buffer = self.device.allocate(bytes);
            let place = scattered(i * threads as u64 + thread as u64, bytes);
            file.file.read_at(&mut buffer, place)
        })
    }

    fn reads(&self, depth: usize, bytes: usize) -> io::Result<Histogram<u64>> {
        let file = self.file("read", READ_FILE_BYTES)?;
        let mut buffers: Vec<AlignedBuf> =
            (0..depth).map(|_| self.device.allocate(bytes)).collect();
        let mut rng = Rng::with_seed(17);
        self.repeat(|_| {
            let mut batch: Vec<ReadOp<'_>> = buffers
                .iter_mut()
                .map(|buf| ReadOp {
                    buf: &mut buf[..bytes],
                    offset: rng.u64(0..READ_FILE_BYTES / bytes as u64) * bytes as u64,
                })
                .collect();
            file.file.read_batch(&mut batch)
        })
    }
}

/// Returns a position far from the previous one.
fn scattered(i: u64, bytes: usize) -> u64 {
    place(
        i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16,
        bytes,
        READ_FILE_BYTES,
    )
}

struct Rounds {
    begin: Barrier,
    end: Barrier,
}

/// Returns the position of the `i`th operation of `bytes` bytes in a file that is overwritten
/// circularly.
fn place(i: u64, bytes: usize, file_bytes: u64) -> u64 {
    i % (file_bytes / bytes as u64) * bytes as u64
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("a measuring thread panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_io::MemoryDevice;

    #[test]
    fn every_test_gives_a_figure_and_leaves_nothing() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        let mut reported = 0;
        let report = measure_device(&device, Duration::from_millis(5), &mut |_, i, n| {
            assert!(i < n);
            reported += 1;
        })
        .unwrap();
        assert_eq!(reported, report.rows.len() + report.bare_log.len());
        assert_eq!(report.device, "memory");
        assert!(report.durable_4k_per_s > 0.0);
        for row in &report.rows {
            assert!(row.ops_per_s > 0.0 && row.p50_us <= row.p99_us, "{row:?}");
        }
        assert!(device.list().unwrap().is_empty());
    }

    #[test]
    fn places_stay_inside_the_file() {
        for (i, bytes) in [
            (0, 4096),
            (9_999_999, 4096),
            (12_345, 8 * 4096),
            (77, 1 << 20),
        ] {
            let place = place(i, bytes, FILE_BYTES);
            assert!(place + bytes as u64 <= FILE_BYTES && place.is_multiple_of(4096));
        }
    }
}
