//! Result of a run.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::Spec;
use crate::bare_log::BareLogReport;
use crate::driver::{Check, Driver};
use crate::engines::{Counters, KvEngine};
use crate::runner::Reading;
use crate::tally::Tally;

/// Result of [`run`](crate::run). Serialized, it is one flat object.
///
/// The latencies `p50_us` to `max_us` are those of commits, from the call to durability. For a
/// workload without commits they are those of reads, of which one in sixteen is timed.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name of the workload.
    pub workload: String,
    /// Name of the engine.
    pub engine: String,
    /// Profile of the build; see [`PROFILE`](crate::PROFILE).
    pub profile: &'static str,
    /// Name of the commit protocol.
    pub protocol: String,
    /// Device of the database.
    pub device: String,
    /// Number of threads that issued transactions.
    pub threads: usize,
    /// Commits that each thread kept in flight.
    pub in_flight: usize,
    /// Size of the data, in words.
    pub data: String,
    /// Number of records that were loaded.
    pub records: u64,
    /// Size of each value, in bytes.
    pub value_size: usize,
    /// Duration of the measurement, in seconds.
    pub seconds: f64,
    /// Transactions per second: durable commits and read-only transactions.
    pub tx_per_s: f64,
    /// Number of durable commits measured.
    pub commits: u64,
    /// Number of read-only transactions measured.
    pub reads: u64,
    /// Number of attempts that ended in a conflict and were retried.
    pub aborts: u64,
    /// Number of transactions that their own rules rolled back.
    pub rolled_back: u64,
    /// Number of reads that found nothing.
    pub missing: u64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile in microseconds.
    pub p999_us: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Longest latency in microseconds.
    pub max_us: f64,
    /// Mean time from the beginning of a writing transaction, including its repetitions, to
    /// durability, in microseconds; of one in sixteen if several are in flight and all are of one
    /// kind.
    pub response_mean_us: f64,
    /// Median of the response time.
    pub response_p50_us: f64,
    /// 99th percentile of the response time.
    pub response_p99_us: f64,
    /// Median latency of reads and scans in microseconds; zero if there were none.
    pub read_p50_us: f64,
    /// 99th percentile of reads and scans in microseconds; zero if there were none.
    pub read_p99_us: f64,
    /// Megabytes of keys and values written per second; zero where they are not counted (TPC-C).
    pub written_mb_per_s: f64,
    /// Bytes written to the log per transaction, including headers and padding.
    pub log_bytes_per_tx: Option<f64>,
    /// Bytes written to the device per transaction, including checkpoints (in memory: to the log).
    pub device_bytes_per_tx: Option<f64>,
    /// Processor time of the whole process per transaction, in microseconds.
    pub cpu_us_per_tx: f64,
    /// Log flushes per second.
    pub flushes_per_s: Option<f64>,
    /// Durable commits per flush.
    pub tx_per_flush: Option<f64>,
    /// Number of checkpoints completed during the measurement.
    pub checkpoints: Option<u64>,
    /// Pages read from the data file per second.
    pub page_reads_per_s: Option<f64>,
    /// Resident memory at the start of the measurement, in MiB.
    pub rss_start_mib: f64,
    /// Resident memory at the end of the measurement, in MiB.
    pub rss_end_mib: f64,
    /// The kinds of transactions, if the workload has several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<KindReport>,
    /// Number of consistency conditions checked after the run.
    pub checks: usize,
    /// Violated conditions, with what was found.
    pub violations: Vec<String>,
    /// The limit measured in the same run, if it was requested.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
}

/// One kind of transaction of a workload that has several. Latencies are from the beginning,
/// including repetitions, to durability, or to the return of a read-only transaction.
#[derive(Clone, Debug, Serialize)]
pub struct KindReport {
    /// Name of the kind.
    pub kind: &'static str,
    /// Transactions per second.
    pub tx_per_s: f64,
    /// Number of transactions measured.
    pub done: u64,
    /// Transactions that their own rules rolled back.
    pub rolled_back: u64,
    /// Mean in microseconds.
    pub mean_us: f64,
    /// Median in microseconds.
    pub p50_us: f64,
    /// 90th percentile in microseconds.
    pub p90_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
}

/// A bare group-commit log without any table under the same load: the practical limit.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limit {
    /// Transactions per second of the bare log.
    pub limit_tx_per_s: f64,
    /// Its processor time per transaction, in microseconds.
    pub limit_cpu_us_per_tx: f64,
    /// Transactions per second of the run, divided by those of the bare log.
    pub limit_ratio: f64,
}

/// Returns `part / whole`, or zero if `whole` is zero.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn micros(nanos: f64) -> f64 {
    nanos / 1_000.0
}

fn quantile_us(latency: &Histogram<u64>, quantile: f64) -> f64 {
    micros(latency.value_at_quantile(quantile) as f64)
}

fn mib(bytes: Option<u64>) -> f64 {
    bytes.unwrap_or(0) as f64 / f64::from(1 << 20)
}

