//! Time and chance.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::simulation;

/// Now. Under a simulation, time passes as its scheduler lets it.
#[inline]
pub fn now() -> Instant {
    if simulation::is_on() {
        return simulation::now();
    }
    Instant::now()
}

/// The time of day, which may be set back. Under a simulation it begins in 1970.
pub fn system_time() -> SystemTime {
    if simulation::is_on() {
        return UNIX_EPOCH + simulation::elapsed();
    }
    SystemTime::now()
}

/// Sleeps for at least `time`.
pub fn sleep(time: Duration) {
    if simulation::is_on() {
        // Nobody wakes who sleeps on nothing.
        simulation::block(0, Some(simulation::now() + time));
    } else {
        std::thread::sleep(time);
    }
}

/// A number that no other call returned before, here or on another machine.
pub fn entropy() -> u64 {
    if simulation::is_on() {
        return simulation::random();
    }
    let time = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    // `RandomState` is seeded from the system's entropy.
    RandomState::new().hash_one((time.as_nanos(), std::process::id()))
}
