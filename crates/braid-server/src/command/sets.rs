//! Sets. The element of a member is `identity, hash of the member, member`, with nothing.

use std::collections::HashSet;

use bytes::Bytes;

use super::arguments::{Options, check_random_count, integer, is, natural};
use crate::failure::{Failure, Result};
use crate::keyspace::{Collection, Data, Kind};
use crate::resp::Reply;

pub(super) fn sadd(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (old, mut set) = data.collection_or_new(&args[1], Kind::Set)?;
    let mut added = 0;
    for member in &args[2..] {
        let at = data.member_at(&set, member);
        if data.element(&at)?.is_none() {
            data.put_element(&at, &[])?;
            added += 1;
        }
    }
    if added > 0 {
        set.len += added;
        data.put_collection(&args[1], old.as_ref(), set)?;
        data.notify('s', "sadd", &args[1]);
    }
    Ok(Reply::Integer(added as i64))
}

/// Removes members; returns how many there were.
fn remove(data: &mut Data, key: &[u8], members: &[Bytes], event: &'static str) -> Result<u64> {
    let Some((entry, mut set)) = data.collection(key, Kind::Set)? else {
        return Ok(0);
    };
    let mut removed = 0;
    for member in members {
        let at = data.member_at(&set, member);
        removed += u64::from(data.remove_element(&at)?);
    }
    if removed > 0 {
        set.len = set.len.saturating_sub(removed);
        data.notify('s', event, key);
        data.put_collection(key, Some(&entry), set)?;
    }
    Ok(removed)
}

pub(super) fn srem(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(Reply::Integer(
        remove(data, &args[1], &args[2..], "srem")? as i64
    ))
}

fn contains(data: &Data, set: &Collection, member: &[u8]) -> Result<bool> {
    Ok(data.element(&data.member_at(set, member))?.is_some())
}

pub(super) fn sismember(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(Reply::Integer(
        match data.collection(&args[1], Kind::Set)? {
            None => 0,
            Some((_, set)) => i64::from(contains(data, &set, &args[2])?),
        },
    ))
}

pub(super) fn smismember(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let found = data.collection(&args[1], Kind::Set)?;
    let mut answers = Vec::with_capacity(args.len() - 2);
    for member in &args[2..] {
        answers.push(Reply::Integer(match &found {
            None => 0,
            Some((_, set)) => i64::from(contains(data, set, member)?),
        }));
    }
    Ok(Reply::Array(answers))
}

pub(super) fn scard(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let found = data.collection(&args[1], Kind::Set)?;
    Ok(Reply::Integer(found.map_or(0, |(_, set)| set.len) as i64))
}

/// Returns all members.
pub(super) fn all(data: &Data, set: &Collection) -> Result<Vec<Bytes>> {
    let found = data.scan_elements(&set.id.to_be_bytes(), 0, usize::MAX)?.1;
    Ok(found.into_iter().map(|(member, _)| member).collect())
}

/// Builds a set that no key has yet; `None` if a member is repeated.
pub(super) fn build(data: &mut Data, members: &[Bytes]) -> Result<Option<Collection>> {
    let mut set = data.new_collection(Kind::Set);
    for member in members {
        if contains(data, &set, member)? {
            return Ok(None);
        }
        let at = data.member_at(&set, member);
        data.put_element(&at, &[])?;
        set.len += 1;
    }
    Ok(Some(set))
}

fn members(data: &mut Data, key: &[u8]) -> Result<Vec<Bytes>> {
    match data.collection(key, Kind::Set)? {
        None => Ok(Vec::new()),
        Some((_, set)) => all(data, &set),
    }
}

pub(super) fn smembers(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let members = members(data, &args[1])?;
    Ok(Reply::Set(members.into_iter().map(Reply::Bulk).collect()))
}

