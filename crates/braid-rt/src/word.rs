//! Futexes: 32-bit words to sleep on.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::simulation;

fn key(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word).addr()
}

/// Sleeps while the word equals `value`. May return early or spuriously.
pub fn wait(word: &AtomicU32, value: u32) {
    if simulation::is_on() {
        // No other task runs between this check and the sleep.
        if word.load(Ordering::Relaxed) == value {
            simulation::block(key(word), None);
        }
    } else {
        atomic_wait::wait(word, value);
    }
}

/// Wakes one thread that sleeps on the word.
pub fn wake_one(word: &AtomicU32) {
    if simulation::is_on() {
        simulation::wake(key(word), 1);
    } else {
        atomic_wait::wake_one(word);
    }
}

/// Wakes all threads that sleep on the word.
pub fn wake_all(word: &AtomicU32) {
    if simulation::is_on() {
        simulation::wake(key(word), usize::MAX);
    } else {
        atomic_wait::wake_all(word);
    }
}
