//! The data file: blocks with checksum and identity, the page map, the two superblocks.
//!
//! ```text
//! block 0, 1     superblocks: [crc u32 | sequence u32][magic][format u64][sequence u64][root blob: first
//!                block, length][0..]
//! other blocks   [crc u32 | sequence u32][identity u64] and then
//!                  a page      identity = page id                   (see `node`)
//!                  a map leaf  identity = MAP | index               1022 entries: places of pages, births
//!                  a blob      identity = BLOB | position in it     [next block u64][bytes]
//! ```
//!
//! The CRC-32C covers the block from byte 4 on. The sequence is that of the checkpoint that was to follow
//! when the block was written: a block newer than the superblock that leads to it shows that the newest
//! superblock was lost. The root blob holds the next page id, the places of the
//! map's leaves, the roots of the trees and the caller's bytes.
//!
//! # Which superblock counts, when it is in doubt
//!
//! A superblock is written after a sync of all that it leads to. Whether it is durable itself may be
//! unknown: its write failed, or the process ended before it was flushed, and then the next process reads
//! it from the system's cache. Until that is settled, the blocks of both states must stay. So a failed
//! publication freezes the free space (nothing comes free, I8), and a store that was opened writes the
//! superblock that it found once more, durably, before the first other write ([`DataFile::settle`]).

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use braid_io::{AlignedBuf, Device, File, ReadOp, WriteOp};
use braid_rt::Mutex;

use crate::error::StoreError;
use crate::page::{PAGE_SIZE, PageId};
use crate::space::{FIRST_BLOCK, Space};
use crate::table::{PAGES_MAX, PageTable};

pub(crate) const FILE_NAME: &str = "data.braid";
const MAGIC: [u8; 8] = *b"BRAIDDB\x01";

/// The format of the data file that this version reads and writes.
pub const FORMAT: u64 = 3;

/// The format before: its map leaves say no births.
const FORMAT_WITHOUT_BIRTHS: u64 = 2;

pub(crate) const MAP: u64 = 1 << 62;
pub(crate) const BLOB: u64 = 1 << 63;

/// Places in one map leaf.
pub(crate) const LEAF_PLACES: usize = PAGE_SIZE / 8 - 2;
const BLOB_BYTES: usize = PAGE_SIZE - 24;

/// Bits of a map entry that hold the block; those above hold the page's birth.
const BLOCK_BITS: u32 = 36;

/// An entry of the page map: a block, and the low bits of the number of the checkpoint that wrote it there.
/// Blocks are used again, but a page's entry is another one whenever its contents are: that is how an
/// incremental backup knows what changed without reading it.
pub(crate) fn map_entry(block: u64, born: u64) -> u64 {
    match block {
        0 => 0,
        block => born << BLOCK_BITS | block,
    }
}

/// The block of a map entry.
pub(crate) fn block_of(entry: u64) -> u64 {
    entry & ((1 << BLOCK_BITS) - 1)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Stamps a block with its identity, the checkpoint that it belongs to, and its checksum.
fn seal(block: &mut [u8], identity: u64, sequence: u64) {
    block[8..16].copy_from_slice(&identity.to_le_bytes());
    block[4..8].copy_from_slice(&(sequence as u32).to_le_bytes());
    let crc = crc32c::crc32c(&block[4..]);
    block[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Whether a block is whole, is what it should be, and is no newer than `sequence`.
pub(crate) fn check(block: &[u8], identity: u64, sequence: u64) -> Result<(), &'static str> {
    let stamp = u64_at(block, 0);
    if stamp as u32 != crc32c::crc32c(&block[4..]) && !braid_rt::mutant!("skip_page_checksum") {
        return Err("the checksum does not fit");
    }
    if u64_at(block, 8) != identity {
        return Err("another block's contents are in its place");
    }
    if (stamp >> 32) as u32 > sequence as u32 {
        return Err("it is newer than the superblock that leads to it; the newest one is lost");
    }
    Ok(())
}

/// Whether a block that was read elsewhere is whole, and that page.
pub(crate) fn check_copied(block: &[u8], id: PageId) -> Result<(), &'static str> {
    check(block, id, u64::from(u32::MAX))
}

/// What the newest superblock leads to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Root {
    pub(crate) sequence: u64,
    pub(crate) next_page: PageId,
    pub(crate) leaf_places: Vec<u64>,
    pub(crate) trees: BTreeMap<u32, PageId>,
    pub(crate) meta: Vec<u8>,
    /// The blocks that the root blob itself takes.
    pub(crate) blob_blocks: Vec<u64>,
}

