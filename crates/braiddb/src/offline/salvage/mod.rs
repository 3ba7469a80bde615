//! Salvage: copying everything readable of a damaged database into a new one.
//!
//! The damaged database is only read. The records found of its newest checkpoint (see
//! [`braid_store::Salvage`]), in the data files of all tablespaces, and of the log after it are added,
//! with their sequence numbers, to the trees of a new database. Replay then decides which version is
//! newer, as recovery does. The new database has one data file: tables of tablespaces get other
//! numbers once all are filled. It is marked as unfinished until all of it is durable.

mod filled;
mod logs;

use std::path::Path;
use std::sync::Arc;

use braid_io::{Device, DirectoryLock, Gate, Held};
use braid_store::Salvage as DataFile;

use self::filled::Filled;
use crate::database::Database;
use crate::error::{Error, Result};
use crate::format::meta::Meta;
use crate::offline::verify::{Locks, Offline};
use crate::options::{Builder, SpacePlace, SpacePlaces};
use crate::recovery;
use crate::recovery::tablespaces::{DamagedSpace, LIST_FILE, LogLanes, MainState, open_damaged};
use crate::services::Instance;
use crate::services::archive::ON_DEVICE;

/// Damage or loss found by [`salvage`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// Damaged data that was recovered from elsewhere.
    Damaged(String),
    /// Lost data.
    Lost(String),
}

/// Result of [`salvage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvageReport {
    /// Tables in the new database.
    pub tables: u64,
    /// Entries read from the pages of the newest checkpoint.
    pub entries: u64,
    /// Transactions replayed from the log.
    pub transactions: u64,
    /// Number of findings of the kind [`Finding::Lost`].
    pub losses: u64,
}

/// Salvages what can be read of a damaged, closed database into a new one in the directory `into`,
/// which is created. Writes nothing to the damaged one. Calls `sink` with each damage and each
/// loss, with the table and the range of keys or the sequence numbers of the log's transactions
/// that it concerns.
///
/// Entries whose table is unknown are put into new tables named `salvaged-…`, as are tables whose
/// name is lost.
///
/// Tablespaces are read where the database recorded them, or where [`Salvage`] names them. One that is
/// missing or unreadable is a loss that names its tables, which then have what the log has of them. The
/// new database has all tables in its own directory.
///
/// ```no_run
/// use braid::offline::{Finding, SalvageReport, salvage};
///
/// # fn main() -> braid::Result<()> {
/// let report: SalvageReport = salvage("/data/shop", "/data/salvaged", &mut |finding| {
///     match finding {
///         Finding::Lost(what) => eprintln!("lost: {what}"),
///         finding => println!("{finding:?}"),
///     }
/// })?;
/// println!("{} entries in {} tables, {} losses", report.entries, report.tables, report.losses);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::NotADatabase`] (also if `into` is not empty), [`Error::Locked`],
/// [`Error::Incompatible`]; [`Error::Corrupted`] if no checkpoint can be found; [`Error::Tablespace`] if
/// a tablespace belongs to the database in another directory, of which this is a copy;
/// [`Error::OutOfSpace`] or [`Error::Io`].
pub fn salvage(
    path: impl AsRef<Path>,
    into: impl AsRef<Path>,
    sink: &mut dyn FnMut(Finding),
) -> Result<SalvageReport> {
    Salvage::new().run(path, into, sink)
}

/// How to salvage a database; [`salvage`] uses the defaults.
///
/// ```no_run
/// use braid::offline::Salvage;
///
/// # fn main() -> braid::Result<()> {
/// // A copy of a damaged database, with its tablespace.
/// let salvage = Salvage::new().tablespace_directory("fast", "/copies/fast");
/// let report = salvage.run("/copies/shop", "/data/salvaged", &mut |finding| println!("{finding:?}"))?;
/// println!("{} losses", report.losses);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Salvage {
    /// Where the tablespaces are.
    tablespaces: SpacePlaces,
}

impl Salvage {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the present directory of a tablespace, as
    /// [`Builder::tablespace_directory`](crate::Builder::tablespace_directory) does: of one that was
    /// moved or is mounted elsewhere, or that belongs to a copy of the database; see [`Salvage`]. Has
    /// no effect if there is no such tablespace.
    pub fn tablespace_directory(mut self, name: &str, path: impl AsRef<Path>) -> Self {
        let place = SpacePlace::Directory(path.as_ref().to_owned());
        self.tablespaces.add(name, place);
        self
    }

