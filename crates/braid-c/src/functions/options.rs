//! Options for opening a database.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use braid::PmemCommit;
use braid::device::DeviceChoice;
use braid::stats::RecoveryProgress;
use braid::tablespace::RemoteAccess;

use super::protocol::braid_protocol;
use super::stats::microseconds;
use crate::boundary::{Failure, Outcome, call};
use crate::handle_error::Ended;
use crate::handles::braid_options;
use crate::memory::{self, Out, UserData};
use crate::objects::Options;
use crate::registry::OPTIONS;
use crate::status::braid_status::{self, BRAID_OK};

/// Options for `braid_options_set`, with the meaning of their values. An option that is not set has
/// its default.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_option {
    /// The commit protocol, a `braid_protocol`. Default: `BRAID_PROTOCOL_GLSN` for a new database;
    /// an existing one keeps its protocol unless this option sets another.
    BRAID_OPTION_PROTOCOL = 1,
    /// How the medium is accessed, a `braid_device`. Default: `BRAID_DEVICE_AUTO`.
    BRAID_OPTION_DEVICE = 2,
    /// Memory for pages, in bytes, at least 1 MiB. Default: 256 MiB.
    BRAID_OPTION_POOL_BYTES = 3,
    /// Number of log buffers that committing threads are distributed over, from 1 to 256, and at
    /// least the number of lanes. Default: the number of processors, at most 16, for a new
    /// database; an existing one keeps its number unless this option sets another.
    BRAID_OPTION_STRANDS = 4,
    /// Number of log files that are written at the same time, from 1 to 32 and at most the number
    /// of strands, fixed when the database is created. Default: 1.
    BRAID_OPTION_LANES = 5,
    /// Length of an epoch of `BRAID_PROTOCOL_EPOCH`, in microseconds, from 10 to 10,000,000.
    /// Default: 40,000.
    BRAID_OPTION_EPOCH_US = 6,
    /// Largest size of a log file, in bytes, from 64 KiB to 1 GiB. Default: 32 MiB.
    BRAID_OPTION_SEGMENT_BYTES = 7,
    /// Amount of log since the last checkpoint, in bytes, at which a checkpoint begins; at least 64
    /// KiB. Default: 256 MiB.
    BRAID_OPTION_CHECKPOINT_LOG_BYTES = 8,
    /// Maximum size of the log, in bytes: 0 for no limit (the default), or at least twice
    /// `BRAID_OPTION_CHECKPOINT_LOG_BYTES`. Commits beyond the limit fail with `BRAID_OUT_OF_SPACE`
    /// until a checkpoint has freed space.
    BRAID_OPTION_MAX_LOG_BYTES = 9,
    /// Maximum size of the writes of one transaction, in bytes, from 1 KiB to 1 GiB. Default: 256
    /// MiB.
    BRAID_OPTION_TRANSACTION_BYTES_MAX = 10,
    /// Maximum number of log flushes of a lane in flight at the same time, from 1 to 16.
    BRAID_OPTION_FLUSHES_IN_FLIGHT = 11,
    /// Number of asynchronous commits of a thread that are flushed together. With 0 (the default),
    /// a flush begins when none is in flight.
    BRAID_OPTION_GROUP_SIZE = 12,
    /// Whether opening creates a missing database: 1 (the default) or 0.
    BRAID_OPTION_CREATE_IF_MISSING = 13,
    /// Whether the database has threads of its own for flushes and checkpoints: 1 (the default) or
    /// 0. Without them, the threads that call the library do this work: waiting for a ticket
    /// flushes, polling it does not, and only `braid_db_checkpoint` writes checkpoints.
    BRAID_OPTION_BACKGROUND_THREADS = 14,
    /// Whether Braid returns the space of log that is no longer needed to the medium at once: 1, or
    /// 0 (the default: it keeps the space for reuse).
    BRAID_OPTION_DISCARD = 15,
    /// Whether the database is opened only for reading: 1 or 0 (the default). With 1, the database
    /// must exist, Braid writes nothing to its directory, and writes return
    /// `BRAID_OPENED_READ_ONLY`.
    BRAID_OPTION_READ_ONLY = 16,
    /// Maximum amount of log that Braid keeps for feeds and readers of changes beyond what recovery
    /// needs, in bytes. Default: 1 GiB.
    BRAID_OPTION_FEED_LOG_BYTES = 17,
    /// Interval at which Braid brings the archive up to date, in microseconds, at least 1. Default:
    /// one second.
    BRAID_OPTION_ARCHIVE_INTERVAL_US = 18,
    /// Whether the database, while it is open, writes its statistics once a second to the file
    /// `STATS` in its directory, in the Prometheus text format: 1 or 0 (the default).
    BRAID_OPTION_STATS_FILE = 19,
    /// Total size of log files that opening creates in advance, and that are kept, in bytes: at
    /// most `BRAID_OPTION_MAX_LOG_BYTES`, if that is set. With 0 (the default), Braid creates and
    /// zeroes each file while it writes the previous one.
    BRAID_OPTION_PREALLOCATED_LOG_BYTES = 20,
    /// Permissions of new files, as for `chmod`, independent of the umask. The owner can read and
    /// write (0600, the default); the group and others may have permissions (0640, 0644, …).
    /// Directories can be searched by everybody who can read the files. Existing files keep their
    /// permissions.
    BRAID_OPTION_FILE_MODE = 21,
    /// Longest wait of a transaction for the lock of a key, in microseconds; then the operation
    /// returns `BRAID_LOCK_TIMEOUT`. With 0, no transaction waits. Default: no limit.
    BRAID_OPTION_LOCK_TIMEOUT_US = 22,
    /// Most memory that old versions may take for open snapshots, in bytes. Beyond it, Braid ends
    /// the oldest snapshots, whose reads then return `BRAID_SNAPSHOT_TOO_OLD`. With 0 (the default),
    /// there is no limit.
    BRAID_OPTION_MAX_VERSION_BYTES = 23,
    /// How a commit in persistent memory makes its bytes durable, a `braid_pmem_commit`. Default:
    /// `BRAID_PMEM_COMMIT_LAZY`.
    BRAID_OPTION_PMEM_COMMIT = 24,
    /// Whether a checkpoint to a data file in persistent memory writes only the cache lines that
    /// changed: 1 (the default) or 0. The data file then keeps two blocks for each page that changes.
    BRAID_OPTION_PMEM_LINES = 25,
    /// Whether pages of a data file in persistent memory are read in place, without a copy in the
    /// buffer pool: 1 (the default) or 0.
    BRAID_OPTION_PMEM_IN_PLACE = 26,
    /// How the medium of `braid_options_set_log_directory` is accessed, a `braid_device` other than
    /// `BRAID_DEVICE_MEMORY`. Default: as recorded in the database, for a new one as
    /// `BRAID_OPTION_DEVICE`.
    BRAID_OPTION_LOG_DEVICE = 27,
    /// Whether memory and threads are placed on the nodes of a machine with several memory nodes
    /// (NUMA): 1 (the default) or 0.
    BRAID_OPTION_NUMA = 28,
    /// How threads use tablespaces in the memory of another node than theirs, a
    /// `braid_remote_access`. Default: `BRAID_REMOTE_ACCESS_DIRECT`.
    BRAID_OPTION_REMOTE_ACCESS = 29,
}

