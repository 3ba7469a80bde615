//! The header of a region: two copies, each with a checksum.
//!
//! A copy is 16 words, in little-endian order. A change writes one copy, makes it durable, then
//! writes the other. So a crash tears at most one of them, and the other is the header before or
//! after the change. The copies are in different pages, whatever their size on this machine, so that
//! a lost page leaves one.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::error::{FenceError, MediaError};
use crate::mapping::Mapping;

/// The first eight bytes of a region.
pub(crate) const MAGIC: [u8; 8] = *b"braidpm\x01";
/// The version of the format.
pub(crate) const VERSION: u32 = 1;
/// Offsets of the copies.
const COPIES: [u64; 2] = [0, 1 << 16];
/// Offset of the first byte after the header.
pub(crate) const HEADER_END: u64 = 1 << 17;

const WORDS: usize = 16;
const BYTES: usize = WORDS * 8;

/// The contents of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// A random number: its lower and its upper half.
    pub(crate) identity: [u64; 2],
    /// Length of the region in bytes.
    pub(crate) len: u64,
    pub(crate) page_size: u32,
    pub(crate) line_size: u32,
    /// Code of the method with which the region was last opened.
    pub(crate) method: u32,
    pub(crate) is_closed: bool,
    /// Number of changes of the header.
    pub(crate) generation: u64,
}

/// What is at the place of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Valid(Header),
    /// Only zeros: creating the region was interrupted.
    Empty,
    /// Something else.
    Foreign,
    /// A header of another version.
    Version(u32),
    /// Damaged copies.
    Torn,
    Lost(MediaError),
}

impl Header {
    fn encode(&self) -> [u8; BYTES] {
        let words = [
            u64::from_le_bytes(MAGIC),
            u64::from(VERSION),
            self.identity[0],
            self.identity[1],
            self.len,
            u64::from(self.page_size) | u64::from(self.line_size) << 32,
            u64::from(self.method) | u64::from(self.is_closed) << 32,
            self.generation,
        ];
        let mut bytes = [0; BYTES];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let sum = u64::from(crc32c::crc32c(&bytes[..BYTES - 8]));
        bytes[BYTES - 8..].copy_from_slice(&(sum | !sum << 32).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; BYTES]) -> Found {
        let word = |index: usize| {
            u64::from_le_bytes(bytes[index * 8..][..8].try_into().expect("eight bytes"))
        };
        let low = |word: u64| u32::try_from(word & 0xffff_ffff).expect("32 bits");
        if bytes.iter().all(|byte| *byte == 0) {
            return Found::Empty;
        }
        let sum = u64::from(crc32c::crc32c(&bytes[..BYTES - 8]));
        let has_magic = bytes[..8] == MAGIC;
        if word(WORDS - 1) != sum | !sum << 32 {
            // A torn header may have lost any word, but then others are there.
            let is_like_ours = has_magic || (bytes[..8] == [0; 8] && word(1) <= u64::from(VERSION));
            return if is_like_ours {
                Found::Torn
            } else {
                Found::Foreign
            };
        }
        if !has_magic {
            return Found::Foreign;
        }
        if low(word(1)) != VERSION {
            return Found::Version(low(word(1)));
        }
        Found::Valid(Self {
            identity: [word(2), word(3)],
            len: word(4),
            page_size: low(word(5)),
            line_size: low(word(5) >> 32),
            method: low(word(6)),
            is_closed: word(6) >> 32 == 1,
            generation: word(7),
        })
    }

    /// Reads the newer valid copy.
    pub(crate) fn read(mapping: &Mapping) -> Found {
        let copies = COPIES.map(|at| {
            let mut bytes = [0; BYTES];
            match mapping.read(at, &mut bytes) {
                Ok(()) => Self::decode(&bytes),
                Err(error) => Found::Lost(error),
            }
        });
        match copies {
            [Found::Valid(a), Found::Valid(b)] if b.generation > a.generation => Found::Valid(b),
            [valid @ Found::Valid(_), _] | [_, valid @ Found::Valid(_)] => valid,
            [version @ Found::Version(_), _] | [_, version @ Found::Version(_)] => version,
            [Found::Torn, _] | [_, Found::Torn] => Found::Torn,
            [lost @ Found::Lost(_), _] | [_, lost @ Found::Lost(_)] => lost,
            [Found::Empty, Found::Empty] => Found::Empty,
            _ => Found::Foreign,
        }
    }

    /// Returns the offsets of invalid copies.
    pub(crate) fn damaged_copies(mapping: &Mapping) -> Vec<u64> {
        let is_damaged = |at: &u64| {
            let mut bytes = [0; BYTES];
            let read = mapping.read(*at, &mut bytes);
            read.is_ok() && !matches!(Self::decode(&bytes), Found::Valid(_))
        };
        COPIES.into_iter().filter(is_damaged).collect()
    }

    /// Writes both copies, one after the other, as the next generation.
    pub(crate) fn write(&mut self, mapping: &Mapping) -> Result<(), FenceError> {
        self.generation += 1;
        let bytes = self.encode();
        for at in COPIES {
            mapping.write(at, &bytes);
            mapping.flush(copy_range(at));
            // Otherwise a crash could tear both copies.
            if !braid_rt::mutant!("pmem_write_header_copies_at_once") || at == COPIES[1] {
                mapping.fence()?;
            }
        }
        Ok(())
    }
}

fn copy_range(at: u64) -> Range<u64> {
    at..at + BYTES as u64
}

/// Number of root words.
pub(crate) const ROOTS: usize = 16;

/// Returns the offset of a root word. They are between the copies of the header.
///
/// # Panics
///
/// If there are fewer roots.
pub(crate) fn root_offset(index: usize) -> u64 {
    assert!(index < ROOTS, "a region has {ROOTS} roots, no root {index}");
    4096 + index as u64 * 8
}

/// Loads a root.
pub(crate) fn root(mapping: &Mapping, index: usize) -> Result<u64, MediaError> {
    let at = root_offset(index);
    // Pairs with the release store in `set_root`.
    let value = mapping.load_u64(at, Ordering::Acquire);
    mapping.check(at..at + 8)?;
    Ok(u64::from_le(value))
}

/// Stores a root durably.
pub(crate) fn set_root(mapping: &Mapping, index: usize, value: u64) -> Result<(), FenceError> {
    let at = root_offset(index);
    // Pairs with the acquire load in `root`.
    mapping.store_u64(at, value.to_le(), Ordering::Release);
    mapping.persist(at..at + 8)
}
