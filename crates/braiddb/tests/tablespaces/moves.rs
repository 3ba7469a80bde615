//! Moving tables between tablespaces.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use braid::backup::{Restore, Until};
use braid::{Compression, ConflictKind, Isolation, TableOptions, TransactionOptions};

use super::*;

pub(super) type Contents = BTreeMap<u64, Vec<u8>>;

fn read(reader: &impl Readable, table: &Table<u64, Bytes>) -> Contents {
    let entries = reader.iter(table).unwrap();
    let entries = entries.map(|entry| entry.map(|(key, value)| (key, value.to_vec())));
    entries.collect::<braid::Result<_>>().unwrap()
}

pub(super) fn contents(db: &Database, table: &Table<u64, Bytes>) -> Contents {
    read(&db.snapshot(), table)
}

/// A database with the table `t`, which has values of many sizes.
fn with_table(simulated: &Simulated) -> (Database, Table<u64, Bytes>, Contents) {
    let db = simulated.open().unwrap();
    simulated.create_all(&db).unwrap();
    let t = db.open_table("t").unwrap();
    let mut expected = Contents::new();
    for key in 0..600 {
        let len = if key % 100 == 7 {
            30_000
        } else {
            key as usize % 300
        };
        expected.insert(key, value(key, len));
    }
    db.transact(|tx| {
        let mut all = expected.iter();
        all.try_for_each(|(key, value)| tx.insert(&t, key, &value[..]))
    })
    .unwrap();
    (db, t, expected)
}

fn is_moved(error: &Error) -> bool {
    matches!(error, Error::Conflict(ConflictKind::Moved))
}

#[test]
fn handles_and_snapshots_go_on_while_a_table_moves() {
    let mut simulated = Simulated::new(1, 2);
    let (db, t, mut expected) = with_table(&simulated);
    db.transact(|tx| tx.remove(&t, &5)).unwrap();
    expected.remove(&5);
    let old = db.create_snapshot("before").unwrap();
    let before = expected.clone();
    db.transact(|tx| tx.insert(&t, &6, b"after the snapshot"))
        .unwrap();
    expected.insert(6, b"after the snapshot".to_vec());
    let snapshot = db.snapshot();
    let mut scan = snapshot.iter(&t).unwrap();
    let mut scanned: Vec<_> = scan
        .by_ref()
        .take(10)
        .map(|entry| entry.unwrap().0)
        .collect();
    let mut steps = 0;
    let report = db.move_table_with("t", Some("one"), |so_far| {
        steps += 1;
        assert!(so_far.records <= 600);
    });
    let report = report.unwrap();
    assert!(steps > 5, "{steps}");
    assert_eq!(report.records, 599);
    assert!(report.bytes > 200_000 && !report.writers_waited.is_zero());
    let again: Table<u64, Bytes> = db.open_table("t").unwrap();
    for table in [&t, &again] {
        assert_eq!(db.tablespace_of(table).unwrap().as_deref(), Some("one"));
        assert_eq!(contents(&db, table), expected);
        assert_eq!(read(&old, table), before);
        assert_eq!(
            old.get(table, &6).unwrap().as_deref(),
            before.get(&6).map(|v| &v[..])
        );
        assert_eq!(
            db.get(table, &6).unwrap().as_deref(),
            Some(&b"after the snapshot"[..])
        );
        assert!(old.get(table, &7).unwrap().is_some() && old.get(table, &5).unwrap().is_none());
    }
    // Writes through the old handle, and what the snapshots do not see of them.
    db.transact(|tx| {
        tx.insert(&t, &6, b"moved")?;
        tx.remove(&t, &8)?;
        tx.insert(&t, &1_000, b"new")
    })
    .unwrap();
    db.compact().unwrap();
    scanned.extend(scan.map(|entry| entry.unwrap().0));
    assert!(scanned.into_iter().eq(expected.keys().copied()));
    assert_eq!(read(&snapshot, &again), expected);
    assert_eq!(read(&old, &t), before);
    expected.insert(6, b"moved".to_vec());
    expected.remove(&8);
    expected.insert(1_000, b"new".to_vec());
    assert_eq!(contents(&db, &t), expected);
    // On, and back, while the snapshots still read the first place.
    db.move_table("t", Some("two")).unwrap();
    assert_eq!(read(&old, &again), before);
    db.move_table("t", None).unwrap();
    assert_eq!(db.tablespace_of(&t).unwrap(), None);
    assert_eq!(read(&old, &t), before);
    assert_eq!(contents(&db, &again), expected);
    db.rename_table("t", "u").unwrap();
    assert_eq!(t.name(), "u");
    let u: Table<u64, Bytes> = db.open_table("u").unwrap();
    assert!(db.estimate(&t, ..).unwrap().entries > 300);
    assert_eq!(db.table_stats(&t, true).unwrap().entries, 599);
    db.move_table("u", Some("one")).unwrap();
    drop((snapshot, old));
    assert!(db.drop_snapshot("before"));
    drop((db, t, again, u));
    simulated.crash();
    let db = simulated.open().unwrap();
    let u = db.open_table("u").unwrap();
    assert_eq!(db.tablespace_of(&u).unwrap().as_deref(), Some("one"));
    assert_eq!(contents(&db, &u), expected);
    assert_eq!(db.table_names().unwrap(), ["u"]);
}

