//! A heap in a region: blocks of a few sizes, without a system call for each.
//!
//! After NVWAL (Kim, Kim, Baek, Nam, Won: NVWAL: Exploiting NVRAM in Write-Ahead Logging, ASPLOS
//! 2016). The heap takes large *pieces* from the region and divides each into blocks of one class. A
//! block is free, pending or in use, which a word in the region says:
//!
//! 1. [`Heap::allocate`] makes a block pending, durably.
//! 2. The program fills the block, makes it durable, and stores a persistent pointer to it.
//! 3. [`Heap::publish`] makes the block in use, durably.
//!
//! [`Heap::open`] frees the pending blocks of an earlier opening. So a crash before step 3 leaks
//! nothing. A crash between steps 2 and 3 leaves a pointer to a free block: a program follows a
//! pointer after opening only if its block is [in use](Heap::state), and removes all others before
//! it allocates.
//!
//! Lists of free blocks are in ordinary memory; opening rebuilds them.
//!
//! # Rules
//!
//! - A piece belongs to a class only after its state words are durably free. Otherwise opening would
//!   read what earlier blocks left there.
//! - A state is durable when the call that changed it returns.
//! - Opening makes all states durable before it returns: those of the blocks that it frees, and
//!   those that a killed process stored and did not flush.

mod layout;
#[cfg(test)]
mod tests;

pub use layout::BlockState;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_rt::{Mutex, mutant};

use self::layout::{Layout, class_of, entry_word, load};
use crate::error::{FenceError, MapError, MediaError};
use crate::mapping::Mapping;
use crate::region::{Region, RegionError};

/// Options of [`Heap::create`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeapOptions {
    /// Bytes that are taken from the region at a time: a multiple of 4,096.
    pub piece_size: u64,
    /// Bytes of all pieces that the heap can have.
    pub max_bytes: u64,
    /// Sizes of blocks in bytes: 1 to 16 multiples of 64.
    pub classes: Vec<u64>,
}

impl Default for HeapOptions {
    /// Pieces of 1 MiB, up to 16 GiB; blocks of 256 bytes to 64 KiB.
    fn default() -> Self {
        Self {
            piece_size: 1 << 20,
            max_bytes: 16 << 30,
            classes: (8..=16).map(|bits| 1 << bits).collect(),
        }
    }
}

impl HeapOptions {
    /// Sets [`piece_size`](Self::piece_size).
    #[must_use]
    pub fn piece_size(mut self, bytes: u64) -> Self {
        self.piece_size = bytes;
        self
    }

    /// Sets [`max_bytes`](Self::max_bytes).
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets [`classes`](Self::classes).
    #[must_use]
    pub fn classes(mut self, bytes: &[u64]) -> Self {
        self.classes = bytes.to_vec();
        self
    }
}

/// An error of a heap.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// No free block, and no space for another piece.
    #[error("cannot allocate {len} bytes of persistent memory: the heap is full; free some blocks")]
    Full {
        /// The requested bytes.
        len: u64,
    },
    /// No class has blocks of this size.
    #[error(
        "cannot allocate {len} bytes of persistent memory: the largest blocks have {largest}; use \
         several blocks"
    )]
    TooLarge {
        /// The requested bytes.
        len: u64,
        /// Bytes of the largest blocks.
        largest: u64,
    },
    /// No block starts there.
    #[error("no block of the heap starts at offset {offset}; use an offset from `allocate`")]
    NotABlock {
        /// The offset.
        offset: u64,
    },
    /// The block has another state than the call needs.
    #[error("cannot change the block at offset {offset} to {wanted:?}: it is {found:?}")]
    WrongState {
        /// Offset of the block.
        offset: u64,
        /// Its state.
        found: BlockState,
        /// The state that was requested.
        wanted: BlockState,
    },
    /// A word of the heap has no meaning.
    #[error(
        "the heap is damaged at offset {offset}: the word there has no meaning; restore the region \
         from a backup"
    )]
    Corrupted {
        /// Offset of the word.
        offset: u64,
    },
    /// There is no heap, or creating it was interrupted.
    #[error("there is no heap at offset {offset} of the region; create it first")]
    NotAHeap {
        /// The offset.
        offset: u64,
    },
    /// Invalid options.
    #[error("cannot create a heap: {0}")]
    InvalidOptions(&'static str),
    /// The medium lost bytes of the heap.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// A state cannot be made durable.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The region cannot be extended.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// A block of persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Offset in the region.
    pub offset: u64,
    /// Length in bytes: that of its class.
    pub len: u64,
}

