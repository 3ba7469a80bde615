//! The bytes of a log on its device: segments, their chunks, the chunks' log records, and
//! positions.

pub(crate) mod checkpoint_position;
pub(crate) mod chunk;
pub(crate) mod log_record;
pub(crate) mod segment;

/// The unit of every offset and length in a segment, in bytes.
pub(crate) const BLOCK: usize = 4096;
