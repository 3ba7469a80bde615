//! The limit on the memory of old versions, which ends snapshots.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;

use braid::device::MemoryDevice;
use braid::{
    Builder, Bytes, Database, Error, Isolation, Readable, Result, Snapshot, Table,
    TransactionOptions,
};

const LIMIT: usize = 256 << 10;
const KEYS: u64 = 3_000;

const SNAPSHOT: TransactionOptions = TransactionOptions {
    isolation: Isolation::Snapshot,
    durability: braid::Durability::Immediate,
    lock_timeout: None,
};

fn builder() -> Builder {
    Database::builder().strands(2).pool_bytes(8 << 20)
}

/// Opens a database whose commits apply the limit themselves, so that it holds after each.
fn open(limit: usize) -> (Database, Table<u64, Bytes>) {
    let builder = builder().background_threads(false);
    let limited = builder.max_version_bytes(limit);
    let db = limited.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let table = db.open_table("t").unwrap();
    (db, table)
}

fn value(byte: u8) -> Vec<u8> {
    vec![byte; 100]
}

/// Overwrites all keys, each in a transaction of its own.
fn fill(db: &Database, table: &Table<u64, Bytes>, byte: u8) {
    for key in 0..KEYS {
        db.transact(|tx| tx.insert(table, &key, &value(byte)))
            .unwrap();
    }
}

/// One transaction, which makes earlier ones visible to collection.
fn settle(db: &Database, table: &Table<u64, Bytes>) {
    for _ in 0..20 {
        db.transact(|tx| tx.insert(table, &KEYS, &value(0)))
            .unwrap();
    }
}

