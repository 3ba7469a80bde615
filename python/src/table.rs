//! Tables: named in transactions, or used as mappings whose every operation is a transaction of its
//! own.

use std::ops::Bound as KeyBound;
use std::sync::Arc;
use std::time::Duration;

use braid::{Bytes, Compression, Readable, Transaction, TransactionOptions};
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::batch::{Batch, Pairs};
use crate::database::Handle;
use crate::errors::IntoPyResult;
use crate::reading::{self, Bounds, Entry};
use crate::reports;
use crate::scan::{Entries, Items, Origin};
use crate::snapshot::Snapshot;
use crate::types::{Schema, class_of};

/// A table of ordered keys and their values: a MutableMapping whose every operation is a
/// transaction of its own, and the argument that names the table in the methods of Transaction and
/// Snapshot.
#[pyclass(frozen, generic, mapping, weakref, module = "braid")]
pub(crate) struct Table {
    pub(crate) handle: Arc<Handle>,
    pub(crate) table: braid::Table,
    pub(crate) schema: Schema,
}

const ALL: Bounds = (KeyBound::Unbounded, KeyBound::Unbounded);

impl Table {
    pub(crate) fn new(handle: Arc<Handle>, table: braid::Table, schema: Schema) -> Self {
        Self {
            handle,
            table,
            schema,
        }
    }

    /// Returns the durable value of a key.
    fn find(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<Bytes>> {
        let database = self.handle.open()?;
        let key = self.schema.encode_key(key)?;
        self.handle
            .read_key(py, || database.get(&self.table, &key[..]))?
            .py()
    }

    /// Runs a transaction for one operation, which locks at most one key and so cannot deadlock.
    fn write<T: Send>(
        &self,
        py: Python<'_>,
        write: impl FnOnce(&mut Transaction) -> braid::Result<T> + Send,
    ) -> PyResult<T> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        let options = TransactionOptions {
            durability: self.handle.durability,
            ..TransactionOptions::default()
        };
        let run = || {
            let mut transaction = database.begin_with(options);
            let result = write(&mut transaction)?;
            transaction.commit()?;
            Ok(result)
        };
        py.detach(run).py()
    }

    /// Runs a transaction for an operation that can conflict with others.
    fn write_many<T: Send>(
        &self,
        py: Python<'_>,
        mut write: impl FnMut(&mut Transaction) -> braid::Result<T> + Send,
    ) -> PyResult<T> {
        let database = self.handle.open()?;
        self.handle.writers.check_none()?;
        let run = || {
            database.transact(|transaction| {
                transaction.set_durability(self.handle.durability);
                write(transaction)
            })
        };
        py.detach(run).py()
    }

    fn iterate(
        &self,
        py: Python<'_>,
        bounds: Bounds,
        items: Items,
        reverse: bool,
    ) -> PyResult<Entries> {
        let snapshot = Py::new(py, Snapshot::take(py, &self.handle)?)?;
        let origin = Origin::Snapshot(snapshot);
        Ok(Entries::new(origin, self, bounds, items, reverse))
    }

    fn view<'py>(slf: &Bound<'py, Self>, class: &str) -> PyResult<Bound<'py, PyAny>> {
        let views = slf.py().import("braid._views")?;
        views.getattr(class)?.call1((slf,))
    }
}