/// How the medium of a database is accessed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_device {
    /// The fastest kind of access that works here.
    BRAID_DEVICE_AUTO = 0,
    /// io_uring with direct I/O; Linux only.
    BRAID_DEVICE_URING = 1,
    /// Positioned reads and writes.
    BRAID_DEVICE_FILE = 2,
    /// The memory of the process: all data is lost when the database is closed.
    BRAID_DEVICE_MEMORY = 3,
    /// Persistent memory: the database's files are mapped with direct access (DAX).
    BRAID_DEVICE_PMEM = 4,
    /// Mapped files of an ordinary file system: durable, and slower than `BRAID_DEVICE_FILE`.
    BRAID_DEVICE_PMEM_FILE = 5,
    /// Mapped files that are treated like persistent memory wherever they are, for measurements: a
    /// loss of power may lose everything.
    BRAID_DEVICE_PMEM_EMULATED = 6,
}

/// How threads use a tablespace that is bound to another memory node (NUMA) than theirs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_remote_access {
    /// Each thread reads and writes the memory itself.
    BRAID_REMOTE_ACCESS_DIRECT = 0,
    /// Threads pass reads, scans and writes to an agent, a thread on the tablespace's node.
    BRAID_REMOTE_ACCESS_AGENT = 1,
    /// By agents where they are faster, which each opening measures.
    BRAID_REMOTE_ACCESS_AUTO = 2,
}

