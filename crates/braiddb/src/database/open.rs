//! Opening a database with options, which are checked first.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use braid_io::{CatchingDevice, Device};
use braid_log::LogOptions;

use crate::database::Database;
use crate::error::{Error, Result};
use crate::options::Builder;
use crate::readers::Source;

impl Builder {
    /// Opens the database in a directory, and creates it if it is missing.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// let db = braid::Database::builder().pool_bytes(4 << 20).open(path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::NotADatabase`], [`Error::Incompatible`], [`Error::Corrupted`],
    /// [`Error::ReadOnly`], [`Error::OutOfSpace`], [`Error::InvalidOption`] or [`Error::Io`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<Database> {
        Database::open_directory(path.as_ref(), self)
    }

    /// Opens the database on a device, and creates it if it is missing: for memory, simulated or
    /// custom media. The caller must ensure that the device is opened only once at a time. A panic
    /// of a device operation counts as a failure.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use std::sync::Arc;
    /// use braid::{Database, MemoryDevice};
    /// let device = Arc::new(MemoryDevice::new());
    /// let db = Database::builder().pool_bytes(1 << 20).open_on(device.clone())?;
    /// db.open_table::<u32, u32>("t")?;
    /// db.close()?;
    /// let db = Database::builder().pool_bytes(1 << 20).open_on(device)?;
    /// assert_eq!(db.table_names()?, ["t"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open_on(self, device: Arc<dyn Device>) -> Result<Database> {
        Database::open_device(Arc::new(CatchingDevice::new(device)), None, self)
    }

    /// Opens the database on a device as [`Builder::open_on`], and holds `lock` while the database
    /// uses the device: [`Database::close`] drops it after the last operation, as does dropping the
    /// last handle; if opening fails, it is dropped before this returns. Afterwards the database
    /// does not access the device, even if handles still exist, so another process or thread may
    /// open it as soon as `lock` is dropped.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use std::sync::Arc;
    /// let device = Arc::new(braid::MemoryDevice::new());
    /// let lock = Arc::new(());
    /// let db = braid::Database::builder().pool_bytes(1 << 20).open_on_locked(device, lock.clone())?;
    /// let snapshot = db.snapshot();
    /// db.close()?;
    /// assert_eq!(Arc::strong_count(&lock), 1); // although the snapshot is still there
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open_on_locked(
        self,
        device: Arc<dyn Device>,
        lock: impl Any + Send + Sync,
    ) -> Result<Database> {
        Database::open_device(device, Some(Box::new(lock)), self)
    }

    /// Opens the database in a directory read-only: changes and creates no file. The directory and
    /// its medium may be read-only.
    ///
    /// After a crash, recovery happens in memory: the log after the newest checkpoint is replayed
    /// into the buffer pool, and into additional memory for pages that do not fit. A database that
    /// was closed has no such log. Transactions can read; their writes fail with
    /// [`Error::OpenedReadOnly`].
    ///
    /// Any number of readers can have the directory open and, on Linux, one writer at the same
    /// time, in another process or this one. A reader opens the newest durable state, keeps it, and
    /// moves to a newer one with [`Database::refresh`]. The state cannot be lost in a crash. The
    /// reader does not make the writer wait; blocks of its state are not overwritten while it is
    /// open, so the data file may grow. On other systems, and if the file `READERS` is missing,
    /// readers and writers exclude each other. (If `LOCK` is missing, too, as in some copies, the
    /// caller must ensure that.) Options for writing are ignored.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// # drop(braid::Database::builder().pool_bytes(1 << 20).open(path)?);
    /// let reader = braid::Database::builder().pool_bytes(4 << 20).open_read_only(path)?;
    /// let another = braid::Database::builder().pool_bytes(4 << 20).open_read_only(path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open`]; [`Error::NotADatabase`] also if the database is missing or its
    /// creation did not finish, regardless of [`Builder::create_if_missing`]; [`Error::Locked`] if
    /// a writer recovers for longer than ten seconds.
    pub fn open_read_only(self, path: impl AsRef<Path>) -> Result<Database> {
        Database::open_directory_read_only(path.as_ref(), self.reading())
    }

    /// Opens the database on a device read-only; see [`Builder::open_read_only`]. If the device has
    /// no [reader table](braid_io::Device::reader_table), the caller must ensure that the device is
    /// not written to meanwhile.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let db = builder.clone().open_on(device.clone())?;
    /// db.close()?;
    /// let reader = builder.open_read_only_on(device)?;
    /// assert!(reader.open_table::<u32, u32>("new").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open_read_only`].
    pub fn open_read_only_on(self, device: Arc<dyn Device>) -> Result<Database> {
        let options = self.reading();
        options.validate()?;
        let device: Arc<dyn Device> = Arc::new(CatchingDevice::new(device));
        let table = device.reader_table(false);
        let table =
            table.map_err(|e| Error::io("cannot open the reader table (file READERS)", e))?;
        let source = Source::new(device, Default::default(), table, None);
        Database::open_source(Arc::new(source), options, None)
    }

    /// The options of one who only reads: nothing is done unasked, and how it was written stays as it is.
    pub(crate) fn reading(self) -> Self {
        Self {
            read_only: true,
            archive: None,
            stats_directory: None,
            background: false,
            create_if_missing: false,
            protocol: None,
            strands: None,
            lanes: None,
            max_log_bytes: 0,
            preallocated_log_bytes: 0,
            ..self
        }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let check = |ok: bool, option: &'static str, reason: &str| {
            if ok {
                Ok(())
            } else {
                Err(Error::InvalidOption {
                    option,
                    reason: reason.into(),
                })
            }
        };
        let strands = self.strands.unwrap_or(1);
        check(
            (1..=256).contains(&strands),
            "strands",
            "must be from 1 to 256",
        )?;
        let lanes = self.lanes.unwrap_or(1);
        let lanes_fit = (1..=LogOptions::MAX_LANES).contains(&lanes)
            && (self.strands.is_none() || lanes <= strands);
        check(
            lanes_fit,
            "lanes",
            "must be from 1 to 32, and at most the number of strands",
        )?;
        check(
            self.pool_bytes >= 1 << 20,
            "pool_bytes",
            "must be at least 1 MiB",
        )?;
        let segment_fits = (64 << 10..=1 << 30).contains(&self.segment_bytes);
        check(
            segment_fits,
            "segment_bytes",
            "must be from 64 KiB to 1 GiB",
        )?;
        let checkpoint_fits = self.checkpoint_log_bytes >= 64 << 10;
        check(
            checkpoint_fits,
            "checkpoint_log_bytes",
            "must be at least 64 KiB",
        )?;
        let log_fits =
            self.max_log_bytes == 0 || self.max_log_bytes / 2 >= self.checkpoint_log_bytes;
        check(
            log_fits,
            "max_log_bytes",
            "must be 0, or at least twice checkpoint_log_bytes",
        )?;
        let preallocated_fits =
            self.max_log_bytes == 0 || self.preallocated_log_bytes <= self.max_log_bytes;
        check(
            preallocated_fits,
            "preallocated_log_bytes",
            "must be at most max_log_bytes",
        )?;
        let transaction_fits = (1 << 10..=1 << 30).contains(&self.transaction_bytes_max);
        check(
            transaction_fits,
            "transaction_bytes_max",
            "must be from 1 KiB to 1 GiB",
        )?;
        let epoch_fits =
            (Duration::from_micros(10)..=Duration::from_secs(10)).contains(&self.epoch);
        check(epoch_fits, "epoch", "must be from 10 µs to 10 s")?;
        let interval_fits = !self.archive_interval.is_zero();
        check(interval_fits, "archive_interval", "must be more than zero")?;
        check_file_mode(self.file_mode)?;
        let flushes = self.flushes_in_flight.unwrap_or(1);
        let flushes_fit = (1..=LogOptions::MAX_IN_FLIGHT).contains(&flushes);
        check(flushes_fit, "flushes_in_flight", "must be from 1 to 16")
    }
}

/// Whether files can have these permissions.
///
/// # Errors
/// [`Error::InvalidOption`].
pub(crate) fn check_file_mode(mode: u32) -> Result<()> {
    if mode & 0o600 == 0o600 && mode & !0o666 == 0 {
        return Ok(());
    }
    let reason = "must grant the owner reading and writing (0o600), and no one executing";
    Err(Error::InvalidOption {
        option: "file_mode",
        reason: reason.into(),
    })
}
