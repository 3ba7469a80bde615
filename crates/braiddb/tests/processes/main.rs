//! A real process on a real file system is killed with SIGKILL, stopped, denied system calls, or
//! runs out of space. Then this process opens the database and compares it with the
//! acknowledgements.
//!
//! The other process is this same program, which runs only the test `child`; see `child.rs`. It
//! prints acknowledgements on its standard output, and the tests wait only for these lines. If a
//! test needs something unavailable (io_uring, the right to mount), it prints so and passes.

#![cfg(target_os = "linux")]

mod child;
mod filesystems;
mod fork;
mod mounts;
mod openers;
mod parent;
mod readers;
mod storms;
mod syscalls;
mod workload;

/// The other process. Without its environment, as under `--include-ignored`, it does nothing.
#[test]
#[ignore = "the process that the other tests start"]
fn child() {
    child::run();
}

/// A process that forks children.
#[test]
#[ignore = "the process that the test of forks starts"]
fn forking() {
    fork::run();
}

/// A process alongside the one that forks.
#[test]
#[ignore = "a process that the test of forks starts"]
fn opening() {
    fork::run_opening();
}
