//! The data file: blocks with checksum and identity, the page map, the two superblocks.
//!
//! ```text
//! block 0, 1     superblocks: [crc u32 | sequence u32][magic][format u64][sequence u64][root blob: first
//!                block, length][0..]
//! other blocks   [crc u32 | sequence u32][identity u64] and then
//!                  a page      identity = page id                   (see `node`)
//!                  a map leaf  identity = MAP | index               681 entries: block addresses, births
//!                  a blob      identity = BLOB | position in it     [address of the next u64][bytes]
//! ```
//!
//! The CRC-32C covers the block from byte 4 on. The sequence is that of the checkpoint that
//! followed the write of the block: a block newer than the superblock that refers to it shows that
//! the newest superblock was lost. The root blob holds the next page id, the addresses of the map's
//! leaves, the roots of the trees and the caller's bytes. See [`superblock`] for the choice between
//! the superblocks, and [`map`] for the checksum in each reference to a block.

mod ahead;
mod block;
pub(crate) mod free_space;
mod length;
mod lines;
mod map;
mod moves;
mod open;
pub(crate) mod room;
mod root;
mod spares;
mod superblock;
mod unsynced;
mod writes;

use std::io;
use std::sync::{Arc, OnceLock};

use braid_io::{AlignedBuf, Device, File, ReadOp};
use braid_rt::Mutex;
use braid_rt::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::addresses::Addresses;
use crate::error::StoreError;
use crate::holds::Holds;
use crate::number_set::NumberSet;
use crate::page::{PAGE_SIZE, PageId};
use crate::sync::Counter;

use self::ahead::Ahead;
use self::free_space::Space;
use self::lines::WriteCounters;
use self::room::Room;
use self::unsynced::Unsynced;

pub(crate) use block::{BLOB, MAP, check, check_copied, u64_at};
pub(crate) use map::{
    BLOCKS_MAX, Entry, LEAF_ADDRESSES, LOST, Packing, address_of, block_of, change_of,
    check_address, encode_leaf,
};
pub(crate) use moves::Moved;
pub use room::{WriterRoom, layer_entries};
pub(crate) use root::Root;
pub(crate) use superblock::packing_of;
pub use superblock::{DataFileCreation, FORMAT, creation_of, data_format};

pub(crate) const FILE_NAME: &str = "data.braid";

/// The data file; see the module's documentation.
#[derive(Debug)]
pub(crate) struct DataFile {
    device: Arc<dyn Device>,
    file: Arc<dyn File>,
    /// The identity of the database that the file belongs to; 0 if none was assigned.
    identity: u128,
    pub(crate) space: Mutex<Space>,
    /// Blocks that the file is known to have; changed only by the holder of `growing`.
    pub(crate) extent: AtomicU64,
    growing: Mutex<()>,
    pub(crate) holds: Holds,
    pub(crate) room: Arc<Room>,
    pub(crate) ahead: Ahead,
    /// Transactions that waited while the file was extended.
    pub(crate) extension_waits: Counter,
    pub(crate) addresses: Addresses,
    /// The durable superblock's sequence number.
    sequence: AtomicU64,
    /// The superblock found when the file was opened, with its number, until it is known to be durable,
    /// and the other one's place fit for the next (I10, I17).
    unsettled: Mutex<Option<(u64, AlignedBuf)>>,
    settled: AtomicBool,
    /// The first failure after which nothing more is published.
    poison: OnceLock<String>,
    /// Pages of unreadable leaves of the page map, in a file that is opened read-only.
    pub(crate) lost_leaves: Vec<(std::ops::Range<PageId>, StoreError)>,
    /// Whether a sync failed.
    unsynced_lost: AtomicBool,
    /// Whether the file could not be extended for the sake of spares since the newest checkpoint.
    cannot_grow: AtomicBool,
    pub(crate) written: WriteCounters,
    unsynced: Unsynced,
    /// Its name in messages, unless that is [`FILE_NAME`].
    name: OnceLock<String>,
}

fn damaged(what: &str, location: String) -> StoreError {
    StoreError::Corrupted {
        what: what.into(),
        location,
    }
}

impl DataFile {
    pub(crate) fn create(device: Arc<dyn Device>, identity: u128) -> Result<Self, StoreError> {
        let made = device.open(FILE_NAME, braid_io::OpenMode::CreateNew);
        let file = made.map_err(|e| StoreError::io("cannot create data.braid", e))?;
        // A published checkpoint is useless in a file whose name is lost.
        device
            .sync_directory()
            .map_err(|e| StoreError::io("cannot sync the directory of data.braid", e))?;
        let mut this = Self::assemble(device, file);
        this.identity = identity;
        this.write_first_superblock()?;
        Ok(this)
    }

