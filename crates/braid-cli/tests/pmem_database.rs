//! The commands on databases whose files are mapped as persistent memory, and on databases whose log
//! is in a directory of its own.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use braid::device::DeviceChoice;
use braid::{Builder, Database, Table};
use serde_json::Value;

use crate::common::{braid, expect_code, stderr, stdout};

const EMULATED: DeviceChoice = DeviceChoice::PmemEmulated { line_latency: 0 };

/// Where `/dev/shm` is missing, any directory will do.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

fn builder() -> Builder {
    Database::builder()
        .device(EMULATED)
        .pool_bytes(1 << 20)
        .segment_bytes(64 << 10)
}

struct Fixture {
    directory: tempfile::TempDir,
}

impl Fixture {
    /// A database of which a part is only in the log, as after the end of a killed process.
    fn new(with_log_directory: bool) -> Self {
        let fixture = Self {
            directory: in_memory(),
        };
        let original = fixture.path("original");
        let mut builder = builder();
        if with_log_directory {
            builder = builder
                .log_directory(fixture.path("log"))
                .log_device(EMULATED);
        }
        let db = builder.open(&original).unwrap();
        let table: Table<u32, String> = db.open_table("books").unwrap();
        db.transact(|tx| tx.insert(&table, &1, "one")).unwrap();
        db.checkpoint().unwrap();
        db.transact(|tx| tx.insert(&table, &2, "two")).unwrap();
        fixture.copy("original", "db");
        if with_log_directory {
            fixture.copy("log", "db-log");
        }
        drop(db);
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn copy(&self, from: &str, to: &str) {
        fs::create_dir(self.path(to)).unwrap();
        for entry in fs::read_dir(self.path(from)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), self.path(to).join(entry.file_name())).unwrap();
        }
    }

    /// Runs a command whose arguments that begin with `@` are files of the fixture.
    #[track_caller]
    fn run(&self, arguments: &[&str], code: i32) -> String {
        let resolved: Vec<String> = (arguments.iter())
            .map(|argument| match argument.strip_prefix('@') {
                Some(name) => self.path(name).to_str().unwrap().to_owned(),
                None => (*argument).to_owned(),
            })
            .collect();
        let resolved: Vec<&str> = resolved.iter().map(String::as_str).collect();
        let output = braid(&resolved);
        expect_code(&output, code);
        stdout(&output) + &stderr(&output)
    }
}

#[track_caller]
fn expect(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is missing: {text}");
}

#[test]
fn every_command_works_on_a_database_in_persistent_memory() {
    let fixture = Fixture::new(false);
    expect(&fixture.run(&["stat", "@db"], 0), "books");
    expect(&fixture.run(&["verify", "@db"], 0), "sound");
    let dump = fixture.run(&["dump", "@db"], 0);
    expect(&dump, "transaction");
    let exported = fixture.run(&["export", "@db", "books"], 0);
    assert!(
        exported.contains("one") && exported.contains("two"),
        "{exported}"
    );
    fixture.run(&["backup", "@db", "@backup"], 0);
    fixture.run(&["restore", "@backup", "@restored"], 0);
    assert_eq!(fixture.run(&["export", "@restored", "books"], 0), exported);
    fixture.run(&["compact", "@db"], 0);
    fixture.run(&["verify", "--repair", "--into", "@salvaged", "@db"], 0);
    assert_eq!(fixture.run(&["export", "@salvaged", "books"], 0), exported);
    // It is persistent memory again.
    let db = builder().open(fixture.path("db")).unwrap();
    let table: Table<u32, String> = db.open_table("books").unwrap();
    assert_eq!(db.get(&table, &2).unwrap().as_deref(), Some("two"));
}

#[test]
fn every_command_finds_the_log_in_its_directory() {
    let fixture = Fixture::new(true);
    let refused = fixture.run(&["stat", "@db"], 1);
    expect(&refused, "it belongs to the database in");
    let log = ["--log-directory", "@db-log"];
    let shell = ["shell", "-c", "count books", "@db"];
    expect(&fixture.run(&[&shell[..], &log[..]].concat(), 0), "2");
    let stat = fixture.run(&["stat", "@db"], 0);
    expect(&stat, "books");
    let directory = fixture.path("db-log").canonicalize().unwrap();
    let directory = directory.to_str().unwrap();
    expect(&stat, &format!("log directory {directory}\n"));
    expect(&stat, "log device    pmem-emulated: ordinary memory");
    let json: Value = serde_json::from_str(&fixture.run(&["stat", "--json", "@db"], 0)).unwrap();
    assert_eq!(json["log_directory"], directory);
    assert_eq!(json["log_device"], "pmem-emulated");
    expect(&fixture.run(&["verify", "@db"], 0), "sound");
    fixture.run(&["dump", "@db"], 0);
    fixture.run(&["backup", "@db", "@backup"], 0);
    fixture.run(&["compact", "@db"], 0);
    let elsewhere = [
        "restore",
        "--log-directory",
        "@restored-log",
        "--log-device",
        "pmem-emulated",
        "@backup",
        "@restored",
    ];
    fixture.run(&elsewhere, 0);
    let names = fs::read_dir(fixture.path("restored-log")).unwrap();
    assert!(names.count() > 2);
    expect(&fixture.run(&["export", "@restored", "books"], 0), "two");
    fs::rename(fixture.path("db-log"), fixture.path("away")).unwrap();
    expect(&fixture.run(&["verify", "@db"], 1), "mount its device");
    let repaired = fixture.run(&["verify", "--repair", "--into", "@rest", "@db"], 3);
    expect(&repaired, "lost: the log");
}

