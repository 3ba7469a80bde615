//! The handles of a committing transaction: its pending commit, then its ticket.

pub(crate) mod pending;
pub(crate) mod ticket;
