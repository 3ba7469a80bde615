//! SQLite: B-trees in one file with a write-ahead log, one writer at a time.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ::rusqlite::{CachedStatement, Connection, params};

use super::{
    Abilities, Acknowledgement, Body, KvEngine, Mode, Order, Session, Stop, TableId, Transaction,
    Wait,
};
use crate::BenchError;

#[allow(clippy::unnecessary_wraps)] // the registry's signature
pub(super) fn version() -> Result<String, String> {
    Ok(::rusqlite::version().to_owned())
}

/// All sessions write through one connection. SQLite allows one write at a time anyway, a session
/// that waits in SQLite sleeps and polls, and a connection drops its page cache after a write of
/// another one. Each session reads through its own connection.
pub(super) fn open(
    dir: &Path,
    tables: &[&str],
    cache_bytes: usize,
) -> Result<Box<dyn KvEngine>, BenchError> {
    let path = dir.join("sqlite");
    let connection = connect(&path, cache_bytes)?;
    for table in tables {
        // A table whose rows are stored in the tree of the primary key:
        // <https://www.sqlite.org/withoutrowid.html>.
        connection
            .execute_batch(&format!(
                "CREATE TABLE IF NOT EXISTS {} (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID",
                quoted(table)
            ))
            .map_err(failed)?;
    }
    Ok(Box::new(Sqlite {
        path,
        cache_bytes,
        writer: Mutex::new(connection),
        statements: tables.iter().map(|table| Statements::new(table)).collect(),
    }))
}

/// Settings: a log, and `synchronous=FULL`, which syncs it in each commit
/// (<https://www.sqlite.org/pragma.html#pragma_synchronous>; NORMAL would lose the last commits);
/// memory-mapped reads (<https://www.sqlite.org/mmap.html>); the default page of 4 KiB and
/// checkpoint each 1,000 pages. The library is built to sync by `fdatasync`, as distributions build
/// it (`HAVE_FDATASYNC`, .cargo/config.toml).
fn connect(path: &Path, cache_bytes: usize) -> Result<Connection, BenchError> {
    let connection = Connection::open(path).map_err(failed)?;
    connection.set_prepared_statement_cache_capacity(256);
    connection
        .pragma_update(None, "journal_mode", "WAL")
        .map_err(failed)?;
    connection
        .pragma_update(None, "synchronous", "FULL")
        .map_err(failed)?;
    connection
        .pragma_update(
            None,
            "mmap_size",
            i64::try_from(cache_bytes).unwrap_or(i64::MAX),
        )
        .map_err(failed)?;
    Ok(connection)
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Texts of a table's prepared statements.
struct Statements {
    get: String,
    put: String,
    delete: String,
    ascending: String,
    descending: String,
}

impl Statements {
    fn new(table: &str) -> Self {
        let table = quoted(table);
        Statements {
            get: format!("SELECT v FROM {table} WHERE k = ?1"),
            put: format!(
                "INSERT INTO {table} (k, v) VALUES (?1, ?2) ON CONFLICT (k) DO UPDATE SET v = excluded.v"
            ),
            delete: format!("DELETE FROM {table} WHERE k = ?1"),
            ascending: format!("SELECT k, v FROM {table} WHERE k >= ?1 AND k < ?2 ORDER BY k"),
            descending: format!(
                "SELECT k, v FROM {table} WHERE k >= ?1 AND k < ?2 ORDER BY k DESC"
            ),
        }
    }
}

fn failed(error: ::rusqlite::Error) -> BenchError {
    BenchError::peer("sqlite", error)
}

fn stop(error: ::rusqlite::Error) -> Stop {
    Stop::Failed(failed(error))
}

struct Sqlite {
    path: PathBuf,
    cache_bytes: usize,
    writer: Mutex<Connection>,
    statements: Vec<Statements>,
}

impl KvEngine for Sqlite {
    fn name(&self) -> &str {
        "sqlite"
    }

    fn abilities(&self) -> Abilities {
        Abilities::SERIALIZABLE
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(SqliteSession {
            engine: self,
            reader: connect(&self.path, self.cache_bytes)?,
        }))
    }

    fn settle(&self) -> Result<(), BenchError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .map_err(failed)?;
        writer.execute_batch("PRAGMA optimize").map_err(failed)
    }
}

