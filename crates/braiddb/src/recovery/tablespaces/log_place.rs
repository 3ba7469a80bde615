//! Logs of tablespaces in places of their own, which may be on other devices than their data files.
//!
//! The list names the place, and a note there names the tablespace and the database. A tablespace's device is
//! then one of both places: files of the log, and this note, are in the log's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{Device, DeviceChoice, DirectoryLock, SplitDevice};

use super::super::log_directory::Note;
use super::fault;
use super::place::{Attached, missing_at};
use crate::error::{Error, Result, TablespaceError};
use crate::format::space::{ListedLog, ListedSpace};
use crate::options::Builder;

/// The note in the place of a tablespace's log: the tablespace's identity and the database's directory.
pub(super) const LOG_OWNER_FILE: &str = "TABLESPACE-LOG-OWNER";
pub(super) const LOG_OWNER_MAGIC: [u8; 8] = *b"BRAIDTL\x01";

/// The place of a tablespace's log, opened.
pub(crate) struct AttachedLog {
    pub(crate) device: Arc<dyn Device>,
    /// The directory; `None` on a device of the caller.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) access: DeviceChoice,
    pub(crate) lock: Option<DirectoryLock>,
}

impl AttachedLog {
    /// Returns the place as the list has it.
    pub(super) fn listed(&self) -> ListedLog {
        ListedLog {
            directory: self.directory.clone().unwrap_or_default(),
            access: self.access,
        }
    }
}

/// Whether a file of a tablespace is in the place of its log.
fn is_of_log(name: &str) -> bool {
    braid_log::is_log_name(name) || name.strip_suffix(".new").unwrap_or(name) == LOG_OWNER_FILE
}

/// Combines the places of a tablespace's data and of its log.
pub(super) fn join(data: Attached, log: Attached) -> Attached {
    if braid_rt::mutant!("keep_logs_with_the_data") {
        return data;
    }
    let split = |data: Arc<dyn Device>, log: Arc<dyn Device>| -> Arc<dyn Device> {
        Arc::new(SplitDevice::new(data, log, is_of_log))
    };
    Attached {
        device: split(data.device, log.device.clone()),
        base: split(data.base, log.base),
        log: Some(Ok(AttachedLog {
            device: log.device,
            directory: log.directory,
            access: log.access,
            lock: log.lock,
        })),
        ..data
    }
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
    let path = log.directory.clone().unwrap_or_default();
    let Ok(owner) = Note::read(&*log.device, LOG_OWNER_FILE, LOG_OWNER_MAGIC)? else {
        let reason = format!(
            "it has no intact {LOG_OWNER_FILE}; mount the disk of its log, or name the present directory with \
             tablespace_log_directory"
        );
        return Err(missing_at(entry, &path, reason));
    };
    let (name, other) = (entry.name.clone(), owner.directory.display());
    if owner.identity != entry.identity
        && !braid_rt::mutant!("accept_the_log_of_another_tablespace")
    {
        let reason = format!(
            "it has the log of another tablespace, of the database in {other}; name the present directory with \
             tablespace_log_directory"
        );
        return Err(fault(TablespaceError::Foreign { name, path, reason }));
    }
    let database = options.directory.clone().unwrap_or_default();
    let is_named = options.tablespaces.log_of(&entry.name).is_some();
    if owner.directory != database && !is_named {
        let reason = format!(
            "its log belongs to the database in {other}; if that database was moved to {}, open it with \
             tablespace_log_directory once; if it was copied, copy this directory, too, and open the copy with it",
            database.display()
        );
        return Err(fault(TablespaceError::Foreign { name, path, reason }));
    }
    let is_listed = entry.log.as_ref() == Some(&log.listed());
    Ok(owner.directory != database || !is_listed)
}

/// Writes the note of a tablespace's log, which has a place of its own.
pub(super) fn write_log_owner(device: &dyn Device, identity: u128, database: &Path) -> Result<()> {
    let owner = Note {
        identity,
        directory: database.to_owned(),
        device: DeviceChoice::Auto,
    };
    let found = Note::read(device, LOG_OWNER_FILE, LOG_OWNER_MAGIC)?;
    if found.ok().as_ref() == Some(&owner) {
        return Ok(());
    }
    owner.write(device, LOG_OWNER_FILE, LOG_OWNER_MAGIC)
}
