//! What a committing transaction holds: its pending commit, and afterwards its ticket.

pub(crate) mod pending;
pub(crate) mod ticket;
