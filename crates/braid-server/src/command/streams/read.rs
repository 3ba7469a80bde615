//! XREAD and XREADGROUP.

use std::time::Duration;

use bytes::Bytes;

use super::super::arguments::{Options, integer, is, timeout_ms};
use super::groups::{OpenGroup, Pending, no_group};
use super::id::{Id, invalid};
use super::info::added_up_to;
use super::{Item, Stream, item_reply, items_reply};
use crate::failure::{Failure, Interest, Result};
use crate::keyspace::{Arrival, Data};
use crate::resp::Reply;

/// Parsed arguments of XREAD or XREADGROUP.
struct Request<'a> {
    /// Group and consumer.
    group: Option<(&'a Bytes, &'a Bytes)>,
    count: usize,
    /// Time to wait; `Some(None)` waits forever.
    block: Option<Option<Duration>>,
    /// Whether delivered entries count as acknowledged.
    no_ack: bool,
    keys: &'a [Bytes],
    ids: &'a [Bytes],
}

impl<'a> Request<'a> {
    fn parse(args: &'a [Bytes]) -> Result<Request<'a>> {
        let of_group = is(&args[0], "XREADGROUP");
        let mut request = Request {
            group: None,
            count: usize::MAX,
            block: None,
            no_ack: false,
            keys: &[],
            ids: &[],
        };
        let mut options = Options::new(&args[1..]);
        while let Some(option) = options.next() {
            if is(option, "COUNT") {
                let count = usize::try_from(integer(options.value()?)?).unwrap_or(0);
                // Zero has no limit, as Redis has it.
                request.count = if count == 0 { usize::MAX } else { count };
            } else if is(option, "BLOCK") {
                request.block = Some(timeout_ms(options.value()?)?);
            } else if is(option, "GROUP") {
                if !of_group {
                    return Err(Failure::client(
                        "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
                request.group = Some((options.value()?, options.value()?));
            } else if is(option, "NOACK") {
                if !of_group {
                    return Err(Failure::client(
                        "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
                request.no_ack = true;
            } else if is(option, "STREAMS") {
                let rest = options.rest();
                if rest.is_empty() || !rest.len().is_multiple_of(2) {
                    let (name, symbol) = if of_group {
                        ("xreadgroup", '>')
                    } else {
                        ("xread", '$')
                    };
                    return Err(Failure::client(format!(
                        "ERR Unbalanced '{name}' list of streams: for each stream key an ID or '{symbol}' must be specified."
                    )));
                }
                (request.keys, request.ids) = rest.split_at(rest.len() / 2);
                break;
            } else {
                return Err(Failure::SYNTAX);
            }
        }
        if request.keys.is_empty() {
            return Err(Failure::SYNTAX);
        }
        if of_group && request.group.is_none() {
            return Err(Failure::client("ERR Missing GROUP option for XREADGROUP"));
        }
        Ok(request)
    }
}

/// Returns the keys of a request, for COMMAND GETKEYS.
pub(in crate::command) fn keys_of(args: &[Bytes]) -> Vec<Bytes> {
    Request::parse(args).map_or_else(|_| Vec::new(), |request| request.keys.to_vec())
}

pub(in crate::command) fn xread(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let request = Request::parse(args)?;
    let mut replies = Vec::new();
    let mut positions = Vec::with_capacity(request.ids.len());
    for (key, id) in request.keys.iter().zip(request.ids) {
        if id == ">" {
            return Err(Failure::client(
                "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
            ));
        }
        let stream = Stream::open(data, key)?;
        let last = stream.as_ref().map_or(Id::MIN, Stream::last);
        let after = if id == "$" { last } else { Id::strict(id)? };
        // The client waits for entries after the present end, not after the end it finds later.
        positions.push(Bytes::from(after.to_string()));
        if let (Some(stream), Some(start)) = (stream, after.next()) {
            let items = stream.entries(start, Id::MAX, request.count, false)?;
            if !items.is_empty() {
                replies.push((Reply::Bulk(key.clone()), items_reply(items)));
            }
        }
    }
    if !replies.is_empty() {
        return Ok(Reply::Pairs(replies));
    }
    let Some(timeout) = request.block else {
        return Ok(Reply::NullArray);
    };
    let mut again = args[..args.len() - positions.len()].to_vec();
    again.extend(positions);
    Err(
        Failure::wait(request.keys, Interest::Entries, timeout, Reply::NullArray)
            .running_again(again),
    )
}

pub(in crate::command) fn xreadgroup(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let request = Request::parse(args)?;
    let Some((group_name, consumer)) = request.group else {
        return Err(Failure::SYNTAX);
    };
    let mut replies = Vec::new();
    for (key, id) in request.keys.iter().zip(request.ids) {
        let after = match &id[..] {
            b">" => None,
            b"$" => {
                return Err(Failure::client(
                    "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty result set.",
                ));
            }
            id => Some(Id::strict(id).map_err(|_| invalid())?),
        };
        let no_group = || no_group(key, group_name, " in XREADGROUP with GROUP option");
        let mut stream = Stream::open(data, key)?.ok_or_else(no_group)?;
        let mut group = OpenGroup::load(&stream, group_name)?.ok_or_else(no_group)?;
        let now = stream.data.now;
        // Nothing is written, and so nothing committed, unless the consumer is new or gets something.
        let mut changes = group.consumer(&stream, consumer)?.is_none();
        group.consumer_or_new(&mut stream, consumer)?.seen = now;
        let reply = match after {
            Some(after) => Some(history(
                &mut stream,
                &mut group,
                consumer,
                after,
                request.count,
            )?),
            None => {
                let items = deliver(&mut stream, &mut group, consumer, &request)?;
                changes |= !items.is_empty();
                (!items.is_empty()).then(|| items_reply(items))
            }
        };
        let has_more = group.group.last < stream.last() && stream.head.len > 0;
        changes |= matches!(&reply, Some(Reply::Array(entries)) if !entries.is_empty());
        if changes {
            group.save(&mut stream)?;
        }
        if let Some(reply) = reply {
            replies.push((Reply::Bulk(key.clone()), reply));
            if has_more {
                data.effects.arrivals.push(Arrival::Left {
                    key: (data.database, key.clone()),
                    group: group_name.clone(),
                });
            }
        }
    }
    if !replies.is_empty() {
        return Ok(Reply::Pairs(replies));
    }
    let Some(timeout) = request.block else {
        return Ok(Reply::NullArray);
    };
    Err(Failure::wait(
        request.keys,
        // It waits with the client, and the memory of a request is shared.
        Interest::Group(Bytes::copy_from_slice(group_name)),
        timeout,
        Reply::NullArray,
    ))
}

/// Delivers entries that the group has not got yet.
fn deliver(
    stream: &mut Stream<'_>,
    group: &mut OpenGroup,
    consumer: &Bytes,
    request: &Request<'_>,
) -> Result<Vec<Item>> {
    let Some(start) = group.group.last.next() else {
        return Ok(Vec::new());
    };
    let items = stream.entries(start, Id::MAX, request.count, false)?;
    let Some((last, _)) = items.last() else {
        return Ok(items);
    };
    let now = stream.data.now;
    group.consumer_or_new(stream, consumer)?.active = now;
    let deleted = Id(stream.head.stream.deleted);
    group.group.read = match group.group.read {
        // Only entries without gaps between them can be counted.
        Some(read) if stream.head.stream.deleted == 0 || deleted < items[0].0 => {
            Some(read + items.len() as u64)
        }
        _ => added_up_to(stream, *last)?,
    };
    group.group.last = *last;
    if request.no_ack {
        return Ok(items);
    }
    let new = Pending {
        time: now,
        count: 1,
        consumer: consumer.clone(),
    };
    for (id, _) in &items {
        // XGROUP SETID may have moved the group back.
        let old = group.pending(stream, *id)?;
        group.assign(stream, *id, old.as_ref(), &new)?;
    }
    Ok(items)
}

/// Returns entries that are pending for a consumer, after an id.
fn history(
    stream: &mut Stream<'_>,
    group: &mut OpenGroup,
    consumer: &Bytes,
    after: Id,
    count: usize,
) -> Result<Reply> {
    let Some(start) = after.next() else {
        return Ok(Reply::Array(Vec::new()));
    };
    let ids = group.pending_of(stream, consumer, start, Id::MAX, count)?;
    let mut replies = Vec::with_capacity(ids.len());
    for id in ids {
        replies.push(match stream.entry(id)? {
            None => Reply::Array(vec![id.reply(), Reply::NullArray]),
            Some(fields) => {
                if let Some(old) = group.pending(stream, id)? {
                    let new = Pending {
                        time: stream.data.now,
                        count: old.count + 1,
                        consumer: old.consumer.clone(),
                    };
                    group.assign(stream, id, Some(&old), &new)?;
                }
                item_reply((id, fields))
            }
        });
    }
    Ok(Reply::Array(replies))
}
