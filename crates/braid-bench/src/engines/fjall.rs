//! fjall: an LSM-tree with optimistic serializable transactions.

use std::path::Path;

use ::fjall::{
    KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticTxKeyspace, OptimisticWriteTx,
    PersistMode, Readable, Snapshot,
};

use super::{
    Abilities, Acknowledgement, Body, KvEngine, Mode, Order, Session, Stop, TableId, Transaction,
    Wait, walk,
};
use crate::BenchError;

#[allow(clippy::unnecessary_wraps)] // the registry's signature
pub(super) fn version() -> Result<String, String> {
    Ok(env!("BRAID_BENCH_FJALL").to_owned())
}

/// Settings, after <https://docs.rs/fjall/3.1.13/fjall/>: the cache is sized by the caller ("20-25%
/// of the available memory, or more if the data set fully fits"); `manual_journal_persist` because
/// each transaction persists by itself; `SyncData` ("e.g. manually using `PersistMode::SyncData`
/// for ACID transactions"), an `fdatasync`, in each commit.
pub(super) fn open(
    dir: &Path,
    tables: &[&str],
    cache_bytes: usize,
) -> Result<Box<dyn KvEngine>, BenchError> {
    let db = OptimisticTxDatabase::builder(dir.join("fjall"))
        .cache_size(cache_bytes as u64)
        .manual_journal_persist(true)
        .open()
        .map_err(failed)?;
    let tables = tables
        .iter()
        .map(|name| db.keyspace(name, KeyspaceCreateOptions::default))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    Ok(Box::new(Fjall { tables, db }))
}

fn failed(error: ::fjall::Error) -> BenchError {
    BenchError::peer("fjall", error)
}

fn stop(error: ::fjall::Error) -> Stop {
    Stop::Failed(failed(error))
}

struct Fjall {
    tables: Vec<OptimisticTxKeyspace>,
    db: OptimisticTxDatabase,
}

impl KvEngine for Fjall {
    fn name(&self) -> &str {
        "fjall"
    }

    fn abilities(&self) -> Abilities {
        Abilities::SERIALIZABLE
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(FjallSession(self)))
    }

    fn settle(&self) -> Result<(), BenchError> {
        for table in &self.tables {
            table.inner().rotate_memtable_and_wait().map_err(failed)?;
            table.inner().major_compact().map_err(failed)?;
        }
        Ok(())
    }
}

struct FjallSession<'a>(&'a Fjall);

impl Session for FjallSession<'_> {
    fn transact(
        &mut self,
        mode: Mode,
        _: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        let Fjall { db, tables } = self.0;
        if mode == Mode::ReadOnly {
            body(&mut Reading {
                reader: db.read_tx(),
                tables,
            })?;
            return Ok(Acknowledgement::Durable);
        }
        // Dropping a transaction undoes it.
        let mut writing = Writing {
            tx: db
                .write_tx()
                .map_err(stop)?
                .durability(Some(PersistMode::SyncData)),
            tables,
        };
        body(&mut writing)?;
        match writing.tx.commit().map_err(stop)? {
            Ok(()) => Ok(Acknowledgement::Durable),
            Err(::fjall::Conflict) => Err(Stop::Conflict),
        }
    }

    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        let value = self.0.tables[table].get(key).map_err(stop)?;
        if let Some(value) = &value {
            found(value);
        }
        Ok(value.is_some())
    }
}

struct Reading<'a> {
    reader: Snapshot,
    tables: &'a [OptimisticTxKeyspace],
}

struct Writing<'a> {
    tx: OptimisticWriteTx,
    tables: &'a [OptimisticTxKeyspace],
}

fn get(
    reader: &impl Readable,
    table: &OptimisticTxKeyspace,
    key: &[u8],
    found: &mut dyn FnMut(&[u8]),
) -> Result<bool, Stop> {
    let value = reader.get(table, key).map_err(stop)?;
    if let Some(value) = &value {
        found(value);
    }
    Ok(value.is_some())
}

fn scan(
    reader: &impl Readable,
    table: &OptimisticTxKeyspace,
    (from, to): (&[u8], &[u8]),
    order: Order,
    visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), Stop> {
    let range = reader.range(table, from..to);
    walk(range, order, |record| {
        let (key, value) = record.into_inner().map_err(stop)?;
        Ok(visit(&key, &value))
    })
}

impl Transaction for Reading<'_> {
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        get(&self.reader, &self.tables[table], key, found)
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        to: &[u8],
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        scan(&self.reader, &self.tables[table], (from, to), order, visit)
    }
}

impl Transaction for Writing<'_> {
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        get(&self.tx, &self.tables[table], key, found)
    }

    fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        self.tx.insert(&self.tables[table], key, value);
        Ok(())
    }

    fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        self.tx.remove(&self.tables[table], key);
        Ok(())
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        to: &[u8],
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        scan(&self.tx, &self.tables[table], (from, to), order, visit)
    }
}
