//! Lists. Elements have consecutive indices; the key is `identity, index`, ordered as numbers. The
//! header has the index of the first element, so both ends grow without moving anything, and an
//! element is found by its position in one lookup. Insertions and removals inside a list move the
//! shorter side.

pub(super) mod moving;

use bytes::Bytes;

use super::arguments::{Options, integer, is, natural, part};
use crate::failure::{Failure, Result};
use crate::keyspace::{Collection, Data, Entry, Kind};
use crate::resp::Reply;

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Left,
    Right,
}

impl End {
    fn parse(argument: &[u8]) -> Result<End> {
        if is(argument, "LEFT") {
            Ok(End::Left)
        } else if is(argument, "RIGHT") {
            Ok(End::Right)
        } else {
            Err(Failure::SYNTAX)
        }
    }
}

fn at(list: &Collection, position: u64) -> Vec<u8> {
    let index = list.extra.wrapping_add(position as i64);
    let mut key = list.id.to_be_bytes().to_vec();
    key.extend_from_slice(&(index as u64 ^ 1 << 63).to_be_bytes());
    key
}

fn element(data: &Data, list: &Collection, position: u64) -> Result<Bytes> {
    data.element(&at(list, position))?.ok_or_else(|| {
        Failure::Engine(braid::Error::Corrupted {
            what: "a list has fewer elements than its header says".to_owned(),
            location: format!("table elements, list {:x}", list.id),
        })
    })
}

/// Returns the elements from `start` to `stop`, both inclusive.
fn elements(data: &Data, list: &Collection, start: u64, stop: u64) -> Result<Vec<Bytes>> {
    let range = (
        std::ops::Bound::Included(at(list, start)),
        std::ops::Bound::Included(at(list, stop)),
    );
    let table = data.elements();
    let found = data.view.range(&table, range.0, range.1)?;
    Ok(found
        .map(|entry| entry.map(|(_, value)| value))
        .collect::<braid::Result<_>>()?)
}

/// Returns all elements.
pub(super) fn all(data: &Data, list: &Collection) -> Result<Vec<Bytes>> {
    if list.len == 0 {
        Ok(Vec::new())
    } else {
        elements(data, list, 0, list.len - 1)
    }
}

/// Builds a list that no key has yet.
pub(super) fn build(data: &mut Data, values: &[Bytes]) -> Result<Collection> {
    let mut list = data.new_collection(Kind::List);
    for value in values {
        push_one(data, &mut list, End::Right, value)?;
    }
    Ok(list)
}

/// Replaces a key by a new list; returns the number of elements.
pub(super) fn store(
    data: &mut Data,
    key: &[u8],
    values: &[Bytes],
    event: &'static str,
) -> Result<Reply> {
    if let Some(old) = data.entry(key)? {
        data.delete(key, &old)?;
        if values.is_empty() {
            data.notify('g', "del", key);
        }
    }
    if !values.is_empty() {
        let list = build(data, values)?;
        data.put_collection(key, None, list)?;
        data.notify('l', event, key);
        data.pushed(key, Kind::List, values.len());
    }
    Ok(Reply::Integer(values.len() as i64))
}

fn push_one(data: &mut Data, list: &mut Collection, end: End, value: &[u8]) -> Result<()> {
    let position = match end {
        End::Left => {
            list.extra -= 1;
            0
        }
        End::Right => list.len,
    };
    list.len += 1;
    data.put_element(&at(list, position), value)
}

fn push(data: &mut Data, key: &[u8], values: &[Bytes], end: End, only_old: bool) -> Result<Reply> {
    let (old, mut list) = data.collection_or_new(key, Kind::List)?;
    if old.is_none() && only_old {
        return Ok(Reply::Integer(0));
    }
    for value in values {
        push_one(data, &mut list, end, value)?;
    }
    data.put_collection(key, old.as_ref(), list)?;
    data.notify('l', if end == End::Left { "lpush" } else { "rpush" }, key);
    data.pushed(key, Kind::List, values.len());
    Ok(Reply::Integer(list.len as i64))
}

pub(super) fn lpush(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    push(data, &args[1], &args[2..], End::Left, false)
}

pub(super) fn rpush(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    push(data, &args[1], &args[2..], End::Right, false)
}

pub(super) fn lpushx(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    push(data, &args[1], &args[2..], End::Left, true)
}

