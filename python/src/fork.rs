//! What becomes of an open database in a child process.
//!
//! A child made by `fork` has the parent's memory but none of the engine's threads, and the files are the
//! parent's. Were the child to use, close or merely drop what it inherited, both would write to the same files.
//! So inherited objects refuse every use, and are leaked instead of dropped.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

use crate::errors;

/// How many forks lie between this process and the first one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The process's generation. Relaxed: it changes only while a child has but one thread.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

#[pyfunction]
fn after_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
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

    fn check(&self) -> PyResult<()> {
        if self.is_own() {
            return Ok(());
        }
        Err(errors::ClosedError::new_err(
            "the database was opened by the parent process; a child made by fork can't use it",
        ))
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
