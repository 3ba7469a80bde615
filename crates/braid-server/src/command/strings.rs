//! Strings, and strings as numbers and bits.

use bytes::Bytes;

use super::arguments::{Options, float, integer, is, part_of_string};
use super::keys::{ExpiryUnit, deadline};
use crate::failure::{Failure, Result};
use crate::keyspace::{Body, Data, Entry};
use crate::resp::Reply;
use crate::resp::number::{format_f64, parse_f64, parse_i64};

/// Longest string in bytes: what the engine stores as one value, less its header.
pub(super) const STRING_MAX: usize = braid::MAX_VALUE_LEN - 64;

fn too_long() -> Failure {
    Failure::client("ERR string exceeds maximum allowed size (proto-max-bulk-len)")
}

/// Stores a string that expires at `expires`.
pub(super) fn store(
    data: &mut Data,
    key: &[u8],
    old: Option<&Entry>,
    text: Bytes,
    expires: Option<u64>,
) -> Result<()> {
    if text.len() > STRING_MAX {
        return Err(too_long());
    }
    data.put(key, old, Body::String(text), expires)
}

/// Stores a string in place of another, and keeps the expiration.
pub(super) fn replace(data: &mut Data, key: &[u8], old: Option<&Entry>, text: Bytes) -> Result<()> {
    store(data, key, old, text, old.and_then(|old| old.expires))
}

/// Returns the entry of a key that holds a string or nothing, and the string.
pub(super) fn string_entry(data: &mut Data, key: &[u8]) -> Result<(Option<Entry>, Bytes)> {
    match data.entry(key)? {
        None => Ok((None, Bytes::new())),
        Some(entry) => match &entry.body {
            Body::String(text) => {
                let text = text.clone();
                Ok((Some(entry), text))
            }
            Body::Collection(_) => Err(Failure::WRONG_TYPE),
        },
    }
}

pub(super) fn get(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(Reply::optional(data.string(&args[1])?))
}

/// Runs SET without options.
fn set_simply(data: &mut Data, key: &[u8], text: &Bytes) -> Result<Reply> {
    if text.len() > STRING_MAX {
        return Err(too_long());
    }
    data.put_string(key, text)?;
    data.notify('$', "set", key);
    Ok(Reply::OK)
}

pub(super) fn set(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (key, text) = (&args[1], &args[2]);
    if args.len() == 3 {
        return set_simply(data, key, text);
    }
    let mut options = Options::new(&args[3..]);
    let (mut only_new, mut only_old, mut returns, mut keeps) = (false, false, false, false);
    let mut time = None;
    while let Some(option) = options.next() {
        if is(option, "NX") {
            only_new = true;
        } else if is(option, "XX") {
            only_old = true;
        } else if is(option, "GET") {
            returns = true;
        } else if is(option, "KEEPTTL") && time.is_none() {
            keeps = true;
        } else if let Some(unit) = ExpiryUnit::of(option)
            && time.is_none()
            && !keeps
        {
            time = Some((options.value()?, unit));
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    if only_new && only_old {
        return Err(Failure::SYNTAX);
    }
    let mut expires = match time {
        Some((time, unit)) => Some(deadline(data.now, time, unit, "set")?),
        None => None,
    };
    let (old, before) = if returns {
        let (old, text) = string_entry(data, key)?;
        let before = old.as_ref().map(|_| text);
        (old, Reply::optional(before))
    } else {
        (data.header(key)?, Reply::Null)
    };
    if (only_new && old.is_some()) || (only_old && old.is_none()) {
        return Ok(before);
    }
    if keeps {
        expires = old.as_ref().and_then(|old| old.expires);
    }
    if expires.is_some_and(|expires| expires <= data.now) {
        if let Some(old) = &old {
            data.delete(key, old)?;
            data.notify('g', "del", key);
        }
    } else {
        store(data, key, old.as_ref(), text.clone(), expires)?;
        data.notify('$', "set", key);
        if expires.is_some() && !keeps {
            data.notify('g', "expire", key);
        }
    }
    Ok(if returns { before } else { Reply::OK })
}

pub(super) fn setnx(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    if data.header(&args[1])?.is_some() {
        return Ok(Reply::Integer(0));
    }
    store(data, &args[1], None, args[2].clone(), None)?;
    data.notify('$', "set", &args[1]);
    Ok(Reply::Integer(1))
}

fn set_for(data: &mut Data, args: &[Bytes], unit: ExpiryUnit, name: &'static str) -> Result<Reply> {
    let expires = deadline(data.now, &args[2], unit, name)?;
    let old = data.header(&args[1])?;
    store(data, &args[1], old.as_ref(), args[3].clone(), Some(expires))?;
    data.notify('$', "set", &args[1]);
    data.notify('g', "expire", &args[1]);
    Ok(Reply::OK)
}

pub(super) fn setex(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    set_for(data, args, ExpiryUnit::Seconds, "setex")
}

pub(super) fn psetex(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    set_for(data, args, ExpiryUnit::Milliseconds, "psetex")
}

pub(super) fn getset(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (old, before) = string_entry(data, &args[1])?;
    store(data, &args[1], old.as_ref(), args[2].clone(), None)?;
    data.notify('$', "set", &args[1]);
    Ok(Reply::optional(old.map(|_| before)))
}

pub(super) fn getdel(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (old, before) = string_entry(data, &args[1])?;
    let Some(old) = old else {
        return Ok(Reply::Null);
    };
    data.delete(&args[1], &old)?;
    data.notify('g', "del", &args[1]);
    Ok(Reply::Bulk(before))
}

pub(super) fn getex(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let mut options = Options::new(&args[2..]);
    let mut change = None;
    while let Some(option) = options.next() {
        if change.is_some() {
            return Err(Failure::SYNTAX);
        }
        change = Some(if is(option, "PERSIST") {
            None
        } else {
            let unit = ExpiryUnit::of(option).ok_or(Failure::SYNTAX)?;
            Some((options.value()?, unit))
        });
    }
    let (old, text) = string_entry(data, &args[1])?;
    let Some(old) = old else {
        return Ok(Reply::Null);
    };
    let change = match change {
        Some(Some((time, unit))) => Some(Some(deadline(data.now, time, unit, "getex")?)),
        Some(None) => Some(None),
        None => None,
    };
    match change {
        Some(Some(expires)) if expires <= data.now => {
            data.delete(&args[1], &old)?;
            data.notify('g', "del", &args[1]);
        }
        Some(expires) if expires != old.expires => {
            data.put(&args[1], Some(&old), old.body.clone(), expires)?;
            let name = if expires.is_some() {
                "expire"
            } else {
                "persist"
            };
            data.notify('g', name, &args[1]);
        }
        _ => {}
    }
    Ok(Reply::Bulk(text))
}

pub(super) fn mget(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let mut values = Vec::with_capacity(args.len() - 1);
    for key in &args[1..] {
        values.push(match data.string(key) {
            Err(Failure::Client(_)) => Reply::Null,
            found => Reply::optional(found?),
        });
    }
    Ok(Reply::Array(values))
}

/// Returns the pairs of key and value after the command's name.
fn pairs<'a>(args: &'a [Bytes], name: &str) -> Result<std::slice::ChunksExact<'a, Bytes>> {
    let pairs = args[1..].chunks_exact(2);
    if pairs.remainder().is_empty() {
        Ok(pairs)
    } else {
        Err(super::arguments::wrong_arity(name))
    }
}

