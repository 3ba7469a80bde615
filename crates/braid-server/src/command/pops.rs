//! Pops from the first of several keys that has elements, at once or when an element arrives. Those of
//! lists and of sorted sets differ in what an element and an end is.

use bytes::Bytes;

use super::arguments::{Options, timeout};
use super::sets::numbered_keys;
use crate::failure::{Failure, Interest, Result};
use crate::keyspace::{Collection, Data, Entry, Kind};
use crate::resp::Reply;

/// A kind of collections that can be popped from.
pub(super) trait Pops {
    const KIND: Kind;

    /// An end of a collection.
    type End: Copy;

    /// An element, as a reply has it: alone, or as several parts.
    type Element: IntoIterator<Item = Reply>;

    /// Parses the name of an end.
    fn end(options: &mut Options<'_>) -> Result<Self::End>;

    /// Removes up to `count` elements of a collection.
    fn pop(
        data: &mut Data,
        key: &Bytes,
        found: (&Entry, Collection),
        end: Self::End,
        count: u64,
    ) -> Result<Vec<Self::Element>>;
}

/// Pops from the first of these keys that exists; returns the key and what was popped.
fn pop_from<P: Pops>(
    data: &mut Data,
    keys: &[Bytes],
    end: P::End,
    count: u64,
) -> Result<Option<(Reply, Vec<P::Element>)>> {
    for key in keys {
        if let Some((entry, collection)) = data.collection(key, P::KIND)? {
            let popped = P::pop(data, key, (&entry, collection), end, count)?;
            return Ok(Some((Reply::Bulk(key.clone()), popped)));
        }
    }
    Ok(None)
}

/// Pops as LMPOP and ZMPOP, whose arguments are the keys with their number, an end and a count. The keys
/// are the other result if none of them exists.
fn pop_several<'a, P: Pops>(
    data: &mut Data,
    args: &'a [Bytes],
) -> Result<std::result::Result<Reply, &'a [Bytes]>> {
    let (keys, mut options) = numbered_keys(args, Failure::SYNTAX)?;
    let end = P::end(&mut options)?;
    let count = options.last_count()?;
    let Some((key, popped)) = pop_from::<P>(data, keys, end, count)? else {
        return Ok(Err(keys));
    };
    let shown = popped.into_iter().map(|element| {
        let mut parts: Vec<Reply> = element.into_iter().collect();
        match parts.len() {
            1 => parts.remove(0),
            _ => Reply::Array(parts),
        }
    });
    Ok(Ok(Reply::Array(vec![key, Reply::Array(shown.collect())])))
}

/// Runs LMPOP or ZMPOP.
pub(super) fn mpop<P: Pops>(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(pop_several::<P>(data, &args[1..])?.unwrap_or(Reply::NullArray))
}

/// Runs BLMPOP or BZMPOP.
pub(super) fn blocking_mpop<P: Pops>(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let timeout = timeout(&args[1])?;
    pop_several::<P>(data, &args[2..])?
        .map_err(|keys| Failure::wait(keys, Interest::Elements(P::KIND), timeout, Reply::NullArray))
}

/// Runs BLPOP or one of its relatives: the last argument is a time-out.
pub(super) fn blocking_pop<P: Pops>(data: &mut Data, args: &[Bytes], end: P::End) -> Result<Reply> {
    let timeout = timeout(&args[args.len() - 1])?;
    let keys = &args[1..args.len() - 1];
    match pop_from::<P>(data, keys, end, 1)? {
        Some((key, popped)) => Ok(Reply::Array(
            [key]
                .into_iter()
                .chain(popped.into_iter().flatten())
                .collect(),
        )),
        None => Err(Failure::wait(
            keys,
            Interest::Elements(P::KIND),
            timeout,
            Reply::NullArray,
        )),
    }
}
