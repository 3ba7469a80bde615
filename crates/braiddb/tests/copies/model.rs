//! Writers that keep an invariant, and a model of the database after each of their commits.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid::changes::ChangeSet;
use braid::{Database, Error, Protocol, Readable, Table};

pub(crate) const ACCOUNTS: u64 = 200;
pub(crate) const BALANCE: u64 = 1_000;

/// Table (0: accounts, 1: extras) and key.
pub(crate) type Place = (u8, u64);
pub(crate) type State = BTreeMap<Place, u64>;
pub(crate) type Writes = Vec<(Place, Option<u64>)>;

/// The writes of every commit, by its sequence number.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) commits: Mutex<BTreeMap<u64, Writes>>,
}

pub(crate) struct Tables {
    accounts: Table<u64, u64>,
    extras: Table<u64, u64>,
}

pub(crate) fn tables(db: &Database) -> Result<Tables, Error> {
    Ok(Tables {
        accounts: db.open_table("accounts")?,
        extras: db.open_table("extras")?,
    })
}

impl Model {
    /// Creates the accounts in one transaction.
    pub(crate) fn begin(&self, db: &Database) -> Result<Tables, Error> {
        let tables = tables(db)?;
        let mut tx = db.begin();
        let mut writes = Writes::new();
        for key in 0..ACCOUNTS {
            tx.insert(&tables.accounts, &key, &BALANCE)?;
            writes.push(((0, key), Some(BALANCE)));
        }
        self.note(tx.commit()?.seqno(), writes);
        Ok(tables)
    }

    pub(crate) fn note(&self, seqno: u64, writes: Writes) {
        let twice = self.commits.lock().unwrap().insert(seqno, writes);
        assert!(twice.is_none(), "number {seqno} was assigned twice");
    }

    /// Transfers money and inserts or removes an extra; durable when it returns, or soon after.
    pub(crate) fn transfer(
        &self,
        db: &Database,
        tables: &Tables,
        rng: &mut fastrand::Rng,
    ) -> Result<(), Error> {
        let (from, to) = (rng.u64(..ACCOUNTS), rng.u64(..ACCOUNTS));
        let mut tx = db.begin();
        let mut writes = Writes::new();
        if from != to {
            let (a, b) = (
                tx.get_for_update(&tables.accounts, &from)?.unwrap(),
                tx.get_for_update(&tables.accounts, &to)?.unwrap(),
            );
            let amount = rng.u64(..=a.min(50));
            for (key, value) in [(from, a - amount), (to, b + amount)] {
                tx.insert(&tables.accounts, &key, &value)?;
                writes.push(((0, key), Some(value)));
            }
        }
        let (key, value) = (rng.u64(..500), rng.u64(..));
        if rng.u8(..3) == 0 {
            if tx.remove(&tables.extras, &key)? {
                writes.push(((1, key), None));
            }
        } else {
            tx.insert(&tables.extras, &key, &value)?;
            writes.push(((1, key), Some(value)));
        }
        if writes.is_empty() {
            tx.abort();
            return Ok(());
        }
        if rng.bool() {
            // An aborted transaction in between.
            let mut other = db.begin();
            other.insert(&tables.extras, &(1 << 40), &1)?;
            other.abort();
        }
        let seqno = if rng.bool() {
            tx.commit()?.seqno()
        } else {
            tx.commit_async()?.seqno()
        };
        self.note(seqno, writes);
        Ok(())
    }

    /// Returns the contents of the database with the transactions up to a sequence number.
    pub(crate) fn state_at(&self, seqno: u64) -> State {
        let mut state = State::new();
        for (_, writes) in self.commits.lock().unwrap().range(..=seqno) {
            for &(place, value) in writes {
                match value {
                    Some(value) => state.insert(place, value),
                    None => state.remove(&place),
                };
            }
        }
        state
    }

    pub(crate) fn last(&self) -> u64 {
        let commits = self.commits.lock().unwrap();
        commits.last_key_value().map_or(0, |(&seqno, _)| seqno)
    }

    /// Compares a database with the state at a sequence number.
    pub(crate) fn check(&self, db: &Database, seqno: u64) {
        let tables = tables(db).unwrap();
        let found = contents(db, &tables);
        let money: u64 = accounts(&found).sum();
        assert_eq!(money, ACCOUNTS * BALANCE, "money came or went");
        assert!(found == self.state_at(seqno), "not the state at {seqno}");
    }

