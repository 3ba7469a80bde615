//! `braid shell` through a pipe and with `-c`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{braid, expect_code, stderr, stdout};

fn piped(dir: &Path, script: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_braid"))
        .args(["shell", dir.to_str().unwrap(), "--create"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(script.as_bytes()).unwrap();
    drop(input);
    child.wait_with_output().unwrap()
}

#[test]
fn a_script_reads_and_writes() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("db");
    let script = r#"
        create ages string u32; create raw bytes bytes  # two tables
        tables
        put ages ada 36; put ages "Grace \"H\"" 50
        put ages "caf\xc3\xa9" 4
        add ages ada 1
        get ages ada; get ages nobody
        scan ages
        scan ages from b limit 1
        scan ages reverse limit 1
        count ages to b
        put raw "\x00\xff\n;" 'it''s'
    "#;
    let output = piped(&dir, script);
    // The two quotes without a space between them are an error, in the last line.
    expect_code(&output, 1);
    assert!(stderr(&output).contains("line 12: "), "{}", stderr(&output));
    let grace = r#""Grace \"H\"" = 50"#;
    let expected = [
        "ages: string -> u32",
        "raw: bytes -> bytes",
        "(exists already)",
        "36",
        "(not found)",
        grace,
        "\"ada\" = 36",
        "\"café\" = 4",
        "\"café\" = 4",
        "\"café\" = 4",
        "2",
    ];
    assert_eq!(stdout(&output).lines().collect::<Vec<_>>(), expected);

    // Output can be used as input.
    let script = "put raw \"\\x00\\xff\\n;'\" \"it's\"\nscan raw\nget raw \"\\x00\\xff\\n;\\'\"\n";
    let output = piped(&dir, script);
    expect_code(&output, 0);
    let shown = stdout(&output);
    assert_eq!(shown, "\"\\x00\\xff\\n;\\'\" = \"it\\'s\"\n\"it\\'s\"\n");
}

#[test]
fn transactions_and_snapshots() {
    let place = tempfile::tempdir().unwrap();
    let script = "create t u64 string
        begin; put t 1 one; get t 1; abort; get t 1
        begin; put t 1 one; put t 2 two; commit
        snapshot; delete t 1; count t; release; count t
        delete t 1
        checkpoint; stat; verify; get t 2; quit
        nothing is read here";
    let output = piped(place.path(), script);
    expect_code(&output, 0);
    let shown = stdout(&output);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(
        lines[..5],
        ["\"one\"", "(not found)", "2", "1", "(not found)"]
    );
    assert!(
        shown.contains("checkpoint") && shown.contains(": sound (1 table and the catalog"),
        "{shown}"
    );
    assert_eq!(lines.last(), Some(&"\"two\""));

    let output = piped(place.path(), "begin; put t 5 five\n");
    expect_code(&output, 1);
    assert!(
        stderr(&output).contains("`commit` is missing"),
        "{}",
        stderr(&output)
    );
    let output = piped(place.path(), "get t 5\n");
    assert_eq!(stdout(&output), "(not found)\n");
}

#[test]
fn tablespaces_are_created_listed_and_dropped() {
    let place = tempfile::tempdir().unwrap();
    let (dir, disk) = (place.path().join("db"), place.path().join("disk"));
    let path = disk.to_str().unwrap();
    let script = format!(
        "create-tablespace disk '{path}' 1
        create here u64 string
        create there u64 string in disk
        put here 1 one; put there 1 one
        tablespaces; tables; get there 1"
    );
    let output = piped(&dir, &script);
    expect_code(&output, 0);
    let resolved = std::fs::canonicalize(&disk).unwrap();
    let expected = [
        &*format!("disk: {}", resolved.display()),
        "here: u64 -> string",
        "there in disk: u64 -> string",
        "\"one\"",
    ];
    assert_eq!(stdout(&output).lines().collect::<Vec<_>>(), expected);

    for (bad, what) in [
        ("create here u64 string in disk", "it is in \"main\""),
        (
            "create new u64 string in nowhere",
            "no tablespace \"nowhere\"",
        ),
        ("create new u64 string on disk", "usage: create TABLE"),
        ("create-tablespace two x y", "y, is not a number of MiB"),
        ("create-tablespace two x on node 7777", "memory node 7777"),
        ("create-tablespace two x on node y", "y is not the number"),
        ("create-tablespace disk x", "it exists"),
        ("drop-tablespace disk", "contains table \"there\""),
    ] {
        let output = piped(&dir, bad);
        expect_code(&output, 1);
        assert!(stderr(&output).contains(what), "{}", stderr(&output));
    }

    // The disk is not mounted.
    std::fs::rename(&disk, place.path().join("unmounted")).unwrap();
    let read = [
        "shell",
        dir.to_str().unwrap(),
        "--read-only",
        "-c",
        "tables; get here 1",
    ];
    let output = braid(&read);
    expect_code(&output, 0);
    let shown = stdout(&output);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!((lines[0], lines[2]), ("here: u64 -> string", "\"one\""));
    let reason = "there: cannot open tablespace \"disk\"";
    assert!(lines[1].starts_with(reason), "{shown}");
    std::fs::rename(place.path().join("unmounted"), &disk).unwrap();

    let output = piped(
        &dir,
        "drop there; drop-tablespace disk; tablespaces; tables",
    );
    expect_code(&output, 0);
    assert_eq!(stdout(&output), "here: u64 -> string\n");
}

#[test]
fn a_tablespace_gets_a_log_with_the_next_opening() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("db");
    let other = place.path().join("other");
    let script = format!("create-tablespace other '{}' 1 with log", other.display());
    expect_code(&piped(&dir, &script), 0);
    let output = piped(
        &dir,
        "create logged u64 string in other; put logged 1 one; tablespaces",
    );
    expect_code(&output, 0);
    assert!(
        stdout(&output).contains("other, with a log of its own"),
        "{}",
        stdout(&output)
    );
    let files = std::fs::read_dir(&other).unwrap();
    let mut names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(names.any(|name| name.starts_with("log-")), "{names:?}");
    expect_code(&piped(&dir, "drop logged"), 0);
    expect_code(&piped(&dir, "drop-tablespace other"), 0);
    // The log in a directory of its own.
    let log = place.path().join("log");
    let script = format!(
        "create-tablespace other '{}' 1 with log in '{}'; tablespaces",
        other.display(),
        log.display()
    );
    let output = piped(&dir, &script);
    expect_code(&output, 0);
    let shown = stdout(&output);
    assert!(shown.contains("with a log of its own in /"), "{shown}");
    expect_code(&piped(&dir, "create logged u64 string in other"), 0);
    let files = std::fs::read_dir(&log).unwrap();
    let mut names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(names.any(|name| name.starts_with("log-")), "{names:?}");
}

