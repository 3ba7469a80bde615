//! Tablespaces: tables in data files of their own, which share the log.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid::device::{Device, DeviceChoice, MemoryDevice};
use braid::tablespace::{TablespaceError, TablespaceOptions};
use braid::{Builder, Bytes, Database, Error, Health, Protocol, Readable, Table};
use braid_io::SimDevice;

fn small() -> Builder {
    Database::builder()
        .device(DeviceChoice::File)
        .pool_bytes(1 << 20)
        .segment_bytes(64 << 10)
}

/// A database with the tablespaces `one` and `two`, in directories.
struct Directories {
    _temporary: tempfile::TempDir,
    data: PathBuf,
}

impl Directories {
    fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        Self {
            data: temporary.path().join("data"),
            _temporary: temporary,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.data.with_file_name(name)
    }

    fn with_tablespaces() -> Self {
        let directories = Self::new();
        let db = small().open(&directories.data).unwrap();
        for name in ["one", "two"] {
            db.create_tablespace(name, directories.options(name))
                .unwrap();
        }
        fill(&db, 1);
        db.close().unwrap();
        directories
    }

    fn options(&self, name: &str) -> TablespaceOptions {
        TablespaceOptions::in_directory(self.at(name)).pool_bytes(1 << 20)
    }

    /// All files of the database and the tablespaces, with their contents.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        for directory in [self.data.clone(), self.at("one"), self.at("two")] {
            let Ok(entries) = fs::read_dir(directory) else {
                continue;
            };
            for entry in entries {
                let path = entry.unwrap().path();
                if !["LOCK", "READERS"].iter().any(|name| path.ends_with(name)) {
                    files.push((path.clone(), fs::read(path).unwrap()));
                }
            }
        }
        files.sort();
        files
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn tables(db: &Database) -> [Table<u64, Bytes>; 3] {
    [
        db.open_table("in main").unwrap(),
        db.open_table_in("one", "in one", Default::default())
            .unwrap(),
        db.open_table_in("two", "in two", Default::default())
            .unwrap(),
    ]
}

/// Writes the same to a table of each tablespace, in one transaction.
fn put(db: &Database, tables: &[Table<u64, Bytes>], key: u64, value: &[u8]) -> braid::Result<()> {
    db.transact(|tx| {
        let mut tables = tables.iter();
        tables.try_for_each(|table| tx.insert(table, &key, value))
    })
}

fn fill(db: &Database, value: u8) {
    let tables = tables(db);
    for key in 0..200 {
        put(db, &tables, key, &[value; 100]).unwrap();
    }
}

#[track_caller]
fn check(db: &Database, value: u8) {
    for table in tables(db) {
        for key in 0..200 {
            let found = db.get(&table, &key).unwrap();
            assert_eq!(
                found.as_deref(),
                Some(&[value; 100][..]),
                "{} {key}",
                table.name()
            );
        }
    }
}

