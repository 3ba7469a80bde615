//! Threads that must not wait for the medium.

use std::cell::Cell;

thread_local! {
    static MUST_NOT_WAIT: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread must not wait for the medium, see [`set_must_not_wait`].
#[inline]
pub fn must_not_wait() -> bool {
    MUST_NOT_WAIT.get()
}

/// Sets whether the calling thread, or task of a simulation, must not wait for the medium; returns what was set
/// before.
#[inline]
pub fn set_must_not_wait(must_not: bool) -> bool {
    MUST_NOT_WAIT.replace(must_not)
}
