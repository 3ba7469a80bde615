//! Arrays indexed by page id that grow without moving.

use std::sync::OnceLock;

use braid_rt::to_usize;

use crate::limits::DATA_FILE_BYTES_MAX;
use crate::page::PAGE_SIZE;
use crate::sync::AtomicU64;

/// Words in the first chunk. Each further chunk is twice as long as the previous one, so a small
/// database has small tables, and the directory of a large one is short.
const FIRST: u64 = 1 << 10;
const CHUNKS: usize = (PAGES_MAX.ilog2() - FIRST.ilog2()) as usize;

/// Page ids are below this: each page of the longest data file can have one.
pub(crate) const PAGES_MAX: u64 = 1 << if cfg!(miri) { 16 } else { 38 };

const _: () = assert!(cfg!(miri) || PAGES_MAX * PAGE_SIZE as u64 > DATA_FILE_BYTES_MAX);

/// One atomic word for each page id, zero until set.
pub(crate) struct PageTable {
    chunks: [OnceLock<Box<[AtomicU64]>>; CHUNKS + 1],
}

/// Returns the chunk of a page id; a nonexistent chunk for an invalid page id. The addend makes
/// chunks begin at powers of two.
#[inline]
fn chunk_of(id: u64) -> usize {
    let chunk = (id.wrapping_add(FIRST) | 1).ilog2();
    chunk.wrapping_sub(FIRST.ilog2()) as usize
}

/// Returns the place of the page's word in its chunk.
#[inline]
fn place_in(chunk: usize, id: u64) -> usize {
    to_usize(id + FIRST - (FIRST << chunk))
}

/// Allocates words that are zero. Takes memory only for words that are used: the allocator gets long
/// arrays from the system, which provides memory at the first write.
#[cfg(not(all(test, loom)))]
fn zeroed(words: usize) -> Box<[AtomicU64]> {
    let words = Box::<[AtomicU64]>::new_zeroed_slice(words);
    // SAFETY: zero bytes are a valid atomic word.
    unsafe { words.assume_init() }
}

#[cfg(all(test, loom))]
fn zeroed(words: usize) -> Box<[AtomicU64]> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

impl PageTable {
    pub(crate) fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS + 1],
        }
    }

    /// The word of a page id, if its chunk exists.
    #[inline]
    pub(crate) fn get(&self, id: u64) -> Option<&AtomicU64> {
        let chunk = chunk_of(id);
        Some(&self.chunks.get(chunk)?.get()?[place_in(chunk, id)])
    }

    /// Returns the word of a page id, allocating its chunk if needed.
    pub(crate) fn get_or_make(&self, id: u64) -> &AtomicU64 {
        assert!(
            id < PAGES_MAX,
            "page ids are checked when they are given out or read"
        );
        let chunk = chunk_of(id);
        let make = || zeroed(to_usize(FIRST << chunk));
        &self.chunks[chunk].get_or_init(make)[place_in(chunk, id)]
    }
}

impl std::fmt::Debug for PageTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageTable").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn every_page_has_a_word_of_its_own() {
        let table = PageTable::new();
        let ids = [0, 1, FIRST - 1, FIRST, 3 * FIRST - 1, 3 * FIRST, 7 * FIRST];
        assert!(ids.iter().all(|&id| table.get(id).is_none()));
        for id in ids {
            table.get_or_make(id).store(id + 1, Ordering::Relaxed);
        }
        for id in ids {
            let word = table.get(id).map(|word| word.load(Ordering::Relaxed));
            assert_eq!(word, Some(id + 1));
        }
        // Other words of their chunks.
        let zero = |id: u64| table.get(id).unwrap().load(Ordering::Relaxed) == 0;
        assert!(zero(2) && zero(FIRST + 1) && zero(15 * FIRST - 1));
        assert!(table.get(15 * FIRST).is_none() && table.get(u64::MAX).is_none());
        assert_eq!(chunk_of(PAGES_MAX - 1), CHUNKS);
        assert!(table.get(PAGES_MAX).is_none() && table.get(PAGES_MAX + FIRST).is_none());
        // The whole table of a small database.
        assert!(size_of::<PageTable>() < 1 << 10);
    }
}
