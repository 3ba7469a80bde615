//! Commands for backups, archives and changes.

use std::fs;
use std::process::Output;

use serde_json::Value;

use super::make_database;
use crate::common::{braid_in, expect_code, stderr, stdout};

fn json_lines(output: &Output) -> Vec<Value> {
    let lines = stdout(output);
    let parse = |line| serde_json::from_str(line).expect("a line is JSON");
    lines.lines().map(parse).collect()
}

#[test]
fn tablespaces_are_restored_into_new_directories() {
    let dir = tempfile::tempdir().unwrap();
    let braid = |args: &[&str]| braid_in(dir.path(), args);
    let make = "create-tablespace disk disk 1; create t u64 string in disk; put t 1 one";
    expect_code(&braid(&["shell", "db", "--create", "-c", make]), 0);
    expect_code(&braid(&["backup", "db", "full"]), 0);
    expect_code(&braid(&["shell", "db", "-c", "put t 1 uno"]), 0);
    let next = braid(&["backup", "db", "next", "--incremental-from", "full"]);
    expect_code(&next, 0);
    for (args, what) in [
        (&["restore", "full", "x"][..], "no place was given for it"),
        (
            &["restore", "full", "x", "--tablespace", "disk=disk"],
            "choose an empty or new place",
        ),
        (
            &["restore", "full", "x", "--tablespace", "disk"],
            "give the name of a tablespace",
        ),
        (
            &[
                "restore",
                "full",
                "x",
                "--tablespace",
                "disk=y",
                "--tablespace",
                "other=z",
            ],
            "no backup has one of this name",
        ),
        (
            &["restore", "full", "x", "--tablespace", "disk=x"],
            "the database itself is there",
        ),
    ] {
        let refused = braid(args);
        assert!(
            !refused.status.success() && stderr(&refused).contains(what),
            "{}",
            stderr(&refused)
        );
        assert!(
            ["x", "y", "z"]
                .iter()
                .all(|name| !dir.path().join(name).exists())
        );
    }
    let get = |name| stdout(&braid(&["shell", name, "-c", "tables; get t 1"]));
    let restored = braid(&["restore", "full", "a", "--tablespace", "disk=disk-a"]);
    expect_code(&restored, 0);
    assert_eq!(get("a"), "t in disk: u64 -> string\n\"one\"\n");
    let place = ["--tablespace", "disk=disk-b"];
    let restored = braid(&[&["restore", "full", "next", "b"][..], &place].concat());
    expect_code(&restored, 0);
    assert_eq!(get("b"), "t in disk: u64 -> string\n\"uno\"\n");
}

#[test]
fn a_database_is_backed_up_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let braid = |args: &[&str]| braid_in(dir.path(), args);
    make_database(&dir.path().join("db"));
    expect_code(&braid(&["backup", "db", "full"]), 0);
    expect_code(&braid(&["archive", "db", "archive"]), 0);
    let incremental = braid(&["backup", "db", "next", "--incremental-from", "full"]);
    expect_code(&incremental, 0);
    let text = stdout(&incremental);
    assert!(
        text.contains("next: 0 of ") && text.contains("number"),
        "{text}"
    );
    expect_code(&braid(&["restore", "full", "next", "restored"]), 0);
    expect_code(&braid(&["verify", "restored"]), 0);
    let archived = braid(&["restore", "full", "again", "--archive", "archive"]);
    expect_code(&archived, 0);
    let stat = |name| {
        let text = stdout(&braid(&["stat", name]));
        let is_table = |line: &&str| line.starts_with("              ");
        text.lines()
            .filter(is_table)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert!(
        !stat("db").is_empty() && stat("db") == stat("restored") && stat("db") == stat("again")
    );
    // The error names the problem, and nothing is written.
    for (args, what) in [
        (
            &["restore", "next", "x"][..],
            "it is incremental and builds on",
        ),
        (
            &["restore", "full", "restored"],
            "choose an empty or new place",
        ),
        (
            &["restore", "full", "x", "--until-seqno", "1"],
            "cannot restore up to ",
        ),
        (
            &["restore", "db/LOCK", "x"],
            "it is not a backup of a Braid database",
        ),
        (&["backup", "db", "full"], "choose an empty or new place"),
        (&["backup", "missing", "x"], "missing"),
        (
            &[
                "restore",
                "full",
                "y",
                "--archive",
                "archive",
                "--until-time",
                "2001-01-01T00:00:00Z",
            ],
            "cannot restore up to ",
        ),
    ] {
        let output = braid(args);
        expect_code(&output, 1);
        assert!(
            stderr(&output).contains(what),
            "{args:?}: {}",
            stderr(&output)
        );
    }
    assert!(!dir.path().join("x/data.braid").exists());
    let nonsense = [
        "restore",
        "full",
        "x",
        "--archive",
        "a",
        "--until-time",
        "noon",
    ];
    expect_code(&braid(&nonsense), 2);
    expect_code(&braid(&["restore", "full"]), 2);
}

