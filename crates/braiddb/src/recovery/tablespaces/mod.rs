//! Tablespaces in directories and on devices of their own: creating, opening and dropping them.
//!
//! `TABLESPACES` in the database's directory lists them, `TABLESPACE-OWNER` in each one's directory
//! names the database, and the catalog says which ones exist. A creation writes the list, the note,
//! the data file and a checkpoint, and then commits the catalog's entry; a drop commits the removal
//! of the entry, writes a checkpoint, and then removes the files and the entry of the list. So
//! whenever the catalog has a tablespace, in the newest checkpoint or in the log, the list has it, and
//! a file that the catalog does not know is in the list until it is removed: by the next opening for
//! writing, if the process ended too early.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{Device, Gate};
use braid_log::{CheckpointPosition, SeqNo};
use braid_store::{Store, StoreError, StoreOptions, Tree};

use super::DATA_FILE;
use crate::engine::leaves::Leaves;
use crate::engine::spaces::{Absent, Space, side_of};
use crate::error::{Error, Result, TablespaceError};
use crate::format::meta::{Decoded, Lagging};
use crate::format::space::{ListedSpace, SpaceMeta};
use crate::observe::trace;
use crate::options::Builder;
use crate::schema::entry::{
    CatalogEntry, NAMES, SPACES_MAX, SpaceEntry, damaged, space_key, space_of,
};
use crate::services::Instance;
use crate::services::readers::{Attempt, Readers};

mod change;
mod list;
mod log_place;
mod logs;
mod place;
mod restored;
mod salvaged;
#[cfg(all(test, not(loom)))]
mod tests;

use self::list::write_list;
use self::log_place::write_log_owner;
use self::place::{
    Attached, attach_listed, check_owner, database_directory, remove_files, write_owner,
};

pub(crate) use self::change::{create_tablespace, drop_tablespace};
pub(crate) use self::list::{LIST_FILE, read_list};
pub(crate) use self::logs::{DamagedLogs, LogLanes, LogPlaceOf};
pub(super) use self::logs::{begin as begin_logs, name_logs, places as log_places};
pub(crate) use self::place::{OWNER_FILE, is_owner_note};
pub(crate) use self::restored::{RestoredSpace, attach_restored, record_restored};
pub(crate) use self::salvaged::{DamagedSpace, open_damaged};

/// A tablespace of the list.
pub(super) struct Listed {
    entry: ListedSpace,
    /// The tablespace, or why it cannot be opened.
    opened: Result<OpenedSpace>,
    /// Its place, if only its files cannot be used.
    left: Option<Attached>,
    /// Its device without a view that keeps changes in memory.
    base: Option<Arc<dyn Device>>,
    /// Whether its place is its own, so that its log, if it has one, is there.
    is_log_there: bool,
    /// Why its log cannot be used, if that alone prevents the opening.
    log: Option<Error>,
}

/// Views of a data file that a reader tries next to a writer.
const VIEWS: u32 = 4;

impl Listed {
    /// Whether what was found in its data file looks damaged.
    fn is_damaged(&self) -> bool {
        let damaged =
            |error: &Error| matches!(error, Error::Tablespace(TablespaceError::Damaged { .. }));
        self.opened.as_ref().is_err_and(damaged)
    }

    /// The present directories, if the tablespace was opened there.
    pub(super) fn directories(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let opened = self.opened.as_ref().ok().into_iter();
        opened.flat_map(|opened| opened.space.places().map(|(_, directory)| directory))
    }
}

/// A tablespace, as opened.
struct OpenedSpace {
    space: Arc<Space>,
    /// Sequence number of its checkpoint.
    seqno: SeqNo,
    /// The stamp of its checkpoint.
    stamp: u64,
    /// Whether the list or the note lacks a present directory.
    is_moved: bool,
    /// Whether its checkpoint is older than the main one's.
    is_lagging: bool,
}

/// The newest checkpoint of the main tablespace.
pub(crate) struct MainState {
    pub(crate) stamp: u64,
    pub(crate) start: CheckpointPosition,
    /// The number of lanes of the database's own log.
    lanes: usize,
    /// The tablespaces that have an older checkpoint.
    pub(crate) lagging: Option<Lagging>,
}

