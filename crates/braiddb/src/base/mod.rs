//! Basic definitions for all modules: limits, option and position types, the sequence numbers of
//! records, the atomics of lock-free code, a queue in chunks, and the hand-over of work to an agent.

pub(crate) mod chunked;
pub(crate) mod handover;
pub(crate) mod limits;
pub(crate) mod position;
pub(crate) mod remote_access;
pub(crate) mod sync;
pub(crate) mod table_options;
pub(crate) mod written;
