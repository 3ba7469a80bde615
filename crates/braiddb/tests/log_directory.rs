//! A log in a directory of its own: on the same device as the data, or on another kind.

use std::fs;
use std::path::{Path, PathBuf};

use braid::backup::{BackupError, Restore};
use braid::device::DeviceChoice;
use braid::offline;
use braid::{Builder, Database, Error, Table};

const EMULATED: DeviceChoice = DeviceChoice::PmemEmulated { line_latency: 0 };

/// Devices of data and log. Persistent memory maps files, which other systems lack.
fn combinations() -> Vec<(DeviceChoice, DeviceChoice)> {
    let kinds: &[DeviceChoice] = if cfg!(target_os = "linux") {
        &[DeviceChoice::File, EMULATED]
    } else {
        &[DeviceChoice::File]
    };
    let with = |&data: &DeviceChoice| kinds.iter().map(move |&log| (data, log));
    kinds.iter().flat_map(with).collect()
}

struct Directories {
    _temporary: tempfile::TempDir,
    data: PathBuf,
    log: PathBuf,
}

impl Directories {
    fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        Self {
            data: temporary.path().join("data"),
            log: temporary.path().join("log"),
            _temporary: temporary,
        }
    }

    fn with_database() -> Self {
        let directories = Self::new();
        let db = builder()
            .log_directory(&directories.log)
            .open(&directories.data);
        fill(&db.unwrap(), 1);
        directories
    }

    fn other(&self, name: &str) -> PathBuf {
        self.data.with_file_name(name)
    }
}