#[test]
fn a_table_moves_to_a_tablespace_and_back() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("db");
    let script = format!(
        "create-tablespace disk '{}' 1; create here u64 string; put here 1 one",
        place.path().join("disk").display()
    );
    expect_code(&piped(&dir, &script), 0);
    for (bad, what) in [
        ("move-table here nowhere", "no tablespace \"nowhere\""),
        ("move-table nothing disk", "no table \"nothing\""),
    ] {
        let output = piped(&dir, bad);
        expect_code(&output, 1);
        assert!(stderr(&output).contains(what), "{}", stderr(&output));
    }
    let output = piped(
        &dir,
        "move-table here disk; tables; get here 1; move-table here; move-table here",
    );
    expect_code(&output, 0);
    let shown = stdout(&output);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(
        lines[0].starts_with("copied 1 records, 11 bytes; "),
        "{shown}"
    );
    assert_eq!(lines[1..3], ["here in disk: u64 -> string", "\"one\""]);
    assert!(lines[3].starts_with("copied 1 records, "), "{shown}");
    assert!(lines[4].starts_with("copied 0 records, "), "{shown}");
}

#[test]
fn the_first_error_ends_a_script() {
    let place = tempfile::tempdir().unwrap();
    expect_code(
        &piped(place.path(), "create t u64 string; create s string bytes"),
        0,
    );
    for (bad, what) in [
        ("frob", "no command \"frob\""),
        ("get t", "usage: get TABLE KEY"),
        ("get u 1", "no table \"u\""),
        ("put t x y", "\"x\" is not a key of type u64"),
        ("put t -1 y", "\"-1\""),
        ("put t \"12345\" y", "is not a key of type u64"),
        ("put s \"\\xff\" y", "is not a key of type string"),
        ("put s \"\\xf\" y", "two hexadecimal"),
        ("scan t from", "give from KEY"),
        ("scan t limit x", "not a number"),
        ("commit", "no transaction is open"),
        ("begin; begin", "one is open"),
        ("begin; verify", "cannot verify while"),
        ("create t u8 string", "holds u64 -> string"),
    ] {
        let commands = format!("{bad}; put t 7 reached");
        let output = braid(&["shell", place.path().to_str().unwrap(), "-c", &commands]);
        expect_code(&output, 1);
        assert!(stderr(&output).contains(what), "{bad}: {}", stderr(&output));
    }
    let output = braid(&[
        "shell",
        place.path().to_str().unwrap(),
        "-c",
        "count t; help put",
    ]);
    expect_code(&output, 0);
    assert_eq!(
        stdout(&output),
        "0\nput TABLE KEY VALUE: set the value of a key\n"
    );
    let missing = place.path().join("missing");
    expect_code(
        &braid(&["shell", missing.to_str().unwrap(), "-c", "tables"]),
        1,
    );
    assert!(!missing.exists());
    let empty = tempfile::tempdir().unwrap();
    for place in [empty.path(), &missing] {
        let output = braid(&["shell", place.to_str().unwrap(), "-c", "tables"]);
        let message = stderr(&output);
        let expected = format!("cannot open {}: there is no database", place.display());
        assert!(
            message.contains(&expected) && message.contains("--create"),
            "{message}"
        );
    }
}
