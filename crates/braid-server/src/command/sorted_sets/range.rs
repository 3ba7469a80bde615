//! Ranges of sorted sets by rank, score and member.

use bytes::Bytes;

use super::super::arguments::{Options, integer, is, part};
use super::{Scored, SortedSet, answer, encode_score, open, ranked, remove_all, store};
use crate::failure::{Failure, Result};
use crate::keyspace::{Collection, Data};
use crate::resp::Reply;
use crate::resp::number::parse_f64;

/// A range of positions in rank order: bounds on `score, member`.
#[derive(Clone, Debug)]
struct RankRange {
    from: Vec<u8>,
    /// Exclusive.
    to: Vec<u8>,
}

/// Position after every member with this score.
fn after_score(score: f64) -> Vec<u8> {
    let next = u64::from_be_bytes(encode_score(score)).saturating_add(1);
    next.to_be_bytes().to_vec()
}

/// Parses the bounds of a range by score: `(` excludes the bound.
fn score_range(min: &[u8], max: &[u8]) -> Result<RankRange> {
    let parse = |bound: &[u8]| {
        let (text, excluded) = match bound.strip_prefix(b"(") {
            Some(text) => (text, true),
            None => (bound, false),
        };
        parse_f64(text)
            .map(|score| (score, excluded))
            .ok_or_else(|| Failure::client("ERR min or max is not a float"))
    };
    let ((min, min_excluded), (max, max_excluded)) = (parse(min)?, parse(max)?);
    let at = |score: f64, after: bool| {
        if after {
            after_score(score)
        } else {
            encode_score(score).to_vec()
        }
    };
    Ok(RankRange {
        from: at(min, min_excluded),
        to: at(max, !max_excluded),
    })
}

/// Parses the bounds of a range by member, among members that have the same score.
fn lex_range(min: &[u8], max: &[u8], score: f64) -> Result<RankRange> {
    let parse = |bound: &[u8], is_max: bool| match bound {
        b"-" => Ok(encode_score(score).to_vec()),
        b"+" => Ok(after_score(score)),
        [b'[', member @ ..] => {
            let mut at = ranked(score, member);
            if is_max {
                at.push(0);
            }
            Ok(at)
        }
        [b'(', member @ ..] => {
            let mut at = ranked(score, member);
            if !is_max {
                at.push(0);
            }
            Ok(at)
        }
        _ => Err(Failure::client(
            "ERR min or max not valid string range item",
        )),
    };
    Ok(RankRange {
        from: parse(min, false)?,
        to: parse(max, true)?,
    })
}

/// Returns whether a member lies between bounds that [`lex_range`] has accepted.
fn is_between(min: &[u8], max: &[u8], member: &[u8]) -> bool {
    let is_from = match min {
        [b'[', bound @ ..] => member >= bound,
        [b'(', bound @ ..] => member > bound,
        bound => bound == b"-",
    };
    let is_to = match max {
        [b'[', bound @ ..] => member <= bound,
        [b'(', bound @ ..] => member < bound,
        bound => bound == b"+",
    };
    is_from && is_to
}

/// Returns the ranks of a range by member although the scores differ: Redis leaves open what that
/// means, and clients expect the members from the first within the bounds to the last.
fn mixed_range(set: &mut SortedSet<'_>, min: &[u8], max: &[u8]) -> Result<(u64, u64)> {
    let members = set.all()?;
    let inside = |(member, _): &Scored| is_between(min, max, member);
    let start = members.iter().position(inside);
    let end = members.iter().rposition(inside);
    Ok(match (start, end) {
        (Some(start), Some(end)) => (start as u64, end as u64 + 1),
        _ => (0, 0),
    })
}

/// How a range of a sorted set is given.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Lex,
}

/// A request for a range.
struct RangeQuery<'a> {
    by: By,
    from_end: bool,
    min: &'a Bytes,
    max: &'a Bytes,
    limit: Option<(i64, i64)>,
}

impl<'a> RangeQuery<'a> {
    /// Returns the whole range between the two bounds at the beginning of `args`.
    fn between(by: By, args: &'a [Bytes]) -> Self {
        RangeQuery {
            by,
            from_end: false,
            min: &args[0],
            max: &args[1],
            limit: None,
        }
    }

    /// Swaps the bounds of a range by score or member that is given from its end.
    fn ordered(mut self) -> Self {
        if self.from_end && self.by != By::Rank {
            std::mem::swap(&mut self.min, &mut self.max);
        }
        self
    }

    /// Checks the bounds even if there is no set.
    fn check(&self) -> Result<()> {
        match self.by {
            By::Rank => {
                integer(self.min)?;
                integer(self.max)?;
            }
            By::Score => {
                score_range(self.min, self.max)?;
            }
            By::Lex => {
                lex_range(self.min, self.max, 0.0)?;
            }
        }
        Ok(())
    }

    /// Returns the first and last rank of the range.
    fn ranks(&self, set: &mut SortedSet<'_>) -> Result<Option<(u64, u64)>> {
        let len = set.set.len;
        let range = match self.by {
            By::Rank => {
                let found = part(integer(self.min)?, integer(self.max)?, len);
                return Ok(found.map(|(start, stop)| {
                    if self.from_end {
                        (len - 1 - stop, len - 1 - start)
                    } else {
                        (start, stop)
                    }
                }));
            }
            By::Score => score_range(self.min, self.max)?,
            By::Lex => {
                let score = |members: Vec<Scored>| members.first().map_or(0.0, |(_, score)| *score);
                let first = score(set.by_rank(0, 0)?);
                let range = lex_range(self.min, self.max, first)?;
                if first != score(set.by_rank(len - 1, len - 1)?) {
                    return Ok(self.limited(mixed_range(set, self.min, self.max)?));
                }
                range
            }
        };
        Ok(self.limited((set.rank(&range.from)?, set.rank(&range.to)?)))
    }

