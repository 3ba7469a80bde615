//! Opening: finding the newest checkpoint, replaying the log behind it.

mod creation;
pub(crate) mod replay;

use std::collections::{HashSet, VecDeque};
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_io::{Device, DirectoryLock, Gate, Held, LockError, OverlayDevice};
use braid_log::{
    CheckpointPosition, FlushMode, Log, LogError, LogOptions, LogRecord, ScanProgress,
};
use braid_rt::{narrow, to_usize};
use braid_store::{DamagedRange, Direction, Store, StoreError, StoreOptions, Tree};
use bytes::Bytes;

use crate::database::Database;
use crate::engine::{Inner, Parts};
use crate::error::{Error, Result};
use crate::format::meta::Meta;
use crate::mvcc::gc::Retired;
use crate::observe::trace::{Phase, call_user};
use crate::options::{ArchivePlace, Builder};
use crate::readers::{Attempt, Readers, Source};
use crate::schema::catalog::CATALOG_ID;
use crate::schema::table::{Identity, TableCore};
use crate::services::archive::Archiver;
use crate::services::copies::{Copies, check_outside};
use crate::services::publish;
use crate::services::retention::Retention;

use self::creation::{Contents, look_at};
use self::replay::{Removal, Replay, Replayed};

pub(crate) const DATA_FILE: &str = "data.braid";

/// How often a replaying thread reports.
const REPORT_EVERY: u64 = 4096;

/// Progress of a recovery; see [`Builder::recovery_progress`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let builder = braid::Database::builder().pool_bytes(1 << 20);
/// # let device = std::sync::Arc::new(braid::MemoryDevice::new());
/// let builder = builder.recovery_progress(|progress: &braid::RecoveryProgress| {
///     println!("{} transactions after {:?}", progress.transactions, progress.elapsed);
/// });
/// let db = builder.open_on(device)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RecoveryProgress {
    /// Bytes of log scanned so far.
    pub scanned_bytes: u64,
    /// Maximum number of bytes of log to scan.
    pub total_bytes: u64,
    /// Transactions replayed so far; the scan comes first.
    pub transactions: u64,
    /// Time since opening began.
    pub elapsed: Duration,
}

/// Work of recovery when a database was opened; see [`Database::recovery`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// let report: &braid::RecoveryReport = db.recovery();
/// assert_eq!(report.transactions, 0); // it is new
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Bytes of log read.
    pub log_bytes: u64,
    /// Transactions replayed.
    pub transactions: u64,
    /// Complete transactions in the log that followed a gap, so none of them was acknowledged.
    pub discarded: u64,
    /// Time to read the log and find its end.
    pub scan: Duration,
    /// Total time of opening.
    pub duration: Duration,
}

impl Database {
    pub(crate) fn open_directory(path: &Path, mut options: Builder) -> Result<Self> {
        options.validate()?;
        let opening = |error| opening(path, error);
        let missing = || Error::NotADatabase {
            path: path.to_owned(),
            reason: "the directory does not exist; check the path, or create the database".into(),
        };
        let exists = path.try_exists().map_err(opening)?;
        if !exists && !options.create_if_missing {
            return Err(missing());
        }
        let is_database = path.join(DATA_FILE).try_exists().map_err(opening)?;
        if !is_database {
            // Nothing may be left behind in a directory that turns out to be something else.
            if !options.create_if_missing || (exists && !path.is_dir()) {
                return Err(Error::NotADatabase {
                    path: path.to_owned(),
                    reason: format!(
                        "it contains no {DATA_FILE}; check the path, or create a database there"
                    ),
                });
            }
            // What will be acknowledged is worth nothing in a directory whose name is lost.
            braid_io::create_directory_with_mode(path, options.file_mode).map_err(opening)?;
        }
        let mode = options.file_mode;
        let lock = DirectoryLock::acquire_with_mode(path, mode);
        let lock = lock.map_err(|error| locking(path, error))?;
        let device = braid_io::open_directory_with_mode(path, options.device, mode);
        let device = device.map_err(opening)?;
        if is_database {
            publish::remove(path);
        }
        options.stats_directory = options.stats_file.then(|| path.to_owned());
        options.directory = path.canonicalize().ok();
        let opened = Self::open_device(device, Some(Box::new(lock)), options);
        opened.map_err(|error| name_directory(path, error))
    }

