//! The tablespaces of a database that is restored: their places, and the records of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{Device, DeviceChoice, DirectoryLock, Gate};

use super::list::write_list;
use super::place::{Around, prepare, write_owner};
use crate::error::Result;
use crate::format::space::ListedSpace;
use crate::options::{Builder, SpacePlace};

/// The empty place of a tablespace, opened.
pub(crate) struct RestoredSpace {
    pub(crate) name: String,
    pub(crate) device: Arc<dyn Device>,
    /// The directory; empty on a device that the caller provides.
    directory: PathBuf,
    /// How the directory is accessed.
    access: DeviceChoice,
    _lock: Option<DirectoryLock>,
}

/// Opens the empty places of tablespaces. `options` says where the other parts of the database are.
pub(crate) fn attach_restored(
    options: &Builder,
    places: &[(String, SpacePlace)],
) -> Result<Vec<RestoredSpace>> {
    let mut spaces: Vec<RestoredSpace> = Vec::new();
    for (name, place) in places {
        let others = spaces.iter().filter_map(|space| {
            let directory = &space.directory;
            let is_one = !directory.as_os_str().is_empty();
            is_one.then(|| (space.name.clone(), directory.clone()))
        });
        let around = Around {
            gate: &Gate::new(None),
            mode: options.file_mode,
            access: options.device,
            database: options.directory.clone(),
            log_place: options.log_place.clone(),
            others: others.collect(),
        };
        let attached = prepare(&around, name, place)?;
        spaces.push(RestoredSpace {
            name: name.clone(),
            device: attached.device,
            directory: attached.directory.unwrap_or_default(),
            access: attached.access,
            _lock: attached.lock,
        });
    }
    Ok(spaces)
}

/// Records the tablespaces of a restored database durably: the list, and the note in each place.
pub(crate) fn record_restored<'a>(
    device: &dyn Device,
    database: &Path,
    spaces: impl Iterator<Item = (&'a ListedSpace, &'a RestoredSpace)>,
) -> Result<()> {
    let mut entries = Vec::new();
    for (entry, space) in spaces {
        write_owner(&*space.device, entry.identity, database)?;
        entries.push(ListedSpace {
            directory: space.directory.clone(),
            access: space.access,
            ..entry.clone()
        });
    }
    if entries.is_empty() {
        return Ok(());
    }
    write_list(device, &entries)
}
