//! The interval of a run that counts, and the longest gap between two acknowledgements in it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::tally::nanos;

/// The measured interval of a run: opened when the disturbance begins, closed when the load ends.
///
/// All times are nanoseconds since the window was created.
#[derive(Debug)]
pub(super) struct Window {
    base: Instant,
    from: AtomicU64,
    until: AtomicU64,
    /// Time of the newest acknowledgement of any thread.
    newest: CachePadded<AtomicU64>,
    longest_gap: CachePadded<AtomicU64>,
}

impl Window {
    pub(super) fn new() -> Self {
        Window {
            base: Instant::now(),
            from: AtomicU64::new(u64::MAX),
            until: AtomicU64::new(u64::MAX),
            newest: CachePadded::default(),
            longest_gap: CachePadded::default(),
        }
    }

    pub(super) fn now(&self) -> u64 {
        nanos(self.base.elapsed())
    }

    // Relaxed throughout: the times order no other memory; results come through thread joins.

    pub(super) fn open(&self) {
        self.from.store(self.now(), Ordering::Relaxed);
    }

    /// Ends the interval. A window that was not opened counts nothing.
    pub(super) fn close(&self) {
        self.until.store(self.now(), Ordering::Relaxed);
    }

    /// Returns the end of the interval, which is the largest number while the window is not closed.
    pub(super) fn until(&self) -> u64 {
        self.until.load(Ordering::Relaxed)
    }

    /// Returns whether an operation that was due at this time counts.
    pub(super) fn counts(&self, due: u64) -> bool {
        (self.from.load(Ordering::Relaxed)..self.until()).contains(&due)
    }

    /// Records an acknowledgement.
    pub(super) fn acknowledge(&self, at: u64) {
        let before = self.newest.fetch_max(at, Ordering::Relaxed);
        let from = self.from.load(Ordering::Relaxed);
        if at > from {
            let gap = at.min(self.until()).saturating_sub(before.max(from));
            self.longest_gap.fetch_max(gap, Ordering::Relaxed);
        }
    }

    /// Returns the length of the interval, after it was closed.
    pub(super) fn length(&self) -> Duration {
        let from = self.from.load(Ordering::Relaxed);
        Duration::from_nanos(self.until().saturating_sub(from))
    }

    /// Returns the longest time without any acknowledgement, after the window was closed.
    pub(super) fn longest_gap(&self) -> Duration {
        // The end of the interval also ends a gap.
        self.acknowledge(self.until());
        Duration::from_nanos(self.longest_gap.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(from: u64, until: u64) -> Window {
        let window = Window::new();
        window.from.store(from, Ordering::Relaxed);
        window.until.store(until, Ordering::Relaxed);
        window
    }

    #[test]
    fn gaps_are_those_of_all_threads_inside_the_interval() {
        for (acknowledged, gap) in [
            (&[50, 110, 130, 190][..], 60),
            (&[50, 130, 110, 190], 60),
            (&[99], 100),
            (&[], 100),
            (&[40, 105, 170, 300], 65),
        ] {
            let window = window(100, 200);
            acknowledged.iter().for_each(|&at| window.acknowledge(at));
            assert_eq!(
                window.longest_gap(),
                Duration::from_nanos(gap),
                "{acknowledged:?}"
            );
        }
    }

    #[test]
    fn operations_count_by_the_time_they_were_due() {
        let window = window(100, 200);
        let counted = [99, 100, 199, 200].map(|due| window.counts(due));
        assert_eq!(counted, [false, true, true, false]);
        assert_eq!(window.length(), Duration::from_nanos(100));
        assert!(!Window::new().counts(u64::MAX - 1), "not opened");
    }
}
