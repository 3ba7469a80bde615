//! Small databases that exercise all `unsafe` code: buffers that several threads fill, pages that
//! are read while they change, pooled contexts that keep their database alive. Small enough for
//! Miri; see docs/testing.md.

use std::sync::Arc;

use braid::device::MemoryDevice;
use braid::{Database, Error, Protocol, Readable, Table};

const THREADS: u64 = if cfg!(miri) { 2 } else { 8 };
const EACH: u64 = if cfg!(miri) { 4 } else { 200 };

fn open(device: &Arc<MemoryDevice>, protocol: Protocol) -> Database {
    Database::builder()
        .protocol(protocol)
        .strands(2)
        .pool_bytes(1 << 20)
        .segment_bytes(64 << 10)
        .open_on(device.clone())
        .unwrap()
}

/// Writes, reads and snapshots of several threads, a checkpoint, and recovery.
fn lives(protocol: Protocol) {
    let device = Arc::new(MemoryDevice::new());
    let db = open(&device, protocol);
    let t: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
    let value = |key: u64| vec![key as u8; 3 + key as usize % 70];
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, t) = (&db, &t);
            scope.spawn(move || {
                for i in 0..EACH {
                    let key = i * THREADS + thread;
                    db.transact(|tx| tx.insert(t, &key, &value(key))).unwrap();
                    let seen = db.snapshot().get(t, &key).unwrap();
                    assert_eq!(seen, Some(value(key)));
                }
            });
        }
        db.checkpoint().unwrap();
    });
    // Larger than a buffer of the log, and than a page.
    let large = vec![7; 40_000];
    db.transact(|tx| tx.insert(&t, &u64::MAX, &large)).unwrap();
    db.close().unwrap();

    let db = open(&device, protocol);
    let t: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
    let snapshot = db.snapshot();
    let all: Vec<_> = snapshot.iter(&t).unwrap().map(Result::unwrap).collect();
    let keys = (0..THREADS * EACH).map(|key| (key, value(key)));
    assert!(all.into_iter().eq(keys.chain([(u64::MAX, large)])));
}

#[test]
fn lives_of_glsn() {
    lives(Protocol::Glsn);
}

/// The protocol whose threads share one buffer.
#[test]
fn lives_of_aether() {
    lives(Protocol::Aether);
}

/// The last handle may be dropped before the transactions: their contexts keep the database's
/// memory alive, and the last context frees it from within.
#[test]
fn transactions_outlive_their_handle() {
    for closed in [false, true] {
        let device = Arc::new(MemoryDevice::new());
        let db = open(&device, Protocol::Glsn);
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        db.transact(|tx| tx.insert(&t, &1, &1)).unwrap();
        let mut left = [db.begin(), db.begin()];
        left[0].insert(&t, &2, &2).unwrap();
        if closed {
            db.close().unwrap();
        } else {
            drop(db);
        }
        let threads = left.map(|tx| std::thread::spawn(move || tx.commit().map(drop)));
        for result in threads.map(|thread| thread.join().unwrap()) {
            assert!(matches!(result, Ok(()) | Err(Error::Closed)), "{result:?}");
        }
        drop(t);
        let db = open(&device, Protocol::Glsn);
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        assert_eq!(db.get(&t, &1).unwrap(), Some(1));
    }
}
