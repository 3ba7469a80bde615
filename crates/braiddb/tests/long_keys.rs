//! Keys of up to 8 KiB, with all operations on keys.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use braid::backup::Restore;
use braid::device::MemoryDevice;
use braid::offline::Finding;
use braid::{
    Bytes, ConflictKind, Database, Error, Isolation, MAX_KEY_LEN, Protocol, Readable, Result,
    Table, Transaction, TransactionOptions,
};
use braid_io::SimDevice;

type BytesTable = Table<Bytes, Bytes>;
type State = BTreeMap<Vec<u8>, Vec<u8>>;
type Step<'a> = &'a dyn Fn(&mut Transaction) -> Result<()>;

fn builder() -> braid::Builder {
    Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(256 << 10)
}

fn open() -> (Database, BytesTable) {
    let db = builder().open_on(Arc::new(MemoryDevice::new())).unwrap();
    let table = db.open_table("t").unwrap();
    (db, table)
}

/// Returns a key of a length; keys of the same length differ in their last two bytes.
fn key(len: usize, number: u16) -> Vec<u8> {
    let mut key = vec![b'k'; len - 2];
    key.extend(number.to_be_bytes());
    key
}

/// Short and long keys, many with a common prefix of more than 1,000 bytes.
fn random_key(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = [4, 900, 1_024, 1_025, 1_500, 3_000, 8_191, MAX_KEY_LEN][rng.usize(..8)];
    key(len, rng.u16(..6))
}

fn put(db: &Database, table: &BytesTable, key: &[u8], value: &[u8]) {
    db.transact(|tx| tx.insert(table, key, value)).unwrap();
}

fn contents(reader: &impl Readable, table: &BytesTable) -> State {
    let entries = reader.iter(table).unwrap().map(Result::unwrap);
    let forward: State = entries.map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
    let entries = reader.iter(table).unwrap().rev().map(Result::unwrap);
    let reverse: Vec<Vec<u8>> = entries.map(|(key, _)| key.to_vec()).collect();
    assert!(forward.keys().rev().eq(reverse.iter()));
    forward
}

#[track_caller]
fn expect(reader: &impl Readable, table: &BytesTable, state: &State) {
    assert!(contents(reader, table) == *state);
    for (key, value) in state {
        let found = reader.get(table, &key[..]).unwrap();
        assert_eq!(found.as_deref(), Some(&value[..]));
    }
    let first = reader.first(table).unwrap().map(|(key, _)| key.to_vec());
    let last = reader.last(table).unwrap().map(|(key, _)| key.to_vec());
    assert_eq!(first.as_ref(), state.keys().next());
    assert_eq!(last.as_ref(), state.keys().next_back());
}

#[test]
fn the_limit_is_8192_bytes() {
    let (db, table) = open();
    assert_eq!(MAX_KEY_LEN, 8_192);
    put(&db, &table, &[7; 8_192], b"longest");
    let too_long = db.transact(|tx| tx.insert(&table, &[7; 8_193][..], b"".as_slice()));
    let Err(Error::KeyTooLong { len, max }) = too_long else {
        panic!("{too_long:?}");
    };
    assert_eq!((len, max), (8_193, 8_192));
    assert_eq!(db.get(&table, &[7; 8_193][..]).unwrap(), None);
    assert_eq!(db.get(&table, &[7; 8_192][..]).unwrap().unwrap(), "longest");
    let ingested = db.ingest(&table, [(&[7; 8_193][..], &b""[..])]);
    assert!(matches!(ingested, Err(Error::KeyTooLong { .. })));
    let mut loader = db.bulk_load::<Bytes, Bytes>("loaded").unwrap();
    let loaded = loader.insert(&[7; 8_193][..], &b""[..]);
    assert!(matches!(loaded, Err(Error::KeyTooLong { .. })));
}

