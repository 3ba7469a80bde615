//! `braid export` and `braid import`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use braid::{Bytes, Compression, Database, Readable, TableOptions};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::common::{braid, expect_code, stderr, stdout};

/// By name: the types, and entries in any order.
type Plan = BTreeMap<String, (&'static str, &'static str, BTreeMap<Vec<u8>, Vec<u8>>)>;
type Tables = Vec<(String, String, String, Vec<(Bytes, Bytes)>)>;

/// Returns the contents of a database: names, types, encoded entries.
fn contents(dir: &Path) -> Tables {
    let db = Database::open(dir).unwrap();
    let snapshot = db.snapshot();
    let names = db.table_names().unwrap();
    let read = |name: String| {
        let table = db.untyped_table(&name).unwrap().unwrap();
        let (key, value) = table.type_names();
        let entries = snapshot.iter(&table).unwrap().map(Result::unwrap).collect();
        (name, key.to_owned(), value.to_owned(), entries)
    };
    names.into_iter().map(read).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
#[allow(clippy::too_many_lines, reason = "one scenario")]
fn exported_records_are_imported() {
    let width = |name: &str| match name {
        "u8" | "i8" => 1..2_usize,
        "i32" | "f32" => 4..5,
        "u64" | "i64" | "f64" => 8..9,
        "u128" => 16..17,
        _ => 0..30,
    };
    let bytes = move |name: &'static str| match name {
        "string" => "\\PC{0,12}|[\"',\\\\\r\n;x]{0,6}"
            .prop_map(String::into_bytes)
            .boxed(),
        _ => prop::collection::vec(any::<u8>(), width(name)).boxed(),
    };
    let key_types = vec!["u8", "i64", "u128", "string", "bytes", "array", "theirs"];
    let value_types = vec!["u64", "i32", "f32", "f64", "string", "bytes", "array"];
    let table = (
        prop::sample::select(key_types),
        prop::sample::select(value_types),
    );
    let table = table.prop_flat_map(move |(key, value)| {
        let entries = prop::collection::btree_map(bytes(key), bytes(value), 0..40);
        (Just(key), Just(value), entries)
    });
    let tables = prop::collection::btree_map("[a-z,\"]{1,6}", table, 3..6);
    let config = ProptestConfig {
        cases: 2,
        max_shrink_iters: 4,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let run = |tables: Plan| {
        let place = tempfile::tempdir().unwrap();
        let [from, to, again] = ["from", "to", "again"].map(|name| place.path().join(name));
        let db = Database::open(&from).unwrap();
        for (name, (key, value, entries)) in &tables {
            let options = TableOptions {
                compression: if entries.len() % 2 == 0 {
                    Compression::Lz4
                } else {
                    Compression::None
                },
                time_to_live: (entries.len() % 3 == 0).then(|| Duration::from_secs(86_400)),
            };
            let table = db
                .create_untyped_table_with(name, key, value, options)
                .unwrap();
            let fill = |tx: &mut braid::Transaction| {
                entries
                    .iter()
                    .try_for_each(|(key, value)| tx.insert(&table, key, value))
            };
            db.transact(fill).unwrap();
        }
        let options = |db: &Database| -> Vec<TableOptions> {
            tables
                .keys()
                .map(|name| db.untyped_table(name).unwrap().unwrap().options())
                .collect()
        };
        let expected_options = options(&db);
        db.close().unwrap();
        let expected = contents(&from);
        let file = place.path().join("all.jsonl");
        expect_code(&braid(&["export", text(&from), "-o", text(&file)]), 0);
        expect_code(
            &braid(&["import", text(&to), text(&file), "--batch", "3"]),
            0,
        );
        assert_eq!(contents(&to), expected);
        assert_eq!(options(&Database::open(&to).unwrap()), expected_options);
        // CSV refuses a table with bytes that are not a valid encoding.
        for (name, ..) in &expected {
            let file = place.path().join("one.csv");
            let csv = ["--format", "csv"];
            let args = ["export", text(&from), name, "-o", text(&file)];
            expect_code(&braid(&[&args[..], &csv].concat()), 0);
            let args = ["import", text(&again), text(&file), "--table", name];
            expect_code(&braid(&[&args[..], &csv].concat()), 0);
        }
        assert_eq!(contents(&again), expected);
        Ok(())
    };
    if let Err(error) = TestRunner::new(config).run(&tables, run) {
        panic!("{error}");
    }
}

fn import(lines: &str, args: &[&str]) -> (tempfile::TempDir, std::process::Output) {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("lines");
    fs::write(&file, lines).unwrap();
    let db = place.path().join("db");
    let output = braid(&[&["import", text(&db), text(&file)], args].concat());
    (place, output)
}

fn keys(place: &Path) -> Vec<u64> {
    let db = Database::open(place.join("db")).unwrap();
    let Some(table) = db.existing_table::<u64, String>("t").unwrap() else {
        return Vec::new();
    };
    let snapshot = db.snapshot();
    snapshot
        .iter(&table)
        .unwrap()
        .map(|entry| entry.unwrap().0)
        .collect()
}

/// Returns six entries, of which the given line is malformed.
fn lines(bad: &str) -> String {
    let mut out =
        String::from("{\"table\":\"t\",\"key_type\":\"u64\",\"value_type\":\"string\"}\n");
    for key in 1..=6 {
        match key {
            5 => out.push_str(bad),
            _ => out.push_str(&format!(
                "{{\"table\":\"t\",\"key\":{key},\"value\":\"v\"}}"
            )),
        }
        out.push('\n');
    }
    out
}

#[test]
fn a_bad_line_is_named_and_takes_its_batch_along_only() {
    for (bad, what) in [
        ("{\"table\":\"t\",\"key\":5", "column"),
        ("{\"table\":\"t\",\"key\":5}", "neither"),
        ("{\"table\":\"t\",\"key\":-5,\"value\":\"v\"}", "-5"),
        ("{\"table\":\"t\",\"key\":5,\"value\":5}", "string"),
        (
            "{\"table\":\"x\",\"key\":5,\"value\":\"v\"}",
            "no table \"x\"",
        ),
        ("{\"key\":5,\"value\":\"v\"}", "--table"),
        (
            "{\"table\":\"t\",\"key\":5,\"value\":\"v\",\"ttl\":5}",
            "ttl",
        ),
        (
            "{\"table\":\"t\",\"key_type\":\"u8\",\"value_type\":\"string\"}",
            "u8",
        ),
    ] {
        let (place, output) = import(&lines(bad), &["--batch", "3"]);
        expect_code(&output, 1);
        let error = stderr(&output);
        assert!(
            error.contains("line 6: ") && error.contains(what),
            "{error}"
        );
        assert!(
            error.contains("the 3 entries before line 5 are imported"),
            "{error}"
        );
        assert_eq!(keys(place.path()), [1, 2, 3], "{bad}");

        let (place, output) = import(&lines(bad), &["--atomic"]);
        expect_code(&output, 1);
        assert!(stderr(&output).contains("nothing was imported"));
        let db = Database::open(place.path().join("db")).unwrap();
        assert!(db.table_names().unwrap().is_empty());

        let (place, output) = import(&lines(bad), &["--skip-bad"]);
        expect_code(&output, 0);
        let said = stdout(&output);
        assert!(
            said.contains("5 entries") && said.contains("1 bad lines"),
            "{said}"
        );
        assert_eq!(keys(place.path()), [1, 2, 3, 4, 6], "{bad}");
    }
}

#[test]
fn csv_from_elsewhere_is_given_its_types() {
    let types = [
        "--format",
        "csv",
        "--table",
        "t",
        "--key-type",
        "u64",
        "--value-type",
        "string",
    ];
    let (place, output) = import("key,value\n7,\"a, b\nc\"\n9,z\n", &types);
    expect_code(&output, 0);
    assert_eq!(keys(place.path()), [7, 9]);
    let (_place, output) = import("key,value\n7,a\n", &types[..4]);
    expect_code(&output, 1);
    assert!(
        stderr(&output).contains("--key-type TYPE"),
        "{}",
        stderr(&output)
    );
    // The line number in the file, not the number of the record.
    let (_place, output) = import("key,value\n7,\"a\nb\"\nx,z\n", &types);
    expect_code(&output, 1);
    assert!(
        stderr(&output).contains("line 4: \"x\""),
        "{}",
        stderr(&output)
    );
    let (_place, output) = import("name,age\n7,a\n", &types);
    expect_code(&output, 1);
    assert!(
        stderr(&output).contains("the header"),
        "{}",
        stderr(&output)
    );
    let (_place, output) = import("", &types[..2]);
    expect_code(&output, 2);
}

#[test]
fn an_export_that_fails_leaves_no_file() {
    let place = tempfile::tempdir().unwrap();
    let (dir, file) = (place.path().join("db"), place.path().join("out"));
    let db = Database::open(&dir).unwrap();
    let table = db.create_untyped_table("t", "u64", "string").unwrap();
    db.transact(|tx| tx.insert(&table, b"odd", b"v")).unwrap();
    db.close().unwrap();
    let args = ["export", text(&dir), "t", "-o", text(&file), "--format"];
    let output = braid(&[&args[..], &["csv"]].concat());
    expect_code(&output, 1);
    assert!(stderr(&output).contains("\"odd\""), "{}", stderr(&output));
    assert_eq!(
        fs::read_dir(place.path()).unwrap().count(),
        1,
        "the database only"
    );
    expect_code(&braid(&[&args[..], &["jsonl"]].concat()), 0);
    assert!(
        fs::read_to_string(&file)
            .unwrap()
            .contains("{\"base64\":\"b2Rk\"}")
    );
    let output = braid(&["export", text(&dir), "missing"]);
    expect_code(&output, 1);
    assert!(stderr(&output).contains("no table \"missing\""));
}
