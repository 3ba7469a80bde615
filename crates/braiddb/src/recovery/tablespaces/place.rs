//! The directories and devices of tablespaces: locking them, and the note that says whose they are.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{
    Device, DeviceChoice, DirectoryLock, Gate, LOCK_FILE_NAME, LockError, OverlayDevice,
};

use super::super::DATA_FILE;
use super::super::contents::sync_names;
use super::super::log_directory::Note;
use super::{Listed, fault};
use crate::error::{Error, Result, TablespaceError};
use crate::format::note;
use crate::format::space::ListedSpace;
use crate::options::{Builder, LogPlace, SpacePlace};
use crate::services::Instance;

/// The note in a tablespace's directory: the tablespace's identity and the database's directory.
pub(crate) const OWNER_FILE: &str = "TABLESPACE-OWNER";

const OWNER_MAGIC: [u8; 8] = *b"BRAIDTO\x01";

/// Most bytes of a directory's name in a note.
const PATH_BYTES_MAX: usize = 4000;

/// A directory or device of a tablespace, opened.
pub(super) struct Attached {
    pub(super) device: Arc<dyn Device>,
    /// The device without a view that keeps changes in memory.
    pub(super) base: Arc<dyn Device>,
    pub(super) directory: Option<PathBuf>,
    pub(super) access: DeviceChoice,
    pub(super) lock: Option<DirectoryLock>,
}

/// Whether the caller of the opening names the place of a tablespace.
fn named<'a>(entry: &ListedSpace, options: &'a Builder) -> Option<&'a SpacePlace> {
    let mut places = options.tablespaces.iter().rev();
    let found = places.find(|(name, _)| *name == entry.name);
    found.map(|(_, place)| place)
}

/// Opens the directory or the device of a tablespace. `before` were opened before it. A reader whose
/// state `is_pinned` does not lock the directory.
pub(super) fn attach_listed(
    gate: &Gate,
    entry: &ListedSpace,
    options: &Builder,
    before: (&[Listed], bool),
) -> Result<Attached> {
    match named(entry, options) {
        None if entry.directory.as_os_str().is_empty() => Err(fault(missing(
            entry,
            "it is on a device of the caller; open the database with tablespace_device",
        ))),
        None => attach(gate, entry, &entry.directory, options, before),
        Some(SpacePlace::Directory(path)) => attach(gate, entry, path, options, before),
        Some(SpacePlace::Device(device)) => Ok(Attached {
            device: gate.device(view_if(options.read_only, device.clone())?),
            base: gate.device(device.clone()),
            directory: None,
            access: entry.access,
            lock: None,
        }),
    }
}

/// Returns the device itself, or, for reading only, a view of it that keeps changes in memory.
fn view_if(read_only: bool, device: Arc<dyn Device>) -> Result<Arc<dyn Device>> {
    if !read_only {
        return Ok(device);
    }
    let view = OverlayDevice::new(device);
    let view = view.map_err(|e| Error::io("cannot list the files of a tablespace", e))?;
    Ok(Arc::new(view))
}

/// Locks and opens the directory of a tablespace.
fn attach(
    gate: &Gate,
    entry: &ListedSpace,
    path: &Path,
    options: &Builder,
    (before, is_pinned): (&[Listed], bool),
) -> Result<Attached> {
    let directory = braid_io::resolve(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => fault(TablespaceError::Missing {
            name: entry.name.clone(),
            path: path.to_owned(),
            reason:
                "the directory does not exist; mount its disk, or name the present directory with \
                     tablespace_directory"
                    .into(),
        }),
        _ => Error::io(format!("cannot open {}", path.display()), error),
    })?;
    let others = before.iter().filter_map(|listed| {
        let space = &listed.opened.as_ref().ok()?.space;
        Some((space.name.as_str(), space.directory.as_deref()?))
    });
    if let Some(owner) = occupant(&directory, options, others) {
        let (name, path) = (entry.name.clone(), directory);
        let reason = format!("{owner} is there; name its own directory with tablespace_directory");
        return Err(fault(TablespaceError::Foreign { name, path, reason }));
    }
    if options.read_only {
        open_shared(gate, directory, entry, is_pinned)
    } else {
        open_locked(gate, directory, entry.access, options.file_mode)
    }
}

/// Returns what already lies in a directory: a part of this database.
fn occupant<'a>(
    directory: &Path,
    options: &Builder,
    spaces: impl IntoIterator<Item = (&'a str, &'a Path)>,
) -> Option<String> {
    if options.directory.as_deref() == Some(directory) {
        return Some("the database itself".into());
    }
    if options.log_place.as_ref().map(|log| &*log.directory) == Some(directory) {
        return Some("the log".into());
    }
    let mut spaces = spaces.into_iter();
    let (name, _) = spaces.find(|(_, other)| *other == directory)?;
    Some(format!("tablespace {name:?}"))
}