/// What is in a heap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapReport {
    /// Number of pieces that belong to classes.
    pub pieces: u64,
    /// Blocks in use, ascending by offset.
    pub in_use: Vec<Block>,
    /// Number of free blocks, with those that [`Heap::open`] freed.
    pub free: u64,
    /// Offsets of the blocks that were pending. [`Heap::open`] freed them: pointers to them must be
    /// removed before the next allocation.
    pub pending: Vec<u64>,
}

impl HeapReport {
    /// Counts a block with the state that it was found in.
    fn add(&mut self, layout: &Layout, (piece, index): Place, class: usize, state: BlockState) {
        let offset = layout.block(piece, class, index);
        let len = layout.classes[class];
        match state {
            BlockState::Free => self.free += 1,
            BlockState::Pending => self.pending.push(offset),
            BlockState::InUse => self.in_use.push(Block { offset, len }),
        }
    }
}

/// Where a block is: its piece, and its number in the piece.
type Place = (u64, u64);

/// A heap of persistent blocks, for any number of threads.
///
/// ```
/// use std::sync::Arc;
/// use braid_pmem::{Heap, HeapOptions, Mapping, Region, RegionOptions};
/// use braid_pmem::{SimulatedMemory, SimulatedOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = SimulatedMemory::new(1 << 20, SimulatedOptions::default());
/// let region = Region::create_in(Mapping::simulated(&memory), &RegionOptions::default())?;
/// let region = Arc::new(region);
/// let options = HeapOptions::default().piece_size(64 << 10).max_bytes(512 << 10).classes(&[4096]);
/// let heap = Heap::create(Arc::clone(&region), Region::DATA_START, &options)?;
///
/// let block = heap.allocate(1000)?;
/// region.mapping().write(block.offset, b"a log record");
/// region.mapping().persist(block.offset..block.offset + 12)?;
/// region.set_root(0, block.offset)?;
/// heap.publish(block.offset)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Heap {
    region: Arc<Region>,
    layout: Layout,
    /// Free blocks of each class; the newest is used first, as its lines may be cached.
    free: Vec<Mutex<Vec<Place>>>,
    /// Pieces without a class, the first one last. Locked before a list of blocks.
    unassigned: Mutex<Vec<u64>>,
}

impl Heap {
    /// Creates a heap that starts at an offset of the region. It has no piece yet; all of the
    /// region from the offset on belongs to it.
    ///
    /// # Errors
    ///
    /// [`HeapError::InvalidOptions`], [`HeapError::Region`] if there is no space for its table, or
    /// [`HeapError::Fence`].
    pub fn create(
        region: Arc<Region>,
        start: u64,
        options: &HeapOptions,
    ) -> Result<Self, HeapError> {
        let layout = Layout::new(start, options)?;
        region.grow(layout.table().end)?;
        let mapping = region.mapping();
        zero(mapping, layout.table())?;
        // The header makes it a heap: its table is durable before.
        mapping.write(start, &layout.encode());
        mapping.persist(layout.header())?;
        let free = layout.classes.iter().map(|_| Mutex::default()).collect();
        let unassigned = Mutex::new((0..layout.max_pieces).rev().collect());
        Ok(Self {
            region,
            layout,
            free,
            unassigned,
        })
    }

