//! Disturbances by old versions: ends of snapshots, expired entries, and a hot key.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use braid::{Database, Durability, Readable, Snapshot, TableOptions};

use super::report::HotKey;
use super::scenario::SMALL;
use super::stage::{Disturbance, Entries, Stage, in_batches, random_value};
use crate::BenchError;

/// Time to live of the entries that expire, which only the database's clock reaches.
const TIME_TO_LIVE: Duration = Duration::from_secs(3_600);

pub(super) fn snapshot_over_versions(stage: &Stage) -> Result<Disturbance<'static>, BenchError> {
    let (db, entries) = (stage.db(), stage.sizes.versions());
    let table = stage.load("updated", entries, SMALL, TableOptions::default())?;
    let mut snapshot = Some(db.snapshot());
    let value = random_value(SMALL);
    in_batches(&db, 0..entries, |tx, key| tx.insert(&table, &key, &value))?;
    Ok(Disturbance::once(move || {
        drop(snapshot.take());
        Ok(())
    }))
}

pub(super) fn snapshot_over_removals(stage: &Stage) -> Result<Disturbance<'static>, BenchError> {
    let (db, entries) = (stage.db(), stage.sizes.removals());
    let table = stage.load("removed", entries, SMALL, TableOptions::default())?;
    let mut snapshot = Some(db.snapshot());
    in_batches(&db, 0..entries, |tx, key| tx.remove(&table, &key).map(drop))?;
    Ok(Disturbance::once(move || {
        drop(snapshot.take());
        Ok(())
    }))
}

/// The maintenance thread starts to remove the entries at the same time.
pub(super) fn expired_entries(stage: &Stage) -> Result<Disturbance<'static>, BenchError> {
    let (db, advance) = (stage.db(), stage.clock());
    let options = TableOptions {
        time_to_live: Some(TIME_TO_LIVE),
        ..TableOptions::default()
    };
    drop(stage.load("expired", stage.sizes.expired(), SMALL, options)?);
    Ok(Disturbance::once(move || {
        advance(TIME_TO_LIVE + Duration::from_secs(1));
        db.remove_expired()?;
        Ok(())
    }))
}

/// Number of reads after which a snapshot is renewed.
pub(super) const RENEWED: usize = 1_000;

/// One thread updates a key, and another reads it at two snapshots that are renewed again and again.
/// Then one of the two is kept, which is the only difference.
pub(super) fn hot_key(stage: &Stage) -> Result<Disturbance<'static>, BenchError> {
    let (db, seconds) = (stage.db(), stage.seconds);
    let table: Entries = db.open_table("hot")?;
    db.transact(|tx| tx.insert(&table, &0, &random_value(SMALL)))?;
    let key = Arc::new(Hot { db, table });
    let figures = Arc::new(Mutex::new(HotKey::default()));
    let set = |figures: &Arc<Mutex<HotKey>>| {
        let figures = Arc::clone(figures);
        move |change: &mut dyn FnMut(&mut HotKey)| {
            change(&mut figures.lock().unwrap_or_else(PoisonError::into_inner));
        }
    };
    let (fresh, set_fresh) = (Arc::clone(&key), set(&figures));
    let set_old = set(&figures);
    // Kept until the load has ended, so that its end is not measured here.
    let mut kept = None;
    Ok(Disturbance {
        before: Some(Box::new(move || {
            let (updates, reads) = fresh.rates(None, seconds)?;
            set_fresh(&mut |figures| {
                figures.fresh_updates_per_s = updates;
                figures.fresh_reads_per_s = reads;
            });
            Ok(())
        })),
        run: Box::new(move || {
            let snapshot = kept.get_or_insert_with(|| key.db.snapshot());
            let (updates, reads) = key.rates(Some(snapshot), seconds)?;
            set_old(&mut |figures| {
                figures.updates_per_s = updates;
                figures.reads_per_s = reads;
            });
            Ok(())
        }),
        repeats: true,
        hot_key: Some(Box::new(move || {
            *figures.lock().unwrap_or_else(PoisonError::into_inner)
        })),
    })
}

struct Hot {
    db: Database,
    table: Entries,
}

impl Hot {
    /// Returns updates and reads per second, while the old snapshot is kept, if there is one.
    fn rates(&self, old: Option<&Snapshot>, seconds: Duration) -> Result<(f64, f64), BenchError> {
        let over = AtomicBool::new(false);
        let updates = AtomicU64::new(0);
        let start = Instant::now();
        let (updated, read) = thread::scope(|scope| {
            let writer = scope.spawn(|| self.update(&over, &updates));
            let reader = scope.spawn(|| self.read(old, &over));
            thread::sleep(seconds);
            // Relaxed: only ends the threads.
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

    fn update(&self, over: &AtomicBool, updates: &AtomicU64) -> Result<(), BenchError> {
        let mut value = random_value(SMALL);
        while !over.load(Ordering::Relaxed) {
            let n = updates.fetch_add(1, Ordering::Relaxed);
            value[..8].copy_from_slice(&n.to_le_bytes());
            let mut tx = self.db.begin();
            tx.set_durability(Durability::None);
            tx.insert(&self.table, &0, &value)?;
            tx.commit()?;
        }
        Ok(())
    }

    /// Reads at two snapshots in turn: at one that is always new, and at the old one or else at the
    /// previous new one. Returns the number of reads.
    fn read(&self, old: Option<&Snapshot>, over: &AtomicBool) -> Result<u64, BenchError> {
        let mut reads = 0;
        let mut newer = self.db.snapshot();
        while !over.load(Ordering::Relaxed) {
            let previous = std::mem::replace(&mut newer, self.db.snapshot());
            let older = old.unwrap_or(&previous);
            for snapshot in [older, &newer].into_iter().cycle().take(RENEWED) {
                snapshot.get_with(&self.table, &0, |value| debug_assert!(value.is_some()))?;
                reads += 1;
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        }
        Ok(reads)
    }
}
