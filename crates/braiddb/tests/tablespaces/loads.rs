//! Bulk loads into tablespaces.

use super::*;

/// A value too long for a leaf, and one that is not.
fn loaded(key: u64) -> Vec<u8> {
    value(key, if key.is_multiple_of(50) { 20_000 } else { 60 })
}

/// A key too long for one layer in every hundred.
fn long_key(key: u64) -> Vec<u8> {
    let mut bytes = key.to_be_bytes().to_vec();
    if key.is_multiple_of(100) {
        bytes.resize(5_000, 7);
    }
    bytes
}

fn load(db: &Database, name: &str, entries: u64) -> braid::Result<Table<Bytes, Bytes>> {
    let mut loader = db.bulk_load_in::<Bytes, Bytes>("one", name, Default::default())?;
    for key in 0..entries {
        loader.insert(&long_key(key)[..], &loaded(key)[..])?;
    }
    loader.finish()
}

#[track_caller]
fn check_loaded(db: &Database, table: &Table<Bytes, Bytes>, entries: u64) {
    let snapshot = db.snapshot();
    let mut range = snapshot.range(table, ..).unwrap();
    for key in 0..entries {
        let (found, value) = range.next().unwrap().unwrap();
        assert!(found == long_key(key) && value == loaded(key), "{key}");
    }
    assert!(range.next().is_none());
}

/// The entries are in the tablespace's file, and stay there without being logged.
#[test]
fn a_table_is_loaded_into_its_tablespace_and_stays_there() {
    let directories = Directories::with_tablespaces();
    let db = small().open(&directories.data).unwrap();
    let len = |name: &str| {
        let file = directories.at(name).join("data.braid");
        fs::metadata(file).unwrap().len()
    };
    let before = ["data", "one", "two"].map(len);
    let table = load(&db, "loaded", 2_000).unwrap();
    assert_eq!(db.tablespace_of(&table).unwrap().as_deref(), Some("one"));
    check_loaded(&db, &table, 2_000);
    let after = ["data", "one", "two"].map(len);
    assert!(after[1] > 1_500_000, "{before:?} {after:?}");
    assert!(
        after[0] < 600_000 && after[2] < 600_000,
        "{before:?} {after:?}"
    );
    let again = load(&db, "loaded", 1).unwrap_err();
    assert!(matches!(again, Error::TableExists { .. }), "{again}");
    let nowhere = db.bulk_load_in::<u64, u64>("three", "t", Default::default());
    assert!(matches!(
        nowhere,
        Err(Error::Tablespace(TablespaceError::NotFound { .. }))
    ));
    db.transact(|tx| tx.insert(&table, &b"\xff"[..], &b"written"[..]))
        .unwrap();
    db.transact(|tx| tx.remove(&table, &b"\xff"[..])).unwrap();
    drop(table);
    db.close().unwrap();
    let db = small().open(&directories.data).unwrap();
    check_loaded(&db, &db.open_table("loaded").unwrap(), 2_000);
    check(&db, 1);
}

#[test]
fn a_tablespace_is_not_dropped_during_a_load() {
    let simulated = Simulated::new(3, 1);
    let db = simulated.open().unwrap();
    simulated.create_all(&db).unwrap();
    let refused = |table: &str| {
        let dropped = db.drop_tablespace("one").unwrap_err();
        let is_it = matches!(
            &dropped,
            Error::Tablespace(TablespaceError::NotEmpty { table: found, .. }) if found == table
        );
        assert!(is_it, "{dropped}");
    };
    let options = Default::default;
    let mut aborted = db
        .bulk_load_in::<Bytes, Bytes>("one", "aborted", options())
        .unwrap();
    aborted.insert(&long_key(0)[..], &loaded(0)[..]).unwrap();
    refused("aborted");
    let mut loader = db
        .bulk_load_in::<Bytes, Bytes>("one", "loaded", options())
        .unwrap();
    loader.insert(&long_key(0)[..], &loaded(0)[..]).unwrap();
    drop(aborted);
    refused("loaded");
    check_loaded(&db, &loader.finish().unwrap(), 1);
    refused("loaded");
    db.drop_table("loaded").unwrap();
    db.drop_tablespace("one").unwrap();
    let gone = db.bulk_load_in::<u64, u64>("one", "t", options());
    assert!(matches!(
        gone,
        Err(Error::Tablespace(TablespaceError::NotFound { .. }))
    ));
    db.close().unwrap();
    simulated.open().unwrap();
}

