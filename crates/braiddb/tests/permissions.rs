//! Permissions of created files. A single test, because the umask belongs to the process.

#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use braid::backup::Restore;
use braid::{Builder, Database, Error};
use rustix::fs::Mode;

fn umask(mask: u32) {
    rustix::process::umask(Mode::from_raw_mode(mask as rustix::fs::RawMode));
}

/// Lists everything below a directory, with its permissions.
fn modes(place: &Path, found: &mut Vec<(String, bool, u32)>) {
    for entry in fs::read_dir(place).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        let name = path.display().to_string();
        found.push((name, metadata.is_dir(), metadata.mode() & 0o7777));
        if metadata.is_dir() {
            modes(&path, found);
        }
    }
}

/// Uses everything that creates files.
fn use_all(place: &Path, builder: Builder, mode: u32) {
    let builder = builder
        .stats_file(true)
        .pool_bytes(1 << 20)
        .segment_bytes(1 << 20)
        .archive(place.join("made/archive"));
    let db = builder.open(place.join("made/above/db")).unwrap();
    let table = db.open_table::<u64, u64>("t").unwrap();
    db.transact(|tx| tx.insert(&table, &1, &1)).unwrap();
    db.checkpoint().unwrap();
    db.backup(place.join("made/backup")).unwrap();
    db.archive_now().unwrap();
    // Before closing, which removes the statistics.
    let mut found = Vec::new();
    modes(&place.join("made"), &mut found);
    let is_there = |name: &str| found.iter().any(|(path, ..)| path.ends_with(name));
    for name in ["STATS", "LOCK", "COPIES", "OWNER", "data.braid", "backup"] {
        assert!(is_there(name), "{name}: {found:?}");
    }
    db.close().unwrap();
    Restore::new()
        .backup(place.join("made/backup"))
        .file_mode(mode)
        .run(place.join("made/restored"))
        .unwrap();
}

#[test]
fn files_are_their_owners_unless_asked_otherwise() {
    for (mask, asked, file, directory) in [
        // Without a umask, only the requested mode denies access to others.
        (0o000, None, 0o600, 0o700),
        (0o077, Some(0o640), 0o640, 0o750),
        (0o022, Some(0o664), 0o664, 0o775),
    ] {
        let place = tempfile::tempdir().unwrap();
        umask(mask);
        let builder = match asked {
            None => Database::builder(),
            Some(mode) => Database::builder().file_mode(mode),
        };
        use_all(place.path(), builder, asked.unwrap_or(0o600));
        let mut found = Vec::new();
        modes(&place.path().join("made"), &mut found);
        for (path, is_directory, mode) in found {
            let wanted = if is_directory { directory } else { file };
            // The first open creates the lock file, even one by a reader.
            let wanted = if path.ends_with("LOCK") {
                wanted & !mask
            } else {
                wanted
            };
            assert_eq!(mode, wanted, "{path}: {mode:o} instead of {wanted:o}");
        }
        umask(0o022);
    }
    for mode in [0o444, 0o700, 0o1600] {
        let place = tempfile::tempdir().unwrap();
        let opened = Database::builder().file_mode(mode).open(place.path());
        assert!(
            matches!(opened, Err(Error::InvalidOption { .. })),
            "{mode:o}"
        );
        let into = place.path().join("into");
        let restored = Restore::new().file_mode(mode).run(&into);
        assert!(
            matches!(restored, Err(Error::InvalidOption { .. })),
            "{mode:o}"
        );
        assert!(!into.exists());
    }

    // A link at the name of a new file is replaced or refused; its target stays unchanged.
    let place = tempfile::tempdir().unwrap();
    let letter = place.path().join("letter");
    fs::write(&letter, "Dear engine").unwrap();
    let dir = place.path().join("db");
    fs::create_dir(&dir).unwrap();
    for name in ["db/.braid-probe", "db/STATS.new", "backup.partial"] {
        symlink(&letter, place.path().join(name)).unwrap();
    }
    let builder = Database::builder().pool_bytes(1 << 20).stats_file(true);
    let db = builder.open(&dir).unwrap();
    db.checkpoint().unwrap();
    db.backup(place.path().join("backup")).unwrap();
    db.close().unwrap();
    assert_eq!(fs::read_to_string(&letter).unwrap(), "Dear engine");
}
