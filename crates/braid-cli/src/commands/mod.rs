//! One module a subcommand.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod dump;
pub(crate) mod stat;
pub(crate) mod verify;
