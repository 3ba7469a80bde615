//! The tablespaces of a database that is restored: their places, and the records of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{Device, DeviceChoice, DirectoryLock, Gate};

use super::list::write_list;
use super::owner::{write_log_owner, write_owner};
use super::place::{Around, prepare};
use crate::error::Result;
use crate::format::space::{ListedLog, ListedSpace};
use crate::options::{Builder, SpacePlaces};

/// The empty places of a tablespace, opened.
pub(crate) struct RestoredSpace {
    pub(crate) name: String,
    pub(crate) device: Arc<dyn Device>,
    /// The directory; empty on a device that the caller provides.
    directory: PathBuf,
    /// How the directory is accessed.
    access: DeviceChoice,
    log: Option<ListedLog>,
    _locks: Vec<DirectoryLock>,
}

/// Opens the empty places of tablespaces. `options` says where the other parts of the database are.
pub(crate) fn attach_restored(
    options: &Builder,
    places: &SpacePlaces,
) -> Result<Vec<RestoredSpace>> {
    let mut spaces: Vec<RestoredSpace> = Vec::new();
    let mut others: Vec<(String, PathBuf)> = Vec::new();
    for (name, place) in &places.data {
        let around = Around {
            gate: &Gate::new(None),
            mode: options.file_mode,
            // The next opening knows it.
            node: None,
            database: options.directory.clone(),
            log_place: options.log_place.clone(),
            others: others.clone(),
        };
        let access = options.device;
        let log = places.log_of(name).map(|place| (place, access));
        let attached = prepare(&around, name, (place, access), log)?;
        let log = attached.listed_log();
        let directory = attached.directory.unwrap_or_default();
        let taken = [
            (format!("tablespace {name:?}"), Some(directory.clone())),
            (
                format!("the log of tablespace {name:?}"),
                log.as_ref().map(|log| log.directory.clone()),
            ),
        ];
        for (what, place) in taken {
            let place = place.filter(|place| !place.as_os_str().is_empty());
            others.extend(place.map(|place| (what, place)));
        }
        let lock_of_log = attached.log.and_then(Result::ok).and_then(|log| log.lock);
        spaces.push(RestoredSpace {
            name: name.clone(),
            device: attached.device,
            directory,
            access: attached.access,
            log,
            _locks: attached.lock.into_iter().chain(lock_of_log).collect(),
        });
    }
    Ok(spaces)
}

/// Records the tablespaces of a restored database durably: the list, and the notes in each place.
pub(crate) fn record_restored<'a>(
    device: &dyn Device,
    database: &Path,
    spaces: impl Iterator<Item = (&'a ListedSpace, &'a RestoredSpace)>,
) -> Result<()> {
    let mut entries = Vec::new();
    for (entry, space) in spaces {
        write_owner(&*space.device, entry.identity, database)?;
        if space.log.is_some() {
            write_log_owner(&*space.device, entry.identity, database)?;
        }
        entries.push(ListedSpace {
            directory: space.directory.clone(),
            access: space.access,
            log: space.log.clone(),
            ..entry.clone()
        });
    }
    if entries.is_empty() {
        return Ok(());
    }
    write_list(device, &entries)
}
