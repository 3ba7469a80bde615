//! The circumstances of a comparison: everything except the measurements.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::summary::Metric;
use crate::{BenchError, DeviceReport};

/// Parameters, machine and engines of a comparison; stored in `run.json`, next to the measurements.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Start of the comparison (UTC).
    pub began: String,
    /// The machine.
    pub machine: Machine,
    /// Braid's version, and the profile of the build.
    pub build: String,
    /// Whether the build is optimized; figures of an unoptimized build are meaningless.
    pub optimized: bool,
    /// Duration of each measurement, in seconds.
    pub seconds: f64,
    /// Duration of the run before each measurement, in seconds.
    pub warm_up: f64,
    /// Number of repeats.
    pub repeats: usize,
    /// Size of the data relative to the engines' caches, if it exceeds them.
    #[serde(default)]
    pub data_over_pool: Option<f64>,
    /// The workloads in the order in which they ran.
    pub workloads: Vec<WorkloadInfo>,
    /// The engines, Braid first.
    pub engines: Vec<EngineInfo>,
    /// Failed checks of the data after a visit: the engine, the workload, and the violation.
    pub violations: Vec<String>,
    /// Measurements that were left out, and why.
    pub left_out: Vec<LeftOut>,
    /// Limits of the device, measured before everything else.
    pub device: Vec<DeviceLimit>,
}

/// A workload of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadInfo {
    /// Name on the command line.
    pub name: String,
    /// Description of the workload.
    pub about: String,
    /// Number of records loaded.
    pub records: u64,
    /// Size of each value, in bytes.
    pub value_size: usize,
    /// Whether all transactions only read.
    pub read_only: bool,
    /// Whether the workload ends by itself: a load, which is timed as a whole.
    #[serde(default)]
    pub finite: bool,
}

impl WorkloadInfo {
    /// Returns the metric that measures its speed.
    #[must_use]
    pub fn rate(&self) -> Metric {
        if self.finite {
            Metric::Records
        } else {
            Metric::Throughput
        }
    }
}

/// An engine of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// Name on the command line.
    pub name: String,
    /// Description of the engine.
    pub about: String,
    /// Version of the linked library, or of the started server.
    pub version: String,
    /// How the engine was opened, and what makes its commits durable.
    pub setting: String,
    /// Whether the engine was serializable; weaker isolation has less work to do.
    pub serializable: bool,
}

/// A measurement that was left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Name of the engine.
    pub engine: String,
    /// Name of the workload, or `everything`.
    pub workload: String,
    /// Reason.
    pub why: String,
}

/// A measurement of the device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceLimit {
    /// Name of the test.
    pub test: String,
    /// Number of concurrent threads, strands or operations.
    pub depth: usize,
    /// Size of one operation, in bytes.
    pub bytes: usize,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Median time of one operation, in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
}

impl DeviceLimit {
    pub(super) fn all_of(report: &DeviceReport) -> Vec<Self> {
        let limit = |row: &crate::DeviceRow| DeviceLimit {
            test: row.test.to_owned(),
            depth: row.depth,
            bytes: row.bytes,
            ops_per_s: row.ops_per_s,
            p50_us: row.p50_us,
            p99_us: row.p99_us,
        };
        report.rows.iter().map(limit).collect()
    }
}

impl Run {
    pub(super) fn write(&self, path: &Path) -> Result<(), BenchError> {
        serde_json::to_vec_pretty(self)
            .map_err(std::io::Error::other)
            .and_then(|json| std::fs::write(path, json))
            .map_err(|error| BenchError::file("write", path, error))
    }

    #[cfg(feature = "plots")]
    pub(super) fn read(path: &Path) -> Result<Self, BenchError> {
        std::fs::read(path)
            .and_then(|json| serde_json::from_slice(&json).map_err(std::io::Error::other))
            .map_err(|error| BenchError::file("read", path, error))
    }
}
