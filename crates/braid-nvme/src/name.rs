//! Names of drives, and their exclusive use.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::{Drive, DriveError};

/// Name of a drive, as a program or a user writes it.
///
/// ```
/// use braid_nvme::DriveName;
/// let name: DriveName = "nvme:/dev/ng0n1".parse().unwrap();
/// assert_eq!(name, DriveName::Path("/dev/ng0n1".into()));
/// assert_eq!(name.to_string(), "nvme:/dev/ng0n1");
/// let name: DriveName = "vfio:0000:00:04.0".parse().unwrap();
/// assert_eq!(name, DriveName::Vfio("0000:00:04.0".into()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DriveName {
    /// A file of the system: `nvme:PATH`. The device of a namespace (`/dev/ng0n1`) is opened with
    /// passthrough, a block device (`/dev/nvme0n1`, `/dev/loop0`) or an ordinary file with io_uring.
    Path(PathBuf),
    /// PCI address of a controller that is bound to `vfio-pci`: `vfio:ADDRESS`.
    Vfio(String),
}

impl FromStr for DriveName {
    type Err = Infallible;

    /// Parses a name; a text without a prefix is a path.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.strip_prefix("vfio:") {
            Some(address) => Self::Vfio(address.to_owned()),
            None => Self::Path(text.strip_prefix("nvme:").unwrap_or(text).into()),
        })
    }
}

impl fmt::Display for DriveName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "nvme:{}", path.display()),
            Self::Vfio(address) => write!(f, "vfio:{address}"),
        }
    }
}

/// An opened drive that no other process can open by its name meanwhile.
#[derive(Debug)]
pub struct ClaimedDrive {
    /// The drive.
    pub drive: Arc<dyn Drive>,
    /// Exclusive use of the drive.
    pub claim: DriveClaim,
}

/// Exclusive use of a drive; dropping it, or the end of the process in any way, ends the use.
///
/// An ordinary file is locked (`flock`); a block device is opened with `O_EXCL`, which excludes
/// mounts, too. For passthrough that is the block device of the same namespace. VFIO admits one
/// process by itself.
#[derive(Debug)]
pub struct DriveClaim {
    /// `None` if opening the drive itself excludes others.
    file: Option<std::fs::File>,
}

impl Drop for DriveClaim {
    fn drop(&mut self) {
        // Closing the file would not suffice: a child process that is being started has it open,
        // too. A block device has no such lock, and an error changes nothing.
        let _ = self.file.as_ref().map(std::fs::File::unlock);
    }
}

impl DriveName {
    /// Returns the name with links resolved, the same for all names of one file.
    ///
    /// # Errors
    ///
    /// The system's error, for example that the file does not exist.
    pub fn resolve(&self) -> Result<Self, DriveError> {
        match self {
            Self::Path(path) => {
                let resolved = path.canonicalize();
                let resolved =
                    resolved.map_err(DriveError::system(format!("open drive {self}")))?;
                Ok(Self::Path(resolved))
            }
            Self::Vfio(_) => Ok(self.clone()),
        }
    }

    /// Describes what the system uses the drive for: mounts, swap space, devices that are built on
    /// it, of its partitions, too. Empty if nothing is known.
    pub fn uses(&self) -> Vec<String> {
        #[cfg(uring)]
        if let Self::Path(path) = self {
            let block = by_path::block_device_of(path);
            return crate::usage::of_block_device(block.as_ref().unwrap_or(path));
        }
        Vec::new()
    }

    /// Returns whether the drive has the root file system.
    pub fn has_root(&self) -> bool {
        #[cfg(uring)]
        if let Self::Path(path) = self {
            let block = by_path::block_device_of(path);
            return crate::usage::has_root(block.as_ref().unwrap_or(path));
        }
        false
    }

    /// Opens the drive for exclusive use.
    ///
    /// # Errors
    ///
    /// [`DriveError::Claimed`] if another process, or this one, has opened it by its name;
    /// [`DriveError::InUse`] if the system uses it; [`DriveError::Unsupported`], or the system's
    /// error.
    pub fn open(&self) -> Result<ClaimedDrive, DriveError> {
        match self {
            #[cfg(uring)]
            Self::Path(path) => by_path::open(self, path),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Vfio(address) => {
                let drive = crate::vfio::open(address, crate::vfio::VfioOptions::default());
                let drive = drive.map_err(|error| match error {
                    DriveError::System { errno, .. } if errno == libc::EBUSY => {
                        DriveError::Claimed {
                            what: format!("open drive {self}"),
                        }
                    }
                    error => error,
                })?;
                Ok(ClaimedDrive {
                    drive: Arc::new(drive),
                    claim: DriveClaim { file: None },
                })
            }
            #[cfg(not(all(uring, target_pointer_width = "64")))]
            _ => Err(DriveError::Unsupported {
                what: format!("open drive {self}"),
                reason: "drives are opened by name on 64-bit Linux only".into(),
            }),
        }
    }
}

