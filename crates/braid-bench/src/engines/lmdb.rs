//! LMDB: a memory-mapped copy-on-write B+-tree, one writer at a time.

use std::ops::Bound;
use std::path::Path;

use ::heed::types::Bytes;
use ::heed::{CompactionOption, Database, Env, EnvOpenOptions, PutFlags, RoTxn, RwTxn, WithTls};

use super::{
    Abilities, Acknowledgement, Body, KvEngine, Mode, OldState, Operations, Order, Rows, Session,
    Stop, TableId, Transaction, Wait,
};
use crate::BenchError;

type Table = Database<Bytes, Bytes>;

/// Number of tables that [`Operations::bulk_load`] may create.
const MORE_TABLES: usize = 8;

#[allow(clippy::unnecessary_wraps)] // the registry's signature
pub(super) fn version() -> Result<String, String> {
    let version = ::heed::lmdb_version();
    Ok(format!(
        "{}.{}.{}",
        version.major, version.minor, version.patch
    ))
}

/// Settings, after <http://www.lmdb.tech/doc/group__mdb.html>: the map is as large as the data may
/// ever become ("should be as large as possible"; it is address space, not memory); more readers
/// than the default 126, for runs with many threads. No flags: each of those that make commits
/// faster makes them less durable, except `MDB_WRITEMAP`, which heed calls unsafe and the text
/// advises only for data that fit in memory.
pub(super) fn open(
    dir: &Path,
    tables: &[&str],
    _cache_bytes: usize,
) -> Result<Box<dyn KvEngine>, BenchError> {
    let mut options = EnvOpenOptions::new();
    options
        .map_size(1 << 40)
        .max_readers(1024)
        .max_dbs(u32::try_from(tables.len() + MORE_TABLES).unwrap_or(u32::MAX));
    // SAFETY: no other process changes the files in the benchmark's directory while they are
    // mapped.
    let env = unsafe { options.open(dir) }.map_err(failed)?;
    let mut tx = env.write_txn().map_err(failed)?;
    let tables = tables
        .iter()
        .map(|name| env.create_database(&mut tx, Some(name)))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    tx.commit().map_err(failed)?;
    Ok(Box::new(Lmdb { env, tables }))
}

/// Converts an error of heed, which may contain values that are not `Send` or `Sync`.
fn failed(error: ::heed::Error) -> BenchError {
    BenchError::peer("lmdb", error.to_string())
}

fn stop(error: ::heed::Error) -> Stop {
    Stop::Failed(failed(error))
}

struct Lmdb {
    env: Env,
    tables: Vec<Table>,
}

impl KvEngine for Lmdb {
    fn name(&self) -> &str {
        "lmdb"
    }

    fn abilities(&self) -> Abilities {
        Abilities::SERIALIZABLE
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(LmdbSession(self)))
    }

    /// No work is left: each commit leaves a complete tree.
    fn settle(&self) -> Result<(), BenchError> {
        Ok(())
    }

    fn operations(&self) -> &dyn Operations {
        self
    }
}

/// LMDB has neither checkpoints, because each commit writes its pages, nor a check.
impl Operations for Lmdb {
    /// One transaction that appends the rows (`MDB_APPEND`).
    fn bulk_load(&self, name: &str, rows: Rows) -> Result<(), BenchError> {
        let mut tx = self.env.write_txn().map_err(failed)?;
        let table: Table = self
            .env
            .create_database(&mut tx, Some(name))
            .map_err(failed)?;
        rows.try_each(|key, value| table.put_with_flags(&mut tx, PutFlags::APPEND, key, value))
            .and_then(|()| tx.commit())
            .map_err(failed)
    }

    /// Removes all pages (`mdb_drop`); the empty table remains.
    fn drop_table(&self, name: &str) -> Result<(), BenchError> {
        let mut tx = self.env.write_txn().map_err(failed)?;
        let table: Option<Table> = self.env.open_database(&tx, Some(name)).map_err(failed)?;
        if let Some(table) = table {
            table.clear(&mut tx).map_err(failed)?;
        }
        tx.commit().map_err(failed)
    }