impl MainState {
    pub(crate) fn of(decoded: &Decoded) -> Self {
        Self {
            stamp: decoded.stamp,
            start: decoded.start.clone(),
            lanes: usize::from(decoded.meta.lanes),
            lagging: decoded.lagging.clone(),
        }
    }

    /// Returns a position that is not newer than any tablespace's checkpoint.
    fn oldest(&self) -> &CheckpointPosition {
        let lagging = self.lagging.as_ref();
        lagging.map_or(&self.start, |lagging| &lagging.start)
    }

    /// Whether a tablespace's checkpoint is that of the main one, or follows it.
    fn has(&self, meta: &SpaceMeta) -> bool {
        [meta.stamp, meta.follows].contains(&self.stamp)
    }

    /// Whether a tablespace's checkpoint is the one that the main one says it lags with.
    fn is_lagging(&self, meta: &SpaceMeta) -> bool {
        let stamps = self
            .lagging
            .as_ref()
            .and_then(|lagging| lagging.stamps(meta.number));
        !self.has(meta) && stamps.is_some_and(|stamps| stamps.contains(&meta.stamp))
    }

    /// Whether a tablespace's checkpoint belongs to the state of the main one: the log leads from it to
    /// that state.
    fn leads_here(&self, meta: &SpaceMeta) -> bool {
        self.has(meta) || self.is_lagging(meta)
    }
}

/// Returns the position where the replay of the log begins: that of the main tablespace's checkpoint, or
/// of the oldest one of a tablespace that was opened. Replay compares versions (I7), so what newer
/// checkpoints already have stays, and the log has the newest write of every key that changed since.
pub(super) fn replay_from(main: &MainState, listed: &[Listed]) -> CheckpointPosition {
    let mut opened = listed.iter().filter_map(|one| one.opened.as_ref().ok());
    if !opened.any(|opened| opened.is_lagging)
        || braid_rt::mutant!("replay_from_the_main_tablespace")
    {
        return main.start.clone();
    }
    braid_rt::coverage_point("opening: a tablespace has an older checkpoint than the main one");
    main.oldest().clone()
}

fn fault(error: TablespaceError) -> Error {
    Error::Tablespace(error)
}

/// What the opening of a database's tablespaces depends on.
pub(super) struct Opening<'a> {
    pub(super) gate: &'a Gate,
    pub(super) options: &'a Builder,
    pub(super) main: &'a MainState,
    /// An attempt to read with pins locks no directory.
    pub(super) attempt: Option<&'a Attempt>,
    /// Logs that an earlier attempt found damaged.
    pub(super) damaged: &'a DamagedLogs,
}

/// Opens the tablespaces of the list. One that cannot be opened is an error only if the catalog has
/// it, see [`choose`].
pub(super) fn open_listed(opening: &Opening<'_>, device: &dyn Device) -> Result<Vec<Listed>> {
    let mut listed: Vec<Listed> = Vec::new();
    // A writer may publish a checkpoint beyond the end that a data file had when its view was made: that
    // looks like damage, and a new view shows it. What is damaged remains so.
    let attempts = match opening.attempt {
        Some(attempt) if attempt.is_pinned() => VIEWS,
        _ => 1,
    };
    for entry in read_list(device)? {
        let mut opened = opening.open_one(&entry, &listed);
        for _ in 1..attempts {
            if !opened.is_damaged() || braid_rt::mutant!("trust_the_first_view") {
                break;
            }
            opened = opening.open_one(&entry, &listed);
        }
        listed.push(opened);
    }
    Ok(listed)
}

