//! How Braid is opened for a benchmark.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use braid::{Builder, Database, DeviceChoice, Protocol};
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
    /// What the database is stored on.
    pub device: DeviceChoice,
    /// Time that each durable write takes at least, on top of the device's own.
    pub persist_latency: Option<Duration>,
    /// Log strands.
    pub strands: Option<usize>,
    /// Log lanes.
    pub lanes: Option<usize>,
    /// Flushes of one lane that may be in flight.
    pub flushes: Option<usize>,
    /// P-WAL's group size.
    pub group_size: Option<u32>,
    /// Bytes of the buffer pool.
    pub pool_bytes: usize,
    /// Bytes of log after which a checkpoint begins.
    pub checkpoint_log_bytes: Option<u64>,
    /// Bytes of log files that are made before.
    pub preallocated_log_bytes: u64,
}

impl Engine {
    /// The engine's defaults in `dir`, with a buffer pool that holds the data of `spec` three times.
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
            pool_bytes: usize::try_from(spec.data_bytes().saturating_mul(3))
                .unwrap_or(usize::MAX)
                .max(256 << 20),
            checkpoint_log_bytes: None,
            preallocated_log_bytes: 0,
        }
    }

    /// Makes the buffer pool so small that the data of `spec` are so many times larger.
    pub fn set_data_over_pool(&mut self, spec: &Spec, ratio: f64) {
        self.pool_bytes = (spec.data_bytes() as f64 / ratio) as usize;
    }

    fn builder(&self) -> Builder {
        let mut builder = Database::builder()
            .protocol(self.protocol)
            .device(self.device)
            .pool_bytes(self.pool_bytes)
            .preallocated_log_bytes(self.preallocated_log_bytes)
            .create_if_missing(true);
        if let Some(bytes) = self.checkpoint_log_bytes {
            builder = builder.checkpoint_log_bytes(bytes);
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
        if let Some(transactions) = self.group_size {
            builder = builder.group_size(transactions);
        }
        builder
    }

    /// The device that the choice stands for, in the directory, which is created if it is missing.
    pub(crate) fn open_device(&self) -> Result<Arc<dyn Device>, BenchError> {
        std::fs::create_dir_all(&self.dir)
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

    /// Opens the database with the tables that a workload wants, created if they are missing.
    ///
    /// # Errors
    /// The database's own.
    pub fn open_tables(&self, names: &[String]) -> Result<BraidEngine, BenchError> {
        Ok(BraidEngine::new(self.open()?, names)?.described(self.setting()))
    }

    /// The same on a device that stands in front of [`Self::open_device`]'s.
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

    /// The name of the device that stands behind the choice.
    fn device_name(&self) -> String {
        braid_io::open_directory(&self.dir, self.device).map_or_else(
            |_| self.device.to_string(),
            |device| device.kind().to_string(),
        )
    }
}
