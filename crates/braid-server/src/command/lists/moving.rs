//! Moves between lists, pops from the first of several, and commands that wait for an element.

use std::time::Duration;

use bytes::Bytes;

use super::super::arguments::{Options, timeout};
use super::super::pops::{Pops, blocking_mpop, blocking_pop, mpop};
use super::{End, element, pop_some, push};
use crate::failure::{Failure, Interest, Result};
use crate::keyspace::{Collection, Data, Entry, Kind};
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

/// Pops of lists.
struct Lists;

impl Pops for Lists {
    const KIND: Kind = Kind::List;
    type End = End;
    type Element = [Reply; 1];

    fn end(options: &mut Options<'_>) -> Result<End> {
        End::parse(options.value()?)
    }

    fn pop(
        data: &mut Data,
        key: &Bytes,
        (entry, list): (&Entry, Collection),
        end: End,
        count: u64,
    ) -> Result<Vec<[Reply; 1]>> {
        let popped = pop_some(data, key, entry, list, end, count)?;
        Ok(popped
            .into_iter()
            .map(|value| [Reply::Bulk(value)])
            .collect())
    }
}

pub(in crate::command) fn blpop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    blocking_pop::<Lists>(data, args, End::Left)
}

pub(in crate::command) fn brpop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    blocking_pop::<Lists>(data, args, End::Right)
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

pub(in crate::command) fn lmpop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    mpop::<Lists>(data, args)
}

pub(in crate::command) fn blmpop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    blocking_mpop::<Lists>(data, args)
}
