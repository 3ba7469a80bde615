//! Which of the listed tablespaces the recovered catalog has, and what becomes of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use braid_log::SeqNo;
use braid_store::Tree;

use super::list::{LIST_FILE, write_list};
use super::owner::{write_log_owner, write_owner};
use super::place::{Freeing, database_directory, remove_files};
use super::{Listed, OpenedSpace, fault, other_state};
use crate::engine::leaves::Leaves;
use crate::engine::spaces::{Absent, Space, side_of};
use crate::error::{Error, Result, TablespaceError};
use crate::format::space::ListedSpace;
use crate::schema::entry::{
    CatalogEntry, NAMES, SPACES_MAX, SpaceEntry, damaged, space_key, space_of,
};
use crate::services::Instance;
use crate::services::readers::Attempt;

/// Returns the catalog's entry of a tablespace.
pub(super) fn entry_in(catalog: &Tree, number: u8) -> Result<Option<SpaceEntry>> {
    let found = catalog.get(&space_key(number), |_| true)?;
    let value = found.and_then(|found| found.value);
    value.map(|value| SpaceEntry::decode(&value)).transpose()
}

/// The tablespaces of a recovered database.
#[derive(Default)]
pub(in super::super) struct Chosen {
    pub(in super::super) spaces: Vec<Arc<Space>>,
    /// Those that cannot be opened: only for reading.
    pub(in super::super) absent: Vec<Absent>,
    /// Tablespaces whose creation or drop was interrupted.
    left: Vec<Listed>,
    /// Whether one has a checkpoint that is newer than the end of the log.
    is_ahead: bool,
    /// Whether the list or a note must be written.
    is_moved: bool,
}

/// Returns the tablespaces that the recovered catalog has. Every one must have been opened, in a state
/// that the log up to `cut` leads to, or the database is opened for reading only.
pub(in super::super) fn choose(
    listed: Vec<Listed>,
    catalog: &Tree,
    cut: SeqNo,
    read_only: bool,
) -> Result<Chosen> {
    let mut chosen = Chosen::default();
    let mut by_number: BTreeMap<u8, Listed> = BTreeMap::new();
    for one in listed {
        by_number.insert(one.entry.number, one);
    }
    for number in 1..SPACES_MAX {
        let entry = match entry_in(catalog, number) {
            // The catalog has none that is not in the list. One that cannot be opened may be the
            // rest of a creation.
            Err(Error::Corrupted { .. }) if read_only => {
                let one = by_number.get(&number);
                one.filter(|one| one.opened.is_ok()).map(|one| SpaceEntry {
                    identity: one.entry.identity,
                    name: one.entry.name.clone(),
                })
            }
            entry => entry?,
        };
        let Some(SpaceEntry { identity, name }) = entry else {
            continue;
        };
        let found = by_number.remove(&number);
        let found = found.filter(|found| found.entry.identity == identity);
        let seqno = found
            .as_ref()
            .and_then(|found| Some(found.opened.as_ref().ok()?.seqno));
        chosen.is_ahead |= seqno.is_some_and(|seqno| seqno > cut);
        match opened_up_to(found, &name, cut) {
            Ok(OpenedSpace {
                space, is_moved, ..
            }) => {
                chosen.is_moved |= is_moved;
                chosen.spaces.push(space);
            }
            Err(error @ Error::Tablespace(_)) if read_only => chosen.absent.push(Absent {
                number,
                name,
                error,
            }),
            Err(error) => return Err(error),
        }
    }
    if !by_number.is_empty() {
        chosen.sort_out(by_number, catalog, cut, read_only)?;
    }
    Ok(chosen)
}

impl Chosen {
    /// Says up to which number the database is read without the logs of `missing` tablespaces.
    pub(in super::super) fn name_missing_logs(&mut self, missing: &[u8], cut: SeqNo) {
        let mut absent = self.absent.iter_mut();
        while let Some(absent) = absent.find(|absent| missing.contains(&absent.number)) {
            if let Error::Tablespace(
                TablespaceError::Missing { reason, .. }
                | TablespaceError::Foreign { reason, .. }
                | TablespaceError::Damaged { reason, .. },
            ) = &mut absent.error
            {
                reason.push_str(&format!(
                    "; without its log, the others are read up to sequence number {cut}, the last one that is \
                     known to be durable everywhere"
                ));
            }
        }
    }

