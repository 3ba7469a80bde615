//! The chain of a generation's blocks, as one sequence of bytes.
//!
//! A block has a header of 64 bytes: the offset of the next block or zero, the generation, the
//! number of the block in the generation, and a checksum of the last two and the block's offset.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_pmem::{FenceError, Mapping, MediaError};
use braid_rt::to_usize;

use crate::format::Salt;
use crate::header::{BLOCK_HEADER, LogHeader};

/// What a block's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The block has this place in this generation.
    Expected,
    /// The block belongs to another generation.
    OtherGeneration,
    Damaged,
}

/// The blocks of a generation.
#[derive(Debug)]
pub(crate) struct Chain {
    mapping: Arc<Mapping>,
    block_size: u64,
    /// Offset of the word that leads to the first block.
    head: u64,
    salt: Salt,
    blocks: Vec<u64>,
    /// Bytes of the open transaction that the mapping does not have yet, and their position.
    held: Vec<u8>,
    held_at: u64,
}

/// Most bytes that are held: a few pages of the system, so that a large transaction takes no memory.
const HELD: usize = 1 << 16;

impl Chain {
    pub(crate) fn new(header: &LogHeader, generation: u64) -> Self {
        Self {
            mapping: Arc::clone(&header.mapping),
            block_size: header.block_size,
            head: header.head(),
            salt: header.salt(generation),
            blocks: Vec::new(),
            held: Vec::new(),
            held_at: 0,
        }
    }

