//! Large values, whose records refer to pages outside of the leaf: reading them, and freeing or
//! keeping their pages when the records change.
//!
//! [`overflow`] handles the pages themselves. Large values are separate from other values, since
//! leaf and pages are not read or changed in one step: the leaf may change meanwhile, and a value
//! removed from it may still be needed.

use braid_rt::thread::Backoff;
use bytes::Bytes;

use super::detached::DetachedValue;
use super::overflow;
use super::{ToKey, Tree, broken};
use crate::buffer_pool::{Pool, WritePage};
use crate::error::StoreError;
use crate::node::value_page;
use crate::node::{FLAG_OVERFLOW, LeafRecord, NewValue, Node};
use crate::page::PageId;

#[inline(never)]
pub(super) fn keep_overflow(
    pool: &Pool,
    page: PageId,
    node: Node<'_>,
    record: LeafRecord,
) -> Result<DetachedValue, StoreError> {
    let first = value_page::reference(&node.stored_value(&record));
    match overflow::pages(pool, first, record.value_len, page)? {
        Some(pages) => Ok(DetachedValue::new(pages, record.value_len)),
        None => Err(broken(pool, first)),
    }
}

impl Tree {
    /// Reads the overflow pages of a record that was read in a consistent leaf; `None` if the
    /// record was replaced meanwhile. The leaf's version can't show that: reading a value larger
    /// than the pool evicts the leaf.
    pub(super) fn read_overflow(
        &self,
        key: &[u8],
        record: &LeafRecord,
        stored: &[u8],
    ) -> Result<Option<Bytes>, StoreError> {
        let first = value_page::reference(stored);
        let mut value = Vec::new();
        let is_whole = overflow::read(&self.pool, first, record.value_len, &mut value)
            .map_err(|error| self.in_value(error, key))?;
        let mut backoff = Backoff::default();
        let unchanged = loop {
            if let Some(leaf) = self.try_descend(&ToKey(key))? {
                let node = Node(leaf.page());
                let same = node.search(key).is_ok_and(|i| {
                    let now = node.leaf_record(i);
                    now.version == record.version && now.flags == record.flags
                });
                if leaf.validate() {
                    break same;
                }
            }
            backoff.wait();
        };
        match (unchanged, is_whole) {
            (true, true) => Ok(Some(value.into())),
            (true, false) => Err(broken(&self.pool, first)),
            (false, _) => Ok(None),
        }
    }

    /// Writes a value to its own pages, and its record to its leaf.
    #[inline(never)]
    pub(super) fn put_large(
        &self,
        key: &[u8],
        version: u64,
        flags: u64,
        value: &[u8],
        kept: Option<&DetachedValue>,
    ) -> Result<(), StoreError> {
        let written = overflow::write(&self.pool, value)?;
        let reference = written.pages()[0].to_le_bytes();
        let new = NewValue {
            version,
            flags: flags | FLAG_OVERFLOW,
            len: value.len(),
            stored: &reference,
        };
        let put = self
            .latch_leaf(key)
            .and_then(|(leaf, place)| self.put(leaf, place, key, &new, kept));
        if !matches!(put, Ok(true)) {
            self.pool.discard(written.pages());
        }
        put.map(drop)
    }

    /// Returns the large value of a record that is about to be removed from its leaf, unless the
    /// value is inline.
    #[inline(always)]
    pub(super) fn leaving(
        &self,
        leaf: &WritePage<'_>,
        record: &LeafRecord,
        kept: Option<&DetachedValue>,
    ) -> Result<Option<DetachedValue>, StoreError> {
        if !record.is_overflow() {
            return Ok(None);
        }
        // All fallible steps precede the change.
        match kept {
            Some(kept) => Ok(Some(kept.clone())),
            None => match keep_overflow(&self.pool, leaf.id, Node(leaf.page()), *record) {
                // The damaged value is no longer needed. Its pages are unknown, so they stay in
                // use.
                Err(StoreError::Corrupted { .. }) => Ok(None),
                kept => kept.map(Some),
            },
        }
    }

    /// Frees the pages of a large value that was removed from its leaf, unless a caller keeps it.
    #[inline(always)]
    pub(super) fn release_value(&self, value: Option<DetachedValue>, kept: Option<&DetachedValue>) {
        let Some(value) = value else { return };
        if kept.is_some() && !braid_rt::mutant!("free_large_values_early") {
            self.pool.detach(value.pages());
        } else {
            self.pool.discard(value.pages());
        }
    }
}
