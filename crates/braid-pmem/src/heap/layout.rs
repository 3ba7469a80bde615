//! The bytes of a heap.
//!
//! | part | contents |
//! |---|---|
//! | header | sizes, with a checksum |
//! | piece table | a word for each piece: its class, or zero |
//! | pieces | each: a state word for each of its blocks, then the blocks |
//!
//! All words are in little-endian order.

use std::ops::Range;

use crate::error::MediaError;
use crate::heap::{HeapError, HeapOptions};
use crate::mapping::Mapping;

const MAGIC: u64 = u64::from_le_bytes(*b"braidhp\x01");
/// Largest number of classes.
pub(super) const MAX_CLASSES: usize = 16;
const HEADER_WORDS: usize = 8 + MAX_CLASSES;
/// Bytes of the header, in whole lines of every machine.
const HEADER_LEN: u64 = 256;
/// Alignment of pieces and blocks.
const ALIGN: u64 = 256;

/// Where everything in a heap is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) start: u64,
    pub(super) piece_size: u64,
    pub(super) max_pieces: u64,
    /// Sizes of blocks in bytes, ascending.
    pub(super) classes: Vec<u64>,
}

impl Layout {
    pub(super) fn new(start: u64, options: &HeapOptions) -> Result<Self, HeapError> {
        let invalid = |what| Err(HeapError::InvalidOptions(what));
        let mut classes = options.classes.clone();
        classes.sort_unstable();
        classes.dedup();
        if classes.is_empty() || classes.len() > MAX_CLASSES {
            return invalid("a heap has 1 to 16 classes of blocks");
        }
        if classes.iter().any(|size| *size == 0 || size % 64 != 0) {
            return invalid("sizes of blocks are multiples of 64");
        }
        if !options.piece_size.is_multiple_of(4096) || options.piece_size == 0 {
            return invalid("the size of pieces is a multiple of 4,096");
        }
        if !start.is_multiple_of(ALIGN) {
            return invalid("a heap starts at a multiple of 256");
        }
        let layout = Self {
            start,
            piece_size: options.piece_size,
            max_pieces: options.max_bytes / options.piece_size,
            classes,
        };
        if layout.max_pieces == 0 || layout.max_pieces > u64::from(u32::MAX) {
            return invalid("a heap has 1 to 2^32 - 1 pieces");
        }
        if (0..layout.classes.len()).any(|class| layout.blocks_in_piece(class) == 0) {
            return invalid("the largest block fits into a piece, with 256 bytes for states");
        }
        Ok(layout)
    }

    /// Offset of the word with a piece's class.
    pub(super) fn entry(&self, piece: u64) -> u64 {
        self.start + HEADER_LEN + piece * 8
    }

    pub(super) fn table(&self) -> Range<u64> {
        self.entry(0)..self.entry(self.max_pieces)
    }

    pub(super) fn header(&self) -> Range<u64> {
        self.start..self.start + HEADER_LEN
    }

    /// The bytes of a piece.
    pub(super) fn piece(&self, piece: u64) -> Range<u64> {
        let first = self.table().end.next_multiple_of(4096);
        let start = first + piece * self.piece_size;
        start..start + self.piece_size
    }

    pub(super) fn blocks_in_piece(&self, class: usize) -> u64 {
        let size = self.classes[class];
        let mut blocks = self.piece_size / (size + 8);
        while blocks > 0 && states_len(blocks) + blocks * size > self.piece_size {
            blocks -= 1;
        }
        blocks
    }

    /// The state words of a piece.
    pub(super) fn states(&self, piece: u64, class: usize) -> Range<u64> {
        let start = self.piece(piece).start;
        start..start + self.blocks_in_piece(class) * 8
    }

    pub(super) fn block(&self, piece: u64, class: usize, index: u64) -> u64 {
        let blocks = self.blocks_in_piece(class);
        self.piece(piece).start + states_len(blocks) + index * self.classes[class]
    }

