//! The archive, and recovery to a point in time.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use braid::backup::{BackupError, Until};
use braid::device::{Device, MemoryDevice};
use braid::{Bytes, Database, Error, Health};
use braid_io::{OpenMode, SimDevice};

use super::model::{Model, builders, open_restored, scratch, small, small_restore, under_load};

/// Every protocol, under load and through a restart: any sequence number after the backup can be
/// restored.
#[test]
fn any_number_after_the_backup_can_be_restored() {
    for (protocol, builder) in builders() {
        let dir = scratch();
        let path = |name: &str| dir.path().join(name);
        let builder = builder
            .archive(path("archive"))
            .archive_interval(Duration::from_millis(2));
        let db = builder.clone().open(path("db")).unwrap();
        let model = Model::default();
        model.begin(&db).unwrap();
        let number = under_load(&db, &model, 7, || {
            let number = db.backup(path("full")).unwrap().seqno;
            for _ in 0..3 {
                db.checkpoint().unwrap();
                db.archive_now().unwrap();
            }
            number
        });
        db.close().unwrap();
        let db = builder.open(path("db")).unwrap();
        under_load(&db, &model, 8, || {
            db.checkpoint().unwrap();
            db.archive_now().unwrap();
        });
        db.sync().unwrap();
        let archived = db.archive_now().unwrap().unwrap();
        assert!(archived >= model.last(), "{protocol}");
        assert_eq!(db.stats().archived, Some(archived));
        drop(db);
        let commits: Vec<u64> = model.commits.lock().unwrap().keys().copied().collect();
        let newer: Vec<u64> = commits.into_iter().filter(|&n| n > number).collect();
        assert!(newer.len() > 50);
        let middle = newer[newer.len() / 2];
        let points = [
            (Until::End, model.last()),
            (Until::Seqno(number), number),
            (Until::Seqno(newer[0]), newer[0]),
            (Until::Seqno(middle), middle),
        ];
        for (i, (until, expected)) in points.into_iter().enumerate() {
            let target = path(&format!("restored-{i}"));
            let restore = small_restore()
                .backup(path("full"))
                .archive(path("archive"));
            let report = restore.until(until).run(&target).unwrap();
            assert!(report.backup_seqno == number && report.seqno >= expected);
            braid::offline::verify(&target, &mut |damage| panic!("{damage}")).unwrap();
            let restored = open_restored(&target).unwrap();
            model.check(&restored, expected);
            let tables = super::model::tables(&restored).unwrap();
            let fresh = Model::default();
            let mut rng = fastrand::Rng::with_seed(1);
            fresh.transfer(&restored, &tables, &mut rng).unwrap();
            assert!(fresh.last() > report.seqno);
        }
    }
}

fn put(db: &Database, key: u64) -> u64 {
    let table = db.open_table::<u64, Bytes>("t").unwrap();
    let mut tx = db.begin();
    tx.insert(&table, &key, &vec![key as u8; 500]).unwrap();
    tx.commit().unwrap().seqno()
}

fn keys(db: &Database) -> Vec<u64> {
    use braid::Readable;
    let table = db.open_table::<u64, Bytes>("t").unwrap();
    let snapshot = db.snapshot();
    snapshot
        .iter(&table)
        .unwrap()
        .map(|row| row.unwrap().0)
        .collect()
}

fn builder(archive: &Arc<dyn Device>) -> braid::Builder {
    small()
        .checkpoint_log_bytes(64 << 10)
        .archive_on(archive.clone())
}

fn open(archive: &Arc<dyn Device>) -> Database {
    builder(archive)
        .open_on(Arc::new(MemoryDevice::new()))
        .unwrap()
}

fn memory() -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new())
}

fn restore(
    backup: &[u8],
    archive: &Arc<dyn Device>,
    until: Until,
) -> Result<(Database, braid::backup::RestoreReport), Error> {
    let target = memory();
    let restore = small_restore().stream(backup).archive_on(archive.clone());
    let report = restore.until(until).run_on(target.clone())?;
    let builder = small();
    Ok((builder.open_on(target)?, report))
}

fn backup_error<T>(outcome: Result<T, Error>) -> BackupError {
    match outcome {
        Err(Error::Backup(error)) => error,
        Err(error) => panic!("no backup error: {error}"),
        Ok(_) => panic!("no error"),
    }
}

