//! Values too large for a leaf: a chain of pages.
//!
//! ```text
//! word 2   kind            word 3   next page, 0 for none
//! word 4   bytes here      word 5.. the bytes
//! ```

use crate::error::StoreError;
use crate::node::KIND_OVERFLOW;
use crate::page::{PAGE_SIZE, Page, PageId};
use crate::pool::Pool;

const FIRST_WORD: usize = 5;
const BYTES: usize = PAGE_SIZE - FIRST_WORD * 8;

/// What is wrong with a page of a large value, by its words 2 and 4.
pub(crate) fn check(kind: u64, here: u64) -> Result<(), &'static str> {
    match kind == u64::from(KIND_OVERFLOW) && (1..=BYTES as u64).contains(&here) {
        true => Ok(()),
        false => Err("it holds no part of a large value"),
    }
}

/// The page that a leaf's stored reference leads to.
pub(crate) fn reference(stored: &[u8]) -> PageId {
    let mut bytes = [0; 8];
    let len = stored.len().min(8);
    bytes[..len].copy_from_slice(&stored[..len]);
    u64::from_le_bytes(bytes)
}

/// The parts of a value, a page each.
pub(crate) fn parts(value: &[u8]) -> std::slice::Chunks<'_, u8> {
    value.chunks(BYTES)
}

/// Makes a page hold a part of a value that goes on in the page `next`, if there is more.
pub(crate) fn write_part(page: Page<'_>, part: &[u8], next: PageId) {
    page.set_word(2, u64::from(KIND_OVERFLOW));
    page.set_word(3, next);
    page.set_word(4, part.len() as u64);
    page.write_bytes(FIRST_WORD, part);
}

/// The next page and the bytes of a page that was read on its own; `None` if it is no part of a value.
pub(crate) fn part(page: Page<'_>) -> Option<(PageId, Vec<u8>)> {
    check(page.word(2), page.word(4)).ok()?;
    Some((page.word(3), page.to_vec(FIRST_WORD, page.word(4) as usize)))
}

/// Writes a value; returns its first page. On an error nothing stays allocated.
pub(crate) fn write(pool: &Pool, value: &[u8]) -> Result<PageId, StoreError> {
    let mut next = 0;
    // From the end, since each page names the one after it.
    for part in parts(value).rev() {
        let page = match pool.allocate() {
            Ok(page) => page,
            Err(error) => {
                if next != 0 {
                    free(pool, next)?;
                }
                return Err(error);
            }
        };
        write_part(page.page(), part, next);
        next = page.id;
    }
    Ok(next)
}

/// Appends a value to `out`; `false`, and nothing is appended, if the chain is broken, which a reader that
/// races with a change may meet. The caller may hold the latch of the page `held`, which is no part of a value
/// that is whole.
pub(crate) fn read(
    pool: &Pool,
    first: PageId,
    len: usize,
    held: Option<PageId>,
    out: &mut Vec<u8>,
) -> Result<bool, StoreError> {
    let before = out.len();
    let read = try_read(pool, first, len, held, out);
    if !matches!(read, Ok(true)) {
        out.truncate(before);
    }
    read
}

fn try_read(
    pool: &Pool,
    first: PageId,
    len: usize,
    held: Option<PageId>,
    out: &mut Vec<u8>,
) -> Result<bool, StoreError> {
    // Memory is taken for what the pages that exist can hold, not for what a length says.
    let pages_max = pool.ids.lock().next;
    if len.div_ceil(BYTES) as u64 > pages_max {
        return Ok(false);
    }
    out.reserve_exact(len);
    let end = out.len() + len;
    let mut id = first;
    while out.len() < end {
        if held == Some(id) {
            return Ok(false);
        }
        let Some(page) = pool.read(id)? else {
            return Ok(false);
        };
        let words = page.page();
        let (kind, next, here) = (words.word(2), words.word(3), words.word(4) as usize);
        if check(kind, here as u64).is_err() {
            if page.validate() {
                return Ok(false);
            }
            continue;
        }
        let part = out.len();
        // No more than the value has: what was reserved is enough, and a broken chain is told by its pages.
        if here > end - part {
            match page.validate() {
                true => return Ok(false),
                false => continue,
            }
        }
        words.read_bytes(FIRST_WORD, here, out);
        if !page.validate() {
            out.truncate(part);
            continue;
        }
        id = next;
    }
    Ok(true)
}

/// Frees a value's pages.
pub(crate) fn free(pool: &Pool, first: PageId) -> Result<(), StoreError> {
    let mut id = first;
    while id != 0 {
        let Some(page) = pool.write(id)? else {
            return Err(StoreError::damaged_page(
                id,
                "a missing page of a large value",
            ));
        };
        if page.page().word(2) != u64::from(KIND_OVERFLOW) {
            return Err(StoreError::damaged_page(id, "not a page of a large value"));
        }
        id = page.page().word(3);
        page.free()?;
    }
    Ok(())
}
