//! Names of databases on a volume, and the volumes that this process has open.
//!
//! `nvme:PATH/NAME` is a name on the volume of the drive or file `PATH`, `vfio:ADDRESS/NAME` one on
//! the volume of a controller that is bound to `vfio-pci`. Databases of one process on one volume
//! share the opened drive. Another process cannot open it meanwhile.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_nvme::{Blocking, DriveClaim, DriveError, DriveName, Volume, VolumeError};
use braid_rt::Process;

use crate::per_process::PerProcess;
use crate::volume::{Keeper, VolumeDevice, check_name};

/// The prefixes of names on volumes.
const PREFIXES: [&str; 2] = ["nvme:", "vfio:"];

/// Name of a database on a volume; see the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeName {
    drive: DriveName,
    name: String,
}

/// Returns whether a path is the name of a database on a volume, `nvme:PATH/NAME` or
/// `vfio:ADDRESS/NAME`, instead of the path of a directory. A directory whose path begins with
/// `nvme:` or `vfio:` can be written as `./nvme:…`.
pub fn is_volume_name(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    PREFIXES
        .iter()
        .any(|prefix| bytes.starts_with(prefix.as_bytes()))
}

impl VolumeName {
    /// Parses a path; `None` if it is the path of a directory.
    pub(crate) fn of(path: &Path) -> io::Result<Option<Self>> {
        if !is_volume_name(path) {
            return Ok(None);
        }
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        let text = path
            .to_str()
            .ok_or_else(|| invalid("the name is not valid UTF-8".to_owned()))?;
        let (drive, name) = text
            .rsplit_once('/')
            .filter(|(drive, _)| !PREFIXES.contains(drive))
            .ok_or_else(|| {
                invalid(format!(
                    "{text:?} names no database on a volume: write nvme:DRIVE/NAME or \
                     vfio:ADDRESS/NAME"
                ))
            })?;
        check_name(name)?;
        let Ok(drive) = drive.parse();
        Ok(Some(Self {
            drive,
            name: name.into(),
        }))
    }

    fn resolve(self) -> Result<Self, DriveError> {
        Ok(Self {
            drive: self.drive.resolve()?,
            name: self.name,
        })
    }

    fn path(&self) -> PathBuf {
        format!("{}/{}", self.drive, self.name).into()
    }
}

/// How the names of a volume are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Not at all: only the drive stays open.
    Open,
    /// Together with other shared locks.
    Shared,
    /// By nobody else.
    Exclusive,
}

struct Opened {
    volume: Volume,
    _claim: DriveClaim,
    /// Number of [`VolumeUse`]s.
    users: usize,
    /// The locked names, and how many share each (0: exclusive).
    names: HashMap<String, usize>,
}

static OPENED: PerProcess<HashMap<DriveName, Opened>> = PerProcess::new();

/// Keeps a volume open, and perhaps a name on it locked, until it is dropped. The last one of a
/// volume ends this process's exclusive use of the drive.
#[derive(Debug)]
pub struct VolumeUse {
    name: VolumeName,
    hold: Hold,
    process: Process,
}

/// Why a name on a volume cannot be used.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The name, or the drive, is in use.
    Held,
    Other(io::Error),
}

impl From<VolumeError> for Refusal {
    fn from(error: VolumeError) -> Self {
        match error {
            VolumeError::Drive(DriveError::Claimed { .. }) => Self::Held,
            error => Self::Other(error.into()),
        }
    }
}

impl From<DriveError> for Refusal {
    fn from(error: DriveError) -> Self {
        VolumeError::Drive(error).into()
    }
}