#[test]
fn transactions_snapshots_and_savepoints_take_long_keys() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let device = Arc::new(MemoryDevice::new());
        let mut db = builder().open_on(device.clone()).unwrap();
        let mut table: BytesTable = db.open_table("t").unwrap();
        let mut state = State::new();
        let mut before = None;
        for round in 0..40u8 {
            let mut tx = db.begin();
            let mut after = state.clone();
            for _ in 0..rng.usize(1..6) {
                let savepoint = tx.savepoint();
                let saved = after.clone();
                let (key, value) = (random_key(&mut rng), vec![round; rng.usize(0..3_000)]);
                match rng.u8(..3) {
                    0 => {
                        let removed = tx.remove(&table, &key[..]).unwrap();
                        assert_eq!(removed, after.remove(&key).is_some(), "seed {seed}");
                    }
                    _ => {
                        tx.insert(&table, &key[..], &value[..]).unwrap();
                        after.insert(key, value);
                    }
                }
                if rng.u8(..4) == 0 {
                    tx.rollback_to(&savepoint).unwrap();
                    after = saved;
                }
            }
            assert!(contents(&tx, &table) == after, "seed {seed}");
            let (from, to) = (random_key(&mut rng), random_key(&mut rng));
            if from < to {
                let bounds = (Bound::Excluded(&from[..]), Bound::Included(&to[..]));
                let found = tx
                    .range(&table, bounds)
                    .unwrap()
                    .map(|entry| entry.unwrap().0.to_vec());
                let expected = after.range::<[u8], _>(bounds).map(|(key, _)| key.clone());
                assert!(found.eq(expected), "seed {seed}");
            }
            match rng.u8(..5) {
                0 => tx.abort(),
                _ => {
                    tx.commit().unwrap();
                    state = after;
                }
            }
            expect(&db.snapshot(), &table, &state);
            if let Some((snapshot, old)) = before.take_if(|_| rng.bool()) {
                expect(&snapshot, &table, &old);
            }
            if before.is_none() {
                before = Some((db.snapshot(), state.clone()));
            }
            match rng.u8(..10) {
                0 => db.checkpoint().unwrap(),
                // Recovery replays the changes since the checkpoint.
                1 => {
                    before = None;
                    drop(table);
                    if rng.bool() {
                        db.close().unwrap()
                    } else {
                        drop(db)
                    }
                    db = builder().open_on(device.clone()).unwrap();
                    table = db.open_table("t").unwrap();
                    expect(&db.snapshot(), &table, &state);
                }
                _ => {}
            }
        }
        let all = db.estimate(&table, ..).unwrap().entries;
        assert!(
            all as usize <= 2 * state.len() + 2,
            "{all} of {}",
            state.len()
        );
    }
}