impl Opening<'_> {
    /// Opens a tablespace of the list; `before` were opened before it.
    fn open_one(&self, entry: &ListedSpace, before: &[Listed]) -> Listed {
        let Self { options, main, .. } = *self;
        let is_pinned = self.attempt.is_some_and(Attempt::is_pinned);
        let attached = attach_listed(self.gate, entry, options, (before, is_pinned));
        let mut one = Listed {
            entry: entry.clone(),
            opened: Err(Error::Closed),
            left: None,
            base: None,
            is_log_there: false,
            log: None,
        };
        let mut attached = match attached {
            Ok(attached) => attached,
            Err(error) => {
                one.opened = Err(error);
                return one;
            }
        };
        if let Some(attempt) = self.attempt {
            attached.device = attempt.paced(attached.device.clone());
        }
        one.base = Some(attached.base.clone());
        one.is_log_there = has_log(&attached, entry, options);
        let mut is_log_moved = false;
        if one.is_log_there {
            match self.check_log(&attached, entry) {
                Ok(is_moved) => is_log_moved = is_moved,
                Err(error) => one.log = Some(error),
            }
            one.is_log_there = one.log.is_none();
        }
        let opened = match &one.log {
            Some(error) => Err(error.clone()),
            None => open_files(&attached, entry, options, main),
        };
        match opened {
            Err(error) => {
                one.opened = Err(error);
                one.left = Some(attached);
            }
            Ok((store, meta, is_data_moved)) => {
                let is_moved = is_data_moved || is_log_moved;
                let space = new_space(entry, attached, store);
                let is_lagging = main.is_lagging(&meta);
                // From here the log is kept if its next checkpoint fails, too.
                let start = if is_lagging {
                    main.oldest()
                } else {
                    &main.start
                };
                space.state.set_found(meta.stamp, start);
                one.opened = Ok(OpenedSpace {
                    space,
                    seqno: meta.seqno,
                    stamp: meta.stamp,
                    is_moved,
                    is_lagging,
                });
            }
        }
        one
    }
}

/// Whether the place of a tablespace has its log, if it has one: the note says so, or it is damaged and there
/// are files of a log. Without either, the disk is not mounted.
fn has_log(attached: &Attached, entry: &ListedSpace, options: &Builder) -> bool {
    match check_owner(attached, entry, options) {
        Ok(_) => true,
        Err(Error::Tablespace(TablespaceError::Foreign { .. })) => false,
        Err(_) => attached.device.list().is_ok_and(|files| {
            let mut names = files.iter().map(|file| &file.name);
            names.any(|name| braid_log::is_log_name(name))
        }),
    }
}

/// Opens the data file of a tablespace, and checks that it belongs to the database's newest state.
/// Also returns the description of its checkpoint, and whether the list or the note lacks a present
/// directory.
fn open_files(
    attached: &Attached,
    entry: &ListedSpace,
    options: &Builder,
    main: &MainState,
) -> Result<(Store, SpaceMeta, bool)> {
    let path = attached.directory.clone().unwrap_or_default();
    let is_data_renamed = check_owner(attached, entry, options)?;
    let store_options = StoreOptions {
        pool_bytes: usize::try_from(entry.pool_bytes).unwrap_or(usize::MAX),
        memory: entry.memory(options.numa),
        number: entry.number,
    };
    let device = attached.device.clone();
    let opened = if options.read_only {
        Store::open_read_only(device, store_options)
    } else {
        Store::open(device, store_options)
    };
    let (store, meta) = opened.map_err(|error| not_opened(entry, &path, error))?;
    let meta = SpaceMeta::decode(&meta).map_err(|error| {
        let (name, path) = (entry.name.clone(), path.clone());
        let reason = error.finding();
        fault(TablespaceError::Damaged { name, path, reason })
    })?;
    if (meta.identity, meta.number) != (entry.identity, entry.number) {
        let reason = "its data file is that of another tablespace; put back its own".into();
        let name = entry.name.clone();
        return Err(fault(TablespaceError::Foreign { name, path, reason }));
    }
    if !main.leads_here(&meta) && !braid_rt::mutant!("accept_a_tablespace_of_another_state") {
        return Err(other_state(entry, &path, meta.seqno, main.start.seqno));
    }
    if main.stamp == meta.follows {
        braid_rt::coverage_point("opening: a tablespace has a newer checkpoint than the main one");
    }
    store.write_lines(options.pmem_lines);
    store.read_in_place(options.pmem_in_place);
    if let Some(node) = entry
        .node
        .filter(|_| options.numa && store.memory_node().is_none())
    {
        trace::memory_node_is_missing(&entry.name, node);
    }
    Ok((store, meta, is_data_renamed || path != entry.directory))
}