#[pymethods]
impl Table {
    // A mapping
    // ---------------------------------------------------------------------------------------

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self.find(key.py(), key)? {
            Some(value) => self.schema.decode_value(key.py(), value),
            None => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    /// Returns the value of a key, or `default`.
    #[pyo3(signature = (key, default = None))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.find(key.py(), key)? {
            Some(value) => self.schema.decode_value(key.py(), value).map(Some),
            None => Ok(default),
        }
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.find(key.py(), key)?.is_some())
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = key.py();
        let key = self.schema.encode_key(key)?;
        let value = self.schema.encode_value(value)?;
        self.write(py, |tx| tx.insert(&self.table, &key[..], &value[..]))
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = key.py();
        let encoded = self.schema.encode_key(key)?;
        if self.write(py, |tx| tx.remove(&self.table, &encoded[..]))? {
            Ok(())
        } else {
            Err(PyKeyError::new_err(key.clone().unbind()))
        }
    }

    /// Removes a key and returns its value.
    #[pyo3(signature = (key, *default))]
    fn pop<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if default.len() > 1 {
            return Err(PyTypeError::new_err(
                "pop takes a key and at most one default",
            ));
        }
        let py = key.py();
        let encoded = self.schema.encode_key(key)?;
        match self.write(py, |tx| tx.take(&self.table, &encoded[..]))? {
            Some(value) => self.schema.decode_value(py, value),
            None => default
                .get_item(0)
                .map_err(|_| PyKeyError::new_err(key.clone().unbind())),
        }
    }

    /// Removes the entry with the largest key and returns it.
    fn popitem<'py>(&self, py: Python<'py>) -> PyResult<Entry<'py>> {
        let found = self.write_many(py, |tx| {
            let last = tx.last(&self.table)?;
            if let Some((key, _)) = &last {
                tx.remove(&self.table, key)?;
            }
            Ok(last)
        })?;
        let (key, value) = found.ok_or_else(|| PyKeyError::new_err("the table is empty"))?;
        Ok((
            self.schema.decode_key(py, key)?,
            self.schema.decode_value(py, value)?,
        ))
    }

    /// Returns the value of a key; if the key does not exist, first sets it to `default`.
    #[pyo3(signature = (key, default))]
    fn setdefault<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let key = self.schema.encode_key(key)?;
        let encoded = self.schema.encode_value(default)?;
        let before = self.write(py, |tx| {
            let before = tx.get_for_update(&self.table, &key[..])?;
            if before.is_none() {
                tx.insert(&self.table, &key[..], &encoded[..])?;
            }
            Ok(before)
        })?;
        match before {
            Some(value) => self.schema.decode_value(py, value),
            None => Ok(default.clone()),
        }
    }

    /// Sets many keys in one transaction, from a mapping, pairs or keywords. Raises LimitError if
    /// the writes are too large for one transaction.
    #[pyo3(signature = (other = None, /, **entries))]
    fn update(
        &self,
        py: Python<'_>,
        other: Option<&Bound<'_, PyAny>>,
        entries: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let mut batch = Batch::default();
        for entries in other
            .into_iter()
            .chain(entries.map(|entries| entries.as_any()))
        {
            batch.fill(&self.schema, &mut Pairs::of(entries)?, usize::MAX)?;
        }
        self.write_many(py, |tx| {
            batch
                .iter()
                .try_for_each(|(key, value)| tx.insert(&self.table, key, value))
        })
    }

    /// Removes all entries in one transaction.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.write_many(py, |tx| {
            let keys: Vec<Bytes> = tx
                .iter(&self.table)?
                .map(|entry| entry.map(|(key, _)| key))
                .collect::<braid::Result<_>>()?;
            keys.iter().try_for_each(|key| {
                tx.remove(&self.table, key)?;
                Ok(())
            })
        })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let database = self.handle.open()?;
        let count = || {
            let snapshot = database.snapshot();
            snapshot
                .iter(&self.table)?
                .try_fold(0, |count, entry| entry.map(|_| count + 1))
        };
        py.detach(count).py()
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        let database = self.handle.open()?;
        py.detach(|| database.snapshot().first(&self.table))
            .py()
            .map(|first| first.is_some())
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Entries> {
        self.iterate(py, ALL, Items::Keys, false)
    }

    fn __reversed__(&self, py: Python<'_>) -> PyResult<Entries> {
        self.iterate(py, ALL, Items::Keys, true)
    }

    /// Returns a view of the keys.
    fn keys<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::view(slf, "TableKeys")
    }

    /// Returns a view of the values.
    fn values<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::view(slf, "TableValues")
    }

    /// Returns a view of the entries.
    fn items<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::view(slf, "TableItems")
    }

    fn __eq__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mapping = slf.py().import("collections.abc")?.getattr("Mapping")?;
        mapping.call_method1("__eq__", (slf, other))
    }

    // Ordered
    // -----------------------------------------------------------------------------------------

    /// Returns the entry with the smallest key, or None.
    fn first<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Entry<'py>>> {
        let snapshot = Snapshot::take(slf.py(), &slf.get().handle)?;
        reading::end(&snapshot, slf, false)
    }

    /// Returns the entry with the largest key, or None.
    fn last<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Entry<'py>>> {
        let snapshot = Snapshot::take(slf.py(), &slf.get().handle)?;
        reading::end(&snapshot, slf, true)
    }

    /// Iterates over the entries from `start` up to `stop`, in order.
    #[pyo3(signature = (start = None, stop = None, *, include_stop = false, reverse = false))]
    fn range(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        include_stop: bool,
        reverse: bool,
    ) -> PyResult<Entries> {
        let bounds = reading::range_bounds(self, start, stop, include_stop)?;
        self.iterate(py, bounds, Items::Entries, reverse)
    }

    /// Iterates over the entries whose keys begin with `prefix`, in order.
    #[pyo3(signature = (prefix, *, reverse = false))]
    fn prefix(
        &self,
        py: Python<'_>,
        prefix: &Bound<'_, PyAny>,
        reverse: bool,
    ) -> PyResult<Entries> {
        let bounds = reading::prefix_bounds(self, prefix)?;
        self.iterate(py, bounds, Items::Entries, reverse)
    }

    /// Returns the values of several keys, in their order, and `default` for keys that do not
    /// exist; all values are of the same moment. Faster than one call per key.
    #[pyo3(signature = (keys, default = None))]
    fn get_many<'py>(
        slf: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let snapshot = Snapshot::take(slf.py(), &slf.get().handle)?;
        reading::get_many(&snapshot, slf, keys, default)
    }

    /// Estimates the number of entries from `start` up to `stop` and their bytes, without reading
    /// all of them.
    #[pyo3(signature = (start = None, stop = None, *, include_stop = false))]
    fn estimate<'py>(
        &self,
        py: Python<'py>,
        start: Option<&Bound<'py, PyAny>>,
        stop: Option<&Bound<'py, PyAny>>,
        include_stop: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let database = self.handle.open()?;
        let bounds = reading::range_bounds(self, start, stop, include_stop)?;
        let estimate = py.detach(|| database.estimate(&self.table, bounds)).py()?;
        reports::estimate(py, &estimate)
    }

    /// Current name of the table.
    #[getter]
    fn name(&self) -> String {
        self.table.name()
    }

    /// Type of the keys.
    #[getter]
    fn key_type<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        class_of(py, self.schema.key)
    }

    /// Type of the values.
    #[getter]
    fn value_type<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        class_of(py, self.schema.value)
    }

    /// Compression of the values: "lz4", or None.
    #[getter]
    fn compression(&self) -> PyResult<Option<&'static str>> {
        self.handle.check()?;
        Ok(match self.table.options().compression {
            Compression::None => None,
            Compression::Lz4 => Some("lz4"),
            _ => Some("other"),
        })
    }

    /// Time to live of an entry after its last write, a datetime.timedelta; None for no limit.
    #[getter]
    fn time_to_live(&self) -> PyResult<Option<Duration>> {
        self.handle.check()?;
        Ok(self.table.options().time_to_live)
    }

    fn __repr__(&self) -> String {
        let Schema { key, value } = self.schema;
        format!(
            "<braid.Table {:?}: {} -> {}>",
            self.table.name(),
            key.name(),
            value.name()
        )
    }
}
