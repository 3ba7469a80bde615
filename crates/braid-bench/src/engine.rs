//! Options with which a benchmark opens Braid.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use braid::device::DeviceChoice;
use braid::{Builder, Database, PmemCommit, Protocol};
use braid_io::{Device, LatencyDevice};

use crate::engines::{BraidEngine, Setting};
use crate::{BenchError, Spec};

/// The engine's options for a benchmark; `None` leaves the engine's default.
///
/// An existing database is switched to the protocol.
#[derive(Clone, Debug)]
pub struct Engine {
    /// The database's directory; created if missing.
    pub dir: PathBuf,
    /// The commit protocol.
    pub protocol: Protocol,
    /// Device of the database.
    pub device: DeviceChoice,
    /// Minimum extra time of each durable write, in addition to the device's own.
    pub persist_latency: Option<Duration>,
    /// Number of log strands.
    pub strands: Option<usize>,
    /// Number of log lanes.
    pub lanes: Option<usize>,
    /// Maximum number of flushes of a lane in flight.
    pub flushes: Option<usize>,
    /// Group size, as in P-WAL.
    pub group_size: Option<u32>,
    /// How a commit in persistent memory makes its bytes durable.
    pub pmem_commit: Option<PmemCommit>,
    /// Size of the buffer pool, in bytes.
    pub pool_bytes: usize,
    /// Bytes of log after which a checkpoint begins.
    pub checkpoint_log_bytes: Option<u64>,
    /// Size of log files to create in advance, in bytes.
    pub preallocated_log_bytes: u64,
    /// Directory of the log, if it is not with the data.
    pub log_directory: Option<PathBuf>,
    /// Device of the log, if it is another one than that of the data.
    pub log_device: Option<DeviceChoice>,
    /// Microseconds for which a thread polls an NVMe drive before it sleeps.
    pub nvme_idle_us: Option<u32>,
}

impl Engine {
    /// Returns the engine's defaults in `dir`, with a buffer pool of three times the data of
    /// `spec`.
    pub fn new(dir: impl Into<PathBuf>, spec: &Spec) -> Self {
        Engine {
            dir: dir.into(),
            protocol: Protocol::default(),
            device: DeviceChoice::Auto,
            persist_latency: None,
            strands: None,
            lanes: None,
            flushes: None,
            group_size: None,
            pmem_commit: None,
            pool_bytes: usize::try_from(spec.data_bytes().saturating_mul(3))
                .unwrap_or(usize::MAX)
                .max(256 << 20),
            checkpoint_log_bytes: None,
            preallocated_log_bytes: 0,
            log_directory: None,
            log_device: None,
            nvme_idle_us: None,
        }
    }

    /// Sets the buffer pool's size so that the data of `spec` is this many times larger.
    pub fn set_data_over_pool(&mut self, spec: &Spec, ratio: f64) {
        self.pool_bytes = (spec.data_bytes() as f64 / ratio) as usize;
    }

    pub(crate) fn builder(&self) -> Builder {
        let mut builder = Database::builder()
            .protocol(self.protocol)
            .device(self.device)
            .pool_bytes(self.pool_bytes)
            .preallocated_log_bytes(self.preallocated_log_bytes)
            .create_if_missing(true);
        if let Some(bytes) = self.checkpoint_log_bytes {
            builder = builder.checkpoint_log_bytes(bytes);
        }
        if let Some(directory) = &self.log_directory {
            builder = builder.log_directory(directory);
        }
        if let Some(device) = self.log_device {
            builder = builder.log_device(device);
        }
        if let Some(strands) = self.strands {
            builder = builder.strands(strands);
        }
        if let Some(lanes) = self.lanes {
            builder = builder.lanes(lanes);
        }
        if let Some(flushes) = self.flushes {
            builder = builder.flushes_in_flight(flushes);
        }
        if let Some(mode) = self.pmem_commit {
            builder = builder.pmem_commit(mode);
        }
        if let Some(idle_us) = self.nvme_idle_us {
            builder = builder.nvme_idle_us(idle_us);
        }
        if let Some(transactions) = self.group_size {
            builder = builder.group_size(transactions);
        }
        builder
    }

    /// Opens the device of the choice in the directory, which is created if it is missing.
    pub(crate) fn open_device(&self) -> Result<Arc<dyn Device>, BenchError> {
        braid_io::create_directory(&self.dir)
            .map_err(|error| BenchError::io("cannot create the database's directory", error))?;
        braid_io::open_directory(&self.dir, self.device)
            .map_err(|error| BenchError::io("cannot open the database's directory", error))
    }

    /// Opens the database, creating it if it is missing.
    ///
    /// # Errors
    /// The database's own.
    pub fn open(&self) -> Result<Database, BenchError> {
        if let Some(latency) = self.persist_latency {
            let device = LatencyDevice::new(self.open_device()?, latency);
            return Ok(self.builder().open_on(Arc::new(device))?);
        }
        Ok(self.builder().open(&self.dir)?)
    }

    /// Opens the database with a workload's tables, which are created if they are missing.
    ///
    /// # Errors
    /// The database's own.
    pub fn open_tables(&self, names: &[String]) -> Result<BraidEngine, BenchError> {
        Ok(BraidEngine::new(self.open()?, names)?.described(self.setting()))
    }

    /// As [`Self::open_tables`], on a device that wraps that of [`Self::open_device`].
    pub(crate) fn open_tables_on(
        &self,
        device: Arc<dyn Device>,
        names: &[String],
    ) -> Result<BraidEngine, BenchError> {
        let db = self.builder().open_on(device)?;
        Ok(BraidEngine::new(db, names)?.described(self.setting()))
    }

    fn setting(&self) -> Setting {
        Setting {
            protocol: self.protocol.to_string(),
            device: self.device_name(),
        }
    }

    /// Returns the name of the chosen device.
    fn device_name(&self) -> String {
        braid_io::open_directory(&self.dir, self.device).map_or_else(
            |_| self.device.to_string(),
            |device| device.kind().to_string(),
        )
    }
}
