//! Read-only commands next to a process that has the database open for writing: this one.

#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use braid::changes::Position;
use braid::{Database, Table};

use crate::common::{braid_in, expect_code, stderr, stdout};

fn put(db: &Database, table: &Table<String, u64>, key: &str, value: u64) {
    db.transact(|tx| tx.insert(table, key, &value)).unwrap();
}

#[track_caller]
fn read(dir: &Path, args: &[&str]) -> String {
    let output = braid_in(dir, args);
    expect_code(&output, 0);
    stdout(&output)
}

#[test]
fn commands_that_read_work_next_to_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (path, dir) = (dir.path().join("db"), dir.path());
    let db = Database::open(&path).unwrap();
    let table = db.open_table::<String, u64>("stock").unwrap();
    for value in 0..20 {
        put(&db, &table, "cups", value);
        if value % 6 == 5 {
            db.checkpoint().unwrap();
        }
        let value = value.to_string();
        assert!(read(dir, &["export", "db"]).contains(&value));
        let shell = ["shell", "db", "--read-only", "-c", "get stock \"cups\""];
        assert_eq!(read(dir, &shell).trim(), value);
    }
    assert!(read(dir, &["stat", "db"]).contains("stock"));
    assert!(read(dir, &["verify", "db"]).contains("sound"));
    assert!(read(dir, &["changes", "db"]).lines().count() > 0);
    read(dir, &["backup", "db", "copy"]);
    read(dir, &["restore", "copy", "restored"]);
    assert!(read(dir, &["export", "restored"]).contains("19"));
    // Writes are refused.
    for refused in [
        &["shell", "db", "-c", "tables"][..],
        &["changes", "db", "--feed", "f"],
        &["backup", "db", "more", "--incremental-from", "copy"],
    ] {
        let output = braid_in(dir, refused);
        expect_code(&output, 1);
    }
    let output = braid_in(
        dir,
        &["shell", "db", "--read-only", "-c", "put stock \"a\" 1"],
    );
    expect_code(&output, 1);
    assert!(stderr(&output).contains("read"), "{}", stderr(&output));
    put(&db, &table, "plates", 7);
    db.close().unwrap();
}

/// Only the writer acknowledges; the command prints the changes after the acknowledged position,
/// and says what to do instead of acknowledging.
#[test]
fn a_feed_is_read_next_to_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (path, dir) = (dir.path().join("db"), dir.path());
    let db = Database::open(&path).unwrap();
    let table = db.open_table::<String, u64>("stock").unwrap();
    put(&db, &table, "before", 1);
    let feed = db.feed("index").unwrap();
    let peek = ["changes", "db", "--feed", "index", "--peek"];
    assert_eq!(read(dir, &peek), "");
    for key in ["cups", "plates"] {
        put(&db, &table, key, 2);
        db.checkpoint().unwrap();
    }
    let printed = read(dir, &peek);
    assert_eq!(printed.lines().count(), 2, "{printed}");
    // It acknowledged nothing.
    assert_eq!(read(dir, &peek), printed);
    let first: serde_json::Value = serde_json::from_str(printed.lines().next().unwrap()).unwrap();
    let position: Position = first["position"].as_str().unwrap().parse().unwrap();
    feed.acknowledge(position).unwrap();
    let left: Vec<_> = printed.lines().skip(1).collect();
    assert_eq!(read(dir, &peek).lines().collect::<Vec<_>>(), left);
    let refused = |args: &[&str], parts: &[&str]| {
        let output = braid_in(dir, args);
        expect_code(&output, 1);
        let error = stderr(&output);
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    let process = format!("process {}", std::process::id());
    refused(
        &["changes", "db", "--feed", "index"],
        &["\"index\"", "--peek", &process],
    );
    refused(
        &["changes", "db", "--feed", "indx", "--peek"],
        &["no feed \"indx\"", "did you mean \"index\"?"],
    );
    drop(feed);
    db.close().unwrap();
}

#[test]
fn changes_are_followed_next_to_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = Database::open(&path).unwrap();
    let table = db.open_table::<String, u64>("stock").unwrap();
    put(&db, &table, "cups", 0);
    let from = db.durable_seqno().to_string();
    let mut follower = Command::new(env!("CARGO_BIN_EXE_braid"))
        .args(["changes", "db", "--follow", "--from", &from])
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    for value in 1..12_u64 {
        put(&db, &table, "cups", value);
        if value % 4 == 0 {
            db.checkpoint().unwrap();
        }
        let line = lines.next().unwrap().unwrap();
        let set: serde_json::Value = serde_json::from_str(&line).unwrap();
        let shown = set["changes"][0]["value"].as_str().unwrap();
        assert_eq!(shown, format!("{value:02x}00000000000000"));
    }
    follower.kill().unwrap();
    follower.wait().unwrap();
    db.close().unwrap();
}
