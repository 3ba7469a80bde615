//! Counters of a run's threads, and the phase that starts and ends the counting.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;

/// Phase of a run, set by the runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    WarmUp = 0,
    Measure = 1,
    Stop = 2,
}

/// The phase, shared by all threads.
#[derive(Debug)]
pub(crate) struct PhaseCell(AtomicU8);

impl PhaseCell {
    pub(crate) fn new(phase: Phase) -> Self {
        PhaseCell(AtomicU8::new(phase as u8))
    }

    // Relaxed throughout: the phase orders no other memory; results come through thread joins.
    pub(crate) fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> Phase {
        match self.0.load(Ordering::Relaxed) {
            0 => Phase::WarmUp,
            1 => Phase::Measure,
            _ => Phase::Stop,
        }
    }
}

/// Counters of one thread, or of all threads together, during the measurement.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Number of writing transactions acknowledged as durable.
    pub(crate) commits: u64,
    /// Number of read-only transactions that returned.
    pub(crate) reads: u64,
    /// Number of attempts that ended in a conflict and were retried.
    pub(crate) aborts: u64,
    /// Number of transactions that their own rules rolled back.
    pub(crate) rolled_back: u64,
    /// Number of reads that found nothing: with reads of the latest records, inserts that are not
    /// acknowledged yet.
    pub(crate) missing: u64,
    /// Bytes of keys and values in the acknowledged writing transactions.
    pub(crate) bytes: u64,
    /// Nanoseconds from the call of `commit` to durability.
    pub(crate) commit_latency: Histogram<u64>,
    /// Nanoseconds of the timed reads and scans.
    pub(crate) read_latency: Histogram<u64>,
    /// Nanoseconds from the beginning of the first attempt to durability, of the timed writing
    /// transactions.
    pub(crate) response: Histogram<u64>,
    /// Each kind of transaction, if the workload has several.
    pub(crate) kinds: Vec<KindTally>,
}

/// One kind of transaction.
#[derive(Debug)]
pub(crate) struct KindTally {
    /// Number of transactions that are durable, or returned.
    pub(crate) done: u64,
    /// Number of transactions that their own rules rolled back.
    pub(crate) rolled_back: u64,
    /// Nanoseconds from the beginning of the first attempt to durability, or to the return of a
    /// read.
    pub(crate) response: Histogram<u64>,
}

impl Tally {
    /// Creates counters for the kinds of a workload that has several.
    pub(crate) fn new(kinds: usize) -> Self {
        let kind = || KindTally {
            done: 0,
            rolled_back: 0,
            response: histogram(),
        };
        Tally {
            commits: 0,
            reads: 0,
            aborts: 0,
            rolled_back: 0,
            missing: 0,
            bytes: 0,
            commit_latency: histogram(),
            read_latency: histogram(),
            response: histogram(),
            kinds: (0..kinds).map(|_| kind()).collect(),
        }
    }

    pub(crate) fn reset(&mut self) {
        let Tally {
            commits,
            reads,
            aborts,
            rolled_back,
            missing,
            bytes,
            commit_latency,
            read_latency,
            response,
            kinds,
        } = self;
        for count in [commits, reads, aborts, rolled_back, missing, bytes] {
            *count = 0;
        }
        for latency in [commit_latency, read_latency, response] {
            latency.reset();
        }
        for kind in kinds {
            (kind.done, kind.rolled_back) = (0, 0);
            kind.response.reset();
        }
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        self.commits += other.commits;
        self.reads += other.reads;
        self.aborts += other.aborts;
        self.rolled_back += other.rolled_back;
        self.missing += other.missing;
        self.bytes += other.bytes;
        for (sum, part) in [
            (&mut self.commit_latency, &other.commit_latency),
            (&mut self.read_latency, &other.read_latency),
            (&mut self.response, &other.response),
        ] {
            *sum += part;
        }
        for (sum, part) in self.kinds.iter_mut().zip(&other.kinds) {
            sum.done += part.done;
            sum.rolled_back += part.rolled_back;
            sum.response += &part.response;
        }
    }
}

/// Creates a histogram of 64 ns to 1,000 s with three digits; a longer wait counts as the longest.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(64, 1_000_000_000_000, 3).expect("the bounds are in order")
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
