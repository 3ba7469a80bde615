//! A lock for critical sections of well under a microsecond.
//!
//! Its holder releases it with a plain store. `parking_lot`'s mutex needs an atomic exchange for
//! that too, since a thread may be parked, and the processor takes as long for one as for dozens of
//! other instructions. In return, a thread that waits for a latch is not woken when it is released.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::atomic::note_lock;
use crate::lock::simulated;
use crate::simulation;
use crate::thread::Backoff;

/// A mutual exclusion lock that is held for a short time, without waiting for anything.
///
/// A thread that finds it held waits as [`Backoff`] does: it spins, then yields, and then sleeps for
/// at most a millisecond at a time.
#[derive(Default)]
pub struct Latch<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: as for a mutex: at most one thread at a time has a reference to the value.
unsafe impl<T: Send> Sync for Latch<T> {}

impl<T> Latch<T> {
    /// Creates a latch that is not held.
    pub const fn new(value: T) -> Self {
        Self {
            is_held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Acquires the latch, waiting until it is free.
    #[inline]
    #[cfg_attr(braid_counts, track_caller)]
    pub fn lock(&self) -> LatchGuard<'_, T> {
        if simulation::is_on() {
            note_lock(&self.is_held);
            return simulated(|| self.take());
        }
        match self.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    /// Acquires the latch if it is free.
    #[inline]
    #[cfg_attr(braid_counts, track_caller)]
    pub fn try_lock(&self) -> Option<LatchGuard<'_, T>> {
        note_lock(&self.is_held);
        self.take()
    }

    #[inline]
    fn take(&self) -> Option<LatchGuard<'_, T>> {
        // Acquire: pairs with the Release of the last holder, whose changes become visible.
        self.is_held
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| LatchGuard { latch: self })
    }

    #[cold]
    fn wait(&self) -> LatchGuard<'_, T> {
        let mut backoff = Backoff::default();
        loop {
            // A load first: an exchange that fails takes the cache line from the holder.
            if !self.is_held.load(Ordering::Relaxed)
                && let Some(guard) = self.take()
            {
                return guard;
            }
            backoff.wait();
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Latch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut latch = f.debug_struct("Latch");
        match self.try_lock() {
            Some(value) => latch.field("value", &*value).finish(),
            None => latch.finish_non_exhaustive(),
        }
    }
}

/// A held [`Latch`]; dropping it releases the latch.
#[derive(Debug)]
pub struct LatchGuard<'a, T> {
    latch: &'a Latch<T>,
}

// SAFETY: a shared guard gives shared access to the value alone.
unsafe impl<T: Sync> Sync for LatchGuard<'_, T> {}

impl<T> Deref for LatchGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard's thread holds the latch, so no other reference to the value is mutable.
        unsafe { &*self.latch.value.get() }
    }
}

impl<T> DerefMut for LatchGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard's thread holds the latch, and the guard is borrowed exclusively.
        unsafe { &mut *self.latch.value.get() }
    }
}

impl<T> Drop for LatchGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the next holder.
        self.latch.is_held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_latch_excludes_other_threads() {
        let (latch, rounds) = (Latch::new([0_u64; 2]), if cfg!(miri) { 30 } else { 20_000 });
        crate::thread::scatter(4, |_| {
            for _ in 0..rounds {
                let mut value = latch.lock();
                value[0] += 1;
                assert_eq!(value[0], value[1] + 1);
                value[1] += 1;
            }
        });
        assert_eq!(*latch.lock(), [4 * rounds; 2]);
    }

    #[test]
    fn a_latch_is_free_after_its_holder_panicked() {
        let latch = Latch::new(7);
        let held = latch.lock();
        assert!(latch.try_lock().is_none());
        assert_eq!(format!("{latch:?}"), "Latch { .. }");
        drop(held);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _held = latch.lock();
            panic!("while the latch is held");
        }));
        assert!(panicked.is_err());
        assert_eq!(latch.try_lock().map(|held| *held), Some(7));
        assert_eq!(format!("{latch:?}"), "Latch { value: 7 }");
    }
}