    pub(crate) fn salt(&self) -> Salt {
        self.salt
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Offsets of the blocks, in the order of the log.
    pub(crate) fn blocks(&self) -> &[u64] {
        &self.blocks
    }

    fn payload(&self) -> u64 {
        self.block_size - BLOCK_HEADER
    }

    /// Bytes of the log that the blocks hold.
    pub(crate) fn capacity(&self) -> u64 {
        self.blocks.len() as u64 * self.payload()
    }

    /// Offset of the word that leads to the block after the last one.
    pub(crate) fn link(&self) -> u64 {
        self.blocks.last().copied().unwrap_or(self.head)
    }

    /// Loads the offset of the block after the last one; zero without one.
    pub(crate) fn next(&self) -> Result<u64, MediaError> {
        let at = self.link();
        // Pairs with the release store in `set_link`.
        let next = self.mapping.load_u64(at, Ordering::Acquire);
        self.mapping.check(at..at + 8)?;
        Ok(u64::from_le(next))
    }

    /// Stores the offset of the block after the last one, durably.
    pub(crate) fn set_link(&self, offset: u64) -> Result<(), FenceError> {
        let at = self.link();
        // Pairs with the acquire load in `next`.
        self.mapping
            .store_u64(at, offset.to_le(), Ordering::Release);
        self.mapping.persist(at..at + 8)
    }

    /// Whether a block can be at this offset of the mapping.
    pub(crate) fn is_within(&self, offset: u64) -> bool {
        let end = offset.checked_add(self.block_size);
        offset.is_multiple_of(64) && end.is_some_and(|end| end <= self.mapping.len())
    }

    /// The header of the block after the last one, at this offset, in a generation.
    fn block_header(&self, generation: u64, offset: u64) -> [u8; 32] {
        let words = [generation, self.blocks.len() as u64, offset];
        let mut bytes = [0; 32];
        for (bytes, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let seed = crc32c::crc32c(&self.salt.identity.to_le_bytes());
        let sum = u64::from(crc32c::crc32c_append(seed, &bytes));
        bytes[24..].copy_from_slice(&(sum | !sum << 32).to_le_bytes());
        bytes
    }

    /// Writes the header of the block after the last one, durably, without a link to it.
    pub(crate) fn prepare(&self, offset: u64) -> Result<(), FenceError> {
        let header = self.block_header(self.salt.generation, offset);
        self.mapping.write(offset, &header);
        self.mapping.persist(offset..offset + 32)
    }

    /// Reads the header of the block after the last one. The block is within the mapping.
    pub(crate) fn inspect(&self, offset: u64) -> Result<Found, MediaError> {
        let mut found = [0; 32];
        self.mapping.read(offset, &mut found)?;
        let has_header_of = |generation| found[8..] == self.block_header(generation, offset)[8..];
        if has_header_of(self.salt.generation) {
            return Ok(Found::Expected);
        }
        // The same place in the generation that the block claims.
        let mut generation = [0; 8];
        generation.copy_from_slice(&found[8..16]);
        Ok(if has_header_of(u64::from_le_bytes(generation)) {
            Found::OtherGeneration
        } else {
            Found::Damaged
        })
    }

    /// Adds a block at the end.
    pub(crate) fn push(&mut self, offset: u64) {
        debug_assert!(self.is_within(offset));
        self.blocks.push(offset);
    }

    /// Calls `each` with the offset in the mapping, and the part of the bytes, of each piece of a
    /// range of positions.
    pub(crate) fn pieces(&self, range: Range<u64>, mut each: impl FnMut(u64, Range<usize>)) {
        assert!(range.end <= self.capacity(), "{range:?} is past the chain");
        let mut at = range.start;
        while at < range.end {
            let (block, within) = (at / self.payload(), at % self.payload());
            let len = (self.payload() - within).min(range.end - at);
            let offset = self.blocks[to_usize(block)] + BLOCK_HEADER + within;
            let start = to_usize(at - range.start);
            each(offset, start..start + to_usize(len));
            at += len;
        }
    }

    /// Reads bytes of the log, held ones included.
    ///
    /// # Panics
    ///
    /// As the other methods, if the chain ends before the range does.
    pub(crate) fn read(&self, position: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        let range = position..position + bytes.len() as u64;
        let mut result = Ok(());
        self.pieces(range, |offset, part| {
            if result.is_ok() {
                result = self.mapping.read(offset, &mut bytes[part]);
            }
        });
        let end = position + bytes.len() as u64;
        let from = position.max(self.held_at);
        let to = end.min(self.held_at + self.held.len() as u64);
        if from < to {
            let held = to_usize(from - self.held_at)..to_usize(to - self.held_at);
            let part = to_usize(from - position)..to_usize(to - position);
            bytes[part].copy_from_slice(&self.held[held]);
        }
        result
    }

    pub(crate) fn write(&self, position: u64, bytes: &[u8]) {
        let range = position..position + bytes.len() as u64;
        self.pieces(range, |offset, part| {
            self.mapping.write(offset, &bytes[part]);
        });
    }

    /// Keeps bytes that follow the held ones, for [`write_held`](Self::write_held).
    pub(crate) fn hold(&mut self, position: u64, bytes: &[u8]) {
        let follows = position == self.held_at + self.held.len() as u64;
        if !follows || self.held.len() + bytes.len() > HELD {
            self.write_held();
            self.held_at = position;
        }
        self.held.extend_from_slice(bytes);
    }

    /// Writes the held bytes.
    pub(crate) fn write_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.write(self.held_at, &held);
        self.held = held;
        self.held_at += self.held.len() as u64;
        self.held.clear();
    }

    /// Forgets what is held from a position on, since other bytes will be there.
    pub(crate) fn cut(&mut self, position: u64) {
        self.held
            .truncate(to_usize(position.saturating_sub(self.held_at)));
    }

    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    pub(crate) fn flush(&self, range: Range<u64>) {
        self.pieces(range, |offset, part| {
            self.mapping.flush(offset..offset + part.len() as u64);
        });
    }

    /// Offset of a byte of the range that a crash of simulated memory could lose.
    pub(crate) fn not_durable(&self, range: Range<u64>) -> Option<u64> {
        let mut found = None;
        self.pieces(range, |offset, part| {
            let piece = offset..offset + part.len() as u64;
            found = found.or_else(|| self.mapping.not_durable(piece));
        });
        found
    }

    /// Offset in the mapping of a position, for messages.
    pub(crate) fn offset_of(&self, position: u64) -> u64 {
        let block = self.blocks.get(to_usize(position / self.payload()));
        match block {
            Some(block) => block + BLOCK_HEADER + position % self.payload(),
            None => self.link(),
        }
    }
}
