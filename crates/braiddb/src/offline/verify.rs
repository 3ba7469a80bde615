//! Inspection of a database that is not open: checking it and printing it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use braid_io::{Device, DeviceChoice, DirectoryLock};
use braid_log::{CheckpointPosition, Log, Recovered, SeqNo};
use braid_store::{Store, StoreOptions};

use crate::database::Database;
use crate::engine::spaces::Space;
use crate::error::{Error, Result};
use crate::format::meta::Meta;
use crate::format::redo;
use crate::options::{Builder, SpacePlace, SpacePlaces};
use crate::recovery::tablespaces::{Checked, DamagedLogs, LogLanes, MainState};
use crate::recovery::{
    CREATING_FILE, Contents, DATA_FILE, UNFINISHED, inspect, locking, log_directory,
    open_directory_read_only, opening, read_source, tablespaces,
};
use crate::schema::entry::CATALOG_ID;
use crate::services::readers::{Attempt, Pace, Pins};

/// Result of [`verify`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path();
/// # drop(braid::Database::builder().pool_bytes(1 << 20).open(path)?);
/// let report: braid::offline::VerifyReport = braid::offline::verify(path, &mut |damage| eprintln!("{damage}"))?;
/// assert_eq!(report.damages, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Pages of the data file.
    pub pages: u64,
    /// Records in the pages, including tombstones.
    pub records: u64,
    /// Tables, including the catalog.
    pub tables: u64,
    /// Bytes of log after the newest checkpoint.
    pub log_bytes: u64,
    /// Transactions in that log.
    pub log_transactions: u64,
    /// Number of damages found.
    pub damages: u64,
    /// Superblocks of which a power failure left only a part, in persistent memory: 0 or 1. That is
    /// no damage: the other superblock and the log lead to every transaction, and the next process
    /// that writes clears the torn one.
    pub torn_superblocks: u64,
    /// Whether the creation of the database was interrupted. That is no damage, and there is nothing to
    /// check: the next opening for writing removes the files and starts over.
    pub creation_interrupted: bool,
}

/// How to check a database; [`verify`] checks with the defaults.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path();
/// # drop(braid::Database::builder().pool_bytes(1 << 20).open(path)?);
/// use braid::offline::Verify;
///
/// let report = Verify::new().max_rate(100 << 20).check(path, &mut |damage| eprintln!("{damage}"))?;
/// assert_eq!(report.damages, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Verify {
    max_rate: Option<u64>,
    /// Where the tablespaces are.
    tablespaces: SpacePlaces,
}

impl Verify {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads at most this many bytes per second. Otherwise, a check is as fast as the device allows,
    /// but leaves three quarters of the time to the transactions of another process while they
    /// commit; with a rate, it does not pause for them.
    pub fn max_rate(mut self, bytes_per_second: u64) -> Self {
        self.max_rate = Some(bytes_per_second);
        self
    }

    /// Names the present directory of a tablespace, as
    /// [`Builder::tablespace_directory`](crate::Builder::tablespace_directory) does: of one that was
    /// moved or is mounted elsewhere, or that belongs to a copy of the database. The database does not
    /// record the directory. Has no effect if there is no such tablespace.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, old, new) = (dir.path().join("db"), dir.path().join("old"), dir.path().join("new"));
    /// # use braid::tablespace::TablespaceOptions;
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open(&path)?;
    /// # db.create_tablespace("fast", TablespaceOptions::in_directory(&old).pool_bytes(1 << 20))?;
    /// # db.close()?;
    /// use braid::offline::Verify;
    ///
    /// std::fs::rename(&old, &new).unwrap();
    /// let verify = Verify::new().tablespace_directory("fast", &new);
    /// let report = verify.check(&path, &mut |damage| eprintln!("{damage}"))?;
    /// assert_eq!(report.damages, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn tablespace_directory(mut self, name: &str, path: impl AsRef<Path>) -> Self {
        let place = SpacePlace::Directory(path.as_ref().to_owned());
        self.tablespaces.add(name, place);
        self
    }

    /// Names the present directory of a tablespace's log, as
    /// [`Builder::tablespace_log_directory`](crate::Builder::tablespace_log_directory) does. The database does
    /// not record the directory.
    ///
    /// ```
    /// use braid::offline::Verify;
    /// let verify = Verify::new().tablespace_directory("disk", "/copies/disk");
    /// let verify = verify.tablespace_log_directory("disk", "/copies/disk-log");
    /// ```
    pub fn tablespace_log_directory(mut self, name: &str, path: impl AsRef<Path>) -> Self {
        let place = SpacePlace::Directory(path.as_ref().to_owned());
        self.tablespaces.add_log(name, place);
        self
    }

    /// Returns the options of a reader.
    fn reader(&self) -> Builder {
        Builder {
            tablespaces: self.tablespaces.clone(),
            ..Builder::default().reading()
        }
    }

    /// Checks a database; see [`verify`].
    ///
    /// # Errors
    /// As [`verify`].
    pub fn check(
        &self,
        path: impl AsRef<Path>,
        sink: &mut dyn FnMut(String),
    ) -> Result<VerifyReport> {
        check(path.as_ref(), self, sink)
    }

    /// Prints a database; see [`dump`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// # drop(braid::Database::builder().pool_bytes(1 << 20).open(path)?);
    /// let mut text = String::new();
    /// braid::offline::Verify::new().dump(path, &mut text)?;
    /// assert!(text.contains("protocol glsn"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`dump`].
    pub fn dump(&self, path: impl AsRef<Path>, out: &mut dyn fmt::Write) -> Result<()> {
        print(path.as_ref(), self, out)
    }

    /// Opens a database read-only, as [`Database::open_read_only`] does, to check more than the
    /// engine knows about its keys and values. Its reads leave the device to transactions, or keep
    /// the rate, as those of [`Verify::check`] do.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// # drop(braid::Database::builder().pool_bytes(1 << 20).open(path)?);
    /// use braid::{Readable, offline::Verify};
    ///
    /// let db = Verify::new().max_rate(100 << 20).open(path)?;
    /// if let Some(names) = db.untyped_table("names")? {
    ///     for entry in db.snapshot().iter(&names)? {
    ///         let (name, _) = entry?;
    ///         assert!(!name.is_empty());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open_read_only`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Database> {
        let pace = Pace {
            max_rate: self.max_rate,
        };
        let opened = open_directory_read_only(path.as_ref(), self.reader(), Some(pace));
        opened.map(Database::from_instance)
    }
}

