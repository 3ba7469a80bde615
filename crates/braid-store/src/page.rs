//! A page as an array of 64-bit words.
//!
//! Readers read pages without a latch while writers change them, and check afterwards whether the
//! bytes were consistent (a seqlock). So every access to a page in the pool uses relaxed atomic
//! words: there is no data race, but the bytes may be inconsistent. A reader must not act on them
//! before validation, and they must never lead it out of bounds. Words are little-endian on the
//! medium.

use std::hint::select_unpredictable;
use std::sync::atomic::Ordering;

use braid_rt::narrow;

use crate::sync::AtomicU64;

/// The size of a page and of a block of the data file, in bytes.
pub const PAGE_SIZE: usize = 8192;
pub(crate) const WORDS: usize = PAGE_SIZE / 8;

/// The words of a cache line, for [`Page::prefetch`].
pub(crate) const LINE_WORDS: usize = 64 / 8;

/// Ranges of at least two to this number of words are searched with [`Page::prefetch_search`]: 16
/// cache lines, of which a descent prefetches half.
const SPARSE_LOG2: u32 = 7;

/// The lowest byte of a word that has several fields.
#[inline(always)]
pub(crate) fn low8(word: u64) -> usize {
    (word & 0xff) as usize
}

/// The lowest 16 bits.
#[inline(always)]
pub(crate) fn low16(word: u64) -> usize {
    (word & 0xffff) as usize
}

