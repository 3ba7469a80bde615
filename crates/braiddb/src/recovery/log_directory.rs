//! A log in a directory of its own, which may be on another device than the data.
//!
//! Two notes connect the directories. `LOG-DIRECTORY` in the database's directory names the other
//! one; `LOG-OWNER` there names the database's directory. Both contain the identity of the log. So
//! an opening finds the log by itself, and refuses the log of another database, and the log of the
//! original when only the data was copied.
//!
//! A creation writes `LOG-DIRECTORY` after its marker and before `LOG-OWNER`, and `LOG-OWNER` before
//! the first file of the log. When an interrupted creation is removed, `LOG-DIRECTORY` is the last
//! file before the marker. So whenever the other directory contains a file, the database's directory
//! names it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{
    Device, DeviceChoice, DirectoryLock, Entry, LOCK_FILE_NAME, LockError, SplitDevice,
};

use super::DATA_FILE;
use super::contents::CREATING_FILE;
use crate::error::{Error, Result};
use crate::format::note::{self, Found};
use crate::options::{Builder, LogPlace};

/// The note in the database's directory.
pub(super) const PLACE_FILE: &str = "LOG-DIRECTORY";
const PLACE_MAGIC: [u8; 8] = *b"BRAIDLD\x01";

/// The note in the log's directory.
const OWNER_FILE: &str = "LOG-OWNER";
const OWNER_MAGIC: [u8; 8] = *b"BRAIDLO\x01";

/// Bytes of a note for its fields.
const FIELDS: usize = 4080;

/// A note: the identity of the log or of a tablespace, a directory, and how its device is accessed.
///
/// | bytes | field |
/// |---|---|
/// | 0..16 | identity of the log |
/// | 16..18 | length of the directory's name |
/// | 18..20 | length of the device's name |
/// | 20.. | the directory's name, the device's name |
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) identity: u128,
    pub(super) directory: PathBuf,
    pub(super) device: DeviceChoice,
}

impl Note {
    fn encode(&self) -> Result<Vec<u8>> {
        let name = self.directory.to_str().ok_or_else(|| {
            refused(
                &self.directory,
                "its name is not valid UTF-8; choose another directory",
            )
        })?;
        let device = self.device.to_string();
        let len = |name: &str| u16::try_from(name.len()).unwrap_or(u16::MAX);
        let mut fields = self.identity.to_le_bytes().to_vec();
        fields.extend(len(name).to_le_bytes());
        fields.extend(len(&device).to_le_bytes());
        fields.extend(name.bytes().chain(device.bytes()));
        if fields.len() > FIELDS {
            return Err(refused(
                &self.directory,
                "its name is too long; choose a shorter one",
            ));
        }
        Ok(fields)
    }

    fn decode(fields: &[u8; FIELDS]) -> Option<Self> {
        let len = |at: usize| usize::from(u16::from_le_bytes([fields[at], fields[at + 1]]));
        let (name, device) = (20..20 + len(16), 20 + len(16)..20 + len(16) + len(18));
        let text = |place| std::str::from_utf8(fields.get(place)?).ok();
        Some(Self {
            identity: note::u128_at(fields, 0),
            directory: text(name)?.into(),
            device: text(device)?.parse().ok()?,
        })
    }

    /// Reads a note. `Ok(Err(..))`: there is none, or it is damaged.
    pub(super) fn read(
        device: &dyn Device,
        name: &str,
        magic: [u8; 8],
    ) -> Result<Result<Self, Missing>> {
        let found = note::read::<FIELDS>(device, name, magic);
        Ok(
            match found.map_err(|e| Error::io(format!("cannot read {name}"), e))? {
                Found::Nothing => Err(Missing::Absent),
                Found::Damaged => Err(Missing::Damaged),
                Found::Fields(fields) => Self::decode(&fields).ok_or(Missing::Damaged),
            },
        )
    }

    pub(super) fn write(&self, device: &dyn Device, name: &str, magic: [u8; 8]) -> Result<()> {
        let written = note::write(device, name, magic, &self.encode()?);
        written.map_err(|e| Error::io(format!("cannot write {name}"), e))
    }
}

/// Why a note has no contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Absent,
    Damaged,
}

/// A database's device with the place of its log.
pub(crate) struct Attached {
    pub(crate) device: Arc<dyn Device>,
    /// The place, if it is another directory.
    pub(crate) place: Option<LogPlace>,
    /// The lock on that directory, if the database is opened for writing.
    pub(crate) lock: Option<DirectoryLock>,
}

fn refused(path: &Path, reason: impl Into<String>) -> Error {
    Error::LogDirectory {
        path: path.to_owned(),
        reason: reason.into(),
    }
}

