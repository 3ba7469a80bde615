//! The first minutes of a new user: mistyped names, interrupted commands, messages, statistics.

use std::fs;
use std::path::Path;

use braid::Database;
use serde_json::Value;

use crate::common::{braid_in, expect_code, stderr, stdout};

#[track_caller]
fn shell(dir: &Path, commands: &str, code: i32) -> String {
    let output = braid_in(dir, &["shell", "db", "--create", "-c", commands]);
    expect_code(&output, code);
    match code {
        0 => stdout(&output),
        _ => stderr(&output),
    }
}

#[test]
fn unknown_types_and_keys_of_another_type_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = shell(dir.path(), "create a strng u64", 1);
    assert!(error.contains("did you mean \"string\"?"), "{error}");
    let error = shell(dir.path(), "create a string u46", 1);
    assert!(error.contains("did you mean \"u64\"?"), "{error}");
    let shown = shell(dir.path(), "create pairs (string,u64) bytes; tables", 0);
    assert_eq!(shown, "pairs: (string, u64) -> bytes\n");
    let error = shell(dir.path(), "put pairs \"(a,1)\" x", 1);
    assert!(error.contains("key of type (string, u64)"), "{error}");
    let shown = shell(
        dir.path(),
        "put pairs (a, 1) x; put pairs (\"b c\", 2) y; scan pairs",
        0,
    );
    assert_eq!(shown, "(\"a\", 1) = \"x\"\n(\"b c\", 2) = \"y\"\n");
    let error = shell(dir.path(), "create n u32 u32; put n 5000000000 1", 1);
    assert!(
        error.contains("5000000000 is out of range for a key of type u32: 0 to 4294967295"),
        "{error}"
    );
    let error = shell(dir.path(), "get pars (a, 1)", 1);
    assert!(error.contains("did you mean \"pairs\"?"), "{error}");
    let error = shell(dir.path(), "tabels", 1);
    assert!(error.contains("did you mean \"tables\"?"), "{error}");
}

#[test]
fn undecodable_bytes_are_damage() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path().join("db")).unwrap();
    let pairs = db
        .create_untyped_table("pairs", "(string, u64)", "bool")
        .unwrap();
    let own = db.create_untyped_table("own", "place", "place").unwrap();
    db.transact(|tx| {
        tx.insert(&own, b"anything", b"at all")?;
        tx.insert(&pairs, b"(a,1)", &[1])?;
        tx.insert(&pairs, b"a\0\0\0\0\0\0\0\0\0\x01", &[2])
    })
    .unwrap();
    db.close().unwrap();
    let output = braid_in(dir.path(), &["verify", "db"]);
    expect_code(&output, 1);
    let found = stdout(&output);
    assert_eq!(found.lines().count(), 2, "{found}");
    assert!(
        found.contains("key \"(a,1)\": the key is not of type (string, u64)"),
        "{found}"
    );
    assert!(
        found.contains("key (\"a\", 1): the value is not of type bool"),
        "{found}"
    );
    assert!(!stderr(&output).contains("braid verify"));
}

