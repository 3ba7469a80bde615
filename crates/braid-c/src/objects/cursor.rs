//! A cursor: a range of keys, and the entries that the caller is reading.

use std::ops::Bound;

use braid::{Bytes, Error};

use super::BytesTable;
use super::scan::SnapshotScan;

pub(crate) type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Source of a cursor.
pub(crate) enum Source {
    /// A transaction, by the number of its handle: after the transaction has ended, using the
    /// cursor is an error.
    Transaction(usize),
    Snapshot(SnapshotScan),
}

/// Entries that the caller is reading.
pub(crate) type Given = Vec<(Bytes, Bytes)>;

/// Object of a cursor's handle.
pub(crate) struct Cursor {
    pub(crate) source: Source,
    pub(crate) table: BytesTable,
    pub(crate) bounds: Bounds,
    /// The entries last returned from each end: if the range was closed, it is reopened there.
    pub(crate) front: Given,
    pub(crate) back: Given,
    /// The end was reached, or reading failed; the result is final.
    pub(crate) over: Option<Result<(), Error>>,
}

/// Returns the bounds of the remaining range.
pub(crate) fn rest<'a>(
    bounds: &'a Bounds,
    front: &'a Given,
    back: &'a Given,
) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    let end = |bound: &'a Bound<Vec<u8>>, given: &'a Given| match given.last() {
        Some((key, _)) => Bound::Excluded(&key[..]),
        None => bound.as_ref().map(|key| &key[..]),
    };
    (end(&bounds.0, front), end(&bounds.1, back))
}

impl Cursor {
    pub(crate) fn new(source: Source, table: BytesTable, bounds: Bounds) -> Self {
        Self {
            source,
            table,
            bounds,
            front: Given::new(),
            back: Given::new(),
            over: None,
        }
    }
}
