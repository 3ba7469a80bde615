//! Loading a table from sorted entries, past the log.

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

/// What is encoded before the engine is called.
const BATCH_BYTES: usize = 1 << 20;

type Loader = braid::BulkLoader<Bytes, Bytes>;

/// Builds a table from entries in ascending order of their keys, past the log; see Database.bulk_load.
///
/// In a with statement its end finishes the load, and an exception aborts it. One that nobody refers to is aborted.
#[pyclass(frozen, generic, weakref, module = "braid")]
pub(crate) struct BulkLoader {
    handle: Arc<Handle>,
    schema: Schema,
    /// There until it is finished or aborted.
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
        // To free what was loaded may wait for pages.
        Python::try_attach(|py| py.detach(move || drop(loader)));
    }
}

#[cold]
fn over() -> PyErr {
    ClosedError::new_err("the load was finished or aborted; begin another one")
}

#[pymethods]
impl BulkLoader {
    /// Adds an entry, whose key must be above all before; raises OutOfOrderError, and then goes on as if it had not been
    /// offered.
    fn insert(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = key.py();
        let key = self.schema.encode_key(key)?;
        let value = self.schema.encode_value(value)?;
        let mut state = self.state(py)?;
        let loader = state.as_mut().ok_or_else(over)?.get_mut()?;
        py.detach(|| loader.insert(&key[..], &value[..])).py()
    }

    /// Adds entries in ascending order of their keys, from pairs or a mapping.
    ///
    /// Raises what insert raises; the entries before the wrong one are added then.
    fn extend(&self, entries: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = entries.py();
        let (mut pairs, mut batch) = (Pairs::of(entries)?, Batch::default());
        loop {
            batch.clear();
            // Not with the loader locked: what makes the entries may add some itself.
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

    /// How many entries were added.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let state = self.state(py)?;
        let len = state.as_ref().ok_or_else(over)?.get()?.len();
        Ok(usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// Always: how many entries there are does not make it another thing.
    fn __bool__(&self) -> bool {
        true
    }

    /// Makes everything durable, with a checkpoint, and then visible, all at once; returns the table.
    ///
    /// Raises TableExistsError if a table got the name meanwhile, OutOfSpaceError, IoError, PoisonedError. There is no
    /// table then; after PoisonedError that is known only after opening again.
    fn finish(&self, py: Python<'_>) -> PyResult<Table> {
        self.handle.open()?;
        self.handle.writers.check_none()?;
        let loader = self.take(py)?;
        let table = py.detach(|| loader.finish()).py()?;
        Ok(Table::new(self.handle.clone(), table, self.schema))
    }

    /// Ends the load without a trace. Does nothing after its end.
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
