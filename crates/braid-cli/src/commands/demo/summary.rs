//! Progress and results of the demo.

use std::fmt::Write;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::acks::Acknowledged;
use super::check::Findings;
use crate::numbers::{grouped, mib, millis};

/// The current run of a worker.
#[derive(Debug)]
pub(super) struct Live {
    name: String,
    demo_started: Instant,
    started: Instant,
    /// Number of transfers acknowledged before this run.
    before: u64,
    rate: f64,
}

impl Default for Live {
    fn default() -> Self {
        let now = Instant::now();
        Live {
            name: String::new(),
            demo_started: now,
            started: now,
            before: 0,
            rate: 0.0,
        }
    }
}

impl Live {
    pub(super) fn start(name: &str, demo_started: Instant, state: &Acknowledged) -> Self {
        Live {
            name: name.to_owned(),
            demo_started,
            started: state.since.unwrap_or_else(Instant::now),
            before: state.transfers,
            rate: 0.0,
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Records the rate of the run at its end.
    pub(super) fn stop(&mut self, state: &Acknowledged) {
        self.rate = self.rate_now(state);
    }

    /// Returns the transfers per second of the finished run.
    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    fn rate_now(&self, state: &Acknowledged) -> f64 {
        let seconds = self.elapsed().as_secs_f64().max(1e-3);
        (state.transfers - self.before) as f64 / seconds
    }

    /// Returns the progress line.
    pub(super) fn line(&self, state: &Acknowledged) -> String {
        format!(
            "{:5.1} s  {:<8} {:>9} transfers/s  commit p50 {}, p99 {}  {} in all",
            self.demo_started.elapsed().as_secs_f64(),
            self.name,
            grouped(self.rate_now(state) as u64),
            millis(state.latency.value_at_quantile(0.5)),
            millis(state.latency.value_at_quantile(0.99)),
            grouped(state.transfers)
        )
    }
}

/// A run, its end, and the check after it.
#[derive(Debug)]
pub(super) struct Round {
    /// Number of the kill that ended the run; 0 for the clean end.
    pub(super) kill: u32,
    /// Whether another worker was killed during recovery.
    pub(super) killed_while_recovering: bool,
    pub(super) rate: f64,
    pub(super) recovery_time: Duration,
    pub(super) replayed: u64,
    pub(super) log_bytes: u64,
    pub(super) check_time: Duration,
    pub(super) findings: Findings,
}

impl Round {
    /// Returns the line that is printed after the check.
    pub(super) fn line(&self) -> String {
        let end = match (self.kill, self.killed_while_recovering) {
            (0, _) => "clean end".to_owned(),
            (kill, false) => format!("kill {kill}"),
            (kill, true) => format!("kill {kill}, and again while recovering"),
        };
        let verdict = if self.findings.count == 0 {
            "all there"
        } else {
            "VIOLATED"
        };
        format!(
            "{end}: reopened in {:.2} s ({} transactions from {} of log); {} transfers, {} of them \
             acknowledged: {verdict}",
            self.recovery_time.as_secs_f64(),
            grouped(self.replayed),
            mib(self.log_bytes),
            grouped(self.findings.transfers),
            grouped(self.findings.acknowledged),
        )
    }
}

/// Figures for the table at the end.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) rounds: Vec<Round>,
    /// Time in which a worker made transfers.
    pub(super) transferring: Duration,
}

impl Summary {
    /// Returns what the last round cost in addition to its run.
    pub(super) fn last_overhead(&self) -> Duration {
        self.rounds
            .last()
            .map_or(Duration::ZERO, |r| r.recovery_time * 2 + r.check_time)
    }

    /// Returns the table at the end.
    pub(super) fn table(
        &self,
        latency: &Histogram<u64>,
        transfers: u64,
        elapsed: Duration,
    ) -> String {
        let killed = || self.rounds.iter().filter(|round| round.kill > 0);
        let best = self
            .rounds
            .iter()
            .map(|round| round.rate)
            .fold(0.0, f64::max);
        let slowest = killed()
            .map(|round| round.recovery_time)
            .max()
            .unwrap_or_default();
        let replayed: u64 = killed().map(|round| round.replayed).sum();
        let log: u64 = killed().map(|round| round.log_bytes).sum();
        let recovering: Duration = killed().map(|round| round.recovery_time).sum();
        let kills = killed().count();
        let extra = killed()
            .filter(|round| round.killed_while_recovering)
            .count();
        let seconds = self.transferring.as_secs_f64().max(1e-3);
        let quantile = |q| millis(latency.value_at_quantile(q));
        let rows = [
            (
                "transfers",
                format!("{} acknowledged as durable", grouped(transfers)),
            ),
            (
                "rate",
                format!(
                    "{} a second on average, {} in the best run",
                    grouped((transfers as f64 / seconds) as u64),
                    grouped(best as u64)
                ),
            ),
            (
                "commit latency",
                format!(
                    "p50 {}, p99 {}, p99.9 {}",
                    quantile(0.5),
                    quantile(0.99),
                    quantile(0.999)
                ),
            ),
            (
                "kills",
                format!("{kills} while transferring, {extra} while recovering"),
            ),
            (
                "recovery",
                format!(
                    "{} transactions from {} of log in {:.2} s, the slowest {:.2} s",
                    grouped(replayed),
                    mib(log),
                    recovering.as_secs_f64(),
                    slowest.as_secs_f64()
                ),
            ),
            (
                "checks",
                format!(
                    "{} passed: nothing acknowledged lost, nothing doubled or half done, the sum \
                     unchanged",
                    self.rounds.len()
                ),
            ),
            ("time", format!("{:.1} s", elapsed.as_secs_f64())),
        ];
        let mut text = String::from("\n");
        for (name, value) in rows {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<16}{value}");
        }
        text
    }
}
