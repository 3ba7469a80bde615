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
//! A leaf's record is version, `value length:32 | flags:8`, key suffix, value; an inner node's is child,
//! key suffix. All parts start at words. Slot `i` of an inner node with key `k` leads to the keys below
//! `k`; the rightmost child to the rest. All keys share the prefix that the two fences have in common,
//! and only the suffix behind it is stored.
//!
//! Most comparisons are decided inside the slot array, by the heads. A head is four bytes of the suffix,
//! behind the up to eight *shared* bytes with which all suffixes in the node begin. (A node at the edge of
//! the tree lacks a fence and so has no prefix, and its keys still begin alike.)

mod check;
mod contents;

use std::cmp::Ordering;
use std::ops::Range;

use crate::page::{
    LINE_WORDS, PAGE_SIZE, Page, PageId, WORDS, compare_key, head8, head8_behind, private,
};

pub(crate) use check::check;
pub(crate) use contents::{Contents, Entry};

pub(crate) const KIND_LEAF: u8 = 1;
pub(crate) const KIND_INNER: u8 = 2;
pub(crate) const KIND_OVERFLOW: u8 = 3;

pub(crate) const FIRST_SLOT: usize = 7;
const NO_FENCE: usize = 0xffff;

pub(crate) const FLAG_TOMBSTONE: u64 = 1;
pub(crate) const FLAG_OVERFLOW: u64 = 2;

/// Values above this go to overflow pages: a leaf holds at least three.
pub(crate) const INLINE_MAX: usize = 2000;

/// Most bytes that the shared word holds.
const SHARED_MAX: usize = 8;

pub(crate) fn words_of(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

/// The bytes with which all suffixes in a node begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shared {
    len: usize,
    /// The first byte is the highest; what is behind `len` is zero.
    bytes: u64,
}

impl Shared {
    /// The first `len` bytes of a suffix.
    #[inline]
    fn of(suffix: &[u8], len: usize) -> Self {
        let len = len.min(SHARED_MAX);
        let all = Self {
            len,
            bytes: head8(suffix),
        };
        Self {
            bytes: all.bytes & all.mask(),
            ..all
        }
    }

    /// The bytes of a word that are shared.
    #[inline]
    fn mask(self) -> u64 {
        !u64::MAX.checked_shr(8 * self.len as u32).unwrap_or(0)
    }

    /// The bytes with which both suffixes begin.
    fn by(first: &[u8], last: &[u8]) -> Self {
        let len = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        Self::of(first, len)
    }

    /// What is left of it with one more suffix.
    fn with(self, suffix: &[u8]) -> Self {
        let own = head8(suffix) ^ self.bytes;
        let same = own.leading_zeros() as usize / 8;
        Self::of(suffix, self.len.min(same).min(suffix.len()))
    }

    /// The head of a suffix that begins with these bytes.
    #[inline]
    fn head(self, suffix: &[u8]) -> u32 {
        (head8(suffix.get(self.len..).unwrap_or_default()) >> 32) as u32
    }
}

