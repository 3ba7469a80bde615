//! Full and incremental backups under load, and the databases restored from them.

use std::sync::Arc;

use braid::backup::{BackupError, Until};
use braid::device::MemoryDevice;
use braid::{Bytes, Database, Error};
use braid_io::SimDevice;

use super::model::{Model, builders, open_restored, scratch, small, small_restore, under_load};

/// Every protocol: a full backup and two incremental ones, each taken under load, each restored.
#[test]
fn a_restore_yields_the_state_at_the_backups_number() {
    for (protocol, builder) in builders() {
        let dir = scratch();
        let path = |name: &str| dir.path().join(name);
        let db = builder.open(path("db")).unwrap();
        let model = Model::default();
        model.begin(&db).unwrap();
        let names = ["full", "first", "second"];
        let mut numbers = Vec::new();
        under_load(&db, &model, 1, || {
            for (i, name) in names.iter().enumerate() {
                let mut backup = db.backup_options();
                if i > 0 {
                    backup = backup.incremental_from(path(names[i - 1]));
                }
                let report = backup.to_path(path(name)).unwrap();
                assert_eq!(report.path.as_deref(), Some(&*path(name)));
                assert!(report.seqno <= db.durable_seqno());
                numbers.push(report.seqno);
                // So many checkpoints would reuse the blocks if the backup did not pin them.
                (0..5).for_each(|_| db.checkpoint().unwrap());
            }
        });
        assert!(
            numbers.is_sorted() && numbers[0] < numbers[2],
            "{numbers:?}"
        );
        for count in 1..=names.len() {
            let target = path(&format!("restored-{count}"));
            let chain: Vec<_> = names[..count].iter().map(|name| path(name)).collect();
            let report = braid::backup::restore(&chain, &target).unwrap();
            assert_eq!((report.seqno, report.transactions), (numbers[count - 1], 0));
            let found = braid::offline::verify(&target, &mut |damage| panic!("{damage}")).unwrap();
            assert!(found.records > 0);
            let restored = open_restored(&target).unwrap();
            model.check(&restored, report.seqno);
            // The restored database is like any other, and continues the sequence numbers.
            let tables = super::model::tables(&restored).unwrap();
            let mut rng = fastrand::Rng::with_seed(2);
            let fresh = Model::default();
            for _ in 0..50 {
                fresh.transfer(&restored, &tables, &mut rng).unwrap();
            }
            assert!(
                fresh
                    .commits
                    .lock()
                    .unwrap()
                    .keys()
                    .all(|&n| n > report.seqno)
            );
            restored.close().unwrap();
            open_restored(&target).unwrap();
        }
        model.check(&db, model.last());
        drop(db);
        println!("{protocol}: {numbers:?}");
    }
}

#[test]
fn a_stream_is_a_backup() {
    let db = Database::in_memory().unwrap();
    let model = Model::default();
    model.begin(&db).unwrap();
    let mut stream = Vec::new();
    let report = under_load(&db, &model, 3, || db.backup_to(&mut stream).unwrap());
    assert_eq!(report.written_bytes, stream.len() as u64);
    let device = Arc::new(MemoryDevice::new());
    let restore = small_restore().stream(&stream[..]);
    assert_eq!(restore.run_on(device.clone()).unwrap().seqno, report.seqno);
    let restored = Database::builder().open_on(device).unwrap();
    model.check(&restored, report.seqno);
}

/// Rows on a known number of pages; few of them change.
fn rows(db: &Database, keys: std::ops::Range<u64>, byte: u8) {
    let table = db.open_table::<u64, Bytes>("rows").unwrap();
    for first in keys.clone().step_by(500) {
        let mut tx = db.begin();
        for key in first..keys.end.min(first + 500) {
            tx.insert(&table, &key, &vec![byte; 500]).unwrap();
        }
        tx.commit().unwrap();
    }
}