fn fault(opened: braid::Result<Database>) -> TablespaceError {
    match opened {
        Err(Error::Tablespace(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tables_are_in_their_tablespaces_and_found_again() {
    let directories = Directories::with_tablespaces();
    for round in 2..5 {
        let db = small().open(&directories.data).unwrap();
        check(&db, round - 1);
        assert_eq!(db.tablespace_names(), ["one", "two"]);
        let [main, one, two] = tables(&db);
        assert_eq!(db.tablespace_of(&main).unwrap(), None);
        for (table, name) in [(&one, "one"), (&two, "two")] {
            assert_eq!(db.tablespace_of(table).unwrap().as_deref(), Some(name));
            let again: Table<u64, Bytes> = db.open_table(&table.name()).unwrap();
            assert_eq!(db.tablespace_of(&again).unwrap().as_deref(), Some(name));
        }
        let asked = db.open_table_in::<u64, Bytes>("two", "in one", Default::default());
        let Err(Error::Tablespace(TablespaceError::OtherTablespace { found, .. })) = asked else {
            panic!("{asked:?}");
        };
        assert_eq!(found, "one");
        let before = db.stats();
        fill(&db, round);
        // One half of the rounds replays the log.
        if round % 2 == 0 {
            db.checkpoint().unwrap();
        }
        let stats = db.stats();
        assert_eq!(
            stats.checkpoints - before.checkpoints,
            u64::from(round % 2 == 0)
        );
        let names: Vec<_> = stats
            .tablespaces
            .iter()
            .map(|space| &space.name[..])
            .collect();
        assert_eq!(names, ["one", "two"]);
        for space in &stats.tablespaces {
            assert!(space.store.pages >= 5, "{space:?}");
            let directory = fs::canonicalize(directories.at(&space.name)).unwrap();
            assert_eq!(space.directory.as_ref(), Some(&directory));
        }
        // The process is killed, as far as the files show.
        let copied = tempfile::tempdir().unwrap();
        for name in ["data", "one", "two"] {
            copy(&directories.at(name), &copied.path().join(name));
        }
        drop(db);
        let killed = small()
            .tablespace_directory("one", copied.path().join("one"))
            .tablespace_directory("two", copied.path().join("two"))
            .open(copied.path().join("data"));
        check(&killed.unwrap(), round);
        // The copy knows its own directories now.
        check(&small().open(copied.path().join("data")).unwrap(), round);
    }
}

#[test]
fn snapshots_scans_and_large_values_work_across_tablespaces() {
    let devices: Vec<Arc<MemoryDevice>> = (0..3).map(|_| Arc::default()).collect();
    let db = small()
        .background_threads(false)
        .open_on(devices[0].clone());
    let db = db.unwrap();
    for (name, device) in ["one", "two"].iter().zip(&devices[1..]) {
        let options = TablespaceOptions::on_device(device.clone()).pool_bytes(2 << 20);
        db.create_tablespace(name, options).unwrap();
    }
    let tables = tables(&db);
    let large = |fill: u8| vec![fill; 300_000];
    for key in 0..3 {
        put(&db, &tables, key, &large(1)).unwrap();
    }
    let pages = |db: &Database| -> Vec<u64> {
        let stats = db.stats();
        let spaces = stats.tablespaces.iter().map(|space| space.store.pages);
        std::iter::once(stats.store.pages).chain(spaces).collect()
    };
    db.checkpoint().unwrap();
    let before = pages(&db);
    let snapshot = db.snapshot();
    for key in 0..3 {
        put(&db, &tables, key, &large(2)).unwrap();
    }
    for table in &tables {
        for key in 0..3 {
            assert_eq!(snapshot.get(table, &key).unwrap().unwrap(), large(1));
            assert_eq!(db.get(table, &key).unwrap().unwrap(), large(2));
        }
        assert_eq!(snapshot.range(table, ..).unwrap().count(), 3);
    }
    // The pages of the replaced values become free in their own data files.
    drop(snapshot);
    db.compact().unwrap();
    for (before, after) in before.iter().zip(pages(&db)) {
        assert!(after <= before + 3, "{before} pages before, {after} after");
    }
    for table in &tables {
        for key in 0..3 {
            assert_eq!(db.get(table, &key).unwrap().unwrap(), large(2));
        }
        db.transact(|tx| (0..3).try_for_each(|key| tx.remove(table, &key).map(drop)))
            .unwrap();
        assert_eq!(db.snapshot().range(table, ..).unwrap().count(), 0);
    }
    db.compact().unwrap();
    assert!(
        pages(&db).iter().all(|pages| *pages < 10),
        "{:?}",
        pages(&db)
    );
}

/// Page ids, and so the roots of trees, are the same in two data files. A transaction that uses both
/// in turn must not take a hint about one for the other.
#[test]
fn transactions_that_alternate_between_tablespaces_read_their_own_tables() {
    let (main, one) = (
        Arc::<MemoryDevice>::default(),
        Arc::<MemoryDevice>::default(),
    );
    let db = small().background_threads(false).open_on(main).unwrap();
    let options = TablespaceOptions::on_device(one).pool_bytes(1 << 20);
    db.create_tablespace("one", options).unwrap();
    let in_main: Table<u64, u64> = db.open_table("m").unwrap();
    let in_one = db.open_table_in("one", "o", Default::default()).unwrap();
    for round in 0..50 {
        db.transact(|tx| {
            for key in 0..40 {
                tx.insert(&in_main, &key, &(2 * round))?;
                tx.insert(&in_one, &key, &(2 * round + 1))?;
            }
            Ok(())
        })
        .unwrap();
        db.transact(|tx| {
            for key in 0..40 {
                assert_eq!(tx.get(&in_main, &key)?, Some(2 * round));
                assert_eq!(tx.get(&in_one, &key)?, Some(2 * round + 1));
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_missing_tablespace_is_named_and_nothing_is_written() {
    let directories = Directories::with_tablespaces();
    fs::rename(directories.at("two"), directories.at("elsewhere")).unwrap();
    let before = directories.files();
    let error = fault(small().open(&directories.data));
    let TablespaceError::Missing { name, path, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(
        (&name[..], path),
        (
            "two",
            &fs::canonicalize(directories.at("")).unwrap().join("two")
        )
    );
    assert!(error.to_string().contains("mount its disk"), "{error}");
    // An empty directory, as the mount point of a disk that is not mounted.
    fs::create_dir(directories.at("two")).unwrap();
    let error = fault(small().open(&directories.data));
    assert!(
        matches!(&error, TablespaceError::Missing { name, .. } if name == "two"),
        "{error}"
    );
    fs::remove_file(directories.at("two").join("LOCK")).ok();
    fs::remove_dir(directories.at("two")).unwrap();
    assert_eq!(directories.files(), before);
    // Moved: named once, then recorded.
    let moved = small().tablespace_directory("two", directories.at("elsewhere"));
    check(&moved.open(&directories.data).unwrap(), 1);
    check(&small().open(&directories.data).unwrap(), 1);
    // Its data file is lost.
    fs::remove_file(directories.at("elsewhere/data.braid")).unwrap();
    let error = fault(small().open(&directories.data));
    assert!(
        matches!(&error, TablespaceError::Missing { name, .. } if name == "two"),
        "{error}"
    );
    assert!(error.to_string().contains("data.braid"), "{error}");
}

/// Reads the tables of `main` and `one`, and expects the error of `two`.
#[track_caller]
fn without_two(reader: &Database, value: u8) -> TablespaceError {
    assert_eq!(reader.tablespace_names(), ["one"]);
    assert_eq!(
        reader.table_names().unwrap(),
        ["in main", "in one", "in two"]
    );
    for name in ["in main", "in one"] {
        let table: Table<u64, Bytes> = reader.existing_table(name).unwrap().unwrap();
        let snapshot = reader.snapshot();
        let entries = snapshot.range(&table, ..).unwrap();
        let right = entries.map(|entry| entry.unwrap().1 == [value; 100][..]);
        assert_eq!(right.filter(|right| *right).count(), 200, "{name}");
        let written = reader.transact(|tx| tx.insert(&table, &1, b"new"));
        assert!(matches!(written, Err(Error::OpenedReadOnly)), "{written:?}");
    }
    let opened = reader.open_table_in::<u64, Bytes>("two", "in two", Default::default());
    match (reader.existing_table::<u64, Bytes>("in two"), opened) {
        (Err(Error::Tablespace(error)), Err(Error::Tablespace(again))) => {
            assert_eq!(error, again);
            error
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_one_tablespace_the_others_are_readable() {
    let directories = Directories::with_tablespaces();
    let two = directories.at("two");
    fs::rename(&two, directories.at("elsewhere")).unwrap();
    let before = directories.files();
    let read = |value| without_two(&small().open_read_only(&directories.data).unwrap(), value);
    let missing = read(1);
    assert!(
        matches!(&missing, TablespaceError::Missing { name, .. } if name == "two"),
        "{missing}"
    );
    assert_eq!(directories.files(), before);
    // It is damaged, of an older state, or another database's.
    fs::rename(directories.at("elsewhere"), &two).unwrap();
    copy(&two, &directories.at("older"));
    let bytes = fs::read(two.join("data.braid")).unwrap();
    fs::write(two.join("data.braid"), vec![7; bytes.len()]).unwrap();
    let damaged = read(1);
    assert!(
        matches!(damaged, TablespaceError::Damaged { .. }),
        "{damaged}"
    );
    fs::write(two.join("data.braid"), &bytes).unwrap();
    let db = small().open(&directories.data).unwrap();
    fill(&db, 2);
    // The log is not replayed into the one that is missing.
    let copied = tempfile::tempdir().unwrap();
    let at = |name: &str| copied.path().join(name);
    for name in ["data", "one"] {
        copy(&directories.at(name), &at(name));
    }
    db.close().unwrap();
    let reader = small().tablespace_directory("one", at("one"));
    let reader = reader.tablespace_directory("two", at("two"));
    let missing = without_two(&reader.open_read_only(at("data")).unwrap(), 2);
    assert!(
        matches!(missing, TablespaceError::Missing { .. }),
        "{missing}"
    );
    fs::remove_dir_all(&two).unwrap();
    fs::rename(directories.at("older"), &two).unwrap();
    let older = read(2);
    assert!(
        matches!(older, TablespaceError::OtherState { .. }),
        "{older}"
    );
    // Only a reader accepts that.
    let error = fault(small().open(&directories.data));
    assert!(
        matches!(&error, TablespaceError::OtherState { name, .. } if name == "two"),
        "{error}"
    );
}

#[test]
fn a_tablespace_of_another_database_is_refused() {
    let (directories, others) = (
        Directories::with_tablespaces(),
        Directories::with_tablespaces(),
    );
    let with_others = |name: &str| small().tablespace_directory(name, others.at("one"));
    for name in ["one", "two"] {
        let error = fault(with_others(name).open(&directories.data));
        assert!(matches!(&error, TablespaceError::Foreign { name: found, .. } if found == name));
        let database = fs::canonicalize(&others.data).unwrap();
        assert!(
            error.to_string().contains(&database.display().to_string()),
            "{error}"
        );
    }
    // The two of the same database exchanged, and both in one directory.
    let exchanged = small()
        .tablespace_directory("one", directories.at("two"))
        .tablespace_directory("two", directories.at("one"));
    let error = fault(exchanged.open(&directories.data));
    assert!(matches!(error, TablespaceError::Foreign { .. }), "{error}");
    let error = fault(
        small()
            .tablespace_directory("two", directories.at("one"))
            .open(&directories.data),
    );
    assert!(
        matches!(&error, TablespaceError::Foreign { name, .. } if name == "two"),
        "{error}"
    );
    assert!(error.to_string().contains("\"one\" is there"), "{error}");
    // Without a note that says so, the data file tells.
    fs::copy(
        others.at("one/data.braid"),
        directories.at("one/data.braid"),
    )
    .unwrap();
    let error = fault(small().open(&directories.data));
    assert!(
        matches!(&error, TablespaceError::Foreign { name, .. } if name == "one"),
        "{error}"
    );
    // A copy of the database without its tablespaces would write to those of the original.
    let copied = others.at("copy");
    copy(&others.data, &copied);
    let error = fault(small().open(&copied));
    assert!(matches!(error, TablespaceError::Foreign { .. }), "{error}");
    check(&small().open(&others.data).unwrap(), 1);
    // A tablespace is no database.
    let opened = small().open(others.at("one"));
    assert!(
        matches!(&opened, Err(Error::NotADatabase { reason, .. }) if reason.contains("tablespace"))
    );
}

#[test]
fn a_tablespace_of_another_state_is_refused() {
    let directories = Directories::with_tablespaces();
    let saved = |name: &str| directories.at(&format!("saved {name}"));
    let write = |value| {
        let db = small().open(&directories.data).unwrap();
        fill(&db, value);
        db.close().unwrap();
    };
    let put_back = |name: &str| {
        fs::remove_dir_all(directories.at(name)).unwrap();
        copy(&saved(name), &directories.at(name));
    };
    for name in ["data", "one", "two"] {
        copy(&directories.at(name), &saved(name));
    }
    write(2);
    let newer = directories.at("newer");
    copy(&directories.at("two"), &newer);
    // Older than the others.
    put_back("two");
    let before = directories.files();
    let error = fault(small().open(&directories.data));
    let TablespaceError::OtherState {
        name,
        found,
        expected,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!(name == "two" && found < expected, "{error}");
    assert_eq!(directories.files(), before);
    // The others, too: an earlier state of all.
    put_back("one");
    put_back("data");
    check(&small().open(&directories.data).unwrap(), 1);
    // The same numbers, but another history.
    write(3);
    fs::remove_dir_all(directories.at("two")).unwrap();
    copy(&newer, &directories.at("two"));
    let error = fault(small().open(&directories.data));
    assert!(
        matches!(&error, TablespaceError::OtherState { name, .. } if name == "two"),
        "{error}"
    );
}

#[test]
fn a_damaged_list_or_data_file_is_an_error_that_says_so() {
    let directories = Directories::with_tablespaces();
    let damaged = |path: PathBuf, from: usize| {
        let bytes = fs::read(&path).unwrap();
        let mut other = bytes.clone();
        other[from..].iter_mut().for_each(|byte| *byte ^= 0x55);
        fs::write(&path, other).unwrap();
        let opened = small().open(&directories.data);
        fs::write(&path, bytes).unwrap();
        opened
    };
    let error = damaged(directories.data.join("TABLESPACES"), 100).unwrap_err();
    assert!(matches!(&error, Error::Corrupted { location, .. } if location == "TABLESPACES"));
    let error = fault(damaged(directories.at("one/data.braid"), 0));
    assert!(
        matches!(&error, TablespaceError::Damaged { name, .. } if name == "one"),
        "{error}"
    );
    fs::rename(directories.data.join("TABLESPACES"), directories.at("list")).unwrap();
    let error = fault(small().open(&directories.data));
    assert!(
        matches!(&error, TablespaceError::Missing { name, .. } if name == "one"),
        "{error}"
    );
    fs::rename(directories.at("list"), directories.data.join("TABLESPACES")).unwrap();
    check(&small().open(&directories.data).unwrap(), 1);
}

#[test]
fn a_new_tablespace_needs_a_place_of_its_own() {
    let directories = Directories::with_tablespaces();
    let db = small().open(&directories.data).unwrap();
    let others = Directories::with_tablespaces();
    fs::create_dir(directories.at("full")).unwrap();
    fs::write(directories.at("full/file"), "").unwrap();
    let create = |name: &str, path: PathBuf| {
        let options = TablespaceOptions::in_directory(path).pool_bytes(1 << 20);
        db.create_tablespace(name, options).unwrap_err()
    };
    for (path, reason) in [
        (directories.at("one"), "\"one\" is there"),
        (directories.data.clone(), "the database itself"),
        (directories.at("full"), "\"file\""),
        (others.at("two"), "has a tablespace of the database"),
    ] {
        let error = create("three", path);
        let is_it = matches!(&error, Error::Tablespace(TablespaceError::Occupied { .. }));
        assert!(is_it && error.to_string().contains(reason), "{error}");
    }
    let exists = create("one", directories.at("three"));
    assert!(matches!(
        exists,
        Error::Tablespace(TablespaceError::Exists { .. })
    ));
    let invalid = create("", directories.at("three"));
    assert!(matches!(
        invalid,
        Error::Tablespace(TablespaceError::InvalidName { .. })
    ));
    let small_pool = directories.options("three").pool_bytes(1);
    let small_pool = db.create_tablespace("three", small_pool);
    assert!(matches!(
        small_pool,
        Err(Error::InvalidOption {
            option: "pool_bytes",
            ..
        })
    ));
    assert_eq!(db.tablespace_names(), ["one", "two"]);
    drop(db);
    check(&small().open(&directories.data).unwrap(), 1);
}

#[test]
fn a_tablespace_is_dropped_once_it_has_no_tables() {
    let directories = Directories::with_tablespaces();
    let db = small().open(&directories.data).unwrap();
    let refused = |db: &Database| match db.drop_tablespace("one") {
        Err(Error::Tablespace(TablespaceError::NotEmpty { table, .. })) => table,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&db), "in one");
    let [_, one, _] = tables(&db);
    assert!(db.drop_table("in one").unwrap());
    assert_eq!(refused(&db), "in one", "its handle is still there");
    drop(one);
    db.drop_tablespace("one").unwrap();
    let missing = db.drop_tablespace("one");
    assert!(matches!(
        missing,
        Err(Error::Tablespace(TablespaceError::NotFound { .. }))
    ));
    assert_eq!(db.tablespace_names(), ["two"]);
    let left: Vec<_> = fs::read_dir(directories.at("one")).unwrap().collect();
    assert!(
        left.iter()
            .all(|file| file.as_ref().unwrap().file_name() == "LOCK"),
        "{left:?}"
    );
    // Its directory is free, and so is its name. A new table has another number.
    db.create_tablespace("one", directories.options("one"))
        .unwrap();
    let [_, one, _] = tables(&db);
    assert_eq!(db.get(&one, &1).unwrap(), None);
    drop((one, db));
    // The log after the newest checkpoint may have writes to a tablespace that is dropped.
    let db = small().open(&directories.data).unwrap();
    put(&db, &tables(&db), 1, b"last").unwrap();
    db.drop_table("in one").unwrap();
    db.drop_tablespace("one").unwrap();
    let killed = tempfile::tempdir().unwrap();
    for name in ["data", "two"] {
        copy(&directories.at(name), &killed.path().join(name));
    }
    drop(db);
    let db = small()
        .tablespace_directory("two", killed.path().join("two"))
        .open(killed.path().join("data"))
        .unwrap();
    assert_eq!(db.tablespace_names(), ["two"]);
    let two: Table<u64, Bytes> = db.open_table("in two").unwrap();
    assert_eq!(db.get(&two, &1).unwrap().as_deref(), Some(&b"last"[..]));
    drop(two);
    // Without further tablespaces, the database is as one that never had any.
    db.drop_table("in two").unwrap();
    db.drop_tablespace("two").unwrap();
    db.checkpoint().unwrap();
    let mut out = Vec::new();
    db.backup_to(&mut out).unwrap();
    drop(db);
    assert!(!killed.path().join("data/TABLESPACES").exists());
    small().open_read_only(killed.path().join("data")).unwrap();
}

#[test]
fn what_does_not_support_tablespaces_says_so() {
    let directories = Directories::with_tablespaces();
    let unsupported = |error: Error| {
        let is_it = matches!(
            error,
            Error::Tablespace(TablespaceError::Unsupported { .. })
        );
        assert!(is_it && error.to_string().contains("\"one\""), "{error}");
    };
    let db = small().open(&directories.data).unwrap();
    unsupported(db.backup_to(&mut Vec::new()).unwrap_err());
    unsupported(db.backup(directories.at("backup")).unwrap_err());
    drop(db);
    let archive = small().archive(directories.at("archive"));
    unsupported(archive.open(&directories.data).unwrap_err());
    let salvaged = braid::offline::salvage(&directories.data, directories.at("new"), &mut |_| ());
    unsupported(salvaged.unwrap_err());
    check(&small().open(&directories.data).unwrap(), 1);
    let archived = Directories::new();
    let db = small()
        .archive(archived.at("archive"))
        .open(&archived.data)
        .unwrap();
    unsupported(
        db.create_tablespace("one", archived.options("one"))
            .unwrap_err(),
    );
}

#[test]
fn without_a_writer_a_database_is_read_and_verified_with_its_tablespaces() {
    let directories = Directories::with_tablespaces();
    let db = small().open(&directories.data).unwrap();
    fill(&db, 2);
    // The writer is killed, as far as the files show: the log is replayed in memory.
    let copied = tempfile::tempdir().unwrap();
    for name in ["data", "one", "two"] {
        copy(&directories.at(name), &copied.path().join(name));
    }
    let reader = small().open_read_only(&directories.data);
    let Err(Error::Tablespace(TablespaceError::Unsupported { operation, .. })) = reader else {
        panic!("{reader:?}");
    };
    assert!(operation.contains("while another process writes"));
    let verified = braid::offline::verify(&directories.data, &mut |_| ());
    assert!(verified.is_err(), "{verified:?}");
    db.close().unwrap();
    let at = |name: &str| copied.path().join(name);
    let in_copy = small()
        .tablespace_directory("one", at("one"))
        .tablespace_directory("two", at("two"));
    let files =
        || ["one/data.braid", "one/TABLESPACE-OWNER"].map(|name| fs::read(at(name)).unwrap());
    let before = files();
    let reader = in_copy.open_read_only(at("data")).unwrap();
    for name in ["in main", "in one", "in two"] {
        let table: Table<u64, Bytes> = reader.existing_table(name).unwrap().unwrap();
        let found = reader.get(&table, &7).unwrap();
        assert_eq!(found.as_deref(), Some(&[2; 100][..]));
        assert_eq!(reader.snapshot().range(&table, ..).unwrap().count(), 200);
    }
    assert_eq!(reader.tablespace_names(), ["one", "two"]);
    drop(reader);
    assert!(files() == before, "reading changes no file");
    // Two readers at once, and no writer meanwhile.
    let readers = [(); 2].map(|()| small().open_read_only(&directories.data).unwrap());
    let writer = small().open(&directories.data);
    assert!(matches!(writer, Err(Error::Locked { .. })), "{writer:?}");
    drop(readers);
    let mut damages = Vec::new();
    let mut verify = || {
        let sink = &mut |damage| damages.push(damage);
        braid::offline::verify(&directories.data, sink).unwrap()
    };
    let report = verify();
    assert_eq!((report.damages, report.tables), (0, 4), "{report:?}");
    assert!(report.records >= 600, "{report:?}");
    let mut dump = String::new();
    braid::offline::dump(&directories.data, &mut dump).unwrap();
    assert!(dump.contains("tablespace \"two\", number 2"), "{dump}");
    // Damage in a tablespace is found, and named.
    let path = directories.at("two/data.braid");
    let mut bytes = fs::read(&path).unwrap();
    let pages = bytes[2 * 8_192 + 100..].iter_mut().step_by(4_096);
    pages.for_each(|byte| *byte ^= 1);
    fs::write(&path, bytes).unwrap();
    assert!(verify().damages > 0);
    assert!(
        damages.iter().any(|damage| damage.contains("\"two\"")),
        "{damages:?}"
    );
}

/// A database on simulated devices: one for itself, one for each tablespace.
struct Simulated {
    devices: Vec<SimDevice>,
}

const NAMES: [&str; 3] = ["one", "two", "three"];

impl Simulated {
    fn new(seed: u64, tablespaces: usize) -> Self {
        let device = |i| SimDevice::new(seed * 8 + i as u64);
        Self {
            devices: (0..=tablespaces).map(device).collect(),
        }
    }

    fn builder(&self) -> Builder {
        let builder = small().background_threads(false);
        let spaces = NAMES.iter().zip(&self.devices[1..]);
        spaces.fold(builder, |builder, (name, device)| {
            builder.tablespace_device(name, Arc::new(device.clone()))
        })
    }

    fn open_as(&self, builder: Builder) -> braid::Result<Database> {
        builder.open_on(Arc::new(self.devices[0].clone()))
    }

    fn open(&self) -> braid::Result<Database> {
        self.open_as(self.builder())
    }

    fn options(&self, space: usize) -> TablespaceOptions {
        let device = Arc::new(self.devices[1 + space].clone());
        TablespaceOptions::on_device(device).pool_bytes(1 << 20)
    }

    fn create_all(&self, db: &Database) -> braid::Result<()> {
        for (space, name) in NAMES.iter().enumerate().take(self.devices.len() - 1) {
            if !db.tablespace_names().iter().any(|found| found == name) {
                db.create_tablespace(name, self.options(space))?;
            }
        }
        Ok(())
    }

    fn tables(&self, db: &Database) -> braid::Result<Vec<Table<u64, Bytes>>> {
        let mut tables = vec![db.open_table("main")?];
        for name in &NAMES[..self.devices.len() - 1] {
            tables.push(db.open_table_in(name, &format!("in {name}"), Default::default())?);
        }
        Ok(tables)
    }

    /// The power fails everywhere.
    fn crash(&mut self) {
        self.devices.iter().for_each(SimDevice::power_off);
        self.devices = self.devices.iter().map(SimDevice::after_crash).collect();
    }

    fn kill(&mut self) {
        self.devices.iter().for_each(SimDevice::kill);
        self.devices = self.devices.iter().map(SimDevice::after_kill).collect();
    }
}

/// What a key has: the number of the transaction that wrote it, and filling.
fn value(number: u64, len: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + len, number as u8);
    value
}

/// Every transaction writes its number to a key of each tablespace. After a crash at any step of any
/// device, all tablespaces have the same transactions: those up to one that is not before the last
/// acknowledged one.
#[test]
fn after_a_crash_all_tablespaces_have_the_same_transactions() {
    let (mut interrupted, mut behind) = (0, 0);
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let protocol = [
            Protocol::Glsn,
            Protocol::Serial,
            Protocol::Gsn,
            Protocol::Gwsn,
        ];
        let protocol = protocol[seed as usize % protocol.len()];
        let mut simulated = Simulated::new(seed, 1 + seed as usize % 3);
        let (mut acknowledged, mut started) = (0, 0);
        for round in 0..6 {
            let disturbed = rng.usize(..simulated.devices.len());
            simulated.devices[disturbed].crash_after(rng.u64(1..120));
            // Errors end the round.
            let _ = (|| {
                let db = simulated.open_as(simulated.builder().protocol(protocol))?;
                simulated.create_all(&db)?;
                let tables = simulated.tables(&db)?;
                for _ in 0..rng.u64(1..60) {
                    started += 1;
                    let bytes = value(
                        started,
                        [10, 500, 20_000][rng.usize(..12).saturating_sub(9)],
                    );
                    put(&db, &tables, started % 40, &bytes)?;
                    acknowledged = started;
                    if rng.u32(..8) == 0 {
                        db.checkpoint()?;
                    }
                }
                if rng.bool() {
                    db.close()?;
                }
                Ok::<(), Error>(())
            })()
            .inspect_err(|_| interrupted += 1);
            if rng.u32(..3) == 0 {
                simulated.kill();
            } else {
                simulated.crash();
            }
            let db = simulated.open();
            let db = db.unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            simulated.create_all(&db).unwrap();
            let tables = simulated.tables(&db).unwrap();
            let found = |table: &Table<u64, Bytes>| -> Vec<(u64, Vec<u8>)> {
                let snapshot = db.snapshot();
                let entries = snapshot.range(table, ..).unwrap();
                let entries = entries.map(|entry| entry.map(|(key, value)| (key, value.to_vec())));
                entries.collect::<braid::Result<_>>().unwrap()
            };
            let main = found(&tables[0]);
            let number =
                |(_, value): &(u64, Vec<u8>)| u64::from_le_bytes(value[..8].try_into().unwrap());
            let newest = main.iter().map(number).max().unwrap_or(0);
            assert!(
                (acknowledged..=started).contains(&newest),
                "seed {seed}, round {round}: {newest} of {acknowledged} to {started}"
            );
            behind += u32::from(newest > acknowledged);
            for table in &tables[1..] {
                assert!(
                    found(table) == main,
                    "seed {seed}, round {round}: {}",
                    table.name()
                );
            }
            for entry in &main {
                assert!(
                    number(entry) + 40 > newest && number(entry) % 40 == entry.0,
                    "seed {seed}"
                );
            }
            (acknowledged, started) = (newest, newest);
        }
    }
    println!("{interrupted} rounds were interrupted, {behind} kept more than was acknowledged");
    assert!(interrupted > 100, "{interrupted}");
}

/// A crash at each step of a creation or a drop leaves the tablespace or nothing, and the next
/// opening completes or removes it.
#[test]
fn an_interrupted_creation_or_drop_leaves_all_or_nothing() {
    let (mut exists, mut is_gone, mut left) = (0, 0, 0);
    for (step, disturbed, drops) in (1..60).flat_map(|step| {
        [
            (step, 0, false),
            (step, 1, false),
            (step, 0, true),
            (step, 1, true),
        ]
    }) {
        let mut simulated = Simulated::new(step * 4 + disturbed as u64, 1);
        let db = simulated.open().unwrap();
        if drops {
            simulated.create_all(&db).unwrap();
            // Then the catalog of the newest checkpoint has the tablespace, or the log alone.
            if step % 2 == 0 {
                db.checkpoint().unwrap();
            }
        }
        simulated.devices[disturbed].crash_after(step);
        let done = if drops {
            db.drop_tablespace("one")
        } else {
            db.create_tablespace("one", simulated.options(0))
        };
        let before = db.tablespace_names();
        drop(db);
        simulated.crash();
        left += u32::from(!simulated.devices[1].list().unwrap().is_empty());
        let db = simulated.open();
        let db = db.unwrap_or_else(|error| panic!("step {step} of {disturbed}, {drops}: {error}"));
        if done.is_ok() {
            assert_eq!(
                db.tablespace_names(),
                before,
                "step {step} of {disturbed}, {drops}"
            );
        }
        if db.tablespace_names().is_empty() {
            is_gone += 1;
            let files = simulated.devices[1].list().unwrap();
            assert!(
                files.is_empty(),
                "step {step} of {disturbed}, {drops}: {files:?}"
            );
            let list = simulated.devices[0].list().unwrap();
            assert!(list.iter().all(|file| file.name != "TABLESPACES"));
            db.create_tablespace("one", simulated.options(0)).unwrap();
        } else {
            exists += 1;
        }
        let tables = simulated.tables(&db).unwrap();
        put(&db, &tables, 1, b"a").unwrap();
        drop((tables, db));
        simulated.crash();
        let db = simulated.open().unwrap();
        for table in simulated.tables(&db).unwrap() {
            assert_eq!(db.get(&table, &1).unwrap().as_deref(), Some(&b"a"[..]));
        }
    }
    println!("{exists} exist, {is_gone} do not, {left} had files");
    assert!(exists > 20 && is_gone > 20, "{exists} {is_gone}");
}

/// The data file of a new tablespace fails with the error of a failed database, and the database
/// works.
#[test]
fn a_creation_that_fails_leaves_no_tablespace() {
    let (mut failed, mut works) = (0, 0);
    for (n, kind) in (1..40).flat_map(|n| [(n, 0), (n, 1), (n, 2)]) {
        let simulated = Simulated::new(n * 3 + kind, 1);
        let db = simulated.open().unwrap();
        let device = &simulated.devices[1];
        match kind {
            0 => device.fail_sync_after(n),
            1 => device.fail_write_after(n),
            _ => device.break_after(n),
        }
        let Err(error) = simulated.create_all(&db) else {
            works += 1;
            continue;
        };
        failed += 1;
        assert!(matches!(db.health(), Health::Good), "{error}");
        assert!(db.tablespace_names().is_empty(), "{error}");
        let table = db.open_table_in::<u64, u64>("one", "in one", Default::default());
        assert!(matches!(
            table,
            Err(Error::Tablespace(TablespaceError::NotFound { .. }))
        ));
        put(&db, &[db.open_table("main").unwrap()], 1, b"a").unwrap();
        device.repair();
        db.close().unwrap();
        let db = simulated.open().unwrap();
        simulated.create_all(&db).unwrap();
        put(&db, &simulated.tables(&db).unwrap(), 2, b"b").unwrap();
    }
    assert!(failed > 10 && works > 10, "{failed} {works}");
}

#[test]
fn a_full_tablespace_refuses_only_its_own_writers() {
    let simulated = Simulated::new(1, 2);
    let db = simulated.open().unwrap();
    simulated.create_all(&db).unwrap();
    let tables = simulated.tables(&db).unwrap();
    let bytes = vec![7; 1_000];
    for key in 0..100 {
        put(&db, &tables, key, &bytes).unwrap();
    }
    db.checkpoint().unwrap();
    let full = &simulated.devices[1];
    full.set_capacity(Some(full.used() + (100 << 10)));
    let refused = (100..5_000).find_map(|key| put(&db, &tables[1..2], key, &bytes).err());
    let refused = refused.unwrap();
    let Error::OutOfSpace { what } = &refused else {
        panic!("{refused}");
    };
    assert!(what.contains("\"one\""), "{what}");
    let others = [tables[0].clone(), tables[2].clone()];
    for key in 100..600 {
        put(&db, &others, key, &bytes).unwrap();
    }
    let across = put(&db, &tables, 1_000_000, &bytes);
    assert!(matches!(across, Err(Error::OutOfSpace { .. })));
    for table in &others {
        assert_eq!(
            db.get(table, &1_000_000).unwrap(),
            None,
            "nothing is left of it"
        );
    }
    // Reads and checkpoints work, and removals make room.
    assert_eq!(db.get(&tables[1], &5).unwrap().as_deref(), Some(&bytes[..]));
    db.checkpoint().unwrap();
    for key in 0..90 {
        db.transact(|tx| tx.remove(&tables[1], &key)).unwrap();
    }
    db.compact().unwrap();
    put(&db, &tables, 1_000_000, &bytes).unwrap();
    drop((tables, others));
    db.close().unwrap();
    let db = simulated.open().unwrap();
    for table in simulated.tables(&db).unwrap() {
        assert!(db.get(&table, &1_000_000).unwrap().is_some());
    }
}

/// A device that dies takes its own tables' future along, and nobody's past.
#[test]
fn after_the_device_of_a_tablespace_died_the_others_are_readable_and_writable() {
    let mut simulated = Simulated::new(2, 2);
    let db = simulated.open().unwrap();
    simulated.create_all(&db).unwrap();
    let tables = simulated.tables(&db).unwrap();
    for key in 0..50 {
        put(&db, &tables, key, b"before").unwrap();
    }
    simulated.devices[1].break_after(1);
    assert!(db.checkpoint().is_err());
    let others = [tables[0].clone(), tables[2].clone()];
    for key in 50..100 {
        put(&db, &others, key, b"after").unwrap();
    }
    for table in &others {
        assert_eq!(db.get(table, &7).unwrap().as_deref(), Some(&b"before"[..]));
        assert_eq!(db.get(table, &70).unwrap().as_deref(), Some(&b"after"[..]));
    }
    drop((tables, others));
    // It failed again at the end; the log has everything.
    let _ = db.close();
    simulated.devices[1].repair();
    simulated.crash();
    let db = simulated.open().unwrap();
    for (index, table) in simulated.tables(&db).unwrap().iter().enumerate() {
        assert_eq!(db.get(table, &7).unwrap().as_deref(), Some(&b"before"[..]));
        assert_eq!(db.get(table, &70).unwrap().is_some(), index != 1);
    }
}
