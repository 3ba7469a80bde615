//! Counts of acknowledged transactions.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// Counts acknowledged transactions that the data proves.
pub(crate) struct Ledger(Vec<CachePadded<AtomicU64>>);

/// Count of one client, which only that client changes.
pub(crate) struct Entry<'a>(&'a AtomicU64);

impl Ledger {
    pub(crate) fn new(clients: usize) -> Self {
        Ledger((0..clients).map(|_| CachePadded::default()).collect())
    }

    pub(crate) fn entry(&self, client: usize) -> Entry<'_> {
        Entry(&self.0[client])
    }

    /// Returns the number of all transactions acknowledged so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        // Acquire: pairs with the Release below, so that at least as many are in the engine.
        self.0
            .iter()
            .map(|count| count.load(Ordering::Acquire))
            .sum()
    }
}

impl Entry<'_> {
    pub(crate) fn add(&self, count: u64) {
        let so_far = self.0.load(Ordering::Relaxed);
        self.0.store(so_far + count, Ordering::Release);
    }
}