fn shorten(file: &Path, len: u64) {
    let file = fs::OpenOptions::new().write(true).open(file).unwrap();
    file.set_len(len).unwrap();
}

#[test]
fn what_is_no_database_in_persistent_memory_is_refused_and_kept() {
    let fixture = Fixture::new(false);
    // Cut off.
    fixture.copy("db", "short");
    shorten(&fixture.path("short/data.braid"), 3 * 8192);
    fixture.run(&["verify", "@short"], 1);
    // Foreign.
    fs::create_dir(fixture.path("foreign")).unwrap();
    fs::write(fixture.path("foreign/data.braid"), [7; 1 << 16]).unwrap();
    let found = fixture.run(&["verify", "@foreign"], 1);
    expect(&found, "superblock");
    assert_eq!(
        fs::read(fixture.path("foreign/data.braid")).unwrap(),
        [7; 1 << 16]
    );
    let opened = builder().open(fixture.path("foreign"));
    assert!(
        matches!(opened, Err(braid::Error::Corrupted { .. })),
        "{opened:?}"
    );
    assert_eq!(
        fs::read(fixture.path("foreign/data.braid")).unwrap(),
        [7; 1 << 16]
    );
    // Opened twice.
    let db = builder().open(fixture.path("db")).unwrap();
    expect(&fixture.run(&["compact", "@db"], 1), "it is in use by");
    expect(&fixture.run(&["verify", "@db"], 0), "sound");
    drop(db);
}

/// What a power failure leaves of the newest superblock.
#[test]
fn a_torn_superblock_is_noted_and_sound() {
    let fixture = Fixture::new(false);
    let file = fixture.path("db/data.braid");
    let mut bytes = fs::read(&file).unwrap();
    let number = |bytes: &[u8], slot: usize| {
        u64::from_le_bytes(bytes[slot * 8192 + 24..][..8].try_into().unwrap())
    };
    let older = usize::from(number(&bytes, 0) > number(&bytes, 1));
    let at = older * 8192;
    bytes[at..at + 64].fill(0);
    bytes[at + 8..at + 16].copy_from_slice(b"BRAIDDB\x01");
    fs::write(&file, &bytes).unwrap();
    let verified = fixture.run(&["verify", "@db"], 0);
    expect(&verified, "note: a power failure interrupted");
    expect(&verified, "sound");
    bytes[at + 5000] = 1;
    fs::write(&file, &bytes).unwrap();
    expect(&fixture.run(&["verify", "@db"], 1), "damaged");
}

#[test]
fn a_file_system_without_direct_access_is_named() {
    let fixture = Fixture::new(false);
    let opened = builder()
        .device(DeviceChoice::Pmem)
        .open(fixture.path("db"));
    if opened.is_ok() {
        // The test runs on persistent memory.
        return;
    }
    let error = opened.unwrap_err().to_string();
    expect(&error, "DAX");
    expect(&fixture.run(&["verify", "@db"], 0), "sound");
}

/// A waited commit stores, flushes and fences: it makes none of the calls that write, make durable,
/// wait or wake. Creating a database, loading it and preparing segments make a few hundred.
#[test]
fn a_commit_makes_no_system_call() {
    const CALLS: &str =
        "futex,write,pwrite64,pwritev,pwritev2,fsync,fdatasync,msync,io_uring_enter";
    let directory = in_memory();
    let calls = directory.path().join("calls");
    let strace = Command::new("strace")
        .args(["-f", "-c", "-e", &format!("trace={CALLS}"), "-o"])
        .arg(&calls)
        .arg(env!("CARGO_BIN_EXE_braid"))
        .args([
            "bench",
            "u1",
            "--device",
            "pmem-emulated",
            "--records",
            "1000",
        ])
        .args(["--threads", "1", "--seconds", "1", "--json", "--dir"])
        .arg(directory.path().join("db"))
        .output();
    let output = match strace {
        Ok(output) if output.status.success() => output,
        Ok(output) if !stderr(&output).contains("ptrace") => panic!("{}", stderr(&output)),
        // Not installed, or the machine does not allow it.
        _ => {
            println!("SKIPPED: no strace");
            return;
        }
    };
    let result: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let commits = result["commits"].as_u64().unwrap();
    let table = fs::read_to_string(&calls).unwrap();
    // Of each call: the share of the time, seconds, microseconds for each, their number.
    let rows = table.lines().filter(|line| !line.ends_with(" total"));
    let made: u64 = rows
        .filter_map(|row| row.split_whitespace().nth(3)?.parse::<u64>().ok())
        .sum();
    assert!(made > 0 && commits > 1_000, "{commits} commits\n{table}");
    assert!(made < 500 + commits / 10, "{commits} commits\n{table}");
}
