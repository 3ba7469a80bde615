//! The scenarios on other engines, as far as they have the operations. Every commit is durable,
//! those that prepare the data too.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::disturb_readers::PAUSE;
use super::disturb_versions::RENEWED;
use super::disturb_writes::{COLD_WRITES, STRIDE};
use super::report::HotKey;
use super::scenario::{LARGE, SMALL, Scenario, Sizes};
use super::stage::{BATCH, Disturbance};
use crate::BenchError;
use crate::engines::{
    self, KvEngine, Mode, OldState, Rows, Session, Stop, TableId, Transaction, Wait,
};
use crate::load::failure;

/// Name of the table that the disturbances write.
const TABLE: &str = "disturbed";

/// Number of times that a transaction is tried which conflicts.
const TRIES: u32 = 100;

/// An open engine with a scenario's data.
pub(super) struct PeerStage {
    pub(super) engine: Box<dyn KvEngine>,
    /// The table that the disturbances write, after those of the load.
    table: TableId,
    sizes: Sizes,
    seconds: Duration,
    dir: PathBuf,
}

impl PeerStage {
    /// Opens an engine in `dir`, which has no other files.
    pub(super) fn open(
        name: &str,
        dir: &Path,
        tables: &[String],
        sizes: Sizes,
        seconds: Duration,
    ) -> Result<Self, BenchError> {
        let names: Vec<&str> = tables.iter().map(String::as_str).chain([TABLE]).collect();
        Ok(PeerStage {
            engine: engines::open(name, &dir.join("database"), &names, sizes.pool_bytes)?,
            table: tables.len(),
            sizes,
            seconds,
            dir: dir.to_owned(),
        })
    }

