//! The interface of all paths to a drive: [`Drive`], [`Queue`], [`Command`], [`Completion`].
//!
//! # Promises of a drive
//!
//! - Addresses and lengths are in blocks of [`DriveInfo::block_size`] bytes.
//! - A completed write is *volatile* if [`DriveInfo::volatile_cache`] is set, until a flush that was
//!   submitted after the write's completion, on any queue, completes. A completed write with `fua`,
//!   or to a drive without a volatile cache, is *durable*. A flush does not cover writes that were
//!   in flight when it was submitted.
//! - Commands in flight are performed in any order. A read that overlaps a write in flight returns,
//!   block by block, the old or the new contents.
//! - A volatile or unfinished write may survive a power failure whole, in part or not at all,
//!   independently of every other such write. No part is smaller than a block, and a write of at
//!   most [`DriveInfo::atomic_write_blocks`] survives whole or not at all.
//! - Deallocated blocks have unspecified contents until they are written again: zeros or the old
//!   ones.
//! - After a failed write or flush nothing is known about the blocks that it covered (invariant
//!   I8).
//!
//! # Using a queue
//!
//! 1. [`Queue::submit`] checks a command and puts it into the queue. At most
//!    [`DriveInfo::queue_depth`] commands may be in flight.
//! 2. [`Queue::kick`] makes all submitted commands visible to the drive at once: one doorbell, or
//!    one system call.
//! 3. [`Queue::poll`] collects completions without waiting, [`Queue::wait`] waits for at least one.
//!
//! Every command that `submit` accepted completes exactly once, if need be with an error: a path
//! with a driver of its own ends commands that take too long itself, when `poll` or `wait` is
//! called.

use std::fmt;
use std::time::Duration;

use crate::{DmaBuffer, DriveError, Target};

/// Kind of path to a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DrivePath {
    /// A block device, or a file, through io_uring with direct I/O.
    Uring,
    /// NVMe commands through io_uring, without the kernel's block layer.
    Passthrough,
    /// The driver of this crate, over VFIO.
    Vfio,
    /// The driver of this crate, over the model of a controller.
    Model,
    /// Process memory; nothing survives the process.
    Memory,
}

impl fmt::Display for DrivePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "uring",
            Self::Passthrough => "passthrough",
            Self::Vfio => "vfio",
            Self::Model => "model",
            Self::Memory => "memory",
        })
    }
}

/// Properties of a drive, constant while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriveInfo {
    /// How commands reach the drive.
    pub path: DrivePath,
    /// Model name, without trailing spaces; empty if unknown.
    pub model: String,
    /// Serial number, without trailing spaces; empty if unknown.
    pub serial: String,
    /// Namespace identifier; 0 if unknown.
    pub namespace: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Size of a block in bytes: a power of two, at least 512.
    pub block_size: usize,
    /// Whether a completed write needs a flush, or FUA, to be durable.
    pub volatile_cache: bool,
    /// Largest number of blocks that a power failure does not tear when they are written at once.
    pub atomic_write_blocks: u32,
    /// Largest number of bytes of one read or write, a multiple of the block size.
    pub max_transfer: usize,
    /// Largest number of commands in flight in one queue.
    pub queue_depth: usize,
    /// Largest number of queues; `usize::MAX` if there is no limit.
    pub queues: usize,
    /// Required alignment of buffer addresses in bytes: a power of two.
    pub alignment: usize,
    /// Whether deallocation has an effect.
    pub deallocates: bool,
}

/// Kind of a [`Command`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandKind {
    /// Reads blocks into the buffer.
    Read,
    /// Writes blocks from the buffer.
    Write {
        /// Whether the write is durable when it completes (forced unit access).
        fua: bool,
    },
    /// Makes all completed writes durable; has no blocks and no buffer.
    Flush,
    /// Tells the drive that the contents of the blocks are no longer needed; has no buffer.
    Deallocate,
}

/// One command to a drive.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Kind of the command.
    pub kind: CommandKind,
    /// First block; ignored by a flush.
    pub lba: u64,
    /// Number of blocks; ignored by a flush.
    pub blocks: u32,
    /// Start of the buffer of a read or a write: `blocks` times the block size, accepted by
    /// [`Drive::accepts`].
    pub address: *mut u8,
    /// Returned with the completion.
    pub user_data: u64,
}