#[test]
fn phantoms_of_long_keys_are_conflicts() {
    for protocol in [Protocol::Glsn, Protocol::Serial, Protocol::Gwsn] {
        let device = Arc::new(MemoryDevice::new());
        let db = builder().protocol(protocol).open_on(device).unwrap();
        let table: BytesTable = db.open_table("t").unwrap();
        let other: BytesTable = db.open_table("other").unwrap();
        put(&db, &table, b"a", b"");
        // With and without other long keys, of one layer and of several.
        for prepared in [None, Some(key(1_500, 9)), Some(key(4_000, 9))] {
            if let Some(key) = &prepared {
                put(&db, &table, key, b"");
            }
            for len in [1_025, 1_500, 4_000, 8_192] {
                let new = key(len, 5);
                for by_range in [true, false] {
                    // The key is inserted, changed and removed.
                    let appear = |tx: &mut Transaction| tx.insert(&table, &new[..], &b"1"[..]);
                    let change = |tx: &mut Transaction| tx.insert(&table, &new[..], &b"2"[..]);
                    let go = |tx: &mut Transaction| tx.remove(&table, &new[..]).map(drop);
                    let steps: [Step<'_>; 3] = [&appear, &change, &go];
                    for step in steps {
                        let mut tx = db.begin();
                        if by_range {
                            let (from, to) = (key(len, 4), key(len, 6));
                            let range = tx.range(&table, &from[..]..&to[..]).unwrap();
                            assert!(range.count() <= 1);
                        } else {
                            tx.get(&table, &new[..]).unwrap();
                        }
                        tx.insert(&other, &b"x"[..], &b""[..]).unwrap();
                        db.transact(|tx| step(tx)).unwrap();
                        let kind = if by_range {
                            ConflictKind::Range
                        } else {
                            ConflictKind::Read
                        };
                        match tx.commit() {
                            Err(Error::Conflict(found)) => assert_eq!(found, kind),
                            committed => panic!("{len}, {by_range}: {committed:?}"),
                        }
                    }
                    // A change in the same leaf but outside of the range: no conflict.
                    let mut tx = db.begin();
                    let (from, to) = (key(len, 4), key(len, 6));
                    assert_eq!(tx.range(&table, &from[..]..&to[..]).unwrap().count(), 0);
                    tx.insert(&other, &b"x"[..], &b""[..]).unwrap();
                    put(&db, &table, &key(len, 7), b"");
                    db.transact(|tx| tx.remove(&table, &key(len, 7)[..]))
                        .unwrap();
                    tx.commit().unwrap();
                }
            }
        }
    }
}

#[test]
fn a_locked_long_key_is_a_write_conflict_under_snapshot_isolation() {
    let (db, table) = open();
    let key = key(5_000, 1);
    put(&db, &table, &key, b"1");
    let options = TransactionOptions {
        isolation: Isolation::Snapshot,
        ..TransactionOptions::default()
    };
    let mut tx = db.begin_with(options);
    assert_eq!(tx.get(&table, &key[..]).unwrap().unwrap(), "1");
    put(&db, &table, &key, b"2");
    assert_eq!(tx.get(&table, &key[..]).unwrap().unwrap(), "1");
    let inserted = tx.insert(&table, &key[..], &b"3"[..]);
    assert!(matches!(
        inserted,
        Err(Error::Conflict(ConflictKind::Write))
    ));
}

/// Power failures at any step: entries in the file, entries only in the log, and lost entries.
#[test]
fn long_keys_survive_crashes() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut device = SimDevice::new(seed);
        let mut states = vec![State::new()];
        let mut certain = 0;
        for _ in 0..4 {
            let Ok(db) = builder().open_on(Arc::new(device.clone())) else {
                device = device.after_crash();
                continue;
            };
            let Ok(table) = db.open_table::<Bytes, Bytes>("t") else {
                device = device.after_crash();
                continue;
            };
            let found = contents(&db.snapshot(), &table);
            let place = states.iter().rposition(|state| *state == found);
            let place = place.unwrap_or_else(|| panic!("seed {seed}: no state that was"));
            assert!(place >= certain, "seed {seed}: a commit is lost");
            states.truncate(place + 1);
            certain = place;
            device.crash_after(rng.u64(5..200));
            for step in 0..60u8 {
                let mut state = states[states.len() - 1].clone();
                let mut tx = db.begin();
                for _ in 0..rng.usize(1..4) {
                    let key = random_key(&mut rng);
                    let value = vec![step; rng.usize(0..4_000)];
                    let written = match rng.u8(..3) {
                        0 => tx.remove(&table, &key[..]).map(|_| state.remove(&key)),
                        _ => {
                            let written = tx.insert(&table, &key[..], &value[..]);
                            written.map(|()| state.insert(key, value))
                        }
                    };
                    if written.is_err() {
                        break;
                    }
                }
                // The transaction may be durable although its commit fails.
                states.push(state);
                match tx.commit() {
                    Ok(_) => certain = states.len() - 1,
                    Err(_) => break,
                }
                if rng.u8(..8) == 0 && db.checkpoint().is_err() {
                    break;
                }
            }
            drop((table, db));
            device = device.after_crash();
        }
    }
}

#[test]
fn loads_ingests_feeds_and_archives_take_long_keys() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let builder = || builder().archive(path("archive"));
    let db = builder().open(path("db")).unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    let state: State = (0..60)
        .map(|i| (random_key(&mut rng), vec![i; 50 * usize::from(i)]))
        .collect();
    // An aborted load leaves nothing.
    let mut loader = db.bulk_load::<Bytes, Bytes>("nothing").unwrap();
    loader.extend(&state).unwrap();
    drop(loader);
    let mut loader = db.bulk_load::<Bytes, Bytes>("loaded").unwrap();
    loader.extend(&state).unwrap();
    let loaded = loader.finish().unwrap();
    expect(&db.snapshot(), &loaded, &state);

    db.backup(path("full")).unwrap();
    let position = db.position();
    let table: BytesTable = db.open_table("t").unwrap();
    let entries = state.iter().map(|(key, value)| (&key[..], &value[..]));
    db.ingest(&table, entries).unwrap();
    expect(&db.snapshot(), &table, &state);
    let mut fed = State::new();
    for set in db.changes(position).unwrap() {
        let of_table = |change: &braid::changes::Change| change.table.as_deref() == Some("t");
        for change in set.unwrap().changes.into_iter().filter(of_table) {
            let value = change.value.expect("nothing was removed").to_vec();
            fed.insert(change.key.to_vec(), value);
        }
    }
    assert!(fed == state);
    db.close().unwrap();

    let mut findings = Vec::new();
    let report = braid::offline::verify(path("db"), &mut |found| findings.push(found)).unwrap();
    assert_eq!(findings, [""; 0], "{report:?}");
    let restore = Restore::new().backup(path("full")).archive(path("archive"));
    restore.run(path("restored")).unwrap();
    let restored = Database::open(path("restored")).unwrap();
    expect(
        &restored.snapshot(),
        &restored.open_table("t").unwrap(),
        &state,
    );
    expect(
        &restored.snapshot(),
        &restored.open_table("loaded").unwrap(),
        &state,
    );
    let mut reported = Vec::new();
    let mut sink = |finding: Finding| reported.push(finding);
    let report = braid::offline::salvage(path("db"), path("salvaged"), &mut sink).unwrap();
    assert_eq!((report.losses, report.tables), (0, 2), "{reported:?}");
    let salvaged = Database::open(path("salvaged")).unwrap();
    expect(
        &salvaged.snapshot(),
        &salvaged.open_table("t").unwrap(),
        &state,
    );
    expect(
        &salvaged.snapshot(),
        &salvaged.open_table("loaded").unwrap(),
        &state,
    );
}

