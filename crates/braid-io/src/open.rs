//! Opens a directory as a device, with a lock against other openers.
//!
//! The name of a database on a volume ([`is_volume_name`]) is as good as the path of a directory.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Once};

use braid_pmem::MapAs;
use braid_rt::Process;

use crate::directory::{DEFAULT_FILE_MODE, directory_mode, named, open_regular};
use crate::per_process::PerProcess;
use crate::volume_name::{self, Hold, Refusal, VolumeName, VolumeUse};
use crate::{Device, FileDevice, MemoryDevice, is_volume_name, keep_volume_open, uring};

/// The name of the lock file in a locked directory.
pub const LOCK_FILE_NAME: &str = "LOCK";

/// Way in which a directory is accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceChoice {
    /// The fastest kind that works on this system.
    #[default]
    Auto,
    /// io_uring with direct I/O; Linux only.
    Uring,
    /// Positioned reads and writes; see [`FileDevice`].
    File,
    /// Persistent memory: the directory's files are mapped with direct access (DAX), and a commit
    /// makes no system call. `Unsupported` where the file system offers no direct access.
    Pmem,
    /// Mapped files of an ordinary file system, for programs that are to run on persistent memory.
    /// Durable, and slower than [`DeviceChoice::File`].
    PmemFile,
    /// Mapped files that are treated like persistent memory wherever they are, such as in
    /// `/dev/shm`. For measurements: a loss of power may lose everything.
    PmemEmulated {
        /// Nanoseconds that flushing one cache line takes on top of the instruction.
        line_latency: u32,
    },
    /// Process memory: the directory stays empty, and the data is lost with the process.
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
            "pmem" => Ok(Self::Pmem),
            "pmem-file" => Ok(Self::PmemFile),
            "pmem-emulated" => Ok(Self::PmemEmulated { line_latency: 0 }),
            _ => {
                let latency = name.strip_prefix("pmem-emulated:");
                match latency.and_then(|latency| latency.parse().ok()) {
                    Some(line_latency) => Ok(Self::PmemEmulated { line_latency }),
                    None => Err(format!(
                        "{name:?} is not a device; choose one of auto, uring, file, memory, pmem, \
                         pmem-file, pmem-emulated, or pmem-emulated:NANOSECONDS"
                    )),
                }
            }
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
            Self::Pmem => "pmem",
            Self::PmemFile => "pmem-file",
            Self::PmemEmulated { line_latency: 0 } => "pmem-emulated",
            Self::PmemEmulated { line_latency } => {
                return write!(f, "pmem-emulated:{line_latency}");
            }
        })
    }
}

/// Opens an existing directory. [`DeviceChoice::Auto`] uses io_uring where it is allowed. Otherwise
/// it uses the file device, and says so once on standard error.
///
/// # Errors
///
/// `NotFound`, `NotADirectory`, `Unsupported` if io_uring was requested and is not allowed, or the
/// medium's error.
pub fn open_directory(directory: &Path, choice: DeviceChoice) -> io::Result<Arc<dyn Device>> {
    open_directory_with_mode(directory, choice, DEFAULT_FILE_MODE)
}

/// As [`open_directory`]. On systems with permissions, created files get these, as in `chmod(2)`.
///
/// # Errors
///
/// As [`open_directory`].
pub fn open_directory_with_mode(
    directory: &Path,
    choice: DeviceChoice,
    mode: u32,
) -> io::Result<Arc<dyn Device>> {
    open_directory_on_node(directory, choice, mode, None)
}

