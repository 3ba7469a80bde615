//! The change feed.

use std::sync::Arc;
use std::time::Duration;

use braid::changes::{ChangeSet, Changes, Position};
use braid::device::MemoryDevice;
use braid::{Bytes, Database, Durability, Error, Readable, TransactionOptions};

use super::model::{Model, builders, scratch, small, under_load};

fn collect(changes: &mut Changes, into: &mut Vec<ChangeSet>) {
    into.extend(changes.by_ref().map(|set| set.unwrap()));
}

/// Every protocol, under load: all commits, each once, in order, with their writes; then again from
/// stored positions.
#[test]
fn every_commit_is_shown_once_and_in_order() {
    for (protocol, builder) in builders() {
        let dir = scratch();
        let open = || builder.clone().open(dir.path()).unwrap();
        let mut db = open();
        let model = Model::default();
        db.open_table::<u64, u64>("accounts").unwrap();
        let feed = db.feed("test").unwrap();
        let from = feed.position().unwrap();
        model.begin(&db).unwrap();
        let mut sets = Vec::new();
        let mut stored = from;
        for round in 0..3 {
            let mut changes = match round {
                0 => db.feed("test").unwrap().changes().unwrap(),
                _ => db.changes(stored).unwrap(),
            };
            under_load(&db, &model, 5 + round, || {
                let until = sets.len() + 200;
                while sets.len() < until {
                    let set = changes.next_within(Duration::from_secs(60)).unwrap();
                    let set = set.expect("there are writers");
                    assert!(set.seqno <= db.durable_seqno());
                    stored = set.position;
                    sets.push(set);
                }
                db.checkpoint().unwrap();
            });
            let text = stored.to_string();
            stored = text.parse().unwrap();
            assert_eq!(Position::from_bytes(stored.to_bytes()), stored);
            if round == 1 {
                drop(changes);
                db.close().unwrap();
                db = open();
            }
        }
        db.sync().unwrap();
        let mut changes = db.changes(stored).unwrap();
        collect(&mut changes, &mut sets);
        model.check_changes(&sets, 0, model.last());
        assert_eq!(changes.position().seqno(), db.durable_seqno());
        // Everything is read again, because the feed never acknowledged.
        let mut again = Vec::new();
        collect(&mut db.feed("test").unwrap().changes().unwrap(), &mut again);
        assert!(again == sets, "{protocol}");
    }
}

#[test]
fn a_reader_sleeps_until_there_is_something() {
    for (protocol, builder) in builders() {
        let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
        let table = db.open_table::<u64, u64>("t").unwrap();
        let mut changes = db.changes(db.position()).unwrap();
        assert_eq!(changes.next_within(Duration::from_millis(1)).unwrap(), None);
        for key in 0..50 {
            std::thread::scope(|scope| {
                let (db, table, changes) = (&db, &table, &mut changes);
                let reader = scope.spawn(move || changes.next_within(Duration::from_secs(60)));
                db.transact(|tx| tx.insert(table, &key, &1)).unwrap();
                let set = reader.join().unwrap().unwrap().expect("in time");
                assert_eq!(set.changes[0].key[..], key.to_be_bytes(), "{protocol}");
            });
        }
        // Closing wakes the waiting reader.
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| changes.next_within(Duration::from_secs(60)));
            db.clone().close().unwrap();
            assert!(matches!(reader.join().unwrap(), Err(Error::Closed)));
        });
    }
}

/// Visible transactions that are not durable are not shown; aborted ones never are.
#[test]
fn only_durable_transactions_are_shown() {
    let builder = small();
    let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let table = db.open_table::<u64, u64>("t").unwrap();
    let mut changes = db.changes(db.position()).unwrap();
    let mut tx = db.begin_with(TransactionOptions {
        durability: Durability::None,
        ..TransactionOptions::default()
    });
    tx.insert(&table, &1, &1).unwrap();
    tx.commit().unwrap();
    assert!(changes.next().is_none());
    let mut tx = db.begin();
    tx.insert(&table, &2, &2).unwrap();
    tx.abort();
    // Two transactions that each read what the other writes: one aborts after its sequence number
    // was assigned.
    let (mut one, mut other) = (db.begin(), db.begin());
    one.get(&table, &3).unwrap();
    other.get(&table, &4).unwrap();
    one.insert(&table, &4, &4).unwrap();
    other.insert(&table, &3, &3).unwrap();
    one.commit().unwrap();
    assert!(other.commit().unwrap_err().is_retryable());
    let keys: Vec<_> = changes
        .map(|set| set.unwrap().changes[0].key.clone())
        .collect();
    assert_eq!(keys, [&1u64.to_be_bytes()[..], &4u64.to_be_bytes()]);
}

