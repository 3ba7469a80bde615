//! A real process on a real file system: killed with SIGKILL, stopped, denied its system calls, out of
//! space; and afterwards this process opens the database and holds it against what the other was told.
//!
//! The other process is this same program, which runs the test `child` alone; see `child.rs`. It says on
//! its standard output what was acknowledged, and the tests wait for nothing but these lines. Where a test
//! needs something that is not there (io_uring, the right to mount), it says so and passes.

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

/// A process that makes children by `fork`.
#[test]
#[ignore = "the process that the test of forks starts"]
fn forking() {
    fork::run();
}

/// A process beside the one that forks.
#[test]
#[ignore = "a process that the test of forks starts"]
fn opening() {
    fork::run_opening();
}
