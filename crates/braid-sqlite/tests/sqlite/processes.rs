//! Several processes, some of which are killed.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rusqlite::Connection;

use crate::model::{Directory, is_sound, open, pragma, run};

/// Set for the processes that these tests start: the database's URI.
const URI: &str = "BRAID_SQLITE_TEST_URI";
/// Precedes the number of a committed transaction in the output of a writer.
const ACKNOWLEDGED: &str = "acknowledged ";
/// How often all writers, one or two, are killed; by default seldom.
const ROUNDS: &str = "BRAID_SQLITE_ROUNDS";
const ACCOUNTS: u64 = 200;
const TOTAL: i64 = 1_000_000;
/// Transactions that the journal lists, so that a round takes as long after many others.
const KEPT: i64 = 500;

/// A process that these tests started, and what it reports.
struct Process {
    child: Child,
    errors: File,
}

impl Process {
    fn start(test: &str, directory: &Directory, output: Stdio) -> Self {
        let errors = tempfile::tempfile().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--quiet"])
            .env(URI, directory.uri())
            .stdout(output)
            .stderr(errors.try_clone().unwrap())
            .spawn()
            .unwrap();
        Self { child, errors }
    }

    /// What the process has written to its standard error.
    fn errors(&mut self) -> String {
        let mut text = String::new();
        self.errors.rewind().unwrap();
        self.errors.read_to_string(&mut text).unwrap();
        text
    }

    /// Kills processes at the same moment. One that panicked before must not pass for a killed one.
    fn kill(all: &mut [Self]) {
        for process in &mut *all {
            process.child.kill().unwrap();
        }
        all.iter_mut().for_each(Self::was_killed);
    }

    fn was_killed(&mut self) {
        let status = self.child.wait().unwrap();
        let signal = status.signal();
        let errors = self.errors();
        assert_eq!(
            signal,
            Some(9),
            "a process ended before it was killed: {status}\n{errors}"
        );
    }

    fn expect_running(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("a process failed: {status}\n{}", self.errors());
        }
    }
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
        run(
            &db,
            &format!("DELETE FROM journal WHERE number <= {number} - {KEPT}"),
        );
        if random.u8(..8) == 0 {
            run(&db, "ROLLBACK");
            continue;
        }
        run(&db, "COMMIT");
        // One write, which the output of another writer does not divide.
        let line = format!("{ACKNOWLEDGED}{number}\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
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
    // None in the middle is missing.
    assert_eq!(count, newest.min(KEPT));
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

/// Accounts that have the total, and an empty journal.
fn create(directory: &Directory) {
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
}

#[test]
fn killed_writers_lose_nothing_while_readers_check() {
    let rounds = std::env::var(ROUNDS).map_or(12, |rounds| rounds.parse().unwrap());
    let directory = Directory::new();
    create(&directory);
    let mut readers: Vec<Process> = Vec::new();
    let mut random = fastrand::Rng::new();
    let mut last = 0;
    for round in 0..rounds {
        // Now and then nobody is left, so that the next process recovers the file.
        let is_alone = round % 3 == 2;
        while !is_alone && readers.len() < 2 {
            readers.push(Process::start(
                "processes::process_that_reads",
                &directory,
                Stdio::null(),
            ));
        }
        let (output, input) = std::io::pipe().unwrap();
        let mut writers: Vec<Process> = (0..1 + round % 2)
            .map(|_| {
                let input = input.try_clone().unwrap().into();
                Process::start("processes::process_that_writes", &directory, input)
            })
            .collect();
        drop(input);
        let mut lines = BufReader::new(output).lines();
        let mut acknowledged = || -> Option<u64> {
            let line = lines.find(|line| line.as_ref().unwrap().starts_with(ACKNOWLEDGED))?;
            Some(line.unwrap()[ACKNOWLEDGED.len()..].parse().unwrap())
        };
        let target = last + 20 + random.u64(..60);
        let mut promised = 0;
        while promised < target {
            let Some(number) = acknowledged() else {
                let errors: Vec<String> = writers.iter_mut().map(Process::errors).collect();
                panic!("no writer is left: {}", errors.join("\n"));
            };
            promised = promised.max(number);
        }
        if is_alone {
            writers.append(&mut readers);
        }
        Process::kill(&mut writers);
        // What they promised before they were killed.
        while let Some(number) = acknowledged() {
            promised = promised.max(number);
        }
        readers.iter_mut().for_each(Process::expect_running);
        let db = connect(&directory.uri());
        let found = check(&db);
        assert!(found >= promised, "{found} of {promised}");
        is_sound(&db);
        last = found;
        if round % 100 == 99 {
            eprintln!("{} rounds, {found} transactions", round + 1);
        }
    }
    Process::kill(&mut readers);
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
