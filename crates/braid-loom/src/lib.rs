//! Atomics and locks for exploring Braid's lock-free code with loom, with the interfaces of the
//! types that the crates use otherwise. Empty unless built with `--cfg loom`; see docs/testing.md.
//!
//! Loom alone treats a `SeqCst` access only as acquire and release, and does not order the stores
//! of different threads to one atomic. So it reports errors in correct code that no machine shows.
//! The atomics here add these C++20 rules:
//! - All stores to one atomic have one order, and a read-modify-write directly follows the store
//!   that it read.
//! - A `SeqCst` load reads nothing older than the newest `SeqCst` store before it, or than a store
//!   that its thread followed by a `SeqCst` fence. After a `SeqCst` fence, any load reads nothing
//!   older than the newest `SeqCst` store before the fence.
//!
//! Not explored: a load never moves after a later access of its thread, `SeqCst` accesses are
//! ordered as they were executed, and a relaxed store does not end the release sequence of the
//! store that it replaces. So an ordering that seems stronger than needed may be needed
//! nevertheless.
#![cfg(loom)]

mod atomic;
mod lock;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Count, Ordering};

pub use atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};
pub use lock::{Condvar, Mutex, MutexGuard, wait, wake_all, wake_one};
pub use loom::cell::UnsafeCell;
pub use loom::hint::spin_loop;
pub use loom::thread::{JoinHandle, spawn, yield_now};

/// As `braid_rt::thread::Backoff`: other threads run first.
#[derive(Debug, Default)]
pub struct Backoff {
    has_waited: bool,
}

impl Backoff {
    /// Waits before the next try.
    pub fn wait(&mut self) {
        self.has_waited = true;
        yield_now();
    }

    /// Whether the next wait is short: the first one is.
    pub fn is_awake(&self) -> bool {
        !self.has_waited
    }
}

/// Runs `model` in every order with at most this many preemptions of a thread that could continue;
/// `usize::MAX` means all orders. `LOOM_MAX_PREEMPTIONS` overrides the number.
pub fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    if preemptions != usize::MAX {
        builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    }
    builder.max_branches = 50_000;
    let orders = Arc::new(Count::new(0));
    let counted = Arc::clone(&orders);
    builder.check(move || {
        atomic::reset();
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!("{} orders", orders.load(Ordering::Relaxed));
}