    /// Opens the heap at an offset of the region, and frees pending blocks.
    ///
    /// # Errors
    ///
    /// [`HeapError::NotAHeap`], [`HeapError::Corrupted`], [`HeapError::Media`] or
    /// [`HeapError::Fence`].
    pub fn open(region: Arc<Region>, start: u64) -> Result<(Self, HeapReport), HeapError> {
        let mapping = region.mapping();
        let layout = Layout::read(mapping, start)?;
        let mut report = HeapReport::default();
        let mut free = vec![Vec::new(); layout.classes.len()];
        let mut unassigned = Vec::new();
        for (piece, class) in pieces(mapping, &layout)? {
            let Some(class) = class else {
                unassigned.push(piece);
                continue;
            };
            report.pieces += 1;
            // A process that was killed leaves states that are visible and not durable.
            let states = layout.states(piece, class);
            for index in 0..layout.blocks_in_piece(class) {
                let state = recover(mapping, &layout, (piece, index), class)?;
                report.add(&layout, (piece, index), class, state);
                if state != BlockState::InUse {
                    report.free += u64::from(state == BlockState::Pending);
                    free[class].push((piece, index));
                }
            }
            if !mutant!("pmem_trust_states_that_are_not_durable") {
                mapping.flush(states);
            }
        }
        if !mutant!("pmem_trust_states_that_are_not_durable") {
            mapping.flush(layout.table());
            mapping.fence()?;
        }
        unassigned.reverse();
        let heap = Self {
            free: free.into_iter().map(Mutex::new).collect(),
            unassigned: Mutex::new(unassigned),
            region,
            layout,
        };
        Ok((heap, report))
    }

    /// Opens the heap at an offset of a [shared](crate::RegionOptions::is_shared) region for a process
    /// that has not the turn to change it. Nothing can be allocated from this value.
    ///
    /// # Errors
    ///
    /// [`HeapError::NotAHeap`] or [`HeapError::Media`].
    pub fn attach(region: Arc<Region>, start: u64) -> Result<Self, HeapError> {
        let layout = Layout::read(region.mapping(), start)?;
        let free = layout.classes.iter().map(|_| Mutex::default()).collect();
        Ok(Self {
            free,
            unassigned: Mutex::default(),
            region,
            layout,
        })
    }

    /// Reads the states of all blocks of the heap at an offset of the region, and changes nothing.
    /// If the heap is in use, the report has a state of each block that it had meanwhile.
    ///
    /// # Errors
    ///
    /// [`HeapError::NotAHeap`], [`HeapError::Corrupted`] or [`HeapError::Media`].
    pub fn inspect(region: &Region, start: u64) -> Result<HeapReport, HeapError> {
        let mapping = region.mapping();
        let layout = Layout::read(mapping, start)?;
        let mut report = HeapReport::default();
        for (piece, class) in pieces(mapping, &layout)? {
            let Some(class) = class else { continue };
            report.pieces += 1;
            for index in 0..layout.blocks_in_piece(class) {
                let word = layout.states(piece, class).start + index * 8;
                let state = state_at(mapping, word)?;
                report.add(&layout, (piece, index), class, state);
            }
        }
        Ok(report)
    }

    /// Allocates a block of at least `len` bytes, pending. Its bytes are arbitrary.
    ///
    /// # Errors
    ///
    /// [`HeapError::Full`] until blocks are freed, [`HeapError::TooLarge`], or
    /// [`HeapError::Fence`].
    pub fn allocate(&self, len: u64) -> Result<Block, HeapError> {
        let class = self.layout.classes.partition_point(|size| *size < len);
        if class == self.layout.classes.len() {
            let largest = self.layout.classes[class - 1];
            return Err(HeapError::TooLarge { len, largest });
        }
        let (piece, index) = loop {
            let popped = self.free[class].lock().pop();
            match popped {
                Some(place) => break place,
                None => self.add_piece(class, len)?,
            }
        };
        let state = self.state_word((piece, index), class);
        let free = BlockState::Free.word();
        let pending = BlockState::Pending.word().to_le();
        // Pairs with the acquire loads of states. Nobody else has the block.
        let marked = self
            .mapping()
            .compare_exchange_u64(state, free, pending, Ordering::AcqRel);
        if marked.is_err() {
            return Err(HeapError::Corrupted { offset: state });
        }
        self.mapping().persist(state..state + 8)?;
        Ok(Block {
            offset: self.layout.block(piece, class, index),
            len: self.layout.classes[class],
        })
    }

