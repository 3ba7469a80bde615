//! Several processes, some of which are killed.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rusqlite::Connection;

use crate::model::{Directory, is_sound, open, pragma, run};

/// Set for the processes that these tests start: the database's URI, and the file of acknowledged
/// numbers.
const URI: &str = "BRAID_SQLITE_TEST_URI";
const ACKNOWLEDGED: &str = "BRAID_SQLITE_TEST_ACKNOWLEDGED";
/// How many writers are killed; by default few.
const ROUNDS: &str = "BRAID_SQLITE_ROUNDS";
const ACCOUNTS: u64 = 200;
const TOTAL: i64 = 1_000_000;

fn start(test: &str, directory: &Directory) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--quiet"])
        .env(URI, directory.uri())
        .env(
            ACKNOWLEDGED,
            directory.path().with_file_name("acknowledged"),
        )
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn connect(uri: &str) -> Connection {
    let db = open(uri).unwrap();
    db.busy_timeout(Duration::from_secs(60)).unwrap();
    run(&db, "PRAGMA cache_size = 20");
    run(&db, "PRAGMA wal_autocheckpoint = 60");
    db
}

/// In the process of a writer: moves amounts between accounts until it is killed. Otherwise nothing.
#[test]
fn process_that_writes() {
    let Ok(uri) = std::env::var(URI) else { return };
    let mut acknowledged = OpenOptions::new()
        .append(true)
        .open(std::env::var_os(ACKNOWLEDGED).unwrap())
        .unwrap();
    let db = connect(&uri);
    let mut random = fastrand::Rng::new();
    run(&db, "SELECT 1 FROM account");
    let mode = ["lazy", "checksum", "eager"][random.usize(..3)];
    run(&db, &format!("PRAGMA braid_mode = {mode}"));
    loop {
        run(&db, "BEGIN IMMEDIATE");
        let next = "SELECT coalesce(max(number), 0) + 1 FROM journal";
        let number: i64 = db.query_row(next, [], |row| row.get(0)).unwrap();
        let (from, to) = (random.u64(1..=ACCOUNTS), random.u64(1..=ACCOUNTS));
        let amount = random.u32(1..100);
        run(
            &db,
            &format!("UPDATE account SET amount = amount - {amount} WHERE id = {from}"),
        );
        run(
            &db,
            &format!("UPDATE account SET amount = amount + {amount} WHERE id = {to}"),
        );
        if random.u8(..20) == 0 {
            // More than the cache holds.
            run(&db, "UPDATE account SET filler = randomblob(500)");
            run(&db, "UPDATE account SET filler = randomblob(500)");
        }
        run(
            &db,
            &format!("INSERT INTO journal VALUES ({number}, {amount})"),
        );
        if random.u8(..8) == 0 {
            run(&db, "ROLLBACK");
            continue;
        }
        run(&db, "COMMIT");
        writeln!(acknowledged, "{number}").unwrap();
    }
}

fn check(db: &Connection) -> u64 {
    run(db, "BEGIN");
    let total: i64 = db
        .query_row("SELECT sum(amount) FROM account", [], |row| row.get(0))
        .unwrap();
    assert_eq!(total, TOTAL);
    let (count, newest): (i64, i64) = db
        .query_row(
            "SELECT count(*), coalesce(max(number), 0) FROM journal",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    assert_eq!(count, newest, "a transaction in the middle is missing");
    run(db, "COMMIT");
    u64::try_from(newest).unwrap()
}

/// In the process of a reader: checks until it is killed. Otherwise nothing.
#[test]
fn process_that_reads() {
    let Ok(uri) = std::env::var(URI) else { return };
    let db = connect(&uri);
    let mut newest = 0;
    for round in 0_u64.. {
        let found = check(&db);
        assert!(found >= newest, "{found} after {newest}");
        newest = found;
        if round % 50 == 0 {
            is_sound(&db);
        }
    }
}

fn acknowledged(directory: &Directory) -> u64 {
    let path = directory.path().with_file_name("acknowledged");
    let text = std::fs::read_to_string(path).unwrap();
    // The last line may be torn.
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let numbers = complete.lines().map(|line| line.parse::<u64>().unwrap());
    numbers.max().unwrap_or(0)
}

#[test]
fn killed_writers_lose_nothing_while_readers_check() {
    let rounds = std::env::var(ROUNDS).map_or(12, |rounds| rounds.parse().unwrap());
    let directory = Directory::new();
    std::fs::write(directory.path().with_file_name("acknowledged"), "").unwrap();
    let db = directory.open();
    run(
        &db,
        "CREATE TABLE account (id INTEGER PRIMARY KEY, amount INTEGER, filler BLOB)",
    );
    run(
        &db,
        "CREATE TABLE journal (number INTEGER PRIMARY KEY, amount INTEGER)",
    );
    run(&db, "CREATE INDEX by_amount ON journal (amount)");
    run(
        &db,
        &format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ACCOUNTS}) \
             INSERT INTO account SELECT i, {}, randomblob(500) FROM n",
            TOTAL / ACCOUNTS as i64
        ),
    );
    drop(db);
    let mut readers: Vec<Child> = Vec::new();
    let mut random = fastrand::Rng::new();
    let mut last = 0;
    for round in 0..rounds {
        // Now and then nobody is left, so that the next process recovers the file.
        let is_alone = round % 3 == 2;
        while !is_alone && readers.len() < 2 {
            readers.push(start("processes::process_that_reads", &directory));
        }
        let mut writers: Vec<Child> = (0..1 + round % 2)
            .map(|_| start("processes::process_that_writes", &directory))
            .collect();
        let target = last + 20 + random.u64(..60);
        while acknowledged(&directory) < target {
            for process in writers.iter_mut().chain(&mut readers) {
                assert!(process.try_wait().unwrap().is_none(), "a process failed");
            }
            std::thread::yield_now();
        }
        if is_alone {
            writers.append(&mut readers);
        }
        for process in &mut writers {
            process.kill().unwrap();
        }
        for process in &mut writers {
            process.wait().unwrap();
        }
        let promised = acknowledged(&directory);
        let db = connect(&directory.uri());
        let found = check(&db);
        assert!(found >= promised, "{found} of {promised}");
        is_sound(&db);
        last = found;
    }
    for process in &mut readers {
        assert!(process.try_wait().unwrap().is_none(), "a reader failed");
        process.kill().unwrap();
        process.wait().unwrap();
    }
    let db = connect(&directory.uri());
    check(&db);
    assert_eq!(
        pragma(&db, "PRAGMA journal_mode = DELETE").unwrap(),
        "delete"
    );
    drop(db);
    assert!(directory.logs().is_empty());
    is_sound(&directory.stock());
}