    /// Compares change sets with the commits after `after`, up to `to`.
    pub(crate) fn check_changes(&self, sets: &[ChangeSet], after: u64, to: u64) {
        let commits = self.commits.lock().unwrap();
        let expected: Vec<(u64, Writes)> = commits
            .range(after + 1..=to)
            .map(|(&seqno, writes)| (seqno, sorted(writes.clone())))
            .collect();
        let found: Vec<(u64, Writes)> = sets.iter().map(|set| (set.seqno, writes(set))).collect();
        let numbers = |sets: &[(u64, Writes)]| sets.iter().map(|s| s.0).collect::<Vec<_>>();
        assert_eq!(numbers(&found), numbers(&expected), "transactions");
        assert!(found == expected, "their writes");
    }
}

fn sorted(mut writes: Writes) -> Writes {
    writes.sort_unstable();
    writes
}

/// The writes of a change set, as the model has them.
pub(crate) fn writes(set: &ChangeSet) -> Writes {
    let seqno = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    let value = |bytes: &[u8]| {
        use braid::Value;
        u64::from_value_bytes(braid::Bytes::copy_from_slice(bytes)).unwrap()
    };
    let write = |change: &braid::changes::Change| {
        let table = match change.table.as_deref() {
            Some("accounts") => 0,
            Some("extras") => 1,
            other => panic!("a change of {other:?}"),
        };
        let value = change.value.as_ref().map(|bytes| value(bytes));
        ((table, seqno(&change.key)), value)
    };
    sorted(set.changes.iter().map(write).collect())
}

fn accounts(state: &State) -> impl Iterator<Item = u64> {
    state
        .iter()
        .filter(|((table, _), _)| *table == 0)
        .map(|(_, balance)| *balance)
}

pub(crate) fn contents(db: &Database, tables: &Tables) -> State {
    let snapshot = db.snapshot();
    let mut state = State::new();
    for (table, rows) in [(0, &tables.accounts), (1, &tables.extras)] {
        for row in snapshot.iter(rows).unwrap() {
            let (key, value) = row.unwrap();
            state.insert((table, key), value);
        }
    }
    state
}

/// Runs `f` while threads write; each has written before `f` begins.
pub(crate) fn under_load<R>(db: &Database, model: &Model, seed: u64, f: impl FnOnce() -> R) -> R {
    const THREADS: u64 = 3;
    let stop = AtomicBool::new(false);
    let begun = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (stop, begun) = (&stop, &begun);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed << 8 | thread);
                let tables = tables(db).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    match model.transfer(db, &tables, &mut rng) {
                        Ok(()) => begun.fetch_add(1, Ordering::Relaxed),
                        Err(error) if error.is_retryable() => 0,
                        Err(error) => panic!("a writer fails: {error}"),
                    };
                }
            });
        }
        while begun.load(Ordering::Relaxed) < 20 * THREADS {
            std::thread::yield_now();
        }
        // Stops the threads even if `f` panics.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        f()
    })
}

/// Each protocol, with several lanes if it supports them.
pub(crate) fn builders() -> impl Iterator<Item = (Protocol, braid::Builder)> {
    Protocol::ALL.iter().map(|&protocol| {
        let several = protocol.forced_strands().is_none();
        let builder = Database::builder()
            .protocol(protocol)
            .strands(if several { 4 } else { 1 })
            .lanes(if several { 2 } else { 1 })
            .epoch(std::time::Duration::from_millis(1))
            .pool_bytes(4 << 20)
            .segment_bytes(256 << 10)
            .checkpoint_log_bytes(512 << 10);
        (protocol, builder)
    })
}

/// A database that needs little memory and no threads.
pub(crate) fn small() -> braid::Builder {
    Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(64 << 10)
}

/// A restore that needs little memory.
pub(crate) fn small_restore<'a>() -> braid::backup::Restore<'a> {
    braid::backup::Restore::new().pool_bytes(1 << 20)
}

pub(crate) fn open_restored(path: &std::path::Path) -> Result<Database, Error> {
    let builder = Database::builder().pool_bytes(4 << 20);
    builder.segment_bytes(256 << 10).open(path)
}

pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}
