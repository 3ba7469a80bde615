//! Which flushes are timed.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::base::numbers::GroupNo;
use crate::base::sync::Counter;

/// Selects the flush groups whose times are measured for [`LogStats`](crate::LogStats).
///
/// A flush to persistent memory takes as long as a few readings of the clock. There, one flush in
/// 16 is timed, and counts for all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    every: u64,
}

impl Timing {
    /// The timing of a device, by whether its flushes make no system call.
    pub(crate) fn of(is_memory: bool) -> Self {
        Self {
            every: if is_memory { 16 } else { 1 },
        }
    }

    /// Reads the clock if `group` is timed.
    #[inline]
    pub(crate) fn read(self, group: GroupNo) -> Option<Instant> {
        group.get().is_multiple_of(self.every).then(braid_rt::now)
    }

    /// Adds the time between two readings to a sum, in nanoseconds, if both are there.
    #[inline]
    pub(crate) fn add(self, sum: &Counter, from: Option<Instant>, to: Option<Instant>) {
        if let (Some(from), Some(to)) = (from, to) {
            let nanos = u64::try_from((to - from).as_nanos()).unwrap_or(u64::MAX);
            sum.fetch_add(nanos.saturating_mul(self.every), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timed_flush_counts_for_all() {
        let timed = |timing: Timing| {
            let groups = (1..=32).map(GroupNo::new);
            groups.filter(|&group| timing.read(group).is_some()).count()
        };
        let (disk, memory) = (Timing::of(false), Timing::of(true));
        assert_eq!((timed(disk), timed(memory)), (32, 2));
        let now = braid_rt::now();
        let later = now + std::time::Duration::from_nanos(7);
        let sum = Counter::new(0);
        memory.add(&sum, Some(now), Some(later));
        memory.add(&sum, None, Some(later));
        assert_eq!(sum.load(Ordering::Relaxed), 7 * 16);
    }
}