    pub(crate) fn open_directory_read_only(path: &Path, mut options: Builder) -> Result<Self> {
        options.validate()?;
        if !path.try_exists().map_err(|e| opening(path, e))? {
            return Err(Error::NotADatabase {
                path: path.to_owned(),
                reason: "the directory does not exist; check the path, or create the database"
                    .into(),
            });
        }
        options.directory = path.canonicalize().ok();
        let source = read_source(path)?;
        let opened = Self::open_source(Arc::new(source), options, None);
        opened.map_err(|error| name_directory(path, error))
    }

    /// Opens the database on a device, and keeps `lock` until nothing of the database touches the device any more.
    pub(crate) fn open_device(
        device: Arc<dyn Device>,
        lock: Option<Held>,
        options: Builder,
    ) -> Result<Self> {
        options.validate()?;
        let gate = Gate::new(lock);
        let opened = Self::open_gated(&gate, gate.device(device), options);
        if opened.is_err() {
            // I9: what an opening that failed has left must not go on beside the next one.
            gate.shut(|| ());
        }
        opened
    }

    fn open_gated(gate: &Gate, device: Arc<dyn Device>, options: Builder) -> Result<Self> {
        let began = braid_rt::now();
        let (fresh, marked) = match look_at(&*device)? {
            Contents::Database { marked } => (false, marked),
            Contents::Foreign(reason) => {
                return Err(Error::NotADatabase {
                    path: Default::default(),
                    reason,
                });
            }
            Contents::Nothing if !options.create_if_missing => {
                return Err(Error::NotADatabase {
                    path: Default::default(),
                    reason: format!(
                        "it contains no {DATA_FILE}; check the path, or create a database there"
                    ),
                });
            }
            Contents::Nothing => (true, false),
            Contents::Unfinished(files) => {
                braid_rt::coverage_point("opening: an unfinished creation goes");
                creation::remove(&*device, &files)?;
                (true, false)
            }
        };
        let inner = match fresh {
            true => {
                let meta = new_meta(&options);
                create(gate, device.clone(), &options, meta, 0, |_| Ok(()))?
            }
            false => recover_or_read_only(gate, &device, &options, began)?,
        };
        if marked && !inner.is_read_only() {
            braid_rt::coverage_point("opening: the marker of a finished creation goes");
            creation::unmark(&*device).inspect_err(|_| inner.abandon())?;
        }
        if inner.background {
            inner.start_maintenance().inspect_err(|_| inner.abandon())?;
            inner.start_archiver().inspect_err(|_| inner.abandon())?;
        }
        Ok(Self::from_inner(inner))
    }
}

/// A directory to read from. Where there is a reader table, nobody is kept out; where there is none, writers
/// are.
pub(crate) fn read_source(path: &Path) -> Result<Source> {
    let base = braid_io::open_directory_read_only(path).map_err(|e| opening(path, e))?;
    let table = || base.reader_table(false).map_err(|e| opening(path, e));
    let (mut found, mut lock) = (table()?, None);
    if found.is_none() {
        match DirectoryLock::acquire_shared(path) {
            Ok(shared) => lock = Some(shared),
            Err(error) => {
                // A writer may just have made it.
                found = table()?;
                if found.is_none() {
                    return Err(locking(path, error));
                }
            }
        }
    }
    Ok(Source::new(base, path.to_owned(), found, lock))
}

/// What a failure to open a directory means.
fn opening(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => Error::ReadOnly {
            path: path.to_owned(),
        },
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => Error::NotADatabase {
            path: path.to_owned(),
            reason: "it is not a directory".into(),
        },
        _ => Error::io(format!("cannot open {}", path.display()), error),
    }
}