impl Root {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |n: u64| out.extend(n.to_le_bytes());
        put(self.next_page);
        put(self.leaf_places.len() as u64);
        self.leaf_places.iter().for_each(|&place| put(place));
        put(self.trees.len() as u64);
        for (&tree, &root) in &self.trees {
            put(u64::from(tree));
            put(root);
        }
        put(self.meta.len() as u64);
        out.extend(&self.meta);
        out
    }

    pub(crate) fn decode(mut bytes: &[u8], sequence: u64, blob_blocks: Vec<u64>) -> Option<Self> {
        let mut take = || {
            let (number, rest) = bytes.split_first_chunk()?;
            bytes = rest;
            Some(u64::from_le_bytes(*number))
        };
        let next_page = take()?;
        let leaves = take()?;
        if next_page > PAGES_MAX || leaves > PAGES_MAX {
            return None;
        }
        let leaf_places = (0..leaves).map(|_| take()).collect::<Option<_>>()?;
        let trees = take()?;
        let tree = |_| Some((u32::try_from(take()?).ok()?, take()?));
        let trees = (0..trees).map(tree).collect::<Option<_>>()?;
        let meta_len = usize::try_from(take()?).ok()?;
        let meta = bytes.get(..meta_len)?.to_vec();
        Some(Self {
            sequence,
            next_page,
            leaf_places,
            trees,
            meta,
            blob_blocks,
        })
    }
}

/// By how many blocks the file is extended at once: an eighth of what it has, between these.
const GROWTH_MIN: u64 = 16;
const GROWTH_MAX: u64 = 8192;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct DataFile {
    device: Arc<dyn Device>,
    file: Arc<dyn File>,
    pub(crate) space: Mutex<Space>,
    /// Blocks that the file is known to have room for.
    room: AtomicU64,
    /// The page map as of the durable superblock.
    pub(crate) durable: PageTable,
    /// The durable superblock's sequence number.
    sequence: AtomicU64,
    /// The superblock that was found when the file was opened, as long as it is perhaps not durable.
    unsettled: Mutex<Option<(u64, AlignedBuf)>>,
    settled: AtomicBool,
    /// The first failure after which nothing more is published.
    poison: OnceLock<String>,
}

/// The format that a device's data file says it has: that of its newest superblock that is whole.
///
/// # Errors
/// [`StoreError::Io`]; [`StoreError::Corrupted`] if no superblock is whole.
pub fn data_format(device: &dyn Device) -> Result<u64, StoreError> {
    let opened = device.open(FILE_NAME, braid_io::OpenMode::Existing);
    let file = opened.map_err(|e| StoreError::io("opening data.braid", e))?;
    let mut newest = None;
    for slot in 0..2 {
        let mut buf = AlignedBuf::new(PAGE_SIZE);
        let read = file.read_at(&mut buf, slot * PAGE_SIZE as u64);
        if read.is_ok() && check(&buf, u64::from_le_bytes(MAGIC), u64::MAX).is_ok() {
            newest = newest.max(Some((u64_at(&buf, 24), u64_at(&buf, 16))));
        }
    }
    let none = || damaged("no superblock", "data.braid".into());
    newest.map(|(_, format)| format).ok_or_else(none)
}

fn damaged(what: &str, location: String) -> StoreError {
    StoreError::Corrupted {
        what: what.into(),
        location,
    }
}

