//! Result of a measurement over a socket.

use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::report::group;

/// Result of [`measure_server`](crate::remote::measure_server).
///
/// Latencies are from the sending of an operation to its last reply. With a rate they begin when
/// the operation was due.
#[derive(Clone, Debug, Serialize)]
pub struct ServerReport {
    /// Name of the workload.
    pub workload: String,
    /// Name and version of the server.
    pub server: String,
    /// Address of the server.
    pub address: String,
    /// Number of clients, each with a connection.
    pub clients: usize,
    /// Number of records that were loaded.
    pub records: u64,
    /// Size of each record, in bytes.
    pub value_size: usize,
    /// Operations per second that the clients were to begin.
    pub rate: Option<f64>,
    /// Duration of the measurement, in seconds.
    pub seconds: f64,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Number of operations measured.
    pub operations: u64,
    /// Number of operations that were due in the measurement, and not begun when it ended.
    pub unfinished: u64,
    /// Number of reads that did not find their record: inserts that were not answered yet.
    pub missing: u64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile in microseconds.
    pub p999_us: f64,
    /// Longest latency in microseconds.
    pub max_us: f64,
    /// The operations by kind.
    pub kinds: Vec<OperationReport>,
}

/// One kind of operation.
#[derive(Clone, Debug, Serialize)]
pub struct OperationReport {
    /// Name of the kind.
    pub kind: &'static str,
    /// Number of operations measured.
    pub operations: u64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile in microseconds.
    pub p999_us: f64,
}

#[cfg_attr(not(feature = "connect"), allow(dead_code))]
pub(super) fn quantile_us(latency: &Histogram<u64>, quantile: f64) -> f64 {
    latency.value_at_quantile(quantile) as f64 / 1_000.0
}

impl OperationReport {
    #[cfg_attr(not(feature = "connect"), allow(dead_code))]
    pub(super) fn new(kind: &'static str, latency: &Histogram<u64>) -> Self {
        OperationReport {
            kind,
            operations: latency.len(),
            mean_us: latency.mean() / 1_000.0,
            p50_us: quantile_us(latency, 0.5),
            p99_us: quantile_us(latency, 0.99),
            p999_us: quantile_us(latency, 0.999),
        }
    }
}

impl ServerReport {
    /// Returns one JSON object on one line, without a line break.
    ///
    /// # Errors
    ///
    /// None in practice: every field can be written as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

impl fmt::Display for ServerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<22}{value}");
        row("workload", self.workload.clone())?;
        row("server", format!("{} at {}", self.server, self.address))?;
        row("clients", self.clients.to_string())?;
        let data = format!("{} records of {} bytes", self.records, self.value_size);
        row("data", data)?;
        if let Some(rate) = self.rate {
            let rate = group(rate);
            let text = format!(
                "{rate} operations/s, latencies from when they were due, {} not begun",
                self.unfinished
            );
            row("rate", text)?;
        }
        row("operations/s", group(self.ops_per_s))?;
        let latency = format!(
            "p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, mean {:.1} us",
            self.p50_us, self.p99_us, self.p999_us, self.mean_us
        );
        row("latency", latency)?;
        for kind in &self.kinds {
            let text = format!(
                "{} operations, p50 {:.1} us, p99 {:.1} us",
                group(kind.operations as f64),
                kind.p50_us,
                kind.p99_us
            );
            row(&format!("  {}", kind.kind), text)?;
        }
        if self.missing > 0 {
            row("reads without result", group(self.missing as f64))?;
        }
        Ok(())
    }
}