    /// Prepares the data of a scenario, and what will disturb the load. Fails with
    /// [`BenchError::Unable`], before it loads anything, if the engine lacks the operation.
    pub(super) fn prepare(&self, scenario: Scenario) -> Result<Disturbance<'_>, BenchError> {
        let disturbance = match scenario {
            Scenario::Quiet => {
                let seconds = self.seconds;
                Disturbance::repeated(move || {
                    thread::sleep(seconds);
                    Ok(())
                })
            }
            Scenario::Checkpoints => self.checkpoints()?,
            Scenario::LargeTransaction => {
                let entries = self.sizes.transaction_entries();
                Disturbance::once(move || self.put(0..entries, LARGE))
            }
            Scenario::ScatteredWrites => self.scattered(self.sizes.scattered_writes())?,
            Scenario::ColdWrites => {
                let mut writes = self.scattered(COLD_WRITES)?;
                writes.repeats = true;
                writes
            }
            Scenario::BulkLoad => {
                self.bulk_load("tried", 1)?;
                Disturbance::once(|| self.bulk_load("loaded", self.sizes.table_entries()))
            }
            Scenario::DropTable => {
                self.bulk_load("dropped", self.sizes.table_entries())?;
                Disturbance::once(|| self.engine.operations().drop_table("dropped"))
            }
            Scenario::SnapshotVersions => self.end_of_snapshot(self.sizes.versions(), false)?,
            Scenario::SnapshotRemovals => self.end_of_snapshot(self.sizes.removals(), true)?,
            Scenario::Backup => self.backup()?,
            Scenario::Compaction => self.compaction()?,
            Scenario::Stats => {
                self.engine.operations().stats()?;
                Disturbance::repeated(|| {
                    self.engine.operations().stats()?;
                    thread::sleep(PAUSE);
                    Ok(())
                })
            }
            Scenario::Verify => {
                self.bulk_load("tried", 1)?;
                self.engine.operations().verify("tried")?;
                self.bulk_load("checked", self.sizes.table_entries())?;
                Disturbance::repeated(|| self.engine.operations().verify("checked"))
            }
            Scenario::HotKey => self.hot_key()?,
            Scenario::ExpiredEntries
            | Scenario::SlowFeed
            | Scenario::BufferedQuiet
            | Scenario::BufferedCheckpoints
            | Scenario::BufferedDrop => {
                return Err(BenchError::Unable {
                    engine: "another engine",
                    what: "such operation",
                });
            }
        };
        // RocksDB settles by compacting.
        if scenario != Scenario::Compaction {
            self.engine.settle()?;
        }
        Ok(disturbance)
    }

    fn checkpoints(&self) -> Result<Disturbance<'_>, BenchError> {
        self.engine.operations().checkpoint()?;
        let entries = self.sizes.checkpoint_entries();
        self.load(entries, SMALL)?;
        Ok(Disturbance::repeated(move || {
            self.in_batches((0..entries).step_by(STRIDE), SMALL)?;
            self.engine.operations().checkpoint()
        }))
    }

    /// One transaction overwrites random entries of a table larger than the cache.
    fn scattered(&self, writes: u64) -> Result<Disturbance<'_>, BenchError> {
        let entries = self.sizes.cold_entries();
        self.load(entries, SMALL)?;
        let mut rng = Rng::with_seed(7);
        Ok(Disturbance::once(move || {
            self.put((0..writes).map(|_| rng.u64(0..entries)), SMALL)
        }))
    }

    fn bulk_load(&self, name: &str, entries: u64) -> Result<(), BenchError> {
        let value_size = LARGE;
        self.engine.operations().bulk_load(
            name,
            Rows {
                entries,
                value_size,
            },
        )
    }

    fn end_of_snapshot(&self, entries: u64, removed: bool) -> Result<Disturbance<'_>, BenchError> {
        self.engine.operations().snapshot(self.table)?;
        self.load(entries, SMALL)?;
        let mut snapshot = Some(self.engine.operations().snapshot(self.table)?);
        if removed {
            self.remove(0..entries)?;
        } else {
            self.load(entries, SMALL)?;
        }
        Ok(Disturbance::once(move || {
            drop(snapshot.take());
            Ok(())
        }))
    }

    fn backup(&self) -> Result<Disturbance<'_>, BenchError> {
        self.engine.operations().backup(&self.dir.join("tried"))?;
        self.bulk_load("copied", self.sizes.table_entries())?;
        let copy = self.dir.join("backup");
        Ok(Disturbance::once(move || {
            self.engine.operations().backup(&copy)
        }))
    }

    /// The first half of a table is removed.
    fn compaction(&self) -> Result<Disturbance<'_>, BenchError> {
        let copy = self.dir.join("tried");
        self.engine.operations().compact(self.table, &copy)?;
        let entries = self.sizes.table_entries();
        self.load(entries, LARGE)?;
        self.remove(0..entries / 2)?;
        if let Err(error) = self.engine.operations().checkpoint()
            && !matches!(error, BenchError::Unable { .. })
        {
            return Err(error);
        }
        let copy = self.dir.join("compacted");
        Ok(Disturbance::once(move || {
            self.engine.operations().compact(self.table, &copy)
        }))
    }

    /// Sets the keys from 0 to random values.
    fn load(&self, entries: u64, value_size: usize) -> Result<(), BenchError> {
        self.in_batches(0..entries, value_size)
    }

    /// Sets keys in transactions of [`BATCH`].
    fn in_batches(
        &self,
        keys: impl Iterator<Item = u64> + Send,
        value_size: usize,
    ) -> Result<(), BenchError> {
        let mut keys = keys.peekable();
        self.on_a_thread(move |session| {
            while keys.peek().is_some() {
                put(session, self.table, keys.by_ref().take(BATCH), value_size)?;
            }
            Ok(())
        })
    }

    /// Sets keys in one transaction.
    fn put(
        &self,
        keys: impl Iterator<Item = u64> + Send,
        value_size: usize,
    ) -> Result<(), BenchError> {
        self.on_a_thread(move |session| put(session, self.table, keys, value_size))
    }

    /// Removes keys, in transactions of [`BATCH`].
    fn remove(&self, keys: impl Iterator<Item = u64> + Send) -> Result<(), BenchError> {
        let mut keys = keys.peekable();
        self.on_a_thread(move |session| {
            while keys.peek().is_some() {
                let batch: Vec<u64> = keys.by_ref().take(BATCH).collect();
                transact(session, |tx| {
                    let mut keys = batch.iter();
                    keys.try_for_each(|key| tx.delete(self.table, &key.to_be_bytes()))
                })?;
            }
            Ok(())
        })
    }

    /// Calls `work` on another thread: an engine may refuse a transaction on a thread that has a
    /// snapshot.
    fn on_a_thread(
        &self,
        work: impl FnOnce(&mut dyn Session) -> Result<(), BenchError> + Send,
    ) -> Result<(), BenchError> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| work(&mut *self.engine.session()?));
            thread.join().unwrap_or(Err(BenchError::Panicked))
        })
    }

    /// One thread updates a key, and another reads it at a snapshot that is renewed again and again,
    /// and then at one that is kept.
    fn hot_key(&self) -> Result<Disturbance<'_>, BenchError> {
        self.engine.operations().snapshot(self.table)?;
        self.put(0..1, SMALL)?;
        let figures = Arc::new(Mutex::new(HotKey::default()));
        let (before, during) = (Arc::clone(&figures), Arc::clone(&figures));
        let lock =
            |figures: &Mutex<HotKey>| *figures.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Disturbance {
            before: Some(Box::new(move || {
                let (updates, reads) = self.rates(RENEWED)?;
                let mut figures = before.lock().unwrap_or_else(PoisonError::into_inner);
                figures.fresh_updates_per_s = updates;
                figures.fresh_reads_per_s = reads;
                Ok(())
            })),
            run: Box::new(move || {
                let (updates, reads) = self.rates(usize::MAX)?;
                let mut figures = during.lock().unwrap_or_else(PoisonError::into_inner);
                figures.updates_per_s = updates;
                figures.reads_per_s = reads;
                Ok(())
            }),
            repeats: true,
            hot_key: Some(Box::new(move || lock(&figures))),
        })
    }

    /// Returns updates and reads per second of the key 0, with a new snapshot after this many reads.
    fn rates(&self, renewed: usize) -> Result<(f64, f64), BenchError> {
        let over = AtomicBool::new(false);
        let (updates, start) = (AtomicU64::new(0), Instant::now());
        let (updated, read) = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut session = self.engine.session()?;
                // Relaxed: only ends the threads, and a count.
                while !over.load(Ordering::Relaxed) {
                    put(&mut *session, self.table, 0..1, SMALL)?;
                    updates.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
            let reader = scope.spawn(|| self.read(renewed, &over));
            thread::sleep(self.seconds);
            over.store(true, Ordering::Relaxed);
            let updated = writer.join().unwrap_or(Err(BenchError::Panicked));
            (updated, reader.join().unwrap_or(Err(BenchError::Panicked)))
        });
        updated?;
        let seconds = start.elapsed().as_secs_f64();
        Ok((
            updates.into_inner() as f64 / seconds,
            read? as f64 / seconds,
        ))
    }

    fn read(&self, renewed: usize, over: &AtomicBool) -> Result<u64, BenchError> {
        let mut reads = 0;
        while !over.load(Ordering::Relaxed) {
            let mut snapshot = self.engine.operations().snapshot(self.table)?;
            for _ in 0..renewed {
                read(&mut *snapshot)?;
                reads += 1;
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        }
        Ok(reads)
    }
}

