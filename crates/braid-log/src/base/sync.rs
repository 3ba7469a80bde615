//! The atomics, locks and waits that the lock-free parts are made of. In tests with `--cfg loom` they are
//! ones that loom can explore; see `loom_tests` and docs/testing.md.

#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};

#[cfg(all(test, loom))]
pub(crate) use braid_loom::*;
#[cfg(not(all(test, loom)))]
pub(crate) use braid_rt::{Mutex, MutexGuard};
#[cfg(not(all(test, loom)))]
pub(crate) use braid_rt::{
    thread::{spin_loop, yield_now},
    wait, wake_all, wake_one,
};

/// A sum for statistics: it orders nothing, so loom need not know it.
pub(crate) type Counter = std::sync::atomic::AtomicU64;
