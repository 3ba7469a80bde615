//! Snapshots.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::database::Handle;
use crate::errors::{ClosedError, broken};
use crate::fork::Own;
use crate::reading::{self, Entry, Extent, Source, View};
use crate::scan::{Entries, Items, Origin};
use crate::table::Table;

type Open = Arc<Own<braid::Snapshot>>;

/// A consistent, read-only view of the durable state at one moment; see Database.snapshot.
#[pyclass(frozen, weakref, module = "braid")]
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) handle: Arc<Handle>,
    seqno: u64,
    /// Set until the snapshot is closed.
    state: Mutex<Option<Open>>,
    generation: AtomicU64,
}

impl Snapshot {
    pub(crate) fn take(py: Python<'_>, handle: &Arc<Handle>) -> PyResult<Self> {
        let database = handle.open()?;
        // Under some protocols, taking a snapshot waits for a flush.
        let snapshot = py.detach(|| database.snapshot());
        Ok(Self::new(handle.clone(), snapshot))
    }

    pub(crate) fn new(handle: Arc<Handle>, snapshot: braid::Snapshot) -> Self {
        Self {
            handle,
            seqno: snapshot.seqno(),
            state: Mutex::new(Some(Arc::new(Own::new(snapshot)))),
            generation: AtomicU64::new(0),
        }
    }

    fn state(&self, py: Python<'_>) -> PyResult<std::sync::MutexGuard<'_, Option<Open>>> {
        self.handle.check()?;
        self.state.lock_py_attached(py).map_err(|_| broken())
    }

    fn open(&self, py: Python<'_>) -> PyResult<Open> {
        let open = self.state(py)?.clone();
        open.ok_or_else(|| ClosedError::new_err("the snapshot is closed; take another one"))
    }
}

impl Source for Snapshot {
    fn read<T: Send>(
        &self,
        py: Python<'_>,
        extent: Extent,
        read: impl FnOnce(View<'_>) -> braid::Result<T> + Send,
    ) -> PyResult<T> {
        let open = self.open(py)?;
        let snapshot = open.get()?;
        let read = || read(View::Snapshot(snapshot));
        self.handle.read(py, extent, read)
    }

    fn generation(&self) -> u64 {
        // Relaxed: iteration concurrent with a close may come before or after it.
        self.generation.load(Ordering::Relaxed)
    }
}

#[pymethods]
impl Snapshot {
    /// Sequence number of the newest transaction that the snapshot shows.
    #[getter]
    fn seqno(&self) -> u64 {
        self.seqno
    }

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
        slf.get().open(slf.py())?;
        let table = table.get();
        let bounds = reading::range_bounds(table, start, stop, include_stop)?;
        let origin = Origin::Snapshot(slf.clone().unbind());
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
        slf.get().open(slf.py())?;
        let table = table.get();
        let bounds = reading::prefix_bounds(table, prefix)?;
        let origin = Origin::Snapshot(slf.clone().unbind());
        Ok(Entries::new(origin, table, bounds, Items::Entries, reverse))
    }

    /// Closes the snapshot, so that old versions are no longer kept for it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.state(py)?.take();
        self.generation.fetch_add(1, Ordering::Relaxed);
        drop(open);
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let closed = if self.state(py)?.is_some() {
            ""
        } else {
            ", closed"
        };
        Ok(format!("<braid.Snapshot {}{closed}>", self.seqno))
    }
}
