//! Removing the first or last members of sorted sets, and waiting for members.

use bytes::Bytes;

use super::super::arguments::{natural, timeout};
use super::super::sets::numbered_keys;
use super::{Scored, SortedSet, open, remove_all};
use crate::failure::{Failure, Interest, Result};
use crate::keyspace::{Collection, Data, Entry, Kind};
use crate::resp::Reply;

fn pop(
    data: &mut Data,
    key: &[u8],
    entry: &Entry,
    set: Collection,
    from_end: bool,
    count: u64,
) -> Result<Vec<Scored>> {
    let count = count.min(set.len);
    if count == 0 {
        return Ok(Vec::new());
    }
    let (start, stop) = if from_end {
        (set.len - count, set.len - 1)
    } else {
        (0, count - 1)
    };
    let mut found = SortedSet {
        data: &mut *data,
        set,
    }
    .by_rank(start, stop)?;
    if from_end {
        found.reverse();
    }
    remove_all(
        data,
        key,
        entry,
        set,
        &found,
        if from_end { "zpopmax" } else { "zpopmin" },
    )?;
    Ok(found)
}

fn pop_command(data: &mut Data, args: &[Bytes], from_end: bool) -> Result<Reply> {
    if args.len() > 3 {
        return Err(Failure::SYNTAX);
    }
    let count = args
        .get(2)
        .map(|count| natural(count, "ERR value is out of range, must be positive"))
        .transpose()?;
    let popped = match open(data, &args[1])? {
        None => Vec::new(),
        Some((entry, set)) => pop(
            data,
            &args[1],
            &entry,
            set,
            from_end,
            count.unwrap_or(1) as u64,
        )?,
    };
    // Without a count the answer is flat in both versions of the protocol.
    Ok(match count {
        Some(_) => Reply::Scored(popped),
        None => Reply::Array(
            popped
                .into_iter()
                .flat_map(|(member, score)| [Reply::Bulk(member), Reply::Double(score)])
                .collect(),
        ),
    })
}

pub(in crate::command) fn zpopmin(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    pop_command(data, args, false)
}

pub(in crate::command) fn zpopmax(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    pop_command(data, args, true)
}

fn blocking_pop(data: &mut Data, args: &[Bytes], from_end: bool) -> Result<Reply> {
    let timeout = timeout(&args[args.len() - 1])?;
    let keys = &args[1..args.len() - 1];
    for key in keys {
        if let Some((entry, set)) = open(data, key)?
            && let Some((member, score)) = pop(data, key, &entry, set, from_end, 1)?.pop()
        {
            return Ok(Reply::Array(vec![
                Reply::Bulk(key.clone()),
                Reply::Bulk(member),
                Reply::Double(score),
            ]));
        }
    }
    Err(Failure::wait(
        keys,
        Interest::Elements(Kind::SortedSet),
        timeout,
        Reply::NullArray,
    ))
}

pub(in crate::command) fn bzpopmin(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    blocking_pop(data, args, false)
}

pub(in crate::command) fn bzpopmax(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    blocking_pop(data, args, true)
}

/// Pops from the first set that is not empty; the keys are the other result if all are.
fn pop_first(data: &mut Data, args: &[Bytes]) -> Result<std::result::Result<Reply, Vec<Bytes>>> {
    let (keys, mut options) = numbered_keys(args, Failure::SYNTAX)?;
    let from_end = if options.take("MAX") {
        true
    } else if options.take("MIN") {
        false
    } else {
        return Err(Failure::SYNTAX);
    };
    let count = options.last_count()?;
    for key in keys {
        if let Some((entry, set)) = open(data, key)? {
            let popped = pop(data, key, &entry, set, from_end, count)?
                .into_iter()
                .map(|(member, score)| {
                    Reply::Array(vec![Reply::Bulk(member), Reply::Double(score)])
                })
                .collect();
            return Ok(Ok(Reply::Array(vec![
                Reply::Bulk(key.clone()),
                Reply::Array(popped),
            ])));
        }
    }
    Ok(Err(keys.to_vec()))
}

pub(in crate::command) fn zmpop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(pop_first(data, &args[1..])?.unwrap_or(Reply::NullArray))
}

pub(in crate::command) fn bzmpop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let timeout = timeout(&args[1])?;
    pop_first(data, &args[2..])?.map_err(|keys| {
        Failure::wait(
            &keys,
            Interest::Elements(Kind::SortedSet),
            timeout,
            Reply::NullArray,
        )
    })
}
