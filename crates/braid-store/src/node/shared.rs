//! The bytes that all keys of a node share after its prefix. The node stores them once, so that the
//! heads, which are short, begin where the keys differ.

use braid_rt::narrow;

use crate::page::head8;

/// Most bytes that the shared word holds.
pub(super) const SHARED_MAX: usize = 8;

/// The bytes with which all suffixes in a node begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shared {
    pub(super) len: usize,
    /// The first byte is the highest; the bytes after `len` are zero.
    pub(super) bytes: u64,
}

impl Shared {
    /// The first `len` bytes of a suffix.
    #[inline]
    pub(super) fn of(suffix: &[u8], len: usize) -> Self {
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

    /// The mask of a word's shared bytes.
    #[inline]
    pub(super) fn mask(self) -> u64 {
        !u64::MAX
            .checked_shr(8 * narrow::<u32>(self.len))
            .unwrap_or(0)
    }

    /// The bytes with which both suffixes begin.
    pub(super) fn by(first: &[u8], last: &[u8]) -> Self {
        let len = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        Self::of(first, len)
    }

    /// The bytes that remain shared with one more suffix.
    pub(super) fn with(self, suffix: &[u8]) -> Self {
        let own = head8(suffix) ^ self.bytes;
        let same = own.leading_zeros() as usize / 8;
        Self::of(suffix, self.len.min(same).min(suffix.len()))
    }

    /// The head of a suffix that begins with these bytes.
    #[inline]
    pub(super) fn head(self, suffix: &[u8]) -> u32 {
        (head8(suffix.get(self.len..).unwrap_or_default()) >> 32) as u32
    }
}
