//! The parts of a mapping whose bytes the medium lost.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use crate::error::MediaError;

/// Number of ranges that are distinguished. After more, the whole mapping counts as damaged.
const RANGES: usize = 64;

/// Damaged ranges. The signal handler records into it, so that it neither allocates nor locks.
#[derive(Debug)]
pub(crate) struct Damage {
    /// Number of ranges that were recorded, or are about to be. It is read before and after every
    /// access.
    count: AtomicUsize,
    /// Starts and ends. An end of 0 is not written yet.
    ranges: [[AtomicU64; 2]; RANGES],
    /// Whether an access failed, so that a store may be lost.
    faulted: AtomicBool,
}

impl Damage {
    pub(crate) fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            ranges: [const { [const { AtomicU64::new(0) }; 2] }; RANGES],
            faulted: AtomicBool::new(false),
        }
    }

    /// Records a range that the kernel lists as bad.
    pub(crate) fn record(&self, range: Range<u64>) {
        // Relaxed: the release store of the end publishes the start, and a reader that sees only
        // the count waits for the end.
        let index = self.count.fetch_add(1, Ordering::Relaxed);
        if let Some([start, end]) = self.ranges.get(index) {
            start.store(range.start, Ordering::Relaxed);
            // Pairs with the acquire load in `first_in`.
            end.store(range.end.max(1), Ordering::Release);
        }
    }

    /// Records a range whose access failed. Called by the signal handler, before it replaces the
    /// page: who sees the replacement sees the record.
    pub(crate) fn record_fault(&self, range: Range<u64>) {
        self.record(range);
        // Pairs with the load in `has_faulted`; a thread's own handler needs no order.
        self.faulted.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Whether an access failed: stores into the range were lost.
    #[inline]
    pub(crate) fn has_faulted(&self) -> bool {
        self.faulted.load(Ordering::Acquire)
    }

    /// Fails if bytes of the range are lost. Called after the bytes were loaded, it covers the loss
    /// that their loading showed.
    #[inline]
    pub(crate) fn check(&self, range: Range<u64>) -> Result<(), MediaError> {
        // Keeps the check after the caller's relaxed loads: a load that saw the replaced page
        // happens before the load of the count.
        fence(Ordering::Acquire);
        if self.count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        self.first_in(range)
            .map_or(Ok(()), |offset| Err(MediaError { offset }))
    }

    #[cold]
    fn first_in(&self, range: Range<u64>) -> Option<u64> {
        let count = self.count.load(Ordering::Acquire);
        if count > RANGES {
            return (!range.is_empty()).then_some(range.start);
        }
        let overlaps = self.ranges[..count].iter().filter_map(|[start, end]| {
            let end = loop {
                match end.load(Ordering::Acquire) {
                    0 => std::hint::spin_loop(),
                    end => break end,
                }
            };
            let start = start.load(Ordering::Relaxed).max(range.start);
            (start < end.min(range.end)).then_some(start)
        });
        overlaps.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_found_where_it_is() {
        let damage = Damage::new();
        assert_eq!(damage.check(0..u64::MAX), Ok(()));
        damage.record(4096..8192);
        damage.record(64..128);
        assert_eq!(damage.check(0..64), Ok(()));
        assert_eq!(damage.check(128..4096), Ok(()));
        assert_eq!(damage.check(8192..9000), Ok(()));
        assert_eq!(damage.check(0..9000), Err(MediaError { offset: 64 }));
        assert_eq!(damage.check(100..101), Err(MediaError { offset: 100 }));
        assert_eq!(damage.check(5000..6000), Err(MediaError { offset: 5000 }));
        assert_eq!(damage.check(5000..5000), Ok(()));
        assert!(!damage.has_faulted());
        damage.record_fault(0..1);
        assert!(damage.has_faulted());
    }

    #[test]
    fn too_many_ranges_damage_everything() {
        let damage = Damage::new();
        for range in 0..=RANGES as u64 {
            assert_eq!(damage.check(1 << 20..2 << 20), Ok(()));
            damage.record(range * 64..range * 64 + 1);
        }
        let offset = 1 << 20;
        assert_eq!(damage.check(offset..2 << 20), Err(MediaError { offset }));
    }
}
