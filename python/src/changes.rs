//! Committed transactions in their order, and feeds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use braid::Bytes;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyType};

use crate::database::Handle;
use crate::errors::{ClosedError, IntoPyResult, broken};
use crate::fork::Own;
use crate::types::Schema;

/// A wait is interrupted so often, to see whether somebody pressed Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A place in the order of a database's transactions, behind one of them; str() and Position(text) store it as text.
///
/// It is good for as long as the database lives; one that was restored has other positions.
#[pyclass(frozen, eq, hash, module = "braid")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Position(pub(crate) braid::Position);

#[pymethods]
impl Position {
    #[new]
    fn new(text: &str) -> PyResult<Self> {
        text.parse().py().map(Self)
    }

    /// The position of to_bytes.
    #[classmethod]
    fn from_bytes(_class: &Bound<'_, PyType>, bytes: [u8; 24]) -> Self {
        Self(braid::Position::from_bytes(bytes))
    }

    /// The position as 24 bytes.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    /// The number of the transaction that it lies behind.
    #[getter]
    fn seqno(&self) -> u64 {
        self.0.seqno()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("braid.Position('{}')", self.0)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, (String,)) {
        (slf.get_type(), (slf.get().__str__(),))
    }
}

/// What a transaction did to one key.
#[pyclass(frozen, get_all, module = "braid")]
pub(crate) struct Change {
    /// The table's name; None if it was dropped before this was read.
    table: Option<String>,
    /// The table's number, which it keeps when it is renamed.
    table_id: u32,
    /// The key; as it is stored, in bytes, if there is nothing in Python for the table's types, or the table is gone.
    key: Py<PyAny>,
    /// The new value, or None if the key was removed; in bytes as the key.
    value: Option<Py<PyAny>>,
}

#[pymethods]
impl Change {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let value = self.value.as_ref().map_or(py.None(), |v| v.clone_ref(py));
        let (key, value) = (self.key.bind(py).repr()?, value.bind(py).repr()?);
        Ok(match &self.table {
            Some(table) => format!("<braid.Change {table:?}: {key} -> {value}>"),
            None => format!("<braid.Change {}: {key} -> {value}>", self.table_id),
        })
    }
}

/// A committed transaction with what it wrote, each key once.
#[pyclass(frozen, get_all, module = "braid")]
pub(crate) struct ChangeSet {
    /// Its place in the serial order.
    seqno: u64,
    /// The position behind it.
    position: Py<Position>,
    /// Its writes to tables, a list of Change.
    changes: Py<PyAny>,
    /// The names of tables that became visible with it and were loaded with Database.bulk_load, a list: what is in them
    /// does not come as changes, and is to be read from a snapshot.
    loaded: Py<PyAny>,
}

#[pymethods]
impl ChangeSet {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let changes = self.changes.bind(py).len()?;
        Ok(format!(
            "<braid.ChangeSet {}: {changes} changes>",
            self.seqno
        ))
    }
}

struct Reader {
    changes: braid::Changes,
    /// What the tables hold, by their numbers; None if there is nothing in Python for it.
    schemas: HashMap<u32, Option<Schema>>,
}

/// Reads committed, durable transactions in their order; see Database.changes.
///
/// As an iterator it ends when there is nothing more for now, and goes on when there is; next_within waits. While it
/// is open, the log that it has not read is kept, up to feed_log_bytes.
#[pyclass(frozen, weakref, module = "braid")]
pub(crate) struct Changes {
    handle: Arc<Handle>,
    /// There until it is closed.
    reader: Mutex<Option<Own<Reader>>>,
}

impl Changes {
    pub(crate) fn new(handle: Arc<Handle>, changes: braid::Changes) -> Self {
        let reader = Reader {
            changes,
            schemas: HashMap::new(),
        };
        Self {
            handle,
            reader: Mutex::new(Some(Own::new(reader))),
        }
    }

