//! The atomics, locks and waits that the lock-free parts are made of. In tests with `--cfg loom`,
//! loom's versions replace them; see `loom_tests` and docs/testing.md.

#[cfg(not(all(test, loom)))]
pub(crate) use braid_rt::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};

#[cfg(all(test, loom))]
pub(crate) use braid_loom::*;
#[cfg(all(test, loom))]
pub(crate) use braid_loom::{Mutex as Latch, MutexGuard as LatchGuard};
#[cfg(not(all(test, loom)))]
pub(crate) use braid_rt::{Latch, LatchGuard, Mutex};
#[cfg(not(all(test, loom)))]
pub(crate) use braid_rt::{
    thread::{Backoff, spin_loop},
    wait, wake_all, wake_one,
};

/// A counter for statistics: it orders nothing, so loom does not model it.
pub(crate) type Counter = braid_rt::atomic::AtomicU64;
