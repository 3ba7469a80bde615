//! Results of the measurement, and whether they are within the limits.

use std::path::Path;
use std::time::Duration;

use braid::stats::GateHold;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::bare::BareStall;
use super::load::Outcome;
use super::scenario::{BOUND, Scenario};
use super::work::Amounts;
use crate::BenchError;

/// Longest permitted time without a commit, in milliseconds.
pub(super) const GAP_MS: f64 = 100.0;

/// Permitted p99.9: this many times that of the quiet run …
const QUIET_TIMES: f64 = 3.0;

/// … and this many milliseconds.
const QUIET_PLUS_MS: f64 = 2.0;

/// Shares of their rates that updates and reads of a hot key keep under an old snapshot.
const UPDATES_KEPT: f64 = 0.9;
const READS_KEPT: f64 = 0.5;

/// Result of [`measure_stalls`](crate::measure_stalls).
#[derive(Clone, Debug, Serialize)]
pub struct StallsReport {
    /// Name of the measurement.
    pub workload: &'static str,
    /// Name of the engine.
    pub engine: String,
    /// Profile of the build; see [`PROFILE`](crate::PROFILE).
    pub profile: &'static str,
    /// The machine: numbers of processors, cores and NUMA nodes.
    pub machine: String,
    /// Threads of the load.
    pub threads: usize,
    /// Commits per second that the threads reach without a pause; `None` if the rate was given.
    pub calibrated_tx_per_s: Option<f64>,
    /// Commits per second of the load.
    pub tx_per_s: f64,
    /// Factor of all amounts of data.
    pub scale: f64,
    /// Size of the buffer pool.
    pub pool_bytes: u64,
    /// The scenarios, the quiet run first.
    pub rows: Vec<StallRow>,
}

/// Latencies in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
    /// Longest.
    pub max_ms: f64,
}

/// Figures of one scenario.
#[derive(Clone, Debug, Serialize)]
pub struct StallRow {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Number of operations that were due during the measurement.
    pub operations: u64,
    /// Number of them that were not performed within 20 s after it; their latency is a lower bound.
    pub unfinished: u64,
    /// Length of the measurement.
    pub seconds: f64,
    /// Latency of a commit, from the time at which it was due; for buffered commits to its return.
    #[serde(flatten)]
    pub latency: Latency,
    /// Longest time without any commit, in milliseconds.
    pub gap_ms: f64,
    /// How often the disturbance ran, and how long that took.
    pub disturbance: DisturbanceReport,
    /// Bytes that the process wrote during the measurement, without what the load writes.
    pub written_bytes: u64,
    /// Bytes that the process read during the measurement, without what the load reads.
    pub read_bytes: u64,
    /// Processor time of the process during the measurement, without that of the load.
    pub cpu_s: f64,
    /// A bare log next to the same work; `None` for buffered commits, and where the system does not
    /// count the work.
    pub bare: Option<BareStall>,
    /// Time after their bound at which buffered commits became durable.
    pub lateness: Option<Latency>,
    /// The longest hold of each gate since the database was opened, so also while the scenario was
    /// prepared.
    pub holds: Vec<Hold>,
    /// Rates of the hot key.
    pub hot_key: Option<HotKey>,
    /// Limits that were exceeded: `gap`, `p99.9`, `late`, `updates`, `reads`; empty for the quiet
    /// run.
    pub exceeded: Vec<&'static str>,
    /// Operation that the engine lacks; the scenario then has no figures.
    pub lacks: Option<&'static str>,
    /// Error that ended the scenario, which then has no figures.
    pub error: Option<String>,
}

/// Runs of a disturbance.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct DisturbanceReport {
    /// Number of runs.
    pub runs: u64,
    /// Duration of all runs together, in seconds.
    pub seconds: f64,
    /// Duration of the longest run, in seconds.
    pub longest_s: f64,
}

