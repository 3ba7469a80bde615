//! PostgreSQL: a server with a process for each session, serializable snapshot isolation.

use std::path::{Path, PathBuf};

use ::postgres::error::SqlState;
use ::postgres::types::ToSql;
use ::postgres::{Client, Config, NoTls, Row, Statement};
use rustix::process::Signal;

use super::server::{self, Account, Server, Start, with_tail};
use super::{
    Abilities, Acknowledgement, Body, KvEngine, Mode, Order, Session, Stop, TableId, Transaction,
    Wait,
};
use crate::{BenchError, Usage};

/// Maximum number of sessions.
const CONNECTIONS: usize = 300;

/// Number of rows that a scan fetches at a time.
const FETCH: i64 = 128;

fn program(name: &str) -> Option<PathBuf> {
    // Debian installs each version in a directory of its own; use the newest.
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, entry.path().join("bin").join(name)))
        })
        .collect();
    versions.sort();
    let versions = versions.into_iter().rev().map(|(_, path)| path);
    server::find_program(std::iter::once(name.into()).chain(versions))
}

pub(super) fn version() -> Result<String, String> {
    let (Some(program), Some(_)) = (program("postgres"), program("initdb")) else {
        return Err(
            "postgres and initdb are neither in PATH nor under /usr/lib/postgresql; install postgresql"
                .to_owned(),
        );
    };
    // "postgres (PostgreSQL) 15.14 (Debian …)"
    let text = server::version_text(&program)?;
    Ok(text.split_whitespace().nth(2).unwrap_or(&text).to_owned())
}

/// Settings, after <https://www.postgresql.org/docs/15/runtime-config-resource.html>
/// (`shared_buffers`, sized by the caller, and a larger `max_wal_size` with it),
/// <https://www.postgresql.org/docs/15/runtime-config-wal.html> (`wal_level=minimal`, because there
/// are no replicas; all settings that make commits durable are on by default and repeated here) and
/// <https://www.postgresql.org/docs/15/transaction-iso.html#XACT-SERIALIZABLE>.
pub(super) fn open(
    dir: &Path,
    tables: &[&str],
    cache_bytes: usize,
) -> Result<Box<dyn KvEngine>, BenchError> {
    let missing = |name: &str| failed_text(format!("{name} is missing"));
    let postgres = program("postgres").ok_or_else(|| missing("postgres"))?;
    let account = Account::for_server("postgres");
    let dir = dir.join("postgres");
    Account::create_dir(account, &dir)?;
    let data = dir.join("data");
    if !data.join("PG_VERSION").exists() {
        let initdb = program("initdb").ok_or_else(|| missing("initdb"))?;
        create_cluster(account, &initdb, &dir, &data)?;
    }
    let start = Start {
        name: "postgres",
        account,
        // "Fast shutdown": https://www.postgresql.org/docs/15/server-shutdown.html
        stop: Signal::INT,
        dir: &dir,
    };
    let (server, mut client, sockets) = Server::start(
        &start,
        |sockets| {
            let mut command = Account::command(account, &postgres, &dir);
            command.arg("-D").arg(&data).arg("-k").arg(sockets);
            for setting in [
                "listen_addresses=",
                "fsync=on",
                "synchronous_commit=on",
                "full_page_writes=on",
                "wal_level=minimal",
                "max_wal_senders=0",
                "max_wal_size=4GB",
                "default_transaction_isolation=serializable",
                &format!("shared_buffers={}kB", (cache_bytes >> 10).max(1024)),
                &format!("max_connections={CONNECTIONS}"),
            ] {
                command.arg("-c").arg(setting);
            }
            command
        },
        |sockets| connect(sockets).map_err(|error| error.to_string()),
    )?;
    for table in tables {
        client
            .batch_execute(&format!(
                "CREATE TABLE IF NOT EXISTS {} (k bytea PRIMARY KEY, v bytea NOT NULL)",
                quoted(table)
            ))
            .map_err(failed)?;
    }
    Ok(Box::new(Postgres {
        sockets,
        tables: tables.iter().map(|table| quoted(table)).collect(),
        server,
    }))
}

