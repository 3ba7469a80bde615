//! A node of the tree: a slotted page with fences and a truncated prefix.
//!
//! ```text
//! word 0   checksum (pool)          word 1  page id (pool)
//! word 2   kind:8 | unused:8 | slots:16 | heap start:16 (word index) | dead words:16
//! word 3   lower fence: word:16, length:16 | upper fence: word:16, length:16 (0xffff: none)
//! word 4   prefix length:16 | shared length:8 | unused:40
//! word 5   rightmost child (inner nodes)
//! word 6   shared bytes, the first one highest
//! word 7.. slots: key head:32 | record's word:16 | suffix length:16
//! ...      heap, growing down: records and fences
//! ```
//!
//! A leaf's record is version, `value length:32 | flags:8`, key suffix, value; an inner node's is
//! child, key suffix. All parts start at words. Slot `i` of an inner node with key `k` leads to the
//! keys below `k`; the rightmost child to the rest. All keys share the prefix that the two fences
//! have in common, and only the suffix after it is stored.
//!
//! Most comparisons are decided inside the slot array, by the heads. A head is four bytes of the
//! suffix, after the up to eight *shared* bytes with which all suffixes in the node begin. (A node
//! at the edge of the tree lacks a fence and so has no prefix, and its keys still begin alike.)

mod check;
mod contents;
mod edit;
mod search;
mod shared;
pub(crate) mod value_page;

use std::ops::Range;

use crate::page::{LINE_WORDS, PAGE_SIZE, Page, PageId, WORDS, low8, low16, low32};

use self::shared::{SHARED_MAX, Shared};

pub(crate) use check::check;
pub(crate) use contents::{Contents, Entry};
pub(crate) use edit::NewValue;

pub(crate) const KIND_LEAF: u8 = 1;
pub(crate) const KIND_INNER: u8 = 2;
pub(crate) const KIND_OVERFLOW: u8 = 3;

pub(crate) const FIRST_SLOT: usize = 7;
const NO_FENCE: usize = 0xffff;

pub(crate) const FLAG_TOMBSTONE: u64 = 1;
pub(crate) const FLAG_OVERFLOW: u64 = 2;

/// The longest key of a node: a link between layers of long keys (see `tree::layers`) is longer
/// than any short key.
pub(crate) const KEY_MAX: usize = 1040;

/// Values above this go to overflow pages: a leaf holds at least three, if its keys are short.
pub(crate) const INLINE_MAX: usize = 2000;

/// The longest key and value together that a leaf takes: two such records and two of the longest
/// fences fit.
const RECORD_MAX: usize = 2984;

const _: () =
    assert!(FIRST_SLOT + 2 * words_of(KEY_MAX) + 2 * (3 + RECORD_MAX.div_ceil(8) + 1) <= WORDS);

/// Values above this go to overflow pages, for a key of this length.
#[inline]
pub(crate) fn inline_max(key_len: usize) -> usize {
    INLINE_MAX.min(RECORD_MAX.saturating_sub(key_len))
}

pub(crate) const fn words_of(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

/// A read view of a node. On a page that is not latched, its results may be invalid until the page
/// is validated, but it never reads outside of the page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a>(pub(crate) Page<'a>);

/// A leaf record's fixed part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafRecord {
    /// The word where it starts.
    at: usize,
    pub(crate) version: u64,
    pub(crate) flags: u64,
    pub(crate) value_len: usize,
    pub(crate) suffix_len: usize,
    /// The word where the value, or the reference to its overflow pages, starts.
    pub(crate) value_at: usize,
}

impl LeafRecord {
    pub(crate) fn is_tombstone(&self) -> bool {
        self.flags & FLAG_TOMBSTONE != 0
    }

    pub(crate) fn is_overflow(&self) -> bool {
        self.flags & FLAG_OVERFLOW != 0
    }

    /// The bytes that the value takes in the leaf.
    pub(crate) fn stored_len(&self) -> usize {
        if self.is_overflow() {
            8
        } else {
            self.value_len
        }
    }
}

impl<'a> Node<'a> {
    pub(crate) fn kind(self) -> u8 {
        (self.0.word(2) & 0xff) as u8
    }

    #[inline]
    pub(crate) fn is_leaf(self) -> bool {
        self.kind() == KIND_LEAF
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        low16(self.0.word(2) >> 16).min(WORDS - FIRST_SLOT)
    }

    pub(crate) fn heap_start(self) -> usize {
        low16(self.0.word(2) >> 32)
    }

