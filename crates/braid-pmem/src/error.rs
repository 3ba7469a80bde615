//! Errors.

use std::io;

use crate::flush::Unsupported;

/// Bytes that the medium lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot read persistent memory at offset {offset}: the medium lost these bytes; restore the \
     region from a backup, or salvage what is left"
)]
pub struct MediaError {
    /// Offset of the first lost byte that was asked for.
    pub offset: u64,
}

/// A fence that made nothing durable. Every later fence of the mapping fails as well, since the
/// fate of the stores before it is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A page was lost, and stores with it.
    #[error(
        "cannot make stores durable: the medium lost a page of the mapping, or its file was made \
         shorter; close the region and restore it from a backup"
    )]
    Media,
    /// The system could not write the pages of an ordinary file.
    #[error(
        "cannot make stores durable: writing the file's pages failed with {0}; close the region \
         and check the device"
    )]
    Sync(SystemError),
    /// The power of the simulated memory failed.
    #[error("cannot make stores durable: the simulated power has failed")]
    PowerOff,
}

/// Number of a system's error (`errno`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemError(pub i32);

impl std::fmt::Display for SystemError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// A mapping that cannot be created or grown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The file system does not offer direct access.
    #[error(
        "cannot map the file as persistent memory: its file system does not offer direct access \
         (DAX); mount a file system of persistent memory with `-o dax=always`, or choose another \
         kind of region"
    )]
    NotDax,
    /// The kernel accepted `MAP_SYNC` for a mapping that is not synchronous.
    #[error(
        "cannot map the file as persistent memory: the file system accepted MAP_SYNC, but \
         /proc/self/smaps shows no synchronous page faults; choose an ordinary file (`file`) or \
         another file system"
    )]
    FalseDax,
    /// The file lies in a file system in memory.
    #[error(
        "cannot map the file as persistent memory: its file system is in ordinary memory and loses \
         it with the power; choose a file on a device, or ask for `emulated` to measure"
    )]
    Volatile,
    /// No instruction flushes cache lines.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// Files cannot be mapped on this system.
    #[error("cannot map files on this system: persistent memory needs Unix")]
    NoFiles,
    /// There is no space for more bytes.
    #[error(
        "cannot extend persistent memory to {len} bytes: its file system is full; free space on it"
    )]
    NoSpace {
        /// The requested length in bytes.
        len: u64,
    },
    /// More bytes than were reserved in the address space.
    #[error(
        "cannot extend persistent memory to {len} bytes: the mapping was opened with a capacity \
         of {capacity}; open it with a larger one"
    )]
    Capacity {
        /// The requested length in bytes.
        len: u64,
        /// Largest length in bytes.
        capacity: u64,
    },
    /// Too many mappings.
    #[error("cannot map the file: this process has {0} mappings already; close some")]
    TooManyMappings(usize),
    /// A mapping for reading only.
    #[error("cannot extend persistent memory that is open for reading only")]
    ReadOnly,
    /// A system call failed.
    #[error("cannot map the file: {action} failed: {source}")]
    System {
        /// The system call, or what it was for.
        action: &'static str,
        /// Its error.
        source: io::Error,
    },
}
