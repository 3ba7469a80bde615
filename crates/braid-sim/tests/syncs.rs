//! Syncs of the data file while a checkpoint and a bulk load write it, of which one sync fails.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use braid::{Bytes, Database};
use braid_io::{File, Layer, LayeredDevice, MemoryDevice};
use braid_rt::{simulation, thread};

/// What the device has seen of syncs that may report each other's errors.
#[derive(Debug, Default)]
struct Seen {
    syncs: u64,
    in_progress: Vec<usize>,
    failed: Vec<usize>,
    overlapping: u64,
    after_failure: u64,
}

/// Lets the sync with a number fail, and lets all of them take time.
#[derive(Clone, Debug)]
struct Syncs {
    seen: Arc<Mutex<Seen>>,
    failing: u64,
}

impl Layer for Syncs {
    fn sync(&self, file: &dyn File) -> io::Result<()> {
        let file = std::ptr::from_ref(file).addr();
        let number = {
            let mut seen = self.seen.lock().unwrap();
            seen.overlapping += u64::from(seen.in_progress.contains(&file));
            seen.after_failure += u64::from(seen.failed.contains(&file));
            seen.in_progress.push(file);
            seen.syncs += 1;
            seen.syncs
        };
        for _ in 0..8 {
            simulation::yield_point();
        }
        let mut seen = self.seen.lock().unwrap();
        let at = seen.in_progress.iter().position(|other| *other == file);
        seen.in_progress.swap_remove(at.unwrap());
        if number == self.failing {
            seen.failed.push(file);
            return Err(io::Error::other("the sync fails"));
        }
        Ok(())
    }
}

/// Returns whether a sync failed while both were at work.
fn history(seed: u64) -> bool {
    let syncs = Syncs {
        seen: Arc::default(),
        // The first ones create the database.
        failing: 8 + seed % 12,
    };
    let device = LayeredDevice::over(Arc::new(MemoryDevice::new()), syncs.clone());
    let builder = Database::builder().pool_bytes(1 << 20).strands(1);
    let db = builder
        .background_threads(false)
        .open_on(Arc::new(device))
        .unwrap();
    let is_loaded = Arc::new(AtomicBool::new(false));
    let load = {
        let (db, is_loaded) = (db.clone(), is_loaded.clone());
        let load = move || {
            let mut loader = db.bulk_load::<u64, Bytes>("loaded")?;
            (0..400).try_for_each(|key| loader.insert(&key, &[1; 1_000][..]))?;
            loader.finish()
        };
        thread::spawn("load", move || {
            is_loaded.store(load().is_ok(), Ordering::SeqCst)
        })
    };
    let table = db.open_table::<u64, Bytes>("changed").unwrap();
    let checkpoints: Result<(), _> = (0..4).try_for_each(|_| {
        let keys = 0..60_u64;
        db.transact(|tx| {
            let mut keys = keys.clone();
            keys.try_for_each(|key| tx.insert(&table, &key, &[2; 1_000][..]))
        })?;
        db.checkpoint()
    });
    load.unwrap().join().unwrap();
    let seen = syncs.seen.lock().unwrap();
    assert_eq!(seen.overlapping, 0, "seed {seed}: I18");
    assert_eq!(seen.after_failure, 0, "seed {seed}: I18");
    !seen.failed.is_empty() && checkpoints.is_err() && !is_loaded.load(Ordering::SeqCst)
}

/// I18: the system reports a lost write to one of the syncs that wait for it.
#[test]
fn syncs_of_the_data_file_come_one_after_the_other() {
    let mut failed = 0;
    for seed in 0..60 {
        let options = simulation::Options {
            seed,
            steps_max: 2_000_000,
            stalls: 0,
        };
        let (result, _) = simulation::run(&options, move || history(seed));
        failed += u64::from(result.unwrap());
    }
    assert!(failed > 5, "{failed}");
}
