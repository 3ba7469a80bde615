//! Tablespaces in directories and on devices of their own: creating, opening and dropping them.
//!
//! `TABLESPACES` in the database's directory lists them, `TABLESPACE-OWNER` in each one's directory
//! names the database, and the catalog says which ones exist. A creation writes the list, the note,
//! the data file and a checkpoint, and then commits the catalog's entry; a drop commits the removal
//! of the entry, and then removes the files and the entry of the list. So whenever the catalog has a
//! tablespace, the list has it, and a file that the catalog does not know is in the list until it
//! is removed: by the next opening for writing, if the process ended too early.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{
    Device, DeviceChoice, DirectoryLock, Gate, LOCK_FILE_NAME, LockError, OverlayDevice,
};
use braid_log::{Log, SeqNo};
use braid_rt::Mutex;
use braid_store::{Store, StoreError, StoreOptions, Tree};

use super::DATA_FILE;
use super::contents::sync_names;
use super::log_directory::Note;
use crate::catalog::Catalog;
use crate::engine::spaces::Space;
use crate::error::{Error, Result, TablespaceError};
use crate::format::note;
use crate::format::space::{ListedSpace, SpaceMeta, decode_list, encode_list};
use crate::options::{Builder, SpacePlace, TablespaceOptions};
use crate::schema::entry::{SPACES_MAX, SpaceEntry, check_space_name, space_key, space_of};
use crate::services::Instance;

/// The list in the database's directory.
pub(crate) const LIST_FILE: &str = "TABLESPACES";
const LIST_MAGIC: [u8; 8] = *b"BRAIDTS\x01";

/// The note in a tablespace's directory: the tablespace's identity and the database's directory.
pub(super) const OWNER_FILE: &str = "TABLESPACE-OWNER";
const OWNER_MAGIC: [u8; 8] = *b"BRAIDTO\x01";

/// Most bytes of a directory's name in a note.
const PATH_BYTES_MAX: usize = 4000;

/// A tablespace of the list.
pub(super) struct Listed {
    entry: ListedSpace,
    /// The tablespace, or why it cannot be opened.
    opened: Result<OpenedSpace>,
    /// Its place, if only its files cannot be used.
    left: Option<Attached>,
}

/// A tablespace, as opened.
struct OpenedSpace {
    space: Arc<Space>,
    /// Sequence number of its checkpoint.
    seqno: SeqNo,
    /// Whether the list or the note lacks a present directory.
    is_moved: bool,
}

/// A directory or device of a tablespace, opened.
struct Attached {
    device: Arc<dyn Device>,
    directory: Option<PathBuf>,
    access: DeviceChoice,
    lock: Option<DirectoryLock>,
}

/// The newest checkpoint of the main tablespace.
pub(crate) struct MainState {
    pub(crate) stamp: u64,
    pub(crate) seqno: SeqNo,
}

/// Reads the list of tablespaces.
pub(crate) fn read_list(device: &dyn Device) -> Result<Vec<ListedSpace>> {
    let found = note::read_list(device, LIST_FILE, LIST_MAGIC);
    let found = found.map_err(|e| Error::io(format!("cannot read {LIST_FILE}"), e))?;
    let Some(fields) = found else {
        return Ok(Vec::new());
    };
    let decoded = fields.ok().and_then(|fields| decode_list(&fields));
    decoded.ok_or_else(|| Error::Corrupted {
        what: "the list of tablespaces is unreadable".into(),
        location: LIST_FILE.into(),
    })
}

/// Replaces the list of tablespaces durably.
fn write_list(device: &dyn Device, entries: &[ListedSpace]) -> Result<()> {
    if entries.is_empty() {
        let removed = ignore_missing(device.remove(LIST_FILE));
        removed.map_err(|e| Error::io(format!("cannot remove {LIST_FILE}"), e))?;
        return sync_names(device);
    }
    let fields = encode_list(entries).ok_or_else(|| Error::InvalidOption {
        option: "tablespace",
        reason: "the name of its directory must be valid UTF-8".into(),
    })?;
    let written = note::write(device, LIST_FILE, LIST_MAGIC, &fields);
    written.map_err(|e| Error::io(format!("cannot write {LIST_FILE}"), e))
}