/// How a commit in persistent memory makes its bytes durable. On other devices it has no effect.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_pmem_commit {
    /// Flushes all log records, and then the first line of the flush, with a fence after each.
    BRAID_PMEM_COMMIT_LAZY = 0,
    /// Flushes each log record, and then the first line of the flush, with a fence after each.
    BRAID_PMEM_COMMIT_EAGER = 1,
    /// Flushes all lines with one fence; checksums tell what a crash left.
    BRAID_PMEM_COMMIT_CHECKSUM = 2,
}

impl Options {
    fn set(self, option: c_int, value: u64) -> Outcome<Self> {
        use braid_option::*;
        let (mut in_memory, mut read_only) = (self.in_memory, self.read_only);
        let builder = self.builder;
        let size = || usize::try_from(value).map_err(|_| misfit(option, value));
        let number = || u32::try_from(value).map_err(|_| misfit(option, value));
        let unknown = || misfit(option, value);
        let flag = || (value <= 1).then_some(value == 1).ok_or_else(unknown);
        let is = |known: braid_option| known as c_int == option;
        let builder = if is(BRAID_OPTION_PROTOCOL) {
            builder.protocol(braid_protocol::parse(value).ok_or_else(unknown)?)
        } else if is(BRAID_OPTION_DEVICE) {
            in_memory = value == braid_device::BRAID_DEVICE_MEMORY as u64;
            builder.device(device(value).ok_or_else(unknown)?)
        } else if is(BRAID_OPTION_POOL_BYTES) {
            builder.pool_bytes(size()?)
        } else if is(BRAID_OPTION_STRANDS) {
            builder.strands(size()?)
        } else if is(BRAID_OPTION_LANES) {
            builder.lanes(size()?)
        } else if is(BRAID_OPTION_EPOCH_US) {
            builder.epoch(Duration::from_micros(value))
        } else if is(BRAID_OPTION_SEGMENT_BYTES) {
            builder.segment_bytes(value)
        } else if is(BRAID_OPTION_CHECKPOINT_LOG_BYTES) {
            builder.checkpoint_log_bytes(value)
        } else if is(BRAID_OPTION_MAX_LOG_BYTES) {
            builder.max_log_bytes(value)
        } else if is(BRAID_OPTION_PREALLOCATED_LOG_BYTES) {
            builder.preallocated_log_bytes(value)
        } else if is(BRAID_OPTION_TRANSACTION_BYTES_MAX) {
            builder.transaction_bytes_max(size()?)
        } else if is(BRAID_OPTION_FLUSHES_IN_FLIGHT) {
            builder.flushes_in_flight(size()?)
        } else if is(BRAID_OPTION_GROUP_SIZE) {
            builder.group_size(number()?)
        } else if is(BRAID_OPTION_CREATE_IF_MISSING) {
            builder.create_if_missing(flag()?)
        } else if is(BRAID_OPTION_BACKGROUND_THREADS) {
            builder.background_threads(flag()?)
        } else if is(BRAID_OPTION_DISCARD) {
            builder.discard(flag()?)
        } else if is(BRAID_OPTION_NUMA) {
            builder.numa(flag()?)
        } else if is(BRAID_OPTION_REMOTE_ACCESS) {
            builder.remote_access(remote_access(value).ok_or_else(unknown)?)
        } else if is(BRAID_OPTION_READ_ONLY) {
            read_only = flag()?;
            builder
        } else if is(BRAID_OPTION_FEED_LOG_BYTES) {
            builder.feed_log_bytes(value)
        } else if is(BRAID_OPTION_ARCHIVE_INTERVAL_US) {
            builder.archive_interval(Duration::from_micros(value))
        } else if is(BRAID_OPTION_FILE_MODE) {
            builder.file_mode(number()?)
        } else if is(BRAID_OPTION_LOCK_TIMEOUT_US) {
            builder.lock_timeout(Duration::from_micros(value))
        } else if is(BRAID_OPTION_MAX_VERSION_BYTES) {
            builder.max_version_bytes(size()?)
        } else if is(BRAID_OPTION_PMEM_COMMIT) {
            builder.pmem_commit(pmem_commit(value).ok_or_else(unknown)?)
        } else if is(BRAID_OPTION_PMEM_LINES) {
            builder.pmem_lines(flag()?)
        } else if is(BRAID_OPTION_PMEM_IN_PLACE) {
            builder.pmem_in_place(flag()?)
        } else if is(BRAID_OPTION_LOG_DEVICE) {
            builder.log_device(device(value).ok_or_else(unknown)?)
        } else if is(BRAID_OPTION_STATS_FILE) {
            builder.stats_file(flag()?)
        } else {
            return Err(Failure::argument(format!(
                "invalid option {option}: use one of the BRAID_OPTION constants"
            )));
        };
        Ok(Self {
            builder,
            tablespaces: self.tablespaces,
            tablespace_logs: self.tablespace_logs,
            in_memory,
            read_only,
        })
    }
}

