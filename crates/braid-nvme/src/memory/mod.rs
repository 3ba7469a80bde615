//! A drive in memory, for tests: it has a volatile cache, loses power, and fails.
//!
//! The drive behaves as [`crate::drive`] promises, and as badly as that allows, as a
//! seed determines: completions return in any order; a flush covers only writes whose completion
//! was returned before the flush was submitted; after a power failure ([`MemoryDrive::crash`]) each
//! volatile or unfinished write survives whole, in part, or not at all. [`MemoryFaults`] lets
//! commands fail; [`MemoryDrive::fail_after`] fails a chosen command.

mod blocks;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use braid_rt::Mutex;

use crate::{Command, CommandKind, DmaBuffer, Drive, DriveError, DriveInfo, DrivePath, Queue};
pub(crate) use blocks::Blocks;

/// Properties of a [`MemoryDrive`].
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// Number of blocks.
    pub blocks: u64,
    /// Size of a block in bytes: a power of two, at least 512.
    pub block_size: usize,
    /// Whether completed writes are volatile until a flush.
    pub volatile_cache: bool,
    /// Largest number of blocks that a power failure does not tear.
    pub atomic_write_blocks: u32,
    /// Largest number of bytes of one read or write.
    pub max_transfer: usize,
    /// Largest number of commands in flight in one queue.
    pub queue_depth: usize,
    /// Determines the order of completions, the survivors of a power failure, and faults.
    pub seed: u64,
}

impl Default for MemoryOptions {
    /// 32,768 blocks of 512 bytes (16 MiB), a volatile cache, single atomic blocks, transfers of
    /// 128 KiB.
    fn default() -> Self {
        Self {
            blocks: 1 << 15,
            block_size: 512,
            volatile_cache: true,
            atomic_write_blocks: 1,
            max_transfer: 128 << 10,
            queue_depth: 32,
            seed: 0,
        }
    }
}

/// How often commands of a [`MemoryDrive`] fail, each in 65,536 commands.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryFaults {
    /// Media errors of reads; the blocks stay as they were.
    pub read: u16,
    /// Media errors of writes; any part of the write may have taken place.
    pub write: u16,
    /// Failed flushes.
    pub flush: u16,
    /// Commands that end with [`DriveError::TimedOut`]; they may have taken place.
    pub time_out: u16,
    /// Commands that end with [`DriveError::Aborted`]; they did not take place.
    pub abort: u16,
}

struct State {
    blocks: Blocks,
    random: fastrand::Rng,
    faults: MemoryFaults,
    /// Commands until one fails.
    countdown: Option<u64>,
    /// Blocks that the medium lost.
    damaged: BTreeSet<u64>,
    removed: bool,
    /// Commands that were passed to the drive.
    commands: u64,
}

/// A drive in memory; see the module's documentation. Clones share the drive.
#[derive(Clone)]
pub struct MemoryDrive {
    info: Arc<DriveInfo>,
    options: MemoryOptions,
    state: Arc<Mutex<State>>,
}

