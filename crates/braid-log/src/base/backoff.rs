//! Short waits for an event that another thread is about to cause.

use crate::base::sync::{spin_loop, yield_now};

/// Waits briefly: first by spinning, then by yielding the core to other threads.
pub(crate) fn backoff(spins: &mut u32) {
    *spins += 1;
    if *spins < 64 {
        spin_loop();
    } else {
        yield_now();
    }
}
