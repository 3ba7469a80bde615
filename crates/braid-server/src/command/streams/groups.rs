//! Groups of consumers: each entry is delivered to one of them, and pending until it is
//! acknowledged.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::{BufMut, Bytes};

use super::id::Id;
use super::{CONSUMERS, GROUPS, PENDING, PENDING_OF, Stream};
use crate::failure::{Failure, Result};
use crate::keyspace::{read_u64, read_u128};
use crate::rdb::ConsumerValue;

/// A group of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) name: Bytes,
    /// Number of the group, which no other group ever has.
    pub(super) number: u64,
    /// Id of the last entry that was delivered.
    pub(super) last: Id,
    /// Number of entries that were ever added up to that one, if it is known.
    pub(super) read: Option<u64>,
    /// Number of pending entries.
    pub(super) pending: u64,
}

impl Group {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(40);
        out.put_u64(self.number);
        out.put_u128(self.last.0);
        out.put_u64(self.read.unwrap_or(u64::MAX));
        out.put_u64(self.pending);
        out
    }

    fn decode(name: Bytes, stored: &[u8]) -> Group {
        let word = |at: usize| read_u64(stored.get(at..).unwrap_or_default());
        Group {
            name,
            number: word(0),
            last: Id(read_u128(stored.get(8..).unwrap_or_default())),
            read: Some(word(24)).filter(|read| *read != u64::MAX),
            pending: word(32),
        }
    }

    /// Returns the beginning of the keys of everything that belongs to the group.
    pub(super) fn prefix(&self, stream: &Stream<'_>, kind: u8) -> Vec<u8> {
        stream.at(kind, &self.number.to_be_bytes())
    }
}

/// A consumer of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Consumer {
    pub(super) name: Bytes,
    number: u64,
    /// When it last asked for something, in milliseconds since 1970.
    pub(super) seen: u64,
    /// When it last got something; 0 for never.
    pub(super) active: u64,
    /// Number of entries that are pending for it.
    pub(super) pending: u64,
}

impl Consumer {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        for word in [self.number, self.seen, self.active, self.pending] {
            out.put_u64(word);
        }
        out
    }

    fn decode(name: Bytes, stored: &[u8]) -> Consumer {
        let word = |at: usize| read_u64(stored.get(at..).unwrap_or_default());
        Consumer {
            name,
            number: word(0),
            seen: word(8),
            active: word(16),
            pending: word(24),
        }
    }
}

/// An entry that was delivered and not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    /// When it was delivered last, in milliseconds since 1970.
    pub(super) time: u64,
    /// How often it was delivered.
    pub(super) count: u64,
    pub(super) consumer: Bytes,
}

impl Pending {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + self.consumer.len());
        out.put_u64(self.time);
        out.put_u64(self.count);
        out.put_slice(&self.consumer);
        out
    }

    fn decode(mut stored: Bytes) -> Pending {
        let head = stored.split_to(stored.len().min(16));
        Pending {
            time: read_u64(&head),
            count: read_u64(head.get(8..).unwrap_or_default()),
            consumer: stored,
        }
    }

    pub(super) fn idle(&self, now: u64) -> u64 {
        now.saturating_sub(self.time)
    }
}

/// A group within a command, with the consumers that it used. [`OpenGroup::save`] stores what has
/// changed.
#[derive(Debug)]
pub(super) struct OpenGroup {
    pub(super) group: Group,
    consumers: BTreeMap<Bytes, Consumer>,
}

impl OpenGroup {
    pub(super) fn new(group: Group) -> OpenGroup {
        OpenGroup {
            group,
            consumers: BTreeMap::new(),
        }
    }

    /// Adds a consumer without what is pending for it.
    pub(super) fn add_consumer(&mut self, stream: &Stream<'_>, from: &ConsumerValue) {
        let consumer = Consumer {
            name: from.name.clone(),
            number: stream.data.keyspace.new_identity(),
            seen: from.seen,
            active: from.active,
            pending: 0,
        };
        self.consumers.insert(from.name.clone(), consumer);
    }

    pub(super) fn load(stream: &Stream<'_>, name: &Bytes) -> Result<Option<OpenGroup>> {
        let found = stream.data.element(&stream.at(GROUPS, name))?;
        Ok(found.map(|stored| OpenGroup {
            group: Group::decode(name.clone(), &stored),
            consumers: BTreeMap::new(),
        }))
    }

