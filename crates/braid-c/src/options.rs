//! Options for opening a database.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use braid::{Builder, Database, DeviceChoice, Protocol, RecoveryProgress};

use crate::boundary::{Failure, Outcome, call};
use crate::handles::{Ended, Exclusive, braid_options};
use crate::memory::{self, Out, UserData};
use crate::stats::microseconds;
use crate::status::braid_status::{self, BRAID_OK};

/// What `braid_options_set` sets, and what its number means. What is not set has its default.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_option {
    /// The commit protocol, a `braid_protocol`. Default: `BRAID_PROTOCOL_GLSN` for a new database; an
    /// existing one keeps its own unless another is set.
    BRAID_OPTION_PROTOCOL = 1,
    /// How the medium is accessed, a `braid_device`. Default: `BRAID_DEVICE_AUTO`.
    BRAID_OPTION_DEVICE = 2,
    /// Memory for pages, in bytes, from 1 MiB. Default: 256 MiB.
    BRAID_OPTION_POOL_BYTES = 3,
    /// Log buffers that committing threads are spread over, 1 to 256, fixed when the database is created.
    /// Default: the number of processors, at most 16.
    BRAID_OPTION_STRANDS = 4,
    /// Files that the log is written to at a time, from 1 to the number of strands, fixed when the database
    /// is created. Default: 1.
    BRAID_OPTION_LANES = 5,
    /// How long an epoch of `BRAID_PROTOCOL_EPOCH` lasts, in microseconds, from 10 to 10,000,000. Default:
    /// 40,000.
    BRAID_OPTION_EPOCH_US = 6,
    /// The size of a log file, in bytes, from 64 KiB to 1 GiB. Default: 32 MiB.
    BRAID_OPTION_SEGMENT_BYTES = 7,
    /// A checkpoint begins when this much log was written since the last, in bytes, from 64 KiB. Default:
    /// 256 MiB.
    BRAID_OPTION_CHECKPOINT_LOG_BYTES = 8,
    /// The most that the log may occupy, in bytes: 0 for no limit (the default), or at least twice
    /// `BRAID_OPTION_CHECKPOINT_LOG_BYTES`. Commits beyond it fail with `BRAID_OUT_OF_SPACE` until a
    /// checkpoint made room.
    BRAID_OPTION_MAX_LOG_BYTES = 9,
    /// The most that one transaction may write, in bytes, from 1 KiB to 1 GiB. Default: 256 MiB.
    BRAID_OPTION_TRANSACTION_BYTES_MAX = 10,
    /// Log flushes of a lane that may be in flight at once, from 1 to 16.
    BRAID_OPTION_FLUSHES_IN_FLIGHT = 11,
    /// How many asynchronous commits of a thread go to the device together; 0 (the default): a flush begins
    /// when none is under way.
    BRAID_OPTION_GROUP_SIZE = 12,
    /// Whether a missing database is created: 1 (the default) or 0.
    BRAID_OPTION_CREATE_IF_MISSING = 13,
    /// Whether threads of the database's own flush and make checkpoints: 1 (the default) or 0. Without them
    /// the callers' threads do all work: waiting for a ticket flushes, polling it does not, and checkpoints
    /// are made only by `braid_db_checkpoint`.
    BRAID_OPTION_BACKGROUND_THREADS = 14,
    /// Whether the space of log that is no longer needed is given back to the medium at once: 1 or 0 (the
    /// default: it is kept for reuse).
    BRAID_OPTION_DISCARD = 15,
    /// Whether the database is only read: 1 or 0 (the default). It must exist; nothing is written to its
    /// directory, and writes are `BRAID_OPENED_READ_ONLY`.
    BRAID_OPTION_READ_ONLY = 16,
    /// The most log that is kept for feeds and readers of changes beyond what recovery needs, in bytes.
    /// Default: 1 GiB.
    BRAID_OPTION_FEED_LOG_BYTES = 17,
    /// How often the archive is brought up to date, in microseconds, from 1. Default: a second.
    BRAID_OPTION_ARCHIVE_INTERVAL_US = 18,
    /// Whether the file `STATS` in the database's directory has its statistics while it is open, once a second, as
    /// Prometheus reads them: 1 or 0 (the default).
    BRAID_OPTION_STATS_FILE = 19,
    /// Log files that opening makes ahead, and that stay, in bytes: at most `BRAID_OPTION_MAX_LOG_BYTES`, if that is
    /// set. 0 (the default): each is made, and filled with zeroes, when the one before is used.
    BRAID_OPTION_PREALLOCATED_LOG_BYTES = 20,
    /// The permissions of files that are created, as for `chmod`, whatever the umask is: the owner reads and
    /// writes, the group and others may. Directories can be searched by those who read the files. Existing
    /// files keep theirs. Default: 0600.
    BRAID_OPTION_FILE_MODE = 21,
}

