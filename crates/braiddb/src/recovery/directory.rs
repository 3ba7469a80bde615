//! Opening a directory.

use std::io;
use std::path::Path;
use std::sync::Arc;

use braid_io::{DirectoryLock, LockError};

use super::DATA_FILE;
use super::log_directory;
use super::open::open_device;
use super::view::open_source;
use crate::error::{Error, Result};
use crate::options::{Builder, LogPlace};
use crate::services::readers::{Pace, Source};
use crate::services::{Instance, publish};

pub(crate) fn open_directory(path: &Path, mut options: Builder) -> Result<Arc<Instance>> {
    options.validate()?;
    let opening = |error| opening(path, error);
    let missing = || Error::NotADatabase {
        path: path.to_owned(),
        reason: "the directory does not exist; check the path, or create the database".into(),
    };
    let volume = braid_io::keep_volume_open(path).map_err(opening)?;
    let exists = volume.is_some() || path.try_exists().map_err(opening)?;
    if !exists && !options.create_if_missing {
        return Err(missing());
    }
    let is_database = braid_io::has_file(path, DATA_FILE).map_err(opening)?;
    if !is_database {
        // Make no files in a directory that turns out to hold something else.
        if !options.create_if_missing || (exists && volume.is_none() && !path.is_dir()) {
            return Err(Error::NotADatabase {
                path: path.to_owned(),
                reason: format!(
                    "it contains no {DATA_FILE}; check the path, or create a database there"
                ),
            });
        }
        // Acknowledged transactions would be lost with a directory whose name is not durable.
        braid_io::create_directory_with_mode(path, options.file_mode).map_err(opening)?;
    }
    let mode = options.file_mode;
    let lock = DirectoryLock::acquire_with_mode(path, mode);
    let lock = lock.map_err(|error| locking(path, error))?;
    let is_directory = volume.is_none();
    // From here on, the lock keeps the volume open.
    drop(volume);
    let device = braid_io::open_directory_with_mode(path, options.device, mode);
    let device = device.map_err(opening)?;
    if is_database && is_directory {
        publish::remove(path);
    }
    options.stats_directory = (options.stats_file && is_directory).then(|| path.to_owned());
    options.directory = braid_io::resolve(path).ok();
    let attached = log_directory::attach(path, device, &options)?;
    options.log_place = attached.place;
    set_idle(path, &options)?;
    let locks = (attached.lock, lock);
    let opened = open_device(attached.device, Some(Box::new(locks)), options);
    opened.map_err(|error| name_directory(path, error))
}

/// Opens a directory for reading. With a pace, for a check.
pub(crate) fn open_directory_read_only(
    path: &Path,
    mut options: Builder,
    pace: Option<Pace>,
) -> Result<Arc<Instance>> {
    options.validate()?;
    let volume = braid_io::keep_volume_open(path).map_err(|e| opening(path, e))?;
    if volume.is_none() && !path.try_exists().map_err(|e| opening(path, e))? {
        return Err(Error::NotADatabase {
            path: path.to_owned(),
            reason: "the directory does not exist; check the path, or create the database".into(),
        });
    }
    options.directory = braid_io::resolve(path).ok();
    let (source, place) = read_source(path, &options)?;
    let source = match pace {
        Some(pace) => source.paced(pace),
        None => source,
    };
    options.log_place = place;
    set_idle(path, &options)?;
    let opened = open_source(Arc::new(source), options, None);
    opened.map_err(|error| name_directory(path, error))
}

/// Sets for how long threads poll the drives of the data and of the log, which are open.
fn set_idle(path: &Path, options: &Builder) -> Result<()> {
    let Some(idle_us) = options.nvme_idle_us else {
        return Ok(());
    };
    let log = options.log_place.as_ref().map(|place| &*place.directory);
    for path in std::iter::once(path).chain(log) {
        braid_io::set_volume_idle_us(path, idle_us).map_err(|e| opening(path, e))?;
    }
    Ok(())
}

/// Opens a directory for reading. With a reader table, writers are not excluded; without one, a
/// lock excludes them. Also returns the place of the log, if it is another directory.
pub(crate) fn read_source(path: &Path, options: &Builder) -> Result<(Source, Option<LogPlace>)> {
    // A volume has no reader table, and the lock keeps it open.
    let mut lock = if braid_io::is_volume_name(path) {
        let shared = DirectoryLock::acquire_shared(path);
        Some(shared.map_err(|error| locking(path, error))?)
    } else {
        None
    };
    let base = braid_io::open_directory_read_only(path).map_err(|e| opening(path, e))?;
    let (base, place) = log_directory::attach_read_only(path, base, options)?;
    let table = || base.reader_table(false).map_err(|e| opening(path, e));
    let mut found = table()?;
    if found.is_none() && lock.is_none() {
        match DirectoryLock::acquire_shared(path) {
            Ok(shared) => lock = Some(shared),
            Err(error) => {
                // A writer may have created the table since.
                found = table()?;
                if found.is_none() {
                    return Err(locking(path, error));
                }
            }
        }
    }
    Ok((Source::new(base, path.to_owned(), found, lock), place))
}

/// Converts a failure to open a directory to an error.
pub(crate) fn opening(path: &Path, error: io::Error) -> Error {
    if let Some(error) = Error::of_volume(path, &error) {
        return error;
    }
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => Error::ReadOnly {
            path: path.to_owned(),
        },
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists
            if !braid_io::is_volume_name(path) =>
        {
            Error::NotADatabase {
                path: path.to_owned(),
                reason: "it is not a directory".into(),
            }
        }
        _ => Error::io(format!("cannot open {}", path.display()), error),
    }
}

pub(crate) fn locking(path: &Path, error: LockError) -> Error {
    match error {
        LockError::Held => Error::locked(path),
        LockError::Io(error) => opening(path, error),
    }
}

/// Adds the directory's name to an error of its device, which does not know the name.
fn name_directory(path: &Path, error: Error) -> Error {
    match error {
        Error::NotADatabase { reason, .. } => Error::NotADatabase {
            path: path.to_owned(),
            reason,
        },
        error => error,
    }
}