#[test]
fn a_time_is_found_between_batches() {
    let archive = memory();
    let db = open(&archive);
    let mut backup = Vec::new();
    let before_backup = SystemTime::now() - Duration::from_secs(5);
    put(&db, 0);
    db.backup_to(&mut backup).unwrap();
    let mut times = Vec::new();
    for key in 1..6 {
        put(&db, key);
        db.archive_now().unwrap();
        // A time later than the batch's and earlier than that of the next one, whatever the clock's
        // resolution.
        let seen = SystemTime::now();
        while SystemTime::now() <= seen {
            std::hint::spin_loop();
        }
        times.push(SystemTime::now());
        while SystemTime::now() <= times[times.len() - 1] {
            std::hint::spin_loop();
        }
    }
    for (i, &time) in times.iter().enumerate() {
        let (restored, _) = restore(&backup, &archive, Until::Time(time)).unwrap();
        assert_eq!(keys(&restored), (0..i as u64 + 2).collect::<Vec<_>>());
    }
    let error = backup_error(restore(&backup, &archive, Until::Time(before_backup)));
    assert!(matches!(error, BackupError::OutOfReach { .. }), "{error}");
    let error = backup_error(restore(&backup, &archive, Until::Seqno(1)));
    assert!(matches!(error, BackupError::OutOfReach { .. }), "{error}");
    let error = backup_error(restore(&backup, &archive, Until::Seqno(1 << 40)));
    assert!(matches!(error, BackupError::OutOfReach { .. }), "{error}");
}

#[test]
fn a_hole_is_named_and_everything_before_it_can_be_restored() {
    let archive = memory();
    let device = memory();
    let db = builder(&archive).open_on(device.clone()).unwrap();
    let mut backup = Vec::new();
    db.backup_to(&mut backup).unwrap();
    let last = put(&db, 1);
    db.archive_now().unwrap();
    db.close().unwrap();
    // The database was open without the archive, and the log of that time is gone.
    let plain = small().feed_log_bytes(0);
    let db = plain
        .segment_bytes(64 << 10)
        .open_on(device.clone())
        .unwrap();
    let missing = put(&db, 2);
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    db.close().unwrap();
    let db = builder(&archive).open_on(device).unwrap();
    let archived = put(&db, 3);
    let gap = backup_error(db.archive_now());
    let BackupError::ArchiveGap {
        from,
        to,
        since,
        archived: up_to,
        ..
    } = gap
    else {
        panic!("{gap}");
    };
    assert!(from == last + 1 && (missing..archived).contains(&to) && up_to == archived);
    assert!(since.is_some());
    assert!(matches!(db.health(), Health::ArchiveFailing { .. }));
    let error = backup_error(restore(&backup, &archive, Until::End));
    let named =
        matches!(error, BackupError::Hole { from, to, .. } if from <= missing && to >= missing);
    assert!(named, "{error}");
    let beyond = backup_error(restore(&backup, &archive, Until::Seqno(missing)));
    assert!(matches!(beyond, BackupError::Hole { .. }), "{beyond}");
    let (restored, _) = restore(&backup, &archive, Until::Seqno(last)).unwrap();
    assert_eq!(keys(&restored), [1]);
    // With a backup from after the hole, the hole does not matter.
    let mut later = Vec::new();
    db.backup_to(&mut later).unwrap();
    put(&db, 4);
    db.archive_now().unwrap();
    assert!(matches!(db.health(), Health::Good));
    let (restored, _) = restore(&later, &archive, Until::End).unwrap();
    assert_eq!(keys(&restored), [1, 2, 3, 4]);
}

/// A database is backed up and written again before its first archiving, and its closing
/// checkpoints release the log.
#[test]
fn an_archive_names_log_released_before_it_began() {
    let (archive, device) = (memory(), memory());
    let reopen = || small().open_on(device.clone()).unwrap();
    let db = reopen();
    put(&db, 1);
    let mut backup = Vec::new();
    let backed_up = db.backup_to(&mut backup).unwrap().seqno;
    db.close().unwrap();
    let db = reopen();
    let missing = put(&db, 2);
    db.close().unwrap();
    for attempt in 0..2 {
        let db = builder(&archive).open_on(device.clone()).unwrap();
        let gap = backup_error(db.archive_now());
        assert!(
            matches!(gap, BackupError::ArchiveGap { from, to, .. }
                if from == backed_up + 1 && to == missing),
            "attempt {attempt}: {gap}"
        );
        db.close().unwrap();
        let error = backup_error(restore(&backup, &archive, Until::End));
        assert!(
            matches!(error, BackupError::Hole { from, to, .. }
                if from == backed_up + 1 && to == missing),
            "attempt {attempt}: {error}"
        );
    }
    // With a new backup archiving continues, and transactions committed without the archive are
    // kept for it.
    let db = reopen();
    let mut later = Vec::new();
    db.backup_to(&mut later).unwrap();
    for key in 3..6 {
        put(&db, key);
        db.checkpoint().unwrap();
    }
    db.close().unwrap();
    let db = reopen();
    let last = put(&db, 6);
    db.close().unwrap();
    let db = builder(&archive).open_on(device.clone()).unwrap();
    assert_eq!(db.archive_now().unwrap(), Some(last));
    db.close().unwrap();
    let (restored, report) = restore(&later, &archive, Until::End).unwrap();
    assert_eq!(
        (keys(&restored), report.seqno),
        (vec![1, 2, 3, 4, 5, 6], last)
    );
}