fn locking(path: &Path, error: LockError) -> Error {
    match error {
        LockError::Held => Error::locked(path),
        LockError::Io(error) => opening(path, error),
    }
}

/// Names the directory in an error of its device, which does not know it.
fn name_directory(path: &Path, error: Error) -> Error {
    match error {
        Error::NotADatabase { reason, .. } => Error::NotADatabase {
            path: path.to_owned(),
            reason,
        },
        error => error,
    }
}

pub(crate) fn sync_names(device: &dyn Device) -> Result<()> {
    device
        .sync_directory()
        .map_err(|e| Error::io("cannot sync the directory", e))
}

fn log_options(options: &Builder, meta: &Meta) -> LogOptions {
    let defaults = LogOptions::default();
    LogOptions {
        protocol: meta.protocol,
        strands: meta.strands.into(),
        lanes: meta.lanes.into(),
        segment_bytes: options.segment_bytes,
        max_log_bytes: options.max_log_bytes,
        preallocated_bytes: options.preallocated_log_bytes,
        flushes_in_flight: options
            .flushes_in_flight
            .unwrap_or(defaults.flushes_in_flight),
        flush_mode: match options.background {
            true => FlushMode::Background,
            false => FlushMode::Callers,
        },
        discard: options.discard,
        group_size: options.group_size,
        epoch: options.epoch,
        slot_bytes: defaults.slot_bytes.min(to_usize(options.segment_bytes / 4)),
    }
}

/// What keeps log beyond what recovery needs.
fn retention(options: &Builder, log: &Log, starts: VecDeque<CheckpointPosition>) -> Retention {
    let most = match options.max_log_bytes {
        0 => u64::MAX,
        most => most / 4,
    };
    let feed_bytes = options.feed_log_bytes.min(most);
    let log = log.clone();
    let bytes =
        move |from: &CheckpointPosition, to: &CheckpointPosition| log.bytes_between(from, to);
    Retention::new(starts, bytes, feed_bytes)
}

fn open_archive(
    gate: &Gate,
    options: &Builder,
    log: &Log,
    retention: &Retention,
    copies: &Copies,
) -> Result<Option<Archiver>> {
    let oldest = retention.oldest();
    Ok(match &options.archive {
        None => {
            // The next opening with the archive goes on where the last one ended.
            let kept = copies.archived();
            retention.set_archive(kept.filter(|_| !braid_rt::mutant!("forget_the_archive")));
            None
        }
        Some(ArchivePlace::Directory(path)) => {
            check_outside(options.directory.as_deref(), path)?;
            let mode = options.file_mode;
            Some(Archiver::open(gate, path, mode, log, oldest, copies)?)
        }
        Some(ArchivePlace::Device(device)) => {
            let device = gate.device(device.clone());
            let archiver = Archiver::open_on(device, "archive", log, oldest, copies)?;
            Some(archiver)
        }
    })
}

fn catalog(store: &Store, identity: Identity) -> Result<Arc<TableCore>> {
    let tree = store.tree(CATALOG_ID)?;
    Ok(Arc::new(TableCore::new(
        CATALOG_ID,
        identity,
        tree,
        "(catalog)",
        String::new(),
    )))
}

fn new_meta(options: &Builder) -> Meta {
    let protocol = options.protocol.unwrap_or_default();
    let strands = protocol
        .forced_strands()
        .or(options.strands)
        .unwrap_or(LogOptions::default().strands);
    let lanes = options.lanes.unwrap_or(1).min(strands);
    Meta {
        protocol,
        strands: narrow(strands),
        lanes: narrow(lanes),
    }
}

