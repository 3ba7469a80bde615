//! Read-write transactions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use braid::Bytes;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::batch::Batch;
use crate::database::Handle;
use crate::errors::{IntoPyResult, broken, ended};
use crate::fork::Own;
use crate::reading::{self, Entry, Extent, Source, View};
use crate::savepoint::Savepoint;
use crate::scan::{Entries, Items, Origin};
use crate::table::Table;
use crate::ticket::Ticket;
use crate::writers;

#[derive(Debug)]
enum State {
    Open {
        transaction: Own<braid::Transaction>,
        /// Thread of the last write, as numbered by [`Writers`]; 0 before the first write.
        ///
        /// [`Writers`]: crate::writers::Writers
        writer: u64,
    },
    /// How the transaction ended.
    Ended(&'static str),
}

impl State {
    fn open(&mut self) -> PyResult<&mut braid::Transaction> {
        match self {
            State::Open { transaction, .. } => transaction.get_mut(),
            State::Ended(how) => Err(ended(how)),
        }
    }
}

/// A read-write transaction; see Database.begin.
///
/// Its writes are invisible to others until the commit, and visible to its own reads. A write locks
/// its key, and waits while another transaction holds the lock; it raises WouldDeadlockError if
/// that transaction could belong to the same thread. After the end of the transaction, every use
/// raises TransactionEndedError. A transaction that is garbage-collected is aborted.
#[pyclass(frozen, weakref, module = "braid")]
#[derive(Debug)]
pub(crate) struct Transaction {
    pub(crate) handle: Arc<Handle>,
    /// Number of the transaction in its database handle.
    number: u64,
    /// Serializes threads. A call may hold it while it waits for the engine, but never waits for
    /// the interpreter's lock while it holds a lock that a thread of the engine needs.
    state: Mutex<State>,
    /// Number of writes, plus one for the end.
    generation: AtomicU64,
}

impl Transaction {
    pub(crate) fn new(handle: Arc<Handle>, number: u64, transaction: braid::Transaction) -> Self {
        Self {
            handle,
            number,
            state: Mutex::new(State::Open {
                transaction: Own::new(transaction),
                writer: 0,
            }),
            generation: AtomicU64::new(0),
        }
    }

