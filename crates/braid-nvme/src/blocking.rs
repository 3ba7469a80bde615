//! Calls that wait, over any [`Drive`].
//!
//! A thread borrows a queue, submits its commands, polls for its own completions, and returns the
//! queue, so threads share no queue and hold no lock during I/O. It first polls without sleeping,
//! for [`BlockingOptions::idle_us`], and then lets the path wait ([`Queue::wait`]).

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use braid_rt::{Condvar, Mutex, narrow, to_usize};

use crate::{Command, CommandKind, Completion, DmaBuffer, Drive, DriveError, DriveInfo, Queue};

/// Time after which a waiting thread looks at its queue again, even if nothing woke it.
const PATIENCE: Duration = Duration::from_millis(100);

/// Polls between two looks at the clock.
const SPINS: u32 = 256;

/// Largest buffer for the copy of memory that the drive cannot access itself.
const BOUNCE_MAX: usize = 1 << 20;

/// Bytes of copies after which a call waits for some of them.
const COPIES_MAX: usize = 2 << 20;

/// Options of [`Blocking`].
#[derive(Clone, Copy, Debug)]
pub struct BlockingOptions {
    /// Microseconds for which a thread polls for a completion before it lets the path wait.
    pub idle_us: u32,
    /// Largest number of queues that are kept for reuse; at least one.
    pub queues_max: usize,
}

impl Default for BlockingOptions {
    /// Polls for 20 µs, which covers a fast drive, and keeps 16 queues.
    fn default() -> Self {
        Self {
            idle_us: 20,
            queues_max: 16,
        }
    }
}

/// One read of a batch.
#[derive(Debug)]
pub struct ReadAt<'a> {
    /// First block.
    pub lba: u64,
    /// Destination; read in full.
    pub buffer: &'a mut [u8],
}

/// One write of a batch.
#[derive(Clone, Copy, Debug)]
pub struct WriteAt<'a> {
    /// First block.
    pub lba: u64,
    /// The bytes; written in full.
    pub buffer: &'a [u8],
}

/// Blocking reads and writes on a [`Drive`], from any thread.
///
/// Lengths of buffers must be multiples of the block size. Transfers larger than the drive's limit
/// are divided. Buffers that the drive cannot access itself are copied; [`Blocking::allocate`]
/// returns buffers that it can access.
#[derive(Debug)]
pub struct Blocking {
    drive: Arc<dyn Drive>,
    queues_max: usize,
    /// [`BlockingOptions::idle_us`]. Relaxed: it orders nothing.
    idle_us: AtomicU32,
    pool: Mutex<Pool>,
    returned: Condvar,
}

#[derive(Default)]
struct Pool {
    idle: Vec<Box<dyn Queue>>,
    opened: usize,
    /// Threads that wait for a queue. To wake none is a system call, too.
    waiting: usize,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} queues, {} idle", self.opened, self.idle.len())
    }
}

impl Blocking {
    /// Wraps a drive, with default options.
    pub fn new(drive: Arc<dyn Drive>) -> Self {
        Self::with_options(drive, BlockingOptions::default())
    }

    /// Wraps a drive.
    pub fn with_options(drive: Arc<dyn Drive>, options: BlockingOptions) -> Self {
        Self {
            drive,
            queues_max: options.queues_max,
            idle_us: AtomicU32::new(options.idle_us),
            pool: Mutex::default(),
            returned: Condvar::default(),
        }
    }

    /// Returns the drive.
    pub fn drive(&self) -> &Arc<dyn Drive> {
        &self.drive
    }

    /// Returns the drive's properties.
    pub fn info(&self) -> &DriveInfo {
        self.drive.info()
    }

    /// Returns the time for which a thread polls; see [`BlockingOptions::idle_us`].
    pub fn idle_us(&self) -> u32 {
        self.idle_us.load(Ordering::Relaxed)
    }

    /// Sets the time for which a thread polls, for all calls that begin to wait from now on; see
    /// [`BlockingOptions::idle_us`].
    pub fn set_idle_us(&self, idle_us: u32) {
        if !braid_rt::mutant!("nvme_keep_idle_us") {
            self.idle_us.store(idle_us, Ordering::Relaxed);
        }
    }

    /// Allocates a zeroed buffer, if possible from memory that the drive can access.
    pub fn allocate(&self, len: usize) -> DmaBuffer {
        self.drive
            .allocate(len)
            .unwrap_or_else(|_| DmaBuffer::on_heap(len, self.info().alignment.max(64)))
    }

    /// Reads `buffer.len()` bytes from block `lba` on.
    ///
    /// # Errors
    ///
    /// The drive's error; the buffer's contents are then unspecified.
    pub fn read(&self, lba: u64, buffer: &mut [u8]) -> Result<(), DriveError> {
        self.read_batch(&mut [ReadAt { lba, buffer }])
    }

    /// Writes the buffer from block `lba` on; volatile until [`Blocking::flush`] if the drive has a
    /// volatile cache.
    ///
    /// # Errors
    ///
    /// The drive's error; nothing is then known about the blocks (invariant I8).
    pub fn write(&self, lba: u64, buffer: &[u8]) -> Result<(), DriveError> {
        self.write_batch(&[WriteAt { lba, buffer }])
    }

