//! Syncs of the data file while a checkpoint and a bulk load write it, of which one sync fails.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use braid::{Bytes, Database};
use braid_io::{AlignedBuf, File, Layer, LayeredDevice, MemoryDevice};
use braid_rt::{simulation, thread};

/// What the device has seen of syncs that may report each other's errors.
#[derive(Debug, Default)]
struct Seen {
    syncs: u64,
    in_progress: u64,
    has_failed: bool,
    overlapping: u64,
    after_failure: u64,
}

/// Lets the sync of the data file with a number fail, and lets all of them take time.
#[derive(Clone, Debug)]
struct Syncs {
    seen: Arc<Mutex<Seen>>,
    failing: u64,
}

/// Whether a file begins with a superblock.
fn is_data(file: &dyn File) -> bool {
    let mut block = AlignedBuf::new(4096);
    file.read_at(&mut block, 0).is_ok() && block[8..15] == *b"BRAIDDB"
}

impl Layer for Syncs {
    fn sync(&self, file: &dyn File) -> io::Result<()> {
        if !is_data(file) {
            return file.sync();
        }
        let number = {
            let mut seen = self.seen.lock().unwrap();
            seen.overlapping += u64::from(seen.in_progress > 0);
            seen.after_failure += u64::from(seen.has_failed);
            seen.in_progress += 1;
            seen.syncs += 1;
            seen.syncs
        };
        // Simulated time, in which the other task runs.
        braid_rt::sleep(Duration::from_millis(5));
        let mut seen = self.seen.lock().unwrap();
        seen.in_progress -= 1;
        if number == self.failing {
            seen.has_failed = true;
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
        failing: 4 + seed % 12,
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
            (0..2_000).try_for_each(|key| loader.insert(&key, &[1; 1_000][..]))?;
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
    seen.has_failed && checkpoints.is_err() && !is_loaded.load(Ordering::SeqCst)
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