/// Dropping a table frees the pages of its long keys, and so does removing keys.
#[test]
fn long_keys_that_go_leave_no_pages() {
    let (db, table) = open();
    db.checkpoint().unwrap();
    let before = db.stats().store.pages;
    for round in 0..3 {
        for i in 0..200 {
            put(&db, &table, &key(6_000, i), &[7; 100]);
        }
        assert!(db.stats().store.pages > before + 5);
        for i in 0..200 {
            db.transact(|tx| tx.remove(&table, &key(6_000, i)[..]))
                .unwrap();
        }
        put(&db, &table, b"a", b"");
        db.checkpoint().unwrap();
        let pages = db.stats().store.pages;
        assert!(
            pages <= before + 3,
            "round {round}: {pages}, and {before} before"
        );
    }
    put(&db, &table, &key(6_000, 1), b"");
    drop(table);
    assert!(db.drop_table("t").unwrap());
    db.compact().unwrap();
    let pages = db.stats().store.pages;
    assert!(pages < before, "{pages}, and {before} before");
}

/// Opens a database with the smallest possible pool and a log that needs no more space, inserts
/// `keys`, and then limits the device to `room` more bytes.
fn open_on_a_small_device(
    room: u64,
    keys: impl Iterator<Item = Vec<u8>>,
) -> (Database, BytesTable) {
    let device = SimDevice::new(room);
    let db = Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(1 << 20)
        .strands(1)
        .preallocated_log_bytes(32 << 20)
        .checkpoint_log_bytes(16 << 20)
        .max_log_bytes(32 << 20)
        .open_on(Arc::new(device.clone()))
        .unwrap();
    let table: BytesTable = db.open_table("t").unwrap();
    let mut tx = db.begin();
    for key in keys {
        tx.insert(&table, &key[..], &[1; 300]).unwrap();
    }
    tx.commit().unwrap();
    db.checkpoint().unwrap();
    device.set_capacity(Some(device.used() + room));
    (db, table)
}

/// A key of the greatest length; some of its first chunks are shared with others.
fn spread_key(number: u32) -> Vec<u8> {
    let mut key = vec![b'k'; MAX_KEY_LEN];
    let number = number.wrapping_mul(2_654_435_761);
    let at = 1_024 * (number % 4) as usize;
    key[at..at + 4].copy_from_slice(&number.to_be_bytes());
    key
}

