//! Logs the page images of SQLite, as `python3` makes them, and compares the bytes with SQLite's own
//! log. Skipped without `python3` and its module `sqlite3`.
#![cfg(unix)]

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use braid_nvwal::{LogOptions, Writer, WriterOptions};
use braid_pmem::{MapAs, Region, RegionOptions};

/// Changes one row of 100 random bytes in each transaction, and copies the `-wal` file.
const PROGRAM: &str = r#"
import random, shutil, sqlite3, sys
path, operation, transactions = sys.argv[1], sys.argv[2], int(sys.argv[3])
random.seed(1)
text = lambda: "".join(random.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=100))
db = sqlite3.connect(path, isolation_level=None)
db.execute("PRAGMA page_size = 4096")
db.execute("PRAGMA journal_mode = WAL")
db.execute("PRAGMA synchronous = OFF")
db.execute("PRAGMA wal_autocheckpoint = 0")
db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, value TEXT, creation_date TEXT)")
rows = 2 * transactions
if operation != "insert":
    db.execute("BEGIN")
    for row in range(rows):
        db.execute("INSERT INTO t VALUES (?, ?, '2026-01-01')", (row, text()))
    db.execute("COMMIT")
db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
order = random.sample(range(rows), transactions)
for number in range(transactions):
    if operation == "insert":
        db.execute("INSERT INTO t VALUES (?, ?, '2026-01-01')", (number, text()))
    elif operation == "update":
        db.execute("UPDATE t SET value = ? WHERE id = ?", (text(), order[number]))
    else:
        db.execute("DELETE FROM t WHERE id = ?", (order[number],))
shutil.copy(path + "-wal", path + ".copy")
"#;

/// Frames between two checkpoints, as recommended for logs of differences.
const FRAMES: u64 = 10_000;

/// A frame of SQLite's log: page number, size of the database if it commits, image.
fn frames(log: &[u8]) -> Vec<(u64, u64, &[u8])> {
    let number = |bytes: &[u8]| u64::from(u32::from_be_bytes(bytes[..4].try_into().unwrap()));
    let page_size = number(&log[8..]) as usize;
    log[32..]
        .chunks_exact(24 + page_size)
        .map(|frame| (number(frame), number(&frame[4..]), &frame[24..]))
        .collect()
}

/// Replays SQLite's log into another one. Returns the bytes of both.
fn replay(directory: &Path, log: &[u8]) -> (u64, u64) {
    let path = directory.join("region");
    let options = RegionOptions::default().map_as(MapAs::Emulated { line_latency: 0 });
    let region = Region::create(&path, Region::MIN_LEN, &options).unwrap();
    let frames = frames(log);
    let page_size = frames[0].2.len();
    let options = LogOptions::default()
        .page_size(page_size as u32)
        .max_bytes(128 << 20);
    let writer = Writer::create(
        Arc::new(region),
        Region::DATA_START,
        &options,
        &WriterOptions::default(),
    );
    let mut writer = writer.unwrap();
    let mut images: HashMap<u64, &[u8]> = HashMap::new();
    let mut in_generation = 0;
    for (page, size, image) in &frames {
        writer.append(*page, image).unwrap();
        images.insert(*page, image);
        in_generation += 1;
        if *size == 0 {
            continue;
        }
        writer.commit(*size).unwrap();
        if in_generation >= FRAMES {
            check(&mut writer, &images);
            writer.new_generation(writer.mark()).unwrap();
            images.clear();
            in_generation = 0;
        }
    }
    check(&mut writer, &images);
    std::fs::remove_file(&path).unwrap();
    let whole = frames.len() as u64 * (24 + page_size as u64);
    (whole, writer.stats().bytes)
}

/// Checks that the log has the newest images.
fn check(writer: &mut Writer, images: &HashMap<u64, &[u8]>) {
    let mut count = 0;
    for page in writer.checkpoint().unwrap() {
        let (page, image) = page.unwrap();
        assert_eq!(image, images[&page], "page {page}");
        count += 1;
    }
    assert_eq!(count, images.len());
}

#[test]
fn the_log_of_sqlite_takes_at_least_84_percent_fewer_bytes() {
    let usable = Command::new("python3")
        .args(["-c", "import sqlite3"])
        .output();
    if !usable.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no python3 with its module sqlite3");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for operation in ["insert", "update", "delete"] {
        let path = directory.path().join(operation);
        let output = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(&path)
            .args([operation, "10000"])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let log = std::fs::read(path.with_extension("copy")).unwrap();
        let (whole, differences) = replay(directory.path(), &log);
        let percent = 100.0 * (1.0 - differences as f64 / whole as f64);
        println!("{operation}: {whole} bytes, {differences} as differences: {percent:.1} % fewer");
        assert!(percent >= 84.0, "{operation}: {percent:.1} % fewer bytes");
    }
}