    fn state(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, State>> {
        // In a child made by fork, another thread of the parent may hold the mutex forever.
        self.handle.check()?;
        self.state.lock_py_attached(py).map_err(|_| broken())
    }

    pub(crate) fn is_open(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(matches!(*self.state(py)?, State::Open { .. }))
    }

    /// Undoes all writes made since a savepoint.
    pub(crate) fn rollback_to(&self, py: Python<'_>, savepoint: braid::Savepoint) -> PyResult<()> {
        let mut state = self.state(py)?;
        state.open()?.rollback_to(&savepoint).py()?;
        // Entries that were read ahead may be outdated.
        self.generation.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Runs a write, which may wait for locks of the engine.
    fn write<T: Send>(
        &self,
        py: Python<'_>,
        write: impl FnOnce(&mut braid::Transaction) -> braid::Result<T> + Send,
    ) -> PyResult<T> {
        let mut state = self.state(py)?;
        let (transaction, writer) = match &mut *state {
            State::Open {
                transaction,
                writer,
            } => (transaction.get_mut()?, writer),
            State::Ended(how) => return Err(ended(how)),
        };
        let thread = writers::thread();
        if *writer != thread {
            self.handle.writers.enter(self.number, thread)?;
            *writer = thread;
        }
        // Relaxed: iterators of other threads may come before or after.
        self.generation.fetch_add(1, Ordering::Relaxed);
        py.detach(|| write(transaction)).py()
    }

    /// Ends the transaction with `end`.
    fn end<T: Send>(
        &self,
        py: Python<'_>,
        mut state: MutexGuard<'_, State>,
        how: &'static str,
        end: impl FnOnce(braid::Transaction) -> braid::Result<T> + Send,
    ) -> PyResult<T> {
        state.open()?;
        let transaction = match std::mem::replace(&mut *state, State::Ended(how)) {
            State::Open { transaction, .. } => transaction.into_inner()?,
            State::Ended(how) => return Err(ended(how)),
        };
        self.generation.fetch_add(1, Ordering::Relaxed);
        let outcome = py.detach(|| end(transaction));
        self.handle.writers.leave(self.number);
        if outcome.is_err() {
            *state = State::Ended("aborted by an error");
        }
        outcome.py()
    }

    /// Commits, unless the transaction has ended.
    pub(crate) fn commit_if_open(&self, py: Python<'_>) -> PyResult<()> {
        let state = self.state(py)?;
        if matches!(*state, State::Open { .. }) {
            self.end(py, state, "committed", braid::Transaction::commit)?;
        }
        Ok(())
    }

    /// Aborts, unless the transaction has ended.
    pub(crate) fn abort_if_open(&self, py: Python<'_>) -> PyResult<()> {
        let state = self.state(py)?;
        if matches!(*state, State::Open { .. }) {
            self.end(py, state, "aborted", |transaction| {
                transaction.abort();
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl Source for Transaction {
    fn read<T: Send>(
        &self,
        py: Python<'_>,
        extent: Extent,
        read: impl FnOnce(View<'_>) -> braid::Result<T> + Send,
    ) -> PyResult<T> {
        let mut state = self.state(py)?;
        let transaction = state.open()?;
        let read = || read(View::Transaction(transaction));
        self.handle.read(py, extent, read)
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let state = state.unwrap_or_else(std::sync::PoisonError::into_inner);
        // In a child made by fork, another thread of the parent may hold the writers' mutex
        // forever.
        if let State::Open { transaction, .. } = state
            && transaction.is_own()
        {
            *state = State::Ended("aborted");
            self.handle.writers.leave(self.number);
        }
    }
}

#[pymethods]
impl Transaction {
    // Reading
    // -----------------------------------------------------------------------------------------

    /// Returns the value of a key, or `default`.
    #[pyo3(signature = (table, key, default = None))]
    fn get<'py>(
        &self,
        table: &Bound<'py, Table>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        reading::get(self, table, key, default)
    }

    /// Returns whether a key exists.
    fn contains_key(&self, table: &Bound<'_, Table>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        reading::contains_key(self, table, key)
    }

    /// Returns the values of several keys, in their order, and `default` for keys that do not
    /// exist; faster than one call per key.
    #[pyo3(signature = (table, keys, default = None))]
    fn get_many<'py>(
        &self,
        table: &Bound<'py, Table>,
        keys: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        reading::get_many(self, table, keys, default)
    }

    /// Loads the pages of these keys into memory, all at once.
    fn prefetch(&self, table: &Bound<'_, Table>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        reading::prefetch(self, table, keys)
    }

    /// Returns the entry with the smallest key, or None.
    fn first<'py>(&self, table: &Bound<'py, Table>) -> PyResult<Option<Entry<'py>>> {
        reading::end(self, table, false)
    }

    /// Returns the entry with the largest key, or None.
    fn last<'py>(&self, table: &Bound<'py, Table>) -> PyResult<Option<Entry<'py>>> {
        reading::end(self, table, true)
    }

    /// Iterates over the entries from `start` up to `stop`, in order.
    #[pyo3(signature = (table, start = None, stop = None, *, include_stop = false, reverse = false))]
    fn range(
        slf: &Bound<'_, Self>,
        table: &Bound<'_, Table>,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        include_stop: bool,
        reverse: bool,
    ) -> PyResult<Entries> {
        slf.get().state(slf.py())?.open()?;
        let table = table.get();
        let bounds = reading::range_bounds(table, start, stop, include_stop)?;
        let origin = Origin::Transaction(slf.clone().unbind());
        Ok(Entries::new(origin, table, bounds, Items::Entries, reverse))
    }

    /// Iterates over the entries whose keys begin with `prefix`, in order.
    #[pyo3(signature = (table, prefix, *, reverse = false))]
    fn prefix(
        slf: &Bound<'_, Self>,
        table: &Bound<'_, Table>,
        prefix: &Bound<'_, PyAny>,
        reverse: bool,
    ) -> PyResult<Entries> {
        slf.get().state(slf.py())?.open()?;
        let table = table.get();
        let bounds = reading::prefix_bounds(table, prefix)?;
        let origin = Origin::Transaction(slf.clone().unbind());
        Ok(Entries::new(origin, table, bounds, Items::Entries, reverse))
    }

    /// Returns the value of a key, or `default`, and locks the key against other writers until the
    /// transaction ends.
    #[pyo3(signature = (table, key, default = None))]
    fn get_for_update<'py>(
        &self,
        table: &Bound<'py, Table>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, table) = (table.py(), table.get());
        let key = table.schema.encode_key(key)?;
        let found: Option<Bytes> =
            self.write(py, |tx| tx.get_for_update(&table.table, &key[..]))?;
        match found {
            Some(value) => table.schema.decode_value(py, value).map(Some),
            None => Ok(default),
        }
    }

    // Writing
    // -----------------------------------------------------------------------------------------

    /// Sets the value of a key.
    fn insert(
        &self,
        table: &Bound<'_, Table>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (py, table) = (table.py(), table.get());
        let key = table.schema.encode_key(key)?;
        let value = table.schema.encode_value(value)?;
        self.write(py, |tx| tx.insert(&table.table, &key[..], &value[..]))
    }

    /// Sets many keys, from a mapping or pairs; faster than one call per entry.
    ///
    /// After an error, some of them may be set in the transaction; a savepoint can undo them.
    fn insert_many(&self, table: &Bound<'_, Table>, entries: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, table) = (table.py(), table.get());
        self.handle.check()?;
        let batch = Batch::of(&table.schema, entries)?;
        self.write(py, |tx| {
            batch
                .iter()
                .try_for_each(|(key, value)| tx.insert(&table.table, key, value))
        })
    }

    /// Sets the value of a key and returns the previous value, or None.
    fn replace<'py>(
        &self,
        table: &Bound<'py, Table>,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, table) = (table.py(), table.get());
        let key = table.schema.encode_key(key)?;
        let value = table.schema.encode_value(value)?;
        let before = self.write(py, |tx| tx.replace(&table.table, &key[..], &value[..]))?;
        let before = before.map(|before| table.schema.decode_value(py, before));
        before.transpose()
    }

