//! Large values that are overwritten while snapshots can still see them: their pages are kept as
//! the old version, and are freed with the last snapshot, whatever checkpoints and crashes come in
//! between.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid::{Bytes, Database, Readable, Snapshot, Table};
use braid_io::{Device, MemoryDevice, SimDevice};
use braid_store::{Store, StoreOptions};

type State = BTreeMap<u8, Vec<u8>>;

fn open(device: Arc<dyn Device>) -> braid::Result<Database> {
    let builder = Database::builder().background_threads(false);
    builder
        .pool_bytes(1 << 20)
        .segment_bytes(1 << 20)
        .open_on(device)
}

/// Compares the contents that a reader shows with the expected ones; an error is the device's.
fn check(
    reader: &impl Readable,
    table: &Table<u8, Bytes>,
    state: &State,
    what: &str,
) -> braid::Result<()> {
    let all = || -> Vec<(u8, Vec<u8>)> { state.iter().map(|(k, v)| (*k, v.clone())).collect() };
    let entry = |entry: braid::Result<(u8, Bytes)>| entry.map(|(k, v)| (k, v.to_vec()));
    let forward: Vec<_> = reader.iter(table)?.map(entry).collect::<Result<_, _>>()?;
    assert!(forward == all(), "{what}, forward");
    let reverse = reader.iter(table)?.rev().map(entry);
    let mut reverse: Vec<_> = reverse.collect::<Result<_, _>>()?;
    reverse.reverse();
    assert!(reverse == all(), "{what}, in reverse");
    for key in 0..KEYS {
        let found = reader.get(table, &key)?;
        let same = found.as_deref() == state.get(&key).map(|value| &value[..]);
        assert!(same, "{what}, key {key}");
    }
    Ok(())
}

const KEYS: u8 = 12;

struct History {
    rng: fastrand::Rng,
    what: String,
    device: SimDevice,
    /// The committed state.
    state: State,
    /// The state if the last commit, whose outcome is unknown, took place.
    in_doubt: Option<State>,
}

impl History {
    fn value(&mut self) -> Vec<u8> {
        let len = match self.rng.u8(..) {
            0..150 => self.rng.usize(2_001..90_000),
            150..160 => self.rng.usize(90_000..300_000),
            _ => self.rng.usize(0..2_001),
        };
        let mut value = vec![0; len];
        self.rng.fill(&mut value);
        value
    }

    /// Runs a transaction; returns `false` if the power failed.
    fn transact(&mut self, db: &Database, table: &Table<u8, Bytes>) -> bool {
        let mut state = self.state.clone();
        let mut tx = db.begin();
        let mut write = |history: &mut Self, state: &mut State| -> braid::Result<()> {
            for _ in 0..history.rng.u32(1..4) {
                let key = history.rng.u8(..KEYS);
                if history.rng.u8(..) < 50 {
                    tx.remove(table, &key)?;
                    state.remove(&key);
                    continue;
                }
                let value = history.value();
                if history.rng.u8(..) < 40 {
                    let savepoint = tx.savepoint();
                    tx.insert(table, &key, &value)?;
                    tx.rollback_to(&savepoint)?;
                } else {
                    tx.insert(table, &key, &value)?;
                    state.insert(key, value);
                }
            }
            Ok(())
        };
        if write(self, &mut state).is_err() {
            return false;
        }
        if self.rng.u8(..) < 30 {
            tx.abort();
            return true;
        }
        match tx.commit() {
            Ok(_) => {
                self.state = state;
                true
            }
            Err(_) => {
                self.in_doubt = Some(state);
                false
            }
        }
    }

    /// Works until the power fails, or for some steps; returns `false` if it failed.
    fn work(&mut self, db: &Database) -> bool {
        let Ok(table) = db.open_table::<u8, Bytes>("t") else {
            return false;
        };
        let mut snapshots: Vec<(Snapshot, State)> = Vec::new();
        for _ in 0..self.rng.usize(10..80) {
            match self.rng.u8(..20) {
                0 if db.checkpoint().is_err() => return false,
                0 => {}
                1 | 2 => snapshots.push((db.snapshot(), self.state.clone())),
                3 | 4 if !snapshots.is_empty() => {
                    let (snapshot, state) =
                        snapshots.swap_remove(self.rng.usize(..snapshots.len()));
                    if let Err(error) = check(&snapshot, &table, &state, &self.what) {
                        assert!(self.device.has_crashed(), "{}: {error}", self.what);
                        return false;
                    }
                }
                _ if !self.transact(db, &table) => return false,
                _ => {}
            }
        }
        true
    }

