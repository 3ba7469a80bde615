//! The tests of the commands, as one program: it is compiled and linked once.

mod cli;
mod common;
mod compare;
#[cfg(feature = "connect")]
mod connect;
mod false_dax;
mod first_minutes;
mod nvme;
mod pmem;
mod pmem_database;
mod readers;
mod records;
mod serve;
#[cfg(target_os = "linux")]
mod serve_clients;
mod serve_kills;
mod shell;
mod terminal;
mod unwritable;
mod watch;