/// Returns whether a write succeeded; otherwise it must have failed for lack of space in the data
/// file.
#[track_caller]
fn is_admitted(written: Result<()>) -> bool {
    match written {
        Ok(()) => true,
        Err(Error::OutOfSpace { what }) => {
            assert!(what.contains("data.braid"), "{what}");
            false
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// Returns whether a write succeeds at once or after checkpoints, which free the blocks of the one
/// before.
#[track_caller]
fn is_admitted_in_the_end(db: &Database, write: &dyn Fn() -> Result<()>) -> bool {
    (0..3).any(|_| {
        let is_done = is_admitted(write());
        if !is_done {
            db.checkpoint().unwrap();
        }
        is_done
    })
}

#[test]
fn a_full_data_file_refuses_long_keys_and_removals_make_room() {
    for room in [0, 100 << 10, 700 << 10] {
        let (db, table) = open_on_a_small_device(room, (0..150).map(spread_key));
        let mut state: State = (0..150).map(|i| (spread_key(i), vec![1; 300])).collect();
        let mut batch = 150;
        loop {
            // As many pages in one transaction as the pool allows.
            let keys: Vec<_> = (batch..batch + 4).map(spread_key).collect();
            let insert = |tx: &mut Transaction| {
                keys.iter()
                    .try_for_each(|key| tx.insert(&table, &key[..], &[2; 300]))
            };
            if !is_admitted_in_the_end(&db, &|| db.transact(insert)) {
                break;
            }
            state.extend(keys.into_iter().map(|key| (key, vec![2; 300])));
            batch += 4;
        }
        for _ in 0..2 {
            expect(&db.snapshot(), &table, &state);
        }
        for key in state.keys() {
            let remove = || db.transact(|tx| tx.remove(&table, &key[..]).map(drop));
            assert!(is_admitted_in_the_end(&db, &remove), "room {room}");
        }
        expect(&db.snapshot(), &table, &State::new());
        // After checkpoints, removed keys are gone from the layers, and others find room.
        for number in 10_000..10_100 {
            let insert = || db.transact(|tx| tx.insert(&table, &spread_key(number)[..], &[3; 300]));
            assert!(
                is_admitted_in_the_end(&db, &insert),
                "room {room}, {number}"
            );
        }
        assert_eq!(db.snapshot().iter(&table).unwrap().count(), 100);
    }
}

/// Keys of 8 KiB can change more pages than values of as many bytes.
#[test]
fn long_keys_ask_for_more_room_than_short_ones() {
    let short = |i: u32| i.to_be_bytes().to_vec();
    let (db, table) = open_on_a_small_device(0, (0..8_000).map(short));
    let long_keys = |tx: &mut Transaction| {
        (0..10).try_for_each(|i| tx.insert(&table, &spread_key(i)[..], &b""[..]))
    };
    let short_keys = |tx: &mut Transaction| {
        (9_000..9_010).try_for_each(|i| tx.insert(&table, &short(i)[..], &[1; MAX_KEY_LEN]))
    };
    let mut is_short_enough = false;
    // Each round frees a little more room.
    for first in (0..8_000).step_by(40) {
        let remove = |tx: &mut Transaction| {
            (first..first + 40).try_for_each(|i| tx.remove(&table, &short(i)[..]).map(drop))
        };
        assert!(is_admitted_in_the_end(&db, &|| db.transact(remove)));
        db.checkpoint().unwrap();
        if is_admitted(db.transact(long_keys)) {
            break;
        }
        is_short_enough |= is_admitted(db.transact(short_keys));
    }
    assert!(is_short_enough, "both were admitted at once, or neither");
}

#[test]
fn a_load_of_long_keys_into_a_full_data_file_is_refused() {
    let (db, table) = open_on_a_small_device(400 << 10, (0..150).map(spread_key));
    let mut loader = db.bulk_load::<Bytes, Bytes>("loaded").unwrap();
    let keys: State = (150..1_000)
        .map(|i| (spread_key(i), vec![2; 300]))
        .collect();
    let mut entries = keys.iter();
    let refused = entries.find_map(|(key, value)| loader.insert(key, value).err());
    assert!(!is_admitted(refused.map_or(Ok(()), Err)));
    // A checkpoint finds room for the pages that the load changed.
    db.checkpoint().unwrap();
    assert!(loader.insert(&[0xff; 2_000][..], &b""[..]).is_err());
    drop(loader);
    let remove = || db.transact(|tx| tx.remove(&table, &spread_key(0)[..]).map(drop));
    assert!(is_admitted_in_the_end(&db, &remove));
    let insert = || db.transact(|tx| tx.insert(&table, &spread_key(2_000)[..], &b""[..]));
    assert!(is_admitted_in_the_end(&db, &insert));
    assert_eq!(db.table_names().unwrap(), ["t"]);
}

#[test]
fn a_compaction_fills_leaves_of_long_keys() {
    let (db, table) = open();
    for i in 0..400 {
        put(&db, &table, &key(1_500, i), &[7; 1_000]);
    }
    let mut state = contents(&db.snapshot(), &table);
    for i in (0..400).step_by(2) {
        let key = key(1_500, i);
        db.transact(|tx| tx.remove(&table, &key[..])).unwrap();
        state.remove(&key);
    }
    put(&db, &table, b"a", b"");
    state.insert(b"a".to_vec(), Vec::new());
    db.checkpoint().unwrap();
    let before = db.stats().store.pages;
    db.compact().unwrap();
    let after = db.stats().store.pages;
    assert!(after < before * 2 / 3, "{after} pages, and {before} before");
    expect(&db.snapshot(), &table, &state);
}
