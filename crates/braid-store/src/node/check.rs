//! Checks that a page read from the medium is one that the tree can work with.
//!
//! A checksum proves that a page is unchanged since it was written, not that its contents are
//! valid: another program, or a defect of this one, may have written it. Changes of a node rely on
//! the properties checked here (records that lie in the page, keys in order and between the fences,
//! an exact account of the space), and would otherwise panic far from the cause. Pages are checked
//! once, when they are read from the medium.

use super::shared::{SHARED_MAX, Shared};
use super::value_page;
use super::{
    FIRST_SLOT, FLAG_OVERFLOW, FLAG_TOMBSTONE, INLINE_MAX, KEY_MAX, KIND_INNER, KIND_LEAF,
    KIND_OVERFLOW, NO_FENCE, inline_max, words_of,
};
use crate::MAX_VALUE_LEN;
use crate::page::{PAGE_SIZE, WORDS, low8, low16, low32};

/// The bytes of a page.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8; PAGE_SIZE]);

impl<'a> Bytes<'a> {
    /// A word, whose index is below [`WORDS`].
    fn word(self, index: usize) -> u64 {
        u64::from_le_bytes(self.0.as_chunks().0[index])
    }

    /// Returns key bytes from a word on, if they lie in the page. Their padding must be zero,
    /// because keys are compared by words.
    fn key(self, word: usize, len: usize) -> Option<&'a [u8]> {
        let key = self.0.get(word * 8..word * 8 + len)?;
        let rest = len % 8;
        (rest == 0 || self.word(word + len / 8) >> (8 * rest) == 0).then_some(key)
    }

    /// Reads a fence, and the number of words that it takes.
    fn fence(self, shift: u32, heap: usize) -> Result<(Option<&'a [u8]>, usize), &'static str> {
        let word = self.word(3) >> shift;
        let (at, len) = (low16(word), low16(word >> 16));
        if len == NO_FENCE {
            return Ok((None, 0));
        }
        let fence = self.key(at, len);
        let fence = fence.filter(|_| at >= heap && len <= KEY_MAX);
        let fence = fence.ok_or("a fence does not lie in the page")?;
        Ok((Some(fence), words_of(len)))
    }
}

/// Checks a page, and names the first invalid property.
pub(crate) fn check(page: &[u8; PAGE_SIZE]) -> Result<(), &'static str> {
    let page = Bytes(page);
    match (page.word(2) & 0xff) as u8 {
        KIND_LEAF | KIND_INNER => check_node(page),
        KIND_OVERFLOW => value_page::check(page.word(2), page.word(4)),
        _ => Err("it is no page of a tree"),
    }
}

