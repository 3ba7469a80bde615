//! Hashes. The element of a field is `identity, hash of the field, field`, with the value.

use bytes::Bytes;

use super::arguments::{check_random_count, float, integer, is, wrong_arity};
use crate::failure::{Failure, Result};
use crate::keyspace::{Collection, Data, Kind};
use crate::rdb::Field;
use crate::resp::Reply;
use crate::resp::number::{parse_f64, parse_i64};

/// Returns all fields.
pub(super) fn export(data: &Data, hash: &Collection) -> Result<Vec<Field>> {
    let fields = live(data, hash)?.into_iter().map(|(name, value)| {
        Ok(Field {
            expires: data.field_time(hash, &name)?,
            name,
            value,
        })
    });
    fields.collect()
}

/// Builds a hash that no key has yet; `None` if a field is repeated.
pub(super) fn import(data: &mut Data, fields: &[Field]) -> Result<Option<Collection>> {
    let mut hash = data.new_collection(Kind::Hash);
    for field in fields {
        let at = data.member_at(&hash, &field.name);
        if data.element(&at)?.is_some() {
            return Ok(None);
        }
        data.put_element(&at, &field.value)?;
        data.set_field_time(&mut hash, &field.name, field.expires)?;
        hash.len += 1;
    }
    Ok(Some(hash))
}

/// Returns the value of a field, unless its time has passed.
pub(super) fn value_in(data: &Data, hash: &Collection, field: &[u8]) -> Result<Option<Bytes>> {
    let found = data.element(&data.member_at(hash, field))?;
    let time = match found {
        Some(_) => data.field_time(hash, field)?,
        None => None,
    };
    Ok(found.filter(|_| time.is_none_or(|time| time > data.now)))
}

/// Returns the value of a field.
pub(super) fn value(data: &mut Data, key: &[u8], field: &[u8]) -> Result<Option<Bytes>> {
    match data.hash(key)? {
        None => Ok(None),
        Some((_, hash)) => value_in(data, &hash, field),
    }
}

/// Sets fields; returns how many are new. Fields that exist keep their times or lose them.
pub(super) fn set_fields(
    data: &mut Data,
    key: &[u8],
    pairs: &[Bytes],
    keeps_times: bool,
    event: &'static str,
) -> Result<i64> {
    let (old, mut hash) = match data.hash(key)? {
        Some((entry, hash)) => (Some(entry), hash),
        None => (None, data.new_collection(Kind::Hash)),
    };
    let mut added = 0;
    for pair in pairs.chunks_exact(2) {
        let at = data.member_at(&hash, &pair[0]);
        if data.element(&at)?.is_none() {
            added += 1;
        } else if !keeps_times {
            data.set_field_time(&mut hash, &pair[0], None)?;
        }
        data.put_element(&at, &pair[1])?;
    }
    hash.len += added as u64;
    data.put_collection(key, old.as_ref(), hash)?;
    data.notify('h', event, key);
    Ok(added)
}

pub(super) fn hset(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    if !args.len().is_multiple_of(2) {
        return Err(wrong_arity("hset"));
    }
    Ok(Reply::Integer(set_fields(
        data,
        &args[1],
        &args[2..],
        false,
        "hset",
    )?))
}

pub(super) fn hmset(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    if !args.len().is_multiple_of(2) {
        return Err(wrong_arity("hmset"));
    }
    set_fields(data, &args[1], &args[2..], false, "hset")?;
    Ok(Reply::OK)
}

pub(super) fn hsetnx(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    if value(data, &args[1], &args[2])?.is_some() {
        return Ok(Reply::Integer(0));
    }
    set_fields(data, &args[1], &args[2..], false, "hset")?;
    Ok(Reply::Integer(1))
}

pub(super) fn hget(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(Reply::optional(value(data, &args[1], &args[2])?))
}

pub(super) fn hmget(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let found = data.hash(&args[1])?;
    let mut values = Vec::with_capacity(args.len() - 2);
    for field in &args[2..] {
        values.push(match &found {
            None => Reply::Null,
            Some((_, hash)) => Reply::optional(value_in(data, hash, field)?),
        });
    }
    Ok(Reply::Array(values))
}

pub(super) fn hdel(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let Some((entry, mut hash)) = data.hash(&args[1])? else {
        return Ok(Reply::Integer(0));
    };
    let mut removed = 0;
    for field in &args[2..] {
        removed += u64::from(data.remove_field(&mut hash, field)?);
    }
    if removed > 0 {
        data.notify('h', "hdel", &args[1]);
        data.put_collection(&args[1], Some(&entry), hash)?;
    }
    Ok(Reply::Integer(removed as i64))
}

pub(super) fn hlen(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let Some((_, hash)) = data.hash(&args[1])? else {
        return Ok(Reply::Integer(0));
    };
    let expired = data.expired_fields(&hash, usize::MAX)?.len() as u64;
    Ok(Reply::Integer(hash.len.saturating_sub(expired) as i64))
}

