//! Threads, locks, sleep, time, prefetching, huge pages, memory nodes and blocks of files for Braid's crates.
//!
//! They are the system's (`parking_lot`, futexes, `std::thread`), unless [`simulation::run`]
//! replaces them: then all threads are tasks of one thread, a seed decides which task runs at each
//! step, and the scheduler controls time. So the engine itself, not a model of it, runs through any
//! interleaving, and every run can be reproduced.
//!
//! Without the feature `simulation` none of this is compiled. With it, but outside of a simulation,
//! a lock costs one additional read of a thread-local; all other functions check only before they
//! wait.

pub mod atomic;
#[cfg(target_os = "linux")]
mod blocks;
mod futex;
mod gates;
mod hold;
mod huge;
mod latch;
mod lock;
mod mutant;
mod narrow;
mod nonblocking;
pub mod numa;
mod prefetch;
mod process;
pub mod simulation;
pub mod thread;
mod time;
mod topology;
mod user;

#[cfg(target_os = "linux")]
pub use blocks::{allocate_blocks, free_blocks};
pub use futex::{wait, wake_all, wake_one};
pub use gates::{ANY_GATE, Mark, Marked, SEQUENCE_NUMBER, excused, expect_no_gate, is_holding};
pub use hold::{Held, HoldTime, LongestHold};
pub use huge::{HUGE_PAGE, HugeSlice, advise_huge_pages};
pub use latch::{Latch, LatchGuard};
pub use lock::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};
#[doc(hidden)]
pub use mutant::is_chosen;
pub use narrow::{Narrow, narrow, to_usize};
pub use nonblocking::{must_not_wait, set_must_not_wait};
pub use prefetch::{prefetch, prefetch_for_write};
pub use process::Process;
pub use simulation::{coverage_point, yield_point};
pub use time::{entropy, now, now_plus, sleep, wall_clock};
pub use topology::{Cpu, Node, Topology};
pub use user::{Deliberate, call_user, panic_deliberately};
