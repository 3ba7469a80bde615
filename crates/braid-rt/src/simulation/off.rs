//! Without the feature `simulation`, these functions compile to nothing.

use std::time::{Duration, Instant};

use super::TaskId;

/// Whether the caller is a task of a simulation.
#[inline(always)]
pub const fn is_on() -> bool {
    false
}

/// Yield point: a place where a simulation may switch to another task.
#[inline(always)]
pub const fn yield_point() {}

/// Coverage point: under a simulation, counts that a rare branch was reached.
#[inline(always)]
pub const fn coverage_point(_: &'static str) {}

fn never() -> ! {
    unreachable!("there are no simulations without the feature")
}

pub(crate) fn give_way() {
    never()
}

pub(crate) fn block(_: usize, _: Option<Instant>) -> bool {
    never()
}

pub(crate) fn wake(_: usize, _: usize) {
    never()
}

pub(crate) fn now() -> Instant {
    never()
}

pub(crate) fn elapsed() -> Duration {
    never()
}

pub(crate) fn random() -> u64 {
    never()
}

/// Returns the calling task.
///
/// # Panics
/// Always: the caller is not a task of a simulation.
pub fn task() -> TaskId {
    never()
}

pub(crate) fn spawn(_: &str, _: impl FnOnce() + Send + 'static) -> TaskId {
    never()
}

pub(crate) fn join(_: TaskId) {
    never()
}

pub(crate) fn scatter<T: Send>(_: usize, _: impl Fn(usize) -> T + Sync) -> Vec<T> {
    never()
}