impl VolumeUse {
    /// Opens the volume of a name, unless this process has it open already.
    pub(crate) fn begin(name: VolumeName, hold: Hold) -> Result<(Self, Volume), Refusal> {
        let name = name.resolve()?;
        // Other openings wait meanwhile: two threads must not open one drive.
        let mut all = OPENED.lock();
        if !all.contains_key(&name.drive) {
            let opened = name.drive.open()?;
            let volume = Volume::open(Blocking::new(opened.drive))?;
            all.insert(
                name.drive.clone(),
                Opened {
                    volume,
                    _claim: opened.claim,
                    users: 0,
                    names: HashMap::new(),
                },
            );
        }
        let opened = all.get_mut(&name.drive).expect("inserted above");
        match (hold, opened.names.get(&name.name)) {
            (Hold::Shared, Some(0)) | (Hold::Exclusive, Some(_)) => {
                // A refusal leaves nothing open: the holder of the name keeps the volume open.
                return Err(Refusal::Held);
            }
            (Hold::Shared, _) => *opened.names.entry(name.name.clone()).or_default() += 1,
            (Hold::Exclusive, None) => drop(opened.names.insert(name.name.clone(), 0)),
            (Hold::Open, _) => {}
        }
        opened.users += 1;
        let volume = opened.volume.clone();
        let process = Process::current();
        Ok((
            Self {
                name,
                hold,
                process,
            },
            volume,
        ))
    }
}

impl Drop for VolumeUse {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let mut all = OPENED.lock();
        let Some(opened) = all.get_mut(&self.name.drive) else {
            return;
        };
        if self.hold != Hold::Open
            && let Some(sharers) = opened.names.get_mut(&self.name.name)
        {
            *sharers = sharers.saturating_sub(1);
            if *sharers == 0 {
                opened.names.remove(&self.name.name);
            }
        }
        opened.users -= 1;
        if opened.users == 0 {
            all.remove(&self.name.drive);
        }
    }
}

/// Reason why a volume cannot be opened, apart from errors of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeFault {
    /// Another process, or another handle, has the drive.
    Claimed,
    /// The drive contains no volume.
    NotAVolume,
    /// A newer version wrote the volume.
    Newer,
    /// The volume is damaged, or its drive has become smaller.
    Damaged,
}

/// Returns the fault in an error of opening a volume, if there is one.
pub fn volume_fault(error: &io::Error) -> Option<VolumeFault> {
    let inner = error.get_ref()?;
    if let Some(DriveError::Claimed { .. }) = inner.downcast_ref() {
        return Some(VolumeFault::Claimed);
    }
    match inner.downcast_ref()? {
        VolumeError::NotAVolume { .. } => Some(VolumeFault::NotAVolume),
        VolumeError::Newer { .. } => Some(VolumeFault::Newer),
        VolumeError::Damaged { .. } | VolumeError::Smaller { .. } => Some(VolumeFault::Damaged),
        _ => None,
    }
}

fn plain(refusal: Refusal, path: &Path) -> io::Error {
    match refusal {
        Refusal::Other(error) => error,
        Refusal::Held => DriveError::Claimed {
            what: format!("open {}", path.display()),
        }
        .into(),
    }
}

/// Opens the device of a name. It keeps the volume open, unless the name is locked: then the lock
/// does, so that the drive is free after the lock, whatever handles still exist. (Except over VFIO,
/// where each handle keeps the controller's registers mapped.)
pub(crate) fn open(name: VolumeName) -> io::Result<VolumeDevice> {
    let path = name.path();
    let (keeps, volume) =
        VolumeUse::begin(name, Hold::Open).map_err(|refusal| plain(refusal, &path))?;
    let (drive, name) = (keeps.name.drive.clone(), keeps.name.name.clone());
    let is_locked = OPENED
        .lock()
        .get(&drive)
        .is_some_and(|opened| opened.names.contains_key(&name));
    let keeps = (!is_locked).then(|| Arc::new(keeps) as Keeper);
    Ok(VolumeDevice::of_checked(volume, &name, path, keeps))
}

