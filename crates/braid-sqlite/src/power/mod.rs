//! The power fails at every operation of the log and every event of the files, with SQLite's own
//! results as the expectation.

mod recorder;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use braid_pmem::Survivors;
use rusqlite::{Connection, OpenFlags};

use crate::database::lock;
use crate::simulation::{Disk, Point, forget};

type Rows = Vec<String>;

/// What the histories must reach.
const MUST_OCCUR: [&str; 6] = [
    "SQLite without the extension was refused",
    "SQLite without the extension read everything",
    "a process was killed",
    "a transaction survived that was not acknowledged",
    "a transaction was lost that was not acknowledged",
    "the power failed during recovery",
];

static REACHED: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

fn reach(what: &'static str, is_reached: bool) {
    assert!(MUST_OCCUR.contains(&what), "{what}");
    *lock(&REACHED).entry(what).or_default() += u64::from(is_reached);
}

fn run(db: &Connection, sql: &str) -> rusqlite::Result<Rows> {
    let mut statement = db.prepare(sql)?;
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        let values = (0..columns).map(|column| format!("{:?}", row.get_ref(column)));
        Ok(values.collect::<Vec<_>>().join("|"))
    })?;
    rows.collect()
}

fn connect(uri: &str) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(uri, flags)
}

fn commit(db: &Connection, statements: &[String]) -> rusqlite::Result<()> {
    run(db, "BEGIN")?;
    for sql in statements {
        run(db, sql)?;
    }
    run(db, "COMMIT").map(drop)
}

/// Everything in the database, and its newest transaction.
fn contents(db: &Connection) -> rusqlite::Result<(usize, Rows)> {
    let has_tables = "SELECT 1 FROM sqlite_schema WHERE name = 'journal'";
    if run(db, has_tables)?.is_empty() {
        return Ok((0, Rows::new()));
    }
    let mut rows = run(db, "SELECT * FROM t ORDER BY id")?;
    rows.extend(run(db, "SELECT * FROM journal ORDER BY number")?);
    let newest: i64 = db.query_row("SELECT max(number) FROM journal", [], |row| row.get(0))?;
    Ok((usize::try_from(newest).unwrap(), rows))
}

/// The statements of a transaction, which ends by noting its number.
fn transaction(random: &mut fastrand::Rng, number: usize) -> Vec<String> {
    let mut statements = Vec::new();
    if number == 1 {
        statements.push("CREATE TABLE t (id INTEGER PRIMARY KEY, value TEXT, other INT)".into());
        statements.push("CREATE INDEX by_other ON t (other)".into());
        statements.push("CREATE TABLE journal (number INTEGER PRIMARY KEY)".into());
    }
    for _ in 0..random.usize(1..4) {
        let (id, other) = (random.u8(..40), random.u16(..));
        let text = "y".repeat(random.usize(..300));
        match random.u8(..12) {
            0..5 => statements.push(format!("REPLACE INTO t VALUES ({id}, '{text}', {other})")),
            5..8 => statements.push(format!("UPDATE t SET other = {other} WHERE id >= {id}")),
            8 => statements.push(format!("DELETE FROM t WHERE id = {id}")),
            9 => statements.push("UPDATE t SET value = other || substr(value, 1, 200)".into()),
            _ => statements.extend([
                "SAVEPOINT s".into(),
                format!("UPDATE t SET value = '{text}', other = {other}"),
                "ROLLBACK TO s".into(),
            ]),
        }
    }
    statements.push(format!("INSERT INTO journal VALUES ({number})"));
    statements
}

/// A database whose machine fails, and what it must have afterwards.
struct History {
    random: fastrand::Rng,
    disk: Arc<Disk>,
    /// Removed when the history ends.
    root: tempfile::TempDir,
    directory: PathBuf,
    name: &'static str,
    /// Whether commits leave the wait to `braid_wait`, and whether the connection excludes others.
    is_ticket: bool,
    is_exclusive: bool,
    is_full: bool,
    transactions: Vec<Vec<String>>,
    states: Vec<Rows>,
    oracle: Connection,
    /// The newest transaction that survives for certain.
    acknowledged: usize,
}

