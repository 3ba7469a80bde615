//! XCLAIM and XAUTOCLAIM: pending entries go to another consumer.

use bytes::Bytes;

use super::super::arguments::{Options, integer, is, natural};
use super::groups::{OpenGroup, Pending, no_group};
use super::id::{self, Id};
use super::{Stream, item_reply, items_reply};
use crate::failure::{Failure, Result};
use crate::keyspace::Data;
use crate::resp::Reply;
use crate::resp::number::parse_i64;

/// How an entry is claimed.
struct Claim<'a> {
    consumer: &'a Bytes,
    /// Milliseconds for which an entry must not have been delivered.
    min_idle: u64,
    /// Time of delivery that the entry gets.
    time: u64,
    /// Number of deliveries that the entry gets; by default one more, or with `just_id` as many.
    count: Option<u64>,
    just_id: bool,
}

impl Claim<'_> {
    /// Claims an entry, unless it was delivered too recently; returns whether it did.
    fn run(
        &self,
        stream: &mut Stream<'_>,
        group: &mut OpenGroup,
        id: Id,
        old: Option<&Pending>,
    ) -> Result<bool> {
        let now = stream.data.now;
        if old.is_some_and(|old| old.idle(now) < self.min_idle) {
            return Ok(false);
        }
        let before = old.map_or(0, |old| old.count);
        let more = u64::from(!self.just_id);
        let new = Pending {
            time: self.time,
            count: self.count.unwrap_or(before + more),
            consumer: self.consumer.clone(),
        };
        group.assign(stream, id, old, &new)?;
        group.consumer_or_new(stream, self.consumer)?.active = now;
        Ok(true)
    }
}

fn min_idle(argument: &[u8], command: &str) -> Result<u64> {
    let ms = parse_i64(argument).ok_or_else(|| {
        Failure::client(format!("ERR Invalid min-idle-time argument for {command}"))
    })?;
    Ok(u64::try_from(ms).unwrap_or(0))
}

pub(in crate::command) fn xclaim(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let now = data.now;
    let no_group = || no_group(&args[1], &args[2], "");
    let mut stream = Stream::open(data, &args[1])?.ok_or_else(no_group)?;
    let mut group = OpenGroup::load(&stream, &args[2])?.ok_or_else(no_group)?;
    let ids = args[5..].iter().take_while(|id| Id::is_id(id)).count();
    if ids == 0 {
        return Err(id::invalid());
    }
    let mut claim = Claim {
        consumer: &args[3],
        min_idle: min_idle(&args[4], "XCLAIM")?,
        time: now,
        count: None,
        just_id: false,
    };
    let (mut force, mut last) = (false, Id::MIN);
    let mut options = Options::new(&args[5 + ids..]);
    while let Some(option) = options.next() {
        if is(option, "FORCE") {
            force = true;
        } else if is(option, "JUSTID") {
            claim.just_id = true;
        } else if is(option, "IDLE") {
            let idle = u64::try_from(integer(options.value()?)?).unwrap_or(0);
            claim.time = now.saturating_sub(idle);
        } else if is(option, "TIME") {
            let time = u64::try_from(integer(options.value()?)?).unwrap_or(now);
            claim.time = time.min(now);
        } else if is(option, "RETRYCOUNT") {
            const WRONG: &str = "ERR Invalid RETRYCOUNT option argument for XCLAIM";
            claim.count = Some(natural(options.value()?, WRONG)? as u64);
        } else if is(option, "LASTID") {
            last = Id::strict(options.value()?)?;
        } else {
            let shown = String::from_utf8_lossy(option).into_owned();
            return Err(Failure::client(format!(
                "ERR Unrecognized XCLAIM option '{shown}'"
            )));
        }
    }
    group.consumer_or_new(&mut stream, claim.consumer)?.seen = now;
    group.group.last = group.group.last.max(last);
    let mut claimed = Vec::new();
    for id in &args[5..5 + ids] {
        let id = Id::strict(id)?;
        let old = group.pending(&stream, id)?;
        let Some(fields) = stream.entry(id)? else {
            if let Some(old) = old {
                group.forget(&mut stream, id, &old)?;
            }
            continue;
        };
        if (old.is_some() || force) && claim.run(&mut stream, &mut group, id, old.as_ref())? {
            claimed.push(if claim.just_id {
                id.reply()
            } else {
                item_reply((id, fields))
            });
        }
    }
    group.save(&mut stream)?;
    Ok(Reply::Array(claimed))
}

pub(in crate::command) fn xautoclaim(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let now = data.now;
    let mut claim = Claim {
        consumer: &args[3],
        min_idle: min_idle(&args[4], "XAUTOCLAIM")?,
        time: now,
        count: None,
        just_id: false,
    };
    let start = id::start(&args[5])?;
    let mut count = 100;
    let mut options = Options::new(&args[6..]);
    while let Some(option) = options.next() {
        if is(option, "COUNT") {
            const WRONG: &str = "ERR COUNT must be > 0";
            count = natural(options.value()?, WRONG)?;
            if !(1..=usize::MAX / 16).contains(&count) {
                return Err(Failure::client(WRONG));
            }
        } else if is(option, "JUSTID") {
            claim.just_id = true;
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    let no_group = || no_group(&args[1], &args[2], "");
    let mut stream = Stream::open(data, &args[1])?.ok_or_else(no_group)?;
    let mut group = OpenGroup::load(&stream, &args[2])?.ok_or_else(no_group)?;
    group.consumer_or_new(&mut stream, claim.consumer)?.seen = now;
    // Looks at ten times as many entries as it may claim, and leaves the others to the next call.
    let looked_at = group.pending_range(&stream, start, Id::MAX, count * 10 + 1)?;
    let (mut items, mut deleted) = (Vec::new(), Vec::new());
    let mut next = Id::MIN;
    for (at, (id, old)) in looked_at.into_iter().enumerate() {
        if at == count * 10 || items.len() + deleted.len() == count {
            next = id;
            break;
        }
        match stream.entry(id)? {
            None => {
                group.forget(&mut stream, id, &old)?;
                deleted.push(id.reply());
            }
            Some(fields) => {
                if claim.run(&mut stream, &mut group, id, Some(&old))? {
                    items.push((id, fields));
                }
            }
        }
    }
    group.save(&mut stream)?;
    let claimed = if claim.just_id {
        Reply::Array(items.into_iter().map(|(id, _)| id.reply()).collect())
    } else {
        items_reply(items)
    };
    Ok(Reply::Array(vec![
        next.reply(),
        claimed,
        Reply::Array(deleted),
    ]))
}
