//! Commands on databases with tablespaces, whose logs may lie apart from their data.

use std::fs;
use std::path::Path;

use braid::device::DeviceChoice;
use braid::tablespace::TablespaceOptions;
use braid::{Database, Table};

use crate::common::{braid_in, expect_code, stderr, stdout};

/// Keys from here on are only in the logs.
const LOGGED: u64 = 100;
const KEYS: u64 = 120;

fn builder() -> braid::Builder {
    Database::builder()
        .device(DeviceChoice::File)
        .segment_bytes(64 << 10)
        .background_threads(false)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// A database `db`, its tablespace `disk` in `disk`, and that one's log in `disk-log`; and the files that a
/// kill would leave, in `copy`, `copy-disk` and `copy-disk-log`. The tables `here` and `there` have the
/// keys below [`KEYS`].
fn make(dir: &Path) {
    let at = |name: &str| dir.join(name);
    let db = builder().open(at("db")).unwrap();
    let options = TablespaceOptions::in_directory(at("disk")).pool_bytes(1 << 20);
    db.create_tablespace("disk", options.log_directory(at("disk-log")))
        .unwrap();
    let here: Table<u64, String> = db.open_table("here").unwrap();
    let there = db.open_table_in::<u64, String>("disk", "there", Default::default());
    drop((here, there.unwrap()));
    // The log begins with the next opening.
    db.close().unwrap();
    let db = builder().open(at("db")).unwrap();
    let tables: [Table<u64, String>; 2] =
        ["here", "there"].map(|name| db.open_table(name).unwrap());
    for key in 0..KEYS {
        if key == LOGGED {
            db.checkpoint().unwrap();
        }
        // The database's own log has transactions of its own, too.
        let used = if key % 2 == 0 {
            &tables[..]
        } else {
            &tables[..1]
        };
        db.transact(|tx| {
            used.iter()
                .try_for_each(|table| tx.insert(table, &key, "a value"))
        })
        .unwrap();
    }
    db.sync().unwrap();
    for (name, to) in [
        ("db", "copy"),
        ("disk", "copy-disk"),
        ("disk-log", "copy-disk-log"),
    ] {
        copy(&at(name), &at(to));
    }
    drop(tables);
    db.close().unwrap();
}

/// Number of entries of a table.
fn count(dir: &Path, db: &str, table: &str) -> u64 {
    let output = braid_in(dir, &["shell", db, "-c", &format!("count {table}")]);
    expect_code(&output, 0);
    stdout(&output).trim().parse().unwrap()
}

/// Verify, dump and repair take the present places of a tablespace's data and of its log.
#[test]
fn checks_take_the_place_of_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let braid = |args: &[&str]| braid_in(dir.path(), args);
    make(dir.path());
    let disk = ["--tablespace", "disk=copy-disk"];
    let log = ["--tablespace-log", "disk=copy-disk-log"];
    let with = |args: &[&'static str], places: &[&[&'static str]]| {
        let places = places.concat();
        braid(&[args, &places].concat())
    };
    let verify = with(&["verify", "copy"], &[&disk, &log]);
    expect_code(&verify, 0);
    assert!(stdout(&verify).contains("(2 tables"), "{}", stdout(&verify));
    let dump = with(&["dump", "copy"], &[&disk, &log]);
    expect_code(&dump, 0);
    assert!(stdout(&dump).contains("tablespace \"disk\", number 1"));
    let repair = ["verify", "--repair", "copy", "--into", "whole"];
    let repair = with(&repair, &[&disk, &log]);
    expect_code(&repair, 0);
    assert!(
        stdout(&repair).ends_with("nothing is lost\n"),
        "{}",
        stdout(&repair)
    );
    assert_eq!(count(dir.path(), "whole", "here"), KEYS);
    assert_eq!(count(dir.path(), "whole", "there"), KEYS / 2);
    // Without the place, that of the original is known to belong to another database.
    let verify = with(&["verify", "copy"], &[&disk]);
    expect_code(&verify, 1);
    let text = stdout(&verify);
    assert!(text.contains("\"disk\"") && text.contains("log"), "{text}");
    for bad in ["disk", "=x", "disk="] {
        for command in ["verify", "dump"] {
            let output = braid(&[command, "copy", "--tablespace-log", bad]);
            expect_code(&output, 2);
            let text = stderr(&output);
            assert!(text.contains("give the name of a tablespace"), "{text}");
        }
    }
}

