//! A minimal group-commit log, without tables, checksums or recovery: the practical limit for a
//! database on the same device.
//!
//! The log is one file, preallocated and overwritten circularly. Committers copy their records into
//! the open buffer. One of them, the leader, swaps the buffers, writes the full one durably, passes
//! leadership to a committer of the next group, and wakes its own group. (The scheme of DeWitt et
//! al., "Implementation Techniques for Main Memory Database Systems", SIGMOD 1984, with the leader
//! taken from the waiters.)

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use braid_io::{AlignedBuf, Device, File, OpenMode};
use crossbeam_utils::CachePadded;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::tally::{histogram, nanos};
use crate::usage::Usage;
use crate::{BenchError, Spec};

/// Length of the file: many groups, so that writes in flight never overwrite each other.
pub(crate) const FILE_BYTES: u64 = 32 << 20;

/// Maximum size of a group.
const BUFFER_BYTES: usize = 1 << 20;

const FILE_NAME: &str = "bare-log.tmp";

/// Result of a run of the bare log.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BareLogReport {
    /// Threads that committed.
    pub threads: usize,
    /// Commits that each thread kept in flight.
    pub in_flight: usize,
    /// Bytes of a record.
    pub record_bytes: usize,
    /// Durable commits per second.
    pub tx_per_s: f64,
    /// Median latency from the call to durability, in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile in microseconds.
    pub p999_us: f64,
    /// Durable writes per second.
    pub flushes_per_s: f64,
    /// Processor time per commit, in microseconds.
    pub cpu_us_per_tx: f64,
}

/// Runs the bare log on `device` for a while, with the threads and commits in flight of a
/// benchmark.
///
/// # Errors
///
/// Invalid numbers, or the device's error.
pub fn bare_log(
    device: &Arc<dyn Device>,
    threads: usize,
    in_flight: usize,
    record_bytes: usize,
    duration: Duration,
) -> Result<BareLogReport, BenchError> {
    Spec {
        threads,
        in_flight,
        value_size: record_bytes,
        measure: duration,
        ..Spec::new(crate::Workload::U1)
    }
    .check()?;
    if record_bytes > BUFFER_BYTES {
        return Err(BenchError::Option {
            option: "value-size",
            wanted: format!("at most {BUFFER_BYTES} for the bare log"),
            given: record_bytes.to_string(),
        });
    }
    let file = device
        .open(FILE_NAME, OpenMode::CreateNew)
        .map_err(|error| BenchError::io("cannot create the bare log's file", error))?;
    let result = run(
        device,
        file.as_ref(),
        threads,
        in_flight,
        record_bytes,
        duration,
    );
    drop(file);
    device
        .remove(FILE_NAME)
        .map_err(|error| BenchError::io("cannot remove the bare log", error))?;
    result.map_err(|error| BenchError::io("cannot write the bare log", error))
}

fn run(
    device: &Arc<dyn Device>,
    file: &dyn File,
    threads: usize,
    in_flight: usize,
    record_bytes: usize,
    duration: Duration,
) -> io::Result<BareLogReport> {
    file.fill_zero(0..FILE_BYTES)?;
    file.sync()?;
    let log = BareLog::new(device, file);
    let stop = AtomicBool::new(false);
    let before = Usage::now();
    let start = Instant::now();
    let results: Vec<io::Result<Histogram<u64>>> = thread::scope(|scope| {
        let committers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| commit_until(&log, &stop, in_flight, record_bytes)))
            .collect();
        // Relaxed: one commit more or less makes no difference.
        let deadline = start + duration;
        while Instant::now() < deadline && !log.failed.load(Ordering::Relaxed) {
            thread::sleep(deadline.saturating_duration_since(Instant::now()).min(TICK));
        }
        stop.store(true, Ordering::Relaxed);
        committers
            .into_iter()
            .map(|committer| {
                committer
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("a committer panicked")))
            })
            .collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    let cpu = Usage::now().cpu.saturating_sub(before.cpu);
    let mut latency = histogram();
    for result in results {
        latency += result?;
    }
    let commits = (latency.len() as f64).max(1.0);
    Ok(BareLogReport {
        threads,
        in_flight,
        record_bytes,
        tx_per_s: latency.len() as f64 / seconds,
        p50_us: latency.value_at_quantile(0.5) as f64 / 1e3,
        p99_us: latency.value_at_quantile(0.99) as f64 / 1e3,
        p999_us: latency.value_at_quantile(0.999) as f64 / 1e3,
        flushes_per_s: log.durable.load(Ordering::Relaxed) as f64 / seconds,
        cpu_us_per_tx: cpu.as_secs_f64() * 1e6 / commits,
    })
}

/// Interval at which the end of the run is checked.
const TICK: Duration = Duration::from_millis(50);

/// Commits until stopped; returns the latencies of all commits.
fn commit_until(
    log: &BareLog<'_>,
    stop: &AtomicBool,
    in_flight: usize,
    record_bytes: usize,
) -> io::Result<Histogram<u64>> {
    let record = vec![0x5a; record_bytes];
    let mut latency = histogram();
    let mut outstanding = VecDeque::with_capacity(in_flight);
    while !stop.load(Ordering::Relaxed) {
        let called = Instant::now();
        outstanding.push_back((log.append(&record)?, called));
        if outstanding.len() == in_flight
            && let Some(&(group, _)) = outstanding.front()
        {
            log.wait(group)?;
        }
        if outstanding
            .front()
            .is_some_and(|&(group, _)| log.is_durable(group))
        {
            let now = Instant::now();
            while let Some(&(group, called)) = outstanding.front()
                && log.is_durable(group)
            {
                latency.saturating_record(nanos(now.duration_since(called)));
                outstanding.pop_front();
            }
        }
    }
    outstanding
        .back()
        .map_or(Ok(()), |&(group, _)| log.wait(group))?;
    Ok(latency)
}

