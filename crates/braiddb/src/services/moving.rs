//! Moving a table to another tablespace, while transactions use it.
//!
//! The table gets a copy in the other tablespace, as a tree with a number of its own that no name
//! refers to. Transactions copy the records there, a leaf at a time, and are logged like any other: so
//! feeds, backups and the archive need to know nothing about a move, except that its copies are no
//! changes. Then one transaction in the catalog gives the copy's number to the table. After a crash
//! the catalog says which of the trees is the table's, and the opening frees the other.
//!
//! A transaction that changes the table meanwhile notes its keys, after it was assigned its sequence
//! number and before it changes the tree. Each step of the copy
//!
//! 1. takes the keys that were noted,
//! 2. waits until the transactions that noted them are applied,
//! 3. copies the newest values of these keys, if the copy has passed them, and of the next leaf.
//!
//! So whatever is in the tree when it is read is copied, and whatever comes later is noted for a later
//! step. When few keys are noted, the table is sealed: transactions that have no sequence number yet
//! wait with their writes to it, or conflict. The last step first waits until all others are applied, so
//! that their keys are noted, and copies these in the transaction that changes the catalog.
//!
//! Snapshots from before that transaction read the old tree. When the last one has ended, the tree is
//! emptied (`engine::moved`).

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use braid_log::SeqNo;
use braid_rt::atomic::Ordering;
use bytes::Bytes;

use super::bulk::Loading;
use super::instance::Instance;
use crate::base::written::Written;
use crate::catalog::Catalog;
use crate::engine::leaves::Leaves;
use crate::engine::spaces::Space;
use crate::engine::write_set::signature_of;
use crate::error::{Error, Result, TablespaceError};
use crate::options::{Durability, TransactionOptions};
use crate::schema::entry::{CatalogEntry, copy_key, space_of};
use crate::schema::table::TableCore;
use crate::txn::transaction::Transaction;

/// Most records that one transaction copies, and about the most bytes: few, because other
/// transactions become visible only after it.
const BATCH_RECORDS: usize = 64;
const BATCH_BYTES: usize = 64 << 10;

/// Most steps that copy only what changed. A table that changes faster than it is copied is sealed
/// after them, and its writers wait longer.
const ROUNDS_MAX: u32 = 32;

/// Report of a move, and its progress; see [`Database::move_table`](crate::Database::move_table).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MoveReport {
    /// Number of records copied. A record that changed during the move counts several times.
    pub records: u64,
    /// Bytes of their keys and values, as they are stored.
    pub bytes: u64,
    /// Time for which writes to the table waited at the end of the move.
    pub writers_waited: Duration,
}

/// A key, and the version and value that the table has.
struct Copied {
    key: Bytes,
    found: Option<(SeqNo, Option<Bytes>)>,
}

impl Copied {
    fn bytes(&self) -> usize {
        let value = self.found.as_ref().and_then(|(_, value)| value.as_ref());
        self.key.len() + value.map_or(0, Bytes::len)
    }
}

/// Ends the copy of a table, whatever became of it.
struct EndCopy(Arc<TableCore>);

impl Drop for EndCopy {
    fn drop(&mut self) {
        self.0.end_copy();
    }
}

/// Progress of a move.
struct Move<'i> {
    instance: &'i Instance,
    table: Arc<TableCore>,
    copy: Arc<TableCore>,
    /// The bound after which nothing is copied yet; `None` once all is.
    from: Option<Bound<Bytes>>,
    /// Number of transactions that copied.
    transactions: u64,
    report: MoveReport,
}