impl History {
    fn new(seed: u64) -> Self {
        recorder::register();
        let memory = std::path::Path::new("/dev/shm");
        let directory = if memory.is_dir() {
            tempfile::tempdir_in(memory)
        } else {
            tempfile::tempdir()
        };
        let root = directory.unwrap();
        // The paths in the `-wal` file of every second history need a second sector.
        let directory = match seed % 2 {
            0 => root.path().to_owned(),
            _ => root.path().join("d".repeat(220)),
        };
        std::fs::create_dir_all(&directory).unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        Self {
            disk: Disk::new(&directory),
            root,
            directory,
            name: "app.db",
            is_ticket: seed % 8 > 3,
            is_exclusive: matches!(seed % 8, 1 | 5 | 6),
            is_full: random.u8(..4) > 0,
            random,
            transactions: Vec::new(),
            states: vec![Rows::new()],
            oracle: Connection::open_in_memory().unwrap(),
            acknowledged: 0,
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.join(self.name)
    }

    fn connect(&mut self) -> rusqlite::Result<Connection> {
        let mode = match ["lazy", "checksum", "eager"][self.random.usize(..3)] {
            _ if self.is_ticket => "ticket",
            mode => mode,
        };
        let (path, logs) = (self.path(), self.directory.display().to_string());
        let path = path.display();
        let uri = format!("file:{path}?vfs=braid&braid_log={logs}&braid_mode={mode}");
        let db = connect(&uri)?;
        if self.is_exclusive {
            run(&db, "PRAGMA locking_mode = EXCLUSIVE")?;
        }
        run(&db, "PRAGMA page_size = 512")?;
        run(&db, "PRAGMA journal_mode = WAL")?;
        let synchronous = if self.is_full { "FULL" } else { "NORMAL" };
        run(&db, &format!("PRAGMA synchronous = {synchronous}"))?;
        run(&db, "PRAGMA wal_autocheckpoint = 0")?;
        run(&db, "PRAGMA cache_size = 4")?;
        Ok(db)
    }

    /// One transaction, checkpoint or change. Fails when the power does.
    fn step(&mut self, db: &mut Option<Connection>) -> rusqlite::Result<()> {
        let Some(open) = db.as_ref() else {
            *db = Some(self.connect()?);
            return Ok(());
        };
        match self.random.u8(..32) {
            0..3 => {
                let mode = ["PASSIVE", "RESTART", "TRUNCATE"][self.random.usize(..3)];
                run(open, &format!("PRAGMA wal_checkpoint({mode})"))?;
                self.acknowledge();
            }
            3 => {
                *db = None;
                self.acknowledge();
            }
            4 => {
                run(open, "PRAGMA journal_mode = DELETE")?;
                self.acknowledge();
                run(open, "PRAGMA journal_mode = WAL")?;
            }
            5..8 if !self.transactions.is_empty() => {
                run(open, "BEGIN")?;
                let next = self.transactions.len() + 1;
                for sql in transaction(&mut self.random, next) {
                    run(open, &sql)?;
                }
                run(open, "ROLLBACK")?;
            }
            _ => {
                let number = self.transactions.len() + 1;
                let statements = transaction(&mut self.random, number);
                commit(&self.oracle, &statements)?;
                self.states.push(contents(&self.oracle)?.1);
                self.transactions.push(statements);
                commit(open, self.transactions.last().expect("pushed"))?;
                if self.is_ticket && number.is_multiple_of(2) {
                    run(open, "PRAGMA braid_wait")?;
                    self.acknowledge();
                } else if self.is_full && !self.is_ticket {
                    self.acknowledge();
                }
            }
        }
        Ok(())
    }

    /// Everything so far must survive, if the power is still on.
    fn acknowledge(&mut self) {
        if !self.disk.is_off() {
            self.acknowledged = self.transactions.len();
        }
    }

    /// Works until the power fails, or for so many steps. Returns whether it failed.
    fn work(&mut self, steps: usize) -> bool {
        let mut db = None;
        for _ in 0..steps {
            let result = self.step(&mut db);
            if self.disk.is_off() {
                return true;
            }
            result.unwrap();
        }
        drop(db);
        self.acknowledge();
        self.disk.is_off()
    }

    fn possible(&self) -> RangeInclusive<usize> {
        self.acknowledged..=self.states.len() - 1
    }

    fn is_possible(&self, (number, rows): &(usize, Rows), by: &str) {
        let possible = self.possible();
        assert!(
            possible.contains(number),
            "{by} finds {number} of {possible:?}"
        );
        assert_eq!(rows, &self.states[*number], "transaction {number}, {by}");
    }

    /// SQLite without the extension refuses copies of the files, or finds everything (Q2, Q3).
    fn check_guards(&self) {
        let copies = tempfile::tempdir_in(self.root.path().parent().unwrap()).unwrap();
        for suffix in ["", "-wal", "-journal"] {
            let from = self.directory.join(format!("{}{suffix}", self.name));
            if from.exists() {
                std::fs::copy(from, copies.path().join(format!("app.db{suffix}"))).unwrap();
            }
        }
        let path = copies.path().join("app.db");
        let stock = connect(&format!("file:{}?vfs=unix", path.display())).unwrap();
        match contents(&stock) {
            Ok(found) => {
                self.is_possible(&found, "SQLite without the extension");
                reach("SQLite without the extension read everything", found.0 > 0);
            }
            Err(rusqlite::Error::SqliteFailure(error, _)) => {
                use rusqlite::ErrorCode::{CannotOpen, NotADatabase};
                let is_guard = matches!(error.code, CannotOpen | NotADatabase);
                assert!(is_guard, "{error}");
                reach("SQLite without the extension was refused", true);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Opens what the crash left, and checks it. The power may fail again in the meantime.
    fn recover(&mut self) {
        let db = self.connect();
        let found = db.and_then(|db| {
            let found = contents(&db)?;
            let sound = run(&db, "PRAGMA integrity_check")?;
            Ok((found, sound, db))
        });
        if self.disk.is_off() {
            reach("the power failed during recovery", true);
            return;
        }
        let (found, sound, db) = found.unwrap();
        self.is_possible(&found, "recovery");
        assert_eq!(sound, ["Ok(Text([111, 107]))"]);
        // It has been read: it must not be lost any more.
        let number = found.0;
        let is_newer = number > self.acknowledged;
        let is_older = number < self.states.len() - 1;
        reach("a transaction survived that was not acknowledged", is_newer);
        reach("a transaction was lost that was not acknowledged", is_older);
        self.acknowledged = number;
        self.transactions.truncate(number);
        self.states.truncate(number + 1);
        self.oracle = Connection::open_in_memory().unwrap();
        for statements in &self.transactions {
            commit(&self.oracle, statements).unwrap();
        }
        assert_eq!(contents(&self.oracle).unwrap().1, self.states[number]);
        drop(db);
    }

    /// Fails at this point, then at another one, then works and ends.
    fn run(mut self, point: Point, steps: usize) {
        let mut next = Some(point);
        for round in 0..3 {
            self.disk.fail_at(next);
            if round > 0 {
                self.recover();
            }
            if !self.disk.is_off() {
                self.work(if round == 0 { steps } else { 8 });
            }
            if round < 2 {
                let survivors = match self.random.u8(..6) {
                    0 => None,
                    1 => Some(Survivors::Nothing),
                    2 => Some(Survivors::Everything),
                    _ => Some(Survivors::Random(self.random.u64(..))),
                };
                reach("a process was killed", survivors.is_none());
                self.disk.restart(survivors);
                self.check_guards();
            }
            next = match self.random.u8(..4) {
                _ if round > 0 => None,
                0 => Some(Point::File(self.random.u64(..20))),
                _ => Some(Point::Log(0, self.random.u64(..150))),
            };
        }
        assert!(!self.disk.is_off());
        // Plain SQLite, after a clean end.
        let stock = connect(&format!("file:{}?vfs=unix", self.path().display())).unwrap();
        let found = contents(&stock).unwrap();
        assert_eq!(found.1, self.states[found.0]);
        assert_eq!(found.0, self.transactions.len());
    }
}

impl Drop for History {
    fn drop(&mut self) {
        forget(&self.disk);
    }
}

/// Prints the history that panics.
struct Show(u64, Point);

impl Drop for Show {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("history {}, power failure at {:?}", self.0, self.1);
        }
    }
}

/// A database is moved after the power failed while its last connection closed. Its `-wal` file then gets
/// other paths, which are longer than a sector, and the power fails again.
#[test]
fn a_wal_file_with_other_paths_can_be_torn() {
    // The log has been emptied, and the database is still guarded.
    let mut is_reached = false;
    for first in 0.. {
        let closed = |history: &mut History| {
            let db = history.connect().unwrap();
            let statements = transaction(&mut history.random, 1);
            commit(&history.oracle, &statements).unwrap();
            history.states.push(contents(&history.oracle).unwrap().1);
            history.transactions.push(statements);
            commit(&db, &history.transactions[0]).unwrap();
            run(&db, "PRAGMA braid_wait").unwrap();
            history.acknowledge();
            let (_, events) = history.disk.counts();
            history.disk.fail_at(Some(Point::File(events + first)));
            drop(db);
            history.disk.is_off()
        };
        let mut points = 0;
        for second in 0.. {
            let mut history = History::new(1 + 2 * second);
            if !closed(&mut history) {
                break;
            }
            history.disk.restart(Some(Survivors::Nothing));
            let wal = |name| history.directory.join(format!("{name}-wal"));
            let stub = crate::stub::read(&wal("app.db")).unwrap();
            is_reached |= matches!(stub, crate::stub::Stub::Log { is_open: false, .. });
            for suffix in ["", "-wal", "-journal"] {
                let of = |name| history.directory.join(format!("{name}{suffix}"));
                if of("app.db").exists() {
                    history.disk.rename_file(&of("app.db"), &of("moved.db"));
                }
            }
            history.name = "moved.db";
            history.disk.fail_at(Some(Point::File(second / 4)));
            history.recover();
            if !history.disk.is_off() {
                points = second;
                break;
            }
            history.disk.restart(Some(Survivors::Random(second)));
            history.check_guards();
            history.recover();
        }
        if points == 0 {
            break;
        }
    }
    assert!(is_reached);
}

/// The points at which the power can fail in the first round of a history.
fn points(seed: u64, steps: usize) -> Vec<Point> {
    let mut history = History::new(seed);
    assert!(!history.work(steps));
    let (logs, files) = history.disk.counts();
    let logs = logs.iter().enumerate();
    let logs = logs.flat_map(|(number, count)| (0..*count).map(move |at| Point::Log(number, at)));
    logs.chain((0..files).map(Point::File)).collect()
}

#[test]
fn the_power_can_fail_at_any_operation() {
    // All points, or a few of each history.
    let (histories, count) = match std::env::var("BRAID_SQLITE_HISTORIES") {
        Ok(histories) => (histories.parse().unwrap(), usize::MAX),
        Err(_) => (8, 12),
    };
    let (mut total, steps) = (0, 30);
    let run = |seed, point| {
        let _shown = Show(seed, point);
        History::new(seed).run(point, steps);
    };
    // Once found a defect: the zeros of an unwritten `-wal` file looked like frames.
    run(2, Point::File(37));
    for seed in 0..histories {
        let mut points = points(seed, steps);
        if points.len() > count {
            let mut random = fastrand::Rng::with_seed(seed);
            random.shuffle(&mut points);
            points.truncate(count);
        }
        for point in &points {
            run(seed, *point);
        }
        total += points.len();
    }
    let reached = lock(&REACHED);
    println!("{reached:#?}");
    for what in MUST_OCCUR {
        assert!(reached.get(what).is_some_and(|count| *count > 0), "{what}");
    }
    println!("{total} power failures in {histories} histories");
}
