//! A transaction that read ranges of two tables waits for earlier commits in either of them, and
//! for no others.

use std::sync::Arc;

use braid::device::MemoryDevice;
use braid::{Database, Readable, Table};
use braid_rt::{Mutex, simulation, thread};

type Numbers = Table<u64, u64>;

/// Returns whether the ranges are empty, and writes the answer to the third table, so that the
/// transaction must be serialized.
fn look(db: &Database, read: &[Numbers; 2], seen: &Numbers) -> Option<(u64, bool)> {
    let mut tx = db.begin();
    let mut is_empty = true;
    for table in read {
        is_empty &= tx.range(table, 0..10).unwrap().next().is_none();
    }
    tx.insert(seen, &1, &1).unwrap();
    let commit = tx.commit().ok()?;
    Some((commit.seqno(), is_empty))
}

#[test]
fn every_range_sees_earlier_commits() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..400 {
        let options = simulation::Options {
            seed,
            steps_max: 1_000_000,
            stalls: 0,
        };
        let (outcome, _) = simulation::run(&options, move || {
            let builder = Database::builder()
                .background_threads(false)
                .pool_bytes(1 << 20);
            let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
            let [a, b, seen, other] =
                ["a", "b", "seen", "other"].map(|name| db.open_table(name).unwrap());
            let wrote = Arc::new(Mutex::new(None));
            let writer = {
                let (db, wrote) = (db.clone(), wrote.clone());
                let into: Numbers = if seed % 2 == 0 { a.clone() } else { b.clone() };
                thread::spawn("writer", move || {
                    let mut tx = db.begin();
                    tx.insert(&into, &5, &5).unwrap();
                    tx.insert(&other, &5, &5).unwrap();
                    *wrote.lock() = Some(tx.commit().unwrap().seqno());
                })
            };
            let looked = look(&db, &[a, b], &seen);
            writer.unwrap().join().unwrap();
            (looked, wrote.lock().unwrap())
        });
        let (looked, wrote) = outcome.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        let Some((looked, is_empty)) = looked else {
            continue;
        };
        assert_eq!(is_empty, looked < wrote, "seed {seed}: {looked}, {wrote}");
        *(if is_empty { &mut after } else { &mut before }) += 1;
    }
    assert!(before > 0 && after > 0, "{before} before, {after} after");
}