impl Instance {
    /// Moves a table to a tablespace; `None` stands for the main one. Calls `progress` after each
    /// step.
    pub(crate) fn move_table(
        &self,
        name: &str,
        space: Option<&Arc<Space>>,
        mut progress: impl FnMut(&MoveReport),
    ) -> Result<MoveReport> {
        let engine = &self.engine;
        engine.check_writable()?;
        let catalog = Catalog::of(engine);
        let (table, copy, _end, _loading) = {
            let change = engine.tables.change.lock();
            let missing = || Error::TableNotFound { name: name.into() };
            let table = catalog.find_in(&change, name)?.ok_or_else(missing)?;
            let number = engine.check_space_is_there(space.map(|space| &**space))?;
            if space_of(table.id) == number {
                return Ok(MoveReport::default());
            }
            if !table.begin_copy() {
                let table = name.into();
                return Err(Error::Tablespace(TablespaceError::Moving { table }));
            }
            let end = EndCopy(table.clone());
            let loading = space.map(|space| Loading::begin(space, name));
            let mut tx = Transaction::begin(engine, TransactionOptions::default());
            let id = catalog.take_id(&mut tx, number)?;
            tx.commit()?;
            let entry = CatalogEntry {
                id,
                types: table.types.clone(),
                options: table.options,
            };
            (table.clone(), catalog.core(name, entry)?, end, loading)
        };
        let mut running = Move {
            instance: self,
            table,
            copy: copy.clone(),
            from: Some(Bound::Unbounded),
            transactions: 0,
            report: MoveReport::default(),
        };
        let moved = running.run(&mut progress);
        moved.map(|()| running.report).inspect_err(|error| {
            // If the log failed, it is unknown which tree is the table's: the next opening knows.
            if !matches!(error, Error::Poisoned { .. }) {
                braid_rt::coverage_point("move: the copy is given up");
                copy.set_dropped(true);
                engine.tables.dropped.lock().push(copy);
            }
        })
    }
}

