//! A recorded measurement.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::stages::StageMeans;
use crate::bare_log::BareLogReport;
use crate::{BenchError, Report};

/// Name of the bare log in the list of engines.
pub const BARE_LOG: &str = "bare-log";

/// Measurement of one engine at one load in one repeat; a line of `measurements.csv`. `None` if the
/// engine does not count the value, or if the load does not have it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Position in the order of the run, from 0.
    pub sequence: usize,
    /// Number of the repeat, from 1.
    pub repeat: usize,
    /// Name of the workload.
    pub workload: String,
    /// Name of the engine, or [`BARE_LOG`].
    pub engine: String,
    /// Threads that issued transactions.
    pub threads: usize,
    /// Commits that each thread kept in flight.
    pub in_flight: usize,
    /// Duration of the measurement, in seconds.
    pub seconds: f64,
    /// Transactions per second: durable commits and read-only transactions.
    pub tx_per_s: f64,
    /// Records per second, for a workload that loads records.
    #[serde(default)]
    pub records_per_s: Option<f64>,
    /// Megabytes of keys and values per second, for a workload that loads records.
    #[serde(default)]
    pub mb_per_s: Option<f64>,
    /// Durable commits per second.
    pub commits_per_s: f64,
    /// Attempts per transaction that ended in a conflict and were retried.
    pub aborts_per_tx: f64,
    /// Mean latency in microseconds: of commits, from the call to durability; of reads, if nothing
    /// commits.
    pub mean_us: Option<f64>,
    /// Median of the latency.
    pub p50_us: f64,
    /// 99th percentile of the latency.
    pub p99_us: f64,
    /// 99.9th percentile of the latency.
    pub p999_us: f64,
    /// Median latency of reads and scans in microseconds.
    pub read_p50_us: Option<f64>,
    /// 99th percentile of the latency of reads and scans.
    pub read_p99_us: Option<f64>,
    /// Number of commits over which the following four means are taken.
    pub staged: usize,
    /// Microseconds from the beginning of the transaction to the call of `commit`.
    pub execute_us: Option<f64>,
    /// Microseconds from the call of `commit` to the beginning of the log write that made it
    /// durable.
    pub queue_us: Option<f64>,
    /// Microseconds of this log write.
    pub write_us: Option<f64>,
    /// Microseconds from the end of the log write to the return of `commit`.
    pub notify_us: Option<f64>,
    /// Processor time per transaction, in microseconds.
    pub cpu_us_per_tx: f64,
    /// Bytes written to the log per transaction, including headers and padding.
    pub log_bytes_per_tx: Option<f64>,
    /// Bytes written to the device per transaction.
    pub device_bytes_per_tx: Option<f64>,
    /// Durable writes or syncs of the log per second.
    pub flushes_per_s: Option<f64>,
}

impl Row {
    pub(super) fn of_report(report: &Report, stages: StageMeans) -> Self {
        let per_s = |count: u64| count as f64 / report.seconds.max(f64::MIN_POSITIVE);
        let transactions = (report.commits + report.reads).max(1) as f64;
        let reads = (report.reads > 0).then_some(report);
        Row {
            workload: report.workload.clone(),
            engine: report.engine.clone(),
            threads: report.threads,
            in_flight: report.in_flight,
            seconds: report.seconds,
            tx_per_s: report.tx_per_s,
            commits_per_s: per_s(report.commits),
            aborts_per_tx: report.aborts as f64 / transactions,
            mean_us: Some(report.mean_us),
            p50_us: report.p50_us,
            p99_us: report.p99_us,
            p999_us: report.p999_us,
            read_p50_us: reads.map(|r| r.read_p50_us),
            read_p99_us: reads.map(|r| r.read_p99_us),
            staged: stages.count,
            execute_us: stages.execute_us,
            queue_us: stages.queue_us,
            write_us: stages.write_us,
            notify_us: stages.notify_us,
            cpu_us_per_tx: report.cpu_us_per_tx,
            log_bytes_per_tx: report.log_bytes_per_tx,
            device_bytes_per_tx: report.device_bytes_per_tx,
            flushes_per_s: report.flushes_per_s,
            ..Row::default()
        }
    }

