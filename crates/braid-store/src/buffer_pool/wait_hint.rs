//! A hint that commits may have to wait for pages.

use braid_rt::atomic::{AtomicU32, Ordering};

const CLEAR: u32 = 0;
const SET: u32 = 1;
/// Set, and a thread is finding out whether it may be cleared.
const CHECKED: u32 = 2;

/// A flag that any thread sets, and that one thread clears after a look at the pool. A thread that sets
/// it during the look prevails: what it saw may be newer.
///
/// All accesses are relaxed: a thread that sees an old value only takes longer.
#[derive(Debug)]
pub(super) struct WaitHint(AtomicU32);

impl WaitHint {
    pub(super) fn new(is_set: bool) -> Self {
        WaitHint(AtomicU32::new(if is_set { SET } else { CLEAR }))
    }

    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != CLEAR
    }

    pub(super) fn set(&self) {
        // A load first: the cache line stays shared while pages are evicted.
        if self.0.load(Ordering::Relaxed) != SET {
            self.0.store(SET, Ordering::Relaxed);
        }
    }

    /// Sets the flag if `look` returns true, and clears it otherwise.
    pub(super) fn update(&self, look: impl FnOnce() -> bool) {
        if self.is_set() {
            self.0.store(CHECKED, Ordering::Relaxed);
        }
        if look() {
            self.set();
        } else {
            // Fails if the flag is clear, or another thread has set it meanwhile.
            let (clear, relaxed) = (CLEAR, Ordering::Relaxed);
            let _ = self.0.compare_exchange(CHECKED, clear, relaxed, relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_look_decides() {
        let hint = WaitHint::new(true);
        hint.update(|| false);
        assert!(!hint.is_set());
        hint.update(|| false);
        assert!(!hint.is_set());
        hint.update(|| true);
        assert!(hint.is_set());
    }

    #[test]
    fn a_thread_that_sets_it_during_the_look_prevails() {
        for before in [false, true] {
            let hint = WaitHint::new(before);
            hint.update(|| {
                assert_eq!(hint.is_set(), before);
                hint.set();
                false
            });
            assert!(hint.is_set());
        }
    }
}
