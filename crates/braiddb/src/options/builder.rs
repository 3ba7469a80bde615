//! Options for opening a database.

mod log;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use braid_io::{CatchingDevice, Device, DeviceChoice};
use braid_log::{LogOptions, PmemCommit, ProtocolKind};
use braid_rt::numa::Place;

use super::clock::Clock;
use super::tablespace::{SpacePlace, SpacePlaces};
use crate::base::remote_access::{AgentHook, Hook, RemoteAccess};
use crate::observe::health::{Health, HealthCallback};
use crate::observe::recovery::RecoveryProgress;

type ProgressCallback = Arc<dyn Fn(&RecoveryProgress) + Send + Sync>;

/// Options for opening a database, from [`crate::Database::builder`].
///
/// The crate's [table](crate#limits-and-defaults) lists defaults and ranges. Opening the database
/// with an option out of its range fails with [`crate::Error::InvalidOption`].
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
    pub(crate) log_directory: Option<PathBuf>,
    pub(crate) log_device: Option<DeviceChoice>,
    /// The log's directory, if it is another one than the database's; known once that is open.
    pub(crate) log_place: Option<LogPlace>,
    /// Present places of tablespaces, by name.
    pub(crate) tablespaces: SpacePlaces,
    pub(crate) file_mode: u32,
    pub(crate) pool_bytes: usize,
    pub(crate) segment_bytes: u64,
    pub(crate) checkpoint_log_bytes: u64,
    pub(crate) max_log_bytes: u64,
    pub(crate) preallocated_log_bytes: u64,
    pub(crate) transaction_bytes_max: usize,
    pub(crate) flushes_in_flight: Option<usize>,
    pub(crate) pmem_commit: PmemCommit,
    pub(crate) pmem_lines: bool,
    pub(crate) pmem_in_place: bool,
    pub(crate) nvme_idle_us: Option<u32>,
    pub(crate) group_size: u32,
    pub(crate) create_if_missing: bool,
    pub(crate) background: bool,
    pub(crate) discard: bool,
    pub(crate) numa: bool,
    pub(crate) remote_access: RemoteAccess,
    pub(crate) agent_hook: Hook,
    pub(crate) progress: Option<ProgressCallback>,
    pub(crate) health_listener: Option<HealthCallback>,
    pub(crate) read_only: bool,
    pub(crate) clock: Clock,
    pub(crate) feed_log_bytes: u64,
    pub(crate) archive: Option<ArchivePlace>,
    pub(crate) archive_interval: Duration,
    pub(crate) stats_file: bool,
    /// The database's directory, if the statistics file is enabled.
    pub(crate) stats_directory: Option<PathBuf>,
    /// The directory being opened, with links resolved; `None` on a device.
    pub(crate) directory: Option<PathBuf>,
    #[cfg(feature = "metrics")]
    pub(crate) metrics_label: Option<String>,
    pub(crate) slow_commit: Option<Duration>,
    pub(crate) lock_timeout: Duration,
    pub(crate) max_version_bytes: usize,
}

/// A log in a directory of its own.
#[derive(Clone, Debug)]
pub(crate) struct LogPlace {
    /// The directory, with links resolved.
    pub(crate) directory: PathBuf,
    /// The directory of the database, with links resolved.
    pub(crate) database: PathBuf,
    /// How the log's directory is accessed.
    pub(crate) device: DeviceChoice,
}

/// Location of the archive.
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
            log_directory: None,
            log_device: None,
            log_place: None,
            tablespaces: SpacePlaces::default(),
            file_mode: braid_io::DEFAULT_FILE_MODE,
            pool_bytes: 256 << 20,
            segment_bytes: 32 << 20,
            checkpoint_log_bytes: 256 << 20,
            max_log_bytes: 0,
            preallocated_log_bytes: 0,
            transaction_bytes_max: 256 << 20,
            flushes_in_flight: None,
            pmem_commit: PmemCommit::default(),
            pmem_lines: true,
            pmem_in_place: true,
            nvme_idle_us: None,
            group_size: LogOptions::default().group_size,
            create_if_missing: true,
            background: true,
            discard: false,
            numa: true,
            remote_access: RemoteAccess::default(),
            agent_hook: Hook::default(),
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
            lock_timeout: Duration::MAX,
            max_version_bytes: 0,
        }
    }
}

