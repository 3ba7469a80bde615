//! `parking_lot`'s locks. Under a simulation, they yield to other tasks instead of blocking the
//! thread.

use std::fmt;
use std::ops::DerefMut;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::atomic::note_lock;
use crate::gates::expect_no_gate;
use crate::simulation;

pub use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A mutual exclusion lock, like [`parking_lot::Mutex`].
#[derive(Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Acquires the mutex, waiting until it is free.
    #[inline]
    #[cfg_attr(braid_counts, track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        note_lock(&self.0);
        if simulation::is_on() {
            return simulated(|| self.0.try_lock());
        }
        self.0.lock()
    }

    /// Acquires the mutex if it is free.
    #[inline]
    #[cfg_attr(braid_counts, track_caller)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        note_lock(&self.0);
        self.0.try_lock()
    }

    /// Returns a mutable reference to the value; the exclusive borrow makes locking unnecessary.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// Consumes the mutex and returns the value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A readers-writer lock, like [`parking_lot::RwLock`].
#[derive(Default)]
pub struct RwLock<T>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// Acquires the lock for shared access, waiting for a writer.
    #[inline]
    #[cfg_attr(braid_counts, track_caller)]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        note_lock(&self.0);
        if simulation::is_on() {
            return simulated(|| self.0.try_read());
        }
        self.0.read()
    }

    /// Acquires the lock for exclusive access, waiting for readers and writers.
    #[inline]
    #[cfg_attr(braid_counts, track_caller)]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        note_lock(&self.0);
        if simulation::is_on() {
            return simulated(|| self.0.try_write());
        }
        self.0.write()
    }

    /// Acquires the lock for shared access if that is possible without waiting.
    #[inline]
    #[cfg_attr(braid_counts, track_caller)]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        note_lock(&self.0);
        self.0.try_read()
    }

    /// Acquires the lock for exclusive access if that is possible without waiting.
    #[inline]
    #[cfg_attr(braid_counts, track_caller)]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        note_lock(&self.0);
        self.0.try_write()
    }

    /// Consumes the lock and returns the value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Retries until the lock is acquired. Its holder is a task that the scheduler interrupted.
#[cold]
pub(crate) fn simulated<G>(mut lock: impl FnMut() -> Option<G>) -> G {
    simulation::yield_point();
    loop {
        if let Some(guard) = lock() {
            return guard;
        }
        simulation::give_way();
    }
}

/// Whether a wait timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the deadline passed before a notification.
    pub fn timed_out(self) -> bool {
        self.0
    }
}

/// A condition variable, like [`parking_lot::Condvar`], but usable in a child made by `fork`.
///
/// `parking_lot` keeps the threads that wait in a table of the process. A child inherits the entries
/// of threads that it does not have, and its own threads may get the memory of these entries. A
/// background thread waits nearly always, so the child would inherit its entry in nearly every
/// fork. The standard library's condition variable has no such table.
#[derive(Debug, Default)]
pub struct Condvar {
    /// Number of notifications. A waiter reads it before it unlocks the caller's mutex, so it misses
    /// no notification after that.
    notified: std::sync::Mutex<u64>,
    wake: std::sync::Condvar,
}

impl Condvar {
    /// Creates a condition variable without waiters.
    pub const fn new() -> Self {
        Self {
            notified: std::sync::Mutex::new(0),
            wake: std::sync::Condvar::new(),
        }
    }

    fn notified(&self) -> std::sync::MutexGuard<'_, u64> {
        // No code that panics runs under this lock.
        self.notified.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until notified or until `deadline`. Returns whether it was notified.
    fn sleep<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Option<Instant>) -> bool {
        let mut notified = self.notified();
        let before = *notified;
        // Under the caller's mutex until here: a notification that follows a change under that
        // mutex comes later. The closure unlocks `notified` before the mutex is locked again.
        MutexGuard::unlocked(guard, move || {
            while *notified == before {
                let slept = match deadline {
                    None => self.wake.wait(notified),
                    Some(deadline) => {
                        let left = deadline.saturating_duration_since(Instant::now());
                        if left.is_zero() {
                            return false;
                        }
                        let slept = self.wake.wait_timeout(notified, left);
                        slept
                            .map(|(notified, _)| notified)
                            .map_err(|error| PoisonError::new(error.into_inner().0))
                    }
                };
                notified = slept.unwrap_or_else(PoisonError::into_inner);
            }
            true
        })
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn block<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Option<Instant>) -> bool {
        let mutex = MutexGuard::mutex(guard);
        MutexGuard::unlocked(guard, || {
            let woken = simulation::block(self.key(), deadline);
            // `unlocked` then locks the mutex with `parking_lot`'s own lock, which would block all
            // tasks.
            while mutex.is_locked() {
                simulation::give_way();
            }
            woken
        })
    }

    /// Sleeps until notified. Spurious wake-ups are possible.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        expect_no_gate("a wait");
        if simulation::is_on() {
            self.block(guard, None);
        } else {
            self.sleep(guard, None);
        }
    }

    /// Sleeps until notified or until `deadline`. Spurious wake-ups are possible.
    pub fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        expect_no_gate("a wait");
        WaitTimeoutResult(if simulation::is_on() {
            !self.block(guard, Some(deadline))
        } else {
            !self.sleep(guard, Some(deadline))
        })
    }

    /// Sleeps while `condition` holds, for at most `time`.
    pub fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        time: Duration,
    ) {
        let deadline = crate::now_plus(time);
        while condition(guard.deref_mut()) && !self.wait_until_or_forever(guard, deadline) {}
    }

    /// Calls [`Condvar::wait_until`] with a deadline or [`Condvar::wait`] without one; returns
    /// whether the wait timed out.
    pub fn wait_until_or_forever<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Option<Instant>,
    ) -> bool {
        match deadline {
            Some(deadline) => self.wait_until(guard, deadline).timed_out(),
            None => {
                self.wait(guard);
                false
            }
        }
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        if simulation::is_on() {
            simulation::wake(self.key(), 1);
        } else {
            *self.notified() += 1;
            self.wake.notify_one();
        }
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        if simulation::is_on() {
            simulation::wake(self.key(), usize::MAX);
        } else {
            *self.notified() += 1;
            self.wake.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_variable_ends_in_time() {
        let (mutex, condvar) = (Mutex::new(0), Condvar::new());
        let mut guard = mutex.lock();
        let deadline = crate::now() + Duration::from_millis(1);
        while !condvar.wait_until(&mut guard, deadline).timed_out() {}
        condvar.wait_while_for(&mut guard, |n| *n < 1, Duration::from_millis(1));
        assert!(crate::now() >= deadline && *guard == 0);
    }
}
