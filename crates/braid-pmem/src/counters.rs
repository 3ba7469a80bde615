//! Counts of stores, flushes and fences.
//!
//! A thread counts in one of a few stripes, each in cache lines of its own: threads that commit at
//! the same time do not exchange a line.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const STRIPES: usize = 16;

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
    #[inline]
    fn stripe(&self) -> &Stripe {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
        }
        &self.0[MINE.with(|mine| *mine)]
    }

    #[inline]
    pub(crate) fn wrote(&self, bytes: usize) {
        self.stripe()
            .bytes_written
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn flushed(&self, lines: u64) {
        self.stripe()
            .lines_flushed
            .fetch_add(lines, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn fenced(&self) {
        self.stripe().fences.fetch_add(1, Ordering::Relaxed);
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
