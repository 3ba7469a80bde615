//! NVWAL under SQLite: one-row transactions by the latency of the log's memory, against SQLite's own
//! log on the disk.
//!
//! Mobibench's table; each transaction inserts, updates or deletes one row with 100 bytes of text. A
//! measurement ends with a checkpoint, so that no series leaves its work to the next one.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, params};

use super::{Diagram, PaperSpec, new_directory, remove_directory};
use crate::BenchError;

/// Latencies of a flushed line, in nanoseconds.
const LATENCIES: [u32; 5] = [0, 437, 1000, 1942, 3000];

/// Bytes of a frame of SQLite's own log.
const FRAME: u64 = 24 + 4096;

/// Rows of the table, unless the caller says otherwise.
const ROWS: i64 = 10_000;

/// What a transaction does with its row.
#[derive(Clone, Copy)]
enum Operation {
    Insert,
    Update,
    Delete,
}

impl Operation {
    const ALL: [Self; 3] = [Self::Insert, Self::Update, Self::Delete];

    fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    fn sql(self) -> &'static str {
        match self {
            Self::Insert => "INSERT INTO tblMyList (id, Value, creation_date) VALUES (?2, ?1, 0)",
            Self::Update => "UPDATE tblMyList SET Value = ?1 WHERE id = ?2",
            Self::Delete => "DELETE FROM tblMyList WHERE id = ?2 AND ?1 IS NOT NULL",
        }
    }
}

/// A way to keep the log.
#[derive(Clone, Copy)]
struct Setup {
    name: &'static str,
    /// Parameters of the database's URI.
    uri: &'static str,
    /// Frames between two checkpoints.
    checkpoint: u32,
    /// Value of `synchronous`.
    synchronous: &'static str,
    /// Value of `locking_mode`.
    locking: &'static str,
    /// Transactions before a wait for the device, in mode `ticket`; 0 for no wait.
    wait: u64,
    is_database_in_memory: bool,
    is_log_in_memory: bool,
}

impl Setup {
    /// SQLite with its default settings.
    const fn stock(name: &'static str) -> Self {
        Self {
            name,
            uri: "vfs=unix",
            checkpoint: 1000,
            synchronous: "FULL",
            locking: "NORMAL",
            wait: 0,
            is_database_in_memory: false,
            is_log_in_memory: false,
        }
    }

    /// The extension with the recommended settings, and its log in a file.
    const fn braid(name: &'static str, uri: &'static str) -> Self {
        Self {
            uri,
            checkpoint: 10_000,
            ..Self::stock(name)
        }
    }

    /// The extension with its log in memory.
    const fn in_memory(name: &'static str, uri: &'static str) -> Self {
        Self {
            is_log_in_memory: true,
            ..Self::braid(name, uri)
        }
    }

    fn is_extension(&self) -> bool {
        self.uri.starts_with("vfs=braid")
    }
}

const STOCK: Setup = Setup::stock("SQLite");

/// The paper's steps.
const STEPS: [Setup; 6] = [
    Setup::in_memory(
        "whole pages, eager",
        "vfs=braid&braid_mode=eager&braid_pages=whole",
    ),
    Setup::in_memory(
        "whole pages, lazy",
        "vfs=braid&braid_mode=lazy&braid_pages=whole&braid_block=4352",
    ),
    Setup::in_memory("differences", "vfs=braid&braid_mode=lazy&braid_block=4352"),
    Setup::in_memory(
        "whole pages, heap",
        "vfs=braid&braid_mode=lazy&braid_pages=whole",
    ),
    Setup::in_memory("differences, heap", "vfs=braid&braid_mode=lazy"),
    Setup::in_memory(
        "differences, heap, checksum",
        "vfs=braid&braid_mode=checksum",
    ),
];

/// Where files can lie.
const PLACES: [Setup; 11] = [
    STOCK,
    Setup {
        locking: "EXCLUSIVE",
        ..Setup::stock("SQLite, EXCLUSIVE")
    },
    Setup {
        synchronous: "NORMAL",
        ..Setup::stock("SQLite, NORMAL")
    },
    Setup::braid("log in a file", "vfs=braid"),
    Setup {
        wait: 32,
        ..Setup::braid("32 per wait", "vfs=braid&braid_mode=ticket")
    },
    Setup {
        wait: 32,
        locking: "EXCLUSIVE",
        ..Setup::braid("32 per wait, EXCLUSIVE", "vfs=braid&braid_mode=ticket")
    },
    Setup {
        checkpoint: 1000,
        ..Setup::in_memory("log in memory, default", "vfs=braid")
    },
    Setup::in_memory("log in memory", "vfs=braid"),
    Setup {
        locking: "EXCLUSIVE",
        ..Setup::in_memory("log in memory, EXCLUSIVE", "vfs=braid")
    },
    Setup {
        is_database_in_memory: true,
        ..Setup::stock("SQLite in memory")
    },
    Setup {
        is_database_in_memory: true,
        ..Setup::in_memory("all in memory", "vfs=braid")
    },
];

