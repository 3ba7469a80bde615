//! How a database is opened: the options.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use braid_io::{CatchingDevice, Device, DeviceChoice};
use braid_log::{LogOptions, ProtocolKind};

use crate::codec::Clock;
use crate::health::HealthCallback;
use crate::recovery::RecoveryProgress;
use crate::stats::Health;

type ProgressCallback = Arc<dyn Fn(&RecoveryProgress) + Send + Sync>;

/// Options for opening a database, from [`crate::Database::builder`].
///
/// Defaults and ranges are in the crate's [table](crate#limits-and-defaults). An option out of its range is
/// [`crate::Error::Options`] when the database is opened.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path();
/// use braid::Database;
/// let db = Database::builder()
///     .pool_bytes(16 << 20)
///     .checkpoint_log_bytes(64 << 20)
///     .open(path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Builder {
    pub(crate) protocol: Option<ProtocolKind>,
    pub(crate) strands: Option<usize>,
    pub(crate) lanes: Option<usize>,
    pub(crate) epoch: Duration,
    pub(crate) device: DeviceChoice,
    pub(crate) file_mode: u32,
    pub(crate) pool_bytes: usize,
    pub(crate) segment_bytes: u64,
    pub(crate) checkpoint_log_bytes: u64,
    pub(crate) max_log_bytes: u64,
    pub(crate) preallocated_log_bytes: u64,
    pub(crate) transaction_bytes_max: usize,
    pub(crate) flushes_in_flight: Option<usize>,
    pub(crate) group_size: u32,
    pub(crate) create_if_missing: bool,
    pub(crate) background: bool,
    pub(crate) discard: bool,
    pub(crate) progress: Option<ProgressCallback>,
    pub(crate) health_listener: Option<HealthCallback>,
    pub(crate) read_only: bool,
    pub(crate) clock: Clock,
    pub(crate) feed_log_bytes: u64,
    pub(crate) archive: Option<ArchivePlace>,
    pub(crate) archive_interval: Duration,
    pub(crate) stats_file: bool,
    /// The database's directory if it is to have a file of statistics.
    pub(crate) stats_directory: Option<PathBuf>,
    /// The directory that is opened, without links; none on a device.
    pub(crate) directory: Option<PathBuf>,
    #[cfg(feature = "metrics")]
    pub(crate) metrics_label: Option<String>,
    pub(crate) slow_commit: Option<Duration>,
}

/// Where the log is archived.
#[derive(Clone, Debug)]
pub(crate) enum ArchivePlace {
    Directory(PathBuf),
    Device(Arc<dyn Device>),
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            protocol: None,
            strands: None,
            lanes: None,
            epoch: LogOptions::default().epoch,
            device: DeviceChoice::Auto,
            file_mode: braid_io::DEFAULT_FILE_MODE,
            pool_bytes: 256 << 20,
            segment_bytes: 32 << 20,
            checkpoint_log_bytes: 256 << 20,
            max_log_bytes: 0,
            preallocated_log_bytes: 0,
            transaction_bytes_max: 256 << 20,
            flushes_in_flight: None,
            group_size: LogOptions::default().group_size,
            create_if_missing: true,
            background: true,
            discard: false,
            progress: None,
            health_listener: None,
            read_only: false,
            clock: Clock::default(),
            feed_log_bytes: 1 << 30,
            archive: None,
            archive_interval: Duration::from_secs(1),
            stats_file: false,
            stats_directory: None,
            directory: None,
            #[cfg(feature = "metrics")]
            metrics_label: None,
            slow_commit: None,
        }
    }
}