/// Whether a file of a database is in the log's directory.
fn is_in_log_directory(name: &str) -> bool {
    braid_log::is_log_name(name) || name.strip_suffix(".new").unwrap_or(name) == OWNER_FILE
}

/// Returns whether the database with this identity wrote a file: one of the two notes, complete or
/// not.
pub(super) fn is_file_of(device: &dyn Device, entry: &Entry, identity: u128) -> Result<bool> {
    let magic = match entry.name.strip_suffix(".new").unwrap_or(&entry.name) {
        PLACE_FILE => PLACE_MAGIC,
        OWNER_FILE => OWNER_MAGIC,
        _ => return Ok(false),
    };
    match Note::read(device, &entry.name, magic)? {
        Ok(note) => Ok(note.identity == identity),
        Err(_) => note::is_blank(device, &entry.name, magic)
            .map_err(|e| Error::io(format!("cannot read {}", entry.name), e)),
    }
}

/// Writes both notes of a new database durably.
pub(crate) fn record(device: &dyn Device, identity: u128, place: &LogPlace) -> Result<()> {
    place
        .note(identity)
        .write(device, PLACE_FILE, PLACE_MAGIC)?;
    place.owner(identity).write(device, OWNER_FILE, OWNER_MAGIC)
}

impl LogPlace {
    fn note(&self, identity: u128) -> Note {
        Note {
            identity,
            directory: self.directory.clone(),
            device: self.device,
        }
    }

    fn owner(&self, identity: u128) -> Note {
        Note {
            directory: self.database.clone(),
            ..self.note(identity)
        }
    }
}

/// Opens the log's directory of the database in `path`, whose locked device is `data`, and returns
/// the device for both. If the database is new, the options decide, and the directory is created.
pub(crate) fn attach(path: &Path, data: Arc<dyn Device>, options: &Builder) -> Result<Attached> {
    let database = braid_io::resolve(path);
    let database = database.map_err(|e| Error::io(format!("cannot open {}", path.display()), e))?;
    let note = Note::read(&*data, PLACE_FILE, PLACE_MAGIC)?;
    let has = |name: &str| braid_io::has_file(path, name).unwrap_or(false);
    let directory = match (&note, &options.log_directory) {
        (Err(Missing::Absent), None) => {
            return Ok(Attached {
                device: data,
                place: None,
                lock: None,
            });
        }
        (Err(Missing::Damaged), None) if !has(CREATING_FILE) => {
            return Err(Error::Corrupted {
                what: "the place of the log is unreadable; open the database with log_directory"
                    .into(),
                location: PLACE_FILE.into(),
            });
        }
        (Err(Missing::Damaged), None) => {
            return Ok(Attached {
                device: data,
                place: None,
                lock: None,
            });
        }
        (Err(Missing::Absent), Some(directory)) if has(DATA_FILE) => {
            return Err(refused(
                directory,
                "the database has its log in its own directory; leave log_directory out, or restore a backup \
                 with it to move the log",
            ));
        }
        (Err(Missing::Absent), Some(directory)) => {
            return new_directory(directory, &database, data, options);
        }
        (Ok(note), None) => note.directory.clone(),
        (_, Some(directory)) => directory.clone(),
    };
    let expected = note.as_ref().ok();
    let choice = expected.map_or(options.device, |note| note.device);
    let choice = options.log_device.unwrap_or(choice);
    let place = found(&directory, database, choice)?;
    let lock = lock(&place.directory, options.file_mode)?;
    let log = braid_io::open_directory_with_mode(&place.directory, choice, options.file_mode);
    let log = log.map_err(|e| opening(&place, e))?;
    let identity = match check_owner(&*log, &place, expected, options)? {
        Some(owner) => owner.identity,
        // The creation was interrupted before it wrote the owner.
        None if has(CREATING_FILE) => return Ok(attached(data, log, place, lock)),
        None => return Err(no_owner(&place)),
    };
    // The caller named a new place: the next opening finds it.
    let attached = attached(data, log, place.clone(), lock);
    let device = &*attached.device;
    if expected != Some(&place.note(identity)) {
        place
            .note(identity)
            .write(device, PLACE_FILE, PLACE_MAGIC)?;
    }
    if Note::read(device, OWNER_FILE, OWNER_MAGIC)?.ok() != Some(place.owner(identity)) {
        place
            .owner(identity)
            .write(device, OWNER_FILE, OWNER_MAGIC)?;
    }
    Ok(attached)
}