fn new_space(entry: &ListedSpace, attached: Attached, store: Store) -> Arc<Space> {
    let Attached {
        directory,
        access,
        lock,
        log,
        ..
    } = attached;
    let log = log.and_then(Result::ok);
    let listed = match &log {
        Some(log) => Some(log.listed()),
        // It cannot be used: the data file is only checked.
        None => entry.log.clone(),
    };
    let locks = lock.into_iter().chain(log.and_then(|log| log.lock));
    let locks = locks.collect();
    Arc::new(Space::new(entry, store, directory, access, listed, locks))
}

fn other_state(entry: &ListedSpace, path: &Path, found: SeqNo, expected: SeqNo) -> Error {
    fault(TablespaceError::OtherState {
        name: entry.name.clone(),
        path: path.to_owned(),
        found: found.get(),
        expected: expected.get(),
    })
}

/// Converts the error of opening a tablespace's data file.
fn not_opened(entry: &ListedSpace, path: &Path, error: StoreError) -> Error {
    let (name, path) = (entry.name.clone(), path.to_owned());
    match error {
        StoreError::Io { ref source, .. } if source.kind() == io::ErrorKind::NotFound => {
            let reason =
                format!("it contains no {DATA_FILE}; mount its disk, or put back the file");
            fault(TablespaceError::Missing { name, path, reason })
        }
        StoreError::Corrupted { .. } | StoreError::Incompatible { .. } => {
            let reason = Error::from(error).finding();
            fault(TablespaceError::Damaged { name, path, reason })
        }
        error => error.into(),
    }
}

/// Refuses a tablespace that cannot be opened although the catalog of the checkpoint has it, before
/// anything else is read.
pub(super) fn check_early(listed: &[Listed], catalog: &Tree) -> Result<()> {
    for one in listed {
        if let Err(error) = &one.opened
            && entry_in(catalog, one.entry.number)?.is_some()
        {
            return Err(error.clone());
        }
    }
    Ok(())
}

/// A tablespace to be checked.
pub(crate) struct Checked {
    /// The tablespace, or why its data file cannot be used.
    pub(crate) space: Result<Arc<Space>>,
    /// Why its log cannot be used.
    pub(crate) log: Option<Error>,
}

/// Opens the tablespaces that the catalog of a checkpoint has, for reading only, to check their data
/// files and the log, of which the database itself has `lanes` lanes. `options` are those of a reader,
/// and say where the database and its tablespaces are. Also returns the number of the newest checkpoint.
pub(crate) fn open_to_check(
    device: &Arc<dyn Device>,
    options: &Builder,
    main: &MainState,
    catalog: &Tree,
    lanes: u16,
    attempt: &Attempt,
) -> Result<(Vec<Checked>, LogLanes, SeqNo)> {
    let opening = Opening {
        gate: &Gate::new(None),
        options,
        main,
        attempt: Some(attempt),
        damaged: &DamagedLogs::default(),
    };
    let listed = open_listed(&opening, &**device)?;
    let places = (log_places(&listed), true);
    let lanes = LogLanes::of(device.clone(), lanes, main.oldest(), places)?;
    let newest = newest_checkpoint(main, &listed);
    let (mut spaces, mut is_ahead, mut is_any_absent) = (Vec::new(), false, false);
    for one in listed {
        // One that is not in the catalog may be the rest of a creation or a drop.
        if entry_in(catalog, one.entry.number)?.is_none() {
            continue;
        }
        is_any_absent |= one.opened.is_err();
        let opened = one.opened.inspect(|opened| {
            let durable = attempt.durable;
            is_ahead |= durable.is_some_and(|durable| opened.seqno > durable);
        });
        let space = match (&one.log, one.left) {
            // Its data file can be checked without its log.
            (Some(_), Some(left)) => {
                let opened = open_files(&left, &one.entry, options, main);
                opened.map(|(store, ..)| new_space(&one.entry, left, store))
            }
            _ => opened.map(|opened| opened.space),
        };
        spaces.push(Checked {
            space,
            log: one.log,
        });
    }
    attempt.check_tablespaces(is_any_absent, is_ahead)?;
    Ok((spaces, lanes, newest))
}

