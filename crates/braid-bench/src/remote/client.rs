//! One connection, and the operations of YCSB's binding for Redis.

use std::sync::Arc;

use fastrand::Rng;
use redis::{Client, Connection, RedisError, cmd, pipe};

use super::ServerSpec;
use crate::{BenchError, Workload};

/// Number of fields of a record, as in YCSB.
const FIELDS: usize = 10;

/// Names and sizes of the records.
#[derive(Debug)]
pub(super) struct Layout {
    /// Beginning of all keys.
    prefix: String,
    /// Size of each field.
    fields: Vec<usize>,
}

impl Layout {
    /// Returns the layout of records of this size, whose keys begin with `prefix`.
    pub(super) fn new(prefix: String, value_size: usize) -> Self {
        let end = |field: usize| value_size * field / FIELDS;
        Layout {
            prefix,
            fields: (0..FIELDS)
                .map(|field| end(field + 1) - end(field))
                .collect(),
        }
    }

    fn key(&self, member: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), b":", member].concat()
    }

    /// Key of the sorted set of all records.
    fn index(&self) -> String {
        format!("{}-index", self.prefix)
    }

    /// Key that has the number of records that were loaded.
    fn mark(&self) -> String {
        format!("{}-loaded", self.prefix)
    }
}

/// Returns what the sorted set calls a record.
fn member(key: u64) -> Vec<u8> {
    format!("{key:016x}").into_bytes()
}

/// Returns the score of a record: as many of the highest bits of its key as a score can have.
fn score(key: u64) -> u64 {
    key >> 11
}

fn field(number: usize) -> String {
    format!("field{number}")
}

/// Connects to a server.
pub(super) fn connect(server: &ServerSpec) -> Result<Connection, BenchError> {
    let connect = || Client::open(server.url())?.get_connection();
    connect().map_err(|error| failed(server, error))
}

pub(super) fn failed(server: &ServerSpec, error: RedisError) -> BenchError {
    BenchError::Server {
        address: server.address.clone(),
        source: error.into(),
    }
}

/// Returns a server's name and version.
pub(super) fn version(connection: &mut Connection) -> Result<String, RedisError> {
    let info: String = cmd("INFO").arg("server").query(connection)?;
    let value = |name: &str| {
        let lines = info.lines().filter_map(|line| line.split_once(':'));
        lines
            .filter(|(key, _)| *key == name)
            .map(|(_, value)| value.trim())
            .next()
    };
    // Braid and Valkey also tell which version of Redis they resemble.
    let known = [
        ("braid", "braid_version"),
        ("valkey", "valkey_version"),
        ("redis", "redis_version"),
    ];
    let found = known
        .iter()
        .find_map(|(name, key)| Some(format!("{name} {}", value(key)?)));
    Ok(found.unwrap_or_else(|| "unknown".into()))
}

/// Returns the prefix of a workload's keys. Workloads on the same data share it, so that the data
/// are loaded once. Each run of the load has a prefix of its own.
pub(super) fn prefix(
    connection: &mut Connection,
    workload: Workload,
    records: u64,
    value_size: usize,
) -> Result<String, RedisError> {
    if workload == Workload::YcsbInsert {
        let run: u64 = cmd("INCR").arg("ycsb-loads").query(connection)?;
        return Ok(format!("ycsb-load-{run}"));
    }
    let family = if workload.is_ycsb() {
        "ycsb"
    } else {
        "uniform"
    };
    Ok(format!("{family}-{records}-{value_size}"))
}

/// The operations on one connection.
pub(super) struct Records {
    connection: Connection,
    layout: Arc<Layout>,
    values: Rng,
}

impl Records {
    pub(super) fn new(connection: Connection, layout: Arc<Layout>) -> Self {
        Records {
            connection,
            layout,
            values: Rng::new(),
        }
    }

    fn value(&mut self, field: usize) -> Vec<u8> {
        let mut value = vec![0; self.layout.fields[field]];
        self.values.fill(&mut value);
        value
    }

