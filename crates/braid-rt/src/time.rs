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

/// The instant after a time from now; `None` if the clock does not reach that far, which is as good as forever.
#[inline]
pub fn now_plus(time: Duration) -> Option<Instant> {
    now().checked_add(time)
}

/// Sleeps for at least `time`.
pub fn sleep(time: Duration) {
    if simulation::is_on() {
        // Nobody wakes who sleeps on nothing.
        simulation::block(0, now_plus(time));
    } else {
        std::thread::sleep(time);
    }
}

/// The time of day, since 1970. Nothing may depend on its order: people and other programs change it. Under a
/// simulation it passes as [`now`] does.
pub fn wall_clock() -> Duration {
    if simulation::is_on() {
        return Duration::from_secs(1 << 30) + simulation::elapsed();
    }
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    time.unwrap_or(Duration::ZERO)
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
