//! Tablespaces in directories and on devices of their own: creating, opening and dropping them.
//!
//! `TABLESPACES` in the database's directory lists them, `TABLESPACE-OWNER` in each one's directory
//! names the database, and the catalog says which ones exist. A creation writes the list, the note,
//! the data file and a checkpoint, and then commits the catalog's entry; a drop commits the removal
//! of the entry, writes a checkpoint, and then removes the files and the entry of the list. So
//! whenever the catalog has a tablespace, in the newest checkpoint or in the log, the list has it, and
//! a file that the catalog does not know is in the list until it is removed: by the next opening for
//! writing, if the process ended too early.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{Device, Gate};
use braid_log::{CheckpointPosition, SeqNo};
use braid_store::{Store, StoreError, StoreOptions, Tree};

use super::DATA_FILE;
use crate::engine::spaces::Space;
use crate::error::{Error, Result, TablespaceError};
use crate::format::meta::{Decoded, Lagging};
use crate::format::space::{ListedSpace, SpaceMeta};
use crate::observe::trace;
use crate::options::Builder;
use crate::services::readers::{Attempt, Readers};

mod change;
mod choose;
mod list;
mod log_place;
mod logs;
mod owner;
mod place;
mod restored;
mod salvaged;
#[cfg(all(test, not(loom)))]
mod tests;

use self::choose::entry_in;
use self::owner::check_owner;
use self::place::{Attached, attach_listed};

pub(crate) use self::change::{create_tablespace, drop_tablespace};
pub(super) use self::choose::{Chosen, choose};
pub(crate) use self::list::{LIST_FILE, read_list};
pub(crate) use self::logs::{DamagedLogs, LogLanes, LogPlaceOf};
pub(super) use self::logs::{begin as begin_logs, name_logs, places as log_places};
pub(crate) use self::owner::OWNER_FILE;
pub(crate) use self::place::is_owner_note;
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

/// Returns the greatest sequence number of a checkpoint that was opened: everything up to it was durable in
/// all logs before.
pub(super) fn newest_checkpoint(main: &MainState, listed: &[Listed]) -> SeqNo {
    let opened = listed.iter().filter_map(|one| one.opened.as_ref().ok());
    let newest = opened.map(|opened| opened.seqno).max();
    newest.unwrap_or_default().max(main.start.seqno)
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