    /// Returns the row of a workload that loads all its records, from the first transaction to the
    /// last.
    pub(super) fn of_load(report: &Report, stages: StageMeans) -> Self {
        Row {
            records_per_s: Some(report.records as f64 / report.seconds.max(f64::MIN_POSITIVE)),
            mb_per_s: Some(report.written_mb_per_s),
            ..Row::of_report(report, stages)
        }
    }

    pub(super) fn of_bare_log(report: &BareLogReport, workload: &str, seconds: f64) -> Self {
        Row {
            workload: workload.to_owned(),
            engine: BARE_LOG.to_owned(),
            threads: report.threads,
            in_flight: report.in_flight,
            seconds,
            tx_per_s: report.tx_per_s,
            commits_per_s: report.tx_per_s,
            p50_us: report.p50_us,
            p99_us: report.p99_us,
            p999_us: report.p999_us,
            cpu_us_per_tx: report.cpu_us_per_tx,
            flushes_per_s: Some(report.flushes_per_s),
            ..Row::default()
        }
    }
}

/// The file of all rows. Each row is written before the next measurement begins, so that an
/// interrupted comparison loses nothing.
pub(super) struct Table {
    path: PathBuf,
    writer: csv::Writer<File>,
}

impl Table {
    pub(super) fn create(path: PathBuf) -> Result<Self, BenchError> {
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(|error| BenchError::file("create", &path, error))?;
        Ok(Table {
            path,
            writer: csv::Writer::from_writer(file),
        })
    }

    pub(super) fn add(&mut self, row: &Row) -> Result<(), BenchError> {
        let written = self.writer.serialize(row).map_err(std::io::Error::other);
        written
            .and_then(|()| self.writer.flush())
            .map_err(|error| BenchError::file("write", &self.path, error))
    }
}

/// Reads a file of rows.
#[cfg(any(test, feature = "plots"))]
pub(super) fn read(path: &std::path::Path) -> Result<Vec<Row>, BenchError> {
    let wrong = |error: csv::Error| BenchError::file("read", path, std::io::Error::other(error));
    let mut reader = csv::Reader::from_path(path).map_err(wrong)?;
    reader
        .deserialize()
        .collect::<Result<_, _>>()
        .map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.csv");
        let rows: Vec<Row> = (0..3)
            .map(|i| Row {
                sequence: i,
                workload: "u1".into(),
                engine: "name, with a comma".into(),
                tx_per_s: 1_234_567.891 / (i + 1) as f64,
                queue_us: (i == 1).then_some(0.1 + 0.2),
                ..Row::default()
            })
            .collect();
        let mut table = Table::create(path.clone()).unwrap();
        for (i, row) in rows.iter().enumerate() {
            table.add(row).unwrap();
            assert_eq!(read(&path).unwrap(), rows[..=i], "each is there at once");
        }
        let Err(error) = Table::create(path.clone()) else {
            panic!("no rows are overwritten");
        };
        assert!(error.to_string().contains("rows.csv"), "{error}");
        // Files that were recorded before these columns existed can be read, too.
        let old: Vec<String> = std::fs::read_to_string(&path)
            .unwrap()
            .lines()
            .map(|line| {
                line.replace(",records_per_s,mb_per_s", "")
                    .replacen(",,,0.0", ",0.0", 1)
            })
            .collect();
        std::fs::write(&path, old.join("\n")).unwrap();
        assert_eq!(read(&path).unwrap(), rows);
        std::fs::write(&path, "sequence,repeat\n1,x\n").unwrap();
        assert!(
            read(&path).unwrap_err().to_string().contains("rows.csv"),
            "the file is named"
        );
    }
}
