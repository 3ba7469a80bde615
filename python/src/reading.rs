//! Reading keys from a transaction or a snapshot.

use std::ops::Bound as KeyBound;

use braid::{Bytes, Readable};
use pyo3::prelude::*;

use crate::table::Table;

/// The encoded bounds of a range of keys.
pub(crate) type Bounds = (KeyBound<Vec<u8>>, KeyBound<Vec<u8>>);

/// A transaction or a snapshot while it is being read.
pub(crate) enum View<'a> {
    // Mutable, because threads cannot share a transaction.
    Transaction(&'a mut braid::Transaction),
    Snapshot(&'a braid::Snapshot),
}

impl View<'_> {
    fn get(&self, table: &braid::Table, key: &[u8]) -> braid::Result<Option<Bytes>> {
        match self {
            View::Transaction(transaction) => transaction.get(table, key),
            View::Snapshot(snapshot) => snapshot.get(table, key),
        }
    }

    fn contains(&self, table: &braid::Table, key: &[u8]) -> braid::Result<bool> {
        match self {
            View::Transaction(transaction) => transaction.contains_key(table, key),
            View::Snapshot(snapshot) => snapshot.contains_key(table, key),
        }
    }

    fn get_many(
        &self,
        table: &braid::Table,
        keys: &[Vec<u8>],
    ) -> braid::Result<Vec<Option<Bytes>>> {
        match self {
            View::Transaction(transaction) => transaction.get_many(table, keys),
            View::Snapshot(snapshot) => snapshot.get_many(table, keys),
        }
    }

    fn prefetch(&self, table: &braid::Table, keys: &[Vec<u8>]) -> braid::Result<()> {
        match self {
            View::Transaction(transaction) => transaction.prefetch(table, keys),
            View::Snapshot(snapshot) => snapshot.prefetch(table, keys),
        }
    }

    pub(crate) fn range(
        &self,
        table: &braid::Table,
        bounds: Bounds,
    ) -> braid::Result<braid::Range<'_, Bytes, Bytes>> {
        match self {
            View::Transaction(transaction) => transaction.range(table, bounds),
            View::Snapshot(snapshot) => snapshot.range(table, bounds),
        }
    }
}

/// Extent of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Key,
    Range,
}

/// A source of reads: a transaction or a snapshot.
pub(crate) trait Source {
    /// Runs a read: of one key, or of several without the interpreter's lock.
    ///
    /// # Errors
    ///
    /// Those of `read`, and an error if the source was ended or closed.
    fn read<T: Send>(
        &self,
        py: Python<'_>,
        extent: Extent,
        read: impl FnOnce(View<'_>) -> braid::Result<T> + Send,
    ) -> PyResult<T>;

    /// Changes whenever entries that were read ahead may be outdated.
    fn generation(&self) -> u64;
}

pub(crate) fn get<'py>(
    source: &impl Source,
    table: &Bound<'py, Table>,
    key: &Bound<'py, PyAny>,
    default: Option<Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (py, table) = (table.py(), table.get());
    let key = table.schema.encode_key(key)?;
    match source.read(py, Extent::Key, |view| view.get(&table.table, &key))? {
        Some(value) => table.schema.decode_value(py, value).map(Some),
        None => Ok(default),
    }
}

pub(crate) fn contains_key<'py>(
    source: &impl Source,
    table: &Bound<'py, Table>,
    key: &Bound<'py, PyAny>,
) -> PyResult<bool> {
    let (py, table) = (table.py(), table.get());
    let key = table.schema.encode_key(key)?;
    source.read(py, Extent::Key, |view| view.contains(&table.table, &key))
}

/// Encodes the keys of an iterable.
fn keys_of(table: &Table, keys: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<u8>>> {
    let keys = keys.try_iter()?;
    keys.map(|key| Ok(table.schema.encode_key(&key?)?.to_vec()))
        .collect()
}

/// Returns the values of keys, in their order, and `default` for keys that do not exist.
pub(crate) fn get_many<'py>(
    source: &impl Source,
    table: &Bound<'py, Table>,
    keys: &Bound<'py, PyAny>,
    default: Option<Bound<'py, PyAny>>,
) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
    let (py, table) = (table.py(), table.get());
    let keys = keys_of(table, keys)?;
    let read = |view: View<'_>| view.get_many(&table.table, &keys);
    let found = source.read(py, Extent::Range, read)?;
    let values = found.into_iter().map(|value| match value {
        Some(value) => table.schema.decode_value(py, value).map(Some),
        None => Ok(default.clone()),
    });
    values.collect()
}

pub(crate) fn prefetch(
    source: &impl Source,
    table: &Bound<'_, Table>,
    keys: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (py, table) = (table.py(), table.get());
    let keys = keys_of(table, keys)?;
    source.read(py, Extent::Range, |view| view.prefetch(&table.table, &keys))
}

/// An entry as a tuple.
pub(crate) type Entry<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Returns the entry at one end of a table.
pub(crate) fn end<'py>(
    source: &impl Source,
    table: &Bound<'py, Table>,
    last: bool,
) -> PyResult<Option<Entry<'py>>> {
    let (py, table) = (table.py(), table.get());
    let found = source.read(py, Extent::Range, |view| {
        let mut range = view.range(&table.table, (KeyBound::Unbounded, KeyBound::Unbounded))?;
        if last {
            range.next_back()
        } else {
            range.next()
        }
        .transpose()
    })?;
    let Some((key, value)) = found else {
        return Ok(None);
    };
    let schema = table.schema;
    Ok(Some((
        schema.decode_key(py, key)?,
        schema.decode_value(py, value)?,
    )))
}

/// Returns the bounds of `range(table, start, stop)`.
pub(crate) fn range_bounds(
    table: &Table,
    start: Option<&Bound<'_, PyAny>>,
    stop: Option<&Bound<'_, PyAny>>,
    include_stop: bool,
) -> PyResult<Bounds> {
    let encoded = |key: &Bound<'_, PyAny>| -> PyResult<Vec<u8>> {
        Ok(table.schema.encode_key(key)?.to_vec())
    };
    let lower = match start {
        None => KeyBound::Unbounded,
        Some(start) => KeyBound::Included(encoded(start)?),
    };
    let upper = match stop {
        None => KeyBound::Unbounded,
        Some(stop) if include_stop => KeyBound::Included(encoded(stop)?),
        Some(stop) => KeyBound::Excluded(encoded(stop)?),
    };
    Ok((lower, upper))
}

/// Returns the bounds of `prefix(table, prefix)`.
pub(crate) fn prefix_bounds(table: &Table, prefix: &Bound<'_, PyAny>) -> PyResult<Bounds> {
    Ok(braid::prefix_bounds(&table.schema.encode_prefix(prefix)?))
}