fn create_cluster(
    account: Option<Account>,
    initdb: &Path,
    dir: &Path,
    data: &Path,
) -> Result<(), BenchError> {
    // A killed run may have left an incomplete cluster.
    if data.exists() {
        std::fs::remove_dir_all(data)
            .map_err(|error| BenchError::io("cannot remove an unfinished cluster", error))?;
    }
    let output = Account::command(account, initdb, dir)
        .arg("-D")
        .arg(data)
        .args(["--username=braid", "--auth=trust", "--encoding=UTF8"])
        .args(["--locale=C", "--no-instructions"])
        .output()
        .map_err(|error| BenchError::io("cannot run initdb", error))?;
    if output.status.success() {
        return Ok(());
    }
    let mut text = "initdb failed".to_owned();
    if account.is_some() {
        text.push_str(
            "; it does not run as root, so another user must be able to reach the benchmark's directory",
        );
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed_text(with_tail(&text, &said)))
}

fn connect(sockets: &Path) -> Result<Client, ::postgres::Error> {
    Config::new()
        .host_path(sockets)
        .user("braid")
        .dbname("postgres")
        .connect(NoTls)
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn failed_text(text: String) -> BenchError {
    BenchError::peer("postgres", text)
}

fn failed(error: ::postgres::Error) -> BenchError {
    BenchError::peer("postgres", error)
}

fn stop(error: ::postgres::Error) -> Stop {
    match error.code() {
        Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED) => {
            Stop::Conflict
        }
        _ => Stop::Failed(failed(error)),
    }
}

struct Postgres {
    sockets: PathBuf,
    /// Quoted names of the tables.
    tables: Vec<String>,
    server: Server,
}

impl KvEngine for Postgres {
    fn name(&self) -> &str {
        "postgres"
    }

    fn abilities(&self) -> Abilities {
        Abilities::SERIALIZABLE
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        let mut client = connect(&self.sockets).map_err(failed)?;
        let statements = self
            .tables
            .iter()
            .map(|table| Statements::prepare(&mut client, table))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        Ok(Box::new(PgSession { client, statements }))
    }

    fn settle(&self) -> Result<(), BenchError> {
        let mut client = connect(&self.sockets).map_err(failed)?;
        client.batch_execute("VACUUM ANALYZE").map_err(failed)?;
        client.batch_execute("CHECKPOINT").map_err(failed)
    }

    fn server_usage(&self) -> Option<Usage> {
        Some(Usage::of_server(self.server.pid()))
    }
}

/// Prepared statements of a table.
struct Statements {
    get: Statement,
    get_for_update: Statement,
    put: Statement,
    delete: Statement,
    ascending: Statement,
    descending: Statement,
}

impl Statements {
    fn prepare(client: &mut Client, table: &str) -> Result<Self, ::postgres::Error> {
        let get = format!("SELECT v FROM {table} WHERE k = $1");
        let scan = format!("SELECT k, v FROM {table} WHERE k >= $1 AND k < $2 ORDER BY k");
        Ok(Statements {
            get: client.prepare(&get)?,
            get_for_update: client.prepare(&format!("{get} FOR UPDATE"))?,
            put: client.prepare(&format!(
                "INSERT INTO {table} (k, v) VALUES ($1, $2) ON CONFLICT (k) DO UPDATE SET v = excluded.v"
            ))?,
            delete: client.prepare(&format!("DELETE FROM {table} WHERE k = $1"))?,
            ascending: client.prepare(&format!("{scan} LIMIT $3"))?,
            descending: client.prepare(&format!("{scan} DESC LIMIT $3"))?,
        })
    }
}

struct PgSession {
    client: Client,
    /// One set for each table.
    statements: Vec<Statements>,
}

impl Session for PgSession {
    fn transact(
        &mut self,
        mode: Mode,
        _: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        let mut running = Running {
            session: self,
            mode,
            has_begun: false,
            first: None,
        };
        body(&mut running)?;
        running.commit()?;
        Ok(Acknowledgement::Durable)
    }

    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        let row = self
            .client
            .query_opt(&self.statements[table].get, &[&key])
            .map_err(stop)?;
        Ok(borrow_value(row.as_ref(), found))
    }
}

