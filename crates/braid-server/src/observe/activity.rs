//! Counts that every request changes.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::latency::Latency;

/// What the requests of one thread did.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    pub(crate) commands: AtomicU64,
    /// Reads that found a key, and those that found none.
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    /// How long writes take.
    pub(crate) writes: Latency,
}

/// What requests did. Each thread has counts of its own, in cache lines that no other thread writes.
#[derive(Debug)]
pub(crate) struct Activities {
    threads: Box<[CachePadded<Activity>]>,
}

impl Activities {
    pub(crate) fn new(threads: usize) -> Activities {
        let of_thread = |_| CachePadded::default();
        Activities {
            threads: (0..threads.max(1)).map(of_thread).collect(),
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
            for count in [&activity.commands, &activity.hits, &activity.misses] {
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
        activities.reset();
        assert_eq!(activities.sum(|activity| &activity.hits), 0);
        assert_eq!(activities.writes().counts()[..3], [1, 2, 0]);
    }
}
