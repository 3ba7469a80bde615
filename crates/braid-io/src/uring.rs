//! A directory of a file system through io_uring.
//!
//! A batch is submitted to the kernel at once, and the device processes it in parallel; single
//! operations are one submission each. A thread borrows a ring from a small pool, submits, waits
//! for its own completions, and returns the ring: threads share no completion queue, and hold no
//! lock during I/O.
//!
//! Buffers are not registered with the rings: they are borrowed for one call, and the kernel pins
//! the pages of an aligned buffer during the operation.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use braid_rt::{Mutex, to_usize};
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::directory::DEFAULT_FILE_MODE;
use crate::posix::{PosixFile, check_aligned};
use crate::{
    AlignedBuf, Device, DeviceKind, Entry, File, FileDevice, OpenMode, ReadOp, ReaderTable, WriteOp,
};

/// Maximum number of operations in flight in one batch.
const DEPTH: u32 = 64;

/// Maximum number of rings kept for reuse.
const POOLED_MAX: usize = 16;

#[derive(Default)]
struct Rings(Mutex<Vec<IoUring>>);

/// One operation on a contiguous part of memory. The caller of [`Rings::run`] borrows the memory
/// until that method returns.
#[derive(Clone, Copy)]
struct Operation {
    write: bool,
    address: *mut u8,
    len: usize,
    offset: u64,
}

impl Operation {
    fn entry(&self, fd: RawFd, index: usize) -> squeue::Entry {
        let len = u32::try_from(self.len).unwrap_or(1 << 30);
        let entry = if self.write {
            opcode::Write::new(types::Fd(fd), self.address, len)
                .offset(self.offset)
                .build()
        } else {
            opcode::Read::new(types::Fd(fd), self.address, len)
                .offset(self.offset)
                .build()
        };
        entry.user_data(index as u64)
    }

    /// Removes the part that a short completion has processed.
    fn advance(&mut self, done: usize) {
        self.address = self.address.wrapping_add(done);
        self.len -= done;
        self.offset += done as u64;
    }
}

impl Rings {
    fn take(&self) -> io::Result<IoUring> {
        match self.0.lock().pop() {
            Some(ring) => Ok(ring),
            None => IoUring::new(DEPTH),
        }
    }

    /// Performs all operations; returns once none is in flight.
    ///
    /// # Safety
    ///
    /// Each operation's memory must be valid, for writing if it is a read, and not otherwise used
    /// until this returns.
    unsafe fn run(&self, fd: RawFd, operations: &mut [Operation]) -> io::Result<()> {
        let mut ring = self.take()?;
        let mut waiting: Vec<usize> = (0..operations.len()).rev().collect();
        let mut in_flight = 0;
        let mut failure: Option<io::Error> = None;
        let mut patience = Patience::default();
        while in_flight > 0 || (failure.is_none() && !waiting.is_empty()) {
            while failure.is_none() && in_flight < DEPTH as usize {
                let Some(index) = waiting.pop() else { break };
                let entry = operations[index].entry(fd, index);
                // SAFETY: the caller keeps the operation's memory valid until this function
                // returns, and it does not return while the operation is in flight.
                if unsafe { ring.submission().push(&entry) }.is_err() {
                    waiting.push(index);
                    break;
                }
                in_flight += 1;
            }
            if let Err(error) = ring.submit_and_wait(1)
                && let Err(error) = patience.try_again(error)
            {
                failure.get_or_insert(error);
            }
            if ring.submission().len() == in_flight
                && let Some(failure) = failure
            {
                // The kernel has no operation of this ring any more, and gets none: the queue is
                // dropped with the ring. Before that, operations that the kernel already has must
                // complete, because the memory must stay valid.
                return Err(failure);
            }
            let completed: Vec<cqueue::Entry> = ring.completion().collect();
            for completion in completed {
                in_flight -= 1;
                let index = to_usize(completion.user_data());
                let operation = &mut operations[index];
                match completion.result() {
                    0 => {
                        let kind = if operation.write {
                            io::ErrorKind::WriteZero
                        } else {
                            io::ErrorKind::UnexpectedEof
                        };
                        failure.get_or_insert(kind.into());
                    }
                    result => match usize::try_from(result) {
                        Ok(done) => {
                            patience = Patience::default();
                            operation.advance(done);
                            if operation.len > 0 {
                                waiting.push(index);
                            }
                        }
                        Err(_) => {
                            let error = io::Error::from_raw_os_error(-result);
                            match patience.try_again(error) {
                                Ok(()) => waiting.push(index),
                                Err(error) => drop(failure.get_or_insert(error)),
                            }
                        }
                    },
                }
            }
        }
        let mut pool = self.0.lock();
        if pool.len() < POOLED_MAX {
            pool.push(ring);
        }
        failure.map_or(Ok(()), Err)
    }
}