fn borrow_value(row: Option<&Row>, found: &mut dyn FnMut(&[u8])) -> bool {
    if let Some(row) = row {
        found(row.get(0));
    }
    row.is_some()
}

struct Write {
    table: TableId,
    key: Vec<u8>,
    /// `None` removes the key.
    value: Option<Vec<u8>>,
}

/// A transaction of one write is sent as one statement, as a client would send it; so the first
/// write is delayed until the next operation.
struct Running<'a> {
    session: &'a mut PgSession,
    mode: Mode,
    has_begun: bool,
    first: Option<Write>,
}

impl Running<'_> {
    fn begin(&mut self) -> Result<(), Stop> {
        if !self.has_begun {
            let begin = match self.mode {
                Mode::ReadOnly => "BEGIN READ ONLY",
                Mode::ReadWrite => "BEGIN",
            };
            self.session.client.batch_execute(begin).map_err(stop)?;
            self.has_begun = true;
            if let Some(write) = self.first.take() {
                self.execute(write.table, &write.key, write.value.as_deref())?;
            }
        }
        Ok(())
    }

    fn commit(mut self) -> Result<(), Stop> {
        if let Some(write) = self.first.take() {
            return self.execute(write.table, &write.key, write.value.as_deref());
        }
        if self.has_begun {
            self.session.client.batch_execute("COMMIT").map_err(stop)?;
            self.has_begun = false;
        }
        Ok(())
    }

    fn execute(&mut self, table: TableId, key: &[u8], value: Option<&[u8]>) -> Result<(), Stop> {
        let PgSession { client, statements } = &mut *self.session;
        let statements = &statements[table];
        match value {
            Some(value) => client.execute(&statements.put, &[&key, &value]),
            None => client.execute(&statements.delete, &[&key]),
        }
        .map_err(stop)?;
        Ok(())
    }

    fn write(&mut self, table: TableId, key: &[u8], value: Option<&[u8]>) -> Result<(), Stop> {
        self.mode.writable()?;
        if !self.has_begun && self.first.is_none() {
            self.first = Some(Write {
                table,
                key: key.to_vec(),
                value: value.map(<[u8]>::to_vec),
            });
            return Ok(());
        }
        self.begin()?;
        self.execute(table, key, value)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.has_begun {
            // A connection that fails here also fails at its next use.
            let _ = self.session.client.batch_execute("ROLLBACK");
        }
    }
}

impl Transaction for Running<'_> {
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        self.begin()?;
        self.session.get(table, key, found)
    }

    fn get_for_update(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        if self.mode == Mode::ReadOnly {
            return self.get(table, key, found);
        }
        self.begin()?;
        let PgSession { client, statements } = &mut *self.session;
        let row = client
            .query_opt(&statements[table].get_for_update, &[&key])
            .map_err(stop)?;
        Ok(borrow_value(row.as_ref(), found))
    }

    fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        self.write(table, key, Some(value))
    }

    fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        self.write(table, key, None)
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        to: &[u8],
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        self.begin()?;
        let PgSession { client, statements } = &mut *self.session;
        let statement = match order {
            Order::Ascending => &statements[table].ascending,
            Order::Descending => &statements[table].descending,
        };
        let (mut from, mut to) = (from.to_vec(), to.to_vec());
        loop {
            let values: [&(dyn ToSql + Sync); 3] = [&from, &to, &FETCH];
            let rows = client.query(statement, &values).map_err(stop)?;
            for row in &rows {
                if !visit(row.get(0), row.get(1)) {
                    return Ok(());
                }
            }
            let Some(last) = rows.last().filter(|_| rows.len() as i64 == FETCH) else {
                return Ok(());
            };
            // The next batch begins after the last key, or ends before it.
            match order {
                Order::Ascending => {
                    from = last.get(0);
                    from.push(0);
                }
                Order::Descending => to = last.get(0),
            }
        }
    }
}
