//! Removing the first or last members of sorted sets, and waiting for members.

use bytes::Bytes;

use super::super::arguments::{Options, natural};
use super::super::pops::{Pops, blocking_mpop, blocking_pop, mpop};
use super::{Scored, SortedSet, open, remove_all};
use crate::failure::{Failure, Result};
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
        None => Reply::Array(popped.into_iter().flat_map(shown).collect()),
    })
}

pub(in crate::command) fn zpopmin(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    pop_command(data, args, false)
}

pub(in crate::command) fn zpopmax(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    pop_command(data, args, true)
}

/// Pops of sorted sets.
struct SortedSets;

impl Pops for SortedSets {
    const KIND: Kind = Kind::SortedSet;
    /// Whether it is the end with the highest scores.
    type End = bool;
    type Element = [Reply; 2];

    fn end(options: &mut Options<'_>) -> Result<bool> {
        if options.take("MAX") {
            Ok(true)
        } else if options.take("MIN") {
            Ok(false)
        } else {
            Err(Failure::SYNTAX)
        }
    }

    fn pop(
        data: &mut Data,
        key: &Bytes,
        (entry, set): (&Entry, Collection),
        from_end: bool,
        count: u64,
    ) -> Result<Vec<[Reply; 2]>> {
        let popped = pop(data, key, entry, set, from_end, count)?;
        Ok(popped.into_iter().map(shown).collect())
    }
}

/// Returns a member and its score as a reply has them.
fn shown((member, score): Scored) -> [Reply; 2] {
    [Reply::Bulk(member), Reply::Double(score)]
}

pub(in crate::command) fn bzpopmin(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    blocking_pop::<SortedSets>(data, args, false)
}

pub(in crate::command) fn bzpopmax(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    blocking_pop::<SortedSets>(data, args, true)
}

pub(in crate::command) fn zmpop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    mpop::<SortedSets>(data, args)
}

pub(in crate::command) fn bzmpop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    blocking_mpop::<SortedSets>(data, args)
}
