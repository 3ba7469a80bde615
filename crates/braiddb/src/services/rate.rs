//! A limit of the bytes per second.

use std::time::{Duration, Instant};

/// A limit of the bytes per second of background work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    begun: Instant,
    bytes_per_second: u64,
}

impl Rate {
    /// Begins to count.
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self {
            begun: braid_rt::now(),
            bytes_per_second: bytes_per_second.max(1),
        }
    }

    /// Sleeps until the work may have read or written `bytes`.
    pub(crate) fn pause(&self, bytes: u64) {
        let pause = self.pause_at(bytes, braid_rt::now());
        if !pause.is_zero() {
            braid_rt::sleep(pause);
        }
    }

    fn pause_at(&self, bytes: u64, now: Instant) -> Duration {
        let seconds = bytes as f64 / self.bytes_per_second as f64;
        let due = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        due.saturating_sub(now.saturating_duration_since(self.begun))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn work_waits_until_its_rate_allows_what_it_did() {
        let rate = Rate::new(1_000);
        let after = |millis| rate.begun + Duration::from_millis(millis);
        assert_eq!(
            rate.pause_at(2_000, after(500)),
            Duration::from_millis(1_500)
        );
        assert_eq!(rate.pause_at(2_000, after(2_000)), Duration::ZERO);
        assert_eq!(rate.pause_at(2_000, after(9_000)), Duration::ZERO);
        assert!(Rate::new(0).pause_at(u64::MAX, after(1)) > Duration::from_secs(1 << 60));
    }
}