/// As [`open_directory_with_mode`]. Files that are mapped grow on a memory node (NUMA), as far as they lie
/// in the machine's memory.
///
/// # Errors
///
/// As [`open_directory`].
pub fn open_directory_on_node(
    directory: &Path,
    choice: DeviceChoice,
    mode: u32,
    node: Option<usize>,
) -> io::Result<Arc<dyn Device>> {
    let open_pmem = |map_as| open_pmem(directory, mode, map_as, node);
    if let Some(name) = VolumeName::of(directory)? {
        return match choice {
            DeviceChoice::Memory => Ok(Arc::new(MemoryDevice::new())),
            DeviceChoice::Auto | DeviceChoice::Uring | DeviceChoice::File => {
                Ok(Arc::new(volume_name::open(name)?))
            }
            _ => {
                let what = "a volume is not persistent memory; choose the device auto";
                Err(io::Error::new(io::ErrorKind::Unsupported, what))
            }
        };
    }
    match choice {
        DeviceChoice::Memory => Ok(Arc::new(MemoryDevice::new())),
        DeviceChoice::File => Ok(Arc::new(FileDevice::with_mode(directory, mode)?)),
        DeviceChoice::Uring => uring::open(directory, mode),
        DeviceChoice::Pmem => open_pmem(MapAs::Dax),
        DeviceChoice::PmemFile => open_pmem(MapAs::File),
        DeviceChoice::PmemEmulated { line_latency } => open_pmem(MapAs::Emulated { line_latency }),
        DeviceChoice::Auto => match uring::open(directory, mode) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                static SAID: Once = Once::new();
                SAID.call_once(|| eprintln!("braid: using plain file access ({error})"));
                Ok(Arc::new(FileDevice::with_mode(directory, mode)?))
            }
            opened => opened,
        },
    }
}

#[cfg(unix)]
fn open_pmem(
    directory: &Path,
    mode: u32,
    map_as: MapAs,
    node: Option<usize>,
) -> io::Result<Arc<dyn Device>> {
    let device = crate::PmemDevice::with_mode(directory, mode, map_as)?;
    Ok(Arc::new(device.on_node(node)))
}

#[cfg(not(unix))]
fn open_pmem(_: &Path, _: u32, _: MapAs, _: Option<usize>) -> io::Result<Arc<dyn Device>> {
    let error = braid_pmem::MapError::NoFiles;
    Err(io::Error::new(io::ErrorKind::Unsupported, error))
}

/// Opens an existing directory for reading only. The directory need not be writable.
///
/// # Errors
///
/// `NotFound`, `NotADirectory`, or the medium's error.
pub fn open_directory_read_only(directory: &Path) -> io::Result<Arc<dyn Device>> {
    if let Some(name) = VolumeName::of(directory)? {
        return Ok(Arc::new(volume_name::open(name)?));
    }
    Ok(Arc::new(FileDevice::read_only(directory)?))
}

/// Creates a directory and its missing parents, all durably: durable contents of a directory are
/// lost with the directory's own name. If the directory exists, its name is made durable, because
/// its creator may have been interrupted before that.
///
/// # Errors
///
/// `NotADirectory`, `AlreadyExists` if it is a file, or the medium's error.
pub fn create_directory(path: &Path) -> io::Result<()> {
    create_directory_with_mode(path, DEFAULT_FILE_MODE)
}

/// As [`create_directory`]; everybody who may read a file with the permissions `mode` may search
/// the created directories.
///
/// # Errors
///
/// As [`create_directory`].
pub fn create_directory_with_mode(path: &Path, mode: u32) -> io::Result<()> {
    if is_volume_name(path) {
        // A name is there as soon as it has files.
        return keep_volume_open(path).map(drop);
    }
    let above = match path.parent() {
        None => return Ok(()),
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    };
    if !path.try_exists()? {
        // Including the lowest one that exists: see above.
        create_directory_with_mode(above, mode)?;
        match make_directory(path, mode) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
            created => created.map_err(|error| named("create", path, error))?,
        }
    }
    match fs::File::open(above).and_then(|directory| directory.sync_all()) {
        // Without permission to open the directory, this is all that can be done.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced.map_err(|error| named("sync", above, error)),
    }
}

#[cfg(unix)]
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

    // First only for the owner, then with the final permissions, independent of the umask.
    let owner = directory_mode(DEFAULT_FILE_MODE);
    fs::DirBuilder::new().mode(owner).create(path)?;
    match directory_mode(mode) {
        mode if mode == owner => Ok(()),
        mode => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
    }
}

#[cfg(not(unix))]
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    let _ = directory_mode(mode);
    fs::create_dir(path)
}

