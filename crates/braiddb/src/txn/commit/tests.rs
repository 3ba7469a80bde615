//! Tests of commits, of validation and of dependencies.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use braid_log::SeqNo;
use braid_store::{Change, LeafHint};

use super::validate::validate;
use crate::device::MemoryDevice;
use crate::engine::Engine;
use crate::options::TablespaceOptions;
use crate::{
    Builder, ConflictKind, Database, Durability, Error, Health, Isolation, LockRelease, Protocol,
    Readable, Result, Table, Transaction, TransactionOptions,
};

const BUFFERED: Durability = Durability::Buffered(Duration::MAX);

fn builder() -> Builder {
    Database::builder().strands(2).pool_bytes(1 << 20)
}

fn open_with(builder: Builder) -> (Database, Table<u64, u64>) {
    let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let t = db.open_table("t").unwrap();
    (db, t)
}

fn open() -> (Database, Table<u64, u64>) {
    open_with(builder().segment_bytes(64 << 10))
}

fn hash_of(t: &Table<u64, u64>, key: u64) -> u64 {
    t.core.hash(&key.to_be_bytes())
}

/// Validates the transaction's reads, as a commit with this sequence number does.
fn validate_at(db: &Database, tx: &mut Transaction, seqno: SeqNo) -> Result<()> {
    let context = tx.context.as_mut().unwrap();
    let state = &mut **context.state.get_mut();
    let ranges = context.ranges.get_mut();
    state.reads.add_ranges(ranges, || SeqNo::NONE);
    validate(db.engine(), state, seqno)
}

/// A key is inserted and removed again after a transaction read that it is absent. The transaction
/// holds, but only together with the removal, so its commit returns once that is durable.
#[test]
fn an_absence_depends_on_a_later_removal() {
    type Read = fn(&mut Transaction, &Table<u64, u64>);
    let reads: [Read; 2] = [
        |tx, t| assert_eq!(tx.get(t, &2).unwrap(), None),
        |tx, t| assert_eq!(tx.range(t, 1..3).unwrap().count(), 0),
    ];
    for read in reads {
        let (db, t) = open_with(builder().background_threads(false));
        let mut tx = db.begin();
        read(&mut tx, &t);
        let mut insert = db.begin();
        insert.insert(&t, &2, &2).unwrap();
        insert.commit().unwrap();
        let mut remove = db.begin();
        remove.remove(&t, &2).unwrap();
        let removed = remove.commit_async().unwrap().seqno();
        assert!(db.engine().log.durable_seqno().get() < removed);
        tx.commit().unwrap();
        assert!(db.engine().log.durable_seqno().get() >= removed);
    }
}

