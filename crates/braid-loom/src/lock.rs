//! Locks with the interface of `parking_lot`, and futex words with that of `atomic-wait`.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

use crate::AtomicU32;

/// A mutex. Unlike loom's, it has no poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// A locked [`Mutex`].
#[derive(Debug)]
pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

#[allow(missing_docs, reason = "as in parking_lot")]
impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(self.0.lock().ok())
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().expect("a guard is locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().expect("a guard is locked")
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(loom::sync::Condvar);

#[allow(missing_docs, reason = "as in parking_lot")]
impl Condvar {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let locked = guard.0.take().expect("a guard is locked");
        guard.0 = self.0.wait(locked).ok();
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Threads that sleep on a word.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    lock: Mutex<()>,
    awake: Condvar,
}

/// Sleeps while the word is `value`. As with the system's futex, checking the word and falling
/// asleep are one step for a waking thread.
pub fn wait(word: &AtomicU32, value: u32) {
    let mut queue = word.queue.lock.lock();
    // Relaxed: the lock orders this against the waker, which changed the word before it acquired
    // the lock.
    if word.load(Ordering::Relaxed) == value {
        word.queue.awake.wait(&mut queue);
    }
}

/// Wakes one thread that sleeps on the word.
pub fn wake_one(word: &AtomicU32) {
    let _queue = word.queue.lock.lock();
    word.queue.awake.notify_one();
}

/// Wakes all threads that sleep on the word.
pub fn wake_all(word: &AtomicU32) {
    let _queue = word.queue.lock.lock();
    word.queue.awake.notify_all();
}