fn ignore_missing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// The error of reading a database with further tablespaces where that is not supported.
pub(crate) fn check_none(
    device: &dyn Device,
    operation: &'static str,
    advice: &'static str,
) -> Result<()> {
    match read_list(device)?.into_iter().next() {
        None => Ok(()),
        Some(ListedSpace { name, .. }) => {
            let error = TablespaceError::Unsupported {
                operation,
                name,
                advice,
            };
            Err(Error::Tablespace(error))
        }
    }
}

fn fault(error: TablespaceError) -> Error {
    Error::Tablespace(error)
}

/// Opens the tablespaces of the list. One that cannot be opened is an error only if the catalog has
/// it, see [`choose`].
pub(super) fn open_listed(
    gate: &Gate,
    device: &dyn Device,
    options: &Builder,
    main: &MainState,
) -> Result<Vec<Listed>> {
    let mut listed: Vec<Listed> = Vec::new();
    for entry in read_list(device)? {
        let attached = attach_listed(gate, &entry, options, &listed);
        let (opened, left) = match attached {
            Err(error) => (Err(error), None),
            Ok(attached) => match open_attached(&attached, &entry, options, main) {
                Err(error) => (Err(error), Some(attached)),
                Ok(opened) => (Ok(opened.space_of(&entry, attached)), None),
            },
        };
        listed.push(Listed {
            entry,
            opened,
            left,
        });
    }
    Ok(listed)
}

/// Whether the caller of the opening names the place of a tablespace.
fn named<'a>(entry: &ListedSpace, options: &'a Builder) -> Option<&'a SpacePlace> {
    let mut places = options.tablespaces.iter().rev();
    let found = places.find(|(name, _)| *name == entry.name);
    found.map(|(_, place)| place)
}

/// Opens the directory or the device of a tablespace.
fn attach_listed(
    gate: &Gate,
    entry: &ListedSpace,
    options: &Builder,
    before: &[Listed],
) -> Result<Attached> {
    match named(entry, options) {
        None if entry.directory.as_os_str().is_empty() => Err(fault(missing(
            entry,
            "it is on a device of the caller; open the database with tablespace_device",
        ))),
        None => attach(gate, entry, &entry.directory, options, before),
        Some(SpacePlace::Directory(path)) => attach(gate, entry, path, options, before),
        Some(SpacePlace::Device(device)) => Ok(Attached {
            device: gate.device(view_if(options.read_only, device.clone())?),
            directory: None,
            access: entry.access,
            lock: None,
        }),
    }
}

/// Returns the device itself, or, for reading only, a view of it that keeps changes in memory.
fn view_if(read_only: bool, device: Arc<dyn Device>) -> Result<Arc<dyn Device>> {
    if !read_only {
        return Ok(device);
    }
    let view = OverlayDevice::new(device);
    let view = view.map_err(|e| Error::io("cannot list the files of a tablespace", e))?;
    Ok(Arc::new(view))
}

