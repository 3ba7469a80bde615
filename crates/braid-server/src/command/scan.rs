//! SCAN, HSCAN, SSCAN and ZSCAN: cursors that need no memory in the server.

use std::collections::HashSet;

use bytes::Bytes;

use super::arguments::{Options, integer, is};
use super::sorted_sets::{MEMBERS, stored_score};
use crate::failure::{Failure, Result};
use crate::glob::matches;
use crate::keyspace::{Data, Kind};
use crate::resp::Reply;
use crate::resp::number::format_f64;

/// Options of a scan.
struct ScanOptions<'a> {
    cursor: u64,
    count: usize,
    pattern: Option<&'a Bytes>,
    kind: Option<&'a Bytes>,
    no_values: bool,
}

impl<'a> ScanOptions<'a> {
    fn parse(cursor: &Bytes, rest: &'a [Bytes]) -> Result<ScanOptions<'a>> {
        let cursor = std::str::from_utf8(cursor)
            .ok()
            .and_then(|cursor| cursor.parse().ok())
            .ok_or_else(|| Failure::client("ERR invalid cursor"))?;
        let mut parsed = ScanOptions {
            cursor,
            count: 10,
            pattern: None,
            kind: None,
            no_values: false,
        };
        let mut options = Options::new(rest);
        while let Some(option) = options.next() {
            if is(option, "MATCH") {
                parsed.pattern = Some(options.value()?);
            } else if is(option, "COUNT") {
                let count = integer(options.value()?)?;
                parsed.count = usize::try_from(count)
                    .ok()
                    .filter(|count| *count > 0)
                    .ok_or(Failure::SYNTAX)?;
            } else if is(option, "TYPE") {
                parsed.kind = Some(options.value()?);
            } else if is(option, "NOVALUES") {
                parsed.no_values = true;
            } else {
                return Err(Failure::SYNTAX);
            }
        }
        Ok(parsed)
    }

    fn accepts(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| matches(pattern, name))
    }
}

fn answer(cursor: u64, found: Vec<Reply>) -> Reply {
    Reply::Array(vec![Reply::copied(cursor.to_string()), Reply::Array(found)])
}

pub(super) fn scan(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let options = ScanOptions::parse(&args[1], &args[2..])?;
    if options.no_values {
        return Err(Failure::SYNTAX);
    }
    let (next, keys) = data.scan_keys(options.cursor, options.count)?;
    let found = keys
        .into_iter()
        .filter(|(key, entry)| {
            options.accepts(key)
                && options
                    .kind
                    .is_none_or(|kind| is(kind, entry.kind().name()))
        })
        .map(|(key, _)| Reply::Bulk(key))
        .collect();
    Ok(answer(next, found))
}

/// Scans the members of a collection, which lie by hash after its identity and `prefix`.
fn members(
    data: &mut Data,
    args: &[Bytes],
    kind: Kind,
    prefix: &[u8],
    value: Option<fn(&[u8]) -> Reply>,
) -> Result<Reply> {
    let options = ScanOptions::parse(&args[2], &args[3..])?;
    if options.kind.is_some() || (options.no_values && kind != Kind::Hash) {
        return Err(Failure::SYNTAX);
    }
    let Some((_, collection)) = data.collection(&args[1], kind)? else {
        return Ok(answer(0, Vec::new()));
    };
    let mut at = collection.id.to_be_bytes().to_vec();
    at.extend_from_slice(prefix);
    let expired = match kind {
        Kind::Hash => data.expired_fields(&collection, usize::MAX)?,
        _ => HashSet::new(),
    };
    let (next, members) = data.scan_elements(&at, options.cursor, options.count)?;
    let mut found = Vec::with_capacity(members.len() * 2);
    for (name, stored) in members {
        if options.accepts(&name) && !expired.contains(&name) {
            found.push(Reply::Bulk(name));
            if let Some(value) = value
                && !options.no_values
            {
                found.push(value(&stored));
            }
        }
    }
    Ok(answer(next, found))
}

pub(super) fn hscan(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    members(
        data,
        args,
        Kind::Hash,
        &[],
        Some(|value| Reply::copied(value)),
    )
}

pub(super) fn sscan(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    members(data, args, Kind::Set, &[], None)
}

pub(super) fn zscan(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    members(
        data,
        args,
        Kind::SortedSet,
        &[MEMBERS],
        Some(|score| Reply::copied(format_f64(stored_score(score)))),
    )
}
