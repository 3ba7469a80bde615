//! The segment files of a lane: which exist, which are ready for use, and who made them.

pub(crate) mod ownership;
pub(crate) mod pool;
pub(crate) mod quota;
