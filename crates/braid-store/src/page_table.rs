//! Arrays indexed by page id that grow without moving.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

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
///
/// A lookup is on the way of every access to a page, several times in a transaction. So a chunk is
/// its address alone: the place of an id's word follows from the id.
pub(crate) struct PageTable {
    /// The first word of each chunk, of `FIRST << chunk` words; null before the chunk is allocated.
    /// Then it never changes.
    chunks: [AtomicPtr<AtomicU64>; CHUNKS + 1],
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
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS + 1],
        }
    }

    /// The word of a page id, if its chunk exists.
    #[inline]
    pub(crate) fn get(&self, id: u64) -> Option<&AtomicU64> {
        let chunk = chunk_of(id);
        // Acquire: pairs with `make`.
        let words = self.chunks.get(chunk)?.load(Ordering::Acquire);
        if words.is_null() {
            return None;
        }
        // SAFETY: the chunk has `FIRST << chunk` words and lives as long as the table. By `chunk_of`,
        // `id + FIRST` is at least that number, and less than twice as much, so the place is less
        // than the number of words.
        Some(unsafe { &*words.add(place_in(chunk, id)) })
    }

    /// Returns the word of a page id, allocating its chunk if needed.
    pub(crate) fn get_or_make(&self, id: u64) -> &AtomicU64 {
        assert!(
            id < PAGES_MAX,
            "page ids are checked when they are given out or read"
        );
        loop {
            if let Some(word) = self.get(id) {
                return word;
            }
            self.make(chunk_of(id));
        }
    }

    /// Allocates a chunk, unless another thread is faster.
    #[cold]
    fn make(&self, chunk: usize) {
        let words = Box::into_raw(zeroed(to_usize(FIRST << chunk)));
        // Release: pairs with `get`, for the zeroes of the words.
        let made = self.chunks[chunk].compare_exchange(
            ptr::null_mut(),
            words.cast(),
            Ordering::Release,
            Ordering::Relaxed,
        );
        if made.is_err() {
            // SAFETY: it came from a box above, and no other thread has seen it.
            drop(unsafe { Box::from_raw(words) });
        }
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        for (chunk, words) in self.chunks.iter_mut().enumerate() {
            let words = std::mem::replace(words.get_mut(), ptr::null_mut());
            if !words.is_null() {
                let words = ptr::slice_from_raw_parts_mut(words, to_usize(FIRST << chunk));
                // SAFETY: `make` got the chunk, of this length, from a box, which nothing else frees.
                drop(unsafe { Box::from_raw(words) });
            }
        }
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
        // Threads that need the same chunk get the same words.
        let (table, first) = (PageTable::new(), std::sync::Barrier::new(4));
        let words: Vec<usize> = std::thread::scope(|scope| {
            let word = || {
                first.wait();
                std::ptr::from_ref(table.get_or_make(5 * FIRST)).addr()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(word)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(words.iter().all(|word| *word == words[0]));
        // The whole table of a small database.
        assert!(size_of::<PageTable>() < 1 << 10);
    }
}
