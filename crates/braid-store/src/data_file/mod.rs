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
mod lines;
mod map;
mod moves;
mod open;
pub(crate) mod room;
mod root;
mod spares;
mod superblock;
mod unsynced;

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

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
use self::block::seal;
use self::free_space::Space;
use self::lines::{Place, WriteCounters};
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

/// Bounds of the blocks by which the file is extended at once, an eighth of its blocks.
const GROWTH_MIN: u64 = 16;
const GROWTH_MAX: u64 = 8192;

/// The part of what a file keeps when its end is cut off, as a divisor, at which it grows again.
const KEPT_LOW: i64 = 16;

/// Blocks that are cut off at once.
const CUT: u64 = 2048;

/// Whether an operation failed only for lack of space.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// The number of blocks by which a file of `blocks` blocks is extended.
fn growth(blocks: u64) -> u64 {
    (blocks / 8).clamp(GROWTH_MIN, GROWTH_MAX)
}

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

    /// Takes a free block for each identity, with room for it in the file: the identity's spare, if
    /// it has one.
    ///
    /// # Errors
    /// [`StoreError::OutOfSpace`] if the file has its greatest length.
    fn allocate(&self, identities: &[u64]) -> Result<Vec<Place>, StoreError> {
        let extent = || self.extent.load(Ordering::Relaxed);
        let mut space = self.space.lock();
        let spares = identities.iter().map(|&id| space.take_spare(id));
        let spares: Vec<Option<u64>> = spares.collect();
        let missing = spares.iter().filter(|spare| spare.is_none()).count();
        let short = space.short_of(missing, extent());
        if short > 0 && !self.cannot_grow.load(Ordering::Relaxed) {
            drop(space);
            self.grow_for_spares(short);
            space = self.space.lock();
        }
        let mut places = Vec::with_capacity(identities.len());
        for &spare in &spares {
            let is_spare = spare.is_some()
                || braid_rt::mutant!("trust_unknown_contents") && space.keeps_spares();
            match spare.or_else(|| space.allocate(extent())) {
                Some(block) => places.push(Place { block, is_spare }),
                None => {
                    let rest = spares[places.len()..].iter().flatten();
                    let taken = places.iter().map(|place| place.block);
                    taken
                        .chain(rest.copied())
                        .for_each(|block| space.free(block));
                    return Err(self.longest());
                }
            }
        }
        drop(space);
        self.make_room(places.iter().map(|place| place.block));
        Ok(places)
    }

    /// Extends the file, so that spares stay with their owners. If the medium refuses, others take
    /// the spares until the next checkpoint.
    fn grow_for_spares(&self, blocks: u64) {
        let _growing = self.growing.lock();
        let end = self.space.lock().end();
        let end = end.max(self.extent.load(Ordering::Relaxed)) + blocks;
        let len = (end + growth(end)).min(BLOCKS_MAX);
        let extended = self.extend(len, false);
        if extended.is_err() || self.extent.load(Ordering::Relaxed) < end.min(BLOCKS_MAX) {
            braid_rt::coverage_point("store: the data file can't grow for spares");
            self.cannot_grow.store(true, Ordering::Relaxed);
        }
    }

    /// Lets the file grow for the sake of spares again.
    pub(crate) fn allow_growth(&self) {
        self.cannot_grow.store(false, Ordering::Relaxed);
    }

    /// Makes the file longer than these blocks need, because the file system serializes writes that
    /// extend a file. [`DataFile::trim`] releases unused blocks.
    fn make_room(&self, blocks: impl Iterator<Item = u64>) {
        let end = blocks.max().map_or(0, |last| last + 1);
        // Relaxed: a thread that reads an old number checks again.
        if end <= self.extent.load(Ordering::Relaxed) {
            return;
        }
        let _growing = self.growing.lock();
        if end > self.extent.load(Ordering::Relaxed) {
            // Without room, the write itself reveals whether there is space.
            let _ = self.extend((end + growth(end)).min(BLOCKS_MAX), false);
        }
    }

    /// Whether there is room to purge a key's obsolete record from its tree. Extends the file if
    /// necessary.
    pub(crate) fn has_room_to_purge(&self, key: &[u8]) -> bool {
        let floor = self.room.for_purge(key.len());
        self.room.surplus() >= floor || self.grow(floor).is_ok()
    }

    /// Extends the file until the surplus is not below a floor. Ignores errors of the medium other
    /// than a lack of space: the next write reports them.
    ///
    /// # Errors
    /// [`StoreError::OutOfSpace`].
    pub(crate) fn grow(&self, floor: i64) -> Result<(), StoreError> {
        let _growing = self.growing.lock();
        let short = floor - self.room.surplus();
        if short <= 0 {
            return Ok(());
        }
        let end = self.space.lock().end();
        let extent = self.extent.load(Ordering::Relaxed);
        let least = (extent + short.unsigned_abs()).max(end);
        if least > BLOCKS_MAX {
            return Err(self.longest());
        }
        let extended = match self.extend((least + growth(end)).min(BLOCKS_MAX), true) {
            Err(error) if is_full(&error) => self.extend(least, true),
            extended => extended,
        };
        match extended {
            Err(error) if is_full(&error) => {
                braid_rt::coverage_point("store: the data file can't grow");
                let missing = least.saturating_sub(extent) * PAGE_SIZE as u64;
                let name = self.name();
                let what = format!("{missing} more bytes of {name}, for the pages to be changed");
                Err(StoreError::OutOfSpace { what })
            }
            _ => Ok(()),
        }
    }

    /// Extends the file to at least `blocks` blocks; with `must`, by writing zeroes if the medium
    /// can't allocate space. The caller holds `growing`.
    fn extend(&self, blocks: u64, must: bool) -> io::Result<()> {
        let len = blocks * PAGE_SIZE as u64;
        match self.file.reserve(len) {
            Err(error) if is_full(&error) || !must => return Err(error),
            _ => {}
        }
        if self.file.len()? < len {
            if !must {
                return Ok(());
            }
            // No thread takes blocks from the end on meanwhile; blocks before it may be being
            // written.
            let space = self.space.lock();
            let from = self.file.len()?.max(space.end() * PAGE_SIZE as u64);
            if from < len {
                self.file.fill_zero(from..len)?;
            }
        }
        let before = self.extent.fetch_max(blocks, Ordering::Relaxed);
        self.room.add(blocks.saturating_sub(before));
        self.note_growth(blocks);
        Ok(())
    }

    /// Takes `blocks` blocks from the surplus, for pages without promised room. The caller returns
    /// them to the surplus once it has allocated the blocks.
    ///
    /// # Errors
    /// [`StoreError::OutOfSpace`].
    pub(crate) fn claim(&self, blocks: u64) -> Result<(), StoreError> {
        if self.room.take(blocks) >= 0 {
            return Ok(());
        }
        self.grow(0).inspect_err(|_| self.room.add(blocks))
    }

    /// Writes a page to a free block; returns its block address.
    pub(crate) fn write_page(&self, id: PageId, buf: &mut [u8]) -> Result<u64, StoreError> {
        let written = self.write_run(&[id], buf).inspect_err(|_| {
            braid_rt::coverage_point("store: an evicted page can't be written");
        });
        Ok(written?[0])
    }

    /// Seals and writes blocks, in one batch; returns their block addresses.
    pub(crate) fn write_blocks(
        &self,
        blocks: &mut [(u64, AlignedBuf)],
    ) -> Result<Vec<u64>, StoreError> {
        self.settle()?;
        let identities: Vec<u64> = blocks.iter().map(|(identity, _)| *identity).collect();
        let places = self.allocate(&identities)?;
        let sequence = self.next_sequence();
        blocks
            .iter_mut()
            .for_each(|(identity, buf)| seal(buf, *identity, sequence));
        let bufs: Vec<&[u8]> = blocks.iter().map(|(_, buf)| &buf[..PAGE_SIZE]).collect();
        self.write_to_places(&bufs, &places)
    }

    /// Seals and writes the pages that follow each other in a buffer; returns their block
    /// addresses.
    pub(crate) fn write_run(&self, ids: &[PageId], buf: &mut [u8]) -> Result<Vec<u64>, StoreError> {
        self.write_run_in_pieces(ids, buf, ids.len(), &|_| {})
    }

    /// As [`DataFile::write_run`], `piece` pages at once. Calls `written` after each piece, with the
    /// time at which the piece began.
    pub(crate) fn write_run_in_pieces(
        &self,
        ids: &[PageId],
        buf: &mut [u8],
        piece: usize,
        written: &dyn Fn(Instant),
    ) -> Result<Vec<u64>, StoreError> {
        self.settle()?;
        let places = self.allocate(ids)?;
        let sequence = self.next_sequence();
        let mut addresses = Vec::with_capacity(ids.len());
        let piece = piece.max(1);
        let pieces = ids.chunks(piece).zip(buf.chunks_mut(piece * PAGE_SIZE));
        for ((ids, buf), of_piece) in pieces.zip(places.chunks(piece)) {
            let begun = braid_rt::now();
            for (&id, page) in ids.iter().zip(buf.chunks_exact_mut(PAGE_SIZE)) {
                seal(page, id, sequence);
            }
            let images: &[&[u8]] = &[buf];
            if let Err(error) = self.write_images(images, of_piece) {
                return Err(self.not_written(&places, error));
            }
            let placed = lines::placed(images, of_piece);
            addresses.extend(placed.map(|(image, place)| address_of(place.block, image)));
            written(begun);
        }
        Ok(addresses)
    }

    /// Writes sealed images to the places that were taken for them; each buffer contains one or more.
    /// After an error, the places are free again, and nothing is known about their contents. Returns
    /// the block addresses.
    fn write_to_places(&self, bufs: &[&[u8]], places: &[Place]) -> Result<Vec<u64>, StoreError> {
        if let Err(error) = self.write_images(bufs, places) {
            return Err(self.not_written(places, error));
        }
        let written = lines::placed(bufs, places);
        Ok(written
            .map(|(image, place)| address_of(place.block, image))
            .collect())
    }

    /// Frees the places of images of which some could not be written.
    fn not_written(&self, places: &[Place], error: io::Error) -> StoreError {
        let blocks: Vec<u64> = places.iter().map(|place| place.block).collect();
        self.free(&blocks);
        self.failed("cannot write pages to", error)
    }

    /// Frees blocks that nothing refers to.
    pub(crate) fn free(&self, blocks: &[u64]) {
        if blocks.is_empty() {
            return;
        }
        let mut space = self.holds.space.of(self.space.lock());
        blocks.iter().for_each(|&block| space.free(block));
    }

    /// Frees blocks that nothing refers to, each of which has the last contents that were written
    /// for the identity; see [`Space::free_as_spare`].
    pub(crate) fn free_as_spares(&self, blocks: &[(u64, u64)]) {
        if blocks.is_empty() {
            return;
        }
        let mut space = self.holds.space.of(self.space.lock());
        for &(identity, block) in blocks {
            space.free_as_spare(identity, block);
        }
    }

    /// Gives up the spares of identities that no longer exist.
    pub(crate) fn forget_spares(&self, identities: &[u64]) {
        if identities.is_empty() {
            return;
        }
        let mut space = self.holds.space.of(self.space.lock());
        identities.iter().for_each(|&id| space.forget_spare(id));
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

    /// Cuts off the free tail, except the blocks that keep the surplus at a floor. Commits wait neither
    /// for the cut nor, if the floor is not negative, for the file to be extended afterwards.
    pub(crate) fn trim_to(&self, floor: i64) -> Result<(), StoreError> {
        let growing = self.growing.lock();
        while self.holds.space.of(self.space.lock()).trim_some() {}
        let (rest, cut_off) = {
            let mut space = self.holds.space.of(self.space.lock());
            let extent = self.extent.load(Ordering::Relaxed);
            let spare = self.room.take_down_to(floor);
            let blocks = space.trim().max(extent.saturating_sub(spare));
            // Under the lock, and before the file is cut without it: a thread that takes a block
            // from the tail afterwards finds that the file is too short, and waits for `growing`.
            if blocks < extent {
                self.extent.store(blocks, Ordering::Relaxed);
            }
            let cut_off = extent.saturating_sub(blocks);
            // What is left is room for the next transactions: the file is not to grow again before
            // they have used it.
            let low = self.room.low();
            self.room.set_low(low.min(floor / KEPT_LOW).max(0));
            (spare - cut_off, cut_off)
        };
        drop(growing);
        if braid_rt::mutant!("hold_room_during_the_cut") {
            self.room.take(cut_off);
            let cut = self.cut();
            self.room.add(rest + cut_off);
            return cut;
        }
        // Before the cut: commits that find a surplus do not wait for its end.
        self.room.add(rest);
        self.cut()
    }

    /// Shortens the file to the blocks that it is known to have, or that are in use.
    fn cut(&self) -> Result<(), StoreError> {
        while self.cut_some()? {}
        Ok(())
    }

    /// Cuts off the unneeded tail of a file with `pages` pages. Keeps room for `expected` changed
    /// pages, within a limit: otherwise, the next transactions would have to extend the file again.
    pub(crate) fn trim(&self, pages: u64, expected: u64) -> Result<(), StoreError> {
        self.trim_to(if !self.room.has_writers() {
            self.room.lowest(pages)
        } else if braid_rt::mutant!("cut_off_what_commits_need") {
            0
        } else {
            // A quarter more, so that transactions like the last ones do not make the file grow.
            (expected + expected / 4).min(GROWTH_MAX).cast_signed()
        })
    }

    /// Shortens the file by a part of what it is too long. Returns whether there may be more: file
    /// systems take long for large parts, and others may wait to extend the file.
    fn cut_some(&self) -> Result<bool, StoreError> {
        let _growing = self.growing.lock();
        let extent = self.extent.load(Ordering::Relaxed);
        // No block after the end is in use. A thread that takes one afterwards waits for `growing`.
        let least = self.space.lock().end().max(extent);
        let len = self.len_blocks()?;
        if len <= least {
            return Ok(false);
        }
        braid_rt::coverage_point("store: the data file's end is cut off");
        let to = least.max(len.saturating_sub(CUT));
        let cut = self.file.set_len(to * PAGE_SIZE as u64);
        cut.map_err(|e| self.failed("cannot shorten", e))?;
        Ok(to > least)
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
}
