//! What becomes of the engine in a child process.
//!
//! A child made by `fork` has the parent's memory but none of its other threads, and the files are the parent's.
//! Were the child to use, close or merely drop what it inherited, both would write to the same files. And a lock
//! that another thread of the parent held at that moment (of a transaction that waits, or one inside the engine)
//! stays locked for ever in the child. So a child must not touch any lock of ours or the engine's: inherited objects
//! refuse every use before they look at anything but a number, and are leaked instead of dropped; and if a database
//! was open at the fork, nothing is opened in the child either.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use pyo3::prelude::*;

use crate::errors::ForkError;

/// How many forks lie between this process and the first one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Databases that are open, or are being opened or closed.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

/// Whether a database was active when a fork made this process, or one that it comes from.
static TAINTED: AtomicBool = AtomicBool::new(false);

/// The process's generation. Relaxed: it changes only while a child has but one thread.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// All relaxed: a child has but one thread.
#[pyfunction]
fn after_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    if ACTIVE.swap(0, Ordering::Relaxed) > 0 {
        TAINTED.store(true, Ordering::Relaxed);
    }
}

/// Notices forks from now on.
pub(crate) fn watch(py: Python<'_>) -> PyResult<()> {
    let options = [("after_in_child", wrap_pyfunction!(after_fork, py)?)];
    let os = py.import("os")?;
    // Not on every system.
    if let Ok(register) = os.getattr("register_at_fork") {
        let options = pyo3::types::IntoPyDict::into_py_dict(options, py)?;
        register.call((), Some(&options))?;
    }
    Ok(())
}

/// A stretch of time in which the engine is at work: from before a database is opened until after it is closed.
#[derive(Debug)]
pub(crate) struct Active {
    generation: u64,
    over: AtomicBool,
}

impl Active {
    /// Begins one, unless this process may not use the engine at all.
    pub(crate) fn begin() -> PyResult<Self> {
        if TAINTED.load(Ordering::Relaxed) {
            return Err(ForkError::new_err(
                "this process was made by fork while a database was open, so it can't use the engine; start it by \
                 spawn, or fork before anything is opened",
            ));
        }
        // The interpreter's lock is held here, and while a fork is made.
        ACTIVE.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            generation: generation(),
            over: AtomicBool::new(false),
        })
    }

    /// Ends it, if that was not done before.
    pub(crate) fn end(&self) {
        if self.generation == generation() && !self.over.swap(true, Ordering::Relaxed) {
            ACTIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.end();
    }
}

/// Fails in a child of the process that made an object of this generation.
#[inline]
pub(crate) fn check(of: u64) -> PyResult<()> {
    if of == generation() {
        return Ok(());
    }
    Err(inherited())
}

#[cold]
fn inherited() -> PyErr {
    ForkError::new_err(
        "the database was opened by the parent process, and a child made by fork cannot use it; open it after the fork",
    )
}

/// Something of the engine's that only the process that made it may use, or drop.
#[derive(Debug)]
pub(crate) struct Own<T> {
    /// There until the drop.
    value: Option<T>,
    generation: u64,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Some(value),
            generation: generation(),
        }
    }

    /// Whether this process made it.
    pub(crate) fn is_own(&self) -> bool {
        self.generation == generation()
    }

    pub(crate) fn check(&self) -> PyResult<()> {
        check(self.generation)
    }

    pub(crate) fn get(&self) -> PyResult<&T> {
        self.check()?;
        Ok(self.value.as_ref().expect("only the drop takes it"))
    }

    pub(crate) fn get_mut(&mut self) -> PyResult<&mut T> {
        self.check()?;
        Ok(self.value.as_mut().expect("only the drop takes it"))
    }

    pub(crate) fn into_inner(mut self) -> PyResult<T> {
        self.check()?;
        Ok(self.value.take().expect("only the drop takes it"))
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if !self.is_own() {
            std::mem::forget(self.value.take());
        }
    }
}
