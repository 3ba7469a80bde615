//! Removes expired keys and garbage, in small transactions.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use braid::Durability;

use super::Keyspace;
use super::data::{Data, Discarded, Effects, Scope};
use super::entry::{Body, Entry, read_u64};
use crate::failure::Result;

/// Elements that one transaction removes: so few that other transactions do not notice.
const BATCH: usize = 256;

/// Stripe of `sizes` for the keys that the sweeper removes; no worker has it.
const STRIPE: u16 = u16::MAX;

/// Removes what nobody can see any more.
#[derive(Debug)]
pub(crate) struct Sweeper {
    keyspace: Arc<Keyspace>,
}

impl Sweeper {
    pub(crate) fn new(keyspace: Arc<Keyspace>) -> Sweeper {
        Sweeper { keyspace }
    }

    /// Removes one batch of expired keys and one of garbage. Returns the effects, and whether
    /// there may be more.
    pub(crate) fn step(&self) -> Result<(Effects, bool)> {
        // A server without work commits nothing, so its log and its device rest.
        if !self.has_work()? {
            return Ok((Effects::default(), false));
        }
        // Nobody waits for these transactions.
        let scope = Scope {
            database: 0,
            stripe: STRIPE,
            writes: true,
            durability: Durability::Buffered(Duration::from_millis(100)),
        };
        let expired = self.keyspace.transact(scope, |data| {
            let expired = expired_keys(data, BATCH)?;
            for expired in &expired {
                data.namespace = expired.namespace;
                data.database = database_of(data, expired.namespace)?;
                // Reading a key that has expired deletes the key and its deadline (S3).
                if data.entry(&expired.key)?.is_some() {
                    // A deadline that no key has would be found again and again.
                    let deadlines = data.keyspace.deadlines.clone();
                    data.view.remove(&deadlines, &expired.deadline)?;
                }
            }
            Ok(expired.len())
        })?;
        let removed = self.keyspace.transact(scope, remove_garbage)?;
        Ok((expired.effects, expired.result == BATCH || removed.result))
    }
}

impl Sweeper {
    /// Returns whether there is something to remove in the durable state.
    fn has_work(&self) -> Result<bool> {
        let data = self.keyspace.durable(0)?;
        if !expired_keys(&data, 1)?.is_empty() {
            return Ok(true);
        }
        let mut garbage = data.view.prefix(&data.keyspace.garbage, &[])?;
        Ok(garbage.next().transpose()?.is_some())
    }
}

/// A key that has expired.
struct Expired {
    namespace: u64,
    key: Vec<u8>,
    /// Key of the entry in `deadlines`.
    deadline: Vec<u8>,
}

/// Returns up to `count` keys that have expired.
fn expired_keys(data: &Data, count: usize) -> Result<Vec<Expired>> {
    let end = Bound::Excluded((data.now + 1).to_be_bytes().to_vec());
    let entries = data
        .view
        .range(&data.keyspace.deadlines, Bound::Unbounded, end)?;
    let mut expired = Vec::new();
    for entry in entries.take(count) {
        let (at, _) = entry?;
        if at.len() >= 16 {
            expired.push(Expired {
                namespace: read_u64(&at[8..]),
                key: at[16..].to_vec(),
                deadline: at.to_vec(),
            });
        }
    }
    Ok(expired)
}

/// Returns the number of the database that has this namespace, for the event.
fn database_of(data: &Data, namespace: u64) -> Result<u32> {
    for entry in data.view.prefix(&data.keyspace.databases, &[])? {
        let (database, found) = entry?;
        if read_u64(&found) == namespace {
            return Ok(database
                .first_chunk()
                .map_or(0, |bytes| u32::from_be_bytes(*bytes)));
        }
    }
    Ok(namespace as u32)
}