impl Report {
    pub(crate) fn new(
        engine: &dyn KvEngine,
        driver: &dyn Driver,
        spec: &Spec,
        tally: &Tally,
        start: &Reading,
        end: &Reading,
    ) -> Self {
        let setting = engine.setting();
        let seconds = end.at.duration_since(start.at).as_secs_f64();
        let transactions = (tally.commits + tally.reads) as f64;
        let log_bytes = growth(start, end, |c| c.log_bytes);
        let flushes = growth(start, end, |c| c.flushes);
        let device_bytes = match (start.usage.device_bytes, end.usage.device_bytes) {
            (Some(from), Some(to)) if setting.device != IN_MEMORY => Some((to - from) as f64),
            _ => log_bytes,
        };
        let cpu: Duration = end.usage.cpu.saturating_sub(start.usage.cpu);
        let latency = if tally.commits > 0 {
            &tally.commit_latency
        } else {
            &tally.read_latency
        };
        Report {
            workload: driver.name().into(),
            engine: engine.name().into(),
            profile: crate::PROFILE,
            protocol: setting.protocol,
            device: setting.device,
            threads: spec.threads,
            in_flight: spec.in_flight,
            data: driver.describe(),
            records: spec.records,
            value_size: spec.value_size,
            seconds,
            tx_per_s: ratio(transactions, seconds),
            commits: tally.commits,
            reads: tally.reads,
            aborts: tally.aborts,
            rolled_back: tally.rolled_back,
            missing: tally.missing,
            p50_us: quantile_us(latency, 0.50),
            p99_us: quantile_us(latency, 0.99),
            p999_us: quantile_us(latency, 0.999),
            mean_us: micros(latency.mean()),
            max_us: micros(latency.max() as f64),
            response_mean_us: micros(tally.response.mean()),
            response_p50_us: quantile_us(&tally.response, 0.50),
            response_p99_us: quantile_us(&tally.response, 0.99),
            read_p50_us: quantile_us(&tally.read_latency, 0.50),
            read_p99_us: quantile_us(&tally.read_latency, 0.99),
            written_mb_per_s: ratio(tally.bytes as f64 / 1e6, seconds),
            log_bytes_per_tx: log_bytes.map(|bytes| ratio(bytes, transactions)),
            device_bytes_per_tx: device_bytes.map(|bytes| ratio(bytes, transactions)),
            cpu_us_per_tx: ratio(cpu.as_secs_f64() * 1e6, transactions),
            flushes_per_s: flushes.map(|n| ratio(n, seconds)),
            tx_per_flush: flushes.map(|n| ratio(tally.commits as f64, n)),
            checkpoints: growth(start, end, |c| c.checkpoints).map(|n| n as u64),
            page_reads_per_s: growth(start, end, |c| c.page_reads).map(|n| ratio(n, seconds)),
            rss_start_mib: mib(start.usage.resident),
            rss_end_mib: mib(end.usage.resident),
            kinds: kinds(driver, tally, seconds),
            checks: 0,
            violations: Vec::new(),
            limit: None,
        }
    }

    /// Adds the results of the checks after the run.
    pub fn set_checks(&mut self, checks: &[Check]) {
        self.checks = checks.len();
        self.violations = checks.iter().filter_map(Check::complaint).collect();
    }

    /// Adds the limit to compare this run with.
    pub fn set_limit(&mut self, limit: &BareLogReport) {
        self.limit = Some(Limit {
            limit_tx_per_s: limit.tx_per_s,
            limit_cpu_us_per_tx: limit.cpu_us_per_tx,
            limit_ratio: ratio(self.tx_per_s, limit.tx_per_s),
        });
    }

    /// Returns one JSON object on one line, without a line break.
    ///
    /// # Errors
    ///
    /// None in practice: every field can be written as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

/// Name of the device if nothing reaches a device.
const IN_MEMORY: &str = "memory";

fn kinds(driver: &dyn Driver, tally: &Tally, seconds: f64) -> Vec<KindReport> {
    let kinds = driver.kinds().iter().zip(&tally.kinds);
    kinds
        .map(|(&kind, tally)| KindReport {
            kind,
            tx_per_s: ratio(tally.done as f64, seconds),
            done: tally.done,
            rolled_back: tally.rolled_back,
            mean_us: micros(tally.response.mean()),
            p50_us: quantile_us(&tally.response, 0.50),
            p90_us: quantile_us(&tally.response, 0.90),
            p99_us: quantile_us(&tally.response, 0.99),
        })
        .collect()
}

fn growth(start: &Reading, end: &Reading, of: impl Fn(&Counters) -> Option<u64>) -> Option<f64> {
    let (from, to) = (of(&start.counters)?, of(&end.counters)?);
    Some(to.saturating_sub(from) as f64)
}

/// A table of two columns.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = [self.run_rows(), self.latency_rows()];
        let commits = if self.commits > 0 {
            self.commit_rows()
        } else {
            Vec::new()
        };
        let kinds = self.kinds.iter().map(KindReport::row).collect();
        let rows = run.into_iter().chain([commits, kinds, self.check_rows()]);
        for (name, value) in rows.flatten() {
            writeln!(f, "  {name:<22}{value}")?;
        }
        Ok(())
    }
}

