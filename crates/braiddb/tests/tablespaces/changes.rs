//! Creating and dropping tablespaces.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_io::{File, Layer, LayeredDevice, OpenMode};

use super::*;

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

/// Records how a data file is freed: the largest part that is cut off or removed at once.
#[derive(Clone, Debug, Default)]
struct Freed(Arc<AtomicU64>);

impl Freed {
    fn note(&self, bytes: u64) {
        self.0.fetch_max(bytes, Ordering::Relaxed);
    }
}

impl Layer for Freed {
    fn set_len(&self, file: &dyn File, len: u64) -> io::Result<()> {
        self.note(file.len()?.saturating_sub(len));
        file.set_len(len)
    }

    fn remove(&self, device: &dyn Device, name: &str) -> io::Result<()> {
        if let Ok(file) = device.open(name, OpenMode::Existing) {
            self.note(file.len()?);
        }
        device.remove(name)
    }
}

/// Fills the table of a tablespace with 4 MB.
fn fill(db: &Database, table: &Table<u64, Bytes>) {
    for begin in (0..4_000).step_by(500) {
        let mut keys = begin..begin + 500;
        db.transact(|tx| keys.try_for_each(|key| tx.insert(table, &key, &[7; 1_000])))
            .unwrap();
    }
    db.checkpoint().unwrap();
}

/// A file system may discard what it frees, and commits wait meanwhile.
#[test]
fn the_files_of_a_dropped_tablespace_are_freed_in_pieces() {
    let freed = Freed::default();
    let space = LayeredDevice::over(Arc::new(MemoryDevice::new()), freed.clone());
    let db = small().open_on(Arc::new(MemoryDevice::new())).unwrap();
    let options = TablespaceOptions::on_device(Arc::new(space)).pool_bytes(1 << 20);
    db.create_tablespace("one", options).unwrap();
    let table = db
        .open_table_in("one", "in one", Default::default())
        .unwrap();
    fill(&db, &table);
    drop(table);
    db.drop_table("in one").unwrap();
    assert!(db.stats().tablespaces[0].store.file_bytes > 4 << 20);
    db.drop_tablespace("one").unwrap();
    assert_eq!(freed.0.load(Ordering::Relaxed), 1 << 20);
}

#[test]
fn a_reader_keeps_the_pages_of_a_dropped_tablespace() {
    let directories = Directories::with_tablespaces();
    let db = small().open(&directories.data).unwrap();
    let [_, one, _] = tables(&db);
    fill(&db, &one);
    let reader = small().open_read_only(&directories.data).unwrap();
    let read: Table<u64, Bytes> = reader.open_table("in one").unwrap();
    drop(one);
    db.drop_table("in one").unwrap();
    db.drop_tablespace("one").unwrap();
    for key in 0..4_000 {
        let value = reader.get(&read, &key).unwrap();
        assert_eq!(value.as_deref(), Some(&[7; 1_000][..]), "{key}");
    }
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