/// Commit protocols: which transactions a commit waits for, and when locks go. All keep the same promises.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_protocol {
    /// Parallel logs with one sequence number for each transaction; the default.
    BRAID_PROTOCOL_GLSN = 1,
    /// One log; locks are held until the flush.
    BRAID_PROTOCOL_SERIAL = 2,
    /// One log; locks go before the flush.
    BRAID_PROTOCOL_AETHER = 3,
    /// Parallel logs; commits are acknowledged by epochs.
    BRAID_PROTOCOL_EPOCH = 4,
    /// Parallel logs; a commit waits for other logs only as far as it depends on them.
    BRAID_PROTOCOL_GSN = 5,
    /// Parallel logs with a number for each flush; locks are held until it is durable.
    BRAID_PROTOCOL_GWSN_STRICT = 6,
    /// Parallel logs with a number for each flush; locks go once the flush has it.
    BRAID_PROTOCOL_GWSN = 7,
    /// One that this version of the interface has no name for.
    BRAID_PROTOCOL_OTHER = 0,
}

use braid_protocol::*;

const PROTOCOLS: &[(braid_protocol, Protocol)] = &[
    (BRAID_PROTOCOL_GLSN, Protocol::Glsn),
    (BRAID_PROTOCOL_SERIAL, Protocol::Serial),
    (BRAID_PROTOCOL_AETHER, Protocol::Aether),
    (BRAID_PROTOCOL_EPOCH, Protocol::Epoch),
    (BRAID_PROTOCOL_GSN, Protocol::Gsn),
    (BRAID_PROTOCOL_GWSN_STRICT, Protocol::GwsnStrict),
    (BRAID_PROTOCOL_GWSN, Protocol::Gwsn),
];

impl braid_protocol {
    pub(crate) fn of(protocol: Protocol) -> Self {
        let found = PROTOCOLS.iter().find(|(_, known)| *known == protocol);
        found.map_or(BRAID_PROTOCOL_OTHER, |(number, _)| *number)
    }
}

/// How a database's medium is accessed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_device {
    /// The fastest way that works here.
    BRAID_DEVICE_AUTO = 0,
    /// io_uring with direct I/O; Linux only.
    BRAID_DEVICE_URING = 1,
    /// Positioned reads and writes.
    BRAID_DEVICE_FILE = 2,
    /// The process's memory: nothing outlives the database's handle.
    BRAID_DEVICE_MEMORY = 3,
}

/// What an options handle stands for.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) builder: Builder,
    /// Whether the database is in memory, without a directory.
    pub(crate) in_memory: bool,
    pub(crate) read_only: bool,
}

impl Options {
    pub(crate) fn new() -> Self {
        Self {
            builder: Database::builder(),
            in_memory: false,
            read_only: false,
        }
    }