    fn state(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Option<Own<Reader>>>> {
        self.handle.check()?;
        self.reader.lock_py_attached(py).map_err(|_| broken())
    }

    fn convert(
        &self,
        py: Python<'_>,
        reader: &mut Reader,
        set: braid::ChangeSet,
    ) -> PyResult<ChangeSet> {
        let database = self.handle.open()?;
        let mut changes = Vec::with_capacity(set.changes.len());
        for change in set.changes {
            let schema = match &change.table {
                None => None,
                Some(name) => match reader.schemas.get(&change.table_id) {
                    Some(schema) => *schema,
                    None => {
                        let table = py.detach(|| database.untyped_table(name)).py()?;
                        let schema = table.and_then(|table| {
                            let (key, value) = table.type_names();
                            Schema::of_names(key, value).ok()
                        });
                        reader.schemas.insert(change.table_id, schema);
                        schema
                    }
                },
            };
            let raw = |bytes: Bytes| PyBytes::new(py, &bytes).into_any();
            let key = match schema {
                Some(schema) => schema.decode_key(py, change.key)?,
                None => raw(change.key),
            };
            let value = match (change.value, schema) {
                (None, _) => None,
                (Some(value), Some(schema)) => Some(schema.decode_value(py, value)?),
                (Some(value), None) => Some(raw(value)),
            };
            changes.push(Change {
                table: change.table.map(|name| name.to_string()),
                table_id: change.table_id,
                key: key.unbind(),
                value: value.map(Bound::unbind),
            });
        }
        let loaded: Vec<&str> = set.loaded.iter().map(|name| &**name).collect();
        Ok(ChangeSet {
            seqno: set.seqno,
            position: Py::new(py, Position(set.position))?,
            changes: changes.into_pyobject(py)?.into_any().unbind(),
            loaded: loaded.into_pyobject(py)?.into_any().unbind(),
        })
    }
}

#[cold]
fn closed() -> PyErr {
    ClosedError::new_err("the reader of changes is closed; open another one")
}

#[pymethods]
impl Changes {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<ChangeSet>> {
        let mut state = self.state(py)?;
        let reader = state.as_mut().ok_or_else(closed)?.get_mut()?;
        match py.detach(|| reader.changes.next()) {
            None => Ok(None),
            Some(set) => self.convert(py, reader, set.py()?).map(Some),
        }
    }

    /// The next transaction; waits until there is one, but not for longer than `time`, a datetime.timedelta; None then.
    ///
    /// Raises PositionLostError if it was left behind by more log than is kept for it; PoisonedError if there is no
    /// more because writing failed.
    fn next_within(&self, py: Python<'_>, time: Duration) -> PyResult<Option<ChangeSet>> {
        let deadline = Instant::now().checked_add(time);
        let mut state = self.state(py)?;
        let reader = state.as_mut().ok_or_else(closed)?.get_mut()?;
        loop {
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => LOOK_EVERY,
            };
            let changes = &mut reader.changes;
            let next = py
                .detach(|| changes.next_within(left.min(LOOK_EVERY)))
                .py()?;
            if let Some(set) = next {
                return self.convert(py, reader, set).map(Some);
            }
            if left <= LOOK_EVERY && deadline.is_some() {
                return Ok(None);
            }
            py.check_signals()?;
        }
    }

    /// The position behind what was returned so far.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<Position> {
        let state = self.state(py)?;
        let reader = state.as_ref().ok_or_else(closed)?.get()?;
        Ok(Position(reader.changes.position()))
    }

    /// Lets go of the log that is kept for it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let reader = self.state(py)?.take();
        py.detach(|| drop(reader));
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _exception: &Bound<'_, pyo3::types::PyTuple>,
    ) -> PyResult<()> {
        self.close(py)
    }
}

/// A named consumer of changes, whose place the database remembers; see Database.feed.
#[pyclass(frozen, weakref, module = "braid")]
pub(crate) struct Feed {
    handle: Arc<Handle>,
    feed: Own<braid::Feed>,
}

impl Feed {
    pub(crate) fn new(handle: Arc<Handle>, feed: braid::Feed) -> Self {
        Self {
            handle,
            feed: Own::new(feed),
        }
    }

    fn open(&self) -> PyResult<&braid::Feed> {
        self.handle.open()?;
        self.feed.get()
    }
}

#[pymethods]
impl Feed {
    /// Its name.
    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.feed.get()?.name().to_owned())
    }

    /// The position up to which it was acknowledged. Raises FeedMissingError if it was dropped.
    fn position(&self, py: Python<'_>) -> PyResult<Position> {
        let feed = self.open()?;
        py.detach(|| feed.position()).py().map(Position)
    }

    /// A reader of the transactions that were not acknowledged yet.
    ///
    /// Raises FeedMissingError; PositionLostError if more log came than is kept for feeds: then read the tables
    /// themselves, acknowledge Database.position as it was before, and go on from there.
    fn changes(&self, py: Python<'_>) -> PyResult<Changes> {
        let feed = self.open()?;
        let changes = py.detach(|| feed.changes()).py()?;
        Ok(Changes::new(self.handle.clone(), changes))
    }

    /// Notes, durably, that everything up to a position was taken over. This is a transaction of its own.
    ///
    /// Raises FeedMissingError, ForeignPositionError, or what a commit raises.
    fn acknowledge(&self, py: Python<'_>, position: &Bound<'_, Position>) -> PyResult<()> {
        let feed = self.open()?;
        self.handle.writers.check_none()?;
        let position = position.get().0;
        py.detach(|| feed.acknowledge(position)).py()
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("<braid.Feed {:?}>", self.name()?))
    }
}
