//! Changes of a node in its page, made by the holder of the exclusive latch.
//!
//! Separate from reading: the code here trusts the node's contents, which a reader without the
//! latch must not.

use super::shared::Shared;
use super::{Contents, FIRST_SLOT, KIND_LEAF, LeafRecord, NO_FENCE, Node, words_of};
use crate::page::{Page, PageId, WORDS, private};

/// A value in the form in which a leaf stores it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewValue<'a> {
    pub(crate) version: u64,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) stored: &'a [u8],
}

impl<'a> NewValue<'a> {
    /// Creates a value that is stored in the leaf.
    pub(crate) fn inline(version: u64, value: &'a [u8]) -> Self {
        Self {
            version,
            flags: 0,
            len: value.len(),
            stored: value,
        }
    }
}

impl Node<'_> {
    /// Makes the page an empty leaf without bounds.
    pub(crate) fn init_leaf(self) {
        Contents::<&[u8]> {
            kind: KIND_LEAF,
            ..Contents::default()
        }
        .write(self);
    }

    fn record_words(self, i: usize) -> usize {
        let (_, _, suffix_len) = self.slot(i);
        let value = if self.is_leaf() {
            words_of(self.leaf_record(i).stored_len())
        } else {
            0
        };
        self.record_head() + words_of(suffix_len) + value
    }

    /// Reserves heap space, compacting the node if that helps. The slot array may grow by
    /// `new_slots`.
    fn reserve(self, words: usize, new_slots: usize) -> Option<usize> {
        if self.free_words() < words + new_slots {
            if self.free_words() + self.dead_words() < words + new_slots {
                return None;
            }
            self.compact();
            debug_assert!(self.free_words() >= words + new_slots, "space adds up");
        }
        Some(self.heap_start() - words)
    }

    /// Writes the fences at the end of an empty heap. Returns the heap's new start.
    pub(super) fn place_fences(self, lower: &Option<Vec<u8>>, upper: &Option<Vec<u8>>) -> usize {
        let mut heap = WORDS;
        let mut place = |bytes: &Option<Vec<u8>>| match bytes {
            None => (NO_FENCE as u64) << 16,
            Some(bytes) => {
                heap -= words_of(bytes.len());
                self.0.write_bytes(heap, bytes);
                heap as u64 | (bytes.len() as u64) << 16
            }
        };
        let fences = place(lower) | place(upper) << 32;
        self.0.set_word(3, fences);
        heap
    }

    /// Closes the gaps that dead records left.
    #[inline(never)]
    fn compact(self) {
        let copy = private();
        Page(&copy).copy_words(0, self.0, 0, WORDS);
        let old = Node(Page(&copy));
        let mut heap = self.place_fences(&old.lower_fence(), &old.upper_fence());
        for i in 0..old.len() {
            let (head, at, suffix_len) = old.slot(i);
            let words = old.record_words(i);
            heap -= words;
            self.0.copy_words(heap, old.0, at, words);
            self.set_slot(i, head, heap, suffix_len);
        }
        self.set_counts(old.kind(), old.len(), heap, 0);
        // The remaining suffixes may share more bytes than before.
        if let Some(last) = old.len().checked_sub(1) {
            self.set_common(Shared::by(&self.suffix(0), &self.suffix(last)));
        }
    }

    fn write_leaf_record(self, at: usize, suffix: &[u8], value: &NewValue<'_>) {
        self.0.write_bytes(at + 2, suffix);
        self.write_leaf_value(at, at + 2 + words_of(suffix.len()), value);
    }

    #[inline(always)]
    fn write_leaf_value(self, at: usize, value_at: usize, value: &NewValue<'_>) {
        self.0.set_word(at, value.version);
        self.0
            .set_word(at + 1, value.flags << 32 | value.len as u64);
        self.0.write_bytes(value_at, value.stored);
    }

    /// Inserts or replaces a leaf's record at the place that [`Node::search`] found for its key;
    /// returns `false` if there is no room.
    #[must_use]
    pub(crate) fn put(self, place: Result<usize, usize>, key: &[u8], value: &NewValue<'_>) -> bool {
        match place {
            Ok(i) => {
                self.put_in_place(&self.leaf_record(i), value) || self.put_larger(i, key, value)
            }
            Err(i) => self.put_new(i, key, value),
        }
    }

    /// Replaces a record in place. Returns `false` if the new record takes more room.
    #[inline(always)]
    #[must_use]
    pub(crate) fn put_in_place(self, old: &LeafRecord, value: &NewValue<'_>) -> bool {
        let (old_words, words) = (words_of(old.stored_len()), words_of(value.stored.len()));
        if words > old_words {
            return false;
        }
        self.write_leaf_value(old.at, old.value_at, value);
        if words < old_words {
            self.add_dead(old_words - words);
        }
        true
    }

    /// Replaces a record by one that takes more room.
    #[inline(never)]
    fn put_larger(self, i: usize, key: &[u8], value: &NewValue<'_>) -> bool {
        let suffix = &key[self.prefix_len()..];
        let words = 2 + words_of(suffix.len()) + words_of(value.stored.len());
        let old_words = self.record_words(i);
        // The old record is freed first, so that compaction can reuse its space.
        if self.free_words() + self.dead_words() + old_words < words {
            return false;
        }
        if self.free_words() < words {
            self.remove(i);
            return self.put_new(i, key, value);
        }
        self.add_dead(old_words);
        let at = self.heap_start() - words;
        self.write_leaf_record(at, suffix, value);
        let (head, _, suffix_len) = self.slot(i);
        self.set_slot(i, head, at, suffix_len);
        self.set_counts(KIND_LEAF, self.len(), at, self.dead_words());
        true
    }

    #[inline(never)]
    fn put_new(self, i: usize, key: &[u8], value: &NewValue<'_>) -> bool {
        let suffix = &key[self.prefix_len()..];
        let words = 2 + words_of(suffix.len()) + words_of(value.stored.len());
        // A compaction keeps the slots' order.
        let Some(at) = self.reserve(words, 1) else {
            return false;
        };
        self.write_leaf_record(at, suffix, value);
        self.open_slot(i, suffix, at);
        true
    }

    /// Adapts the shared bytes to a new suffix, shortening them if needed.
    fn share(self, suffix: &[u8]) -> Shared {
        let shared = self.shared().with(suffix);
        self.set_common(shared);
        shared
    }

    /// Sets the shared bytes, and the heads that follow them.
    fn set_common(self, shared: Shared) {
        if shared == self.shared() {
            return;
        }
        self.set_shared(shared);
        for i in 0..self.len() {
            let (_, at, len) = self.slot(i);
            self.set_slot(i, shared.head(&self.suffix(i)), at, len);
        }
    }

    fn suffix(self, i: usize) -> Vec<u8> {
        let (_, at, len) = self.slot(i);
        self.0.to_vec(at + self.record_head(), len)
    }

    fn open_slot(self, i: usize, suffix: &[u8], at: usize) {
        let head = self.share(suffix).head(suffix);
        let len = self.len();
        for j in (i..len).rev() {
            self.0
                .set_word(FIRST_SLOT + j + 1, self.0.word(FIRST_SLOT + j));
        }
        self.set_slot(i, head, at, suffix.len());
        self.set_counts(self.kind(), len + 1, at, self.dead_words());
    }

    fn add_dead(self, words: usize) {
        self.set_counts(
            self.kind(),
            self.len(),
            self.heap_start(),
            self.dead_words() + words,
        );
    }

    /// Removes a slot and its record.
    pub(crate) fn remove(self, i: usize) {
        let words = self.record_words(i);
        let len = self.len();
        for j in i + 1..len {
            self.0
                .set_word(FIRST_SLOT + j - 1, self.0.word(FIRST_SLOT + j));
        }
        self.set_counts(
            self.kind(),
            len - 1,
            self.heap_start(),
            self.dead_words() + words,
        );
    }

    pub(crate) fn set_child_at(self, i: usize, child: PageId) {
        if i >= self.len() {
            self.0.set_word(5, child);
        } else {
            self.0.set_word(self.slot(i).1, child);
        }
    }

    /// Splits child `left` at `separator`: the keys from there on are in `right`. There must be
    /// room.
    pub(crate) fn insert_separator(self, separator: &[u8], left: PageId, right: PageId) {
        let suffix = &separator[self.prefix_len()..];
        let words = 1 + words_of(suffix.len());
        let at = self
            .reserve(words, 1)
            .expect("room for a separator was made before");
        let i = self.search(separator).expect_err("a separator is new");
        debug_assert_eq!(self.child_at(i), left);
        self.set_child_at(i, right);
        self.0.set_word(at, left);
        self.0.write_bytes(at + 1, suffix);
        self.open_slot(i, suffix, at);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_leaf_is_a_map_until_it_is_full() {
        for seed in 0..if cfg!(miri) { 2 } else { 400 } {
            let mut rng = fastrand::Rng::with_seed(seed);
            let words = private();
            let node = Node(Page(&words));
            // At the edge of the tree there is no prefix, only the bytes that the keys happen to
            // share.
            let fenced = rng.bool();
            Contents::<&[u8]> {
                kind: KIND_LEAF,
                lower: fenced.then(|| b"pre-a".to_vec()),
                upper: fenced.then(|| b"pre-z".to_vec()),
                ..Contents::default()
            }
            .write(node);
            let mut model = BTreeMap::new();
            for step in 0..if cfg!(miri) { 40 } else { 300 } {
                let mut key = b"pre-b".to_vec();
                key.extend((0..rng.usize(0..12)).map(|_| rng.u8(b'a'..b'd')));
                if !fenced && rng.u8(..) < 8 {
                    // Shorter than the shared bytes, or with zeroes where other keys have ended.
                    key.truncate(rng.usize(0..=key.len()));
                    key.extend(vec![0; rng.usize(0..4)]);
                }
                let place = node.search(&key);
                let above = model.range::<Vec<u8>, _>(&key..).count();
                let place = place.unwrap_or_else(|above| above);
                assert_eq!(place, model.len() - above, "seed {seed}, {key:?}");
                if rng.u8(..) < 60 {
                    let found = node.search(&key);
                    assert_eq!(found.is_ok(), model.remove(&key).is_some(), "seed {seed}");
                    if let Ok(i) = found {
                        node.remove(i);
                    }
                    continue;
                }
                let stored = vec![rng.u8(..); rng.usize(0..300)];
                let value = NewValue {
                    version: step,
                    flags: 0,
                    len: stored.len(),
                    stored: &stored,
                };
                if node.put(node.search(&key), &key, &value) {
                    model.insert(key, (step, stored));
                }
            }
            assert_eq!(node.len(), model.len(), "seed {seed}");
            for (i, (key, (version, stored))) in model.iter().enumerate() {
                assert_eq!(&node.key(i), key, "seed {seed}");
                let record = node.leaf_record(i);
                assert_eq!(record.version, *version, "seed {seed}");
                assert_eq!(&node.stored_value(&record), stored, "seed {seed}");
            }
        }
    }
}
