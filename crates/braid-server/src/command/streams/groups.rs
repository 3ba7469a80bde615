//! Groups of consumers: each entry is delivered to one of them, and pending until it is
//! acknowledged.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::{BufMut, Bytes};

use super::super::arguments::{Options, help, integer, is, unknown_subcommand, wrong_arity};
use super::id::{self, Id};
use super::{CONSUMERS, GROUPS, PENDING, PENDING_OF, Stream, parse_ids};
use crate::failure::{Failure, Result};
use crate::keyspace::{Arrival, Data, read_u64, read_u128};
use crate::rdb::ConsumerValue;
use crate::resp::Reply;

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
    fn prefix(&self, stream: &Stream<'_>, kind: u8) -> Vec<u8> {
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
    fn delete_consumer(mut self, stream: &mut Stream<'_>, name: &Bytes) -> Result<Option<u64>> {
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
    fn destroy(self, stream: &mut Stream<'_>) -> Result<()> {
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

/// Parses the position of a group: an id, or `$` for the end.
fn position(stream: &Stream<'_>, argument: &[u8]) -> Result<Id> {
    if argument == b"$" {
        Ok(stream.last())
    } else if argument == b"-" {
        Ok(Id::MIN)
    } else {
        Id::strict(argument)
    }
}

/// Parses `[MKSTREAM] [ENTRIESREAD count]`.
fn create_options(args: &[Bytes]) -> Result<(bool, Option<u64>)> {
    let (mut makes, mut read) = (false, None);
    let mut options = Options::new(args);
    while let Some(option) = options.next() {
        if is(option, "MKSTREAM") {
            makes = true;
        } else if is(option, "ENTRIESREAD") {
            let number = integer(options.value()?)?;
            if number < -1 {
                return Err(Failure::client(
                    "ERR value for ENTRIESREAD must be positive or -1",
                ));
            }
            read = u64::try_from(number).ok();
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    Ok((makes, read))
}

fn create(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (makes, read) = create_options(&args[5..])?;
    let mut stream = Stream::open_or_new(data, &args[2])?;
    if stream.old.is_none() && !makes {
        return Err(no_stream());
    }
    let last = position(&stream, &args[4])?;
    if OpenGroup::load(&stream, &args[3])?.is_some() {
        return Err(Failure::client(
            "BUSYGROUP Consumer Group name already exists",
        ));
    }
    let group = OpenGroup {
        group: Group {
            name: args[3].clone(),
            number: stream.data.keyspace.new_identity(),
            last,
            read,
            pending: 0,
        },
        consumers: BTreeMap::new(),
    };
    stream.head.extra += 1;
    group.save(&mut stream)?;
    data.notify('t', "xgroup-create", &args[2]);
    Ok(Reply::OK)
}

fn no_stream() -> Failure {
    Failure::client(
        "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option to create an empty stream automatically.",
    )
}

pub(in crate::command) fn xgroup(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let subcommand = &args[1];
    if is(subcommand, "HELP") && args.len() == 2 {
        return Ok(help(&[
            "XGROUP <subcommand> [<arg> ...]. Subcommands are:",
            "CREATE <key> <group> <id> [option], CREATECONSUMER <key> <group> <consumer>, DELCONSUMER <key> <group> <consumer>, DESTROY <key> <group>, SETID <key> <group> <id> [option], HELP",
        ]));
    }
    let (name, arity) = [
        ("CREATE", 5..=8),
        ("SETID", 5..=7),
        ("DESTROY", 4..=4),
        ("CREATECONSUMER", 5..=5),
        ("DELCONSUMER", 5..=5),
    ]
    .into_iter()
    .find(|(name, _)| is(subcommand, name))
    .ok_or_else(|| unknown_subcommand("xgroup", subcommand))?;
    if !arity.contains(&args.len()) {
        return Err(wrong_arity(&format!("xgroup|{}", name.to_lowercase())));
    }
    if name == "CREATE" {
        return create(data, args);
    }
    let mut stream = Stream::open(data, &args[2])?.ok_or_else(no_stream)?;
    let Some(mut group) = OpenGroup::load(&stream, &args[3])? else {
        if name == "DESTROY" {
            return Ok(Reply::Integer(0));
        }
        let (key, group) = (
            String::from_utf8_lossy(&args[2]),
            String::from_utf8_lossy(&args[3]),
        );
        return Err(Failure::client(format!(
            "NOGROUP No such consumer group '{group}' for key name '{key}'"
        )));
    };
    match name {
        "SETID" => {
            let (makes, read) = create_options(&args[5..])?;
            if makes {
                return Err(Failure::SYNTAX);
            }
            group.group.last = position(&stream, &args[4])?;
            group.group.read = read;
            group.save(&mut stream)?;
            data.notify('t', "xgroup-setid", &args[2]);
            // There may be entries after the new position.
            data.effects.arrivals.push(Arrival::Left {
                key: (data.database, args[2].clone()),
                group: args[3].clone(),
            });
            Ok(Reply::OK)
        }
        "DESTROY" => {
            group.destroy(&mut stream)?;
            data.notify('t', "xgroup-destroy", &args[2]);
            data.effects.arrivals.push(Arrival::Gone {
                key: (data.database, args[2].clone()),
            });
            Ok(Reply::Integer(1))
        }
        "CREATECONSUMER" => {
            if group.consumer(&stream, &args[4])?.is_some() {
                return Ok(Reply::Integer(0));
            }
            group.consumer_or_new(&mut stream, &args[4])?;
            group.save(&mut stream)?;
            Ok(Reply::Integer(1))
        }
        _ => {
            let deleted = group.delete_consumer(&mut stream, &args[4])?;
            if deleted.is_some() {
                data.notify('t', "xgroup-delconsumer", &args[2]);
            }
            Ok(Reply::Integer(deleted.unwrap_or(0) as i64))
        }
    }
}

pub(in crate::command) fn xack(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let ids = parse_ids(&args[3..])?;
    let Some(mut stream) = Stream::open(data, &args[1])? else {
        return Ok(Reply::Integer(0));
    };
    let Some(mut group) = OpenGroup::load(&stream, &args[2])? else {
        return Ok(Reply::Integer(0));
    };
    let mut acknowledged = 0;
    for id in ids {
        if let Some(old) = group.pending(&stream, id)? {
            group.forget(&mut stream, id, &old)?;
            acknowledged += 1;
        }
    }
    if acknowledged > 0 {
        group.save(&mut stream)?;
    }
    Ok(Reply::Integer(acknowledged))
}

pub(in crate::command) fn xpending(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let mut options = Options::new(&args[3..]);
    let mut idle = 0;
    let extended = !options.rest().is_empty();
    if options.take("IDLE") {
        idle = u64::try_from(integer(options.value()?)?).unwrap_or(0);
    }
    let rest = options.rest();
    if extended && !(3..=4).contains(&rest.len()) {
        return Err(Failure::SYNTAX);
    }
    let interval = match rest {
        [start, end, count, ..] => Some((
            id::start(start)?,
            id::end(end)?,
            usize::try_from(integer(count)?).unwrap_or(0),
        )),
        _ => None,
    };
    let now = data.now;
    let no_group = || no_group(&args[1], &args[2], "");
    let stream = Stream::open(data, &args[1])?.ok_or_else(no_group)?;
    let mut group = OpenGroup::load(&stream, &args[2])?.ok_or_else(no_group)?;
    let Some((start, end, count)) = interval else {
        return summary(&stream, &group);
    };
    let entries: Vec<(Id, Pending)> = match rest.get(3) {
        // Entries that are not idle for long enough do not count.
        Some(consumer) => {
            let ids = group.pending_of(&stream, consumer, start, end, usize::MAX)?;
            let mut entries = Vec::new();
            for id in ids {
                if let Some(pending) = group.pending(&stream, id)? {
                    entries.push((id, pending));
                }
            }
            entries
        }
        None if idle == 0 => group.pending_range(&stream, start, end, count)?,
        None => group.pending_range(&stream, start, end, usize::MAX)?,
    };
    let shown = entries
        .into_iter()
        .filter(|(_, pending)| pending.idle(now) >= idle)
        .take(count)
        .map(|(id, pending)| {
            Reply::Array(vec![
                id.reply(),
                Reply::Bulk(pending.consumer.clone()),
                Reply::Integer(pending.idle(now) as i64),
                Reply::Integer(pending.count as i64),
            ])
        });
    Ok(Reply::Array(shown.collect()))
}

/// Returns the number of pending entries, the first and last, and their numbers by consumer.
fn summary(stream: &Stream<'_>, group: &OpenGroup) -> Result<Reply> {
    if group.group.pending == 0 {
        return Ok(Reply::Array(vec![
            Reply::Integer(0),
            Reply::Null,
            Reply::Null,
            Reply::NullArray,
        ]));
    }
    let prefix = group.group.prefix(stream, PENDING);
    let table = stream.data.elements();
    let mut range = stream.data.view.prefix(&table, &prefix)?;
    let id = |entry: Option<braid::Result<(Bytes, Bytes)>>| -> Result<Id> {
        Ok(match entry.transpose()? {
            Some((at, _)) => Id(read_u128(&at[17..])),
            None => Id::MIN,
        })
    };
    let first = id(range.next())?;
    let last = match range.next_back() {
        Some(entry) => id(Some(entry))?,
        None => first,
    };
    let consumers = group
        .consumers(stream)?
        .into_iter()
        .filter(|consumer| consumer.pending > 0)
        .map(|consumer| {
            Reply::Array(vec![
                Reply::Bulk(consumer.name),
                Reply::copied(consumer.pending.to_string()),
            ])
        });
    Ok(Reply::Array(vec![
        Reply::Integer(group.group.pending as i64),
        first.reply(),
        last.reply(),
        Reply::Array(consumers.collect()),
    ]))
}
