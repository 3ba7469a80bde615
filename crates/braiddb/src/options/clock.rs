//! Clock for times to live.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Source of the current time for writing entries and checking whether their time to live has
/// ended.
#[derive(Clone, Default)]
pub(crate) struct Clock(Option<Arc<dyn Fn() -> SystemTime + Send + Sync>>);

impl Clock {
    pub(crate) fn new(clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(clock)))
    }

    /// Returns the current time in milliseconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        let since = match &self.0 {
            Some(clock) => clock().duration_since(UNIX_EPOCH).unwrap_or_default(),
            None => braid_rt::wall_clock(),
        };
        millis(since)
    }
}

/// Converts a duration to milliseconds, at most `u64::MAX`.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