/// # The database
impl Builder {
    /// Sets how the medium is accessed.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// use braid::Database;
    /// use braid::device::DeviceChoice;
    /// let db = Database::builder().device(DeviceChoice::File).open(path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.device = device;
        self
    }

    /// Sets the permissions of created files: those of the database, its archive, its backups and
    /// its statistics, as in `chmod(2)` and independent of the umask. Created directories can be
    /// searched by every user who can read the files. Existing files keep their permissions.
    /// Default: `0o600`, the owner only. Has no effect on Windows.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// // The group may read the database, for example with `braid stat`.
    /// let db = braid::Database::builder().file_mode(0o640).open(path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn file_mode(mut self, mode: u32) -> Self {
        self.file_mode = mode;
        self
    }

    /// Names the present directory of a tablespace, after the directory was moved or mounted
    /// elsewhere, or copied together with the database. The database records the directory, so later
    /// openings need no option. Has no effect if there is no such tablespace.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, old, new) = (dir.path().join("db"), dir.path().join("old"), dir.path().join("new"));
    /// use braid::tablespace::TablespaceOptions;
    /// let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// let db = builder.clone().open(&path)?;
    /// db.create_tablespace("fast", TablespaceOptions::in_directory(&old).pool_bytes(1 << 20))?;
    /// db.close()?;
    /// std::fs::rename(&old, &new).unwrap();
    /// let db = builder.tablespace_directory("fast", &new).open(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn tablespace_directory(mut self, name: &str, path: impl AsRef<Path>) -> Self {
        let place = SpacePlace::Directory(path.as_ref().to_owned());
        self.tablespaces.add(name, place);
        self
    }

    /// Names the present directory of a tablespace's log, as [`Builder::tablespace_directory`] does with that
    /// of its data. Has no effect if the tablespace has no log in a
    /// [directory of its own](crate::tablespace::TablespaceOptions::log_directory).
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, disk) = (dir.path().join("db"), dir.path().join("disk"));
    /// # let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    /// use braid::tablespace::TablespaceOptions;
    /// let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// let db = builder.clone().open(&path)?;
    /// let options = TablespaceOptions::in_directory(&disk).pool_bytes(1 << 20);
    /// db.create_tablespace("disk", options.log_directory(&old))?;
    /// db.close()?;
    /// std::fs::rename(&old, &new).unwrap();
    /// let db = builder.tablespace_log_directory("disk", &new).open(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn tablespace_log_directory(mut self, name: &str, path: impl AsRef<Path>) -> Self {
        let place = SpacePlace::Directory(path.as_ref().to_owned());
        self.tablespaces.add_log(name, place);
        self
    }

    /// Sets the device of a tablespace's log, which was created with
    /// [`TablespaceOptions::log_on`](crate::tablespace::TablespaceOptions::log_on).
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use std::sync::Arc;
    /// use braid::device::MemoryDevice;
    /// use braid::tablespace::TablespaceOptions;
    /// let [main, data, log]: [Arc<MemoryDevice>; 3] = Default::default();
    /// let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// let db = builder.clone().open_on(main.clone())?;
    /// let options = TablespaceOptions::on_device(data.clone()).pool_bytes(1 << 20);
    /// db.create_tablespace("fast", options.log_on(log.clone()))?;
    /// db.close()?;
    /// let builder = builder.tablespace_device("fast", data);
    /// let db = builder.tablespace_log_on("fast", log).open_on(main)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn tablespace_log_on(mut self, name: &str, device: Arc<dyn Device>) -> Self {
        let place = SpacePlace::device(device);
        self.tablespaces.add_log(name, place);
        self
    }

    /// Sets the device of a tablespace that was created with
    /// [`TablespaceOptions::on_device`](crate::tablespace::TablespaceOptions::on_device). Has no
    /// effect if there is no such tablespace.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use std::sync::Arc;
    /// use braid::device::MemoryDevice;
    /// use braid::tablespace::TablespaceOptions;
    /// let (main, fast) = (Arc::new(MemoryDevice::new()), Arc::new(MemoryDevice::new()));
    /// let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// let db = builder.clone().open_on(main.clone())?;
    /// let options = TablespaceOptions::on_device(fast.clone()).pool_bytes(1 << 20);
    /// db.create_tablespace("fast", options)?;
    /// db.close()?;
    /// let db = builder.tablespace_device("fast", fast).open_on(main)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn tablespace_device(mut self, name: &str, device: Arc<dyn Device>) -> Self {
        let place = SpacePlace::device(device);
        self.tablespaces.add(name, place);
        self
    }

    /// Sets the size of the page pool, in bytes: from 1 MiB to 4 TiB.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.pool_bytes(8 << 20).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pool_bytes(mut self, bytes: usize) -> Self {
        self.pool_bytes = bytes;
        self
    }

    /// Sets the maximum size of the writes of one transaction, in bytes.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// use braid::Error;
    /// let db = builder.transaction_bytes_max(1 << 10).open_on(device)?;
    /// let t = db.open_table::<u32, String>("t")?;
    /// let written = db.transact(|tx| tx.insert(&t, &1, &"x".repeat(2_000)));
    /// assert!(matches!(written, Err(Error::TransactionTooLarge { max: 1_024 })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn transaction_bytes_max(mut self, bytes: usize) -> Self {
        self.transaction_bytes_max = bytes;
        self
    }

    /// Sets the amount of log, in bytes, after which a checkpoint begins: a bound on the time of
    /// recovery.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.checkpoint_log_bytes(16 << 20).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn checkpoint_log_bytes(mut self, bytes: u64) -> Self {
        self.checkpoint_log_bytes = bytes;
        self
    }

    /// Sets whether a missing database is created (the default) or an error.
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

    /// Sets whether background threads flush and write checkpoints (the default). Without them the
    /// callers' threads do all work: waiting for a ticket flushes, and only
    /// [`crate::Database::checkpoint`] writes checkpoints. A deterministic simulation needs this.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.background_threads(false).open_on(device)?;
    /// db.checkpoint()?; // no thread does it by itself
    /// # Ok(())
    /// # }
    /// ```
    pub fn background_threads(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Sets the clock for entries of tables with a [time to
    /// live](crate::TableOptions::time_to_live). Default: the system's clock. Tests can use a clock
    /// that they advance. If the clock panics on a background thread, that thread removes no
    /// more entries until the database is reopened.
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
    ///     .open_on(Arc::new(braid::device::MemoryDevice::new()))?;
    /// let options = TableOptions {
    ///     time_to_live: Some(Duration::from_secs(60)),
    ///     ..TableOptions::default()
    /// };
    /// let codes = db.open_table_with::<String, u32>("codes", options)?;
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

    /// Sets the longest time that a transaction waits for the lock of a key, unless it has
    /// [its own](crate::TransactionOptions::lock_timeout). Then the write, or the commit of a
    /// transaction with many writes, fails with [`crate::Error::LockTimeout`]. With
    /// [`Duration::ZERO`], no transaction waits. Default [`Duration::MAX`]: no limit.
    ///
    /// Deadlocks need no time-out: a transaction whose wait would close a cycle fails at once.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// use std::time::Duration;
    /// use braid::{Error, Table};
    /// let db = builder.lock_timeout(Duration::from_millis(20)).open_on(device)?;
    /// let t: Table<u32, String> = db.open_table("t")?;
    /// let mut holder = db.begin();
    /// holder.insert(&t, &1, "one")?;
    /// let refused = db.transact(|tx| tx.insert(&t, &1, "uno"));
    /// assert!(matches!(refused, Err(Error::LockTimeout { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// Sets the most space, in bytes, that old versions may take for open snapshots. Default 0: no
    /// limit.
    ///
    /// While a snapshot is open, overwritten values and removed keys stay in memory for it, and
    /// overwritten values above 2,000 bytes in their pages, which may be in memory or in the data
    /// file. If memory and pages together take more than this limit, Braid ends the oldest snapshots until the others need at most the
    /// limit. Every later read through an ended snapshot, every step of an iterator, and every read
    /// and write of a transaction with [`Isolation::Snapshot`](crate::Isolation::Snapshot), fails
    /// with [`crate::Error::SnapshotTooOld`]; newer snapshots stay open. A background thread applies
    /// the limit, so the space may exceed it for a moment, by about a quarter.
    ///
    /// Serializable transactions keep no versions and never end.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let builder = builder.background_threads(false);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// use braid::{Error, Readable, Table};
    /// let db = builder.max_version_bytes(64 << 10).open_on(device)?;
    /// let t: Table<u32, String> = db.open_table("t")?;
    /// let write = |text: &str| {
    ///     let value = text.repeat(100);
    ///     db.transact(|tx| (0..1_000).try_for_each(|key| tx.insert(&t, &key, &value)))
    /// };
    /// write("old")?;
    /// let snapshot = db.snapshot();
    /// write("new")?; // the snapshot needs 300 KB of old values
    /// write("newer")?;
    /// assert!(matches!(snapshot.get(&t, &1), Err(Error::SnapshotTooOld { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_version_bytes(mut self, bytes: usize) -> Self {
        self.max_version_bytes = bytes;
        self
    }
}