/// Creates a database whose transactions have numbers greater than `seqno`, with what `fill` puts
/// into it, on a device behind its gate.
pub(crate) fn create(
    gate: &Gate,
    device: Arc<dyn Device>,
    options: &Builder,
    meta: Meta,
    seqno: u64,
    fill: impl FnOnce(&Arc<Inner>) -> Result<()>,
) -> Result<Arc<Inner>> {
    let began = braid_rt::now();
    // The marker is durable before anything else, and goes once everything else is.
    let identity = creation::mark(&*device)?;
    let readers = Readers::claim(&*device, options.background)?;
    let log_options = log_options(options, &meta);
    let log = Log::create_as(device.clone(), log_options, seqno, identity)?;
    let store_options = StoreOptions {
        pool_bytes: options.pool_bytes,
    };
    let store = Store::create_as(device.clone(), store_options, identity)?;
    let identity = Identity::new(None);
    let catalog = catalog(&store, identity)?;
    let recovery = RecoveryReport {
        duration: braid_rt::now() - began,
        ..RecoveryReport::default()
    };
    let opened_at = log.durable_seqno();
    let retention = retention(options, &log, [log.quiesce(|start| start)].into());
    let copies = Copies::open(device.clone(), log.identity())?;
    let archiver = open_archive(gate, options, &log, &retention, &copies)?;
    let parts = Parts {
        log,
        store,
        meta,
        catalog,
        retention,
        copies,
        archiver,
        opened_at,
        identity,
        recovery,
        gate: gate.clone(),
        readers,
    };
    let inner = Arc::new(Inner::new(parts, options));
    fill(&inner).inspect_err(|_| inner.abandon())?;
    inner.checkpoint()?;
    sync_names(&*device)?;
    creation::unmark(&*device)?;
    if let Some(readers) = &inner.readers {
        readers.open(&inner.log);
    }
    Ok(inner)
}

/// That the options asked for are those that the database was created with.
fn check_fixed_options(options: &Builder, meta: &Meta) -> Result<()> {
    let mismatch = |option: &str, asked: String, found: String| {
        Err(Error::Incompatible {
            what: format!(
                "cannot open the database with {option} {asked}: it was created with {found}; leave the option out"
            ),
        })
    };
    if let Some(asked) = options.lanes
        && asked != usize::from(meta.lanes)
    {
        return mismatch("lanes", asked.to_string(), meta.lanes.to_string());
    }
    Ok(())
}

/// Opens a state to read from, for which there is no handle yet.
pub(crate) fn recover_view(
    attempt: &Attempt,
    options: &Builder,
    began: Instant,
) -> Result<Arc<Inner>> {
    let not_there = |reason: String| Error::NotADatabase {
        path: Default::default(),
        reason,
    };
    match look_at(&*attempt.device)? {
        Contents::Database { .. } => {}
        Contents::Foreign(reason) => return Err(not_there(reason)),
        Contents::Nothing => return Err(not_there(format!("there is no {DATA_FILE} in it"))),
        Contents::Unfinished(_) => {
            let reason = "its creation was interrupted; open it for writing once";
            return Err(not_there(reason.into()));
        }
    }
    let gate = Gate::new(None);
    let device = gate.device(attempt.device.clone());
    let opened = recover(&gate, device, options, began, Some(attempt));
    if opened.is_err() {
        gate.shut(|| ());
    }
    opened
}

/// Recovers a database. One with damaged pages that recovery has to change, or without which it is not known what
/// the database holds, is opened read-only: nothing is written to the device, so the log keeps what the damaged
/// pages lack, and everything else can be read.
fn recover_or_read_only(
    gate: &Gate,
    device: &Arc<dyn Device>,
    options: &Builder,
    began: Instant,
) -> Result<Arc<Inner>> {
    let error = match recover(gate, device.clone(), options, began, None) {
        Err(error @ Error::Corrupted { .. }) if !options.read_only => error,
        recovered => return recovered,
    };
    let overlay = OverlayDevice::new(device.clone());
    let overlay = overlay.map_err(|e| Error::io("cannot list the device's files", e))?;
    let device = Arc::new(overlay);
    match recover(gate, device, &options.clone().reading(), began, None) {
        Ok(inner) if inner.damage.get().is_some() => {
            braid_rt::coverage_point("opening: read-only, since a page is damaged");
            Ok(inner)
        }
        _ => Err(error),
    }
}