/// A row of the table: name and value.
type Row = (String, String);

fn row(name: &str, value: String) -> Row {
    (name.to_owned(), value)
}

impl Report {
    fn run_rows(&self) -> Vec<Row> {
        let setting = format!(
            "{}, {} on {}, {} threads, {} in flight each, {:.1} s",
            self.engine, self.protocol, self.device, self.threads, self.in_flight, self.seconds
        );
        vec![
            row("workload", format!("{}, {}", self.workload, self.data)),
            row("setting", setting),
            row("build", format!("profile {}", self.profile)),
            row("transactions/s", group(self.tx_per_s)),
        ]
    }

    fn latency_rows(&self) -> Vec<Row> {
        let kind = if self.commits > 0 {
            "commit latency"
        } else {
            "read latency"
        };
        let latency = format!(
            "p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, longest {:.1} us, mean {:.1} us",
            self.p50_us, self.p99_us, self.p999_us, self.max_us, self.mean_us
        );
        let mut rows = vec![row(kind, latency)];
        if self.commits > 0 && self.reads > 0 {
            let (p50, p99) = (self.read_p50_us, self.read_p99_us);
            let reads = format!("p50 {p50:.1} us, p99 {p99:.1} us");
            rows.push(row("read latency", reads));
        }
        let processor = format!("{:.2} us a transaction", self.cpu_us_per_tx);
        rows.push(row("processor", processor));
        rows
    }

    /// The rows of a run with commits.
    fn commit_rows(&self) -> Vec<Row> {
        let response = format!(
            "mean {:.1} us, p50 {:.1} us, p99 {:.1} us",
            self.response_mean_us, self.response_p50_us, self.response_p99_us
        );
        let mut rows = vec![row("begin to durable", response)];
        if self.written_mb_per_s > 0.0 {
            rows.push(row("written", format!("{:.1} MB/s", self.written_mb_per_s)));
        }
        if let (Some(bytes), Some(flushes), Some(commits)) =
            (self.log_bytes_per_tx, self.flushes_per_s, self.tx_per_flush)
        {
            let flushes = group(flushes);
            let log = format!(
                "{bytes:.0} bytes a transaction, {flushes} flushes/s, {commits:.1} commits a flush"
            );
            rows.push(row("log", log));
        }
        if let Some(bytes) = self.device_bytes_per_tx {
            rows.push(row("device", format!("{bytes:.0} bytes a transaction")));
        }
        rows.push(row("conflicts retried", group(self.aborts as f64)));
        if self.rolled_back > 0 {
            rows.push(row("rolled back", group(self.rolled_back as f64)));
        }
        if let Some(checkpoints) = self.checkpoints {
            rows.push(row("checkpoints", checkpoints.to_string()));
        }
        rows
    }

    fn check_rows(&self) -> Vec<Row> {
        let (from, to) = (self.rss_start_mib, self.rss_end_mib);
        let memory = format!("{from:.0} MiB, then {to:.0} MiB");
        let mut rows = vec![row("resident memory", memory)];
        if self.checks > 0 {
            let held = self.checks - self.violations.len();
            let checks = format!("{held} of {} hold", self.checks);
            rows.push(row("conditions checked", checks));
        }
        let violations = self.violations.iter();
        rows.extend(violations.map(|violation| row("  VIOLATED", violation.clone())));
        if let Some(limit) = &self.limit {
            let limit = format!(
                "{} tx/s, {:.2} us a transaction; this run reaches {:.2} of it",
                group(limit.limit_tx_per_s),
                limit.limit_cpu_us_per_tx,
                limit.limit_ratio
            );
            rows.push(row("bare log (the limit)", limit));
        }
        rows
    }
}

impl KindReport {
    fn row(&self) -> Row {
        let value = format!(
            "{} tx/s, mean {:.1} us, p50 {:.1} us, p90 {:.1} us, p99 {:.1} us",
            group(self.tx_per_s),
            self.mean_us,
            self.p50_us,
            self.p90_us,
            self.p99_us
        );
        (format!("  {}", self.kind), value)
    }
}

/// Formats a number, rounded to an integer, with a comma between thousands.
pub(crate) fn group(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        for (value, text) in [
            (0.4, "0"),
            (999.6, "1,000"),
            (12.0, "12"),
            (1_234_567.0, "1,234,567"),
        ] {
            assert_eq!(group(value), text);
        }
    }

    #[test]
    fn nothing_divided_by_nothing_is_zero() {
        assert!(ratio(0.0, 0.0) == 0.0 && ratio(6.0, 3.0) == 2.0);
    }
}
