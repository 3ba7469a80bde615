//! Compaction of a database with tablespaces: every data file becomes as short as its contents, and a
//! crash of any device costs nothing.

use super::*;

use logs::{devices, inline, open, with_logs};

/// Bytes of a value that fills a part of a page.
const LEN: usize = 1_000;

/// Keys that stay.
const KEPT: std::ops::Range<u64> = 180..200;

/// Adds a table to drop and entries to remove in each tablespace, and removes them.
fn make_holes(db: &Database) {
    let gone: Vec<Table<u64, Bytes>> = [None, Some("one"), Some("two")]
        .into_iter()
        .map(|space| {
            let name = format!("gone from {space:?}");
            match space {
                None => db.open_table(&name).unwrap(),
                Some(space) => db.open_table_in(space, &name, Default::default()).unwrap(),
            }
        })
        .collect();
    let tables = tables(db);
    for key in 0..KEPT.end {
        db.transact(|tx| {
            for table in gone.iter().chain(&tables) {
                tx.insert(table, &key, &value(key, LEN)[..])?;
            }
            Ok(())
        })
        .unwrap();
    }
    db.checkpoint().unwrap();
    let names: Vec<String> = gone.iter().map(|table| table.name().to_owned()).collect();
    drop(gone);
    for name in names {
        assert!(db.drop_table(&name).unwrap());
    }
    db.transact(|tx| {
        for table in &tables {
            (0..KEPT.start).try_for_each(|key| tx.remove(table, &key).map(drop))?;
        }
        Ok(())
    })
    .unwrap();
}

#[track_caller]
fn expect_kept(db: &Database) {
    assert_eq!(db.table_names().unwrap(), ["in main", "in one", "in two"]);
    for table in tables(db) {
        let snapshot = db.snapshot();
        let entries = snapshot.iter(&table).unwrap().map(Result::unwrap);
        let expected = KEPT.map(|key| (key, Bytes::from(value(key, LEN))));
        assert!(entries.eq(expected), "{}", table.name());
    }
}

/// Lengths of the data files, of the database's and of the tablespaces'.
fn lengths(directories: &Directories) -> [u64; 3] {
    ["data", "one", "two"].map(|name| {
        let file = directories.at(name).join("data.braid");
        fs::metadata(file).unwrap().len()
    })
}

#[test]
fn each_data_file_shrinks_to_its_contents() {
    let directories = Directories::new();
    let builder = || small().background_threads(false);
    let db = builder().open(&directories.data).unwrap();
    for (name, own_log) in [("one", true), ("two", false)] {
        let options = directories.options(name).own_log(own_log);
        db.create_tablespace(name, options).unwrap();
    }
    db.close().unwrap();
    let db = builder().open(&directories.data).unwrap();
    make_holes(&db);
    db.checkpoint().unwrap();
    let before = lengths(&directories);
    let report = db.compact().unwrap();
    let after = lengths(&directories);
    assert_eq!(report.bytes_after, after.iter().sum::<u64>(), "{report:?}");
    for (before, after) in before.iter().zip(after) {
        assert!(after < before / 2, "{before} {after}");
    }
    let stats = db.stats();
    let spaces = stats.tablespaces.iter().map(|space| &space.store);
    for store in spaces.chain([&stats.store]) {
        assert!(store.file_free_bytes <= 8 * 8192, "{store:?}");
    }
    // Each tablespace still accepts transactions, in the log that it had before.
    expect_kept(&db);
    put(&db, &tables(&db), 200, b"later").unwrap();
    db.transact(|tx| {
        let mut tables = tables(&db).into_iter();
        tables.try_for_each(|table| tx.remove(&table, &200).map(drop))
    })
    .unwrap();
    db.close().unwrap();
    let mut damages = Vec::new();
    braid::offline::verify(&directories.data, &mut |damage| damages.push(damage)).unwrap();
    assert_eq!(damages, [""; 0]);
    expect_kept(&builder().open(&directories.data).unwrap());
}

/// The power fails at a step of one of the devices, under logs of their own and a shared one.
#[test]
fn a_crash_of_any_device_during_a_compaction_leaves_everything() {
    let mut interrupted = 0;
    for case in 0..24_u64 {
        let (cut, own_logs) = (case as usize % 3, case / 3 % 2 == 0);
        let mut devices = devices(case + 7_000);
        let db = if own_logs {
            with_logs(&devices, &inline())
        } else {
            let db = open(&devices, inline()).unwrap();
            for (name, device) in NAMES.iter().zip(&devices[1..]) {
                let options = TablespaceOptions::on_device(Arc::new(device.clone()));
                db.create_tablespace(name, options.pool_bytes(1 << 20))
                    .unwrap();
            }
            db
        };
        make_holes(&db);
        db.sync().unwrap();
        devices[cut].crash_after(1 + case / 6 * 9);
        interrupted += u64::from(db.compact().is_err());
        drop(db);
        devices.iter().for_each(SimDevice::power_off);
        devices = devices.iter().map(SimDevice::after_crash).collect();
        let db = open(&devices, inline());
        let db = db.unwrap_or_else(|error| panic!("case {case}: {error}"));
        expect_kept(&db);
        let report = db.compact().unwrap();
        assert!(report.bytes_after < 2 << 20, "case {case}: {report:?}");
        expect_kept(&db);
    }
    println!("{interrupted} interrupted");
    assert!(interrupted > 10, "{interrupted}");
}
