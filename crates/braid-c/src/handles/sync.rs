//! Atomics of the handles' protocol. In tests with `--cfg loom`, loom can explore them; see
//! `loom_tests` and docs/testing.md.

#[cfg(all(test, loom))]
pub(super) use braid_loom::{AtomicU64, AtomicUsize, fence};
#[cfg(not(all(test, loom)))]
pub(super) use std::sync::atomic::{AtomicU64, AtomicUsize, fence};
