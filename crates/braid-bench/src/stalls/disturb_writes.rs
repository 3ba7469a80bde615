//! Disturbances that write: checkpoints and large transactions.

use braid::{Database, TableOptions};
use fastrand::Rng;

use super::scenario::{LARGE, SMALL};
use super::stage::{Disturbance, Entries, Stage, in_batches, random_value};
use crate::BenchError;

/// One of this many small entries is changed, so that every leaf is.
pub(super) const STRIDE: usize = 40;

/// A table whose pages a checkpoint writes.
struct Dirt {
    db: Database,
    table: Entries,
    entries: u64,
    round: u64,
}

impl Dirt {
    /// Loads the table, and its pages into memory.
    fn new(stage: &Stage) -> Result<Self, BenchError> {
        let entries = stage.sizes.checkpoint_entries();
        let mut dirt = Dirt {
            db: stage.db(),
            table: stage.load("changing", entries, SMALL, TableOptions::default())?,
            entries,
            round: 0,
        };
        dirt.change()?;
        Ok(dirt)
    }

    /// Changes every page.
    fn change(&mut self) -> Result<(), BenchError> {
        self.round += 1;
        let mut value = random_value(SMALL);
        value[..8].copy_from_slice(&self.round.to_le_bytes());
        let table = &self.table;
        in_batches(&self.db, (0..self.entries).step_by(STRIDE), |tx, key| {
            tx.insert(table, &key, &value)
        })
    }
}

pub(super) fn checkpoints(stage: &Stage) -> Result<Disturbance<'static>, BenchError> {
    let mut dirt = Dirt::new(stage)?;
    Ok(Disturbance::repeated(move || {
        dirt.change()?;
        Ok(dirt.db.checkpoint()?)
    }))
}

/// The maintenance thread writes the checkpoints, because little log suffices for one.
pub(super) fn automatic_checkpoints(stage: &Stage) -> Result<Disturbance<'static>, BenchError> {
    let mut dirt = Dirt::new(stage)?;
    Ok(Disturbance::repeated(move || dirt.change()))
}

pub(super) fn large_transaction(stage: &Stage) -> Result<Disturbance<'static>, BenchError> {
    let (db, entries) = (stage.db(), stage.sizes.transaction_entries());
    let table: Entries = db.open_table("large-transaction")?;
    let value = random_value(LARGE);
    Ok(Disturbance::once(move || {
        let mut tx = db.begin();
        for key in 0..entries {
            tx.insert(&table, &key, &value)?;
        }
        tx.commit()?;
        Ok(())
    }))
}

/// Number of writes in each transaction to cold pages.
pub(super) const COLD_WRITES: u64 = 100;

pub(super) fn cold_writes(stage: &Stage) -> Result<Disturbance<'static>, BenchError> {
    let mut write = scattered(stage, COLD_WRITES)?;
    write.repeats = true;
    Ok(write)
}

pub(super) fn scattered_writes(stage: &Stage) -> Result<Disturbance<'static>, BenchError> {
    scattered(stage, stage.sizes.scattered_writes())
}

/// One transaction overwrites random entries of a table larger than the pool.
fn scattered(stage: &Stage, writes: u64) -> Result<Disturbance<'static>, BenchError> {
    let db = stage.db();
    let entries = stage.sizes.cold_entries();
    let table = stage.load("cold", entries, SMALL, TableOptions::default())?;
    let value = random_value(SMALL);
    let mut rng = Rng::with_seed(7);
    Ok(Disturbance::once(move || {
        let mut tx = db.begin();
        for _ in 0..writes {
            tx.insert(&table, &rng.u64(0..entries), &value)?;
        }
        tx.commit()?;
        Ok(())
    }))
}