/// Opens the data file of a tablespace, and checks that it belongs to the database's newest state.
fn open_attached(
    attached: &Attached,
    entry: &ListedSpace,
    options: &Builder,
    main: &MainState,
) -> Result<OpenedStore> {
    let path = attached.directory.clone().unwrap_or_default();
    let is_renamed = check_owner(attached, entry, options)?;
    let store_options = StoreOptions {
        pool_bytes: usize::try_from(entry.pool_bytes).unwrap_or(usize::MAX),
        numa: options.numa,
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
    if main.stamp != meta.stamp
        && main.stamp != meta.follows
        && !braid_rt::mutant!("accept_a_tablespace_of_another_state")
    {
        return Err(other_state(entry, &path, meta.seqno, main.seqno));
    }
    if main.stamp != meta.stamp {
        braid_rt::coverage_point("opening: a tablespace has a newer checkpoint than the main one");
    }
    store.write_lines(options.pmem_lines);
    store.read_in_place(options.pmem_in_place);
    Ok(OpenedStore {
        store,
        seqno: meta.seqno,
        is_moved: is_renamed || path != entry.directory,
    })
}

/// The data file of a tablespace, as opened.
struct OpenedStore {
    store: Store,
    /// Sequence number of its checkpoint.
    seqno: SeqNo,
    /// Whether the list or the note lacks a present directory.
    is_moved: bool,
}

impl OpenedStore {
    fn space_of(self, entry: &ListedSpace, attached: Attached) -> OpenedSpace {
        OpenedSpace {
            space: new_space(entry, attached, self.store),
            seqno: self.seqno,
            is_moved: self.is_moved,
        }
    }
}

fn new_space(entry: &ListedSpace, attached: Attached, store: Store) -> Arc<Space> {
    Arc::new(Space {
        number: entry.number,
        name: entry.name.clone(),
        identity: entry.identity,
        store,
        directory: attached.directory,
        access: attached.access,
        pool_bytes: usize::try_from(entry.pool_bytes).unwrap_or(usize::MAX),
        lock: Mutex::new(attached.lock),
    })
}

fn missing(entry: &ListedSpace, reason: &str) -> TablespaceError {
    TablespaceError::Missing {
        name: entry.name.clone(),
        path: entry.directory.clone(),
        reason: reason.into(),
    }
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

/// Locks and opens the directory of a tablespace.
fn attach(
    gate: &Gate,
    entry: &ListedSpace,
    path: &Path,
    options: &Builder,
    before: &[Listed],
) -> Result<Attached> {
    let directory = braid_io::resolve(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => fault(TablespaceError::Missing {
            name: entry.name.clone(),
            path: path.to_owned(),
            reason:
                "the directory does not exist; mount its disk, or name the present directory with \
                     tablespace_directory"
                    .into(),
        }),
        _ => Error::io(format!("cannot open {}", path.display()), error),
    })?;
    let others = before.iter().filter_map(|listed| {
        let space = &listed.opened.as_ref().ok()?.space;
        Some((space.name.as_str(), space.directory.as_deref()?))
    });
    if let Some(owner) = occupant(&directory, options, others) {
        let (name, path) = (entry.name.clone(), directory);
        let reason = format!("{owner} is there; name its own directory with tablespace_directory");
        return Err(fault(TablespaceError::Foreign { name, path, reason }));
    }
    if options.read_only {
        open_shared(gate, directory, entry.access)
    } else {
        open_locked(gate, directory, entry.access, options.file_mode)
    }
}

/// Returns what already lies in a directory: a part of this database.
fn occupant<'a>(
    directory: &Path,
    options: &Builder,
    spaces: impl IntoIterator<Item = (&'a str, &'a Path)>,
) -> Option<String> {
    if options.directory.as_deref() == Some(directory) {
        return Some("the database itself".into());
    }
    if options.log_place.as_ref().map(|log| &*log.directory) == Some(directory) {
        return Some("the log".into());
    }
    let mut spaces = spaces.into_iter();
    let (name, _) = spaces.find(|(_, other)| *other == directory)?;
    Some(format!("tablespace {name:?}"))
}

fn open_locked(
    gate: &Gate,
    directory: PathBuf,
    access: DeviceChoice,
    mode: u32,
) -> Result<Attached> {
    let lock = DirectoryLock::acquire_with_mode(&directory, mode);
    let lock = lock.map_err(|error| locking(&directory, error))?;
    let device = braid_io::open_directory_with_mode(&directory, access, mode);
    let device =
        device.map_err(|e| Error::io(format!("cannot open {}", directory.display()), e))?;
    Ok(Attached {
        device: gate.device(device),
        directory: Some(directory),
        access,
        lock: Some(lock),
    })
}

/// As [`open_locked`], for reading only: changes no file, and excludes writers, which lock the
/// directory.
fn open_shared(gate: &Gate, directory: PathBuf, access: DeviceChoice) -> Result<Attached> {
    let lock = DirectoryLock::acquire_shared(&directory);
    let lock = lock.map_err(|error| locking(&directory, error))?;
    let device = braid_io::open_directory_read_only(&directory);
    let device =
        device.map_err(|e| Error::io(format!("cannot open {}", directory.display()), e))?;
    Ok(Attached {
        device: gate.device(view_if(true, device)?),
        directory: Some(directory),
        access,
        lock: Some(lock),
    })
}

fn locking(directory: &Path, error: LockError) -> Error {
    match error {
        LockError::Held => Error::locked(directory),
        LockError::Io(error) => Error::io(format!("cannot lock {}", directory.display()), error),
    }
}

