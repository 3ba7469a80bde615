//! A page of a value that is too large for a leaf. The pages of a value form a chain.
//!
//! ```text
//! word 2   kind            word 3   next page, 0 for none
//! word 4   bytes here      word 5.. the bytes
//! ```

use braid_rt::to_usize;

use super::KIND_OVERFLOW;
use crate::page::{PAGE_SIZE, Page, PageId};

pub(crate) const FIRST_WORD: usize = 5;
/// Bytes of the value in a full page.
pub(crate) const BYTES: usize = PAGE_SIZE - FIRST_WORD * 8;

/// Checks a page of a large value by its words 2 and 4.
pub(crate) fn check(kind: u64, here: u64) -> Result<(), &'static str> {
    if kind == u64::from(KIND_OVERFLOW) && (1..=BYTES as u64).contains(&here) {
        Ok(())
    } else {
        Err("it is not part of a large value")
    }
}

/// The page that a leaf's stored reference leads to.
pub(crate) fn reference(stored: &[u8]) -> PageId {
    let mut bytes = [0; 8];
    let len = stored.len().min(8);
    bytes[..len].copy_from_slice(&stored[..len]);
    u64::from_le_bytes(bytes)
}

/// The parts of a value, one per page.
pub(crate) fn parts(value: &[u8]) -> std::slice::Chunks<'_, u8> {
    value.chunks(BYTES)
}

/// Writes a part of a value to a page. The value continues in the page `next`, if there is more.
pub(crate) fn write_part(page: Page<'_>, part: &[u8], next: PageId) {
    page.set_word(2, u64::from(KIND_OVERFLOW));
    page.set_word(3, next);
    page.set_word(4, part.len() as u64);
    page.write_bytes(FIRST_WORD, part);
}

/// Returns the next page and the bytes of a page that was read separately; `None` if it is not a
/// part of a value.
pub(crate) fn part(page: Page<'_>) -> Option<(PageId, Vec<u8>)> {
    check(page.word(2), page.word(4)).ok()?;
    Some((
        page.word(3),
        page.to_vec(FIRST_WORD, to_usize(page.word(4))),
    ))
}

/// Whether a part of `here` bytes, which continues in the page `next`, fits a value of which `left`
/// bytes are left.
pub(crate) fn fits(next: PageId, here: usize, left: usize) -> bool {
    here == left.min(BYTES) && (next == 0) == (left <= BYTES)
}