    /// Checks, for a reader alongside a writer, that the tablespaces are those of its state.
    pub(in super::super) fn check_with(&self, attempt: &Attempt) -> Result<()> {
        attempt.check_tablespaces(!self.absent.is_empty(), self.is_ahead)
    }

    /// Notes the tablespaces that the catalog lacks as the rests of creations and drops, which will be
    /// removed. Tables belong to none of them, unless an entry of the catalog is lost.
    fn sort_out(
        &mut self,
        listed: BTreeMap<u8, Listed>,
        catalog: &Tree,
        cut: SeqNo,
        read_only: bool,
    ) -> Result<()> {
        let used = spaces_of_tables(catalog);
        for (number, one) in listed {
            match &used {
                Ok(used) if !used.contains(&number) => self.left.push(one),
                _ if read_only => {
                    let name = one.entry.name.clone();
                    if let Ok(opened) = opened_up_to(Some(one), &name, cut) {
                        self.spaces.push(opened.space);
                    }
                }
                Ok(_) if braid_rt::mutant!("remove_a_tablespace_with_tables") => {
                    self.left.push(one);
                }
                Ok(_) => {
                    let what = format!(
                        "the entry of tablespace {:?}, which has tables, is lost",
                        one.entry.name
                    );
                    return Err(damaged(&what));
                }
                Err(error) => return Err(error.clone()),
            }
        }
        Ok(())
    }
}

/// Returns the numbers of the tablespaces to which the tables of a catalog belong.
fn spaces_of_tables(catalog: &Tree) -> Result<BTreeSet<u8>> {
    let (first, end) = ([NAMES], [NAMES + 1]);
    let mut spaces = BTreeSet::new();
    for leaf in Leaves::new(catalog, Bound::Included(&first), Bound::Excluded(&end)) {
        let leaf = leaf?;
        for (index, record) in leaf.records().enumerate() {
            if !record.meta.tombstone {
                let entry = CatalogEntry::decode(&leaf.value(index))?;
                spaces.insert(space_of(entry.id));
            }
        }
    }
    Ok(spaces)
}

/// Returns a tablespace of the catalog as opened. The log up to `cut` must lead to its state.
fn opened_up_to(found: Option<Listed>, name: &str, cut: SeqNo) -> Result<OpenedSpace> {
    let Some(Listed { entry, opened, .. }) = found else {
        let reason = format!(
            "it is not in {LIST_FILE}; put back that file from a copy of the database's directory"
        );
        let (name, path) = (name.to_owned(), PathBuf::new());
        return Err(fault(TablespaceError::Missing { name, path, reason }));
    };
    let opened = opened?;
    if opened.seqno > cut && !braid_rt::mutant!("accept_a_tablespace_of_another_state") {
        // The log is damaged, or older than the tablespace.
        return Err(other_state(&entry, &entry.directory, opened.seqno, cut));
    }
    Ok(opened)
}

impl Chosen {
    /// Removes what interrupted creations and drops have left, and records directories that were
    /// moved, once the database is open.
    pub(in super::super) fn settle(self, instance: &Instance) -> Result<()> {
        if self.left.is_empty() && !self.is_moved {
            return Ok(());
        }
        let log = &instance.engine.log;
        for one in &self.left {
            let side = side_of(one.entry.number);
            if log.has_side_lane(side) {
                log.retire_side_lane(side)?;
            }
        }
        if !self.left.is_empty() {
            // I10: the log that says that the tablespaces do not exist is durable from now on.
            instance.whole_checkpoint()?;
        }
        let device = instance.engine.store.device();
        for one in &self.left {
            let of_space = one
                .opened
                .as_ref()
                .ok()
                .map(|opened| opened.space.store.device());
            let of_place = one.left.as_ref().map(|left| &left.device);
            // A place that cannot be reached keeps its files.
            if let Some(device) = of_space.or(of_place) {
                braid_rt::coverage_point("opening: the rest of a tablespace is removed");
                remove_files(&**device, one.entry.identity, Freeing::Whole)?;
            }
        }
        let database = database_directory(instance);
        for space in &self.spaces {
            write_owner(&**space.store.device(), space.identity, &database)?;
            if space.log.is_some() {
                write_log_owner(&**space.store.device(), space.identity, &database)?;
            }
        }
        let entries: Vec<ListedSpace> = self.spaces.iter().map(|space| space.entry()).collect();
        write_list(&**device, &entries)
    }
}