/// While a large transaction is applied, others are acknowledged; snapshots wait for it, since they
/// contain everything that is acknowledged.
#[test]
fn a_commit_is_acknowledged_while_a_large_one_is_applied() {
    for &protocol in Protocol::ALL {
        let strands = protocol.forced_strands().unwrap_or(2);
        let (db, t) = open_with(builder().protocol(protocol).strands(strands));
        let other: Table<u64, u64> = db.open_table("other").unwrap();
        db.transact(|tx| tx.insert(&t, &0, &1)).unwrap();
        let bucket_of = |t, key| db.engine().locks.bucket_of(hash_of(t, key));
        // Keys whose versions are not with those that the large transaction waits for.
        let bucket = bucket_of(&t, 0);
        let mut others = (0..).filter(|key| bucket_of(&other, *key) != bucket);
        let [scanned, written] = [0; 2].map(|_| others.next().unwrap());
        // Its validation waits for the large transaction, so it must not have a number meanwhile.
        let mut scans = db.begin();
        assert_eq!(scans.range(&t, ..50).unwrap().count(), 1);
        scans.insert(&other, &scanned, &1).unwrap();
        let (db, t, other) = (&db, &t, &other);
        let log = &db.engine().log;
        // The large transaction keeps the version that it replaces here, under its leaf's latch.
        let versions = db.engine().locks.versions(bucket);
        let held = versions.lock();
        let before = log.last_seqno();
        std::thread::scope(|scope| {
            let large = scope
                .spawn(|| db.transact(|tx| (0..100).try_for_each(|key| tx.insert(t, &key, &2))));
            while log.durable_seqno() == before {
                log.request_flush();
                std::thread::yield_now();
            }
            let scans = scope.spawn(|| scans.commit());
            (0..100).for_each(|_| std::thread::yield_now());
            let (done, acknowledged) = mpsc::channel();
            scope.spawn(move || {
                let mut tx = db.begin();
                tx.insert(other, &written, &3).unwrap();
                done.send(tx.commit().unwrap().seqno())
            });
            let small = acknowledged.recv_timeout(Duration::from_secs(60));
            let Ok(small) = small else {
                drop(held);
                panic!("{protocol}: it waits for the large transaction");
            };
            assert!(log.visible_seqno().get() < small, "{protocol}");
            let snapshot = scope.spawn(|| {
                let snapshot = db.snapshot();
                (
                    snapshot.get(t, &0).unwrap(),
                    snapshot.get(other, &written).unwrap(),
                )
            });
            let transaction = scope.spawn(|| {
                let tx = db.begin_with(TransactionOptions {
                    isolation: Isolation::Snapshot,
                    ..TransactionOptions::default()
                });
                (tx.get(t, &0).unwrap(), tx.get(other, &written).unwrap())
            });
            let get = scope.spawn(|| db.get(other, &written).unwrap());
            (0..100).for_each(|_| std::thread::yield_now());
            drop(held);
            assert_eq!(snapshot.join().unwrap(), (Some(2), Some(3)), "{protocol}");
            assert_eq!(
                transaction.join().unwrap(),
                (Some(2), Some(3)),
                "{protocol}"
            );
            assert_eq!(get.join().unwrap(), Some(3), "{protocol}");
            large.join().unwrap().unwrap();
            assert_conflict(scans.join().unwrap(), ConflictKind::Range);
        });
    }
}

#[track_caller]
fn assert_conflict<T>(result: Result<T>, kind: ConflictKind) {
    assert!(matches!(result, Err(Error::Conflict(found)) if found == kind));
}

/// Stores a record without a transaction, as damage before the page's checksum would.
fn put_version(t: &Table<u64, u64>, key: u64, version: SeqNo) {
    let change = Change::Put {
        version: version.get(),
        value: &[0; 8],
    };
    let mut hint = LeafHint::default();
    let tree = &t.core.tree;
    tree.modify_at(&mut hint, &key.to_be_bytes(), |_| (change, ()))
        .unwrap();
}

/// T reads that a range is empty, V inserts a key into it, and T's validation begins at V's
/// sequence number. Then W removes the key with the next one, the tombstone is purged, and T's
/// validation reaches the range. T has found that its other reads are the state after V, so the
/// range must be, too.
#[test]
fn a_purged_removal_after_the_number_is_a_conflict() {
    let (db, t) = open();
    let engine = db.engine();
    let mut tx = db.begin();
    assert_eq!(tx.range(&t, 1..3).unwrap().count(), 0);
    db.transact(|v| v.insert(&t, &2, &2)).unwrap();
    let seqno = engine.log.last_seqno().next();
    db.transact(|w| w.remove(&t, &2)).unwrap();
    engine.collect_all_versions();
    assert!(!engine.gc.none_purged_from(seqno));
    let validated = validate_at(&db, &mut tx, seqno);
    assert_conflict(validated, ConflictKind::Range);
}

/// As above, but T reads the key alone. The purge leaves nothing in the leaf that reveals V's insert.
#[test]
fn a_purged_removal_of_an_absent_key_after_the_number_is_a_conflict() {
    let (db, t) = open();
    let engine = db.engine();
    let mut tx = db.begin();
    assert_eq!(tx.get(&t, &2).unwrap(), None);
    db.transact(|v| v.insert(&t, &2, &2)).unwrap();
    let seqno = engine.log.last_seqno().next();
    db.transact(|w| w.remove(&t, &2)).unwrap();
    engine.collect_all_versions();
    let validated = validate_at(&db, &mut tx, seqno);
    assert_conflict(validated, ConflictKind::Read);
}

