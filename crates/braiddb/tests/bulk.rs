//! Bulk loads: all or nothing, for every reader and after every crash.

use std::sync::Arc;

use braid::device::MemoryDevice;
use braid::{
    Bytes, ConflictKind, Database, Error, Isolation, MAX_KEY_LEN, Protocol, Readable, Table,
    TransactionOptions,
};
use braid_io::{Device, SimDevice};

fn open(device: Arc<dyn Device>) -> Result<Database, Error> {
    let builder = Database::builder()
        .pool_bytes(1 << 20)
        .segment_bytes(128 << 10)
        .background_threads(false);
    builder.open_on(device)
}

fn small() -> Database {
    open(Arc::new(MemoryDevice::new())).unwrap()
}

fn value(i: u32) -> Vec<u8> {
    vec![i as u8; if i.is_multiple_of(97) { 20_000 } else { 700 }]
}

fn load(db: &Database, name: &str, count: u32) -> Result<Table<u32, Bytes>, Error> {
    let mut loader = db.bulk_load::<u32, Bytes>(name)?;
    loader.extend((0..count).map(|i| (2 * i, value(i))))?;
    loader.finish()
}

fn check(db: &Database, table: &Table<u32, Bytes>, count: u32) -> Result<(), Error> {
    let mut expected = 0;
    for entry in db.snapshot().iter(table)? {
        let (key, found) = entry?;
        assert!(key == 2 * expected && found[..] == value(expected));
        expected += 1;
    }
    assert_eq!(expected, count);
    Ok(())
}

#[test]
fn a_loaded_table_is_like_any_other() {
    for &protocol in Protocol::ALL {
        let device = Arc::new(MemoryDevice::new());
        let builder = Database::builder().pool_bytes(1 << 20).protocol(protocol);
        let db = builder.clone().open_on(device.clone()).unwrap();
        let table = load(&db, "t", 3_000).unwrap();
        check(&db, &table, 3_000).unwrap();
        let before = db.snapshot();
        db.transact(|tx| {
            assert_eq!(tx.take(&table, &8)?.as_deref(), Some(&value(4)[..]));
            tx.insert(&table, &9, &b"nine"[..])?;
            tx.insert(&table, &10, &b"ten"[..])
        })
        .unwrap();
        assert_eq!(
            before.get(&table, &8).unwrap().as_deref(),
            Some(&value(4)[..])
        );
        assert_eq!(
            before.get(&table, &10).unwrap().as_deref(),
            Some(&value(5)[..])
        );
        assert_eq!(before.iter(&table).unwrap().count(), 3_000);
        drop((before, table));
        db.close().unwrap();
        let db = builder.open_on(device).unwrap();
        let table: Table<u32, Bytes> = db.open_table("t").unwrap();
        let found: Vec<u32> = db
            .snapshot()
            .range(&table, 6..13)
            .unwrap()
            .map(|e| e.unwrap().0)
            .collect();
        assert_eq!(found, [6, 9, 10, 12]);
    }
}

#[test]
fn earlier_transactions_see_nothing_of_it() {
    let db = small();
    let other: Table<u32, u32> = db.open_table("other").unwrap();
    db.transact(|tx| tx.insert(&other, &1, &1)).unwrap();
    let mut loader = db.bulk_load::<u32, Bytes>("t").unwrap();
    loader.insert(&1, &b"one"[..]).unwrap();
    // This commit gets a sequence number between those of the loaded records and of the table.
    db.transact(|tx| tx.insert(&other, &2, &2)).unwrap();
    let snapshot = db.snapshot();
    let options = TransactionOptions {
        isolation: Isolation::Snapshot,
        ..TransactionOptions::default()
    };
    let mut tx = db.begin_with(options);
    assert!(db.existing_table::<u32, Bytes>("t").unwrap().is_none());
    let table = loader.finish().unwrap();
    assert_eq!(snapshot.get(&table, &1).unwrap(), None);
    assert_eq!(snapshot.iter(&table).unwrap().count(), 0);
    assert_eq!(tx.get(&table, &1).unwrap(), None);
    assert_eq!(tx.range(&table, 0..9).unwrap().rev().count(), 0);
    let written = tx.insert(&table, &1, &b"mine"[..]);
    assert!(matches!(written, Err(Error::Conflict(ConflictKind::Write))));
    drop(tx);
    // Replacing a record does not make it visible to older readers.
    db.transact(|tx| tx.insert(&table, &1, &b"two"[..]))
        .unwrap();
    assert_eq!(snapshot.get(&table, &1).unwrap(), None);
    assert_eq!(snapshot.last(&table).unwrap(), None);
    assert_eq!(db.get(&table, &1).unwrap().as_deref(), Some(&b"two"[..]));
}

