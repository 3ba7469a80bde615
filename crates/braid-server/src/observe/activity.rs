//! Counts that every request changes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crossbeam_utils::CachePadded;

use crate::latency::Latency;

/// What the requests of one thread did.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    pub(crate) commands: AtomicU64,
    /// Reads that found a key, and those that found none.
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    /// Bytes that clients sent, and that they got.
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    /// How long writes take.
    pub(crate) writes: Latency,
}

/// Samples of the number of commands, taken ten times a second.
const SAMPLES: usize = 16;

/// What requests did. Each thread has counts of its own, in cache lines that no other thread writes.
#[derive(Debug)]
pub(crate) struct Activities {
    threads: Box<[CachePadded<Activity>]>,
    /// When there had been how many commands; the oldest first.
    samples: Mutex<VecDeque<(Instant, u64)>>,
}

impl Activities {
    pub(crate) fn new(threads: usize) -> Activities {
        let of_thread = |_| CachePadded::default();
        Activities {
            threads: (0..threads.max(1)).map(of_thread).collect(),
            samples: Mutex::default(),
        }
    }

    /// Returns the counts of a thread.
    pub(crate) fn of(&self, thread: u16) -> &Activity {
        // The thread that removes expired keys has no number, and counts nothing.
        let of_thread = self.threads.get(usize::from(thread));
        of_thread.unwrap_or(&self.threads[0])
    }

    /// Returns the sum of a count over all threads.
    pub(crate) fn sum(&self, count: impl Fn(&Activity) -> &AtomicU64) -> u64 {
        let counts = self.threads.iter().map(|activity| count(activity));
        // Relaxed: statistics.
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Notes how many commands there have been, for [`Activities::commands_per_second`].
    pub(crate) fn sample(&self, now: Instant) {
        let commands = self.sum(|activity| &activity.commands);
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back((now, commands));
    }

    /// Returns the number of commands in a second, of the last ones.
    pub(crate) fn commands_per_second(&self) -> u64 {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some((begin, before)), Some((end, after))) = (samples.front(), samples.back()) else {
            return 0;
        };
        let seconds = (*end - *begin).as_secs_f64();
        // CONFIG RESETSTAT may have come between them.
        let commands = after.saturating_sub(*before) as f64;
        if seconds > 0.0 {
            (commands / seconds) as u64
        } else {
            0
        }
    }

    /// Returns how long the writes of all threads take.
    pub(crate) fn writes(&self) -> Latency {
        let sum = Latency::default();
        for activity in &self.threads {
            sum.add(&activity.writes);
        }
        sum
    }

    /// Sets the numbers of commands, hits and misses to zero.
    pub(crate) fn reset(&self) {
        for activity in &self.threads {
            for count in [
                &activity.commands,
                &activity.hits,
                &activity.misses,
                &activity.received,
                &activity.sent,
            ] {
                count.store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_counts_of_all_threads_are_added() {
        let activities = Activities::new(2);
        for (thread, count) in [(0, 1), (1, 2)] {
            let activity = activities.of(thread);
            activity.commands.fetch_add(count, Ordering::Relaxed);
            activity.hits.fetch_add(count, Ordering::Relaxed);
            activity
                .writes
                .record_many(Duration::from_micros(count), count);
        }
        assert_eq!(activities.of(1).commands.load(Ordering::Relaxed), 2);
        assert_eq!(activities.sum(|activity| &activity.commands), 3);
        assert_eq!(activities.writes().counts()[..3], [1, 2, 0]);
        assert_eq!(activities.writes().nanoseconds(), 5_000);
        let begin = Instant::now();
        assert_eq!(activities.commands_per_second(), 0);
        activities.sample(begin);
        activities.of(0).commands.fetch_add(100, Ordering::Relaxed);
        activities.sample(begin + Duration::from_secs(4));
        assert_eq!(activities.commands_per_second(), 25);
        activities.reset();
        assert_eq!(activities.sum(|activity| &activity.hits), 0);
        assert_eq!(activities.writes().counts()[..3], [1, 2, 0]);
    }
}
