//! State of the process that a child made by `fork` does not inherit.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use braid_rt::Process;

struct Own<T> {
    process: Process,
    state: Mutex<T>,
}

/// A value of each process, which begins with its default. A child starts with one of its own: a
/// thread that the child does not have may hold its parent's mutex.
pub(crate) struct PerProcess<T>(AtomicPtr<Own<T>>);

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    pub(crate) fn lock(&'static self) -> MutexGuard<'static, T> {
        let mut current = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: the pointer is null or was leaked below.
            if let Some(own) = unsafe { current.as_ref() }
                && own.process.is_current()
            {
                return own.state.lock().unwrap_or_else(PoisonError::into_inner);
            }
            let new = Box::into_raw(Box::new(Own {
                process: Process::current(),
                state: Mutex::default(),
            }));
            // One for each process that uses it. A thread that loses the race leaks its own.
            let (before, after) = (Ordering::AcqRel, Ordering::Acquire);
            current = match self.0.compare_exchange(current, new, before, after) {
                Ok(_) => new,
                Err(others) => others,
            };
        }
    }
}
