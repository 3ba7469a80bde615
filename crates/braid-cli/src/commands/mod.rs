//! One module a subcommand.

pub(crate) mod bench;
mod bench_device;
pub(crate) mod demo;
pub(crate) mod dump;
pub(crate) mod stat;
pub(crate) mod verify;
