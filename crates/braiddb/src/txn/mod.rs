//! Running transactions and their commit.

pub(crate) mod commit;
pub(crate) mod lock_acquisition;
pub(crate) mod modify;
mod read_ahead;
pub(crate) mod savepoint;
pub(crate) mod transaction;
