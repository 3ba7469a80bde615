//! ZADD and ZINCRBY.

use bytes::Bytes;

use super::super::arguments::{float, is};
use super::SortedSet;
use crate::failure::{Failure, Result};
use crate::keyspace::{Data, Kind};
use crate::resp::Reply;

/// Conditions of ZADD.
#[derive(Clone, Copy, Default)]
struct AddOptions {
    only_new: bool,
    only_old: bool,
    greater: bool,
    less: bool,
    increments: bool,
}

/// Outcome of ZADD for one member.
enum Added {
    New,
    Updated,
    Same,
    Refused,
}

fn add_one(
    set: &mut SortedSet<'_>,
    member: &[u8],
    score: f64,
    options: AddOptions,
) -> Result<(Added, f64)> {
    let before = set.score(member)?;
    if (options.only_new && before.is_some()) || (options.only_old && before.is_none()) {
        return Ok((Added::Refused, score));
    }
    let Some(before) = before else {
        set.add(member, score)?;
        return Ok((Added::New, score));
    };
    let after = if options.increments {
        before + score
    } else {
        score
    };
    if after.is_nan() {
        return Err(Failure::client("ERR resulting score is not a number (NaN)"));
    }
    if (options.greater && after <= before) || (options.less && after >= before) {
        return Ok((Added::Refused, after));
    }
    if after == before {
        return Ok((Added::Same, after));
    }
    set.change(member, before, after)?;
    Ok((Added::Updated, after))
}

pub(in crate::command) fn zadd(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let mut options = AddOptions::default();
    let mut counts_changed = false;
    let mut at = 2;
    while let Some(word) = args.get(at) {
        if is(word, "NX") {
            options.only_new = true;
        } else if is(word, "XX") {
            options.only_old = true;
        } else if is(word, "GT") {
            options.greater = true;
        } else if is(word, "LT") {
            options.less = true;
        } else if is(word, "CH") {
            counts_changed = true;
        } else if is(word, "INCR") {
            options.increments = true;
        } else {
            break;
        }
        at += 1;
    }
    let pairs = &args[at..];
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return Err(Failure::SYNTAX);
    }
    if options.only_new && options.only_old {
        return Err(Failure::client(
            "ERR XX and NX options at the same time are not compatible",
        ));
    }
    if (options.greater && options.less) || (options.only_new && (options.greater || options.less))
    {
        return Err(Failure::client(
            "ERR GT, LT, and/or NX options at the same time are not compatible",
        ));
    }
    if options.increments && pairs.len() > 2 {
        return Err(Failure::client(
            "ERR INCR option supports a single increment-element pair",
        ));
    }
    let scores: Vec<f64> = pairs
        .chunks_exact(2)
        .map(|pair| float(&pair[0]))
        .collect::<Result<_>>()?;
    let (old, set) = data.collection_or_new(&args[1], Kind::SortedSet)?;
    let mut set = SortedSet { data, set };
    let (mut added, mut updated, mut last) = (0, 0, None);
    for (pair, score) in pairs.chunks_exact(2).zip(scores) {
        let (outcome, after) = add_one(&mut set, &pair[1], score, options)?;
        last = Some(after);
        match outcome {
            Added::New => added += 1,
            Added::Updated => updated += 1,
            Added::Same => {}
            Added::Refused => last = None,
        }
    }
    let set = set.set;
    if added + updated > 0 {
        data.put_collection(&args[1], old.as_ref(), set)?;
        data.notify(
            'z',
            if options.increments { "zincr" } else { "zadd" },
            &args[1],
        );
        data.pushed(&args[1], Kind::SortedSet, added as usize);
    }
    if options.increments {
        return Ok(last.map_or(Reply::Null, Reply::Double));
    }
    Ok(Reply::Integer(if counts_changed {
        added + updated
    } else {
        added
    }))
}

pub(in crate::command) fn zincrby(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let by = Bytes::from_static(b"INCR");
    zadd(
        data,
        &[
            args[0].clone(),
            args[1].clone(),
            by,
            args[2].clone(),
            args[3].clone(),
        ],
    )
}