/// The longest time for which background work held a gate for which commits wait, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Hold {
    /// Name of the gate.
    pub gate: &'static str,
    /// Without the time in which the system suspended the thread.
    pub longest_ms: f64,
    /// With that time.
    pub elapsed_ms: f64,
}

impl Hold {
    pub(super) fn new(hold: &GateHold) -> Self {
        Hold {
            gate: hold.gate,
            longest_ms: millis(hold.longest),
            elapsed_ms: millis(hold.elapsed),
        }
    }
}

/// Rates per second of updates of one key, and of reads of it at snapshots.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct HotKey {
    /// Updates while all snapshots are new.
    pub fresh_updates_per_s: f64,
    /// Reads while all snapshots are new.
    pub fresh_reads_per_s: f64,
    /// Updates while an old snapshot is kept.
    pub updates_per_s: f64,
    /// Reads at the old snapshot and at new ones in turn.
    pub reads_per_s: f64,
}

pub(super) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

impl Latency {
    pub(super) fn new(nanos: &Histogram<u64>) -> Self {
        let quantile = |quantile| nanos.value_at_quantile(quantile) as f64 / 1e6;
        Latency {
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            p999_ms: quantile(0.999),
            max_ms: nanos.max() as f64 / 1e6,
        }
    }
}

impl DisturbanceReport {
    pub(super) fn add(&mut self, run: Duration) {
        let run = run.as_secs_f64();
        self.runs += 1;
        self.seconds += run;
        self.longest_s = self.longest_s.max(run);
    }
}

impl StallRow {
    pub(super) fn new(
        scenario: Scenario,
        outcome: &Outcome,
        disturbance: DisturbanceReport,
    ) -> Self {
        StallRow {
            operations: outcome.latency.len(),
            unfinished: outcome.unfinished,
            seconds: outcome.length.as_secs_f64(),
            latency: Latency::new(&outcome.latency),
            gap_ms: millis(outcome.gap),
            disturbance,
            ..StallRow::empty(scenario)
        }
    }

    /// Returns a row without figures.
    fn empty(scenario: Scenario) -> Self {
        StallRow {
            scenario: scenario.name(),
            operations: 0,
            unfinished: 0,
            seconds: 0.0,
            latency: Latency::default(),
            gap_ms: 0.0,
            disturbance: DisturbanceReport::default(),
            written_bytes: 0,
            read_bytes: 0,
            cpu_s: 0.0,
            bare: None,
            lateness: None,
            holds: Vec::new(),
            hot_key: None,
            exceeded: Vec::new(),
            lacks: None,
            error: None,
        }
    }

    /// Returns the row of a scenario that failed, or whose operation the engine lacks.
    pub(super) fn without(scenario: Scenario, error: &BenchError) -> Self {
        let mut row = StallRow::empty(scenario);
        match error {
            BenchError::Unable { what, .. } => row.lacks = Some(what),
            error => row.error = Some(error.to_string()),
        }
        row
    }

    /// Returns whether the scenario was measured.
    pub(super) fn is_measured(&self) -> bool {
        self.lacks.is_none() && self.error.is_none()
    }

    /// Sets the work of the disturbance.
    pub(super) fn add(&mut self, work: Amounts) {
        self.written_bytes = work.written as u64;
        self.read_bytes = work.read as u64;
        self.cpu_s = work.cpu_s;
    }

    /// Returns the limits that are exceeded, compared with the quiet run. A figure that the bare
    /// log reaches, too, is the device's.
    fn judged(&self, quiet: &Latency) -> Vec<&'static str> {
        let (bare_gap, bare_p999) = match &self.bare {
            Some(bare) => (bare.gap_ms, bare.latency.p999_ms),
            None => (0.0, 0.0),
        };
        let p999 = QUIET_TIMES * quiet.p999_ms + QUIET_PLUS_MS;
        let mut exceeded = Vec::new();
        let mut limit = |name, holds: bool| {
            if !holds {
                exceeded.push(name);
            }
        };
        limit("gap", self.gap_ms <= bare_gap.max(GAP_MS));
        limit("p99.9", self.latency.p999_ms <= bare_p999.max(p999));
        if let Some(lateness) = &self.lateness {
            limit("late", lateness.max_ms <= millis(BOUND));
        }
        if let Some(hot) = &self.hot_key {
            let updates = UPDATES_KEPT * hot.fresh_updates_per_s;
            limit("updates", hot.updates_per_s >= updates);
            limit(
                "reads",
                hot.reads_per_s >= READS_KEPT * hot.fresh_reads_per_s,
            );
        }
        exceeded
    }
}

