//! RocksDB, the system's library: an LSM-tree, written by batches (`rocksdb`) or by pessimistic
//! transactions (`rocksdb-txn`).
//!
//! Batches are only atomic: a read in a batch sees committed data, not the writes of the batch, and
//! data that was read may change. Transactions lock the keys that they write or read for update;
//! their other reads see the data that is committed at that moment.

mod db;
mod ffi;
mod operations;

use std::path::Path;
use std::ptr::null_mut;

use self::db::{Batch, Db, Iter, ReadOptions, Snapshot, WriteOptions, borrow_value, checked, stop};
use self::ffi::*;
use self::operations::Plain;
use super::{
    Abilities, Acknowledgement, Body, KvEngine, Mode, Operations, Order, Session, Stop, TableId,
    Transaction, Wait,
};
use crate::BenchError;

#[allow(clippy::unnecessary_wraps)] // the registry's signature
pub(super) fn version() -> Result<String, String> {
    Ok(env!("BRAID_BENCH_ROCKSDB").to_owned())
}

pub(super) fn open(
    dir: &Path,
    tables: &[&str],
    cache_bytes: usize,
) -> Result<Box<dyn KvEngine>, BenchError> {
    let db = Db::open(dir, tables, cache_bytes, false)?;
    Ok(Box::new(RocksDb(Plain::new(db, dir))))
}

pub(super) fn open_transactional(
    dir: &Path,
    tables: &[&str],
    cache_bytes: usize,
) -> Result<Box<dyn KvEngine>, BenchError> {
    let db = Db::open(dir, tables, cache_bytes, true)?;
    Ok(Box::new(RocksDbTxn(db)))
}

struct RocksDb(Plain);

struct RocksDbTxn(Db);

impl KvEngine for RocksDb {
    fn name(&self) -> &str {
        "rocksdb"
    }

    fn abilities(&self) -> Abilities {
        Abilities::BATCHES
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(BatchSession {
            db: &self.0.db,
            read: ReadOptions::new(),
            write: WriteOptions::sync(),
            batch: Batch::new(),
        }))
    }

    fn settle(&self) -> Result<(), BenchError> {
        self.0.db.settle()
    }

    fn operations(&self) -> &dyn Operations {
        &self.0
    }
}

impl KvEngine for RocksDbTxn {
    fn name(&self) -> &str {
        "rocksdb-txn"
    }

    fn abilities(&self) -> Abilities {
        Abilities::UPDATES
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        // SAFETY: needs nothing.
        let options = unsafe {
            let options = rocksdb_transaction_options_create();
            // Without it, transactions that wait for each other do so for a second:
            // https://github.com/facebook/rocksdb/wiki/Transactions
            rocksdb_transaction_options_set_deadlock_detect(options, 1);
            options
        };
        Ok(Box::new(TxnSession {
            db: &self.0,
            read: ReadOptions::new(),
            write: WriteOptions::sync(),
            options,
            tx: null_mut(),
        }))
    }

    fn settle(&self) -> Result<(), BenchError> {
        self.0.settle()
    }
}

/// Runs a body on a snapshot.
fn read_only(db: &Db, options: &ReadOptions, body: &mut Body<'_>) -> Result<(), Stop> {
    let _snapshot = Snapshot::new(db, options);
    body(&mut Reading { db, options })
}

struct BatchSession<'a> {
    db: &'a Db,
    read: ReadOptions,
    write: WriteOptions,
    batch: Batch,
}

impl Session for BatchSession<'_> {
    fn transact(
        &mut self,
        mode: Mode,
        _: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        if mode == Mode::ReadOnly {
            read_only(self.db, &self.read, body)?;
            return Ok(Acknowledgement::Durable);
        }
        // SAFETY: the batch is open. This also clears the writes of a failed body.
        unsafe { rocksdb_writebatch_clear(self.batch.0) };
        body(&mut Batching(self))?;
        self.db.write(&self.write, &self.batch)?;
        Ok(Acknowledgement::Durable)
    }

    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        self.db.get(&self.read, table, key, found)
    }
}

struct TxnSession<'a> {
    db: &'a Db,
    read: ReadOptions,
    write: WriteOptions,
    options: *mut rocksdb_transaction_options_t,
    /// The last transaction, which the next one reuses; null before the first one.
    tx: *mut rocksdb_transaction_t,
}

