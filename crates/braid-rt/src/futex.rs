//! Futexes: 32-bit words that threads sleep on.

use crate::atomic::{AtomicU32, Ordering, plain};
use crate::gates::expect_no_gate;
use crate::simulation;

fn key(futex: &AtomicU32) -> usize {
    std::ptr::from_ref(futex).addr()
}

/// Sleeps while the futex equals `value`. May return early or spuriously.
pub fn wait(futex: &AtomicU32, value: u32) {
    expect_no_gate("a wait");
    if simulation::is_on() {
        // No other task runs between this check and the sleep.
        if futex.load(Ordering::Relaxed) == value {
            simulation::block(key(futex), None);
        }
    } else {
        atomic_wait::wait(plain(futex), value);
    }
}

/// Wakes one thread that sleeps on the futex.
pub fn wake_one(futex: &AtomicU32) {
    if simulation::is_on() {
        simulation::wake(key(futex), 1);
    } else {
        atomic_wait::wake_one(plain(futex));
    }
}

/// Wakes all threads that sleep on the futex.
pub fn wake_all(futex: &AtomicU32) {
    if simulation::is_on() {
        simulation::wake(key(futex), usize::MAX);
    } else {
        atomic_wait::wake_all(plain(futex));
    }
}
