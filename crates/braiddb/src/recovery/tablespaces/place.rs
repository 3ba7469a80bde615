//! The directories and devices of tablespaces: locking them, and the note that says whose they are.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use braid_io::{
    Device, DeviceChoice, DirectoryLock, Gate, LOCK_FILE_NAME, LockError, OpenMode, OverlayDevice,
};

use super::super::DATA_FILE;
use super::super::contents::sync_names;
use super::super::log_directory::Note;
use super::log_place::{AttachedLog, join};
use super::owner::{LOG_OWNER_FILE, LOG_OWNER_MAGIC, OWNER_FILE, OWNER_MAGIC};
use super::{Listed, fault};
use crate::error::{Error, Result, TablespaceError};
use crate::format::note;
use crate::format::space::{ListedLog, ListedSpace};
use crate::options::{Builder, LogPlace, SpacePlace};
use crate::services::Instance;

/// Most bytes of a directory's name in a note.
const PATH_BYTES_MAX: usize = 4000;

/// Bytes of a file that are freed at once, and into how many pieces a file is divided at most.
const PIECE: u64 = 1 << 20;
const PIECES_MAX: u64 = 1 << 14;

/// The places of a tablespace, opened.
pub(super) struct Attached {
    /// The device of all its files.
    pub(super) device: Arc<dyn Device>,
    /// The device without a view that keeps changes in memory.
    pub(super) base: Arc<dyn Device>,
    pub(super) directory: Option<PathBuf>,
    pub(super) access: DeviceChoice,
    pub(super) lock: Option<DirectoryLock>,
    /// The place of its log, if that is another one, or why it cannot be used.
    pub(super) log: Option<Result<AttachedLog>>,
}

impl Attached {
    fn on_device(device: Arc<dyn Device>, base: Arc<dyn Device>, access: DeviceChoice) -> Self {
        Self {
            device,
            base,
            directory: None,
            access,
            lock: None,
            log: None,
        }
    }

    /// Returns the log's place as the list has it, if that is another one.
    pub(super) fn listed_log(&self) -> Option<ListedLog> {
        let log = self.log.as_ref()?.as_ref().ok()?;
        Some(log.listed())
    }

    /// Returns the device of the log's place, if that is another one.
    pub(super) fn log_device(&self) -> Option<&Arc<dyn Device>> {
        let log = self.log.as_ref()?.as_ref().ok()?;
        Some(&log.device)
    }
}

/// The part of a tablespace that is in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Data,
    Log,
}

impl Part {
    /// Returns the listed place.
    fn listed(self, entry: &ListedSpace) -> (&Path, DeviceChoice) {
        match (self, &entry.log) {
            (Self::Log, Some(log)) => (&log.directory, log.access),
            _ => (&entry.directory, entry.access),
        }
    }

    /// Returns the place that the caller of the opening names.
    fn named(self, entry: &ListedSpace, options: &Builder) -> Option<SpacePlace> {
        let places = &options.tablespaces;
        let named = match self {
            Self::Data => places.of(&entry.name),
            Self::Log => places.log_of(&entry.name),
        };
        named.cloned()
    }

    /// The options that name a device and a directory.
    fn options(self) -> (&'static str, &'static str) {
        match self {
            Self::Data => ("tablespace_device", "tablespace_directory"),
            Self::Log => ("tablespace_log_on", "tablespace_log_directory"),
        }
    }

    /// Begins the reason of an error.
    fn of(self) -> &'static str {
        match self {
            Self::Data => "",
            Self::Log => "its log: ",
        }
    }
}

/// Opens the places of a tablespace. `before` were opened before it. A reader whose state `is_pinned` does
/// not lock the directories. If only the place of the log cannot be used, that of the data is opened.
pub(super) fn attach_listed(
    gate: &Gate,
    entry: &ListedSpace,
    options: &Builder,
    (before, is_pinned): (&[Listed], bool),
) -> Result<Attached> {
    let opened = before.iter().filter_map(|one| one.opened.as_ref().ok());
    let mut taken: Vec<_> = opened.flat_map(|opened| opened.space.places()).collect();
    let how = (options, is_pinned);
    let data = attach(gate, entry, Part::Data, how, &taken)?;
    if entry.log.is_none() {
        return Ok(data);
    }
    let directory = data.directory.iter().cloned();
    taken.extend(directory.map(|directory| ("the tablespace's data file".to_owned(), directory)));
    Ok(match attach(gate, entry, Part::Log, how, &taken) {
        Ok(log) => join(data, log),
        Err(error) => Attached {
            log: Some(Err(error)),
            ..data
        },
    })
}

