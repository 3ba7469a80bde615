//! Iteration over a range of a table.
//!
//! The engine's iterators borrow from their source, which Python cannot express, and acquiring the
//! interpreter's lock for each entry costs more than the entry. So entries are fetched in batches,
//! and each batch continues after the last entry that was returned.

use std::ops::{Bound as KeyBound, Range};
use std::sync::Mutex;

use braid::Bytes;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::errors::broken;
use crate::reading::{Bounds, Extent, Source, View};
use crate::snapshot::Snapshot;
use crate::table::Table;
use crate::transaction::Transaction;
use crate::types::{Role, Schema};

/// Number of entries of the first batch. Small, because a transaction can conflict on entries that
/// it reads ahead.
const FIRST_BATCH: usize = 8;
/// Maximum number of entries of a transaction's batch; each batch is twice as large as the previous
/// one.
const LARGEST_BATCH: usize = 256;
/// Maximum number of entries of a snapshot's batch; nothing conflicts with a snapshot.
const LARGEST_OF_SNAPSHOT: usize = 2048;
/// A batch ends with the entry that takes it over this size.
const BATCH_BYTES: usize = 256 << 10;

/// Source of an iteration.
pub(crate) enum Origin {
    Snapshot(Py<Snapshot>),
    Transaction(Py<Transaction>),
}

impl Origin {
    fn read<T: Send>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(View<'_>) -> braid::Result<T> + Send,
    ) -> PyResult<T> {
        match self {
            Origin::Snapshot(snapshot) => snapshot.get().read(py, Extent::Range, read),
            Origin::Transaction(transaction) => transaction.get().read(py, Extent::Range, read),
        }
    }

    /// Fails in a child made by fork.
    fn check(&self) -> PyResult<()> {
        match self {
            Origin::Snapshot(snapshot) => snapshot.get().handle.check(),
            Origin::Transaction(transaction) => transaction.get().handle.check(),
        }
    }

    fn generation(&self) -> u64 {
        match self {
            Origin::Snapshot(snapshot) => snapshot.get().generation(),
            Origin::Transaction(transaction) => transaction.get().generation(),
        }
    }
}

/// Items that an iterator returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Items {
    Keys,
    Entries,
}

/// Entries in one buffer: each entry of the engine is released when the next one is read, so that
/// its memory is reused at once.
#[derive(Debug, Default)]
struct Batch {
    bytes: Bytes,
    /// Ends of each key and each value.
    ends: Vec<(usize, usize)>,
    /// Number of entries returned so far.
    given: usize,
}

impl Batch {
    fn begin_of(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.ends[before].1)
    }

    /// Returns the ranges of the next entry's key and value.
    fn next(&mut self) -> Option<(Range<usize>, Range<usize>)> {
        let (key_end, end) = *self.ends.get(self.given)?;
        let begin = self.begin_of(self.given);
        self.given += 1;
        Some((begin..key_end, key_end..end))
    }

    /// Returns the last key that was returned.
    fn last_given(&self) -> Option<&[u8]> {
        let last = self.given.checked_sub(1)?;
        Some(&self.bytes[self.begin_of(last)..self.ends[last].0])
    }
}

#[derive(Debug)]
struct Cursor {
    /// Remaining range.
    bounds: Bounds,
    batch: Batch,
    /// Number of entries of the next batch.
    next_batch: usize,
    /// Generation of the source when the batch was fetched.
    generation: u64,
    /// No entries follow the batch.
    last: bool,
    done: bool,
}

/// An iterator over entries of a table.
#[pyclass(frozen, generic, module = "braid")]
pub(crate) struct Entries {
    origin: Origin,
    table: braid::Table,
    schema: Schema,
    items: Items,
    reverse: bool,
    cursor: Mutex<Cursor>,
}

impl Entries {
    pub(crate) fn new(
        origin: Origin,
        table: &Table,
        bounds: Bounds,
        items: Items,
        reverse: bool,
    ) -> Self {
        let cursor = Cursor {
            bounds,
            batch: Batch::default(),
            next_batch: FIRST_BATCH,
            generation: origin.generation(),
            last: false,
            done: false,
        };
        Self {
            origin,
            table: table.table.clone(),
            schema: table.schema,
            items,
            reverse,
            cursor: Mutex::new(cursor),
        }
    }

    fn fetch(&self, py: Python<'_>, cursor: &mut Cursor) -> PyResult<()> {
        if let Some(given) = cursor.batch.last_given() {
            let beyond = KeyBound::Excluded(given.to_vec());
            if self.reverse {
                cursor.bounds.1 = beyond;
            } else {
                cursor.bounds.0 = beyond;
            }
        }
        let (limit, bounds) = (cursor.next_batch, cursor.bounds.clone());
        // About as much as the last batch used.
        let mut bytes = Vec::with_capacity(cursor.batch.bytes.len());
        let mut ends = std::mem::take(&mut cursor.batch).ends;
        ends.clear();
        // Before the read: writes of other threads during the read either are visible in it or
        // cause another fetch.
        cursor.generation = self.origin.generation();
        let reverse = self.reverse;
        cursor.last = self.origin.read(py, |view| {
            let mut range = view.range(&self.table, bounds)?;
            while ends.len() < limit && bytes.len() < BATCH_BYTES {
                let next = if reverse {
                    range.next_back_in_place()
                } else {
                    range.next_in_place()
                };
                let Some((key, value)) = next.transpose()? else {
                    return Ok(true);
                };
                bytes.extend_from_slice(key);
                let key_end = bytes.len();
                bytes.extend_from_slice(value);
                ends.push((key_end, bytes.len()));
            }
            Ok(false)
        })?;
        cursor.batch = Batch {
            bytes: bytes.into(),
            ends,
            given: 0,
        };
        let largest = match &self.origin {
            Origin::Snapshot(_) => LARGEST_OF_SNAPSHOT,
            Origin::Transaction(_) => LARGEST_BATCH,
        };
        cursor.next_batch = (limit * 2).min(largest);
        Ok(())
    }

    fn advance(
        &self,
        py: Python<'_>,
        cursor: &mut Cursor,
    ) -> PyResult<Option<(Range<usize>, Range<usize>)>> {
        if cursor.done {
            return Ok(None);
        }
        if cursor.generation != self.origin.generation() {
            cursor.last = false;
            cursor.next_batch = 1;
            self.fetch(py, cursor)?;
        } else if cursor.batch.given == cursor.batch.ends.len() && !cursor.last {
            self.fetch(py, cursor)?;
        }
        let entry = cursor.batch.next();
        cursor.done = entry.is_none();
        Ok(entry)
    }
}

#[pymethods]
impl Entries {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.origin.check()?;
        let mut cursor = self.cursor.lock_py_attached(py).map_err(|_| broken())?;
        let entry = self.advance(py, &mut cursor).and_then(|entry| {
            let Some((key, value)) = entry else {
                return Ok(None);
            };
            let part = |role, part| {
                let bytes = &cursor.batch.bytes;
                self.schema.decode_part(py, role, bytes, part)
            };
            let key = part(Role::Key, key)?;
            match self.items {
                Items::Keys => Ok(Some(key)),
                Items::Entries => {
                    let value = part(Role::Value, value)?;
                    (key, value).into_bound_py_any(py).map(Some)
                }
            }
        });
        // As an iterator of the engine does, end after an error.
        cursor.done |= entry.is_err();
        entry
    }
}
