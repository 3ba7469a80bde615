//! Streams: entries in blocks, each a listpack that begins with the fields most of its entries have,
//! and the groups.

use std::collections::{HashMap, HashSet};

use bytes::{BufMut, Bytes};

use super::packed::{ListpackWriter, listpack};
use super::read::Reader;
use super::write::{put_length, put_string};
use super::{ConsumerValue, GroupValue, Malformed, PendingValue, StreamValue, types};

/// Entries in a block.
const BLOCK: usize = 100;

/// Bits of an entry's flags.
const DELETED: i64 = 1;
const SAME_FIELDS: i64 = 2;

/// Says that the number of entries that a group has read is not known.
const UNKNOWN: u64 = u64::MAX;

/// Says that a consumer has never got anything.
const NEVER: u64 = u64::MAX;

type Result<T> = std::result::Result<T, Malformed>;

fn id(ms: u64, sequence: u64) -> u128 {
    u128::from(ms) << 64 | u128::from(sequence)
}

/// Returns the names of an entry's fields.
fn names(fields: &[Bytes]) -> impl Iterator<Item = &Bytes> {
    fields.iter().step_by(2)
}

fn put_block(entries: &[(u128, Vec<Bytes>)], out: &mut Vec<u8>) {
    let (base, first) = &entries[0];
    put_string(out, &base.to_be_bytes());
    let mut pack = ListpackWriter::new();
    pack.integer(entries.len() as i64);
    pack.integer(0);
    pack.integer(first.len() as i64 / 2);
    names(first).for_each(|name| pack.text(name));
    pack.integer(0);
    for (id, fields) in entries {
        let is_same = names(fields).eq(names(first));
        pack.integer(if is_same { SAME_FIELDS } else { 0 });
        pack.integer(((*id >> 64) as i64).wrapping_sub((*base >> 64) as i64));
        pack.integer((*id as i64).wrapping_sub(*base as i64));
        let count = fields.len() as i64 / 2;
        if is_same {
            fields
                .iter()
                .skip(1)
                .step_by(2)
                .for_each(|value| pack.text(value));
            pack.integer(count + 3);
        } else {
            pack.integer(count);
            fields.iter().for_each(|text| pack.text(text));
            pack.integer(2 * count + 4);
        }
    }
    put_string(out, &pack.finish());
}

fn put_id(out: &mut Vec<u8>, id: u128) {
    put_length(out, (id >> 64) as u64);
    put_length(out, id as u64);
}

pub(super) fn write(stream: &StreamValue, out: &mut Vec<u8>) {
    out.put_u8(types::STREAM_2);
    let blocks = stream.entries.chunks(BLOCK);
    put_length(out, blocks.len() as u64);
    blocks.for_each(|entries| put_block(entries, out));
    put_length(out, stream.entries.len() as u64);
    put_id(out, stream.last);
    put_id(out, stream.entries.first().map_or(0, |entry| entry.0));
    put_id(out, stream.deleted);
    put_length(out, stream.added);
    put_length(out, stream.groups.len() as u64);
    for group in &stream.groups {
        put_string(out, &group.name);
        put_id(out, group.last);
        put_length(out, group.read.unwrap_or(UNKNOWN));
        let mut pending: Vec<&PendingValue> = group
            .consumers
            .iter()
            .flat_map(|consumer| &consumer.pending)
            .collect();
        pending.sort_by_key(|entry| entry.id);
        put_length(out, pending.len() as u64);
        for entry in pending {
            out.put_u128(entry.id);
            out.put_u64_le(entry.time);
            put_length(out, entry.count);
        }
        put_length(out, group.consumers.len() as u64);
        for consumer in &group.consumers {
            put_string(out, &consumer.name);
            out.put_u64_le(consumer.seen);
            put_length(out, consumer.pending.len() as u64);
            consumer
                .pending
                .iter()
                .for_each(|entry| out.put_u128(entry.id));
        }
    }
}

/// Takes the elements of a block one after the other.
struct Block {
    elements: std::vec::IntoIter<Bytes>,
}

impl Block {
    fn text(&mut self) -> Result<Bytes> {
        self.elements.next().ok_or(Malformed::Value)
    }

    fn integer(&mut self) -> Result<i64> {
        let text = self.text()?;
        let text = std::str::from_utf8(&text).map_err(|_| Malformed::Value)?;
        text.parse().map_err(|_| Malformed::Value)
    }

