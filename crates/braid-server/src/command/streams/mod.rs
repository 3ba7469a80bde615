//! Streams. Elements of five kinds follow the identity:
//!
//! | kind | key | value |
//! |---|---|---|
//! | 0 | id | the entry: fields and values, each behind its length |
//! | 1 | name | a group |
//! | 2 | number of the group, name | a consumer |
//! | 3 | number of the group, id | a pending entry: when and how often it was delivered, and to whom |
//! | 4 | number of the group, number of the consumer, id | nothing |
//!
//! Kinds 3 and 4 name the same ids, so pending entries are found by id and by consumer; groups and
//! consumers count them. The header in `keys` has the number of entries, the greatest id, and what
//! XINFO reports about entries that are gone.

mod claim;
mod dump;
mod groups;
mod id;
mod info;
mod read;
mod xgroup;

use std::ops::Bound;

use bytes::{Buf, BufMut, Bytes};

use super::arguments::{Options, integer, is, wrong_arity};
use crate::failure::{Failure, Result};
use crate::keyspace::{Collection, Data, Entry, Kind, StreamHead, read_u128};
use crate::resp::Reply;
use id::{Id, NewId};

pub(super) use claim::{xautoclaim, xclaim};
pub(super) use dump::{export, import};
pub(super) use info::xinfo;
pub(super) use read::{keys_of, xread, xreadgroup};
pub(super) use xgroup::{xack, xgroup, xpending};

const ENTRIES: u8 = 0;
const GROUPS: u8 = 1;
const CONSUMERS: u8 = 2;
const PENDING: u8 = 3;
const PENDING_OF: u8 = 4;

/// Entries that an approximate trim removes at once.
const BLOCK: u64 = 100;

/// An entry with its fields and values in turn.
type Item = (Id, Vec<Bytes>);

/// A stream within a transaction.
struct Stream<'a> {
    data: &'a mut Data,
    key: &'a [u8],
    old: Option<Entry>,
    head: Collection,
}

impl<'a> Stream<'a> {
    fn open(data: &'a mut Data, key: &'a [u8]) -> Result<Option<Stream<'a>>> {
        let found = data.collection(key, Kind::Stream)?;
        Ok(found.map(|(entry, head)| Stream {
            data,
            key,
            old: Some(entry),
            head,
        }))
    }

    /// Returns the stream at a key, or a new one, which [`Stream::save`] makes exist.
    fn open_or_new(data: &'a mut Data, key: &'a [u8]) -> Result<Stream<'a>> {
        let (old, head) = data.collection_or_new(key, Kind::Stream)?;
        Ok(Stream {
            data,
            key,
            old,
            head,
        })
    }

    /// Stores the header.
    fn save(&mut self) -> Result<()> {
        self.data
            .put_collection(self.key, self.old.as_ref(), self.head)
    }

    fn at(&self, kind: u8, rest: &[u8]) -> Vec<u8> {
        let mut at = self.head.id.to_be_bytes().to_vec();
        at.push(kind);
        at.extend_from_slice(rest);
        at
    }

    fn entry_at(&self, id: Id) -> Vec<u8> {
        self.at(ENTRIES, &id.0.to_be_bytes())
    }

    fn last(&self) -> Id {
        Id(self.head.stream.last)
    }

    fn entry(&self, id: Id) -> Result<Option<Vec<Bytes>>> {
        let found = self.data.element(&self.entry_at(id))?;
        Ok(found.map(decode_fields))
    }

    /// Returns up to `count` entries from `start` to `end`, both inclusive, from either end on.
    fn entries(&self, start: Id, end: Id, count: usize, from_end: bool) -> Result<Vec<Item>> {
        if start > end {
            return Ok(Vec::new());
        }
        let table = self.data.elements();
        let range = self.data.view.range(
            &table,
            Bound::Included(self.entry_at(start)),
            Bound::Included(self.entry_at(end)),
        )?;
        let decode = |entry: braid::Result<(Bytes, Bytes)>| {
            let (at, fields) = entry?;
            Ok((Id(read_u128(&at[9..])), decode_fields(fields)))
        };
        if from_end {
            range.rev().take(count).map(decode).collect()
        } else {
            range.take(count).map(decode).collect()
        }
    }

    /// Returns the first or last entry.
    fn outermost(&self, last: bool) -> Result<Option<Item>> {
        Ok(self.entries(Id::MIN, Id::MAX, 1, last)?.pop())
    }

    fn add(&mut self, id: Id, fields: &[Bytes]) -> Result<()> {
        let at = self.entry_at(id);
        self.data.put_element(&at, &encode_fields(fields))?;
        self.head.stream.last = id.0;
        self.head.stream.added += 1;
        self.head.len += 1;
        Ok(())
    }

    fn remove(&mut self, id: Id) -> Result<bool> {
        let at = self.entry_at(id);
        let removed = self.data.remove_element(&at)?;
        self.head.len = self.head.len.saturating_sub(u64::from(removed));
        Ok(removed)
    }

    /// Removes the oldest entries; returns how many.
    fn trim(&mut self, trim: &Trim) -> Result<u64> {
        let (end, excess) = match trim.keep {
            Keep::Len(len) => (Id::MAX, self.head.len.saturating_sub(len)),
            Keep::From(id) => match id.previous() {
                Some(end) => (end, u64::MAX),
                None => return Ok(0),
            },
        };
        let count = excess.min(trim.limit);
        let table = self.data.elements();
        let range = self.data.view.range(
            &table,
            Bound::Included(self.entry_at(Id::MIN)),
            Bound::Included(self.entry_at(end)),
        )?;
        let mut old: Vec<Bytes> = range
            .take(usize::try_from(count).unwrap_or(usize::MAX))
            .map(|entry| entry.map(|(at, _)| at))
            .collect::<braid::Result<_>>()?;
        // The last block may have fewer entries.
        if trim.is_approximate && (old.len() as u64) < self.head.len {
            old.truncate((old.len() as u64 / BLOCK * BLOCK) as usize);
        }
        for at in &old {
            self.data.remove_element(at)?;
        }
        self.head.len = self.head.len.saturating_sub(old.len() as u64);
        Ok(old.len() as u64)
    }
}

