//! Databases on a volume, `nvme:FILE/NAME`: a file stands in for the drive.

#![cfg(target_os = "linux")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use braid::backup::{BackupError, Restore};
use braid::device::DeviceChoice;
use braid::offline;
use braid::{Builder, Database, Error, Table};
use braid_nvme::volume::{FormatOptions, fsck};
use braid_nvme::{Blocking, DriveName, Volume};

/// A volume in a file of a directory of its own.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    /// `None` where io_uring or direct I/O is missing.
    fn new() -> Option<Self> {
        let place = Self::unformatted();
        let formatted = (|| {
            let opened = place.drive().open()?;
            Volume::format(Blocking::new(opened.drive), FormatOptions::default())
        })();
        if let Err(error) = formatted {
            println!("SKIPPED: {error}");
            return None;
        }
        Some(place)
    }

    fn unformatted() -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let file = File::create(directory.path().join("drive")).unwrap();
        file.set_len(64 << 20).unwrap();
        Self { directory }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("drive")
    }

    fn drive(&self) -> DriveName {
        DriveName::Path(self.file())
    }

    /// The name of a database on the volume.
    fn name(&self, name: &str) -> PathBuf {
        format!("nvme:{}/{name}", self.file().display()).into()
    }

    #[track_caller]
    fn expect_sound(&self) {
        let opened = self.drive().open().unwrap();
        let report = fsck(&Blocking::new(opened.drive)).unwrap();
        assert!(report.faults.is_empty(), "{report:?}");
    }
}

fn builder() -> Builder {
    Database::builder()
        .pool_bytes(1 << 20)
        .segment_bytes(64 << 10)
}

fn table(db: &Database) -> Table<u64, u64> {
    db.open_table("t").unwrap()
}

fn fill(db: &Database, value: u64) {
    let t = table(db);
    for key in 0..100 {
        db.transact(|tx| tx.insert(&t, &key, &value)).unwrap();
    }
}

#[track_caller]
fn check(db: &Database, value: u64) {
    let t = table(db);
    for key in 0..100 {
        assert_eq!(db.get(&t, &key).unwrap(), Some(value));
    }
}

#[track_caller]
fn expect_verified(path: &PathBuf) {
    let mut findings = Vec::new();
    let report = offline::verify(path, &mut |finding| findings.push(finding)).unwrap();
    assert_eq!((report.damages, findings), (0, Vec::new()));
}

#[test]
fn a_database_lives_on_a_volume() {
    let Some(place) = Place::new() else { return };
    let path = place.name("library");
    let missing = builder().create_if_missing(false).open(&path);
    assert!(
        matches!(missing, Err(Error::NotADatabase { .. })),
        "{missing:?}"
    );
    let db = builder().open(&path).unwrap();
    fill(&db, 1);
    db.checkpoint().unwrap();
    fill(&db, 2);
    db.compact().unwrap();
    let again = builder().open(&path);
    assert!(matches!(again, Err(Error::Locked { .. })), "{again:?}");
    // Another database of this process shares the drive.
    let other = builder().open(place.name("other")).unwrap();
    fill(&other, 7);
    // After the close, the drive is free, whatever handles still exist.
    let snapshot = db.snapshot();
    db.close().unwrap();
    other.close().unwrap();
    place.expect_sound();
    drop(snapshot);
    expect_verified(&path);
    let reader = builder().open_read_only(&path).unwrap();
    check(&reader, 2);
    let writer = builder().open(&path);
    assert!(matches!(writer, Err(Error::Locked { .. })), "{writer:?}");
    drop(reader);
    check(&builder().open(place.name("other")).unwrap(), 7);
    let mut text = String::new();
    offline::dump(&path, &mut text).unwrap();
    assert!(text.contains("log after sequence number"), "{text}");
    offline::upgrade(&path).unwrap();
    place.expect_sound();
}

