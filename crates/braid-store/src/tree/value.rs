//! References to stored values for the tree's callers: to read a value in place, or to keep it
//! before a change replaces it.
//!
//! A value in a leaf is copied once, directly to the caller's destination.

use std::cell::OnceCell;

use bytes::Bytes;

use super::detached::DetachedValue;
use super::large::keep_overflow;
use super::{RecordMeta, meta_of};
use crate::buffer_pool::Pool;
use crate::error::StoreError;
use crate::node::{LeafRecord, Node};
use crate::page::PageId;

/// A reference to a stored value; see [`Tree::read`](super::Tree::read).
#[derive(Clone, Copy, Debug)]
pub struct ValueRef<'a>(pub(super) Place<'a>);

#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'a> {
    /// In a leaf, which other threads may be changing.
    Leaf(Node<'a>, &'a LeafRecord),
    Copied(&'a Bytes),
    Memory(&'a [u8]),
}

impl<'a> ValueRef<'a> {
    /// A copy.
    #[inline]
    pub fn to_bytes(self) -> Bytes {
        match self.0 {
            Place::Leaf(node, record) => node.stored_value(record).into(),
            Place::Copied(bytes) => bytes.clone(),
            Place::Memory(bytes) => Bytes::copy_from_slice(bytes),
        }
    }

    /// A copy, in a buffer that may be a little longer.
    #[inline(always)]
    pub fn to_vec(self) -> Vec<u8> {
        match self.0 {
            Place::Leaf(node, record) => node.padded_value(record),
            Place::Copied(bytes) => bytes.to_vec(),
            Place::Memory(bytes) => bytes.to_vec(),
        }
    }

    /// Returns the value itself, if that needs no copy.
    #[inline(always)]
    pub fn shared(self) -> Option<&'a Bytes> {
        match self.0 {
            Place::Copied(bytes) => Some(bytes),
            Place::Leaf(..) | Place::Memory(_) => None,
        }
    }

    /// Copies the beginning of the value to `out`, as much as has room in whole words. Returns its
    /// number of bytes.
    #[inline]
    pub fn copy_head(self, out: &mut [u8]) -> usize {
        let bytes = match self.0 {
            Place::Leaf(node, record) => return node.copy_head_of_value(record, out),
            Place::Copied(bytes) => bytes,
            Place::Memory(bytes) => bytes,
        };
        let len = bytes.len().min(out.len() / 8 * 8);
        out[..len].copy_from_slice(&bytes[..len]);
        len
    }

    /// Copies the value to `out`.
    #[inline]
    pub fn copy_to(self, out: &mut Vec<u8>) {
        out.clear();
        match self.0 {
            Place::Leaf(node, record) => node.append_stored_value(record, out),
            Place::Copied(bytes) => out.extend_from_slice(bytes),
            Place::Memory(bytes) => out.extend_from_slice(bytes),
        }
    }
}

impl<'a> From<&'a Bytes> for ValueRef<'a> {
    fn from(bytes: &'a Bytes) -> Self {
        Self(Place::Copied(bytes))
    }
}

impl<'a> From<&'a [u8]> for ValueRef<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Place::Memory(bytes))
    }
}

/// The record that a change is about to replace.
#[derive(Debug)]
pub struct OldRecord<'a> {
    pub(super) pool: &'a Pool,
    pub(super) page: PageId,
    pub(super) node: Node<'a>,
    pub(super) record: LeafRecord,
    pub(super) kept: &'a OnceCell<DetachedValue>,
}

impl OldRecord<'_> {
    /// Its version and kind.
    pub fn meta(&self) -> RecordMeta {
        meta_of(&self.record)
    }

    /// The bytes of its value that [`OldRecord::keep_value`] appends.
    pub fn inline_len(&self) -> usize {
        if self.record.is_overflow() {
            0
        } else {
            self.record.value_len
        }
    }

    /// Copies the record's value, unless it is a large one, to the beginning of `out`, which needs
    /// room for whole words. Returns whether it did.
    #[inline]
    pub fn copy_value(&self, out: &mut [u8]) -> bool {
        let Self { node, record, .. } = *self;
        !record.is_overflow() && node.copy_stored_value(&record, out)
    }

    /// Keeps the record's value for older snapshots: appends it to `out`, or returns it if it is a
    /// large one, whose pages are then not freed with the record.
    ///
    /// # Errors
    /// Errors of reading overflow pages; nothing is kept then.
    #[inline]
    pub fn keep_value(&self, out: &mut Vec<u8>) -> Result<Option<DetachedValue>, StoreError> {
        // By value, so that only this branch needs them in memory.
        let Self {
            pool,
            page,
            node,
            record,
            kept,
        } = *self;
        if record.is_overflow() {
            let value = keep_overflow(pool, page, node, record)?;
            // A second call returns the same value.
            let _ = kept.set(value.clone());
            return Ok(Some(value));
        }
        node.append_stored_value(&record, out);
        Ok(None)
    }
}