    pub(crate) fn assemble(device: Arc<dyn Device>, file: Arc<dyn File>) -> Self {
        let room = Arc::<Room>::default();
        Self {
            device,
            file,
            identity: 0,
            space: Mutex::new(Space::new(&NumberSet::default(), room.clone())),
            extent: AtomicU64::new(0),
            growing: Mutex::default(),
            holds: Holds::default(),
            room,
            ahead: Ahead::default(),
            extension_waits: Counter::new(0),
            addresses: Addresses::new(),
            sequence: AtomicU64::new(0),
            unsettled: Mutex::new(None),
            settled: AtomicBool::new(true),
            poison: OnceLock::new(),
            lost_leaves: Vec::new(),
            unsynced_lost: AtomicBool::new(false),
            cannot_grow: AtomicBool::new(false),
            written: WriteCounters::default(),
            unsynced: Unsynced::default(),
            name: OnceLock::new(),
        }
    }

    /// Sets the file's name in messages, to distinguish it from others. Only the first call counts.
    pub(crate) fn set_name(&self, name: String) {
        let _ = self.name.set(name);
    }

    /// The file's name in messages.
    pub(crate) fn name(&self) -> &str {
        self.name.get().map_or(FILE_NAME, String::as_str)
    }

    /// Describes the place of a block with an identity in messages.
    fn location(&self, identity: u64, block: u64) -> String {
        let what = match identity {
            id if id & BLOB != 0 => "root blob".to_owned(),
            id if id & MAP != 0 => format!("map leaf {}", id & !MAP),
            id => format!("page {id}"),
        };
        format!("{}, block {block} ({what})", self.name())
    }

    /// The error of a file that would exceed its greatest length.
    fn longest(&self) -> StoreError {
        StoreError::OutOfSpace {
            what: format!("{} has its greatest length, 2 PiB", self.name()),
        }
    }

    /// The error of an operation on the file, which `what` describes up to the file's name.
    fn failed(&self, what: &str, error: io::Error) -> StoreError {
        StoreError::io(format!("{what} {}", self.name()), error)
    }

    /// Sets whether blocks are written by cache line where the device allows that; see
    /// [`lines`](self::lines).
    pub(crate) fn write_lines(&self, on: bool) {
        let on = on && lines::suit(&*self.device);
        self.space.lock().keep_spares(on);
    }

    /// The words of the file, if it is in memory; see [`File::words`].
    pub(crate) fn words(&self) -> Option<&[std::sync::atomic::AtomicU64]> {
        self.file.words()
    }

    /// Checks bytes of the file that were loaded as words, or are about to be.
    #[inline]
    pub(crate) fn check_words(&self, range: std::ops::Range<u64>) -> io::Result<()> {
        self.file.check_words(range)
    }

    pub(crate) fn buffer(&self) -> AlignedBuf {
        AlignedBuf::new(PAGE_SIZE)
    }

    pub(crate) fn len_blocks(&self) -> Result<u64, StoreError> {
        let len = self
            .file
            .len()
            .map_err(|e| self.failed("cannot read the length of", e))?;
        Ok(len / PAGE_SIZE as u64)
    }

    /// The block address of a page as of the durable superblock.
    pub(crate) fn durable_address(&self, id: PageId) -> u64 {
        self.addresses.durable(id)
    }

    /// Reads the block at a block address, and checks that it has the contents written there.
    pub(crate) fn read_block(
        &self,
        identity: u64,
        address: u64,
        sequence: u64,
        buf: &mut [u8],
    ) -> Result<(), StoreError> {
        self.read_unaddressed(identity, address, sequence, buf)?;
        check_address(buf, address)
            .map_err(|what| damaged(what, self.location(identity, block_of(address))))
    }

    /// Reads a page and checks its identity and that it is the newest state.
    pub(crate) fn read_page(
        &self,
        id: PageId,
        address: u64,
        buf: &mut [u8],
    ) -> Result<(), StoreError> {
        if address == LOST {
            return Err(self.lost_page(id));
        }
        let read = self.read_block(id, address, self.newest_of(id, address), buf);
        // The cause first: a write that a failed sync lost also causes a wrong checksum.
        self.check_not_in_doubt(id, address)?;
        read
    }

    fn lost_page(&self, id: PageId) -> StoreError {
        let mut lost = self.lost_leaves.iter();
        let lost = lost.find(|(pages, _)| pages.contains(&id));
        let cause = lost.map_or_else(String::new, |(_, error)| format!(" ({error})"));
        let what = format!("the page map leaf that locates it is lost{cause}");
        StoreError::damaged_page(self.name(), id, what)
    }

    /// The newest checkpoint to which the contents at a page's block address can belong.
    pub(crate) fn newest_of(&self, id: PageId, address: u64) -> u64 {
        // In this order: a publication raises the sequence before it makes its block addresses the
        // durable ones, so a thread that sees such a block address (under its lock) also sees its
        // sequence.
        let is_durable = self.durable_address(id) == address;
        let durable = self.sequence.load(Ordering::Acquire);
        if is_durable { durable } else { durable + 1 }
    }

