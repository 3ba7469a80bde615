//! Time and randomness.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::gates::expect_no_gate;
use crate::simulation;

/// The current time. Under a simulation, the scheduler controls time.
#[inline]
pub fn now() -> Instant {
    if simulation::is_on() {
        return simulation::now();
    }
    Instant::now()
}

/// The instant `time` from now; `None` (treated as forever) if the clock cannot represent it.
#[inline]
pub fn now_plus(time: Duration) -> Option<Instant> {
    now().checked_add(time)
}

/// Sleeps for at least `time`.
pub fn sleep(time: Duration) {
    expect_no_gate("a pause");
    pause(time);
}

/// Sleeps for at least `time`, also under a gate: while a thread waits for a lock whose holder does
/// nothing that takes long.
pub(crate) fn pause(time: Duration) {
    if simulation::is_on() {
        // No task ever wakes key 0.
        simulation::block(0, now_plus(time));
    } else {
        std::thread::sleep(time);
    }
}

/// The wall-clock time since 1970. It may jump in either direction, so nothing may depend on its
/// order. Under a simulation, it advances with [`now`].
pub fn wall_clock() -> Duration {
    if simulation::is_on() {
        return Duration::from_secs(1 << 30) + simulation::elapsed();
    }
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    time.unwrap_or(Duration::ZERO)
}

/// Returns a number that no other call, on this machine or another, has returned before.
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