impl DataFile {
    pub(crate) fn create(device: Arc<dyn Device>) -> Result<Self, StoreError> {
        let made = device.open(FILE_NAME, braid_io::OpenMode::CreateNew);
        let file = made.map_err(|e| StoreError::io("creating data.braid", e))?;
        // A published checkpoint is worth nothing in a file whose name is lost.
        device
            .sync_directory()
            .map_err(|e| StoreError::io("syncing the directory of data.braid", e))?;
        Ok(Self::assemble(device, file))
    }

    pub(crate) fn assemble(device: Arc<dyn Device>, file: Arc<dyn File>) -> Self {
        Self {
            device,
            file,
            space: Mutex::new(Space::new(std::iter::empty())),
            room: AtomicU64::new(0),
            durable: PageTable::new(),
            sequence: AtomicU64::new(0),
            unsettled: Mutex::new(None),
            settled: AtomicBool::new(true),
            poison: OnceLock::new(),
        }
    }

    /// Opens the file; returns the state of its newest superblock and the page map.
    pub(crate) fn open(device: Arc<dyn Device>) -> Result<(Self, Root, Vec<u64>), StoreError> {
        let opened = device.open(FILE_NAME, braid_io::OpenMode::Existing);
        let file = opened.map_err(|e| StoreError::io("opening data.braid", e))?;
        let this = Self::assemble(device, file);
        let (root, superblock) = this.read_root()?;
        this.sequence.store(root.sequence, Ordering::Release);
        *this.unsettled.lock() = Some((root.sequence % 2 * PAGE_SIZE as u64, superblock));
        this.settled.store(false, Ordering::Release);
        // Ids and leaves go together, or the first checkpoint would write leaves for ids that nobody drew.
        if root.next_page == 0
            || root.leaf_places.len() as u64 != root.next_page.div_ceil(LEAF_PLACES as u64)
        {
            // Only of a root whose checksum fits and that no checkpoint wrote, as what else is refused below.
            let what = "the page map has too many or too few leaves";
            return Err(damaged(what, "data.braid".into()));
        }
        let mut places = Vec::new();
        let mut used = root.blob_blocks.clone();
        let mut buf = this.buffer();
        for (index, &block) in root.leaf_places.iter().enumerate() {
            this.read_block(MAP | index as u64, block, root.sequence, &mut buf)?;
            used.push(block);
            places.extend((0..LEAF_PLACES).map(|i| u64_at(&buf, 16 + 8 * i)));
        }
        places.truncate(root.next_page as usize);
        if places[0] != 0 {
            return Err(damaged("page 0 has a place", "the page map".into()));
        }
        let exists = |page: &PageId| places.get(*page as usize).is_some_and(|place| *place != 0);
        if let Some((tree, page)) = root.trees.iter().find(|(_, page)| !exists(page)) {
            let what = format!("tree {tree} has no root");
            return Err(damaged(&what, format!("data.braid, page {page}")));
        }
        for (id, place) in places
            .iter_mut()
            .enumerate()
            .filter(|(_, place)| **place != 0)
        {
            this.durable
                .get_or_make(id as u64)
                .store(*place, Ordering::Relaxed);
            *place = block_of(*place);
            used.push(*place);
        }
        let blocks = this.len_blocks()?;
        if let Some(block) = used
            .iter()
            .find(|block| !(FIRST_BLOCK..blocks).contains(block))
        {
            return Err(damaged(
                "the page map leads beyond the file",
                format!("block {block}"),
            ));
        }
        let count = used.len();
        used.sort_unstable();
        used.dedup();
        if used.len() != count {
            return Err(damaged("two pages share a block", "the page map".into()));
        }
        *this.space.lock() = Space::new(used.into_iter());
        Ok((this, root, places))
    }

    pub(crate) fn buffer(&self) -> AlignedBuf {
        AlignedBuf::new(PAGE_SIZE)
    }

    pub(crate) fn len_blocks(&self) -> Result<u64, StoreError> {
        let len = self
            .file
            .len()
            .map_err(|e| StoreError::io("the length of data.braid", e))?;
        Ok(len / PAGE_SIZE as u64)
    }

