//! A directory of the file system, and operations on its names.
//!
//! On Unix, names are looked up in the opened directory, even if its path changes, symbolic links
//! are not followed, and only regular files are opened. Files are created with the requested
//! permissions, and only if their name is not taken. Every error names the operation and the file.

use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::Entry;

/// Default permissions of created files: only their owner may read and write them.
pub const DEFAULT_FILE_MODE: u32 = 0o600;

/// Returns the permissions of a directory whose files have the permissions `mode`: everybody who
/// may read the files may search it.
pub(crate) fn directory_mode(mode: u32) -> u32 {
    mode | (mode & 0o444) >> 2
}

/// An error of the system, with the operation and the file.
#[derive(Debug)]
struct Named {
    what: &'static str,
    path: PathBuf,
    error: io::Error,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, path, error } = self;
        write!(f, "cannot {what} {}: {error}", path.display())
    }
}

impl std::error::Error for Named {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Adds the operation and the file to an error; its kind stays the same.
pub(crate) fn named(what: &'static str, path: &Path, error: io::Error) -> io::Error {
    let (kind, path) = (error.kind(), path.to_owned());
    io::Error::new(kind, Named { what, path, error })
}

/// Creates a file with these permissions, as in `chmod(2)`, for writing. First removes an existing
/// file of this name, without following a symbolic link.
///
/// # Errors
///
/// The system's error.
pub fn create_file(path: &Path, mode: u32) -> io::Result<fs::File> {
    let not_a_file = || io::Error::from(io::ErrorKind::InvalidInput);
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(not_a_file)?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = Directory::open(directory)?;
    match directory.create_file(name, mode, false) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            directory.remove(name)?;
            directory.create_file(name, mode, false)
        }
        created => created,
    }
}

/// Starts to write a range of a file from the system's cache to the medium, without waiting. Makes
/// nothing durable: [`fs::File::sync_data`] does, and then has less to write. Does nothing on systems
/// without such a request.
///
/// # Errors
///
/// The system's error.
pub fn start_write_back(file: &fs::File, range: Range<u64>) -> io::Result<()> {
    write_back::start(file, range)
}

/// Waits until the medium has received what [`start_write_back`] started.
///
/// # Errors
///
/// As that function; also those of the writes.
pub fn finish_write_back(file: &fs::File, range: Range<u64>) -> io::Result<()> {
    write_back::finish(file, range)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod write_back {
    use std::fs;
    use std::io;
    use std::ops::Range;
    use std::os::fd::AsRawFd;

    pub(super) fn start(file: &fs::File, range: Range<u64>) -> io::Result<()> {
        request(file, range, libc::SYNC_FILE_RANGE_WRITE)
    }

    pub(super) fn finish(file: &fs::File, range: Range<u64>) -> io::Result<()> {
        request(file, range, libc::SYNC_FILE_RANGE_WAIT_BEFORE)
    }

    fn request(file: &fs::File, range: Range<u64>, flags: libc::c_uint) -> io::Result<()> {
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let start = libc::off64_t::try_from(range.start).map_err(invalid)?;
        let len = range.end.saturating_sub(range.start);
        let len = libc::off64_t::try_from(len).map_err(invalid)?;
        // A length of 0 would mean everything up to the end of the file.
        if len == 0 {
            return Ok(());
        }
        loop {
            // SAFETY: the call accesses no memory of the process, and the file is open.
            if unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, flags) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // A pipe, or a system that lacks the call: the request is only a hint.
                Some(libc::ESPIPE | libc::ENOSYS | libc::EINVAL) => return Ok(()),
                _ => return Err(error),
            }
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod write_back {
    use std::fs;
    use std::io;
    use std::ops::Range;

    pub(super) fn start(_file: &fs::File, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn finish(_file: &fs::File, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }
}

/// Opens a regular file for reading, through symbolic links. Refuses a FIFO or a device instead of
/// waiting for it.
///
/// # Errors
///
/// `InvalidInput` if the file is not regular, or the system's error.
pub fn open_input(path: &Path) -> io::Result<fs::File> {
    open_regular(fs::OpenOptions::new().read(true), path, true)
}

/// Opens a file, which must be a regular one, without waiting for the other end of a FIFO.
pub(crate) fn open_regular(
    options: &mut fs::OpenOptions,
    path: &Path,
    follow: bool,
) -> io::Result<fs::File> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;

        let mut flags = rustix::fs::OFlags::empty();
        flags.set(rustix::fs::OFlags::NOFOLLOW, !follow);
        // Miri knows no FIFO, and not the flag.
        flags.set(rustix::fs::OFlags::NONBLOCK, !cfg!(miri));
        options.custom_flags(flags.bits().cast_signed());
    }
    let _ = follow;
    let file = options.open(path)?;
    check_regular(&file)?;
    Ok(file)
}

/// Refuses an opened FIFO, device or directory.
fn check_regular(file: &fs::File) -> io::Result<()> {
    if file.metadata()?.is_file() {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "it is not a regular file; move it away",
    ))
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    #[cfg(unix)]
    handle: fs::File,
}

impl Directory {
    /// Returns the path of a file in the directory.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn checked(name: &str) -> io::Result<&str> {
        let has_separator = name.contains(['/', '\0']) || name.contains(std::path::is_separator);
        if name.is_empty() || has_separator || name == "." || name == ".." {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the name is not a plain file name",
            ));
        }
        Ok(name)
    }

    fn named(&self, what: &'static str, name: &str, error: impl Into<io::Error>) -> io::Error {
        named(what, &self.path_of(name), error.into())
    }
}

