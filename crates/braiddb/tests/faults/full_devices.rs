//! Devices and logs without room.

use std::collections::BTreeSet;
use std::sync::Arc;

use braid::{Bytes, Database, Error, Health, Readable, Table};
use braid_io::{Device, SimDevice};

use super::{assert_holds, fill, open_sim};

#[test]
fn a_full_device_stops_writes_with_its_error_and_space_brings_them_back() {
    let device = SimDevice::new(1);
    let db = open_sim(&device).unwrap();
    device.set_capacity(Some(device.used() + (1 << 20)));
    let (acknowledged, error) = fill(&db, 1_000, 5_000);
    assert!(matches!(error, Some(Error::OutOfSpace { .. })), "{error:?}");
    assert!(!acknowledged.is_empty());
    assert_holds(&db, &acknowledged);
    device.set_capacity(None);
    let (more, error) = fill(&db, 1_000, 50);
    assert!(error.is_none() && more.len() == 50);
    drop(db);
    let db = open_sim(&device.after_crash()).unwrap();
    assert_holds(&db, &acknowledged);
}

/// Opens a database with the smallest possible pool and a log that needs no more space, limits the
/// device to `room` more bytes, and fills the data file.
fn fill_data_file(device: &SimDevice, room: u64) -> (Database, BTreeSet<u64>) {
    let db = Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(1 << 20)
        .strands(1)
        .preallocated_log_bytes(16 << 20)
        .checkpoint_log_bytes(8 << 20)
        .max_log_bytes(16 << 20)
        .open_on(Arc::new(device.clone()))
        .unwrap();
    fill(&db, 1_000, 1_000);
    db.checkpoint().unwrap();
    device.set_capacity(Some(device.used() + room));
    let (acknowledged, error) = fill(&db, 2_500, 5_000);
    let Some(Error::OutOfSpace { what }) = error else {
        panic!("{error:?}");
    };
    assert!(what.contains("data.braid"), "{what}");
    (db, acknowledged)
}

/// Reads everything several times; it does not fit into the pool.
fn assert_readable(db: &Database, keys: &BTreeSet<u64>) {
    assert!(
        matches!(db.health(), Health::OutOfSpace { .. }),
        "{:?}",
        db.health()
    );
    for _ in 0..3 {
        assert_holds(db, keys);
        let snapshot = db.snapshot();
        let t: Table<u64, Bytes> = db.open_table("t").unwrap();
        assert_eq!(snapshot.range(&t, ..).unwrap().count(), 1_000);
    }
}

#[test]
fn a_full_data_file_with_a_small_pool_refuses_commits_and_is_read() {
    for room in [0, 100 << 10, 300 << 10, 1_000 << 10] {
        let device = SimDevice::new(room);
        let (db, acknowledged) = fill_data_file(&device, room);
        let t: Table<u64, Bytes> = db.open_table("t").unwrap();
        assert_readable(&db, &acknowledged);
        // The commit is refused before it is logged, at every attempt.
        let before = db.snapshot().seqno();
        for _ in 0..3 {
            let large = vec![1; 100_000];
            let refused = db.transact(|tx| tx.insert(&t, &2_000, &large)).unwrap_err();
            assert!(matches!(refused, Error::OutOfSpace { .. }), "{refused}");
        }
        assert_eq!(db.snapshot().seqno(), before);
        assert_readable(&db, &acknowledged);
        // Space on the medium is enough to continue.
        device.set_capacity(None);
        let (more, error) = fill(&db, 2_500, 1_000);
        assert!(error.is_none() && more.len() == 1_000, "{error:?}");
        assert!(matches!(db.health(), Health::Good));
        drop(db);
        assert_holds(&open_sim(&device.after_crash()).unwrap(), &more);
    }
}