pub(super) fn rpushx(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    push(data, &args[1], &args[2..], End::Right, true)
}

/// Removes up to `count` elements from an end of a list.
fn pop_some(
    data: &mut Data,
    key: &[u8],
    entry: &Entry,
    mut list: Collection,
    end: End,
    count: u64,
) -> Result<Vec<Bytes>> {
    let count = count.min(list.len);
    let mut popped = Vec::with_capacity(count.min(1024) as usize);
    for _ in 0..count {
        let position = if end == End::Left { 0 } else { list.len - 1 };
        popped.push(element(data, &list, position)?);
        data.remove_element(&at(&list, position))?;
        if end == End::Left {
            list.extra += 1;
        }
        list.len -= 1;
    }
    if !popped.is_empty() {
        data.notify('l', if end == End::Left { "lpop" } else { "rpop" }, key);
        data.put_collection(key, Some(entry), list)?;
    }
    Ok(popped)
}

fn pop(data: &mut Data, args: &[Bytes], end: End) -> Result<Reply> {
    if args.len() > 3 {
        return Err(super::arguments::wrong_arity(if end == End::Left {
            "lpop"
        } else {
            "rpop"
        }));
    }
    let count = args
        .get(2)
        .map(|count| natural(count, "ERR value is out of range, must be positive"))
        .transpose()?;
    let Some((entry, list)) = data.collection(&args[1], Kind::List)? else {
        return Ok(if count.is_some() {
            Reply::NullArray
        } else {
            Reply::Null
        });
    };
    let popped = pop_some(data, &args[1], &entry, list, end, count.unwrap_or(1) as u64)?;
    Ok(match count {
        None => Reply::optional(popped.into_iter().next()),
        Some(_) => Reply::bulks(popped),
    })
}

pub(super) fn lpop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    pop(data, args, End::Left)
}

pub(super) fn rpop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    pop(data, args, End::Right)
}

pub(super) fn llen(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let found = data.collection(&args[1], Kind::List)?;
    Ok(Reply::Integer(found.map_or(0, |(_, list)| list.len) as i64))
}

pub(super) fn lrange(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (start, stop) = (integer(&args[2])?, integer(&args[3])?);
    let Some((_, list)) = data.collection(&args[1], Kind::List)? else {
        return Ok(Reply::Array(Vec::new()));
    };
    Ok(Reply::bulks(match part(start, stop, list.len) {
        Some((start, stop)) => elements(data, &list, start, stop)?,
        None => Vec::new(),
    }))
}

/// Returns the position that an index means, where negative numbers count from the end.
fn position(index: i64, len: u64) -> Option<u64> {
    let position = if index < 0 {
        index.checked_add(len as i64)?
    } else {
        index
    };
    u64::try_from(position)
        .ok()
        .filter(|position| *position < len)
}

pub(super) fn lindex(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let Some((_, list)) = data.collection(&args[1], Kind::List)? else {
        return Ok(Reply::Null);
    };
    let index = integer(&args[2])?;
    Ok(match position(index, list.len) {
        Some(position) => Reply::Bulk(element(data, &list, position)?),
        None => Reply::Null,
    })
}

pub(super) fn lset(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let Some((entry, list)) = data.collection(&args[1], Kind::List)? else {
        return Err(Failure::NO_SUCH_KEY);
    };
    let index = integer(&args[2])?;
    let position =
        position(index, list.len).ok_or_else(|| Failure::client("ERR index out of range"))?;
    data.put_element(&at(&list, position), &args[3])?;
    data.put_collection(&args[1], Some(&entry), list)?;
    data.notify('l', "lset", &args[1]);
    Ok(Reply::OK)
}

pub(super) fn ltrim(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (start, stop) = (integer(&args[2])?, integer(&args[3])?);
    let Some((entry, mut list)) = data.collection(&args[1], Kind::List)? else {
        return Ok(Reply::OK);
    };
    data.notify('l', "ltrim", &args[1]);
    let Some((start, stop)) = part(start, stop, list.len) else {
        data.delete(&args[1], &entry)?;
        data.notify('g', "del", &args[1]);
        return Ok(Reply::OK);
    };
    for position in (0..start).chain(stop + 1..list.len) {
        data.remove_element(&at(&list, position))?;
    }
    list.extra += start as i64;
    list.len = stop + 1 - start;
    data.put_collection(&args[1], Some(&entry), list)?;
    Ok(Reply::OK)
}

