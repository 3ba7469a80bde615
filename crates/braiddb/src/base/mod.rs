//! Basic definitions for all modules: limits, option and position types, the sequence numbers of
//! records, the atomics of lock-free code, and a queue in chunks.

pub(crate) mod chunked;
pub(crate) mod limits;
pub(crate) mod position;
pub(crate) mod sync;
pub(crate) mod table_options;
pub(crate) mod written;
