//! Foundations of the other modules: atomics and locks, waiting and waking, callbacks,
//! the flushes that are timed.

pub(crate) mod callbacks;
pub(crate) mod event;
pub(crate) mod holds;
pub(crate) mod numbers;
pub(crate) mod sync;
pub(crate) mod timing;
