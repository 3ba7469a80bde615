//! The place of a key in a node: the search, which is most of a descent's work, and the comparison
//! with the fences, which checks that the key belongs to the node.

use std::cmp::Ordering;

use braid_rt::narrow;

use super::shared::Shared;
use super::{FIRST_SLOT, NO_FENCE, Node};
use crate::page::{PageId, compare_key, head8_after, low8, low16};

impl Node<'_> {
    /// Whether a key may be put at the place that [`Node::search`] found for it, so whether it
    /// belongs to this node. The parent determines that, and a damaged parent leads to a wrong
    /// node. Between two keys of the node, the order is proof enough; at the ends, the fences are
    /// compared.
    #[inline]
    pub(crate) fn admits(self, key: &[u8], place: Result<usize, usize>) -> bool {
        let is_inside = match place {
            Ok(_) => true,
            Err(i) => i > 0 && i < self.len(),
        };
        key.len() >= self.prefix_len() && (is_inside || self.is_between_fences(key))
    }

    #[inline(never)]
    pub(crate) fn is_between_fences(self, key: &[u8]) -> bool {
        self.compare_lower(key).is_none_or(Ordering::is_le)
            && self.compare_upper(key).is_none_or(Ordering::is_gt)
    }

    /// Compares the lower fence, if there is one, with a key.
    pub(crate) fn compare_lower(self, key: &[u8]) -> Option<Ordering> {
        self.compare_fence(0, key)
    }

    /// Compares the upper fence, if there is one, with a key.
    pub(crate) fn compare_upper(self, key: &[u8]) -> Option<Ordering> {
        self.compare_fence(32, key)
    }

    fn compare_fence(self, shift: u32, key: &[u8]) -> Option<Ordering> {
        let word = self.0.word(3) >> shift;
        let (at, len) = (low16(word), low16(word >> 16));
        (len != NO_FENCE).then(|| compare_key(self.0, at, len, key))
    }

    /// Prefetches the slots that a search reads first, if the node has many.
    #[inline]
    pub(crate) fn prefetch_search(self) {
        self.0.prefetch_search(FIRST_SLOT, self.len());
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
        let prefix = low16(lengths);
        let suffix_len = key.len().saturating_sub(prefix);
        let shared = Shared {
            // In a page that is changing, the length may be invalid, which is harmless here.
            len: low8(lengths >> 16),
            bytes: self.0.word(6),
        };
        let first = head8_after(key, prefix);
        let own = first & shared.mask();
        if own != shared.bytes || suffix_len < shared.len {
            // A suffix that ends within the shared bytes is below all longer ones.
            return Err(if own <= shared.bytes { 0 } else { len });
        }
        let after = if suffix_len <= 8 || shared.len <= 4 {
            first
                .checked_shl(8 * narrow::<u32>(shared.len))
                .unwrap_or(0)
        } else {
            head8_after(key, prefix + shared.len)
        };
        let head = (after >> 32) as u32;
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

    /// Searches among slots with the same head.
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
        // Usually the first slot matches.
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

    /// Whether this key is in a slot. The first `known` bytes are those of a key of the node.
    #[inline]
    pub(crate) fn has_key_at(self, slot: usize, key: &[u8], known: usize) -> bool {
        let prefix = self.prefix_len();
        if slot >= self.len() || prefix > known {
            return false;
        }
        let suffix = key.get(prefix..).unwrap_or_default();
        let (_, at, len) = self.slot(slot);
        len == suffix.len()
            && compare_key(self.0, at + self.record_head(), len, suffix) == Ordering::Equal
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

    /// The position of the child that a key belongs to.
    pub(crate) fn child_position(self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(equal) => equal + 1,
            Err(above) => above,
        }
    }
}