/// Opens a database that is there: to write, or, with an attempt, to read next to who writes.
fn recover(
    gate: &Gate,
    device: Arc<dyn Device>,
    options: &Builder,
    began: Instant,
    attempt: Option<&Attempt>,
) -> Result<Arc<Inner>> {
    let readers = match options.read_only {
        true => None,
        false => Readers::claim(&*device, options.background)?,
    };
    let phase = Phase::recovery();
    let store_options = StoreOptions {
        pool_bytes: options.pool_bytes,
    };
    let (store, meta) = match options.read_only {
        true => Store::open_read_only(device.clone(), store_options)?,
        false => Store::open(device.clone(), store_options)?,
    };
    let checkpoint = store.stats().checkpoint_sequence;
    if let Some(attempt) = attempt {
        attempt.check_checkpoint(checkpoint)?;
    }
    if let Some(readers) = &readers {
        readers.pin_older(&store, checkpoint)?;
    }
    let (mut meta, start, kept_from) = Meta::decode_all(&meta)?;
    check_fixed_options(options, &meta)?;
    let switched = switch_protocol(options, &mut meta)?;
    if let Some(strands) = options.strands
        && meta.protocol.forced_strands().is_none()
    {
        if strands < usize::from(meta.lanes) {
            return Err(Error::InvalidOption {
                option: "strands",
                reason: format!(
                    "{strands} given; the database has {} lanes and needs at least as many",
                    meta.lanes
                ),
            });
        }
        if usize::from(meta.strands) != strands {
            braid_rt::coverage_point("opening: another number of strands");
        }
        meta.strands = narrow(strands);
    }
    let report = |progress: RecoveryProgress| {
        if let Some(callback) = &options.progress {
            let progress = RecoveryProgress {
                elapsed: braid_rt::now() - began,
                ..progress
            };
            call_user("the recovery's progress callback", || callback(&progress));
        }
    };
    let scanning = |scan: ScanProgress| {
        report(RecoveryProgress {
            scanned_bytes: scan.bytes,
            total_bytes: scan.total,
            ..RecoveryProgress::default()
        });
    };
    let (source, log_options) = (device.clone(), log_options(options, &meta));
    let mut recovered = match attempt.and_then(|attempt| attempt.durable) {
        None => Log::recover(source, log_options, &start, &scanning)?,
        Some(durable) => Log::recover_up_to(source, log_options, &start, durable, &scanning)?,
    };
    let scanned_bytes = recovered.scanned_bytes();
    let scan = braid_rt::now() - began;
    phase.scanned(scanned_bytes);
    let replay = match options.read_only {
        true => Replay::around_damage(&store),
        false => Replay::new(&store),
    };
    let transactions = AtomicU64::new(0);
    let threads = match options.background {
        true => braid_rt::thread::parallelism(),
        false => 1,
    };
    // Twice as many readers as processors, since half of them wait for the device; but no thread where
    // none is wanted.
    let replaying = if options.background { 2 * threads } else { 1 };
    recovered.for_each_parallel(replaying, |log_record: LogRecord<'_>| {
        replay.add(log_record)?;
        let count = transactions.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_multiple_of(REPORT_EVERY) {
            report(RecoveryProgress {
                scanned_bytes,
                total_bytes: scanned_bytes,
                transactions: count,
                ..RecoveryProgress::default()
            });
        }
        Ok::<(), Error>(())
    })?;
    let replayed = replay.finish(threads)?;
    if !options.read_only {
        // Before anything is written: without the catalog the database is opened read-only.
        check_readable(&store.tree(CATALOG_ID)?)?;
    }
    if let Some(attempt) = attempt {
        attempt.settle(&recovered)?;
    }
    let older_start = attempt.and_then(|attempt| attempt.kept_from.clone());
    let kept_from = older(kept_from, older_start);
    let discarded = recovered.discarded_records();
    let opened_at = recovered.cut;
    if let Some(kept_from) = kept_from
        .as_ref()
        .filter(|_| !braid_rt::mutant!("forget_kept_log"))
    {
        braid_rt::coverage_point("opening: log is kept for an archive or a feed");
        recovered.retain(kept_from.clone())?;
    }
    let log = recovered.into_idle_log()?;
    log.before_begin({
        let store = store.clone();
        move || store.settle().map_err(as_log_error)
    });
    if options.preallocated_log_bytes > 0 || braid_rt::mutant!("begin_at_once") {
        log.begin()?;
    }
    if let Some(readers) = &readers {
        readers.open(&log);
    }
    let kept_from = still_there(&log, kept_from)?;
    let starts = kept_from.into_iter().chain([start.clone()]).collect();
    let retention = retention(options, &log, starts);
    let copies = Copies::open(device, log.identity())?;
    let archiver = open_archive(gate, options, &log, &retention, &copies)?;
    let transactions = transactions.into_inner();
    phase.replayed(transactions, discarded);
    let recovery = RecoveryReport {
        log_bytes: scanned_bytes,
        transactions,
        discarded,
        scan,
        duration: braid_rt::now() - began,
    };
    let identity = Identity::new(attempt.map(|attempt| attempt.source));
    let catalog = catalog(&store, identity)?;
    let parts = Parts {
        log,
        store,
        meta,
        catalog,
        retention,
        copies,
        archiver,
        opened_at,
        identity,
        recovery,
        gate: gate.clone(),
        readers,
    };
    let inner = Arc::new(Inner::new(parts, options));
    inner
        .maintenance
        .checkpointed
        .store(start.seqno, Ordering::Release);
    // Where nothing was replayed, the checkpoint covers all there is, also the numbers that recovery skips
    // (`gsn`): closing writes no other one.
    let covered = match transactions {
        0 if !braid_rt::mutant!("cover_no_skipped_numbers") => inner.log.last_seqno(),
        _ => start.seqno,
    };
    inner.maintenance.covered.store(covered, Ordering::Release);
    // The log that was replayed counts towards the next checkpoint.
    inner
        .maintenance
        .replayed_bytes
        .store(scanned_bytes, Ordering::Relaxed);
    let looked = remove_dead_tables(&inner).and_then(|()| inner.load_feeds());
    match looked {
        // What the catalog lacks can't be known.
        Err(error @ Error::Corrupted { .. }) if options.read_only => {
            let _ = inner.damage.set(error.to_string());
        }
        looked => looked.inspect_err(|_| inner.abandon())?,
    }
    if let Some(damage) = describe_damage(&inner, &replayed) {
        let _ = inner.damage.set(damage);
    }
    retire_tombstones(&inner, replayed.removals);
    if switched {
        braid_rt::coverage_point("opening: another protocol");
        // The new incarnation of the log follows the new protocol already; from here on so does the database,
        // however it is opened.
        inner.checkpoint().inspect_err(|_| inner.abandon())?;
    }
    Ok(inner)
}

