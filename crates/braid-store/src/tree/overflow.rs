//! Values too large for a leaf: writing, reading and finding their chains of pages. [`value_page`]
//! has the format of a page.

use braid_rt::to_usize;

use super::detached::DetachedValue;
use crate::buffer_pool::Pool;
use crate::error::StoreError;
use crate::node::value_page::{self, BYTES, FIRST_WORD, parts, write_part};
use crate::page::PageId;

/// Writes a value to its own pages, to which nothing refers yet. On an error, nothing stays
/// allocated.
pub(crate) fn write(pool: &Pool, value: &[u8]) -> Result<DetachedValue, StoreError> {
    let mut pages = vec![0; parts(value).len()];
    // From the end, since each page names the one after it.
    for (i, part) in parts(value).enumerate().rev() {
        let page = match pool.allocate_unfilled() {
            Ok(page) => page,
            Err(error) => {
                pool.discard(&pages[i + 1..]);
                return Err(error);
            }
        };
        page.page().clear_from(FIRST_WORD + part.len().div_ceil(8));
        page.page().set_word(0, 0);
        page.page().set_word(1, page.id);
        let next = pages.get(i + 1).copied().unwrap_or(0);
        write_part(page.page(), part, next);
        pages[i] = page.id;
    }
    Ok(DetachedValue::new(pages, value.len()))
}

/// Appends a value to `out`. Returns `false`, and appends nothing, if the chain is broken, which
/// can happen to a reader that races with a change.
pub(crate) fn read(
    pool: &Pool,
    first: PageId,
    len: usize,
    out: &mut Vec<u8>,
) -> Result<bool, StoreError> {
    let before = out.len();
    let read = try_read(pool, first, len, out);
    if !matches!(read, Ok(true)) {
        out.truncate(before);
    }
    read
}

fn try_read(pool: &Pool, first: PageId, len: usize, out: &mut Vec<u8>) -> Result<bool, StoreError> {
    // Memory is reserved only for what the existing pages can hold, not for an unchecked length.
    let pages_max = pool.ids.lock().next;
    if len.div_ceil(BYTES) as u64 > pages_max {
        return Ok(false);
    }
    out.reserve_exact(len);
    let end = out.len() + len;
    let mut id = first;
    while out.len() < end {
        let Some(page) = pool.read(id)? else {
            return Ok(false);
        };
        let words = page.page();
        let (kind, next, here) = (words.word(2), words.word(3), to_usize(words.word(4)));
        if value_page::check(kind, here as u64).is_err() {
            if page.validate() {
                return Ok(false);
            }
            continue;
        }
        let part = out.len();
        // No more bytes than the value has: the reserved memory is enough, and a broken chain is
        // detected.
        if here > end - part {
            if page.validate() {
                return Ok(false);
            } else {
                continue;
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

/// A value's pages in their order; `None` if the chain is broken. The caller holds the latch of the
/// leaf `held`, which refers to the value and is never part of an intact chain.
pub(crate) fn pages(
    pool: &Pool,
    first: PageId,
    len: usize,
    held: PageId,
) -> Result<Option<Vec<PageId>>, StoreError> {
    let mut pages = Vec::new();
    let mut id = first;
    let mut left = len;
    while left > 0 {
        if id == held {
            return Ok(None);
        }
        let Some(page) = pool.read(id)? else {
            return Ok(None);
        };
        let words = page.page();
        let (kind, next, here) = (words.word(2), words.word(3), to_usize(words.word(4)));
        // Loaded or evicted meanwhile.
        if !page.validate() {
            continue;
        }
        if value_page::check(kind, here as u64).is_err() || here > left {
            return Ok(None);
        }
        pages.push(id);
        left -= here;
        id = next;
    }
    Ok(Some(pages))
}