    fn consumer_at(&self, stream: &Stream<'_>, name: &[u8]) -> Vec<u8> {
        let mut at = self.group.prefix(stream, CONSUMERS);
        at.extend_from_slice(name);
        at
    }

    fn pending_at(&self, stream: &Stream<'_>, id: Id) -> Vec<u8> {
        let mut at = self.group.prefix(stream, PENDING);
        at.extend_from_slice(&id.0.to_be_bytes());
        at
    }

    fn pending_of_at(&self, stream: &Stream<'_>, consumer: u64, id: Id) -> Vec<u8> {
        let mut at = self.group.prefix(stream, PENDING_OF);
        at.extend_from_slice(&consumer.to_be_bytes());
        at.extend_from_slice(&id.0.to_be_bytes());
        at
    }

    pub(super) fn consumer(
        &mut self,
        stream: &Stream<'_>,
        name: &Bytes,
    ) -> Result<Option<&mut Consumer>> {
        if !self.consumers.contains_key(name) {
            let at = self.consumer_at(stream, name);
            let Some(stored) = stream.data.element(&at)? else {
                return Ok(None);
            };
            let consumer = Consumer::decode(name.clone(), &stored);
            self.consumers.insert(name.clone(), consumer);
        }
        Ok(self.consumers.get_mut(name))
    }

    /// Returns a consumer, which is new if there was none.
    pub(super) fn consumer_or_new(
        &mut self,
        stream: &mut Stream<'_>,
        name: &Bytes,
    ) -> Result<&mut Consumer> {
        if self.consumer(stream, name)?.is_none() {
            stream.data.notify('t', "xgroup-createconsumer", stream.key);
        }
        let now = stream.data.now;
        let number = || stream.data.keyspace.new_identity();
        Ok(self
            .consumers
            .entry(name.clone())
            .or_insert_with(|| Consumer {
                name: name.clone(),
                number: number(),
                seen: now,
                active: 0,
                pending: 0,
            }))
    }

    pub(super) fn pending(&self, stream: &Stream<'_>, id: Id) -> Result<Option<Pending>> {
        let found = stream.data.element(&self.pending_at(stream, id))?;
        Ok(found.map(Pending::decode))
    }

    /// Makes an entry pending for a consumer, and for nobody else.
    pub(super) fn assign(
        &mut self,
        stream: &mut Stream<'_>,
        id: Id,
        old: Option<&Pending>,
        new: &Pending,
    ) -> Result<()> {
        if let Some(old) = old
            && old.consumer != new.consumer
        {
            self.release(stream, id, old)?;
        }
        if old.is_none_or(|old| old.consumer != new.consumer) {
            let consumer = self.consumer_or_new(stream, &new.consumer)?;
            consumer.pending += 1;
            let number = consumer.number;
            self.group.pending += 1;
            let at = self.pending_of_at(stream, number, id);
            stream.data.put_element(&at, &[])?;
        }
        let at = self.pending_at(stream, id);
        stream.data.put_element(&at, &new.encode())
    }

    /// Takes an entry from its consumer.
    fn release(&mut self, stream: &mut Stream<'_>, id: Id, old: &Pending) -> Result<()> {
        self.group.pending = self.group.pending.saturating_sub(1);
        if let Some(consumer) = self.consumer(stream, &old.consumer)? {
            consumer.pending = consumer.pending.saturating_sub(1);
            let number = consumer.number;
            let at = self.pending_of_at(stream, number, id);
            stream.data.remove_element(&at)?;
        }
        Ok(())
    }

    /// Forgets a pending entry.
    pub(super) fn forget(&mut self, stream: &mut Stream<'_>, id: Id, old: &Pending) -> Result<()> {
        self.release(stream, id, old)?;
        let at = self.pending_at(stream, id);
        stream.data.remove_element(&at)?;
        Ok(())
    }

    /// Returns up to `count` pending entries from `start` to `end`, both inclusive.
    pub(super) fn pending_range(
        &self,
        stream: &Stream<'_>,
        start: Id,
        end: Id,
        count: usize,
    ) -> Result<Vec<(Id, Pending)>> {
        if start > end {
            return Ok(Vec::new());
        }
        let table = stream.data.elements();
        let found = stream.data.view.range(
            &table,
            Bound::Included(self.pending_at(stream, start)),
            Bound::Included(self.pending_at(stream, end)),
        )?;
        found
            .take(count)
            .map(|entry| {
                let (at, stored) = entry?;
                Ok((Id(read_u128(&at[17..])), Pending::decode(stored)))
            })
            .collect()
    }