fn failed(error: rusqlite::Error) -> BenchError {
    BenchError::peer("sqlite", error)
}

/// A database with Mobibench's table.
struct Database {
    connection: Connection,
    random: fastrand::Rng,
}

/// What the transactions of an operation took.
#[derive(Clone, Copy, Default)]
struct Taken {
    per_second: f64,
    /// Bytes of the log, per transaction.
    bytes: f64,
    /// The same, if each frame had its header and its page.
    frames: f64,
}

/// What the extension's log got since it was opened: bytes, and frames.
#[derive(Clone, Copy, Default)]
struct Logged {
    bytes: u64,
    frames: u64,
}

impl Database {
    /// Opens a new database in a directory, which is replaced.
    fn create(dir: &Path, memory: &Path, setup: &Setup, latency: u32) -> Result<Self, BenchError> {
        for dir in [dir, memory] {
            new_directory(dir)?;
        }
        let parent = if setup.is_database_in_memory {
            memory
        } else {
            dir
        };
        let path = parent.join("mobibench.db");
        let mut uri = format!("file:{}?{}", path.display(), setup.uri);
        if setup.is_log_in_memory {
            uri += &format!("&braid_log={}&braid_latency={latency}", memory.display());
        }
        let connection = Connection::open_with_flags(uri, OpenFlags::default()).map_err(failed)?;
        for pragma in [
            format!("locking_mode = {}", setup.locking),
            "journal_mode = WAL".to_owned(),
            format!("synchronous = {}", setup.synchronous),
            format!("wal_autocheckpoint = {}", setup.checkpoint),
        ] {
            // Some answer with a row.
            let mut statement = connection
                .prepare(&format!("PRAGMA {pragma}"))
                .map_err(failed)?;
            let mut rows = statement.query([]).map_err(failed)?;
            while rows.next().map_err(failed)?.is_some() {}
        }
        connection
            .execute_batch(
                "CREATE TABLE tblMyList (id INTEGER PRIMARY KEY AUTOINCREMENT, Value TEXT NOT NULL, \
                 creation_date LONG)",
            )
            .map_err(failed)?;
        Ok(Self {
            connection,
            random: fastrand::Rng::with_seed(1),
        })
    }

    fn logged(&self, setup: &Setup) -> Result<Logged, BenchError> {
        if !setup.is_extension() {
            return Ok(Logged::default());
        }
        let stats: String = self
            .connection
            .query_row("PRAGMA braid_stats", [], |row| row.get(0))
            .map_err(failed)?;
        let count = |name: &str| {
            let mut fields = stats.split(' ').filter_map(|field| field.split_once('='));
            let value = fields.find(|(field, _)| *field == name);
            value.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
        };
        Ok(Logged {
            bytes: count("bytes"),
            frames: count("whole_pages") + count("differences"),
        })
    }

    fn pragma(&self, pragma: &str) -> Result<(), BenchError> {
        let sql = format!("PRAGMA {pragma}");
        let mut statement = self.connection.prepare_cached(&sql).map_err(failed)?;
        statement.query_row([], |_| Ok(())).map_err(failed)
    }

