//! The header of a log.
//!
//! | bytes | contents |
//! |---|---|
//! | 0–63 | what creation fixed, with a checksum |
//! | 256 | number of the generation |
//! | 264 | offset of the generation's first block, or zero |
//! | 272 | the mark: where the durable log ends |
//! | 280 | number of the opening for writing |
//! | 512 | what readers may see: where the committed log ends |
//! | 1,024–2,047 | slots of pinned readers: a position and a process each |
//! | 4,096– | the heap with the log's blocks |
//!
//! The words from 512 on are shared with readers in other processes and are not flushed; opening the
//! log for writing sets them.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use braid_pmem::{FenceError, Mapping, MediaError};

use crate::error::LogError;
use crate::format::Salt;
use crate::options::LogOptions;

const MAGIC: u64 = u64::from_le_bytes(*b"braidnv\x01");
const VERSION: u32 = 1;
/// Bytes before the heap.
pub(crate) const LEN: u64 = 4096;
const STATIC_WORDS: usize = 8;

const GENERATION: u64 = 256;
const HEAD: u64 = 264;
const MARK: u64 = 272;
const OPENING: u64 = 280;
const VISIBLE: u64 = 512;
const SLOTS: u64 = 1024;
/// Number of slots for pinned readers.
pub(crate) const READERS: usize = 64;
/// Bytes of a block before its part of the log.
pub(crate) const BLOCK_HEADER: u64 = 64;

/// Set in the word for readers while a generation begins.
const BEGINNING: u64 = 1 << 63;
/// Bits of a position in a tagged word.
const POSITION_BITS: u32 = 48;
/// Bits of the generation in a tagged word.
const TAG_BITS: u64 = (1 << 15) - 1;

/// A position with the last bits of its generation, in a word that is stored at once.
fn tagged(generation: u64, position: u64) -> u64 {
    debug_assert!(position >> POSITION_BITS == 0);
    (generation & TAG_BITS) << POSITION_BITS | position
}

/// The position in a tagged word, if it belongs to the generation.
fn position_in(word: u64, generation: u64) -> Option<u64> {
    let is_ours = word >> POSITION_BITS == generation & TAG_BITS;
    is_ours.then_some(word & ((1 << POSITION_BITS) - 1))
}

/// The words of a log outside of its blocks.
#[derive(Clone, Debug)]
pub(crate) struct LogHeader {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) start: u64,
    pub(crate) page_size: usize,
    pub(crate) block_size: u64,
    pub(crate) identity: u64,
}

impl LogHeader {
    /// Checks the options of a log.
    pub(crate) fn check(options: &LogOptions, start: u64) -> Result<(), LogError> {
        let invalid = |what| Err(LogError::InvalidOptions(what));
        if options.page_size == 0 || options.page_size > 1 << 24 {
            return invalid("pages have 1 byte to 16 MiB");
        }
        if options.block_size < 2 * BLOCK_HEADER
            || options.block_size > 1 << 30
            || !options.block_size.is_multiple_of(64)
        {
            return invalid("blocks have a multiple of 64 bytes, from 128 bytes to 1 GiB");
        }
        if options.max_bytes > 1 << 46 {
            return invalid("a log takes at most 64 TiB");
        }
        if !start.is_multiple_of(4096) {
            return invalid("a log starts at a multiple of 4,096");
        }
        Ok(())
    }

    /// Writes the header of an empty log, durably. The heap is durable before.
    pub(crate) fn create(
        mapping: Arc<Mapping>,
        start: u64,
        options: &LogOptions,
    ) -> Result<Self, LogError> {
        let header = Self {
            mapping,
            start,
            page_size: braid_rt::to_usize(u64::from(options.page_size)),
            block_size: options.block_size,
            identity: braid_rt::entropy(),
        };
        let mapping = &header.mapping;
        mapping.write(start + 64, &[0; 4096 - 64]);
        mapping.persist(start..start + LEN)?;
        header.set_generation(1)?;
        header.publish(1, 0);
        // This makes it a log: everything else is durable.
        mapping.write(start, &header.encode());
        mapping.persist(start..start + 64)?;
        Ok(header)
    }

    fn encode(&self) -> [u8; 64] {
        let words = [
            MAGIC,
            u64::from(VERSION),
            self.page_size as u64,
            self.block_size,
            self.identity,
            self.start,
            0,
        ];
        let mut bytes = [0; 64];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let sum = u64::from(crc32c::crc32c(&bytes[..56]));
        bytes[56..].copy_from_slice(&(sum | !sum << 32).to_le_bytes());
        bytes
    }

