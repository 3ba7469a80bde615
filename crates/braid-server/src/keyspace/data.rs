//! The data that one command or MULTI reads and writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid::{Durability, Ticket, Transaction};
use braid_rt::mutant;
use bytes::Bytes;

use super::anchors::Changing;
use super::effects::{Arrival, Effects};
use super::elements::Discarded;
use super::entry::{Body, Collection, Entry, StreamHead, read_u64};
use super::scratch::Scratch;
use super::view::View;
use super::{Keyspace, now_ms};
use crate::failure::{Failure, Result};
use crate::kind::Kind;

/// Most keys that are usually prefetched at the same time: the entries of more might leave a small pool
/// again before they are used.
const PREFETCHED_MAX: usize = 64;

/// The data as one transaction sees it.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) keyspace: Arc<Keyspace>,
    pub(crate) view: View,
    /// Whether the command may change data: then reads of a key lock it.
    pub(crate) writes: bool,
    /// Whether the present command only reads: then a key that it does not find is an event.
    pub(crate) reads_only: bool,
    /// Time of the command in milliseconds since 1970; no key expires during a command.
    pub(crate) now: u64,
    /// Most keys that are prefetched at the same time.
    pub(crate) prefetched_max: usize,
    /// Number of the selected database, and its namespace.
    pub(crate) database: u32,
    pub(crate) namespace: u64,
    /// Stripe of `sizes` that this thread changes.
    stripe: u16,
    added: BTreeMap<u64, i64>,
    pub(crate) effects: Effects,
    pub(super) scratch: Scratch,
    /// Known parts of the rank indexes of sorted sets that change.
    pub(super) changing: Changing,
}

/// How a transaction on the data runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    /// Number of the database that is selected at first.
    pub(crate) database: u32,
    /// Stripe of `sizes` for keys that are added and removed.
    pub(crate) stripe: u16,
    /// Whether data may be changed.
    pub(crate) writes: bool,
    pub(crate) durability: Durability,
}

/// A committed transaction on the data.
#[derive(Debug)]
pub(crate) struct Committed<R> {
    pub(crate) result: R,
    /// Ticket for the durability of everything that was read and written.
    pub(crate) ticket: Ticket,
    pub(crate) effects: Effects,
}

impl Keyspace {
    /// Returns the durable state for reading.
    pub(crate) fn durable(self: &Arc<Self>, database: u32) -> Result<Data> {
        let view = View::Durable(self.db.snapshot());
        Data::new(Arc::clone(self), view, database, 0, now_ms())
    }

    /// Runs `body` in a transaction and commits; again after a conflict. A failure changes nothing.
    pub(crate) fn transact<R>(
        self: &Arc<Self>,
        scope: Scope,
        mut body: impl FnMut(&mut Data) -> Result<R>,
    ) -> Result<Committed<R>> {
        let now = now_ms();
        self.db
            .retry(|tx| match self.attempt(tx, scope, now, &mut body) {
                // The engine's errors decide about another attempt.
                Err(Failure::Engine(error)) => Err(error),
                outcome => Ok(outcome),
            })?
    }

    /// Runs `body` in a transaction and commits, as [`Keyspace::transact`], but fails after a conflict.
    pub(crate) fn transact_once<R>(
        self: &Arc<Self>,
        scope: Scope,
        body: impl FnOnce(&mut Data) -> Result<R>,
    ) -> Result<Committed<R>> {
        self.attempt(self.db.begin(), scope, now_ms(), body)
    }

    fn attempt<R>(
        self: &Arc<Self>,
        mut tx: Transaction,
        scope: Scope,
        now: u64,
        body: impl FnOnce(&mut Data) -> Result<R>,
    ) -> Result<Committed<R>> {
        // A commit that must be durable at once would request a flush at once. The ticket requests
        // it, when its thread has executed everything that has arrived.
        tx.set_durability(match scope.durability {
            Durability::Immediate if !mutant!("server_flush_each_commit") => Durability::None,
            later => later,
        });
        let view = View::Transaction(Box::new(tx));
        let (database, stripe) = (scope.database, scope.stripe);
        let mut data = Data::new(Arc::clone(self), view, database, stripe, now)?;
        data.writes = scope.writes;
        data.effects.is_write = scope.writes;
        data.effects.is_tracked = scope.writes && self.tracks.load(Ordering::SeqCst);
        let result = body(&mut data)?;
        data.finish()?;
        let ticket = data.view.commit()?;
        self.anchors.keep(data.changing);
        data.effects.changes.seqno = ticket.seqno();
        Ok(Committed {
            result,
            ticket,
            effects: data.effects,
        })
    }
}

