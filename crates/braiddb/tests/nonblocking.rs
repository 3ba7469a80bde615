//! Nonblocking snapshots and transactions: their reads fail instead of waiting for the medium.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use braid::{
    Bytes, Database, Error, Isolation, Readable, Result, Snapshot, Table, Transaction,
    TransactionOptions,
};
use braid_io::{Layer, LayeredDevice, MemoryDevice};

const KEYS: u32 = 4_000;

thread_local! {
    static READS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the reads of the data file by each thread.
#[derive(Clone, Debug, Default)]
struct Reads;

impl Layer for Reads {
    fn before_read(&self, name: &str, _range: Range<u64>) {
        if name == "data.braid" {
            READS.set(READS.get() + 1);
        }
    }
}

impl Reads {
    fn take(&self) -> u64 {
        READS.take()
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
    filled_with(false)
}

fn filled_with(background_threads: bool) -> Result<(Database, Table<u32, Bytes>, Reads)> {
    let reads = Reads;
    let device = LayeredDevice::over(Arc::new(MemoryDevice::new()), reads.clone());
    let builder = Database::builder()
        .pool_bytes(1 << 20)
        .background_threads(background_threads);
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
    matches!(error, Error::NotInMemory(_))
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
        let outcome = snapshot.prefetch(
            &table,
            &[500, 1_500, 2_500, 3_500].map(|far| (begin + far) % KEYS),
        );
        assert!(outcome.is_err_and(|error| would_block(&error)));
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
            if let Err(error) = tx.prefetch(&table, &[key, far]) {
                assert!(would_block(&error), "{error}");
            }
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
            tx.set_nonblocking(false);
            tx.insert(&table, &far, &value(far)[..])?;
            tx.commit()?;
            assert_eq!(db.get(&table, &far)?.unwrap(), value(far));
        }
    }
    assert!(cold > KEYS / 31, "{cold}");
    Ok(())
}

/// Runs something until everything that it needs is in memory. Returns its result, and how often pages were
/// loaded.
fn load_until_done<T>(
    db: &Database,
    reads: &Reads,
    mut run: impl FnMut() -> Result<T>,
) -> Result<(T, usize)> {
    for loads in 0.. {
        reads.take();
        let outcome = run();
        assert_eq!(reads.take(), 0);
        match outcome {
            Err(Error::NotInMemory(pages)) => {
                assert!(pages.len() > 0);
                db.load_pages(&pages)?;
            }
            done => return Ok((done?, loads)),
        }
    }
    unreachable!()
}

/// The tree has three levels at most, and one of its nodes may leave the pool while another is loaded.
#[test]
fn a_key_needs_few_loads() -> Result<()> {
    let (db, table, reads) = filled()?;
    let mut total = 0;
    for key in (0..KEYS).step_by(25) {
        let (_, loads) = load_until_done(&db, &reads, || {
            let mut tx = db.begin();
            tx.set_nonblocking(true);
            assert_eq!(tx.get_for_update(&table, &key)?.unwrap(), value(key));
            tx.insert(&table, &key, &value(key)[..])?;
            tx.set_durability(braid::Durability::None);
            tx.commit().map(drop)
        })?;
        // Every second value has three pages of its own, which are loaded together.
        assert!(loads <= 4, "{key}: {loads}");
        total += loads;
    }
    let mean = total as f64 / f64::from(KEYS / 25);
    assert!((0.8..2.5).contains(&mean), "{mean}");
    Ok(())
}

/// The leaf that is missing comes with the next ones.
#[test]
fn a_range_needs_few_loads() -> Result<()> {
    let (db, table, reads) = filled()?;
    let mut total = 0;
    for begin in [0, 700, 2_100] {
        let keys = begin..begin + 300;
        let read = |tx: &Transaction, is_reverse: bool| -> Result<Vec<u32>> {
            let range = tx.range(&table, keys.clone())?;
            let mut found: Vec<u32> = if is_reverse {
                range
                    .rev()
                    .map(|entry| Ok(entry?.0))
                    .collect::<Result<_>>()?
            } else {
                range.map(|entry| Ok(entry?.0)).collect::<Result<_>>()?
            };
            found.sort_unstable();
            Ok(found)
        };
        for is_reverse in [false, true] {
            // Reads of distant keys evict the range.
            let mut far = (begin + 1_000..begin + 3_500).map(|key| key % KEYS);
            far.try_for_each(|key| db.get(&table, &key).map(drop))?;
            let (found, loads) = load_until_done(&db, &reads, || {
                let mut tx = db.begin();
                tx.set_nonblocking(true);
                read(&tx, is_reverse)
            })?;
            assert!(found.into_iter().eq(keys.clone()));
            // Some 45 leaves, and six values with pages of their own.
            assert!(loads <= 20, "{loads}");
            total += loads;
        }
    }
    assert!(total > 20, "{total}");
    Ok(())
}