fn remote_access(number: u64) -> Option<RemoteAccess> {
    use braid_remote_access::*;
    let known = [
        (BRAID_REMOTE_ACCESS_DIRECT, RemoteAccess::Direct),
        (BRAID_REMOTE_ACCESS_AGENT, RemoteAccess::Agent),
        (BRAID_REMOTE_ACCESS_AUTO, RemoteAccess::Auto),
    ];
    let found = known.into_iter().find(|(known, _)| *known as u64 == number);
    found.map(|(_, access)| access)
}

fn pmem_commit(number: u64) -> Option<PmemCommit> {
    use braid_pmem_commit::*;
    let known = [
        (BRAID_PMEM_COMMIT_LAZY, PmemCommit::Lazy),
        (BRAID_PMEM_COMMIT_EAGER, PmemCommit::Eager),
        (BRAID_PMEM_COMMIT_CHECKSUM, PmemCommit::Checksum),
    ];
    let found = known.into_iter().find(|(known, _)| *known as u64 == number);
    found.map(|(_, mode)| mode)
}

pub(crate) fn device(number: u64) -> Option<DeviceChoice> {
    use braid_device::*;
    let known = [
        (BRAID_DEVICE_AUTO, DeviceChoice::Auto),
        (BRAID_DEVICE_URING, DeviceChoice::Uring),
        (BRAID_DEVICE_FILE, DeviceChoice::File),
        (BRAID_DEVICE_MEMORY, DeviceChoice::Memory),
        (BRAID_DEVICE_PMEM, DeviceChoice::Pmem),
        (BRAID_DEVICE_PMEM_FILE, DeviceChoice::PmemFile),
        (
            BRAID_DEVICE_PMEM_EMULATED,
            DeviceChoice::PmemEmulated { line_latency: 0 },
        ),
    ];
    let found = known.into_iter().find(|(known, _)| *known as u64 == number);
    found.map(|(_, device)| device)
}

fn misfit(option: c_int, value: u64) -> Failure {
    Failure::argument(format!(
        "invalid value {value} of option {option}: see its description for the range"
    ))
}

/// Returns the options of a handle, or the defaults if it is NULL.
pub(crate) fn options_of(handle: *mut braid_options) -> Outcome<Options> {
    if handle.is_null() {
        return Ok(Options::new());
    }
    Ok(OPTIONS.lock(handle)?.clone())
}

/// Creates options with default values. The options can be used to open any number of databases.
/// Free them with `braid_options_free`.
///
/// # Safety
///
/// `options` is NULL or points to writable memory for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_options_new(options: *mut *mut braid_options) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(options, "options") }?;
        out.set(OPTIONS.insert(Options::new(), 0)?);
        Ok(BRAID_OK)
    })
}

/// Sets an option. `option` is a `braid_option`, which defines the meaning of `value`. Opening a
/// database checks the range of the value, and fails with `BRAID_OPTIONS`. For an unknown option,
/// or a value that the option can never have, this function returns `BRAID_INVALID_ARGUMENT` and
/// changes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn braid_options_set(
    options: *mut braid_options,
    option: c_int,
    value: u64,
) -> braid_status {
    call(|| {
        let mut options = OPTIONS.lock(options)?;
        *options = options.clone().set(option, value)?;
        Ok(BRAID_OK)
    })
}

/// Progress of recovery.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_recovery_progress {
    /// Bytes of log scanned so far.
    pub scanned_bytes: u64,
    /// Bytes of log to scan, at most.
    pub total_bytes: u64,
    /// Number of transactions replayed so far. The replay begins after the scan.
    pub transactions: u64,
    /// Time since opening began, in microseconds.
    pub elapsed_us: u64,
}