impl Data {
    fn new(
        keyspace: Arc<Keyspace>,
        view: View,
        database: u32,
        stripe: u16,
        now: u64,
    ) -> Result<Data> {
        let mut data = Data {
            writes: false,
            reads_only: false,
            prefetched_max: PREFETCHED_MAX,
            keyspace,
            view,
            now,
            database,
            namespace: 0,
            stripe,
            added: BTreeMap::new(),
            effects: Effects::default(),
            scratch: Scratch::take(),
            changing: Changing::default(),
        };
        data.namespace = data.namespace_of(database)?;
        Ok(data)
    }

    /// Returns the namespace of a database. A database that was never flushed or swapped has its
    /// own number.
    pub(crate) fn namespace_of(&self, database: u32) -> Result<u64> {
        let table = &self.keyspace.databases;
        let found = self.view.get(table, &database.to_be_bytes())?;
        Ok(found.map_or(u64::from(database), |namespace| read_u64(&namespace)))
    }

    pub(crate) fn set_namespace(&mut self, database: u32, namespace: u64) -> Result<()> {
        let keyspace = Arc::clone(&self.keyspace);
        self.view.put(
            &keyspace.databases,
            &database.to_be_bytes(),
            &namespace.to_be_bytes(),
        )?;
        if database == self.database {
            self.namespace = namespace;
        }
        self.effects.arrivals.push(Arrival::Database(database));
        self.effects.changes.everything = true;
        Ok(())
    }

    /// Selects another database.
    pub(crate) fn select(&mut self, database: u32) -> Result<()> {
        self.namespace = self.namespace_of(database)?;
        self.database = database;
        Ok(())
    }

    /// Computes the place of a key in `keys`, unless it was the last one.
    pub(super) fn find_place(&mut self, key: &[u8]) {
        let (namespace, place) = (self.namespace.to_be_bytes(), &mut self.scratch.place);
        let is_found = place.get(16..) == Some(key) && place[..8] == namespace;
        if !is_found {
            self.keyspace.hashed_key_to(&namespace, key, place);
        }
    }

