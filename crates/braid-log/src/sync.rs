//! The atomics, locks and waits that the lock-free parts are made of. In tests with `--cfg loom` they are
//! ones that loom can explore; see `loom_tests` and docs/testing.md.

#[cfg(not(all(test, loom)))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence},
    thread::yield_now,
};

#[cfg(not(all(test, loom)))]
pub(crate) use atomic_wait::{wait, wake_all, wake_one};
#[cfg(all(test, loom))]
pub(crate) use braid_loom::*;
#[cfg(not(all(test, loom)))]
pub(crate) use parking_lot::{Mutex, MutexGuard};

/// A sum for statistics: it orders nothing, so loom need not know it.
pub(crate) type Counter = std::sync::atomic::AtomicU64;
