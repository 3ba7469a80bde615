//! The bytes of a log on its device: segments, their chunks, the chunks' log records, and
//! positions.

pub(crate) mod checkpoint_position;
pub(crate) mod chunk;
pub(crate) mod log_record;
pub(crate) mod segment;

pub(crate) mod padding;

/// The size of a segment's header, and the unit of the lengths of segments and buffers, in bytes.
pub(crate) const BLOCK: usize = 4096;
