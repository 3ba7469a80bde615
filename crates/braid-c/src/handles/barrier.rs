//! An asymmetric barrier. The light side, for frequent callers, costs nothing. The heavy side, for
//! rare callers, makes all threads of the process pass a full barrier (`membarrier`). If the system
//! has no `membarrier`, both sides are full barriers.
//!
//! If two threads each write, pass their side, and read what the other one writes, then at least
//! one of them sees the other's write.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use super::sync::fence;

/// Whether the heavy side reaches all threads. Set before anything that a light side protects is
/// published.
static IS_UNEQUAL: AtomicBool = AtomicBool::new(false);

/// Makes the light side free, if the system supports it. Call this before the first use of either
/// side.
pub(super) fn prepare() {
    use std::sync::Once;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| IS_UNEQUAL.store(system::register(), Ordering::Release));
}

/// Returns whether [`light_if_free`] suffices.
#[inline]
pub(super) fn is_free() -> bool {
    // Relaxed: set once, before the handle reached this thread.
    IS_UNEQUAL.load(Ordering::Relaxed) || cfg!(miri)
}

/// The light side, for frequent callers.
#[inline]
pub(super) fn light() {
    if is_free() {
        light_if_free()
    } else {
        fence(Ordering::SeqCst)
    }
}

/// The light side, for callers that know that it [is free](is_free). (Miri has no such barrier, and
/// must see these callers, too.)
#[inline(always)]
pub(super) fn light_if_free() {
    if cfg!(miri) {
        fence(Ordering::SeqCst)
    } else {
        compiler_fence(Ordering::SeqCst)
    }
}

/// The heavy side, for rare callers.
pub(super) fn heavy() {
    fence(Ordering::SeqCst);
    if IS_UNEQUAL.load(Ordering::Relaxed) {
        system::barrier_everywhere();
    }
}

#[cfg(all(target_os = "linux", not(miri), not(all(test, loom))))]
mod system {
    use std::ffi::c_long;

    // From linux/membarrier.h.
    const PRIVATE_EXPEDITED: c_long = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: c_long = 1 << 4;

    fn membarrier(command: c_long) -> bool {
        // SAFETY: the call takes numbers, and accesses no memory of the process.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0 as c_long, 0 as c_long) == 0 }
    }

    pub(super) fn register() -> bool {
        membarrier(REGISTER_PRIVATE_EXPEDITED)
    }

    pub(super) fn barrier_everywhere() {
        // After the registration the call cannot fail; if it does, the process must not continue.
        assert!(membarrier(PRIVATE_EXPEDITED), "the system's barrier failed");
    }
}

#[cfg(not(all(target_os = "linux", not(miri), not(all(test, loom)))))]
mod system {
    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn barrier_everywhere() {}
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Of two threads that write and then read, at least one sees the other's write, from either
    /// side.
    #[test]
    fn one_of_two_sees_the_other() {
        prepare();
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 2_000 };
        let (left, right) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (together, seen) = (Barrier::new(2), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    together.wait();
                    left.store(round, Ordering::Relaxed);
                    light();
                    let sees = right.load(Ordering::Relaxed) == round;
                    seen.fetch_add(usize::from(sees), Ordering::SeqCst);
                    together.wait();
                    together.wait();
                }
            });
            for round in 1..=ROUNDS {
                together.wait();
                right.store(round, Ordering::Relaxed);
                heavy();
                let sees = left.load(Ordering::Relaxed) == round;
                seen.fetch_add(usize::from(sees), Ordering::SeqCst);
                together.wait();
                assert!(seen.swap(0, Ordering::SeqCst) >= 1, "round {round}");
                together.wait();
            }
        });
    }
}
