//! Times of expiration of single fields of hashes.
//!
//! A field with a time has two elements more, which lie after all fields, because a position among
//! the hashes has 63 bits:
//!
//! | key after the identity | value |
//! |---|---|
//! | `0x80`, time, hash of the field, field | nothing |
//! | `0x81`, hash of the field, field | the time |
//!
//! The header counts the fields with a time, so hashes without any cost nothing. Readers leave out
//! fields whose time has passed; writers remove them, and so does the background thread. For that,
//! `field_deadlines` has an entry for each such hash:
//!
//! - **S5** A hash with times of fields has an entry in `field_deadlines` at its earliest time or before.
//!   An entry that names no such hash any more is removed when its time has come.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::data::{Data, deadline_key};
use super::entry::{Body, Collection, Entry, read_u64};
use crate::failure::Result;
use crate::kind::Kind;

/// First byte after the identity of the elements by time, and of those by field.
const BY_TIME: u8 = 0x80;
const BY_FIELD: u8 = 0x81;

fn prefix(hash: &Collection, mark: u8) -> Vec<u8> {
    let mut at = hash.id.to_be_bytes().to_vec();
    at.push(mark);
    at
}

impl Data {
    fn time_at(&self, hash: &Collection, field: &[u8]) -> Vec<u8> {
        self.keyspace.hashed_key(&prefix(hash, BY_FIELD), field)
    }

    fn by_time_at(&self, hash: &Collection, time: u64, field: &[u8]) -> Vec<u8> {
        let mut at = prefix(hash, BY_TIME);
        at.extend_from_slice(&time.to_be_bytes());
        self.keyspace.hashed_key(&at, field)
    }

    /// Returns the time at which a field expires.
    pub(crate) fn field_time(&self, hash: &Collection, field: &[u8]) -> Result<Option<u64>> {
        if hash.extra == 0 {
            return Ok(None);
        }
        let found = self.element(&self.time_at(hash, field))?;
        Ok(found.map(|time| read_u64(&time)))
    }

    /// Sets or removes the time at which an existing field expires.
    pub(crate) fn set_field_time(
        &mut self,
        hash: &mut Collection,
        field: &[u8],
        time: Option<u64>,
    ) -> Result<()> {
        let before = self.field_time(hash, field)?;
        if before == time {
            return Ok(());
        }
        let at = self.time_at(hash, field);
        if let Some(before) = before {
            let by_time = self.by_time_at(hash, before, field);
            self.remove_element(&by_time)?;
            self.remove_element(&at)?;
            hash.extra -= 1;
        }
        if let Some(time) = time {
            let by_time = self.by_time_at(hash, time, field);
            self.put_element(&by_time, &[])?;
            self.put_element(&at, &time.to_be_bytes())?;
            hash.extra += 1;
        }
        Ok(())
    }

    /// Removes a field and its time; returns whether there was one.
    pub(crate) fn remove_field(&mut self, hash: &mut Collection, field: &[u8]) -> Result<bool> {
        let at = self.member_at(hash, field);
        if !self.remove_element(&at)? {
            return Ok(false);
        }
        self.set_field_time(hash, field, None)?;
        hash.len = hash.len.saturating_sub(1);
        Ok(true)
    }

    /// Returns up to `count` fields whose time has passed.
    pub(crate) fn expired_fields(&self, hash: &Collection, count: usize) -> Result<HashSet<Bytes>> {
        if hash.extra == 0 {
            return Ok(HashSet::new());
        }
        let mut end = prefix(hash, BY_TIME);
        end.extend_from_slice(&self.now.saturating_add(1).to_be_bytes());
        let from = Bound::Included(prefix(hash, BY_TIME));
        let table = self.elements();
        let expired = self.view.range(&table, from, Bound::Excluded(end))?;
        // Identity, mark, time, hash of the field.
        Ok(expired
            .take(count)
            .map(|entry| entry.map(|(at, _)| at.slice(25..)))
            .collect::<braid::Result<_>>()?)
    }

    /// Returns the earliest time of a field.
    pub(crate) fn earliest_field_time(&self, hash: &Collection) -> Result<Option<u64>> {
        if hash.extra == 0 {
            return Ok(None);
        }
        let table = self.elements();
        let mut times = self.view.prefix(&table, &prefix(hash, BY_TIME))?;
        let first = times.next().transpose()?;
        Ok(first.map(|(at, _)| read_u64(&at[9..])))
    }

    /// Lets the background find a hash with times of fields (S5).
    pub(crate) fn register_field_times(&mut self, key: &[u8], hash: &Collection) -> Result<()> {
        if let Some(time) = self.earliest_field_time(hash)? {
            let keyspace = Arc::clone(&self.keyspace);
            let at = deadline_key(time, self.namespace, key);
            self.view.put(&keyspace.field_deadlines, &at, &[])?;
        }
        Ok(())
    }

    /// Removes up to `count` fields whose time has passed, and the key with its last field. Returns
    /// what is left, if that is anything.
    pub(crate) fn purge_fields(
        &mut self,
        key: &[u8],
        entry: &Entry,
        mut hash: Collection,
        count: usize,
    ) -> Result<Option<Collection>> {
        let expired = self.expired_fields(&hash, count)?;
        if expired.is_empty() {
            return Ok(Some(hash));
        }
        for field in &expired {
            self.remove_field(&mut hash, field)?;
        }
        self.notify('h', "hexpired", key);
        self.put_collection(key, Some(entry), hash)?;
        Ok((hash.len > 0).then_some(hash))
    }

    /// Returns the hash at a key, without fields whose time has passed if the command writes; a command
    /// that reads has to leave them out.
    pub(crate) fn hash(&mut self, key: &[u8]) -> Result<Option<(Entry, Collection)>> {
        let Some((entry, hash)) = self.collection(key, Kind::Hash)? else {
            return Ok(None);
        };
        if hash.extra == 0 || !self.writes {
            return Ok(Some((entry, hash)));
        }
        let left = self.purge_fields(key, &entry, hash, usize::MAX)?;
        Ok(left.map(|hash| {
            let entry = Entry {
                body: Body::Collection(hash),
                ..entry
            };
            (entry, hash)
        }))
    }
}