    fn count(&mut self) -> Result<usize> {
        let count = usize::try_from(self.integer()?).map_err(|_| Malformed::Value)?;
        if count > self.elements.len() {
            return Err(Malformed::Value);
        }
        Ok(count)
    }
}

/// Adds the entries of a block that are not deleted.
fn read_block(base: u128, pack: &Bytes, entries: &mut Vec<(u128, Vec<Bytes>)>) -> Result<()> {
    let mut block = Block {
        elements: listpack(pack)?.into_iter(),
    };
    let (live, deleted) = (block.count()?, block.count()?);
    let field_count = block.count()?;
    let shared: Vec<Bytes> = (0..field_count)
        .map(|_| block.text())
        .collect::<Result<_>>()?;
    block.integer()?;
    let mut found = 0;
    for _ in 0..live + deleted {
        let flags = block.integer()?;
        let (ms, sequence) = (block.integer()?, block.integer()?);
        let ms = ((base >> 64) as u64).wrapping_add_signed(ms);
        let id = id(ms, (base as u64).wrapping_add_signed(sequence));
        let mut fields = Vec::new();
        if flags & SAME_FIELDS != 0 {
            for name in &shared {
                fields.push(name.clone());
                fields.push(block.text()?);
            }
        } else {
            let count = block.count()?;
            for _ in 0..2 * count {
                fields.push(block.text()?);
            }
        }
        block.integer()?;
        if flags & DELETED == 0 {
            found += 1;
            if fields.is_empty() || entries.last().is_some_and(|(last, _)| *last >= id) {
                return Err(Malformed::Value);
            }
            entries.push((id, fields));
        }
    }
    if found != live || block.elements.next().is_some() {
        return Err(Malformed::Value);
    }
    Ok(())
}

fn read_id(reader: &mut Reader) -> Result<u128> {
    Ok(id(reader.length()?, reader.length()?))
}

pub(super) fn read(reader: &mut Reader, kind: u8) -> Result<StreamValue> {
    let mut entries = Vec::new();
    reader.several(|reader| {
        let base = reader.string()?;
        let base = base[..].try_into().map_err(|_| Malformed::Value)?;
        let pack = reader.string()?;
        read_block(u128::from_be_bytes(base), &pack, &mut entries)
    })?;
    let len = reader.length()?;
    let last = read_id(reader)?;
    if len != entries.len() as u64 || entries.last().is_some_and(|(id, _)| *id > last) {
        return Err(Malformed::Value);
    }
    let (mut deleted, mut added) = (0, len);
    if kind != types::STREAM {
        read_id(reader)?;
        deleted = read_id(reader)?;
        added = reader.length()?;
        if added < len {
            return Err(Malformed::Value);
        }
    }
    let groups = reader.several(|reader| read_group(reader, kind))?;
    let mut seen = HashSet::new();
    if !groups.iter().all(|group| seen.insert(&group.name)) {
        return Err(Malformed::Value);
    }
    Ok(StreamValue {
        entries,
        last,
        deleted,
        added,
        groups,
    })
}

fn read_group(reader: &mut Reader, kind: u8) -> Result<GroupValue> {
    let name = reader.string()?;
    let last = read_id(reader)?;
    let read = if kind == types::STREAM {
        UNKNOWN
    } else {
        reader.length()?
    };
    let pending = reader.several(|reader| {
        Ok(PendingValue {
            id: reader.id_be()?,
            time: reader.word_le()?,
            count: reader.length()?,
        })
    })?;
    let total = pending.len();
    let mut pending: HashMap<u128, PendingValue> =
        pending.into_iter().map(|entry| (entry.id, entry)).collect();
    if pending.len() != total {
        return Err(Malformed::Value);
    }
    let mut names = HashSet::new();
    let consumers = reader.several(|reader| {
        let name = reader.string()?;
        if !names.insert(name.clone()) {
            return Err(Malformed::Value);
        }
        let seen = reader.word_le()?;
        let active = if kind == types::STREAM_3 {
            Some(reader.word_le()?)
                .filter(|active| *active != NEVER)
                .unwrap_or(0)
        } else {
            seen
        };
        let own = reader.several(|reader| {
            let id = reader.id_be()?;
            // Every entry is pending for one consumer.
            pending.remove(&id).ok_or(Malformed::Value)
        })?;
        Ok(ConsumerValue {
            name,
            seen,
            active,
            pending: own,
        })
    })?;
    if !pending.is_empty() {
        return Err(Malformed::Value);
    }
    Ok(GroupValue {
        name,
        last,
        read: (read != UNKNOWN).then_some(read),
        consumers,
    })
}
