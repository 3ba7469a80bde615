//! raft-engine: TiKV's bare log with group commit. It has no tables, so it cannot be read.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ::protobuf::well_known_types::BytesValue;
use ::raft_engine::{Config, Engine, LogBatch, MessageExt, ReadableSize};

use super::{
    Abilities, Acknowledgement, Body, KvEngine, Mode, Order, Session, Stop, TableId, Transaction,
    Wait,
};
use crate::BenchError;

/// Number of entries after which a session compacts its old ones, as a Raft group does after a
/// snapshot.
const KEPT_ENTRIES: u64 = 4096;

#[allow(clippy::unnecessary_wraps)] // the registry's signature
pub(super) fn version() -> Result<String, String> {
    Ok(env!("BRAID_BENCH_RAFT_ENGINE").to_owned())
}

/// Settings, after <https://docs.pingcap.com/tidb/stable/tikv-configuration-file/#raft-engine>: log
/// files are reused (default), and `prefill-for-recycle` lets that begin at once instead of after
/// the first purge. 256 MiB of log are kept; the 10 GiB by default are for a server with thousands
/// of groups.
pub(super) fn open(
    dir: &Path,
    _tables: &[&str],
    _cache_bytes: usize,
) -> Result<Box<dyn KvEngine>, BenchError> {
    let engine = Engine::open(Config {
        dir: dir.join("raft-engine").to_string_lossy().into_owned(),
        purge_threshold: ReadableSize::mb(256),
        prefill_for_recycle: true,
        ..Config::default()
    })
    .map_err(failed)?;
    Ok(Box::new(RaftEngine {
        engine,
        sessions: AtomicU64::new(0),
        purge: Mutex::new(()),
    }))
}

fn failed(error: ::raft_engine::Error) -> BenchError {
    BenchError::peer("raft-engine", error)
}

fn stop(error: ::raft_engine::Error) -> Stop {
    Stop::Failed(failed(error))
}

fn unable(what: &'static str) -> Stop {
    Stop::Failed(BenchError::Unable {
        engine: "raft-engine",
        what,
    })
}

struct RaftEngine {
    engine: Engine,
    /// Number of sessions so far; each is a Raft group of its own.
    sessions: AtomicU64,
    /// Held by the thread that removes old files.
    purge: Mutex<()>,
}

impl KvEngine for RaftEngine {
    fn name(&self) -> &str {
        "raft-engine"
    }

    fn abilities(&self) -> Abilities {
        Abilities::LOG
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        let group = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Box::new(LogSession {
            engine: self,
            group,
            last_index: self.engine.last_index(group).unwrap_or(0),
            batch: LogBatch::default(),
        }))
    }

    fn settle(&self) -> Result<(), BenchError> {
        self.engine.purge_expired_files().map_err(failed)?;
        Ok(())
    }
}

/// Writes of a transaction as one entry: its index, then the writes.
struct OneEntry;

impl MessageExt for OneEntry {
    type Entry = BytesValue;

    fn index(entry: &BytesValue) -> u64 {
        let index = entry.get_value().first_chunk().copied();
        u64::from_le_bytes(index.unwrap_or_default())
    }
}

struct LogSession<'a> {
    engine: &'a RaftEngine,
    group: u64,
    last_index: u64,
    batch: LogBatch,
}

impl LogSession<'_> {
    /// Compacts all entries but the newest, and removes files that are no longer needed.
    fn compact(&self) -> Result<(), Stop> {
        self.engine.engine.compact_to(self.group, self.last_index);
        if let Ok(_guard) = self.engine.purge.try_lock() {
            self.engine.engine.purge_expired_files().map_err(stop)?;
        }
        Ok(())
    }
}

impl Session for LogSession<'_> {
    fn transact(
        &mut self,
        mode: Mode,
        _: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        let index = self.last_index + 1;
        let mut running = Running {
            mode,
            entry: index.to_le_bytes().to_vec(),
        };
        body(&mut running)?;
        if mode == Mode::ReadOnly {
            return Ok(Acknowledgement::Durable);
        }
        let mut entry = BytesValue::new();
        entry.set_value(running.entry);
        self.batch
            .add_entries::<OneEntry>(self.group, &[entry])
            .map_err(stop)?;
        self.engine
            .engine
            .write(&mut self.batch, true)
            .map_err(stop)?;
        self.last_index = index;
        if index.is_multiple_of(KEPT_ENTRIES) {
            self.compact()?;
        }
        Ok(Acknowledgement::Durable)
    }
}

struct Running {
    mode: Mode,
    entry: Vec<u8>,
}

impl Running {
    /// Logs a table, a key, and a value if there is one.
    fn log(&mut self, table: TableId, key: &[u8], value: Option<&[u8]>) -> Result<(), Stop> {
        self.mode.writable()?;
        self.entry.extend_from_slice(&(table as u32).to_le_bytes());
        for part in [Some(key), value].into_iter().flatten() {
            self.entry
                .extend_from_slice(&(part.len() as u32).to_le_bytes());
            self.entry.extend_from_slice(part);
        }
        Ok(())
    }
}

impl Transaction for Running {
    fn get(&mut self, _: TableId, _: &[u8], _: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        Err(unable("reads"))
    }

    fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        self.log(table, key, Some(value))
    }

    fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        self.log(table, key, None)
    }

    fn scan(
        &mut self,
        _: TableId,
        _: &[u8],
        _: &[u8],
        _: Order,
        _: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        Err(unable("scans"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_in_the_log_that_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..2_u64 {
            let engine = open(dir.path(), &["a"], 0).unwrap();
            let mut session = engine.session().unwrap();
            for i in 0..10_u64 {
                session
                    .transact(Mode::ReadWrite, Wait::Durable, &mut |tx| {
                        tx.put(0, b"key", &i.to_le_bytes())
                    })
                    .unwrap();
            }
            let undone = session.transact(Mode::ReadWrite, Wait::Durable, &mut |tx| {
                tx.put(0, b"key", b"undone")?;
                Err(Stop::RolledBack)
            });
            assert!(undone.is_err());
            drop(session);
            drop(engine);
            let log = Engine::open(Config {
                dir: dir
                    .path()
                    .join("raft-engine")
                    .to_string_lossy()
                    .into_owned(),
                ..Config::default()
            })
            .unwrap();
            let last = 10 * (round + 1);
            assert_eq!(log.last_index(1), Some(last));
            let entry = log.get_entry::<OneEntry>(1, last).unwrap().unwrap();
            assert!(entry.get_value().ends_with(&9_u64.to_le_bytes()));
        }
    }
}
