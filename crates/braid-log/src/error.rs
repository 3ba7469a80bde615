//! What can go wrong with a log.

use std::io;
use std::sync::Arc;

/// An error of a [`Log`](crate::Log). Cheap to clone, since one failed flush answers many tickets.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The device failed while nothing was at stake yet (opening, scanning, preparing a segment).
    #[error("{what}: {source}")]
    Io {
        /// What was attempted, with the file's name.
        what: String,
        /// The device's error.
        source: Arc<io::Error>,
    },
    /// An earlier write of the log failed. Nothing after it is acknowledged (I8); reopen the log.
    #[error("the log stopped after a failed write ({cause}); reopen it to go on")]
    Poisoned {
        /// The first failure.
        cause: Arc<str>,
    },
    /// The log was [sealed](crate::Log::seal): nothing is appended any more.
    #[error("the log is closed")]
    Closed,
    /// The log was opened by a parent of this process, and only the parent can flush it.
    #[error("the log was opened by the parent process; a child made by fork cannot use it")]
    Forked,
    /// There is no room for more log. Release space with a checkpoint ([`Log::release`]), raise
    /// `max_log_bytes` or free space on the device; the next [`Log::enter`] then tries again.
    ///
    /// [`Log::release`]: crate::Log::release
    /// [`Log::enter`]: crate::Log::enter
    #[error(
        "no room for {needed} more bytes of log: {used} bytes of segments, limit {limit} (0: none){}",
        if *.device_full { ", the device is full" } else { "" }
    )]
    OutOfSpace {
        /// The payload that did not fit, in bytes.
        needed: u64,
        /// Bytes of all segments that exist.
        used: u64,
        /// `LogOptions::max_log_bytes`.
        limit: u64,
        /// Whether the device refused more space, rather than the limit.
        device_full: bool,
    },
    /// The log holds something that a crash can't explain.
    #[error("{what} in {file} at byte {offset}")]
    Corrupted {
        /// What is wrong.
        what: String,
        /// The file's name.
        file: String,
        /// The place in the file, in bytes.
        offset: u64,
    },
    /// The files are of another log, another format, or opened with options that do not fit them.
    #[error("{what}")]
    Incompatible {
        /// What does not fit.
        what: String,
    },
    /// The part of the log that was to be read was released.
    #[error("{file} was released: the log that it held is gone")]
    Released {
        /// The segment's name.
        file: String,
    },
    /// The options contradict each other or a limit.
    #[error("invalid log options: {what}")]
    Options {
        /// Which option, and the rule.
        what: String,
    },
}

impl LogError {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        LogError::Io {
            what: what.into(),
            source: Arc::new(source),
        }
    }

    pub(crate) fn corrupted(what: impl Into<String>, file: &str, offset: u64) -> Self {
        LogError::Corrupted {
            what: what.into(),
            file: file.to_owned(),
            offset,
        }
    }

    /// Whether this is a device's error for lack of space.
    pub(crate) fn is_storage_full(&self) -> bool {
        let is_full = |kind| {
            matches!(
                kind,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            )
        };
        matches!(self, LogError::Io { source, .. } if is_full(source.kind()))
    }
}
