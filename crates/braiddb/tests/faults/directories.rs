//! Directories: other files, other openers, other options, read-only file systems.

use std::fs;
use std::sync::Arc;

use braid::{Bytes, Database, Error, Protocol, Readable, Table};
use braid_io::{Device, OpenMode, SimDevice};

use super::{assert_holds, directory_with_database, fill, open_sim};

#[test]
fn other_files_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("letter.txt"), "Dear engine").unwrap();
    let error = Database::open(dir.path()).unwrap_err();
    assert!(matches!(&error, Error::NotADatabase { reason, .. } if reason.contains("letter")));
    assert_eq!(
        fs::read(dir.path().join("letter.txt")).unwrap(),
        b"Dear engine"
    );
    let missing = dir.path().join("missing");
    let error = Database::builder()
        .create_if_missing(false)
        .open(&missing)
        .unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }));
    assert!(!missing.exists());
    let error = Database::open(dir.path().join("letter.txt")).unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
}

#[test]
fn a_second_opener_is_refused() {
    let dir = directory_with_database();
    let db = Database::open(dir.path()).unwrap();
    assert!(matches!(
        Database::open(dir.path()),
        Err(Error::Locked { .. })
    ));
    // Readers, `verify` among them, work alongside the writer.
    let mut damage = Vec::new();
    braid::offline::verify(dir.path(), &mut |found| damage.push(found)).unwrap();
    assert_eq!(damage, Vec::<String>::new());
    drop(db);
    Database::open(dir.path()).unwrap();
}

#[test]
fn lanes_that_do_not_fit_or_a_newer_format_are_named() {
    let dir = directory_with_database();
    let error = Database::builder().strands(2).lanes(2).open(dir.path());
    let error = error.unwrap_err();
    assert!(
        matches!(&error, Error::Incompatible { what } if what.contains("lanes")),
        "{error}"
    );
    let several = tempfile::tempdir().unwrap();
    let builder = Database::builder().strands(3).lanes(3);
    builder.open(several.path()).unwrap().close().unwrap();
    let error = Database::builder().protocol(Protocol::Serial);
    let error = error.open(several.path()).unwrap_err();
    assert!(
        matches!(&error, Error::Incompatible { what } if what.contains("3 lanes")),
        "{error}"
    );
    // Both superblocks claim a newer format, with good checksums.
    let path = dir.path().join("data.braid");
    let mut bytes = fs::read(&path).unwrap();
    for block in bytes.chunks_mut(8192).take(2) {
        block[16] = 9;
        let crc = crc32c::crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(&path, bytes).unwrap();
    let error = Database::open(dir.path()).unwrap_err();
    assert!(
        matches!(&error, Error::Incompatible { what } if what.contains("format 9")),
        "{error}"
    );
}

/// Each open requests another protocol; everything written under earlier ones is there, even if the
/// process ended without closing.
#[test]
fn every_protocol_can_be_switched_to_every_other() {
    let device = SimDevice::new(3);
    let mut expected = 0u64;
    for (round, (from, to)) in Protocol::ALL
        .iter()
        .flat_map(|from| Protocol::ALL.iter().map(move |to| (from, to)))
        .enumerate()
    {
        for protocol in [from, to] {
            let builder = Database::builder()
                .background_threads(round % 3 == 0)
                .segment_bytes(128 << 10)
                .pool_bytes(1 << 20)
                .strands(if protocol.forced_strands().is_some() {
                    1
                } else {
                    3
                })
                .protocol(*protocol);
            let db = builder.open_on(Arc::new(device.clone())).unwrap();
            let t: Table<u64, Bytes> = db.open_table("t").unwrap();
            assert_eq!(db.snapshot().iter(&t).unwrap().count() as u64, expected);
            for _ in 0..5 {
                let mut tx = db.begin();
                tx.insert(&t, &expected, b"value").unwrap();
                tx.commit().unwrap();
                expected += 1;
            }
            if round % 2 == 0 {
                db.close().unwrap();
            }
        }
    }
    // Without a request, the last protocol stays.
    let db = Database::builder().open_on(Arc::new(device)).unwrap();
    let last = *Protocol::ALL.last().unwrap();
    assert_eq!(db.stats().protocol, last);
}

/// A switch of the protocol takes effect when the database is opened, even if the process ends
/// before it closes the database.
#[test]
fn a_switched_protocol_lasts_when_the_process_is_killed() {
    let mut device = SimDevice::new(5);
    let small = || {
        let builder = Database::builder().pool_bytes(1 << 20).strands(3);
        builder.segment_bytes(128 << 10).background_threads(false)
    };
    let switches = [
        Protocol::Glsn,
        Protocol::Gwsn,
        Protocol::Gsn,
        Protocol::Epoch,
    ];
    for (round, protocol) in (0u64..).zip(switches.into_iter().chain(switches)) {
        let builder = small().protocol(protocol);
        let db = builder.open_on(Arc::new(device.clone())).unwrap();
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        // In the first half of the rounds, the process ends without a commit.
        if round >= 4 {
            db.transact(|tx| tx.insert(&t, &round, &round)).unwrap();
        }
        let killed = device.after_kill();
        drop((t, db));
        device = killed;
        let db = small().open_on(Arc::new(device.clone())).unwrap();
        assert_eq!(db.stats().protocol, protocol);
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        assert_eq!(
            db.snapshot().iter(&t).unwrap().count() as u64,
            (round + 1).saturating_sub(4)
        );
    }
}

#[test]
fn files_of_an_open_database_are_few_and_known() {
    let device = SimDevice::new(1);
    let db = open_sim(&device).unwrap();
    fill(&db, 100, 10);
    for entry in device.list().unwrap() {
        assert!(
            entry.name == "data.braid" || entry.name.ends_with(".seg"),
            "{entry:?}"
        );
        device.open(&entry.name, OpenMode::Existing).unwrap();
    }
}

/// A read-only bind mount of a directory onto itself, unmounted on drop.
#[cfg(target_os = "linux")]
struct ReadOnlyMount(std::path::PathBuf);

#[cfg(target_os = "linux")]
impl ReadOnlyMount {
    /// Returns `None` if this process may not mount.
    fn over(path: &std::path::Path) -> Option<Self> {
        let mount = |args: &[&str]| {
            let ran = std::process::Command::new("mount")
                .args(args)
                .arg(path)
                .output();
            ran.is_ok_and(|output| output.status.success())
        };
        if !mount(&["--bind", path.to_str()?]) {
            return None;
        }
        let this = Self(path.to_owned());
        mount(&["-o", "remount,ro,bind"]).then_some(this)
    }
}

#[cfg(target_os = "linux")]
impl Drop for ReadOnlyMount {
    fn drop(&mut self) {
        // If unmounting fails, removing the directory fails as well, which fails the test.
        let _ = std::process::Command::new("umount").arg(&self.0).output();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_read_only_file_system_is_named_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = Database::builder().open(&path).unwrap();
    let (acknowledged, error) = fill(&db, 100, 50);
    assert!(error.is_none(), "{error:?}");
    // Not closed, so that opening has something to recover.
    drop(db);
    let Some(mount) = ReadOnlyMount::over(dir.path()) else {
        eprintln!("skipped: this process may not mount a file system");
        return;
    };
    for place in [&path, &dir.path().join("new")] {
        let error = Database::builder().open(place).unwrap_err();
        assert!(
            matches!(&error, Error::ReadOnly { path } if path == place),
            "{error}"
        );
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    drop(mount);
    let db = Database::builder().open(&path).unwrap();
    assert_holds(&db, &acknowledged);
}
