//! A node's contents outside of its page, for splitting, merging or rebuilding it.

use super::shared::Shared;
use super::{FIRST_SLOT, KIND_INNER, KIND_LEAF, Node, shortest_separator, words_of};
use crate::page::{PAGE_SIZE, PageId, WORDS};

/// Consecutive records, each at least as new as its predecessor, that count as the trace of
/// insertions in ascending order.
const RUN: usize = 4;

/// One record, copied from its page. For an inner node, `stored` is empty and `head` is the child.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry<B> {
    pub(crate) key: B,
    /// Version, or child.
    pub(crate) head: u64,
    /// `value length:32 | flags:8`, for leaves.
    pub(crate) lengths: u64,
    pub(crate) stored: B,
}

/// A node's contents; `B` holds the bytes of keys and values, or their places.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents<B> {
    pub(crate) kind: u8,
    pub(crate) lower: Option<Vec<u8>>,
    pub(crate) upper: Option<Vec<u8>>,
    pub(crate) rightmost: PageId,
    pub(crate) entries: Vec<Entry<B>>,
}

impl<'a> Contents<&'a [u8]> {
    /// Decodes a node. Copies its bytes to `bytes` in one piece: in a split, an allocation for each
    /// key and value would be most of the work.
    pub(crate) fn read(node: Node<'_>, bytes: &'a mut Vec<u8>) -> Self {
        let len = node.len();
        bytes.clear();
        bytes.reserve(PAGE_SIZE + len * node.prefix_len().next_multiple_of(8));
        let parts: Vec<_> = (0..len)
            .map(|i| {
                if node.is_leaf() {
                    let record = node.leaf_record(i);
                    let lengths = record.flags << 32 | record.value_len as u64;
                    let parts = node.append_record(&record, bytes);
                    (
                        parts.expect("a latched leaf's records lie in it"),
                        record.version,
                        lengths,
                    )
                } else {
                    let key = bytes.len()..bytes.len() + node.key_len(i);
                    node.key_into(i, bytes);
                    ((key, 0..0), node.child_at(i), 0)
                }
            })
            .collect();
        let bytes = &bytes[..];
        let entries = (parts.into_iter()).map(|((key, stored), head, lengths)| Entry {
            key: &bytes[key],
            head,
            lengths,
            stored: &bytes[stored],
        });
        Self {
            kind: node.kind(),
            lower: node.lower_fence(),
            upper: node.upper_fence(),
            rightmost: node.0.word(5),
            entries: entries.collect(),
        }
    }

    /// Makes room for the new `key` by splitting off the upper part. Returns the upper part and the
    /// key that separates the two.
    ///
    /// The upper part is half of the node by size, unless keys are inserted in ascending order,
    /// which should leave full nodes, not halves: if the key is greater than all others, only the
    /// last entry moves; if it follows the newest records, which were inserted in order, only the
    /// entries after it move. (So several ascending sequences can grow in the middle of one tree.)
    pub(crate) fn split(&mut self, key: &[u8]) -> (Vec<u8>, Self) {
        debug_assert!(self.entries.len() >= 2, "a full node has several entries");
        // An inner node's last key but one moves up, and one key should be left.
        let len = self.entries.len();
        if len > 2 && self.entries[len - 1].key < key {
            return self.split_at(len - 1);
        }
        let run = self.end_of_run(key);
        if let Some((at, separator)) = run.and_then(|at| self.separator_after_run(at, key)) {
            return self.cut(at, separator);
        }
        self.split_at(self.middle())
    }

    /// Returns the index before which half of the entries lie, by size.
    fn middle(&self) -> usize {
        let prefix = self.prefix_len();
        let total = self.entries_words(prefix);
        let mut middle = 0;
        let mut below = 0;
        while middle < self.entries.len() - 1 && below < total / 2 {
            below += self.entry_words(&self.entries[middle], prefix);
            middle += 1;
        }
        middle.max(1)
    }

    /// Returns the place of a leaf's new key, if it follows the newest record and the records
    /// before that were inserted in order.
    fn end_of_run(&self, key: &[u8]) -> Option<usize> {
        let at = self.entries.partition_point(|entry| entry.key < key);
        if self.kind != KIND_LEAF || at < RUN || at == self.entries.len() {
            return None;
        }
        let newest = self.entries[at - 1].head;
        let is_run = self.entries[at - RUN..at].is_sorted_by_key(|entry| entry.head);
        let is_newest = self.entries[at..].iter().all(|entry| entry.head < newest)
            && self.entries[..at].iter().all(|entry| entry.head <= newest);
        (is_run && is_newest).then_some(at)
    }

    /// Returns the index and the separator for a split between a run and the entries after it. The
    /// new key extends the run if that leaves room for more of the run; otherwise it joins the
    /// entries after it. Returns `None` if one of the two parts has no room for the separator,
    /// which may be much longer than the other part's entries.
    fn separator_after_run(&self, at: usize, key: &[u8]) -> Option<(usize, Vec<u8>)> {
        let prefix = self.prefix_len();
        let sizes = self.entries[at..].iter();
        let after: usize = sizes.map(|entry| self.entry_words(entry, prefix)).sum();
        let separator = if after >= WORDS / 8 {
            shortest_separator(key, self.entries[at].key)
        } else {
            shortest_separator(self.entries[at - 1].key, key)
        };
        let fence =
            |fence: &Option<Vec<u8>>| fence.as_ref().map_or(0, |fence| words_of(fence.len()));
        let before = self.entries_words(prefix) - after;
        let words = (fence(&self.lower) + before).max(fence(&self.upper) + after);
        let fits = FIRST_SLOT + words_of(separator.len()) + words <= WORDS;
        (fits || braid_rt::mutant!("split_without_room")).then_some((at, separator))
    }

