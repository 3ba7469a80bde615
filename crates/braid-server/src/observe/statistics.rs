//! How often each command ran, and how long it took.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::latency::Latency;

/// Figures of one command on one thread.
#[derive(Debug, Default)]
struct Figures {
    durations: Latency,
    failed: AtomicU64,
    rejected: AtomicU64,
}

/// Figures of all commands, apart for each thread: threads do not share cache lines.
#[derive(Debug)]
pub(crate) struct CommandStatistics {
    threads: Vec<Box<[Figures]>>,
}

/// Figures of one command on all threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandFigures {
    pub(crate) calls: u64,
    /// Calls that were answered with an error.
    pub(crate) failed: u64,
    /// Requests that did not run, and are not among the calls.
    pub(crate) rejected: u64,
    pub(crate) nanoseconds: u64,
    /// Number of durations in each class of [`Latency`].
    pub(crate) classes: Vec<u64>,
}

impl CommandStatistics {
    pub(crate) fn new(threads: usize, commands: usize) -> Self {
        let of_thread = || (0..commands).map(|_| Figures::default()).collect();
        CommandStatistics {
            threads: (0..threads).map(|_| of_thread()).collect(),
        }
    }

    /// Counts a command that ran on a thread.
    pub(crate) fn record(&self, thread: u16, command: usize, duration: Duration, has_failed: bool) {
        let of_thread = self.threads.get(usize::from(thread));
        let Some(figures) = of_thread.and_then(|figures| figures.get(command)) else {
            return;
        };
        figures.durations.record(duration);
        if has_failed {
            // Relaxed: a statistic.
            figures.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a request that named a command and did not run, such as one with too few arguments.
    pub(crate) fn reject(&self, thread: u16, command: usize) {
        let of_thread = self.threads.get(usize::from(thread));
        if let Some(figures) = of_thread.and_then(|figures| figures.get(command)) {
            // Relaxed: a statistic.
            figures.rejected.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the figures of a command; `None` if no request named it.
    pub(crate) fn of(&self, command: usize) -> Option<CommandFigures> {
        let mut sum = CommandFigures {
            calls: 0,
            failed: 0,
            rejected: 0,
            nanoseconds: 0,
            classes: Vec::new(),
        };
        for figures in self.threads.iter().filter_map(|thread| thread.get(command)) {
            let counts = figures.durations.counts();
            sum.classes.resize(counts.len(), 0);
            for (total, count) in sum.classes.iter_mut().zip(counts) {
                *total += count;
            }
            sum.calls += counts.iter().sum::<u64>();
            sum.failed += figures.failed.load(Ordering::Relaxed);
            sum.rejected += figures.rejected.load(Ordering::Relaxed);
            sum.nanoseconds += figures.durations.nanoseconds();
        }
        (sum.calls + sum.rejected > 0).then_some(sum)
    }

    /// Sets everything to zero.
    pub(crate) fn reset(&self) {
        for figures in self.threads.iter().flatten() {
            figures.durations.reset();
            figures.failed.store(0, Ordering::Relaxed);
            figures.rejected.store(0, Ordering::Relaxed);
        }
    }
}