pub(super) fn smove(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (from, to, member) = (&args[1], &args[2], &args[3]);
    let source = data.collection(from, Kind::Set)?;
    let Some((_, set)) = source else {
        return Ok(Reply::Integer(0));
    };
    data.collection(to, Kind::Set)?;
    if !contains(data, &set, member)? {
        return Ok(Reply::Integer(0));
    }
    if from != to {
        remove(data, from, std::slice::from_ref(member), "srem")?;
        sadd(data, &[Bytes::new(), to.clone(), member.clone()])?;
    }
    Ok(Reply::Integer(1))
}

/// Returns `count` different random elements of a collection with members by hash, or `-count`
/// that may repeat.
pub(super) fn choose(
    data: &Data,
    prefix: &[u8],
    len: u64,
    count: i64,
) -> Result<Vec<(Bytes, Bytes)>> {
    check_random_count(count)?;
    let wanted = count.unsigned_abs();
    if count < 0 {
        return (0..wanted)
            .map_while(|_| data.sample_element(prefix, len).transpose())
            .collect();
    }
    // Choosing more than a third one by one would meet the same members again and again.
    if wanted.saturating_mul(3) > len {
        let mut all = data.scan_elements(prefix, 0, usize::MAX)?.1;
        fastrand::shuffle(&mut all);
        all.truncate(wanted as usize);
        return Ok(all);
    }
    let mut seen = HashSet::new();
    let mut chosen = Vec::new();
    while (chosen.len() as u64) < wanted {
        let Some((name, value)) = data.sample_element(prefix, len)? else {
            break;
        };
        if seen.insert(name.clone()) {
            chosen.push((name, value));
        }
    }
    Ok(chosen)
}

pub(super) fn srandmember(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    if args.len() > 3 {
        return Err(Failure::SYNTAX);
    }
    let count = args.get(2).map(|count| integer(count)).transpose()?;
    let found = data.collection(&args[1], Kind::Set)?;
    let Some(count) = count else {
        let Some((_, set)) = found else {
            return Ok(Reply::Null);
        };
        let member = data.sample_element(&set.id.to_be_bytes(), set.len)?;
        return Ok(Reply::optional(member.map(|(member, _)| member)));
    };
    let Some((_, set)) = found else {
        return Ok(Reply::Array(Vec::new()));
    };
    let chosen = choose(data, &set.id.to_be_bytes(), set.len, count)?;
    Ok(Reply::bulks(chosen.into_iter().map(|(member, _)| member)))
}

pub(super) fn spop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    if args.len() > 3 {
        return Err(Failure::SYNTAX);
    }
    let count = match args.get(2) {
        None => None,
        Some(count) => Some(
            integer(count)
                .ok()
                .filter(|count| *count >= 0)
                .ok_or_else(|| Failure::client("ERR value is out of range, must be positive"))?,
        ),
    };
    let Some((_, set)) = data.collection(&args[1], Kind::Set)? else {
        return Ok(if count.is_some() {
            Reply::Set(Vec::new())
        } else {
            Reply::Null
        });
    };
    let chosen: Vec<Bytes> = choose(data, &set.id.to_be_bytes(), set.len, count.unwrap_or(1))?
        .into_iter()
        .map(|(member, _)| member)
        .collect();
    remove(data, &args[1], &chosen, "spop")?;
    if count.is_some() {
        return Ok(Reply::Set(chosen.into_iter().map(Reply::Bulk).collect()));
    }
    Ok(Reply::optional(chosen.into_iter().next()))
}

/// How sets are combined.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Combine {
    Union,
    Intersection,
    Difference,
}