impl std::fmt::Debug for MemoryDrive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryDrive")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl MemoryDrive {
    /// Creates a drive of this many blocks of 512 bytes, all zero, with default options otherwise.
    pub fn new(blocks: u64) -> Self {
        Self::with_options(MemoryOptions {
            blocks,
            ..MemoryOptions::default()
        })
    }

    /// Creates a drive, all zero.
    ///
    /// # Panics
    ///
    /// If the options are not those of a drive.
    pub fn with_options(options: MemoryOptions) -> Self {
        Self::of_blocks(options, Blocks::new(options.block_size))
    }

    fn of_blocks(options: MemoryOptions, blocks: Blocks) -> Self {
        assert!(options.block_size >= 512 && options.block_size.is_power_of_two());
        assert!(
            options.max_transfer > 0 && options.max_transfer.is_multiple_of(options.block_size)
        );
        assert!(options.atomic_write_blocks > 0 && options.queue_depth > 0);
        let info = DriveInfo {
            path: DrivePath::Memory,
            model: "Braid memory drive".into(),
            serial: String::new(),
            namespace: 1,
            blocks: options.blocks,
            block_size: options.block_size,
            volatile_cache: options.volatile_cache,
            atomic_write_blocks: options.atomic_write_blocks,
            max_transfer: options.max_transfer,
            queue_depth: options.queue_depth,
            queues: usize::MAX,
            alignment: 4,
            deallocates: true,
        };
        Self {
            info: Arc::new(info),
            options,
            state: Arc::new(Mutex::new(State {
                blocks,
                random: fastrand::Rng::with_seed(options.seed),
                faults: MemoryFaults::default(),
                countdown: None,
                damaged: BTreeSet::new(),
                removed: false,
                commands: 0,
            })),
        }
    }

    /// Returns a drive with what a power failure at this moment leaves, as `seed` determines. This
    /// drive continues, so that many images can be made of one moment; call
    /// [`MemoryDrive::remove`] to end it.
    pub fn crash(&self, seed: u64) -> Self {
        let state = self.state.lock();
        let blocks = state.blocks.survivors(seed);
        let next = Self::of_blocks(
            MemoryOptions {
                seed,
                ..self.options
            },
            blocks,
        );
        next.state.lock().damaged.clone_from(&state.damaged);
        next
    }

    /// Returns a drive with the same contents and other options, such as fewer blocks. Everything
    /// written so far is durable in it.
    pub fn reopen(&self, options: MemoryOptions) -> Self {
        assert_eq!(options.block_size, self.options.block_size);
        let mut blocks = self.state.lock().blocks.clone();
        blocks.flush(u64::MAX);
        blocks.truncate(options.blocks);
        Self::of_blocks(options, blocks)
    }

    /// Sets how often commands fail.
    pub fn set_faults(&self, faults: MemoryFaults) {
        self.state.lock().faults = faults;
    }

    /// Lets the command after the next `commands` ones fail with a media error, once.
    pub fn fail_after(&self, commands: u64) {
        self.state.lock().countdown = Some(commands);
    }

    /// Removes the drive: every command that has not completed, and every later one, fails with
    /// [`DriveError::Removed`].
    pub fn remove(&self) {
        self.state.lock().removed = true;
    }

    /// Lets reads of the block fail with a media error until it is written again.
    pub fn damage(&self, lba: u64) {
        self.state.lock().damaged.insert(lba);
    }

    /// Inverts a bit of a block, without an error when it is read.
    pub fn flip_bit(&self, lba: u64, bit: usize) {
        self.state.lock().blocks.flip_bit(lba, bit);
    }

    /// Returns the number of commands that were passed to the drive.
    pub fn commands(&self) -> u64 {
        self.state.lock().commands
    }

    /// Returns the newest contents of a block.
    pub fn block(&self, lba: u64) -> Vec<u8> {
        self.state.lock().blocks.newest(lba).to_vec()
    }
}

impl Drive for MemoryDrive {
    fn info(&self) -> &DriveInfo {
        &self.info
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, DriveError> {
        Ok(Box::new(queue::MemoryQueue::new(self.clone())))
    }

    fn allocate(&self, len: usize) -> Result<DmaBuffer, DriveError> {
        Ok(DmaBuffer::on_heap(len, 64))
    }

    fn accepts(&self, address: *const u8, _len: usize) -> bool {
        address.addr().is_multiple_of(self.info.alignment)
    }
}

impl State {
    /// Decides whether the command fails, and returns the error.
    fn fault(&mut self, command: &Command) -> Option<DriveError> {
        let target = command.target();
        if self.removed {
            return Some(DriveError::Removed { target });
        }
        let media = match command.kind {
            CommandKind::Read => (self.faults.read, 0x281),
            CommandKind::Write { .. } => (self.faults.write, 0x280),
            CommandKind::Flush => (self.faults.flush, 0x280),
            CommandKind::Deallocate => (0, 0),
        };
        let counted = match &mut self.countdown {
            Some(0) => {
                self.countdown = None;
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        };
        let mut draw = |rate: u16| rate > 0 && self.random.u16(..) < rate;
        if counted || draw(media.0) {
            let status = media.1;
            return Some(DriveError::Media { target, status });
        }
        if draw(self.faults.time_out) {
            let millis = 30_000;
            return Some(DriveError::TimedOut { target, millis });
        }
        if draw(self.faults.abort) {
            let status = 0x007;
            return Some(DriveError::Aborted { target, status });
        }
        let lost = |lba| self.damaged.contains(&lba);
        let mut range = command.lba..command.lba.saturating_add(u64::from(command.blocks));
        if command.kind == CommandKind::Read && !self.damaged.is_empty() && range.any(lost) {
            let status = 0x281;
            return Some(DriveError::Media { target, status });
        }
        None
    }
}