impl Drop for TxnSession<'_> {
    fn drop(&mut self) {
        // SAFETY: both belong to this.
        unsafe {
            if !self.tx.is_null() {
                rocksdb_transaction_destroy(self.tx);
            }
            rocksdb_transaction_options_destroy(self.options);
        }
    }
}

impl Session for TxnSession<'_> {
    fn transact(
        &mut self,
        mode: Mode,
        _: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        if mode == Mode::ReadOnly {
            read_only(self.db, &self.read, body)?;
            return Ok(Acknowledgement::Durable);
        }
        // SAFETY: the last transaction has ended or is null; the options are open.
        self.tx = unsafe {
            rocksdb_transaction_begin(self.db.transactional(), self.write.0, self.options, self.tx)
        };
        // Dropping this rolls the transaction back, which releases its locks.
        let mut running = Running {
            session: self,
            is_over: false,
        };
        body(&mut running)?;
        let tx = running.session.tx;
        // SAFETY: the transaction is open.
        checked(|error| unsafe { rocksdb_transaction_commit(tx, error) }).map_err(stop)?;
        running.is_over = true;
        Ok(Acknowledgement::Durable)
    }

    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        self.db.get(&self.read, table, key, found)
    }
}

struct Reading<'a> {
    db: &'a Db,
    options: &'a ReadOptions,
}

impl Transaction for Reading<'_> {
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        self.db.get(self.options, table, key, found)
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        to: &[u8],
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        self.db.scan(self.options, table, (from, to), order, visit)
    }
}

struct Batching<'a, 'b>(&'a BatchSession<'b>);

impl Transaction for Batching<'_, '_> {
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        self.0.db.get(&self.0.read, table, key, found)
    }

    fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        // SAFETY: batch and family are open, the bytes are copied.
        unsafe {
            rocksdb_writebatch_put_cf(
                self.0.batch.0,
                self.0.db.family(table),
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
            );
        }
        Ok(())
    }

    fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        // SAFETY: the same.
        unsafe {
            rocksdb_writebatch_delete_cf(
                self.0.batch.0,
                self.0.db.family(table),
                key.as_ptr().cast(),
                key.len(),
            );
        }
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
        self.0
            .db
            .scan(&self.0.read, table, (from, to), order, visit)
    }
}

struct Running<'a, 'b> {
    session: &'a TxnSession<'b>,
    is_over: bool,
}

impl Drop for Running<'_, '_> {
    fn drop(&mut self) {
        if !self.is_over {
            // SAFETY: the transaction is open. If the rollback fails, the end of the session cleans
            // up.
            let _ = checked(|error| unsafe {
                rocksdb_transaction_rollback(self.session.tx, error);
            });
        }
    }
}

impl Transaction for Running<'_, '_> {
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        let TxnSession { db, read, tx, .. } = self.session;
        // SAFETY: transaction, options and family are open, the key is borrowed for the call.
        let slice = checked(|error| unsafe {
            rocksdb_transaction_get_pinned_cf(
                *tx,
                read.0,
                db.family(table),
                key.as_ptr().cast(),
                key.len(),
                error,
            )
        });
        Ok(borrow_value(slice.map_err(stop)?, found))
    }

    fn get_for_update(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        let TxnSession { db, read, tx, .. } = self.session;
        // SAFETY: the same.
        let slice = checked(|error| unsafe {
            rocksdb_transaction_get_pinned_for_update_cf(
                *tx,
                read.0,
                db.family(table),
                key.as_ptr().cast(),
                key.len(),
                1,
                error,
            )
        });
        Ok(borrow_value(slice.map_err(stop)?, found))
    }

    fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        let TxnSession { db, tx, .. } = self.session;
        // SAFETY: transaction and family are open, the bytes are copied.
        checked(|error| unsafe {
            rocksdb_transaction_put_cf(
                *tx,
                db.family(table),
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                error,
            );
        })
        .map_err(stop)
    }

    fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        let TxnSession { db, tx, .. } = self.session;
        // SAFETY: the same.
        checked(|error| unsafe {
            rocksdb_transaction_delete_cf(
                *tx,
                db.family(table),
                key.as_ptr().cast(),
                key.len(),
                error,
            );
        })
        .map_err(stop)
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        to: &[u8],
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        let TxnSession { db, read, tx, .. } = self.session;
        // SAFETY: transaction, options and family are open longer than the iterator lives.
        let iter =
            Iter(unsafe { rocksdb_transaction_create_iterator_cf(*tx, read.0, db.family(table)) });
        iter.visit((from, to), order, visit)
    }
}
