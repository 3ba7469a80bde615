//! Opening a database with validated options.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use braid_io::{CatchingDevice, Device};

use crate::database::Database;
use crate::error::{Error, Result};
use crate::options::Builder;
use crate::recovery;
use crate::services::readers::Source;

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
        recovery::open_directory(path.as_ref(), self).map(Database::from_instance)
    }

    /// Opens the database on a device, and creates it if it is missing: for memory, simulated or
    /// custom media. The caller must ensure that the device is opened only once at a time. A panic
    /// of a device operation counts as a failure.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use std::sync::Arc;
    /// use braid::Database;
    /// use braid::device::MemoryDevice;
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
        let device = Arc::new(CatchingDevice::new(device));
        recovery::open_device(device, None, self).map(Database::from_instance)
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
    /// let device = Arc::new(braid::device::MemoryDevice::new());
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
        recovery::open_device(device, Some(Box::new(lock)), self).map(Database::from_instance)
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
        let opened = recovery::open_directory_read_only(path.as_ref(), self.reading(), None);
        opened.map(Database::from_instance)
    }

    /// Opens the database on a device read-only; see [`Builder::open_read_only`]. If the device has
    /// no [reader table](braid_io::Device::reader_table), the caller must ensure that the device is
    /// not written to meanwhile.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
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
        recovery::open_source(Arc::new(source), options, None).map(Database::from_instance)
    }
}