/// Opens the directory or the device of a part of a tablespace.
fn attach(
    gate: &Gate,
    entry: &ListedSpace,
    part: Part,
    (options, is_pinned): (&Builder, bool),
    taken: &[(String, PathBuf)],
) -> Result<Attached> {
    let (listed, access) = part.listed(entry);
    let (device_option, directory_option) = part.options();
    let path = match part.named(entry, options) {
        Some(SpacePlace::Device(device)) => {
            let view = gate.device(view_if(options.read_only, device.clone())?);
            return Ok(Attached::on_device(view, gate.device(device), access));
        }
        Some(SpacePlace::Directory(path)) => path,
        None if listed.as_os_str().is_empty() => {
            let of = part.of();
            let reason = format!(
                "{of}it is on a device of the caller; open the database with {device_option}"
            );
            return Err(missing_at(entry, listed, reason));
        }
        None => listed.to_owned(),
    };
    let directory = braid_io::resolve(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let of = part.of();
            let reason = format!(
                "{of}the directory does not exist; mount its disk, or name the present directory with \
                 {directory_option}"
            );
            missing_at(entry, &path, reason)
        }
        _ => Error::io(format!("cannot open {}", path.display()), error),
    })?;
    if let Some(owner) = occupant(&directory, options, taken) {
        let (name, path, of) = (entry.name.clone(), directory, part.of());
        let reason =
            format!("{of}{owner} is there; name its own directory with {directory_option}");
        return Err(fault(TablespaceError::Foreign { name, path, reason }));
    }
    if options.read_only {
        open_shared(gate, directory, entry, access, is_pinned)
    } else {
        let on = (access, entry.memory(options.numa).node());
        open_locked(gate, directory, on, options.file_mode)
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

/// Returns what already lies in a directory: a part of this database, of which `taken` are other parts.
fn occupant(directory: &Path, options: &Builder, taken: &[(String, PathBuf)]) -> Option<String> {
    if options.directory.as_deref() == Some(directory) {
        return Some("the database itself".into());
    }
    if options.log_place.as_ref().map(|log| &*log.directory) == Some(directory) {
        return Some("the log".into());
    }
    let found = taken.iter().find(|(_, other)| *other == directory);
    found.map(|(owner, _)| owner.clone())
}

fn open_locked(
    gate: &Gate,
    directory: PathBuf,
    (access, node): (DeviceChoice, Option<usize>),
    mode: u32,
) -> Result<Attached> {
    let lock = DirectoryLock::acquire_with_mode(&directory, mode);
    let lock = lock.map_err(|error| locking(&directory, error))?;
    let device = braid_io::open_directory_on_node(&directory, access, mode, node);
    let device =
        device.map_err(|e| Error::io(format!("cannot open {}", directory.display()), e))?;
    let device = gate.device(device);
    Ok(Attached {
        base: device.clone(),
        device,
        directory: Some(directory),
        access,
        lock: Some(lock),
        log: None,
    })
}

/// As [`open_locked`], for reading only: changes no file, and excludes writers, which lock the
/// directory, unless pins protect the state from them.
fn open_shared(
    gate: &Gate,
    directory: PathBuf,
    entry: &ListedSpace,
    access: DeviceChoice,
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
        access,
        lock,
        log: None,
    })
}

fn locking(directory: &Path, error: LockError) -> Error {
    match error {
        LockError::Held => Error::locked(directory),
        LockError::Io(error) => Error::io(format!("cannot lock {}", directory.display()), error),
    }
}

/// The places of a database's other parts, for a new tablespace.
pub(super) struct Around<'a> {
    pub(super) gate: &'a Gate,
    pub(super) mode: u32,
    /// The memory node on which mapped files grow.
    pub(super) node: Option<usize>,
    pub(super) database: Option<PathBuf>,
    pub(super) log_place: Option<LogPlace>,
    /// The directories of the other tablespaces, and the names of their contents.
    pub(super) others: Vec<(String, PathBuf)>,
}

/// Prepares the places of a new tablespace, which are accessed as chosen.
pub(super) fn prepare(
    around: &Around<'_>,
    name: &str,
    (place, access): (&SpacePlace, DeviceChoice),
    log: Option<(&SpacePlace, DeviceChoice)>,
) -> Result<Attached> {
    let mut taken = around.others.clone();
    let data = prepare_place(around, name, place, access, &taken)?;
    let Some((place, access)) = log else {
        return Ok(data);
    };
    let directory = data.directory.iter().cloned();
    taken.extend(directory.map(|directory| ("the tablespace's data file".to_owned(), directory)));
    let log = prepare_place(around, name, place, access, &taken)?;
    Ok(join(data, log))
}

/// Prepares the directory or the device of a part of a new tablespace.
fn prepare_place(
    around: &Around<'_>,
    name: &str,
    place: &SpacePlace,
    access: DeviceChoice,
    taken: &[(String, PathBuf)],
) -> Result<Attached> {
    let attached = match place {
        SpacePlace::Device(device) => {
            let device = around.gate.device(device.clone());
            Attached::on_device(device.clone(), device, DeviceChoice::Auto)
        }
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
                return Err(occupied(name, path, reason));
            }
            let here = Builder {
                directory: around.database.clone(),
                log_place: around.log_place.clone(),
                ..Builder::default()
            };
            if let Some(owner) = occupant(&directory, &here, taken) {
                let reason = format!("{owner} is there; choose an empty directory");
                return Err(occupied(name, path, reason));
            }
            open_locked(around.gate, directory, (access, around.node), around.mode)?
        }
    };
    let path = attached.directory.clone().unwrap_or_default();
    check_vacant(&*attached.device, name, &path)?;
    Ok(attached)
}