    /// Splits off the entries from `at` on. In an inner node, the key before `at` moves up.
    fn split_at(&mut self, at: usize) -> (Vec<u8>, Self) {
        let last = self.entries[at - 1].key;
        let separator = match self.kind {
            KIND_LEAF => shortest_separator(last, self.entries[at].key),
            _ => last.to_vec(),
        };
        self.cut(at, separator)
    }

    fn cut(&mut self, at: usize, separator: Vec<u8>) -> (Vec<u8>, Self) {
        let right = Self {
            kind: self.kind,
            lower: Some(separator.clone()),
            upper: self.upper.replace(separator.clone()),
            rightmost: self.rightmost,
            entries: self.entries.split_off(at),
        };
        self.rightmost = match self.kind {
            KIND_LEAF => 0,
            _ => {
                let last = self.entries.pop();
                last.expect("an inner node is split after an entry").head
            }
        };
        (separator, right)
    }

    /// Splits off the entries that exceed `words` words of a leaf's page, if there are any. Returns
    /// them and the key that separates the two parts. The leaf keeps at least one entry.
    pub(crate) fn cut_after(&mut self, words: usize) -> Option<(Vec<u8>, Self)> {
        if self.words() <= words {
            return None;
        }
        // The upper fence will be a part of the next key, and the keys will share more than now.
        let prefix = self.prefix_len();
        let mut used = FIRST_SLOT + self.lower.as_ref().map_or(0, |f| words_of(f.len()));
        let mut at = 0;
        while let [entry, next, ..] = &self.entries[at..]
            && used + self.entry_words(entry, prefix) + words_of(next.key.len()) <= words
        {
            used += self.entry_words(entry, prefix);
            at += 1;
        }
        Some(self.split_at(at.max(1)))
    }

    /// Appends the node to the right, which began at `separator`.
    pub(crate) fn append(&mut self, separator: &'a [u8], right: Self) {
        if self.kind == KIND_INNER {
            self.entries.push(Entry {
                key: separator,
                head: self.rightmost,
                ..Entry::default()
            });
            self.rightmost = right.rightmost;
        }
        self.entries.extend(right.entries);
        self.upper = right.upper;
    }
}

impl<B: AsRef<[u8]>> Contents<B> {
    fn prefix_len(&self) -> usize {
        match (&self.lower, &self.upper) {
            (Some(lower), Some(upper)) => {
                lower.iter().zip(upper).take_while(|(a, b)| a == b).count()
            }
            _ => 0,
        }
    }

    fn shared(&self, prefix: usize) -> Shared {
        match (self.entries.first(), self.entries.last()) {
            // The keys are in order: all keys share the bytes that the first and the last share.
            (Some(first), Some(last)) => {
                Shared::by(&first.key.as_ref()[prefix..], &last.key.as_ref()[prefix..])
            }
            _ => Shared::default(),
        }
    }

    /// The words that an entry takes, its slot included.
    pub(crate) fn entry_words(&self, entry: &Entry<B>, prefix: usize) -> usize {
        let head = if self.kind == KIND_LEAF { 2 } else { 1 };
        let suffix = entry.key.as_ref().len() - prefix;
        1 + head + words_of(suffix) + words_of(entry.stored.as_ref().len())
    }

    /// The words that all entries take with a prefix of this length.
    pub(crate) fn entries_words(&self, prefix: usize) -> usize {
        let entries = self.entries.iter();
        entries.map(|entry| self.entry_words(entry, prefix)).sum()
    }

    /// The words that a page with these contents takes.
    pub(crate) fn words(&self) -> usize {
        let fence = |f: &Option<Vec<u8>>| f.as_ref().map_or(0, |f| words_of(f.len()));
        let entries = self.entries_words(self.prefix_len());
        FIRST_SLOT + fence(&self.lower) + fence(&self.upper) + entries
    }

    /// Writes the whole page except the pool's two words.
    pub(crate) fn write(&self, node: Node<'_>) {
        assert!(self.words() <= WORDS, "a node fits its page");
        let prefix = self.prefix_len();
        let page = node.0;
        let mut heap = node.place_fences(&self.lower, &self.upper);
        page.set_word(4, prefix as u64);
        page.set_word(5, self.rightmost);
        let shared = self.shared(prefix);
        node.set_shared(shared);
        for (i, entry) in self.entries.iter().enumerate() {
            let suffix = &entry.key.as_ref()[prefix..];
            heap -= self.entry_words(entry, prefix) - 1;
            page.set_word(heap, entry.head);
            let mut at = heap + 1;
            if self.kind == KIND_LEAF {
                page.set_word(at, entry.lengths);
                at += 1;
            }
            page.write_bytes(at, suffix);
            page.write_bytes(at + words_of(suffix.len()), entry.stored.as_ref());
            node.set_slot(i, shared.head(suffix), heap, suffix.len());
        }
        node.set_counts(self.kind, self.entries.len(), heap, 0);
    }
}
