//! Atomics, locks and waits of the lock-free code. In tests with `--cfg loom` they are loom's; see
//! `loom_tests` and docs/testing.md.

#[cfg(not(all(test, loom)))]
pub(crate) use braid_rt::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use braid_rt::thread::{Backoff, spin_loop, yield_now};

#[cfg(all(test, loom))]
pub(crate) use braid_loom::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Backoff, Condvar, Mutex, Mutex as Latch,
    MutexGuard, fence, spin_loop, wait, wake_all, wake_one, yield_now,
};
#[cfg(not(all(test, loom)))]
pub(crate) use braid_rt::{Condvar, Latch, Mutex, MutexGuard, wait, wake_all, wake_one};

/// A counter for statistics: it orders nothing, so loom does not model it.
pub(crate) type Counter = braid_rt::atomic::AtomicU64;
