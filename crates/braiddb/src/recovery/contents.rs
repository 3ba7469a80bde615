//! The contents of a directory, and the marker of an unfinished creation.
//!
//! A creation makes the marker `CREATING` durable before any other file, and removes the marker
//! after everything else is durable. The marker contains the identity of the new database, and so
//! does every file that the creation makes: the first superblock of `data.braid` and the header of
//! each log segment. An interrupted creation is removed file by file, and only if every file in the
//! directory provably belongs to it:
//!
//! - a file whose name a creation uses, and which contains the marker's identity or is blank, as a
//!   file is before its first write;
//! - `data.braid` only while no checkpoint was published in it. After a checkpoint the database is
//!   complete: it is opened, and the marker is removed.
//!
//! The marker fits in one sector, so a disk leaves it whole or blank after a crash; persistent memory
//! may also leave some of its words. A blank or torn marker proves that no other file was made, and
//! nothing else.

use braid_io::{AlignedBuf, Device, Entry, LOCK_FILE_NAME, OpenMode, READERS_FILE_NAME};
use braid_log::Log;
use braid_store::DataFileCreation;

use super::{DATA_FILE, log_directory, tablespaces};
use crate::error::{Error, Result};
use crate::services::backup::RESTORING_FILE;
use crate::services::copies::Copies;

/// Name of the marker, which exists while a database is being created.
pub(crate) const CREATING_FILE: &str = "CREATING";

/// Why a database whose creation was interrupted cannot be read.
pub(crate) const UNFINISHED: &str = "its creation was interrupted; open it for writing once";

const MAGIC: &[u8; 8] = b"BRAIDNEW";
const MARKER_BYTES: usize = 4096;
/// Bytes of a marker that are not zero.
const MARKER_USED: usize = 32;

/// Contents of a directory.
pub(crate) enum Contents {
    /// No files of a database.
    Nothing,
    /// The files of an interrupted creation, without the marker.
    Unfinished(Vec<String>),
    /// A database. `marked`: its creation completed except for removing the marker.
    Database { marked: bool },
    /// Other files; the text says what to do.
    Foreign(String),
}

/// Content of a marker.
enum Marker {
    /// Blank or torn: the creation was interrupted before it made any other file.
    Blank,
    /// The identity of the database under creation.
    Of(u128),
    /// The file is not a marker.
    Foreign,
}

/// Returns whether a file may be present in an otherwise empty directory, and stays when a creation
/// is removed.
fn means_nothing(name: &str) -> bool {
    name == LOCK_FILE_NAME || name == READERS_FILE_NAME
}

pub(crate) fn inspect(device: &dyn Device) -> Result<Contents> {
    let entries = device
        .list()
        .map_err(|e| Error::io("cannot list the directory", e))?;
    let has = |name: &str| entries.iter().any(|entry| entry.name == name);
    if let Some(marker) = entries.iter().find(|entry| entry.name == CREATING_FILE) {
        return inspect_marker(device, marker, &entries);
    }
    if has(RESTORING_FILE) {
        return Ok(Contents::Foreign(
            "a restore into it did not finish; empty it and restore again".into(),
        ));
    }
    if has(tablespaces::OWNER_FILE) {
        return Ok(Contents::Foreign(
            "it is a tablespace of a database; open the database's own directory".into(),
        ));
    }
    if has(DATA_FILE) {
        return Ok(Contents::Database { marked: false });
    }
    match entries.iter().find(|entry| !means_nothing(&entry.name)) {
        None => Ok(Contents::Nothing),
        Some(entry) => Ok(Contents::Foreign(format!(
            "it contains {:?} but no {DATA_FILE}; choose an empty directory for a new database",
            entry.name
        ))),
    }
}