fn check_node(page: Bytes<'_>) -> Result<(), &'static str> {
    let counts = page.word(2);
    let is_leaf = low8(counts) == usize::from(KIND_LEAF);
    let [len, heap, dead] = [16, 32, 48].map(|shift| low16(counts >> shift));
    if FIRST_SLOT + len > heap || heap > WORDS {
        return Err("its slots do not fit the page");
    }
    let (lower, lower_words) = page.fence(0, heap)?;
    let (upper, upper_words) = page.fence(32, heap)?;
    let prefix = match (lower, upper) {
        (Some(lower), Some(upper)) if lower >= upper => return Err("its fences are out of order"),
        (Some(lower), Some(upper)) => lower.iter().zip(upper).take_while(|(a, b)| a == b).count(),
        _ => 0,
    };
    let shared = Shared {
        len: low8(page.word(4) >> 16),
        bytes: page.word(6),
    };
    if low16(page.word(4)) != prefix
        || shared.len > SHARED_MAX
        || shared != Shared::of(&shared.bytes.to_be_bytes(), shared.len)
    {
        return Err("its keys' common bytes do not fit them");
    }
    let mut used = dead + lower_words + upper_words;
    let mut before: Option<&[u8]> = None;
    for i in 0..len {
        let slot = page.word(FIRST_SLOT + i);
        let (head, at, suffix_len) = ((slot >> 32) as u32, low16(slot >> 16), low16(slot));
        let outside = "a record does not lie in the page";
        let head_words = if is_leaf { 2 } else { 1 };
        if at < heap || at + head_words > WORDS || prefix + suffix_len > KEY_MAX {
            return Err(outside);
        }
        let suffix = page.key(at + head_words, suffix_len).ok_or(outside)?;
        let key_words = head_words + words_of(suffix_len);
        let words = match is_leaf {
            true => key_words + words_of(stored_len(page.word(at + 1))?),
            false if page.word(at) == 0 => return Err("a child is missing"),
            false => key_words,
        };
        if at + words > WORDS {
            return Err(outside);
        }
        used += words;
        if Shared::of(suffix, shared.len).bytes != shared.bytes
            || suffix.len() < shared.len
            || shared.head(suffix) != head
        {
            return Err("its keys' common bytes do not fit them");
        }
        let in_order = match (before, lower) {
            (Some(before), _) => before < suffix,
            // A separator is above the fence, otherwise the child before it would be empty forever.
            (None, Some(lower)) if !is_leaf => lower[prefix..] < *suffix,
            (None, Some(lower)) => lower[prefix..] <= *suffix,
            (None, None) => true,
        };
        if !in_order {
            return Err("its keys are out of order");
        }
        before = Some(suffix);
    }
    if let (Some(last), Some(upper)) = (before, upper)
        && *last >= upper[prefix..]
    {
        return Err("its keys are out of order");
    }
    if !is_leaf && page.word(5) == 0 {
        return Err("a child is missing");
    }
    // So that compaction never finds more than there is room for.
    if used != WORDS - heap {
        return Err("its records do not add up to the space they take");
    }
    Ok(())
}

/// Bytes that a value takes in a leaf, by the word with its length and flags.
fn stored_len(lengths: u64) -> Result<usize, &'static str> {
    let (flags, len) = (lengths >> 32, low32(lengths) as usize);
    match flags {
        0 if len <= INLINE_MAX => Ok(len),
        FLAG_TOMBSTONE if len == 0 => Ok(0),
        FLAG_OVERFLOW if (inline_max(KEY_MAX) + 1..=MAX_VALUE_LEN).contains(&len) => Ok(8),
        _ => Err("a record is of no known kind"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Contents, Entry, Node};
    use super::*;
    use crate::page::{Page, private};

    fn page(kind: u8) -> [u8; PAGE_SIZE] {
        let entry = |i: u8| {
            let is_leaf = kind == KIND_LEAF;
            let stored = if is_leaf {
                vec![i; usize::from(i)]
            } else {
                Vec::new()
            };
            Entry {
                key: vec![b'k', i, i, 9],
                head: 7,
                lengths: stored.len() as u64,
                stored,
            }
        };
        let words = private();
        Contents {
            kind,
            lower: Some(b"k".to_vec()),
            upper: Some(b"k\xff".to_vec()),
            rightmost: 3,
            entries: (1..90).map(entry).collect(),
        }
        .write(Node(Page(&words)));
        let mut bytes = [0; PAGE_SIZE];
        Page(&words).copy_to(&mut bytes);
        bytes
    }

    /// Without the check, each of these pages would be accepted.
    #[test]
    fn impossible_pages_are_reported() {
        for kind in [KIND_LEAF, KIND_INNER] {
            let good = page(kind);
            assert_eq!(check(&good), Ok(()));
            let with = |word: usize, bits: u64| {
                let mut page = good;
                let place = &mut page.as_chunks_mut().0[word];
                *place = (u64::from_le_bytes(*place) ^ bits).to_le_bytes();
                check(&page)
            };
            for (word, bits, what) in [
                (2, 8, "kind"),
                (2, 1 << 16, "slots"),
                (2, 1 << 32, "start of the heap"),
                (2, 1 << 48, "dead words"),
                (3, 1 << 16, "length of a fence"),
                (3, 1 << 14, "place of a fence"),
                (4, 1, "length of the prefix"),
                (4, 8 << 16, "shared bytes"),
                (6, 1, "behind the shared bytes"),
                (FIRST_SLOT, 1 << 40, "head"),
                (FIRST_SLOT, 1 << 20, "place of a record"),
                (FIRST_SLOT, 1, "length of a key"),
            ] {
                assert!(with(word, bits).is_err(), "{what}, kind {kind}");
            }
        }
    }
}