/// That every leaf of a tree can be read.
fn check_readable(tree: &Tree) -> Result<()> {
    let (mut from, mut position) = (Bound::Unbounded, None);
    loop {
        let lower = from.as_ref().map(|key: &Bytes| &key[..]);
        let leaf = tree.scan_leaf(
            position,
            lower,
            Bound::Unbounded,
            Direction::Forward,
            usize::MAX,
        )?;
        match leaf.next {
            Some(next) => (from, position) = (next, leaf.position),
            None => return Ok(()),
        }
    }
}

/// The log cannot begin while the checkpoint that was found is not durable.
fn as_log_error(error: StoreError) -> LogError {
    let (what, source) = match error {
        StoreError::Io { what, source } => (what, source),
        other => (
            "cannot make the checkpoint of data.braid durable".to_owned(),
            Arc::new(io::Error::other(other)),
        ),
    };
    LogError::Io { what, source }
}

/// What is damaged and keeps the database from being written to, for people.
fn describe_damage(inner: &Arc<Inner>, replayed: &Replayed) -> Option<String> {
    let names = inner.table_names_by_id().unwrap_or_default();
    let name = |tree: u32| match names.get(&tree) {
        Some(name) => format!("table {name:?} (tree {tree})"),
        None if tree == CATALOG_ID => "the catalog of tables".to_owned(),
        None => format!("the table of tree {tree}"),
    };
    let range = |(range, writes): &(DamagedRange, u64)| {
        let (name, keys, cause) = (name(range.tree), range.keys(), &range.cause);
        format!("{name}, {keys} ({writes} logged writes wait there): {cause}")
    };
    let ranges = replayed.damage.iter().map(range);
    let leaves = inner.store.lost_map_leaves().map(StoreError::to_string);
    let all: Vec<String> = leaves.chain(ranges).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// The older of two positions.
fn older(
    one: Option<CheckpointPosition>,
    other: Option<CheckpointPosition>,
) -> Option<CheckpointPosition> {
    one.into_iter().chain(other).min_by_key(|start| start.seqno)
}

/// The position from which log was kept, if there still is some.
fn still_there(
    log: &Log,
    kept_from: Option<CheckpointPosition>,
) -> Result<Option<CheckpointPosition>> {
    let Some(kept_from) = kept_from else {
        return Ok(None);
    };
    match log.tail(&kept_from) {
        Ok(_) => Ok(Some(kept_from)),
        // The next opening may find it: whoever opened without it would release it.
        Err(error @ LogError::Io { .. }) if !braid_rt::mutant!("an_error_is_an_absence") => {
            Err(error.into())
        }
        // Somebody tidied up, or it is damaged. Then it is lost to feeds, and to nobody else.
        Err(_) => Ok(None),
    }
}

/// Takes the protocol that was asked for; says whether it is another one.
fn switch_protocol(options: &Builder, meta: &mut Meta) -> Result<bool> {
    let Some(asked) = options.protocol.filter(|&asked| asked != meta.protocol) else {
        return Ok(false);
    };
    match asked.forced_strands() {
        Some(strands) if strands < usize::from(meta.lanes) => {
            return Err(Error::Incompatible {
                what: format!(
                    "cannot switch to protocol {asked}, which uses one lane: the database has {} lanes; keep the protocol {}",
                    meta.lanes, meta.protocol
                ),
            });
        }
        Some(strands) => meta.strands = narrow(strands),
        None if meta.protocol.forced_strands().is_some() => {
            meta.strands = narrow(LogOptions::default().strands);
        }
        None => {}
    }
    meta.protocol = asked;
    Ok(true)
}

/// Frees trees that no table refers to: of dropped tables, whose pages were still in use then.
fn remove_dead_tables(inner: &Arc<Inner>) -> Result<()> {
    let mut alive: HashSet<u32> = inner.table_ids()?.into_iter().collect();
    alive.insert(CATALOG_ID);
    for id in inner.store.tree_ids() {
        if !alive.contains(&id) {
            braid_rt::coverage_point("opening: a tree that no table refers to");
            match inner.store.drop_tree(id) {
                // Its pages that can't be found stay in use, and nothing else is wrong with that.
                Err(StoreError::Corrupted { .. }) => {}
                dropped => dropped?,
            }
        }
    }
    Ok(())
}

fn retire_tombstones(inner: &Arc<Inner>, removals: Vec<Removal>) {
    let alive: HashSet<u32> = inner.store.tree_ids().into_iter().collect();
    let mut cores: Vec<Arc<TableCore>> = Vec::new();
    for (table, key, version) in removals {
        let known = cores.iter().find(|core| core.id == table).cloned();
        let core = known.or_else(|| {
            let tree = alive
                .contains(&table)
                .then(|| inner.store.tree(table).ok())
                .flatten()?;
            let core = TableCore::new(table, inner.identity, tree, "(recovered)", String::new());
            cores.push(Arc::new(core));
            cores.last().cloned()
        });
        if core.is_none() {
            braid_rt::coverage_point("opening: a removal from a table that is dropped");
        }
        if let Some(core) = core {
            braid_rt::coverage_point("opening: a tombstone to be purged");
            inner
                .gc
                .lock_shard()
                .retire(Retired::tombstone(version, 0, core, &key));
        }
    }
}
