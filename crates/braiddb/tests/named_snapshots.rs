//! Named snapshots.

use std::sync::Arc;

use braid::device::MemoryDevice;
use braid::{Database, Error, Readable, Table};

#[test]
fn a_named_snapshot_is_the_same_for_all_until_the_last_lets_go() {
    let device = Arc::new(MemoryDevice::new());
    let builder = Database::builder().pool_bytes(1 << 20);
    let db = builder.clone().open_on(device.clone()).unwrap();
    let table: Table<u32, u32> = db.open_table("t").unwrap();
    let set = |value: u32| db.transact(|tx| tx.insert(&table, &1, &value)).unwrap();
    set(1);
    let created = db.create_snapshot("one").unwrap();
    set(2);
    let exists = db.create_snapshot("one");
    assert!(matches!(exists, Err(Error::SnapshotExists { name }) if name == "one"));
    drop(db.create_snapshot("two").unwrap());
    drop(created);
    (3..50).for_each(set);
    assert_eq!(db.snapshot_names(), ["one", "two"]);
    // On other threads, while versions are collected.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let (one, two) = (
                        db.open_snapshot("one").unwrap(),
                        db.open_snapshot("two").unwrap(),
                    );
                    assert_eq!(one.get(&table, &1).unwrap(), Some(1));
                    assert_eq!(two.get(&table, &1).unwrap(), Some(2));
                    set(100);
                }
            });
        }
    });
    let one = db.open_snapshot("one").unwrap();
    assert!(db.drop_snapshot("one") && !db.drop_snapshot("one"));
    let missing = db.open_snapshot("one");
    assert!(matches!(missing, Err(Error::SnapshotNotFound { name }) if name == "one"));
    (0..10).for_each(set);
    assert_eq!(one.get(&table, &1).unwrap(), Some(1));
    assert_eq!(db.stats().snapshots, 2);
    drop(one);
    assert_eq!(db.stats().snapshots, 1);
    db.drop_snapshot("two");
    assert_eq!(
        (db.stats().snapshots, db.stats().oldest_snapshot),
        (0, None)
    );
    db.create_snapshot("gone").unwrap();
    drop(table);
    let closed = db.clone();
    db.close().unwrap();
    assert!(matches!(closed.create_snapshot("late"), Err(Error::Closed)));
    drop(closed);
    let db = builder.open_on(device).unwrap();
    assert!(db.snapshot_names().is_empty());
    assert!(matches!(
        db.open_snapshot("gone"),
        Err(Error::SnapshotNotFound { .. })
    ));
}
