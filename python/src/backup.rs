//! Backups and restores.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use braid::backup::{BackupProgress, Restore, Until};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyString};

use crate::errors::{IntoPyResult, OptionError};
use crate::fork::Active;
use crate::options::parsed;
use crate::reports;

/// The caller's progress function.
struct Progress {
    function: Option<Py<PyAny>>,
    /// The first exception that the function raised.
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
        let mut error = lock(&self.error);
        if error.is_none() {
            let counts = (progress.pages, progress.pages_total);
            *error = Python::attach(|py| function.call1(py, counts)).err();
        }
    }

    /// Returns the result, or raises the exception of the function.
    fn check<T>(self, done: T) -> PyResult<T> {
        match self
            .error
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
        {
            Some(error) => Err(error),
            None => Ok(done),
        }
    }
}

/// Destination or source of a backup.
pub(crate) enum Place {
    Path(PathBuf),
    Stream(Stream),
}

impl Place {
    /// Accepts a path, or an object that has the method of a stream.
    pub(crate) fn of(given: &Bound<'_, PyAny>, method: &'static str) -> PyResult<Self> {
        match given.getattr_opt(method)? {
            Some(method) => Ok(Place::Stream(Stream::new(method))),
            None => given.extract().map(Place::Path),
        }
    }
}