/// An interrupted command leaves no files behind and dies of the signal.
#[test]
#[cfg(unix)]
fn an_interrupted_command_leaves_nothing() {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    for signal in ["INT", "TERM"] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_braid"))
            .args(["demo", "--seconds", "600", "--threads", "2"])
            .current_dir(dir.path())
            .env_remove("TMPDIR")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        assert!(first.contains("braid-demo-"), "{first}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let mut kill = Command::new("kill");
        kill.arg(format!("-{signal}")).arg(child.id().to_string());
        assert!(kill.status().unwrap().success());
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(if signal == "INT" { 2 } else { 15 }));
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// A worker that starts while the interrupted demo removes its directory does not create it again.
#[test]
fn a_worker_of_the_demo_creates_no_database() {
    let dir = tempfile::tempdir().unwrap();
    let worker = "demo-worker --dir removed --protocol glsn --device file --threads 1 --accounts 2 \
                  --epoch 0 --seed 1";
    let args: Vec<_> = worker.split_whitespace().collect();
    let output = braid_in(dir.path(), &args);
    expect_code(&output, 1);
    assert!(stderr(&output).contains("the directory does not exist"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn failed_commands_leave_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let braid = |args: &[&str]| braid_in(dir.path(), args);
    fs::write(dir.path().join("bad.jsonl"), "nonsense\n").unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    for to in ["new/above/db", "empty"] {
        expect_code(&braid(&["import", to, "bad.jsonl"]), 1);
    }
    shell(dir.path(), "create t u64 u64; put t 1 1", 0);
    expect_code(&braid(&["backup", "db", "full"]), 0);
    let mut bytes = fs::read(dir.path().join("full")).unwrap();
    bytes[5_000] ^= 1;
    fs::write(dir.path().join("damaged"), bytes).unwrap();
    for to in ["new/above/db", "empty"] {
        expect_code(&braid(&["restore", "damaged", to]), 1);
    }
    assert!(!dir.path().join("new").exists());
    assert_eq!(fs::read_dir(dir.path().join("empty")).unwrap().count(), 0);
    // Existing files stay.
    expect_code(&braid(&["import", "db", "bad.jsonl"]), 1);
    assert_eq!(shell(dir.path(), "count t", 0).trim(), "1");
    for inside in ["db/backup", "db", "./db/../db/x"] {
        let output = braid(&["backup", "db", inside]);
        expect_code(&output, 1);
        assert!(
            stderr(&output).contains("inside the database")
                && !dir.path().join("db/backup").exists(),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn a_table_of_many_columns_is_imported() {
    let dir = tempfile::tempdir().unwrap();
    let braid = |args: &[&str]| braid_in(dir.path(), args);
    let people = "id:u64,city:string,name,age\n1,Paris,Ada,36\n2,Rome,\"Bo, B\",7\n3,Oslo\n";
    fs::write(dir.path().join("people.csv"), people).unwrap();
    let import = |table: &str, rest: &[&str]| {
        let args = [
            "import",
            "db",
            "people.csv",
            "--format",
            "csv",
            "--table",
            table,
        ];
        braid(&[&args[..], rest].concat())
    };
    let output = import("rows", &["--key", "id", "--skip-bad"]);
    expect_code(&output, 0);
    let left_out = stderr(&output);
    assert!(
        left_out.contains("people.csv, line 4: the line has 2 fields, the header has 4 columns"),
        "{left_out}"
    );
    let names = ["--key", "city,id", "--value", "name", "--skip-bad"];
    let types = ["--key-type", "(string, u64)", "--value-type", "string"];
    expect_code(&import("names", &[&names[..], &types].concat()), 0);
    let shown = shell(dir.path(), "get rows 1; scan names", 0);
    let lines: Vec<_> = shown.lines().collect();
    assert!(
        lines[0].contains("Paris") && lines[0].contains("36"),
        "{shown}"
    );
    assert_eq!(
        lines[1..],
        ["(\"Paris\", 1) = \"Ada\"", "(\"Rome\", 2) = \"Bo, B\""]
    );
    let output = import("x", &["--key", "idd"]);
    expect_code(&output, 1);
    assert!(
        stderr(&output).contains("did you mean \"id\"?"),
        "{}",
        stderr(&output)
    );
    let output = import("x", &[]);
    expect_code(&output, 1);
    assert!(
        stderr(&output).contains("--key COLUMN"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn statistics_are_shown_by_table_and_as_json() {
    let dir = tempfile::tempdir().unwrap();
    shell(
        dir.path(),
        "create t u64 string; put t 1 one; put t 2 two",
        0,
    );
    let output = braid_in(dir.path(), &["stat", "db"]);
    expect_code(&output, 0);
    assert!(
        stdout(&output)
            .contains("t: u64 -> string, 2 entries, 0.0 MiB, height 1, 1 leaf page 2 % full"),
        "{}",
        stdout(&output)
    );
    let output = braid_in(dir.path(), &["stat", "db", "--json"]);
    expect_code(&output, 0);
    let stat: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let table = &stat["tables"][0];
    assert_eq!(table["entries"], 2);
    assert_eq!(table["bytes"], 22);
    assert_eq!(table["key_type"], "u64");
    assert_eq!(table["height"], 1);
    assert_eq!(table["exact"], true);
    let fill = table["fill"].as_f64().unwrap();
    assert!(fill > 0.0 && fill < 0.1, "{fill}");
}

/// Of a table of three levels the counts are estimates, and say so, unless all of it is read.
#[test]
fn statistics_of_a_large_table_are_estimates_unless_exact() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path().join("db")).unwrap();
    let mut loader = db.bulk_load::<u64, String>("large").unwrap();
    for n in 0..150_000 {
        loader.insert(&n, &"some text".to_owned()).unwrap();
    }
    loader.finish().unwrap();
    db.close().unwrap();
    let stat = |args: &[&str]| {
        let output = braid_in(dir.path(), &[&["stat", "db"], args].concat());
        expect_code(&output, 0);
        stdout(&output)
    };
    let table = |args: &[&str]| -> Value {
        let stat: Value = serde_json::from_str(&stat(args)).unwrap();
        stat["tables"][0].clone()
    };
    assert!(stat(&[]).contains("large: u64 -> string, about 1"));
    assert!(stat(&["--exact"]).contains("large: u64 -> string, 150,000 entries"));
    let (estimated, exact) = (table(&["--json"]), table(&["--json", "--exact"]));
    assert_eq!(
        (&estimated["exact"], &exact["exact"]),
        (&Value::Bool(false), &Value::Bool(true))
    );
    assert_eq!(exact["entries"], 150_000);
    assert_eq!(exact["bytes"], 150_000 * 17);
    assert_eq!(estimated["height"], exact["height"]);
}

/// Each message names the object, the reason and what to do.
#[test]
fn messages_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let failed = |args: &[&str], parts: &[&str]| {
        let output = braid_in(dir.path(), args);
        expect_code(&output, 1);
        let error = stderr(&output);
        assert!(
            parts.iter().all(|part| error.contains(part)),
            "{args:?}: {error}"
        );
    };
    shell(dir.path(), "create books string u64; put books a 1", 0);
    fs::create_dir(dir.path().join("lib")).unwrap();
    failed(
        &["verify", "lib"],
        &["cannot open lib as a Braid database", "no data.braid"],
    );
    failed(
        &["stat", "none"],
        &["cannot open none as a Braid database", "does not exist"],
    );
    failed(
        &["export", "db", "boks"],
        &["no table \"boks\"", "did you mean \"books\"?"],
    );
    failed(&["import", "db", "none.jsonl"], &["none.jsonl"]);
    let db = Database::open(dir.path().join("db")).unwrap();
    let process = format!("in use by process {}", std::process::id());
    failed(&["compact", "db"], &["cannot open db", &process]);
    db.close().unwrap();
    // An error of damage names the commands that help, and `verify` does not advise running
    // `verify`.
    let data = dir.path().join("db/data.braid");
    let bytes = fs::read(&data).unwrap();
    fs::write(&data, vec![0; bytes.len()]).unwrap();
    failed(
        &["stat", "db"],
        &["data.braid", "braid verify DIR --repair --into"],
    );
    let output = braid_in(dir.path(), &["verify", "db"]);
    expect_code(&output, 1);
    let said = stdout(&output) + &stderr(&output);
    assert!(
        said.contains("damaged: corrupted: ") && !said.contains("braid verify"),
        "{said}"
    );
    assert!(!said.contains("; verify the database"), "{said}");
}

/// Opening starts over, so it is no damage.
#[test]
fn an_interrupted_creation_is_noted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bank");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("CREATING"), "").unwrap();
    let output = braid_in(dir.path(), &["verify", "bank"]);
    expect_code(&output, 0);
    let text = stdout(&output);
    assert!(
        text.contains("the creation of bank was interrupted"),
        "{text}"
    );
}