    /// Names the present directory of a tablespace's log, as
    /// [`Builder::tablespace_log_directory`](crate::Builder::tablespace_log_directory) does.
    ///
    /// ```
    /// use braid::offline::Salvage;
    /// let salvage = Salvage::new().tablespace_directory("disk", "/copies/disk");
    /// let salvage = salvage.tablespace_log_directory("disk", "/copies/disk-log");
    /// ```
    pub fn tablespace_log_directory(mut self, name: &str, path: impl AsRef<Path>) -> Self {
        let place = SpacePlace::Directory(path.as_ref().to_owned());
        self.tablespaces.add_log(name, place);
        self
    }

    /// Names the present device of a tablespace, as
    /// [`Builder::tablespace_device`](crate::Builder::tablespace_device) does; see [`Salvage::run_on`].
    pub fn tablespace_device(mut self, name: &str, device: Arc<dyn Device>) -> Self {
        self.tablespaces.add(name, SpacePlace::device(device));
        self
    }

    /// Names the present device of a tablespace's log, as
    /// [`Builder::tablespace_log_on`](crate::Builder::tablespace_log_on) does; see [`Salvage::run_on`].
    pub fn tablespace_log_on(mut self, name: &str, device: Arc<dyn Device>) -> Self {
        self.tablespaces.add_log(name, SpacePlace::device(device));
        self
    }

    /// Salvages a database on a device onto another one, which must be empty; see [`salvage`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # use std::sync::Arc;
    /// # use braid::device::MemoryDevice;
    /// # use braid::tablespace::TablespaceOptions;
    /// use braid::offline::Salvage;
    /// # let [damaged, disk, log, new]: [Arc<MemoryDevice>; 4] = Default::default();
    /// # let builder = braid::Database::builder().pool_bytes(1 << 20);
    /// # let db = builder.clone().open_on(damaged.clone())?;
    /// # let options = TablespaceOptions::on_device(disk.clone()).pool_bytes(1 << 20);
    /// # db.create_tablespace("disk", options.log_on(log.clone()))?;
    /// # db.open_table_in::<u32, u32>("disk", "t", Default::default())?;
    /// # db.close()?;
    /// let salvage = Salvage::new().tablespace_device("disk", disk).tablespace_log_on("disk", log);
    /// let report = salvage.run_on(damaged, new.clone(), &mut |finding| println!("{finding:?}"))?;
    /// assert_eq!((report.tables, report.losses), (1, 0));
    /// assert_eq!(builder.open_on(new)?.table_names()?, ["t"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`salvage`].
    pub fn run_on(
        &self,
        device: Arc<dyn Device>,
        into: Arc<dyn Device>,
        sink: &mut dyn FnMut(Finding),
    ) -> Result<SalvageReport> {
        let into = || {
            let files = into.list();
            if !files
                .map_err(|e| Error::io("cannot list the files of the new database's device", e))?
                .is_empty()
            {
                return Err(not_empty(ON_DEVICE.as_ref()));
            }
            Ok((None, into))
        };
        let (report, db) = salvage_device(device, into, &new_options(&self.tablespaces), sink)?;
        db.close()?;
        Ok(report)
    }

    /// Salvages a database into the directory `into`; see [`salvage`].
    ///
    /// # Errors
    /// As [`salvage`].
    pub fn run(
        &self,
        path: impl AsRef<Path>,
        into: impl AsRef<Path>,
        sink: &mut dyn FnMut(Finding),
    ) -> Result<SalvageReport> {
        run(path.as_ref(), into.as_ref(), &self.tablespaces, sink)
    }
}

fn run(
    path: &Path,
    into: &Path,
    tablespaces: &SpacePlaces,
    sink: &mut dyn FnMut(Finding),
) -> Result<SalvageReport> {
    let mut without_log = 0;
    let (_locks, device) = match Offline::device(path) {
        Err(error @ Error::LogDirectory { .. }) => {
            sink(Finding::Lost(format!("the log: {error}")));
            without_log = 1;
            let (lock, device) = Offline::data_device(path)?;
            (Locks(lock, None), device)
        }
        opened => opened?,
    };
    let options = Builder {
        directory: braid_io::resolve(path).ok(),
        ..new_options(tablespaces)
    };
    let into = || {
        let (lock, device) = new_directory(into)?;
        Ok((Some(Box::new(lock) as Held), device))
    };
    let (mut report, db) = salvage_device(device, into, &options, sink)?;
    report.losses += without_log;
    db.close()?;
    Ok(report)
}

