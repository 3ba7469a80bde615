//! XINFO.

use bytes::Bytes;

use super::super::arguments::{Options, help, integer, is, unknown_subcommand};
use super::groups::{Consumer, OpenGroup, groups};
use super::id::Id;
use super::{Stream, item_reply, items_reply};
use crate::failure::{Failure, Result};
use crate::keyspace::Data;
use crate::resp::Reply;

/// Returns how many entries were ever added up to an id; `None` if deleted entries make that
/// unknown.
pub(super) fn added_up_to(stream: &Stream<'_>, id: Id) -> Result<Option<u64>> {
    let head = &stream.head.stream;
    if head.added == 0 {
        return Ok(Some(0));
    }
    if id.0 == head.last || (stream.head.len == 0 && id.0 < head.last) {
        return Ok(Some(head.added));
    }
    if id.0 > head.last || id.0 < head.deleted {
        return Ok(None);
    }
    let Some((first, _)) = stream.outermost(false)? else {
        return Ok(None);
    };
    // Nothing was deleted after the first entry.
    let is_whole = head.deleted < first.0;
    let before = head.added.saturating_sub(stream.head.len);
    Ok(match id.cmp(&first) {
        std::cmp::Ordering::Less if is_whole => Some(before),
        std::cmp::Ordering::Equal if is_whole => Some(before + 1),
        _ => None,
    })
}

/// Returns how many entries a group has not got yet. As in Redis, that is negative if XGROUP was told of
/// more entries than there were.
fn lag(stream: &Stream<'_>, group: &OpenGroup) -> Result<Option<i64>> {
    let head = &stream.head.stream;
    let mut has_gaps =
        stream.head.len > 0 && head.deleted > 0 && group.group.last.0 <= head.deleted;
    if has_gaps && let Some((first, _)) = stream.outermost(false)? {
        has_gaps = first.0 <= head.deleted;
    }
    let read = match group.group.read {
        _ if head.added == 0 => Some(0),
        Some(read) if !has_gaps => Some(read),
        _ => added_up_to(stream, group.group.last)?,
    };
    Ok(read.map(|read| (head.added as i64).wrapping_sub(read as i64)))
}

fn count_or_null(count: Option<i64>) -> Reply {
    count.map_or(Reply::Null, Reply::Integer)
}

fn fields<const N: usize>(fields: [(&str, Reply); N]) -> Vec<(Reply, Reply)> {
    fields
        .into_iter()
        .map(|(name, value)| (Reply::copied(name), value))
        .collect()
}

/// Milliseconds since a time; -1 for never.
fn since(now: u64, time: u64) -> Reply {
    Reply::Integer(if time == 0 {
        -1
    } else {
        now.saturating_sub(time) as i64
    })
}

pub(in crate::command) fn xinfo(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let subcommand = &args[1];
    if is(subcommand, "HELP") && args.len() == 2 {
        return Ok(help(&[
            "XINFO <subcommand> [<arg> ...]. Subcommands are:",
            "CONSUMERS <key> <group>, GROUPS <key>, STREAM <key> [FULL [COUNT <count>]], HELP",
        ]));
    }
    let name = [("STREAM", 3..=6), ("GROUPS", 3..=3), ("CONSUMERS", 4..=4)]
        .into_iter()
        .find(|(name, arity)| is(subcommand, name) && arity.contains(&args.len()))
        .ok_or_else(|| unknown_subcommand("xinfo", subcommand))?
        .0;
    let now = data.now;
    let stream = Stream::open(data, &args[2])?.ok_or(Failure::NO_SUCH_KEY)?;
    match name {
        "STREAM" => info_stream(&stream, &args[3..]),
        "GROUPS" => {
            let mut replies = Vec::new();
            for group in groups(&stream)? {
                replies.push(Reply::Map(fields([
                    ("name", Reply::Bulk(group.group.name.clone())),
                    (
                        "consumers",
                        Reply::Integer(group.consumers(&stream)?.len() as i64),
                    ),
                    ("pending", Reply::Integer(group.group.pending as i64)),
                    ("last-delivered-id", group.group.last.reply()),
                    (
                        "entries-read",
                        count_or_null(group.group.read.map(|read| read as i64)),
                    ),
                    ("lag", count_or_null(lag(&stream, &group)?)),
                ])));
            }
            Ok(Reply::Array(replies))
        }
        _ => {
            let Some(group) = OpenGroup::load(&stream, &args[3])? else {
                let (key, group) = (
                    String::from_utf8_lossy(&args[2]),
                    String::from_utf8_lossy(&args[3]),
                );
                return Err(Failure::client(format!(
                    "NOGROUP No such consumer group '{group}' for key name '{key}'"
                )));
            };
            let shown = group.consumers(&stream)?.into_iter().map(|consumer| {
                Reply::Map(fields([
                    ("name", Reply::Bulk(consumer.name)),
                    ("pending", Reply::Integer(consumer.pending as i64)),
                    ("idle", since(now, consumer.seen)),
                    ("inactive", since(now, consumer.active)),
                ]))
            });
            Ok(Reply::Array(shown.collect()))
        }
    }
}

