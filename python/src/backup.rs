//! Backups and restoring them.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::SystemTime;

use braid::{BackupProgress, Restore, Until};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyString};

use crate::errors::{IntoPyResult, OptionError};
use crate::fork::Active;
use crate::options::parsed;
use crate::reports;

/// A function of the caller's that is told how it gets on.
struct Progress {
    function: Option<Py<PyAny>>,
    /// What it raised first.
    error: Mutex<Option<PyErr>>,
}

impl Progress {
    fn new(function: Option<Py<PyAny>>) -> Self {
        Self {
            function,
            error: Mutex::new(None),
        }
    }

    fn tell(&self, progress: BackupProgress) {
        let Some(function) = &self.function else {
            return;
        };
        let mut error = self.error.lock().unwrap_or_else(|e| e.into_inner());
        if error.is_none() {
            let counts = (progress.pages, progress.pages_total);
            *error = Python::attach(|py| function.call1(py, counts)).err();
        }
    }

    /// What was done, unless the function failed.
    fn check<T>(self, done: T) -> PyResult<T> {
        match self.error.into_inner().unwrap_or_else(|e| e.into_inner()) {
            Some(error) => Err(error),
            None => Ok(done),
        }
    }
}

/// Makes a backup of a database.
pub(crate) fn make<'py>(
    py: Python<'py>,
    database: &braid::Database,
    path: PathBuf,
    parent: Option<PathBuf>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let progress = Progress::new(progress);
    let report = py.detach(|| {
        let mut backup = database.backup_options();
        if let Some(parent) = parent {
            backup = backup.incremental_from(parent);
        }
        backup.progress(|now| progress.tell(now)).to_path(path)
    });
    let report = progress.check(report)?.py()?;
    reports::backup(py, report)
}

/// What a backup file says about itself; its pages are not looked at. Raises BackupError or IoError.
#[pyfunction]
pub(crate) fn backup_info(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let _active = Active::begin()?;
    let info = py.detach(|| braid::backup_info(path)).py()?;
    reports::backup_info(py, &info)
}

fn until_of(until: &Bound<'_, PyAny>) -> PyResult<Until> {
    if until.is_instance_of::<PyInt>() && !until.is_instance_of::<PyBool>() {
        let number = until.extract();
        return number
            .map(Until::Number)
            .map_err(|_| OptionError::new_err(format!("there is no transaction {until}")));
    }
    match until.extract::<SystemTime>() {
        Ok(time) => Ok(Until::Time(time)),
        Err(_) => Err(PyTypeError::new_err(
            "until is the number of a transaction, or a datetime with a time zone",
        )),
    }
}

/// Restores a database into a directory that is empty or is created, from backups, the full one first and then the
/// incremental ones from the oldest to the newest, and from an archive if there is one.
///
/// until is the number of the last transaction, or an aware datetime; None: everything. pool_bytes is memory for pages
/// while the archive is applied. progress is called with the pages so far and in all; what it raises is raised when all is
/// done. Everything is durable when this returns. A directory in which it failed is no database; empty it before the next
/// attempt. Raises BackupError, which says what to do, CorruptError, OutOfSpaceError, IoError, LockedError.
#[pyfunction]
#[pyo3(signature = (backups, path, *, archive = None, until = None, device = None, pool_bytes = None, progress = None))]
#[expect(clippy::too_many_arguments, reason = "all but two are named")]
pub(crate) fn restore<'py>(
    py: Python<'py>,
    backups: &Bound<'py, PyAny>,
    path: PathBuf,
    archive: Option<PathBuf>,
    until: Option<&Bound<'py, PyAny>>,
    device: Option<&Bound<'py, PyAny>>,
    pool_bytes: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let _active = Active::begin()?;
    if backups.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("backups is a list of paths, not one"));
    }
    let backups: Vec<PathBuf> = backups.extract()?;
    let until = until.map_or(Ok(Until::End), until_of)?;
    let device = device.map(|device| parsed("device", device)).transpose()?;
    if device == Some(braid::DeviceChoice::Memory) {
        return Err(OptionError::new_err("nothing is restored into memory"));
    }
    let progress = Progress::new(progress);
    let report = py.detach(|| {
        let mut restore = backups.iter().fold(Restore::new(), Restore::backup);
        restore = restore.until(until).progress(|now| progress.tell(now));
        if let Some(archive) = archive {
            restore = restore.archive(archive);
        }
        if let Some(device) = device {
            restore = restore.device(device);
        }
        if let Some(bytes) = pool_bytes {
            restore = restore.pool_bytes(bytes);
        }
        restore.run(path)
    });
    let report = progress.check(report)?.py()?;
    reports::restore(py, &report)
}