    fn dead_words(self) -> usize {
        low16(self.0.word(2) >> 48)
    }

    fn set_counts(self, kind: u8, len: usize, heap_start: usize, dead: usize) {
        let word =
            kind as u64 | (len as u64) << 16 | (heap_start as u64) << 32 | (dead as u64) << 48;
        self.0.set_word(2, word);
    }

    #[inline]
    pub(crate) fn prefix_len(self) -> usize {
        low16(self.0.word(4))
    }

    #[inline]
    fn shared(self) -> Shared {
        Shared {
            len: low8(self.0.word(4) >> 16).min(SHARED_MAX),
            bytes: self.0.word(6),
        }
    }

    fn set_shared(self, shared: Shared) {
        let word = self.prefix_len() as u64 | (shared.len as u64) << 16;
        self.0.set_word(4, word);
        self.0.set_word(6, shared.bytes);
    }

    #[inline]
    fn slot(self, i: usize) -> (u32, usize, usize) {
        let word = self.0.word(FIRST_SLOT + i);
        ((word >> 32) as u32, low16(word >> 16), low16(word))
    }

    fn set_slot(self, i: usize, head: u32, at: usize, suffix_len: usize) {
        let word = u64::from(head) << 32 | (at as u64) << 16 | suffix_len as u64;
        self.0.set_word(FIRST_SLOT + i, word);
    }

    /// Words before the key suffix in a record.
    #[inline]
    fn record_head(self) -> usize {
        if self.is_leaf() { 2 } else { 1 }
    }

    fn fence(self, shift: u32) -> Option<Vec<u8>> {
        let word = self.0.word(3) >> shift;
        let (at, len) = (low16(word), low16(word >> 16));
        (len != NO_FENCE).then(|| self.0.to_vec(at, len))
    }

    /// The smallest key that belongs to this node; `None`: no bound.
    pub(crate) fn lower_fence(self) -> Option<Vec<u8>> {
        self.fence(0)
    }

    /// The smallest key that belongs to the right of this node; `None`: no bound.
    pub(crate) fn upper_fence(self) -> Option<Vec<u8>> {
        self.fence(32)
    }