#[test]
fn tables_have_their_names_and_large_transactions_are_whole() {
    let db = Database::in_memory().unwrap();
    let old = db.open_table::<u64, Bytes>("old").unwrap();
    let from = db.position();
    let big = vec![7; 3_000_000];
    db.transact(|tx| tx.insert(&old, &1, &big)).unwrap();
    db.rename_table("old", "new").unwrap();
    let passing = db.open_table::<u64, u64>("passing").unwrap();
    db.transact(|tx| {
        tx.remove(&old, &1)?;
        tx.insert(&passing, &5, &6)
    })
    .unwrap();
    drop(passing);
    db.drop_table("passing").unwrap();
    let sets: Vec<_> = db.changes(from).unwrap().map(Result::unwrap).collect();
    assert_eq!(sets.len(), 2, "the catalog's own are not shown");
    let first = &sets[0].changes[0];
    assert_eq!(first.value.as_deref(), Some(&big[..]));
    let names: Vec<_> = sets[1].changes.iter().map(|c| c.table.as_deref()).collect();
    assert_eq!(names, [Some("new"), Some("passing")]);
    assert_eq!(sets[1].changes[0].value, None);
    assert_eq!(sets[1].changes[0].table_id, first.table_id);
}

fn grow(db: &Database, keys: std::ops::Range<u64>) {
    let table = db.open_table::<u64, Bytes>("t").unwrap();
    for key in keys {
        db.transact(|tx| tx.insert(&table, &key, &vec![1; 2_000]))
            .unwrap();
    }
}

#[test]
fn log_is_kept_for_feeds_up_to_a_limit_and_no_longer() {
    let device = Arc::new(MemoryDevice::new());
    let open = |device: Arc<MemoryDevice>| small().feed_log_bytes(1 << 20).open_on(device).unwrap();
    let db = open(device.clone());
    let before = db.position();
    grow(&db, 0..100);
    db.checkpoint().unwrap();
    let feed = db.feed("slow").unwrap();
    let begun = feed.position().unwrap();
    grow(&db, 100..200);
    for _ in 0..3 {
        db.checkpoint().unwrap();
    }
    // No feed kept the log from before the feed was created.
    let lost = db.changes(before);
    assert!(matches!(lost, Err(Error::PositionLost { asked, oldest }) if asked < oldest));
    let segments = db.stats().log.segments;
    assert!(segments > 3, "{segments}");
    drop((db, feed));
    // First a restart without closing, then one with.
    for close in [false, true] {
        let db = open(device.clone());
        db.checkpoint().unwrap();
        let feed = db.feed("slow").unwrap();
        assert_eq!(feed.position().unwrap(), begun);
        assert_eq!(feed.changes().unwrap().count(), 100);
        if close {
            db.close().unwrap();
        }
    }
    let db = open(device.clone());
    let feed = db.feed("slow").unwrap();
    let sets: Vec<_> = feed.changes().unwrap().map(Result::unwrap).collect();
    feed.acknowledge(sets[49].position).unwrap();
    feed.acknowledge(sets[9].position).unwrap();
    assert_eq!(feed.position().unwrap(), sets[49].position);
    assert_eq!(feed.changes().unwrap().count(), 50);
    drop((db, feed));
    let db = open(device.clone());
    assert_eq!(db.feed("slow").unwrap().changes().unwrap().count(), 50);
    assert_eq!(db.feeds(), [("slow".to_owned(), sets[49].position)]);
    // More log is written than is kept: the feed loses its position, and the log is released.
    for round in 0..8 {
        grow(&db, 1_000 * round..1_000 * round + 150);
        db.checkpoint().unwrap();
    }
    let feed = db.feed("slow").unwrap();
    assert!(matches!(feed.changes(), Err(Error::PositionLost { .. })));
    feed.acknowledge(db.position()).unwrap();
    grow(&db, 0..3);
    assert_eq!(feed.changes().unwrap().count(), 3);
    assert!(db.drop_feed("slow").unwrap() && !db.drop_feed("slow").unwrap());
    assert!(matches!(feed.changes(), Err(Error::FeedNotFound { .. })));
    for _ in 0..3 {
        db.checkpoint().unwrap();
    }
    assert!(
        db.stats().log.segments < segments,
        "{}",
        db.stats().log.segments
    );
}