/// The databases of a process on a drive share its setting.
#[test]
fn the_time_for_which_threads_poll_is_an_option() {
    let Some(place) = Place::new() else { return };
    let (library, directory) = (place.name("library"), place.directory.path().join("db"));
    let idle_us = |path: &PathBuf| braid_io::volume_idle_us(path).unwrap();
    let db = builder().open(&library).unwrap();
    assert_eq!(idle_us(&library), Some(20));
    let other = place.name("other");
    let second = builder().nvme_idle_us(0).open(&other).unwrap();
    assert_eq!((idle_us(&library), idle_us(&other)), (Some(0), Some(0)));
    fill(&db, 1);
    check(&db, 1);
    db.close().unwrap();
    second.close().unwrap();
    // Of the log, too, and of readers.
    let db = builder()
        .nvme_idle_us(70)
        .log_directory(place.name("log"))
        .open(&directory)
        .unwrap();
    assert_eq!(idle_us(&place.name("log")), Some(70));
    assert_eq!(idle_us(&directory), None);
    db.close().unwrap();
    let reader = builder().nvme_idle_us(3).open_read_only(&library).unwrap();
    assert_eq!(idle_us(&library), Some(3));
    check(&reader, 1);
}

/// Backups are files. They are restored from a directory to a volume and back.
#[test]
fn backups_move_between_directories_and_volumes() {
    let Some(place) = Place::new() else { return };
    let (directory, first) = (place.directory.path().join("db"), place.name("first"));
    let copy = |from: &PathBuf, to: &PathBuf, name: &str| {
        let file = place.directory.path().join(name);
        let db = builder().open(from).unwrap();
        db.backup(&file).unwrap();
        db.close().unwrap();
        Restore::new().backup(&file).run(to).unwrap();
        check(&builder().open(to).unwrap(), 3);
        expect_verified(to);
    };
    let db = builder().open(&directory).unwrap();
    fill(&db, 3);
    db.close().unwrap();
    copy(&directory, &first, "one");
    copy(&first, &place.directory.path().join("back"), "two");
    let in_use = Restore::new()
        .backup(place.directory.path().join("one"))
        .run(&first);
    assert!(
        matches!(
            in_use,
            Err(Error::Backup(BackupError::DestinationInUse { .. }))
        ),
        "{in_use:?}"
    );
    let second = place.name("second");
    let report = offline::salvage(&first, &second, &mut |_| {}).unwrap();
    assert!(report.entries >= 100, "{report:?}");
    check(&builder().open(&second).unwrap(), 3);
}

/// The log on a volume and the data in a directory, and the reverse.
#[test]
fn the_log_can_be_on_a_volume() {
    let Some(place) = Place::new() else { return };
    let directory = |name: &str| place.directory.path().join(name);
    for (data, log) in [
        (directory("data"), place.name("log")),
        (place.name("data"), directory("log")),
        (place.name("both"), place.name("both-log")),
    ] {
        let db = builder().log_directory(&log).open(&data).unwrap();
        fill(&db, 1);
        db.close().unwrap();
        // The record leads to the log.
        let db = builder().open(&data).unwrap();
        check(&db, 1);
        db.close().unwrap();
        expect_verified(&data);
        let reader = builder().open_read_only(&data).unwrap();
        check(&reader, 1);
    }
    place.expect_sound();
}

#[test]
fn an_archive_can_be_on_a_volume() {
    let Some(place) = Place::new() else { return };
    let (data, archive) = (place.directory.path().join("db"), place.name("archive"));
    let backup = place.directory.path().join("backup");
    let db = builder().archive(&archive).open(&data).unwrap();
    db.backup(&backup).unwrap();
    fill(&db, 4);
    db.close().unwrap();
    let restored = place.name("restored");
    Restore::new()
        .backup(&backup)
        .archive(&archive)
        .run(&restored)
        .unwrap();
    check(&builder().open(&restored).unwrap(), 4);
}

