//! Bulk loads: either a whole table is present, or nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use braid::{Bytes, Database, Error, Health, Readable, Result, Table};
use fastrand::Rng;

use super::{Checked, Shared};
use crate::record::TxId;

/// A table that was loaded, or was about to be.
#[derive(Clone, Copy, Debug)]
struct Load {
    rows: u64,
    /// The table is visible only after this number.
    durable_before: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The table may be present.
    Loading,
    /// The load was refused: the table is missing.
    Refused,
    /// The load was acknowledged, or seen, which is also a promise.
    Loaded,
    /// Its first row is being removed, then the table.
    Going,
}

/// All tables of a history that were loaded, by their numbers.
#[derive(Clone, Default)]
pub(crate) struct Loads(Shared<BTreeMap<TxId, Load>>);

fn name(id: TxId) -> String {
    format!("load-{id}")
}

fn row(id: TxId, key: u64) -> Vec<u8> {
    let mut rng = Rng::with_seed(id ^ key << 20);
    let len = rng.usize(..200);
    std::iter::repeat_n(rng.u8(..), len).collect()
}

impl Loads {
    fn note(&self, id: TxId, state: State) {
        self.0
            .lock()
            .get_mut(&id)
            .expect("the load was started")
            .state = state;
    }

    /// Loads a table with the unique name `id`. Checks every other time that a snapshot from before
    /// the end of the load shows nothing of it.
    pub(crate) fn load(&self, db: &Database, id: TxId, rng: &mut Rng) -> Checked {
        // Some are larger than the pool.
        let rows = match rng.u32(..6) {
            0 => rng.u64(4_000..12_000),
            _ => rng.u64(1..400),
        };
        let load = Load {
            rows,
            durable_before: 0,
            state: State::Loading,
        };
        self.0.lock().insert(id, load);
        let mut early = None;
        let loaded = (|| {
            let mut loader = db.bulk_load::<u64, Bytes>(&name(id))?;
            for key in 0..rows {
                loader.insert(&key, &row(id, key)[..])?;
                if key % 256 == 0 {
                    braid_rt::yield_point();
                }
            }
            let durable_seqno = db.durable_seqno();
            self.0
                .lock()
                .get_mut(&id)
                .expect("the load was started")
                .durable_before = durable_seqno;
            // From its own generator, so that the other choices of a seed are unchanged. The rows
            // are older than the snapshot: only the table's own number hides them from it.
            early = Rng::with_seed(id).bool().then(|| db.snapshot());
            loader.finish()
        })();
        match loaded {
            Ok(table) => {
                self.note(id, State::Loaded);
                if let Some(early) = early {
                    let at = early.seqno();
                    ensure!(
                        !seen(&early, &table)?,
                        "I4: a snapshot at {at} shows {}, whose load had not ended",
                        name(id)
                    );
                }
                if rng.u32(..3) == 0 {
                    self.note(id, State::Going);
                    self.remove(db, &table)?;
                }
                Ok(Ok(()))
            }
            Err(error) => {
                if !matches!(error, Error::Poisoned { .. }) {
                    self.note(id, State::Refused);
                }
                Err(error)
            }
        }
    }

    /// Removes a row, so that the log refers to the table, and then the table.
    fn remove(&self, db: &Database, table: &Table<u64, Bytes>) -> Result<()> {
        let mut tx = db.begin();
        tx.remove(table, &0)?;
        tx.commit()?;
        db.drop_table(&table.name()).map(drop)
    }