/// As [`attach`], for reading only: changes no file, and locks nothing. Returns both directories as
/// one device, and the place of the log.
pub(crate) fn attach_read_only(
    path: &Path,
    data: Arc<dyn Device>,
    options: &Builder,
) -> Result<(Arc<dyn Device>, Option<LogPlace>)> {
    let note = match Note::read(&*data, PLACE_FILE, PLACE_MAGIC)? {
        Ok(note) => note,
        Err(_) => return Ok((data, None)),
    };
    let database = braid_io::resolve(path);
    let database = database.map_err(|e| Error::io(format!("cannot open {}", path.display()), e))?;
    let directory = options.log_directory.as_ref().unwrap_or(&note.directory);
    let place = found(directory, database, note.device)?;
    let log = braid_io::open_directory_read_only(&place.directory);
    let log = log.map_err(|e| opening(&place, e))?;
    let owner = check_owner(&*log, &place, Some(&note), options)?;
    if owner.is_none() && !braid_io::has_file(path, CREATING_FILE).unwrap_or(false) {
        return Err(no_owner(&place));
    }
    let both = SplitDevice::new(data, log, is_in_log_directory);
    Ok((Arc::new(both), Some(place)))
}

fn no_owner(place: &LogPlace) -> Error {
    let reason = format!(
        "it has no intact {OWNER_FILE}; name the log's present directory with log_directory, or restore a backup"
    );
    refused(&place.directory, reason)
}

fn attached(
    data: Arc<dyn Device>,
    log: Arc<dyn Device>,
    place: LogPlace,
    lock: DirectoryLock,
) -> Attached {
    Attached {
        device: Arc::new(SplitDevice::new(data, log, is_in_log_directory)),
        place: Some(place),
        lock: Some(lock),
    }
}

/// Reads the note of the log's directory, and refuses that of another database. Returns `None`
/// without an intact note.
fn check_owner(
    log: &dyn Device,
    place: &LogPlace,
    expected: Option<&Note>,
    options: &Builder,
) -> Result<Option<Note>> {
    let Ok(owner) = Note::read(log, OWNER_FILE, OWNER_MAGIC)? else {
        return Ok(None);
    };
    let other = owner.directory.display();
    if expected.is_some_and(|expected| expected.identity != owner.identity)
        && !braid_rt::mutant!("accept_the_log_of_another_database")
    {
        let reason = format!(
            "it has the log of another database, the one in {other}; name the directory that has this one's log \
             with log_directory"
        );
        return Err(refused(&place.directory, reason));
    }
    if owner.directory != place.database && options.log_directory.is_none() {
        let reason = format!(
            "it belongs to the database in {other}; if that database was moved to {}, open it with \
             log_directory once; if it was copied, copy this directory, too, and open the copy with it",
            place.database.display()
        );
        return Err(refused(&place.directory, reason));
    }
    Ok(Some(owner))
}

/// Prepares the log's directory of a new database.
fn new_directory(
    directory: &Path,
    database: &Path,
    data: Arc<dyn Device>,
    options: &Builder,
) -> Result<Attached> {
    let made = braid_io::create_directory_with_mode(directory, options.file_mode);
    made.map_err(|e| Error::io(format!("cannot create {}", directory.display()), e))?;
    let choice = options.log_device.unwrap_or(options.device);
    let place = found(directory, database.to_owned(), choice)?;
    let lock = lock(&place.directory, options.file_mode)?;
    let log = braid_io::open_directory_with_mode(&place.directory, choice, options.file_mode);
    let log = log.map_err(|e| opening(&place, e))?;
    if let Ok(owner) = Note::read(&*log, OWNER_FILE, OWNER_MAGIC)? {
        let reason = format!(
            "it has the log of the database in {}; choose an empty directory",
            owner.directory.display()
        );
        return Err(refused(&place.directory, reason));
    }
    let entries = log.list().map_err(|e| opening(&place, e))?;
    if let Some(entry) = entries.iter().find(|entry| entry.name != LOCK_FILE_NAME) {
        let reason = format!("it contains {:?}; choose an empty directory", entry.name);
        return Err(refused(&place.directory, reason));
    }
    Ok(attached(data, log, place, lock))
}

/// Resolves the name of the log's directory.
fn found(directory: &Path, database: PathBuf, device: DeviceChoice) -> Result<LogPlace> {
    let resolved = braid_io::resolve(directory).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => refused(
            directory,
            "the directory does not exist; mount its device, or name the log's present directory with \
             log_directory",
        ),
        _ => Error::io(format!("cannot open {}", directory.display()), error),
    })?;
    if device == DeviceChoice::Memory {
        let reason = "the log would end with the process; name its device with log_device";
        return Err(refused(directory, reason));
    }
    if resolved == database {
        let reason = "it is the database's own directory; leave log_directory out";
        return Err(refused(directory, reason));
    }
    Ok(LogPlace {
        directory: resolved,
        database,
        device,
    })
}

