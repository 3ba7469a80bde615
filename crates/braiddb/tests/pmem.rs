//! Databases in persistent memory, where a crash tears a write into words of eight bytes.

use std::collections::BTreeSet;
use std::sync::Arc;

use braid::{Builder, Database, Error, Protocol, Table};
use braid_io::{Device, SimDevice};

fn open(device: &SimDevice) -> Result<Database, Error> {
    device.set_block_size(64);
    Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(64 << 10)
        .open_on(Arc::new(device.clone()))
}

/// A creation recognizes its files by what is left of them: also by some words of a header.
#[test]
fn an_interrupted_creation_in_persistent_memory_starts_over() {
    for steps in 1..40 {
        for seed in 0..20 {
            let device = SimDevice::new(seed << 8 | steps);
            device.crash_after(steps);
            if open(&device).is_ok() {
                continue;
            }
            let image = device.after_crash();
            let db = open(&image).unwrap_or_else(|e| panic!("crash at step {steps}: {e}"));
            let table: Table<u64, u64> = db.open_table("t").unwrap();
            db.transact(|tx| tx.insert(&table, &1, &steps)).unwrap();
            assert_eq!(db.get(&table, &1).unwrap(), Some(steps));
        }
    }
}

/// A transaction that needs more space than the memory has fails, and the next one succeeds once
/// space is freed.
#[test]
fn full_persistent_memory_fails_one_transaction_and_works_again() {
    let device = SimDevice::new(1);
    let db = open(&device).unwrap();
    let table: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
    device.set_capacity(Some(device.used() + (512 << 10)));
    let mut stored = 0;
    let error = loop {
        let value = vec![7; 1000];
        match db.transact(|tx| tx.insert(&table, &stored, &value)) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100_000);
    };
    assert!(matches!(error, Error::OutOfSpace { .. }), "{error}");
    assert!(stored > 50, "{stored}");
    assert_eq!(
        db.get(&table, &(stored - 1)).unwrap().map(|v| v.len()),
        Some(1000)
    );
    assert_eq!(db.get(&table, &stored).unwrap(), None);
    device.set_capacity(None);
    // A checkpoint frees the log.
    db.checkpoint().unwrap();
    db.transact(|tx| tx.insert(&table, &stored, &vec![8; 1000]))
        .unwrap();
    drop(db);
    let db = open(&device).unwrap();
    let table: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
    assert_eq!(db.get(&table, &stored).unwrap(), Some(vec![8; 1000]));
    assert_eq!(db.get(&table, &0).unwrap(), Some(vec![7; 1000]));
}

/// Each strand has a lane, so that a thread flushes what it wrote itself.
#[test]
fn a_new_database_in_persistent_memory_has_a_lane_for_each_strand() {
    let lanes = |builder: Builder, block_size| {
        let device = SimDevice::new(2);
        device.set_block_size(block_size);
        let builder = builder.background_threads(false).pool_bytes(1 << 20);
        let db = builder
            .strands(3)
            .open_on(Arc::new(device.clone()))
            .unwrap();
        let table: Table<u64, u64> = db.open_table("t").unwrap();
        db.transact(|tx| tx.insert(&table, &1, &1)).unwrap();
        db.close().unwrap();
        let names = device.list().unwrap().into_iter().map(|entry| entry.name);
        let lanes = names.filter_map(|name| Some(name.strip_prefix("log-")?[..2].to_owned()));
        lanes.collect::<BTreeSet<_>>().len()
    };
    let builder = Database::builder;
    assert_eq!(lanes(builder(), 64), 3);
    assert_eq!(lanes(builder(), 4096), 1, "a disk");
    assert_eq!(lanes(builder().lanes(2), 64), 2);
    assert_eq!(lanes(builder().protocol(Protocol::Gsn), 64), 1);
    assert_eq!(lanes(builder().protocol(Protocol::Serial), 64), 1);
    assert_eq!(lanes(builder().max_log_bytes(1 << 30), 64), 1);
}