#[test]
fn removals_and_checkpoints_make_room_in_a_full_data_file() {
    let device = SimDevice::new(1);
    let (db, acknowledged) = fill_data_file(&device, 300 << 10);
    let t: Table<u64, Bytes> = db.open_table("t").unwrap();
    // Fills the file until not even a checkpoint makes room for another entry.
    let mut key = 10_000;
    let mut in_vain = 0;
    while in_vain < 3 {
        in_vain += 1;
        db.checkpoint().unwrap();
        while db
            .transact(|tx| tx.insert(&t, &key, &vec![1; 1_000]))
            .is_ok()
        {
            (key, in_vain) = (key + 1, 0);
        }
    }
    // A checkpoint in between is enough: it frees the blocks of the one before.
    let with_checkpoints = |write: &dyn Fn() -> Result<(), Error>| {
        let is_done = |_| match write() {
            Ok(()) => true,
            Err(Error::OutOfSpace { .. }) => {
                db.checkpoint().unwrap();
                false
            }
            Err(error) => panic!("{error}"),
        };
        assert!((0..3).any(is_done), "there is room after checkpoints");
    };
    let removed: Vec<u64> = (10_000..key).chain(acknowledged).collect();
    for keys in removed.chunks(10) {
        with_checkpoints(&|| {
            db.transact(|tx| keys.iter().try_for_each(|key| tx.remove(&t, key).map(drop)))
        });
    }
    for key in 0..1_000 {
        with_checkpoints(&|| db.transact(|tx| tx.insert(&t, &key, &vec![1; 300])));
    }
    assert_eq!(db.snapshot().range(&t, ..).unwrap().count(), 1_000);
}

#[test]
fn a_log_limit_is_lifted_by_a_checkpoint() {
    let device = SimDevice::new(1);
    let db = Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(1 << 20)
        .strands(1)
        .checkpoint_log_bytes(1 << 20)
        .max_log_bytes(8 << 20)
        .open_on(Arc::new(device.clone()))
        .unwrap();
    let (acknowledged, error) = fill(&db, 8_000, 5_000);
    assert!(matches!(error, Some(Error::OutOfSpace { .. })), "{error:?}");
    assert_holds(&db, &acknowledged);
    db.checkpoint().unwrap();
    let (more, error) = fill(&db, 8_000, 100);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(more.len(), 100);
}

#[test]
fn log_files_are_preallocated_if_there_is_room() {
    let device = SimDevice::new(1);
    let open = |preallocated, most| {
        Database::builder()
            .background_threads(false)
            .pool_bytes(1 << 20)
            .segment_bytes(1 << 20)
            .strands(1)
            .checkpoint_log_bytes(1 << 20)
            .max_log_bytes(most)
            .preallocated_log_bytes(preallocated)
            .open_on(Arc::new(device.clone()))
    };
    let log_bytes = || {
        let entries = device.list().unwrap();
        let segments = entries.iter().filter(|e| e.name.ends_with(".seg"));
        segments.map(|e| e.len).sum::<u64>()
    };
    // In addition to the requested ones there are small ones from before.
    let are_there = || (8 << 20..9 << 20).contains(&log_bytes());
    let error = open(9 << 20, 8 << 20).unwrap_err();
    assert!(
        error.to_string().contains("preallocated_log_bytes"),
        "{error}"
    );
    let db = open(0, 0).unwrap();
    let (acknowledged, _) = fill(&db, 100, 50);
    db.close().unwrap();
    let before = log_bytes();
    // The open neither fills the medium nor harms the files there.
    device.set_capacity(Some(5 << 20));
    let error = open(8 << 20, 0).unwrap_err();
    assert!(matches!(error, Error::OutOfSpace { .. }), "{error:?}");
    assert!(
        log_bytes() <= before + (1 << 20),
        "{} of {before}",
        log_bytes()
    );
    device.set_capacity(None);
    let db = open(8 << 20, 0).unwrap();
    assert!(are_there(), "{}", log_bytes());
    assert_holds(&db, &acknowledged);
    // The log uses the preallocated files, and they outlive the checkpoint after which they are not
    // needed.
    for _ in 0..3 {
        let (_, error) = fill(&db, 8_000, 400);
        assert!(error.is_none(), "{error:?}");
        db.checkpoint().unwrap();
        assert!(are_there(), "{}", log_bytes());
    }
}