    /// Runs an operation on each row in a transaction of its own, for at most so long. Rows that are
    /// left are treated in one transaction, which is not measured.
    fn run(
        &mut self,
        operation: Operation,
        rows: i64,
        setup: &Setup,
        each: Duration,
    ) -> Result<Taken, BenchError> {
        let mut ids: Vec<i64> = (1..=rows).collect();
        if !matches!(operation, Operation::Insert) {
            self.random.shuffle(&mut ids);
        }
        self.pragma("wal_checkpoint(RESTART)")?;
        let before = self.logged(setup)?;
        let mut statement = self.connection.prepare(operation.sql()).map_err(failed)?;
        let mut random = self.random.clone();
        let mut execute = |id: i64| {
            let text: String = (0..100).map(|_| random.alphanumeric()).collect();
            statement.execute(params![text, id]).map_err(failed)
        };
        let mut rest = ids.iter().copied();
        let mut done = 0_u64;
        let begun = Instant::now();
        while begun.elapsed() < each || (setup.wait > 0 && !done.is_multiple_of(setup.wait)) {
            let Some(id) = rest.next() else {
                break;
            };
            execute(id)?;
            done += 1;
            if setup.wait > 0 && done.is_multiple_of(setup.wait) {
                self.pragma("braid_wait")?;
            }
        }
        if setup.wait > 0 {
            self.pragma("braid_wait")?;
        }
        let after = self.logged(setup)?;
        self.pragma("wal_checkpoint(PASSIVE)")?;
        let per = 1.0 / done.max(1) as f64;
        let taken = Taken {
            per_second: done as f64 / begun.elapsed().as_secs_f64(),
            bytes: (after.bytes - before.bytes) as f64 * per,
            frames: ((after.frames - before.frames) * FRAME) as f64 * per,
        };
        self.connection.execute_batch("BEGIN").map_err(failed)?;
        for id in rest {
            execute(id)?;
        }
        self.connection.execute_batch("COMMIT").map_err(failed)?;
        Ok(taken)
    }
}

/// Runs all operations on a new database.
fn measure(setup: &Setup, latency: u32, spec: &PaperSpec) -> Result<[Taken; 3], BenchError> {
    let memory = spec.memory_dir.join("log");
    let dir = spec.dir.join("database");
    let mut database = Database::create(&dir, &memory, setup, latency)?;
    let rows = spec
        .records
        .map_or(ROWS, |rows| i64::try_from(rows).unwrap_or(ROWS));
    let mut taken = [Taken::default(); 3];
    for (operation, taken) in Operation::ALL.into_iter().zip(&mut taken) {
        *taken = database.run(operation, rows, setup, spec.each)?;
    }
    drop(database);
    remove_directory(&dir)?;
    remove_directory(&memory)?;
    Ok(taken)
}

/// Throughput of each operation by the latency of the memory; by where the files lie; and bytes of the
/// log.
pub(super) fn figures(
    spec: &PaperSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Diagram>, BenchError> {
    braid_sqlite::register!(rusqlite::ffi).map_err(|error| BenchError::peer("sqlite", error))?;
    let mut diagrams: Vec<Diagram> = Operation::ALL
        .into_iter()
        .map(|operation| {
            let name = operation.name();
            Diagram::new(
                &format!("nvwal-sqlite-{name}"),
                &format!("NVWAL under SQLite: {name}, one row per transaction"),
                "ns per flushed line",
                "transactions/s",
            )
        })
        .collect();
    let operations = "1 insert, 2 update, 3 delete";
    let mut bytes = Diagram::new(
        "nvwal-sqlite-bytes",
        "NVWAL under SQLite: log bytes",
        operations,
        "bytes/transaction",
    );
    let mut places = Diagram::new(
        "nvwal-sqlite-places",
        "SQLite with and without the extension, by place",
        operations,
        "transactions/s",
    );
    for setup in &PLACES {
        progress(setup.name);
        let taken = measure(setup, 0, spec)?;
        for (at, taken) in [1.0, 2.0, 3.0].into_iter().zip(taken) {
            places.add(setup.name, at, taken.per_second);
            if setup.name == "log in memory" {
                bytes.add("SQLite", at, taken.frames);
                bytes.add("recommended", at, taken.bytes);
            } else if setup.name == "log in memory, default" {
                bytes.add("default checkpoints", at, taken.bytes);
            }
        }
    }
    for latency in LATENCIES {
        for setup in &STEPS {
            progress(&format!("{}, {latency} ns", setup.name));
            let taken = measure(setup, latency, spec)?;
            for (diagram, taken) in diagrams.iter_mut().zip(taken) {
                diagram.add(setup.name, f64::from(latency), taken.per_second);
            }
        }
        // The disk has no such latency: a level line to compare with.
        for (diagram, at) in diagrams.iter_mut().zip([1.0, 2.0, 3.0]) {
            let stock = places
                .points
                .iter()
                .find(|p| p.series == STOCK.name && p.x == at);
            let per_second = stock.map_or(0.0, |point| point.y);
            diagram.add("SQLite on the disk", f64::from(latency), per_second);
        }
    }
    diagrams.extend([places, bytes]);
    Ok(diagrams)
}
