//! Counts of stores, flushes and fences.
//!
//! A thread counts in one of a few stripes, each in cache lines of its own: threads that commit at
//! the same time do not exchange a line. The first threads each have a stripe of their own, in which
//! they count without an atomic addition: after a flush, it would wait like a fence.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const STRIPES: usize = 16;

/// The stripe that all later threads share.
const SHARED: usize = STRIPES - 1;

/// What was done to a mapping since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappingStats {
    /// Bytes written.
    pub bytes_written: u64,
    /// Lines flushed. A line counts each time that it is flushed. A range of an ordinary file
    /// counts in lines, too.
    pub lines_flushed: u64,
    /// Fences.
    pub fences: u64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    bytes_written: AtomicU64,
    lines_flushed: AtomicU64,
    fences: AtomicU64,
}

/// The counters of a mapping. All accesses are relaxed: the counts order nothing.
#[derive(Debug, Default)]
pub(crate) struct Counters([Stripe; STRIPES]);

impl Counters {
    /// Adds to a counter of the thread's stripe.
    #[inline]
    fn add(&self, counter: impl FnOnce(&Stripe) -> &AtomicU64, count: u64) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed).min(SHARED);
        }
        let mine = MINE.with(|mine| *mine);
        let counter = counter(&self.0[mine]);
        if mine == SHARED {
            counter.fetch_add(count, Ordering::Relaxed);
        } else {
            // No other thread ever stores here.
            let sum = counter.load(Ordering::Relaxed).wrapping_add(count);
            counter.store(sum, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn wrote(&self, bytes: usize) {
        self.add(|stripe| &stripe.bytes_written, bytes as u64);
    }

    #[inline]
    pub(crate) fn flushed(&self, lines: u64) {
        self.add(|stripe| &stripe.lines_flushed, lines);
    }

    #[inline]
    pub(crate) fn fenced(&self) {
        self.add(|stripe| &stripe.fences, 1);
    }

    pub(crate) fn sum(&self) -> MappingStats {
        let mut sum = MappingStats::default();
        for stripe in &self.0 {
            sum.bytes_written += stripe.bytes_written.load(Ordering::Relaxed);
            sum.lines_flushed += stripe.lines_flushed.load(Ordering::Relaxed);
            sum.fences += stripe.fences.load(Ordering::Relaxed);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_if_there_are_more_threads_than_stripes() {
        let counters = Counters::default();
        let times: u64 = if cfg!(miri) { 10 } else { 1_000 };
        std::thread::scope(|scope| {
            for _ in 0..3 * STRIPES {
                scope.spawn(|| (0..times).for_each(|_| counters.flushed(2)));
            }
        });
        let flushed = 3 * STRIPES as u64 * times * 2;
        assert_eq!(counters.sum().lines_flushed, flushed);
    }
}