/// Repair without a log's place saves what the data files and the other logs have, and names what is
/// missing.
#[test]
fn repair_names_a_log_that_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    fs::remove_dir_all(dir.path().join("copy-disk-log")).unwrap();
    let places = [
        "--tablespace",
        "disk=copy-disk",
        "--tablespace-log",
        "disk=copy-disk-log",
    ];
    let repair = ["verify", "--repair", "copy", "--into", "saved"];
    let repair = braid_in(dir.path(), &[&repair[..], &places].concat());
    expect_code(&repair, 3);
    let text = stdout(&repair);
    let lost = text.lines().find(|line| line.starts_with("lost: log"));
    let lost = lost.unwrap_or_else(|| panic!("{text}"));
    assert!(lost.contains("tablespace \"disk\""), "{lost}");
    assert!(lost.contains("copy-disk-log"), "{lost}");
    // All that the checkpoint has is there, and of the other logs what is known to have been durable.
    println!("{text}");
    assert!(count(dir.path(), "saved", "here") > LOGGED + 10, "{text}");
    assert!(count(dir.path(), "saved", "there") >= LOGGED / 2, "{text}");
}

#[test]
fn a_log_is_restored_into_a_new_directory() {
    let dir = tempfile::tempdir().unwrap();
    let braid = |args: &[&str]| braid_in(dir.path(), args);
    make(dir.path());
    expect_code(&braid(&["backup", "db", "full"]), 0);
    let restore = |to: &'static str, places: &[&'static str]| {
        braid(&[&["restore", "full", to][..], places].concat())
    };
    let disk = "disk=a-disk";
    for (places, code, what) in [
        (
            &["--tablespace-log", "disk"][..],
            2,
            "give the name of a tablespace",
        ),
        (
            &["--tablespace", disk, "--tablespace-log", "other=x"],
            1,
            "no backup has one of this name",
        ),
        (
            &["--tablespace", disk, "--tablespace-log", "disk=disk-log"],
            1,
            "choose an empty or new place",
        ),
    ] {
        let refused = restore("a", places);
        expect_code(&refused, code);
        assert!(stderr(&refused).contains(what), "{}", stderr(&refused));
        let remains = ["a", "a-disk", "x"].map(|name| dir.path().join(name).exists());
        assert_eq!(remains, [false; 3]);
    }
    let apart = ["--tablespace", disk, "--tablespace-log", "disk=a-log"];
    expect_code(&restore("a", &apart), 0);
    expect_code(&braid(&["shell", "a", "-c", "put there 1 one"]), 0);
    let files = fs::read_dir(dir.path().join("a-log")).unwrap();
    let mut names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(names.any(|name| name.starts_with("log-01-")));
    assert_eq!(count(dir.path(), "a", "here"), KEYS);
    assert_eq!(count(dir.path(), "a", "there"), KEYS / 2 + 1);
    let stat = braid(&["stat", "a"]);
    expect_code(&stat, 0);
    assert!(stdout(&stat).contains("a-log"), "{}", stdout(&stat));
}

/// Every data file of the database shrinks, and the report is about all of them.
#[test]
fn compact_shortens_every_data_file() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let braid = |args: &[&str]| braid_in(dir.path(), args);
    let db = builder().open(dir.path().join("db")).unwrap();
    for (space, name) in [("main", "gone here"), ("disk", "gone there")] {
        let gone = if space == "main" {
            db.open_table::<u64, String>(name).unwrap()
        } else {
            db.open_table_in(space, name, Default::default()).unwrap()
        };
        db.transact(|tx| {
            let value = "x".repeat(1_000);
            (0..1_000).try_for_each(|key| tx.insert(&gone, &key, value.as_str()))
        })
        .unwrap();
    }
    db.checkpoint().unwrap();
    db.drop_table("gone here").unwrap();
    db.drop_table("gone there").unwrap();
    db.close().unwrap();
    let lengths = || {
        ["db", "disk"].map(|name| {
            let file = dir.path().join(name).join("data.braid");
            fs::metadata(file).unwrap().len()
        })
    };
    let before = lengths();
    let output = braid(&["compact", "db"]);
    expect_code(&output, 0);
    let after = lengths();
    for (before, after) in before.iter().zip(after) {
        assert!(after < before / 2, "{before} {after}");
    }
    let text = stdout(&output);
    assert!(text.contains("data files of all tablespaces"), "{text}");
    expect_code(&braid(&["verify", "db"]), 0);
    assert_eq!(count(dir.path(), "db", "here"), KEYS);
    assert_eq!(count(dir.path(), "db", "there"), KEYS / 2);
}
