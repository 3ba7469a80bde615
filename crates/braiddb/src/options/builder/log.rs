//! The options of the log: its protocol, buffers and files.

use std::path::Path;
use std::time::Duration;

use braid_io::DeviceChoice;
use braid_log::{PmemCommit, ProtocolKind};

use super::Builder;

/// # The log: its protocol, buffers and files
impl Builder {
    /// Sets a separate directory for the log of a new database, which may be on another device: the
    /// log in persistent memory and the data on a disk, the reverse, or two disks. The directory is
    /// created if it is missing, and must be empty.
    ///
    /// The database records the directory, so later openings need no option. After the directory
    /// was moved or mounted elsewhere, an opening with its present name records that. An existing
    /// database keeps its log where it is; restoring a backup moves it, see
    /// [`Restore::log_directory`](crate::backup::Restore::log_directory).
    ///
    /// Opening fails with [`crate::Error::LogDirectory`] if the directory is missing or has the log
    /// of another database, and with [`crate::Error::Locked`] if it is in use. Has no effect
    /// on [`Builder::open_on`], which can get a [`SplitDevice`](crate::device::SplitDevice).
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, log) = (dir.path().join("data"), dir.path().join("log"));
    /// use braid::Database;
    /// let db = Database::builder().pool_bytes(1 << 20).log_directory(&log).open(&path)?;
    /// db.close()?;
    /// let db = Database::builder().pool_bytes(1 << 20).open(&path)?; // finds the log
    /// # Ok(())
    /// # }
    /// ```
    pub fn log_directory(mut self, path: impl AsRef<Path>) -> Self {
        self.log_directory = Some(path.as_ref().to_owned());
        self
    }

    /// Sets how the medium of [`Builder::log_directory`] is accessed. Default: as recorded in the
    /// database, for a new one as [`Builder::device`]. [`DeviceChoice::Memory`] is refused.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, log) = (dir.path().join("data"), dir.path().join("log"));
    /// use braid::Database;
    /// use braid::device::DeviceChoice;
    /// let db = Database::builder()
    ///     .pool_bytes(1 << 20)
    ///     .log_directory(&log)
    ///     .log_device(DeviceChoice::File)
    ///     .open(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn log_device(mut self, device: DeviceChoice) -> Self {
        self.log_device = Some(device);
        self
    }

    /// Sets the commit protocol. Default: [`ProtocolKind::Glsn`] for a new database; an existing
    /// one keeps its own. If another one is requested, opening switches to it with a checkpoint. A
    /// protocol with one strand needs a database with one lane.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.protocol(braid::Protocol::Gwsn).open_on(device)?;
    /// assert_eq!(db.stats().protocol, braid::Protocol::Gwsn);
    /// # Ok(())
    /// # }
    /// ```
    pub fn protocol(mut self, protocol: ProtocolKind) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// Sets the number of strands (log buffers) that committing threads are spread over.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.strands(4).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn strands(mut self, strands: usize) -> Self {
        self.strands = Some(strands);
        self
    }

    /// Sets the number of files that the log of a new database is written to at the same time.
    ///
    /// With one, all strands share each flush, which is fastest on a disk, and the default. In
    /// persistent memory, each strand has a file by default, up to 4, unless
    /// [`max_log_bytes`](Builder::max_log_bytes) is set or the protocol is `gsn`, `gwsn` or
    /// `gwsn-strict`. A database with several cannot switch to the protocols `serial` and `aether`.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.lanes(1).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = Some(lanes);
        self
    }

    /// Sets the duration of an epoch of the `epoch` protocol: commits are acknowledged at its end.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.epoch(std::time::Duration::from_millis(5)).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn epoch(mut self, epoch: Duration) -> Self {
        self.epoch = epoch;
        self
    }

    /// Sets the maximum number of flushes in flight in each lane.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.flushes_in_flight(2).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn flushes_in_flight(mut self, flushes: usize) -> Self {
        self.flushes_in_flight = Some(flushes);
        self
    }

    /// Sets how a commit in persistent memory makes its bytes durable. Default
    /// [`PmemCommit::Lazy`]. It has no effect on other devices, and may differ from opening to
    /// opening.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.pmem_commit(braid::PmemCommit::Checksum).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pmem_commit(mut self, mode: PmemCommit) -> Self {
        self.pmem_commit = mode;
        self
    }

    /// Sets whether a checkpoint to a data file in persistent memory writes only the cache lines of
    /// a page that changed, instead of whole pages. Default `true`. The data file then keeps two
    /// blocks for each page that changes, and grows up to twice the size of its pages where the
    /// medium has room. It has no effect on other devices, nor on the format of the file, and may
    /// differ from opening to opening.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.pmem_lines(false).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pmem_lines(mut self, on: bool) -> Self {
        self.pmem_lines = on;
        self
    }

    /// Sets whether pages of a data file in persistent memory are read in place. Default `true`: only
    /// pages that change have a copy in the buffer pool, so a small pool suffices. With `false`,
    /// every page that is read is copied into the pool, which is faster if the pool can hold what is
    /// read often and persistent memory is much slower than ordinary memory. It has no effect on
    /// other devices, nor on the format of the file, and may differ from opening to opening.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.pmem_in_place(false).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pmem_in_place(mut self, on: bool) -> Self {
        self.pmem_in_place = on;
        self
    }

    /// Sets for how many microseconds a thread that waits for an NVMe drive polls before it sleeps, for
    /// a database on a volume (`nvme:DRIVE/NAME`, `vfio:ADDRESS/NAME`), and for its log there. Default
    /// 20, which covers a fast drive; with 0, threads sleep at once. Longer polling saves the wake-up
    /// at each request to a slow drive, and occupies a processor meanwhile. All databases of the
    /// process on a drive share the newest setting. It has no effect on directories.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// let builder = braid::Database::builder().pool_bytes(4 << 20);
    /// let db = builder.nvme_idle_us(100).open(path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn nvme_idle_us(mut self, idle_us: u32) -> Self {
        self.nvme_idle_us = Some(idle_us);
        self
    }

    /// Sets P-WAL's group size: the number of [`commit_async`](crate::Transaction::commit_async)s
    /// of a thread that are flushed together; see [`LogOptions::group_size`](braid_log::LogOptions::group_size). Default 0: a flush
    /// begins when none is in flight.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.group_size(16).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn group_size(mut self, transactions: u32) -> Self {
        self.group_size = transactions;
        self
    }

    /// Sets the size of a log file, in bytes. The first files of all lanes have 64 KiB together,
    /// and each further one as many bytes as the log that its lane keeps, up to this size. With
    /// several lanes and [`max_log_bytes`](Builder::max_log_bytes), all log files have this size.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.segment_bytes(1 << 20).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// Sets the maximum size of the log, in bytes; 0 for no limit. Commits slow down when the log
    /// approaches it while a checkpoint runs, and wait for a checkpoint when the log is full. They
    /// fail with [`crate::Error::OutOfSpace`] if a checkpoint can't release enough, or with
    /// [`Builder::background_threads`] off.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.max_log_bytes(1 << 30).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_log_bytes(mut self, bytes: u64) -> Self {
        self.max_log_bytes = bytes;
        self
    }

    /// Sets the amount of log files, in bytes, that opening creates in advance and that are kept;
    /// at most [`Builder::max_log_bytes`]. A new log file is first filled with zeroes, so that
    /// commits write in place; while the log grows to its final size, this doubles the bytes
    /// written. Default 0: each file is created when the previous one is used.
    ///
    /// The first opening takes the time to write these bytes. If the medium is too small, opening
    /// fails with [`crate::Error::OutOfSpace`] and removes the files. With [`Builder::discard`],
    /// released files are deleted even then.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.preallocated_log_bytes(128 << 20).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn preallocated_log_bytes(mut self, bytes: u64) -> Self {
        self.preallocated_log_bytes = bytes;
        self
    }

    /// Sets whether space of released log is returned to the medium at once (hole punching) instead
    /// of being kept for reuse.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.discard(true).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn discard(mut self, discard: bool) -> Self {
        self.discard = discard;
        self
    }
}
