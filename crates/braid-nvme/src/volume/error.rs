//! Errors of volumes.

use std::io;

use crate::DriveError;

/// Why an operation on a volume failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The drive contains no volume.
    #[error(
        "the drive contains no Braid volume ({found}); check its name, or create a volume with \
         Volume::format"
    )]
    NotAVolume {
        /// What the drive contains instead.
        found: String,
    },
    /// The volume was written by a newer version.
    #[error(
        "the drive contains a Braid volume of format {version}, and this program knows formats up \
         to {known}; open it with a newer version of Braid"
    )]
    Newer {
        /// Format of the volume.
        version: u32,
        /// Newest format that this program knows.
        known: u32,
    },
    /// The drive has fewer bytes than the volume.
    #[error(
        "the drive has {is} bytes and the volume needs {was}; restore the drive's former size, or \
         copy the volume to a larger drive"
    )]
    Smaller {
        /// Bytes of the drive when the volume was created or last grew.
        was: u64,
        /// Bytes of the drive now.
        is: u64,
    },
    /// The drive cannot hold a volume.
    #[error("the drive cannot hold a volume: {reason}")]
    Unsuitable {
        /// What is missing.
        reason: String,
    },
    /// The volume's directory is damaged. Nothing was written.
    #[error(
        "the volume is damaged: {what}; see what volume::fsck reports, and restore the databases from \
         backups"
    )]
    Damaged {
        /// What is wrong.
        what: String,
    },
    /// All space is in use.
    #[error(
        "the volume is full: {bytes} more bytes were needed, and {free} are free; remove a database \
         or use a larger drive"
    )]
    Full {
        /// Bytes that were needed.
        bytes: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The directory has no room for more names and extents.
    #[error(
        "the directory of the volume is full: it takes {bytes} bytes, and its journal holds {limit}; \
         remove databases, or format a drive with a larger journal"
    )]
    DirectoryFull {
        /// Bytes of the directory.
        bytes: u64,
        /// Bytes of one half of the journal.
        limit: u64,
    },
    /// There is no file of this name.
    #[error("the volume has no file {name:?}")]
    NoFile {
        /// The name.
        name: String,
    },
    /// There is a file of this name.
    #[error("the volume has a file {name:?} already")]
    Exists {
        /// The name.
        name: String,
    },
    /// An argument is not allowed.
    #[error("{what}")]
    Invalid {
        /// What is not allowed.
        what: String,
    },
    /// A read goes beyond the end of a file.
    #[error("{offset} is beyond the end of the file, which has {len} bytes")]
    PastEnd {
        /// End of the read.
        offset: u64,
        /// Length of the file.
        len: u64,
    },
    /// A write of the directory, or a flush, failed earlier. Nothing is acknowledged any more.
    #[error("the volume stopped after an error: {0}; open it again")]
    Stopped(DriveError),
    /// The drive did not perform a command.
    #[error(transparent)]
    Drive(#[from] DriveError),
}

impl From<VolumeError> for io::Error {
    fn from(error: VolumeError) -> Self {
        let kind = match &error {
            VolumeError::Drive(error) => return error.clone().into(),
            VolumeError::Full { .. } | VolumeError::DirectoryFull { .. } => {
                io::ErrorKind::StorageFull
            }
            VolumeError::NoFile { .. } => io::ErrorKind::NotFound,
            VolumeError::Exists { .. } => io::ErrorKind::AlreadyExists,
            VolumeError::Invalid { .. } => io::ErrorKind::InvalidInput,
            VolumeError::PastEnd { .. } => io::ErrorKind::UnexpectedEof,
            VolumeError::Newer { .. } | VolumeError::Unsuitable { .. } => {
                io::ErrorKind::Unsupported
            }
            VolumeError::NotAVolume { .. } | VolumeError::Damaged { .. } => {
                io::ErrorKind::InvalidData
            }
            VolumeError::Smaller { .. } | VolumeError::Stopped(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