#[test]
fn prefetched_keys_are_loaded_together() -> Result<()> {
    let (db, table, reads) = filled()?;
    let mut snapshot = db.snapshot();
    snapshot.set_nonblocking(true);
    let mut most = 0;
    for begin in 0..20 {
        let keys: Vec<u32> = (0..12).map(|i| (begin * 97 + i * 331 + 1) % KEYS).collect();
        let ((), loads) = load_until_done(&db, &reads, || {
            snapshot.prefetch(&table, &keys)?;
            keys.iter()
                .try_for_each(|key| snapshot.get(&table, key).map(drop))
        })?;
        most = most.max(loads);
    }
    assert!((1..=5).contains(&most), "{most}");
    Ok(())
}

/// Blind writes find what is missing at the commit, which leaves no trace then.
#[test]
fn a_nonblocking_commit_loads_no_leaves() -> Result<()> {
    let (db, table, reads) = filled()?;
    let mut cold = 0;
    for begin in (0..KEYS).step_by(171) {
        let keys: Vec<u32> = (0..6).map(|i| (begin + i * 613) % KEYS).collect();
        let ((), loads) = load_until_done(&db, &reads, || {
            let mut tx = db.begin();
            tx.set_nonblocking(true);
            for key in &keys {
                tx.insert(&table, key, &b"new"[..])?;
            }
            tx.set_durability(braid::Durability::None);
            let committed = tx.commit().map(drop);
            if committed.is_err() {
                // No lock is left, and nothing has changed.
                let mut tx = db.begin();
                tx.set_nonblocking(true);
                let old = tx.get_for_update(&table, &keys[0]);
                match old {
                    Ok(old) => assert_eq!(old.unwrap(), value(keys[0])),
                    Err(error) => assert!(would_block(&error), "{error}"),
                }
            }
            committed
        })?;
        assert!(loads <= 6, "{loads}");
        cold += usize::from(loads > 0);
        db.transact(|tx| {
            keys.iter().try_for_each(|key| {
                assert_eq!(tx.get(&table, key)?.unwrap(), &b"new"[..]);
                tx.insert(&table, key, &value(*key)[..])
            })
        })?;
    }
    assert!(cold > 10, "{cold}");
    assert!(matches!(db.health(), braid::Health::Good));
    Ok(())
}

/// What a transaction has read may be evicted before its commit compares it with the present state.
#[test]
fn a_nonblocking_commit_reads_nothing_again() -> Result<()> {
    let (db, table, reads) = filled()?;
    let mut failed = 0;
    for writes in [false, true] {
        for key in (0..KEYS).step_by(333) {
            db.get(&table, &key)?;
            let mut tx = db.begin();
            tx.set_nonblocking(true);
            if tx.get(&table, &key).is_err() {
                continue;
            }
            if writes {
                tx.insert(&table, &KEYS, &b"new"[..])?;
            }
            let far = (1_000..3_000).map(|i| (key + i) % KEYS);
            far.for_each(|key| drop(db.get(&table, &key)));
            reads.take();
            match tx.commit_async() {
                Ok(_) => {}
                Err(error) => {
                    assert!(would_block(&error), "{error}");
                    failed += 1;
                }
            }
            assert_eq!(reads.take(), 0);
        }
    }
    assert!(failed > 5, "{failed}");
    Ok(())
}

/// Commits purge what earlier ones have removed, and merge small leaves with their neighbours.
#[test]
fn a_commit_that_collects_reads_no_neighbours() -> Result<()> {
    let (db, table, reads) = filled_with(true)?;
    // Every second key is far from the one before.
    for at in 0..KEYS {
        let key = at / 2 + at % 2 * (KEYS / 2);
        load_until_done(&db, &reads, || {
            let mut tx = db.begin();
            tx.set_nonblocking(true);
            tx.remove(&table, &key)?;
            tx.commit_async().map(drop)
        })?;
    }
    assert_eq!(db.begin().range(&table, ..)?.count(), 0);
    Ok(())
}