fn open_locked(
    gate: &Gate,
    directory: PathBuf,
    access: DeviceChoice,
    mode: u32,
) -> Result<Attached> {
    let lock = DirectoryLock::acquire_with_mode(&directory, mode);
    let lock = lock.map_err(|error| locking(&directory, error))?;
    let device = braid_io::open_directory_with_mode(&directory, access, mode);
    let device =
        device.map_err(|e| Error::io(format!("cannot open {}", directory.display()), e))?;
    let device = gate.device(device);
    Ok(Attached {
        base: device.clone(),
        device,
        directory: Some(directory),
        access,
        lock: Some(lock),
    })
}

/// As [`open_locked`], for reading only: changes no file, and excludes writers, which lock the
/// directory, unless pins protect the state from them.
fn open_shared(
    gate: &Gate,
    directory: PathBuf,
    entry: &ListedSpace,
    is_pinned: bool,
) -> Result<Attached> {
    // A lock keeps a volume open, which only one process can have open for writing.
    let is_volume = braid_io::is_volume_name(&directory);
    let lock = if is_pinned && !is_volume {
        None
    } else {
        let lock = DirectoryLock::acquire_shared(&directory).map_err(|error| match error {
            LockError::Held if is_pinned => fault(TablespaceError::Unsupported {
                operation: "read a volume while another process writes",
                name: entry.name.clone(),
                advice: "close it there first",
            }),
            error => locking(&directory, error),
        });
        Some(lock?)
    };
    let device = braid_io::open_directory_read_only(&directory);
    let device =
        device.map_err(|e| Error::io(format!("cannot open {}", directory.display()), e))?;
    Ok(Attached {
        device: gate.device(view_if(true, device.clone())?),
        base: gate.device(device),
        directory: Some(directory),
        access: entry.access,
        lock,
    })
}

fn locking(directory: &Path, error: LockError) -> Error {
    match error {
        LockError::Held => Error::locked(directory),
        LockError::Io(error) => Error::io(format!("cannot lock {}", directory.display()), error),
    }
}

/// Checks that the note in a tablespace's directory is the listed tablespace's. Returns whether it
/// names another directory of the database, which only a caller that names the tablespace's
/// directory may change.
pub(super) fn check_owner(
    attached: &Attached,
    entry: &ListedSpace,
    options: &Builder,
) -> Result<bool> {
    let (name, path) = (
        entry.name.clone(),
        attached.directory.clone().unwrap_or_default(),
    );
    let Ok(owner) = Note::read(&*attached.device, OWNER_FILE, OWNER_MAGIC)? else {
        let reason = format!(
            "it has no intact {OWNER_FILE}; mount its disk, or name the present directory with tablespace_directory"
        );
        return Err(fault(TablespaceError::Missing { name, path, reason }));
    };
    let other = owner.directory.display();
    if owner.identity != entry.identity
        && !braid_rt::mutant!("accept_the_tablespace_of_another_database")
    {
        let reason = format!(
            "it has another tablespace, of the database in {other}; name the present directory with tablespace_directory"
        );
        return Err(fault(TablespaceError::Foreign { name, path, reason }));
    }
    let database = options.directory.clone().unwrap_or_default();
    if owner.directory != database && named(entry, options).is_none() {
        let reason = format!(
            "it belongs to the database in {other}; if that database was moved to {}, open it with \
             tablespace_directory once; if it was copied, copy this directory, too, and open the copy with it",
            database.display()
        );
        return Err(fault(TablespaceError::Foreign { name, path, reason }));
    }
    Ok(owner.directory != database)
}

/// Refuses to salvage a copy of a database from a tablespace of the original, which the list of the copy
/// names: its note leads to another directory that has a database. The caller may name the
/// tablespace's directory. A damaged note, or one from before the database was moved, does not matter.
pub(super) fn check_not_of_original(
    attached: &Attached,
    entry: &ListedSpace,
    options: &Builder,
) -> Result<()> {
    let Ok(Ok(owner)) = Note::read(&*attached.device, OWNER_FILE, OWNER_MAGIC) else {
        return Ok(());
    };
    let original = &owner.directory;
    let is_own = options.directory.as_ref() == Some(original);
    let is_of_original = owner.identity == entry.identity
        && !is_own
        && !original.as_os_str().is_empty()
        && braid_io::has_file(original, DATA_FILE).unwrap_or(false);
    if !is_of_original
        || named(entry, options).is_some()
        || braid_rt::mutant!("salvage_the_tablespaces_of_the_original")
    {
        return Ok(());
    }
    let reason = format!(
        "it belongs to the database in {}; copy this directory, too, and name the copy with \
         tablespace_directory, or name this one to read it",
        original.display()
    );
    let path = attached.directory.clone().unwrap_or_default();
    let name = entry.name.clone();
    Err(fault(TablespaceError::Foreign { name, path, reason }))
}

/// The places of a database's other parts, for a new tablespace.
pub(super) struct Around<'a> {
    pub(super) gate: &'a Gate,
    pub(super) mode: u32,
    /// How the new tablespace's directory is accessed.
    pub(super) access: DeviceChoice,
    pub(super) database: Option<PathBuf>,
    pub(super) log_place: Option<LogPlace>,
    /// Names and directories of the other tablespaces.
    pub(super) others: Vec<(String, PathBuf)>,
}