struct SqliteSession<'a> {
    engine: &'a Sqlite,
    reader: Connection,
}

impl Session for SqliteSession<'_> {
    fn transact(
        &mut self,
        mode: Mode,
        _: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        if mode == Mode::ReadOnly {
            run(&self.reader, "BEGIN", &self.engine.statements, mode, body)?;
        } else {
            // A panic in a body rolled its transaction back while unwinding, so the lock's poison
            // has no meaning.
            let writer = self
                .engine
                .writer
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            run(
                &writer,
                "BEGIN IMMEDIATE",
                &self.engine.statements,
                mode,
                body,
            )?;
        }
        Ok(Acknowledgement::Durable)
    }

    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        get(&self.reader, &self.engine.statements[table].get, key, found)
    }
}

fn run(
    connection: &Connection,
    begin: &str,
    statements: &[Statements],
    mode: Mode,
    body: &mut Body<'_>,
) -> Result<(), Stop> {
    execute(connection, begin, [])?;
    let undo = Undo(connection);
    body(&mut Running {
        connection,
        statements,
        mode,
    })?;
    execute(connection, "COMMIT", [])?;
    std::mem::forget(undo);
    Ok(())
}

/// Rolls back a transaction that was not committed.
struct Undo<'a>(&'a Connection);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        // An error if SQLite has already rolled it back.
        let _ = execute(self.0, "ROLLBACK", []);
    }
}

struct Running<'a> {
    connection: &'a Connection,
    statements: &'a [Statements],
    mode: Mode,
}

fn prepare<'a>(connection: &'a Connection, sql: &str) -> Result<CachedStatement<'a>, Stop> {
    connection.prepare_cached(sql).map_err(stop)
}

fn execute(
    connection: &Connection,
    sql: &str,
    values: impl ::rusqlite::Params,
) -> Result<(), Stop> {
    prepare(connection, sql)?.execute(values).map_err(stop)?;
    Ok(())
}

fn get(
    connection: &Connection,
    sql: &str,
    key: &[u8],
    found: &mut dyn FnMut(&[u8]),
) -> Result<bool, Stop> {
    let mut statement = prepare(connection, sql)?;
    let mut rows = statement.query([key]).map_err(stop)?;
    let row = rows.next().map_err(stop)?;
    if let Some(row) = row {
        found(blob(row, 0)?);
    }
    Ok(row.is_some())
}

fn blob<'a>(row: &'a ::rusqlite::Row<'_>, column: usize) -> Result<&'a [u8], Stop> {
    row.get_ref(column)
        .map_err(stop)?
        .as_blob()
        .map_err(|error| stop(error.into()))
}

impl Transaction for Running<'_> {
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        get(self.connection, &self.statements[table].get, key, found)
    }

    fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        self.mode.writable()?;
        execute(
            self.connection,
            &self.statements[table].put,
            params![key, value],
        )
    }

    fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        self.mode.writable()?;
        execute(self.connection, &self.statements[table].delete, [key])
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        to: &[u8],
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        let statements = &self.statements[table];
        let mut statement = prepare(
            self.connection,
            match order {
                Order::Ascending => &statements.ascending,
                Order::Descending => &statements.descending,
            },
        )?;
        let mut rows = statement.query([from, to]).map_err(stop)?;
        while let Some(row) = rows.next().map_err(stop)? {
            if !visit(blob(row, 0)?, blob(row, 1)?) {
                break;
            }
        }
        Ok(())
    }
}