/// As above, but the removal is still in the leaf when the validation reaches it.
#[test]
fn a_removal_at_the_number_of_a_reader_is_a_conflict() {
    let (db, t) = open();
    let engine = db.engine();
    let mut tx = db.begin();
    assert_eq!(tx.range(&t, 1..3).unwrap().count(), 0);
    // The snapshot retains the tombstone.
    let snapshot = db.snapshot();
    db.transact(|v| v.insert(&t, &2, &2)).unwrap();
    let seqno = engine.log.last_seqno().next();
    db.transact(|w| w.remove(&t, &2)).unwrap();
    assert!(engine.gc.none_purged_from(seqno));
    let validated = validate_at(&db, &mut tx, seqno);
    assert_conflict(validated, ConflictKind::Range);
    drop(snapshot);
}

/// What a look at the main tablespace's pool finds does not concern the pages of others.
#[test]
fn a_commit_expects_waits_for_pages_of_any_tablespace() {
    let device = || Arc::new(MemoryDevice::new());
    let builder = Database::builder().pool_bytes(1 << 20);
    let db = builder.background_threads(false).open_on(device()).unwrap();
    let options = TablespaceOptions::on_device(device()).pool_bytes(1 << 20);
    db.create_tablespace("one", options).unwrap();
    let t: Table<u64, u64> = db.open_table_in("one", "t", Default::default()).unwrap();
    let mut tx = db.begin();
    tx.insert(&t, &1, &1).unwrap();
    let engine = db.engine();
    engine.spaces.all()[0].store.expect_waits();
    let state = &mut **tx.state().borrow_mut();
    engine.admit_slowly(state, (1, 16)).unwrap();
    engine.store.note_residency();
    assert!(!engine.store.may_wait_for_pages());
    assert!(engine.may_wait_for_pages(state));
}

/// Loads a table of small entries that is larger than the pool, and scans it.
fn with_a_large_table(rows: u64) -> (Database, Table<u64, u64>, Table<u64, u64>) {
    let (db, t) = open();
    let mut load = db.bulk_load::<u64, u64>("large").unwrap();
    (0..rows).for_each(|key| load.insert(&key, &key).unwrap());
    load.finish().unwrap();
    let large: Table<u64, u64> = db.open_table("large").unwrap();
    assert_eq!(db.snapshot().iter(&large).unwrap().count() as u64, rows);
    assert!(db.engine().store.may_wait_for_pages());
    (db, t, large)
}

#[test]
fn a_transaction_larger_than_the_pool_loads_each_leaf_about_once() {
    let rows = 200_000;
    let (db, _, large) = with_a_large_table(rows);
    let scan = |db: &Database| {
        let before = db.stats().store.page_loads;
        assert_eq!(db.snapshot().iter(&large).unwrap().count() as u64, rows);
        db.stats().store.page_loads - before
    };
    let pages = scan(&db);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut tx = db.begin();
    (0..rows / 10).for_each(|key| tx.insert(&large, &rng.u64(..rows), &key).unwrap());
    let before = db.stats().store.page_loads;
    tx.commit().unwrap();
    let loads = db.stats().store.page_loads - before;
    assert!(loads < pages * 3 / 2, "{loads} loads for {pages} pages");
}

#[test]
fn the_leaves_of_blind_writes_are_loaded_before_the_commit() {
    let rows = 200_000;
    let (db, t, large) = with_a_large_table(rows);
    let engine = db.engine();
    let tree = &large.core.tree;
    let is_in_memory = |key: u64| tree.is_in_memory(&key.to_be_bytes());
    let keys = || (0..12u64).map(|i| i * rows / 12);
    let mut tx = db.begin();
    tx.insert(&t, &1, &1).unwrap();
    keys().for_each(|key| tx.insert(&large, &key, &0).unwrap());
    let missing = keys().filter(|&key| !is_in_memory(key)).count();
    assert!(missing > 4, "{missing} of the leaves were evicted");
    let state = tx.context.as_mut().unwrap().state.get_mut();
    super::leaves::load_leaves(engine, state).unwrap();
    let left: Vec<u64> = keys().filter(|&key| !is_in_memory(key)).collect();
    assert!(left.is_empty(), "{left:?} of {missing} are still missing");
    tx.commit().unwrap();
    assert!(keys().all(|key| db.get(&large, &key).unwrap() == Some(0)));
}

