//! The atomics of pages and of their state words. In tests with `--cfg loom` they are ones that loom can
//! explore; see `loom_tests` and docs/testing.md.

#[cfg(all(test, loom))]
pub(crate) use braid_loom::{AtomicU64, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU64, fence};

/// A sum for statistics: it orders nothing, so loom need not know it.
pub(crate) type Counter = std::sync::atomic::AtomicU64;
