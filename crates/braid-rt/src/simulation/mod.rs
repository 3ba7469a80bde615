//! A deterministic scheduler: threads as tasks, of which a seed decides who goes on.
//!
//! [`run`] runs a function and all threads that it starts by [`crate::thread::spawn`] as tasks on the
//! calling thread. A task goes on until it waits, sleeps, ends, or comes to a [`point`]: taking a lock is
//! one, and whatever else calls it. There the scheduler goes on with a task of its choice. Time passes a
//! little with each step, and jumps when all tasks sleep. If none can ever go on, that is a deadlock, or
//! a wake-up that was lost.
//!
//! Between two points a task is not interrupted, and memory is sequentially consistent. What threads do
//! with each other's atomics in between is the memory-model checker's matter.

#[cfg(not(feature = "simulation"))]
mod off;
#[cfg(not(feature = "simulation"))]
pub(crate) use off::*;
#[cfg(not(feature = "simulation"))]
pub use off::{is_on, point, reach};

#[cfg(feature = "simulation")]
mod scheduler;
#[cfg(feature = "simulation")]
mod tasks;
#[cfg(feature = "simulation")]
pub use scheduler::{Failure, Options, Report, is_on, point, reach, run, task};
#[cfg(feature = "simulation")]
pub(crate) use scheduler::{block, elapsed, give_way, join, now, random, scatter, spawn, wake};

/// A task of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(usize);

impl TaskId {
    /// Its place in the order in which tasks were started.
    pub fn index(self) -> usize {
        self.0
    }
}
