//! Bytes in words of eight, which other threads may access at the same time.
//!
//! Memory that threads and processes share is made of atomic words, in the byte order of the
//! machine. Bytes are stored a word at a time, so that a word is never torn, neither for a reader
//! nor by a crash.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
pub(crate) const WORD: usize = size_of::<u64>();

/// What a store of bytes does to one word.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    /// Bytes of the word before the stored ones.
    skip: usize,
    /// At most eight bytes.
    bytes: &'a [u8],
}

impl Part<'_> {
    /// Returns a word after the store.
    #[inline]
    pub(crate) fn merged(self, old: u64) -> u64 {
        match <[u8; WORD]>::try_from(self.bytes) {
            Ok(whole) => u64::from_ne_bytes(whole),
            Err(_) => {
                let mut word = old.to_ne_bytes();
                word[self.skip..self.skip + self.bytes.len()].copy_from_slice(self.bytes);
                u64::from_ne_bytes(word)
            }
        }
    }

    /// Stores into a word. The word's other bytes keep what other threads store meanwhile.
    #[inline]
    fn store(self, word: &AtomicU64) {
        if self.bytes.len() == WORD {
            word.store(self.merged(0), Ordering::Relaxed);
        } else {
            let merge = |old| Some(self.merged(old));
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merge);
        }
    }
}

/// Splits a store of bytes at byte `at` into its words: calls `each` with the index of each word.
#[inline]
pub(crate) fn parts(at: usize, bytes: &[u8], mut each: impl FnMut(usize, Part<'_>)) {
    let (mut index, skip) = (at / WORD, at % WORD);
    let mut rest = bytes;
    if skip != 0 {
        let (head, tail) = rest.split_at(rest.len().min(WORD - skip));
        each(index, Part { skip, bytes: head });
        (index, rest) = (index + 1, tail);
    }
    let (whole, tail) = rest.as_chunks::<WORD>();
    for bytes in whole {
        each(index, Part { skip: 0, bytes });
        index += 1;
    }
    if !tail.is_empty() {
        let bytes = tail;
        each(index, Part { skip: 0, bytes });
    }
}

/// Stores bytes from byte `at` of the words on, with relaxed order.
///
/// # Panics
///
/// If the words end before the bytes.
#[inline]
pub(crate) fn store(words: &[AtomicU64], at: usize, bytes: &[u8]) {
    let words = &words[..(at + bytes.len()).div_ceil(WORD)];
    let (whole, tail) = bytes.as_chunks::<WORD>();
    if at.is_multiple_of(WORD) && tail.is_empty() {
        // Logs and pages consist of whole words.
        for (word, bytes) in words[at / WORD..].iter().zip(whole) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        return;
    }
    parts(at, bytes, |index, part| part.store(&words[index]));
}

/// Loads bytes from byte `at` of the words on, with relaxed order.
///
/// # Panics
///
/// If the words end before the bytes.
#[inline]
pub(crate) fn load(words: &[AtomicU64], at: usize, bytes: &mut [u8]) {
    let words = &words[..(at + bytes.len()).div_ceil(WORD)];
    let (mut index, skip) = (at / WORD, at % WORD);
    let (head, rest) = bytes.split_at_mut(bytes.len().min((WORD - skip) % WORD));
    if !head.is_empty() {
        let word = words[index].load(Ordering::Relaxed).to_ne_bytes();
        head.copy_from_slice(&word[skip..skip + head.len()]);
        index += 1;
    }
    let (whole, tail) = rest.as_chunks_mut::<WORD>();
    let (words, last) = words[index..].split_at(whole.len());
    for (bytes, word) in whole.iter_mut().zip(words) {
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    if let ([_, ..], [word, ..]) = (&*tail, last) {
        let word = word.load(Ordering::Relaxed).to_ne_bytes();
        tail.copy_from_slice(&word[..tail.len()]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_are_stored_and_loaded_at_any_offset(
            at in 0_usize..40,
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let words: Vec<_> = (0..13).map(|_| AtomicU64::new(u64::from_ne_bytes([0xee; 8]))).collect();
            store(&words, at, &bytes);
            let mut all = vec![0; 13 * WORD];
            load(&words, 0, &mut all);
            let mut expected = vec![0xee; 13 * WORD];
            expected[at..at + bytes.len()].copy_from_slice(&bytes);
            prop_assert_eq!(&all, &expected);
            let mut loaded = vec![0; bytes.len()];
            load(&words, at, &mut loaded);
            prop_assert_eq!(loaded, bytes);
        }
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_store_past_the_end_panics() {
        store(&[AtomicU64::new(0)], 4, &[0; 5]);
    }
}
