//! What a comparison was of: everything about it that is not a measurement.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::summary::Metric;
use crate::{BenchError, DeviceReport};

/// The parameters, the machine and the engines of a comparison; `run.json` beside the measurements.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// When it began (UTC).
    pub began: String,
    /// The machine.
    pub machine: Machine,
    /// Braid's version, and the profile of the build.
    pub build: String,
    /// Whether the build is optimized; figures of one that is not are worth nothing.
    pub optimized: bool,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// Seconds that run before each.
    pub warm_up: f64,
    /// Repeats.
    pub repeats: usize,
    /// How many times larger than the engines' caches the data were, if they did not fit.
    #[serde(default)]
    pub data_over_pool: Option<f64>,
    /// The workloads in the order in which they ran.
    pub workloads: Vec<WorkloadInfo>,
    /// The engines, Braid first.
    pub engines: Vec<EngineInfo>,
    /// Checks of the data after a visit that found something: the engine, the workload, and what.
    pub violations: Vec<String>,
    /// What was not measured, and why.
    pub left_out: Vec<LeftOut>,
    /// What the device itself can do, measured before everything else.
    pub device: Vec<DeviceLimit>,
}

/// A workload of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadInfo {
    /// The name on the command line.
    pub name: String,
    /// What it does.
    pub about: String,
    /// Records loaded.
    pub records: u64,
    /// Bytes of each value.
    pub value_size: usize,
    /// Whether no transaction writes.
    pub read_only: bool,
    /// Whether it ends by itself: a load, which is timed as a whole.
    #[serde(default)]
    pub finite: bool,
}

impl WorkloadInfo {
    /// What says how fast it went.
    #[must_use]
    pub fn rate(&self) -> Metric {
        match self.finite {
            true => Metric::Records,
            false => Metric::Throughput,
        }
    }
}

/// An engine of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// The name on the command line.
    pub name: String,
    /// What it is.
    pub about: String,
    /// The version of what was linked or started.
    pub version: String,
    /// How it was opened, and what makes its commits durable.
    pub setting: String,
    /// Whether it was serializable; what is weaker has less to do.
    pub serializable: bool,
}

/// Something that was not measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The engine.
    pub engine: String,
    /// The workload, or `everything`.
    pub workload: String,
    /// Why.
    pub why: String,
}

/// A measurement of the device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceLimit {
    /// What was done.
    pub test: String,
    /// Threads, strands or operations at once.
    pub depth: usize,
    /// Bytes of one operation.
    pub bytes: usize,
    /// Operations a second.
    pub ops_per_s: f64,
    /// Median of one operation in microseconds.
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

    pub(super) fn read(path: &Path) -> Result<Self, BenchError> {
        std::fs::read(path)
            .and_then(|json| serde_json::from_slice(&json).map_err(std::io::Error::other))
            .map_err(|error| BenchError::file("read", path, error))
    }
}