    /// Reads all fields of a record; returns whether it exists and has all of them.
    pub(super) fn read(&mut self, key: u64) -> Result<bool, RedisError> {
        let key = self.layout.key(&member(key));
        let found: Vec<Vec<u8>> = cmd("HGETALL").arg(key).query(&mut self.connection)?;
        Ok(found.len() == 2 * FIELDS)
    }

    /// Writes a random field of a record.
    pub(super) fn update(&mut self, key: u64) -> Result<(), RedisError> {
        let number = self.values.usize(..FIELDS);
        let value = self.value(number);
        cmd("HSET")
            .arg(self.layout.key(&member(key)))
            .arg(field(number))
            .arg(value)
            .query(&mut self.connection)
    }

    /// Writes new records and their entries in the sorted set, in one round trip.
    pub(super) fn insert(&mut self, keys: &[u64]) -> Result<(), RedisError> {
        let mut commands = pipe();
        let index = self.layout.index();
        for &key in keys {
            let member = member(key);
            commands.cmd("HSET").arg(self.layout.key(&member)).ignore();
            for number in 0..FIELDS {
                let value = self.value(number);
                commands.arg(field(number)).arg(value);
            }
            let entry = commands.cmd("ZADD").arg(&index);
            entry.arg(score(key)).arg(member).ignore();
        }
        commands.query(&mut self.connection)
    }

    /// Sets strings, several of them in one transaction.
    pub(super) fn set(&mut self, keys: &[u64]) -> Result<(), RedisError> {
        let mut commands = pipe();
        if keys.len() > 1 {
            commands.atomic();
        }
        for &key in keys {
            let mut value = vec![0; self.layout.fields.iter().sum()];
            self.values.fill(&mut value);
            let key = self.layout.key(&member(key));
            commands.cmd("SET").arg(key).arg(value).ignore();
        }
        commands.query(&mut self.connection)
    }

    /// Reads at most `len` records from a key on, in two round trips; returns how many.
    pub(super) fn scan(&mut self, from: u64, len: usize) -> Result<usize, RedisError> {
        let members: Vec<Vec<u8>> = cmd("ZRANGEBYSCORE")
            .arg(self.layout.index())
            .arg(score(from))
            .arg("+inf")
            .arg("LIMIT")
            .arg(0)
            .arg(len)
            .query(&mut self.connection)?;
        if members.is_empty() {
            return Ok(0);
        }
        let mut commands = pipe();
        for member in &members {
            commands.cmd("HGETALL").arg(self.layout.key(member));
        }
        let records: Vec<Vec<Vec<u8>>> = commands.query(&mut self.connection)?;
        let whole = |record: &&Vec<Vec<u8>>| record.len() == 2 * FIELDS;
        Ok(records.iter().filter(whole).count())
    }

    /// Returns whether the server has this many loaded records.
    pub(super) fn is_loaded(&mut self, records: u64) -> Result<bool, RedisError> {
        let mark = cmd("GET")
            .arg(self.layout.mark())
            .query::<Option<u64>>(&mut self.connection)?;
        Ok(mark == Some(records))
    }

    /// Notes that the server has this many records.
    pub(super) fn mark_loaded(&mut self, records: u64) -> Result<(), RedisError> {
        cmd("SET")
            .arg(self.layout.mark())
            .arg(records)
            .query(&mut self.connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_add_up_to_the_size_of_a_record() {
        for size in [8, 99, 1_000, 1_001] {
            let layout = Layout::new("p".into(), size);
            assert_eq!(layout.fields.iter().sum::<usize>(), size);
            assert_eq!(layout.fields.len(), FIELDS);
        }
    }

    #[test]
    fn scores_are_exact_and_in_the_order_of_keys() {
        let keys = [0, 1 << 11, 1 << 40, u64::MAX - (1 << 11), u64::MAX];
        let scores = keys.map(|key| score(key) as f64);
        assert!(scores.is_sorted() && scores[3] < scores[4], "{scores:?}");
        assert_eq!(scores[4] as u64, score(u64::MAX));
        assert_eq!(member(255), b"00000000000000ff");
    }
}