fn lock(directory: &Path, mode: u32) -> Result<DirectoryLock> {
    DirectoryLock::acquire_with_mode(directory, mode).map_err(|error| match error {
        LockError::Held => Error::locked(directory),
        LockError::Io(error) => Error::io(format!("cannot lock {}", directory.display()), error),
    })
}

fn opening(place: &LogPlace, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotADirectory => refused(&place.directory, "it is not a directory"),
        io::ErrorKind::Unsupported => refused(
            &place.directory,
            format!("{error}; choose another log_device than {}", place.device),
        ),
        _ => Error::io(format!("cannot open {}", place.directory.display()), error),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use braid_io::SimDevice;

    use super::*;
    use crate::Database;

    const AT: &str = "/log";

    fn place() -> LogPlace {
        LogPlace {
            directory: AT.into(),
            database: "/data".into(),
            device: DeviceChoice::PmemEmulated { line_latency: 437 },
        }
    }

    /// Opens the database on two devices, of which one is the log's directory if `place` says so.
    fn open(data: &SimDevice, log: &SimDevice, place: Option<LogPlace>) -> Result<Database> {
        let options = Builder {
            log_place: place,
            ..Database::builder()
                .background_threads(false)
                .pool_bytes(1 << 20)
                .segment_bytes(64 << 10)
        };
        let data: Arc<dyn Device> = Arc::new(data.clone());
        let both = SplitDevice::new(data, Arc::new(log.clone()), is_in_log_directory);
        options.open_on(Arc::new(both))
    }

    #[test]
    fn notes_are_decoded_as_they_were_encoded() {
        let note = place().note(7 << 80 | 5);
        let mut fields = [0; FIELDS];
        let bytes = note.encode().unwrap();
        fields[..bytes.len()].copy_from_slice(&bytes);
        assert_eq!(Note::decode(&fields), Some(note.clone()));
        // A length beyond the end, and a device that does not exist.
        fields[16..18].fill(0xff);
        assert_eq!(Note::decode(&fields), None);
        let long = Note {
            directory: "x".repeat(FIELDS).into(),
            ..note
        };
        assert!(matches!(long.encode(), Err(Error::LogDirectory { .. })));
    }

    /// While the log's directory contains a file, the database's directory names it; and opening
    /// completes or repeats the creation.
    #[test]
    fn an_interrupted_creation_starts_over_in_both_directories() {
        let (mut named, mut finished) = (0, 0);
        // Two crashes: the second interrupts the removal of what the first one left. The removal has
        // few steps.
        for (step, second) in (1..40).flat_map(|step| (1..9).map(move |second| (step, second))) {
            let seed = 8 * step + second;
            let (data, log) = (SimDevice::new(seed), SimDevice::new(!seed));
            if seed % 4 < 2 {
                log.set_block_size(64);
            }
            let (mut data, mut log) = (data, log);
            for (round, step) in [(0, step), (1, second)] {
                let disturbed = if (seed + round) % 2 == 0 { &data } else { &log };
                disturbed.crash_after(step);
                let opened = open(&data, &log, Some(place()));
                finished += u32::from(opened.is_ok());
                drop(opened);
                data.power_off();
                log.power_off();
                (data, log) = (data.after_crash(), log.after_crash());
                let is_empty = log.list().unwrap().is_empty();
                let note = Note::read(&data, PLACE_FILE, PLACE_MAGIC).unwrap();
                assert!(is_empty || note.is_ok(), "steps {step}, {second}: {note:?}");
                named += u32::from(note.is_ok());
            }
            let db = open(&data, &log, Some(place()));
            let db = db.unwrap_or_else(|e| panic!("crashes at steps {step}, {second}: {e}"));
            let table = db.open_table::<u32, u32>("t").unwrap();
            db.transact(|tx| tx.insert(&table, &1, &2)).unwrap();
            drop(db);
            let note = Note::read(&data, PLACE_FILE, PLACE_MAGIC).unwrap().unwrap();
            let owner = Note::read(&log, OWNER_FILE, OWNER_MAGIC).unwrap().unwrap();
            assert_eq!(note, place().note(owner.identity));
            assert_eq!(owner.directory, place().database);
            let db = open(&data, &log, Some(place())).unwrap();
            let table = db.open_table::<u32, u32>("t").unwrap();
            assert_eq!(db.get(&table, &1).unwrap(), Some(2));
        }
        assert!(named > 20 && finished > 10, "{named} {finished}");
    }
}
