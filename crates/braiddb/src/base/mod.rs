//! Plain definitions below everything else: limits, option and position types, and the atomics of lock-free parts.

pub(crate) mod limits;
pub(crate) mod position;
pub(crate) mod sync;
pub(crate) mod table_options;
