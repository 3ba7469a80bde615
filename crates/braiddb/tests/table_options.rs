//! Tables whose values are compressed, or whose entries have a time to live.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use braid::device::MemoryDevice;
use braid::{
    Builder, Bytes, Compression, Database, Error, Isolation, MAX_VALUE_LEN, Readable, Table,
    TableOptions, TransactionOptions,
};
use braid_io::SimDevice;

const LZ4: TableOptions = TableOptions {
    compression: Compression::Lz4,
    time_to_live: None,
};

fn for_seconds(seconds: u64, compression: Compression) -> TableOptions {
    TableOptions {
        compression,
        time_to_live: Some(Duration::from_secs(seconds)),
    }
}

/// A clock that the test sets, in seconds.
#[derive(Clone, Default)]
struct TestClock(Arc<AtomicU64>);

impl TestClock {
    fn builder(&self) -> Builder {
        let seconds = self.0.clone();
        Database::builder()
            .pool_bytes(1 << 20)
            .background_threads(false)
            .clock(move || UNIX_EPOCH + Duration::from_secs(seconds.load(Ordering::Relaxed)))
    }

    fn set(&self, seconds: u64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

/// Bytes that LZ4 compresses, or not.
fn value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = [0, 20, 300, 5_000, 60_000][rng.usize(..5)];
    let mut value = vec![rng.u8(..); len];
    if rng.bool() {
        rng.fill(&mut value);
    }
    value
}

fn contents(reader: &impl Readable, table: &Table<u8, Bytes>) -> BTreeMap<u8, Vec<u8>> {
    let all = reader.iter(table).unwrap();
    all.map(|entry| entry.map(|(key, value)| (key, value.to_vec())))
        .collect::<Result<_, _>>()
        .unwrap()
}

#[test]
fn options_are_stored_and_compared() {
    let device = Arc::new(MemoryDevice::new());
    let open = || {
        TestClock::default()
            .builder()
            .open_on(device.clone())
            .unwrap()
    };
    let db = open();
    let timed = for_seconds(7, Compression::Lz4);
    db.open_table_with::<u8, Bytes>("lz4", LZ4).unwrap();
    db.open_table_with::<u8, Bytes>("timed", timed).unwrap();
    db.open_table::<u8, Bytes>("plain").unwrap();
    db.rename_table("timed", "renamed").unwrap();
    db.close().unwrap();
    let db = open();
    for (name, options) in [
        ("lz4", LZ4),
        ("renamed", timed),
        ("plain", TableOptions::default()),
    ] {
        let table = db.open_table::<u8, Bytes>(name).unwrap();
        assert_eq!(table.options(), options);
        db.open_table_with::<u8, Bytes>(name, options).unwrap();
        let other = for_seconds(8, Compression::None);
        let refused = db.open_table_with::<u8, Bytes>(name, other).unwrap_err();
        let is_reported = matches!(&refused, Error::TableOptionsMismatch { found, asked, .. }
            if **found == options && **asked == other);
        assert!(is_reported, "{refused}");
        let types = db.open_table_with::<u8, u8>(name, options);
        assert!(matches!(types, Err(Error::TableTypeMismatch { .. })));
    }
    let nothing = for_seconds(0, Compression::None);
    let refused = db.open_table_with::<u8, Bytes>("new", nothing);
    assert!(matches!(refused, Err(Error::InvalidOption { .. })));
    assert_eq!(db.table_names().unwrap(), ["lz4", "plain", "renamed"]);
}

/// With any options, a table is a map for all its readers, over transactions, checkpoints and
/// crashes.
#[test]
#[allow(clippy::too_many_lines, reason = "one model")]
fn a_table_with_options_is_a_map_that_survives_crashes() {
    for seed in 0..30 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let options = [
            LZ4,
            for_seconds(1_000, Compression::Lz4),
            for_seconds(1_000, Compression::None),
        ][seed as usize % 3];
        let mut device = SimDevice::new(seed);
        let mut model = BTreeMap::new();
        let clock = TestClock::default();
        for _ in 0..3 {
            let db = clock.builder().open_on(Arc::new(device.clone())).unwrap();
            let table: Table<u8, Bytes> = db.open_table_with("t", options).unwrap();
            assert!(contents(&db.snapshot(), &table) == model, "seed {seed}");
            for _ in 0..rng.u32(..25) {
                let before = (db.snapshot(), model.clone());
                let mut tx = db.begin();
                for _ in 0..rng.u32(1..5) {
                    let (key, new) = (rng.u8(..20), value(&mut rng));
                    let old = model.get(&key).cloned();
                    match rng.u32(..7) {
                        0 => {
                            let taken = tx.take(&table, &key).unwrap();
                            assert_eq!(taken.map(|v| v.to_vec()), model.remove(&key));
                        }
                        1 => assert_eq!(
                            tx.remove(&table, &key).unwrap(),
                            model.remove(&key).is_some()
                        ),
                        2 => {
                            let expected = old.clone().map(Bytes::from);
                            let new_bytes = Bytes::from(new.clone());
                            let wrong = Bytes::from_static(b"wrong");
                            assert!(
                                !tx.compare_and_set(&table, &key, Some(&wrong), None)
                                    .unwrap()
                            );
                            let set = tx.compare_and_set(
                                &table,
                                &key,
                                expected.as_ref(),
                                Some(&new_bytes),
                            );
                            assert!(set.unwrap());
                            model.insert(key, new);
                        }
                        3 => {
                            let found = tx
                                .fetch_update(&table, &key, |_| Some(new.clone().into()))
                                .unwrap();
                            assert_eq!(found.map(|v| v.to_vec()), old);
                            model.insert(key, new);
                        }
                        4 => {
                            let done = tx.insert_if_absent(&table, &key, &new).unwrap();
                            assert_eq!(done, old.is_none());
                            model.entry(key).or_insert(new);
                        }
                        _ => {
                            tx.insert(&table, &key, &new).unwrap();
                            model.insert(key, new);
                        }
                    }
                    let found = tx.get(&table, &key).unwrap();
                    assert_eq!(found.as_deref(), model.get(&key).map(|v| &v[..]));
                    assert_eq!(
                        tx.contains_key(&table, &key).unwrap(),
                        model.contains_key(&key)
                    );
                }
                assert!(contents(&tx, &table) == model, "seed {seed}");
                tx.commit().unwrap();
                assert!(contents(&before.0, &table) == before.1, "seed {seed}");
                if rng.u32(..8) == 0 {
                    db.checkpoint().unwrap();
                }
            }
            for key in 0..20 {
                let found = db.get(&table, &key).unwrap();
                assert_eq!(found.as_deref(), model.get(&key).map(|v| &v[..]));
            }
            if rng.bool() {
                device.power_off();
            }
            drop((table, db));
            device = if device.has_crashed() {
                device.after_crash()
            } else {
                device
            };
        }
    }
}

