//! Compaction makes a data file as short as possible, and a crash during compaction costs nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid::{Database, Readable, Table};
use braid_io::SimDevice;

fn builder() -> braid::Builder {
    Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(64 << 10)
}

/// A database from which most entries were removed and one table was dropped.
fn holey(db: &Database) {
    let table: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
    let gone: Table<u64, Vec<u8>> = db.open_table("gone").unwrap();
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
    let table: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
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
fn the_file_shrinks_to_its_contents() {
    let dir = tempfile::tempdir().unwrap();
    let db = builder().open(dir.path()).unwrap();
    holey(&db);
    let file = dir.path().join("data.braid");
    let report = db.compact().unwrap();
    let after = file.metadata().unwrap().len();
    assert_eq!(report.bytes_after, after, "{report:?}");
    assert!(after < report.bytes_before / 4, "{report:?}");
    // The file contains only what is in use: a second compaction finds almost nothing.
    let again = db.compact().unwrap();
    assert!(again.bytes_after + 8 * 8192 >= after, "{again:?}");
    let stats = db.stats().store;
    assert!(stats.file_free_bytes <= 8 * 8192, "{stats:?}");
    expect_holds(&db);
    db.close().unwrap();
    let mut damages = Vec::new();
    braid::offline::verify(dir.path(), &mut |damage| damages.push(damage)).unwrap();
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
    // All steps would take minutes: every third one, with a different first step for each seed.
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

/// A table whose leaves are partly empty after inserts and removals in random order, and its
/// contents.
fn sparse(db: &Database, len: usize) -> BTreeMap<u64, Vec<u8>> {
    let mut rng = fastrand::Rng::with_seed(len as u64);
    let table: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
    let mut keys: Vec<u64> = (0..8_000_000 / (len as u64 + 1_000)).collect();
    rng.shuffle(&mut keys);
    let value = |key: u64| vec![key as u8; len + key as usize % 10];
    for keys in keys.chunks(100) {
        db.transact(|tx| {
            keys.iter()
                .try_for_each(|key| tx.insert(&table, key, &value(*key)))
        })
        .unwrap();
    }
    rng.shuffle(&mut keys);
    let removed = keys.split_off(keys.len() / 2);
    for keys in removed.chunks(100) {
        db.transact(|tx| {
            keys.iter()
                .try_for_each(|key| tx.remove(&table, key).map(drop))
        })
        .unwrap();
    }
    keys.into_iter().map(|key| (key, value(key))).collect()
}

fn contents(readable: &impl Readable, table: &Table<u64, Vec<u8>>) -> BTreeMap<u64, Vec<u8>> {
    readable.iter(table).unwrap().map(Result::unwrap).collect()
}

#[test]
fn leaves_that_are_partly_empty_are_filled() {
    for len in [8, 100, 900] {
        let dir = tempfile::tempdir().unwrap();
        let db = builder().open(dir.path()).unwrap();
        let expected = sparse(&db, len);
        let table: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
        let snapshot = db.snapshot();
        db.transact(|tx| tx.insert(&table, &u64::MAX, &vec![1]))
            .unwrap();
        let before = db.stats().store;
        db.compact().unwrap();
        assert_eq!(contents(&snapshot, &table), expected);
        drop(snapshot);
        db.transact(|tx| tx.remove(&table, &u64::MAX).map(drop))
            .unwrap();
        // This compaction also purges the tombstones.
        db.compact().unwrap();
        let after = db.stats().store;
        assert_eq!(contents(&db.snapshot(), &table), expected);
        // A bulk load fills its pages; compaction must need no more pages.
        let loaded = builder().open_on(Arc::new(SimDevice::new(1))).unwrap();
        let mut load = loaded.bulk_load::<u64, Vec<u8>>("t").unwrap();
        for (key, value) in &expected {
            load.insert(key, value).unwrap();
        }
        drop(load.finish().unwrap());
        let full = loaded.stats().store.pages;
        println!(
            "{len}: {} pages, {} then, {full} full",
            before.pages, after.pages
        );
        assert!(before.pages > full * 3 / 2, "{before:?}, {full}");
        assert!(after.pages <= full * 23 / 20 + 2, "{after:?}, {full}");
        assert!(
            after.file_bytes < after.pages * 8192 * 11 / 10 + 8 * 8192,
            "{after:?}"
        );
        drop(table);
        db.close().unwrap();
        let mut damages = Vec::new();
        braid::offline::verify(dir.path(), &mut |damage| damages.push(damage)).unwrap();
        assert!(damages.is_empty(), "{damages:?}");
        let db = builder().open(dir.path()).unwrap();
        let table: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
        assert_eq!(contents(&db.snapshot(), &table), expected);
    }
}

/// Leaves are filled while other threads read and write them.
#[test]
fn transactions_continue_while_leaves_are_filled() {
    let db = builder().open_on(Arc::new(SimDevice::new(3))).unwrap();
    let expected = sparse(&db, 100);
    let table: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
    let snapshot = db.snapshot();
    let most = *expected.last_key_value().unwrap().0;
    // Each thread has keys of its own.
    let work = |thread: u64| {
        let mut rng = fastrand::Rng::with_seed(thread);
        let mut own = BTreeMap::new();
        for i in 0..1_500 {
            let key = most * 2 + rng.u64(..2_000) * 2 + thread;
            let value = vec![i as u8; rng.usize(..300)];
            if rng.u32(..3) > 0 {
                db.transact(|tx| tx.insert(&table, &key, &value)).unwrap();
                own.insert(key, value);
            } else {
                db.transact(|tx| tx.remove(&table, &key).map(drop)).unwrap();
                own.remove(&key);
            }
            let key = rng.u64(..most);
            assert_eq!(db.get(&table, &key).unwrap().as_ref(), expected.get(&key));
        }
        own
    };
    let written = std::thread::scope(|scope| {
        let threads = [0, 1].map(|thread| scope.spawn(move || work(thread)));
        for _ in 0..4 {
            db.compact().unwrap();
            assert_eq!(contents(&snapshot, &table), expected);
        }
        threads.map(|thread| thread.join().unwrap())
    });
    let mut expected = expected.clone();
    written.into_iter().for_each(|own| expected.extend(own));
    db.compact().unwrap();
    assert_eq!(contents(&db.snapshot(), &table), expected);
}