/// Maximum number of temporary refusals by the kernel without a completion in between: about a
/// second.
const ATTEMPTS_MAX: u32 = 1_000;

/// Counts consecutive temporary refusals by the kernel.
#[derive(Default)]
struct Patience(u32);

impl Patience {
    /// Waits a moment before another attempt, if the error is temporary.
    ///
    /// # Errors
    ///
    /// The error itself, if it is not temporary, or if the kernel has refused for too long.
    fn try_again(&mut self, error: io::Error) -> io::Result<()> {
        match error.raw_os_error() {
            // A signal interrupted the call, which says nothing about the kernel.
            Some(libc::EINTR) => return Ok(()),
            Some(libc::EAGAIN | libc::EBUSY) if self.0 < ATTEMPTS_MAX => {}
            _ => return Err(error),
        }
        self.0 += 1;
        if self.0 < 16 {
            std::thread::yield_now()
        } else {
            std::thread::sleep(Duration::from_millis(1))
        }
        Ok(())
    }
}

/// A [`Device`] over a directory with direct I/O through io_uring; see the module's documentation.
#[derive(Clone)]
pub struct UringDevice {
    names: Arc<FileDevice>,
    rings: Arc<Rings>,
}

impl UringDevice {
    /// Opens an existing directory.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`; `Unsupported` if the kernel or a sandbox does not allow
    /// io_uring, or the file system does not support direct I/O.
    pub fn new(directory: &Path) -> io::Result<Self> {
        Self::with_mode(directory, DEFAULT_FILE_MODE)
    }

    /// As [`UringDevice::new`]; created files get these permissions, as in `chmod(2)`.
    ///
    /// # Errors
    ///
    /// As [`UringDevice::new`].
    pub fn with_mode(directory: &Path, mode: u32) -> io::Result<Self> {
        let names = FileDevice::with_mode(directory, mode)?;
        let unsupported = |what: String| io::Error::new(io::ErrorKind::Unsupported, what);
        if !names.is_direct() {
            return Err(unsupported(
                "the file system does not support direct I/O".into(),
            ));
        }
        let ring = IoUring::new(DEPTH).map_err(|e| unsupported(format!("io_uring: {e}")))?;
        let rings = Arc::new(Rings(Mutex::new(vec![ring])));
        Ok(Self {
            names: Arc::new(names),
            rings,
        })
    }
}

impl std::fmt::Debug for UringDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UringDevice")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl Device for UringDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Uring
    }

    fn block_size(&self) -> usize {
        self.names.block_size()
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        AlignedBuf::new(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = self.names.open_file(name, mode)?;
        Ok(Arc::new(UringFile {
            file,
            rings: self.rings.clone(),
        }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.names.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.names.rename(from, to)
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        self.names.list()
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.names.sync_directory()
    }

    fn reader_table(&self, create: bool) -> io::Result<Option<Arc<dyn ReaderTable>>> {
        self.names.reader_table(create)
    }
}

/// Creates the device for an opened directory.
pub(crate) fn open(directory: &Path, mode: u32) -> io::Result<Arc<dyn Device>> {
    Ok(Arc::new(UringDevice::with_mode(directory, mode)?))
}

struct UringFile {
    file: PosixFile,
    rings: Arc<Rings>,
}

impl std::fmt::Debug for UringFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UringFile")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl File for UringFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.file.reserve(len)
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        self.file.fill_zero(range)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.file.punch_hole(range)
    }

    // A single awaited operation costs one system call either way; the plain call has less setup.

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.file.write_at(bufs, offset)
    }

    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.file.write_durable_at(bufs, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> io::Result<()> {
        let mut operations = Vec::with_capacity(ops.len());
        for op in ops.iter_mut().filter(|op| !op.buf.is_empty()) {
            check_aligned(&[op.buf], op.offset)?;
            let (address, len) = (op.buf.as_mut_ptr(), op.buf.len());
            let offset = op.offset;
            operations.push(Operation {
                write: false,
                address,
                len,
                offset,
            });
        }
        // SAFETY: the buffers are borrowed mutably during this call.
        let done = unsafe {
            self.rings
                .run(self.file.as_fd().as_raw_fd(), &mut operations)
        };
        done.map_err(self.file.named("read"))
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> io::Result<()> {
        let mut operations = Vec::with_capacity(ops.len());
        for op in ops.iter().filter(|op| !op.buf.is_empty()) {
            check_aligned(&[op.buf], op.offset)?;
            // The kernel only reads from it.
            let address = op.buf.as_ptr().cast_mut();
            let (len, offset) = (op.buf.len(), op.offset);
            operations.push(Operation {
                write: true,
                address,
                len,
                offset,
            });
        }
        // SAFETY: the buffers are borrowed during this call, and a write only reads from them.
        let done = unsafe {
            self.rings
                .run(self.file.as_fd().as_raw_fd(), &mut operations)
        };
        done.map_err(self.file.named("write"))
    }
}