    /// The bounds of the child at a position.
    pub(crate) fn bounds_of_child(self, i: usize) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let lower = match i.checked_sub(1) {
            Some(before) => Some(self.key(before)),
            None => self.lower_fence(),
        };
        let upper = if i < self.len() {
            Some(self.key(i))
        } else {
            self.upper_fence()
        };
        (lower, upper)
    }

    /// The child at a position; after the last slot it is the rightmost one.
    #[inline]
    pub(crate) fn child_at(self, i: usize) -> PageId {
        self.child_among(i, self.len())
    }

    #[inline]
    fn child_among(self, i: usize, len: usize) -> PageId {
        if i >= len {
            self.0.word(5)
        } else {
            self.0.word(self.slot(i).1)
        }
    }

    /// The key of a slot, in full.
    pub(crate) fn key(self, i: usize) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.key_len(i).min(2 * PAGE_SIZE));
        self.key_into(i, &mut key);
        key
    }

    fn key_len(self, i: usize) -> usize {
        let (_, _, suffix_len) = self.slot(i);
        self.prefix_len() + suffix_len
    }

    fn key_into(self, i: usize, key: &mut Vec<u8>) {
        let prefix = self.prefix_len().min(PAGE_SIZE);
        let (_, at, len) = self.slot(i);
        if prefix > 0 {
            self.0.read_bytes(low16(self.0.word(3)), prefix, key);
        }
        self.0
            .read_bytes(at + self.record_head(), len.min(PAGE_SIZE), key);
    }

    #[inline]
    pub(crate) fn leaf_record(self, i: usize) -> LeafRecord {
        let (_, at, suffix_len) = self.slot(i);
        let lengths = self.0.word(at + 1);
        LeafRecord {
            at,
            version: self.0.word(at),
            flags: lengths >> 32,
            value_len: low32(lengths) as usize,
            suffix_len,
            value_at: at + 2 + words_of(suffix_len),
        }
    }

    /// Appends a record's key and, from the next word on, the value's bytes in the leaf. Returns
    /// the places of both, or `None` if they do not lie in the page.
    // Inlined, because scans spend most of their time here.
    #[inline(always)]
    pub(crate) fn append_record(
        self,
        record: &LeafRecord,
        out: &mut Vec<u8>,
    ) -> Option<(Range<usize>, Range<usize>)> {
        let start = out.len();
        let prefix = self.prefix_len();
        if prefix > 0 {
            let at = low16(self.0.word(3));
            if prefix <= 8 {
                out.extend_from_slice(&self.0.bytes8(at));
            } else if !self.0.append_words(at, words_of(prefix), out) {
                return None;
            }
            out.truncate(start + prefix);
        }
        let suffix_words = words_of(record.suffix_len);
        let words = suffix_words + words_of(record.stored_len());
        let suffix_at = record.value_at.wrapping_sub(suffix_words);
        if !self.0.append_words(suffix_at, words, out) {
            return None;
        }
        let suffix = start + prefix;
        let value = suffix + suffix_words * 8;
        Some((
            start..suffix + record.suffix_len,
            value..value + record.stored_len(),
        ))
    }

    /// Prefetches a leaf's records, as far as their places are known without reading them.
    pub(crate) fn prefetch_records(self, slots: Range<usize>) {
        let (heap, len) = (self.heap_start().min(WORDS), self.len());
        if slots.len() == len {
            return self.0.prefetch(heap, WORDS - heap);
        }
        let size = (WORDS - heap) / len.max(1);
        for i in slots {
            let (_, at, _) = self.slot(i);
            self.0.prefetch(at, size);
        }
    }

    /// Prefetches a record of a leaf.
    #[inline]
    pub(crate) fn prefetch_record(self, i: usize) {
        let (_, at, _) = self.slot(i);
        self.0.prefetch(at, 2 * LINE_WORDS);
    }

    /// Prefetches a record of a leaf that is about to be changed.
    #[inline]
    pub(crate) fn prefetch_record_for_write(self, i: usize) {
        let (_, at, _) = self.slot(i);
        self.0.prefetch_for_write(at, 2 * LINE_WORDS);
    }

    /// The value's bytes in the leaf: the value, or the reference to it.
    pub(crate) fn stored_value(self, record: &LeafRecord) -> Vec<u8> {
        self.0.to_vec(record.value_at, record.stored_len())
    }

    /// Like [`Node::stored_value`], in a buffer that has room for whole words.
    #[inline]
    pub(crate) fn padded_value(self, record: &LeafRecord) -> Vec<u8> {
        self.0.to_padded_vec(record.value_at, record.stored_len())
    }

    /// Copies the bytes of [`Node::stored_value`] to `out`, if it has room for whole words.
    #[inline]
    pub(crate) fn copy_stored_value(self, record: &LeafRecord, out: &mut [u8]) -> bool {
        self.0
            .copy_words_out(record.value_at, words_of(record.stored_len()), out)
    }

    /// Copies the first bytes of [`Node::stored_value`] to `out`, as many as have room in whole words.
    /// Returns their number.
    #[inline]
    pub(crate) fn copy_head_of_value(self, record: &LeafRecord, out: &mut [u8]) -> usize {
        let words = words_of(record.stored_len()).min(out.len() / 8);
        let is_copied = self.0.copy_words_out(record.value_at, words, out);
        // In a page that is changing, the place may be invalid.
        if is_copied {
            record.stored_len().min(words * 8)
        } else {
            0
        }
    }

    /// Appends the bytes of [`Node::stored_value`] to `out`.
    #[inline]
    pub(crate) fn append_stored_value(self, record: &LeafRecord, out: &mut Vec<u8>) {
        self.0
            .read_padded(record.value_at, record.stored_len(), out);
    }

    fn free_words(self) -> usize {
        self.heap_start().saturating_sub(FIRST_SLOT + self.len())
    }

    /// Words in use, slots included; in a page that is changing, any number up to all words.
    pub(crate) fn used_words(self) -> usize {
        WORDS.saturating_sub(self.free_words() + self.dead_words())
    }

    /// Whether the node should be merged with a neighbour.
    pub(crate) fn is_underfull(self) -> bool {
        self.used_words() < WORDS / 4
    }

    /// Whether a separator of any allowed length fits.
    pub(crate) fn has_room_for_separator(self) -> bool {
        self.free_words() + self.dead_words() >= 2 + words_of(KEY_MAX)
    }
}

/// The shortest key above `left` and not above `right`.
pub(crate) fn shortest_separator(left: &[u8], right: &[u8]) -> Vec<u8> {
    let shared = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    right[..=shared.min(right.len() - 1)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_separate() {
        assert_eq!(shortest_separator(b"abc", b"abe"), b"abe");
        assert_eq!(shortest_separator(b"a", b"abc"), b"ab");
        assert_eq!(shortest_separator(b"", b"x"), b"x");
    }
}