impl Move<'_> {
    fn run(&mut self, progress: &mut impl FnMut(&MoveReport)) -> Result<()> {
        let mut rounds = 0;
        loop {
            let begun = braid_rt::now();
            self.check()?;
            let mut batch = self.changes()?;
            let is_small = batch.len() <= BATCH_RECORDS;
            let is_complete = self.from.is_none();
            if !is_complete {
                self.add_leaf(&mut batch)?;
            }
            self.copy(batch)?;
            progress(&self.report);
            if is_complete {
                rounds += 1;
                if is_small || rounds == ROUNDS_MAX {
                    break;
                }
            }
            self.instance.engine.log.pause_background(begun);
        }
        self.complete()?;
        progress(&self.report);
        Ok(())
    }

    /// Checks that the move can go on.
    fn check(&self) -> Result<()> {
        self.instance.engine.check_writable()?;
        self.table.check_alive()
    }

    /// Waits until the transactions that have noted keys are applied.
    fn wait_for_writers(&self) {
        let log = &self.instance.engine.log;
        log.wait_applied(log.last_seqno().next(), signature_of(self.table.id));
    }

    /// Returns what transactions changed, of what is copied already.
    fn changes(&self) -> Result<Vec<Copied>> {
        let changed = self.table.take_changed();
        self.wait_for_writers();
        let is_copied = |key: &[u8]| match &self.from {
            None => true,
            Some(Bound::Unbounded) => false,
            Some(Bound::Included(from)) => key < &from[..],
            Some(Bound::Excluded(from)) => key <= &from[..],
        };
        let copied = changed.iter().filter(|key| is_copied(key));
        let read = copied.map(|key| {
            let found = self.table.tree.get(key, |_| true)?;
            Ok(Copied {
                key: Bytes::copy_from_slice(key),
                found: found.map(|found| (found.meta.seqno(), found.value)),
            })
        });
        read.collect()
    }

    /// Adds the records of the next leaf.
    fn add_leaf(&mut self, batch: &mut Vec<Copied>) -> Result<()> {
        let Some(from) = self.from.take() else {
            return Ok(());
        };
        let lower = from.as_ref().map(|key| &key[..]);
        let mut leaves = Leaves::new(&self.table.tree, lower, Bound::Unbounded);
        if let Some(leaf) = leaves.next() {
            let leaf = leaf?;
            let records = leaf.records().enumerate();
            let records = records.filter(|(_, record)| !record.meta.tombstone);
            batch.extend(records.map(|(i, record)| Copied {
                key: leaf.key(i),
                found: Some((record.meta.seqno(), Some(leaf.value(i)))),
            }));
        }
        self.from = leaves.position();
        if braid_rt::mutant!("switch_before_a_copy_is_complete") {
            self.from = None;
        }
        Ok(())
    }

    /// Copies records.
    fn copy(&mut self, batch: Vec<Copied>) -> Result<()> {
        let durability = Durability::None;
        divide(&batch, |part| {
            self.commit(part, durability, |_| Ok(())).map(drop)
        })
    }

    /// Copies records in one transaction, in which `also` takes part. Returns the sequence number.
    fn commit(
        &mut self,
        part: &[Copied],
        durability: Durability,
        also: impl Fn(&mut Transaction) -> Result<()>,
    ) -> Result<SeqNo> {
        let instance = self.instance;
        let engine = &instance.engine;
        let catalog = engine.tables.catalog.clone();
        let mark = copy_key(self.copy.id, self.transactions);
        let options = TransactionOptions {
            durability,
            lock_timeout: Some(Duration::MAX),
            ..TransactionOptions::default()
        };
        let attempt = || {
            let mut tx = Transaction::begin(engine, options);
            for Copied { key, found } in part {
                let found = found.as_ref();
                let found = found.map(|(version, value)| (*version, value.as_deref()));
                tx.write_copy(&self.copy, key, found)?;
            }
            tx.write_stored(&catalog, &mark, None)?;
            also(&mut tx)?;
            tx.commit()
        };
        let mut is_full = false;
        let commit = loop {
            match attempt() {
                Ok(commit) => break commit,
                // Once: after a checkpoint, the blocks changed so far are free space.
                Err(Error::OutOfSpace { .. }) if !is_full => {
                    is_full = true;
                    instance.checkpoint_for(space_of(self.copy.id))?;
                }
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error),
            }
        };
        self.transactions += 1;
        self.report.records += part.len() as u64;
        self.report.bytes += part.iter().map(|copied| copied.bytes() as u64).sum::<u64>();
        Ok(SeqNo::new(commit.seqno()))
    }

    /// Copies what changed last, and makes the copy the table.
    fn complete(&mut self) -> Result<()> {
        let engine = &self.instance.engine;
        // Then the flush below, for which writers wait, has little to write.
        engine.log.sync()?;
        // Neither dropped nor renamed meanwhile.
        let _change = engine.tables.change.lock();
        self.check()?;
        let sealed = braid_rt::now();
        self.table.seal();
        // A transaction that did not see the seal may not have noted its keys yet.
        if !braid_rt::mutant!("complete_a_move_without_the_last_writers") {
            self.wait_for_writers();
        }
        let mut batch = self.changes()?;
        let last = batch.split_off(batch.len().saturating_sub(BATCH_RECORDS));
        if !batch.is_empty() {
            self.copy(batch)?;
        }
        if self.transactions > 0 {
            // The transaction below does not depend on what was copied before it.
            engine.log.sync()?;
        }
        let (table, copy) = (self.table.clone(), self.copy.clone());
        let catalog = Catalog::of(engine);
        let renumber = |tx: &mut Transaction| catalog.renumber(tx, &table, copy.id);
        let since = self.commit(&last, Durability::Immediate, renumber)?;
        // The table shows what it has shown.
        engine.wait_visible(since);
        let name = table.name.read().clone();
        copy.name.write().clone_from(&name);
        engine.tables.by_name.write().insert(name, copy.clone());
        // SeqCst: see `check_moves` in the commit.
        engine.tables.have_moved.store(true, Ordering::SeqCst);
        table.replace_by(&copy, since);
        braid_rt::coverage_point("move: the table is moved");
        engine.tables.moved.lock().push(table.clone());
        table.end_copy();
        self.report.writers_waited = braid_rt::now().saturating_duration_since(sealed);
        Ok(())
    }
}

/// Passes parts of a batch to `copy`, each of which has few records and bytes, or only one record.
fn divide(batch: &[Copied], mut copy: impl FnMut(&[Copied]) -> Result<()>) -> Result<()> {
    let mut rest = batch;
    while !rest.is_empty() {
        let mut bytes = 0;
        let sizes = rest.iter().take(BATCH_RECORDS).map(Copied::bytes);
        let fitting = sizes.take_while(|size| {
            bytes += size;
            bytes <= BATCH_BYTES
        });
        let (part, others) = rest.split_at(fitting.count().max(1));
        copy(part)?;
        rest = others;
    }
    Ok(())
}