fn encode_fields(fields: &[Bytes]) -> Vec<u8> {
    let mut out = Vec::with_capacity(fields.iter().map(|field| field.len() + 4).sum());
    for field in fields {
        out.put_u32(field.len() as u32);
        out.put_slice(field);
    }
    out
}

fn decode_fields(mut stored: Bytes) -> Vec<Bytes> {
    let mut fields = Vec::new();
    while stored.len() >= 4 {
        let len = (stored.get_u32() as usize).min(stored.len());
        fields.push(stored.split_to(len));
    }
    fields
}

fn item_reply((id, fields): Item) -> Reply {
    Reply::Array(vec![id.reply(), Reply::bulks(fields)])
}

fn items_reply(items: Vec<Item>) -> Reply {
    Reply::Array(items.into_iter().map(item_reply).collect())
}

/// What remains of a stream that is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    /// This many of the newest entries.
    Len(u64),
    /// Entries from an id on.
    From(Id),
}

/// How a stream is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trim {
    keep: Keep,
    /// Whether a few entries more may remain.
    is_approximate: bool,
    /// Most entries that are removed.
    limit: u64,
}

/// Parses the options of XADD or XTRIM that trim.
#[derive(Debug, Default)]
struct TrimOptions {
    keep: Option<Keep>,
    is_approximate: bool,
    limit: Option<u64>,
}

impl TrimOptions {
    /// Parses an option if it is one of these.
    fn parse(&mut self, options: &mut Options<'_>) -> Result<bool> {
        let by_len = options.take("MAXLEN");
        if by_len || options.take("MINID") {
            if self.keep.is_some() {
                return Err(Failure::client(
                    "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
                ));
            }
            self.is_approximate = options.take("~");
            if !self.is_approximate {
                options.take("=");
            }
            let value = options.value()?;
            self.keep = Some(if by_len {
                Keep::Len(
                    u64::try_from(integer(value)?)
                        .map_err(|_| Failure::client("ERR The MAXLEN argument must be >= 0."))?,
                )
            } else {
                Keep::From(Id::strict(value)?)
            });
            return Ok(true);
        }
        if options.take("LIMIT") {
            let limit = u64::try_from(integer(options.value()?)?)
                .map_err(|_| Failure::client("ERR The LIMIT argument must be >= 0."))?;
            self.limit = Some(limit);
            return Ok(true);
        }
        Ok(false)
    }

    fn finish(self) -> Result<Option<Trim>> {
        if self.limit.is_some() && !self.is_approximate {
            return Err(Failure::client(
                "ERR syntax error, LIMIT cannot be used without the special ~ option",
            ));
        }
        let limit = match self.limit {
            Some(0) => u64::MAX,
            Some(limit) => limit,
            None if self.is_approximate => 100 * BLOCK,
            None => u64::MAX,
        };
        Ok(self.keep.map(|keep| Trim {
            keep,
            is_approximate: self.is_approximate,
            limit,
        }))
    }
}

