//! Ranges beside what they borrow from.
//!
//! A range borrows its transaction or snapshot. Rust's callers see to it that this outlives it and, for a
//! transaction, that nothing is written meanwhile. C's can't, so both are kept together here, and the ranges
//! of a transaction go whenever it is written to or ends; a cursor opens its range again where it was.

use std::sync::Arc;

use braid::{Bytes, Range, Result, Snapshot, Transaction};
use self_cell::self_cell;

pub(crate) type BytesRange<'a> = Range<'a, Bytes, Bytes>;

/// Ranges, by their cursor's number.
type Ranges<'a> = Vec<(u64, BytesRange<'a>)>;

self_cell!(
    struct TransactionAndRanges {
        owner: Transaction,
        #[covariant]
        dependent: Ranges,
    }
);

self_cell!(
    struct SnapshotAndRange {
        owner: Arc<Snapshot>,
        #[covariant]
        dependent: BytesRange,
    }
);

/// A range over a snapshot, which lives as long.
pub(crate) struct SnapshotScan(SnapshotAndRange);

impl SnapshotScan {
    pub(crate) fn new(
        snapshot: Arc<Snapshot>,
        open: impl for<'a> FnOnce(&'a Snapshot) -> Result<BytesRange<'a>>,
    ) -> Result<Self> {
        SnapshotAndRange::try_new(snapshot, |snapshot| open(snapshot)).map(Self)
    }

    pub(crate) fn with_range<R>(&mut self, f: impl FnOnce(&mut BytesRange<'_>) -> R) -> R {
        self.0.with_dependent_mut(|_, range| f(range))
    }
}

/// A running transaction, and the ranges that are open on it.
pub(crate) enum Tx {
    Alone(Transaction),
    Scanned(Scanned),
    /// Only while it changes from one into the other.
    Changing,
}

pub(crate) struct Scanned(TransactionAndRanges);

impl Tx {
    pub(crate) fn new(transaction: Transaction) -> Self {
        Tx::Alone(transaction)
    }

    /// The transaction, for reading.
    #[inline]
    pub(crate) fn reader(&self) -> &Transaction {
        match self {
            Tx::Alone(transaction) => transaction,
            Tx::Scanned(scanned) => scanned.0.borrow_owner(),
            Tx::Changing => unreachable!("a change is over before anybody looks"),
        }
    }

    /// The transaction, for writing; the ranges go.
    #[inline]
    pub(crate) fn writer(&mut self) -> &mut Transaction {
        if !matches!(self, Tx::Alone(_)) {
            self.leave_alone();
        }
        match self {
            Tx::Alone(transaction) => transaction,
            _ => unreachable!("it was just left alone"),
        }
    }

    #[cold]
    fn leave_alone(&mut self) {
        let transaction = std::mem::replace(self, Tx::Changing).into_transaction();
        *self = Tx::Alone(transaction);
    }

    /// The transaction itself; the ranges go, and tell it what they read.
    pub(crate) fn into_transaction(self) -> Transaction {
        match self {
            Tx::Alone(transaction) => transaction,
            Tx::Scanned(scanned) => scanned.0.into_owner(),
            Tx::Changing => unreachable!("a change is over before anybody looks"),
        }
    }

    /// Opens a cursor's range, if it is not open; says which it is.
    pub(crate) fn open_range(
        &mut self,
        cursor: u64,
        open: impl for<'a> FnOnce(&'a Transaction) -> Result<BytesRange<'a>>,
    ) -> Result<usize> {
        if matches!(self, Tx::Alone(_)) {
            let transaction = std::mem::replace(self, Tx::Changing).into_transaction();
            let scanned = TransactionAndRanges::new(transaction, |_| Vec::new());
            *self = Tx::Scanned(Scanned(scanned));
        }
        let Tx::Scanned(Scanned(scanned)) = self else {
            unreachable!("it has ranges now");
        };
        scanned.with_dependent_mut(|transaction, ranges| {
            if let Some(place) = ranges.iter().position(|(of, _)| *of == cursor) {
                return Ok(place);
            }
            ranges.push((cursor, open(transaction)?));
            Ok(ranges.len() - 1)
        })
    }

    /// Works with a range that is open.
    pub(crate) fn with_range<R>(
        &mut self,
        place: usize,
        f: impl FnOnce(&mut BytesRange<'_>) -> R,
    ) -> R {
        match self {
            Tx::Scanned(Scanned(scanned)) => {
                scanned.with_dependent_mut(|_, ranges| f(&mut ranges[place].1))
            }
            _ => unreachable!("it has a range"),
        }
    }

    /// Lets a cursor's range go.
    pub(crate) fn close_range(&mut self, cursor: u64) {
        if let Tx::Scanned(Scanned(scanned)) = self {
            scanned.with_dependent_mut(|_, ranges| ranges.retain(|(of, _)| *of != cursor));
        }
    }
}