    /// Writes the buffer from block `lba` on; durable when this returns `Ok`. Uses FUA only if the
    /// drive has a volatile cache.
    ///
    /// # Errors
    ///
    /// As [`Blocking::write`].
    pub fn write_durable(&self, lba: u64, buffer: &[u8]) -> Result<(), DriveError> {
        self.write_durable_batch(&[WriteAt { lba, buffer }])
    }

    /// Performs all reads, in any order.
    ///
    /// # Errors
    ///
    /// The first error; the contents of all buffers are then unspecified.
    pub fn read_batch(&self, reads: &mut [ReadAt<'_>]) -> Result<(), DriveError> {
        let mut parts = Vec::with_capacity(reads.len());
        for read in reads {
            let (address, len) = (read.buffer.as_mut_ptr(), read.buffer.len());
            self.divide(CommandKind::Read, read.lba, address, len, &mut parts)?;
        }
        self.run(&parts)
    }

    /// Performs all writes, in any order; volatile until [`Blocking::flush`] if the drive has a
    /// volatile cache.
    ///
    /// # Errors
    ///
    /// As [`Blocking::write`].
    pub fn write_batch(&self, writes: &[WriteAt<'_>]) -> Result<(), DriveError> {
        self.write_all(writes, false)
    }

    /// Performs all writes, in any order; durable when this returns `Ok`.
    ///
    /// # Errors
    ///
    /// As [`Blocking::write`].
    pub fn write_durable_batch(&self, writes: &[WriteAt<'_>]) -> Result<(), DriveError> {
        self.write_all(writes, self.info().volatile_cache)
    }

    fn write_all(&self, writes: &[WriteAt<'_>], fua: bool) -> Result<(), DriveError> {
        let kind = CommandKind::Write { fua };
        let mut parts = Vec::with_capacity(writes.len());
        for write in writes {
            // The drive only reads from it.
            let (address, len) = (write.buffer.as_ptr().cast_mut(), write.buffer.len());
            self.divide(kind, write.lba, address, len, &mut parts)?;
        }
        self.run(&parts)
    }

    /// Makes all completed writes durable, those of other threads included. Without a volatile
    /// cache, they are durable already.
    ///
    /// # Errors
    ///
    /// The drive's error; nothing is then known about writes since the last flush (invariant I8).
    pub fn flush(&self) -> Result<(), DriveError> {
        if !self.info().volatile_cache {
            return Ok(());
        }
        self.run(&[Command::flush(0)])
    }

    /// Tells the drive that the contents of the blocks are no longer needed. Has no effect on a
    /// drive that does not support it.
    ///
    /// # Errors
    ///
    /// The drive's error.
    pub fn deallocate(&self, blocks: Range<u64>) -> Result<(), DriveError> {
        if !self.info().deallocates {
            return Ok(());
        }
        let mut parts = Vec::new();
        let mut lba = blocks.start;
        while lba < blocks.end {
            let count = (blocks.end - lba).min(1 << 24);
            parts.push(Command {
                kind: CommandKind::Deallocate,
                lba,
                blocks: narrow(count),
                address: std::ptr::null_mut(),
                user_data: 0,
            });
            lba += count;
        }
        self.run(&parts)
    }

    /// Divides a transfer into commands that the drive accepts, but for the memory.
    fn divide(
        &self,
        kind: CommandKind,
        mut lba: u64,
        mut address: *mut u8,
        mut len: usize,
        parts: &mut Vec<Command>,
    ) -> Result<(), DriveError> {
        let info = self.info();
        if !len.is_multiple_of(info.block_size) {
            return Err(DriveError::Invalid {
                target: crate::Target {
                    kind,
                    lba,
                    blocks: u32::try_from(len / info.block_size).unwrap_or(u32::MAX),
                },
                reason: "the buffer does not consist of whole blocks",
            });
        }
        while len > 0 {
            let part = len.min(info.max_transfer).min(BOUNCE_MAX);
            let blocks = part / info.block_size;
            parts.push(Command {
                kind,
                lba,
                blocks: u32::try_from(blocks).expect("at most a MiB"),
                address,
                user_data: 0,
            });
            lba = lba.saturating_add(blocks as u64);
            address = address.wrapping_add(part);
            len -= part;
        }
        Ok(())
    }

    /// Performs commands whose memory is valid until this returns; copies memory that the drive
    /// does not accept.
    fn run(&self, commands: &[Command]) -> Result<(), DriveError> {
        if commands.is_empty() {
            return Ok(());
        }
        let mut queue = self.borrow()?;
        let mut batch = Batch {
            blocking: self,
            copies: Vec::new(),
            copied: 0,
            completions: Vec::new(),
            failure: None,
        };
        let mut next = 0;
        while next < commands.len() || queue.in_flight() > 0 {
            while next < commands.len()
                && batch.failure.is_none()
                && queue.in_flight() < self.info().queue_depth
                && batch.submit(&mut *queue, &commands[next], next)
            {
                next += 1;
            }
            if batch.failure.is_some() {
                next = commands.len();
            }
            queue.kick();
            self.await_some(&mut *queue, &mut batch.completions);
            batch.finish(commands);
        }
        let failure = batch.failure.take();
        self.release(queue);
        failure.map_or(Ok(()), Err)
    }

    /// Waits for a completion: polls for a while, then lets the path wait.
    fn await_some(&self, queue: &mut dyn Queue, completions: &mut Vec<Completion>) {
        if queue.in_flight() == 0 || queue.poll(completions) > 0 {
            return;
        }
        let idle_us = self.idle_us();
        if idle_us > 0 && !braid_rt::simulation::is_on() {
            let idle = Duration::from_micros(u64::from(idle_us));
            let mut begun = None;
            loop {
                for _ in 0..SPINS {
                    std::hint::spin_loop();
                    if queue.poll(completions) > 0 {
                        return;
                    }
                }
                // A clock is a system call on some machines, so a fast drive needs none.
                if begun.get_or_insert_with(Instant::now).elapsed() >= idle {
                    break;
                }
            }
        }
        queue.wait(completions, PATIENCE);
    }

    fn borrow(&self) -> Result<Box<dyn Queue>, DriveError> {
        let limit = self.info().queues.min(self.queues_max).max(1);
        let mut pool = self.pool.lock();
        loop {
            if let Some(queue) = pool.idle.pop() {
                return Ok(queue);
            }
            if pool.opened < limit {
                break;
            }
            pool.waiting += 1;
            self.returned.wait(&mut pool);
            pool.waiting -= 1;
        }
        pool.opened += 1;
        drop(pool);
        self.drive.open_queue().inspect_err(|_| {
            let mut pool = self.pool.lock();
            pool.opened -= 1;
            self.wake(&pool);
        })
    }

    fn release(&self, queue: Box<dyn Queue>) {
        let mut pool = self.pool.lock();
        pool.idle.push(queue);
        self.wake(&pool);
    }

    fn wake(&self, pool: &Pool) {
        if pool.waiting > 0 {
            self.returned.notify_one();
        }
    }
}

/// The commands of one call.
struct Batch<'a> {
    blocking: &'a Blocking,
    /// Copies of memory that the drive does not accept, with the index of their command.
    copies: Vec<(usize, DmaBuffer)>,
    /// Bytes of the copies.
    copied: usize,
    completions: Vec<Completion>,
    failure: Option<DriveError>,
}

impl Batch<'_> {
    /// Submits a command, or notes why that failed. Returns `false` if the command must wait for
    /// the copies of others that are in flight.
    fn submit(&mut self, queue: &mut dyn Queue, command: &Command, index: usize) -> bool {
        let mut command = *command;
        command.user_data = index as u64;
        let transfers = matches!(command.kind, CommandKind::Read | CommandKind::Write { .. });
        let len = to_usize(u64::from(command.blocks)) * self.blocking.info().block_size;
        if transfers && !self.blocking.drive.accepts(command.address, len) {
            // Every queue gets its share of the memory that the drive can access.
            if self.copied >= COPIES_MAX {
                return false;
            }
            let mut copy = match self.blocking.drive.allocate(len) {
                Ok(copy) => copy,
                Err(_) if !self.copies.is_empty() => return false,
                Err(error) => {
                    self.fail(error);
                    return true;
                }
            };
            self.copied += len;
            if matches!(command.kind, CommandKind::Write { .. }) {
                // SAFETY: the caller of `run` borrows `len` bytes at the address, and the copy is
                // memory of its own.
                copy.copy_from_slice(unsafe { std::slice::from_raw_parts(command.address, len) });
            }
            command.address = copy.as_non_null().as_ptr();
            self.copies.push((index, copy));
        }
        // SAFETY: `run` does not return while a command is in flight, and until then its caller
        // borrows the memory, or `copies` owns it.
        if let Err(error) = unsafe { queue.submit(command) } {
            self.fail(error);
        }
        true
    }

    fn fail(&mut self, error: DriveError) {
        self.failure.get_or_insert(error);
    }

    /// Takes the outcomes of completed commands.
    fn finish(&mut self, commands: &[Command]) {
        for completion in std::mem::take(&mut self.completions) {
            let index = to_usize(completion.user_data);
            let copy = self.copies.iter().position(|(of, _)| *of == index);
            if let Some(copy) = copy {
                let (_, copy) = self.copies.swap_remove(copy);
                self.copied -= copy.len();
                if commands[index].kind == CommandKind::Read && completion.result.is_ok() {
                    let to = NonNull::new(commands[index].address).expect("a borrowed buffer");
                    // SAFETY: the caller of `run` borrows the bytes at the address mutably, and
                    // the copy has as many.
                    unsafe { to.copy_from_nonoverlapping(copy.as_non_null(), copy.len()) };
                }
            }
            if let Err(error) = completion.result {
                self.fail(error);
            }
        }
    }
}