fn builder() -> Builder {
    Database::builder()
        .device(DeviceChoice::File)
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

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[track_caller]
fn expect_refused(opened: Result<Database, Error>, expected: &Path, why: &str) {
    match opened {
        Err(Error::LogDirectory { path, reason }) => {
            assert!(reason.contains(why), "{reason}");
            assert!(path.ends_with(expected.file_name().unwrap()), "{path:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn expect_sound(path: &Path) {
    let mut findings = Vec::new();
    let report = offline::verify(path, &mut |finding| findings.push(finding)).unwrap();
    assert_eq!((report.damages, findings), (0, Vec::new()));
}

#[test]
fn log_and_data_are_on_any_two_devices() {
    for (data, log) in combinations() {
        let place = Directories::new();
        let open = || {
            let builder = builder()
                .device(data)
                .log_directory(&place.log)
                .log_device(log);
            builder.open(&place.data).unwrap()
        };
        let db = open();
        fill(&db, 1);
        assert!(names(&place.log).iter().any(|name| name.ends_with(".seg")));
        assert!(!names(&place.data).iter().any(|name| name.ends_with(".seg")));

        // A reader next to the writer, whose newest transactions are only in the log.
        let mut reader = builder().open_read_only(&place.data).unwrap();
        check(&reader, 1);
        expect_sound(&place.data);
        db.checkpoint().unwrap();
        db.compact().unwrap();
        fill(&db, 2);
        assert!(reader.refresh().unwrap());
        check(&reader, 2);
        drop((db, reader));

        // Without the options, the record leads to the log and to its device.
        let db = builder().device(data).open(&place.data).unwrap();
        check(&db, 2);
        fill(&db, 3);
        drop(db);
        expect_sound(&place.data);
        let mut text = String::new();
        offline::dump(&place.data, &mut text).unwrap();
        assert!(text.contains("log after sequence number 3"), "{text}");
        check(&open(), 3);
    }
}

#[test]
fn feeds_archives_and_backups_follow_the_log() {
    let place = Directories::new();
    let (archive, copy) = (place.other("archive"), place.other("backup.braid"));
    let (restored, restored_log) = (place.other("restored"), place.other("restored-log"));
    let open = || {
        builder()
            .archive(&archive)
            .log_directory(&place.log)
            .open(&place.data)
    };
    let db = open().unwrap();
    let t = table(&db);
    let mut changes = db.changes(db.position()).unwrap();
    db.backup(&copy).unwrap();
    fill(&db, 1);
    let first = changes.next().unwrap().unwrap();
    assert!(!first.changes.is_empty(), "{first:?}");
    drop((changes, t));
    db.archive_now().unwrap();
    db.close().unwrap();
    let restore = Restore::new().backup(&copy).archive(&archive);
    restore.log_directory(&restored_log).run(&restored).unwrap();
    let db = builder().open(&restored).unwrap();
    check(&db, 1);
    fill(&db, 2);
    drop(db);
    assert!(
        names(&restored_log)
            .iter()
            .any(|name| name.ends_with(".seg"))
    );
    check(&builder().open(&restored).unwrap(), 2);
    // Without the option, the log of a restored database is with its data.
    let inside = place.other("inside");
    Restore::new().backup(&copy).run(&inside).unwrap();
    assert!(names(&inside).iter().any(|name| name.ends_with(".seg")));
    drop(builder().open(&inside).unwrap());
}

#[test]
fn copies_are_refused_in_the_directory_of_the_log() {
    let place = Directories::with_database();
    let db = builder().open(&place.data).unwrap();
    let error = db.backup(place.log.join("backup.braid")).unwrap_err();
    assert!(
        matches!(&error, Error::Backup(BackupError::InsideDatabase { .. })),
        "{error}"
    );
    drop(db);
    let error = builder()
        .archive(place.log.join("archive"))
        .open(&place.data);
    let error = error.unwrap_err();
    assert!(
        matches!(&error, Error::Backup(BackupError::InsideDatabase { .. })),
        "{error}"
    );
}

#[test]
fn a_missing_log_is_refused_and_a_moved_one_is_named_once() {
    let place = Directories::with_database();
    let elsewhere = place.other("elsewhere");
    fs::rename(&place.log, &elsewhere).unwrap();
    let why = "mount its device, or name the log's present directory with log_directory";
    expect_refused(builder().open(&place.data), &place.log, why);
    expect_refused(builder().open_read_only(&place.data), &place.log, why);
    let error = offline::verify(&place.data, &mut |_| ()).unwrap_err();
    assert!(matches!(error, Error::LogDirectory { .. }), "{error}");
    check(
        &builder()
            .log_directory(&elsewhere)
            .open_read_only(&place.data)
            .unwrap(),
        1,
    );
    expect_refused(builder().open(&place.data), &place.log, why);
    check(
        &builder()
            .log_directory(&elsewhere)
            .open(&place.data)
            .unwrap(),
        1,
    );
    check(&builder().open(&place.data).unwrap(), 1);
    expect_sound(&place.data);
}

#[test]
fn the_log_of_another_database_is_refused() {
    let (place, other) = (Directories::with_database(), Directories::with_database());
    let before = fs::read(place.data.join("LOG-DIRECTORY")).unwrap();
    let opened = builder().log_directory(&other.log).open(&place.data);
    expect_refused(opened, &other.log, "it has the log of another database");
    let opened = builder()
        .log_directory(&other.log)
        .open_read_only(&place.data);
    expect_refused(opened, &other.log, "it has the log of another database");
    // The two logs are exchanged, so that the records lead to the wrong ones.
    let aside = place.other("aside");
    fs::rename(&place.log, &aside).unwrap();
    fs::rename(&other.log, &place.log).unwrap();
    fs::rename(&aside, &other.log).unwrap();
    expect_refused(builder().open(&place.data), &place.log, "another database");
    assert!(fs::read(place.data.join("LOG-DIRECTORY")).unwrap() == before);
    check(
        &builder()
            .log_directory(&other.log)
            .open(&place.data)
            .unwrap(),
        1,
    );
    // A new database does not take the log of another one, either.
    let opened = builder().log_directory(&place.log).open(place.other("new"));
    expect_refused(opened, &place.log, "it has the log of the database in");
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for name in names(from) {
        fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

/// Otherwise a copy would write to the log of the original.
#[test]
fn a_copy_of_the_data_does_not_use_the_log_of_the_original() {
    let place = Directories::with_database();
    let (data, log) = (place.other("copied-data"), place.other("copied-log"));
    copy_directory(&place.data, &data);
    copy_directory(&place.log, &log);
    let why = "if it was copied, copy this directory, too, and open the copy with it";
    expect_refused(builder().open(&data), &place.log, why);
    expect_refused(builder().open_read_only(&data), &place.log, why);
    let copied = builder().log_directory(&log).open(&data).unwrap();
    fill(&copied, 2);
    fill(&builder().open(&place.data).unwrap(), 3);
    drop(copied);
    check(&builder().open(&data).unwrap(), 2);
    check(&builder().open(&place.data).unwrap(), 3);
}

#[test]
fn a_log_directory_that_cannot_be_used_is_refused_and_kept() {
    let place = Directories::new();
    fs::create_dir_all(&place.log).unwrap();
    fs::write(place.log.join("letter"), "important").unwrap();
    let open = |log: &Path| builder().log_directory(log).open(&place.data);
    expect_refused(open(&place.log), &place.log, "it contains \"letter\"");
    assert_eq!(fs::read(place.log.join("letter")).unwrap(), b"important");
    expect_refused(
        open(&place.data),
        &place.data,
        "it is the database's own directory",
    );
    let in_memory = builder()
        .device(DeviceChoice::Memory)
        .log_directory(place.other("x"));
    let opened = in_memory.open(&place.data);
    expect_refused(
        opened,
        &place.other("x"),
        "the log would end with the process",
    );
    let memory = builder().log_device(DeviceChoice::Memory).open(&place.data);
    let Err(Error::InvalidOption { option, .. }) = memory else {
        panic!("{memory:?}");
    };
    assert_eq!(option, "log_device");
    // Nothing has become a database, and the next attempt succeeds.
    fill(&open(&place.other("empty")).unwrap(), 1);

    let inside = place.other("inside");
    drop(builder().open(&inside).unwrap());
    let opened = builder().log_directory(place.other("late")).open(&inside);
    expect_refused(
        opened,
        &place.other("late"),
        "the database has its log in its own directory",
    );
    assert!(!place.other("late").exists());
    drop(builder().open(&inside).unwrap());
}

#[test]
fn a_log_directory_in_use_is_locked() {
    let place = Directories::with_database();
    let lock = braid_io::DirectoryLock::acquire(&place.log).unwrap();
    match builder().open(&place.data) {
        Err(Error::Locked { path, .. }) => assert!(path.ends_with("log"), "{path:?}"),
        other => panic!("{other:?}"),
    }
    drop(lock);
    let db = builder().open(&place.data).unwrap();
    let held = braid_io::DirectoryLock::acquire(&place.log);
    assert!(held.is_err(), "{held:?}");
    db.close().unwrap();
    drop(braid_io::DirectoryLock::acquire(&place.log).unwrap());
}

#[test]
fn damaged_notes_are_reported_and_mended_by_naming_the_directory() {
    let place = Directories::with_database();
    let notes = [
        place.data.join("LOG-DIRECTORY"),
        place.log.join("LOG-OWNER"),
    ];
    let flip = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[20] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    flip(&notes[0]);
    let error = builder().open(&place.data).unwrap_err();
    assert!(matches!(error, Error::Corrupted { .. }), "{error}");
    check(
        &builder()
            .log_directory(&place.log)
            .open(&place.data)
            .unwrap(),
        1,
    );
    check(&builder().open(&place.data).unwrap(), 1);
    flip(&notes[1]);
    expect_refused(
        builder().open(&place.data),
        &place.log,
        "no intact LOG-OWNER",
    );
    expect_refused(
        builder().open_read_only(&place.data),
        &place.log,
        "no intact LOG-OWNER",
    );
}

#[test]
fn salvage_reads_the_log_in_its_place_and_does_without_a_missing_one() {
    let place = Directories::with_database();
    let salvaged = place.other("salvaged");
    let mut lost = Vec::new();
    let report = offline::salvage(&place.data, &salvaged, &mut |finding| lost.push(finding));
    assert_eq!((report.unwrap().losses, lost), (0, Vec::new()));
    check(&builder().open(&salvaged).unwrap(), 1);

    fs::rename(&place.log, place.other("away")).unwrap();
    let mut lost = Vec::new();
    let report = offline::salvage(&place.data, place.other("rest"), &mut |finding| {
        lost.push(format!("{finding:?}"));
    });
    assert!(report.unwrap().losses > 0);
    assert!(lost[0].contains("the directory does not exist"), "{lost:?}");
}