    /// Where a page lies as of the durable superblock.
    pub(crate) fn durable_place(&self, id: PageId) -> u64 {
        block_of(self.durable_entry(id))
    }

    /// A page's entry in the map of the durable superblock.
    pub(crate) fn durable_entry(&self, id: PageId) -> u64 {
        self.durable
            .get(id)
            .map_or(0, |entry| entry.load(Ordering::Acquire))
    }

    pub(crate) fn read_block(
        &self,
        identity: u64,
        block: u64,
        sequence: u64,
        buf: &mut [u8],
    ) -> Result<(), StoreError> {
        let location = || {
            let what = match identity {
                id if id & BLOB != 0 => "root blob".to_owned(),
                id if id & MAP != 0 => format!("map leaf {}", id & !MAP),
                id => format!("page {id}"),
            };
            format!("data.braid, block {block} ({what})")
        };
        let offset = block.checked_mul(PAGE_SIZE as u64);
        let offset = offset.ok_or_else(|| damaged("a block number beyond the file", location()))?;
        let read = self.file.read_at(buf, offset);
        read.map_err(|e| StoreError::io(format!("reading {}", location()), e))?;
        check(buf, identity, sequence).map_err(|what| damaged(what, location()))
    }

    /// Reads a page and checks that it is the one.
    pub(crate) fn read_page(
        &self,
        id: PageId,
        place: u64,
        buf: &mut [u8],
    ) -> Result<(), StoreError> {
        self.read_block(id, place, self.newest_of(id, place), buf)
    }

    /// The newest checkpoint that what lies at a page's place can be of.
    pub(crate) fn newest_of(&self, id: PageId, place: u64) -> u64 {
        // In this order: a publication raises the sequence before it makes its places the durable ones, so
        // who sees such a place (Acquire in `durable_place`) sees the sequence that goes with it.
        let is_durable = self.durable_place(id) == place;
        let durable = self.sequence.load(Ordering::Acquire);
        if is_durable { durable } else { durable + 1 }
    }

    /// Reads blocks from anywhere in one batch. Nothing is checked; see [`check`].
    pub(crate) fn read_blocks<'a>(
        &self,
        blocks: impl Iterator<Item = (u64, &'a mut AlignedBuf)>,
    ) -> io::Result<()> {
        let op = |(block, buf): (u64, &'a mut AlignedBuf)| {
            let offset = block.checked_mul(PAGE_SIZE as u64);
            let offset = offset.ok_or(io::ErrorKind::InvalidInput)?;
            Ok(ReadOp { buf, offset })
        };
        let mut ops: Vec<ReadOp<'_>> = blocks.map(op).collect::<io::Result<_>>()?;
        self.file.read_batch(&mut ops)
    }

    /// The number of the durable checkpoint.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// Reads blocks that lie one after the other. Nothing is checked.
    pub(crate) fn read_run(&self, first: u64, buf: &mut [u8]) -> io::Result<()> {
        let offset = first.checked_mul(PAGE_SIZE as u64);
        let offset = offset.ok_or(io::ErrorKind::InvalidInput)?;
        self.file.read_at(buf, offset)
    }

