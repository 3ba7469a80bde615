//! Scans and random choices among names that are ordered by their hash.

use std::ops::Bound;

use bytes::Bytes;

use super::data::Data;
use super::entry::{Entry, read_u64};
use super::view::{Bucket, View};
use crate::failure::Result;

/// Most names in a window of [`sample`]; a window contains four on average.
const WINDOW_MAX: usize = 24;

/// Returns the position of a name among the others: 63 bits of its hash, because some clients
/// parse a cursor as a signed number.
pub(crate) fn position(hash: u64) -> u64 {
    hash >> 1
}

/// Names and values that begin with `prefix`, at least `count` of them from the cursor's position
/// on if there are as many. Returns the next cursor, 0 at the end.
pub(crate) fn scan(
    view: &View,
    table: &Bucket,
    prefix: &[u8],
    cursor: u64,
    count: usize,
) -> braid::Result<(u64, Vec<(Bytes, Bytes)>)> {
    let mut from = prefix.to_vec();
    from.extend_from_slice(&cursor.to_be_bytes());
    let mut found = Vec::new();
    let mut last = None;
    for entry in view.prefix_from(table, prefix, from)? {
        let (key, value) = entry?;
        let at = read_u64(&key[prefix.len()..]);
        // Keys after the last position are not those of names.
        if at >> 63 == 1 {
            break;
        }
        // Names with equal hashes belong to one step, because a cursor cannot point between them.
        if found.len() >= count && last != Some(at) {
            return Ok((at, found));
        }
        last = Some(at);
        found.push((key.slice(prefix.len() + 8..), value));
    }
    Ok((0, found))
}

/// Returns a random name of the `len` names that begin with `prefix`, each with the same
/// probability; `None` if there are none.
///
/// A random window of the hashes contains each name with the same probability. If `k` names are in
/// it, one of them is accepted with probability `k / WINDOW_MAX`; otherwise another window is
/// tried. So each name is chosen with the same probability, whatever the gaps between the hashes.
pub(crate) fn sample(
    view: &View,
    table: &Bucket,
    prefix: &[u8],
    len: u64,
) -> braid::Result<Option<(Bytes, Bytes)>> {
    if len <= WINDOW_MAX as u64 {
        let all = scan(view, table, prefix, 0, usize::MAX)?.1;
        return Ok(fastrand::choice(all));
    }
    let width = (1 << 63) / len * 4;
    loop {
        let start = fastrand::u64(..1 << 63);
        let end = (start + width) % (1 << 63);
        let mut window = Vec::new();
        if start < end {
            collect(view, table, prefix, start, Some(end), &mut window)?;
        } else {
            collect(view, table, prefix, start, None, &mut window)?;
            collect(view, table, prefix, 0, Some(end), &mut window)?;
        }
        if fastrand::usize(..WINDOW_MAX) < window.len() {
            return Ok(fastrand::choice(window));
        }
    }
}

/// Adds the names with positions from `start` up to `end`, at most `WINDOW_MAX`.
fn collect(
    view: &View,
    table: &Bucket,
    prefix: &[u8],
    start: u64,
    end: Option<u64>,
    window: &mut Vec<(Bytes, Bytes)>,
) -> braid::Result<()> {
    let at = |position: u64| {
        let mut key = prefix.to_vec();
        key.extend_from_slice(&position.to_be_bytes());
        key
    };
    let to = Bound::Excluded(at(end.unwrap_or(1 << 63)));
    for entry in view.range(table, Bound::Included(at(start)), to)? {
        let (key, value) = entry?;
        if window.len() == WINDOW_MAX {
            break;
        }
        window.push((key.slice(prefix.len() + 8..), value));
    }
    Ok(())
}

impl Data {
    /// Returns some keys of the selected database from a cursor on, and the next cursor.
    pub(crate) fn scan_keys(
        &self,
        cursor: u64,
        count: usize,
    ) -> Result<(u64, Vec<(Bytes, Entry)>)> {
        let prefix = self.namespace.to_be_bytes();
        let (next, found) = scan(&self.view, &self.keyspace.keys, &prefix, cursor, count)?;
        let mut keys = Vec::with_capacity(found.len());
        for (key, value) in found {
            let entry = Entry::decode(value)?;
            if entry.expires.is_none_or(|expires| expires > self.now) {
                keys.push((key, entry));
            }
        }
        Ok((next, keys))
    }

    /// Returns a random key of the selected database.
    pub(crate) fn random_key(&self) -> Result<Option<Bytes>> {
        let prefix = self.namespace.to_be_bytes();
        // Keys that have expired and are still there are skipped, but not forever.
        for _ in 0..100 {
            let len = self.len()?;
            let Some((key, value)) = sample(&self.view, &self.keyspace.keys, &prefix, len)? else {
                return Ok(None);
            };
            if Entry::decode(value)?
                .expires
                .is_none_or(|expires| expires > self.now)
            {
                return Ok(Some(key));
            }
        }
        Ok(self.scan_keys(0, usize::MAX)?.1.pop().map(|(key, _)| key))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use braid::{Database, Durability};

    use super::super::{Body, Data, Keyspace, Scope};
    use super::*;

    const SCOPE: Scope = Scope {
        database: 0,
        stripe: 0,
        writes: true,
        durability: Durability::Immediate,
    };

    #[test]
    fn a_random_key_exists_and_has_not_expired() {
        let keyspace = Arc::new(Keyspace::open(Database::in_memory().unwrap()).unwrap());
        let put = |key: &str, expires| {
            let body = Body::String(Bytes::from_static(b"x"));
            let put = |data: &mut Data| data.put(key.as_bytes(), None, body.clone(), expires);
            keyspace.transact(SCOPE, put).unwrap();
        };
        let random = || {
            let random = keyspace.transact(SCOPE, |data| data.random_key());
            random.unwrap().result
        };
        assert_eq!(random(), None);
        // Nothing removes these; there are more of them than a window has room for.
        for number in 0..2 * WINDOW_MAX {
            put(&format!("expired {number}"), Some(1));
        }
        assert_eq!(random(), None);
        put("a", None);
        put("b", Some(u64::MAX));
        let found: BTreeSet<Bytes> = (0..100).map(|_| random().unwrap()).collect();
        assert_eq!(found, BTreeSet::from(["a".into(), "b".into()]));
    }
}
