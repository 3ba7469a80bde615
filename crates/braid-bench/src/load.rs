//! Loading of a workload's data into an engine.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::BenchError;
use crate::engines::{Acknowledgement, Body, KvEngine, Mode, Session, Stop, TableId, Wait};

/// Target size of the records of one loading transaction: large enough that the cost of a commit is
/// negligible, small enough that the write set stays in the cache.
const BATCH_BYTES: usize = 1 << 20;

/// Maximum number of loading transactions in flight.
const BATCHES_IN_FLIGHT: usize = 8;

/// Table that records, by the name of the data, how many records were loaded.
pub(crate) const CATALOGUE: &str = "bench-loads";

/// Progress of a load.
#[derive(Clone, Copy, Debug)]
pub struct LoadProgress {
    /// Number of records passed to the engine so far.
    pub loaded: u64,
    /// Total number of records.
    pub records: u64,
}

/// Returns the number of records of this size in one loading transaction.
pub(crate) fn batch(record_bytes: usize) -> usize {
    (BATCH_BYTES / record_bytes).max(1)
}

/// Calls `fill`, unless the `catalogue` says that the `records` records called `name` exist; brings
/// the engine into its state after long service, and records that they exist. Returns the number of
/// records loaded now. An engine that cannot read needs no data.
pub(crate) fn once(
    engine: &dyn KvEngine,
    catalogue: TableId,
    name: &str,
    records: u64,
    progress: &mut dyn FnMut(LoadProgress),
    fill: impl FnOnce(&mut Loader<'_>) -> Result<(), BenchError>,
) -> Result<u64, BenchError> {
    if !engine.abilities().reads {
        return Ok(0);
    }
    let mark = records.to_be_bytes();
    let mut session = engine.session()?;
    let mut is_loaded = false;
    session
        .get(catalogue, name.as_bytes(), &mut |found| {
            is_loaded = found == mark;
        })
        .map_err(failure)?;
    if is_loaded {
        return Ok(0);
    }
    let mut loader = Loader {
        session,
        outstanding: VecDeque::with_capacity(BATCHES_IN_FLIGHT),
        reached: LoadProgress { loaded: 0, records },
        progress,
    };
    fill(&mut loader)?;
    // Write the catalogue last, so that an interrupted load is repeated.
    let mut session = loader.finish()?;
    session
        .transact(Mode::ReadWrite, Wait::Durable, &mut |tx| {
            tx.put(catalogue, name.as_bytes(), &mark)
        })
        .map_err(failure)?;
    drop(session);
    engine.settle()?;
    Ok(records)
}

/// Prefixes of the keys of new records: no two clients of a driver have the same one, nor two
/// drivers on the same data.
#[derive(Default)]
pub(crate) struct Origins {
    driver: AtomicU32,
    clients: AtomicU32,
}

impl Origins {
    /// Counts a driver of the data called `name`, from 1.
    pub(crate) fn begin(
        &self,
        engine: &dyn KvEngine,
        catalogue: TableId,
        name: &str,
    ) -> Result<(), BenchError> {
        let key = format!("{name}-runs");
        let mut driver = 0;
        engine
            .session()?
            .transact(Mode::ReadWrite, Wait::Durable, &mut |tx| {
                driver = 1;
                tx.get_for_update(catalogue, key.as_bytes(), &mut |row| {
                    driver = row.try_into().map_or(1, u32::from_be_bytes).wrapping_add(1);
                })?;
                tx.put(catalogue, key.as_bytes(), &driver.to_be_bytes())
            })
            .map_err(failure)?;
        // Relaxed: the clients' threads start later.
        self.driver.store(driver, Ordering::Relaxed);
        self.clients.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the driver's number and that of a new client.
    pub(crate) fn client(&self) -> (u32, u32) {
        // Relaxed: the numbers only have to differ.
        let client = self.clients.fetch_add(1, Ordering::Relaxed);
        (self.driver.load(Ordering::Relaxed), client)
    }
}

/// Writes batches of records to an engine.
pub(crate) struct Loader<'a> {
    session: Box<dyn Session + 'a>,
    outstanding: VecDeque<braid::Ticket>,
    reached: LoadProgress,
    progress: &'a mut dyn FnMut(LoadProgress),
}

impl<'a> Loader<'a> {
    /// Runs one transaction that writes this many records.
    pub(crate) fn batch(&mut self, records: u64, body: &mut Body<'_>) -> Result<(), BenchError> {
        let outcome = self.session.transact(Mode::ReadWrite, Wait::Ticket, body);
        if let Acknowledgement::Pending(ticket) = outcome.map_err(failure)? {
            if self.outstanding.len() == BATCHES_IN_FLIGHT
                && let Some(oldest) = self.outstanding.pop_front()
            {
                oldest.wait()?;
            }
            self.outstanding.push_back(ticket);
        }
        self.reached.loaded += records;
        (self.progress)(self.reached);
        Ok(())
    }

    fn finish(self) -> Result<Box<dyn Session + 'a>, BenchError> {
        for ticket in self.outstanding {
            ticket.wait()?;
        }
        Ok(self.session)
    }
}

/// Converts the failure of a transaction of a load or a check, which nothing should stop.
pub(crate) fn failure(stop: Stop) -> BenchError {
    match stop {
        Stop::Failed(error) => error,
        Stop::Conflict | Stop::RolledBack => BenchError::Alone(stop.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use crate::engines::{BraidEngine, KvEngine, Mode, Order, Wait};
    use crate::{Spec, Workload};
    use braid::Database;

    fn count(engine: &BraidEngine) -> u64 {
        let mut n = 0;
        let mut session = engine.session().unwrap();
        session
            .transact(Mode::ReadOnly, Wait::Durable, &mut |tx| {
                tx.scan(0, &[0; 8], &[0xff; 9], Order::Ascending, &mut |_, _| {
                    n += 1;
                    true
                })
            })
            .unwrap();
        n
    }

    #[test]
    fn loads_once_and_whole() {
        for workload in [Workload::U1, Workload::YcsbA] {
            let spec = Spec {
                records: 5_000,
                value_size: 600,
                ..Spec::new(workload)
            };
            let db = Database::in_memory().unwrap();
            let open = |spec: &Spec| {
                BraidEngine::new(db.clone(), &spec.driver().unwrap().tables()).unwrap()
            };
            let load = |spec: &Spec, progress: &mut dyn FnMut(u64)| {
                let driver = spec.driver().unwrap();
                driver
                    .load(&open(spec), &mut |p| progress(p.loaded))
                    .unwrap()
            };
            let mut seen = Vec::new();
            assert_eq!(load(&spec, &mut |loaded| seen.push(loaded)), 5_000);
            assert_eq!(seen.last(), Some(&5_000));
            assert!(seen.len() > 1 && seen.is_sorted(), "{seen:?}");
            assert_eq!(count(&open(&spec)), 5_000);
            assert_eq!(load(&spec, &mut |_| ()), 0, "the data is there");
            let other = Spec {
                records: 7,
                ..spec.clone()
            };
            assert_eq!(load(&other, &mut |_| ()), 7, "another shape");
            assert_eq!(count(&open(&spec)), 5_000);
            db.close().unwrap();
        }
    }
}