/// # Memory nodes
impl Builder {
    /// Sets whether memory and threads are placed on the nodes of a machine with several memory
    /// nodes (NUMA). Default `true`. It has no effect on a machine with one node.
    ///
    /// A thread belongs to the node on which it first used the engine, and commits through a strand
    /// whose buffers lie there: the default number of strands is rounded up to a multiple of the
    /// number of nodes. With as many lanes as nodes, or a multiple, the threads that flush in the
    /// background run on the lanes' nodes. What threads of all nodes use, the buffer pool and the
    /// table of locks, is spread over the nodes. [`Database::placement`](crate::Database::placement)
    /// shows where memory lies.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// let db = builder.numa(false).open_on(device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn numa(mut self, numa: bool) -> Self {
        self.numa = numa;
        self
    }

    /// Sets how threads use [tablespaces](crate::tablespace::TablespaceOptions::memory_node) in the memory of
    /// another node than theirs. Default: [`RemoteAccess::Direct`]. The mode is one of this opening; the
    /// data does not depend on it.
    ///
    /// With agents, a tablespace that is bound to a memory node has a thread there. Threads of other
    /// nodes pass it reads, scans, and all writes of a transaction in that tablespace together, and
    /// get copies. Whatever the agent has no room for, or does not begin soon, the thread does itself.
    /// An agent that has no work sleeps. It pays for slow memory, such as persistent memory that is read
    /// in place: a copy of a record costs as much as reading it from ordinary memory. There are no
    /// agents without [`Builder::background_threads`], without [`Builder::numa`], or on a machine with
    /// one node. [`TablespaceStats::remote_access`](crate::stats::TablespaceStats::remote_access) says
    /// what is in use.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    /// use braid::tablespace::RemoteAccess;
    /// let db = builder.remote_access(RemoteAccess::Auto).open_on(device)?;
    /// for tablespace in db.stats().tablespaces {
    ///     println!("{}: {}", tablespace.name, tablespace.remote_access);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn remote_access(mut self, access: RemoteAccess) -> Self {
        self.remote_access = access;
        self
    }

    /// Replaces the machine's memory nodes, in tests and models: every tablespace has an agent if there
    /// are [agents](Builder::remote_access), and the hook says for whom.
    #[doc(hidden)]
    pub fn agent_hook(mut self, hook: Arc<dyn AgentHook>) -> Self {
        self.agent_hook = Hook(Some(hook));
        self
    }

    /// Where the pages of the main tablespace are to lie in memory.
    pub(crate) fn main_memory(&self) -> Place {
        if self.numa {
            Place::Spread
        } else {
            Place::System
        }
    }
}