    /// Changes a pending block to in use, durably. A persistent pointer to the block must be
    /// durable.
    ///
    /// # Errors
    ///
    /// [`HeapError::NotABlock`], [`HeapError::WrongState`] if the block is not pending, or
    /// [`HeapError::Fence`].
    pub fn publish(&self, offset: u64) -> Result<(), HeapError> {
        let (place, class) = self.place_of(offset)?;
        let pending = [BlockState::Pending];
        self.change(offset, place, class, &pending, BlockState::InUse)
    }

    /// Frees a block, pending or in use, durably. The persistent pointer to it must be removed
    /// before the block is allocated again.
    ///
    /// # Errors
    ///
    /// [`HeapError::NotABlock`], [`HeapError::WrongState`] if the block is free, or
    /// [`HeapError::Fence`].
    pub fn free(&self, offset: u64) -> Result<(), HeapError> {
        let (place, class) = self.place_of(offset)?;
        let used = [BlockState::InUse, BlockState::Pending];
        self.change(offset, place, class, &used, BlockState::Free)?;
        self.free[class].lock().push(place);
        Ok(())
    }

    /// The state of the block that starts at an offset.
    ///
    /// # Errors
    ///
    /// [`HeapError::NotABlock`], [`HeapError::Corrupted`] or [`HeapError::Media`].
    pub fn state(&self, offset: u64) -> Result<BlockState, HeapError> {
        let (place, class) = self.place_of(offset)?;
        state_at(self.mapping(), self.state_word(place, class))
    }

    /// Length of the blocks that hold `len` bytes; `None` if there are none.
    #[must_use]
    pub fn block_len(&self, len: u64) -> Option<u64> {
        let mut classes = self.layout.classes.iter().copied();
        classes.find(|size| *size >= len)
    }