    /// Returns up to `count` ids that are pending for a consumer, from `start` to `end`.
    pub(super) fn pending_of(
        &mut self,
        stream: &Stream<'_>,
        consumer: &Bytes,
        start: Id,
        end: Id,
        count: usize,
    ) -> Result<Vec<Id>> {
        let Some(number) = self.consumer(stream, consumer)?.map(|found| found.number) else {
            return Ok(Vec::new());
        };
        if start > end {
            return Ok(Vec::new());
        }
        let table = stream.data.elements();
        let found = stream.data.view.range(
            &table,
            Bound::Included(self.pending_of_at(stream, number, start)),
            Bound::Included(self.pending_of_at(stream, number, end)),
        )?;
        found
            .take(count)
            .map(|entry| Ok(Id(read_u128(&entry?.0[25..]))))
            .collect()
    }

    /// Returns all consumers as they are stored, ordered by name.
    pub(super) fn consumers(&self, stream: &Stream<'_>) -> Result<Vec<Consumer>> {
        let prefix = self.group.prefix(stream, CONSUMERS);
        let table = stream.data.elements();
        let found = stream.data.view.prefix(&table, &prefix)?;
        found
            .map(|entry| {
                let (at, stored) = entry?;
                Ok(Consumer::decode(at.slice(prefix.len()..), &stored))
            })
            .collect()
    }

    /// Stores the group and its consumers, and the header of the stream.
    pub(super) fn save(self, stream: &mut Stream<'_>) -> Result<()> {
        self.store(stream)?;
        stream.save()
    }

    /// Stores the group and its consumers.
    pub(super) fn store(self, stream: &mut Stream<'_>) -> Result<()> {
        for (name, consumer) in &self.consumers {
            let at = self.consumer_at(stream, name);
            stream.data.put_element(&at, &consumer.encode())?;
        }
        let at = stream.at(GROUPS, &self.group.name);
        stream.data.put_element(&at, &self.group.encode())
    }

    /// Deletes a consumer with what is pending for it; returns the number of these entries.
    pub(super) fn delete_consumer(
        mut self,
        stream: &mut Stream<'_>,
        name: &Bytes,
    ) -> Result<Option<u64>> {
        if self.consumer(stream, name)?.is_none() {
            return Ok(None);
        }
        let ids = self.pending_of(stream, name, Id::MIN, Id::MAX, usize::MAX)?;
        for id in &ids {
            if let Some(old) = self.pending(stream, *id)? {
                self.forget(stream, *id, &old)?;
            }
        }
        let at = self.consumer_at(stream, name);
        stream.data.remove_element(&at)?;
        self.consumers.remove(name);
        self.save(stream)?;
        Ok(Some(ids.len() as u64))
    }

    /// Deletes the group. Its consumers and what is pending are left to the background.
    pub(super) fn destroy(self, stream: &mut Stream<'_>) -> Result<()> {
        let prefixes = [CONSUMERS, PENDING, PENDING_OF].map(|kind| self.group.prefix(stream, kind));
        stream.data.discard_parts(self.group.number, &prefixes)?;
        let at = stream.at(GROUPS, &self.group.name);
        stream.data.remove_element(&at)?;
        stream.head.extra -= 1;
        stream.save()
    }
}

/// Returns the groups of a stream, ordered by name.
pub(super) fn groups(stream: &Stream<'_>) -> Result<Vec<OpenGroup>> {
    let prefix = stream.at(GROUPS, &[]);
    let table = stream.data.elements();
    let found = stream.data.view.prefix(&table, &prefix)?;
    found
        .map(|entry| {
            let (at, stored) = entry?;
            Ok(OpenGroup {
                group: Group::decode(at.slice(prefix.len()..), &stored),
                consumers: BTreeMap::new(),
            })
        })
        .collect()
}

/// Returns the error of a command that needs a group.
pub(super) fn no_group(key: &[u8], group: &[u8], suffix: &str) -> Failure {
    let (key, group) = (String::from_utf8_lossy(key), String::from_utf8_lossy(group));
    Failure::client(format!(
        "NOGROUP No such key '{key}' or consumer group '{group}'{suffix}"
    ))
}