/// Pages of the old place are freed when no snapshot reads them, whatever handles there are.
#[test]
fn a_tablespace_that_all_tables_left_is_dropped_once_no_snapshot_reads_it() {
    let directories = Directories::with_tablespaces();
    let db = small()
        .background_threads(false)
        .open(&directories.data)
        .unwrap();
    let [_main, one, _two] = tables(&db);
    let pages = |name: &str| {
        let stats = db.stats();
        let space = stats.tablespaces.iter().find(|space| space.name == name);
        space.unwrap().store.pages
    };
    let before = pages("one");
    let snapshot = db.snapshot();
    let expected = read(&snapshot, &one);
    db.move_table("in one", Some("two")).unwrap();
    db.transact(|tx| tx.remove(&one, &1)).unwrap();
    match db.drop_tablespace("one") {
        Err(Error::Tablespace(TablespaceError::NotEmpty { table, .. })) => {
            assert_eq!(table, "in one");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(read(&snapshot, &one), expected);
    assert_eq!(pages("one"), before);
    drop(snapshot);
    db.compact().unwrap();
    assert!(pages("one") + 3 < before, "{} of {before}", pages("one"));
    db.drop_tablespace("one").unwrap();
    assert_eq!(db.tablespace_of(&one).unwrap().as_deref(), Some("two"));
    assert_eq!(contents(&db, &one).len(), 199);
    db.transact(|tx| tx.insert(&one, &1, b"again")).unwrap();
    drop((one, _main, _two));
    db.checkpoint().unwrap();
    db.compact().unwrap();
    db.close().unwrap();
    let db = small().open(&directories.data).unwrap();
    assert_eq!(db.tablespace_names(), ["two"]);
    let one: Table<u64, Bytes> = db.open_table("in one").unwrap();
    assert_eq!(db.get(&one, &1).unwrap().as_deref(), Some(&b"again"[..]));
}

#[test]
fn what_changes_during_a_move_is_moved() {
    for seed in 0..8 {
        let simulated = Simulated::new(seed, 1);
        let (db, t, mut expected) = with_table(&simulated);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut number = 0;
        let report = db.move_table_with("t", Some("one"), |_| {
            for _ in 0..rng.usize(..40) {
                number += 1;
                let key = rng.u64(..700);
                if rng.u32(..3) == 0 {
                    db.transact(|tx| tx.remove(&t, &key)).unwrap();
                    expected.remove(&key);
                } else {
                    let bytes = value(number, rng.usize(..400));
                    db.transact(|tx| tx.insert(&t, &key, &bytes[..])).unwrap();
                    expected.insert(key, bytes);
                }
            }
        });
        assert!(report.unwrap().records > 600, "some were copied again");
        assert!(contents(&db, &t) == expected, "seed {seed}");
        db.compact().unwrap();
        assert!(contents(&db, &t) == expected, "seed {seed}");
        drop((db, t));
        let db = simulated.open().unwrap();
        assert!(
            contents(&db, &db.open_table("t").unwrap()) == expected,
            "seed {seed}"
        );
    }
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads move amounts between keys of the table and one that stays, while the table goes from one
/// tablespace to the next.
#[test]
fn concurrent_transactions_are_serializable_while_a_table_moves() {
    let directories = Directories::with_tablespaces();
    let db = small().open(&directories.data).unwrap();
    let moving: Table<u64, u64> = db.open_table("moving").unwrap();
    let staying: Table<u64, u64> = db.open_table("staying").unwrap();
    const KEYS: u64 = 300;
    db.transact(|tx| {
        (0..KEYS).try_for_each(|key| {
            tx.insert(&moving, &key, &100)?;
            tx.insert(&staying, &key, &100)
        })
    })
    .unwrap();
    let (ended, transfers) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Also if an assertion fails.
        let _end = End(&ended);
        for thread in 0..3 {
            let (db, moving, staying) = (&db, &moving, &staying);
            let (ended, transfers) = (&ended, &transfers);
            scope.spawn(move || {
                let _end = End(ended);
                let mut rng = fastrand::Rng::with_seed(thread);
                while !ended.load(Ordering::Relaxed) {
                    let (from, to) = (rng.u64(..KEYS), rng.u64(..KEYS));
                    let out = rng.bool();
                    let isolation = [Isolation::Serializable, Isolation::Snapshot][rng.usize(..2)];
                    let options = TransactionOptions {
                        isolation,
                        ..TransactionOptions::default()
                    };
                    let moved = db.transact_with(options, |tx| {
                        let (a, b) = if out {
                            (moving, staying)
                        } else {
                            (staying, moving)
                        };
                        let left = tx.get_for_update(a, &from)?.unwrap();
                        let there = tx.get_for_update(b, &to)?.unwrap();
                        if left > 0 {
                            tx.insert(a, &from, &(left - 1))?;
                            tx.insert(b, &to, &(there + 1))?;
                        }
                        Ok(())
                    });
                    moved.unwrap();
                    transfers.fetch_add(1, Ordering::Relaxed);
                    if rng.u32(..8) == 0 {
                        let snapshot = db.snapshot();
                        let sum = |table| -> u64 {
                            let entries = snapshot.iter(table).unwrap();
                            entries.map(|entry| entry.unwrap().1).sum()
                        };
                        assert_eq!(sum(moving) + sum(staying), 200 * KEYS);
                    }
                }
            });
        }
        for round in 0..9 {
            let target = [Some("one"), Some("two"), None][round % 3];
            let done = transfers.load(Ordering::Relaxed);
            db.move_table("moving", target).unwrap();
            assert_eq!(db.tablespace_of(&moving).unwrap().as_deref(), target);
            while transfers.load(Ordering::Relaxed) < done + 30 && !ended.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        }
    });
    let sum = |table| -> u64 {
        let snapshot = db.snapshot();
        let entries = snapshot.iter(table).unwrap();
        entries.map(|entry| entry.unwrap().1).sum()
    };
    assert_eq!(sum(&moving) + sum(&staying), 200 * KEYS);
}

/// What a transaction read, locked or wrote in the old place is not valid in the new one.
#[test]
fn a_transaction_that_used_the_table_before_the_end_of_its_move_conflicts() {
    let simulated = Simulated::new(3, 1);
    let (db, t, _) = with_table(&simulated);
    let other: Table<u64, u64> = db.open_table("other").unwrap();
    type Use = fn(&mut braid::Transaction, &Table<u64, Bytes>) -> braid::Result<()>;
    let uses: [Use; 4] = [
        |tx, t| tx.get(t, &1).map(drop),
        |tx, t| tx.range(t, 1..3)?.try_for_each(|entry| entry.map(drop)),
        |tx, t| tx.get_for_update(t, &1).map(drop),
        |tx, t| tx.insert(t, &1, b"lost"),
    ];
    let mut target = [Some("one"), None].into_iter().cycle();
    for (index, use_table) in uses.into_iter().enumerate() {
        for writes in [true, false] {
            let mut tx = db.begin();
            use_table(&mut tx, &t).unwrap();
            db.move_table("t", target.next().unwrap()).unwrap();
            // It would not see this.
            db.transact(|tx| tx.insert(&t, &1, b"kept")).unwrap();
            if writes {
                tx.insert(&other, &1, &1).unwrap();
            }
            let is_validated = writes || index != 2;
            match tx.commit() {
                Err(error) if is_validated => assert!(is_moved(&error), "{index}: {error}"),
                Ok(_) | Err(_) if !is_validated => {}
                other => panic!("{index}, {writes}: {other:?}"),
            }
            assert_eq!(db.get(&t, &1).unwrap().as_deref(), Some(&b"kept"[..]));
        }
    }
    assert_eq!(db.get(&other, &1).unwrap(), None);
    // A transaction that begins afterwards does not, though its context may know the old place.
    let mut tx = db.begin();
    tx.get(&t, &1).unwrap();
    tx.insert(&t, &1, b"last").unwrap();
    tx.commit().unwrap();
    // Under snapshot isolation, reads are those of the snapshot.
    let options = TransactionOptions {
        isolation: Isolation::Snapshot,
        ..TransactionOptions::default()
    };
    let mut tx = db.begin_with(options);
    db.transact(|tx| tx.insert(&t, &1, b"later")).unwrap();
    db.move_table("t", target.next().unwrap()).unwrap();
    assert_eq!(tx.get(&t, &1).unwrap().as_deref(), Some(&b"last"[..]));
    assert_eq!(tx.iter(&t).unwrap().count(), 600);
    assert!(tx.insert(&t, &2, b"late").unwrap_err().is_retryable());
    drop(tx);
    // But a lock in the old place protects nothing in the new one.
    let mut tx = db.begin_with(options);
    tx.get_for_update(&t, &1).unwrap();
    db.move_table("t", target.next().unwrap()).unwrap();
    db.transact(|tx| tx.insert(&t, &1, b"changed")).unwrap();
    tx.insert(&other, &1, &1).unwrap();
    let error = tx.commit().unwrap_err();
    assert!(is_moved(&error), "{error}");
}

#[test]
fn a_move_that_cannot_be_made_leaves_the_table_where_it_was() {
    let simulated = Simulated::new(4, 2);
    let (db, t, expected) = with_table(&simulated);
    let tablespace = |error: Error| match error {
        Error::Tablespace(error) => error,
        error => panic!("{error}"),
    };
    let missing = tablespace(db.move_table("t", Some("nowhere")).unwrap_err());
    assert!(matches!(missing, TablespaceError::NotFound { name } if name == "nowhere"));
    let missing = db.move_table("u", Some("one")).unwrap_err();
    assert!(matches!(missing, Error::TableNotFound { name } if name == "u"));
    // Nothing to do.
    assert_eq!(db.move_table("t", None).unwrap().records, 0);
    // Twice at once, and the tablespace dropped meanwhile.
    let mut refused = 0;
    db.move_table_with("t", Some("one"), |so_far| {
        if so_far.writers_waited.is_zero() {
            let again = tablespace(db.move_table("t", Some("two")).unwrap_err());
            assert!(matches!(again, TablespaceError::Moving { table } if table == "t"));
            let dropped = tablespace(db.drop_tablespace("one").unwrap_err());
            assert!(matches!(dropped, TablespaceError::NotEmpty { table, .. } if table == "t"));
            refused += 1;
        }
    })
    .unwrap();
    assert!(refused > 3);
    // A full tablespace.
    db.checkpoint().unwrap();
    let full = &simulated.devices[2];
    full.set_capacity(Some(full.used() + (64 << 10)));
    let error = db.move_table("t", Some("two")).unwrap_err();
    let is_it = matches!(&error, Error::OutOfSpace { what } if what.contains("\"two\""));
    assert!(is_it, "{error}");
    assert_eq!(db.tablespace_of(&t).unwrap().as_deref(), Some("one"));
    assert!(contents(&db, &t) == expected);
    db.transact(|tx| tx.insert(&t, &1, b"written")).unwrap();
    full.set_capacity(None);
    db.move_table("t", Some("two")).unwrap();
    assert_eq!(db.get(&t, &1).unwrap().as_deref(), Some(&b"written"[..]));
    // Dropped meanwhile.
    let mut is_first = true;
    let error = db.move_table_with("t", None, |_| {
        if std::mem::take(&mut is_first) {
            db.drop_table("t").unwrap();
        }
    });
    assert!(matches!(error, Err(Error::TableDropped { .. })));
    assert!(matches!(db.get(&t, &1), Err(Error::TableDropped { .. })));
    drop(t);
    let db = db;
    db.compact().unwrap();
    db.drop_tablespace("two").unwrap();
    assert!(db.table_names().unwrap().is_empty());
}

#[test]
fn a_table_with_options_and_long_keys_moves_as_it_is() {
    let simulated = Simulated::new(5, 1);
    let clock = Arc::new(AtomicU64::new(1_000_000));
    let builder = {
        let clock = clock.clone();
        let builder = simulated.builder();
        builder.clock(move || {
            std::time::UNIX_EPOCH + Duration::from_millis(clock.load(Ordering::Relaxed))
        })
    };
    let db = simulated.open_as(builder).unwrap();
    simulated.create_all(&db).unwrap();
    let options = TableOptions {
        compression: Compression::Lz4,
        time_to_live: Some(Duration::from_secs(10)),
    };
    let t = db.open_table_with::<Vec<u8>, String>("t", options).unwrap();
    let key = |n: usize| vec![n as u8; [3, 1_000][n % 2]];
    let text = |n: usize| "text ".repeat(n * 3);
    db.transact(|tx| (0..100).try_for_each(|n| tx.insert(&t, &key(n), &text(n))))
        .unwrap();
    clock.fetch_add(5_000, Ordering::Relaxed);
    db.transact(|tx| tx.insert(&t, &key(50), "later")).unwrap();
    db.move_table("t", Some("one")).unwrap();
    for n in (0..100).filter(|n| *n != 50) {
        assert_eq!(db.get(&t, &key(n)).unwrap(), Some(text(n)));
    }
    // The entries expire when they would have.
    clock.fetch_add(6_000, Ordering::Relaxed);
    let snapshot = db.snapshot();
    let left: Vec<_> = snapshot
        .iter(&t)
        .unwrap()
        .map(|entry| entry.unwrap().1)
        .collect();
    assert_eq!(left, ["later"]);
    drop(snapshot);
    assert_eq!(db.remove_expired().unwrap(), 99);
    db.compact().unwrap();
    assert_eq!(db.get(&t, &key(50)).unwrap().as_deref(), Some("later"));
}

/// Readers of the log see the changes of a table that moves once each, with its name.
#[test]
fn feeds_and_the_archive_follow_a_table_that_moves() {
    let directories = Directories::with_tablespaces();
    let (full, archive) = (directories.at("full"), directories.at("archive"));
    let db = small().archive(&archive).open(&directories.data).unwrap();
    let t: Table<u64, Bytes> = db.open_table_in("one", "t", Default::default()).unwrap();
    db.transact(|tx| (0..500).try_for_each(|key| tx.insert(&t, &key, b"first")))
        .unwrap();
    db.backup(&full).unwrap();
    let mut early = db.changes(db.position_after(db.durable_seqno())).unwrap();
    let feed = db.feed("late").unwrap();
    let mut number = 0_u64;
    let mut write = |db: &Database| {
        number += 1;
        db.transact(|tx| tx.insert(&t, &(number * 3), &number.to_le_bytes()))
            .unwrap();
        db.durable_seqno()
    };
    let before = write(&db);
    let mut during = 0;
    db.move_table_with("t", Some("two"), |_| during = write(&db))
        .unwrap();
    let after = write(&db);
    let seen = |set: braid::changes::ChangeSet| {
        assert!(set.loaded.is_empty());
        set.changes.into_iter().map(|change| {
            assert_eq!(change.table.as_deref(), Some("t"));
            u64::from_le_bytes(change.value.unwrap()[..].try_into().unwrap())
        })
    };
    let seen_early: Vec<_> = early.by_ref().flat_map(|set| seen(set.unwrap())).collect();
    assert!(seen_early.into_iter().eq(1..=number));
    let late = feed.changes().unwrap();
    let seen_late: Vec<_> = late.flat_map(|set| seen(set.unwrap())).collect();
    assert!(seen_late.into_iter().eq(1..=number));
    db.archive_now().unwrap();
    let expected = contents(&db, &t);
    for until in [
        Until::Seqno(before),
        Until::Seqno(during),
        Until::Seqno(after),
        Until::End,
    ] {
        let restored = Directories::new();
        Restore::new()
            .backup(&full)
            .archive(&archive)
            .until(until)
            .tablespace_directory("one", restored.at("one"))
            .tablespace_directory("two", restored.at("two"))
            .device(DeviceChoice::File)
            .pool_bytes(1 << 20)
            .run(&restored.data)
            .unwrap();
        let copy = small().open(&restored.data).unwrap();
        let t: Table<u64, Bytes> = copy.open_table("t").unwrap();
        let found = contents(&copy, &t);
        match until {
            Until::Seqno(seqno) if seqno < after => {
                assert!(found.len() == 500 && found != expected);
                assert_eq!(found[&3][..], 1_u64.to_le_bytes());
            }
            _ => assert!(found == expected),
        }
    }
    // A dropped table takes its former numbers along: the feed does not know its former number.
    db.drop_table("t").unwrap();
    let dropped = feed.changes().unwrap().next().unwrap().unwrap();
    assert_eq!(dropped.changes[0].table, None);
}
