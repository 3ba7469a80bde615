//! Measures the log alone: `log_bench [MODE] [THREADS] [K] [SECONDS] [DIR]`.
//!
//! MODE is `block` (every commit waits), `async` (K tickets in flight per thread) or `hot` (append
//! only, never waits). Without DIR, the device is in memory. Environment: `STRANDS`, `LANES`,
//! `INFLIGHT`, and `BYTES` of payload. With `KEEP=1` nothing is released, and recovery is measured
//! at the end.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_io::{AlignedBuf, Device, DeviceKind, Entry, File, MemoryDevice, OpenMode};
use braid_log::{CheckpointPosition, Log, LogOptions};

/// A directory with direct, synchronous writes; only what a measurement needs.
#[derive(Debug)]
struct Directory(PathBuf);

#[derive(Debug)]
struct DirectFile(std::fs::File);

const O_DIRECT: i32 = 0o40000;
const O_DSYNC: i32 = 0o10000;

impl Device for Directory {
    fn kind(&self) -> DeviceKind {
        DeviceKind::File
    }

    fn block_size(&self) -> usize {
        4096
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        AlignedBuf::new(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(mode == OpenMode::CreateNew)
            .custom_flags(O_DIRECT | O_DSYNC)
            .open(self.0.join(name))?;
        Ok(Arc::new(DirectFile(file)))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.0.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.0.join(from), self.0.join(to))
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        std::fs::read_dir(&self.0)?
            .map(|entry| {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                Ok(Entry {
                    name,
                    len: entry.metadata()?.len(),
                })
            })
            .collect()
    }

    fn sync_directory(&self) -> io::Result<()> {
        std::fs::File::open(&self.0)?.sync_all()
    }
}