/// If the path is a name on a volume, opens the volume and keeps it open, so that what follows
/// does not open it again and again.
///
/// # Errors
///
/// The volume's error: the inner error of the [`io::Error`] is a [`VolumeError`].
pub fn keep_volume_open(path: &Path) -> io::Result<Option<VolumeUse>> {
    let Some(name) = VolumeName::of(path)? else {
        return Ok(None);
    };
    let begun = VolumeUse::begin(name, Hold::Open);
    Ok(Some(begun.map_err(|refusal| plain(refusal, path))?.0))
}

/// Applies `with` to the drive of a name on a volume that this process has open; `None` for a
/// directory, and for a volume that is not open.
fn with_drive<T>(path: &Path, with: impl FnOnce(&Blocking) -> T) -> io::Result<Option<T>> {
    let Some(name) = VolumeName::of(path)? else {
        return Ok(None);
    };
    let drive = name.resolve()?.drive;
    let all = OPENED.lock();
    Ok(all.get(&drive).map(|opened| with(opened.volume.drive())))
}

/// Returns the microseconds for which a thread polls the drive of a name on a volume before it
/// sleeps; `None` for a directory, and for a volume that this process does not have open.
///
/// # Errors
///
/// The system's error, for example `NotFound`.
pub fn volume_idle_us(path: &Path) -> io::Result<Option<u32>> {
    with_drive(path, Blocking::idle_us)
}

/// Sets the microseconds for which a thread polls the drive of a name on a volume before it sleeps,
/// for all databases on the volume. Has no effect on a directory, and on a volume that this process
/// does not have open.
///
/// # Errors
///
/// The system's error, for example `NotFound`.
pub fn set_volume_idle_us(path: &Path, idle_us: u32) -> io::Result<()> {
    with_drive(path, |drive| drive.set_idle_us(idle_us)).map(drop)
}

/// Returns the names of the files in a directory, or of a database on a volume; none if the
/// directory is missing.
///
/// # Errors
///
/// The medium's error.
pub fn list_directory(path: &Path) -> io::Result<Vec<String>> {
    if let Some(name) = VolumeName::of(path)? {
        let entries = crate::Device::list(&open(name)?)?;
        return Ok(entries.into_iter().map(|entry| entry.name).collect());
    }
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

/// Returns whether a directory, or a database on a volume, has a file. A missing directory has
/// none.
///
/// # Errors
///
/// The medium's error.
pub fn has_file(path: &Path, file: &str) -> io::Result<bool> {
    match VolumeName::of(path)? {
        Some(name) => {
            let full = format!("{}/{file}", name.name);
            Ok(open(name)?.volume().open_file(&full).is_ok())
        }
        None => path.join(file).try_exists(),
    }
}

/// Returns the path of a directory, or the name of a database on a volume, with links resolved.
///
/// # Errors
///
/// The system's error, for example `NotFound`.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    match VolumeName::of(path)? {
        Some(name) => Ok(name.resolve()?.path()),
        None => path.canonicalize(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        let of = |text: &str| VolumeName::of(Path::new(text));
        assert_eq!(of("/dev/nvme0n1/a").unwrap(), None);
        assert_eq!(of("./nvme:x/a").unwrap(), None);
        let name = of("nvme:/dev/ng0n1/library").unwrap().unwrap();
        assert_eq!(name.drive, DriveName::Path("/dev/ng0n1".into()));
        assert_eq!(name.name, "library");
        assert_eq!(name.path(), Path::new("nvme:/dev/ng0n1/library"));
        let name = of("vfio:0000:00:04.0/a b").unwrap().unwrap();
        assert_eq!(name.drive, DriveName::Vfio("0000:00:04.0".into()));
        for wrong in [
            "nvme:",
            "nvme:/",
            "nvme:a",
            "nvme:/dev/x/",
            "vfio:/x",
            "vfio:0",
        ] {
            let error = of(wrong).unwrap_err();
            assert_eq!(
                error.kind(),
                io::ErrorKind::InvalidInput,
                "{wrong}: {error}"
            );
        }
    }
}
