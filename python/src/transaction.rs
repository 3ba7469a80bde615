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
        /// The thread that wrote last, as [`Writers`] knows it; 0 for none.
        ///
        /// [`Writers`]: crate::writers::Writers
        writer: u64,
    },
    /// How it ended.
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
/// Its writes are its own until the commit, and its reads see them. A write locks its key, and waits while another
/// transaction has it locked; WouldDeadlockError if that could be one of the same thread. After its end every use
/// raises TransactionEndedError. One that nobody refers to is aborted.
#[pyclass(frozen, weakref, module = "braid")]
#[derive(Debug)]
pub(crate) struct Transaction {
    pub(crate) handle: Arc<Handle>,
    /// Among the transactions of the handle.
    number: u64,
    /// One thread at a time. Held while a call waits, but never while one waits for the interpreter's lock with
    /// something of the engine's locked that a thread of the engine needs.
    state: Mutex<State>,
    /// Counts writes and the end.
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
        // In a child made by fork another thread of the parent may hold the mutex for ever.
        self.handle.check()?;
        self.state.lock_py_attached(py).map_err(|_| broken())
    }

    pub(crate) fn is_open(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(matches!(*self.state(py)?, State::Open { .. }))
    }

    /// Takes back what was written since a savepoint.
    pub(crate) fn rollback_to(&self, py: Python<'_>, savepoint: braid::Savepoint) -> PyResult<()> {
        let mut state = self.state(py)?;
        state.open()?.rollback_to(&savepoint).py()?;
        // What was read ahead may have been written since.
        self.generation.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Calls what takes locks of the engine, and may wait for them.
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
        // Relaxed: iterators of another thread may come before or after.
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

    /// Commits if nobody has ended it.
    pub(crate) fn commit_if_open(&self, py: Python<'_>) -> PyResult<()> {
        let state = self.state(py)?;
        if matches!(*state, State::Open { .. }) {
            self.end(py, state, "committed", braid::Transaction::commit)?;
        }
        Ok(())
    }

    /// Aborts if nobody has ended it.
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
        // In a child made by fork another thread of the parent may hold the writers' mutex for ever.
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
    // Reading -----------------------------------------------------------------------------------------

    /// The value of a key, or `default`.
    #[pyo3(signature = (table, key, default = None))]
    fn get<'py>(
        &self,
        table: &Bound<'py, Table>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        reading::get(self, table, key, default)
    }

    /// Whether a key is there.
    fn contains_key(&self, table: &Bound<'_, Table>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        reading::contains_key(self, table, key)
    }

    /// The values of several keys, in their order, with `default` for those that are not there; faster than one after
    /// the other.
    #[pyo3(signature = (table, keys, default = None))]
    fn get_many<'py>(
        &self,
        table: &Bound<'py, Table>,
        keys: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        reading::get_many(self, table, keys, default)
    }

    /// Brings what reading or writing these keys needs into memory, all at once.
    fn prefetch(&self, table: &Bound<'_, Table>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        reading::prefetch(self, table, keys)
    }

    /// The entry with the smallest key, or None.
    fn first<'py>(&self, table: &Bound<'py, Table>) -> PyResult<Option<Entry<'py>>> {
        reading::end(self, table, false)
    }

    /// The entry with the largest key, or None.
    fn last<'py>(&self, table: &Bound<'py, Table>) -> PyResult<Option<Entry<'py>>> {
        reading::end(self, table, true)
    }

    /// The entries from `start` up to `stop`, in order.
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

    /// The entries whose keys begin with `prefix`, in order.
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

    /// The value of a key, or `default`, locked against other writers until the transaction ends.
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

    // Writing -----------------------------------------------------------------------------------------

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

    /// Sets many keys, from a mapping or pairs, for less than one after the other costs.
    ///
    /// After an error some of them may be set in the transaction; a savepoint takes them back.
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

    /// Sets the value of a key and returns the one before, or None.
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

    /// Sets the value of a key that is not there; says whether it did.
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

    /// Removes a key; says whether it was there.
    fn remove(&self, table: &Bound<'_, Table>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (py, table) = (table.py(), table.get());
        let key = table.schema.encode_key(key)?;
        self.write(py, |tx| tx.remove(&table.table, &key[..]))
    }

    /// Removes the keys from `start` up to `stop`; says how many there were. They are gathered in memory: for a whole
    /// table, drop_table costs less.
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

    /// Sets, or removes with None, a key if its value is `expected` (None: it is not there); says whether it did.
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

    /// Replaces the value of a key by what `update` makes of it and returns the value before; None: not there.
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

    /// A point that the transaction can return to: by its rollback, or by an exception in a with statement.
    fn savepoint(slf: &Bound<'_, Self>) -> PyResult<Savepoint> {
        let savepoint = slf.get().state(slf.py())?.open()?.savepoint();
        Ok(Savepoint::new(slf.clone().unbind(), savepoint))
    }

    // Ending ------------------------------------------------------------------------------------------

    /// Makes the writes visible and durable, together or not at all; returns the place in the serial order.
    ///
    /// Raises ConflictError or OutOfSpaceError, after which nothing of the transaction remains; PoisonedError if the log
    /// failed, and then it is known only after opening again whether it survives.
    fn commit(&self, py: Python<'_>) -> PyResult<u64> {
        let state = self.state(py)?;
        let commit = self.end(py, state, "committed", braid::Transaction::commit)?;
        Ok(commit.seqno())
    }

    /// Makes the writes visible and returns a Ticket, without waiting, that tells when they are durable.
    ///
    /// Raises what commit raises; a failure to become durable is the ticket's.
    fn commit_async(&self, py: Python<'_>) -> PyResult<Ticket> {
        let state = self.state(py)?;
        let ticket = self.end(py, state, "committed", braid::Transaction::commit_async)?;
        Ok(Ticket::new(ticket))
    }

    /// Ends the transaction without a trace.
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