    /// Reads the blocks at block addresses in one batch, without checks; see [`check`] and
    /// [`check_address`].
    pub(crate) fn read_blocks<'a>(
        &self,
        blocks: impl Iterator<Item = (u64, &'a mut AlignedBuf)>,
    ) -> io::Result<()> {
        let op = |(address, buf): (u64, &'a mut AlignedBuf)| ReadOp {
            buf,
            offset: block_of(address) * PAGE_SIZE as u64,
        };
        let mut ops: Vec<ReadOp<'_>> = blocks.map(op).collect();
        self.file.read_batch(&mut ops)
    }

    /// The number of the durable checkpoint.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// Reads consecutive blocks, without checks.
    pub(crate) fn read_run(&self, first: u64, buf: &mut [u8]) -> io::Result<()> {
        let offset = first.checked_mul(PAGE_SIZE as u64);
        let offset = offset.ok_or(io::ErrorKind::InvalidInput)?;
        self.file.read_at(buf, offset)
    }

    /// Checks bytes that were read from a page's durable block address while the checkpoint
    /// `sequence` was durable: it must still be durable, and nothing was written there meanwhile;
    /// see [`crate::buffer_pool::read_ahead`].
    pub(crate) fn check_durable(
        &self,
        id: PageId,
        address: u64,
        sequence: u64,
        bytes: &[u8],
    ) -> Result<(), &'static str> {
        check(bytes, id, sequence).and_then(|()| check_address(bytes, address))?;
        // In the order of `read_page`.
        if self.durable_address(id) == address && self.sequence() == sequence {
            Ok(())
        } else {
            Err("the checkpoint is not the durable one any more")
        }
    }

    /// Reads pages of the checkpoint of a sequence number from their block addresses, in one batch,
    /// and checks them.
    pub(crate) fn read_pages(
        &self,
        pages: &mut [(PageId, u64, &mut AlignedBuf)],
        sequence: u64,
    ) -> Result<(), StoreError> {
        let read = self.read_blocks(pages.iter_mut().map(|(_, block, buf)| (*block, &mut **buf)));
        read.map_err(|e| self.failed("cannot read pages of", e))?;
        for (id, address, buf) in pages {
            let checked = check(buf, *id, sequence).and_then(|()| check_address(buf, *address));
            checked.map_err(|what| damaged(what, self.location(*id, block_of(*address))))?;
        }
        Ok(())
    }

    /// The checkpoint that blocks written now belong to.
    fn next_sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire) + 1
    }

    /// Records that the next checkpoint's superblock is durable.
    pub(crate) fn set_sequence(&self, sequence: u64) {
        self.sequence.store(sequence, Ordering::Release);
    }

    /// Ends publications, because the durable state is unknown (I8).
    pub(crate) fn poison(&self, cause: &StoreError) {
        let _ = self.poison.set(cause.to_string());
        self.space.lock().freeze();
    }

    /// [`DataFile::poison`] after a failed sync, of which it is unknown which earlier writes it
    /// lost.
    pub(crate) fn poison_unsynced(&self, cause: &StoreError) {
        let _ = self.poison.set(cause.to_string());
        // Release: pairs with `is_in_doubt`, and precedes the lock, which other threads may acquire
        // first.
        self.unsynced_lost.store(true, Ordering::Release);
        self.space.lock().lose_unsynced();
    }

    /// Whether a failed sync may have lost the contents of a page's block address, so that an older
    /// version of the page may lie there. This applies to block addresses that are not durable and
    /// were taken before the sync failed.
    pub(crate) fn is_in_doubt(&self, id: PageId, address: u64) -> bool {
        // Acquire: pairs with `poison_unsynced`.
        self.unsynced_lost.load(Ordering::Acquire)
            && !braid_rt::mutant!("believe_unsynced")
            && self.durable_address(id) != address
            && !self.space.lock().is_taken_since(address)
    }

    /// Fails for a block address that is [in doubt](DataFile::is_in_doubt).
    fn check_not_in_doubt(&self, id: PageId, address: u64) -> Result<(), StoreError> {
        match self.poison.get() {
            Some(cause) if self.is_in_doubt(id, address) => Err(StoreError::Poisoned {
                cause: cause.clone(),
            }),
            _ => Ok(()),
        }
    }

    pub(crate) fn poisoned(&self) -> Option<&String> {
        self.poison.get()
    }

    pub(crate) fn map_identity(index: usize) -> u64 {
        MAP | index as u64
    }

    /// Whether a block holds nothing but zeroes.
    pub(crate) fn is_blank(&self, block: u64) -> bool {
        let mut buf = self.buffer();
        let read = self.file.read_at(&mut buf, block * PAGE_SIZE as u64);
        read.is_ok() && buf.iter().all(|byte| *byte == 0)
    }

    /// Reads a block's identity, the low half of its checkpoint's number, and its block address, if
    /// the block is intact.
    pub(crate) fn read_any_block(&self, block: u64, buf: &mut [u8]) -> Option<(u64, u32, u64)> {
        self.file.read_at(buf, block * PAGE_SIZE as u64).ok()?;
        let identity = u64_at(buf, 8);
        check(buf, identity, u64::MAX).ok()?;
        let stamp = (u64_at(buf, 0) >> 32) as u32;
        Some((identity, stamp, address_of(block, buf)))
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
}