#[test]
fn an_incremental_backup_reads_changed_pages() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let open = || {
        Database::builder()
            .pool_bytes(4 << 20)
            .open(path("db"))
            .unwrap()
    };
    let db = open();
    rows(&db, 0..40_000, 1);
    let full = db.backup(path("full")).unwrap();
    assert_eq!(
        (full.pages, full.read_bytes),
        (full.pages_total, full.pages * 8192)
    );
    assert!(full.pages > 2_000);
    // The same rows are written several times, so that the blocks of their pages move.
    for byte in 2..9 {
        rows(&db, 20_000..20_400, byte);
        db.checkpoint().unwrap();
    }
    // Incremental backups also work after the database was reopened.
    db.close().unwrap();
    let db = open();
    let incremental = db.backup_options().incremental_from(path("full"));
    let report = incremental.to_path(path("incremental")).unwrap();
    let share = report.read_bytes as f64 / (full.pages_total * 8192) as f64;
    assert!(report.pages > 10 && share < 0.03, "read {share} of it");
    assert!(report.written_bytes < full.written_bytes / 20);
    // Without changes, nothing is read.
    let nothing = db.backup_options().incremental_from(path("incremental"));
    let nothing = nothing.to_path(path("nothing")).unwrap();
    assert_eq!(nothing.pages, 0);
    // A second incremental backup on the same parent: a differential backup.
    let differential = db.backup_options().incremental_from(path("full"));
    assert_eq!(
        differential.to_path(path("differential")).unwrap().pages,
        report.pages
    );
    for chain in [
        &["full", "incremental", "nothing"][..],
        &["full", "differential"],
    ] {
        let chain: Vec<_> = chain.iter().map(|name| path(name)).collect();
        let target = path(&format!("restored-{}", chain.len()));
        braid::backup::restore(&chain, &target).unwrap();
        let restored = open_restored(&target).unwrap();
        let table = restored.open_table::<u64, Bytes>("rows").unwrap();
        for key in 0..40_000 {
            let value = restored.get(&table, &key).unwrap().unwrap();
            let expected = if (20_000..20_400).contains(&key) {
                8
            } else {
                1
            };
            assert!(value.len() == 500 && value[7] == expected, "{key}");
        }
    }
}

fn backup_error<T: std::fmt::Debug>(outcome: Result<T, Error>) -> BackupError {
    match outcome {
        Err(Error::Backup(error)) => error,
        other => panic!("no backup error: {other:?}"),
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "a list of cases")]
fn mismatches_are_named() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let db = Database::open(path("db")).unwrap();
    rows(&db, 0..100, 1);
    db.backup(path("full")).unwrap();
    for (i, name) in ["a", "b", "c"].iter().enumerate() {
        rows(&db, 0..100, 2 + i as u8);
        let parent = ["full", "a", "b"][i];
        let backup = db.backup_options().incremental_from(path(parent));
        backup.to_path(path(name)).unwrap();
    }
    let other = Database::open(path("other")).unwrap();
    rows(&other, 0..100, 1);
    other.backup(path("foreign")).unwrap();
    let target = path("restored");
    let restore = |names: &[&str]| {
        let chain: Vec<_> = names.iter().map(|name| path(name)).collect();
        let error = backup_error(braid::backup::restore(&chain, &target));
        assert!(!target.exists(), "nothing is begun");
        println!("{error}");
        error
    };
    assert!(matches!(restore(&[]), BackupError::Nothing));
    assert!(matches!(restore(&["a"]), BackupError::NotFull { .. }));
    assert!(matches!(
        restore(&["full", "b"]),
        BackupError::BrokenChain { .. }
    ));
    assert!(matches!(
        restore(&["full", "b", "a"]),
        BackupError::BrokenChain { .. }
    ));
    assert!(matches!(
        restore(&["full", "a", "a"]),
        BackupError::BrokenChain { .. }
    ));
    assert!(matches!(
        restore(&["full", "full"]),
        BackupError::BrokenChain { .. }
    ));
    assert!(matches!(
        restore(&["full", "foreign"]),
        BackupError::OtherDatabase { .. }
    ));
    std::fs::write(path("letter"), "Dear engine, this is no backup at all").unwrap();
    assert!(matches!(
        restore(&["letter"]),
        BackupError::NotABackup { .. }
    ));
    let bytes = std::fs::read(path("full")).unwrap();
    std::fs::write(path("short"), &bytes[..bytes.len() - 1]).unwrap();
    assert!(matches!(
        restore(&["short"]),
        BackupError::Incomplete { .. }
    ));
    let missing = braid::backup::restore(&[path("nowhere")], &target);
    assert!(matches!(missing, Err(Error::Io { .. })));
    // Streams are checked while they are read.
    let broken = small_restore()
        .stream(&bytes[..])
        .stream(&bytes[..])
        .run_on(Arc::new(MemoryDevice::new()));
    assert!(matches!(
        backup_error(broken),
        BackupError::BrokenChain { .. }
    ));
    // An incremental backup of another database, and a file that exists.
    let foreign = db.backup_options().incremental_from(path("foreign"));
    let foreign = backup_error(foreign.to_path(path("x")));
    assert!(matches!(foreign, BackupError::OtherDatabase { .. }));
    let taken = backup_error(db.backup(path("full")));
    assert!(matches!(taken, BackupError::DestinationInUse { .. }));
    let in_use = backup_error(braid::backup::restore(&[path("full")], path("db")));
    assert!(matches!(in_use, BackupError::DestinationInUse { .. }));
    // Without an archive, only the backup's own sequence number can be restored.
    let until = small_restore().backup(path("full")).until(Until::Seqno(1));
    assert!(matches!(
        backup_error(until.run(&target)),
        BackupError::OutOfReach { .. }
    ));
    // In a directory, the file's name is generated.
    let report = db.backup(dir.path()).unwrap();
    let name = format!("backup-{:020}.braid", report.seqno);
    assert_eq!(report.path, Some(path(&name)));
    let info = braid::backup::info(path("c")).unwrap();
    assert!(info.parent.is_some() && info.seqno <= report.seqno);
}

