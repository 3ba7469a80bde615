//! Replaced large values, kept for snapshots that still read them.
//!
//! A large value that is replaced is not copied for the readers of the old version: its pages stay
//! where they are, as *detached* pages (see [`crate::buffer_pool::detached`]), until the last
//! reader has finished.

use std::sync::Arc;

use bytes::Bytes;

use super::{Tree, overflow};
use crate::buffer_pool::Pool;
use crate::error::StoreError;
use crate::page::{PAGE_SIZE, PageId};

/// A large value that was removed from its tree, and stays readable with
/// [`Tree::read_detached`](crate::Tree::read_detached) until it is passed to
/// [`Store::free_detached`](crate::Store::free_detached). If it is dropped instead, its pages take
/// space until the store is reopened.
#[derive(Clone, Debug)]
pub struct DetachedValue(Arc<Chain>);

#[derive(Debug)]
struct Chain {
    /// In the order of the value's parts.
    pages: Box<[PageId]>,
    len: usize,
}

impl DetachedValue {
    /// Creates the value of `len` bytes in these pages.
    pub(crate) fn new(pages: Vec<PageId>, len: usize) -> Self {
        let pages = pages.into();
        Self(Arc::new(Chain { pages, len }))
    }

    pub(crate) fn pages(&self) -> &[PageId] {
        &self.0.pages
    }

    /// The value's length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a large value is not empty")]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// The space that the value's pages take, in bytes.
    pub fn page_bytes(&self) -> usize {
        self.pages().len() * PAGE_SIZE
    }

    pub(crate) fn read(&self, pool: &Pool) -> Result<Bytes, StoreError> {
        braid_rt::coverage_point("store: a replaced large value is read");
        let first = self.pages()[0];
        let mut out = Vec::new();
        if overflow::read(pool, first, self.len(), &mut out)? {
            return Ok(out.into());
        }
        let what = "the pages of a value that was replaced do not fit together";
        Err(pool.damaged_page(first, what))
    }

    pub(crate) fn free(&self, pool: &Pool) {
        self.pages().iter().for_each(|&id| pool.free_detached(id));
    }
}

impl Tree {
    /// Reads a replaced large value of this tree that was not freed.
    ///
    /// # Errors
    /// What reading pages can fail with.
    pub fn read_detached(&self, value: &DetachedValue) -> Result<Bytes, StoreError> {
        value.read(&self.pool)
    }

    /// Whether there is room to purge a key's obsolete record; see
    /// [`Store::has_room_to_purge`](crate::Store::has_room_to_purge).
    pub fn has_room_to_purge(&self, key: &[u8]) -> bool {
        self.pool.file.has_room_to_purge(key)
    }
}