/// Receives the progress of recovery. `data` is the pointer that was set with the callback;
/// `progress` is valid during the call.
pub type braid_progress_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, progress: *const braid_recovery_progress)>;

/// Sets a function that `braid_db_open` calls from time to time during recovery, from several
/// threads at once.
///
/// # Safety
///
/// `callback` may be called with `data` from any thread while a database is opened with these
/// options. It must not unwind or call `longjmp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_options_set_recovery_progress(
    options: *mut braid_options,
    callback: braid_progress_callback,
    data: *mut c_void,
) -> braid_status {
    call(|| {
        let callback = callback.ok_or(Failure::null("callback"))?;
        let mut options = OPTIONS.lock(options)?;
        let data = UserData::new(data);
        let tell = move |progress: &RecoveryProgress| {
            let progress = braid_recovery_progress {
                scanned_bytes: progress.scanned_bytes,
                total_bytes: progress.total_bytes,
                transactions: progress.transactions,
                elapsed_us: microseconds(progress.elapsed),
            };
            // SAFETY: this function's contract.
            unsafe { callback(data.get(), &progress) }
        };
        options.builder = options.builder.clone().recovery_progress(tell);
        Ok(BRAID_OK)
    })
}

/// Sets the archive: a directory, created if it is missing, to which Braid copies every durable
/// transaction while a database is open with these options. With an archive, `braid_restore` can
/// restore a backup up to any later point. Put the archive on another medium. Braid keeps log until
/// it is archived, so if the archive's medium fails, commits continue until the log is full;
/// meanwhile `braid_db_health` reports the failure.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_options_set_archive(
    options: *mut braid_options,
    path: *const c_char,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let path = unsafe { memory::path(path) }?;
        let mut options = OPTIONS.lock(options)?;
        options.builder = options.builder.clone().archive(path);
        Ok(BRAID_OK)
    })
}

/// Sets a separate directory for the log of a new database, which may be on another device. It is
/// created if it is missing, and must be empty. The database records it, so later openings need no
/// option; after the directory was moved, an opening with its present name records that.
///
/// Opening returns `BRAID_LOG_DIRECTORY` if the directory is missing or has the log of another
/// database, and `BRAID_LOCKED` if it is in use.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_options_set_log_directory(
    options: *mut braid_options,
    path: *const c_char,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let path = unsafe { memory::path(path) }?;
        let mut options = OPTIONS.lock(options)?;
        options.builder = options.builder.clone().log_directory(path);
        Ok(BRAID_OK)
    })
}

/// Names the present directory of a tablespace, after the directory was moved or mounted elsewhere, or
/// copied together with the database. An opening with these options records the directory, so later
/// openings need no option; `braid_verify_with` and `braid_salvage_with` read the tablespace there. Has
/// no effect if there is no such tablespace.
///
/// # Safety
///
/// `name` and `path` are NULL or strings that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_options_set_tablespace_directory(
    options: *mut braid_options,
    name: *const c_char,
    path: *const c_char,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (name, path) = unsafe { (memory::text(name, "name")?, memory::path(path)?) };
        let mut options = OPTIONS.lock(options)?;
        options.builder = options.builder.clone().tablespace_directory(name, path);
        options.tablespaces.push((name.to_owned(), path.to_owned()));
        Ok(BRAID_OK)
    })
}

/// Names the present directory of a tablespace's log, as `braid_options_set_tablespace_directory` does with
/// that of its data. Has no effect if the tablespace has no log in a directory of its own.
///
/// # Safety
///
/// `name` and `path` are NULL or strings that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_options_set_tablespace_log_directory(
    options: *mut braid_options,
    name: *const c_char,
    path: *const c_char,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (name, path) = unsafe { (memory::text(name, "name")?, memory::path(path)?) };
        let mut options = OPTIONS.lock(options)?;
        options.builder = options.builder.clone().tablespace_log_directory(name, path);
        let log = (name.to_owned(), path.to_owned());
        options.tablespace_logs.push(log);
        Ok(BRAID_OK)
    })
}

/// Frees options. NULL is allowed and has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn braid_options_free(options: *mut braid_options) -> braid_status {
    call(|| {
        if !options.is_null() {
            drop(OPTIONS.end(options, Ended::Freed)?);
        }
        Ok(BRAID_OK)
    })
}