    /// Checks what was read of a page's durable place since the checkpoint of a sequence number was the durable
    /// one: that it still is, and that nothing was written there meanwhile; see [`crate::read_ahead`].
    pub(crate) fn check_durable(
        &self,
        id: PageId,
        place: u64,
        sequence: u64,
        bytes: &[u8],
    ) -> Result<(), &'static str> {
        check(bytes, id, sequence)?;
        // In the order of `read_page`.
        match self.durable_place(id) == place && self.sequence() == sequence {
            true => Ok(()),
            false => Err("the checkpoint is not the durable one any more"),
        }
    }

    /// Reads pages of the checkpoint of a sequence number from their blocks, in one batch, and checks them.
    pub(crate) fn read_pages(
        &self,
        pages: &mut [(PageId, u64, &mut AlignedBuf)],
        sequence: u64,
    ) -> Result<(), StoreError> {
        let read = self.read_blocks(pages.iter_mut().map(|(_, block, buf)| (*block, &mut **buf)));
        read.map_err(|e| StoreError::io("reading pages of data.braid", e))?;
        for (id, block, buf) in pages {
            let location = || format!("data.braid, block {block} (page {id})");
            check(buf, *id, sequence).map_err(|what| damaged(what, location()))?;
        }
        Ok(())
    }

    /// The checkpoint that blocks written now belong to.
    fn next_sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire) + 1
    }

    /// Notes that the next checkpoint's superblock is durable.
    pub(crate) fn set_sequence(&self, sequence: u64) {
        self.sequence.store(sequence, Ordering::Release);
    }

    /// Makes the superblock that the file was opened with durable, before anything else is written; see
    /// the module's text.
    fn settle(&self) -> Result<(), StoreError> {
        // Acquire: pairs with the Release below.
        if self.settled.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut unsettled = self.unsettled.lock();
        if let Some((offset, superblock)) = &*unsettled {
            braid_rt::reach("store: the superblock that was found is made durable");
            let written = self.file.write_durable_at(&[superblock], *offset);
            written.map_err(|e| StoreError::io("rewriting the superblock of data.braid", e))?;
        }
        *unsettled = None;
        // Release: the superblock is durable before anybody goes on without asking.
        self.settled.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends publications: what is durable is not known any more (I8).
    pub(crate) fn poison(&self, cause: &StoreError) {
        let _ = self.poison.set(cause.to_string());
        self.space.lock().freeze();
    }

    pub(crate) fn poisoned(&self) -> Option<&String> {
        self.poison.get()
    }

    /// Takes free blocks, with room for them in the file.
    fn allocate(&self, count: usize) -> Vec<u64> {
        let places: Vec<u64> = {
            let mut space = self.space.lock();
            (0..count).map(|_| space.allocate()).collect()
        };
        self.make_room(&places);
        places
    }

    /// Makes the file longer than these blocks need, since writes that extend a file go one after the other, each
    /// waiting for the one before it. [`DataFile::trim`] gives back what was not used.
    fn make_room(&self, places: &[u64]) {
        let end = places.iter().max().map_or(0, |last| last + 1);
        // Relaxed: who finds an old number extends the file to where it is.
        if end <= self.room.load(Ordering::Relaxed) {
            return;
        }
        let room = end + (end / 8).clamp(GROWTH_MIN, GROWTH_MAX);
        // Without room the write itself finds out whether there is space.
        if self.file.reserve(room * PAGE_SIZE as u64).is_ok() {
            self.room.fetch_max(room, Ordering::Relaxed);
        }
    }

    /// Writes a page to a free block; returns it.
    pub(crate) fn write_page(&self, id: PageId, buf: &mut [u8]) -> Result<u64, StoreError> {
        self.settle()?;
        seal(buf, id, self.next_sequence());
        let place = self.space.lock().allocate();
        self.make_room(&[place]);
        let offset = place * PAGE_SIZE as u64;
        if let Err(error) = self.file.write_at(&[buf], offset) {
            braid_rt::reach("store: an evicted page can't be written");
            self.space.lock().free(place);
            return Err(StoreError::io("writing a page to data.braid", error));
        }
        Ok(place)
    }

    /// Seals and writes blocks to free places, in one batch.
    pub(crate) fn write_blocks(
        &self,
        blocks: &mut [(u64, AlignedBuf)],
    ) -> Result<Vec<u64>, StoreError> {
        self.settle()?;
        let places = self.allocate(blocks.len());
        let sequence = self.next_sequence();
        blocks
            .iter_mut()
            .for_each(|(identity, buf)| seal(buf, *identity, sequence));
        let ops: Vec<WriteOp<'_>> = blocks
            .iter()
            .zip(&places)
            .map(|((_, buf), place)| WriteOp {
                buf,
                offset: place * PAGE_SIZE as u64,
            })
            .collect();
        if let Err(error) = self.file.write_batch(&ops) {
            self.free(&places);
            return Err(StoreError::io("writing pages to data.braid", error));
        }
        Ok(places)
    }

    /// Seals and writes the pages that follow each other in a buffer to free places; returns these.
    pub(crate) fn write_run(&self, ids: &[PageId], buf: &mut [u8]) -> Result<Vec<u64>, StoreError> {
        self.settle()?;
        let places = self.allocate(ids.len());
        let sequence = self.next_sequence();
        for (&id, page) in ids.iter().zip(buf.chunks_exact_mut(PAGE_SIZE)) {
            seal(page, id, sequence);
        }
        let mut rest = &buf[..];
        let runs = places.chunk_by(|a, b| a + 1 == *b).map(|run| {
            let (buf, behind) = rest.split_at(run.len() * PAGE_SIZE);
            rest = behind;
            let offset = run[0] * PAGE_SIZE as u64;
            WriteOp { buf, offset }
        });
        let written = match &runs.collect::<Vec<_>>()[..] {
            // Mostly all places follow each other, too. A plain write has less to set up than a batch of one.
            [run] => self.file.write_at(&[run.buf], run.offset),
            runs => self.file.write_batch(runs),
        };
        if let Err(error) = written {
            self.free(&places);
            return Err(StoreError::io("writing pages to data.braid", error));
        }
        Ok(places)
    }

    /// Gives blocks back that nothing refers to.
    pub(crate) fn free(&self, blocks: &[u64]) {
        let mut space = self.space.lock();
        blocks.iter().for_each(|&block| space.free(block));
    }

    pub(crate) fn map_identity(index: usize) -> u64 {
        MAP | index as u64
    }

    /// Writes the root blob; returns its first block. On an error nothing stays allocated.
    pub(crate) fn write_blob(&self, root: &mut Root) -> Result<(u64, u64), StoreError> {
        let bytes = root.encode();
        let mut next = 0u64;
        // From the last to the first, since each names the one after it.
        for (i, part) in bytes.chunks(BLOB_BYTES).enumerate().rev() {
            let mut buf = self.buffer();
            buf[16..24].copy_from_slice(&next.to_le_bytes());
            buf[24..24 + part.len()].copy_from_slice(part);
            match self.write_blocks(&mut [(BLOB | i as u64, buf)]) {
                Ok(places) => next = places[0],
                Err(error) => {
                    braid_rt::reach("store: the root can't be written");
                    let mut space = self.space.lock();
                    root.blob_blocks
                        .drain(..)
                        .for_each(|block| space.free(block));
                    return Err(error);
                }
            }
            root.blob_blocks.push(next);
        }
        Ok((next, bytes.len() as u64))
    }

    /// Makes everything durable that was written, and then the superblock that leads to a root blob.
    ///
    /// Any failure poisons the file, one for lack of space too: a sync that failed says nothing about
    /// which writes it lost, and a superblock whose write failed may be on the medium all the same.
    pub(crate) fn write_superblock(
        &self,
        root: &Root,
        (blob, blob_len): (u64, u64),
    ) -> Result<(), StoreError> {
        if !braid_rt::mutant!("superblock_before_pages") {
            let synced = self.file.sync().map_err(|error| {
                braid_rt::reach("store: poisoned by a sync");
                let error = StoreError::io("syncing data.braid", error);
                self.poison(&error);
                error
            });
            if !braid_rt::mutant!("ignore_sync_error") {
                synced?;
            }
        }
        let mut buf = self.buffer();
        buf[16..24].copy_from_slice(&FORMAT.to_le_bytes());
        buf[24..32].copy_from_slice(&root.sequence.to_le_bytes());
        buf[32..40].copy_from_slice(&blob.to_le_bytes());
        buf[40..48].copy_from_slice(&blob_len.to_le_bytes());
        seal(&mut buf, u64::from_le_bytes(MAGIC), root.sequence);
        let slot = root.sequence % 2 * PAGE_SIZE as u64;
        self.file.write_durable_at(&[&buf], slot).map_err(|error| {
            braid_rt::reach("store: poisoned by a superblock's write");
            let error = StoreError::io("writing the superblock of data.braid", error);
            self.poison(&error);
            error
        })
    }

    /// One superblock: sequence number, blob and its length, and all its bytes.
    pub(crate) fn read_superblock(
        &self,
        slot: u64,
    ) -> Result<(u64, u64, u64, AlignedBuf), StoreError> {
        let location = || format!("data.braid, superblock {slot}");
        let mut buf = self.buffer();
        let read = self.file.read_at(&mut buf, slot * PAGE_SIZE as u64);
        read.map_err(|e| StoreError::io(format!("reading {}", location()), e))?;
        if buf[8..16] != MAGIC {
            return Err(damaged("no superblock of a Braid database", location()));
        }
        check(&buf, u64::from_le_bytes(MAGIC), u64::MAX)
            .map_err(|what| damaged(what, location()))?;
        let format = u64_at(&buf, 16);
        if format != FORMAT && format != FORMAT_WITHOUT_BIRTHS {
            return Err(StoreError::Incompatible {
                what: format!(
                    "data.braid has format {format}, this build reads {FORMAT}; use a matching version"
                ),
            });
        }
        let (sequence, blob, len) = (u64_at(&buf, 24), u64_at(&buf, 32), u64_at(&buf, 40));
        // Half of the numbers are each slot's, and the last of all has no successor.
        if sequence % 2 != slot || sequence > u64::MAX / 2 {
            let what = "the checkpoint's number does not belong there";
            return Err(damaged(what, location()));
        }
        Ok((sequence, blob, len, buf))
    }

    /// The newest root, and its superblock's bytes.
    fn read_root(&self) -> Result<(Root, AlignedBuf), StoreError> {
        let mut candidates = Vec::new();
        let mut first_error = None;
        for slot in 0..2 {
            match self.read_superblock(slot) {
                Ok(superblock) => candidates.push(superblock),
                Err(error @ StoreError::Incompatible { .. }) => return Err(error),
                Err(error) => {
                    braid_rt::reach("store: a superblock that is none");
                    first_error = first_error.or(Some(error));
                }
            }
        }
        if candidates.len() == 2 {
            braid_rt::reach("store: the newer of two superblocks");
        }
        candidates.sort_unstable_by_key(|(sequence, ..)| *sequence);
        // Only the newest counts: its write was made durable after everything that it leads to, and the
        // other's blocks may have been reused since.
        match (candidates.pop(), first_error) {
            (Some((sequence, block, len, superblock)), _) => {
                Ok((self.read_root_blob(sequence, block, len)?, superblock))
            }
            (None, error) => {
                Err(error.unwrap_or_else(|| damaged("no superblock", "data.braid".into())))
            }
        }
    }

    pub(crate) fn read_root_blob(
        &self,
        sequence: u64,
        first: u64,
        len: u64,
    ) -> Result<Root, StoreError> {
        let mut bytes = Vec::new();
        let mut blocks = Vec::new();
        let mut block = first;
        let mut buf = self.buffer();
        for i in 0..len.div_ceil(BLOB_BYTES as u64) {
            self.read_block(BLOB | i, block, sequence, &mut buf)?;
            blocks.push(block);
            bytes.extend_from_slice(&buf[24..]);
            block = u64_at(&buf, 16);
        }
        bytes.truncate(len as usize);
        Root::decode(&bytes, sequence, blocks)
            .ok_or_else(|| damaged("the root's contents", "data.braid".into()))
    }

    /// Whether a block was never written.
    pub(crate) fn is_blank(&self, block: u64) -> bool {
        let mut buf = self.buffer();
        let read = self.file.read_at(&mut buf, block * PAGE_SIZE as u64);
        read.is_ok() && buf.iter().all(|byte| *byte == 0)
    }

    /// What a block says that it is, and the low half of its checkpoint's number, if it is whole.
    pub(crate) fn read_any_block(&self, block: u64, buf: &mut [u8]) -> Option<(u64, u32)> {
        self.file.read_at(buf, block * PAGE_SIZE as u64).ok()?;
        let identity = u64_at(buf, 8);
        check(buf, identity, u64::MAX).ok()?;
        Some((identity, (u64_at(buf, 0) >> 32) as u32))
    }

    /// Which superblocks can be read, for a report.
    pub(crate) fn superblock_damage(&self) -> Vec<StoreError> {
        // The one that the first checkpoint left alone was never written.
        let written: Vec<u64> = (0..2).filter(|slot| !self.is_blank(*slot)).collect();
        written
            .into_iter()
            .filter_map(|slot| self.read_superblock(slot).err())
            .collect()
    }

    /// Cuts the free tail off.
    pub(crate) fn trim(&self) -> Result<(), StoreError> {
        let mut space = self.space.lock();
        let blocks = space.trim();
        if blocks < self.len_blocks()? {
            braid_rt::reach("store: the data file's end is cut off");
            self.room.store(blocks, Ordering::Relaxed);
            let cut = self.file.set_len(blocks * PAGE_SIZE as u64);
            cut.map_err(|e| StoreError::io("shortening data.braid", e))?;
        }
        Ok(())
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
}

#[cfg(test)]
mod tests {
    use braid_io::{MemoryDevice, OpenMode};

    use super::*;
    use crate::{Store, StoreOptions};

    const OPTIONS: StoreOptions = StoreOptions {
        pool_bytes: 1 << 20,
    };

    /// A file with one checkpoint.
    fn published() -> Arc<MemoryDevice> {
        let device = Arc::new(MemoryDevice::new());
        let store = Store::create(device.clone(), OPTIONS).unwrap();
        store.tree(1).unwrap();
        let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
        checkpoint.write(&|_| {}).unwrap();
        checkpoint.publish().unwrap();
        device
    }

    /// Changes a block, whose checksum fits again then.
    fn change(device: &MemoryDevice, block: u64, edit: impl Fn(&mut [u8])) {
        let file = device.open(FILE_NAME, OpenMode::Existing).unwrap();
        let mut buf = vec![0; PAGE_SIZE];
        file.read_at(&mut buf, block * PAGE_SIZE as u64).unwrap();
        edit(&mut buf);
        let identity = u64_at(&buf, 8);
        seal(&mut buf, identity, 1);
        file.write_at(&[&buf], block * PAGE_SIZE as u64).unwrap();
    }

    fn opened(device: Arc<MemoryDevice>) -> Result<(), String> {
        let opened = Store::open(device, OPTIONS);
        opened.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn a_block_is_whole_in_its_place_and_not_newer_than_what_leads_to_it() {
        let mut block = vec![3; PAGE_SIZE];
        seal(&mut block, 7, 5);
        assert_eq!(check(&block, 7, 5), Ok(()));
        assert!(
            check(&block, 7, 4)
                .unwrap_err()
                .contains("newest one is lost")
        );
        assert!(check(&block, 8, 5).unwrap_err().contains("another block's"));
        block[100] ^= 1;
        assert!(check(&block, 7, 5).unwrap_err().contains("checksum"));
    }

    #[test]
    fn a_root_that_makes_no_sense_is_told() {
        let blob = std::cell::Cell::new(0);
        let put = |buf: &mut [u8], at: usize, n: u64| {
            buf[at..at + 8].copy_from_slice(&n.to_le_bytes());
        };
        for (at, value, what) in [
            // The next page's number; the tree's root behind it, one map leaf and two counts.
            (24, PAGES_MAX / 2, "leaves"),
            (24, 0, "leaves"),
            (24 + 5 * 8, 77, "no root"),
        ] {
            let device = published();
            change(&device, 1, |buf| blob.set(u64_at(buf, 32)));
            change(&device, blob.get(), |buf| put(buf, at, value));
            let error = opened(device).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        for sequence in [2, u64::MAX] {
            let device = published();
            change(&device, 1, |buf| put(buf, 24, sequence));
            let error = opened(device).unwrap_err();
            assert!(error.contains("superblock"), "{error}");
        }
    }
}