    /// Sets the value of a key if the key does not exist; returns whether it did so.
    fn insert_if_absent(
        &self,
        table: &Bound<'_, Table>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let (py, table) = (table.py(), table.get());
        let key = table.schema.encode_key(key)?;
        let value = table.schema.encode_value(value)?;
        self.write(py, |tx| {
            tx.insert_if_absent(&table.table, &key[..], &value[..])
        })
    }

    /// Removes a key; returns whether it existed.
    fn remove(&self, table: &Bound<'_, Table>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (py, table) = (table.py(), table.get());
        let key = table.schema.encode_key(key)?;
        self.write(py, |tx| tx.remove(&table.table, &key[..]))
    }

    /// Removes the keys from `start` up to `stop`; returns their number. The keys are collected in
    /// memory; to remove a whole table, drop_table costs less.
    #[pyo3(signature = (table, start = None, stop = None, *, include_stop = false))]
    fn remove_range(
        &self,
        table: &Bound<'_, Table>,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        include_stop: bool,
    ) -> PyResult<u64> {
        let (py, table) = (table.py(), table.get());
        let bounds = reading::range_bounds(table, start, stop, include_stop)?;
        self.write(py, move |tx| tx.remove_range(&table.table, bounds))
    }

    /// Removes a key and returns its value, or `default`.
    #[pyo3(signature = (table, key, default = None))]
    fn take<'py>(
        &self,
        table: &Bound<'py, Table>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, table) = (table.py(), table.get());
        let key = table.schema.encode_key(key)?;
        match self.write(py, |tx| tx.take(&table.table, &key[..]))? {
            Some(value) => table.schema.decode_value(py, value).map(Some),
            None => Ok(default),
        }
    }