/// Prepares the directory or the device of a new tablespace.
pub(super) fn prepare(around: &Around<'_>, name: &str, place: &SpacePlace) -> Result<Attached> {
    let occupied = |path: &Path, reason: String| {
        let (name, path) = (name.to_owned(), path.to_owned());
        fault(TablespaceError::Occupied { name, path, reason })
    };
    let attached = match place {
        SpacePlace::Device(device) => Attached {
            device: around.gate.device(device.clone()),
            base: around.gate.device(device.clone()),
            directory: None,
            access: DeviceChoice::Auto,
            lock: None,
        },
        SpacePlace::Directory(path) => {
            let made = braid_io::create_directory_with_mode(path, around.mode);
            made.map_err(|e| Error::io(format!("cannot create {}", path.display()), e))?;
            let directory = braid_io::resolve(path)
                .map_err(|e| Error::io(format!("cannot open {}", path.display()), e))?;
            let is_recordable = |path: &Path| {
                let name = path.to_str();
                name.is_some_and(|name| name.len() <= PATH_BYTES_MAX)
            };
            if !is_recordable(&directory)
                || !is_recordable(around.database.as_deref().unwrap_or(Path::new("")))
            {
                let reason = "the directories' names must be valid UTF-8 and short".into();
                return Err(occupied(path, reason));
            }
            let here = Builder {
                directory: around.database.clone(),
                log_place: around.log_place.clone(),
                ..Builder::default()
            };
            let others = around.others.iter();
            let others = others.map(|(name, directory)| (&**name, &**directory));
            if let Some(owner) = occupant(&directory, &here, others) {
                let reason = format!("{owner} is there; choose an empty directory");
                return Err(occupied(path, reason));
            }
            open_locked(around.gate, directory, around.access, around.mode)?
        }
    };
    let path = attached.directory.clone().unwrap_or_default();
    if let Ok(owner) = Note::read(&*attached.device, OWNER_FILE, OWNER_MAGIC)? {
        let other = owner.directory.display();
        let reason =
            format!("it has a tablespace of the database in {other}; choose an empty directory");
        return Err(occupied(&path, reason));
    }
    let entries = attached.device.list();
    let entries = entries.map_err(|e| Error::io("cannot list the tablespace's directory", e))?;
    if let Some(entry) = entries.iter().find(|entry| entry.name != LOCK_FILE_NAME) {
        let reason = format!("it contains {:?}; choose an empty directory", entry.name);
        return Err(occupied(&path, reason));
    }
    Ok(attached)
}

/// Whether a device has an intact note of a tablespace.
pub(crate) fn is_owner_note(device: &dyn Device) -> bool {
    Note::read(device, OWNER_FILE, OWNER_MAGIC).is_ok_and(|note| note.is_ok())
}

pub(super) fn write_owner(device: &dyn Device, identity: u128, database: &Path) -> Result<()> {
    let owner = Note {
        identity,
        directory: database.to_owned(),
        device: DeviceChoice::Auto,
    };
    if Note::read(device, OWNER_FILE, OWNER_MAGIC)?.ok().as_ref() == Some(&owner) {
        return Ok(());
    }
    owner.write(device, OWNER_FILE, OWNER_MAGIC)
}

/// Removes the files of a tablespace if they are the one's with this identity, the note last. Without
/// the note, there is at most an unfinished one.
pub(super) fn remove_files(device: &dyn Device, identity: u128) -> Result<()> {
    let failed = |e| Error::io("cannot remove the files of a tablespace", e);
    let is_own = |name: &str| {
        let note = Note::read(device, name, OWNER_MAGIC)?;
        Ok::<_, Error>(note.is_ok_and(|owner| owner.identity == identity))
    };
    if is_own(OWNER_FILE)? {
        ignore_missing(device.remove(DATA_FILE)).map_err(failed)?;
        for entry in device.list().map_err(failed)? {
            if braid_log::is_log_name(&entry.name) {
                ignore_missing(device.remove(&entry.name)).map_err(failed)?;
            }
        }
        sync_names(device)?;
        ignore_missing(device.remove(OWNER_FILE)).map_err(failed)?;
    }
    let unfinished = format!("{OWNER_FILE}.new");
    let is_blank = match note::is_blank(device, &unfinished, OWNER_MAGIC) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        is_blank => is_blank.map_err(failed)?,
    };
    if is_blank || is_own(&unfinished)? {
        ignore_missing(device.remove(&unfinished)).map_err(failed)?;
    }
    sync_names(device)
}

pub(super) fn ignore_missing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

pub(super) fn database_directory(instance: &Instance) -> PathBuf {
    instance.files.directory.clone().unwrap_or_default()
}

fn missing(entry: &ListedSpace, reason: &str) -> TablespaceError {
    TablespaceError::Missing {
        name: entry.name.clone(),
        path: entry.directory.clone(),
        reason: reason.into(),
    }
}