/// The locks of a database that is not open.
#[derive(Debug)]
pub(crate) struct Locks(
    #[expect(dead_code, reason = "dropping it releases the lock")] pub(crate) DirectoryLock,
    #[expect(dead_code, reason = "as above")] pub(crate) Option<DirectoryLock>,
);

pub(crate) const POOL_BYTES: usize = 64 << 20;

/// A database that is inspected but not opened for use.
pub(crate) struct Offline {
    /// Pins that keep a writer from overwriting the state.
    pins: Option<Pins>,
    store: Store,
    /// The tablespaces other than the main one.
    spaces: Vec<Checked>,
    /// The log, without those of tablespaces that cannot be used.
    recovered: Result<Recovered>,
    meta: Meta,
}

impl Offline {
    /// Locks the directory of a database, and that of its log, and opens the device of both.
    pub(crate) fn device(path: &Path) -> Result<(Locks, Arc<dyn Device>)> {
        let (lock, device) = Self::data_device(path)?;
        let attached = log_directory::attach(path, device, &Builder::default())?;
        let locks = Locks(lock, attached.lock);
        Ok((locks, attached.device))
    }

    /// As [`Offline::device`], without the directory of the log.
    pub(crate) fn data_device(path: &Path) -> Result<(DirectoryLock, Arc<dyn Device>)> {
        Self::check(path, &[DATA_FILE])?;
        Self::lock(path)
    }

    /// Refuses a place that has none of these files of a database.
    fn check(path: &Path, names: &[&str]) -> Result<()> {
        for name in names {
            if braid_io::has_file(path, name).map_err(|error| opening(path, error))? {
                return Ok(());
            }
        }
        Err(Error::NotADatabase {
            path: path.to_owned(),
            reason: "it contains no data.braid; check the path".into(),
        })
    }

    pub(crate) fn lock(path: &Path) -> Result<(DirectoryLock, Arc<dyn Device>)> {
        let lock = DirectoryLock::acquire(path).map_err(|error| locking(path, error))?;
        let device = braid_io::open_directory(path, DeviceChoice::Auto);
        let device = device.map_err(|error| opening(path, error))?;
        Ok((lock, device))
    }

    /// Opens the newest state; another process may write meanwhile. All logs must be readable.
    pub(crate) fn open(path: &Path, how: &Verify) -> Result<Self> {
        let offline = Self::open_created(path, how)?.ok_or_else(|| Error::NotADatabase {
            path: path.to_owned(),
            reason: UNFINISHED.into(),
        })?;
        offline.log()?;
        Ok(offline)
    }

    /// Returns the log, if all of it can be read.
    fn log(&self) -> Result<&Recovered> {
        if let Some(error) = self.spaces.iter().find_map(|space| space.log.as_ref()) {
            return Err(error.clone());
        }
        self.recovered.as_ref().map_err(Error::clone)
    }

