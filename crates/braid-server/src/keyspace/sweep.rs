//! Removes expired keys and garbage, in small transactions.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use braid::Durability;

use super::Keyspace;
use super::data::{Data, Scope};
use super::effects::Effects;
use super::elements::Discarded;
use super::entry::{Body, Entry, read_u64};
use super::view::Bucket;
use crate::failure::Result;
use crate::kind::Kind;

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

    /// Removes one batch of expired keys, one of expired fields and one of garbage. Calls `publish`
    /// with the effects of each transaction. Returns whether there may be more.
    pub(crate) fn step(&self, mut publish: impl FnMut(Effects)) -> Result<bool> {
        // A server without work commits nothing, so its log and its device rest.
        if !self.has_work()? {
            return Ok(false);
        }
        // Nobody waits for these transactions.
        let scope = Scope {
            database: 0,
            stripe: STRIPE,
            writes: true,
            durability: Durability::Buffered(Duration::from_millis(100)),
        };
        let expired = self.keyspace.transact(scope, |data| {
            let keyspace = Arc::clone(&data.keyspace);
            let expired = due(data, &keyspace.deadlines, BATCH)?;
            for expired in &expired {
                // Reading a key that has expired deletes the key and its deadline (S3).
                let is_gone =
                    enter(data, expired.namespace)? && data.entry(&expired.key)?.is_none();
                if !is_gone {
                    // A deadline that no key has would be found again and again.
                    data.view.remove(&keyspace.deadlines, &expired.deadline)?;
                }
            }
            Ok(expired.len())
        })?;
        publish(expired.effects);
        let fields = self.keyspace.transact(scope, expire_fields)?;
        publish(fields.effects);
        let removed = self.keyspace.transact(scope, remove_garbage)?;
        publish(removed.effects);
        Ok(expired.result == BATCH || fields.result || removed.result)
    }

    /// Returns whether there is something to remove in the durable state.
    fn has_work(&self) -> Result<bool> {
        let data = self.keyspace.durable(0)?;
        let deadlines = [&data.keyspace.deadlines, &data.keyspace.field_deadlines];
        for table in deadlines {
            if !due(&data, table, 1)?.is_empty() {
                return Ok(true);
            }
        }
        let mut garbage = data.view.prefix(&data.keyspace.garbage, &[])?;
        Ok(garbage.next().transpose()?.is_some())
    }
}

/// A key whose time has come.
struct Due {
    namespace: u64,
    key: Vec<u8>,
    /// Key of the entry in `deadlines`.
    deadline: Vec<u8>,
}

/// Returns up to `count` entries of a table of deadlines whose time has come.
fn due(data: &Data, table: &Bucket, count: usize) -> Result<Vec<Due>> {
    let end = Bound::Excluded((data.now + 1).to_be_bytes().to_vec());
    let entries = data.view.range(table, Bound::Unbounded, end)?;
    let mut due = Vec::new();
    for entry in entries.take(count) {
        let (at, _) = entry?;
        if at.len() >= 16 {
            due.push(Due {
                namespace: read_u64(&at[8..]),
                key: at[16..].to_vec(),
                deadline: at.to_vec(),
            });
        }
    }
    Ok(due)
}

/// Removes fields of hashes whose time has passed; returns whether there may be more.
fn expire_fields(data: &mut Data) -> Result<bool> {
    let keyspace = Arc::clone(&data.keyspace);
    let due = due(data, &keyspace.field_deadlines, BATCH)?;
    let mut room = BATCH;
    for hash in &due {
        if room == 0 {
            return Ok(true);
        }
        // The hash may be gone, or be of another key now, which has an entry of its own (S5).
        data.view
            .remove(&keyspace.field_deadlines, &hash.deadline)?;
        if !enter(data, hash.namespace)? {
            continue;
        }
        let Some(entry) = data.entry(&hash.key)? else {
            continue;
        };
        let Body::Collection(found) = entry.body else {
            continue;
        };
        if found.kind != Kind::Hash || found.extra == 0 {
            continue;
        }
        if let Some(left) = data.purge_fields(&hash.key, &entry, found, room)? {
            room = room.saturating_sub((found.len - left.len) as usize);
            data.register_field_times(&hash.key, &left)?;
        }
    }
    Ok(due.len() == BATCH)
}

/// Selects the database that has this namespace. Returns `false` if none has it: then its keys were
/// flushed, are garbage (S2), and their end is no event of any database.
fn enter(data: &mut Data, namespace: u64) -> Result<bool> {
    // A database without an entry has its own number as its namespace.
    let mut found = u32::try_from(namespace).ok();
    for entry in data.view.prefix(&data.keyspace.databases, &[])? {
        let (at, value) = entry?;
        let database = at.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        if read_u64(&value) == namespace {
            found = database;
            break;
        }
        found = found.filter(|number| Some(*number) != database);
    }
    let Some(database) = found else {
        return Ok(false);
    };
    data.database = database;
    data.namespace = namespace;
    Ok(true)
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
            assert!(!sweeper.step(|_| ()).unwrap());
        }
        assert_eq!(db.stats().commits, before);
        // The sweeper removes the expired key, and then commits nothing again.
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
        let mut expired = 0;
        sweeper.step(|effects| expired += effects.expired).unwrap();
        assert_eq!(expired, 1);
        db.sync().unwrap();
        assert_eq!(keyspace.durable(0).unwrap().len().unwrap(), 0);
        let before = db.stats().commits;
        sweeper.step(|_| ()).unwrap();
        assert_eq!(db.stats().commits, before);
    }

    /// Its keys are garbage of no database: neither clients nor the count of keys learn of their end.
    #[test]
    fn keys_of_a_flushed_database_expire_without_events() {
        let keyspace = Arc::new(Keyspace::open(Database::in_memory().unwrap()).unwrap());
        keyspace
            .notifies
            .store(true, std::sync::atomic::Ordering::Relaxed);
        let sweeper = Sweeper::new(Arc::clone(&keyspace));
        let scope = Scope {
            database: 0,
            stripe: 0,
            writes: true,
            durability: Durability::Immediate,
        };
        let put = |data: &mut Data| {
            let body = Body::String(bytes::Bytes::from_static(b"x"));
            data.put(b"a", None, body, Some(1))
        };
        let expired = || {
            let mut names = Vec::new();
            keyspace.db.sync().unwrap();
            while sweeper
                .step(|effects| names.extend(effects.events.into_iter().map(|of| of.database)))
                .unwrap()
            {
                keyspace.db.sync().unwrap();
            }
            keyspace.db.sync().unwrap();
            names
        };
        keyspace.transact(scope, put).unwrap();
        assert_eq!(expired(), [0]);
        for _ in 0..2 {
            let flush = |data: &mut Data| {
                let old = data.namespace;
                let new = data.keyspace.new_identity();
                data.set_namespace(0, new)?;
                data.discard(old, Discarded::Namespace)
            };
            keyspace.transact(scope, put).unwrap();
            keyspace.transact(scope, flush).unwrap();
            assert!(expired().is_empty());
        }
        // The database goes on in another namespace.
        keyspace.transact(scope, put).unwrap();
        assert_eq!(expired(), [0]);
        assert_eq!(keyspace.durable(0).unwrap().len().unwrap(), 0);
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