    fn reopen(&mut self) -> Database {
        let device = Arc::new(self.device.clone());
        let db = open(device.clone()).unwrap();
        let table: Table<u8, Bytes> = db.open_table("t").unwrap();
        // The log decides the outcome of the commit in doubt.
        let snapshot = db.snapshot();
        let found = snapshot.iter(&table).unwrap();
        let found: State = found
            .map(|entry| entry.map(|(k, v)| (k, v.to_vec())).unwrap())
            .collect();
        let in_doubt = self.in_doubt.take();
        assert!(
            found == self.state || Some(&found) == in_doubt.as_ref(),
            "{}: the state is another one",
            self.what
        );
        drop(snapshot);
        self.state = found;
        db
    }

    /// Every block that a checkpoint allocates is in a tree or free.
    fn assert_sound(&self) {
        let options = StoreOptions::of_pool(1 << 20);
        let (store, _) = Store::open(Arc::new(self.device.clone()), options).unwrap();
        let mut found = Vec::new();
        store.verify(&mut |damage| found.push(damage.what)).unwrap();
        assert!(found.is_empty(), "{}: {found:?}", self.what);
    }
}

#[test]
fn snapshots_keep_their_values_through_checkpoints_and_crashes() {
    let first = fastrand::u64(..) >> 1;
    let mut crashes = 0;
    for seed in first..first + 25 {
        println!("seed {seed}");
        let mut history = History {
            rng: fastrand::Rng::with_seed(seed),
            what: format!("seed {seed}"),
            device: SimDevice::new(seed),
            state: State::new(),
            in_doubt: None,
        };
        for _ in 0..5 {
            let db = history.reopen();
            if history.rng.bool() {
                let steps = history.rng.u64(1..400);
                history.device.crash_after(steps);
            }
            let alive = history.work(&db);
            let closed = alive && history.rng.bool() && db.clone().close().is_ok();
            drop(db);
            crashes += u32::from(!closed);
            // If everything was done before the power failure was due, it does not happen in the
            // next open.
            history.device = history.device.after_crash();
            history.assert_sound();
        }
        history.reopen();
    }
    assert!(crashes > 15, "only {crashes} crashes");
}

#[test]
fn the_space_of_old_versions_is_reused() {
    let device = Arc::new(MemoryDevice::new());
    let db = open(device.clone()).unwrap();
    let table: Table<u8, Bytes> = db.open_table("t").unwrap();
    let fill = |byte: u8| {
        for key in 0..40 {
            db.transact(|tx| tx.insert(&table, &key, &vec![byte; 65_536]))
                .unwrap();
        }
    };
    let settle = || {
        // A commit collects some of the old versions.
        for _ in 0..6 {
            db.transact(|tx| tx.insert(&table, &100, b"small")).unwrap();
        }
        db.compact().unwrap();
        let stats = db.stats();
        assert!(stats.old_versions <= 1, "{} are left", stats.old_versions);
        (stats.store.pages, stats.store.file_bytes)
    };
    fill(0);
    let before = settle();
    let snapshots: Vec<Snapshot> = (1..5)
        .map(|byte| {
            let snapshot = db.snapshot();
            fill(byte);
            snapshot
        })
        .collect();
    db.checkpoint().unwrap();
    let stats = db.stats().store;
    let kept = 4 * 40 * 65_536 / stats.page_size as u64;
    assert!(stats.pages > before.0 + kept, "four versions are kept");
    // The values do not fit into the pool.
    assert!(stats.pool_pages < kept as usize);
    for (byte, snapshot) in (0..).zip(snapshots) {
        for key in 0..40 {
            let found = snapshot.get(&table, &key).unwrap();
            assert!(found.is_some_and(|value| value[..] == [byte; 65_536]));
        }
    }
    let after = settle();
    assert_eq!(after.0, before.0, "pages");
    let blocks = |bytes: u64| bytes / stats.page_size as u64;
    assert!(
        blocks(after.1) <= blocks(before.1) + 2,
        "{before:?}, {after:?}"
    );
}