/// The archive begins after the backup: what lies between is named, by the command and when
/// restoring.
#[test]
fn an_archive_reports_missing_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let braid = |args: &[&str]| braid_in(dir.path(), args);
    let put = |key: &str| {
        let command = format!("put t {key} 1");
        expect_code(&braid(&["shell", "db", "-c", &command]), 0);
    };
    let create = "create t string u64; put t a 1";
    expect_code(&braid(&["shell", "db", "--create", "-c", create]), 0);
    expect_code(&braid(&["backup", "db", "full"]), 0);
    put("b");
    for _ in 0..2 {
        let archive = braid(&["archive", "db", "archive"]);
        expect_code(&archive, 1);
        let error = stderr(&archive);
        assert!(
            error.contains("lacks the transactions with sequence numbers")
                && error.contains("new backup"),
            "{error}"
        );
        let restore = braid(&["restore", "full", "restored", "--archive", "archive"]);
        expect_code(&restore, 1);
        let error = stderr(&restore);
        assert!(error.contains("the archive lacks"), "{error}");
        assert!(!dir.path().join("restored").exists());
    }
    let restore = braid(&["restore", "full", "restored", "--archive", "elsewhere"]);
    expect_code(&restore, 1);
    // From a new backup on, nothing is missing, whatever is written without the archive.
    expect_code(&braid(&["backup", "db", "next"]), 0);
    put("c");
    put("d");
    let archive = braid(&["archive", "db", "archive"]);
    expect_code(&archive, 0);
    assert!(stdout(&archive).contains("complete up to"));
    let restore = braid(&["restore", "next", "restored", "--archive", "archive"]);
    expect_code(&restore, 0);
    let count = braid(&["shell", "restored", "-c", "count t"]);
    assert_eq!(stdout(&count).trim(), "4");
    // A copy of the database has to archive elsewhere.
    fs::create_dir(dir.path().join("copy")).unwrap();
    for entry in fs::read_dir(dir.path().join("db")).unwrap() {
        let from = entry.unwrap().path();
        let to = dir.path().join("copy").join(from.file_name().unwrap());
        fs::copy(from, to).unwrap();
    }
    put("e");
    expect_code(&braid(&["archive", "db", "archive"]), 0);
    let refused = braid(&["archive", "copy", "archive"]);
    expect_code(&refused, 1);
    let error = stderr(&refused);
    assert!(
        error.contains("another copy") && error.contains("OWNER"),
        "{error}"
    );
    // No log is kept for an archive that was ended.
    expect_code(&braid(&["archive", "db", "--end"]), 0);
    put("f");
    expect_code(&braid(&["archive", "db", "archive"]), 1);
    expect_code(&braid(&["archive", "db"]), 2);
}

#[test]
fn changes_are_lines_of_json() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let braid = |args: &[&str]| braid_in(dir.path(), args);
    let put = |key: &str, value: u32| {
        let db = braid::Database::open(&path).unwrap();
        let table = db.open_table::<String, u32>("stock").unwrap();
        db.transact(|tx| tx.insert(&table, key, &value)).unwrap();
        db.close().unwrap();
    };
    put("cups", 1);
    expect_code(&braid(&["changes", "db", "--feed", "f"]), 0);
    put("tea", 7);
    put("pots", 9);
    let output = braid(&["changes", "db"]);
    expect_code(&output, 0);
    let all = json_lines(&output);
    let keys: Vec<_> = all
        .iter()
        .map(|set| set["changes"][0]["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["746561", "706f7473"], "tea, pots");
    assert_eq!(all[0]["changes"][0]["table"], "stock");
    assert!(all[0]["changes"][0]["value"].is_string());
    let number = all[0]["seqno"].to_string();
    let later = json_lines(&braid(&["changes", "db", "--from", &number]));
    assert_eq!(later, all[1..]);
    // The feed is acknowledged with what was printed.
    assert_eq!(json_lines(&braid(&["changes", "db", "--feed", "f"])), all);
    assert_eq!(
        json_lines(&braid(&["changes", "db", "--feed", "f"])),
        [Value::Null; 0]
    );
    let lost = braid(&["changes", "db", "--from", "0"]);
    expect_code(&lost, 1);
    assert!(
        stderr(&lost).contains("the log keeps only those after"),
        "{}",
        stderr(&lost)
    );
}
