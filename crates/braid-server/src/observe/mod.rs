//! What the server notes about the commands that it runs: how long each takes, those that were slow,
//! their errors, and copies for MONITOR; and what the system says about the process.

mod activity;
mod errors;
mod graph;
mod monitor;
pub(crate) mod process;
mod redact;
mod slow_log;
mod spikes;
mod statistics;

pub(crate) use activity::{Activities, Activity};
pub(crate) use errors::ErrorStatistics;
pub(crate) use monitor::Monitors;
pub(crate) use redact::shown;
pub(crate) use slow_log::SlowLog;
pub(crate) use spikes::{History, Spikes};
pub(crate) use statistics::CommandStatistics;
