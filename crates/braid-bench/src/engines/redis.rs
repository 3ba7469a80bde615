//! Redis: a server with its data in memory and an append-only file, one thread for all commands.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ::redis::{Client, Connection, Pipeline, RedisError, RedisResult, cmd, pipe};
use rustix::process::Signal;

use super::server::{self, Account, Server, Start};
use super::{
    Abilities, Acknowledgement, Body, KvEngine, Mode, Order, Session, Stop, TableId, Transaction,
    Wait,
};
use crate::{BenchError, Usage};

fn program() -> Option<PathBuf> {
    server::find_program(["redis-server".into()])
}

pub(super) fn version() -> Result<String, String> {
    let program = program().ok_or("redis-server is not in PATH; install redis-server")?;
    // "Redis server v=7.0.15 sha=…"
    let text = server::version_text(&program)?;
    let version = text.split_once("v=").map_or(&text[..], |(_, rest)| {
        rest.split_whitespace().next().unwrap_or(rest)
    });
    Ok(version.to_owned())
}

/// Settings, after <https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/>:
/// the append-only file, synced before any command is answered (`appendfsync always`), and no
/// snapshots, which would add nothing to it. All others are defaults; redis.conf recommends I/O
/// threads only from four cores on.
pub(super) fn open(
    dir: &Path,
    _tables: &[&str],
    _cache_bytes: usize,
) -> Result<Box<dyn KvEngine>, BenchError> {
    let unavailable = || BenchError::peer("redis", "redis-server is not in PATH");
    let program = program().ok_or_else(unavailable)?;
    let account = Account::for_server("redis");
    let dir = dir.join("redis");
    Account::create_dir(account, &dir)?;
    let start = Start {
        name: "redis",
        account,
        stop: Signal::TERM,
        dir: &dir,
    };
    let socket = |sockets: &Path| sockets.join("redis");
    let (server, (client, _), _) = Server::start(
        &start,
        |sockets| {
            let mut command = Account::command(account, &program, &dir);
            command
                .args(["--port", "0", "--save", "", "--appendonly", "yes"])
                .args(["--appendfsync", "always", "--daemonize", "no", "--dir"])
                .arg(&dir)
                .arg("--unixsocket")
                .arg(socket(sockets));
            command
        },
        |sockets| {
            // A server that is still loading its file answers with an error.
            let connect = || {
                let client = Client::open(format!("unix://{}", socket(sockets).display()))?;
                let mut connection = client.get_connection()?;
                cmd("PING").query::<()>(&mut connection)?;
                Ok((client, connection))
            };
            connect().map_err(|error: RedisError| error.to_string())
        },
    )?;
    Ok(Box::new(Redis {
        client: Mutex::new(client),
        server,
    }))
}

fn failed(error: RedisError) -> BenchError {
    BenchError::peer("redis", error)
}

fn stop(error: RedisError) -> Stop {
    Stop::Failed(failed(error))
}

struct Redis {
    client: Mutex<Client>,
    server: Server,
}

impl KvEngine for Redis {
    fn name(&self) -> &str {
        "redis"
    }

    fn abilities(&self) -> Abilities {
        Abilities::KEYS
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        let client = self.client.lock().map_err(|_| BenchError::Panicked)?;
        Ok(Box::new(RedisSession {
            connection: client.get_connection().map_err(failed)?,
        }))
    }

    /// No work is left: the data is in memory.
    fn settle(&self) -> Result<(), BenchError> {
        Ok(())
    }

    fn server_usage(&self) -> Option<Usage> {
        Some(Usage::of_server(self.server.pid()))
    }
}

struct RedisSession {
    connection: Connection,
}

/// Redis has one space of keys: a table is a prefix.
fn full_key(table: TableId, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(4 + key.len());
    full.extend_from_slice(&(table as u32).to_be_bytes());
    full.extend_from_slice(key);
    full
}

impl Session for RedisSession {
    fn transact(
        &mut self,
        mode: Mode,
        _: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        let mut running = Running {
            connection: &mut self.connection,
            mode,
            reads: 0,
            writes: Vec::new(),
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
        let value: Option<Vec<u8>> = cmd("GET")
            .arg(full_key(table, key))
            .query(&mut self.connection)
            .map_err(stop)?;
        Ok(borrow_value(value.as_deref(), found))
    }
}

fn borrow_value(value: Option<&[u8]>, found: &mut dyn FnMut(&[u8])) -> bool {
    if let Some(value) = value {
        found(value);
    }
    value.is_some()
}

/// Reads are watched. Writes are kept until the commit sends them as one `MULTI`, which the server
/// refuses if a watched key has changed:
/// <https://redis.io/docs/latest/develop/using-commands/transactions/>.
struct Running<'a> {
    connection: &'a mut Connection,
    mode: Mode,
    /// Number of keys watched since the transaction began.
    reads: usize,
    /// Keys and their new values; the last one of a key counts.
    writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Running<'_> {
    fn commit(mut self) -> Result<(), Stop> {
        if self.reads == 0 && self.writes.is_empty() {
            return Ok(());
        }
        if self.writes.is_empty() && self.reads == 1 {
            // One read is consistent by itself; dropping the transaction unwatches the key.
            return Ok(());
        }
        let mut commands = pipe();
        for (key, value) in &self.writes {
            add_write(&mut commands, key, value.as_deref());
        }
        if self.reads == 0 && self.writes.len() == 1 {
            return commands.query(self.connection).map_err(stop);
        }
        if self.writes.is_empty() {
            // Without a command, the client would not check whether the reads still hold.
            commands.cmd("PING").ignore();
        }
        let done: RedisResult<Option<()>> = commands.atomic().query(self.connection);
        self.reads = 0;
        match done.map_err(stop)? {
            Some(()) => Ok(()),
            None => Err(Stop::Conflict),
        }
    }

    fn write(&mut self, table: TableId, key: &[u8], value: Option<&[u8]>) -> Result<(), Stop> {
        self.mode.writable()?;
        self.writes
            .push((full_key(table, key), value.map(<[u8]>::to_vec)));
        Ok(())
    }
}

fn add_write(commands: &mut Pipeline, key: &[u8], value: Option<&[u8]>) {
    match value {
        Some(value) => commands.cmd("SET").arg(key).arg(value).ignore(),
        None => commands.cmd("DEL").arg(key).ignore(),
    };
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.reads > 0 {
            // A connection that fails here also fails at its next use.
            let _: RedisResult<()> = cmd("UNWATCH").query(self.connection);
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
        let key = full_key(table, key);
        if let Some((_, value)) = self
            .writes
            .iter()
            .rev()
            .find(|(written, _)| *written == key)
        {
            return Ok(borrow_value(value.as_deref(), found));
        }
        self.reads += 1;
        let (value,): (Option<Vec<u8>>,) = pipe()
            .cmd("WATCH")
            .arg(&key)
            .ignore()
            .cmd("GET")
            .arg(&key)
            .query(self.connection)
            .map_err(stop)?;
        Ok(borrow_value(value.as_deref(), found))
    }

    fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        self.write(table, key, Some(value))
    }

    fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        self.write(table, key, None)
    }

    fn scan(
        &mut self,
        _: TableId,
        _: &[u8],
        _: &[u8],
        _: Order,
        _: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        Err(Stop::Failed(BenchError::Unable {
            engine: "redis",
            what: "scans in the order of keys",
        }))
    }
}
