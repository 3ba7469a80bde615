//! The commands that manage groups of consumers and show what is pending in them.

use bytes::Bytes;

use super::super::arguments::{Options, help, integer, is, unknown_subcommand};
use super::groups::{Group, OpenGroup, Pending, no_group};
use super::id::{self, Id};
use super::{PENDING, Stream, parse_ids};
use crate::failure::{Failure, Result};
use crate::keyspace::{Arrival, Data, read_u128};
use crate::resp::Reply;

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

/// Parses `[MKSTREAM] [ENTRIESREAD count]` of CREATE, and the latter of SETID.
fn position_options(args: &[Bytes]) -> Result<(bool, Option<u64>)> {
    let (mut makes, mut read) = (false, None);
    let unknown = || unknown_subcommand("xgroup", &args[1]);
    let mut options = Options::new(&args[5..]);
    while let Some(option) = options.next() {
        if is(option, "MKSTREAM") && is(&args[1], "CREATE") {
            makes = true;
        } else if is(option, "ENTRIESREAD") {
            let number = integer(options.value().map_err(|_| unknown())?)?;
            if number < -1 {
                return Err(Failure::client(
                    "ERR value for ENTRIESREAD must be positive or -1",
                ));
            }
            read = u64::try_from(number).ok();
        } else {
            return Err(unknown());
        }
    }
    Ok((makes, read))
}

fn create(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (makes, read) = position_options(args)?;
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
    let group = OpenGroup::new(Group {
        name: args[3].clone(),
        number: stream.data.keyspace.new_identity(),
        last,
        read,
        pending: 0,
    });
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
    let (name, _) = [
        ("CREATE", 5..),
        ("SETID", 5..),
        ("DESTROY", 4..),
        ("CREATECONSUMER", 5..),
        ("DELCONSUMER", 5..),
    ]
    .into_iter()
    .find(|(name, arity)| is(subcommand, name) && arity.contains(&args.len()))
    .ok_or_else(|| unknown_subcommand("xgroup", subcommand))?;
    if name == "CREATE" {
        return create(data, args);
    }
    let (_, read) = if name == "SETID" {
        position_options(args)?
    } else {
        (false, None)
    };
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
    let Some(mut stream) = Stream::open(data, &args[1])? else {
        return Ok(Reply::Integer(0));
    };
    let Some(mut group) = OpenGroup::load(&stream, &args[2])? else {
        return Ok(Reply::Integer(0));
    };
    let ids = parse_ids(&args[3..])?;
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
