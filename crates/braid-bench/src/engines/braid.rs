//! Braid behind the trait of all engines.

use std::path::Path;

use ::braid::{Database, Readable, Snapshot, Table};

use super::{
    Abilities, Acknowledgement, Body, Counters, KvEngine, Mode, Order, Session, Setting, Stop,
    TableId, Transaction, Wait, walk,
};
use crate::BenchError;

pub(super) const ABILITIES: Abilities = Abilities {
    in_flight: true,
    ..Abilities::SERIALIZABLE
};

pub(super) fn open(
    dir: &Path,
    tables: &[&str],
    cache_bytes: usize,
) -> Result<Box<dyn KvEngine>, BenchError> {
    let db = Database::builder()
        .pool_bytes(cache_bytes)
        .create_if_missing(true)
        .open(dir)?;
    Ok(Box::new(BraidEngine::new(db, tables)?))
}

/// An open Braid database and the tables of a workload.
#[derive(Debug)]
pub struct BraidEngine {
    db: Database,
    tables: Vec<Table>,
    setting: Setting,
}

impl BraidEngine {
    /// Opens the tables `names` of a database, and creates missing ones.
    ///
    /// # Errors
    /// The database's own.
    pub fn new<N: AsRef<str>>(db: Database, names: &[N]) -> Result<Self, BenchError> {
        let tables = names
            .iter()
            .map(|name| db.open_table(name.as_ref()))
            .collect::<::braid::Result<_>>()?;
        Ok(BraidEngine {
            db,
            tables,
            setting: Setting::default(),
        })
    }

    /// Sets the description of how the database was opened, for reports.
    #[must_use]
    pub fn described(mut self, setting: Setting) -> Self {
        self.setting = setting;
        self
    }

    /// Returns the database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.db
    }

    /// Closes the database.
    ///
    /// # Errors
    /// The database's own.
    pub fn close(self) -> Result<(), BenchError> {
        Ok(self.db.close()?)
    }
}

impl From<::braid::Error> for Stop {
    fn from(error: ::braid::Error) -> Self {
        if error.is_retryable() {
            Stop::Conflict
        } else {
            Stop::Failed(error.into())
        }
    }
}

impl KvEngine for BraidEngine {
    fn name(&self) -> &str {
        "braid"
    }

    fn abilities(&self) -> Abilities {
        ABILITIES
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(BraidSession(self)))
    }

    fn settle(&self) -> Result<(), BenchError> {
        self.db.sync()?;
        Ok(self.db.checkpoint()?)
    }

    fn counters(&self) -> Counters {
        let stats = self.db.stats();
        Counters {
            log_bytes: Some(stats.log.written_bytes),
            flushes: Some(stats.log.flushes),
            checkpoints: Some(stats.checkpoints),
            page_reads: Some(stats.store.page_loads),
        }
    }

    fn setting(&self) -> Setting {
        self.setting.clone()
    }
}

struct BraidSession<'a>(&'a BraidEngine);

impl Session for BraidSession<'_> {
    fn transact(
        &mut self,
        mode: Mode,
        wait: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        let BraidEngine { db, tables, .. } = self.0;
        if mode == Mode::ReadOnly {
            let reader = db.snapshot();
            body(&mut Reading { reader, tables })?;
            return Ok(Acknowledgement::Durable);
        }
        // Dropping a transaction undoes it.
        let mut writing = Writing {
            tx: db.begin(),
            tables,
        };
        body(&mut writing)?;
        if wait == Wait::Ticket {
            return Ok(Acknowledgement::Pending(writing.tx.commit_async()?));
        }
        writing.tx.commit()?;
        Ok(Acknowledgement::Durable)
    }

    #[inline]
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        let table = &self.0.tables[table];
        Ok(self
            .0
            .db
            .get_with(table, key, |value| borrow_value(value, found))?)
    }
}

struct Reading<'a> {
    reader: Snapshot,
    tables: &'a [Table],
}

