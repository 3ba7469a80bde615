//! Elements of collections: reading, writing, and leaving them to the background.

use bytes::Bytes;

use super::data::Data;
use super::entry::{Body, Collection, Entry};
use super::hashed;
use super::view::Bucket;
use crate::failure::Result;

/// What an entry of `garbage` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Discarded {
    Collection = 1,
    Namespace = 2,
    /// Elements of a collection that begin with certain prefixes.
    Parts = 3,
}

impl Data {
    /// Returns some elements of a collection whose members lie by hash behind `prefix`.
    pub(crate) fn scan_elements(
        &self,
        prefix: &[u8],
        cursor: u64,
        count: usize,
    ) -> Result<(u64, Vec<(Bytes, Bytes)>)> {
        Ok(hashed::scan(
            &self.view,
            &self.keyspace.elements,
            prefix,
            cursor,
            count,
        )?)
    }

    /// Returns a random element of a collection of `len` members behind `prefix`.
    pub(crate) fn sample_element(&self, prefix: &[u8], len: u64) -> Result<Option<(Bytes, Bytes)>> {
        Ok(hashed::sample(
            &self.view,
            &self.keyspace.elements,
            prefix,
            len,
        )?)
    }

    /// Returns the place of a field of a hash, or of a member of a set, among the elements.
    pub(crate) fn member_at(&self, collection: &Collection, name: &[u8]) -> Vec<u8> {
        self.keyspace.hashed_key(&collection.id.to_be_bytes(), name)
    }

    pub(crate) fn element(&self, at: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.view.get(&self.keyspace.elements, at)?)
    }

    pub(crate) fn put_element(&mut self, at: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.view.put(&self.keyspace.elements, at, value)?)
    }

    pub(crate) fn remove_element(&mut self, at: &[u8]) -> Result<bool> {
        Ok(self.view.remove(&self.keyspace.elements, at)?)
    }

    /// Returns the table of elements; a handle of its own, to iterate while the data changes.
    pub(crate) fn elements(&self) -> Bucket {
        self.keyspace.elements.clone()
    }

    /// Discards the elements of `old` unless `body` still owns them (S2).
    pub(super) fn discard_elements(&mut self, old: &Entry, body: &Body) -> Result<()> {
        let Body::Collection(before) = old.body else {
            return Ok(());
        };
        if matches!(body, Body::Collection(after) if after.id == before.id) {
            return Ok(());
        }
        self.discard(before.id, Discarded::Collection)
    }

    pub(crate) fn discard(&mut self, identity: u64, what: Discarded) -> Result<()> {
        Ok(self.view.put(
            &self.keyspace.garbage,
            &identity.to_be_bytes(),
            &[what as u8],
        )?)
    }

    /// Leaves the elements that begin with one of these prefixes to the background (S2). The identity is
    /// one that nothing else has. Prefixes have at most 255 bytes.
    pub(crate) fn discard_parts(&mut self, identity: u64, prefixes: &[Vec<u8>]) -> Result<()> {
        let mut what = vec![Discarded::Parts as u8];
        for prefix in prefixes {
            debug_assert!(prefix.len() < 256);
            what.push(prefix.len() as u8);
            what.extend_from_slice(prefix);
        }
        let at = identity.to_be_bytes();
        Ok(self.view.put(&self.keyspace.garbage, &at, &what)?)
    }
}
