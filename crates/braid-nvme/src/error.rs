//! Errors of drives.

use std::fmt;

use crate::CommandKind;

/// The command that failed, as error messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The operation.
    pub kind: CommandKind,
    /// First block.
    pub lba: u64,
    /// Number of blocks.
    pub blocks: u32,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, lba, blocks } = self;
        let verb = match kind {
            CommandKind::Read => "read",
            CommandKind::Write { .. } => "write",
            CommandKind::Flush => return f.write_str("flush the drive's cache"),
            CommandKind::Deallocate => "deallocate",
        };
        let unit = if *blocks == 1 { "block" } else { "blocks" };
        write!(f, "{verb} {blocks} {unit} at block {lba}")
    }
}

/// A command that the drive did not perform, or a drive that cannot be used.
///
/// After a failed write or flush nothing is known about the blocks that it, or the flush, covered
/// (invariant I8): callers acknowledge nothing more. A failed read changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriveError {
    /// The drive did not complete the command in time, and was reset or given up.
    #[error(
        "cannot {target}: the drive did not answer within {millis} ms; check the drive's health \
         (nvme smart-log), then open it again"
    )]
    TimedOut {
        /// The command.
        target: Target,
        /// The time limit in milliseconds.
        millis: u64,
    },
    /// The medium lost the blocks, or could not store them.
    #[error(
        "cannot {target}: the drive reports a media error (status {status:#05x}); replace the \
         drive and restore from a backup"
    )]
    Media {
        /// The command.
        target: Target,
        /// NVMe status: code type in bits 8 to 10, code in bits 0 to 7.
        status: u16,
    },
    /// The drive ended the command before it was performed, for example since it was reset.
    #[error(
        "cannot {target}: the drive aborted the command (status {status:#05x}); open the drive \
         again"
    )]
    Aborted {
        /// The command.
        target: Target,
        /// NVMe status: code type in bits 8 to 10, code in bits 0 to 7.
        status: u16,
    },
    /// The drive does not respond at all: it was pulled out, or its namespace was deleted.
    #[error("cannot {target}: the drive is gone; connect it again and open it again")]
    Removed {
        /// The command.
        target: Target,
    },
    /// The controller failed, or a reset of it did; no command is accepted any more.
    #[error(
        "cannot {target}: the drive's controller failed ({reason}); power-cycle or replace the \
         drive, then open it again"
    )]
    Controller {
        /// The command.
        target: Target,
        /// Condition that the controller reports.
        reason: &'static str,
    },
    /// The drive rejected the command, or answered in a way that the protocol does not allow.
    #[error("cannot {target}: the drive answered with status {status:#05x}; check its health")]
    Rejected {
        /// The command.
        target: Target,
        /// NVMe status: code type in bits 8 to 10, code in bits 0 to 7.
        status: u16,
    },
    /// The command violates a limit of the drive; nothing was submitted.
    #[error("cannot {target}: {reason}; this is an error of the program")]
    Invalid {
        /// The command.
        target: Target,
        /// The limit.
        reason: &'static str,
    },
    /// The command addresses blocks that the drive does not have.
    #[error(
        "cannot {target}: the drive has {capacity} blocks; if it was larger before, restore its \
         former size"
    )]
    OutOfRange {
        /// The command.
        target: Target,
        /// Number of blocks of the drive.
        capacity: u64,
    },
    /// The queue has [`DriveInfo::queue_depth`](crate::DriveInfo::queue_depth) commands in flight;
    /// nothing was submitted.
    #[error("cannot {target}: the queue is full; wait for a completion first")]
    QueueFull {
        /// The command.
        target: Target,
    },
    /// The drive has no further queue.
    #[error("cannot open another queue: the drive has {limit}; drop a queue first")]
    NoQueue {
        /// Number of queues that may be open.
        limit: usize,
    },
    /// Another opening has the drive.
    #[error("cannot {what}: another process or handle has it open; close that one first")]
    Claimed {
        /// The attempted operation and its object.
        what: String,
    },
    /// The system uses the drive.
    #[error("cannot {what}: {by}; unmount it or choose another drive")]
    InUse {
        /// The attempted operation and its object.
        what: String,
        /// The use that the system makes of the drive.
        by: String,
    },
    /// The operating system refused an operation.
    #[error("cannot {what}: {}", std::io::Error::from_raw_os_error(*errno))]
    System {
        /// The attempted operation, and its object.
        what: String,
        /// The system's error number.
        errno: i32,
    },
    /// The path, or this machine, does not support what was attempted.
    #[error("cannot {what}: {reason}")]
    Unsupported {
        /// The attempted operation, and its object.
        what: String,
        /// The missing property, and the remedy.
        reason: String,
    },
}

impl From<DriveError> for std::io::Error {
    fn from(error: DriveError) -> Self {
        use std::io::ErrorKind;
        let kind = match &error {
            DriveError::TimedOut { .. } => ErrorKind::TimedOut,
            DriveError::Removed { .. } => ErrorKind::NotFound,
            DriveError::Invalid { .. } => ErrorKind::InvalidInput,
            DriveError::OutOfRange { .. } => ErrorKind::UnexpectedEof,
            DriveError::Unsupported { .. } => ErrorKind::Unsupported,
            DriveError::Claimed { .. } | DriveError::InUse { .. } => ErrorKind::ResourceBusy,
            DriveError::System { errno, .. } => Self::from_raw_os_error(*errno).kind(),
            _ => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

impl DriveError {
    /// Translates an NVMe status of a command to a drive of `capacity` blocks.
    #[must_use]
    pub fn of_status(target: Target, status: u16, capacity: u64) -> Self {
        match (status >> 8 & 7, status & 0xff) {
            (0, 0x07..=0x0a) | (3, _) => Self::Aborted { target, status },
            (0, 0x80) => Self::OutOfRange { target, capacity },
            (0, 0x0b) => Self::Removed { target },
            // Attempts to access something without permission are no damage.
            (2, code) if code < 0x86 || code == 0x87 => Self::Media { target, status },
            _ => Self::Rejected { target, status },
        }
    }

    /// Translates an error number of the system for a command.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_errno(target: Target, errno: i32) -> Self {
        match errno {
            libc::EIO | libc::ENODATA | libc::EILSEQ => Self::Media {
                target,
                status: 0x280,
            },
            // The kernel gives up after its own limit, `nvme_core.io_timeout`, and one repetition.
            libc::ETIMEDOUT => Self::TimedOut {
                target,
                millis: 30_000,
            },
            libc::ENODEV | libc::ENXIO => Self::Removed { target },
            libc::ECANCELED => Self::Aborted {
                target,
                status: 0x007,
            },
            _ => Self::System {
                what: target.to_string(),
                errno,
            },
        }
    }

    /// Wraps an error of a system call.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| match error.raw_os_error() {
            Some(errno) => Self::System { what, errno },
            None => Self::Unsupported {
                what,
                reason: error.to_string(),
            },
        }
    }
}