pub(super) fn linsert(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let after = if is(&args[2], "AFTER") {
        true
    } else if is(&args[2], "BEFORE") {
        false
    } else {
        return Err(Failure::SYNTAX);
    };
    let Some((entry, mut list)) = data.collection(&args[1], Kind::List)? else {
        return Ok(Reply::Integer(0));
    };
    let all = elements(data, &list, 0, list.len - 1)?;
    let Some(pivot) = all.iter().position(|value| *value == args[3]) else {
        return Ok(Reply::Integer(-1));
    };
    let position = pivot + usize::from(after);
    if position * 2 < all.len() {
        list.extra -= 1;
        for (to, value) in all[..position].iter().enumerate() {
            data.put_element(&at(&list, to as u64), value)?;
        }
    } else {
        for (from, value) in all.iter().enumerate().skip(position) {
            data.put_element(&at(&list, from as u64 + 1), value)?;
        }
    }
    list.len += 1;
    data.put_element(&at(&list, position as u64), &args[4])?;
    data.put_collection(&args[1], Some(&entry), list)?;
    data.notify('l', "linsert", &args[1]);
    Ok(Reply::Integer(list.len as i64))
}

pub(super) fn lrem(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let count = integer(&args[2])?;
    let Some((entry, mut list)) = data.collection(&args[1], Kind::List)? else {
        return Ok(Reply::Integer(0));
    };
    let all = elements(data, &list, 0, list.len - 1)?;
    let mut hits: Vec<usize> = (0..all.len()).filter(|at| all[*at] == args[3]).collect();
    let limit = if count == 0 {
        usize::MAX
    } else {
        count.unsigned_abs() as usize
    };
    if count < 0 {
        hits.reverse();
    }
    hits.truncate(limit);
    hits.sort_unstable();
    let Some(&first) = hits.first() else {
        return Ok(Reply::Integer(0));
    };
    let kept = all
        .iter()
        .enumerate()
        .filter(|(at, _)| hits.binary_search(at).is_err());
    for (to, (from, value)) in kept.enumerate().skip(first) {
        debug_assert!(to <= from);
        data.put_element(&at(&list, to as u64), value)?;
    }
    let remaining = list.len - hits.len() as u64;
    for position in remaining..list.len {
        data.remove_element(&at(&list, position))?;
    }
    list.len = remaining;
    data.notify('l', "lrem", &args[1]);
    data.put_collection(&args[1], Some(&entry), list)?;
    Ok(Reply::Integer(hits.len() as i64))
}

pub(super) fn lpos(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (mut rank, mut count, mut longest) = (1, None, 0);
    let mut options = Options::new(&args[3..]);
    while let Some(option) = options.next() {
        if is(option, "RANK") {
            rank = integer(options.value()?)?;
            if rank == 0 {
                return Err(Failure::client(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list",
                ));
            }
            if rank == i64::MIN {
                return Err(Failure::client(
                    "ERR value is out of range, must be greater than -9223372036854775808",
                ));
            }
        } else if is(option, "COUNT") {
            count = Some(natural(options.value()?, "ERR COUNT can't be negative")?);
        } else if is(option, "MAXLEN") {
            longest = natural(options.value()?, "ERR MAXLEN can't be negative")?;
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    let Some((_, list)) = data.collection(&args[1], Kind::List)? else {
        return Ok(if count.is_some() {
            Reply::Array(Vec::new())
        } else {
            Reply::Null
        });
    };
    let all = elements(data, &list, 0, list.len - 1)?;
    let limit = if longest == 0 { all.len() } else { longest };
    let wanted = match count {
        None => 1,
        Some(0) => usize::MAX,
        Some(count) => count,
    };
    let hit = |at: &usize| all[*at] == args[2];
    let skip = rank.unsigned_abs() as usize - 1;
    let found: Vec<usize> = if rank > 0 {
        (0..all.len())
            .take(limit)
            .filter(hit)
            .skip(skip)
            .take(wanted)
            .collect()
    } else {
        (0..all.len())
            .rev()
            .take(limit)
            .filter(hit)
            .skip(skip)
            .take(wanted)
            .collect()
    };
    let mut positions = found.into_iter().map(|at| Reply::Integer(at as i64));
    Ok(if count.is_some() {
        Reply::Array(positions.collect())
    } else {
        positions.next().unwrap_or(Reply::Null)
    })
}