impl Builder {
    /// The commit protocol. Default: [`ProtocolKind::Glsn`] for a new database; an existing one keeps its
    /// own unless another is asked for, which it is then switched to by a checkpoint while opening. A
    /// protocol of one strand needs a database of one lane.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let db = builder.protocol(braid::Protocol::Gwsn).open_on(device)?;
    /// assert_eq!(db.stats().protocol, braid::Protocol::Gwsn);
    /// # Ok(())
    /// # }
    /// ```
    pub fn protocol(mut self, protocol: ProtocolKind) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// How many strands (log buffers) committing threads are spread over.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let db = builder.strands(4).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn strands(mut self, strands: usize) -> Self {
        self.strands = Some(strands);
        self
    }

    /// How many files the log is written to at a time. With one, all strands share each flush, which is
    /// fastest where they share a device.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let db = builder.lanes(1).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = Some(lanes);
        self
    }

    /// How long an epoch of the `epoch` protocol lasts: commits are acknowledged at its end.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let db = builder.epoch(std::time::Duration::from_millis(5)).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn epoch(mut self, epoch: Duration) -> Self {
        self.epoch = epoch;
        self
    }

    /// How the medium is accessed.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// use braid::{Database, DeviceChoice};
    /// let db = Database::builder().device(DeviceChoice::File).open(path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.device = device;
        self
    }

    /// The permissions of the files that are created: those of the database, its archive, its backups and its
    /// statistics. They are given as in `chmod(2)` and independent of the umask. Directories that are created can be
    /// searched by whoever may read the files. Existing files keep their permissions. Default: `0o600`, for the owner
    /// only. Without effect on Windows.
    pub fn file_mode(mut self, mode: u32) -> Self {
        self.file_mode = mode;
        self
    }

    /// Memory for pages, in bytes.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let db = builder.pool_bytes(8 << 20).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pool_bytes(mut self, bytes: usize) -> Self {
        self.pool_bytes = bytes;
        self
    }

    /// The size of a log file, in bytes. With one lane, the first has 64 KiB, and each further one as many bytes as the
    /// log that is kept, up to this size.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let db = builder.segment_bytes(1 << 20).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// A checkpoint begins when this much log was written since the last: a bound on recovery time.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let db = builder.checkpoint_log_bytes(16 << 20).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn checkpoint_log_bytes(mut self, bytes: u64) -> Self {
        self.checkpoint_log_bytes = bytes;
        self
    }

    /// The most that the log may occupy, in bytes; 0 for no limit. Commits beyond it fail with
    /// [`crate::Error::OutOfSpace`] until a checkpoint made room.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let db = builder.max_log_bytes(1 << 30).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_log_bytes(mut self, bytes: u64) -> Self {
        self.max_log_bytes = bytes;
        self
    }

    /// Log files that opening makes ahead, and that stay, in bytes; at most [`Builder::max_log_bytes`]. A new log file
    /// is filled with zeroes first, so that commits write in place; as long as the log grows to the size that it
    /// keeps, that is as much written again as is logged. Default 0: each file is made when the one before is used.
    ///
    /// Opening takes the time to write so much, the first time. If the medium has no room for it, opening fails with
    /// [`crate::Error::OutOfSpace`] and leaves none of it. With [`Builder::discard`], released files are given back all
    /// the same.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let db = builder.preallocated_log_bytes(128 << 20).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn preallocated_log_bytes(mut self, bytes: u64) -> Self {
        self.preallocated_log_bytes = bytes;
        self
    }

    /// The most that one transaction may write, in bytes.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// use braid::Error;
    /// let db = builder.transaction_bytes_max(1 << 10).open_on(device)?;
    /// let t = db.table::<u32, String>("t")?;
    /// let written = db.transact(|tx| tx.insert(&t, &1, &"x".repeat(2_000)));
    /// assert!(matches!(written, Err(Error::TransactionTooLarge { max: 1_024 })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn transaction_bytes_max(mut self, bytes: usize) -> Self {
        self.transaction_bytes_max = bytes;
        self
    }

    /// How many log flushes of a lane may be in flight at once.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let db = builder.flushes_in_flight(2).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn flushes_in_flight(mut self, flushes: usize) -> Self {
        self.flushes_in_flight = Some(flushes);
        self
    }

    /// P-WAL's group size: how many [`commit_async`](crate::Transaction::commit_async)s of a thread go to the
    /// device together; see [`LogOptions::group_size`]. Default 0: a flush begins when none is under way.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let db = builder.group_size(16).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn group_size(mut self, transactions: u32) -> Self {
        self.group_size = transactions;
        self
    }

    /// Whether a missing database is created (the default) or an error.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// use braid::{Database, Error};
    /// let missing = Database::builder().create_if_missing(false).open(path.join("nothing"));
    /// assert!(matches!(missing, Err(Error::NotADatabase { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_if_missing(mut self, create: bool) -> Self {
        self.create_if_missing = create;
        self
    }

    /// Whether threads of the database's own flush and make checkpoints (the default). Without them
    /// the callers' threads do all work: waiting for a ticket flushes, and checkpoints are made only by
    /// [`crate::Database::checkpoint`]. A deterministic simulation needs that.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let db = builder.background_threads(false).open_on(device)?;
    /// db.checkpoint()?; // nobody else makes one
    /// # Ok(())
    /// # }
    /// ```
    pub fn background_threads(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Whether the space of log that is no longer needed is given back to the medium at once (hole
    /// punching) instead of being kept for reuse.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let db = builder.discard(true).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn discard(mut self, discard: bool) -> Self {
        self.discard = discard;
        self
    }

    /// The most log, in bytes, that is kept for [feeds](crate::Feed) and open [readers](crate::Changes) of changes
    /// beyond what recovery needs; with [`Builder::max_log_bytes`], no more than a quarter of that. One that is
    /// further behind is left behind: it gets [`crate::Error::PositionLost`], and commits go on.
    pub fn feed_log_bytes(mut self, bytes: u64) -> Self {
        self.feed_log_bytes = bytes;
        self
    }

    /// A directory, created if it is missing, to which every durable transaction is copied, so that a backup can
    /// be restored [up to any later point](crate::Restore::archive). It should lie on another medium.
    ///
    /// Log that is not archived yet is kept. So if the archive's medium fails, commits go on until the log is
    /// full (see [`Builder::max_log_bytes`]) or its medium is, and then fail with [`crate::Error::OutOfSpace`];
    /// [`crate::Database::health`] tells meanwhile. An opening without this option keeps log for the archive as for
    /// a feed, up to [`Builder::feed_log_bytes`]; [`crate::Database::end_archive`] ends that. If more is written, the
    /// archive lacks transactions, which [`crate::Database::archive_now`] and restoring name.
    ///
    /// One database writes an archive. A copy of its files has to archive elsewhere: it is refused with
    /// [`BackupError::ArchiveOwned`](crate::BackupError::ArchiveOwned).
    pub fn archive(mut self, path: impl AsRef<Path>) -> Self {
        self.archive = Some(ArchivePlace::Directory(path.as_ref().to_owned()));
        self
    }

    /// As [`Builder::archive`], to a device.
    pub fn archive_on(mut self, device: Arc<dyn Device>) -> Self {
        self.archive = Some(ArchivePlace::Device(Arc::new(CatchingDevice::new(device))));
        self
    }

    /// How often the archive is brought up to date, and so how much can be missing from it, and how exactly times
    /// can be told apart in it.
    pub fn archive_interval(mut self, interval: Duration) -> Self {
        self.archive_interval = interval;
        self
    }

    /// Is told how recovery gets on, from the recovering threads.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let builder = builder.recovery_progress(|progress| {
    ///     println!("{} of {} bytes of log", progress.scanned_bytes, progress.total_bytes);
    /// });
    /// let db = builder.open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn recovery_progress(
        mut self,
        callback: impl Fn(&RecoveryProgress) + Send + Sync + 'static,
    ) -> Self {
        self.progress = Some(Arc::new(callback));
        self
    }

    /// The clock that says when entries of tables with a
    /// [time to live](crate::TableOptions::time_to_live) are written and over. Default: the system's. For
    /// tests, which can set it forward. After a panic of the clock on the maintenance thread, that thread removes no more
    /// entries until the database is reopened.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use braid::{Database, Readable, TableOptions};
    ///
    /// let seconds = Arc::new(AtomicU64::new(1_000));
    /// let clock = seconds.clone();
    /// let db = Database::builder()
    ///     .clock(move || UNIX_EPOCH + Duration::from_secs(clock.load(Relaxed)))
    ///     .open_on(Arc::new(braid::MemoryDevice::new()))?;
    /// let options = TableOptions {
    ///     time_to_live: Some(Duration::from_secs(60)),
    ///     ..TableOptions::default()
    /// };
    /// let codes = db.table_with::<String, u32>("codes", options)?;
    /// db.transact(|tx| tx.insert(&codes, "Ada", &4711))?;
    /// seconds.fetch_add(59, Relaxed);
    /// assert_eq!(db.get(&codes, "Ada")?, Some(4711));
    /// seconds.fetch_add(1, Relaxed);
    /// assert_eq!(db.get(&codes, "Ada")?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Clock::new(clock);
        self
    }

    /// Is told when the database's [`Health`] becomes another: once when a failure poisons it, when a commit
    /// or a checkpoint finds no space, when that is over, and when it is closed. It is called on the thread that
    /// notices, at the latest within the maintenance thread's 50 ms, and should be short. If it panics, the process's panic
    /// hook reports that, and the database goes on.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use std::sync::mpsc;
    /// use braid::{Database, Health};
    /// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
    /// let (sender, changes) = mpsc::channel();
    /// let builder = Database::builder().on_health_change(move |health| {
    ///     let _ = sender.send(health.clone()); // wake the people on call
    /// });
    /// let db = builder.open_on(device)?;
    /// db.close()?;
    /// assert!(matches!(changes.recv(), Ok(Health::Closed)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_health_change(mut self, callback: impl Fn(&Health) + Send + Sync + 'static) -> Self {
        self.health_listener = Some(Arc::new(callback));
        self
    }

    /// Whether the file `STATS` in the database's directory tells others how the database does while it is
    /// open: once a second it is replaced by what [`crate::Stats::to_prometheus`] says, and it goes when the
    /// database is closed. `braid stat --watch` reads it, as can the textfile collector of Prometheus' node
    /// exporter. Needs the background threads; has no effect with [`Builder::open_on`].
    pub fn stats_file(mut self, stats_file: bool) -> Self {
        self.stats_file = stats_file;
        self
    }

    /// Publishes the statistics through the facade `metrics` once a second, with a label `database` of this
    /// value. The names are those of [`crate::Stats::to_prometheus`]; sums of times are gauges. Needs the
    /// background threads; [`crate::Database::publish_metrics`] does it on demand.
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, database: impl Into<String>) -> Self {
        self.metrics_label = Some(database.into());
        self
    }

    /// Emits an event through the facade `tracing` for each commit that takes at least this long, the wait
    /// for the device included; of [`commit_async`](crate::Transaction::commit_async) what comes before that
    /// wait. Default: for none.
    #[cfg(feature = "tracing")]
    pub fn slow_commit(mut self, at_least: Duration) -> Self {
        self.slow_commit = Some(at_least);
        self
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("protocol", &self.protocol)
            .field("strands", &self.strands)
            .field("lanes", &self.lanes)
            .field("device", &self.device)
            .field("pool_bytes", &self.pool_bytes)
            .finish_non_exhaustive()
    }
}
