//! Times of expiration of fields of hashes.

use bytes::Bytes;

use super::arguments::{Options, integer, natural, wrong_arity};
use super::hashes::{set_fields, value_in};
use super::keys::{ExpiryUnit, absolute, deadline};
use crate::failure::{Failure, Result};
use crate::keyspace::{Collection, Data};
use crate::resp::Reply;

/// Parses `FIELDS count field...`; each field is `width` arguments.
fn fields<'a>(options: &mut Options<'a>, width: usize) -> Result<&'a [Bytes]> {
    if !options.take("FIELDS") {
        return Err(Failure::client(
            "ERR Mandatory argument FIELDS is missing or not at the right position",
        ));
    }
    const COUNT: &str = "ERR Parameter `numFields` should be greater than 0";
    let count = natural(options.value()?, COUNT)?;
    let rest = options.rest();
    if count == 0 {
        return Err(Failure::client(COUNT));
    }
    if Some(rest.len()) != count.checked_mul(width) {
        return Err(Failure::client(
            "ERR The `numfields` parameter must match the number of arguments",
        ));
    }
    Ok(rest)
}

/// When a time is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Always,
    IfNone,
    IfAny,
    IfGreater,
    IfLess,
}

impl Condition {
    fn take(options: &mut Options<'_>) -> Condition {
        [
            ("NX", Condition::IfNone),
            ("XX", Condition::IfAny),
            ("GT", Condition::IfGreater),
            ("LT", Condition::IfLess),
        ]
        .into_iter()
        .find_map(|(word, condition)| options.take(word).then_some(condition))
        .unwrap_or(Condition::Always)
    }

    /// A field without a time lives longer than any other.
    fn holds(self, before: Option<u64>, after: u64) -> bool {
        match self {
            Condition::Always => true,
            Condition::IfNone => before.is_none(),
            Condition::IfAny => before.is_some(),
            Condition::IfGreater => before.is_some_and(|before| after > before),
            Condition::IfLess => before.is_none_or(|before| after < before),
        }
    }
}

/// Runs `change` on a hash, and stores what it leaves if it says that it has changed something.
fn changing<R>(
    data: &mut Data,
    key: &Bytes,
    change: impl FnOnce(&mut Data, &mut Collection) -> Result<(R, bool)>,
) -> Result<Option<R>> {
    let Some((entry, mut hash)) = data.hash(key)? else {
        return Ok(None);
    };
    let before = data.earliest_field_time(&hash)?;
    let (result, has_changed) = change(data, &mut hash)?;
    if has_changed {
        if data.earliest_field_time(&hash)? != before {
            data.register_field_times(key, &hash)?;
        }
        data.put_collection(key, Some(&entry), hash)?;
    }
    Ok(Some(result))
}

fn integers(numbers: impl IntoIterator<Item = i64>) -> Reply {
    Reply::Array(numbers.into_iter().map(Reply::Integer).collect())
}

fn expire_with(data: &mut Data, args: &[Bytes], unit: ExpiryUnit, name: &str) -> Result<Reply> {
    let time = integer(&args[2])?;
    if time < 0 {
        return Err(Failure::client("ERR invalid expire time, must be >= 0"));
    }
    let time = absolute(data.now, time, unit)
        .ok_or_else(|| Failure::client(format!("ERR invalid expire time in '{name}' command")))?;
    let mut options = Options::new(&args[3..]);
    let condition = Condition::take(&mut options);
    let names = fields(&mut options, 1)?;
    let (mut set, mut deleted) = (false, false);
    let answers = changing(data, &args[1], |data, hash| {
        let mut answers = Vec::with_capacity(names.len());
        for name in names {
            let exists = value_in(data, hash, name)?.is_some();
            answers.push(if !exists {
                -2
            } else if !condition.holds(data.field_time(hash, name)?, time) {
                0
            } else if time <= data.now {
                data.remove_field(hash, name)?;
                deleted = true;
                2
            } else {
                data.set_field_time(hash, name, Some(time))?;
                set = true;
                1
            });
        }
        Ok((answers, set || deleted))
    })?;
    if set {
        data.notify('h', "hexpire", &args[1]);
    }
    if deleted {
        data.notify('h', "hdel", &args[1]);
    }
    Ok(integers(answers.unwrap_or_else(|| vec![-2; names.len()])))
}

pub(super) fn hexpire(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    expire_with(data, args, ExpiryUnit::Seconds, "hexpire")
}

pub(super) fn hpexpire(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    expire_with(data, args, ExpiryUnit::Milliseconds, "hpexpire")
}

pub(super) fn hexpireat(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    expire_with(data, args, ExpiryUnit::UnixSeconds, "hexpireat")
}

pub(super) fn hpexpireat(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    expire_with(data, args, ExpiryUnit::UnixMilliseconds, "hpexpireat")
}

/// Answers with a time of each field computed from expiration and present; -2 without the field, -1
/// without a time.
fn times(data: &mut Data, args: &[Bytes], time: fn(u64, u64) -> u64) -> Result<Reply> {
    let names = fields(&mut Options::new(&args[2..]), 1)?;
    let Some((_, hash)) = data.hash(&args[1])? else {
        return Ok(integers(vec![-2; names.len()]));
    };
    let mut answers = Vec::with_capacity(names.len());
    for name in names {
        answers.push(match value_in(data, &hash, name)? {
            None => -2,
            Some(_) => data
                .field_time(&hash, name)?
                .map_or(-1, |expires| time(expires, data.now) as i64),
        });
    }
    Ok(integers(answers))
}