/// Checks that the note in a tablespace's directory is the listed tablespace's. Returns whether it
/// names another directory of the database, which only a caller that names the tablespace's
/// directory may change.
fn check_owner(attached: &Attached, entry: &ListedSpace, options: &Builder) -> Result<bool> {
    let (name, path) = (
        entry.name.clone(),
        attached.directory.clone().unwrap_or_default(),
    );
    let Ok(owner) = Note::read(&*attached.device, OWNER_FILE, OWNER_MAGIC)? else {
        let reason = format!(
            "it has no intact {OWNER_FILE}; mount its disk, or name the present directory with tablespace_directory"
        );
        return Err(fault(TablespaceError::Missing { name, path, reason }));
    };
    let other = owner.directory.display();
    if owner.identity != entry.identity
        && !braid_rt::mutant!("accept_the_tablespace_of_another_database")
    {
        let reason = format!(
            "it has another tablespace, of the database in {other}; name the present directory with tablespace_directory"
        );
        return Err(fault(TablespaceError::Foreign { name, path, reason }));
    }
    let database = options.directory.clone().unwrap_or_default();
    if owner.directory != database && named(entry, options).is_none() {
        let reason = format!(
            "it belongs to the database in {other}; if that database was moved to {}, open it with \
             tablespace_directory once; if it was copied, copy this directory, too, and open the copy with it",
            database.display()
        );
        return Err(fault(TablespaceError::Foreign { name, path, reason }));
    }
    Ok(owner.directory != database)
}

/// Refuses a tablespace that cannot be opened although the catalog of the checkpoint has it, before
/// anything else is read.
pub(super) fn check_early(listed: &[Listed], catalog: &Tree, read_only: bool) -> Result<()> {
    for one in listed {
        let Err(error) = &one.opened else { continue };
        match entry_in(catalog, one.entry.number) {
            Ok(None) => {}
            // The replay may read around the damage; `choose` decides.
            Err(Error::Corrupted { .. }) if read_only => {}
            found => {
                found?;
                return Err(error.clone());
            }
        }
    }
    Ok(())
}

/// Opens the tablespaces that the catalog of a checkpoint has, for reading only, to check their data
/// files. `database` is the database's directory.
pub(crate) fn open_to_check(
    device: &dyn Device,
    database: Option<PathBuf>,
    main: &MainState,
    catalog: &Tree,
) -> Result<Vec<Result<Arc<Space>>>> {
    let options = Builder {
        directory: database,
        ..Builder::default().reading()
    };
    let mut spaces = Vec::new();
    for one in open_listed(&Gate::new(None), device, &options, main)? {
        // One that is not in the catalog may be the rest of a creation or a drop.
        if entry_in(catalog, one.entry.number)?.is_some() {
            spaces.push(one.opened.map(|opened| opened.space));
        }
    }
    Ok(spaces)
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
    /// Tablespaces whose creation or drop was interrupted.
    left: Vec<Listed>,
    /// Whether the list or a note must be written.
    is_moved: bool,
}

/// Returns the tablespaces that the recovered catalog has. Every one must have been opened, in a state
/// that the log up to `cut` leads to.
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
        let Some(Listed { entry, opened, .. }) = found else {
            let reason = format!(
                "it is not in {LIST_FILE}; put back that file from a copy of the database's directory"
            );
            let path = PathBuf::new();
            return Err(fault(TablespaceError::Missing { name, path, reason }));
        };
        let OpenedSpace {
            space,
            seqno,
            is_moved,
        } = opened?;
        if seqno > cut && !braid_rt::mutant!("accept_a_tablespace_of_another_state") {
            // The log is damaged, or older than the tablespace.
            return Err(other_state(&entry, &entry.directory, seqno, cut));
        }
        chosen.is_moved |= is_moved;
        chosen.spaces.push(space);
    }
    chosen.left = by_number.into_values().collect();
    Ok(chosen)
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
        if !self.left.is_empty() {
            // I10: the log that says that the tablespaces do not exist is durable from now on.
            instance.checkpoint()?;
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
        }
        let entries: Vec<ListedSpace> = self.spaces.iter().map(|space| entry_of(space)).collect();
        write_list(&**device, &entries)
    }
}

fn database_directory(instance: &Instance) -> PathBuf {
    instance.files.directory.clone().unwrap_or_default()
}

fn entry_of(space: &Space) -> ListedSpace {
    ListedSpace {
        number: space.number,
        identity: space.identity,
        pool_bytes: space.pool_bytes as u64,
        name: space.name.clone(),
        directory: space.directory.clone().unwrap_or_default(),
        access: space.access,
    }
}

fn write_owner(device: &dyn Device, identity: u128, database: &Path) -> Result<()> {
    let owner = Note {
        identity,
        directory: database.to_owned(),
        device: DeviceChoice::Auto,
    };
    if Note::read(device, OWNER_FILE, OWNER_MAGIC)?.ok().as_ref() == Some(&owner) {
        return Ok(());
    }
    owner.write(device, OWNER_FILE, OWNER_MAGIC)
}