#[test]
fn compressed_values_take_less_space() {
    let written = |options| {
        let db = TestClock::default()
            .builder()
            .open_on(Arc::new(MemoryDevice::new()))
            .unwrap();
        let table = db.open_table_with::<u32, String>("t", options).unwrap();
        let mut tx = db.begin();
        for i in 0..200 {
            let text = format!("all work and no play makes jack a dull boy {i}. ").repeat(30);
            tx.insert(&table, &i, &text).unwrap();
        }
        tx.commit().unwrap();
        db.checkpoint().unwrap();
        let stats = db.stats();
        (stats.store.pages, stats.log.written_bytes)
    };
    let (plain, lz4) = (written(TableOptions::default()), written(LZ4));
    assert!(lz4.0 * 4 < plain.0, "pages: {lz4:?} of {plain:?}");
    assert!(lz4.1 * 4 < plain.1, "log: {lz4:?} of {plain:?}");
}

#[test]
fn the_longest_value_is_a_few_bytes_shorter() {
    let db = Database::builder()
        .pool_bytes(1 << 20)
        .transaction_bytes_max(512 << 20)
        .open_on(Arc::new(MemoryDevice::new()))
        .unwrap();
    let table = db.open_table_with::<u8, Bytes>("t", LZ4).unwrap();
    let mut tx = db.begin();
    let long = tx.insert(&table, &1, &vec![0; MAX_VALUE_LEN - 8]);
    assert!(matches!(long, Err(Error::ValueTooLong { max, .. }) if max == MAX_VALUE_LEN - 9));
    let mut loader = db.bulk_load_with::<u8, Bytes>("loaded", LZ4).unwrap();
    let long = loader.insert(&1, &vec![0; MAX_VALUE_LEN - 8]);
    assert!(matches!(long, Err(Error::ValueTooLong { .. })));
    loader.insert(&1, &vec![7; 1 << 20]).unwrap();
    let loaded = loader.finish().unwrap();
    assert_eq!(loaded.options(), LZ4);
    assert!(db.get(&loaded, &1).unwrap().unwrap()[..] == [7; 1 << 20]);
}

