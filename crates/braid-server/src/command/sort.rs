//! SORT and SORT_RO.

use bytes::Bytes;

use super::arguments::{Options, integer, is};
use super::{hashes, lists, sets, sorted_sets};
use crate::failure::{Failure, Result};
use crate::keyspace::{Body, Data, Kind};
use crate::resp::Reply;
use crate::resp::number::parse_f64;

/// Parsed options.
#[derive(Debug, Default)]
struct Request<'a> {
    /// Pattern of keys whose values are compared instead of the elements.
    by: Option<&'a Bytes>,
    /// Patterns of values that are returned instead of the elements.
    get: Vec<&'a Bytes>,
    limit: Option<(i64, i64)>,
    from_end: bool,
    /// Whether values are compared as bytes, not as numbers.
    alpha: bool,
    target: Option<&'a Bytes>,
}

impl<'a> Request<'a> {
    fn parse(args: &'a [Bytes], may_store: bool) -> Result<Request<'a>> {
        let mut request = Request::default();
        let mut options = Options::new(args);
        while let Some(option) = options.next() {
            if is(option, "ASC") || is(option, "DESC") {
                request.from_end = is(option, "DESC");
            } else if is(option, "ALPHA") {
                request.alpha = true;
            } else if is(option, "LIMIT") {
                request.limit = Some((integer(options.value()?)?, integer(options.value()?)?));
            } else if is(option, "BY") {
                request.by = Some(options.value()?);
            } else if is(option, "GET") {
                request.get.push(options.value()?);
            } else if is(option, "STORE") && may_store {
                request.target = Some(options.value()?);
            } else {
                return Err(Failure::SYNTAX);
            }
        }
        Ok(request)
    }

    /// Whether the weights are all equal, so that the elements keep their order.
    fn keeps_order(&self) -> bool {
        self.by.is_some_and(|by| !by.contains(&b'*'))
    }
}

/// Returns the keys of a request: the one that is sorted and the one that gets the result.
pub(super) fn keys_of(args: &[Bytes]) -> Vec<Bytes> {
    let target = Request::parse(args.get(2..).unwrap_or_default(), true)
        .ok()
        .and_then(|request| request.target.cloned());
    args.get(1).cloned().into_iter().chain(target).collect()
}

/// Returns the elements of a list, set or sorted set.
fn elements(data: &mut Data, key: &[u8]) -> Result<Vec<Bytes>> {
    let Some(entry) = data.entry(key)? else {
        return Ok(Vec::new());
    };
    let Body::Collection(collection) = entry.body else {
        return Err(Failure::WRONG_TYPE);
    };
    match collection.kind {
        Kind::List => lists::all(data, &collection),
        Kind::Set => sets::all(data, &collection),
        Kind::SortedSet => {
            let members = sorted_sets::all(data, &collection)?;
            Ok(members.into_iter().map(|(member, _)| member).collect())
        }
        _ => Err(Failure::WRONG_TYPE),
    }
}

/// Returns what a pattern means for an element: `#` is the element itself; the first `*` stands
/// for the element in the name of a key, and `->` leads to a field of a hash.
fn lookup(data: &mut Data, pattern: &[u8], element: &Bytes) -> Result<Option<Bytes>> {
    if pattern == b"#" {
        return Ok(Some(element.clone()));
    }
    let Some(star) = pattern.iter().position(|byte| *byte == b'*') else {
        return Ok(None);
    };
    // An arrow without a field after it is part of the name.
    let arrow = memchr::memmem::find(&pattern[star..], b"->")
        .map(|at| star + at)
        .filter(|at| at + 2 < pattern.len());
    let end = arrow.unwrap_or(pattern.len());
    let key = [&pattern[..star], &element[..], &pattern[star + 1..end]].concat();
    let found = match arrow {
        None => data.string(&key),
        Some(arrow) => hashes::value(data, &key, &pattern[arrow + 2..]),
    };
    match found {
        // Keys of other types have no value, and neither has a name that is too long for a key.
        Err(Failure::Client(_)) => Ok(None),
        found => found,
    }
}

fn sort_with(data: &mut Data, args: &[Bytes], may_store: bool) -> Result<Reply> {
    let request = Request::parse(&args[2..], may_store)?;
    let mut found = elements(data, &args[1])?;
    if !request.keeps_order() {
        found = ordered(data, &request, found)?;
    } else if request.from_end {
        found.reverse();
    }
    let (offset, count) = request.limit.unwrap_or((0, -1));
    let offset = usize::try_from(offset).unwrap_or(0);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut result: Vec<Option<Bytes>> = Vec::new();
    for element in found.into_iter().skip(offset).take(count) {
        if request.get.is_empty() {
            result.push(Some(element));
            continue;
        }
        for pattern in &request.get {
            result.push(lookup(data, pattern, &element)?);
        }
    }
    match request.target {
        None => Ok(Reply::Array(
            result.into_iter().map(Reply::optional).collect(),
        )),
        Some(target) => {
            let values: Vec<Bytes> = result.into_iter().map(Option::unwrap_or_default).collect();
            lists::store(data, target, &values, "sortstore")
        }
    }
}

/// Sorts elements by their weights; equal weights by the elements.
fn ordered(data: &mut Data, request: &Request<'_>, found: Vec<Bytes>) -> Result<Vec<Bytes>> {
    let mut weighed = Vec::with_capacity(found.len());
    for element in found {
        let weight = match request.by {
            None => Some(element.clone()),
            Some(by) => lookup(data, by, &element)?,
        };
        weighed.push((weight, element));
    }
    if request.alpha {
        weighed.sort();
        let mut elements: Vec<Bytes> = weighed.into_iter().map(|(_, element)| element).collect();
        if request.from_end {
            elements.reverse();
        }
        return Ok(elements);
    }
    let mut numbered: Vec<(f64, Bytes)> = weighed
        .into_iter()
        .map(|(weight, element)| {
            let number = weight
                .filter(|text| !text.is_empty())
                .map_or(Some(0.0), |text| parse_f64(&text));
            let number = number.ok_or_else(|| {
                Failure::client("ERR One or more scores can't be converted into double")
            })?;
            // Both zeros are equal.
            Ok((number + 0.0, element))
        })
        .collect::<Result<_>>()?;
    numbered.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    if request.from_end {
        numbered.reverse();
    }
    Ok(numbered.into_iter().map(|(_, element)| element).collect())
}

pub(super) fn sort(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    sort_with(data, args, true)
}

pub(super) fn sort_ro(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    sort_with(data, args, false)
}
