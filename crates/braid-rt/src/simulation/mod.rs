//! A deterministic scheduler that runs threads as tasks, in an order that a seed decides.
//!
//! [`run`] runs a function, and all threads that it starts with [`crate::thread::spawn`], as tasks
//! on the calling thread. A task runs until it waits, sleeps, ends or reaches a yield point:
//! acquiring a lock or calling [`yield_point`]. The scheduler then chooses the next task. Time
//! advances a little with each step, and jumps when all tasks sleep. If no task can ever run again,
//! the run fails with a deadlock or a lost wake-up.
//!
//! Between two points a task is not interrupted, and memory is sequentially consistent.
//! Interleavings of atomic operations between points are left to the memory-model checker.

#[cfg(not(feature = "simulation"))]
mod off;
#[cfg(not(feature = "simulation"))]
pub(crate) use off::*;
#[cfg(not(feature = "simulation"))]
pub use off::{coverage_point, is_on, task, yield_point};

#[cfg(feature = "simulation")]
mod scheduler;
#[cfg(feature = "simulation")]
mod tasks;
#[cfg(feature = "simulation")]
pub use scheduler::{Failure, Options, Report, coverage_point, is_on, run, task, yield_point};
#[cfg(feature = "simulation")]
pub(crate) use scheduler::{block, elapsed, give_way, join, now, random, scatter, spawn, wake};

/// A task of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(usize);

impl TaskId {
    /// The task's position in the order in which tasks were started.
    pub fn index(self) -> usize {
        self.0
    }
}
