//! The clock for times to live.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The times that entries are written and looked at.
#[derive(Clone, Default)]
pub(crate) struct Clock(Option<Arc<dyn Fn() -> SystemTime + Send + Sync>>);

impl Clock {
    pub(crate) fn new(clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(clock)))
    }

    /// In milliseconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        let since = match &self.0 {
            Some(clock) => clock().duration_since(UNIX_EPOCH).unwrap_or_default(),
            None => braid_rt::wall_clock(),
        };
        millis(since)
    }
}

/// A duration in milliseconds; `u64::MAX` of one that is longer.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