/// A method of a binary stream, `read` or `write`.
pub(crate) struct Stream {
    method: Py<PyAny>,
    /// The exception that the method raised.
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Stream {
    fn new(method: Bound<'_, PyAny>) -> Self {
        Self {
            method: method.unbind(),
            raised: Arc::default(),
        }
    }

    fn call<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> std::io::Result<T> {
        Python::attach(|py| call(self.method.bind(py))).map_err(|error| {
            let text = error.to_string();
            *lock(&self.raised) = Some(error);
            std::io::Error::other(text)
        })
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.call(|write| {
            let taken = write.call1((PyBytes::new(write.py(), bytes),))?;
            // A raw file returns how many bytes it took; other objects may return None, and took
            // all.
            match taken.is_none() {
                true => Ok(bytes.len()),
                false => taken.extract(),
            }
        })
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        self.call(|read| {
            let given = read.call1((room.len(),))?;
            let given: &[u8] = given.extract()?;
            let place = room.get_mut(..given.len()).ok_or_else(|| {
                PyValueError::new_err("read() returned more bytes than were requested")
            })?;
            place.copy_from_slice(given);
            Ok(given.len())
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the result, or raises the exception of the caller's stream, which is the cause of any
/// failure.
fn check_raised<T>(raised: &Mutex<Option<PyErr>>, done: T) -> PyResult<T> {
    match lock(raised).take() {
        Some(error) => Err(error),
        None => Ok(done),
    }
}

/// Makes a backup of a database.
pub(crate) fn make<'py>(
    py: Python<'py>,
    database: &braid::Database,
    place: Place,
    parent: Option<PathBuf>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let progress = Progress::new(progress);
    let raised = match &place {
        Place::Path(_) => Arc::default(),
        Place::Stream(stream) => stream.raised.clone(),
    };
    let report = py.detach(|| {
        let mut backup = database.backup_options();
        if let Some(parent) = parent {
            backup = backup.incremental_from(parent);
        }
        let backup = backup.progress(|now| progress.tell(now));
        match place {
            Place::Path(path) => backup.to_path(path),
            Place::Stream(mut stream) => backup.to_writer(&mut stream),
        }
    });
    let report = check_raised(&raised, progress.check(report)?)?.py()?;
    reports::backup(py, report)
}

/// Reads the description in a backup file, without reading its pages. Raises BackupError or
/// IoError.
#[pyfunction]
pub(crate) fn backup_info(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let _active = Active::begin()?;
    let info = py.detach(|| braid::backup::info(path)).py()?;
    reports::backup_info(py, &info)
}

fn until_of(until: &Bound<'_, PyAny>) -> PyResult<Until> {
    if until.is_instance_of::<PyInt>() && !until.is_instance_of::<PyBool>() {
        let seqno = until.extract();
        return seqno.map(Until::Seqno).map_err(|_| {
            OptionError::new_err(format!("invalid until {until}: must be a sequence number"))
        });
    }
    match until.extract::<SystemTime>() {
        Ok(time) => Ok(Until::Time(time)),
        Err(_) => Err(PyTypeError::new_err(
            "until must be the sequence number of a transaction, or a datetime with a time zone",
        )),
    }
}

/// Restores a database from backups, and from an archive if one is given, into a directory that is
/// empty or does not exist. The full backup comes first, then the incremental ones from the oldest
/// to the newest. A backup is a path, or a binary stream that is open for reading.
///
/// until is the sequence number of the last transaction, or an aware datetime; None restores
/// everything. pool_bytes is memory for pages while the archive is replayed. file_mode sets the
/// permissions of the files; the default is 0o600. tablespaces maps the name of each tablespace in
/// the last backup to an empty or missing directory, and tablespace_logs those whose logs are to be in
/// directories of their own. progress is called with the pages so far and the
/// total; an exception that it raises is raised after the restore.
///
/// When restore returns, everything is durable. If it fails, the directory does not contain a
/// usable database; empty it before the next attempt. Raises BackupError, which says what to do,
/// CorruptError, OutOfSpaceError, IoError, LockedError.
#[pyfunction]
#[pyo3(signature = (backups, path, *, archive = None, until = None, device = None, pool_bytes = None, file_mode = None, tablespaces = None, tablespace_logs = None, progress = None))]
#[expect(clippy::too_many_arguments, reason = "all but two are named")]
pub(crate) fn restore<'py>(
    py: Python<'py>,
    backups: &Bound<'py, PyAny>,
    path: PathBuf,
    archive: Option<PathBuf>,
    until: Option<&Bound<'py, PyAny>>,
    device: Option<&Bound<'py, PyAny>>,
    pool_bytes: Option<usize>,
    file_mode: Option<u32>,
    tablespaces: Option<BTreeMap<String, PathBuf>>,
    tablespace_logs: Option<BTreeMap<String, PathBuf>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let _active = Active::begin()?;
    if backups.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(
            "backups must be a list of paths, not a single path",
        ));
    }
    let places = backups.try_iter()?;
    let places = places.map(|given| Place::of(&given?, "read"));
    let places = places.collect::<PyResult<Vec<Place>>>()?;
    let raised: Vec<_> = places
        .iter()
        .filter_map(|place| match place {
            Place::Path(_) => None,
            Place::Stream(stream) => Some(stream.raised.clone()),
        })
        .collect();
    let until = until.map_or(Ok(Until::End), until_of)?;
    let device = device.map(|device| parsed("device", device)).transpose()?;
    if device == Some(braid::device::DeviceChoice::Memory) {
        return Err(OptionError::new_err(
            "cannot restore into memory: choose another device",
        ));
    }
    let progress = Progress::new(progress);
    let report = py.detach(|| {
        let mut restore = Restore::new();
        for place in places {
            restore = match place {
                Place::Path(path) => restore.backup(path),
                Place::Stream(stream) => restore.stream(stream),
            };
        }
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
        if let Some(mode) = file_mode {
            restore = restore.file_mode(mode);
        }
        for (name, directory) in tablespaces.unwrap_or_default() {
            restore = restore.tablespace_directory(&name, directory);
        }
        for (name, directory) in tablespace_logs.unwrap_or_default() {
            restore = restore.tablespace_log_directory(&name, directory);
        }
        restore.run(path)
    });
    let report = progress.check(report)?;
    raised
        .iter()
        .try_for_each(|raised| check_raised(raised, ()))?;
    reports::restore(py, &report.py()?)
}
