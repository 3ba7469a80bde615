//! Batches of rows, written to a shared table by ingest or by an awaited transaction: either all
//! rows of a batch are present, or none.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use braid::{Bytes, Database, Error, Health, Readable, Result, Snapshot, Table};
use fastrand::Rng;

use super::{Checked, Shared};

/// The key that every batch overwrites.
const CONTENDED: u64 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its rows may be present.
    Open,
    /// It failed, or was lost in a crash: its rows are missing.
    Gone,
    /// Its rows were acknowledged, or seen by a snapshot.
    Durable,
}

#[derive(Clone, Copy, Debug)]
struct Batch {
    rows: u64,
    state: State,
}

/// The number of a batch in its history.
type Id = u32;

/// All batches of a history.
#[derive(Clone, Default)]
pub(crate) struct Batches(Shared<BTreeMap<Id, Batch>>);

/// Keys of different batches lie between each other.
fn key(id: Id, row: u64) -> u64 {
    (row + 1) << 32 | u64::from(id)
}

const TABLE: &str = "batches";

impl Batches {
    fn note(&self, id: Id, state: State) {
        self.0
            .lock()
            .get_mut(&id)
            .expect("the batch was started")
            .state = state;
    }

    /// Adds rows.
    pub(crate) fn add(&self, db: &Database, rng: &mut Rng) -> Result<()> {
        // With more than 64 writes a transaction acquires its locks in the commit.
        let rows = rng.u64(1..100);
        let state = State::Open;
        let id = {
            let mut batches = self.0.lock();
            let id = batches.len() as Id;
            batches.insert(id, Batch { rows, state });
            id
        };
        let added = self.write(db, id, rows, rng);
        match &added {
            Ok(()) => self.note(id, State::Durable),
            Err(Error::Conflict(_)) => self.note(id, State::Gone),
            Err(Error::OutOfSpace { .. }) if !is_poisoned(db) => self.note(id, State::Gone),
            Err(_) => {}
        }
        added
    }

    fn write(&self, db: &Database, id: Id, rows: u64, rng: &mut Rng) -> Result<()> {
        let table = db.open_table::<u64, Bytes>(TABLE)?;
        let value = id.to_le_bytes();
        let keys = (0..rows).map(|row| key(id, row));
        let keys = std::iter::once(CONTENDED).chain(keys);
        if rng.bool() {
            let entries = keys.map(|key| {
                braid_rt::yield_point();
                (key, value)
            });
            return db.ingest(&table, entries).map(drop);
        }
        block_on(db.transact_async(|tx| {
            let mut keys = keys.clone();
            keys.try_for_each(|key| tx.insert(&table, &key, &value))
        }))
    }

    /// Checks all batches in a snapshot.
    pub(crate) fn look(&self, db: &Database) -> Checked {
        let before = self.0.lock().clone();
        let seen = match db.existing_table(TABLE)? {
            Some(table) => seen(&db.snapshot(), &table)?,
            None => BTreeMap::new(),
        };
        for (id, rows) in &seen {
            let now = self.0.lock()[id];
            ensure!(
                *rows == now.rows,
                "I2: batch {id} has {rows} of {} rows",
                now.rows
            );
            ensure!(now.state != State::Gone, "batch {id} failed and is there");
            // I4: everything that a snapshot showed is durable.
            self.note(*id, State::Durable);
        }
        // With `gsn` a snapshot may be older than what was acknowledged once the log has failed.
        let has_failed = is_poisoned(db);
        for (id, batch) in before {
            let is_missing = batch.state == State::Durable && !seen.contains_key(&id);
            ensure!(has_failed || !is_missing, "I1: batch {id} is lost");
        }
        Ok(Ok(()))
    }

    /// Checks all batches after an opening.
    pub(crate) fn check_opened(&self, db: &Database) -> Checked {
        let looked = self.look(db)?;
        // A batch that recovery did not keep stays missing.
        let mut batches = self.0.lock();
        let open = batches.values_mut().filter(|b| b.state == State::Open);
        open.for_each(|batch| batch.state = State::Gone);
        Ok(looked)
    }
}

fn is_poisoned(db: &Database) -> bool {
    matches!(db.health(), Health::Poisoned { .. })
}

/// The number of rows of each batch.
fn seen(snapshot: &Snapshot, table: &Table<u64, Bytes>) -> Result<BTreeMap<Id, u64>> {
    let mut seen = BTreeMap::new();
    for entry in snapshot.iter(table)? {
        let (key, _) = entry?;
        if key != CONTENDED {
            *seen.entry(key as Id).or_default() += 1;
        }
    }
    Ok(seen)
}

/// Wakes the task that waits in [`block_on`].
#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(1, Ordering::Release);
        braid_rt::wake_all(&self.0);
    }
}

/// An executor of one future.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return outcome;
        }
        while woken.0.swap(0, Ordering::Acquire) == 0 {
            braid_rt::wait(&woken.0, 0);
        }
    }
}