/// An open reader keeps the log that it has not read, through checkpoints.
#[test]
fn an_open_reader_keeps_its_log() {
    let db = Database::builder()
        .segment_bytes(64 << 10)
        .background_threads(false);
    let db = db.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let mut changes = db.changes(db.position()).unwrap();
    for round in 0..10 {
        grow(&db, 100 * round..100 * round + 60);
        db.checkpoint().unwrap();
        assert_eq!(changes.by_ref().take(30).count(), 30);
    }
    assert_eq!(changes.count(), 300);
    // Without the reader, the log is released.
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    let stats = db.stats();
    assert_eq!(stats.changes_kept_from, stats.durable_seqno);
}

#[test]
fn positions_of_others_are_refused() {
    let (db, other) = (
        Database::in_memory().unwrap(),
        Database::in_memory().unwrap(),
    );
    assert!(matches!(
        db.changes(other.position()),
        Err(Error::ForeignPosition { .. })
    ));
    let future = db.position_after(db.durable_seqno() + 1);
    assert!(matches!(
        db.changes(future),
        Err(Error::ForeignPosition { .. })
    ));
    assert!(matches!(
        "nonsense".parse::<Position>(),
        Err(Error::Decode { .. })
    ));
    assert!(matches!(db.feed(""), Err(Error::InvalidTableName { .. })));
}

/// Values are shown as they were written, however the table stores them.
#[test]
fn values_of_tables_with_options_are_those_written() {
    let db = Database::in_memory().unwrap();
    let from = db.position();
    let options = braid::TableOptions {
        compression: braid::Compression::Lz4,
        time_to_live: Some(Duration::from_millis(1)),
    };
    let table = db.open_table_with::<u64, Bytes>("packed", options).unwrap();
    let value = vec![b'x'; 5_000];
    db.transact(|tx| tx.insert(&table, &1, &value)).unwrap();
    let check = |from| {
        let set = db.changes(from).unwrap().next().unwrap().unwrap();
        assert_eq!(set.changes[0].value.as_deref(), Some(&value[..]));
    };
    check(from);
    // The same holds if the creation of the table is not among the transactions read.
    let before = db.durable_seqno();
    db.transact(|tx| tx.insert(&table, &1, &value)).unwrap();
    check(db.position_after(before));
}

/// A bulk load is among the changes, but its entries are not.
#[test]
fn a_loaded_table_is_a_change() {
    let db = Database::in_memory().unwrap();
    let mut changes = db.changes(db.position()).unwrap();
    let mut loader = db.bulk_load::<u64, u64>("loaded").unwrap();
    loader.extend((0..1_000u64).map(|n| (n, n))).unwrap();
    let table = loader.finish().unwrap();
    let set = changes.next().unwrap().unwrap();
    assert_eq!(
        (set.changes.len(), set.loaded.as_slice()),
        (0, &["loaded".into()][..])
    );
    let snapshot = db.snapshot();
    assert!(snapshot.seqno() >= set.seqno);
    assert_eq!(snapshot.iter(&table).unwrap().count(), 1_000);
    db.transact(|tx| tx.insert(&table, &7, &8)).unwrap();
    let set = changes.next().unwrap().unwrap();
    assert!(set.loaded.is_empty() && set.changes[0].table.as_deref() == Some("loaded"));
}