    /// Checks a table that may be present.
    pub(crate) fn look(&self, db: &Database, rng: &mut Rng) -> Checked {
        let ids: Vec<TxId> = self.0.lock().keys().copied().collect();
        if ids.is_empty() {
            return Ok(Ok(()));
        }
        let id = ids[rng.usize(..ids.len())];
        let early = rng.bool().then(|| db.snapshot());
        if early.is_some() {
            braid_rt::sleep(Duration::from_micros(rng.u64(1..2_000)));
        }
        let before = self.0.lock()[&id];
        let stays = || before.state == State::Loaded && self.0.lock()[&id].state == State::Loaded;
        let Some(table) = db.existing_table::<u64, Bytes>(&name(id))? else {
            ensure!(!stays(), "{} was loaded and is not there", name(id));
            return Ok(Ok(()));
        };
        let is_late = early.is_none();
        let snapshot = early.unwrap_or_else(|| db.snapshot());
        let seen = seen(&snapshot, &table);
        let seen = match seen {
            Err(Error::TableDropped { .. }) => return Ok(Ok(())),
            seen => seen?,
        };
        if !seen {
            // The snapshot is older than the load, or the table's only row was removed; or the log
            // has failed, and with `gsn` a snapshot is then older than the acknowledged
            // transactions.
            let has_failed = matches!(db.health(), Health::Poisoned { .. });
            ensure!(
                has_failed || !(is_late && stays()),
                "{} was loaded and is empty",
                name(id)
            );
            return Ok(Ok(()));
        }
        let durable_before = self.0.lock()[&id].durable_before;
        ensure!(
            snapshot.seqno() > durable_before,
            "I4: a snapshot at {} shows {}, which came after {durable_before}",
            snapshot.seqno(),
            name(id)
        );
        let mut loads = self.0.lock();
        let load = loads.get_mut(&id).expect("the load was started");
        ensure!(
            load.state != State::Refused || before.state != State::Refused,
            "{} was refused and is there",
            name(id)
        );
        if load.state == State::Loading {
            // I4: everything that a snapshot showed is durable.
            load.state = State::Loaded;
        }
        drop(loads);
        self.whole(id, &snapshot, &table)
    }

    /// Checks that all rows are present, except the one that may be removed.
    fn whole(&self, id: TxId, reader: &impl Readable, table: &Table<u64, Bytes>) -> Checked {
        match self.rows(id, reader, table) {
            Err(Error::TableDropped { .. }) => Ok(Ok(())),
            checked => checked,
        }
    }

    fn rows(&self, id: TxId, reader: &impl Readable, table: &Table<u64, Bytes>) -> Checked {
        // Reads several rows together: in a table larger than the pool, they are read in batches.
        // The first row may be removed.
        let rows = self.0.lock()[&id].rows;
        let some: Vec<u64> = (1..rows).step_by(rows as usize / 24 + 1).collect();
        let found = reader.get_many(table, &some)?;
        for (&key, value) in some.iter().zip(found) {
            ensure!(
                value.as_deref() == Some(&row(id, key)[..]),
                "I2: {} has {value:?} as row {key}",
                name(id)
            );
        }
        let mut next = 0;
        for entry in reader.iter(table)? {
            let (key, value) = entry?;
            if next == 0 && key == 1 && self.0.lock()[&id].state == State::Going {
                next = 1;
            }
            ensure!(
                key == next && value == row(id, key),
                "I2: {} has row {key} after {next} others",
                name(id)
            );
            next += 1;
        }
        let load = self.0.lock()[&id];
        let alone = load.rows == 1 && load.state == State::Going;
        ensure!(
            next == load.rows || alone,
            "I2: {} has {next} of {} rows",
            name(id),
            load.rows
        );
        Ok(Ok(()))
    }

    /// Checks all tables after an opening.
    pub(crate) fn check_opened(&self, db: &Database) -> Checked {
        let loads = self.0.lock().clone();
        for (id, load) in loads {
            let table = db.existing_table::<u64, Bytes>(&name(id))?;
            let broken = match (&table, load.state) {
                (Some(_), State::Refused) => "was refused and is there",
                (None, State::Loaded) => "I1: was acknowledged and is lost",
                _ => "",
            };
            if !broken.is_empty() {
                return Ok(Err(format!("{}: {broken}", name(id))));
            }
            match table {
                Some(table) => {
                    if load.state == State::Loading {
                        self.note(id, State::Loaded);
                    }
                    if let Err(violation) = self.whole(id, &db.snapshot(), &table)? {
                        return Ok(Err(violation));
                    }
                }
                // The table stays missing.
                None => self.note(id, State::Refused),
            }
        }
        Ok(Ok(()))
    }
}

fn seen(reader: &impl Readable, table: &Table<u64, Bytes>) -> Result<bool> {
    reader
        .iter(table)?
        .next()
        .transpose()
        .map(|first| first.is_some())
}
