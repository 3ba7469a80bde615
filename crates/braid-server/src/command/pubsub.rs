//! Publishing and subscribing.

use bytes::Bytes;

use super::arguments::{help, unknown_subcommand};
use crate::channels::Topic;
use crate::failure::Result;
use crate::resp::Reply;
use crate::session::Session;
use crate::shared::Shared;

/// Names of the confirmations for a kind of subscription.
fn words(topic: Topic) -> (&'static str, &'static str) {
    match topic {
        Topic::Channel => ("subscribe", "unsubscribe"),
        Topic::Pattern => ("psubscribe", "punsubscribe"),
        Topic::Shard => ("ssubscribe", "sunsubscribe"),
    }
}

fn confirmation(session: &Session, topic: Topic, word: &'static str, name: Reply) -> Reply {
    let count = session.subscribed(topic == Topic::Shard);
    Reply::Push(vec![
        Reply::copied(word),
        name,
        Reply::Integer(count as i64),
    ])
}

fn subscribe(shared: &Shared, session: &mut Session, names: &[Bytes], topic: Topic) -> Reply {
    let replies = names
        .iter()
        .map(|name| {
            // It outlives the request, whose memory is shared.
            let name = Bytes::copy_from_slice(name);
            if session.subscriptions.insert((topic, name.clone())) {
                shared
                    .channels
                    .subscribe(topic, &name, session.id, &session.mailbox);
            }
            confirmation(session, topic, words(topic).0, Reply::Bulk(name))
        })
        .collect();
    Reply::Several(replies)
}

fn unsubscribe(shared: &Shared, session: &mut Session, names: &[Bytes], topic: Topic) -> Reply {
    let names: Vec<Bytes> = if names.is_empty() {
        let all = session.subscriptions.iter();
        all.filter(|(kind, _)| *kind == topic)
            .map(|(_, name)| name.clone())
            .collect()
    } else {
        names.to_vec()
    };
    let word = words(topic).1;
    if names.is_empty() {
        return confirmation(session, topic, word, Reply::Null);
    }
    let replies = names
        .into_iter()
        .map(|name| {
            if session.subscriptions.remove(&(topic, name.clone())) {
                shared.channels.unsubscribe(topic, &name, session.id);
            }
            confirmation(session, topic, word, Reply::Bulk(name))
        })
        .collect();
    Reply::Several(replies)
}

pub(super) fn subscribe_channels(
    shared: &Shared,
    session: &mut Session,
    args: &[Bytes],
) -> Result<Reply> {
    Ok(subscribe(shared, session, &args[1..], Topic::Channel))
}

pub(super) fn subscribe_patterns(
    shared: &Shared,
    session: &mut Session,
    args: &[Bytes],
) -> Result<Reply> {
    Ok(subscribe(shared, session, &args[1..], Topic::Pattern))
}

pub(super) fn subscribe_shards(
    shared: &Shared,
    session: &mut Session,
    args: &[Bytes],
) -> Result<Reply> {
    Ok(subscribe(shared, session, &args[1..], Topic::Shard))
}

pub(super) fn unsubscribe_channels(
    shared: &Shared,
    session: &mut Session,
    args: &[Bytes],
) -> Result<Reply> {
    Ok(unsubscribe(shared, session, &args[1..], Topic::Channel))
}

pub(super) fn unsubscribe_patterns(
    shared: &Shared,
    session: &mut Session,
    args: &[Bytes],
) -> Result<Reply> {
    Ok(unsubscribe(shared, session, &args[1..], Topic::Pattern))
}

pub(super) fn unsubscribe_shards(
    shared: &Shared,
    session: &mut Session,
    args: &[Bytes],
) -> Result<Reply> {
    Ok(unsubscribe(shared, session, &args[1..], Topic::Shard))
}

pub(super) fn publish(shared: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let receivers = shared.channels.publish(Topic::Channel, &args[1], &args[2]);
    Ok(Reply::Integer(receivers as i64))
}

pub(super) fn spublish(shared: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let receivers = shared.channels.publish(Topic::Shard, &args[1], &args[2]);
    Ok(Reply::Integer(receivers as i64))
}

pub(super) fn pubsub(shared: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let subcommand = args[1].to_ascii_lowercase();
    let channels = &shared.channels;
    // Alternating in both versions of the protocol, as in Redis.
    let numbers = |topic: Topic| {
        let pairs = args[2..].iter().flat_map(|name| {
            let count = channels.subscribers(topic, name) as i64;
            [Reply::Bulk(name.clone()), Reply::Integer(count)]
        });
        Reply::Array(pairs.collect())
    };
    match (&subcommand[..], args.len()) {
        (b"channels", 2 | 3) => Ok(Reply::bulks(channels.names(Topic::Channel, args.get(2)))),
        (b"shardchannels", 2 | 3) => Ok(Reply::bulks(channels.names(Topic::Shard, args.get(2)))),
        (b"numsub", _) => Ok(numbers(Topic::Channel)),
        (b"shardnumsub", _) => Ok(numbers(Topic::Shard)),
        (b"numpat", 2) => Ok(Reply::Integer(
            channels.names(Topic::Pattern, None).len() as i64
        )),
        (b"help", 2) => Ok(help(&[
            "PUBSUB <subcommand> [<arg> ...]. Subcommands are:",
            "CHANNELS [<pattern>], NUMPAT, NUMSUB [<channel> ...], SHARDCHANNELS [<pattern>], SHARDNUMSUB [<channel> ...], HELP",
        ])),
        _ => Err(unknown_subcommand("pubsub", &args[1])),
    }
}
