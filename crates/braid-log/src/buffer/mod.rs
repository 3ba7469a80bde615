//! From an assigned sequence number to a log record in a strand's buffer.

pub(crate) mod commit_slots;
pub(crate) mod consolidation;
pub(crate) mod shared_buffer;
pub(crate) mod slot;
pub(crate) mod strand;