/// Classifies the contents of a directory with a marker.
fn inspect_marker(device: &dyn Device, marker: &Entry, entries: &[Entry]) -> Result<Contents> {
    let foreign = |reason: String| {
        Ok(Contents::Foreign(format!(
            "{reason}; nothing was removed: if {DATA_FILE} and its log belong together, remove {CREATING_FILE} and \
             open the database again, otherwise move the other files away"
        )))
    };
    let others = entries
        .iter()
        .filter(|entry| entry.name != CREATING_FILE && !means_nothing(&entry.name));
    let identity = match read_marker(device, marker)? {
        Marker::Of(identity) => identity,
        Marker::Blank => {
            return match others.into_iter().next() {
                None => Ok(Contents::Unfinished(Vec::new())),
                Some(other) => foreign(format!(
                    "it contains {:?}, and an unfinished file {CREATING_FILE} that does not tell who made it",
                    other.name
                )),
            };
        }
        Marker::Foreign => {
            return foreign(format!(
                "it contains a file {CREATING_FILE} that is damaged or not Braid's"
            ));
        }
    };
    let mut files = Vec::new();
    let mut is_finished = false;
    for entry in others {
        let is_own = if entry.name != DATA_FILE {
            braid_log::is_file_of(device, entry, identity)?
                || Copies::is_file_of(device, entry, identity)?
                || log_directory::is_file_of(device, entry, identity)?
        } else {
            match braid_store::creation_of(device, identity)? {
                DataFileCreation::Foreign => false,
                DataFileCreation::Unfinished => true,
                DataFileCreation::Finished => {
                    is_finished = true;
                    true
                }
            }
        };
        if !is_own && !braid_rt::mutant!("remove_foreign_files") {
            return foreign(format!(
                "its creation was interrupted, but that creation did not make the file {:?}",
                entry.name
            ));
        }
        files.push(entry.name.clone());
    }
    Ok(if is_finished {
        Contents::Database { marked: true }
    } else {
        Contents::Unfinished(files)
    })
}

fn read_marker(device: &dyn Device, entry: &Entry) -> Result<Marker> {
    let failed = |e| Error::io(format!("cannot read {CREATING_FILE}"), e);
    if entry.len == 0 {
        return Ok(Marker::Blank);
    }
    if entry.len != MARKER_BYTES as u64 {
        return Ok(Marker::Foreign);
    }
    let file = device.open(CREATING_FILE, OpenMode::Existing);
    let mut bytes = AlignedBuf::new(MARKER_BYTES);
    file.and_then(|file| file.read_at(&mut bytes, 0))
        .map_err(failed)?;
    let identity: [u8; 16] = bytes[16..32].try_into().expect("sixteen bytes");
    let identity = u128::from_le_bytes(identity);
    Ok(if marker(identity)[..] == bytes[..] {
        Marker::Of(identity)
    } else if is_torn(&bytes) {
        Marker::Blank
    } else {
        Marker::Foreign
    })
}

/// Whether a crash may have left this of a marker, or nothing: some of its words.
fn is_torn(bytes: &[u8]) -> bool {
    let rest = &bytes[MARKER_USED..];
    rest.iter().all(|byte| *byte == 0)
        && braid_io::may_be_torn(bytes, &[(0, u64::from_le_bytes(*MAGIC))])
}

/// Returns the bytes of a marker: magic, checksum of the identity, identity.
fn marker(identity: u128) -> AlignedBuf {
    let mut bytes = AlignedBuf::new(MARKER_BYTES);
    bytes[..8].copy_from_slice(MAGIC);
    bytes[16..32].copy_from_slice(&identity.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[16..32]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Makes the marker of a new creation durable. Returns the identity for the files of the new
/// database.
pub(crate) fn mark(device: &dyn Device) -> Result<u128> {
    let identity = Log::new_identity();
    let written = device
        .open(CREATING_FILE, OpenMode::CreateNew)
        .and_then(|file| {
            file.write_at(&[&marker(identity)], 0)?;
            file.sync()
        });
    written.map_err(|e| {
        Error::io(
            format!("cannot create the database: cannot write {CREATING_FILE}"),
            e,
        )
    })?;
    sync_names(device)?;
    Ok(identity)
}

/// Removes the marker after every file of the creation is durable.
pub(crate) fn unmark(device: &dyn Device) -> Result<()> {
    device
        .remove(CREATING_FILE)
        .map_err(|e| Error::io(format!("cannot remove {CREATING_FILE}"), e))?;
    sync_names(device)
}

/// Removes the files of an interrupted creation, the marker last.
pub(crate) fn remove(device: &dyn Device, files: &[String]) -> Result<()> {
    let failed = |e| Error::io("cannot remove an unfinished database", e);
    // The place of the log last: it leads to the other files.
    let is_place = |name: &&String| {
        name.starts_with(log_directory::PLACE_FILE)
            != braid_rt::mutant!("remove_the_place_of_the_log_first")
    };
    for name in files.iter().filter(|name| !is_place(name)) {
        device.remove(name).map_err(failed)?;
    }
    sync_names(device)?;
    for name in files.iter().filter(is_place) {
        device.remove(name).map_err(failed)?;
        sync_names(device)?;
    }
    unmark(device)
}

pub(super) fn sync_names(device: &dyn Device) -> Result<()> {
    device
        .sync_directory()
        .map_err(|e| Error::io("cannot sync the directory", e))
}