pub(super) fn hexists(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(Reply::Integer(i64::from(
        value(data, &args[1], &args[2])?.is_some(),
    )))
}

pub(super) fn hstrlen(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let len = value(data, &args[1], &args[2])?.map_or(0, |value| value.len());
    Ok(Reply::Integer(len as i64))
}

/// Returns the fields whose time has not passed, with their values.
fn live(data: &Data, hash: &Collection) -> Result<Vec<(Bytes, Bytes)>> {
    let expired = data.expired_fields(hash, usize::MAX)?;
    let mut fields = data.scan_elements(&hash.id.to_be_bytes(), 0, usize::MAX)?.1;
    if !expired.is_empty() {
        fields.retain(|(name, _)| !expired.contains(name));
    }
    Ok(fields)
}

/// Returns all fields with their values.
fn all(data: &mut Data, key: &[u8]) -> Result<Vec<(Bytes, Bytes)>> {
    match data.hash(key)? {
        None => Ok(Vec::new()),
        Some((_, hash)) => live(data, &hash),
    }
}

pub(super) fn hgetall(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let pairs = all(data, &args[1])?;
    Ok(Reply::Map(
        pairs
            .into_iter()
            .map(|(field, value)| (Reply::Bulk(field), Reply::Bulk(value)))
            .collect(),
    ))
}

pub(super) fn hkeys(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(Reply::bulks(
        all(data, &args[1])?.into_iter().map(|(field, _)| field),
    ))
}

pub(super) fn hvals(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(Reply::bulks(
        all(data, &args[1])?.into_iter().map(|(_, value)| value),
    ))
}

pub(super) fn hincrby(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let by = integer(&args[3])?;
    let before = match value(data, &args[1], &args[2])? {
        None => 0,
        Some(text) => {
            parse_i64(&text).ok_or_else(|| Failure::client("ERR hash value is not an integer"))?
        }
    };
    let after = before.checked_add(by).ok_or(Failure::OVERFLOW)?;
    set_fields(
        data,
        &args[1],
        &[args[2].clone(), after.to_string().into()],
        true,
        "hincrby",
    )?;
    Ok(Reply::Integer(after))
}

pub(super) fn hincrbyfloat(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let by = float(&args[3])?;
    if by.is_infinite() {
        return Err(Failure::client("ERR value is NaN or Infinity"));
    }
    let before = match value(data, &args[1], &args[2])? {
        None => 0.0,
        Some(text) => {
            parse_f64(&text).ok_or_else(|| Failure::client("ERR hash value is not a float"))?
        }
    };
    let after = before + by;
    if !after.is_finite() {
        return Err(Failure::client(
            "ERR increment would produce NaN or Infinity",
        ));
    }
    let text = Bytes::from(super::strings::decimal(after));
    set_fields(
        data,
        &args[1],
        &[args[2].clone(), text.clone()],
        true,
        "hincrbyfloat",
    )?;
    Ok(Reply::Bulk(text))
}

pub(super) fn hrandfield(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let count = args.get(2).map(|count| integer(count)).transpose()?;
    let with_values = match args.get(3) {
        None => false,
        Some(word) if is(word, "WITHVALUES") && args.len() == 4 => true,
        Some(_) => return Err(Failure::SYNTAX),
    };
    let found = data.hash(&args[1])?;
    let has_expired = match &found {
        Some((_, hash)) => !data.expired_fields(hash, 1)?.is_empty(),
        None => false,
    };
    let Some(count) = count else {
        let Some((_, hash)) = found else {
            return Ok(Reply::Null);
        };
        if has_expired {
            let field = fastrand::choice(live(data, &hash)?);
            return Ok(Reply::optional(field.map(|(field, _)| field)));
        }
        let field = data.sample_element(&hash.id.to_be_bytes(), hash.len)?;
        return Ok(Reply::optional(field.map(|(field, _)| field)));
    };
    let Some((_, hash)) = found else {
        return Ok(Reply::Array(Vec::new()));
    };
    let chosen = if has_expired {
        choose_live(live(data, &hash)?, count)?
    } else {
        super::sets::choose(data, &hash.id.to_be_bytes(), hash.len, count)?
    };
    Ok(Reply::Array(if with_values {
        chosen
            .into_iter()
            .map(|(field, value)| Reply::Array(vec![Reply::Bulk(field), Reply::Bulk(value)]))
            .collect()
    } else {
        chosen
            .into_iter()
            .map(|(field, _)| Reply::Bulk(field))
            .collect()
    }))
}

/// Returns `count` different fields in random order, or `-count` that may repeat.
fn choose_live(mut fields: Vec<(Bytes, Bytes)>, count: i64) -> Result<Vec<(Bytes, Bytes)>> {
    check_random_count(count)?;
    if count < 0 {
        let repeated = (0..count.unsigned_abs()).map_while(|_| fastrand::choice(&fields).cloned());
        return Ok(repeated.collect());
    }
    fastrand::shuffle(&mut fields);
    fields.truncate(usize::try_from(count).unwrap_or(usize::MAX));
    Ok(fields)
}
