//! `braid stat` for programs and for monitoring.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use braid::{Database, Table};

use crate::common::{braid, expect_code, stderr, stdout};

#[test]
fn stat_speaks_prometheus() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().to_str().unwrap();
    let db = Database::open(dir).unwrap();
    let table: Table<u64, u64> = db.open_table("t").unwrap();
    db.transact(|tx| tx.insert(&table, &1, &1)).unwrap();
    db.close().unwrap();
    let output = braid(&["stat", dir, "--prometheus"]);
    expect_code(&output, 0);
    let text = stdout(&output);
    assert!(
        text.starts_with("# HELP braid_info") && text.ends_with('\n') && !text.ends_with("\n\n")
    );
    assert!(text.contains("\nbraid_poisoned 0\n"), "{text}");
    expect_code(&braid(&["stat", dir, "--prometheus", "--watch"]), 2);
    expect_code(&braid(&["stat", dir, "--watch", "0"]), 2);
    expect_code(&braid(&["stat", dir, "--count", "1"]), 2);
}

#[test]
fn an_open_database_is_watched_from_another_process() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().to_str().unwrap();
    let watch = |count: &str| braid(&["stat", dir, "--watch", "0.05", "--count", count]);
    let output = watch("1");
    expect_code(&output, 1);
    assert!(
        stderr(&output).contains("stats_file(true)"),
        "{}",
        stderr(&output)
    );

    let db = Database::builder().stats_file(true).open(dir).unwrap();
    let table: Table<u64, u64> = db.open_table("t").unwrap();
    let began = Instant::now();
    while !place.path().join("STATS").exists() {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
    // Readers work next to the writer.
    expect_code(&braid(&["stat", dir]), 0);
    let done = std::sync::atomic::AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut key = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                db.transact(|tx| tx.insert(&table, &key, &key)).unwrap();
                key += 1;
            }
        });
        let output = watch("50");
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        output
    });
    expect_code(&output, 0);
    let text = stdout(&output);
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines.len(), 51, "a header and a line each: {text}");
    assert!(
        lines[0]
            .join(" ")
            .starts_with("commits/s conflicts/s flushes/s"),
        "{text}"
    );
    assert!(
        lines[1..].iter().all(|line| line.last() == Some(&"good")),
        "{text}"
    );
    // The file changes every second, which 50 looks of 50 ms see.
    assert!(
        lines[1..]
            .iter()
            .any(|line| line[0] != "0" && line[2] != "0"),
        "{text}"
    );
    db.close().unwrap();

    // A process that was killed leaves its file.
    fs::write(place.path().join("STATS"), "braid_poisoned 1\n").unwrap();
    let minute = Duration::from_secs(60);
    let modified_at = |time| {
        let file = fs::File::options()
            .write(true)
            .open(place.path().join("STATS"));
        file.unwrap().set_modified(time).unwrap();
    };
    modified_at(SystemTime::now() - minute);
    let output = watch("1");
    expect_code(&output, 0);
    let text = stdout(&output);
    assert!(
        text.contains("read-only") && text.contains("no news for 6"),
        "{text}"
    );
    // One from before the clock was set back.
    modified_at(SystemTime::now() + minute);
    let text = stdout(&watch("1"));
    assert!(text.contains("the clock was set back by 5"), "{text}");
}