/// A read view of a node. On a page that is not latched everything it says may be nonsense until the
/// page is validated, but it never leads out of the page.
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
        self.0.word(2) as u8
    }

    #[inline]
    pub(crate) fn is_leaf(self) -> bool {
        self.kind() == KIND_LEAF
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        ((self.0.word(2) >> 16) as u16 as usize).min(WORDS - FIRST_SLOT)
    }

    pub(crate) fn heap_start(self) -> usize {
        (self.0.word(2) >> 32) as u16 as usize
    }

    fn dead_words(self) -> usize {
        (self.0.word(2) >> 48) as u16 as usize
    }

    fn set_counts(self, kind: u8, len: usize, heap_start: usize, dead: usize) {
        let word =
            kind as u64 | (len as u64) << 16 | (heap_start as u64) << 32 | (dead as u64) << 48;
        self.0.set_word(2, word);
    }

    #[inline]
    pub(crate) fn prefix_len(self) -> usize {
        self.0.word(4) as u16 as usize
    }

    #[inline]
    fn shared(self) -> Shared {
        Shared {
            len: usize::from((self.0.word(4) >> 16) as u8).min(SHARED_MAX),
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
        (
            (word >> 32) as u32,
            (word >> 16) as u16 as usize,
            word as u16 as usize,
        )
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
        let (at, len) = (word as u16 as usize, (word >> 16) as u16 as usize);
        (len != NO_FENCE).then(|| self.0.to_vec(at, len))
    }

    /// The smallest key that belongs here; `None`: no bound.
    pub(crate) fn lower_fence(self) -> Option<Vec<u8>> {
        self.fence(0)
    }

    /// The smallest key that belongs to the right of here; `None`: no bound.
    pub(crate) fn upper_fence(self) -> Option<Vec<u8>> {
        self.fence(32)
    }

    /// Whether a key may be put at the place that [`Node::search`] found for it: whether it belongs here.
    /// That is the parent's doing, and a damaged one leads elsewhere. Between two keys that are here order
    /// says so; at the ends the fences do.
    #[inline]
    pub(crate) fn admits(self, key: &[u8], place: Result<usize, usize>) -> bool {
        let is_inside = match place {
            Ok(_) => true,
            Err(i) => i > 0 && i < self.len(),
        };
        key.len() >= self.prefix_len() && (is_inside || self.is_between_fences(key))
    }

    #[inline(never)]
    fn is_between_fences(self, key: &[u8]) -> bool {
        self.compare_lower(key).is_none_or(Ordering::is_le)
            && self.compare_upper(key).is_none_or(Ordering::is_gt)
    }

    /// How the lower fence, if there is one, compares with a key.
    pub(crate) fn compare_lower(self, key: &[u8]) -> Option<Ordering> {
        self.compare_fence(0, key)
    }

    /// How the upper fence, if there is one, compares with a key.
    pub(crate) fn compare_upper(self, key: &[u8]) -> Option<Ordering> {
        self.compare_fence(32, key)
    }

    fn compare_fence(self, shift: u32, key: &[u8]) -> Option<Ordering> {
        let word = self.0.word(3) >> shift;
        let (at, len) = (word as u16 as usize, (word >> 16) as u16 as usize);
        (len != NO_FENCE).then(|| compare_key(self.0, at, len, key))
    }

    /// The bounds of the child at a position.
    pub(crate) fn bounds_of_child(self, i: usize) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let lower = match i.checked_sub(1) {
            Some(before) => Some(self.key(before)),
            None => self.lower_fence(),
        };
        let upper = match i < self.len() {
            true => Some(self.key(i)),
            false => self.upper_fence(),
        };
        (lower, upper)
    }

    /// The first slot whose key is at least `key` (`Ok` if equal).
    #[inline(always)]
    pub(crate) fn search(self, key: &[u8]) -> Result<usize, usize> {
        self.search_first(key, self.len())
    }

    /// [`Node::search`] among the first `len` slots.
    #[inline(always)]
    fn search_first(self, key: &[u8], len: usize) -> Result<usize, usize> {
        let lengths = self.0.word(4);
        let prefix = lengths as u16 as usize;
        let suffix_len = key.len().saturating_sub(prefix);
        let shared = Shared {
            // In a page that changes it may be nonsense, which does no harm here.
            len: usize::from((lengths >> 16) as u8),
            bytes: self.0.word(6),
        };
        let first = head8_behind(key, prefix);
        let own = first & shared.mask();
        if own != shared.bytes || suffix_len < shared.len {
            // A suffix that ends within the shared bytes is below all that go on.
            return Err(if own <= shared.bytes { 0 } else { len });
        }
        let behind = if suffix_len <= 8 || shared.len <= 4 {
            first.checked_shl(8 * shared.len as u32).unwrap_or(0)
        } else {
            head8_behind(key, prefix + shared.len)
        };
        let head = (behind >> 32) as u32;
        // A slot's head is its upper half: the slots compare as they are.
        let low = self.0.count_below(FIRST_SLOT, len, u64::from(head) << 32);
        if low == len {
            return Err(low);
        }
        let (slot_head, _, slot_len) = self.slot(low);
        if slot_head != head {
            return Err(low);
        }
        // The heads are all there is, but for zeroes at the end.
        if slot_len == suffix_len && slot_len <= shared.len + 4 {
            return Ok(low);
        }
        self.search_rest(low, len, shared.len, head, key)
    }

    /// The search among slots with the same head.
    #[inline(never)]
    fn search_rest(
        self,
        mut low: usize,
        mut high: usize,
        shared: usize,
        head: u32,
        key: &[u8],
    ) -> Result<usize, usize> {
        let suffix = key.get(self.prefix_len()..).unwrap_or_default();
        // Mostly it is the first one.
        let mut middle = low;
        while low < high {
            match self.compare(middle, shared, head, suffix) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
            middle = (low + high) / 2;
        }
        Err(low)
    }

    /// Compares the key of a slot with one of this suffix, which begins with the `shared` bytes.
    #[inline]
    fn compare(self, i: usize, shared: usize, head: u32, suffix: &[u8]) -> Ordering {
        let (slot_head, at, len) = self.slot(i);
        if slot_head != head {
            slot_head.cmp(&head)
        } else if len.max(suffix.len()) <= shared + 4 {
            // The heads are all there is, but for zeroes at the end.
            len.cmp(&suffix.len())
        } else {
            compare_key(self.0, at + self.record_head(), len, suffix)
        }
    }

    /// The child at a position; behind the last slot it is the rightmost one.
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

    /// The child that a key belongs to.
    #[inline(always)]
    pub(crate) fn child_of(self, key: &[u8]) -> PageId {
        let len = self.len();
        let position = match self.search_first(key, len) {
            Ok(equal) => equal + 1,
            Err(above) => above,
        };
        self.child_among(position, len)
    }

    pub(crate) fn set_child_at(self, i: usize, child: PageId) {
        if i >= self.len() {
            self.0.set_word(5, child);
        } else {
            self.0.set_word(self.slot(i).1, child);
        }
    }

    /// The position of the child that a key belongs to.
    pub(crate) fn child_position(self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(equal) => equal + 1,
            Err(above) => above,
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
            self.0
                .read_bytes(self.0.word(3) as u16 as usize, prefix, key);
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
            value_len: lengths as u32 as usize,
            suffix_len,
            value_at: at + 2 + words_of(suffix_len),
        }
    }

    /// Appends a record's key and behind it, from the next word on, the value's bytes in the leaf: returns where
    /// both are. `None` if they are not in the page.
    // Scans do little else.
    #[inline(always)]
    pub(crate) fn append_record(
        self,
        record: &LeafRecord,
        out: &mut Vec<u8>,
    ) -> Option<(Range<usize>, Range<usize>)> {
        let start = out.len();
        let prefix = self.prefix_len();
        if prefix > 0 {
            let at = self.0.word(3) as u16 as usize;
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

    /// Asks the processor for a leaf's records, as far as one can tell without looking at them.
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

    /// Asks the processor for the record of a key in a leaf.
    #[inline]
    pub(crate) fn prefetch_record_of(self, key: &[u8]) {
        if let Ok(i) = self.search(key) {
            let (_, at, _) = self.slot(i);
            self.0.prefetch(at, 2 * LINE_WORDS);
        }
    }

    /// The value's bytes in the leaf: the value, or the reference to it.
    pub(crate) fn stored_value(self, record: &LeafRecord) -> Vec<u8> {
        self.0.to_vec(record.value_at, record.stored_len())
    }

    /// The same in a buffer that has room for whole words.
    #[inline]
    pub(crate) fn padded_value(self, record: &LeafRecord) -> Vec<u8> {
        self.0.to_padded_vec(record.value_at, record.stored_len())
    }

    /// Appends what [`Node::stored_value`] returns.
    #[inline]
    pub(crate) fn append_stored_value(self, record: &LeafRecord, out: &mut Vec<u8>) {
        self.0
            .read_padded(record.value_at, record.stored_len(), out);
    }

    fn free_words(self) -> usize {
        self.heap_start().saturating_sub(FIRST_SLOT + self.len())
    }

    /// Words in use, slots included.
    pub(crate) fn used_words(self) -> usize {
        WORDS - self.free_words() - self.dead_words()
    }

    /// Whether the node should be merged with a neighbour.
    pub(crate) fn is_underfull(self) -> bool {
        self.used_words() < WORDS / 4
    }

    /// Whether a separator of any allowed length fits.
    pub(crate) fn has_room_for_separator(self) -> bool {
        self.free_words() + self.dead_words() >= 2 + words_of(crate::MAX_KEY_LEN)
    }

    // Changes, for the holder of the exclusive latch ----------------------------------------------------

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

    /// Takes heap space, compacting if that helps. The slot array may grow by `new_slots`.
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

    /// Writes the fences at the end of an empty heap; returns where it starts then.
    fn place_fences(self, lower: &Option<Vec<u8>>, upper: &Option<Vec<u8>>) -> usize {
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
        // Those that are left may share more than with those that went.
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

    /// Inserts or replaces a leaf's record at the place that [`Node::search`] found for its key; `false`
    /// if there is no room.
    #[must_use]
    pub(crate) fn put(self, place: Result<usize, usize>, key: &[u8], value: &NewValue<'_>) -> bool {
        match place {
            Ok(i) => {
                self.put_in_place(&self.leaf_record(i), value) || self.put_larger(i, key, value)
            }
            Err(i) => self.put_new(i, key, value),
        }
    }

    /// Replaces a record where it lies; `false` if the new one takes more room.
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
        // The old record dies first, so that compaction can take its space.
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
        // Compaction, if it comes to that, keeps the slots' order.
        let Some(at) = self.reserve(words, 1) else {
            return false;
        };
        self.write_leaf_record(at, suffix, value);
        self.open_slot(i, suffix, at);
        true
    }

    /// Makes a new suffix one of those that begin with the shared bytes, which become fewer if need be.
    fn share(self, suffix: &[u8]) -> Shared {
        let shared = self.shared().with(suffix);
        self.set_common(shared);
        shared
    }

    /// Sets what all suffixes share, and the heads behind it.
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

    /// Splits child `left` at `separator`: the keys from there on are in `right`. There must be room.
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

/// A value as it goes into a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewValue<'a> {
    pub(crate) version: u64,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) stored: &'a [u8],
}

impl<'a> NewValue<'a> {
    /// A value that lies in the leaf.
    pub(crate) fn inline(version: u64, value: &'a [u8]) -> Self {
        Self {
            version,
            flags: 0,
            len: value.len(),
            stored: value,
        }
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
    use std::collections::BTreeMap;

    #[test]
    fn separators_separate() {
        assert_eq!(shortest_separator(b"abc", b"abe"), b"abe");
        assert_eq!(shortest_separator(b"a", b"abc"), b"ab");
        assert_eq!(shortest_separator(b"", b"x"), b"x");
    }

    #[test]
    fn a_leaf_is_a_map_until_it_is_full() {
        for seed in 0..if cfg!(miri) { 2 } else { 400 } {
            let mut rng = fastrand::Rng::with_seed(seed);
            let words = private();
            let node = Node(Page(&words));
            // At the edge of the tree there is no prefix, only what the keys happen to share.
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
                    // Shorter than what is shared, or with zeroes where others have ended.
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