struct Writing<'a> {
    tx: ::braid::Transaction,
    tables: &'a [Table],
}

fn borrow_value(value: Option<&[u8]>, found: &mut dyn FnMut(&[u8])) -> bool {
    if let Some(value) = value {
        found(value);
    }
    value.is_some()
}

fn scan(
    reader: &impl Readable,
    table: &Table,
    (from, to): (&[u8], &[u8]),
    order: Order,
    visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), Stop> {
    let range = reader.range(table, from..to)?;
    walk(range, order, |record| {
        let (key, value) = record?;
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
        let table = &self.tables[table];
        Ok(self
            .reader
            .get_with(table, key, |value| borrow_value(value, found))?)
    }

    fn prefetch(&mut self, table: TableId, keys: &[&[u8]]) -> Result<(), Stop> {
        Ok(self
            .reader
            .prefetch(&self.tables[table], keys.iter().copied())?)
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
        let table = &self.tables[table];
        Ok(self
            .tx
            .get_with(table, key, |value| borrow_value(value, found))?)
    }

    fn get_for_update(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        let table = &self.tables[table];
        Ok(self
            .tx
            .get_for_update_with(table, key, |value| borrow_value(value, found))?)
    }

    fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        Ok(self.tx.insert(&self.tables[table], key, value)?)
    }

    fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        self.tx.remove(&self.tables[table], key)?;
        Ok(())
    }

    fn prefetch(&mut self, table: TableId, keys: &[&[u8]]) -> Result<(), Stop> {
        Ok(self
            .tx
            .prefetch(&self.tables[table], keys.iter().copied())?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_whole_and_scans_go_both_ways() {
        let engine = BraidEngine::new(Database::in_memory().unwrap(), &["a", "b"]).unwrap();
        let mut session = engine.session().unwrap();
        session
            .transact(Mode::ReadWrite, Wait::Durable, &mut |tx| {
                for key in [b"1", b"2", b"3"] {
                    tx.put(0, key, key)?;
                }
                tx.put(1, b"x", b"y")
            })
            .unwrap();
        let undone = session.transact(Mode::ReadWrite, Wait::Durable, &mut |tx| {
            tx.delete(0, b"1")?;
            Err(Stop::RolledBack)
        });
        assert!(matches!(undone, Err(Stop::RolledBack)));
        assert!(session.get(0, b"1", &mut |v| assert_eq!(v, b"1")).unwrap());
        assert!(!session.get(0, b"x", &mut |_| ()).unwrap());
        for (order, wanted) in [
            (Order::Ascending, [b"1", b"2"]),
            (Order::Descending, [b"2", b"1"]),
        ] {
            for mode in [Mode::ReadOnly, Mode::ReadWrite] {
                let mut seen = Vec::new();
                session
                    .transact(mode, Wait::Durable, &mut |tx| {
                        tx.scan(0, b"1", b"3", order, &mut |key, _| {
                            seen.push(key.to_vec());
                            true
                        })
                    })
                    .unwrap();
                assert_eq!(seen, wanted);
            }
        }
        let wrong = session.transact(Mode::ReadOnly, Wait::Durable, &mut |tx| tx.put(0, b"", b""));
        assert!(matches!(
            wrong,
            Err(Stop::Failed(BenchError::WriteInReadOnly))
        ));
    }

    #[test]
    fn tickets_are_handed_out() {
        let engine = BraidEngine::new(Database::in_memory().unwrap(), &["a"]).unwrap();
        let mut session = engine.session().unwrap();
        let put: &mut Body<'_> = &mut |tx| tx.put(0, b"k", b"v");
        let Acknowledgement::Pending(ticket) = session
            .transact(Mode::ReadWrite, Wait::Ticket, put)
            .unwrap()
        else {
            panic!("a commit in flight has a ticket");
        };
        ticket.wait().unwrap();
    }
}