#[track_caller]
fn assert_ended<T>(result: Result<T>, snapshot: &Snapshot) {
    match result {
        Err(Error::SnapshotTooOld { seqno, max }) => {
            assert_eq!((seqno, max), (snapshot.seqno(), LIMIT));
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the snapshot is still open"),
    }
}

#[test]
fn the_oldest_snapshot_ends_when_old_versions_exceed_the_limit() {
    let (db, table) = open(LIMIT);
    fill(&db, &table, 1);
    let old = db.snapshot();
    let seqno = old.seqno();
    let half = |byte: u8| {
        for key in 0..KEYS / 4 {
            db.transact(|tx| tx.insert(&table, &key, &value(byte)))
                .unwrap();
        }
    };
    half(2);
    let newer = db.snapshot();
    assert_eq!(db.stats().snapshots_ended, 0);
    assert_eq!(old.get(&table, &0).unwrap().unwrap(), value(1));
    for round in 0..3 {
        for key in KEYS / 4..KEYS {
            db.transact(|tx| tx.insert(&table, &key, &value(3)))
                .unwrap();
            let bytes = db.stats().old_version_bytes;
            assert!(
                bytes <= LIMIT + LIMIT / 2,
                "round {round}, key {key}: {bytes} bytes"
            );
        }
    }
    settle(&db, &table);
    let stats = db.stats();
    assert_eq!(stats.snapshots_ended, 2, "both need what was overwritten");
    assert_eq!((stats.snapshots, stats.oldest_snapshot), (0, None));
    assert!(stats.old_version_bytes < LIMIT / 8);
    assert_ended(old.get(&table, &0), &old);
    assert_ended(newer.get(&table, &0), &newer);
    // Also what no transaction has overwritten since, and what never existed.
    assert_ended(old.get(&table, &(KEYS - 1)), &old);
    assert_ended(old.get(&table, &(KEYS + 7)), &old);
    assert_ended(old.get_many(&table, &[1, 2]), &old);
    assert_ended(old.contains_key(&table, &1), &old);
    assert_ended(old.first(&table), &old);
    assert_ended(old.last(&table), &old);
    assert_ended(old.len(&table), &old);
    let text = old.get(&table, &0).unwrap_err();
    assert!(text.is_retryable());
    assert_eq!(
        text.to_string(),
        format!(
            "cannot use the snapshot at sequence number {seqno}: Braid ended it, because old versions took more than \
             262144 bytes; begin a new snapshot, or raise max_version_bytes"
        )
    );
    let latest = db.snapshot();
    assert_eq!(latest.get(&table, &0).unwrap().unwrap(), value(2));
    assert_eq!(latest.len(&table).unwrap(), KEYS + 1);
}

#[test]
fn a_newer_snapshot_stays_open_when_the_oldest_ends() {
    let (db, table) = open(LIMIT);
    fill(&db, &table, 1);
    let old = db.snapshot();
    for key in 0..KEYS / 3 {
        db.transact(|tx| tx.insert(&table, &key, &value(2)))
            .unwrap();
    }
    let newer = db.snapshot();
    // The first third again, so that the older snapshot needs as much as the newer one in addition.
    for byte in 3..5 {
        for key in 0..KEYS / 3 {
            db.transact(|tx| tx.insert(&table, &key, &value(byte)))
                .unwrap();
        }
    }
    settle(&db, &table);
    assert_ended(old.get(&table, &0), &old);
    let stats = db.stats();
    assert_eq!((stats.snapshots_ended, stats.snapshots), (1, 1));
    assert_eq!(stats.oldest_snapshot, Some(newer.seqno()));
    for entry in newer.iter(&table).unwrap() {
        let (key, found) = entry.unwrap();
        assert_eq!(found, value(if key < KEYS / 3 { 2 } else { 1 }), "{key}");
    }
}

#[test]
fn snapshots_do_not_end_without_a_limit() {
    let (db, table) = open(0);
    fill(&db, &table, 1);
    let old = db.snapshot();
    fill(&db, &table, 2);
    settle(&db, &table);
    let stats = db.stats();
    assert!(stats.old_version_bytes > KEYS as usize * 100);
    assert_eq!(stats.snapshots_ended, 0);
    assert_eq!(old.get(&table, &0).unwrap().unwrap(), value(1));
    drop(old);
    db.compact().unwrap();
    assert_eq!(db.stats().old_version_bytes, 0);
}

/// What a snapshot needs counts, not what was overwritten.
#[test]
fn versions_between_snapshots_end_none() {
    let (db, table) = open(LIMIT);
    for key in 0..500 {
        db.transact(|tx| tx.insert(&table, &key, &value(1)))
            .unwrap();
    }
    let old = db.snapshot();
    for byte in 2..30 {
        for key in 0..500 {
            db.transact(|tx| tx.insert(&table, &key, &value(byte)))
                .unwrap();
        }
    }
    assert_eq!(old.get(&table, &7).unwrap().unwrap(), value(1));
    assert_eq!(db.stats().snapshots_ended, 0);
}

/// Overwrites 20 keys with values of 30,000 bytes, each in a transaction of its own.
fn fill_large(db: &Database, table: &Table<u64, Bytes>, byte: u8) {
    for key in 0..20 {
        db.transact(|tx| tx.insert(table, &key, &vec![byte; 30_000]))
            .unwrap();
    }
}

#[test]
fn the_space_of_old_versions_includes_the_pages_of_large_values() {
    let (db, table) = open(0);
    fill_large(&db, &table, 1);
    let old = db.snapshot();
    let before = db.stats();
    fill_large(&db, &table, 2);
    let stats = db.stats();
    let pages = (stats.store.pages - before.store.pages) as usize * stats.store.page_size;
    let memory = stats.old_version_bytes - before.old_version_bytes - pages;
    assert!(pages >= 20 * 30_000 && memory < 20 * 200, "{memory}");
    assert_eq!(old.get(&table, &7).unwrap().unwrap(), vec![1; 30_000]);
    drop(old);
    db.compact().unwrap();
    assert_eq!(db.stats().old_version_bytes, 0);
}

#[test]
fn the_pages_of_large_values_end_a_snapshot() {
    let (db, table) = open(LIMIT);
    fill_large(&db, &table, 1);
    let pages = db.stats().store.pages;
    let old = db.snapshot();
    for byte in 2..6 {
        fill_large(&db, &table, byte);
        let stats = db.stats();
        let kept = (stats.store.pages - pages) as usize * stats.store.page_size;
        assert!(kept <= LIMIT + LIMIT / 2, "{kept} bytes of pages");
    }
    assert_ended(old.get(&table, &7), &old);
    assert_eq!(db.stats().snapshots_ended, 1);
    let latest = db.snapshot();
    assert_eq!(latest.get(&table, &7).unwrap().unwrap(), vec![5; 30_000]);
}

#[test]
fn removed_keys_count() {
    let (db, table) = open(LIMIT);
    let empty = db.snapshot();
    // Nothing existed when the snapshot was taken, so only the tombstones are kept for it.
    for key in 0..2 * KEYS {
        db.transact(|tx| {
            tx.insert(&table, &key, b"")?;
            tx.remove(&table, &key)
        })
        .unwrap();
        db.transact(|tx| tx.insert(&table, &key, b"")).unwrap();
        db.transact(|tx| tx.remove(&table, &key)).unwrap();
    }
    settle(&db, &table);
    assert_ended(empty.get(&table, &0), &empty);
}

#[test]
fn iterators_end_in_the_middle_of_a_scan() {
    let (db, table) = open(LIMIT);
    fill(&db, &table, 1);
    let bytes = as_bytes(&db);
    let old = db.snapshot();
    let mut forward = old.iter(&table).unwrap();
    let mut back = old.iter(&table).unwrap();
    let mut at_end = old.range(&table, KEYS - 2..).unwrap();
    let mut in_place = old.range(&bytes, ..).unwrap();
    assert_eq!(forward.next().unwrap().unwrap().0, 0);
    assert_eq!(back.next_back().unwrap().unwrap().0, KEYS - 1);
    assert_eq!(at_end.by_ref().take(2).count(), 2);
    assert_eq!(in_place.next_in_place().unwrap().unwrap().1, value(1));
    fill(&db, &table, 2);
    settle(&db, &table);
    assert_ended(forward.next().unwrap(), &old);
    assert!(forward.next().is_none());
    assert_ended(back.next_back().unwrap(), &old);
    assert!(back.next().is_none());
    // That there is no further entry is an answer, too.
    assert_ended(at_end.next().unwrap(), &old);
    let ended = in_place.next_in_place().unwrap().map(drop);
    assert_ended(ended, &old);
}

/// Opens a table whose keys and values are bytes.
fn as_bytes(db: &Database) -> Table<Bytes, Bytes> {
    let table: Table<Bytes, Bytes> = db.open_table("bytes").unwrap();
    for key in 0..KEYS {
        db.transact(|tx| tx.insert(&table, &key.to_be_bytes()[..], &value(1)))
            .unwrap();
    }
    table
}

#[test]
fn a_transaction_whose_snapshot_ended_commits_only_what_it_has_written() {
    let (db, table) = open(LIMIT);
    fill(&db, &table, 1);
    let mut tx = db.begin_with(SNAPSHOT);
    assert_eq!(tx.get(&table, &1).unwrap().unwrap(), value(1));
    tx.insert(&table, &(KEYS + 1), b"mine").unwrap();
    let mut range = tx.range(&table, 5..9).unwrap();
    assert_eq!(range.next().unwrap().unwrap().0, 5);
    db.transact(|other| other.remove(&table, &2)).unwrap();
    for byte in 2..4 {
        for key in 3..KEYS {
            db.transact(|other| other.insert(&table, &key, &value(byte)))
                .unwrap();
        }
    }
    settle(&db, &table);
    let is_ended = |error: Error| matches!(error, Error::SnapshotTooOld { max: LIMIT, .. });
    assert!(is_ended(range.next().unwrap().unwrap_err()));
    drop(range);
    assert!(is_ended(tx.get(&table, &1).unwrap_err()));
    assert!(is_ended(tx.get_for_update(&table, &1).unwrap_err()));
    // Key 2 was removed after the snapshot, and its tombstone is purged: no conflict can be found.
    assert!(is_ended(tx.insert(&table, &2, b"mine").unwrap_err()));
    tx.commit().unwrap();
    assert_eq!(db.get(&table, &(KEYS + 1)).unwrap().unwrap(), "mine");
    assert_eq!(db.get(&table, &2).unwrap(), None);
    // `transact` returns the error.
    let mut calls = 0;
    let outcome = db.transact_with(SNAPSHOT, |tx| {
        calls += 1;
        fill(&db, &table, 4);
        settle(&db, &table);
        tx.get(&table, &1).map(drop)
    });
    assert!(is_ended(outcome.unwrap_err()));
    assert_eq!(calls, 1);
}

/// Serializable transactions read the newest versions, however long they last.
#[test]
fn serializable_transactions_never_end() {
    let (db, table) = open(LIMIT);
    fill(&db, &table, 1);
    let old = db.snapshot();
    let tx = db.begin();
    assert_eq!(tx.get(&table, &KEYS).unwrap(), None);
    fill(&db, &table, 2);
    fill(&db, &table, 3);
    assert_ended(old.get(&table, &1), &old);
    assert_eq!(tx.get(&table, &1).unwrap().unwrap(), value(3));
    tx.commit().unwrap();
}

#[test]
fn a_named_snapshot_that_ended_can_be_created_again() {
    let (db, table) = open(LIMIT);
    fill(&db, &table, 1);
    let created = db.create_snapshot("monday").unwrap();
    fill(&db, &table, 2);
    settle(&db, &table);
    assert_ended(created.get(&table, &1), &created);
    assert_ended(db.open_snapshot("monday"), &created);
    assert_eq!(db.snapshot_names(), ["monday"]);
    assert!(db.drop_snapshot("monday"));
    let again = db.create_snapshot("monday").unwrap();
    assert_eq!(again.get(&table, &1).unwrap().unwrap(), value(2));
}

#[test]
fn the_background_thread_applies_the_limit() {
    let limited = builder().max_version_bytes(LIMIT);
    let db = limited.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let table: Table<u64, Bytes> = db.open_table("t").unwrap();
    fill(&db, &table, 1);
    let old = db.snapshot();
    // Ends when the background thread has ended the snapshot.
    let error = loop {
        fill(&db, &table, 2);
        if let Err(error) = old.get(&table, &0) {
            break error;
        }
    };
    assert!(matches!(error, Error::SnapshotTooOld { .. }));
    assert_eq!(db.stats().snapshots_ended, 1);
}

/// The rounds of the model: each transaction sets all keys to its round, or removes them.
const ROUND_KEYS: u64 = 40;

fn is_there(round: u64, key: u64) -> bool {
    key == 0 || !(round + key).is_multiple_of(3)
}

/// Large values have pages of their own, which are freed with the version.
fn round_value(round: u64, key: u64) -> Vec<u8> {
    let len = if key % 8 == 1 { 5_000 } else { 8 };
    let mut value = vec![round as u8; len];
    value[..8].copy_from_slice(&round.to_le_bytes());
    value
}

fn write_round(db: &Database, table: &Table<u64, Bytes>, round: u64) {
    db.transact(|tx| {
        for key in 0..ROUND_KEYS {
            if is_there(round, key) {
                tx.insert(table, &key, &round_value(round, key))?;
            } else {
                tx.remove(table, &key)?;
            }
        }
        Ok(())
    })
    .unwrap();
}

/// Compares what a reader returns with the model, until the snapshot ends. Returns the number of
/// reads.
fn read_until_ended(reader: &impl Readable, table: &Table<u64, Bytes>) -> usize {
    let mut reads = 0;
    let mut round = None;
    let mut read = || -> Result<()> {
        let first = reader.get(table, &0)?.expect("key 0 is always there");
        let seen = u64::from_le_bytes(first[..8].try_into().unwrap());
        let round = *round.get_or_insert(seen);
        assert_eq!(seen, round);
        for key in 0..ROUND_KEYS {
            let expected = is_there(round, key).then(|| round_value(round, key));
            let found = reader.get(table, &key)?;
            assert!(
                found == expected.map(Bytes::from),
                "{round} {key}: {found:?}"
            );
        }
        let mut wanted = (0..ROUND_KEYS).filter(|&key| is_there(round, key));
        for entry in reader.iter(table)? {
            let (key, found) = entry?;
            assert_eq!(Some(key), wanted.next(), "round {round}");
            assert!(found == round_value(round, key), "{round} {key}: {found:?}");
        }
        assert_eq!(wanted.next(), None, "round {round}");
        Ok(())
    };
    loop {
        match read() {
            Ok(()) => reads += 1,
            Err(Error::SnapshotTooOld { .. }) => return reads,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_read_is_right_or_fails_while_its_snapshot_ends() {
    for background in [false, true] {
        // Five rounds of large values, which take a page each, and of small ones.
        let builder = builder().max_version_bytes(225_000);
        let limited = builder.background_threads(background);
        let db = limited.open_on(Arc::new(MemoryDevice::new())).unwrap();
        let table: Table<u64, Bytes> = db.open_table("t").unwrap();
        write_round(&db, &table, 0);
        let (ended, reads) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..4)
                .map(|number| {
                    let (db, table, ended, reads) = (&db, &table, &ended, &reads);
                    scope.spawn(move || {
                        while ended.load(Ordering::Relaxed) < 60 {
                            let read = match number {
                                0 => read_until_ended(&db.begin_with(SNAPSHOT), table),
                                _ => read_until_ended(&db.snapshot(), table),
                            };
                            reads.fetch_add(read, Ordering::Relaxed);
                            ended.fetch_add(1, Ordering::Relaxed);
                            // A read without a snapshot never fails.
                            let newest = db.get(table, &0).unwrap().unwrap();
                            assert!(!newest.is_empty());
                        }
                    })
                })
                .collect();
            for round in 1.. {
                write_round(&db, &table, round);
                if readers.iter().all(ScopedJoinHandle::is_finished) {
                    break;
                }
            }
        });
        assert!(reads.into_inner() > 0, "some snapshots are read entirely");
        assert!(db.stats().snapshots_ended > 0);
    }
}