/// Removes a batch of the oldest garbage; returns whether there may be more.
fn remove_garbage(data: &mut Data) -> Result<bool> {
    let first = data
        .view
        .prefix(&data.keyspace.garbage, &[])?
        .next()
        .transpose()?;
    let Some((at, what)) = first else {
        return Ok(false);
    };
    let keyspace = Arc::clone(&data.keyspace);
    if let Some((kind, prefixes)) = what.split_first()
        && *kind == Discarded::Parts as u8
    {
        return remove_parts(data, &at, prefixes);
    }
    let is_namespace = what.first() == Some(&(Discarded::Namespace as u8));
    let table = if is_namespace {
        &keyspace.keys
    } else {
        &keyspace.elements
    };
    let batch: Vec<_> = data
        .view
        .prefix(table, &at)?
        .take(BATCH)
        .collect::<braid::Result<_>>()?;
    for (key, value) in &batch {
        if is_namespace {
            let entry = Entry::decode(value.clone())?;
            if let Body::Collection(collection) = entry.body {
                data.discard(collection.id, Discarded::Collection)?;
            }
            if let Some(expires) = entry.expires {
                let at = super::data::deadline_key(expires, read_u64(&at), &key[16..]);
                data.view.remove(&keyspace.deadlines, &at)?;
            }
        }
        data.view.remove(table, key)?;
    }
    if batch.len() < BATCH {
        if is_namespace {
            let sizes: Vec<_> = data
                .view
                .prefix(&keyspace.sizes, &at)?
                .collect::<braid::Result<_>>()?;
            for (key, _) in sizes {
                data.view.remove(&keyspace.sizes, &key)?;
            }
        }
        data.view.remove(&keyspace.garbage, &at)?;
    }
    Ok(true)
}

/// Removes a batch of the elements that begin with one of these prefixes, each of which follows its
/// length.
fn remove_parts(data: &mut Data, at: &[u8], mut prefixes: &[u8]) -> Result<bool> {
    let table = data.elements();
    let mut room = BATCH;
    while let Some((len, rest)) = prefixes.split_first() {
        let (prefix, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        prefixes = rest;
        let found: Vec<_> = data
            .view
            .prefix(&table, prefix)?
            .take(room)
            .map(|entry| entry.map(|(key, _)| key))
            .collect::<braid::Result<_>>()?;
        for key in &found {
            data.view.remove(&table, key)?;
        }
        room -= found.len();
        if room == 0 {
            return Ok(true);
        }
    }
    let garbage = data.keyspace.garbage.clone();
    data.view.remove(&garbage, at)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use braid::Database;

    use super::*;

    #[test]
    fn an_idle_server_commits_nothing() {
        let db = Database::in_memory().unwrap();
        let keyspace = Arc::new(Keyspace::open(db.clone()).unwrap());
        let sweeper = Sweeper::new(Arc::clone(&keyspace));
        let scope = Scope {
            database: 0,
            stripe: 0,
            writes: true,
            durability: Durability::Immediate,
        };
        let put = |expires| {
            let body = Body::String(bytes::Bytes::from_static(b"x"));
            let put = |data: &mut Data| data.put(b"a", None, body.clone(), expires);
            keyspace
                .transact(scope, put)
                .unwrap()
                .ticket
                .wait()
                .unwrap();
        };
        put(Some(u64::MAX));
        let before = db.stats().commits;
        for _ in 0..3 {
            assert!(!sweeper.step().unwrap().1);
        }
        assert_eq!(db.stats().commits, before);
        // What expires is removed, and the server rests again.
        let remove = |data: &mut Data| {
            let old = data.entry(b"a")?;
            old.map_or(Ok(()), |old| data.delete(b"a", &old))
        };
        keyspace
            .transact(scope, remove)
            .unwrap()
            .ticket
            .wait()
            .unwrap();
        put(Some(1));
        let (effects, _) = sweeper.step().unwrap();
        assert_eq!(effects.expired, 1);
        db.wait_durable(db.stats().commits).unwrap();
        assert_eq!(keyspace.durable(0).unwrap().len().unwrap(), 0);
        let before = db.stats().commits;
        sweeper.step().unwrap();
        assert_eq!(db.stats().commits, before);
    }
    #[test]
    fn events_are_recorded_only_if_somebody_wants_them() {
        let keyspace = Arc::new(Keyspace::open(Database::in_memory().unwrap()).unwrap());
        let scope = Scope {
            database: 0,
            stripe: 0,
            writes: true,
            durability: Durability::Immediate,
        };
        for (notifies, expected) in [(false, 0), (true, 1)] {
            keyspace
                .notifies
                .store(notifies, std::sync::atomic::Ordering::Relaxed);
            let committed = keyspace.transact(scope, |data| {
                data.notify('g', "del", b"a");
                Ok(())
            });
            assert_eq!(committed.unwrap().effects.events.len(), expected);
        }
    }
}
