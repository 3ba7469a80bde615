//! A data file that was larger is made as short as it can be, and a crash in the midst of that costs nothing.

use std::sync::Arc;

use braid::{Database, Readable, Table};
use braid_io::SimDevice;

fn builder() -> braid::Builder {
    Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(64 << 10)
}

/// A database most of whose entries were removed, and a table dropped.
fn holey(db: &Database) {
    let table: Table<u64, Vec<u8>> = db.table("t").unwrap();
    let gone: Table<u64, Vec<u8>> = db.table("gone").unwrap();
    for batch in 0..10 {
        db.transact(|tx| {
            (0..100).try_for_each(|i| {
                let key = batch * 100 + i;
                tx.insert(&gone, &key, &vec![1; 1000])?;
                tx.insert(&table, &key, &vec![key as u8; 1000])
            })
        })
        .unwrap();
    }
    db.checkpoint().unwrap();
    drop(gone);
    db.drop_table("gone").unwrap();
    db.transact(|tx| (0..900).try_for_each(|key| tx.remove(&table, &key).map(drop)))
        .unwrap();
}

#[track_caller]
fn expect_holds(db: &Database) {
    let table: Table<u64, Vec<u8>> = db.table("t").unwrap();
    let entries: Vec<(u64, Vec<u8>)> = db
        .snapshot()
        .iter(&table)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(entries.len(), 100);
    assert!(
        entries.iter().zip(900..).all(
            |((key, value), expected)| *key == expected && *value == vec![expected as u8; 1000]
        )
    );
    assert_eq!(db.table_names().unwrap(), ["t"]);
}

#[test]
fn the_file_shrinks_to_what_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let db = builder().open(dir.path()).unwrap();
    holey(&db);
    let file = dir.path().join("data.braid");
    let report = db.compact().unwrap();
    let after = file.metadata().unwrap().len();
    assert_eq!(report.bytes_after, after, "{report:?}");
    assert!(after < report.bytes_before / 4, "{report:?}");
    // Nothing but what is in use: a second one finds next to nothing.
    let again = db.compact().unwrap();
    assert!(again.bytes_after + 8 * 8192 >= after, "{again:?}");
    let stats = db.stats().store;
    assert!(stats.file_free_bytes <= 8 * 8192, "{stats:?}");
    expect_holds(&db);
    db.close().unwrap();
    let mut damages = Vec::new();
    braid::verify(dir.path(), &mut |damage| damages.push(damage)).unwrap();
    assert!(damages.is_empty(), "{damages:?}");
    expect_holds(&builder().open(dir.path()).unwrap());
}

#[test]
fn a_crash_at_any_step_leaves_everything() {
    let whole = SimDevice::new(5);
    let db = builder().open_on(Arc::new(whole.clone())).unwrap();
    holey(&db);
    db.sync().unwrap();
    let steps = whole.steps();
    db.compact().unwrap();
    let steps = whole.steps() - steps;
    drop(db);
    assert!(steps > 20, "{steps}");
    // Every step would take minutes; each third one, from another one on for each seed.
    for step in (steps % 3..steps).step_by(3) {
        let device = SimDevice::new(step);
        let db = builder().open_on(Arc::new(device.clone())).unwrap();
        holey(&db);
        db.sync().unwrap();
        device.crash_after(step);
        let _ = db.compact();
        drop(db);
        let device = device.after_crash();
        let db = builder()
            .open_on(Arc::new(device))
            .unwrap_or_else(|error| panic!("step {step}: {error}"));
        expect_holds(&db);
        let report = db.compact().unwrap();
        assert!(report.bytes_after < 2 << 20, "step {step}: {report:?}");
        expect_holds(&db);
    }
}
