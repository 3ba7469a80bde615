//! Keys of any type: existence, expiration, names, databases.

use bytes::Bytes;

use super::arguments::{Options, help, integer, is, unknown_subcommand};
use crate::failure::{Failure, Result};
use crate::glob::matches;
use crate::keyspace::{Body, Collection, Data, Discarded, Entry, Kind};
use crate::resp::Reply;
use crate::resp::number::parse_i64;

/// How a command gives a time of expiration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpiryUnit {
    Seconds,
    Milliseconds,
    UnixSeconds,
    UnixMilliseconds,
}

impl ExpiryUnit {
    /// Returns the unit that an option of SET or GETEX names.
    pub(super) fn of(option: &[u8]) -> Option<ExpiryUnit> {
        [
            ("EX", ExpiryUnit::Seconds),
            ("PX", ExpiryUnit::Milliseconds),
            ("EXAT", ExpiryUnit::UnixSeconds),
            ("PXAT", ExpiryUnit::UnixMilliseconds),
        ]
        .into_iter()
        .find_map(|(name, unit)| is(option, name).then_some(unit))
    }
}

/// Returns milliseconds since 1970; 0 for every time before.
pub(super) fn absolute(now: u64, time: i64, unit: ExpiryUnit) -> Option<u64> {
    let ms = match unit {
        ExpiryUnit::Seconds | ExpiryUnit::UnixSeconds => time.checked_mul(1000)?,
        ExpiryUnit::Milliseconds | ExpiryUnit::UnixMilliseconds => time,
    };
    let ms = match unit {
        ExpiryUnit::Seconds | ExpiryUnit::Milliseconds => {
            ms.checked_add(i64::try_from(now).ok()?)?
        }
        ExpiryUnit::UnixSeconds | ExpiryUnit::UnixMilliseconds => ms,
    };
    Some(u64::try_from(ms).unwrap_or(0))
}

fn invalid_expire(command: &str) -> Failure {
    Failure::client(format!("ERR invalid expire time in '{command}' command"))
}

/// Parses a time of expiration that has to be positive.
pub(super) fn deadline(now: u64, argument: &[u8], unit: ExpiryUnit, command: &str) -> Result<u64> {
    let time = integer(argument)?;
    if time <= 0 {
        return Err(invalid_expire(command));
    }
    absolute(now, time, unit).ok_or_else(|| invalid_expire(command))
}

pub(super) fn del(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let mut deleted = 0;
    for key in &args[1..] {
        if let Some(entry) = data.header(key)? {
            data.delete(key, &entry)?;
            data.notify('g', "del", key);
            deleted += 1;
        }
    }
    Ok(Reply::Integer(deleted))
}

pub(super) fn exists(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let mut found = 0;
    for key in &args[1..] {
        found += i64::from(data.header(key)?.is_some());
    }
    Ok(Reply::Integer(found))
}

pub(super) fn type_(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(Reply::Status(
        data.header(&args[1])?
            .map_or("none", |entry| entry.kind().name()),
    ))
}

fn expire_with(data: &mut Data, args: &[Bytes], unit: ExpiryUnit, name: &str) -> Result<Reply> {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for option in &args[3..] {
        if is(option, "NX") {
            nx = true;
        } else if is(option, "XX") {
            xx = true;
        } else if is(option, "GT") {
            gt = true;
        } else if is(option, "LT") {
            lt = true;
        } else {
            let shown = String::from_utf8_lossy(option).into_owned();
            return Err(Failure::client(format!("ERR Unsupported option {shown}")));
        }
    }
    if nx && (xx || gt || lt) {
        return Err(Failure::client(
            "ERR NX and XX, GT or LT options at the same time are not compatible",
        ));
    }
    if gt && lt {
        return Err(Failure::client(
            "ERR GT and LT options at the same time are not compatible",
        ));
    }
    let expires =
        absolute(data.now, integer(&args[2])?, unit).ok_or_else(|| invalid_expire(name))?;
    let key = &args[1];
    let Some(entry) = data.entry(key)? else {
        return Ok(Reply::Integer(0));
    };
    // A key without expiration lives longer than any other.
    let refused = (nx && entry.expires.is_some())
        || (xx && entry.expires.is_none())
        || (gt && entry.expires.is_none_or(|before| expires <= before))
        || (lt && entry.expires.is_some_and(|before| expires >= before));
    if refused {
        return Ok(Reply::Integer(0));
    }
    if expires <= data.now {
        data.delete(key, &entry)?;
        data.notify('g', "del", key);
    } else {
        data.put(key, Some(&entry), entry.body.clone(), Some(expires))?;
        data.notify('g', "expire", key);
    }
    Ok(Reply::Integer(1))
}

pub(super) fn expire(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    expire_with(data, args, ExpiryUnit::Seconds, "expire")
}

pub(super) fn pexpire(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    expire_with(data, args, ExpiryUnit::Milliseconds, "pexpire")
}