/// Combines sets; an intersection ends at `limit` members.
fn combine(data: &mut Data, keys: &[Bytes], how: Combine, limit: usize) -> Result<Vec<Bytes>> {
    let mut sets = Vec::with_capacity(keys.len());
    for key in keys {
        sets.push(data.collection(key, Kind::Set)?.map(|(_, set)| set));
    }
    if how == Combine::Union {
        let mut seen = HashSet::new();
        let mut union = Vec::new();
        for set in sets.into_iter().flatten() {
            for (member, _) in data.scan_elements(&set.id.to_be_bytes(), 0, usize::MAX)?.1 {
                if seen.insert(member.clone()) {
                    union.push(member);
                }
            }
        }
        return Ok(union);
    }
    if how == Combine::Intersection {
        if sets.iter().any(Option::is_none) {
            return Ok(Vec::new());
        }
        // The smallest set bounds the work.
        sets.sort_by_key(|set| set.map_or(0, |set| set.len));
    }
    let Some(first) = sets[0] else {
        return Ok(Vec::new());
    };
    let mut result = Vec::new();
    for (member, _) in data
        .scan_elements(&first.id.to_be_bytes(), 0, usize::MAX)?
        .1
    {
        if result.len() == limit {
            break;
        }
        let mut kept = true;
        for set in sets[1..].iter().flatten() {
            if contains(data, set, &member)? != (how == Combine::Intersection) {
                kept = false;
                break;
            }
        }
        if kept {
            result.push(member);
        }
    }
    Ok(result)
}

fn answer(members: Vec<Bytes>) -> Reply {
    Reply::Set(members.into_iter().map(Reply::Bulk).collect())
}

pub(super) fn sunion(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(answer(combine(
        data,
        &args[1..],
        Combine::Union,
        usize::MAX,
    )?))
}

pub(super) fn sinter(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(answer(combine(
        data,
        &args[1..],
        Combine::Intersection,
        usize::MAX,
    )?))
}

pub(super) fn sdiff(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(answer(combine(
        data,
        &args[1..],
        Combine::Difference,
        usize::MAX,
    )?))
}

/// Replaces a key by the result of a combination.
fn store(data: &mut Data, args: &[Bytes], how: Combine, event: &'static str) -> Result<Reply> {
    let members = combine(data, &args[2..], how, usize::MAX)?;
    let target = &args[1];
    if let Some(old) = data.entry(target)? {
        data.delete(target, &old)?;
        if members.is_empty() {
            data.notify('g', "del", target);
        }
    }
    if !members.is_empty() {
        let mut set = data.new_collection(Kind::Set);
        for member in &members {
            let at = data.member_at(&set, member);
            data.put_element(&at, &[])?;
        }
        set.len = members.len() as u64;
        data.put_collection(target, None, set)?;
        data.notify('s', event, target);
    }
    Ok(Reply::Integer(members.len() as i64))
}

pub(super) fn sunionstore(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    store(data, args, Combine::Union, "sunionstore")
}

pub(super) fn sinterstore(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    store(data, args, Combine::Intersection, "sinterstore")
}

pub(super) fn sdiffstore(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    store(data, args, Combine::Difference, "sdiffstore")
}

pub(super) fn sintercard(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let too_many = Failure::client("ERR Number of keys can't be greater than number of args");
    let (keys, mut options) = numbered_keys(&args[1..], too_many)?;
    let mut limit = usize::MAX;
    while let Some(option) = options.next() {
        if !is(option, "LIMIT") {
            return Err(Failure::SYNTAX);
        }
        limit = match natural(options.value()?, "ERR LIMIT can't be negative")? {
            0 => usize::MAX,
            limit => limit,
        };
    }
    let members = combine(data, keys, Combine::Intersection, limit)?;
    Ok(Reply::Integer(members.len() as i64))
}

/// Splits `numkeys key [key ...] [option ...]`; fails with `too_many` if there are fewer keys.
pub(super) fn numbered_keys(args: &[Bytes], too_many: Failure) -> Result<(&[Bytes], Options<'_>)> {
    let count = integer(&args[0])
        .ok()
        .and_then(|count| usize::try_from(count).ok())
        .filter(|count| *count > 0)
        .ok_or_else(|| Failure::client("ERR numkeys should be greater than 0"))?;
    let rest = &args[1..];
    if count > rest.len() {
        return Err(too_many);
    }
    let (keys, options) = rest.split_at(count);
    Ok((keys, Options::new(options)))
}
