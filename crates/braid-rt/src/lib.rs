//! Threads, locks, sleep and time, as Braid's crates use them, and memory asked for ahead.
//!
//! They are the system's (`parking_lot`, futexes, `std::thread`), until [`simulation::run`] takes their
//! place: then all threads are tasks of one thread, a seed decides which of them goes on at each step, and
//! time passes only as the scheduler lets it. So the engine itself, not a model of it, is run through any
//! interleaving, again and again in the same way.
//!
//! Without the feature `simulation` nothing of that is compiled. With it, and outside of a simulation, a
//! lock costs one look at a thread-local more; everything else asks only where it is about to wait.

mod lock;
mod mutant;
mod narrow;
mod prefetch;
mod process;
pub mod simulation;
pub mod thread;
mod time;
mod user;
mod word;

pub use lock::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};
#[doc(hidden)]
pub use mutant::is_chosen;
pub use narrow::{Narrow, narrow, to_usize};
pub use prefetch::prefetch;
pub use process::Process;
pub use simulation::{point, reach};
pub use time::{entropy, now, now_plus, sleep, wall_clock};
pub use user::{Deliberate, call_user, panic_deliberately};
pub use word::{wait, wake_all, wake_one};
