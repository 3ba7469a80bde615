//! Waiting for a moment, for what another thread is about to do.

use crate::base::sync::{spin_loop, yield_now};

/// Waits a moment: first spinning, then giving the core to whoever is waited for.
pub(crate) fn backoff(spins: &mut u32) {
    *spins += 1;
    if *spins < 64 {
        spin_loop();
    } else {
        yield_now();
    }
}