    fn set(self, option: c_int, value: u64) -> Outcome<Self> {
        use braid_option::*;
        let (mut in_memory, mut read_only) = (self.in_memory, self.read_only);
        let builder = self.builder;
        let size = || usize::try_from(value).map_err(|_| misfit(option, value));
        let number = || u32::try_from(value).map_err(|_| misfit(option, value));
        let flag = || match value {
            0 | 1 => Ok(value == 1),
            _ => Err(misfit(option, value)),
        };
        let is = |known: braid_option| known as c_int == option;
        let builder = if is(BRAID_OPTION_PROTOCOL) {
            let known = PROTOCOLS.iter().find(|(known, _)| *known as u64 == value);
            builder.protocol(known.ok_or_else(|| misfit(option, value))?.1)
        } else if is(BRAID_OPTION_DEVICE) {
            in_memory = value == braid_device::BRAID_DEVICE_MEMORY as u64;
            builder.device(device(value).ok_or_else(|| misfit(option, value))?)
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
        } else if is(BRAID_OPTION_READ_ONLY) {
            read_only = flag()?;
            builder
        } else if is(BRAID_OPTION_FEED_LOG_BYTES) {
            builder.feed_log_bytes(value)
        } else if is(BRAID_OPTION_ARCHIVE_INTERVAL_US) {
            builder.archive_interval(Duration::from_micros(value))
        } else if is(BRAID_OPTION_FILE_MODE) {
            builder.file_mode(number()?)
        } else if is(BRAID_OPTION_STATS_FILE) {
            builder.stats_file(flag()?)
        } else {
            return Err(Failure::argument(format!(
                "invalid option {option}: use one of the BRAID_OPTION constants"
            )));
        };
        Ok(Self {
            builder,
            in_memory,
            read_only,
        })
    }
}

pub(crate) fn device(number: u64) -> Option<DeviceChoice> {
    use braid_device::*;
    let known = [
        (BRAID_DEVICE_AUTO, DeviceChoice::Auto),
        (BRAID_DEVICE_URING, DeviceChoice::Uring),
        (BRAID_DEVICE_FILE, DeviceChoice::File),
        (BRAID_DEVICE_MEMORY, DeviceChoice::Memory),
    ];
    let found = known.into_iter().find(|(known, _)| *known as u64 == number);
    found.map(|(_, device)| device)
}

fn misfit(option: c_int, value: u64) -> Failure {
    Failure::argument(format!(
        "invalid value {value} of option {option}: see its description for the range"
    ))
}

pub(crate) static OPTIONS: Exclusive<braid_options, Options> = Exclusive::new();

/// The options of a handle; the defaults if it is NULL.
pub(crate) fn options_of(handle: *mut braid_options) -> Outcome<Options> {
    if handle.is_null() {
        return Ok(Options::new());
    }
    Ok(OPTIONS.lock(handle)?.clone())
}

/// Makes options that are all at their defaults. They can be used for any number of databases, and are
/// freed with `braid_options_free`.
///
/// # Safety
///
/// `options` is NULL or points to where a handle fits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_options_new(options: *mut *mut braid_options) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(options, "options") }?;
        out.set(OPTIONS.insert(Options::new(), 0)?);
        Ok(BRAID_OK)
    })
}

/// Sets an option. `option` is a `braid_option`, which says what `value` means; whether it fits is found out
/// when a database is opened, with `BRAID_OPTIONS`. `BRAID_INVALID_ARGUMENT`, with nothing changed, for an
/// option that there is not or a value that it never has.
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

/// How recovery gets on, as a callback is told.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_recovery_progress {
    /// Bytes of log scanned so far.
    pub scanned_bytes: u64,
    /// Bytes of log to scan, at most.
    pub total_bytes: u64,
    /// Transactions replayed so far; the scan comes first.
    pub transactions: u64,
    /// Microseconds since opening began.
    pub elapsed_us: u64,
}

/// Is told how recovery gets on. `data` is what came with the callback; `progress` lasts for the call.
pub type braid_progress_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, progress: *const braid_recovery_progress)>;

/// Sets what `braid_db_open` calls while it recovers, now and then, from several threads at once.
///
/// # Safety
///
/// `callback` may be called with `data` from any thread while a database is opened with these options. It
/// must not unwind or jump out.
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

/// Sets a directory, created if it is missing, to which every durable transaction is copied while a database is
/// open with these options, so that a backup can be restored up to any later point (`braid_restore`). It should lie
/// on another medium. Log that is not archived yet is kept, so if the archive's medium fails, commits go on until
/// the log is full; `braid_db_health` tells meanwhile.
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

/// Frees options. NULL is allowed, and does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn braid_options_free(options: *mut braid_options) -> braid_status {
    call(|| {
        if !options.is_null() {
            drop(OPTIONS.end(options, Ended::Freed)?);
        }
        Ok(BRAID_OK)
    })
}