/// Log is kept for an archive only until the archive is ended.
#[test]
fn an_ended_archive_keeps_no_log() {
    let (archive, device) = (memory(), memory());
    let db = builder(&archive).open_on(device.clone()).unwrap();
    put(&db, 1);
    db.end_archive().unwrap();
    db.close().unwrap();
    for end in [false, true] {
        let db = small().open_on(device.clone()).unwrap();
        if end {
            db.end_archive().unwrap();
        }
        put(&db, 2);
        db.close().unwrap();
        let db = builder(&archive).open_on(device.clone()).unwrap();
        let outcome = db.archive_now();
        assert_eq!(outcome.is_err(), end, "{outcome:?}");
        db.close().unwrap();
    }
}

#[test]
fn a_directory_without_an_archive_proves_nothing() {
    let db = small().open_on(memory()).unwrap();
    let mut backup = Vec::new();
    db.backup_to(&mut backup).unwrap();
    let error = backup_error(restore(&backup, &memory(), Until::End));
    assert!(matches!(error, BackupError::EmptyArchive { .. }), "{error}");
    // The owner record shows how far the archive went, even if the newest files are lost.
    let (archive, device) = (memory(), memory());
    let db = builder(&archive).open_on(device.clone()).unwrap();
    let mut backup = Vec::new();
    db.backup_to(&mut backup).unwrap();
    put(&db, 1);
    db.close().unwrap();
    for entry in archive.list().unwrap() {
        if entry.name.starts_with("archive-") {
            archive.remove(&entry.name).unwrap();
        }
    }
    let error = backup_error(restore(&backup, &archive, Until::End));
    assert!(matches!(error, BackupError::Hole { .. }), "{error}");
}

/// Two copies of one database never write to the same archive: the second one is refused, whether
/// the first is closed, open or killed.
#[test]
fn a_copy_of_a_database_is_refused_by_the_archive() {
    let archive = memory();
    let device = SimDevice::new(1);
    let db = builder(&archive).open_on(Arc::new(device.clone())).unwrap();
    let mut backup = Vec::new();
    db.backup_to(&mut backup).unwrap();
    put(&db, 1);
    db.archive_now().unwrap();
    db.close().unwrap();
    let (copy, original) = (device.after_kill(), device.after_kill());
    let open = |device: &SimDevice| builder(&archive).open_on(Arc::new(device.clone()));
    let db = open(&original).unwrap();
    put(&db, 2);
    // Nothing was archived yet, so the copy may still take over the archive; then the original is
    // refused.
    let other = open(&copy).unwrap();
    put(&other, 3);
    put(&other, 4);
    other.archive_now().unwrap();
    let error = backup_error(db.archive_now());
    assert!(matches!(error, BackupError::ArchiveOwned { .. }), "{error}");
    assert!(matches!(db.health(), Health::ArchiveFailing { .. }));
    db.close().unwrap();
    let (restored, _) = restore(&backup, &archive, Until::End).unwrap();
    assert_eq!(keys(&restored), [1, 3, 4]);
    // Copies made before or while the original was open are refused as well, once the original has
    // archived again.
    let earlier = copy.after_kill();
    put(&other, 5);
    other.archive_now().unwrap();
    drop(other);
    let other = open(&copy.after_kill()).unwrap();
    put(&other, 6);
    other.archive_now().unwrap();
    for copy in [earlier, original] {
        let error = backup_error(open(&copy));
        assert!(matches!(error, BackupError::ArchiveOwned { .. }), "{error}");
        assert!(error.to_string().contains("remove the file OWNER"));
    }
    other.close().unwrap();
    let (restored, _) = restore(&backup, &archive, Until::End).unwrap();
    assert_eq!(keys(&restored), [1, 3, 4, 5, 6]);
}

