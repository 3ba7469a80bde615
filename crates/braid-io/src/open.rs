//! Opening a directory as a device, once at a time.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, Once, PoisonError};

use crate::{Device, FileDevice, MemoryDevice, uring};

/// The name of the lock file in a locked directory.
pub const LOCK_FILE_NAME: &str = "LOCK";

/// How a directory is accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceChoice {
    /// The fastest way that works here.
    #[default]
    Auto,
    /// io_uring with direct I/O; Linux only.
    Uring,
    /// Positioned reads and writes; see [`FileDevice`].
    File,
    /// Process memory: the directory stays empty and nothing survives.
    Memory,
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "file" => Ok(Self::File),
            "memory" => Ok(Self::Memory),
            _ => Err(format!(
                "unknown device {name:?}; there are auto, uring, file and memory"
            )),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::File => "file",
            Self::Memory => "memory",
        })
    }
}

/// The device over an existing directory. [`DeviceChoice::Auto`] takes io_uring where it is allowed, or
/// else the file device, and says so once on standard error.
///
/// # Errors
/// `NotFound`, `NotADirectory`, `Unsupported` if io_uring was asked for and is not allowed, or what the
/// medium refuses.
pub fn open_directory(directory: &Path, choice: DeviceChoice) -> io::Result<Arc<dyn Device>> {
    match choice {
        DeviceChoice::Memory => Ok(Arc::new(MemoryDevice::new())),
        DeviceChoice::File => Ok(Arc::new(FileDevice::new(directory)?)),
        DeviceChoice::Uring => uring::open(directory),
        DeviceChoice::Auto => match uring::open(directory) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                static SAID: Once = Once::new();
                SAID.call_once(|| eprintln!("braid: using plain file access ({error})"));
                Ok(Arc::new(FileDevice::new(directory)?))
            }
            opened => opened,
        },
    }
}

/// Creates a directory, and those above it that are missing, all durably: what is made durable in a directory
/// is lost with the directory's own name. If it exists, its name is made durable, since whoever created it
/// may not have come so far.
///
/// # Errors
/// `NotADirectory`, `AlreadyExists` if it is a file, or what the medium refuses.
pub fn create_directory(path: &Path) -> io::Result<()> {
    let above = match path.parent() {
        None => return Ok(()),
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    };
    if !path.try_exists()? {
        // The lowest one that exists, too: see above.
        create_directory(above)?;
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
            created => created?,
        }
    }
    match fs::File::open(above).and_then(|directory| directory.sync_all()) {
        // Who may not look into it can't do more.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    }
}

/// Why a directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else, in this process or another, has it locked.
    #[error("the directory is locked")]
    Held,
    /// The lock file can't be made or locked.
    #[error("the lock file: {0}")]
    Io(#[from] io::Error),
}

/// Directories that this process has locked: an advisory lock does not keep its own process out on every
/// system.
static HELD_HERE: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);

/// An exclusive lock on a directory against other processes and other openers in this one. Given back
/// when dropped, and by the system when the process ends in any way.
#[derive(Debug)]
pub struct DirectoryLock {
    path: PathBuf,
    file: fs::File,
}

impl DirectoryLock {
    /// Locks an existing directory.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn acquire(directory: &Path) -> Result<Self, LockError> {
        let path = directory.canonicalize()?;
        let mut held = HELD_HERE.lock().unwrap_or_else(PoisonError::into_inner);
        let held = held.get_or_insert_default();
        if held.contains(&path) {
            return Err(LockError::Held);
        }
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path.join(LOCK_FILE_NAME))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(LockError::Held),
            Err(fs::TryLockError::Error(error)) => return Err(error.into()),
        }
        held.insert(path.clone());
        Ok(Self { path, file })
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        let mut held = HELD_HERE.lock().unwrap_or_else(PoisonError::into_inner);
        // Closing the file would not do: a child process that is just being started has it open, too, and with it
        // the lock. An error is the system's, which takes the lock back with the last of these files.
        let _ = self.file.unlock();
        if let Some(held) = held.as_mut() {
            held.remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_was_given_back_is_free_whoever_has_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::acquire(dir.path()).unwrap();
        assert!(matches!(
            DirectoryLock::acquire(dir.path()),
            Err(LockError::Held)
        ));
        // As a child process has it between its start and its own program.
        let child = lock.file.try_clone().unwrap();
        drop(lock);
        let again = DirectoryLock::acquire(dir.path()).unwrap();
        drop((again, child));
    }
}
