//! From a strand's buffer to an acknowledgement: the log's shared state and its flushes.

pub(crate) mod begin;
pub(crate) mod core;
pub(crate) mod lane;
pub(crate) mod leader;
pub(crate) mod reservation;
pub(crate) mod threads;