/// What a transaction has read may be evicted before it commits, and be read again by its validation.
#[test]
fn the_leaves_of_reads_are_loaded_before_the_commit() {
    let rows = 200_000;
    let (db, t, large) = with_a_large_table(rows);
    let engine = db.engine();
    let tree = &large.core.tree;
    let is_in_memory = |key: u64| tree.is_in_memory(&key.to_be_bytes());
    let keys = || (0..12u64).map(|i| i * rows / 12);
    let mut tx = db.begin();
    keys().take(6).for_each(|key| {
        tx.get(&large, &key).unwrap().unwrap();
    });
    keys().skip(6).for_each(|key| {
        assert_eq!(tx.range(&large, key..key + 2).unwrap().count(), 2);
    });
    tx.insert(&t, &1, &1).unwrap();
    assert!(keys().all(is_in_memory));
    assert_eq!(db.snapshot().iter(&large).unwrap().count() as u64, rows);
    let missing = |keys: Vec<u64>| keys.into_iter().filter(|&key| !is_in_memory(key)).count();
    let (points, ranges) = (
        missing(keys().take(6).collect()),
        missing(keys().skip(6).collect()),
    );
    assert!(
        points > 1 && ranges > 1,
        "{points} and {ranges} of the leaves were evicted"
    );
    let context = tx.context.as_mut().unwrap();
    let (state, read) = (context.state.get_mut(), context.ranges.get_mut());
    state.reads.add_ranges(read, || engine.log.last_seqno());
    super::leaves::load_leaves(engine, state).unwrap();
    let left: Vec<u64> = keys().filter(|&key| !is_in_memory(key)).collect();
    assert!(left.is_empty(), "{left:?} are still missing");
    tx.commit().unwrap();
}

/// No panic in a commit is known, but one must not leave locks that no thread releases.
#[test]
fn a_commit_that_panics_releases_its_locks() {
    let (db, t) = open();
    let locks = &db.engine().locks;
    let mut tx = db.begin();
    tx.get(&t, &1).unwrap();
    tx.insert(&t, &2, &2).unwrap();
    let hash = hash_of(&t, 2);
    assert!(locks.is_held_by_other(hash, 0));
    // Another transaction changes the leaf, so that validation rereads the key and finds no
    // table.
    db.transact(|other| other.insert(&t, &3, &3)).unwrap();
    tx.state().borrow_mut().reads.points[0].table = u32::MAX;
    assert!(catch_unwind(AssertUnwindSafe(|| tx.commit())).is_err());
    assert!(!locks.is_held_by_other(hash, 0));
    db.transact(|tx| tx.insert(&t, &2, &4)).unwrap();
    assert_eq!(db.get(&t, &2).unwrap(), Some(4));
}

/// Validation looks at keys, although the tree says only that something in the leaf changed.
#[test]
fn reads_hold_while_other_keys_change() {
    let (db, t) = open();
    db.transact(|tx| tx.insert(&t, &1, &1)).unwrap();
    let mut tx = db.begin();
    assert_eq!(tx.get(&t, &1).unwrap(), Some(1));
    assert_eq!(tx.get(&t, &5).unwrap(), None);
    db.transact(|other| other.insert(&t, &3, &3)).unwrap();
    tx.insert(&t, &4, &4).unwrap();
    tx.commit().unwrap();
}

/// Inserts key 2 and removes it again: the reads of a transaction that found it absent hold from the
/// removal on.
#[track_caller]
fn assert_holds_after_a_removal(
    db: &Database,
    t: &Table<u64, u64>,
    tx: &mut Transaction,
    kind: ConflictKind,
) {
    // The snapshot retains the tombstone.
    let snapshot = db.snapshot();
    db.transact(|v| v.insert(t, &2, &2)).unwrap();
    db.transact(|w| w.remove(t, &2)).unwrap();
    let removed = db.engine().log.last_seqno();
    validate_at(db, tx, removed.next()).unwrap();
    for seqno in [removed, removed.prev()] {
        assert_conflict(validate_at(db, tx, seqno), kind);
    }
    drop(snapshot);
}

