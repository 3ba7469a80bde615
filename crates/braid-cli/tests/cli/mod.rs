//! The `braid` binary, as users run it.

mod bench;
mod checks;
mod copies;
mod tablespaces;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{braid, expect_code, stderr, stdout};

/// A small database on the disk in `dir`.
fn make_database(dir: &Path) {
    let path = dir.to_str().unwrap();
    let output = braid(&[
        "bench",
        "u1",
        "--seconds",
        "0.2",
        "--records",
        "2000",
        "--dir",
        path,
        "--json",
    ]);
    expect_code(&output, 0);
}

/// The database's file whose name starts with `prefix`.
fn file_of(dir: &Path, prefix: &str) -> std::path::PathBuf {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(prefix)
        })
        .collect();
    names.sort();
    names
        .into_iter()
        .next()
        .unwrap_or_else(|| panic!("no {prefix} file in {}", dir.display()))
}

#[test]
fn bad_usage_exits_with_2() {
    for args in [
        &["frobnicate"][..],
        &["bench"],
        &["bench", "u2"],
        &["bench", "u1", "--threads", "0"],
        &["bench", "u1", "--in-flight", "-1"],
        &["bench", "u1", "--seconds", "0"],
        &["bench", "u1", "--seconds", "soon"],
        &["bench", "u1", "--protocol", "paxos"],
        &["bench", "u1", "--device", "tape"],
        &["bench", "u1", "--records", "0"],
        &["bench", "u1", "--value-size", "1"],
        &["bench", "ycsb-c", "--with-limit"],
        &["bench", "recovery", "--device", "memory"],
        &["bench", "stalls", "--device", "memory"],
        &["bench", "stalls", "--scenario", "noise"],
        &["bench", "stalls", "--engine", "brade"],
        &["bench", "stalls", "--scale", "0"],
        &["bench", "stalls", "--rate", "-1"],
        &["bench", "recovery", "--workload", "ycsb-c"],
        &["demo", "--device", "memory"],
        &["demo", "--accounts", "1"],
        &["stat"],
    ] {
        let output = braid(args);
        expect_code(&output, 2);
        assert!(!stderr(&output).is_empty(), "{args:?}");
        assert!(stdout(&output).is_empty(), "{args:?}");
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_an_error() {
    let output = braid(&["bench", "u1", "--seconds", "0.1", "--dir", "/proc/nowhere"]);
    expect_code(&output, 1);
    assert!(
        stderr(&output).starts_with("braid: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_closed_pipe_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    make_database(dir.path());
    let mut child = Command::new(env!("CARGO_BIN_EXE_braid"))
        .args(["dump", dir.path().to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    expect_code(&child.wait_with_output().unwrap(), 0);
}

#[test]
fn help_names_every_command() {
    let output = braid(&["--help"]);
    expect_code(&output, 0);
    let text = stdout(&output);
    for command in [
        "demo", "bench", "stat", "verify", "dump", "export", "import", "shell", "compact",
        "upgrade", "pmem",
    ] {
        assert!(text.contains(command), "{command}: {text}");
        expect_code(&braid(&[command, "--help"]), 0);
    }
    assert!(!text.contains("demo-worker"), "{text}");
}

#[test]
fn simulate_runs_histories_and_reports_a_violation_with_its_seed() {
    let output = braid(&["simulate", "--seeds", "3..40", "--jobs", "2"]);
    expect_code(&output, 0);
    let out = stdout(&output);
    assert!(out.starts_with("37 histories, "), "{out}");
    assert!(out.contains("states recovered"), "{out}");

    let output = braid(&["simulate", "--device", "pmem", "--seeds", "0..60"]);
    expect_code(&output, 0);
    let out = stdout(&output);
    for (place, happens) in [
        ("opened in persistent memory", true),
        ("opened with the data in persistent memory", true),
        ("opened with the log in persistent memory", true),
        ("opened with small blocks", false),
    ] {
        let line = out.lines().find(|line| line.ends_with(place)).unwrap();
        let is_zero = line.trim_start().starts_with("0 ");
        assert_eq!(is_zero, !happens, "{line}");
    }

    let lying = "lies=true,crashes=true,media_faults=false";
    let args = [
        "--seeds",
        "0..200",
        "--protocol",
        "glsn",
        "--with",
        lying,
        "--shrink",
    ];
    let output = braid(&[&["simulate"], &args[..]].concat());
    expect_code(&output, 1);
    assert!(
        stderr(&output).contains("the history of seed"),
        "{}",
        stderr(&output)
    );
    let out = stdout(&output);
    let again = out
        .lines()
        .find_map(|line| line.strip_prefix("again: braid "))
        .unwrap();
    let output = braid(&again.split(' ').collect::<Vec<_>>());
    expect_code(&output, 1);

    for nonsense in [
        &["--seeds", "5..5"],
        &["--protocol", "best"],
        &["--with", "keys=0"],
    ] {
        expect_code(&braid(&[&["simulate"], &nonsense[..]].concat()), 2);
    }
}