pub(crate) struct BareLog<'a> {
    file: &'a dyn File,
    block: usize,
    state: Mutex<State>,
    /// Newest durable group.
    durable: CachePadded<AtomicU64>,
    failed: AtomicBool,
    /// Futex words on which the waiters of a group sleep: the group modulo their number. Two
    /// suffice, because at most one group is being written while another fills; with four, late
    /// wakers do not disturb the next groups.
    doors: [CachePadded<AtomicU32>; 4],
}

struct State {
    buffer: AlignedBuf,
    used: usize,
    /// The group that fills `buffer`, from 1.
    group: u64,
    /// `None` while a flush is in flight.
    spare: Option<AlignedBuf>,
    offset: u64,
}

impl<'a> BareLog<'a> {
    pub(crate) fn new(device: &Arc<dyn Device>, file: &'a dyn File) -> Self {
        BareLog {
            file,
            block: device.block_size().max(4096),
            state: Mutex::new(State {
                buffer: device.allocate(BUFFER_BYTES),
                used: 0,
                group: 1,
                spare: Some(device.allocate(BUFFER_BYTES)),
                offset: 0,
            }),
            durable: CachePadded::new(AtomicU64::new(0)),
            failed: AtomicBool::new(false),
            doors: Default::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn door(&self, group: u64) -> &AtomicU32 {
        &self.doors[(group % 4) as usize]
    }

    #[inline]
    fn is_durable(&self, group: u64) -> bool {
        // Acquire: pairs with the leader's Release, after its write.
        self.durable.load(Ordering::Acquire) >= group
    }

    /// Copies a record into the open buffer; returns its group.
    pub(crate) fn append(&self, record: &[u8]) -> io::Result<u64> {
        loop {
            let mut state = self.lock();
            let used = state.used;
            if used + record.len() <= BUFFER_BYTES {
                state.buffer[used..used + record.len()].copy_from_slice(record);
                state.used += record.len();
                return Ok(state.group);
            }
            let full = state.group;
            drop(state);
            self.wait(full)?;
        }
    }

    /// Waits until the group is durable, and leads a flush if no other thread does.
    pub(crate) fn wait(&self, group: u64) -> io::Result<()> {
        loop {
            // Acquire: read before the state, so that a flush that ends in between changes the
            // word, and the wait below returns at once.
            let seen = self.door(group).load(Ordering::Acquire);
            if self.is_durable(group) {
                return Ok(());
            }
            if self.failed.load(Ordering::Acquire) {
                return Err(io::Error::other("an earlier write failed"));
            }
            if !self.try_flush(group)? {
                atomic_wait::wait(self.door(group), seen);
            }
        }
    }

    /// Flushes the group, if it is the open one and no flush is in flight.
    fn try_flush(&self, group: u64) -> io::Result<bool> {
        let mut state = self.lock();
        if state.group != group {
            return Ok(false);
        }
        let Some(spare) = state.spare.take() else {
            return Ok(false);
        };
        let buffer = mem::replace(&mut state.buffer, spare);
        let bytes = mem::take(&mut state.used).next_multiple_of(self.block);
        if state.offset + bytes as u64 > FILE_BYTES {
            state.offset = 0;
        }
        let offset = state.offset;
        state.offset += bytes as u64;
        state.group += 1;
        drop(state);
        let result = self.file.write_durable_at(&[&buffer[..bytes]], offset);
        if result.is_ok() {
            self.durable.store(group, Ordering::Release);
        } else {
            self.failed.store(true, Ordering::Release);
        }
        // Only now: a thread that finds the buffer may flush the next group at once, and `durable`
        // must not decrease afterwards.
        self.lock().spare = Some(buffer);
        // Wake the next leader first, then the others. Release: pairs with the Acquire in `wait`.
        self.door(group + 1).fetch_add(1, Ordering::Release);
        if result.is_ok() {
            atomic_wait::wake_one(self.door(group + 1));
        } else {
            atomic_wait::wake_all(self.door(group + 1));
        }
        self.door(group).fetch_add(1, Ordering::Release);
        atomic_wait::wake_all(self.door(group));
        result.map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_io::MemoryDevice;

    #[test]
    fn commits_waiting_and_pipelined() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        for (threads, in_flight, record) in
            [(1, 1, 100), (4, 1, 100), (2, 500, 100), (2, 9, 700_000)]
        {
            let report = bare_log(
                &device,
                threads,
                in_flight,
                record,
                Duration::from_millis(60),
            )
            .unwrap();
            assert!(
                report.tx_per_s > 0.0 && report.flushes_per_s > 0.0,
                "{report:?}"
            );
            assert!(report.p50_us <= report.p99_us, "{report:?}");
        }
        assert!(device.list().unwrap().is_empty(), "its file is removed");
    }

    #[test]
    fn nonsense_is_refused() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        let moment = Duration::from_millis(1);
        for (threads, in_flight, record) in [(0, 1, 100), (1, 0, 100), (1, 1, 2 << 20)] {
            let result = bare_log(&device, threads, in_flight, record, moment);
            assert!(
                matches!(result, Err(BenchError::Option { .. })),
                "{result:?}"
            );
        }
    }
}
