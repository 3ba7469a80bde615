//! Bulk loads: building a table from sorted entries, without the log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use braid::Bytes;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::batch::{Batch, Pairs};
use crate::database::Handle;
use crate::errors::{ClosedError, IntoPyResult, broken};
use crate::fork::Own;
use crate::table::Table;
use crate::types::Schema;

/// Number of bytes that are encoded before each call to the engine.
const BATCH_BYTES: usize = 1 << 20;

type Loader = braid::BulkLoader<Bytes, Bytes>;

/// A bulk load: builds a new table from entries in ascending key order; see Database.bulk_load.
///
/// In a with statement, the end of the block finishes the load, and an exception aborts it. A
/// loader that is garbage-collected is aborted.
#[pyclass(frozen, generic, weakref, module = "braid")]
pub(crate) struct BulkLoader {
    handle: Arc<Handle>,
    schema: Schema,
    /// Set until the load is finished or aborted.
    loader: Mutex<Option<Own<Loader>>>,
}

impl BulkLoader {
    pub(crate) fn new(handle: Arc<Handle>, schema: Schema, loader: Loader) -> Self {
        Self {
            handle,
            schema,
            loader: Mutex::new(Some(Own::new(loader))),
        }
    }

    fn state(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Option<Own<Loader>>>> {
        self.handle.check()?;
        self.loader.lock_py_attached(py).map_err(|_| broken())
    }

    fn take(&self, py: Python<'_>) -> PyResult<Loader> {
        self.state(py)?.take().ok_or_else(over)?.into_inner()
    }
}

impl Drop for BulkLoader {
    fn drop(&mut self) {
        let loader = self.loader.get_mut();
        let loader = loader.unwrap_or_else(PoisonError::into_inner).take();
        // Freeing the loaded pages may wait.
        Python::try_attach(|py| py.detach(move || drop(loader)));
    }
}

#[cold]
fn over() -> PyErr {
    ClosedError::new_err("the load was finished or aborted; begin another one")
}

#[pymethods]
impl BulkLoader {
    /// Adds an entry. Its key must be greater than all previous ones; otherwise this raises
    /// OutOfOrderError, and the load continues without the entry.
    fn insert(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = key.py();
        let key = self.schema.encode_key(key)?;
        let value = self.schema.encode_value(value)?;
        let mut state = self.state(py)?;
        let loader = state.as_mut().ok_or_else(over)?.get_mut()?;
        py.detach(|| loader.insert(&key[..], &value[..])).py()
    }

    /// Adds entries in ascending key order, from a mapping or pairs.
    ///
    /// Raises what insert raises; the entries before the wrong one are added.
    fn extend(&self, entries: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = entries.py();
        let (mut pairs, mut batch) = (Pairs::of(entries)?, Batch::default());
        loop {
            batch.clear();
            // Do not hold the lock here: the caller's iterable may use this loader.
            batch.fill(&self.schema, &mut pairs, BATCH_BYTES)?;
            let mut state = self.state(py)?;
            let loader = state.as_mut().ok_or_else(over)?.get_mut()?;
            if batch.is_empty() {
                return Ok(());
            }
            py.detach(|| {
                batch
                    .iter()
                    .try_for_each(|(key, value)| loader.insert(key, value))
            })
            .py()?;
        }
    }

    /// Number of entries added so far.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let state = self.state(py)?;
        let len = state.as_ref().ok_or_else(over)?.get()?.len();
        Ok(usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// Always true, whatever the number of entries.
    fn __bool__(&self) -> bool {
        true
    }

    /// Makes all entries durable with a checkpoint, and then visible at once; returns the table.
    ///
    /// Raises TableExistsError if a table of this name was created meanwhile, OutOfSpaceError,
    /// IoError, PoisonedError. After an error there is no table; but after PoisonedError, only
    /// opening the database again shows whether there is one.
    fn finish(&self, py: Python<'_>) -> PyResult<Table> {
        self.handle.open()?;
        self.handle.writers.check_none()?;
        let loader = self.take(py)?;
        let table = py.detach(|| loader.finish()).py()?;
        Ok(Table::new(self.handle.clone(), table, self.schema))
    }

    /// Ends the load and discards its entries. Has no effect after the end of the load.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let loader = self.state(py)?.take();
        py.detach(|| drop(loader));
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (kind, _exception, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _exception: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if kind.is_some() {
            return self.abort(py);
        }
        if self.state(py)?.is_some() {
            self.finish(py)?;
        }
        Ok(())
    }
}
