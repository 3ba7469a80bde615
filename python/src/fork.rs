//! Protection of the engine in child processes made by `fork`.
//!
//! Such a child has the parent's memory, but none of its other threads, and shares the parent's
//! files. If the child used, closed or merely dropped an inherited object, both processes would
//! write to the same files. A lock that another thread of the parent held at the fork (of a waiting
//! transaction, or inside the engine) stays locked forever in the child. So a child must not touch
//! any lock of this package or of the engine. Inherited objects check a number and refuse every use
//! before anything else, and are leaked instead of dropped. If a database was open at the fork, the
//! child cannot open any database.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use pyo3::prelude::*;

use crate::errors::ForkError;

/// Number of forks between the first process and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Number of databases that are open, or are being opened or closed.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

/// Whether a database was active at a fork that made this process or one of its ancestors.
static TAINTED: AtomicBool = AtomicBool::new(false);

/// Returns the process's generation. Relaxed: it changes only while a child has a single thread.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// All relaxed: a child has a single thread.
#[pyfunction]
fn after_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    if ACTIVE.swap(0, Ordering::Relaxed) > 0 {
        TAINTED.store(true, Ordering::Relaxed);
    }
}

/// Registers a hook that detects forks.
pub(crate) fn watch(py: Python<'_>) -> PyResult<()> {
    let options = [("after_in_child", wrap_pyfunction!(after_fork, py)?)];
    let os = py.import("os")?;
    // Missing on some systems.
    if let Ok(register) = os.getattr("register_at_fork") {
        let options = pyo3::types::IntoPyDict::into_py_dict(options, py)?;
        register.call((), Some(&options))?;
    }
    Ok(())
}

/// A period in which the engine is active: from before a database is opened until after it is
/// closed.
#[derive(Debug)]
pub(crate) struct Active {
    generation: u64,
    over: AtomicBool,
}

impl Active {
    /// Begins a period, unless this process may not use the engine.
    pub(crate) fn begin() -> PyResult<Self> {
        if TAINTED.load(Ordering::Relaxed) {
            return Err(ForkError::new_err(
                "this process was made by fork while a database was open, so it can't use the engine; start it by \
                 spawn, or fork before anything is opened",
            ));
        }
        // The interpreter's lock is held here, and during a fork.
        ACTIVE.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            generation: generation(),
            over: AtomicBool::new(false),
        })
    }

    /// Ends the period, if it has not ended yet.
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

/// A value of the engine that only the process that made it may use or drop.
#[derive(Debug)]
pub(crate) struct Own<T> {
    /// Set until the drop.
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

    /// Returns whether this process made the value.
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