/// A backup from before cannot be combined with one of the restored database, which is another
/// database.
#[test]
fn a_restored_database_is_another_one() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let db = Database::open(path("db")).unwrap();
    rows(&db, 0..100, 1);
    let position = db.position();
    db.backup(path("full")).unwrap();
    braid::backup::restore(&[path("full")], path("restored")).unwrap();
    let restored = Database::open(path("restored")).unwrap();
    let backup = restored.backup_options().incremental_from(path("full"));
    let error = backup_error(backup.to_path(path("x")));
    assert!(matches!(error, BackupError::OtherDatabase { .. }));
    assert!(matches!(
        restored.changes(position),
        Err(Error::ForeignPosition { .. })
    ));
}

/// The stream's writer fails at any position: the backup fails with that error, and the database
/// continues.
#[test]
fn a_medium_that_fails_costs_the_backup_and_nothing_else() {
    struct Full(usize);
    impl std::io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self
                .0
                .checked_sub(bytes.len())
                .ok_or(std::io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let db = Database::in_memory().unwrap();
    rows(&db, 0..2_000, 1);
    let len = db.backup_to(&mut std::io::sink()).unwrap().written_bytes as usize;
    for room in (0..len).step_by(len / 20) {
        let error = db.backup_to(&mut Full(room)).unwrap_err();
        assert!(matches!(error, Error::OutOfSpace { .. }), "{error}");
        rows(&db, 0..50, 2);
    }
    assert!(db.backup_to(&mut Full(2 * len)).is_ok());
    // Blocks that were pinned for the copies are free again.
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    let stats = db.stats().store;
    assert!(stats.file_bytes < 2 * len as u64, "{stats:?}");
}

/// After a loss of power or a full medium at any step of a restore, there is no database, and no
/// open takes the files for one.
#[test]
fn a_restore_that_is_cut_short_is_no_database() {
    let db = Database::in_memory().unwrap();
    let model = Model::default();
    model.begin(&db).unwrap();
    let mut stream = Vec::new();
    let number = db.backup_to(&mut stream).unwrap().seqno;
    let open = |device: &SimDevice| {
        let builder = small();
        builder
            .create_if_missing(false)
            .open_on(Arc::new(device.clone()))
    };
    let mut cut_short = 0;
    for step in 1.. {
        let device = SimDevice::new(step);
        device.crash_after(step);
        let outcome = small_restore()
            .stream(&stream[..])
            .run_on(Arc::new(device.clone()));
        let after = device.after_crash();
        match (outcome, open(&after)) {
            (Ok(report), opened) => {
                assert_eq!(report.seqno, number);
                model.check(&opened.unwrap(), number);
                break;
            }
            (Err(_), Err(error)) => {
                cut_short += 1;
                assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
            }
            // The last step was done, but its success not reported.
            (Err(_), Ok(db)) => model.check(&db, number),
        }
    }
    assert!(cut_short > 10, "{cut_short}");
}

/// A copy inside the database's directory would be lost with the database. It is refused as an
/// existing directory, as a new file, and through `..`.
#[test]
fn copies_inside_the_database_are_refused() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let db = Database::builder()
        .pool_bytes(1 << 20)
        .open(path("db"))
        .unwrap();
    db.open_table::<u32, u32>("t").unwrap();
    let reader = Database::builder().pool_bytes(1 << 20);
    let reader = reader.open_read_only(path("db")).unwrap();
    for inside in ["db", "db/full", "db/new/full", "db/../db/full"] {
        for db in [&db, &reader] {
            let error = db.backup(path(inside)).unwrap_err();
            assert!(
                matches!(&error, Error::Backup(BackupError::InsideDatabase { .. })),
                "{inside}: {error:?}"
            );
        }
    }
    drop(reader);
    // A name that only begins like the database's.
    db.backup(path("db-full")).unwrap();
    db.close().unwrap();
    for inside in ["db", "db/archive", "db/new/archive"] {
        let builder = Database::builder().pool_bytes(1 << 20);
        let error = builder.archive(path(inside)).open(path("db")).unwrap_err();
        assert!(
            matches!(&error, Error::Backup(BackupError::InsideDatabase { .. })),
            "{inside}: {error:?}"
        );
    }
    assert!(!path("db/new").exists());
    let found = braid::offline::verify(path("db"), &mut |damage| panic!("{damage}")).unwrap();
    assert_eq!(found.damages, 0);
}