    /// Applies LIMIT to the ranks from the first up to the second; returns the first and the last.
    fn limited(&self, (start, end): (u64, u64)) -> Option<(u64, u64)> {
        let count = end.checked_sub(start)?;
        let (offset, limit) = self.limit.unwrap_or((0, -1));
        let rest = count.checked_sub(u64::try_from(offset).ok()?)?;
        let kept = rest.min(u64::try_from(limit).unwrap_or(u64::MAX));
        let start = if self.from_end {
            start + rest - kept
        } else {
            start + count - rest
        };
        (kept > 0).then(|| (start, start + kept - 1))
    }

    fn run(&self, data: &mut Data, set: Collection) -> Result<Vec<Scored>> {
        let mut set = SortedSet { data, set };
        let Some((start, stop)) = self.ranks(&mut set)? else {
            return Ok(Vec::new());
        };
        let mut found = set.by_rank(start, stop)?;
        if self.from_end {
            found.reverse();
        }
        Ok(found)
    }
}

/// Parses the bounds and options of a range: `min max [option ...]`. Returns whether scores are
/// wanted, too. Only ZRANGE and ZRANGESTORE have options for the order.
fn range_query(args: &[Bytes], has_order: bool) -> Result<(RangeQuery<'_>, bool)> {
    let mut query = RangeQuery::between(By::Rank, args);
    let mut with_scores = false;
    let mut options = Options::new(&args[2..]);
    while let Some(option) = options.next() {
        if is(option, "BYSCORE") && has_order {
            query.by = By::Score;
        } else if is(option, "BYLEX") && has_order {
            query.by = By::Lex;
        } else if is(option, "REV") && has_order {
            query.from_end = true;
        } else if is(option, "WITHSCORES") {
            with_scores = true;
        } else if is(option, "LIMIT") {
            query.limit = Some((integer(options.value()?)?, integer(options.value()?)?));
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    Ok((query.ordered(), with_scores))
}

fn range_command(data: &mut Data, key: &[u8], query: &RangeQuery<'_>) -> Result<Vec<Scored>> {
    query.check()?;
    match open(data, key)? {
        None => Ok(Vec::new()),
        Some((_, set)) => query.run(data, set),
    }
}

pub(in crate::command) fn zrange(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (query, with_scores) = range_query(&args[2..], true)?;
    if query.limit.is_some() && query.by == By::Rank {
        return Err(Failure::client(
            "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
        ));
    }
    if with_scores && query.by == By::Lex {
        return Err(Failure::client(
            "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
        ));
    }
    Ok(answer(range_command(data, &args[1], &query)?, with_scores))
}

/// Runs one of the older commands, whose name says by what and in which order.
fn named_range(data: &mut Data, args: &[Bytes], by: By, from_end: bool) -> Result<Reply> {
    let (query, with_scores) = range_query(&args[2..], false)?;
    if (query.limit.is_some() && by == By::Rank) || (with_scores && by == By::Lex) {
        return Err(Failure::SYNTAX);
    }
    let query = RangeQuery {
        by,
        from_end,
        ..query
    }
    .ordered();
    Ok(answer(range_command(data, &args[1], &query)?, with_scores))
}

pub(in crate::command) fn zrevrange(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    named_range(data, args, By::Rank, true)
}

pub(in crate::command) fn zrangebyscore(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    named_range(data, args, By::Score, false)
}

pub(in crate::command) fn zrevrangebyscore(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    named_range(data, args, By::Score, true)
}

pub(in crate::command) fn zrangebylex(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    named_range(data, args, By::Lex, false)
}

pub(in crate::command) fn zrevrangebylex(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    named_range(data, args, By::Lex, true)
}

/// Counts a range by its two ranks.
fn count(data: &mut Data, args: &[Bytes], by: By) -> Result<Reply> {
    let query = RangeQuery::between(by, &args[2..]);
    query.check()?;
    let Some((_, set)) = open(data, &args[1])? else {
        return Ok(Reply::Integer(0));
    };
    let ranks = query.ranks(&mut SortedSet { data, set })?;
    Ok(Reply::Integer(
        ranks.map_or(0, |(start, stop)| stop - start + 1) as i64,
    ))
}

pub(in crate::command) fn zcount(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    count(data, args, By::Score)
}

pub(in crate::command) fn zlexcount(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    count(data, args, By::Lex)
}

fn remove_range(data: &mut Data, args: &[Bytes], by: By, event: &'static str) -> Result<Reply> {
    let query = RangeQuery::between(by, &args[2..]);
    query.check()?;
    let Some((entry, set)) = open(data, &args[1])? else {
        return Ok(Reply::Integer(0));
    };
    let found = query.run(data, set)?;
    remove_all(data, &args[1], &entry, set, &found, event)?;
    Ok(Reply::Integer(found.len() as i64))
}

pub(in crate::command) fn zremrangebyrank(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    remove_range(data, args, By::Rank, "zremrangebyrank")
}

pub(in crate::command) fn zremrangebyscore(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    remove_range(data, args, By::Score, "zremrangebyscore")
}

pub(in crate::command) fn zremrangebylex(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    remove_range(data, args, By::Lex, "zremrangebylex")
}

pub(in crate::command) fn zrangestore(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (query, with_scores) = range_query(&args[3..], true)?;
    if with_scores || (query.limit.is_some() && query.by == By::Rank) {
        return Err(Failure::SYNTAX);
    }
    let found = range_command(data, &args[2], &query)?;
    store(data, &args[1], found, "zrangestore")
}