fn info_stream(stream: &Stream<'_>, args: &[Bytes]) -> Result<Reply> {
    let mut options = Options::new(args);
    let is_full = options.take("FULL");
    let mut count = 10;
    if is_full && options.take("COUNT") {
        count = usize::try_from(integer(options.value()?)?).unwrap_or(10);
        if count == 0 {
            count = usize::MAX;
        }
    }
    options
        .end()
        .map_err(|_| unknown_subcommand("xinfo", b"STREAM"))?;
    let head = &stream.head.stream;
    let first = stream.outermost(false)?;
    let first_id = first.as_ref().map_or(Id::MIN, |(id, _)| *id);
    let mut shown = fields([
        ("length", Reply::Integer(stream.head.len as i64)),
        // Braid keeps each entry by itself; the numbers are those of one tree and its pages' entries.
        ("radix-tree-keys", Reply::Integer(stream.head.len as i64)),
        (
            "radix-tree-nodes",
            Reply::Integer(stream.head.len as i64 + 1),
        ),
        ("last-generated-id", stream.last().reply()),
        ("max-deleted-entry-id", Id(head.deleted).reply()),
        ("entries-added", Reply::Integer(head.added as i64)),
        ("recorded-first-entry-id", first_id.reply()),
    ]);
    if !is_full {
        let or_null = |item: Option<super::Item>| item.map_or(Reply::Null, item_reply);
        shown.extend(fields([
            ("groups", Reply::Integer(stream.head.extra)),
            ("first-entry", or_null(first)),
            ("last-entry", or_null(stream.outermost(true)?)),
        ]));
        return Ok(Reply::Map(shown));
    }
    let entries = stream.entries(Id::MIN, Id::MAX, count, false)?;
    let mut all = Vec::new();
    for mut group in groups(stream)? {
        all.push(full_group(stream, &mut group, count)?);
    }
    shown.extend(fields([
        ("entries", items_reply(entries)),
        ("groups", Reply::Array(all)),
    ]));
    Ok(Reply::Map(shown))
}

fn full_group(stream: &Stream<'_>, group: &mut OpenGroup, count: usize) -> Result<Reply> {
    let pending = group
        .pending_range(stream, Id::MIN, Id::MAX, count)?
        .into_iter()
        .map(|(id, pending)| {
            Reply::Array(vec![
                id.reply(),
                Reply::Bulk(pending.consumer),
                Reply::Integer(pending.time as i64),
                Reply::Integer(pending.count as i64),
            ])
        })
        .collect();
    let mut consumers = Vec::new();
    for consumer in group.consumers(stream)? {
        consumers.push(full_consumer(stream, group, consumer, count)?);
    }
    Ok(Reply::Map(fields([
        ("name", Reply::Bulk(group.group.name.clone())),
        ("last-delivered-id", group.group.last.reply()),
        (
            "entries-read",
            count_or_null(group.group.read.map(|read| read as i64)),
        ),
        ("lag", count_or_null(lag(stream, group)?)),
        ("pel-count", Reply::Integer(group.group.pending as i64)),
        ("pel", Reply::Array(pending)),
        ("consumers", Reply::Array(consumers)),
    ])))
}

fn full_consumer(
    stream: &Stream<'_>,
    group: &mut OpenGroup,
    consumer: Consumer,
    count: usize,
) -> Result<Reply> {
    let mut pending = Vec::new();
    for id in group.pending_of(stream, &consumer.name, Id::MIN, Id::MAX, count)? {
        if let Some(found) = group.pending(stream, id)? {
            pending.push(Reply::Array(vec![
                id.reply(),
                Reply::Integer(found.time as i64),
                Reply::Integer(found.count as i64),
            ]));
        }
    }
    let active = match consumer.active {
        0 => -1,
        time => time as i64,
    };
    Ok(Reply::Map(fields([
        ("name", Reply::Bulk(consumer.name)),
        ("seen-time", Reply::Integer(consumer.seen as i64)),
        ("active-time", Reply::Integer(active)),
        ("pel-count", Reply::Integer(consumer.pending as i64)),
        ("pel", Reply::Array(pending)),
    ])))
}