/// # Retained log: change feeds and the archive
impl Builder {
    /// Sets the maximum amount of log, in bytes, that is kept for [feeds](crate::changes::Feed) and
    /// open [readers](crate::changes::Changes) of changes beyond what recovery needs; with
    /// [`Builder::max_log_bytes`], at most a quarter of that. A consumer that falls further behind
    /// loses its position ([`crate::Error::PositionLost`]); commits continue.
    pub fn feed_log_bytes(mut self, bytes: u64) -> Self {
        self.feed_log_bytes = bytes;
        self
    }

    /// Sets the directory of the archive, created if it is missing: every durable transaction is
    /// copied to it, so that a backup can be restored [up to any later
    /// point](crate::backup::Restore::archive). The archive should be on another medium.
    ///
    /// Log that is not archived yet is kept. If the archive's medium fails, commits continue until
    /// the log (see [`Builder::max_log_bytes`]) or its medium is full, and then fail with
    /// [`crate::Error::OutOfSpace`]; [`crate::Database::health`] reports the failure. An opening
    /// without this option keeps log for the archive as for a feed, up to
    /// [`Builder::feed_log_bytes`]; [`crate::Database::end_archive`] ends that. If more is written,
    /// the archive lacks transactions, which [`crate::Database::archive_now`] and a restore report.
    ///
    /// Only one database can write to an archive. A copy of the database's files must archive
    /// elsewhere: opening it with the same archive fails with
    /// [`BackupError::ArchiveOwned`](crate::backup::BackupError::ArchiveOwned).
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, backups) = (dir.path().join("shop"), dir.path().join("backups"));
    /// # std::fs::create_dir(&backups).unwrap();
    /// use std::time::Duration;
    /// use braid::Database;
    /// use braid::backup::Restore;
    ///
    /// let db = Database::builder()
    ///     .archive(backups.join("archive"))
    ///     .archive_interval(Duration::from_secs(10))
    ///     .open(path)?;
    /// db.backup(backups.join("monday"))?;
    /// let orders = db.open_table::<u64, String>("orders")?;
    /// db.transact(|tx| tx.insert(&orders, &1, "tea"))?;
    /// db.archive_now()?; // or within ten seconds
    ///
    /// let restore = Restore::new().backup(backups.join("monday")).archive(backups.join("archive"));
    /// let report = restore.run(dir.path().join("restored"))?;
    /// assert!(report.seqno > report.backup_seqno);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Builder::archive_on`] writes the archive to any [`Device`] instead, and
    /// [`Restore::archive_on`](crate::backup::Restore::archive_on) reads it there.
    pub fn archive(mut self, path: impl AsRef<Path>) -> Self {
        self.archive = Some(ArchivePlace::Directory(path.as_ref().to_owned()));
        self
    }

    /// Sets the device of the archive; otherwise as [`Builder::archive`].
    pub fn archive_on(mut self, device: Arc<dyn Device>) -> Self {
        self.archive = Some(ArchivePlace::Device(Arc::new(CatchingDevice::new(device))));
        self
    }

    /// Sets the interval between updates of the archive. The interval bounds how much the archive
    /// lacks after a loss of the database, and is the resolution of
    /// [`Until::Time`](crate::backup::Until::Time).
    pub fn archive_interval(mut self, interval: Duration) -> Self {
        self.archive_interval = interval;
        self
    }
}

