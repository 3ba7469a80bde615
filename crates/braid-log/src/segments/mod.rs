//! The segment files of a lane: the existing ones, the ones ready for use, and their owner.

mod new_file;
pub(crate) mod ownership;
pub(crate) mod pool;
pub(crate) mod quota;
pub(crate) mod state;
mod turn;
