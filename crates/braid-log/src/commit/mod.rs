//! The handles of a committing transaction: its pending commit, then its ticket; and the stream with
//! the bytes of a large one.

pub(crate) mod parts;
pub(crate) mod pending;
pub(crate) mod stream;
pub(crate) mod ticket;
