//! The words of a simulated file in persistent memory, for loads without a call.

use std::sync::atomic::{AtomicU64, Ordering};

use super::blocks::Blocks;

/// Bytes of a word.
const WORD: usize = 8;

/// Bytes of a file that have words.
const CAPACITY: usize = 32 << 20;

/// The bytes of a file as words, at an address that does not change.
#[derive(Debug)]
pub(super) struct Mirror {
    words: Box<[AtomicU64]>,
    /// The length of the file.
    len: AtomicU64,
}

impl Mirror {
    pub(super) fn of(bytes: &Blocks) -> Self {
        // Zeroes take no memory until they are written.
        let words = Box::<[AtomicU64]>::new_zeroed_slice(CAPACITY / WORD);
        let this = Self {
            // SAFETY: zero bytes are a valid atomic word.
            words: unsafe { words.assume_init() },
            len: AtomicU64::new(0),
        };
        this.show_rest(bytes, 0);
        this
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    /// Whether the file has all bytes before `end`, and their words exist.
    pub(super) fn has(&self, end: u64) -> bool {
        end <= self.len.load(Ordering::Relaxed).min(CAPACITY as u64)
    }

    /// Shows what the file has between two offsets, the first of which begins a word.
    pub(super) fn show(&self, bytes: &Blocks, from: usize, to: usize) {
        for at in (from..to.min(CAPACITY)).step_by(WORD) {
            let end = (at + WORD).min(bytes.len());
            let mut word = [0; WORD];
            if at < end {
                word[..end - at].copy_from_slice(bytes.get(at..end));
            }
            self.words[at / WORD].store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    /// Shows what the file has from an offset on, and its length.
    pub(super) fn show_rest(&self, bytes: &Blocks, from: usize) {
        let before = self.len.swap(bytes.len() as u64, Ordering::Relaxed);
        let end = bytes.len().max(braid_rt::to_usize(before));
        self.show(bytes, from / WORD * WORD, end);
    }
}