fn read(snapshot: &mut dyn OldState) -> Result<(), BenchError> {
    let found = snapshot.get(&0_u64.to_be_bytes(), &mut |value| {
        std::hint::black_box(value);
    });
    debug_assert!(matches!(found, Ok(true) | Err(_)));
    found.map(drop).map_err(failure)
}

/// Sets keys to random values, in one transaction.
fn put(
    session: &mut dyn Session,
    table: TableId,
    keys: impl Iterator<Item = u64>,
    value_size: usize,
) -> Result<(), BenchError> {
    let keys: Vec<u64> = keys.collect();
    let mut value = vec![0; value_size];
    let mut rng = Rng::new();
    transact(session, |tx| {
        keys.iter().try_for_each(|key| {
            rng.fill(&mut value);
            tx.put(table, &key.to_be_bytes(), &value)
        })
    })
}

/// Runs a writing transaction, again after a conflict.
fn transact(
    session: &mut dyn Session,
    mut body: impl FnMut(&mut dyn Transaction) -> Result<(), Stop>,
) -> Result<(), BenchError> {
    let mut tries = 0;
    loop {
        match session.transact(Mode::ReadWrite, Wait::Durable, &mut body) {
            Err(Stop::Conflict) if tries < TRIES => tries += 1,
            result => return result.map(drop).map_err(failure),
        }
    }
}
