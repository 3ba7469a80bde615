//! The subcommands, one module each.

pub(crate) mod backup;
pub(crate) mod bench;
mod bench_compare;
mod bench_connect;
mod bench_device;
mod bench_kill;
mod bench_paper;
mod bench_recovery;
mod bench_stalls;
pub(crate) mod changes;
pub(crate) mod compact;
pub(crate) mod demo;
pub(crate) mod dump;
pub(crate) mod export;
pub(crate) mod import;
mod log_place;
pub(crate) mod manual;
pub(crate) mod nvme;
pub(crate) mod pmem;
pub(crate) mod serve;
pub(crate) mod shell;
pub(crate) mod simulate;
pub(crate) mod stat;
mod tablespace_place;
pub(crate) mod upgrade;
pub(crate) mod verify;
mod watch;
