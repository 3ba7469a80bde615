//! Enforcement of one writing transaction per thread.
//!
//! A write waits while another transaction holds the lock of its key. If that transaction belongs to the same thread, which is now waiting, nothing will ever
//! end it. This is an easy mistake: `table[key] = value` inside a `with db.begin()`, or two tasks
//! of one event loop with a transaction each. So the second writer gets an exception.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

use crate::errors::WouldDeadlockError;

/// Returns this thread's number, from 1.
#[inline]
pub(crate) fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only uniqueness matters.
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}

/// The transaction with locks that each thread has open, by the numbers of both.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    holders: Mutex<HashMap<u64, u64>>,
    /// The length of `holders`.
    len: AtomicUsize,
}

impl Writers {
    fn holders(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if this thread has an open transaction with locks.
    #[inline]
    pub(crate) fn check_none(&self) -> PyResult<()> {
        // Relaxed: a thread sees its own entries.
        if self.len.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        match self.holders().get(&thread()) {
            None => Ok(()),
            Some(_) => Err(would_deadlock()),
        }
    }

    /// Records that this thread is about to acquire locks for a transaction, until the transaction
    /// ends. Fails if the thread has another transaction with locks.
    pub(crate) fn enter(&self, transaction: u64, thread: u64) -> PyResult<()> {
        let mut holders = self.holders();
        let holder = *holders.entry(thread).or_insert(transaction);
        self.len.store(holders.len(), Ordering::Relaxed);
        if holder == transaction {
            Ok(())
        } else {
            Err(would_deadlock())
        }
    }

    /// Records that a transaction ended.
    pub(crate) fn leave(&self, transaction: u64) {
        let mut holders = self.holders();
        // It may have written from several threads.
        holders.retain(|_, holder| *holder != transaction);
        self.len.store(holders.len(), Ordering::Relaxed);
    }
}

#[cold]
fn would_deadlock() -> PyErr {
    WouldDeadlockError::new_err(
        "this thread has an open transaction that has written or locked keys, and a second writer could wait for it \
                  forever; write through that transaction, or end it first",
    )
}