impl File for DirectFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        let zeroes = AlignedBuf::new(1 << 20);
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(1 << 20);
            self.0.write_all_at(&zeroes[..len as usize], at)?;
            at += len;
        }
        Ok(())
    }

    fn punch_hole(&self, _: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.write_durable_at(bufs, offset)
    }

    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        if let [one] = bufs {
            return self.0.write_all_at(one, offset);
        }
        let mut all = AlignedBuf::new(bufs.iter().map(|buf| buf.len()).sum());
        let mut at = 0;
        for buf in bufs {
            all[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        self.0.write_all_at(&all, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

fn argument<T: std::str::FromStr>(at: usize, otherwise: T) -> T {
    std::env::args()
        .nth(at)
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

fn variable(name: &str, otherwise: usize) -> usize {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

/// Commits until it is told to stop. Returns the number of commits and the latencies of some.
fn commit(
    log: &Log,
    mode: &str,
    bytes: usize,
    outstanding: usize,
    stop: &AtomicBool,
) -> (u64, Vec<u64>) {
    let payload = vec![7u8; bytes];
    let mut tickets = VecDeque::new();
    let mut latencies = Vec::new();
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        let mut entry = log.enter(&[&payload]).expect("space");
        entry.assign(1);
        entry.append(&[&payload]);
        done += 1;
        match mode {
            "block" => {
                entry.finish().wait().expect("durable");
                latencies.push(start.elapsed().as_nanos() as u64);
            }
            "async" => {
                tickets.push_back((start, entry.finish_async()));
                if tickets.len() >= outstanding {
                    let (start, ticket) = tickets.pop_front().expect("one");
                    ticket.wait().expect("durable");
                    if done % 64 == 0 {
                        latencies.push(start.elapsed().as_nanos() as u64);
                    }
                }
            }
            _ => drop(entry.finish()),
        }
    }
    (done, latencies)
}

/// Recovers the log, and prints how fast it is read.
fn recover(
    device: Arc<dyn Device>,
    options: LogOptions,
    start: &CheckpointPosition,
) -> Result<(), Box<dyn std::error::Error>> {
    let begun = Instant::now();
    let recovered = Log::recover(device, options, start, &|_| {})?;
    let scan = begun.elapsed().as_secs_f64();
    let log_records = AtomicU64::new(0);
    let begun = Instant::now();
    recovered.for_each_parallel(2, |log_record| {
        std::hint::black_box(log_record.payload);
        log_records.fetch_add(1, Ordering::Relaxed);
        Ok::<_, braid_log::LogError>(())
    })?;
    let replay = begun.elapsed().as_secs_f64();
    let mebibytes = recovered.scanned_bytes() as f64 / f64::from(1 << 20);
    println!(
        "recovery: {mebibytes:.0} MiB, scan {:.0} MiB/s, replay {:.0} MiB/s, {:.1} M log records/s",
        mebibytes / scan,
        mebibytes / replay,
        log_records.into_inner() as f64 / replay / 1e6,
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mode: String = argument(1, "block".to_owned());
    let threads: usize = argument(2, 1);
    let outstanding: usize = argument(3, 256);
    let seconds: f64 = argument(4, 2.0);
    let directory = std::env::args().nth(5);
    let defaults = LogOptions::default();
    let options = LogOptions {
        strands: variable("STRANDS", defaults.strands),
        lanes: variable("LANES", defaults.lanes),
        flushes_in_flight: variable("INFLIGHT", defaults.flushes_in_flight),
        ..defaults
    };
    let bytes = variable("BYTES", 120);
    let device: Arc<dyn Device> = match &directory {
        Some(path) => {
            let _ = std::fs::remove_dir_all(path);
            std::fs::create_dir_all(path)?;
            Arc::new(Directory(path.into()))
        }
        None => Arc::new(MemoryDevice::new()),
    };
    let keep = variable("KEEP", 0) > 0;
    let log = Log::create(Arc::clone(&device), options.clone())?;
    let start = log.quiesce(|start| start);
    let stop = AtomicBool::new(false);
    let commits = AtomicU64::new(0);
    let begun = Instant::now();
    let mut latencies: Vec<u64> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (log, mode, stop, commits) = (&log, mode.as_str(), &stop, &commits);
                scope.spawn(move || {
                    let (done, latencies) = commit(log, mode, bytes, outstanding, stop);
                    commits.fetch_add(done, Ordering::Relaxed);
                    latencies
                })
            })
            .collect();
        // Checkpoints of everything, so that segments are recycled.
        while begun.elapsed() < Duration::from_secs_f64(seconds) {
            std::thread::sleep(Duration::from_millis(50));
            if !keep {
                log.release(&log.quiesce(|start| start)).expect("release");
            }
        }
        stop.store(true, Ordering::Relaxed);
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("no panic"))
            .collect()
    });
    let elapsed = begun.elapsed().as_secs_f64();
    let commits = commits.load(Ordering::Relaxed) as f64;
    latencies.sort_unstable();
    let percentile = |p: f64| {
        let at = (latencies.len() as f64 * p) as usize;
        latencies
            .get(at)
            .map_or(0.0, |&nanos| nanos as f64 / 1000.0)
    };
    let stats = log.stats();
    let flushes = stats.flushes as f64;
    println!(
        "{mode} {threads} threads: {:.0} commits/s, p50 {:.0} p99 {:.0} us; {:.0} flushes/s of {:.1} \
         commits, {:.0} bytes a commit; queue {:.0} write {:.0} notify {:.0} us; {:.0} ns a commit",
        commits / elapsed,
        percentile(0.5),
        percentile(0.99),
        flushes / elapsed,
        commits / flushes,
        stats.written_bytes as f64 / commits,
        stats.queue_time.as_micros() as f64 / stats.chunks as f64,
        stats.write_time.as_micros() as f64 / flushes,
        stats.notify_time.as_micros() as f64 / flushes,
        elapsed * 1e9 / commits,
    );
    log.close()?;
    if keep {
        recover(device, options, &start)?;
    }
    Ok(())
}
