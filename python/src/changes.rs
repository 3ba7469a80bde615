//! Change feeds: committed transactions in the order of sequence numbers.

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

/// Interval at which a wait checks for signals such as Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Position in the order of a database's transactions, after one of them. str() and Position(text)
/// store it as text.
///
/// It stays valid as long as the database exists; a restored database has other positions.
#[pyclass(frozen, eq, hash, module = "braid")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Position(pub(crate) braid::changes::Position);

#[pymethods]
impl Position {
    #[new]
    fn new(text: &str) -> PyResult<Self> {
        text.parse().py().map(Self)
    }

    /// Converts the result of to_bytes back to a position.
    #[classmethod]
    fn from_bytes(_class: &Bound<'_, PyType>, bytes: [u8; 24]) -> Self {
        Self(braid::changes::Position::from_bytes(bytes))
    }

    /// Returns the position as 24 bytes.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    /// Sequence number of the transaction that the position follows.
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

/// Change of one key by a transaction.
#[pyclass(frozen, get_all, module = "braid")]
pub(crate) struct Change {
    /// Name of the table; None if it was dropped before the change was read.
    table: Option<String>,
    /// Identifier of the table, which stays the same when the table is renamed.
    table_id: u32,
    /// The key; as stored, in bytes, if the table is gone, or if Python has no class for its types.
    key: Py<PyAny>,
    /// The new value, or None if the key was removed; in bytes under the same conditions as the
    /// key.
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

/// A committed transaction and its changes; each key occurs once.
#[pyclass(frozen, get_all, module = "braid")]
pub(crate) struct ChangeSet {
    /// Sequence number of the transaction, its place in the serial order.
    seqno: u64,
    /// Position after the transaction.
    position: Py<Position>,
    /// The changes, a list of Change.
    changes: Py<PyAny>,
    /// Names of tables that a bulk load made visible with this transaction, a list. Their entries
    /// are not listed as changes; read them from a snapshot.
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
    changes: braid::changes::Changes,
    /// Types of the tables, by table identifier; None if Python has no class for them.
    schemas: HashMap<u32, Option<Schema>>,
}

/// A reader of committed, durable transactions, in the order of sequence numbers; see
/// Database.changes.
///
/// The iterator ends when there are currently no more transactions, and can be used again later;
/// next_within waits. While the reader is open, Braid keeps the log that it has not read, up to
/// feed_log_bytes.
#[pyclass(frozen, weakref, module = "braid")]
pub(crate) struct Changes {
    handle: Arc<Handle>,
    /// Set until the reader is closed.
    reader: Mutex<Option<Own<Reader>>>,
}

impl Changes {
    pub(crate) fn new(handle: Arc<Handle>, changes: braid::changes::Changes) -> Self {
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
        set: braid::changes::ChangeSet,
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

    /// Returns the next transaction. Waits for it for at most `time`, a datetime.timedelta, and
    /// then returns None.
    ///
    /// Raises PositionLostError if the reader fell behind by more log than Braid keeps for it, and
    /// PoisonedError if a failed write ended the changes.
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

    /// Position after the transactions returned so far.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<Position> {
        let state = self.state(py)?;
        let reader = state.as_ref().ok_or_else(closed)?.get()?;
        Ok(Position(reader.changes.position()))
    }

    /// Closes the reader, so that Braid no longer keeps log for it.
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

/// A feed: a consumer's position under a name, stored in the database; see Database.feed.
#[pyclass(frozen, weakref, module = "braid")]
pub(crate) struct Feed {
    handle: Arc<Handle>,
    feed: Own<braid::changes::Feed>,
}

impl Feed {
    pub(crate) fn new(handle: Arc<Handle>, feed: braid::changes::Feed) -> Self {
        Self {
            handle,
            feed: Own::new(feed),
        }
    }

    fn open(&self) -> PyResult<&braid::changes::Feed> {
        self.handle.open()?;
        self.feed.get()
    }
}

#[pymethods]
impl Feed {
    /// Name of the feed.
    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.feed.get()?.name().to_owned())
    }

    /// Position up to which the feed was acknowledged. Raises FeedNotFoundError if it was dropped.
    fn position(&self, py: Python<'_>) -> PyResult<Position> {
        let feed = self.open()?;
        py.detach(|| feed.position()).py().map(Position)
    }

    /// Opens a reader of the transactions that were not acknowledged yet.
    ///
    /// Raises FeedNotFoundError, and PositionLostError if the feed fell behind by more log than
    /// Braid keeps. In the latter case, note Database.position, read the tables from scratch,
    /// acknowledge the noted position, and continue from there.
    fn changes(&self, py: Python<'_>) -> PyResult<Changes> {
        let feed = self.open()?;
        let changes = py.detach(|| feed.changes()).py()?;
        Ok(Changes::new(self.handle.clone(), changes))
    }

    /// Records, durably, that the consumer has processed everything up to a position. The call is a
    /// transaction of its own.
    ///
    /// Raises FeedNotFoundError, ForeignPositionError, or what a commit raises.
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