/// After a crash at any step of either device, the table is complete or does not exist, and its
/// blocks are free.
#[test]
fn an_interrupted_load_leaves_all_or_nothing() {
    let (mut complete, mut absent) = (0, 0);
    for (n, cut) in (1..60).flat_map(|n| [(n, 0), (n, 1)]) {
        let mut simulated = Simulated::new(n * 2 + cut as u64, 1);
        let db = simulated.open().unwrap();
        simulated.create_all(&db).unwrap();
        let before = db.stats().tablespaces[0].store.pages;
        simulated.devices[cut].crash_after(n);
        let outcome = load(&db, "loaded", 300);
        drop(db);
        simulated.crash();
        let db = simulated.open().unwrap();
        match db.existing_table::<Bytes, Bytes>("loaded").unwrap() {
            Some(table) => {
                complete += 1;
                check_loaded(&db, &table, 300);
            }
            None => {
                absent += 1;
                assert!(outcome.is_err(), "{n} {cut}");
                db.checkpoint().unwrap();
                let pages = db.stats().tablespaces[0].store.pages;
                assert!(pages <= before + 1, "{before} {pages}");
            }
        }
        drop(outcome);
        put(&db, &simulated.tables(&db).unwrap(), 1, b"a").unwrap();
        check_loaded(&db, &load(&db, "next", 50).unwrap(), 50);
    }
    println!("{complete} complete, {absent} absent");
    assert!(complete > 10 && absent > 10, "{complete} {absent}");
}

/// A load that finds no space fails alone.
#[test]
fn a_load_into_a_full_tablespace_leaves_nothing() {
    let simulated = Simulated::new(4, 1);
    let db = simulated.open().unwrap();
    simulated.create_all(&db).unwrap();
    let tables = simulated.tables(&db).unwrap();
    put(&db, &tables, 1, b"before").unwrap();
    db.checkpoint().unwrap();
    let full = &simulated.devices[1];
    full.set_capacity(Some(full.used() + (1 << 20)));
    let refused = load(&db, "loaded", 5_000).unwrap_err();
    let Error::OutOfSpace { what } = &refused else {
        panic!("{refused}");
    };
    assert!(what.contains("data.braid of tablespace \"one\""), "{what}");
    put(&db, &tables[..1], 2, b"after").unwrap();
    // What the load has freed can be used after a checkpoint.
    db.checkpoint().unwrap();
    put(&db, &tables, 3, b"after").unwrap();
    full.set_capacity(None);
    check_loaded(&db, &load(&db, "loaded", 1_000).unwrap(), 1_000);
}

/// A load with long keys that is dropped, or that fails, returns its pages and the room that it was promised:
/// also after many of them, the file can be made as short as before.
#[test]
fn an_aborted_load_with_long_keys_returns_its_room() {
    let simulated = Simulated::new(6, 1);
    let db = simulated.open().unwrap();
    simulated.create_all(&db).unwrap();
    put(&db, &simulated.tables(&db).unwrap(), 1, b"kept").unwrap();
    let abort = |entries: u64, fails: bool| {
        let mut loader = db
            .bulk_load_in::<Bytes, Bytes>("one", "aborted", Default::default())
            .unwrap();
        for key in 0..entries {
            loader.insert(&long_key(key)[..], &loaded(key)[..]).unwrap();
        }
        if fails {
            let again = loader.insert(&long_key(0)[..], &b""[..]).unwrap_err();
            assert!(matches!(again, Error::OutOfOrder { .. }), "{again}");
        }
    };
    // The first long key reserves room in which long keys can be removed, while the database is open.
    abort(1, false);
    db.compact().unwrap();
    let store = || db.stats().tablespaces[0].store;
    let before = store();
    for round in 0..12 {
        abort(1 + round * 30, round % 2 == 0);
        db.checkpoint().unwrap();
        assert_eq!(store().pages, before.pages, "{round}");
    }
    db.compact().unwrap();
    let after = store();
    // A few blocks more or less are the page map's and the superblocks'.
    assert!(
        after.file_bytes <= before.file_bytes + 4 * 8192,
        "{before:?} {after:?}"
    );
    check_loaded(&db, &load(&db, "aborted", 300).unwrap(), 300);
}
