//! Backups of databases with tablespaces, and restoring them.

use std::cell::Cell;

use braid::backup::{BackupError, Restore, info};

use super::*;

/// Restores backups, and returns the places of the restored database.
fn restore(backups: &[&Path], names: &[&str]) -> braid::Result<Directories> {
    let restored = Directories::new();
    let restore = backups.iter().fold(Restore::new(), Restore::backup);
    let restore = names.iter().fold(restore, |restore, name| {
        restore.tablespace_directory(name, restored.at(name))
    });
    restore
        .device(DeviceChoice::File)
        .pool_bytes(1 << 20)
        .run(&restored.data)?;
    Ok(restored)
}

fn backup_fault<T: std::fmt::Debug>(outcome: braid::Result<T>) -> BackupError {
    match outcome {
        Err(Error::Backup(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_backup_contains_all_tablespaces_and_is_restored_with_them() {
    let directories = Directories::with_tablespaces();
    let db = small().open(&directories.data).unwrap();
    let (full, since) = (directories.at("full"), directories.at("since"));
    let report = db.backup(&full).unwrap();
    let found = info(&full).unwrap();
    assert_eq!(found.tablespaces, ["one", "two"]);
    assert_eq!((found.seqno, found.pages), (report.seqno, report.pages));
    assert_eq!(report.pages, report.pages_total);
    // Only the pages that change afterwards are in the next one: one key in one tablespace.
    let [_, one, _] = tables(&db);
    db.transact(|tx| tx.insert(&one, &7, &[9; 100])).unwrap();
    let incremental = db.backup_options().incremental_from(&full);
    let next = incremental.to_path(&since).unwrap();
    assert!(next.pages < 10 && next.pages > 0, "{next:?}");
    fill(&db, 3);

    let restored = restore(&[&full], &["one", "two"]).unwrap();
    check(&small().open(&restored.data).unwrap(), 1);
    let restored = restore(&[&full, &since], &["one", "two"]).unwrap();
    for value in 4..6 {
        let copy = small().open(&restored.data).unwrap();
        assert_eq!(copy.tablespace_names(), ["one", "two"]);
        if value == 4 {
            let one: Table<u64, Bytes> = copy.open_table("in one").unwrap();
            assert_eq!(copy.tablespace_of(&one).unwrap().as_deref(), Some("one"));
            assert_eq!(copy.get(&one, &7).unwrap().as_deref(), Some(&[9; 100][..]));
            copy.transact(|tx| tx.insert(&one, &7, &[1; 100])).unwrap();
            check(&copy, 1);
        } else {
            check(&copy, value - 1);
        }
        fill(&copy, value);
    }
    let report = braid::offline::verify(&restored.data, &mut |damage| panic!("{damage}"));
    assert_eq!(report.unwrap().damages, 0);
    // The original went on by itself, and does not take the copy's tablespace for its own.
    check(&db, 3);
    db.close().unwrap();
    let exchanged = small().tablespace_directory("one", restored.at("one"));
    let found = fault(exchanged.open(&directories.data));
    assert!(
        matches!(found, TablespaceError::OtherState { .. }),
        "{found}"
    );
    check(&small().open(&directories.data).unwrap(), 3);
}

#[test]
fn a_restore_needs_an_empty_place_for_each_tablespace() {
    let directories = Directories::with_tablespaces();
    let full = directories.at("full");
    let db = small().open(&directories.data).unwrap();
    db.backup(&full).unwrap();
    let inside = db.backup(directories.at("one").join("backup"));
    let inside = backup_fault(inside);
    assert!(
        matches!(inside, BackupError::InsideDatabase { .. }),
        "{inside}"
    );
    drop(db);
    let missing = backup_fault(restore(&[&full], &["one"]).map(drop));
    assert!(
        matches!(&missing, BackupError::NoPlace { name } if name == "two"),
        "{missing}"
    );
    let unknown = backup_fault(restore(&[&full], &["one", "two", "three"]).map(drop));
    assert!(
        matches!(&unknown, BackupError::UnknownTablespace { name } if name == "three"),
        "{unknown}"
    );
    // Nothing was created.
    let restored = Directories::new();
    let of = |one: PathBuf, two: PathBuf| {
        let restore = Restore::new().backup(&full).pool_bytes(1 << 20);
        let restore = restore.tablespace_directory("one", one);
        restore.tablespace_directory("two", two).run(&restored.data)
    };
    let used = backup_fault(of(restored.at("one"), directories.at("two")));
    assert!(
        matches!(used, BackupError::DestinationInUse { .. }),
        "{used}"
    );
    assert!(!restored.data.exists() && !restored.at("one").exists());
    // Two in one place, and one in the place of the database.
    for two in [restored.at("one"), restored.data.clone()] {
        let same = of(restored.at("one"), two);
        let Err(Error::Tablespace(TablespaceError::Occupied { name, .. })) = &same else {
            panic!("{same:?}");
        };
        assert_eq!(name, "two");
        // It is no database.
        assert!(small().open(&restored.data).is_err());
        for name in ["data", "one"] {
            fs::remove_dir_all(restored.at(name)).unwrap();
        }
    }
    of(restored.at("one"), restored.at("two")).unwrap();
    check(&small().open(&restored.data).unwrap(), 1);
}

/// A tablespace that another one replaces between two backups, one that is dropped, and a new one.
#[test]
fn tablespaces_come_and_go_between_backups() {
    let simulated = Simulated::new(1, 3);
    let db = simulated.open().unwrap();
    let create = |space: usize| {
        let options = simulated.options(space);
        db.create_tablespace(NAMES[space], options).unwrap();
        let name = format!("in {}", NAMES[space]);
        db.open_table_in::<u64, Bytes>(NAMES[space], &name, Default::default())
            .unwrap()
    };
    let drop_space = |space: usize, table: Table<u64, Bytes>| {
        drop(table);
        db.drop_table(&format!("in {}", NAMES[space])).unwrap();
        db.drop_tablespace(NAMES[space]).unwrap();
    };
    let (replaced, dropped) = (create(0), create(1));
    put(&db, &[replaced.clone(), dropped.clone()], 1, b"first").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let paths = ["full", "since"].map(|name| dir.path().join(name));
    db.backup(&paths[0]).unwrap();
    drop_space(0, replaced);
    drop_space(1, dropped);
    let tables = [create(0), create(2)];
    put(&db, &tables, 2, b"second").unwrap();
    let since = db.backup_options().incremental_from(&paths[0]);
    since.to_path(&paths[1]).unwrap();
    assert_eq!(info(&paths[1]).unwrap().tablespaces, ["one", "three"]);

    let [main, one, three]: [Arc<MemoryDevice>; 3] = Default::default();
    let restore = paths.iter().fold(Restore::new(), Restore::backup);
    let restore = restore
        .tablespace_device("one", one.clone())
        .tablespace_device("three", three.clone());
    restore.run_on(main.clone()).unwrap();
    let builder = small()
        .tablespace_device("one", one)
        .tablespace_device("three", three);
    let check = |copy: Database| {
        assert_eq!(copy.tablespace_names(), ["one", "three"]);
        for name in ["in one", "in three"] {
            let table = copy.existing_table::<u64, Bytes>(name).unwrap().unwrap();
            assert_eq!(copy.get(&table, &1).unwrap(), None);
            let found = copy.get(&table, &2).unwrap();
            assert_eq!(found.as_deref(), Some(&b"second"[..]));
        }
        let gone = copy.existing_table::<u64, Bytes>("in two");
        assert!(gone.unwrap().is_none());
    };
    check(builder.open_on(main).unwrap());

    // What the last of several streams has is unknown while the first is read, so even a tablespace
    // that was dropped needs a place, and the replaced one leaves its place to its successor.
    let bytes = paths.map(|path| fs::read(path).unwrap());
    let devices: [Arc<MemoryDevice>; 4] = Default::default();
    let streams = |names: &[usize]| {
        let restore = bytes
            .iter()
            .fold(Restore::new(), |restore, bytes| restore.stream(&bytes[..]));
        names.iter().fold(restore, |restore, space| {
            restore.tablespace_device(NAMES[*space], devices[space + 1].clone())
        })
    };
    let lacks = backup_fault(streams(&[0, 2]).run_on(Arc::new(MemoryDevice::new())));
    assert!(
        matches!(&lacks, BackupError::NoPlace { name } if name == "two"),
        "{lacks}"
    );
    for device in &devices[1..] {
        let left = device.list().unwrap();
        left.iter()
            .for_each(|file| device.remove(&file.name).unwrap());
    }
    streams(&[0, 1, 2]).run_on(devices[0].clone()).unwrap();
    assert!(devices[2].list().unwrap().is_empty());
    let builder = small()
        .tablespace_device("one", devices[1].clone())
        .tablespace_device("three", devices[3].clone());
    check(builder.open_on(devices[0].clone()).unwrap());
}

/// A tablespace stays as long as a backup copies it, and the backup has the state at its beginning.
#[test]
fn a_tablespace_is_not_dropped_during_a_backup() {
    let simulated = Simulated::new(5, 1);
    let db = simulated.open().unwrap();
    simulated.create_all(&db).unwrap();
    let tables = simulated.tables(&db).unwrap();
    put(&db, &tables, 1, b"before").unwrap();
    drop(tables);
    let refused = Cell::new(0);
    let mut bytes = Vec::new();
    let backup = db.backup_options().progress(|_| {
        if refused.get() == 0 {
            let tables = simulated.tables(&db).unwrap();
            put(&db, &tables, 1, b"after").unwrap();
            drop(tables);
            db.drop_table("in one").unwrap();
        }
        let dropped = db.drop_tablespace("one").unwrap_err();
        let is_it = matches!(
            &dropped,
            Error::Tablespace(TablespaceError::Busy { name }) if name == "one"
        );
        assert!(is_it, "{dropped}");
        refused.set(refused.get() + 1);
    });
    backup.to_writer(&mut bytes).unwrap();
    assert!(refused.get() > 0);
    db.drop_tablespace("one").unwrap();
    let [main, one]: [Arc<MemoryDevice>; 2] = Default::default();
    let restore = Restore::new().stream(&bytes[..]);
    let restore = restore.tablespace_device("one", one.clone());
    restore.run_on(main.clone()).unwrap();
    let copy = small().tablespace_device("one", one).open_on(main).unwrap();
    for name in ["main", "in one"] {
        let table = copy.existing_table::<u64, Bytes>(name).unwrap().unwrap();
        let found = copy.get(&table, &1).unwrap();
        assert_eq!(found.as_deref(), Some(&b"before"[..]));
    }
}

/// Every damaged byte is found, also in the descriptions of tablespaces, and so is a lost end.
#[test]
fn damage_in_a_backup_is_found() {
    let simulated = Simulated::new(6, 1);
    let db = simulated.open().unwrap();
    simulated.create_all(&db).unwrap();
    put(&db, &simulated.tables(&db).unwrap(), 1, b"value").unwrap();
    let mut bytes = Vec::new();
    db.backup_to(&mut bytes).unwrap();
    let restore = |bytes: &[u8]| {
        let one = Arc::new(MemoryDevice::new());
        let restore = Restore::new().stream(bytes).tablespace_device("one", one);
        restore.run_on(Arc::new(MemoryDevice::new()))
    };
    restore(&bytes).unwrap();
    let header = [0xff; 4];
    let at = bytes
        .windows(4)
        .rposition(|window| window == header)
        .unwrap();
    let pages = at + 200..bytes.len() - 400;
    let near = (at..at + 200)
        .chain(pages.clone().step_by(1_111))
        .chain(pages.end..bytes.len());
    for position in near {
        let mut damaged = bytes.clone();
        damaged[position] ^= 4;
        backup_fault(restore(&damaged));
    }
    for len in [at, at + 3, at + 8, at + 20, at + 60, bytes.len() - 1] {
        backup_fault(restore(&bytes[..len]));
    }
}

/// A process that reads only makes a full backup, too, but none without a tablespace.
#[test]
fn a_reader_makes_a_backup_if_all_tablespaces_are_there() {
    let directories = Directories::with_tablespaces();
    let full = directories.at("full");
    let reader = small().open_read_only(&directories.data).unwrap();
    reader.backup(&full).unwrap();
    drop(reader);
    let restored = restore(&[&full], &["one", "two"]).unwrap();
    check(&small().open(&restored.data).unwrap(), 1);
    fs::rename(directories.at("two"), directories.at("unmounted")).unwrap();
    let reader = small().open_read_only(&directories.data).unwrap();
    let refused = reader.backup(directories.at("other")).unwrap_err();
    let is_it = matches!(
        &refused,
        Error::Tablespace(TablespaceError::Missing { name, .. }) if name == "two"
    );
    assert!(is_it, "{refused}");
    assert!(!directories.at("other").exists());
}

/// A backup has each tablespace that its catalog has, also if the tablespace is created at the same
/// time.
#[test]
fn a_backup_has_a_tablespace_that_is_created_meanwhile_or_does_not_know_it() {
    let simulated = Simulated::new(9, 3);
    let db = simulated.open().unwrap();
    let mut seen = Vec::new();
    std::thread::scope(|threads| {
        let creates = threads.spawn(|| {
            for _ in 0..4 {
                simulated.create_all(&db).unwrap();
                for name in NAMES {
                    db.drop_tablespace(name)
                        .or_else(|error| match error {
                            // It stays until the next round.
                            Error::Tablespace(TablespaceError::Busy { .. }) => Ok(()),
                            error => Err(error),
                        })
                        .unwrap();
                }
            }
        });
        while !creates.is_finished() {
            let mut bytes = Vec::new();
            db.backup_to(&mut bytes).unwrap();
            seen.push(bytes);
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("backup");
    for bytes in seen {
        fs::write(&path, &bytes).unwrap();
        let names = info(&path).unwrap().tablespaces;
        let main = Arc::new(MemoryDevice::new());
        let (mut restore, mut builder) = (Restore::new().backup(&path), small());
        for name in &names {
            let device = Arc::new(MemoryDevice::new());
            restore = restore.tablespace_device(name, device.clone());
            builder = builder.tablespace_device(name, device);
        }
        restore.run_on(main.clone()).unwrap();
        let copy = builder.open_on(main).unwrap();
        assert_eq!(copy.tablespace_names(), names);
    }
}
