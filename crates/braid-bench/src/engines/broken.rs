//! Engines with defects, to test that the checks find them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{
    Abilities, Acknowledgement, Body, BraidEngine, KvEngine, Mode, Order, Session, Stop, TableId,
    Transaction, Wait,
};
use crate::BenchError;

/// A defect that occurs occasionally.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Defect {
    /// A transaction is acknowledged and lost.
    LosesTransaction,
    /// A transaction runs twice.
    DoublesTransaction,
    /// A write to this table is lost.
    LosesWrite(TableId),
    /// A removal from this table is lost.
    LosesRemoval(TableId),
}

/// One of this many operations is spoilt.
const EVERY: u64 = 23;

/// Braid with a defect.
pub(crate) struct Broken<'a> {
    pub(crate) inner: &'a BraidEngine,
    pub(crate) defect: Defect,
    opportunities: AtomicU64,
}

impl<'a> Broken<'a> {
    pub(crate) fn new(inner: &'a BraidEngine, defect: Defect) -> Self {
        Broken {
            inner,
            defect,
            opportunities: AtomicU64::new(0),
        }
    }

    fn spoils(&self, defect: Defect) -> bool {
        let due = || self.opportunities.fetch_add(1, Relaxed) % EVERY == EVERY - 1;
        self.defect == defect && due()
    }
}

impl KvEngine for Broken<'_> {
    fn name(&self) -> &str {
        "broken"
    }

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(BrokenSession {
            inner: self.inner.session()?,
            engine: self,
        }))
    }

    fn settle(&self) -> Result<(), BenchError> {
        self.inner.settle()
    }
}

struct BrokenSession<'a> {
    inner: Box<dyn Session + 'a>,
    engine: &'a Broken<'a>,
}

impl Session for BrokenSession<'_> {
    fn transact(
        &mut self,
        mode: Mode,
        wait: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        let engine = self.engine;
        if mode == Mode::ReadOnly {
            return self.inner.transact(mode, wait, body);
        }
        let doubles = engine.spoils(Defect::DoublesTransaction);
        let loses = engine.spoils(Defect::LosesTransaction);
        let outcome = self.inner.transact(mode, wait, &mut |tx| {
            let tx = &mut BrokenTransaction { inner: tx, engine };
            body(tx)?;
            if doubles {
                body(tx)?;
            }
            if loses {
                return Err(Stop::RolledBack);
            }
            Ok(())
        });
        match outcome {
            Err(Stop::RolledBack) if loses => Ok(Acknowledgement::Durable),
            outcome => outcome,
        }
    }
}

struct BrokenTransaction<'a> {
    inner: &'a mut dyn Transaction,
    engine: &'a Broken<'a>,
}

impl Transaction for BrokenTransaction<'_> {
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        self.inner.get(table, key, found)
    }

    fn get_for_update(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        self.inner.get_for_update(table, key, found)
    }

    fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        if self.engine.spoils(Defect::LosesWrite(table)) {
            return Ok(());
        }
        self.inner.put(table, key, value)
    }

    fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        if self.engine.spoils(Defect::LosesRemoval(table)) {
            return Ok(());
        }
        self.inner.delete(table, key)
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        to: &[u8],
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        self.inner.scan(table, from, to, order, visit)
    }
}