/// Opens the lock file of a directory, and creates it if it is missing.
fn open_lock(path: &Path, mode: u32) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    let _ = mode;
    open_regular(&mut options, path, false).map_err(|error| named("open", path, error))
}

/// Returns the process that holds the lock of a directory, if the system reports it, as Linux does.
pub fn lock_holder(directory: &Path) -> Option<u32> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::MetadataExt;
        let file = fs::metadata(directory.join(LOCK_FILE_NAME)).ok()?;
        let locks = fs::read_to_string("/proc/locks").ok()?;
        holder(&locks, file.ino())
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = directory;
        None
    }
}

/// Returns the only process that `/proc/locks` names for an inode. Devices are ignored, because on
/// some file systems they have other numbers there.
#[cfg(target_os = "linux")]
fn holder(locks: &str, inode: u64) -> Option<u32> {
    let mut holders = locks.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, process, file, ..] = fields[..] else {
            return None;
        };
        let is_it = file.rsplit(':').next()?.parse() == Ok(inode);
        is_it.then(|| process.parse().ok().filter(|&process| process > 0))?
    });
    let first = holders.next()?;
    holders.all(|other| other == first).then_some(first)
}

/// Why a directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// This process or another one has the directory locked.
    #[error("cannot lock the directory: another process or handle has it locked")]
    Held,
    /// The lock file cannot be created or locked.
    #[error("cannot lock the directory: {0}")]
    Io(#[from] io::Error),
}

/// Directories that this process has locked, and how many openers share each (0: exclusive),
/// because on some systems an advisory lock does not exclude other openers in the same process.
static HELD_HERE: PerProcess<HashMap<PathBuf, usize>> = PerProcess::new();

/// A lock on a directory against other processes and other openers in this one. Dropping it
/// releases the lock; the system releases it when the process ends in any way.
///
/// A child made by `fork` shares the open file, and so the lock: dropping its copy leaves the lock
/// to the parent. If the parent ends without releasing the lock, the system keeps it until such a
/// child has ended or has called `exec`.
#[derive(Debug)]
pub struct DirectoryLock {
    path: PathBuf,
    /// `None` if there was no file to lock.
    file: Option<fs::File>,
    /// The lock itself, if it is on a name on a volume.
    volume: Option<VolumeUse>,
    process: Process,
}

impl DirectoryLock {
    /// Locks an existing directory exclusively.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub fn acquire(directory: &Path) -> Result<Self, LockError> {
        Self::acquire_with_mode(directory, DEFAULT_FILE_MODE)
    }

    /// As [`DirectoryLock::acquire`]; if the lock file is created, it gets these permissions,
    /// limited by the umask.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub fn acquire_with_mode(directory: &Path, mode: u32) -> Result<Self, LockError> {
        if let Some(name) = VolumeName::of(directory)? {
            return Self::on_volume(name, Hold::Exclusive);
        }
        let path = directory.canonicalize()?;
        let mut held = HELD_HERE.lock();
        if held.contains_key(&path) {
            return Err(LockError::Held);
        }
        let file = open_lock(&path.join(LOCK_FILE_NAME), mode)?;
        locked(file.try_lock())?;
        held.insert(path.clone(), 0);
        Ok(Self {
            path,
            file: Some(file),
            volume: None,
            process: Process::current(),
        })
    }

    /// Locks an existing directory together with other shared locks, and writes nothing. If there
    /// is no lock file, which only a copied directory lacks, other processes are not excluded.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub fn acquire_shared(directory: &Path) -> Result<Self, LockError> {
        if let Some(name) = VolumeName::of(directory)? {
            return Self::on_volume(name, Hold::Shared);
        }
        let path = directory.canonicalize()?;
        let mut held = HELD_HERE.lock();
        if held.get(&path) == Some(&0) {
            return Err(LockError::Held);
        }
        let lock = path.join(LOCK_FILE_NAME);
        let file = match open_regular(fs::OpenOptions::new().read(true), &lock, false) {
            Ok(file) => {
                locked(file.try_lock_shared())?;
                Some(file)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(named("open", &lock, error).into()),
        };
        *held.entry(path.clone()).or_default() += 1;
        Ok(Self {
            path,
            file,
            volume: None,
            process: Process::current(),
        })
    }

    fn on_volume(name: VolumeName, hold: Hold) -> Result<Self, LockError> {
        let begun = VolumeUse::begin(name, hold).map_err(|refusal| match refusal {
            Refusal::Held => LockError::Held,
            Refusal::Other(error) => LockError::Io(error),
        });
        Ok(Self {
            path: PathBuf::new(),
            file: None,
            volume: Some(begun?.0),
            process: Process::current(),
        })
    }
}

