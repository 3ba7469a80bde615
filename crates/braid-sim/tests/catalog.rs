//! Lookups of names while tables are created and dropped: all threads that find a table get the
//! same one.

use std::sync::Arc;

use braid::device::MemoryDevice;
use braid::{Bytes, Database, Error, Readable, Table};
use braid_rt::{Mutex, simulation, thread};

fn open(device: &Arc<MemoryDevice>) -> Database {
    let builder = Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20);
    builder.open_on(device.clone()).unwrap()
}

/// Runs `test` with some orders of its threads' steps.
fn simulate(test: fn()) {
    for seed in 0..30 {
        let options = simulation::Options {
            seed,
            steps_max: 1_000_000,
            stalls: 0,
        };
        let (outcome, _) = simulation::run(&options, test);
        outcome.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

fn look(db: &Database) -> Option<Table<u64, Bytes>> {
    db.existing_table("t").unwrap()
}

/// A handle opened while the name was being assigned also knows when the table was created.
#[test]
fn a_loaded_table_shows_no_snapshot_more_than_it_may() {
    simulate(|| {
        let db = open(&Arc::default());
        let mut loader = db.bulk_load::<u64, Bytes>("t").unwrap();
        loader.insert(&1, &b"one"[..]).unwrap();
        let (early, looking) = (db.snapshot(), db.clone());
        let other = thread::spawn("looking", move || {
            loop {
                if let Some(table) = look(&looking) {
                    assert_eq!(early.iter(&table).unwrap().count(), 0);
                    return;
                }
                thread::yield_now();
            }
        });
        loader.finish().unwrap();
        other.unwrap().join().unwrap();
    });
}

#[test]
fn every_handle_knows_that_a_table_was_dropped() {
    simulate(|| {
        let device = Arc::default();
        let db = open(&device);
        db.open_table::<u64, Bytes>("t").unwrap();
        db.close().unwrap();
        // No thread has opened it yet.
        let db = open(&device);
        let (looking, found) = (db.clone(), Arc::new(Mutex::new(None)));
        let place = found.clone();
        let other = thread::spawn("looking", move || {
            let table = look(&looking);
            *place.lock() = table;
        });
        let own = look(&db);
        assert!(db.drop_table("t").unwrap());
        other.unwrap().join().unwrap();
        for table in own.iter().chain(&*found.lock()) {
            let written = db.transact(|tx| tx.insert(table, &1, &b"lost"[..]));
            assert!(matches!(written, Err(Error::TableDropped { .. })));
        }
        assert!(look(&db).is_none());
    });
}