pub(super) fn xadd(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let mut options = Options::new(&args[2..]);
    let (mut trim, mut only_old) = (TrimOptions::default(), false);
    loop {
        if options.take("NOMKSTREAM") {
            only_old = true;
        } else if !trim.parse(&mut options)? {
            break;
        }
    }
    let trim = trim.finish()?;
    let wanted = options.next().ok_or_else(|| wrong_arity("xadd"))?;
    let wanted = NewId::parse(wanted)?;
    let fields = options.rest();
    if fields.is_empty() || !fields.len().is_multiple_of(2) {
        return Err(wrong_arity("xadd"));
    }
    let now = data.now;
    let mut stream = Stream::open_or_new(data, &args[1])?;
    if only_old && stream.old.is_none() {
        return Ok(Reply::Null);
    }
    let id = wanted.after(stream.last(), now)?;
    stream.add(id, fields)?;
    let trimmed = match &trim {
        Some(trim) => stream.trim(trim)?,
        None => 0,
    };
    stream.save()?;
    data.notify('t', "xadd", &args[1]);
    if trimmed > 0 {
        data.notify('t', "xtrim", &args[1]);
    }
    data.pushed(&args[1], Kind::Stream, 1);
    Ok(id.reply())
}

pub(super) fn xtrim(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let mut options = Options::new(&args[2..]);
    let mut trim = TrimOptions::default();
    while trim.parse(&mut options)? {}
    options.end()?;
    let trim = trim.finish()?.ok_or(Failure::SYNTAX)?;
    let Some(mut stream) = Stream::open(data, &args[1])? else {
        return Ok(Reply::Integer(0));
    };
    let trimmed = stream.trim(&trim)?;
    if trimmed > 0 {
        stream.save()?;
        data.notify('t', "xtrim", &args[1]);
    }
    Ok(Reply::Integer(trimmed as i64))
}

pub(super) fn xlen(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let found = data.collection(&args[1], Kind::Stream)?;
    Ok(Reply::Integer(
        found.map_or(0, |(_, stream)| stream.len) as i64
    ))
}

pub(super) fn xdel(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let Some(mut stream) = Stream::open(data, &args[1])? else {
        return Ok(Reply::Integer(0));
    };
    let ids: Vec<Id> = parse_ids(&args[2..])?;
    let mut removed = 0;
    for id in ids {
        if stream.remove(id)? {
            removed += 1;
            let head = &mut stream.head.stream;
            head.deleted = head.deleted.max(id.0);
        }
    }
    if removed > 0 {
        stream.save()?;
        data.notify('t', "xdel", &args[1]);
    }
    Ok(Reply::Integer(removed))
}

fn parse_ids(args: &[Bytes]) -> Result<Vec<Id>> {
    args.iter().map(|id| Id::strict(id)).collect()
}

fn range(data: &mut Data, args: &[Bytes], from_end: bool) -> Result<Reply> {
    let (first, last) = if from_end {
        (&args[3], &args[2])
    } else {
        (&args[2], &args[3])
    };
    let (start, end) = (id::start(first)?, id::end(last)?);
    let mut count = usize::MAX;
    let mut options = Options::new(&args[4..]);
    while options.take("COUNT") {
        count = usize::try_from(integer(options.value()?)?).unwrap_or(0);
    }
    options.end()?;
    let Some(stream) = Stream::open(data, &args[1])? else {
        return Ok(Reply::Array(Vec::new()));
    };
    if count == 0 {
        return Ok(Reply::NullArray);
    }
    Ok(items_reply(stream.entries(start, end, count, from_end)?))
}

pub(super) fn xrange(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    range(data, args, false)
}

pub(super) fn xrevrange(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    range(data, args, true)
}

pub(super) fn xsetid(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let last = Id::strict(&args[2])?;
    let (mut added, mut deleted) = (None, None);
    let mut options = Options::new(&args[3..]);
    while let Some(option) = options.next() {
        if is(option, "ENTRIESADDED") {
            let number = u64::try_from(integer(options.value()?)?)
                .map_err(|_| Failure::client("ERR entries_added must be positive"))?;
            added = Some(number);
        } else if is(option, "MAXDELETEDID") {
            let id = Id::strict(options.value()?)?;
            if id > last {
                return Err(Failure::client(
                    "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                ));
            }
            deleted = Some(id);
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    let mut stream = Stream::open(data, &args[1])?.ok_or(Failure::NO_SUCH_KEY)?;
    if last.0 < stream.head.stream.deleted {
        return Err(Failure::client(
            "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id",
        ));
    }
    if let Some((newest, _)) = stream.outermost(true)? {
        if last < newest {
            return Err(Failure::client(
                "ERR The ID specified in XSETID is smaller than the target stream top item",
            ));
        }
        if added.is_some_and(|added| added < stream.head.len) {
            return Err(Failure::client(
                "ERR The entries_added specified in XSETID is smaller than the target stream length",
            ));
        }
    }
    let head = &mut stream.head.stream;
    head.last = last.0;
    head.added = added.unwrap_or(head.added);
    head.deleted = deleted.map_or(head.deleted, |id| id.0);
    stream.save()?;
    data.notify('t', "xsetid", &args[1]);
    Ok(Reply::OK)
}
