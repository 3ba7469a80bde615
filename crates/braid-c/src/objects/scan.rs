//! Ranges stored together with the objects that they borrow from.
//!
//! A range borrows its transaction or snapshot. In Rust, the compiler ensures that the transaction
//! or snapshot outlives the range, and that a transaction is not written while a range is open. In
//! C nothing does, so both are stored together here. The ranges of a transaction are closed
//! whenever it is written or ends; a cursor then reopens its range at its position.

use std::sync::Arc;

use braid::{Bytes, Range, Result, Snapshot, Transaction};
use self_cell::self_cell;

pub(crate) type BytesRange<'a> = Range<'a, Bytes, Bytes>;

/// Ranges, by the number of their cursor.
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

/// A range over a snapshot, which lives as long as the range.
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

/// A running transaction, and its open ranges.
pub(crate) enum Tx {
    Alone(Transaction),
    Scanned(Scanned),
    /// Only during a change between the other variants.
    Changing,
}

pub(crate) struct Scanned(TransactionAndRanges);

impl Tx {
    pub(crate) fn new(transaction: Transaction) -> Self {
        Tx::Alone(transaction)
    }

    /// Returns the transaction, for reading.
    #[inline]
    pub(crate) fn reader(&self) -> &Transaction {
        match self {
            Tx::Alone(transaction) => transaction,
            Tx::Scanned(scanned) => scanned.0.borrow_owner(),
            Tx::Changing => unreachable!("a change ends before the state is read"),
        }
    }

    /// Returns the transaction, for writing; closes its ranges.
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

    /// Returns the transaction itself; closes its ranges, which report what they read.
    pub(crate) fn into_transaction(self) -> Transaction {
        match self {
            Tx::Alone(transaction) => transaction,
            Tx::Scanned(scanned) => scanned.0.into_owner(),
            Tx::Changing => unreachable!("a change ends before the state is read"),
        }
    }

    /// Opens a cursor's range, if it is not open; returns its index.
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

    /// Calls a function with an open range.
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

    /// Closes a cursor's range.
    pub(crate) fn close_range(&mut self, cursor: u64) {
        if let Tx::Scanned(Scanned(scanned)) = self {
            scanned.with_dependent_mut(|_, ranges| ranges.retain(|(of, _)| *of != cursor));
        }
    }
}
