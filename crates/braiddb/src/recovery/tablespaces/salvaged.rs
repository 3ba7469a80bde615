//! The tablespaces of a damaged database, for salvage.

use std::sync::Arc;

use braid_io::{Device, DirectoryLock, Gate};
use braid_log::SeqNo;
use braid_store::Salvage;

use super::list::read_list;
use super::logs::check_unit;
use super::owner::check_not_of_original;
use super::place::{Attached, attach_listed};
use super::{LogPlaceOf, MainState, fault, not_opened};
use crate::error::{Error, Result, TablespaceError};
use crate::format::space::{ListedSpace, SpaceMeta};
use crate::options::Builder;
use crate::schema::entry::{SpaceEntry, ids_of_space, space_of};

/// A tablespace of a damaged database.
pub(crate) struct DamagedSpace {
    pub(crate) entry: ListedSpace,
    /// Its data file, or why none of it can be read.
    pub(crate) source: Result<Salvage>,
    /// The sequence number of its checkpoint, if that belongs to the main tablespace's: everything up to
    /// it was durable.
    pub(crate) checkpoint: Option<SeqNo>,
    /// The sequence number of its checkpoint, if that does not belong to the main tablespace's.
    pub(crate) other_state: Option<u64>,
    /// Its device, or why it cannot be used.
    device: Result<Arc<dyn Device>>,
    _locks: Vec<DirectoryLock>,
}

impl DamagedSpace {
    /// Returns the place of its log, given the device of the database's own. A place that cannot have the
    /// log, such as an empty disk instead of its own, counts as missing.
    pub(crate) fn log_place(&self, main: &dyn Device) -> LogPlaceOf<'_> {
        let device = self.device.clone().and_then(|device| {
            check_unit(main, &*device, &self.entry)?;
            Ok(device)
        });
        LogPlaceOf {
            entry: &self.entry,
            device,
            base: None,
        }
    }

    /// Whether this is the tablespace of a catalog's entry.
    pub(crate) fn is(&self, entry: &SpaceEntry) -> bool {
        self.entry.identity == entry.identity
    }

    /// Whether a table belongs to the tablespace.
    pub(crate) fn has(&self, table: u32) -> bool {
        space_of(table) == self.entry.number
    }
}

/// Opens the data files of the listed tablespaces for reading. Their own identity suffices: a damaged
/// note does not matter.
///
/// # Errors
/// [`Error::Locked`], [`Error::Corrupted`] if the list is unreadable, and [`Error::Tablespace`] if a
/// tablespace belongs to the database in another directory and `options` do not name its place.
pub(crate) fn open_damaged(
    device: &dyn Device,
    options: &Builder,
    main: &MainState,
) -> Result<Vec<DamagedSpace>> {
    let mut spaces = Vec::new();
    for entry in read_list(device)? {
        let attached = attach_listed(&Gate::new(None), &entry, options, (&[], false));
        let device = match &attached {
            Ok(attached) => Ok(attached.device.clone()),
            Err(error) => Err(error.clone()),
        };
        let device = match &attached {
            Ok(Attached {
                log: Some(Err(error)),
                ..
            }) => Err(error.clone()),
            _ => device,
        };
        let (source, state, locks) = match attached {
            Err(error @ Error::Locked { .. }) => return Err(error),
            Err(error) => (Err(error), None, Vec::new()),
            Ok(attached) => {
                check_not_of_original(&attached, &entry, options)?;
                let opened = open_data_file(&attached, &entry);
                let state = opened.as_ref().ok().map(|(_, meta)| *meta);
                let source = opened.map(|(source, _)| source);
                let lock_of_log = attached.log.and_then(Result::ok).and_then(|log| log.lock);
                let locks = attached.lock.into_iter().chain(lock_of_log).collect();
                (source, state, locks)
            }
        };
        let leads_here = |meta: &SpaceMeta| main.leads_here(meta);
        spaces.push(DamagedSpace {
            entry,
            source,
            checkpoint: state.filter(leads_here).map(|meta| meta.seqno),
            other_state: state
                .filter(|meta| !leads_here(meta))
                .map(|meta| meta.seqno.get()),
            device,
            _locks: locks,
        });
    }
    Ok(spaces)
}

fn open_data_file(attached: &Attached, entry: &ListedSpace) -> Result<(Salvage, SpaceMeta)> {
    let (name, path) = (&entry.name, attached.directory.clone().unwrap_or_default());
    let opened = Salvage::open(attached.device.clone());
    let mut source = opened.map_err(|error| not_opened(entry, &path, error))?;
    let meta = SpaceMeta::decode(source.meta()).map_err(|error| {
        let (name, path, reason) = (name.clone(), path.clone(), error.finding());
        fault(TablespaceError::Damaged { name, path, reason })
    })?;
    let ids = ids_of_space(entry.number);
    let is_other = |id: &u32| !ids.contains(id);
    if (meta.identity, meta.number) != (entry.identity, entry.number)
        || source.tree_ids().iter().any(is_other)
    {
        let reason = "its data file is that of another tablespace; put back its own".into();
        let name = name.clone();
        return Err(fault(TablespaceError::Foreign { name, path, reason }));
    }
    source.set_newest(meta.seqno.get());
    Ok((source, meta))
}