    /// Sets a key to `new` (None: removes it) if its value is `expected` (None: if it does not
    /// exist); returns whether it did so.
    fn compare_and_set(
        &self,
        table: &Bound<'_, Table>,
        key: &Bound<'_, PyAny>,
        expected: Option<&Bound<'_, PyAny>>,
        new: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let (py, table) = (table.py(), table.get());
        let key = table.schema.encode_key(key)?;
        let encoded = |value: &Bound<'_, PyAny>| -> PyResult<Bytes> {
            Ok(Bytes::copy_from_slice(&table.schema.encode_value(value)?))
        };
        let expected = expected.map(encoded).transpose()?;
        let new = new.map(encoded).transpose()?;
        self.write(py, |tx| {
            tx.compare_and_set(&table.table, &key[..], expected.as_ref(), new.as_ref())
        })
    }

    /// Replaces the value of a key by the result of `update`, and returns the previous value; None
    /// stands for an absent key.
    fn fetch_update<'py>(
        &self,
        table: &Bound<'py, Table>,
        key: &Bound<'py, PyAny>,
        update: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        // Not the engine's method of this name: `update` may use this transaction.
        let before = self.get_for_update(table, key, None)?;
        let new = update.call1((before.as_ref(),))?;
        if !new.is_none() {
            self.insert(table, key, &new)?;
        } else if before.is_some() {
            self.remove(table, key)?;
        }
        Ok(before)
    }

    /// Sets a savepoint: its rollback, or an exception in its with block, undoes later writes.
    fn savepoint(slf: &Bound<'_, Self>) -> PyResult<Savepoint> {
        let savepoint = slf.get().state(slf.py())?.open()?.savepoint();
        Ok(Savepoint::new(slf.clone().unbind(), savepoint))
    }

    // Ending
    // ------------------------------------------------------------------------------------------

    /// Makes the writes visible and durable, all or none; returns the transaction's sequence
    /// number, its place in the serial order.
    ///
    /// Raises ConflictError or OutOfSpaceError, after which the transaction leaves no trace, and
    /// PoisonedError if the log failed; then only opening the database again shows whether the
    /// transaction survived.
    fn commit(&self, py: Python<'_>) -> PyResult<u64> {
        let state = self.state(py)?;
        let commit = self.end(py, state, "committed", braid::Transaction::commit)?;
        Ok(commit.seqno())
    }

    /// Makes the writes visible, and returns, without waiting, a Ticket that reports when they are
    /// durable.
    ///
    /// Raises what commit raises; the ticket reports a failure to become durable.
    fn commit_async(&self, py: Python<'_>) -> PyResult<Ticket> {
        let state = self.state(py)?;
        let ticket = self.end(py, state, "committed", braid::Transaction::commit_async)?;
        Ok(Ticket::new(ticket))
    }

    /// Ends the transaction and discards its writes.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.state(py)?.open()?;
        self.abort_if_open(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().state(slf.py())?.open()?;
        Ok(slf)
    }

    #[pyo3(signature = (kind, _exception, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _exception: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        match kind {
            None => self.commit_if_open(py),
            Some(_) => self.abort_if_open(py),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(match &*self.state(py)? {
            State::Open { .. } => "<braid.Transaction open>".to_owned(),
            State::Ended(how) => format!("<braid.Transaction {how}>"),
        })
    }
}
