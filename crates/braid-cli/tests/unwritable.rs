//! Read-only commands where nothing can be written: on a full file system and on one that is
//! mounted read-only, with a database that was closed and one whose process was killed. Needs
//! permission to mount; otherwise the test says so and passes.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::Command;

use braid::Database;

#[allow(dead_code, reason = "another test uses the rest")]
#[path = "../../braiddb/tests/processes/mounts.rs"]
mod mounts;

use crate::common::{braid_in, expect_code, stdout};
use mounts::{Ballast, Mount};

const ROWS: u64 = 50;

/// Creates a database that was closed, and a copy of its files from before: those that a killed
/// process leaves.
fn databases(dir: &Path) {
    let path = dir.join("closed");
    let db = Database::builder()
        .segment_bytes(1 << 20)
        .pool_bytes(1 << 20)
        .background_threads(false)
        .open(&path)
        .unwrap();
    let table = db.open_table::<u64, u64>("stock").unwrap();
    for row in 0..ROWS {
        db.transact(|tx| tx.insert(&table, &row, &row)).unwrap();
    }
    let killed = dir.join("killed");
    fs::create_dir(&killed).unwrap();
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), killed.join(entry.file_name())).unwrap();
    }
    db.close().unwrap();
}

/// Names, lengths and bytes of a database's files.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let mut files: Vec<_> = entries
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[track_caller]
fn read(dir: &Path, args: &[&str]) -> String {
    let output = braid_in(dir, args);
    expect_code(&output, 0);
    stdout(&output)
}

fn assert_all_commands_read(place: &Path) {
    for name in ["closed", "killed"] {
        let before = files(&place.join(name));
        assert!(read(place, &["stat", name]).contains("stock"), "{name}");
        assert!(read(place, &["verify", name]).contains("sound"), "{name}");
        let exported = read(place, &["export", name]);
        // The first line describes the table.
        assert_eq!(exported.lines().count() as u64, ROWS + 1, "{name}");
        let get = ["shell", name, "--read-only", "-c", "get stock 7"];
        assert_eq!(read(place, &get).trim(), "7", "{name}");
        let scan = ["shell", name, "--read-only", "-c", "scan stock"];
        assert!(read(place, &scan).lines().count() as u64 >= ROWS, "{name}");
        let changes = read(place, &["changes", name]).lines().count() as u64;
        match name {
            "killed" => assert!(changes >= ROWS, "{changes}"),
            // The checkpoint at its end released the log.
            _ => assert_eq!(changes, 0),
        }
        assert!(files(&place.join(name)) == before, "{name} was changed");
    }
}

fn remount(place: &Path, how: &str) {
    let options = format!("remount,{how}");
    let mount = Command::new("mount")
        .args(["-o", &options])
        .arg(place)
        .status();
    assert!(mount.unwrap().success(), "remounting {how}");
}

#[test]
fn all_that_only_reads_works_where_nothing_can_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::tmpfs(&dir.path().join("mount"), 64 << 10) else {
        return;
    };
    let place = &mount.path;
    databases(place);
    let rest = Ballast::rest(place);
    assert_all_commands_read(place);
    rest.remove();
    remount(place, "ro");
    assert_all_commands_read(place);
    remount(place, "rw");
}

/// A read-only command leaves the directory unchanged, however often it runs.
#[test]
fn a_database_does_not_grow_by_being_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    databases(dir.path());
    for name in ["closed", "killed"] {
        let before = files(&dir.path().join(name));
        for _ in 0..20 {
            read(dir.path(), &["stat", name]);
        }
        assert!(
            files(&dir.path().join(name)) == before,
            "{name} was changed"
        );
    }
}