pub(super) fn mset(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    for pair in pairs(args, "mset")? {
        let old = data.header(&pair[0])?;
        store(data, &pair[0], old.as_ref(), pair[1].clone(), None)?;
        data.notify('$', "set", &pair[0]);
    }
    Ok(Reply::OK)
}

pub(super) fn msetnx(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    for pair in pairs(args, "msetnx")? {
        if data.header(&pair[0])?.is_some() {
            return Ok(Reply::Integer(0));
        }
    }
    mset(data, args)?;
    Ok(Reply::Integer(1))
}

pub(super) fn append(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (old, text) = string_entry(data, &args[1])?;
    let mut changed = Vec::with_capacity(text.len() + args[2].len());
    changed.extend_from_slice(&text);
    changed.extend_from_slice(&args[2]);
    let len = changed.len();
    replace(data, &args[1], old.as_ref(), changed.into())?;
    data.notify('$', "append", &args[1]);
    Ok(Reply::Integer(len as i64))
}

pub(super) fn strlen(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(Reply::Integer(
        data.string(&args[1])?.map_or(0, |text| text.len()) as i64,
    ))
}

pub(super) fn getrange(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (start, stop) = (integer(&args[2])?, integer(&args[3])?);
    let text = data.string(&args[1])?.unwrap_or_default();
    Ok(Reply::Bulk(
        match part_of_string(start, stop, text.len() as u64) {
            Some((start, stop)) => text.slice(start as usize..=stop as usize),
            None => Bytes::new(),
        },
    ))
}

pub(super) fn setrange(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let offset = integer(&args[2])?;
    if offset < 0 {
        return Err(Failure::client("ERR offset is out of range"));
    }
    let (old, text) = string_entry(data, &args[1])?;
    if args[3].is_empty() {
        return Ok(Reply::Integer(text.len() as i64));
    }
    let end = (offset as usize).saturating_add(args[3].len());
    if end > STRING_MAX {
        return Err(too_long());
    }
    let mut changed = text.to_vec();
    changed.resize(changed.len().max(end), 0);
    changed[offset as usize..end].copy_from_slice(&args[3]);
    let len = changed.len();
    replace(data, &args[1], old.as_ref(), changed.into())?;
    data.notify('$', "setrange", &args[1]);
    Ok(Reply::Integer(len as i64))
}

