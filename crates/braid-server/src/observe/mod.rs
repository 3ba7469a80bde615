//! What the server notes about the commands that it runs: how long each takes, those that were slow,
//! and copies for MONITOR.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

mod graph;
mod monitor;
mod redact;
mod slow_log;
mod spikes;
mod statistics;

pub(crate) use monitor::Monitors;
pub(crate) use redact::shown;
pub(crate) use slow_log::SlowLog;
pub(crate) use spikes::{History, Spikes};
pub(crate) use statistics::CommandStatistics;

/// Returns the time since 1970.
pub(crate) fn since_1970() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}
