//! Filling a database with the records of a workload.

use std::collections::VecDeque;

use braid::{Bytes, Database, Table};
use fastrand::Rng;

use crate::workload::Plan;
use crate::{BenchError, Spec};

/// Bytes of records that one loading transaction aims at: large enough that the cost of a commit
/// vanishes, small enough that the write set stays in the cache.
const BATCH_BYTES: usize = 1 << 20;

/// Loading transactions whose durability is still awaited.
const BATCHES_IN_FLIGHT: usize = 8;

/// Remembers, by the name of a table, how many records were loaded into it.
const CATALOGUE: &str = "bench-catalogue";

/// How far a load has come.
#[derive(Clone, Copy, Debug)]
pub struct LoadProgress {
    /// Records handed to the database so far.
    pub loaded: u64,
    /// Records in all.
    pub records: u64,
}

/// Fills the database with what `spec` needs and takes a checkpoint, unless an earlier run left the
/// same data there. Returns the number of records loaded now.
///
/// # Errors
/// Nonsensical options, or the database's error.
pub fn load(
    db: &Database,
    spec: &Spec,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<u64, BenchError> {
    spec.check()?;
    let catalogue: Table<String, u64> = db.table(CATALOGUE)?;
    let name = table_name(spec);
    if db.get(&catalogue, &name)? == Some(spec.records) {
        return Ok(0);
    }
    insert_records(db, &open_table(db, spec)?, spec, progress)?;
    db.sync()?;
    // The catalogue comes last, so that an interrupted load is done again.
    let mut tx = db.begin();
    tx.insert(&catalogue, &name, &spec.records)?;
    tx.commit()?;
    db.checkpoint()?;
    Ok(spec.records)
}

/// The table of the records; its name says the shape, so that different shapes do not mix.
pub(crate) fn open_table(db: &Database, spec: &Spec) -> Result<Table<u64, Bytes>, BenchError> {
    Ok(db.table(&table_name(spec))?)
}

fn table_name(spec: &Spec) -> String {
    let family = if spec.workload.is_ycsb() {
        "ycsb"
    } else {
        "uniform"
    };
    format!("bench-{family}-{}-{}", spec.records, spec.value_size)
}

fn insert_records(
    db: &Database,
    table: &Table<u64, Bytes>,
    spec: &Spec,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(), BenchError> {
    let plan = Plan::new(spec.workload, spec.records, spec.zipf);
    // In key order: the tree then fills its pages from left to right, whatever the scattering.
    let mut keys: Vec<u64> = (0..spec.records).map(|ordinal| plan.key(ordinal)).collect();
    keys.sort_unstable();
    let batch = (BATCH_BYTES / (spec.value_size + 8)).max(1);
    let mut rng = Rng::with_seed(spec.seed);
    let mut value = vec![0; spec.value_size];
    let mut outstanding = VecDeque::with_capacity(BATCHES_IN_FLIGHT);
    let mut loaded = 0;
    for keys in keys.chunks(batch) {
        let mut tx = db.begin();
        for key in keys {
            rng.fill(&mut value);
            tx.insert(table, key, &value[..])?;
        }
        if outstanding.len() == BATCHES_IN_FLIGHT
            && let Some(oldest) = outstanding.pop_front()
        {
            wait(oldest)?;
        }
        outstanding.push_back(tx.commit_async()?);
        loaded += keys.len() as u64;
        progress(LoadProgress {
            loaded,
            records: spec.records,
        });
    }
    outstanding.into_iter().try_for_each(wait)
}

fn wait(ticket: braid::Ticket) -> Result<(), BenchError> {
    ticket.wait()?;
    Ok(())
}

/// The number of records in the table of `spec`, by a scan: for tests and checks.
#[cfg(test)]
pub(crate) fn count(db: &Database, spec: &Spec) -> Result<u64, BenchError> {
    use braid::Readable;

    let table = open_table(db, spec)?;
    let mut n = 0;
    for record in db.snapshot().iter(&table)? {
        record?;
        n += 1;
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Workload};
    use braid::DeviceChoice;

    #[test]
    fn loads_once_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        for workload in [Workload::U1, Workload::YcsbA] {
            let spec = Spec {
                records: 5_000,
                value_size: 600,
                ..Spec::new(workload)
            };
            let mut engine = Engine::new(dir.path().join(workload.name()), &spec);
            engine.device = DeviceChoice::Memory;
            let db = engine.open().unwrap();
            let mut seen = Vec::new();
            assert_eq!(
                load(&db, &spec, &mut |p| seen.push(p.loaded)).unwrap(),
                5_000
            );
            assert_eq!(seen.last(), Some(&5_000));
            assert!(seen.len() > 1 && seen.is_sorted(), "{seen:?}");
            assert_eq!(count(&db, &spec).unwrap(), 5_000);
            assert_eq!(
                load(&db, &spec, &mut |_| ()).unwrap(),
                0,
                "the data is there"
            );
            let other = Spec {
                records: 7,
                ..spec.clone()
            };
            assert_eq!(load(&db, &other, &mut |_| ()).unwrap(), 7, "another shape");
            assert_eq!(count(&db, &spec).unwrap(), 5_000);
            db.close().unwrap();
        }
    }
}