/// I4: returns whether the database has failed, so that it cannot know whether table "t" exists. As
/// long as the commit that names the table may be lost, no snapshot shows the loaded records, and a
/// working database reports no such table.
fn is_in_doubt(db: &Database) -> bool {
    match db.existing_table::<u32, Bytes>("t") {
        Err(Error::Poisoned { .. }) => true,
        found => {
            assert!(found.unwrap().is_none());
            false
        }
    }
}

#[test]
fn a_table_whose_name_may_be_lost_is_in_no_snapshot() {
    let mut in_doubt = 0;
    for steps in 0..100 {
        let device = SimDevice::new(steps);
        let db = open(Arc::new(device.clone())).unwrap();
        let mut loader = db.bulk_load::<u32, Bytes>("t").unwrap();
        loader.insert(&1, &b"one"[..]).unwrap();
        device.fail_write_after(steps);
        if !matches!(loader.finish(), Err(Error::Poisoned { .. })) {
            continue;
        }
        in_doubt += u32::from(is_in_doubt(&db));
    }
    assert!(in_doubt > 0);
}

#[test]
fn bad_entries_are_typed_errors_and_do_no_harm() {
    let db = small();
    let mut loader = db.bulk_load::<Bytes, Bytes>("t").unwrap();
    let order =
        |result: Result<(), Error>| assert!(matches!(result, Err(Error::OutOfOrder { .. })));
    loader.insert(&b""[..], &b"empty"[..]).unwrap();
    order(loader.insert(&b""[..], &b"again"[..]));
    loader.insert(&b"b"[..], &b"b"[..]).unwrap();
    order(loader.insert(&b"a"[..], &b"a"[..]));
    order(loader.insert(&b"b"[..], &b"b"[..]));
    let long = loader.insert(&vec![b'c'; MAX_KEY_LEN + 1], &b""[..]);
    assert!(matches!(long, Err(Error::KeyTooLong { .. })));
    loader.insert(&vec![b'c'; MAX_KEY_LEN], &b"c"[..]).unwrap();
    assert_eq!(loader.len(), 3);
    let table = loader.finish().unwrap();
    assert_eq!(db.snapshot().iter(&table).unwrap().count(), 3);
    let exists = |error| assert!(matches!(error, Error::TableExists { name } if name == "t"));
    exists(db.bulk_load::<u8, u8>("t").unwrap_err());
    let mut late = db.bulk_load::<u8, u8>("late").unwrap();
    late.insert(&1, &1).unwrap();
    db.rename_table("t", "late").unwrap();
    assert!(matches!(late.finish(), Err(Error::TableExists { .. })));
    assert_eq!(db.table_names().unwrap(), ["late"]);
    assert!(load(&db, "none", 0).unwrap().name() == "none");
    let closed = db.bulk_load::<u8, u8>("closed").unwrap();
    db.close().unwrap();
    assert!(matches!(closed.finish(), Err(Error::Closed)));
}