/// # Monitoring
impl Builder {
    /// Sets a callback for the progress of recovery, called from the recovering threads.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
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

    /// Sets a callback for changes of the database's [`Health`]: when a failure poisons the
    /// database, when a commit or a checkpoint finds no space, when there is space again, and when
    /// the database is closed. It is called on the thread that detects the change, at most about 50
    /// ms later by a background thread, and should be short. If it panics, the process's panic
    /// hook reports the panic, and the database continues.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use std::sync::mpsc;
    /// use braid::{Database, Health};
    /// # let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
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

    /// Sets whether the open database publishes its statistics in the file `STATS` of its
    /// directory: once a second it is replaced by the text of [`crate::Stats::to_prometheus`];
    /// closing the database removes it. `braid stat --watch` and the textfile collector of
    /// Prometheus' node exporter can read it. Needs the background threads; has no effect with
    /// [`Builder::open_on`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// let db = braid::Database::builder().stats_file(true).open(path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn stats_file(mut self, stats_file: bool) -> Self {
        self.stats_file = stats_file;
        self
    }

    /// Publishes the statistics through the facade `metrics` once a second, with a label `database`
    /// of this value. The names are those of [`crate::Stats::to_prometheus`]; sums of times are
    /// gauges. Needs the background threads; [`crate::Database::publish_metrics`] publishes on
    /// demand.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// // After the program has installed a recorder, such as metrics-exporter-prometheus:
    /// let db = braid::Database::builder().metrics("shop").open(path)?;
    /// db.publish_metrics("shop"); // now, not only once a second
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, database: impl Into<String>) -> Self {
        self.metrics_label = Some(database.into());
        self
    }

    /// Emits an event through the facade `tracing` for each commit that takes at least this long,
    /// including the wait for the device; for [`commit_async`](crate::Transaction::commit_async),
    /// excluding that wait. Default: no events.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// use std::time::Duration;
    /// let db = braid::Database::builder().slow_commit(Duration::from_millis(50)).open(path)?;
    /// # Ok(())
    /// # }
    /// ```
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
