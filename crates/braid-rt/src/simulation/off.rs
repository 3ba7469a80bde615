//! No simulation: everything here folds into nothing.

use std::time::{Duration, Instant};

use super::TaskId;

/// Whether the caller is a task of a simulation.
#[inline(always)]
pub const fn is_on() -> bool {
    false
}

/// A place where a simulation may go on with another task.
#[inline(always)]
pub const fn point() {}

/// Counts that a rare branch was reached, under a simulation.
#[inline(always)]
pub const fn reach(_: &'static str) {}

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

pub(crate) fn task() -> TaskId {
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