#[cfg(unix)]
mod system {
    use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RawMode};
    use rustix::io::retry_on_intr;

    use super::*;

    fn direct_flag(direct: bool) -> OFlags {
        #[cfg(target_os = "linux")]
        if direct {
            return OFlags::DIRECT;
        }
        let _ = direct;
        OFlags::empty()
    }

    impl Directory {
        pub(crate) fn open(path: &Path) -> io::Result<Self> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let handle = retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()));
            let handle = handle.map_err(|error| named("open", path, error.into()))?;
            Ok(Self {
                path: path.to_owned(),
                handle: handle.into(),
            })
        }

        pub(crate) fn open_file(
            &self,
            name: &str,
            read_only: bool,
            direct: bool,
        ) -> io::Result<fs::File> {
            let access = if read_only {
                OFlags::RDONLY
            } else {
                OFlags::RDWR
            };
            let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | direct_flag(direct);
            let name = Self::checked(name)?;
            // Without the flag, the open would wait for the other end of a FIFO.
            let open = || {
                let flags = flags | OFlags::NONBLOCK;
                rustix::fs::openat(&self.handle, name, flags, Mode::empty())
            };
            retry_on_intr(open)
                .map_err(io::Error::from)
                .and_then(|file| {
                    let file = file.into();
                    check_regular(&file)?;
                    // io_uring fails operations on a file with the flag that would have to wait.
                    rustix::fs::fcntl_setfl(&file, flags)?;
                    Ok(file)
                })
                .map_err(|error| self.named("open", name, error))
        }

        pub(crate) fn create_file(
            &self,
            name: &str,
            mode: u32,
            direct: bool,
        ) -> io::Result<fs::File> {
            let new = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let flags = OFlags::RDWR | new | OFlags::CLOEXEC | direct_flag(direct);
            let name = Self::checked(name)?;
            // First only for the owner, then with the final permissions, independent of the umask.
            let owner = Mode::from_raw_mode(DEFAULT_FILE_MODE as RawMode);
            let create = || rustix::fs::openat(&self.handle, name, flags, owner);
            let created = retry_on_intr(create).and_then(|file| {
                if mode != DEFAULT_FILE_MODE {
                    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode as RawMode))?;
                }
                Ok(file.into())
            });
            created.map_err(|error| self.named("create", name, error))
        }

        pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
            let name = Self::checked(name)?;
            rustix::fs::unlinkat(&self.handle, name, AtFlags::empty())
                .map_err(|error| self.named("remove", name, error))
        }

        pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            let (from, to) = (Self::checked(from)?, Self::checked(to)?);
            rustix::fs::renameat(&self.handle, from, &self.handle, to)
                .map_err(|error| self.named("rename", from, error))
        }

        pub(crate) fn list(&self) -> io::Result<Vec<Entry>> {
            let failed = |error: rustix::io::Errno| named("list", &self.path, error.into());
            let mut entries = Vec::new();
            for entry in Dir::read_from(&self.handle).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let Ok(name) = entry.file_name().to_str() else {
                    continue;
                };
                let found = rustix::fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW);
                let found = match found {
                    // Removed meanwhile by another process.
                    Err(rustix::io::Errno::NOENT) => continue,
                    found => found.map_err(|error| self.named("inspect", name, error))?,
                };
                if FileType::from_raw_mode(found.st_mode).is_file() {
                    entries.push(Entry {
                        name: name.to_owned(),
                        len: u64::try_from(found.st_size).unwrap_or(0),
                    });
                }
            }
            entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            Ok(entries)
        }

        pub(crate) fn sync(&self) -> io::Result<()> {
            let synced = self.handle.sync_all();
            synced.map_err(|error| named("sync", &self.path, error))
        }
    }
}

#[cfg(not(unix))]
mod system {
    use super::*;

    impl Directory {
        pub(crate) fn open(path: &Path) -> io::Result<Self> {
            let directory = Self {
                path: path.to_owned(),
            };
            directory.sync()?;
            Ok(directory)
        }

        pub(crate) fn open_file(
            &self,
            name: &str,
            read_only: bool,
            _: bool,
        ) -> io::Result<fs::File> {
            let mut options = fs::OpenOptions::new();
            let options = options.read(true).write(!read_only);
            let opened = options.open(self.path_of(Self::checked(name)?));
            opened.map_err(|error| self.named("open", name, error))
        }

        pub(crate) fn create_file(&self, name: &str, _: u32, _: bool) -> io::Result<fs::File> {
            let mut options = fs::OpenOptions::new();
            let options = options.read(true).write(true).create_new(true);
            let created = options.open(self.path_of(Self::checked(name)?));
            created.map_err(|error| self.named("create", name, error))
        }

        pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
            let removed = fs::remove_file(self.path_of(Self::checked(name)?));
            removed.map_err(|error| self.named("remove", name, error))
        }

        pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            let to = self.path_of(Self::checked(to)?);
            let renamed = fs::rename(self.path_of(Self::checked(from)?), to);
            renamed.map_err(|error| self.named("rename", from, error))
        }

        pub(crate) fn list(&self) -> io::Result<Vec<Entry>> {
            let failed = |error| named("list", &self.path, error);
            let mut entries = Vec::new();
            for entry in fs::read_dir(&self.path).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let metadata = entry.metadata().map_err(failed)?;
                if let (true, Ok(name)) = (metadata.is_file(), entry.file_name().into_string()) {
                    entries.push(Entry {
                        name,
                        len: metadata.len(),
                    });
                }
            }
            entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            Ok(entries)
        }

        /// The journal of the file system makes names durable; no call waits for it here.
        pub(crate) fn sync(&self) -> io::Result<()> {
            let is_directory = fs::metadata(&self.path).map(|found| found.is_dir());
            match is_directory.map_err(|error| named("inspect", &self.path, error))? {
                true => Ok(()),
                false => Err(io::ErrorKind::NotADirectory.into()),
            }
        }
    }
}