pub(super) fn httl(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    times(data, args, |expires, now| {
        expires.saturating_sub(now).div_ceil(1000)
    })
}

pub(super) fn hpttl(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    times(data, args, |expires, now| expires.saturating_sub(now))
}

pub(super) fn hexpiretime(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    times(data, args, |expires, _| expires.div_ceil(1000))
}

pub(super) fn hpexpiretime(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    times(data, args, |expires, _| expires)
}

pub(super) fn hpersist(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let names = fields(&mut Options::new(&args[2..]), 1)?;
    let answers = changing(data, &args[1], |data, hash| {
        let mut answers = Vec::with_capacity(names.len());
        for name in names {
            answers.push(if value_in(data, hash, name)?.is_none() {
                -2
            } else if data.field_time(hash, name)?.is_none() {
                -1
            } else {
                data.set_field_time(hash, name, None)?;
                1
            });
        }
        let has_changed = answers.contains(&1);
        Ok((answers, has_changed))
    })?;
    let answers = answers.unwrap_or_else(|| vec![-2; names.len()]);
    if answers.contains(&1) {
        data.notify('h', "hpersist", &args[1]);
    }
    Ok(integers(answers))
}

/// What HGETEX and HSETEX do with the times of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewTime {
    Keep,
    Remove,
    At(u64),
}

/// Parses an option that says what becomes of the times; `None` if it is another one.
fn new_time(
    data: &Data,
    options: &mut Options<'_>,
    without: (&str, NewTime),
    command: &str,
) -> Result<Option<NewTime>> {
    if options.take(without.0) {
        return Ok(Some(without.1));
    }
    let Some(unit) = options.rest().first().and_then(|word| ExpiryUnit::of(word)) else {
        return Ok(None);
    };
    options.next();
    let time = deadline(data.now, options.value()?, unit, command)?;
    Ok(Some(NewTime::At(time)))
}

pub(super) fn hgetex(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let mut options = Options::new(&args[2..]);
    let persist = ("PERSIST", NewTime::Remove);
    let time = new_time(data, &mut options, persist, "hgetex")?.unwrap_or(NewTime::Keep);
    let names = fields(&mut options, 1)?;
    let (mut deleted, mut set) = (false, false);
    let values = changing(data, &args[1], |data, hash| {
        let mut values = Vec::with_capacity(names.len());
        for name in names {
            let value = value_in(data, hash, name)?;
            if value.is_some() {
                match time {
                    NewTime::Keep => {}
                    NewTime::At(time) if time <= data.now => {
                        data.remove_field(hash, name)?;
                        deleted = true;
                    }
                    NewTime::At(time) => {
                        data.set_field_time(hash, name, Some(time))?;
                        set = true;
                    }
                    NewTime::Remove => {
                        data.set_field_time(hash, name, None)?;
                        set = true;
                    }
                }
            }
            values.push(Reply::optional(value));
        }
        Ok((values, set || deleted))
    })?;
    if set {
        let event = if time == NewTime::Remove {
            "hpersist"
        } else {
            "hexpire"
        };
        data.notify('h', event, &args[1]);
    }
    if deleted {
        data.notify('h', "hdel", &args[1]);
    }
    let none = || names.iter().map(|_| Reply::Null).collect();
    Ok(Reply::Array(values.unwrap_or_else(none)))
}

pub(super) fn hgetdel(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let names = fields(&mut Options::new(&args[2..]), 1)?;
    let mut deleted = false;
    let values = changing(data, &args[1], |data, hash| {
        let mut values = Vec::with_capacity(names.len());
        for name in names {
            values.push(Reply::optional(value_in(data, hash, name)?));
            deleted |= data.remove_field(hash, name)?;
        }
        Ok((values, deleted))
    })?;
    if deleted {
        data.notify('h', "hdel", &args[1]);
    }
    let none = || names.iter().map(|_| Reply::Null).collect();
    Ok(Reply::Array(values.unwrap_or_else(none)))
}

pub(super) fn hsetex(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let mut options = Options::new(&args[2..]);
    let (mut only_new, mut only_old, mut time) = (false, false, None);
    loop {
        if options.take("FNX") {
            only_new = true;
        } else if options.take("FXX") {
            only_old = true;
        } else {
            let keep = ("KEEPTTL", NewTime::Keep);
            match new_time(data, &mut options, keep, "hsetex")? {
                None => break,
                Some(_) if time.is_some() => return Err(Failure::SYNTAX),
                other => time = other,
            }
        }
    }
    if only_new && only_old {
        return Err(Failure::SYNTAX);
    }
    if options.rest().is_empty() {
        return Err(wrong_arity("hsetex"));
    }
    let pairs = fields(&mut options, 2)?;
    let hash = data.hash(&args[1])?.map(|(_, hash)| hash);
    for pair in pairs.chunks_exact(2) {
        let exists = match &hash {
            None => false,
            Some(hash) => data.element(&data.member_at(hash, &pair[0]))?.is_some(),
        };
        if (only_new && exists) || (only_old && !exists) {
            return Ok(Reply::Integer(0));
        }
    }
    let keeps_times = time == Some(NewTime::Keep);
    set_fields(data, &args[1], pairs, keeps_times, "hset")?;
    if let Some(NewTime::At(time)) = time {
        changing(data, &args[1], |data, hash| {
            for pair in pairs.chunks_exact(2) {
                if time <= data.now {
                    data.remove_field(hash, &pair[0])?;
                } else {
                    data.set_field_time(hash, &pair[0], Some(time))?;
                }
            }
            Ok(((), true))
        })?;
        data.notify('h', "hexpire", &args[1]);
    }
    Ok(Reply::Integer(1))
}