#[test]
fn entries_expire_for_all_later_reads() {
    let clock = TestClock::default();
    let device = Arc::new(MemoryDevice::new());
    let db = clock.builder().open_on(device.clone()).unwrap();
    let options = for_seconds(60, Compression::None);
    let table: Table<u8, u32> = db.open_table_with("t", options).unwrap();
    clock.set(1_000);
    db.transact(|tx| (0..5).try_for_each(|key| tx.insert(&table, &key, &1)))
        .unwrap();
    clock.set(1_030);
    db.transact(|tx| tx.insert(&table, &2, &2)).unwrap();
    clock.set(1_059);
    let (snapshot, transaction) = (db.snapshot(), db.begin());
    let isolated = db.begin_with(TransactionOptions {
        isolation: Isolation::Snapshot,
        ..TransactionOptions::default()
    });
    let named = db.create_snapshot("named").unwrap();
    let count = |reader: &dyn Fn() -> usize| reader();
    let of = |snapshot: &braid::Snapshot| snapshot.iter(&table).unwrap().count();
    assert_eq!((of(&snapshot), of(&named)), (5, 5));
    assert_eq!(transaction.get(&table, &0).unwrap(), Some(1));
    assert_eq!(count(&|| isolated.iter(&table).unwrap().rev().count()), 5);
    clock.set(1_060);
    // Snapshots that have read the entry still see it, even after its removal.
    assert_eq!(db.remove_expired().unwrap(), 4);
    assert_eq!((db.remove_expired().unwrap(), db.stats().expired), (0, 4));
    assert_eq!((of(&snapshot), of(&named)), (5, 5));
    assert_eq!(of(&db.open_snapshot("named").unwrap()), 5);
    assert_eq!(isolated.iter(&table).unwrap().count(), 5);
    assert_eq!(of(&db.snapshot()), 1);
    // A serializable transaction conflicts: the entry that it read was removed.
    assert!(transaction.commit().is_err());
    assert_eq!(db.get(&table, &0).unwrap(), None);
    assert_eq!(db.get(&table, &2).unwrap(), Some(2));
    drop((snapshot, isolated, named));
    clock.set(1_090);
    // Expired entries are invisible before they are removed.
    let mut tx = db.begin();
    assert_eq!(tx.get(&table, &2).unwrap(), None);
    assert!(!tx.contains_key(&table, &2).unwrap() && !tx.remove(&table, &2).unwrap());
    assert_eq!(tx.last(&table).unwrap(), None);
    assert!(tx.insert_if_absent(&table, &2, &3).unwrap());
    tx.commit().unwrap();
    drop((table, db));
    let db = clock.builder().open_on(device).unwrap();
    let table: Table<u8, u32> = db.open_table("t").unwrap();
    clock.set(1_149);
    assert_eq!(db.get(&table, &2).unwrap(), Some(3));
    clock.set(1_150);
    assert_eq!(db.get(&table, &2).unwrap(), None);
    clock.set(0);
    assert_eq!(
        db.get(&table, &2).unwrap(),
        Some(3),
        "a clock that was set back"
    );
}

#[test]
fn a_locked_entry_is_left_alone() {
    let clock = TestClock::default();
    let db = clock
        .builder()
        .open_on(Arc::new(MemoryDevice::new()))
        .unwrap();
    let table: Table<u8, u32> = db
        .open_table_with("t", for_seconds(1, Compression::None))
        .unwrap();
    db.transact(|tx| tx.insert(&table, &1, &1)).unwrap();
    let mut tx = db.begin();
    assert_eq!(tx.get_for_update(&table, &1).unwrap(), Some(1));
    clock.set(10);
    assert_eq!(db.remove_expired().unwrap(), 0);
    tx.insert(&table, &1, &2).unwrap();
    tx.commit().unwrap();
    assert_eq!(db.remove_expired().unwrap(), 1);
}

/// A background thread removes expired entries by itself.
#[test]
fn expired_entries_are_removed_in_the_background() {
    let clock = TestClock::default();
    let builder = clock.builder().background_threads(true);
    let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let table = db
        .open_table_with::<u32, Bytes>("t", for_seconds(1, Compression::None))
        .unwrap();
    for i in 0..50 {
        db.transact(|tx| (0..20).try_for_each(|j| tx.insert(&table, &(20 * i + j), &[1; 500])))
            .unwrap();
    }
    // The sweep continues: one that began earlier finds only entries after its position, and the
    // next one begins later.
    for seconds in 3_600.. {
        clock.set(seconds);
        if db.stats().expired == 1_000 {
            break;
        }
        std::thread::yield_now();
    }
    assert_eq!(db.stats().expired, 1_000);
}

#[test]
fn changes_show_values_as_they_were_written() {
    let db = Database::in_memory().unwrap();
    let options = TableOptions {
        compression: Compression::Lz4,
        time_to_live: Some(Duration::from_secs(60)),
    };
    let t = db.open_table_with::<u64, String>("t", options).unwrap();
    let from = db.position();
    let text = "abc".repeat(100);
    db.transact(|tx| tx.insert(&t, &1, &text)).unwrap();
    let set = db.changes(from).unwrap().next().unwrap().unwrap();
    assert_eq!(set.changes[0].value.as_deref(), Some(text.as_bytes()));
}