/// The lowest 32 bits.
#[inline(always)]
pub(crate) fn low32(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

/// The id of a page, constant for its life; 0 is no page's id.
pub type PageId = u64;

/// A page's words in the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page<'a>(pub(crate) &'a [AtomicU64; WORDS]);

impl<'a> Page<'a> {
    /// The word at an index. Indices wrap, so that an invalid index stays in the page.
    #[inline]
    pub(crate) fn word(&self, index: usize) -> u64 {
        // Relaxed: ordered by the version word of the page; see `pool`.
        u64::from_le(self.0[index % WORDS].load(Ordering::Relaxed))
    }

    /// Sets a word. Only for the holder of the exclusive latch.
    #[inline]
    pub(crate) fn set_word(&self, index: usize, value: u64) {
        // Relaxed: published by the release of the latch.
        self.0[index % WORDS].store(value.to_le(), Ordering::Relaxed);
    }

    /// Eight bytes at a word index.
    #[inline]
    pub(crate) fn bytes8(&self, index: usize) -> [u8; 8] {
        self.0[index % WORDS].load(Ordering::Relaxed).to_ne_bytes()
    }

    /// Appends `len` bytes from a word index on to `out`, fewer at the end of the page: an
    /// inconsistent length must not exceed the page, and a valid one never does.
    #[inline]
    pub(crate) fn read_bytes(&self, index: usize, len: usize, out: &mut Vec<u8>) {
        let words = self.words(index, len / 8);
        let whole = words.len() * 8;
        let left = (len - whole).min(7);
        out.reserve(whole + left);
        // SAFETY: so many bytes were reserved.
        unsafe { append_words(words, whole, out) };
        if left > 0 {
            out.extend_from_slice(&self.bytes8(index + words.len())[..left]);
        }
    }

    /// Like [`Page::read_bytes`], but also copies the padding of the last word, for which `out`
    /// needs a little more room.
    #[inline]
    pub(crate) fn read_padded(&self, index: usize, len: usize, out: &mut Vec<u8>) {
        let words = self.words(index, len.div_ceil(8));
        out.reserve(words.len() * 8);
        // SAFETY: so many bytes were reserved.
        unsafe { append_words(words, len.min(words.len() * 8), out) };
    }

    /// Appends whole words from an index on, if all of them lie in the page. Returns whether they
    /// do.
    #[inline]
    pub(crate) fn append_words(&self, index: usize, words: usize, out: &mut Vec<u8>) -> bool {
        let end = index.saturating_add(words);
        let Some(words) = self.0.get(index..end) else {
            return false;
        };
        out.reserve(words.len() * 8);
        // SAFETY: so many bytes were reserved.
        unsafe { append_words(words, words.len() * 8, out) };
        true
    }

    /// Copies whole words from an index on to the beginning of `out`. Returns `false`, without a
    /// copy, if they do not lie in the page or have no room.
    #[inline]
    pub(crate) fn copy_words_out(&self, index: usize, words: usize, out: &mut [u8]) -> bool {
        let words = self.0.get(index..index.saturating_add(words));
        let Some(words) = words.filter(|words| words.len() * 8 <= out.len()) else {
            return false;
        };
        // SAFETY: `out` has room for all bytes of the words.
        unsafe { copy_out(words, out.as_mut_ptr()) };
        true
    }

    /// A value's bytes in a buffer of exactly their length.
    #[inline]
    pub(crate) fn to_vec(self, index: usize, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len.min(PAGE_SIZE));
        self.read_bytes(index, len, &mut out);
        out
    }

    /// Like [`Page::to_vec`], in a buffer that has room for whole words.
    #[inline]
    pub(crate) fn to_padded_vec(self, index: usize, len: usize) -> Vec<u8> {
        let words = self.words(index, len.div_ceil(8));
        let mut out = Vec::with_capacity(words.len() * 8);
        // SAFETY: it has capacity for all of these words.
        unsafe { append_words(words, len.min(words.len() * 8), &mut out) };
        out
    }

    /// Returns `count` words from an index on, fewer at the end of the page.
    #[inline]
    fn words(self, index: usize, count: usize) -> &'a [AtomicU64] {
        let first = index % WORDS;
        &self.0[first..first + count.min(WORDS - first)]
    }

    /// Counts the words below `bound` among `len` ascending words from an index on. Does not branch
    /// on the words, because the direction of a search is unpredictable.
    #[inline]
    pub(crate) fn count_below(self, index: usize, len: usize, bound: u64) -> usize {
        let words = self.words(index, len);
        if words.is_empty() {
            return 0;
        }
        let is_below = |at: usize| {
            debug_assert!(at < words.len());
            // SAFETY: all callers below pass the index of one of the words.
            let word = unsafe { words.get_unchecked(at) };
            u64::from_le(word.load(Ordering::Relaxed)) < bound
        };
        // The number of words below is in `first..=first + size`, where `first + size` is at most
        // the number of words. A size that is a power of two needs fewer instructions for a step
        // than one that must be rounded, as in `slice::partition_point`.
        let size = 1 << words.len().ilog2();
        // Two windows of this size cover all words.
        let last_window = words.len() - size;
        let mut first = select_unpredictable(is_below(size - 1), last_window, 0);
        let mut half = size / 2;
        while half > 0 {
            let middle = first + half;
            first = select_unpredictable(is_below(middle - 1), middle, first);
            half /= 2;
        }
        first + usize::from(is_below(first))
    }

    /// Prefetches the words that the first four steps of [`Page::count_below`] may compare. For ranges
    /// that are too long to prefetch as a whole: each step would wait for a cache line.
    #[inline]
    pub(crate) fn prefetch_search(self, index: usize, len: usize) {
        if len >> SPARSE_LOG2 == 0 {
            // Most ranges: a descent comes here once.
            return;
        }
        let words = self.words(index, len);
        let Some(log) = words
            .len()
            .checked_ilog2()
            .filter(|log| *log >= SPARSE_LOG2)
        else {
            return;
        };
        let (size, step) = (1_usize << log, 1_usize << (log - 3));
        let start = words.as_ptr();
        for window in [0, words.len() - size] {
            for i in 1..=8 {
                braid_rt::prefetch(start.wrapping_add(window + i * step - 1));
            }
        }
    }

    /// Writes bytes from a word index on, the last word padded with zeroes. Only for the holder of
    /// the exclusive latch, which must ensure that they fit.
    #[inline]
    pub(crate) fn write_bytes(&self, index: usize, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks::<8>();
        let words = &self.0[index % WORDS..];
        debug_assert!(bytes.len().div_ceil(8) <= words.len(), "the bytes fit");
        for (word, chunk) in words.iter().zip(whole) {
            word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let last = match bytes.last_chunk() {
                // The last eight bytes, without those in the previous word.
                Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
                None => head8(rest).swap_bytes(),
            };
            self.set_word(index + whole.len(), last);
        }
    }

    /// Copies `count` words of another page, from the index `from` on, to the index `to`. Only for
    /// the holder of the exclusive latch.
    #[inline]
    pub(crate) fn copy_words(&self, to: usize, other: Page<'_>, from: usize, count: usize) {
        for (word, other) in self.words(to, count).iter().zip(other.words(from, count)) {
            word.store(other.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Prefetches `count` words from an index on, all at once: otherwise a reader would wait for
    /// missing cache lines one after the other.
    #[inline]
    pub(crate) fn prefetch(self, index: usize, count: usize) {
        self.lines(index, count).for_each(braid_rt::prefetch);
    }

    /// Like [`Page::prefetch`], for words that are about to be changed.
    #[inline]
    pub(crate) fn prefetch_for_write(self, index: usize, count: usize) {
        self.lines(index, count)
            .for_each(braid_rt::prefetch_for_write);
    }

    /// Returns the cache lines of `count` words from an index on.
    #[inline(always)]
    fn lines(self, index: usize, count: usize) -> impl Iterator<Item = *const AtomicU64> {
        // From the beginning of a line on.
        let before = index % LINE_WORDS;
        let words = self.words(index - before, count.saturating_add(before));
        let lines = (0..words.len()).step_by(LINE_WORDS);
        lines.map(|at| words.as_ptr().wrapping_add(at))
    }

    /// Makes all words zero from an index on. Only for the holder of the exclusive latch.
    pub(crate) fn clear_from(&self, index: usize) {
        let words = self.0.iter().skip(index);
        words.for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Copies the page out.
    pub(crate) fn copy_to(&self, out: &mut [u8]) {
        assert_eq!(out.len(), PAGE_SIZE);
        for (word, chunk) in self.0.iter().zip(out.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    /// Copies a page in. Only for the holder of the exclusive latch.
    pub(crate) fn copy_from(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), PAGE_SIZE);
        self.write_bytes(0, bytes);
    }
}

/// Appends the first `len` bytes of words.
///
/// # Safety
/// The words have at least `len` bytes, and `out` has spare capacity for all bytes of the words.
#[inline]
unsafe fn append_words(words: &[AtomicU64], len: usize, out: &mut Vec<u8>) {
    let before = out.len();
    // SAFETY: `before <= capacity`, and there is capacity for the words.
    unsafe { copy_out(words, out.as_mut_ptr().add(before)) };
    // SAFETY: `copy_out` wrote these bytes.
    unsafe { out.set_len(before + len) };
}

/// Copies words to memory.
///
/// # Safety
/// All bytes of the words can be written at `out`.
#[inline]
unsafe fn copy_out(words: &[AtomicU64], out: *mut u8) {
    for (i, word) in words.iter().enumerate() {
        let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        // SAFETY: `i < words.len()`: these eight bytes can be written.
        unsafe { out.add(i * 8).cast::<[u8; 8]>().write_unaligned(bytes) };
    }
}

/// A private page outside of the pool.
pub(crate) fn private() -> Box<[AtomicU64; WORDS]> {
    Box::new(std::array::from_fn(|_| AtomicU64::new(0)))
}

/// Compares key bytes, stored from a word index on with zero padding, with `key`.
#[inline]
pub(crate) fn compare_key(
    page: Page<'_>,
    index: usize,
    len: usize,
    key: &[u8],
) -> std::cmp::Ordering {
    let shared = len.min(key.len());
    let mut at = 0;
    while at < shared {
        let stored = u64::from_be_bytes(page.bytes8(index + at / 8));
        let asked = head8(&key[at..]);
        if stored != asked {
            return stored.cmp(&asked);
        }
        at += 8;
    }
    // The keys agree up to the shorter one's last word, with the padding read as zeroes.
    if key.len() > at || len > at {
        let stored = if len > at {
            u64::from_be_bytes(page.bytes8(index + at / 8))
        } else {
            0
        };
        let asked = if key.len() > at { head8(&key[at..]) } else { 0 };
        if stored != asked {
            return stored.cmp(&asked);
        }
    }
    len.cmp(&key.len())
}

/// [`head8`] of the bytes after the first `at` bytes; `bytes` may be shorter than `at`.
#[inline]
pub(crate) fn head8_after(bytes: &[u8], at: usize) -> u64 {
    if let Some(all) = bytes.get(at..at.saturating_add(8)) {
        return head8(all);
    }
    let after = bytes.len().saturating_sub(at);
    match bytes.last_chunk() {
        // The last eight bytes, without those before `at`.
        Some(last) => {
            let before = 64 - 8 * narrow::<u32>(after);
            u64::from_be_bytes(*last).checked_shl(before).unwrap_or(0)
        }
        None => head8(bytes.get(at..).unwrap_or_default()),
    }
}

/// The first eight bytes as a big-endian number, padded with zeroes.
#[inline]
pub(crate) fn head8(bytes: &[u8]) -> u64 {
    if let Some(all) = bytes.first_chunk() {
        return u64::from_be_bytes(*all);
    }
    // Two loads that overlap: a copy of up to seven bytes would be a call.
    let end = 64 - 8 * narrow::<u32>(bytes.len());
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let (first, last) = (u32::from_be_bytes(*first), u32::from_be_bytes(*last));
        return u64::from(first) << 32 | u64::from(last) << end;
    }
    match *bytes {
        [] => 0,
        [first] => u64::from(first) << 56,
        [first, second, ..] => {
            let last = bytes[bytes.len() - 1];
            u64::from(first) << 56 | u64::from(second) << 48 | u64::from(last) << end
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stored_keys_compare_like_slices(
            a in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..30),
            b in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..30),
        ) {
            let words = private();
            let page = Page(&words);
            page.write_bytes(10, &a);
            prop_assert_eq!(compare_key(page, 10, a.len(), &b), a.cmp(&b));
            prop_assert_eq!(page.to_vec(10, a.len()), a.clone());
            let mut out = Vec::new();
            page.read_bytes(10, a.len(), &mut out);
            prop_assert_eq!(&out, &a);
            page.read_padded(10, a.len(), &mut out);
            prop_assert!(page.append_words(10, a.len().div_ceil(8), &mut out));
            out.truncate(a.len() * 3);
            let mut padded = vec![1; a.len().next_multiple_of(8)];
            prop_assert!(page.copy_words_out(10, a.len().div_ceil(8), &mut padded));
            prop_assert_eq!(&padded[..a.len()], &a[..]);
            prop_assert_eq!(out, [&a[..], &a, &a].concat());
        }
    }

    #[test]
    fn heads_are_padded_with_zeroes() {
        let bytes = [0x81, 0x92, 0xa3, 0xb4, 0xc5, 0xd6, 0xe7, 0xf8, 0x19];
        for len in 0..=bytes.len() {
            let mut word = [0; 8];
            word[..len.min(8)].copy_from_slice(&bytes[..len.min(8)]);
            assert_eq!(head8(&bytes[..len]), u64::from_be_bytes(word), "{len}");
            for at in 0..=len + 1 {
                let after = head8(bytes[..len].get(at..).unwrap_or_default());
                assert_eq!(head8_after(&bytes[..len], at), after, "{at} of {len}");
            }
        }
    }

    #[test]
    fn words_below_a_bound_are_counted() {
        let words = private();
        let page = Page(&words);
        let long = [127, 128, 129, WORDS - 10];
        let lengths = (0..if cfg!(miri) { 10 } else { 70 }).chain(long);
        for len in lengths.filter(|&len| len < 20 || !cfg!(miri)) {
            for i in 0..len {
                // Each twice.
                page.set_word(10 + i, (i / 2 * 2 + 1) as u64);
            }
            for bound in 0..len + 3 {
                let below = bound.saturating_sub(1).next_multiple_of(2).min(len);
                let counted = page.count_below(10, len, bound as u64);
                assert_eq!(counted, below, "{bound} in {len}");
            }
        }
        // Words in no order, as in a page that changes: any result, but none outside.
        for len in 0..if cfg!(miri) { 10 } else { 40 } {
            for seed in 0..if cfg!(miri) { 12 } else { 200_u64 } {
                for i in 0..len {
                    page.set_word(10 + i, (seed + 1).wrapping_mul(i as u64 * 7 + 3) % 11);
                }
                assert!(page.count_below(10, len, seed % 12) <= len);
            }
        }
        assert!(page.count_below(WORDS - 1, usize::MAX, u64::MAX) <= 1);
    }

    #[test]
    fn nonsense_extents_stay_in_the_page() {
        let words = private();
        let page = Page(&words);
        assert!(page.to_vec(WORDS - 1, 100_000).len() <= PAGE_SIZE);
        let mut out = Vec::new();
        page.read_padded(WORDS - 1, 100_000, &mut out);
        assert_eq!(out, [0; 8]);
        assert_eq!(page.word(usize::MAX), 0);
        let mut out = Vec::new();
        for (index, words) in [(WORDS - 1, 2), (WORDS, 1), (usize::MAX, 1), (0, usize::MAX)] {
            assert!(!page.append_words(index, words, &mut out) && out.is_empty());
        }
        assert!(page.append_words(WORDS - 1, 1, &mut out) && out.len() == 8);
        let mut out = [7; 16];
        for (index, words) in [
            (WORDS - 1, 2),
            (WORDS, 1),
            (usize::MAX, 1),
            (0, usize::MAX),
            (0, 3),
        ] {
            assert!(!page.copy_words_out(index, words, &mut out) && out == [7; 16]);
        }
        assert!(page.copy_words_out(WORDS - 1, 1, &mut out));
        assert_eq!(out, [[0; 8], [7; 8]].concat()[..]);
    }
}
