//! redb: a copy-on-write B-tree in one file, one writer at a time.

use std::path::Path;

use ::redb::{
    AccessGuard, Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase,
    ReadableTable, Table, TableDefinition, WriteTransaction,
};

use super::{
    Abilities, Acknowledgement, Body, KvEngine, Mode, Order, Session, Stop, TableId, Transaction,
    Wait, walk,
};
use crate::BenchError;

type Name<'a> = TableDefinition<'a, &'static [u8], &'static [u8]>;

#[allow(clippy::unnecessary_wraps)] // the registry's signature
pub(super) fn version() -> Result<String, String> {
    Ok(env!("BRAID_BENCH_REDB").to_owned())
}

/// Settings, after <https://docs.rs/redb/4.4.0/redb/struct.Builder.html> and
/// <https://docs.rs/redb/4.4.0/redb/struct.WriteTransaction.html>: the cache is sized by the
/// caller; one-phase commit with a checksum, the default, is the faster of its durable ones and
/// safe unless an attacker chooses the data; quick repair, which makes commits slower, stays off as
/// by default.
pub(super) fn open(
    dir: &Path,
    tables: &[&str],
    cache_bytes: usize,
) -> Result<Box<dyn KvEngine>, BenchError> {
    let db = Database::builder()
        .set_cache_size(cache_bytes)
        .create(dir.join("redb"))
        .map_err(failed)?;
    let tx = db.begin_write().map_err(failed)?;
    for table in tables {
        tx.open_table(Name::new(table)).map_err(failed)?;
    }
    tx.commit().map_err(failed)?;
    Ok(Box::new(Redb {
        db,
        names: tables.iter().map(|&name| name.to_owned()).collect(),
    }))
}

fn failed(error: impl Into<::redb::Error>) -> BenchError {
    BenchError::peer("redb", error.into())
}

fn stop(error: impl Into<::redb::Error>) -> Stop {
    Stop::Failed(failed(error))
}

struct Redb {
    db: Database,
    names: Vec<String>,
}

impl KvEngine for Redb {
    fn name(&self) -> &str {
        "redb"
    }

    fn abilities(&self) -> Abilities {
        Abilities::SERIALIZABLE
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(RedbSession(self)))
    }

    /// No work is left: each commit leaves a complete tree.
    fn settle(&self) -> Result<(), BenchError> {
        Ok(())
    }
}

struct RedbSession<'a>(&'a Redb);

impl Session for RedbSession<'_> {
    fn transact(
        &mut self,
        mode: Mode,
        _: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        let Redb { db, names } = self.0;
        if mode == Mode::ReadOnly {
            body(&mut Reading {
                tx: db.begin_read().map_err(stop)?,
                tables: names.iter().map(|_| None).collect(),
                names,
            })?;
            return Ok(Acknowledgement::Durable);
        }
        let mut tx = db.begin_write().map_err(stop)?;
        tx.set_durability(Durability::Immediate)
            .map_err(|error| Stop::Failed(BenchError::peer("redb", error)))?;
        // Dropping the transaction rolls it back.
        body(&mut Writing {
            tx: &tx,
            tables: names.iter().map(|_| None).collect(),
            names,
        })?;
        tx.commit().map_err(stop)?;
        Ok(Acknowledgement::Durable)
    }
}

/// Tables are opened at their first use, once per transaction.
struct Reading<'a> {
    tx: ReadTransaction,
    tables: Vec<Option<ReadOnlyTable<&'static [u8], &'static [u8]>>>,
    names: &'a [String],
}

struct Writing<'a> {
    tx: &'a WriteTransaction,
    tables: Vec<Option<Table<'a, &'static [u8], &'static [u8]>>>,
    names: &'a [String],
}

impl Reading<'_> {
    fn table(
        &mut self,
        table: TableId,
    ) -> Result<&ReadOnlyTable<&'static [u8], &'static [u8]>, Stop> {
        let opened = &mut self.tables[table];
        Ok(match opened {
            Some(opened) => opened,
            None => opened.insert(
                self.tx
                    .open_table(Name::new(&self.names[table]))
                    .map_err(stop)?,
            ),
        })
    }
}

impl<'a> Writing<'a> {
    fn table(
        &mut self,
        table: TableId,
    ) -> Result<&mut Table<'a, &'static [u8], &'static [u8]>, Stop> {
        let opened = &mut self.tables[table];
        Ok(match opened {
            Some(opened) => opened,
            None => opened.insert(
                self.tx
                    .open_table(Name::new(&self.names[table]))
                    .map_err(stop)?,
            ),
        })
    }
}

fn borrow_value(
    value: Option<AccessGuard<'_, &'static [u8]>>,
    found: &mut dyn FnMut(&[u8]),
) -> bool {
    if let Some(value) = &value {
        found(value.value());
    }
    value.is_some()
}

fn scan(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    (from, to): (&[u8], &[u8]),
    order: Order,
    visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), Stop> {
    let range = table.range::<&[u8]>(from..to).map_err(stop)?;
    walk(range, order, |record| {
        let (key, value) = record.map_err(stop)?;
        Ok(visit(key.value(), value.value()))
    })
}

impl Transaction for Reading<'_> {
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        Ok(borrow_value(
            self.table(table)?.get(key).map_err(stop)?,
            found,
        ))
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        to: &[u8],
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        scan(self.table(table)?, (from, to), order, visit)
    }
}

impl Transaction for Writing<'_> {
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        Ok(borrow_value(
            self.table(table)?.get(key).map_err(stop)?,
            found,
        ))
    }

    fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        self.table(table)?.insert(key, value).map_err(stop)?;
        Ok(())
    }

    fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        self.table(table)?.remove(key).map_err(stop)?;
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
        scan(self.table(table)?, (from, to), order, visit)
    }
}