/// The database and its archive continue after a loss of power at any time.
#[test]
fn a_database_owns_its_archive_through_crashes() {
    for seed in 0..100 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut medium, mut device) = (SimDevice::new(seed), SimDevice::new(seed + 1_000));
        for key in 0..6 {
            let archive: Arc<dyn Device> = Arc::new(medium.clone());
            let db = builder(&archive)
                .open_on(Arc::new(device.clone()))
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            put(&db, key);
            let steps = 1 + rng.u64(..16);
            if rng.bool() {
                medium.crash_after(steps)
            } else {
                device.crash_after(steps)
            }
            let archived = db.archive_now();
            let is_refused = matches!(archived, Err(Error::Backup(_)));
            assert!(!is_refused, "seed {seed}: {archived:?}");
            (medium, device) = if rng.bool() {
                (medium.after_crash(), device.after_crash())
            } else {
                (medium.after_kill(), device.after_kill())
            };
        }
    }
}

#[test]
fn archives_of_others_are_refused() {
    let (archive, elsewhere) = (memory(), memory());
    let (db, other) = (open(&archive), open(&elsewhere));
    let mut backup = Vec::new();
    for db in [&db, &other] {
        put(db, 1);
        db.archive_now().unwrap();
    }
    db.backup_to(&mut backup).unwrap();
    let error = backup_error(restore(&backup, &elsewhere, Until::End));
    assert!(matches!(error, BackupError::OtherArchive { .. }), "{error}");
    let error = backup_error(builder(&archive).open_on(memory()));
    assert!(matches!(error, BackupError::OtherArchive { .. }), "{error}");
}

/// The database's files are replaced by older ones, and the archive does not know it.
#[test]
fn an_archive_that_is_ahead_is_refused() {
    let archive = memory();
    let device = SimDevice::new(1);
    let db = builder(&archive).open_on(Arc::new(device.clone())).unwrap();
    put(&db, 1);
    let before = device.after_kill();
    put(&db, 2);
    db.archive_now().unwrap();
    drop(db);
    let open = || backup_error(builder(&archive).open_on(Arc::new(before.clone())));
    let error = open();
    assert!(matches!(error, BackupError::ArchiveOwned { .. }), "{error}");
    archive.remove("OWNER").unwrap();
    let error = open();
    assert!(matches!(error, BackupError::ArchiveAhead { .. }), "{error}");
}

/// The archive's medium fails: commits continue until the log is full, and `health` reports the
/// failure. When the medium works again, nothing is missing.
#[test]
fn a_failing_archive_holds_the_log_and_loses_nothing() {
    let medium = SimDevice::new(1);
    let archive: Arc<dyn Device> = Arc::new(medium.clone());
    let db = builder(&archive)
        .strands(1)
        .segment_bytes(1 << 20)
        .checkpoint_log_bytes(1 << 20)
        .max_log_bytes(8 << 20)
        .open_on(memory())
        .unwrap();
    let mut backup = Vec::new();
    db.backup_to(&mut backup).unwrap();
    put(&db, 0);
    db.archive_now().unwrap();
    medium.break_after(1);
    let table = db.open_table::<u64, Bytes>("t").unwrap();
    let mut expected = vec![0];
    let error = loop {
        let key = expected.len() as u64;
        let mut tx = db.begin();
        tx.insert(&table, &key, &vec![1; 50_000]).unwrap();
        match tx.commit() {
            Ok(_) => expected.push(key),
            Err(error) => break error,
        }
        if key.is_multiple_of(20) {
            db.checkpoint().unwrap();
            assert!(matches!(db.health(), Health::ArchiveFailing { .. }));
        }
    };
    assert!(matches!(error, Error::OutOfSpace { .. }), "{error}");
    assert!(expected.len() > 80, "{}", expected.len());
    assert!(db.archive_now().is_err());
    db.checkpoint().unwrap();
    medium.repair();
    db.archive_now().unwrap();
    db.checkpoint().unwrap();
    let key = expected.len() as u64;
    put(&db, key);
    assert!(matches!(db.health(), Health::Good));
    expected.push(key);
    db.archive_now().unwrap();
    let (restored, _) = restore(&backup, &archive, Until::End).unwrap();
    assert_eq!(keys(&restored), expected);
}

