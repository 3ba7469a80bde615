//! The notes that say whose the places of a tablespace are: its identity, and the directory of its database.

use std::path::Path;

use braid_io::{Device, DeviceChoice};

use super::super::DATA_FILE;
use super::super::log_directory::Note;
use super::fault;
use super::place::{Attached, missing_at};
use crate::error::{Error, Result, TablespaceError};
use crate::format::space::ListedSpace;
use crate::options::Builder;

/// The note in a tablespace's directory.
pub(crate) const OWNER_FILE: &str = "TABLESPACE-OWNER";
pub(super) const OWNER_MAGIC: [u8; 8] = *b"BRAIDTO\x01";

/// The note in the place of a tablespace's log, if that is another one.
pub(super) const LOG_OWNER_FILE: &str = "TABLESPACE-LOG-OWNER";
pub(super) const LOG_OWNER_MAGIC: [u8; 8] = *b"BRAIDTL\x01";

/// A kind of note, and the words of messages about it.
struct Kind {
    file: &'static str,
    magic: [u8; 8],
    /// The disk that the user should mount.
    disk: &'static str,
    /// What another owner has there.
    others: &'static str,
    /// The part that belongs to a database.
    subject: &'static str,
    /// The option that names the present place.
    option: &'static str,
}

const DATA: Kind = Kind {
    file: OWNER_FILE,
    magic: OWNER_MAGIC,
    disk: "its disk",
    others: "another tablespace",
    subject: "it",
    option: "tablespace_directory",
};

const LOG: Kind = Kind {
    file: LOG_OWNER_FILE,
    magic: LOG_OWNER_MAGIC,
    disk: "the disk of its log",
    others: "the log of another tablespace",
    subject: "its log",
    option: "tablespace_log_directory",
};

/// A place with a note, as opened.
struct Place<'a> {
    device: &'a dyn Device,
    path: &'a Path,
    /// Whether the caller names it.
    is_named: bool,
    /// Whether a mutant accepts any owner.
    is_any_accepted: bool,
}

impl Kind {
    /// Checks that the note in a place is the listed tablespace's. Returns whether it names another
    /// directory of the database, which only a caller that names the place may change.
    fn check(&self, place: &Place<'_>, entry: &ListedSpace, options: &Builder) -> Result<bool> {
        let Self {
            file,
            disk,
            others,
            subject,
            option,
            ..
        } = self;
        let Ok(owner) = Note::read(place.device, file, self.magic)? else {
            let reason = format!(
                "it has no intact {file}; mount {disk}, or name the present directory with {option}"
            );
            return Err(missing_at(entry, place.path, reason));
        };
        let foreign = |reason: String| {
            let (name, path) = (entry.name.clone(), place.path.to_owned());
            Err(fault(TablespaceError::Foreign { name, path, reason }))
        };
        let other = owner.directory.display();
        if owner.identity != entry.identity && !place.is_any_accepted {
            return foreign(format!(
                "it has {others}, of the database in {other}; name the present directory with {option}"
            ));
        }
        let database = options.directory.clone().unwrap_or_default();
        if owner.directory != database && !place.is_named {
            return foreign(format!(
                "{subject} belongs to the database in {other}; if that database was moved to {}, open it with \
                 {option} once; if it was copied, copy this directory, too, and open the copy with it",
                database.display()
            ));
        }
        Ok(owner.directory != database)
    }

    /// Writes the note, unless it is there.
    fn write(&self, device: &dyn Device, identity: u128, database: &Path) -> Result<()> {
        let owner = Note {
            identity,
            directory: database.to_owned(),
            device: DeviceChoice::Auto,
        };
        let found = Note::read(device, self.file, self.magic)?;
        if found.ok().as_ref() == Some(&owner) {
            return Ok(());
        }
        owner.write(device, self.file, self.magic)
    }
}

/// Checks that the note in a tablespace's directory is the listed tablespace's. Returns whether it
/// names another directory of the database.
pub(super) fn check_owner(
    attached: &Attached,
    entry: &ListedSpace,
    options: &Builder,
) -> Result<bool> {
    let place = Place {
        device: &*attached.device,
        path: attached.directory.as_deref().unwrap_or(Path::new("")),
        is_named: options.tablespaces.of(&entry.name).is_some(),
        is_any_accepted: braid_rt::mutant!("accept_the_tablespace_of_another_database"),
    };
    DATA.check(&place, entry, options)
}

/// Checks that the note in the place of a tablespace's log is the listed tablespace's. Returns whether the
/// list or the note lacks the present place.
pub(super) fn check_log_owner(
    attached: &Attached,
    entry: &ListedSpace,
    options: &Builder,
) -> Result<bool> {
    let log = match &attached.log {
        None => return Ok(false),
        Some(log) => log.as_ref().map_err(Error::clone)?,
    };
    let place = Place {
        device: &*log.device,
        path: log.directory.as_deref().unwrap_or(Path::new("")),
        is_named: options.tablespaces.log_of(&entry.name).is_some(),
        is_any_accepted: braid_rt::mutant!("accept_the_log_of_another_tablespace"),
    };
    let is_renamed = LOG.check(&place, entry, options)?;
    let is_listed = entry.log.as_ref() == Some(&log.listed());
    Ok(is_renamed || !is_listed)
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
        || options.tablespaces.of(&entry.name).is_some()
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

/// Writes the note of a tablespace's directory.
pub(super) fn write_owner(device: &dyn Device, identity: u128, database: &Path) -> Result<()> {
    DATA.write(device, identity, database)
}

/// Writes the note of a tablespace's log, which has a place of its own.
pub(super) fn write_log_owner(device: &dyn Device, identity: u128, database: &Path) -> Result<()> {
    LOG.write(device, identity, database)
}