    /// Number of free blocks by length in bytes, without pieces that have no class yet.
    #[must_use]
    pub fn free_blocks(&self) -> BTreeMap<u64, usize> {
        let lists = self.free.iter().map(|list| list.lock().len());
        self.layout.classes.iter().copied().zip(lists).collect()
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    fn mapping(&self) -> &Mapping {
        self.region.mapping()
    }

    fn state_word(&self, (piece, index): Place, class: usize) -> u64 {
        self.layout.states(piece, class).start + index * 8
    }

    /// Returns the place and the class of the block that starts at an offset.
    fn place_of(&self, offset: u64) -> Result<(Place, usize), HeapError> {
        let not_a_block = || HeapError::NotABlock { offset };
        let piece = self.layout.piece_of(offset).ok_or_else(not_a_block)?;
        let entry = self.layout.entry(piece);
        let class = class_of(load(self.mapping(), entry)?, &self.layout)
            .map_err(|()| HeapError::Corrupted { offset: entry })?
            .ok_or_else(not_a_block)?;
        let index = self.layout.index_of(offset, piece, class);
        Ok(((piece, index.ok_or_else(not_a_block)?), class))
    }

    fn change(
        &self,
        offset: u64,
        place: Place,
        class: usize,
        from: &[BlockState],
        wanted: BlockState,
    ) -> Result<(), HeapError> {
        let word = self.state_word(place, class);
        let found = state_at(self.mapping(), word)?;
        let exchange = |found: BlockState| {
            let (old, new) = (found.word().to_le(), wanted.word().to_le());
            // Pairs with the acquire loads of states.
            self.mapping()
                .compare_exchange_u64(word, old, new, Ordering::AcqRel)
        };
        if !from.contains(&found) || exchange(found).is_err() {
            // After a failed exchange, another thread changed the block at the same time.
            return Err(HeapError::WrongState {
                offset,
                found: state_at(self.mapping(), word)?,
                wanted,
            });
        }
        if !mutant!("pmem_skip_flush_of_block_state") {
            self.mapping().flush(word..word + 8);
        }
        if !mutant!("pmem_skip_fence_of_block_state") {
            self.mapping().fence()?;
        }
        Ok(())
    }

    /// Gives the class another piece: an unassigned one, otherwise one of another class without a
    /// used block.
    fn add_piece(&self, class: usize, len: u64) -> Result<(), HeapError> {
        let mut unassigned = self.unassigned.lock();
        if !self.free[class].lock().is_empty() {
            // Another thread added one meanwhile.
            return Ok(());
        }
        let piece = match unassigned.last().copied() {
            None => None,
            Some(piece) => match self.region.grow(self.layout.piece(piece).end) {
                Ok(()) => {
                    unassigned.pop();
                    Some(piece)
                }
                Err(RegionError::Map {
                    source: MapError::NoSpace { .. } | MapError::Capacity { .. },
                    ..
                }) => None,
                Err(error) => return Err(error.into()),
            },
        };
        let piece = piece
            .or_else(|| self.reclaim(class))
            .ok_or(HeapError::Full { len })?;
        let entry = self.layout.entry(piece);
        if !mutant!("pmem_assign_piece_before_its_states") {
            zero(self.mapping(), self.layout.states(piece, class))?;
        }
        // Pairs with the acquire loads of classes.
        self.mapping()
            .store_u64(entry, entry_word(class).to_le(), Ordering::Release);
        self.mapping().persist(entry..entry + 8)?;
        if mutant!("pmem_assign_piece_before_its_states") {
            zero(self.mapping(), self.layout.states(piece, class))?;
        }
        let blocks = (0..self.layout.blocks_in_piece(class)).rev();
        self.free[class]
            .lock()
            .extend(blocks.map(|index| (piece, index)));
        Ok(())
    }

    /// Takes a piece without a used block from another class. Its states are durably free, and so
    /// its class can change.
    fn reclaim(&self, wanted: usize) -> Option<u64> {
        for class in (0..self.free.len()).filter(|class| *class != wanted) {
            let mut free = self.free[class].lock();
            let mut counts: HashMap<u64, u64> = HashMap::new();
            for (piece, _) in free.iter() {
                *counts.entry(*piece).or_default() += 1;
            }
            let all = self.layout.blocks_in_piece(class);
            // The smallest one, so that a seed determines it.
            let whole = counts.into_iter().filter(|(_, count)| *count == all);
            if let Some(piece) = whole.map(|(piece, _)| piece).min() {
                free.retain(|place| place.0 != piece);
                braid_rt::coverage_point("a piece of the heap changes its class");
                return Some(piece);
            }
        }
        None
    }
}

/// Returns every piece that the heap can have, with its class.
fn pieces(mapping: &Mapping, layout: &Layout) -> Result<Vec<(u64, Option<usize>)>, HeapError> {
    if layout.table().end > mapping.len() {
        let offset = layout.start;
        return Err(HeapError::NotAHeap { offset });
    }
    let class_of_piece = |piece| {
        let entry = layout.entry(piece);
        let class = class_of(load(mapping, entry)?, layout);
        match class {
            Ok(Some(_)) if layout.piece(piece).end > mapping.len() => {
                Err(HeapError::Corrupted { offset: entry })
            }
            Ok(class) => Ok((piece, class)),
            Err(()) => Err(HeapError::Corrupted { offset: entry }),
        }
    };
    (0..layout.max_pieces).map(class_of_piece).collect()
}

/// Returns the state of a block after the last opening; frees it if it was pending. A flush and a
/// fence must follow.
fn recover(
    mapping: &Mapping,
    layout: &Layout,
    (piece, index): Place,
    class: usize,
) -> Result<BlockState, HeapError> {
    let word = layout.states(piece, class).start + index * 8;
    let state = state_at(mapping, word)?;
    if state != BlockState::Pending {
        return Ok(state);
    }
    if mutant!("pmem_keep_pending_blocks") {
        return Ok(BlockState::InUse);
    }
    let free = BlockState::Free.word().to_le();
    // Pairs with the acquire loads of states.
    mapping.store_u64(word, free, Ordering::Release);
    Ok(state)
}

fn state_at(mapping: &Mapping, word: u64) -> Result<BlockState, HeapError> {
    BlockState::of(load(mapping, word)?).ok_or(HeapError::Corrupted { offset: word })
}

/// Fills a range with zeros, durably.
fn zero(mapping: &Mapping, range: std::ops::Range<u64>) -> Result<(), FenceError> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(ZEROS.len() as u64);
        mapping.write_flushed(at, &ZEROS[..braid_rt::to_usize(len)]);
        at += len;
    }
    mapping.fence()
}
