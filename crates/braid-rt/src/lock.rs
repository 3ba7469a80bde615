//! `parking_lot`'s locks, which under a simulation give way to other tasks instead of blocking the thread.

use std::fmt;
use std::ops::DerefMut;
use std::time::{Duration, Instant};

use crate::simulation;

pub use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A mutual exclusion lock, as [`parking_lot::Mutex`].
#[derive(Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Locks it, waiting until it is free.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if simulation::is_on() {
            return simulated(|| self.0.try_lock());
        }
        self.0.lock()
    }

    /// Locks it if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }

    /// The value, of which there is no other borrow.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A readers-writer lock, as [`parking_lot::RwLock`].
#[derive(Default)]
pub struct RwLock<T>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// Locks it together with other readers.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        if simulation::is_on() {
            return simulated(|| self.0.try_read());
        }
        self.0.read()
    }

    /// Locks it alone.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        if simulation::is_on() {
            return simulated(|| self.0.try_write());
        }
        self.0.write()
    }

    /// As [`RwLock::read`], unless it would have to wait.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read()
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Tries until it succeeds. Who holds the lock is a task that was interrupted.
#[cold]
fn simulated<G>(mut lock: impl FnMut() -> Option<G>) -> G {
    simulation::point();
    loop {
        if let Some(guard) = lock() {
            return guard;
        }
        simulation::give_way();
    }
}

/// Whether a wait ended because its time was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the time was over.
    pub fn timed_out(self) -> bool {
        self.0
    }
}

/// A condition variable, as [`parking_lot::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// A condition variable that nobody waits on.
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn block<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Option<Instant>) -> bool {
        let mutex = MutexGuard::mutex(guard);
        MutexGuard::unlocked(guard, || {
            let woken = simulation::block(self.key(), deadline);
            // The guard is locked again behind us, by a lock that knows nothing of tasks.
            while mutex.is_locked() {
                simulation::give_way();
            }
            woken
        })
    }

    /// Sleeps until notified, or for no reason at all.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if simulation::is_on() {
            self.block(guard, None);
        } else {
            self.0.wait(guard);
        }
    }

    /// Sleeps until notified, or for no reason at all, but not beyond `deadline`.
    pub fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        WaitTimeoutResult(if simulation::is_on() {
            !self.block(guard, Some(deadline))
        } else {
            self.0.wait_until(guard, deadline).timed_out()
        })
    }

    /// Sleeps while `condition` holds, but not for longer than `time`.
    pub fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        time: Duration,
    ) {
        let deadline = crate::now_plus(time);
        while condition(guard.deref_mut()) && !self.wait_until_or_forever(guard, deadline) {}
    }

    /// As [`Condvar::wait_until`] with a deadline, as [`Condvar::wait`] without one; says whether the time was over.
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

    /// Wakes one that waits.
    pub fn notify_one(&self) {
        if simulation::is_on() {
            simulation::wake(self.key(), 1);
        } else {
            self.0.notify_one();
        }
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        if simulation::is_on() {
            simulation::wake(self.key(), usize::MAX);
        } else {
            self.0.notify_all();
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
