//! Basic definitions for all modules: limits, option and position types, and the atomics of
//! lock-free code.

pub(crate) mod limits;
pub(crate) mod position;
pub(crate) mod sync;
pub(crate) mod table_options;