/// Removes the files of a tablespace if they are the one's with this identity, the note last. Without
/// the note, there is at most an unfinished one.
fn remove_files(device: &dyn Device, identity: u128) -> Result<()> {
    let failed = |e| Error::io("cannot remove the files of a tablespace", e);
    let is_own = |name: &str| {
        let note = Note::read(device, name, OWNER_MAGIC)?;
        Ok::<_, Error>(note.is_ok_and(|owner| owner.identity == identity))
    };
    if is_own(OWNER_FILE)? {
        ignore_missing(device.remove(DATA_FILE)).map_err(failed)?;
        sync_names(device)?;
        ignore_missing(device.remove(OWNER_FILE)).map_err(failed)?;
    }
    let unfinished = format!("{OWNER_FILE}.new");
    let is_blank = match note::is_blank(device, &unfinished, OWNER_MAGIC) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        is_blank => is_blank.map_err(failed)?,
    };
    if is_blank || is_own(&unfinished)? {
        ignore_missing(device.remove(&unfinished)).map_err(failed)?;
    }
    sync_names(device)
}

/// Creates a tablespace.
pub(crate) fn create_tablespace(
    instance: &Instance,
    name: &str,
    options: &TablespaceOptions,
) -> Result<()> {
    let engine = &instance.engine;
    engine.check_open()?;
    engine.check_writable()?;
    check_space_name(name)?;
    options.validate()?;
    instance.check_can_have_spaces(name)?;
    let _change = engine.tables.change.lock();
    if engine.spaces.named(name).is_some() {
        let name = name.to_owned();
        return Err(fault(TablespaceError::Exists { name }));
    }
    let device = engine.store.device().clone();
    let mut entries = read_list(&*device)?;
    let is_free = |number: &u8| entries.iter().all(|entry| entry.number != *number);
    let number = engine.spaces.unused(is_free).ok_or_else(|| {
        let max = usize::from(SPACES_MAX) - 1;
        let name = name.to_owned();
        fault(TablespaceError::TooMany { name, max })
    })?;
    let attached = prepare(instance, name, options)?;
    let entry = ListedSpace {
        number,
        identity: Log::new_identity(),
        pool_bytes: options.pool_bytes as u64,
        name: name.to_owned(),
        directory: attached.directory.clone().unwrap_or_default(),
        access: attached.access,
    };
    let identity = entry.identity;
    entries.push(entry);
    let space_device = attached.device.clone();
    let created = write_list(&*device, &entries)
        .and_then(|()| create_files(instance, attached, &entries[entries.len() - 1]))
        .and_then(|space| {
            engine.spaces.add(space);
            // Before the first table: from this checkpoint on, only a version that knows tablespaces
            // opens the database, and recovery finds a checkpoint in each.
            instance.checkpoint()?;
            Catalog::of(engine).add_space(number, name, identity)
        });
    created.inspect_err(|_| {
        // If the log failed, it is unknown whether the tablespace exists: the next opening knows. A
        // tablespace's own device fails with the same error.
        if engine.check_not_poisoned().is_ok() {
            let _no_checkpoint = instance.hold_checkpoints();
            engine.spaces.remove(number);
            entries.pop();
            // The next opening removes whatever is left from here on.
            let _ = remove_files(&*space_device, identity)
                .and_then(|()| write_list(&*device, &entries));
        }
    })
}

/// Creates the note and the data file of a tablespace, without a checkpoint.
fn create_files(
    instance: &Instance,
    attached: Attached,
    entry: &ListedSpace,
) -> Result<Arc<Space>> {
    write_owner(
        &*attached.device,
        entry.identity,
        &database_directory(instance),
    )?;
    let defaults = &instance.files.defaults;
    let store_options = StoreOptions {
        pool_bytes: usize::try_from(entry.pool_bytes).unwrap_or(usize::MAX),
        numa: defaults.numa,
        number: entry.number,
    };
    let device = attached.device.clone();
    let store = Store::create_as(device, store_options, entry.identity)?;
    store.write_lines(defaults.pmem_lines);
    store.read_in_place(defaults.pmem_in_place);
    Ok(new_space(entry, attached, store))
}

