//! The errors of a log.

use std::io;
use std::sync::Arc;

/// An error of a [`Log`](crate::Log). Cheap to clone, since one failed flush fails many tickets.
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
    #[error(
        "cannot use the log after a failed write: {cause}; reopen the log, which recovers what was acknowledged"
    )]
    Poisoned {
        /// The first failure.
        cause: Arc<str>,
    },
    /// The log was [sealed](crate::Log::seal): it accepts no more commits.
    #[error("the log is closed; open it again")]
    Closed,
    /// A parent of this process opened the log, and only the parent can flush it.
    #[error(
        "the log was opened by the parent process, and a child made by fork cannot use it; open it after the fork"
    )]
    Forked,
    /// There is no room for more log. Release space with a checkpoint ([`Log::release`]), raise
    /// `max_log_bytes` or free space on the device; the next [`Log::enter`] then tries again.
    ///
    /// [`Log::release`]: crate::Log::release
    /// [`Log::enter`]: crate::Log::enter
    #[error(
        "cannot append {needed} bytes to the log: its files have {used} bytes{}, and {}; release log with a checkpoint, or {}",
        .kept_for.iter().map(|what| format!(", kept for {what}")).collect::<String>(),
        if *.device_full { "the device is full".to_owned() } else { format!("the limit is {}", .limit) },
        if *.device_full { "free space on the device" } else { "raise the limit" },
    )]
    OutOfSpace {
        /// The payload that did not fit, in bytes.
        needed: u64,
        /// Bytes of all segments that exist.
        used: u64,
        /// `LogOptions::max_log_bytes`.
        limit: u64,
        /// Whether the device, rather than the limit, refused more space.
        device_full: bool,
        /// Who still needs log that recovery does not need; given if the commit waited for a
        /// checkpoint in vain. See [`Checkpointer::log_kept_for`](crate::Checkpointer::log_kept_for).
        kept_for: Option<String>,
    },
    /// The log is damaged in a way that a crash can't explain.
    #[error("corrupted: {what} ({file}, byte {offset})")]
    Corrupted {
        /// What is wrong.
        what: String,
        /// The file's name.
        file: String,
        /// The place in the file, in bytes.
        offset: u64,
    },
    /// A log of which side lanes are missing ends in a way that a crash may leave, or damage: only the missing
    /// lanes show which. Only [`Log::recover_proven`](crate::Log::recover_proven) fails with it.
    #[error("the missing lanes are needed: {what} ({file}, byte {offset})")]
    Undecided {
        /// What was found.
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
    #[error(
        "cannot read log file {file}: it was released, so its records are gone; read from a newer position"
    )]
    Released {
        /// The segment's name.
        file: String,
    },
    /// The options contradict each other or a limit.
    #[error("invalid option {option}: {reason}")]
    Options {
        /// The option's name.
        option: &'static str,
        /// The value given, and the allowed values.
        reason: String,
    },
}

impl LogError {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        LogError::Io {
            what: what.into(),
            source: Arc::new(source),
        }
    }

    /// Adds to [`LogError::OutOfSpace`] what keeps log that recovery does not need.
    pub(crate) fn log_kept_for(mut self, what: impl FnOnce() -> Option<String>) -> Self {
        if let LogError::OutOfSpace { kept_for, .. } = &mut self {
            *kept_for = what();
        }
        self
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
