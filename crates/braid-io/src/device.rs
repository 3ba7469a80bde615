//! The interface between Braid and a medium: a [`Device`] contains named [`File`]s.
//!
//! The log and the store use only these traits, so io_uring, plain system calls, memory and the
//! fault-injecting simulator are interchangeable.
//!
//! # What a medium promises
//!
//! - A write is *volatile* until a later [`File::sync`] of the same file returns `Ok`, or from the
//!   start *durable* if it was made with [`File::write_durable_at`] and that returned `Ok`.
//! - A volatile or unfinished write may survive a crash whole, in part (at 512-byte granularity, in
//!   any subset) or not at all, independently of every other such write. Where
//!   [`Device::block_size`] is less than 512, the parts are aligned words of eight bytes.
//! - A created, removed or renamed name is durable after [`Device::sync_directory`].
//! - After a failed write or sync of a file, nothing is known about unsynced data in it. Callers
//!   must not retry as if nothing had happened (invariant I8).

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::{AlignedBuf, ReaderTable};

/// Kind of implementation of a [`Device`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A directory of a file system through io_uring with direct I/O (Linux).
    Uring,
    /// A directory of a file system through positioned reads and writes and `fdatasync`.
    File,
    /// Persistent memory: mapped files with direct access (DAX).
    Pmem,
    /// Mapped files of an ordinary file system, treated like persistent memory.
    PmemFile,
    /// Ordinary memory that is treated like persistent memory, for measurements.
    PmemEmulated,
    /// Files on an NVMe drive, or what stands in for one, without a file system.
    Nvme,
    /// Process memory; nothing survives the process.
    Memory,
    /// The deterministic fault-injecting simulator.
    Simulator,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceKind::Uring => "uring",
            DeviceKind::File => "file",
            DeviceKind::Pmem => "pmem",
            DeviceKind::PmemFile => "pmem-file",
            DeviceKind::PmemEmulated => "pmem-emulated",
            DeviceKind::Nvme => "nvme",
            DeviceKind::Memory => "memory",
            DeviceKind::Simulator => "simulator",
        })
    }
}

/// How [`Device::open`] treats an existing or a missing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist.
    Existing,
    /// The file must not exist; it is created empty.
    CreateNew,
}

/// A named file of a device and its length in bytes, as listed by [`Device::list`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file's name, relative to the device.
    pub name: String,
    /// The file's length in bytes.
    pub len: u64,
}

/// One positioned read of a batch.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// Destination of the bytes; read in full.
    pub buf: &'a mut [u8],
    /// Byte offset in the file.
    pub offset: u64,
}

/// One positioned write of a batch.
#[derive(Clone, Copy, Debug)]
pub struct WriteOp<'a> {
    /// The bytes; written in full.
    pub buf: &'a [u8],
    /// Byte offset in the file.
    pub offset: u64,
}

/// Flat directory of files on one medium.
///
/// Names are plain file names (no path separators). All methods may be called from any thread.
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns the kind of implementation.
    fn kind(&self) -> DeviceKind;

    /// Returns the block size in bytes, a power of two and at least 64: offsets, lengths and
    /// buffer addresses of all reads and writes must be multiples of it.
    fn block_size(&self) -> usize;

    /// Returns the kind of medium that has, or would have, the file of this name. It differs from
    /// [`Device::kind`] if the device consists of several, as a [`SplitDevice`](crate::SplitDevice).
    fn kind_of(&self, name: &str) -> DeviceKind {
        let _ = name;
        self.kind()
    }

    /// Returns the block size of the file of this name, which divides [`Device::block_size`].
    fn block_size_of(&self, name: &str) -> usize {
        let _ = name;
        self.block_size()
    }

    /// Returns whether durable writes to the file of this name wait for nothing: they copy bytes in
    /// memory, which takes less time than to wake another thread.
    fn writes_at_once(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Allocates a zeroed buffer of at least `len` bytes, aligned for this device and, if the
    /// device has registered memory, from that memory, so that I/O on it is cheapest.
    fn allocate(&self, len: usize) -> AlignedBuf;

    /// Opens a file.
    ///
    /// # Errors
    /// `NotFound` or `AlreadyExists` according to `mode`, or the medium's error.
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>>;

    /// Removes a file. Durable after [`Device::sync_directory`].
    ///
    /// # Errors
    /// `NotFound`, or the medium's error.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Renames a file, replacing `to` atomically. Durable after [`Device::sync_directory`].
    ///
    /// # Errors
    /// `NotFound`, or the medium's error.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Lists all files, sorted by name.
    ///
    /// # Errors
    /// The medium's error.
    fn list(&self) -> io::Result<Vec<Entry>>;

    /// Makes creations, removals and renames durable.
    ///
    /// # Errors
    /// The medium's error; see invariant I8.
    fn sync_directory(&self) -> io::Result<()>;

    /// Opens the table that connects readers and the writer of a database on this device. If it is
    /// missing, creates it if `create` is set. Returns `None` if it is missing, or if the device
    /// does not support it.
    ///
    /// # Errors
    ///
    /// The medium's error.
    fn reader_table(&self, create: bool) -> io::Result<Option<Arc<dyn ReaderTable>>> {
        let _ = create;
        Ok(None)
    }
}