    pub(crate) fn read(mapping: Arc<Mapping>, start: u64) -> Result<Self, LogError> {
        let not_a_log = || LogError::NotALog { offset: start };
        if !start.is_multiple_of(4096) || start.saturating_add(LEN) > mapping.len() {
            return Err(not_a_log());
        }
        let mut bytes = [0; 64];
        mapping.read(start, &mut bytes)?;
        let mut words = [0; STATIC_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        let sum = u64::from(crc32c::crc32c(&bytes[..56]));
        if words[0] != MAGIC || words[7] != sum | !sum << 32 {
            return Err(not_a_log());
        }
        if words[1] != u64::from(VERSION) {
            return Err(LogError::Version {
                found: u32::try_from(words[1]).unwrap_or(u32::MAX),
                supported: VERSION,
            });
        }
        let options = LogOptions {
            page_size: u32::try_from(words[2]).map_err(|_| not_a_log())?,
            block_size: words[3],
            max_bytes: 0,
        };
        if Self::check(&options, start).is_err() || words[5] != start {
            return Err(not_a_log());
        }
        Ok(Self {
            mapping,
            start,
            page_size: braid_rt::to_usize(words[2]),
            block_size: words[3],
            identity: words[4],
        })
    }

    pub(crate) fn salt(&self, generation: u64) -> Salt {
        Salt::new(self.identity, generation)
    }

    /// Loads a word. Pairs with the release stores of the same word.
    fn load(&self, word: u64) -> u64 {
        let word = self.mapping.load_u64(self.start + word, Ordering::Acquire);
        u64::from_le(word)
    }

    fn load_checked(&self, word: u64) -> Result<u64, MediaError> {
        let value = self.load(word);
        let at = self.start + word;
        self.mapping.check(at..at + 8).map(|()| value)
    }

    /// Stores a word. Pairs with the acquire loads of the same word.
    fn store(&self, word: u64, value: u64) {
        let at = self.start + word;
        self.mapping.store_u64(at, value.to_le(), Ordering::Release);
    }

    fn flush(&self, word: u64) {
        let at = self.start + word;
        self.mapping.flush(at..at + 8);
    }

    fn store_durably(&self, word: u64, value: u64) -> Result<(), FenceError> {
        self.store(word, value);
        self.flush(word);
        self.mapping.fence()
    }

    pub(crate) fn generation(&self) -> Result<u64, MediaError> {
        self.load_checked(GENERATION)
    }

    /// Stores the number of the generation, durably. Everything that a reader of the former
    /// generation needs may be overwritten afterwards.
    pub(crate) fn set_generation(&self, generation: u64) -> Result<(), FenceError> {
        self.store(GENERATION, generation);
        // Pairs with the fence in `is_generation`: a reader that finds a byte of the next
        // generation in a block finds its number, too.
        fence(Ordering::Release);
        self.flush(GENERATION);
        self.mapping.fence()
    }

    /// Whether the generation did not change until all earlier loads of the caller.
    pub(crate) fn is_generation(&self, generation: u64) -> bool {
        // Pairs with the fence in `set_generation`.
        fence(Ordering::Acquire);
        self.load(GENERATION) == generation
    }

    /// Offset of the word that leads to the first block.
    pub(crate) fn head(&self) -> u64 {
        self.start + HEAD
    }

    /// The mark of the generation.
    pub(crate) fn mark(&self, generation: u64) -> Result<u64, MediaError> {
        let word = self.load_checked(MARK)?;
        Ok(position_in(word, generation).unwrap_or(0))
    }

    /// Stores the mark and flushes it. A fence must follow.
    pub(crate) fn set_mark(&self, generation: u64, position: u64) {
        self.store(MARK, tagged(generation, position));
        self.flush(MARK);
    }

    pub(crate) fn opening(&self) -> Result<u64, MediaError> {
        self.load_checked(OPENING)
    }

    pub(crate) fn set_opening(&self, opening: u64) -> Result<(), FenceError> {
        self.store_durably(OPENING, opening)
    }

    /// Shows readers the log up to a position, and ends a beginning.
    pub(crate) fn publish(&self, generation: u64, position: u64) {
        // Release: a reader that sees the position sees the records before it.
        self.store(VISIBLE, tagged(generation, position));
    }

    /// Tells readers that a generation is about to begin. A reader pins the old one visibly for the
    /// caller, or notices.
    pub(crate) fn announce(&self) {
        self.store(VISIBLE, self.load(VISIBLE) | BEGINNING);
        // Pairs with the fence in `still_shows`: of a pin and an announcement, one is seen.
        fence(Ordering::SeqCst);
    }

    /// The generation and the position that readers may see; `None` while a generation begins.
    pub(crate) fn shown(&self) -> Result<Option<(u64, u64)>, MediaError> {
        let word = self.load(VISIBLE);
        let generation = self.generation()?;
        Ok(position_in(word, generation).map(|position| (generation, position)))
    }

    /// Whether readers may see exactly this, after the caller has stored into its slot.
    pub(crate) fn still_shows(&self, generation: u64, position: u64) -> bool {
        // Pairs with the fences in `announce` and `pinned`.
        fence(Ordering::SeqCst);
        self.load(VISIBLE) == tagged(generation, position)
    }

    fn slot(&self, slot: usize) -> u64 {
        self.start + SLOTS + slot as u64 * 16
    }

    /// Acquires a slot for a position. `None` if all are taken.
    pub(crate) fn acquire_slot(&self, position: u64) -> Option<usize> {
        let taken = (position | BEGINNING).to_le();
        let slot = (0..READERS).find(|slot| {
            // The order of the exchange is that of the fence in `still_shows`.
            self.mapping
                .compare_exchange_u64(self.slot(*slot), 0, taken, Ordering::AcqRel)
                .is_ok()
        })?;
        let process = u64::from(std::process::id()).to_le();
        self.mapping
            .store_u64(self.slot(slot) + 8, process, Ordering::Release);
        Some(slot)
    }

    pub(crate) fn release_slot(&self, slot: usize) {
        // Release: the reader's loads are over before its slot is free. Pairs with the load in
        // `pinned`.
        self.mapping
            .store_u64(self.slot(slot), 0, Ordering::Release);
    }

    /// The slots in use: number, position and process. Readers that pin the log later see what was
    /// shown before this call.
    pub(crate) fn pinned(&self) -> Vec<(usize, u64, u32)> {
        // Pairs with the fence in `still_shows`: a reader whose slot is not seen here sees the
        // position that was shown last.
        fence(Ordering::SeqCst);
        let word = |at| u64::from_le(self.mapping.load_u64(at, Ordering::Acquire));
        (0..READERS)
            .map(|slot| (slot, self.slot(slot)))
            .filter(|(_, at)| word(*at) != 0)
            .map(|(slot, at)| {
                let process = u32::try_from(word(at + 8)).unwrap_or(u32::MAX);
                (slot, word(at) & !BEGINNING, process)
            })
            .collect()
    }
}