#[test]
fn a_loaded_directory_verifies() {
    let dir = tempfile::tempdir().unwrap();
    for finishes in [true, false] {
        let db = Database::builder()
            .pool_bytes(1 << 20)
            .open(dir.path())
            .unwrap();
        let mut loader = db.bulk_load::<u32, Bytes>(&format!("{finishes}")).unwrap();
        loader
            .extend((0..9_000).map(|i| (2 * i, value(i))))
            .unwrap();
        // Only the unfinished loader remains; it is the last handle.
        let unfinished = if finishes {
            loader.finish().unwrap();
            None
        } else {
            Some(loader)
        };
        drop(db);
        let mut damages = Vec::new();
        let report =
            braid::offline::verify(dir.path(), &mut |damage| damages.push(damage)).unwrap();
        assert_eq!(damages, [""; 0]);
        assert!(report.records > 9_000);
        drop(unfinished);
    }
}

/// Power fails at any step of a load, while other threads commit and write checkpoints. I4: a
/// snapshot shows only durable transactions, also on a database that has failed.
#[test]
fn a_table_whose_name_is_not_durable_is_in_no_snapshot() {
    let mut named = 0;
    for writes in 0..60 {
        let device = SimDevice::new(writes);
        let db = open(Arc::new(device.clone())).unwrap();
        device.fail_write_after(writes);
        if load(&db, "t", 10).is_ok() {
            continue;
        }
        named += u32::from(is_in_doubt(&db));
    }
    assert!(named > 0);
}

#[test]
fn a_crash_leaves_all_or_nothing() {
    let count = std::env::var("BRAID_HISTORIES").map_or(250, |n| n.parse().unwrap_or(250).min(250));
    let (mut nothing, mut all) = (0, 0);
    for seed in 0..count {
        let mut rng = fastrand::Rng::with_seed(seed);
        let device = SimDevice::new(seed);
        let db = open(Arc::new(device.clone())).unwrap();
        let other: Table<u32, u32> = db.open_table("other").unwrap();
        db.checkpoint().unwrap();
        let entries = rng.u32(0..2_500);
        device.crash_after(rng.u64(1..if seed.is_multiple_of(2) { 40 } else { 12 }));
        let mut certain = 0;
        let loaded = (|| {
            let mut loader = db.bulk_load::<u32, Bytes>("t")?;
            for i in 0..entries {
                loader.insert(&(2 * i), &value(i))?;
                if i.is_multiple_of(300) {
                    db.transact(|tx| tx.insert(&other, &0, &(i + 1)))?;
                    certain = i + 1;
                }
                if i.is_multiple_of(700) {
                    db.checkpoint()?;
                }
            }
            loader.finish().map(drop)
        })();
        let acknowledged = loaded.is_ok();
        drop((other, db));
        let device = device.after_crash();
        let db = open(Arc::new(device.clone())).unwrap();
        match db.existing_table::<u32, Bytes>("t").unwrap() {
            Some(table) => {
                all += 1;
                check(&db, &table, entries).unwrap();
                db.transact(|tx| tx.remove(&table, &0)).unwrap();
            }
            None => {
                nothing += 1;
                assert!(!acknowledged, "seed {seed}: what was loaded is lost");
                assert_eq!(load(&db, "t", 10).unwrap().name(), "t");
                db.drop_table("t").unwrap();
            }
        }
        let other: Table<u32, u32> = db.open_table("other").unwrap();
        let found = db.get(&other, &0).unwrap().unwrap_or(0);
        assert!(found >= certain, "seed {seed}");
        drop(other);
        db.drop_table("t").unwrap();
        db.close().unwrap();
        // After two more checkpoints, all space is free, wherever it was.
        for _ in 0..2 {
            let db = open(Arc::new(device.clone())).unwrap();
            db.checkpoint().unwrap();
            db.close().unwrap();
        }
        let db = open(Arc::new(device)).unwrap();
        let stats = db.stats().store;
        assert!(
            stats.pages <= 2 && stats.file_bytes < 200 << 10,
            "seed {seed}: {stats:?}"
        );
    }
    assert!(count < 250 || (nothing > 50 && all > 20), "{nothing} {all}");
}