// SAFETY: the address is only dereferenced under the contract of `Queue::submit`.
unsafe impl Send for Command {}

impl Command {
    /// Returns a flush.
    pub fn flush(user_data: u64) -> Self {
        Self {
            kind: CommandKind::Flush,
            lba: 0,
            blocks: 0,
            address: std::ptr::null_mut(),
            user_data,
        }
    }

    /// Returns the description of the command for errors.
    pub fn target(&self) -> Target {
        Target {
            kind: self.kind,
            lba: self.lba,
            blocks: self.blocks,
        }
    }
}

/// Outcome of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The command's [`Command::user_data`].
    pub user_data: u64,
    /// Whether the drive performed the command.
    pub result: Result<(), DriveError>,
}

/// One namespace of a drive. All methods may be called from any thread.
pub trait Drive: Send + Sync + fmt::Debug {
    /// Returns the drive's properties.
    fn info(&self) -> &DriveInfo;

    /// Opens a queue, for one thread at a time. It may outlive other handles to the drive.
    ///
    /// # Errors
    ///
    /// [`DriveError::NoQueue`] if [`DriveInfo::queues`] are open; the path's error.
    fn open_queue(&self) -> Result<Box<dyn Queue>, DriveError>;

    /// Allocates a zeroed buffer of `len` bytes that commands can use.
    ///
    /// # Errors
    ///
    /// If the memory that the drive can access is used up.
    fn allocate(&self, len: usize) -> Result<DmaBuffer, DriveError>;

    /// Returns whether commands can use this memory: it is aligned, and the drive can access it.
    /// Other memory must be copied to or from a buffer of [`Drive::allocate`], as
    /// [`Blocking`](crate::Blocking) does.
    fn accepts(&self, address: *const u8, len: usize) -> bool;
}

/// Passes commands to a drive; see the module's documentation.
pub trait Queue: Send {
    /// Puts a command into the queue. The drive performs it after the next [`Queue::kick`].
    ///
    /// # Errors
    ///
    /// [`DriveError::QueueFull`], [`DriveError::OutOfRange`] or [`DriveError::Invalid`]; the
    /// command is then not in the queue. After the drive failed, its error.
    ///
    /// # Safety
    ///
    /// Until the command's completion is returned, or the queue is dropped, its memory must be
    /// valid, must not be written by others, and, if the command reads, must not be read by others.
    unsafe fn submit(&mut self, command: Command) -> Result<(), DriveError>;

    /// Makes submitted commands visible to the drive. A failure ends the commands with an error.
    fn kick(&mut self);

    /// Appends the outcomes of commands that have completed, and returns their number. Does not
    /// wait.
    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize;

    /// As [`Queue::poll`], but waits until a command has completed or `patience` has passed. Lets
    /// the processor sleep if the path can. Returns immediately if nothing is in flight.
    fn wait(&mut self, completions: &mut Vec<Completion>, patience: Duration) -> usize;

    /// Returns the number of accepted commands whose completion was not yet returned.
    fn in_flight(&self) -> usize;
}

/// Checks a command against the drive's limits, as every [`Queue::submit`] does.
///
/// # Errors
///
/// [`DriveError::OutOfRange`] or [`DriveError::Invalid`].
pub fn check_command(info: &DriveInfo, command: &Command) -> Result<(), DriveError> {
    let target = command.target();
    let invalid = |reason| Err(DriveError::Invalid { target, reason });
    if command.kind == CommandKind::Flush {
        return Ok(());
    }
    if command.blocks == 0 {
        return invalid("the command has no blocks");
    }
    if command
        .lba
        .checked_add(u64::from(command.blocks))
        .is_none_or(|end| end > info.blocks)
    {
        let capacity = info.blocks;
        return Err(DriveError::OutOfRange { target, capacity });
    }
    if command.kind == CommandKind::Deallocate {
        return Ok(());
    }
    let blocks_max = info.max_transfer / info.block_size;
    if braid_rt::to_usize(u64::from(command.blocks)) > blocks_max {
        return invalid("the drive transfers fewer blocks at once");
    }
    if !command.address.addr().is_multiple_of(info.alignment) {
        return invalid("the drive does not accept the alignment of the buffer");
    }
    Ok(())
}
