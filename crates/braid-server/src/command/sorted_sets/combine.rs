//! Unions, intersections and differences of sorted sets.

use std::cmp::Ordering;
use std::collections::HashMap;

use bytes::Bytes;

use super::super::arguments::{Options, integer, is, natural};
use super::super::sets::{Combine, numbered_keys};
use super::{Scored, SortedSet, answer, open, store};
use crate::failure::{Failure, Result};
use crate::keyspace::{Data, Kind};
use crate::resp::Reply;
use crate::resp::number::parse_f64;

/// How the scores of a member in several sets become one.
#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn of(self, a: f64, b: f64) -> f64 {
        match self {
            // Infinities of both signs make zero, as in Redis.
            Aggregate::Sum if (a + b).is_nan() => 0.0,
            Aggregate::Sum => a + b,
            Aggregate::Min => a.min(b),
            Aggregate::Max => a.max(b),
        }
    }
}

/// Returns the members of a set or sorted set with their scores; members of a set have score 1.
fn inputs(data: &mut Data, key: &[u8]) -> Result<Vec<Scored>> {
    let Some(entry) = data.entry(key)? else {
        return Ok(Vec::new());
    };
    match entry.kind() {
        Kind::Set => match data.collection(key, Kind::Set)? {
            Some((_, set)) => {
                let found = data.scan_elements(&set.id.to_be_bytes(), 0, usize::MAX)?.1;
                Ok(found.into_iter().map(|(member, _)| (member, 1.0)).collect())
            }
            None => Ok(Vec::new()),
        },
        Kind::SortedSet => match open(data, key)? {
            Some((_, set)) => SortedSet { data, set }.all(),
            None => Ok(Vec::new()),
        },
        _ => Err(Failure::WRONG_TYPE),
    }
}

/// Combines sorted sets; returns the result in rank order, and whether scores are wanted.
fn combine(
    data: &mut Data,
    args: &[Bytes],
    how: Combine,
    stores: bool,
) -> Result<(Vec<Scored>, bool)> {
    let name = match (how, stores) {
        (Combine::Union, false) => "zunion",
        (Combine::Union, true) => "zunionstore",
        (Combine::Intersection, false) => "zinter",
        (Combine::Intersection, true) => "zinterstore",
        (Combine::Difference, false) => "zdiff",
        (Combine::Difference, true) => "zdiffstore",
    };
    let (keys, mut options) = numbered_keys_of(args, name)?;
    let mut weights = vec![1.0; keys.len()];
    let (mut aggregate, mut with_scores) = (Aggregate::Sum, false);
    while let Some(option) = options.next() {
        if is(option, "WEIGHTS") && how != Combine::Difference {
            for weight in &mut weights {
                *weight = parse_f64(options.value()?)
                    .ok_or_else(|| Failure::client("ERR weight value is not a float"))?;
            }
        } else if is(option, "AGGREGATE") && how != Combine::Difference {
            let word = options.value()?;
            aggregate = if is(word, "SUM") {
                Aggregate::Sum
            } else if is(word, "MIN") {
                Aggregate::Min
            } else if is(word, "MAX") {
                Aggregate::Max
            } else {
                return Err(Failure::SYNTAX);
            };
        } else if is(option, "WITHSCORES") && !stores {
            with_scores = true;
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    // Times zero, an infinite score is no number; Redis makes it zero.
    let weighted = |score: f64, weight: f64| {
        let product = score * weight;
        if product.is_nan() { 0.0 } else { product }
    };
    let mut result: HashMap<Bytes, f64> = HashMap::new();
    for (number, key) in keys.iter().enumerate() {
        let members = inputs(data, key)?;
        let weight = weights[number];
        match how {
            _ if number == 0 => {
                result.extend(
                    members
                        .into_iter()
                        .map(|(member, score)| (member, weighted(score, weight))),
                );
            }
            Combine::Union => {
                for (member, score) in members {
                    let score = weighted(score, weight);
                    result
                        .entry(member)
                        .and_modify(|sum| *sum = aggregate.of(*sum, score))
                        .or_insert(score);
                }
            }
            Combine::Intersection => {
                let mut kept = HashMap::new();
                for (member, score) in members {
                    if let Some(sum) = result.remove(&member) {
                        kept.insert(member, aggregate.of(sum, weighted(score, weight)));
                    }
                }
                result = kept;
            }
            Combine::Difference => {
                for (member, _) in members {
                    result.remove(&member);
                }
            }
        }
    }
    let mut ordered: Vec<Scored> = result.into_iter().collect();
    // Zero and its negative are equal scores, whose members have an order. No score is NaN.
    let by_score = |a: &Scored, b: &Scored| a.1.partial_cmp(&b.1).unwrap_or(Ordering::Equal);
    ordered.sort_by(|a, b| by_score(a, b).then_with(|| a.0.cmp(&b.0)));
    Ok((ordered, with_scores))
}

/// Splits `numkeys key [key ...] [option ...]` of the command with this name.
fn numbered_keys_of<'a>(args: &'a [Bytes], name: &str) -> Result<(&'a [Bytes], Options<'a>)> {
    if integer(&args[0])? < 1 {
        return Err(Failure::client(format!(
            "ERR at least 1 input key is needed for '{name}' command"
        )));
    }
    numbered_keys(args, Failure::SYNTAX)
}

fn combined(data: &mut Data, args: &[Bytes], how: Combine) -> Result<Reply> {
    let (found, with_scores) = combine(data, &args[1..], how, false)?;
    Ok(answer(found, with_scores))
}

pub(in crate::command) fn zunion(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    combined(data, args, Combine::Union)
}

pub(in crate::command) fn zinter(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    combined(data, args, Combine::Intersection)
}

pub(in crate::command) fn zdiff(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    combined(data, args, Combine::Difference)
}

fn combined_store(
    data: &mut Data,
    args: &[Bytes],
    how: Combine,
    event: &'static str,
) -> Result<Reply> {
    let (found, _) = combine(data, &args[2..], how, true)?;
    store(data, &args[1], found, event)
}

pub(in crate::command) fn zunionstore(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    combined_store(data, args, Combine::Union, "zunionstore")
}

pub(in crate::command) fn zinterstore(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    combined_store(data, args, Combine::Intersection, "zinterstore")
}

pub(in crate::command) fn zdiffstore(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    combined_store(data, args, Combine::Difference, "zdiffstore")
}

pub(in crate::command) fn zintercard(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let (keys, mut options) = numbered_keys_of(&args[1..], "zintercard")?;
    let mut limit = usize::MAX;
    if options.take("LIMIT") {
        limit = natural(options.value()?, "ERR LIMIT can't be negative")?;
        if limit == 0 {
            limit = usize::MAX;
        }
    }
    options.end()?;
    let mut list = vec![Bytes::from(keys.len().to_string())];
    list.extend_from_slice(keys);
    let (found, _) = combine(data, &list, Combine::Intersection, false)?;
    Ok(Reply::Integer(found.len().min(limit) as i64))
}