/// T finds a key absent, V inserts it, and W removes it again: T's read holds from W on.
#[test]
fn an_absence_holds_after_the_removal_only() {
    let (db, t) = open();
    let mut tx = db.begin();
    assert_eq!(tx.get(&t, &2).unwrap(), None);
    assert_holds_after_a_removal(&db, &t, &mut tx, ConflictKind::Read);
}

/// The same for a range.
#[test]
fn a_range_holds_after_the_removal_only() {
    let (db, t) = open();
    db.transact(|tx| tx.insert(&t, &1, &1)).unwrap();
    let mut tx = db.begin();
    assert_eq!(tx.range(&t, 0..4).unwrap().count(), 1);
    assert_holds_after_a_removal(&db, &t, &mut tx, ConflictKind::Range);
}

/// The other transaction's sequence number may be smaller, and its write is not applied yet.
#[test]
fn a_read_of_a_key_that_is_being_committed_is_a_conflict() {
    let (db, t) = open();
    let engine = db.engine();
    db.transact(|tx| tx.insert(&t, &1, &1)).unwrap();
    let mut tx = db.begin();
    tx.get(&t, &1).unwrap();
    let (hash, other) = (hash_of(&t, 1), 1);
    engine.locks.lock(hash, other, Duration::MAX).unwrap();
    engine.locks.mark_committing(hash);
    let seqno = engine.log.last_seqno().next();
    assert_conflict(validate_at(&db, &mut tx, seqno), ConflictKind::Read);
    engine.locks.unlock(hash, other);
    validate_at(&db, &mut tx, seqno).unwrap();
}

#[test]
fn a_version_of_no_transaction_poisons_the_database() {
    let (db, t) = open();
    let engine = db.engine();
    put_version(&t, 1, SeqNo::new(engine.log.last_seqno().get() + 1000));
    let mut tx = db.begin();
    tx.insert(&t, &1, &2).unwrap();
    let Err(Error::Poisoned { cause: told }) = tx.commit() else {
        panic!("the damage was not noticed");
    };
    assert!(told.contains("assigned to no transaction"), "{told}");
    let Health::Poisoned { cause } = db.health() else {
        panic!("the database is {:?}", db.health());
    };
    assert_eq!(cause, told);
}

/// I7.
#[test]
fn a_commit_asserts_that_versions_follow_the_numbers() {
    let (db, t) = open();
    put_version(&t, 1, db.engine().log.last_seqno().next());
    let mut tx = db.begin();
    tx.insert(&t, &1, &2).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| tx.commit())).is_err());
}

/// Commits that wait, and those that do not, hold their locks until the flush if the protocol needs
/// it.
#[test]
fn locks_are_held_as_the_protocol_says() {
    for &protocol in Protocol::ALL {
        let (db, t) = open_with(builder().protocol(protocol).background_threads(false));
        let locks = &db.engine().locks;
        let hash = hash_of(&t, 1);
        for is_async in [false, true] {
            let mut tx = db.begin();
            tx.set_durability(BUFFERED);
            tx.insert(&t, &1, &1).unwrap();
            let ticket = if is_async {
                Some(tx.commit_async().unwrap())
            } else {
                tx.commit().unwrap();
                None
            };
            let is_held = locks.is_held_by_other(hash, 0);
            let at_once = protocol.lock_release() == LockRelease::Precommit;
            assert_eq!(is_held, !at_once, "{protocol}, async: {is_async}");
            assert!(!locks.is_committing_by_other(hash, 0));
            db.sync().unwrap();
            assert!(!locks.is_held_by_other(hash, 0), "{protocol}");
            drop(ticket);
        }
        // No thread flushes for this commit, so it must not leave locks that wait for a flush.
        let mut tx = db.begin();
        tx.set_durability(Durability::None);
        tx.insert(&t, &1, &2).unwrap();
        tx.commit().unwrap();
        assert!(!locks.is_held_by_other(hash, 0), "{protocol}");
    }
}