    /// Brings the entries of the keys that the next commands use into memory and into the processor's
    /// caches, all at the same time: one after another, each command would wait for its own. Leaves out
    /// all but the first [`Data::prefetched_max`].
    pub(crate) fn prefetch<'k>(&mut self, keys: impl Iterator<Item = &'k Bytes>) -> Result<()> {
        let namespace = self.namespace.to_be_bytes();
        let places = &mut self.scratch.encoded;
        places.clear();
        let ends: Vec<usize> = keys
            .take(self.prefetched_max)
            .map(|key| {
                self.keyspace.append_hashed_key(&namespace, key, places);
                places.len()
            })
            .collect();
        // A single one is not found any sooner.
        if ends.len() < 2 || mutant!("server_prefetch_nothing") {
            return Ok(());
        }
        let places = ends.iter().scan(0, |begin, &end| {
            Some(&places[std::mem::replace(begin, end)..end])
        });
        Ok(self.view.prefetch(&self.keyspace.keys, places)?)
    }

    /// Returns the entry of a key, unless it has expired. Locks the key if the command writes.
    pub(crate) fn entry(&mut self, key: &[u8]) -> Result<Option<Entry>> {
        self.find_place(key);
        let (table, at) = (&self.keyspace.keys, &self.scratch.place);
        let found = if self.writes {
            self.view.lock(table, at)?
        } else {
            self.view.get(table, at)?
        };
        let entry = found.map(Entry::decode).transpose()?;
        self.unless_expired(key, entry)
    }

    /// Returns the entry of a key as [`Data::entry`], but without a string: it is empty in the entry and
    /// not copied. For commands that replace or ignore it.
    pub(crate) fn header(&mut self, key: &[u8]) -> Result<Option<Entry>> {
        self.find_place(key);
        let (table, at) = (&self.keyspace.keys, &self.scratch.place);
        let mut head = [0; Entry::HEADER_MAX.next_multiple_of(8)];
        let entry = match self.view.read_head(table, at, self.writes, &mut head)? {
            Some(len) => Some(Entry::decode_header(&head[..len])?.0),
            None => None,
        };
        self.unless_expired(key, entry)
    }

    /// Returns an entry unless it has expired. Then it is deleted if the command writes.
    fn unless_expired(&mut self, key: &[u8], entry: Option<Entry>) -> Result<Option<Entry>> {
        let is_over = |entry: &Entry| entry.expires.is_some_and(|expires| expires <= self.now);
        if let Some(entry) = &entry
            && is_over(entry)
        {
            if self.writes {
                self.delete(key, entry)?;
                self.effects.expired += 1;
                self.notify('x', "expired", key);
            }
        } else if entry.is_some() {
            return Ok(entry);
        }
        if self.reads_only {
            self.notify('m', "keymiss", key);
        }
        Ok(None)
    }

    /// Returns the string at a key.
    pub(crate) fn string(&mut self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.entry(key)? {
            None => Ok(None),
            Some(Entry {
                body: Body::String(text),
                ..
            }) => Ok(Some(text)),
            Some(_) => Err(Failure::WRONG_TYPE),
        }
    }

    /// Returns the collection at a key, and its entry.
    pub(crate) fn collection(
        &mut self,
        key: &[u8],
        kind: Kind,
    ) -> Result<Option<(Entry, Collection)>> {
        match self.entry(key)? {
            None => Ok(None),
            Some(entry) => match entry.body {
                Body::Collection(collection) if collection.kind == kind => {
                    if self.writes && kind == Kind::SortedSet {
                        self.changing.read(collection.id, entry.stamp);
                    }
                    Ok(Some((entry, collection)))
                }
                _ => Err(Failure::WRONG_TYPE),
            },
        }
    }

    /// Returns the collection at a key, or a new and empty one, which [`Data::put_collection`]
    /// makes exist.
    pub(crate) fn collection_or_new(
        &mut self,
        key: &[u8],
        kind: Kind,
    ) -> Result<(Option<Entry>, Collection)> {
        Ok(match self.collection(key, kind)? {
            Some((entry, collection)) => (Some(entry), collection),
            None => (None, self.new_collection(kind)),
        })
    }

    pub(crate) fn new_collection(&self, kind: Kind) -> Collection {
        Collection {
            kind,
            id: self.keyspace.new_identity(),
            len: 0,
            extra: 0,
            stream: StreamHead::default(),
        }
    }

    /// Stores the header of a changed collection, and deletes the key if the collection is empty;
    /// a stream remains.
    pub(crate) fn put_collection(
        &mut self,
        key: &[u8],
        old: Option<&Entry>,
        collection: Collection,
    ) -> Result<()> {
        if collection.len == 0 && collection.kind != Kind::Stream {
            if let Some(old) = old {
                if collection.kind == Kind::SortedSet {
                    // Its rank index still has the sentinels.
                    self.discard(collection.id, Discarded::Collection)?;
                }
                self.delete_entry(key, old)?;
                self.notify('g', "del", key);
            }
            return Ok(());
        }
        let expires = old.and_then(|old| old.expires);
        self.put(key, old, Body::Collection(collection), expires)
    }

    /// Stores the value of a key in place of `old`, its present entry.
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        old: Option<&Entry>,
        body: Body,
        expires: Option<u64>,
    ) -> Result<()> {
        if let Some(old) = old {
            self.discard_elements(old, &body)?;
            let keeps = matches!(&body, Body::Collection(after) if old.owns(after.id));
            if old.kind() == Kind::Stream && !keeps {
                self.stream_is_gone(key);
            }
        }
        let before = old.and_then(|old| old.expires);
        if before != expires {
            self.move_deadline(key, before, expires)?;
        }
        if old.is_none() {
            *self.added.entry(self.namespace).or_default() += 1;
            self.notify('n', "new", key);
        }
        if let Body::Collection(hash) = &body
            && hash.kind == Kind::Hash
            && hash.extra > 0
            && old.is_none_or(|old| !old.owns(hash.id))
        {
            self.register_field_times(key, hash)?;
        }
        let entry = Entry {
            body,
            expires,
            stamp: fastrand::u64(..),
        };
        if let Body::Collection(set) = &entry.body
            && set.kind == Kind::SortedSet
        {
            self.changing.wrote(set.id, entry.stamp);
        }
        self.changed(key);
        self.find_place(key);
        entry.encode_to(&mut self.scratch.encoded);
        let Scratch { place, encoded } = &self.scratch;
        Ok(self.view.put(&self.keyspace.keys, place, encoded)?)
    }

    /// Deletes a key and everything that belongs to it.
    pub(crate) fn delete(&mut self, key: &[u8], entry: &Entry) -> Result<()> {
        if let Body::Collection(collection) = entry.body {
            self.discard(collection.id, Discarded::Collection)?;
        }
        self.delete_entry(key, entry)
    }

    /// Deletes a key without its elements: they are gone, or belong to another key now.
    pub(crate) fn delete_entry(&mut self, key: &[u8], entry: &Entry) -> Result<()> {
        self.move_deadline(key, entry.expires, None)?;
        self.changed(key);
        if entry.kind() == Kind::Stream {
            self.stream_is_gone(key);
        }
        *self.added.entry(self.namespace).or_default() -= 1;
        self.find_place(key);
        self.view.remove(&self.keyspace.keys, &self.scratch.place)?;
        Ok(())
    }

    /// Keeps `deadlines` up to date (S3).
    fn move_deadline(&mut self, key: &[u8], before: Option<u64>, after: Option<u64>) -> Result<()> {
        if let Some(before) = before {
            let at = deadline_key(before, self.namespace, key);
            self.view.remove(&self.keyspace.deadlines, &at)?;
        }
        if let Some(after) = after {
            let at = deadline_key(after, self.namespace, key);
            self.view.put(&self.keyspace.deadlines, &at, &[])?;
        }
        Ok(())
    }

    /// Returns the number of keys in the selected database (S4).
    pub(crate) fn len(&self) -> Result<u64> {
        let mut sum = self.added.get(&self.namespace).copied().unwrap_or(0);
        for entry in self
            .view
            .prefix(&self.keyspace.sizes, &self.namespace.to_be_bytes())?
        {
            sum += read_u64(&entry?.1) as i64;
        }
        Ok(sum.max(0) as u64)
    }

    /// Sets a mark to which [`Data::roll_back`] returns; `None` if nothing can have changed.
    pub(crate) fn mark(&mut self) -> Option<Mark> {
        match &mut self.view {
            View::Durable(_) => None,
            View::Transaction(tx) => Some(Mark {
                savepoint: tx.savepoint(),
                added: self.added.clone(),
                events: self.effects.events.len(),
                expired: self.effects.expired,
                arrivals: self.effects.arrivals.len(),
                messages: self.effects.messages.len(),
                changed: self.effects.changes.keys.len(),
            }),
        }
    }

    /// Undoes everything since a mark.
    pub(crate) fn roll_back(&mut self, mark: Mark) -> Result<()> {
        self.view.transaction()?.rollback_to(&mark.savepoint)?;
        self.changing.forget();
        self.added = mark.added;
        self.effects.events.truncate(mark.events);
        self.effects.expired = mark.expired;
        self.effects.arrivals.truncate(mark.arrivals);
        self.effects.messages.truncate(mark.messages);
        self.effects.changes.keys.truncate(mark.changed);
        Ok(())
    }

    /// Stores the changed numbers of keys; the last step before the commit.
    fn finish(&mut self) -> Result<()> {
        for (namespace, added) in std::mem::take(&mut self.added) {
            if added == 0 {
                continue;
            }
            let mut at = namespace.to_be_bytes().to_vec();
            at.extend_from_slice(&self.stripe.to_be_bytes());
            let before = self.view.lock(&self.keyspace.sizes, &at)?;
            let after = before.map_or(0, |before| read_u64(&before) as i64) + added;
            self.view
                .put(&self.keyspace.sizes, &at, &after.to_be_bytes())?;
        }
        Ok(())
    }
}

/// State of the data before a command of a MULTI.
#[derive(Debug)]
pub(crate) struct Mark {
    savepoint: braid::Savepoint,
    added: BTreeMap<u64, i64>,
    events: usize,
    expired: u64,
    arrivals: usize,
    messages: usize,
    changed: usize,
}

/// Returns the key in `deadlines`.
pub(crate) fn deadline_key(deadline: u64, namespace: u64, key: &[u8]) -> Vec<u8> {
    let mut at = Vec::with_capacity(16 + key.len());
    at.extend_from_slice(&deadline.to_be_bytes());
    at.extend_from_slice(&namespace.to_be_bytes());
    at.extend_from_slice(key);
    at
}
