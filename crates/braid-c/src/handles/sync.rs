//! The atomics that the handles' protocol is made of. In tests with `--cfg loom` they are ones that loom can
//! explore; see `loom_tests` and docs/testing.md.

#[cfg(all(test, loom))]
pub(super) use braid_loom::{AtomicU64, AtomicUsize, fence};
#[cfg(not(all(test, loom)))]
pub(super) use std::sync::atomic::{AtomicU64, AtomicUsize, fence};
