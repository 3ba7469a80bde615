//! Words to sleep on: futexes.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::simulation;

fn key(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word).addr()
}

/// Sleeps while the word is `value`, or not at all, or shorter for no reason.
pub fn wait(word: &AtomicU32, value: u32) {
    if simulation::is_on() {
        // Nobody else runs between the look and the sleep.
        if word.load(Ordering::Relaxed) == value {
            simulation::block(key(word), None);
        }
    } else {
        atomic_wait::wait(word, value);
    }
}

/// Wakes one that sleeps on the word.
pub fn wake_one(word: &AtomicU32) {
    if simulation::is_on() {
        simulation::wake(key(word), 1);
    } else {
        atomic_wait::wake_one(word);
    }
}

/// Wakes all that sleep on the word.
pub fn wake_all(word: &AtomicU32) {
    if simulation::is_on() {
        simulation::wake(key(word), usize::MAX);
    } else {
        atomic_wait::wake_all(word);
    }
}
