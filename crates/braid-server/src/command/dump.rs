//! DUMP and RESTORE: a value as bytes that another database, or Redis, can restore.

use bytes::Bytes;

use super::arguments::{Options, integer, is};
use super::{hashes, lists, sets, sorted_sets, streams};
use crate::failure::{Failure, Result};
use crate::keyspace::{Body, Collection, Data, Entry, Kind};
use crate::rdb::{self, Malformed, Value};
use crate::resp::Reply;

fn bad_format() -> Failure {
    Failure::client("ERR Bad data format")
}

fn value(data: &mut Data, entry: &Entry) -> Result<Value> {
    let collection = match &entry.body {
        Body::String(text) => return Ok(Value::String(text.clone())),
        Body::Collection(collection) => collection,
    };
    Ok(match collection.kind {
        Kind::String => Value::String(Bytes::new()),
        Kind::Hash => Value::Hash(hashes::export(data, collection)?),
        Kind::List => Value::List(lists::all(data, collection)?),
        Kind::Set => Value::Set(sets::all(data, collection)?),
        Kind::SortedSet => Value::SortedSet(sorted_sets::all(data, collection)?),
        Kind::Stream => Value::Stream(streams::export(data, collection)?),
    })
}

/// Builds a value that no key has yet.
fn build(data: &mut Data, value: Value) -> Result<Body> {
    let is_stream = matches!(value, Value::Stream(_));
    // A repeated name breaks the format.
    let built: Option<Collection> = match value {
        Value::String(text) => return Ok(Body::String(text)),
        Value::List(elements) => Some(lists::build(data, &elements)?),
        Value::Set(members) => sets::build(data, &members)?,
        Value::Hash(fields) => hashes::import(data, &fields)?,
        Value::SortedSet(members) => sorted_sets::build(data, &members)?,
        Value::Stream(stream) => Some(streams::import(data, &stream)?),
    };
    match built {
        Some(built) if built.len > 0 || is_stream => Ok(Body::Collection(built)),
        _ => Err(bad_format()),
    }
}

pub(super) fn dump(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let Some(entry) = data.entry(&args[1])? else {
        return Ok(Reply::Null);
    };
    let value = value(data, &entry)?;
    // The time of every field has passed.
    if matches!(&value, Value::Hash(fields) if fields.is_empty()) {
        return Ok(Reply::Null);
    }
    Ok(Reply::Bulk(rdb::encode(&value)))
}

pub(super) fn restore(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (mut replaces, mut is_absolute) = (false, false);
    let mut options = Options::new(&args[4..]);
    while let Some(option) = options.next() {
        if is(option, "REPLACE") {
            replaces = true;
        } else if is(option, "ABSTTL") {
            is_absolute = true;
        } else if is(option, "IDLETIME") {
            // Nothing is evicted, so nothing depends on it.
            if integer(options.value()?)? < 0 {
                return Err(Failure::client("ERR Invalid IDLETIME value, must be >= 0"));
            }
        } else if is(option, "FREQ") {
            if !(0..=255).contains(&integer(options.value()?)?) {
                return Err(Failure::client(
                    "ERR Invalid FREQ value, must be >= 0 and <= 255",
                ));
            }
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    let old = data.entry(&args[1])?;
    if old.is_some() && !replaces {
        return Err(Failure::client("BUSYKEY Target key name already exists."));
    }
    let ttl = u64::try_from(integer(&args[2])?)
        .map_err(|_| Failure::client("ERR Invalid TTL value, must be >= 0"))?;
    let expires = match ttl {
        0 => None,
        ttl if is_absolute => Some(ttl),
        ttl => Some(data.now.saturating_add(ttl)),
    };
    let value = rdb::decode(&args[3]).map_err(|error| match error {
        Malformed::Footer => Failure::client("ERR DUMP payload version or checksum are wrong"),
        Malformed::Value => bad_format(),
    })?;
    if let Some(old) = &old {
        data.delete(&args[1], old)?;
    }
    if expires.is_some_and(|expires| expires <= data.now) {
        if old.is_some() {
            data.notify('g', "del", &args[1]);
        }
        return Ok(Reply::OK);
    }
    let body = build(data, value)?;
    data.put(&args[1], None, body, expires)?;
    if let Some(entry) = data.entry(&args[1])? {
        super::keys::signal(data, &args[1], entry.kind());
    }
    data.notify('g', "restore", &args[1]);
    Ok(Reply::OK)
}