    fn snapshot(&self, table: TableId) -> Result<Box<dyn OldState + '_>, BenchError> {
        Ok(Box::new(Old {
            tx: self.env.read_txn().map_err(failed)?,
            table: &self.tables[table],
        }))
    }

    fn backup(&self, to: &Path) -> Result<(), BenchError> {
        self.copy(to, CompactionOption::Disabled)
    }

    /// A copy without free pages: LMDB never shortens its file.
    fn compact(&self, _table: TableId, into: &Path) -> Result<(), BenchError> {
        self.copy(into, CompactionOption::Enabled)
    }

    fn stats(&self) -> Result<(), BenchError> {
        std::hint::black_box((self.env.info(), self.env.stat()));
        Ok(())
    }
}

impl Lmdb {
    fn copy(&self, to: &Path, option: CompactionOption) -> Result<(), BenchError> {
        let copy = self.env.copy_to_path(to, option).map_err(failed)?;
        copy.sync_all()
            .map_err(|error| BenchError::peer("lmdb", error))
    }
}

/// A read transaction that stays open.
struct Old<'a> {
    tx: RoTxn<'a, WithTls>,
    table: &'a Table,
}

impl OldState for Old<'_> {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        get(&self.tx, self.table, key, found)
    }
}

struct LmdbSession<'a>(&'a Lmdb);

impl Session for LmdbSession<'_> {
    fn transact(
        &mut self,
        mode: Mode,
        _: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        let Lmdb { env, tables } = self.0;
        if mode == Mode::ReadOnly {
            body(&mut Reading {
                tx: env.read_txn().map_err(stop)?,
                tables,
            })?;
            return Ok(Acknowledgement::Durable);
        }
        // Dropping a transaction undoes it.
        let mut writing = Writing {
            tx: env.write_txn().map_err(stop)?,
            tables,
        };
        body(&mut writing)?;
        writing.tx.commit().map_err(stop)?;
        Ok(Acknowledgement::Durable)
    }
}

struct Reading<'a> {
    tx: RoTxn<'a, WithTls>,
    tables: &'a [Table],
}

struct Writing<'a> {
    tx: RwTxn<'a>,
    tables: &'a [Table],
}

fn get(
    tx: &RoTxn<'_>,
    table: &Table,
    key: &[u8],
    found: &mut dyn FnMut(&[u8]),
) -> Result<bool, Stop> {
    let value = table.get(tx, key).map_err(stop)?;
    if let Some(value) = value {
        found(value);
    }
    Ok(value.is_some())
}

fn scan(
    tx: &RoTxn<'_>,
    table: &Table,
    (from, to): (&[u8], &[u8]),
    order: Order,
    visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), Stop> {
    // LMDB has no empty key, and does not accept one as a bound.
    if to.is_empty() {
        return Ok(());
    }
    let lower = match from {
        [] => Bound::Unbounded,
        from => Bound::Included(from),
    };
    let bounds = (lower, Bound::Excluded(to));
    let mut each = |record: ::heed::Result<(&[u8], &[u8])>| {
        let (key, value) = record.map_err(stop)?;
        Ok::<_, Stop>(visit(key, value))
    };
    match order {
        Order::Ascending => {
            for record in table.range(tx, &bounds).map_err(stop)? {
                if !each(record)? {
                    break;
                }
            }
        }
        Order::Descending => {
            for record in table.rev_range(tx, &bounds).map_err(stop)? {
                if !each(record)? {
                    break;
                }
            }
        }
    }
    Ok(())
}

impl Transaction for Reading<'_> {
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        get(&self.tx, &self.tables[table], key, found)
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
        self.tables[table]
            .put(&mut self.tx, key, value)
            .map_err(stop)
    }

    fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        self.tables[table].delete(&mut self.tx, key).map_err(stop)?;
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