fn locked(outcome: Result<(), fs::TryLockError>) -> Result<(), LockError> {
    match outcome {
        Ok(()) => Ok(()),
        Err(fs::TryLockError::WouldBlock) => Err(LockError::Held),
        Err(fs::TryLockError::Error(error)) => Err(error.into()),
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        if !self.process.is_current() && !braid_rt::mutant!("unlock_in_a_child") {
            return;
        }
        if self.volume.is_some() {
            return;
        }
        let mut held = HELD_HERE.lock();
        // Closing the file would not suffice: a child process that is being started has it open,
        // too, and thereby the lock. An error is harmless, because the system releases the lock
        // with the last of these files.
        let _ = self.file.as_ref().map(fs::File::unlock);
        if let Some(sharers) = held.get_mut(&self.path) {
            *sharers = sharers.saturating_sub(1);
            if *sharers == 0 {
                held.remove(&self.path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_holder_of_a_lock_is_named() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 00:1b:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 22 fd:00:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 23 fd:00:77 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 33 fd:00:88 0 EOF\n\
                     4: FLOCK  ADVISORY  READ 34 fd:00:88 0 EOF\n";
        assert_eq!(holder(locks, 77), Some(22));
        assert_eq!(holder(locks, 88), None, "two share it");
        assert_eq!(holder(locks, 99), None);
        let dir = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::acquire(dir.path()).unwrap();
        assert_eq!(lock_holder(dir.path()), Some(std::process::id()));
        drop(lock);
        assert_eq!(lock_holder(dir.path()), None);
    }

    #[test]
    fn a_released_lock_is_free_although_its_file_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::acquire(dir.path()).unwrap();
        assert!(matches!(
            DirectoryLock::acquire(dir.path()),
            Err(LockError::Held)
        ));
        // As a child process has it between its start and its own program.
        let child = lock.file.as_ref().unwrap().try_clone().unwrap();
        drop(lock);
        let again = DirectoryLock::acquire(dir.path()).unwrap();
        drop((again, child));
    }

    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "Miri has no fork")]
    fn a_child_made_by_fork_leaves_the_lock_to_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::acquire(dir.path()).unwrap();
        let mut status = 0;
        // SAFETY: the child drops its copy of the lock, which does not wait, and exits.
        match unsafe { libc::fork() } {
            0 => {
                drop(lock);
                // SAFETY: as above.
                unsafe { libc::_exit(0) }
            }
            // SAFETY: `status` is a local variable, and the child was created here.
            child => assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child),
        }
        assert_eq!(status, 0);
        let file = fs::File::open(dir.path().join(LOCK_FILE_NAME)).unwrap();
        assert!(matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)));
        drop(lock);
        file.try_lock().unwrap();
    }

    #[test]
    fn readers_share_a_directory_and_keep_writers_out() {
        let dir = tempfile::tempdir().unwrap();
        let is_held = |lock| matches!(lock, Err(LockError::Held));
        let unlockable = DirectoryLock::acquire_shared(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(is_held(DirectoryLock::acquire(dir.path())));
        drop(unlockable);
        drop(DirectoryLock::acquire(dir.path()).unwrap());
        let first = DirectoryLock::acquire_shared(dir.path()).unwrap();
        let second = DirectoryLock::acquire_shared(dir.path()).unwrap();
        drop(first);
        assert!(is_held(DirectoryLock::acquire(dir.path())));
        drop(second);
        let writer = DirectoryLock::acquire(dir.path()).unwrap();
        assert!(is_held(DirectoryLock::acquire_shared(dir.path())));
        drop(writer);
        drop(DirectoryLock::acquire_shared(dir.path()).unwrap());
    }
}