pub(super) fn expireat(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    expire_with(data, args, ExpiryUnit::UnixSeconds, "expireat")
}

pub(super) fn pexpireat(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    expire_with(data, args, ExpiryUnit::UnixMilliseconds, "pexpireat")
}

/// Answers with a time computed from expiration and present; -2 without a key, -1 without expiration.
fn expiration(data: &mut Data, key: &[u8], time: fn(u64, u64) -> u64) -> Result<Reply> {
    Ok(Reply::Integer(match data.header(key)? {
        None => -2,
        Some(entry) => entry
            .expires
            .map_or(-1, |expires| time(expires, data.now) as i64),
    }))
}

pub(super) fn ttl(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    expiration(data, &args[1], |expires, now| {
        (expires.saturating_sub(now) + 500) / 1000
    })
}

pub(super) fn pttl(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    expiration(data, &args[1], |expires, now| expires.saturating_sub(now))
}

pub(super) fn expiretime(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    expiration(data, &args[1], |expires, _| expires / 1000)
}

pub(super) fn pexpiretime(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    expiration(data, &args[1], |expires, _| expires)
}

pub(super) fn persist(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    match data.entry(&args[1])? {
        Some(entry) if entry.expires.is_some() => {
            data.put(&args[1], Some(&entry), entry.body.clone(), None)?;
            data.notify('g', "persist", &args[1]);
            Ok(Reply::Integer(1))
        }
        _ => Ok(Reply::Integer(0)),
    }
}

/// Moves a key's value to another name.
fn rename_to(data: &mut Data, from: &Bytes, to: &Bytes, only_new: bool) -> Result<bool> {
    let entry = data.entry(from)?.ok_or(Failure::NO_SUCH_KEY)?;
    if from == to {
        return Ok(!only_new);
    }
    let target = data.entry(to)?;
    if target.is_some() && only_new {
        return Ok(false);
    }
    let kind = entry.kind();
    data.delete_entry(from, &entry)?;
    data.put(to, target.as_ref(), entry.body, entry.expires)?;
    data.notify('g', "rename_from", from);
    data.notify('g', "rename_to", to);
    signal(data, to, kind);
    Ok(true)
}

/// Tells waiting clients about a key that came with its elements.
pub(super) fn signal(data: &mut Data, key: &[u8], kind: Kind) {
    if matches!(kind, Kind::List | Kind::SortedSet | Kind::Stream) {
        data.pushed(key, kind, usize::MAX);
    }
}

pub(super) fn rename(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    rename_to(data, &args[1], &args[2], false)?;
    Ok(Reply::OK)
}

pub(super) fn renamenx(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(Reply::Integer(i64::from(rename_to(
        data, &args[1], &args[2], true,
    )?)))
}

/// Returns a value that belongs to another key: a collection's elements are copied.
fn copy_body(data: &mut Data, body: &Body) -> Result<Body> {
    let Body::Collection(from) = body else {
        return Ok(body.clone());
    };
    let to = Collection {
        id: data.keyspace.new_identity(),
        ..*from
    };
    let table = data.elements();
    let elements: Vec<_> = data
        .view
        .prefix(&table, &from.id.to_be_bytes())?
        .collect::<braid::Result<_>>()?;
    for (at, value) in elements {
        let mut copied = to.id.to_be_bytes().to_vec();
        copied.extend_from_slice(&at[8..]);
        data.put_element(&copied, &value)?;
    }
    Ok(Body::Collection(to))
}