fn occupied(name: &str, path: &Path, reason: String) -> Error {
    let (name, path) = (name.to_owned(), path.to_owned());
    fault(TablespaceError::Occupied { name, path, reason })
}

/// Refuses a place that is not empty for a part of a new tablespace.
pub(super) fn check_vacant(device: &dyn Device, name: &str, path: &Path) -> Result<()> {
    let notes = [
        (OWNER_FILE, OWNER_MAGIC, "a tablespace"),
        (LOG_OWNER_FILE, LOG_OWNER_MAGIC, "the log of a tablespace"),
    ];
    for (file, magic, what) in notes {
        if let Ok(owner) = Note::read(device, file, magic)? {
            let other = owner.directory.display();
            let reason =
                format!("it has {what} of the database in {other}; choose an empty directory");
            return Err(occupied(name, path, reason));
        }
    }
    let entries = device.list();
    let entries = entries.map_err(|e| Error::io("cannot list the tablespace's directory", e))?;
    if let Some(entry) = entries.iter().find(|entry| entry.name != LOCK_FILE_NAME) {
        let reason = format!("it contains {:?}; choose an empty directory", entry.name);
        return Err(occupied(name, path, reason));
    }
    Ok(())
}

/// Whether a device has an intact note of a tablespace, or of one's log.
pub(crate) fn is_owner_note(device: &dyn Device) -> bool {
    let notes = [(OWNER_FILE, OWNER_MAGIC), (LOG_OWNER_FILE, LOG_OWNER_MAGIC)];
    let mut notes = notes.iter();
    notes.any(|(name, magic)| Note::read(device, name, *magic).is_ok_and(|note| note.is_ok()))
}

/// How the contents of the files of a tablespace are freed.
#[derive(Clone, Copy)]
pub(super) enum Freeing<'a> {
    /// By the system, when the last one who has a file open closes it.
    Whole,
    /// Piece by piece. The function gets the time when a piece was begun, and leaves the device to commits.
    Pieces(&'a dyn Fn(Instant)),
}

/// Removes the files of a tablespace if they are the one's with this identity, the notes last, that of the
/// data after that of the log. Without the note, there is at most an unfinished one.
pub(super) fn remove_files(
    device: &dyn Device,
    identity: u128,
    freeing: Freeing<'_>,
) -> Result<()> {
    let failed = |e| Error::io("cannot remove the files of a tablespace", e);
    let is_own = |name: &str, magic| {
        let note = Note::read(device, name, magic)?;
        Ok::<_, Error>(note.is_ok_and(|owner| owner.identity == identity))
    };
    if is_own(OWNER_FILE, OWNER_MAGIC)? {
        let remove = |name: &str| {
            if let Freeing::Pieces(pause) = freeing {
                // A file that stays longer is freed whole.
                let _ = shorten(device, name, pause);
            }
            ignore_missing(device.remove(name))
        };
        remove(DATA_FILE).map_err(failed)?;
        for entry in device.list().map_err(failed)? {
            if braid_log::is_log_name(&entry.name) {
                remove(&entry.name).map_err(failed)?;
            }
        }
        sync_names(device)?;
    }
    for (name, magic) in [(LOG_OWNER_FILE, LOG_OWNER_MAGIC), (OWNER_FILE, OWNER_MAGIC)] {
        if is_own(name, magic)? {
            ignore_missing(device.remove(name)).map_err(failed)?;
        }
        let unfinished = format!("{name}.new");
        let is_blank = match note::is_blank(device, &unfinished, magic) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            is_blank => is_blank.map_err(failed)?,
        };
        if is_blank || is_own(&unfinished, magic)? {
            ignore_missing(device.remove(&unfinished)).map_err(failed)?;
        }
        sync_names(device)?;
    }
    Ok(())
}

/// Shortens a file to one piece. A file system that discards what it frees keeps the device busy
/// for as long as a piece takes.
fn shorten(device: &dyn Device, name: &str, pause: &dyn Fn(Instant)) -> io::Result<()> {
    let file = device.open(name, OpenMode::Existing)?;
    let mut len = file.len()?;
    let piece = PIECE.max(len / PIECES_MAX);
    while len > piece {
        let begun = braid_rt::now();
        len -= piece;
        file.set_len(len)?;
        pause(begun);
    }
    Ok(())
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

/// Returns the error of a part of a tablespace that is missing at its place.
pub(super) fn missing_at(entry: &ListedSpace, path: &Path, reason: String) -> Error {
    let (name, path) = (entry.name.clone(), path.to_owned());
    fault(TablespaceError::Missing { name, path, reason })
}