#[cfg(uring)]
mod by_path {
    use std::fs::{File, OpenOptions, TryLockError};
    use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::{PassthroughDrive, UringDrive, UringOptions};

    pub(super) fn open(name: &DriveName, path: &Path) -> Result<ClaimedDrive, DriveError> {
        let what = || format!("open drive {name}");
        let kind = std::fs::metadata(path).map_err(DriveError::system(what()))?;
        let kind = kind.file_type();
        if kind.is_char_device() {
            let block = block_device_of(path);
            let claim = match &block {
                Some(block) => claim_block_device(block, what())?,
                None => lock(path, what())?,
            };
            let drive = Arc::new(PassthroughDrive::open(path)?);
            return Ok(ClaimedDrive { drive, claim });
        }
        let claim = if kind.is_block_device() {
            claim_block_device(path, what())?
        } else if kind.is_file() {
            lock(path, what())?
        } else {
            return Err(DriveError::Unsupported {
                what: what(),
                reason: "it is neither a block device, nor the device of an NVMe namespace, nor a \
                         file"
                    .into(),
            });
        };
        let options = UringOptions {
            exclusive: false,
            ..UringOptions::default()
        };
        let drive = Arc::new(UringDrive::open(path, options)?);
        Ok(ClaimedDrive { drive, claim })
    }

    /// Returns `/dev/nvme0n1` for `/dev/ng0n1`, if it exists.
    pub(super) fn block_device_of(path: &Path) -> Option<PathBuf> {
        let numbers = path.file_name()?.to_str()?.strip_prefix("ng")?;
        let block = path.with_file_name(format!("nvme{numbers}"));
        block.exists().then_some(block)
    }

    fn claim_block_device(path: &Path, what: String) -> Result<DriveClaim, DriveError> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_EXCL)
            .open(path);
        match opened {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(
                match crate::usage::of_block_device(path).into_iter().next() {
                    Some(by) => DriveError::InUse { what, by },
                    None => DriveError::Claimed { what },
                },
            ),
            opened => Ok(DriveClaim {
                file: Some(opened.map_err(DriveError::system(what))?),
            }),
        }
    }

    fn lock(path: &Path, what: String) -> Result<DriveClaim, DriveError> {
        let file = File::open(path).map_err(DriveError::system(what.clone()))?;
        match file.try_lock() {
            Ok(()) => Ok(DriveClaim { file: Some(file) }),
            Err(TryLockError::WouldBlock) => Err(DriveError::Claimed { what }),
            Err(TryLockError::Error(error)) => Err(DriveError::system(what)(error)),
        }
    }
}

#[cfg(all(test, uring))]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_opened_once_at_a_time() {
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let name = DriveName::Path(file.path().into());
        let first = match name.open() {
            Ok(first) => first,
            // Some file systems have no direct I/O.
            Err(error) => return println!("SKIPPED: {error}"),
        };
        let second = name.open().unwrap_err();
        assert!(matches!(second, DriveError::Claimed { .. }), "{second}");
        // As a child process has it between its start and its own program.
        let child = first.claim.file.as_ref().unwrap().try_clone().unwrap();
        drop(first.claim);
        name.open().unwrap();
        drop(child);
    }

    #[test]
    fn names_of_other_things_are_refused() {
        let refused = |name: &str| name.parse::<DriveName>().unwrap().open().unwrap_err();
        let missing = refused("nvme:./no such file");
        assert!(matches!(
            missing,
            DriveError::System {
                errno: libc::ENOENT,
                ..
            }
        ));
        for other in ["nvme:.", "/dev/null"] {
            let error = refused(other);
            assert!(matches!(error, DriveError::Unsupported { .. }), "{error}");
        }
        let error = refused("vfio:../../../etc");
        assert!(matches!(error, DriveError::Unsupported { .. }), "{error}");
    }
}