/// Adds to a number.
fn add(data: &mut Data, key: &[u8], by: i64) -> Result<Reply> {
    let (old, text) = string_entry(data, key)?;
    let before = if old.is_some() {
        parse_i64(&text).ok_or(Failure::NOT_AN_INTEGER)?
    } else {
        0
    };
    let after = before.checked_add(by).ok_or(Failure::OVERFLOW)?;
    replace(data, key, old.as_ref(), after.to_string().into())?;
    // As in Redis, also for DECR.
    data.notify('$', "incrby", key);
    Ok(Reply::Integer(after))
}

pub(super) fn incr(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    add(data, &args[1], 1)
}

pub(super) fn decr(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    add(data, &args[1], -1)
}

pub(super) fn incrby(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    add(data, &args[1], integer(&args[2])?)
}

pub(super) fn decrby(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let by = integer(&args[2])?
        .checked_neg()
        .ok_or_else(|| Failure::client("ERR decrement would overflow"))?;
    add(data, &args[1], by)
}

pub(super) fn incrbyfloat(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (old, text) = string_entry(data, &args[1])?;
    let by = float(&args[2])?;
    let before = if old.is_some() {
        parse_f64(&text).ok_or(Failure::NOT_A_FLOAT)?
    } else {
        0.0
    };
    let after = before + by;
    if !after.is_finite() {
        return Err(Failure::client(
            "ERR increment would produce NaN or Infinity",
        ));
    }
    let text = Bytes::from(decimal(after));
    replace(data, &args[1], old.as_ref(), text.clone())?;
    data.notify('$', "incrbyfloat", &args[1]);
    Ok(Reply::Bulk(text))
}

/// Formats a number without an exponent, as INCRBYFLOAT answers.
pub(super) fn decimal(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    if number.abs() >= 1e-17 {
        format!("{number}")
    } else {
        format_f64(number)
    }
}

/// Most cells of the table that LCS fills.
const LCS_CELLS_MAX: usize = 1 << 28;

pub(super) fn lcs(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (mut len, mut idx, mut with_len, mut shortest) = (false, false, false, 0);
    let mut options = Options::new(&args[3..]);
    while let Some(option) = options.next() {
        if is(option, "LEN") {
            len = true;
        } else if is(option, "IDX") {
            idx = true;
        } else if is(option, "WITHMATCHLEN") {
            with_len = true;
        } else if is(option, "MINMATCHLEN") {
            shortest = integer(options.value()?)?.max(0) as usize;
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    if len && idx {
        return Err(Failure::client(
            "ERR If you want both the length and indexes, please just use IDX.",
        ));
    }
    let wrong = |failure| match failure {
        Failure::Client(_) => Failure::client("ERR The specified keys must contain string values"),
        other => other,
    };
    let a = data.string(&args[1]).map_err(wrong)?.unwrap_or_default();
    let b = data.string(&args[2]).map_err(wrong)?.unwrap_or_default();
    if (a.len() + 1).saturating_mul(b.len() + 1) > LCS_CELLS_MAX {
        return Err(Failure::client(
            "ERR Insufficient memory, transient memory for LCS exceeds its limit",
        ));
    }
    let (common, matches) = longest_common(&a, &b);
    if len {
        return Ok(Reply::Integer(common.len() as i64));
    }
    if !idx {
        return Ok(Reply::Bulk(common.into()));
    }
    let range = |start: usize, len: usize| {
        Reply::Array(vec![
            Reply::Integer(start as i64),
            Reply::Integer((start + len - 1) as i64),
        ])
    };
    let listed = matches
        .into_iter()
        .filter(|(_, _, len)| *len >= shortest)
        .map(|(at_a, at_b, len)| {
            let mut item = vec![range(at_a, len), range(at_b, len)];
            if with_len {
                item.push(Reply::Integer(len as i64));
            }
            Reply::Array(item)
        })
        .collect();
    Ok(Reply::Map(vec![
        (Reply::copied("matches"), Reply::Array(listed)),
        (Reply::copied("len"), Reply::Integer(common.len() as i64)),
    ]))
}

/// Returns the longest common subsequence, and its runs from the last to the first: start in `a`,
/// start in `b`, length.
fn longest_common(a: &[u8], b: &[u8]) -> (Vec<u8>, Vec<(usize, usize, usize)>) {
    let width = b.len() + 1;
    let mut lengths = vec![0u32; (a.len() + 1) * width];
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            lengths[i * width + j] = if a[i - 1] == b[j - 1] {
                lengths[(i - 1) * width + j - 1] + 1
            } else {
                lengths[(i - 1) * width + j].max(lengths[i * width + j - 1])
            };
        }
    }
    let (mut i, mut j) = (a.len(), b.len());
    let mut common = Vec::new();
    let mut runs: Vec<(usize, usize, usize)> = Vec::new();
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            i -= 1;
            j -= 1;
            common.push(a[i]);
            match runs.last_mut() {
                Some((at_a, at_b, len)) if *at_a == i + 1 && *at_b == j + 1 => {
                    (*at_a, *at_b, *len) = (i, j, *len + 1);
                }
                _ => runs.push((i, j, 1)),
            }
        } else if lengths[(i - 1) * width + j] > lengths[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    common.reverse();
    (common, runs)
}