pub(super) fn copy(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let source = data.database;
    let (mut target, mut replaces) = (source, false);
    let mut options = Options::new(&args[3..]);
    while let Some(option) = options.next() {
        if is(option, "REPLACE") {
            replaces = true;
        } else if is(option, "DB") {
            target = database(options.value()?)?;
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    if source == target && args[1] == args[2] {
        return Err(Failure::client(
            "ERR source and destination objects are the same",
        ));
    }
    let Some(entry) = data.entry(&args[1])? else {
        return Ok(Reply::Integer(0));
    };
    data.select(target)?;
    let old = data.entry(&args[2])?;
    if old.is_some() && !replaces {
        data.select(source)?;
        return Ok(Reply::Integer(0));
    }
    let body = copy_body(data, &entry.body)?;
    data.put(&args[2], old.as_ref(), body, entry.expires)?;
    data.notify('g', "copy_to", &args[2]);
    signal(data, &args[2], entry.kind());
    data.select(source)?;
    Ok(Reply::Integer(1))
}

pub(super) fn move_(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let source = data.database;
    let target = database(&args[2])?;
    if source == target {
        return Err(Failure::client(
            "ERR source and destination objects are the same",
        ));
    }
    let Some(entry) = data.entry(&args[1])? else {
        return Ok(Reply::Integer(0));
    };
    data.select(target)?;
    let exists = data.entry(&args[1])?.is_some();
    if !exists {
        data.put(&args[1], None, entry.body.clone(), entry.expires)?;
        signal(data, &args[1], entry.kind());
    }
    data.select(source)?;
    if !exists {
        data.delete_entry(&args[1], &entry)?;
        data.notify('g', "move_from", &args[1]);
        data.select(target)?;
        data.notify('g', "move_to", &args[1]);
        data.select(source)?;
    }
    Ok(Reply::Integer(i64::from(!exists)))
}

/// Number of databases.
pub(crate) const DATABASES: u32 = 16;

/// Parses the number of a database.
pub(super) fn database(argument: &[u8]) -> Result<u32> {
    let number = parse_i64(argument)
        .ok_or_else(|| Failure::client("ERR value is not an integer or out of range"))?;
    u32::try_from(number)
        .ok()
        .filter(|number| *number < DATABASES)
        .ok_or_else(|| Failure::client("ERR DB index is out of range"))
}

pub(super) fn dbsize(data: &mut Data, _: &[Bytes]) -> Result<Reply> {
    Ok(Reply::Integer(data.len()? as i64))
}

pub(super) fn randomkey(data: &mut Data, _: &[Bytes]) -> Result<Reply> {
    Ok(Reply::optional(data.random_key()?))
}

pub(super) fn keys(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (_, found) = data.scan_keys(0, usize::MAX)?;
    let names = found.into_iter().map(|(key, _)| key);
    Ok(Reply::bulks(names.filter(|key| matches(&args[1], key))))
}

/// Gives a database a new namespace, and leaves the keys of the old one to the background (S2).
fn flush(data: &mut Data, number: u32) -> Result<()> {
    let old = data.namespace_of(number)?;
    let new = data.keyspace.new_identity();
    data.set_namespace(number, new)?;
    data.discard(old, Discarded::Namespace)
}

fn flush_mode(args: &[Bytes]) -> Result<()> {
    match args.get(1) {
        None => Ok(()),
        Some(mode) if args.len() == 2 && (is(mode, "ASYNC") || is(mode, "SYNC")) => Ok(()),
        Some(_) => Err(Failure::SYNTAX),
    }
}

pub(super) fn flushdb(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    flush_mode(args)?;
    let number = data.database;
    flush(data, number)?;
    Ok(Reply::OK)
}

pub(super) fn flushall(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    flush_mode(args)?;
    for number in 0..DATABASES {
        flush(data, number)?;
    }
    Ok(Reply::OK)
}

pub(super) fn swapdb(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let parse = |argument: &[u8], which: &str| {
        parse_i64(argument)
            .ok_or_else(|| Failure::client(format!("ERR invalid {which} DB index")))
            .and_then(|_| database(argument))
    };
    let (a, b) = (parse(&args[1], "first")?, parse(&args[2], "second")?);
    let (of_a, of_b) = (data.namespace_of(a)?, data.namespace_of(b)?);
    data.set_namespace(a, of_b)?;
    data.set_namespace(b, of_a)?;
    Ok(Reply::OK)
}

pub(super) fn object(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let subcommand = &args[1];
    if is(subcommand, "HELP") {
        return Ok(help(&[
            "OBJECT <subcommand> <key>. Subcommands are:",
            "ENCODING, FREQ, IDLETIME, REFCOUNT, HELP",
        ]));
    }
    if is(subcommand, "ENCODING") {
        return Ok(match data.entry(&args[2])? {
            None => Reply::Null,
            Some(entry) => Reply::copied(encoding(&entry)),
        });
    }
    if is(subcommand, "REFCOUNT") || is(subcommand, "IDLETIME") {
        let answer = i64::from(is(subcommand, "REFCOUNT"));
        return Ok(data
            .entry(&args[2])?
            .map_or(Reply::Null, |_| Reply::Integer(answer)));
    }
    if is(subcommand, "FREQ") {
        if data.entry(&args[2])?.is_none() {
            return Ok(Reply::Null);
        }
        return Err(Failure::client(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.",
        ));
    }
    Err(unknown_subcommand("object", subcommand))
}

/// Returns the encoding that Redis would have chosen for a value of this size. Braid has one
/// encoding per type; some clients and test suites expect these names.
fn encoding(entry: &Entry) -> &'static str {
    match &entry.body {
        Body::String(text) if parse_i64(text).is_some() => "int",
        Body::String(text) if text.len() <= 44 => "embstr",
        Body::String(_) => "raw",
        Body::Collection(collection) => {
            let is_small = collection.len <= 128;
            match collection.kind {
                Kind::Hash | Kind::Set if is_small => "listpack",
                Kind::Hash | Kind::Set => "hashtable",
                Kind::List if is_small => "listpack",
                Kind::List => "quicklist",
                Kind::SortedSet if is_small => "listpack",
                Kind::SortedSet => "skiplist",
                Kind::Stream => "stream",
                Kind::String => "raw",
            }
        }
    }
}