    /// As [`Offline::open`]; `None` if the creation of the database was interrupted.
    fn open_created(path: &Path, how: &Verify) -> Result<Option<Self>> {
        Self::check(path, &[DATA_FILE, CREATING_FILE])?;
        let options = Builder {
            directory: braid_io::resolve(path).ok(),
            ..how.reader()
        };
        let (source, _) = read_source(path, &options)?;
        let max_rate = how.max_rate;
        let source = source.paced(Pace { max_rate });
        let attempt = |attempt: &Attempt| Self::attempt(attempt, &options);
        let (offline, pins) = source.open_with(None, attempt)?;
        Ok(offline.map(|offline| Self { pins, ..offline }))
    }

    fn attempt(attempt: &Attempt, options: &Builder) -> Result<Option<Self>> {
        if let Contents::Unfinished(_) = inspect(&*attempt.device)? {
            return Ok(None);
        }
        let device = attempt.device.clone();
        let store_options = StoreOptions::of_pool(POOL_BYTES);
        let (store, meta) = Store::open_read_only(device.clone(), store_options)?;
        attempt.check_checkpoint(store.stats().checkpoint_sequence)?;
        let decoded = Meta::decode_all(&meta)?;
        let (meta, start) = (decoded.meta, decoded.replay_from().clone());
        let newest = decoded.start.seqno;
        let (mut spaces, lanes, newest) = if decoded.stamp == 0 {
            (Vec::new(), LogLanes::none(device), newest)
        } else {
            let main = MainState::of(&decoded);
            let catalog = store.tree(CATALOG_ID)?;
            tablespaces::open_to_check(&device, options, &main, &catalog, meta.lanes, attempt)?
        };
        let start = if lanes.missing.is_empty() {
            start
        } else {
            lanes.start.clone()
        };
        let read = (newest, attempt.durable);
        let mut recovered = recover_log(&lanes, &start, &meta, read);
        // While another process writes, the log may only seem damaged.
        if attempt.durable.is_none() && lanes.side_lanes > 0 && is_damage(&recovered) {
            recovered = without_damaged(lanes, &meta, newest, &mut spaces);
        }
        if attempt.durable.is_some() || !is_damage(&recovered) {
            recovered = Ok(recovered?);
        }
        Ok(Some(Self {
            pins: None,
            store,
            spaces,
            recovered,
            meta,
        }))
    }
}

fn is_damage(recovered: &Result<Recovered>) -> bool {
    matches!(recovered, Err(Error::Corrupted { .. }))
}

/// Reads the log from a position, without the lanes that are missing. Everything up to `newest` was
/// durable.
fn recover_log(
    lanes: &LogLanes,
    start: &CheckpointPosition,
    meta: &Meta,
    (newest, durable): (SeqNo, Option<SeqNo>),
) -> Result<Recovered> {
    let (device, options) = (lanes.device.clone(), meta.log_options(lanes.side_lanes));
    let recovered = match durable {
        _ if !lanes.missing.is_empty() => {
            Log::recover_proven(device, options, start, newest, durable, &|_| {})
        }
        None => Log::recover(device, options, start, &|_| {}),
        Some(durable) => Log::recover_up_to(device, options, start, durable, &|_| {}),
    };
    Ok(recovered?)
}

/// Reads a damaged log without the logs of tablespaces that are damaged each by itself, and notes these
/// logs' errors.
fn without_damaged(
    lanes: LogLanes,
    meta: &Meta,
    newest: SeqNo,
    spaces: &mut [Checked],
) -> Result<Recovered> {
    let damaged = DamagedLogs::find(&lanes, meta.log_options(lanes.side_lanes))?;
    for checked in spaces {
        if let Ok(space) = &checked.space
            && let Some(error) = damaged.error_of(&space.entry())
        {
            checked.log = Some(error);
        }
    }
    let lanes = lanes.without(&damaged, meta.lanes);
    let start = lanes.start.clone();
    recover_log(&lanes, &start, meta, (newest, None))
}

/// Checks a database: all checksums, the order of the trees, the accounting of blocks, and the
/// chains of the log. Writes nothing. Calls `sink` with each damage. While another process writes,
/// this checks the newest checkpoint and the durable log. A database whose creation was interrupted
/// has nothing to check; see [`VerifyReport::creation_interrupted`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path();
/// # drop(braid::Database::builder().pool_bytes(1 << 20).open(path)?);
/// let report = braid::offline::verify(path, &mut |damage| eprintln!("{damage}"))?;
/// println!("{} pages, {} findings", report.pages, report.damages);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::NotADatabase`], [`Error::Locked`], [`Error::Incompatible`] or [`Error::Io`], which
/// prevent the check.
pub fn verify(path: impl AsRef<Path>, sink: &mut dyn FnMut(String)) -> Result<VerifyReport> {
    Verify::new().check(path, sink)
}

