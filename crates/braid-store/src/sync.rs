//! The atomics of pages and of their state words. In tests with `--cfg loom`, loom's versions
//! replace them; see `loom_tests` and docs/testing.md.

#[cfg(all(test, loom))]
pub(crate) use braid_loom::{AtomicU64, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use braid_rt::atomic::{AtomicU64, fence};

/// A counter for statistics: it orders nothing, so loom does not model it.
pub(crate) type Counter = braid_rt::atomic::AtomicU64;