    /// The piece that contains an offset.
    pub(super) fn piece_of(&self, offset: u64) -> Option<u64> {
        let first = self.piece(0).start;
        let piece = offset.checked_sub(first)? / self.piece_size;
        (piece < self.max_pieces).then_some(piece)
    }

    /// The number of the block that starts at an offset of its piece.
    pub(super) fn index_of(&self, offset: u64, piece: u64, class: usize) -> Option<u64> {
        let distance = offset.checked_sub(self.block(piece, class, 0))?;
        let index = distance / self.classes[class];
        let is_start = distance.is_multiple_of(self.classes[class]);
        (is_start && index < self.blocks_in_piece(class)).then_some(index)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut words = vec![
            MAGIC,
            self.start,
            self.piece_size,
            self.max_pieces,
            self.classes.len() as u64,
        ];
        words.resize(8, 0);
        words.extend(&self.classes);
        words.resize(HEADER_WORDS, 0);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let sum = u64::from(crc32c::crc32c(&bytes));
        bytes.extend((sum | !sum << 32).to_le_bytes());
        bytes
    }

    pub(super) fn read(mapping: &Mapping, start: u64) -> Result<Self, HeapError> {
        let not_a_heap = || HeapError::NotAHeap { offset: start };
        if start.saturating_add(HEADER_LEN) > mapping.len() {
            return Err(not_a_heap());
        }
        let mut bytes = [0; HEADER_WORDS * 8 + 8];
        mapping.read(start, &mut bytes)?;
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
            .collect();
        let count = usize::try_from(words[4]).unwrap_or(usize::MAX);
        if words[0] != MAGIC || words[1] != start || count > MAX_CLASSES {
            return Err(not_a_heap());
        }
        let options = HeapOptions {
            piece_size: words[2],
            max_bytes: words[2].checked_mul(words[3]).ok_or_else(not_a_heap)?,
            classes: words[8..8 + count].to_vec(),
        };
        let layout = Self::new(start, &options).map_err(|_| not_a_heap())?;
        if layout.encode() != bytes {
            return Err(not_a_heap());
        }
        Ok(layout)
    }
}

/// Bytes before the first block of a piece.
fn states_len(blocks: u64) -> u64 {
    (blocks * 8).next_multiple_of(ALIGN)
}

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Belongs to the heap.
    Free,
    /// Allocated, without a persistent pointer. Opening the heap frees it.
    Pending,
    /// Published: a persistent pointer leads to it.
    InUse,
}

impl BlockState {
    /// The word that is stored. Its halves confirm each other, so that a word that something else
    /// overwrote is noticed.
    pub(super) fn word(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Pending => checked(1),
            Self::InUse => checked(2),
        }
    }

    pub(super) fn of(word: u64) -> Option<Self> {
        [Self::Free, Self::Pending, Self::InUse]
            .into_iter()
            .find(|state| state.word() == word)
    }
}

/// A small number and its complement.
fn checked(value: u32) -> u64 {
    u64::from(value) | u64::from(!value) << 32
}

/// The word of a piece that belongs to a class.
pub(super) fn entry_word(class: usize) -> u64 {
    checked(u32::try_from(class + 1).expect("a class"))
}

/// The class of a piece: `Ok(None)` if it has none.
pub(super) fn class_of(word: u64, layout: &Layout) -> Result<Option<usize>, ()> {
    match word {
        0 => Ok(None),
        _ => (0..layout.classes.len())
            .find(|class| entry_word(*class) == word)
            .map(Some)
            .ok_or(()),
    }
}

/// Loads a word, in little-endian order.
pub(super) fn load(mapping: &Mapping, offset: u64) -> Result<u64, MediaError> {
    // Pairs with the release stores and exchanges of states and classes.
    let word = mapping.load_u64(offset, std::sync::atomic::Ordering::Acquire);
    mapping.check(offset..offset + 8)?;
    Ok(u64::from_le(word))
}
