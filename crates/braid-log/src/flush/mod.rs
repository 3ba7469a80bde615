//! From a strand's buffer to an acknowledgement: the log's shared state and its flushes.
//!
//! `core` defines the state, `Core`, and how a number becomes durable. The other methods of `Core`
//! are in the files of their subjects: `reservation` reserves log space, `preparing` prepares
//! and deletes segments, `begin` performs the first
//! write of an incarnation, `waiting` requests flushes and waits for them, and `leader` leads them.
//! `order` is the order in which a flush becomes durable, and `header` the order of the writes to a
//! segment's header. `lane` is the state of one lane, `threads` are the log's own threads, and
//! `pacing` pauses background work.

pub(crate) mod backpressure;
pub(crate) mod begin;
pub(crate) mod core;
pub(crate) mod header;
pub(crate) mod lane;
pub(crate) mod leader;
pub(crate) mod order;
pub(crate) mod pacing;
mod preparing;
pub(crate) mod reservation;
pub(crate) mod threads;
pub(crate) mod waiting;
