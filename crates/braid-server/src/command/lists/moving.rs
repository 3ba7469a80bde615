//! Moves between lists, pops from the first of several, and commands that wait for an element.

use std::time::Duration;

use bytes::Bytes;

use super::super::arguments::timeout;
use super::super::sets::numbered_keys;
use super::{End, element, pop_some, push};
use crate::failure::{Failure, Interest, Result};
use crate::keyspace::{Data, Kind};
use crate::resp::Reply;

/// Moves an element between ends of lists; `None` if the source is empty.
fn move_between(
    data: &mut Data,
    from: &Bytes,
    to: &Bytes,
    out: End,
    into: End,
) -> Result<Option<Bytes>> {
    let Some((entry, list)) = data.collection(from, Kind::List)? else {
        return Ok(None);
    };
    if from != to {
        data.collection(to, Kind::List)?;
    } else if list.len == 1 {
        return Ok(Some(element(data, &list, 0)?));
    }
    let events = data.effects.events.len();
    let popped = pop_some(data, from, &entry, list, out, 1)?.pop();
    if let Some(value) = &popped {
        push(data, to, std::slice::from_ref(value), into, false)?;
    }
    // Redis tells first where the element is, then where it was.
    if let Some(events @ [_, ..]) = data.effects.events.get_mut(events..) {
        events.rotate_right(1);
    }
    Ok(popped)
}

pub(in crate::command) fn lmove(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (out, into) = (End::parse(&args[3])?, End::parse(&args[4])?);
    Ok(Reply::optional(move_between(
        data, &args[1], &args[2], out, into,
    )?))
}

pub(in crate::command) fn rpoplpush(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(Reply::optional(move_between(
        data,
        &args[1],
        &args[2],
        End::Right,
        End::Left,
    )?))
}

fn blocking_pop(data: &mut Data, args: &[Bytes], end: End) -> Result<Reply> {
    let timeout = timeout(&args[args.len() - 1])?;
    let keys = &args[1..args.len() - 1];
    for key in keys {
        if let Some((entry, list)) = data.collection(key, Kind::List)? {
            let popped = pop_some(data, key, &entry, list, end, 1)?.pop();
            return Ok(Reply::Array(vec![
                Reply::Bulk(key.clone()),
                Reply::optional(popped),
            ]));
        }
    }
    Err(Failure::wait(
        keys,
        Interest::Elements(Kind::List),
        timeout,
        Reply::NullArray,
    ))
}

pub(in crate::command) fn blpop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    blocking_pop(data, args, End::Left)
}

pub(in crate::command) fn brpop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    blocking_pop(data, args, End::Right)
}

/// Lets a client wait for one element.
fn wait_for_one(keys: &[Bytes], timeout: Option<Duration>) -> Failure {
    Failure::wait(keys, Interest::Elements(Kind::List), timeout, Reply::Null)
}

pub(in crate::command) fn blmove(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (out, into) = (End::parse(&args[3])?, End::parse(&args[4])?);
    let timeout = timeout(&args[5])?;
    match move_between(data, &args[1], &args[2], out, into)? {
        Some(value) => Ok(Reply::Bulk(value)),
        None => Err(wait_for_one(&args[1..2], timeout)),
    }
}

pub(in crate::command) fn brpoplpush(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let timeout = timeout(&args[3])?;
    match move_between(data, &args[1], &args[2], End::Right, End::Left)? {
        Some(value) => Ok(Reply::Bulk(value)),
        None => Err(wait_for_one(&args[1..2], timeout)),
    }
}

/// Pops from the first list that is not empty; the keys are the other result if all are.
fn pop_first(data: &mut Data, args: &[Bytes]) -> Result<std::result::Result<Reply, Vec<Bytes>>> {
    let (keys, mut options) = numbered_keys(args, Failure::SYNTAX)?;
    let end = End::parse(options.value()?)?;
    let count = options.last_count()?;
    for key in keys {
        if let Some((entry, list)) = data.collection(key, Kind::List)? {
            let popped = pop_some(data, key, &entry, list, end, count)?;
            return Ok(Ok(Reply::Array(vec![
                Reply::Bulk(key.clone()),
                Reply::bulks(popped),
            ])));
        }
    }
    Ok(Err(keys.to_vec()))
}

pub(in crate::command) fn lmpop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(pop_first(data, &args[1..])?.unwrap_or(Reply::NullArray))
}

pub(in crate::command) fn blmpop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let timeout = timeout(&args[1])?;
    pop_first(data, &args[2..])?.map_err(|keys| {
        Failure::wait(
            &keys,
            Interest::Elements(Kind::List),
            timeout,
            Reply::NullArray,
        )
    })
}