/// Prepares the directory or the device of a new tablespace.
fn prepare(instance: &Instance, name: &str, options: &TablespaceOptions) -> Result<Attached> {
    let files = &instance.files;
    let occupied = |path: &Path, reason: String| {
        let (name, path) = (name.to_owned(), path.to_owned());
        fault(TablespaceError::Occupied { name, path, reason })
    };
    let attached = match &options.place {
        SpacePlace::Device(device) => Attached {
            device: files.gate.device(device.clone()),
            directory: None,
            access: DeviceChoice::Auto,
            lock: None,
        },
        SpacePlace::Directory(path) => {
            let made = braid_io::create_directory_with_mode(path, files.mode);
            made.map_err(|e| Error::io(format!("cannot create {}", path.display()), e))?;
            let directory = braid_io::resolve(path)
                .map_err(|e| Error::io(format!("cannot open {}", path.display()), e))?;
            let is_recordable = |path: &Path| {
                let name = path.to_str();
                name.is_some_and(|name| name.len() <= PATH_BYTES_MAX)
            };
            if !is_recordable(&directory) || !is_recordable(&database_directory(instance)) {
                let reason = "the directories' names must be valid UTF-8 and short".into();
                return Err(occupied(path, reason));
            }
            let here = Builder {
                directory: files.directory.clone(),
                log_place: files.log.clone(),
                ..Builder::default()
            };
            let spaces = instance.engine.spaces.all();
            let others = spaces
                .iter()
                .filter_map(|space| Some((space.name.as_str(), space.directory.as_deref()?)));
            if let Some(owner) = occupant(&directory, &here, others) {
                let reason = format!("{owner} is there; choose an empty directory");
                return Err(occupied(path, reason));
            }
            let access = options.access.unwrap_or(files.defaults.device);
            open_locked(&files.gate, directory, access, files.mode)?
        }
    };
    let path = attached.directory.clone().unwrap_or_default();
    if let Ok(owner) = Note::read(&*attached.device, OWNER_FILE, OWNER_MAGIC)? {
        let other = owner.directory.display();
        let reason =
            format!("it has a tablespace of the database in {other}; choose an empty directory");
        return Err(occupied(&path, reason));
    }
    let entries = attached.device.list();
    let entries = entries.map_err(|e| Error::io("cannot list the tablespace's directory", e))?;
    if let Some(entry) = entries.iter().find(|entry| entry.name != LOCK_FILE_NAME) {
        let reason = format!("it contains {:?}; choose an empty directory", entry.name);
        return Err(occupied(&path, reason));
    }
    Ok(attached)
}

/// Drops a tablespace, which must have no tables.
pub(crate) fn drop_tablespace(instance: &Instance, name: &str) -> Result<()> {
    let engine = &instance.engine;
    engine.check_open()?;
    engine.check_writable()?;
    let _change = engine.tables.change.lock();
    let named = engine.spaces.named(name);
    let space = named.ok_or_else(|| {
        let name = name.to_owned();
        fault(TablespaceError::NotFound { name })
    })?;
    let number = space.number;
    // Tombstones refer to their tables.
    engine.collect_all_versions();
    engine.free_dropped_tables()?;
    let catalog = Catalog::of(engine);
    let is_in = |id: u32| space_of(id) == number;
    let existing = catalog.names_by_id()?.into_iter();
    let existing = existing.filter_map(|(id, name)| is_in(id).then_some(name));
    let dropped = engine.tables.dropped.lock();
    let dropped = dropped.iter().filter(|core| is_in(core.id));
    let dropped: Vec<String> = dropped.map(|core| core.name.read().clone()).collect();
    if let Some(table) = existing.chain(dropped).next()
        && !braid_rt::mutant!("drop_a_tablespace_with_tables")
    {
        let name = name.to_owned();
        return Err(fault(TablespaceError::NotEmpty { name, table }));
    }
    catalog.remove_space(number)?;
    // A running checkpoint writes to the tablespace.
    let _no_checkpoint = instance.hold_checkpoints();
    engine.spaces.remove(number);
    // An opening needs the files of the tablespaces that the newest checkpoint's catalog has, before
    // it knows what the log says.
    if !braid_rt::mutant!("remove_a_tablespace_before_the_checkpoint") {
        instance.checkpoint_locked()?;
    }
    space.store.read_in_place(false);
    remove_files(&**space.store.device(), space.identity)?;
    let device = engine.store.device();
    let mut entries = read_list(&**device)?;
    entries.retain(|entry| entry.number != number);
    write_list(&**device, &entries)?;
    space.lock.lock().take();
    Ok(())
}
