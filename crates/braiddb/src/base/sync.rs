//! Atomics and locks of the lock-free code. In tests with `--cfg loom` they are loom's; see
//! `loom_tests` and docs/testing.md.

#[cfg(not(all(test, loom)))]
pub(crate) use braid_rt::atomic::{AtomicBool, AtomicU64, AtomicUsize};
#[cfg(not(all(test, loom)))]
pub(crate) use braid_rt::thread::{Backoff, spin_loop};

#[cfg(all(test, loom))]
pub(crate) use braid_loom::{
    AtomicBool, AtomicU64, AtomicUsize, Backoff, Condvar, Mutex, Mutex as Latch, MutexGuard,
    spin_loop,
};
#[cfg(not(all(test, loom)))]
pub(crate) use braid_rt::{Condvar, Latch, Mutex, MutexGuard};