/// Returns the end of a read or write.
///
/// # Errors
///
/// `InvalidInput` beyond 2^63, as the system calls return.
pub(crate) fn end_of(offset: u64, len: usize) -> io::Result<u64> {
    let end = offset.checked_add(len as u64);
    end.filter(|end| i64::try_from(*end).is_ok())
        .ok_or_else(|| {
            let what = format!("{len} bytes at offset {offset} end beyond 2^63");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })
}

/// A file of a [`Device`]: positioned, unbuffered, aligned I/O from any thread.
///
/// Every offset, length and buffer address is a multiple of [`Device::block_size_of`] the file;
/// anything else is `InvalidInput`. Reading past the end is `UnexpectedEof`; no read or write is ever short. A
/// read or write that ends beyond 2^63 bytes fails, with `InvalidInput` on most devices. A full
/// medium is [`io::ErrorKind::StorageFull`].
pub trait File: Send + Sync + fmt::Debug {
    /// Returns the length in bytes.
    ///
    /// # Errors
    ///
    /// The medium's error.
    fn len(&self) -> io::Result<u64>;

    /// Returns whether the file is empty.
    ///
    /// # Errors
    ///
    /// The medium's error.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Truncates or extends the file. New bytes read as zero. Durable after [`File::sync`].
    ///
    /// # Errors
    ///
    /// `StorageFull` or the medium's error.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Extends the file to `len` bytes if it is shorter, and allocates the space if the medium can
    /// do that quickly, so that writes inside do not wait for changes of the length. New bytes read
    /// as zero. This is a hint: if the medium does not support it, it has no effect.
    ///
    /// # Errors
    ///
    /// `StorageFull` or the medium's error; a part of the space may then be allocated.
    fn reserve(&self, len: u64) -> io::Result<()> {
        let _ = len;
        Ok(())
    }

    /// Writes zeroes over `range`, extending the file if needed, so that later writes inside it
    /// change no file-system metadata. Durable after [`File::sync`].
    ///
    /// # Errors
    ///
    /// `StorageFull` or the medium's error.
    fn fill_zero(&self, range: Range<u64>) -> io::Result<()>;

    /// Returns the space of `range` to the medium, if the medium supports it; the range reads as
    /// zero. The length does not change. Otherwise this has no effect.
    ///
    /// # Errors
    ///
    /// The medium's error.
    fn punch_hole(&self, range: Range<u64>) -> io::Result<()>;

    /// Reads `buf.len()` bytes at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof`, or the medium's error.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes the buffers one after the other from `offset`; volatile until [`File::sync`].
    ///
    /// # Errors
    /// `StorageFull` or the medium's error.
    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()>;

    /// Writes the buffers one after the other from `offset`; durable when this returns `Ok` (a
    /// forced unit access, or a write and a flush, whichever the medium does faster). Only the
    /// bytes are durable: a length changed since the last [`File::sync`] is not promised.
    ///
    /// # Errors
    /// `StorageFull` or the medium's error; see invariant I8.
    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()>;

    /// Writes `mark` and then the buffers from `offset`, as [`File::write_durable_at`] does, but
    /// nothing of the mark before all of the buffers are durable.
    ///
    /// # Errors
    /// As [`File::write_durable_at`].
    fn write_marked_at(&self, mark: &[u8], bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.write_durable_at(bufs, offset + mark.len() as u64)?;
        self.write_durable_at(&[mark], offset)
    }

    /// Makes all completed writes and the length durable.
    ///
    /// # Errors
    /// The medium's error; see invariant I8.
    fn sync(&self) -> io::Result<()>;

    /// Returns the words of the file, if they are in memory where the processor can load them
    /// without a call: word 0 is the first eight bytes, in the machine's byte order. Words that the
    /// file does not have can be loaded, too, and mean nothing. Loads are allowed, stores are not.
    ///
    /// A thread may load words while another one writes the same bytes or shortens the file; it must
    /// find out by itself, and then call [`File::check_words`].
    fn words(&self) -> Option<&[std::sync::atomic::AtomicU64]> {
        None
    }

    /// Checks words after they were loaded, or before the first load.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the range, in bytes, is not in [`File::words`] or after the end of the
    /// file; the medium's error if it lost some of the bytes.
    fn check_words(&self, range: Range<u64>) -> io::Result<()> {
        let _ = range;
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    /// Performs all reads, concurrently as far as the medium supports it; returns when all are
    /// done.
    ///
    /// # Errors
    ///
    /// The first error; other buffers then have unspecified contents.
    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> io::Result<()> {
        ops.iter_mut()
            .try_for_each(|op| self.read_at(op.buf, op.offset))
    }

    /// Performs all writes in any order, concurrently as far as the medium supports it; returns
    /// when all are done. Volatile until [`File::sync`].
    ///
    /// # Errors
    ///
    /// The first error; which writes took place is then unknown.
    fn write_batch(&self, ops: &[WriteOp<'_>]) -> io::Result<()> {
        ops.iter()
            .try_for_each(|op| self.write_at(&[op.buf], op.offset))
    }
}