/// Compares the rows after the first, the quiet run, with it.
pub(super) fn judge(rows: &mut [StallRow]) {
    if let Some((quiet, rows)) = rows.split_first_mut() {
        for row in rows.iter_mut().filter(|row| row.is_measured()) {
            row.exceeded = row.judged(&quiet.latency);
        }
    }
}

impl StallsReport {
    /// Returns one JSON object on one line, without a line break.
    ///
    /// # Errors
    ///
    /// None in practice: every field can be written as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

/// Returns an SVG image for the file `path`: the longest gap and the p99.9 of each scenario, or, of
/// several engines, the p99.9 of each. All reports have the same scenarios.
///
/// # Errors
///
/// [`BenchError::NoPlots`] names the file in a build without the feature `plots`.
pub fn stalls_figure(reports: &[StallsReport], path: &Path) -> Result<String, BenchError> {
    crate::check_plots(path)?;
    #[cfg(feature = "plots")]
    return super::figure::svg(reports).map_err(|error| BenchError::file("draw", path, error));
    #[cfg(not(feature = "plots"))]
    {
        let _ = reports;
        Ok(String::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(gap_ms: f64, p999_ms: f64) -> StallRow {
        let latency = Latency {
            p999_ms,
            ..Latency::default()
        };
        StallRow {
            latency,
            gap_ms,
            ..StallRow::empty(Scenario::Checkpoints)
        }
    }

    fn judged(row: StallRow) -> Vec<&'static str> {
        let mut rows = [self::row(500.0, 1.0), row];
        judge(&mut rows);
        assert!(rows[0].exceeded.is_empty(), "the quiet run is the measure");
        rows[1].exceeded.clone()
    }

    #[test]
    fn limits_are_those_of_the_documentation() {
        assert!(judged(row(100.0, 5.0)).is_empty());
        assert_eq!(judged(row(100.1, 5.0)), ["gap"]);
        assert_eq!(judged(row(100.1, 5.1)), ["gap", "p99.9"]);
        let bare = BareStall {
            latency: row(0.0, 6.0).latency,
            gap_ms: 200.0,
        };
        let excused = |gap, p999| {
            let bare = Some(bare.clone());
            judged(StallRow {
                bare,
                ..row(gap, p999)
            })
        };
        assert!(excused(200.0, 6.0).is_empty());
        assert_eq!(excused(201.0, 6.1), ["gap", "p99.9"]);
    }

    #[test]
    fn buffered_commits_and_hot_keys_have_limits_of_their_own() {
        let late = |max_ms| {
            let lateness = Some(Latency {
                max_ms,
                ..Latency::default()
            });
            judged(StallRow {
                lateness,
                ..row(1.0, 1.0)
            })
        };
        assert!(late(20.0).is_empty());
        assert_eq!(late(20.1), ["late"]);
        let hot = |updates_per_s, reads_per_s| {
            let hot_key = Some(HotKey {
                fresh_updates_per_s: 100.0,
                fresh_reads_per_s: 100.0,
                updates_per_s,
                reads_per_s,
            });
            judged(StallRow {
                hot_key,
                ..row(1.0, 1.0)
            })
        };
        assert!(hot(90.0, 50.0).is_empty());
        assert_eq!(hot(89.0, 49.0), ["updates", "reads"]);
    }
}