/// A reader depends on what it read, but no transaction depends on the reader.
#[test]
fn a_commit_without_writes_releases_its_locks_at_once() {
    let (db, t) = open_with(builder().background_threads(false));
    let locks = &db.engine().locks;
    let hash = hash_of(&t, 1);
    let mut writer = db.begin();
    writer.set_durability(BUFFERED);
    writer.insert(&t, &1, &1).unwrap();
    writer.commit().unwrap();
    let mut reader = db.begin();
    reader.set_durability(BUFFERED);
    assert_eq!(reader.get_for_update(&t, &1).unwrap(), Some(1));
    assert!(locks.is_held_by_other(hash, 0));
    reader.commit().unwrap();
    assert!(!locks.is_held_by_other(hash, 0));
}

/// I8, at the weakest durability: the commit itself waits for nothing.
#[test]
fn a_reader_of_lost_writes_does_not_commit() {
    let (db, t) = open_with(builder().background_threads(false));
    db.transact(|tx| tx.insert(&t, &1, &1)).unwrap();
    let mut writer = db.begin();
    writer.set_durability(BUFFERED);
    writer.insert(&t, &2, &2).unwrap();
    writer.commit().unwrap();
    let read = |key| {
        let mut reader = db.begin();
        reader.set_durability(Durability::None);
        assert!(reader.get(&t, &key).unwrap().is_some());
        reader
    };
    let (durable, lost) = (read(1), read(2));
    db.engine().poison("a test");
    durable.commit().unwrap();
    assert!(matches!(lost.commit(), Err(Error::Poisoned { .. })));
}

#[test]
fn no_transaction_commits_after_the_close() {
    let (db, t) = open();
    db.transact(|tx| tx.insert(&t, &1, &1)).unwrap();
    let reader = db.begin();
    assert_eq!(reader.get(&t, &1).unwrap(), Some(1));
    let mut writer = db.begin();
    writer.insert(&t, &2, &2).unwrap();
    db.close().unwrap();
    assert!(matches!(reader.commit(), Err(Error::Closed)));
    assert!(matches!(writer.commit(), Err(Error::Closed)));
}

#[test]
fn nothing_is_committed_to_a_dropped_table() {
    let (db, t) = open();
    let other: Table<u64, u64> = db.open_table("other").unwrap();
    let mut tx = db.begin();
    tx.insert(&other, &1, &1).unwrap();
    tx.insert(&t, &1, &1).unwrap();
    db.drop_table("t").unwrap();
    assert!(matches!(tx.commit(), Err(Error::TableDropped { .. })));
    assert_eq!(db.get(&other, &1).unwrap(), None);
}

/// The listener may use the database, so no lock of the failed transaction is held any more.
#[test]
fn the_health_listener_is_called_without_locks() {
    type End = fn(Transaction) -> bool;
    let commit: End = |tx| tx.commit().is_err();
    let commit_async: End = |tx| tx.commit_async().is_err();
    let abort: End = |tx| {
        tx.abort();
        true
    };
    for end in [commit, commit_async, abort] {
        let watched: Arc<OnceLock<(Arc<Engine>, u64)>> = Arc::default();
        let (sender, calls) = mpsc::channel();
        let listener = {
            let watched = watched.clone();
            move |health: &Health| {
                let (engine, hash) = watched.get().unwrap();
                let is_poisoned = matches!(health, Health::Poisoned { .. });
                let is_held = engine.locks.is_held_by_other(*hash, 0);
                sender.send((is_poisoned, is_held)).unwrap();
            }
        };
        let builder = builder().background_threads(false);
        let (db, t) = open_with(builder.on_health_change(listener));
        let engine = db.engine().clone();
        let hash = hash_of(&t, 1);
        watched.set((engine.clone(), hash)).unwrap();
        let mut tx = db.begin();
        tx.insert(&t, &1, &1).unwrap();
        engine.poison("a test");
        assert!(end(tx));
        assert_eq!(calls.try_iter().collect::<Vec<_>>(), [(true, false)]);
    }
}
