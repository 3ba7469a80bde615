//! Nonblocking snapshots and transactions: their reads fail instead of waiting for the medium.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid::{
    Bytes, Database, Error, Isolation, Readable, Result, Snapshot, Table, TransactionOptions,
};
use braid_io::{Layer, LayeredDevice, MemoryDevice};

const KEYS: u32 = 4_000;

/// Counts the reads of the data file.
#[derive(Clone, Debug, Default)]
struct Reads(Arc<AtomicU64>);

impl Layer for Reads {
    fn before_read(&self, name: &str, _range: Range<u64>) {
        if name == "data.braid" {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Reads {
    fn take(&self) -> u64 {
        self.0.swap(0, Ordering::SeqCst)
    }
}

/// A value, of which some have pages of their own.
fn value(key: u32) -> Vec<u8> {
    let len = if key.is_multiple_of(50) {
        20_000
    } else {
        1_000
    };
    vec![key as u8; len]
}

/// A database that is several times as large as its pool.
fn filled() -> Result<(Database, Table<u32, Bytes>, Reads)> {
    let reads = Reads::default();
    let device = LayeredDevice::over(Arc::new(MemoryDevice::new()), reads.clone());
    let builder = Database::builder()
        .pool_bytes(1 << 20)
        .background_threads(false);
    let db = builder.open_on(Arc::new(device))?;
    let table = db.open_table("t")?;
    for begin in (0..KEYS).step_by(100) {
        db.transact(|tx| {
            (begin..begin + 100).try_for_each(|key| tx.insert(&table, &key, &value(key)[..]))
        })?;
        db.checkpoint()?;
    }
    reads.take();
    Ok((db, table, reads))
}

fn would_block(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::WouldBlock)
}

/// Reads a key, with an ordinary snapshot if it is not in memory. Returns whether that was needed.
fn read(
    nonblocking: &Snapshot,
    ordinary: &Snapshot,
    table: &Table<u32, Bytes>,
    key: u32,
    reads: &Reads,
) -> Result<bool> {
    reads.take();
    match nonblocking.get(table, &key) {
        Ok(found) => {
            assert_eq!(found.unwrap(), value(key));
            assert_eq!(reads.take(), 0);
            Ok(false)
        }
        Err(error) => {
            assert!(would_block(&error), "{error}");
            assert_eq!(reads.take(), 0);
            assert_eq!(ordinary.get(table, &key)?.unwrap(), value(key));
            assert!(reads.take() > 0);
            Ok(true)
        }
    }
}

#[test]
fn a_nonblocking_snapshot_reads_memory_only() -> Result<()> {
    let (db, table, reads) = filled()?;
    let (mut nonblocking, ordinary) = (db.snapshot(), db.snapshot());
    nonblocking.set_nonblocking(true);
    let mut cold = 0;
    for key in (0..KEYS).step_by(37) {
        cold += u32::from(read(&nonblocking, &ordinary, &table, key, &reads)?);
        // Now it is in memory, also its own pages if it is large.
        assert!(!read(&nonblocking, &ordinary, &table, key, &reads)?);
    }
    assert!(cold > KEYS / 37 / 2, "{cold}");
    Ok(())
}

#[test]
fn a_nonblocking_range_ends_with_an_error_where_memory_ends() -> Result<()> {
    let (db, table, reads) = filled()?;
    let mut snapshot = db.snapshot();
    snapshot.set_nonblocking(true);
    for begin in (0..KEYS).step_by(500) {
        // The first of these are in memory.
        db.snapshot().get(&table, &begin)?;
        reads.take();
        let mut range = snapshot.range(&table, begin..)?;
        let found = range.by_ref().take_while(|entry| entry.is_ok()).count();
        let found = found as u32;
        assert!(found > 0 && begin + found < KEYS, "{found}");
        assert!(range.next().is_none());
        let mut back = snapshot.range(&table, ..)?.rev();
        let last = back.find_map(|entry| entry.err()).unwrap();
        assert!(would_block(&last), "{last}");
        let prefetched = [begin, KEYS - begin];
        snapshot.prefetch(&table, &prefetched)?;
        assert_eq!(reads.take(), 0);
    }
    snapshot.set_nonblocking(false);
    assert_eq!(snapshot.len(&table)?, u64::from(KEYS));
    assert!(reads.take() > 0);
    Ok(())
}

/// The refusal ends with each read, so the thread's other reads wait.
#[test]
fn others_of_the_same_thread_still_wait() -> Result<()> {
    let (db, table, _) = filled()?;
    let mut snapshot = db.snapshot();
    snapshot.set_nonblocking(true);
    for key in 0..KEYS {
        let outcome = snapshot.get(&table, &key);
        assert!(outcome.map_or_else(|error| would_block(&error), |found| found.is_some()));
        let (far, other) = ((key * 7) % KEYS, (key * 13) % KEYS);
        assert!(db.get(&table, &far)?.is_some());
        db.transact(|tx| {
            let found = tx.get(&table, &other)?;
            tx.insert(&table, &other, &found.unwrap()[..])
        })?;
    }
    Ok(())
}

/// Every read of a transaction, and what it leaves of the transaction.
#[test]
fn a_nonblocking_transaction_reads_memory_only() -> Result<()> {
    let (db, table, reads) = filled()?;
    let mut cold = 0;
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        for key in (0..KEYS).step_by(31) {
            let mut tx = db.begin_with(TransactionOptions {
                isolation,
                ..TransactionOptions::default()
            });
            tx.set_nonblocking(true);
            let far = (key * 7 + 1_000) % KEYS;
            reads.take();
            tx.prefetch(&table, &[key, far])?;
            let found = match key % 3 {
                0 => tx.get(&table, &key),
                1 => tx.get_for_update(&table, &key),
                _ => tx
                    .range(&table, key..)?
                    .next()
                    .unwrap()
                    .map(|(_, value)| Some(value)),
            };
            assert_eq!(reads.take(), 0);
            let found = found.or_else(|error| {
                assert!(would_block(&error), "{error}");
                cold += 1;
                tx.set_nonblocking(false);
                tx.get(&table, &key)
            })?;
            assert_eq!(found.unwrap(), value(key));
            // It continues.
            tx.insert(&table, &far, &value(far)[..])?;
            tx.commit()?;
            assert_eq!(db.get(&table, &far)?.unwrap(), value(far));
        }
    }
    assert!(cold > KEYS / 31, "{cold}");
    Ok(())
}