/// Returns the catalog's entry of a tablespace.
fn entry_in(catalog: &Tree, number: u8) -> Result<Option<SpaceEntry>> {
    let found = catalog.get(&space_key(number), |_| true)?;
    let value = found.and_then(|found| found.value);
    value.map(|value| SpaceEntry::decode(&value)).transpose()
}

/// The tablespaces of a recovered database.
#[derive(Default)]
pub(super) struct Chosen {
    pub(super) spaces: Vec<Arc<Space>>,
    /// Those that cannot be opened: only for reading.
    pub(super) absent: Vec<Absent>,
    /// Tablespaces whose creation or drop was interrupted.
    left: Vec<Listed>,
    /// Whether one has a checkpoint that is newer than the end of the log.
    is_ahead: bool,
    /// Whether the list or a note must be written.
    is_moved: bool,
}

/// Returns the tablespaces that the recovered catalog has. Every one must have been opened, in a state
/// that the log up to `cut` leads to, or the database is opened for reading only.
pub(super) fn choose(
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

/// Returns the greatest sequence number of a checkpoint that was opened: everything up to it was durable in
/// all logs before.
pub(super) fn newest_checkpoint(main: &MainState, listed: &[Listed]) -> SeqNo {
    let opened = listed.iter().filter_map(|one| one.opened.as_ref().ok());
    let newest = opened.map(|opened| opened.seqno).max();
    newest.unwrap_or_default().max(main.start.seqno)
}

impl Chosen {
    /// Says up to which number the database is read without the logs of `missing` tablespaces.
    pub(super) fn name_missing_logs(&mut self, missing: &[u8], cut: SeqNo) {
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
    pub(super) fn check_with(&self, attempt: &Attempt) -> Result<()> {
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

/// Names the tablespaces' data files in messages, as those of an open database.
pub(super) fn name_files(listed: &[Listed]) {
    let opened = listed.iter().filter_map(|one| one.opened.as_ref().ok());
    opened.for_each(|opened| name_file(&opened.space));
}

fn name_file(space: &Space) {
    let name = format!("{DATA_FILE} of tablespace {:?}", space.name);
    space.store.name_file(name);
}

/// Pins the data files of tablespaces of which readers may use checkpoints that only the previous writer
/// knew. The newest checkpoint of the main tablespace, `main`, has the sequence `sequence`. Call before any
/// change.
pub(super) fn pin_older(
    readers: &Readers,
    listed: &[Listed],
    main: &MainState,
    sequence: u64,
) -> Result<()> {
    if braid_rt::mutant!("forget_older_readers_of_tablespaces") {
        return Ok(());
    }
    for opened in listed.iter().filter_map(|one| one.opened.as_ref().ok()) {
        // The checkpoint with the main one's stamp was replaced: its readers pin the newest one, too.
        let is_replaced = opened.stamp != main.stamp;
        let before = if is_replaced { sequence + 1 } else { sequence };
        readers.pin_older(&opened.space.store, before)?;
    }
    Ok(())
}

/// Returns the stores of the tablespaces that could be opened, for replay.
pub(super) fn opened(listed: &[Listed]) -> Vec<(u8, Store)> {
    let opened = listed.iter().filter_map(|one| one.opened.as_ref().ok());
    opened
        .map(|opened| (opened.space.number, opened.space.store.clone()))
        .collect()
}

impl Chosen {
    /// Removes what interrupted creations and drops have left, and records directories that were
    /// moved, once the database is open.
    pub(super) fn settle(self, instance: &Instance) -> Result<()> {
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
                remove_files(&**device, one.entry.identity)?;
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