/// Every state of a drive in which no database can be opened has its error, and stays as it is.
#[test]
fn drives_without_a_usable_volume_are_refused() {
    let Some(place) = Place::new() else { return };
    let path = place.name("library");
    let db = builder().open(&path).unwrap();
    fill(&db, 1);
    db.close().unwrap();
    let file = File::options()
        .read(true)
        .write(true)
        .open(place.file())
        .unwrap();
    let mut copies = [vec![0; 4096], vec![0; 4096]];
    file.read_exact_at(&mut copies[0], 0).unwrap();
    file.read_exact_at(&mut copies[1], 512 << 10).unwrap();
    let write = |copies: &[Vec<u8>; 2]| {
        file.write_all_at(&copies[0], 0).unwrap();
        file.write_all_at(&copies[1], 512 << 10).unwrap();
        file.sync_all().unwrap();
    };
    let open = || builder().open(&path);

    // One copy suffices.
    write(&[vec![0; 4096], copies[1].clone()]);
    check(&open().unwrap(), 1);
    file.read_exact_at(&mut copies[0], 0).unwrap();
    file.read_exact_at(&mut copies[1], 512 << 10).unwrap();
    write(&[vec![0; 4096], vec![0; 4096]]);
    let opened = open();
    assert!(
        matches!(&opened, Err(Error::NotADatabase { reason, .. }) if reason.contains("begins with zeros")),
        "{opened:?}"
    );
    let mut damaged = copies.clone();
    damaged.iter_mut().for_each(|copy| copy[60] ^= 1);
    write(&damaged);
    let opened = open();
    assert!(
        matches!(&opened, Err(Error::Corrupted { .. })),
        "{opened:?}"
    );
    write(&copies);
    file.set_len(32 << 20).unwrap();
    let opened = open();
    assert!(
        matches!(&opened, Err(Error::Corrupted { what, .. }) if what.contains("former size")),
        "{opened:?}"
    );
    file.set_len(64 << 20).unwrap();
    check(&open().unwrap(), 1);

    let wrong = place.directory.path().join("drive/library");
    let opened = builder().open(format!("nvme:{}/x", wrong.display()));
    assert!(matches!(opened, Err(Error::Io { .. })), "{opened:?}");
    for name in ["nvme:", "nvme:x", "vfio:/x"] {
        let opened = builder().open(name);
        assert!(matches!(opened, Err(Error::Io { .. })), "{opened:?}");
    }
    let pmem = builder().device(DeviceChoice::PmemFile).open(&path);
    assert!(matches!(pmem, Err(Error::Io { .. })), "{pmem:?}");
    let held = place.drive().open().unwrap();
    assert!(matches!(open(), Err(Error::Locked { .. })));
    drop(held);
    check(&open().unwrap(), 1);
}

/// A full drive refuses transactions, and loses nothing.
#[test]
fn a_full_volume_refuses_and_keeps_what_it_has() {
    let Some(place) = Place::new() else { return };
    let path = place.name("library");
    let db = builder().open(&path).unwrap();
    let t: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
    let value = fastrand::Rng::with_seed(1);
    let mut kept = 0;
    let error = loop {
        let bytes: Vec<u8> = std::iter::repeat_with({
            let mut value = value.clone();
            move || value.u8(..)
        })
        .take(256 << 10)
        .collect();
        match db.transact(|tx| tx.insert(&t, &kept, &bytes)) {
            Ok(_) => kept += 1,
            Err(error) => break error,
        }
        assert!(kept < 1000, "64 MiB hold no 250 MiB");
    };
    assert!(kept > 50, "{kept}: {error}");
    assert!(
        matches!(error, Error::OutOfSpace { .. } | Error::Poisoned { .. }),
        "{error:?}"
    );
    drop((t, db));
    let db = builder().open(&path).unwrap();
    let t: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
    for key in 0..kept {
        assert_eq!(
            db.get(&t, &key).unwrap().map(|value| value.len()),
            Some(256 << 10)
        );
    }
    drop(db);
    expect_verified(&path);
    place.expect_sound();
}