fn check(path: &Path, how: &Verify, sink: &mut dyn FnMut(String)) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    let mut offline = match Offline::open_created(path, how) {
        Ok(Some(offline)) => offline,
        Ok(None) => {
            report.creation_interrupted = true;
            return Ok(report);
        }
        Err(error @ Error::Corrupted { .. }) => {
            sink(error.finding());
            report.damages = 1;
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    let damaged_log = match &offline.recovered {
        Ok(recovered) => verify_log(recovered, &mut report),
        Err(error) => vec![error.finding()],
    };
    // First, so that the writer can release its log during the rest.
    if let Some(pins) = &mut offline.pins {
        pins.release_log();
    }
    let store = offline.store.verify(&mut |damage| sink(damage.what))?;
    report.pages = store.pages;
    report.records = store.records;
    report.tables = store.trees;
    report.damages = store.damages;
    report.torn_superblocks = store.torn_superblocks;
    for space in &offline.spaces {
        if let Some(error) = &space.log {
            report.damages += 1;
            sink(error.finding());
        }
        verify_space(&space.space, &mut report, sink)?;
    }
    report.damages += damaged_log.len() as u64;
    damaged_log.into_iter().for_each(sink);
    Ok(report)
}

/// Checks the records of the log. Returns the damages.
fn verify_log(recovered: &Recovered, report: &mut VerifyReport) -> Vec<String> {
    report.log_bytes = recovered.scanned_bytes();
    let mut damages = Vec::new();
    let mut damaged_records = Vec::new();
    let scanned = recovered.for_each(|log_record| {
        report.log_transactions += 1;
        if redo::decode(log_record.payload).any(|redo| redo.is_err()) {
            damaged_records.push(log_record.seqno);
        }
    });
    damages.extend(scanned.err().map(|error| error.to_string()));
    damages.extend(
        damaged_records
            .into_iter()
            .map(|seqno| format!("log: the records of transaction {seqno} do not fit its length")),
    );
    damages
}

/// Checks the data file of a tablespace.
fn verify_space(
    space: &Result<Arc<Space>>,
    report: &mut VerifyReport,
    sink: &mut dyn FnMut(String),
) -> Result<()> {
    let space = match space {
        Ok(space) => space,
        // Another opener, or the system, prevents the check; everything else is a finding.
        Err(error @ (Error::Locked { .. } | Error::Io { .. })) => return Err(error.clone()),
        Err(error) => {
            report.damages += 1;
            sink(error.finding());
            return Ok(());
        }
    };
    let name = &space.name;
    let store = space
        .store
        .verify(&mut |damage| sink(format!("tablespace {name:?}: {}", damage.what)))?;
    report.pages += store.pages;
    report.records += store.records;
    report.tables += store.trees;
    report.damages += store.damages;
    report.torn_superblocks += store.torn_superblocks;
    Ok(())
}

/// Prints a database as text: its properties, its pages, and the transactions of its log.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path();
/// # drop(braid::Database::builder().pool_bytes(1 << 20).open(path)?);
/// let mut text = String::new();
/// braid::offline::dump(path, &mut text)?;
/// assert!(text.contains("protocol glsn"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`verify`], [`Error::Corrupted`], and [`Error::Io`] if `out` fails.
pub fn dump(path: impl AsRef<Path>, out: &mut dyn fmt::Write) -> Result<()> {
    Verify::new().dump(path, out)
}

fn print(path: &Path, how: &Verify, out: &mut dyn fmt::Write) -> Result<()> {
    let failed = |_| {
        Error::io(
            "cannot write the dump",
            std::io::ErrorKind::BrokenPipe.into(),
        )
    };
    let offline = Offline::open(path, how)?;
    let Meta {
        protocol,
        strands,
        lanes,
    } = offline.meta;
    writeln!(out, "protocol {protocol}, {strands} strands, {lanes} lanes").map_err(failed)?;
    offline.store.dump(out)?;
    for space in &offline.spaces {
        let space = space.space.as_ref().map_err(Error::clone)?;
        writeln!(out, "tablespace {:?}, number {}", space.name, space.number).map_err(failed)?;
        space.store.dump(out)?;
    }
    let log = offline.log()?;
    let (start, bytes, cut) = (log.start(), log.scanned_bytes(), log.cut);
    writeln!(
        out,
        "log after sequence number {}: {bytes} bytes, valid up to {cut}",
        start.seqno
    )
    .map_err(failed)?;
    // The callback cannot hold `out`, which is not `Send`.
    let mut lines = String::new();
    log.for_each(|log_record| {
        lines.push_str(&format!("  transaction {}\n", log_record.seqno));
        for record in redo::decode(log_record.payload).map_while(Result::ok) {
            let key = record.key.escape_ascii();
            let what = match record.value {
                Some(value) => format!("put, {} bytes", value.len()),
                None => "remove".to_owned(),
            };
            lines.push_str(&format!("    table {} key {key}: {what}\n", record.table));
        }
    })?;
    out.write_str(&lines).map_err(failed)
}