/// Small segments: the user's next open chooses its own sizes, and a log is needed here.
fn new_options(tablespaces: &SpacePlaces) -> Builder {
    Builder {
        tablespaces: tablespaces.clone(),
        ..Builder::default()
            .background_threads(false)
            .segment_bytes(1 << 20)
    }
}

fn not_empty(path: &Path) -> Error {
    Error::NotADatabase {
        path: path.to_owned(),
        reason: "it is not empty; choose an empty directory for the new database".into(),
    }
}

/// As [`salvage`], given the damaged database's device and a function that creates the new one's.
/// `options` are those of the new database, and say where the damaged one and its tablespaces are.
/// Leaves the new database open.
pub(crate) fn salvage_device(
    device: Arc<dyn Device>,
    into: impl FnOnce() -> Result<(Option<Held>, Arc<dyn Device>)>,
    options: &Builder,
    sink: &mut dyn FnMut(Finding),
) -> Result<(SalvageReport, Database)> {
    let mut report = SalvageReport::default();
    let mut tell = |finding: Finding| {
        report.losses += u64::from(matches!(finding, Finding::Lost(_)));
        sink(finding);
    };
    let mut source = DataFile::open(device.clone())?;
    tell_of(&source, "", &mut tell);
    let decoded = Meta::decode_all(source.meta())?;
    let (meta, seqno) = (decoded.meta, decoded.start.seqno);
    source.set_newest(seqno.get());
    let spaces = salvage_spaces(&*device, options, &MainState::of(&decoded), &mut tell)?;
    let start = decoded.replay_from();
    let places = spaces.iter().map(|space| space.log_place(&*device));
    let places = places.collect();
    let lanes = LogLanes::of(device, meta.lanes, start, (places, true));
    let newest = spaces.iter().filter_map(|space| space.checkpoint);
    let known = newest.fold(seqno, |known, checkpoint| known.max(checkpoint));
    let logs = logs::read(lanes, (&meta, start, known), &spaces, &mut tell)?;
    let (lock, new_device) = into()?;
    let mut filled = Filled::new(&source, &spaces, seqno);
    let seqno = logs.iter().fold(seqno, |seqno, log| seqno.max(log.cut));
    let fill = |instance: &Instance| filled.fill(&instance.engine, &logs, seqno);
    let gate = Gate::new(lock);
    let device = gate.device(new_device);
    let new_options = Builder {
        directory: None,
        tablespaces: SpacePlaces::default(),
        ..options.clone()
    };
    let instance = recovery::create(&gate, device, &new_options, meta, seqno, fill)?;
    let db = Database::from_instance(instance);
    for note in filled.take_made_good() {
        tell(Finding::Damaged(note));
    }
    for loss in filled.named_losses(&db)? {
        tell(Finding::Lost(loss));
    }
    report.tables = db.table_names()?.len() as u64;
    report.entries = filled.entries;
    report.transactions = filled.transactions;
    Ok((report, db))
}

/// Reports what opening a data file found.
fn tell_of(source: &DataFile, of: &str, tell: &mut dyn FnMut(Finding)) {
    for note in source.notes() {
        tell(Finding::Damaged(format!("{of}{note}")));
    }
    for loss in source.lost() {
        tell(Finding::Lost(format!("{of}{loss}")));
    }
}

/// Opens the data files of the tablespaces. Whether one that cannot be read is a loss is known once
/// the catalog is.
fn salvage_spaces(
    device: &dyn Device,
    options: &Builder,
    main: &MainState,
    tell: &mut dyn FnMut(Finding),
) -> Result<Vec<DamagedSpace>> {
    let options = options.clone().reading();
    let spaces = match open_damaged(device, &options, main) {
        Err(error @ Error::Corrupted { .. }) => {
            let what = error.finding();
            tell(Finding::Damaged(format!(
                "{what}: it says where the tablespaces are, so none of {LIST_FILE} is read"
            )));
            return Ok(Vec::new());
        }
        opened => opened?,
    };
    for space in &spaces {
        if let Ok(source) = &space.source {
            let of = format!("tablespace {:?}: ", space.entry.name);
            tell_of(source, &of, tell);
        }
    }
    Ok(spaces)
}

/// Creates and locks a directory for the new database.
fn new_directory(into: &Path) -> Result<(DirectoryLock, Arc<dyn Device>)> {
    let failed = |error| match Error::of_volume(into, &error) {
        Some(error) => error,
        None => Error::io(format!("cannot create {}", into.display()), error),
    };
    braid_io::create_directory(into).map_err(failed)?;
    if !braid_io::list_directory(into).map_err(failed)?.is_empty() {
        return Err(not_empty(into));
    }
    Offline::lock(into)
}