/// The archive's power fails at any write: the next open continues after the last complete batch.
#[test]
fn an_archive_is_whole_after_crashes() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut medium = SimDevice::new(seed);
        let mut device = SimDevice::new(seed + 1_000);
        let mut backup = Vec::new();
        let mut numbers = Vec::new();
        for round in 0..4 {
            let archive: Arc<dyn Device> = Arc::new(medium.clone());
            let db = builder(&archive).open_on(Arc::new(device.clone())).unwrap();
            if round == 0 {
                db.backup_to(&mut backup).unwrap();
            }
            medium.crash_after(1 + rng.u64(..12));
            let mut archived = 0;
            for _ in 0..rng.u64(1..12) {
                numbers.push(put(&db, numbers.len() as u64));
                match rng.u8(..4) {
                    0 => db.checkpoint().unwrap(),
                    1 => drop(db.archive_now()),
                    _ => {}
                }
                archived = db.stats().archived.unwrap();
            }
            // Both lose power at the same time.
            medium.power_off();
            device = device.after_crash();
            drop(db);
            medium = medium.after_crash();
            let archive: Arc<dyn Device> = Arc::new(medium.clone());
            let (restored, report) = match restore(&backup, &archive, Until::End) {
                Err(Error::Backup(BackupError::EmptyArchive { .. })) if archived == 0 => continue,
                outcome => outcome.unwrap(),
            };
            assert!(
                report.seqno >= archived,
                "seed {seed}: archived means durable"
            );
            let whole = numbers.iter().filter(|&&number| number <= report.seqno);
            let expected: Vec<u64> = (0..whole.count() as u64).collect();
            if !expected.is_empty() {
                assert_eq!(keys(&restored), expected, "seed {seed}");
            }
        }
    }
}

/// Damage to any part is reported, and never yields transactions that did not exist.
#[test]
fn a_damaged_archive_is_reported() {
    let archive = memory();
    let db = open(&archive);
    let mut backup = Vec::new();
    db.backup_to(&mut backup).unwrap();
    for key in 0..30 {
        put(&db, key);
        if key % 5 == 4 {
            db.archive_now().unwrap();
        }
    }
    let all: Vec<u64> = (0..30).collect();
    let mut files = archive.list().unwrap().into_iter().map(|entry| entry.name);
    let name = files.find(|name| name.starts_with("archive-")).unwrap();
    let file = archive.open(&name, OpenMode::Existing).unwrap();
    let len = file.len().unwrap() as usize;
    let mut bytes = archive.allocate(len);
    file.read_at(&mut bytes[..len], 0).unwrap();
    let (mut reported, mut torn) = (0, 0);
    for at in (0..len).step_by(61) {
        bytes[at] ^= 4;
        file.write_at(&[&bytes[..len]], 0).unwrap();
        match restore(&backup, &archive, Until::End) {
            Err(Error::Backup(error)) => {
                reported += 1;
                assert!(
                    matches!(
                        error,
                        BackupError::Hole { .. }
                            | BackupError::Damaged { .. }
                            | BackupError::Format { .. }
                            | BackupError::OtherArchive { .. }
                    ),
                    "byte {at}: {error}"
                );
            }
            Err(error) => panic!("byte {at}: {error}"),
            Ok((restored, report)) => {
                let found = keys(&restored);
                assert!(all.starts_with(&found), "byte {at}: {found:?}");
                // Padding, the header's time, or the last batch, which may have been torn.
                torn += u32::from(found.len() < all.len());
                assert!(found.len() >= 25, "byte {at}: {}", report.seqno);
            }
        }
        bytes[at] ^= 4;
    }
    assert!(reported > 50 && torn > 0, "{reported} {torn}");
}

/// A table that was loaded past the log is not in the archive, and no restore pretends that it is.
#[test]
fn a_table_loaded_past_the_log_is_reported() {
    let archive = memory();
    let db = open(&archive);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    db.backup_to(&mut before).unwrap();
    let last = put(&db, 1);
    let mut loader = db.bulk_load::<u64, u64>("loaded").unwrap();
    loader.extend((0..3_000u64).map(|n| (n, n))).unwrap();
    loader.finish().unwrap();
    put(&db, 2);
    db.backup_to(&mut after).unwrap();
    put(&db, 3);
    db.archive_now().unwrap();
    let error = backup_error(restore(&before, &archive, Until::End));
    let BackupError::LoadedTable {
        table,
        seqno: number,
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(table, "loaded");
    let until = Until::Seqno(number - 1);
    let (restored, _) = restore(&before, &archive, until).unwrap();
    assert_eq!(keys(&restored), [1]);
    assert!(last < *number && restored.table_names().unwrap() == ["t"]);
    let (restored, _) = restore(&after, &archive, Until::End).unwrap();
    assert_eq!(keys(&restored), [1, 2, 3]);
    let table = restored.open_table::<u64, u64>("loaded").unwrap();
    assert_eq!(restored.get(&table, &2_999).unwrap(), Some(2_999));
}
