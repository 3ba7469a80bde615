//! Recovery of an existing database.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_io::{Device, Gate};
use braid_log::{
    CheckpointPosition, DuringScan, Log, LogError, LogRecord, Recovered, ScanProgress, SeqNo,
};
use braid_rt::atomic::{AtomicU64, Ordering};
use braid_rt::to_usize;
use braid_store::{DamagedRange, Store, StoreError, StoreOptions, Tree};

use super::assemble::{catalog, log_options, open_archive, retention};
use super::contents::sync_names;
use super::meta::apply_options;
use super::replay::{Removal, Replay, Replayed, gathered_bytes_max};
use super::tablespaces::{self, Chosen, DamagedLogs, Listed, LogLanes, MainState, Opening};
use crate::catalog::Catalog;
use crate::engine::Engine;
use crate::engine::leaves::Leaves;
use crate::engine::spaces::Spaces;
use crate::error::{Error, Result};
use crate::format::meta::{Decoded, Meta};
use crate::mvcc::gc::Tombstone;
use crate::observe::recovery::{RecoveryProgress, RecoveryReport};
use crate::observe::trace::{Phase, call_user};
use crate::options::{ArchivePlace, Builder};
use crate::schema::entry::{CATALOG_ID, MAIN_SPACE};
use crate::schema::table::{Identity, TableCore};
use crate::services::changes::load_feeds;
use crate::services::copies::{Copies, check_outside};
use crate::services::readers::{Attempt, Readers};
use crate::services::{Instance, Parts};

/// Number of transactions between two progress reports of a replaying thread.
const REPORT_EVERY: u64 = 4096;

/// Opens an existing database: for writing, or, with an attempt, for reading while another process
/// may write. For reading, logs of tablespaces that are damaged are left out.
pub(super) fn recover(
    gate: &Gate,
    device: Arc<dyn Device>,
    options: &Builder,
    began: Instant,
    attempt: Option<&Attempt>,
) -> Result<Arc<Instance>> {
    let mut damaged = DamagedLogs::default();
    let opened = recover_with(gate, &device, options, began, (attempt, &mut damaged));
    if damaged.is_empty() || !options.read_only {
        return opened;
    }
    braid_rt::coverage_point("opening: read-only, without the damaged log of a tablespace");
    recover_with(gate, &device, options, began, (attempt, &mut damaged))
}

/// As [`recover`], without the logs that are `damaged`. If the log cannot be read, and `damaged` is empty,
/// notes the logs of tablespaces because of which.
fn recover_with(
    gate: &Gate,
    device: &Arc<dyn Device>,
    options: &Builder,
    began: Instant,
    (attempt, damaged): (Option<&Attempt>, &mut DamagedLogs),
) -> Result<Arc<Instance>> {
    let readers = claim_readers(&**device, options)?;
    let phase = Phase::recovery();
    let progress = Progress { options, began };
    let opened = open_checkpoint(device, options, readers.as_deref(), attempt)?;
    let how = (options, attempt, &*damaged);
    let listed = open_spaces(gate, &**device, &opened, readers.as_deref(), how)?;
    let others = tablespaces::opened(&listed);
    let start = tablespaces::replay_from(&opened.main, &listed);
    let replay = Replaying::new(&opened.store, &others, options);
    let places = (tablespaces::log_places(&listed), options.read_only);
    let lanes = LogLanes::of(device.clone(), opened.meta.lanes, &start, places)?;
    let known = tablespaces::newest_checkpoint(&opened.main, &listed);
    let sides = (attempt, &phase);
    let scanned = scan_log(&lanes, &opened, known, sides, &progress, &replay);
    let (mut recovered, scan) = scanned.map_err(|error| {
        let log_options = log_options(options, &opened.meta, &lanes);
        damaged.note(error, (&lanes, log_options), &listed, attempt)
    })?;
    let (replayed, transactions) = replay.finish(&recovered, options, &progress)?;
    let mut chosen = choose_spaces(listed, &opened, recovered.cut, options.read_only)?;
    if !options.read_only {
        prepare_to_write(&opened.store, &*lanes.device)?;
    }
    if let Some(attempt) = attempt {
        chosen.check_with(attempt)?;
        attempt.settle(&recovered, |base| lanes.base(base))?;
    }
    chosen.name_missing_logs(&lanes.missing, recovered.cut);
    let kept_from = keep_log(&mut recovered, &opened, attempt, &lanes)?;
    let mut recovery = RecoveryReport {
        log_bytes: recovered.scanned_bytes(),
        transactions,
        discarded: recovered.discarded_records(),
        scan,
        duration: Duration::ZERO,
    };
    let opened_at = recovered.cut;
    let begins = !options.read_only && tablespaces::begin_logs(&mut recovered, &chosen.spaces);
    let stores = std::iter::once(&opened.store).chain(others.iter().map(|(_, store)| store));
    let log = begin_log(recovered, stores.cloned().collect(), options)?;
    tablespaces::name_logs(&log, &chosen.spaces);
    if let Some(readers) = &readers {
        readers.open(&log);
    }
    let starts = starts(&log, kept_from, &lanes, &opened.main)?;
    let retention = retention(options, &log, starts);
    let copies = Copies::open(device.clone(), log.identity())?;
    let archiver = open_archive(gate, options, &log, &retention, &copies)?;
    phase.replayed(transactions, recovery.discarded);
    recovery.duration = braid_rt::now() - began;
    let identity = Identity::new(attempt.map(|attempt| attempt.source));
    let catalog = catalog(&opened.store, identity)?;
    let parts = Parts {
        log,
        store: opened.store,
        spaces: Spaces::new(chosen.spaces.clone(), chosen.absent.clone()),
        meta: opened.meta,
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
    let instance = Instance::new(parts, options);
    instance.checkpoints.set_stamp(opened.main.stamp);
    finish(&instance, options, &opened.main, replayed)?;
    let settled = settle(&instance, options, chosen, (begins, opened.switched));
    settled.inspect_err(|_| instance.abandon())?;
    Ok(instance)
}

/// Claims the reader table for a writer.
fn claim_readers(device: &dyn Device, options: &Builder) -> Result<Option<Arc<Readers>>> {
    if options.read_only {
        return Ok(None);
    }
    Readers::claim(device, options.background)
}

/// Completes the opening with what needs an open database: the tablespaces, and another protocol.
fn settle(
    instance: &Instance,
    options: &Builder,
    chosen: Chosen,
    (begins, switched): (bool, bool),
) -> Result<()> {
    if !options.read_only {
        settle_spaces(instance, chosen, begins)?;
    }
    if switched {
        braid_rt::coverage_point("opening: another protocol");
        // The new incarnation of the log already uses the new protocol. After this checkpoint,
        // every later open uses it, too.
        instance.whole_checkpoint()?;
    }
    Ok(())
}

/// Checks that the log leads to the state of the main tablespace's checkpoint, to which tablespaces with
/// an older one are replayed.
fn check_reaches(recovered: &Recovered, main: &MainState) -> Result<()> {
    if main.lagging.is_none() || recovered.cut >= main.start.seqno {
        return Ok(());
    }
    Err(Error::Corrupted {
        what: format!(
            "the log ends at sequence number {}, and a tablespace needs it up to {}; open the database \
             read-only without that tablespace, or salvage it",
            recovered.cut, main.start.seqno
        ),
        location: "the log".into(),
    })
}

/// Checks the catalog before anything is written: without it, the database is opened read-only.
fn prepare_to_write(store: &Store, device: &dyn Device) -> Result<()> {
    check_readable(&store.tree(CATALOG_ID)?)?;
    // I10: a killed process may have changed names without a sync, and recovery now relies on the names.
    if !braid_rt::mutant!("names_unsettled") {
        sync_names(device)?;
    }
    Ok(())
}

/// Completes what concerns tablespaces, once the database is open. If logs of tablespaces have begun,
/// transactions use them after a checkpoint, from which on recovery reads them.
fn settle_spaces(instance: &Instance, chosen: Chosen, begins: bool) -> Result<()> {
    if begins {
        if !braid_rt::mutant!("use_a_log_before_its_checkpoint") {
            instance.whole_checkpoint()?;
        }
        for space in instance.engine.spaces.all() {
            space.use_log(space.has_log);
        }
    }
    chosen.settle(instance)
}

/// Opens the tablespaces other than the main one.
fn open_spaces(
    gate: &Gate,
    device: &dyn Device,
    opened: &Opened,
    readers: Option<&Readers>,
    (options, attempt, damaged): (&Builder, Option<&Attempt>, &DamagedLogs),
) -> Result<Vec<Listed>> {
    let opening = Opening {
        gate,
        options,
        main: &opened.main,
        attempt,
        damaged,
    };
    let listed = tablespaces::open_listed(&opening, device)?;
    if let Some(readers) = readers {
        let sequence = opened.store.stats().checkpoint_sequence;
        tablespaces::pin_older(readers, &listed, &opened.main, sequence)?;
    }
    tablespaces::name_files(&listed);
    if !listed.is_empty() {
        if let Some(ArchivePlace::Directory(path)) = &options.archive {
            let mut directories = listed.iter().flat_map(Listed::directories);
            directories.try_for_each(|directory| check_outside(Some(&directory), path))?;
        }
        if !options.read_only {
            tablespaces::check_early(&listed, &opened.store.tree(CATALOG_ID)?)?;
        }
    }
    Ok(listed)
}

/// Returns the tablespaces that the recovered catalog has.
fn choose_spaces(
    listed: Vec<Listed>,
    opened: &Opened,
    cut: SeqNo,
    read_only: bool,
) -> Result<Chosen> {
    // Before the first tablespace exists, a checkpoint has a stamp.
    if listed.is_empty() && opened.main.stamp == 0 {
        return Ok(Chosen::default());
    }
    let catalog = opened.store.tree(CATALOG_ID)?;
    tablespaces::choose(listed, &catalog, cut, read_only)
}

/// Reports the progress of a recovery to the caller's callback.
struct Progress<'a> {
    options: &'a Builder,
    began: Instant,
}

impl Progress<'_> {
    fn report(&self, progress: RecoveryProgress) {
        if let Some(callback) = &self.options.progress {
            let progress = RecoveryProgress {
                elapsed: braid_rt::now() - self.began,
                ..progress
            };
            call_user("the recovery's progress callback", || callback(&progress));
        }
    }
}

/// The newest checkpoint, as opened.
struct Opened {
    store: Store,
    meta: Meta,
    /// The checkpoint.
    main: MainState,
    /// An older log position, from which log is kept for an archive or a feed.
    kept_from: Option<CheckpointPosition>,
    /// Whether the open requests another protocol.
    switched: bool,
}

fn open_checkpoint(
    device: &Arc<dyn Device>,
    options: &Builder,
    readers: Option<&Readers>,
    attempt: Option<&Attempt>,
) -> Result<Opened> {
    let store_options = StoreOptions {
        pool_bytes: options.pool_bytes,
        memory: options.main_memory(),
        number: MAIN_SPACE,
    };
    let (store, meta) = if options.read_only {
        Store::open_read_only(device.clone(), store_options)?
    } else {
        Store::open(device.clone(), store_options)?
    };
    store.write_lines(options.pmem_lines);
    store.read_in_place(options.pmem_in_place);
    let checkpoint = store.stats().checkpoint_sequence;
    if let Some(attempt) = attempt {
        attempt.check_checkpoint(checkpoint)?;
    }
    if let Some(readers) = readers {
        readers.pin_older(&store, checkpoint)?;
    }
    let decoded = Meta::decode_all(&meta)?;
    let main = MainState::of(&decoded);
    let Decoded {
        mut meta, retained, ..
    } = decoded;
    let switched = apply_options(options, &mut meta)?;
    Ok(Opened {
        store,
        meta,
        main,
        kept_from: retained,
        switched,
    })
}

/// Reads the log. Everything up to `known` is durable. Also returns how long that took.
fn scan_log(
    lanes: &LogLanes,
    opened: &Opened,
    known: SeqNo,
    (attempt, phase): (Option<&Attempt>, &Phase),
    progress: &Progress<'_>,
    replaying: &Replaying<'_>,
) -> Result<(Recovered, Duration)> {
    let options = progress.options;
    let log_options = log_options(options, &opened.meta, lanes);
    let scanning = |scan: ScanProgress| {
        progress.report(RecoveryProgress {
            scanned_bytes: scan.bytes,
            total_bytes: scan.total,
            ..RecoveryProgress::default()
        });
    };
    let source = lanes.device.clone();
    let durable = attempt.and_then(|attempt| attempt.durable);
    if !lanes.missing.is_empty() {
        let start = &lanes.start;
        let recovered = Log::recover_proven(source, log_options, start, known, durable, &scanning);
        let recovered = recovered.map_err(|error| lanes.error_without(error))?;
        return Ok((recovered, braid_rt::now() - progress.began));
    }
    let during = DuringScan {
        accept: &|log_records| replaying.replay.try_add(log_records),
        // The scan leaves one processor to the threads that read and check.
        threads: if options.background {
            replaying.threads
        } else {
            0
        },
        waiting_bytes: waiting_bytes(),
    };
    let recovered = Log::recover_and_replay(
        source,
        log_options,
        &lanes.start,
        durable,
        &scanning,
        &during,
    )?;
    check_reaches(&recovered, &opened.main)?;
    phase.scanned(recovered.scanned_bytes());
    Ok((recovered, braid_rt::now() - progress.began))
}

/// Returns the most bytes of log that wait in memory for their replay during the scan.
fn waiting_bytes() -> usize {
    if braid_rt::simulation::is_on() {
        // Too little for some histories.
        to_usize(braid_rt::entropy() % 4) * (64 << 10)
    } else {
        64 << 20
    }
}

/// The replay of a log, during its scan and afterwards.
struct Replaying<'a> {
    replay: Replay<'a>,
    /// Number of threads that apply writes.
    threads: usize,
}

impl<'a> Replaying<'a> {
    fn new(store: &'a Store, spaces: &'a [(u8, Store)], options: &Builder) -> Self {
        let bytes_max = gathered_bytes_max(options.pool_bytes);
        let replay = if options.read_only {
            Replay::around_damage(store, bytes_max)
        } else {
            Replay::new(store, bytes_max)
        };
        Self {
            replay: replay.with_spaces(spaces),
            threads: if options.background {
                braid_rt::thread::parallelism()
            } else {
                1
            },
        }
    }

    /// Replays the recovered transactions that were not replayed during the scan. Also returns the
    /// number of all.
    fn finish(
        self,
        recovered: &Recovered,
        options: &Builder,
        progress: &Progress<'_>,
    ) -> Result<(Replayed, u64)> {
        let Self { replay, threads } = self;
        let scanned_bytes = recovered.scanned_bytes();
        let transactions = AtomicU64::new(recovered.replayed_records());
        // Twice as many reading threads as processors, because about half of them wait for the
        // device; a single thread if background threads are off.
        let replaying = if options.background { 2 * threads } else { 1 };
        recovered.for_each_parallel(replaying, |log_record: LogRecord<'_>| {
            replay.add(log_record)?;
            let count = transactions.fetch_add(1, Ordering::Relaxed) + 1;
            if count.is_multiple_of(REPORT_EVERY) {
                progress.report(RecoveryProgress {
                    scanned_bytes,
                    total_bytes: scanned_bytes,
                    transactions: count,
                    ..RecoveryProgress::default()
                });
            }
            Ok::<(), Error>(())
        })?;
        Ok((replay.finish(threads)?, transactions.into_inner()))
    }
}

/// Keeps the log that an archive, a feed or an older state needs. Returns the position where it
/// begins.
fn keep_log(
    recovered: &mut Recovered,
    opened: &Opened,
    attempt: Option<&Attempt>,
    lanes: &LogLanes,
) -> Result<Option<CheckpointPosition>> {
    if !lanes.missing.is_empty() {
        return Ok(None);
    }
    let older_start = attempt.and_then(|attempt| attempt.kept_from.clone());
    let kept_from = opened.kept_from.iter().cloned().chain(older_start);
    let kept_from = kept_from.reduce(CheckpointPosition::older);
    if let Some(kept_from) = kept_from
        .as_ref()
        .filter(|_| !braid_rt::mutant!("forget_kept_log"))
    {
        braid_rt::coverage_point("opening: log is kept for an archive or a feed");
        recovered.retain(kept_from.clone())?;
    }
    Ok(kept_from)
}

/// Opens the recovered log for appending. The log begins its new incarnation with the first write,
/// after the checkpoint that recovery found is durable.
fn begin_log(recovered: Recovered, stores: Vec<Store>, options: &Builder) -> Result<Log> {
    let log = recovered.into_idle_log()?;
    log.before_begin(move || {
        let mut stores = stores.iter();
        stores.try_for_each(|store| store.settle().map_err(as_log_error))
    });
    if options.preallocated_log_bytes > 0 || braid_rt::mutant!("begin_at_once") {
        log.begin()?;
    }
    Ok(log)
}

/// Completes the state in memory: the checkpoint's coverage, the catalog, damage, and tombstones.
fn finish(
    instance: &Arc<Instance>,
    options: &Builder,
    main: &MainState,
    replayed: Replayed,
) -> Result<()> {
    let engine = &instance.engine;
    let recovery = &instance.recovery;
    // If nothing was replayed, the checkpoint covers everything, including the sequence numbers
    // that recovery skips (`gsn`): closing writes no other checkpoint.
    let checkpointed = main.start.seqno;
    let covered = match recovery.transactions {
        // The next checkpoint is the first of all tablespaces.
        _ if main.lagging.is_some() => SeqNo::NONE,
        0 if !braid_rt::mutant!("cover_no_skipped_numbers") => engine.log.last_seqno(),
        _ => checkpointed,
    };
    // The replayed log counts towards the next checkpoint.
    instance
        .checkpoints
        .set_recovered(checkpointed, covered, recovery.log_bytes);
    let looked = remove_dead_tables(engine).and_then(|()| load_feeds(instance));
    match looked {
        // Only a read-only open continues: the damaged catalog may hide tables and feeds.
        Err(error @ Error::Corrupted { .. }) if options.read_only => {
            engine.set_damage(error.to_string());
        }
        looked => looked.inspect_err(|_| instance.abandon())?,
    }
    if let Some(damage) = describe_damage(engine, &replayed) {
        engine.set_damage(damage);
    }
    retire_tombstones(engine, replayed.removals);
    Ok(())
}

/// Checks that every leaf of a tree can be read.
fn check_readable(tree: &Tree) -> Result<()> {
    for leaf in Leaves::all(tree) {
        leaf?;
    }
    Ok(())
}

/// Converts an error of making the found checkpoint durable, which must precede the log's first
/// write.
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

/// Describes the damage that prevents writes to the database.
fn describe_damage(engine: &Arc<Engine>, replayed: &Replayed) -> Option<String> {
    let names = Catalog::of(engine).names_by_id().unwrap_or_default();
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
    let leaves = engine.stores().flat_map(|store| {
        let lost = store.lost_map_leaves().map(StoreError::to_string);
        lost.collect::<Vec<_>>()
    });
    let all: Vec<String> = leaves.chain(ranges).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Returns the positions from which log can be read.
fn starts(
    log: &Log,
    kept_from: Option<CheckpointPosition>,
    lanes: &LogLanes,
    main: &MainState,
) -> Result<VecDeque<CheckpointPosition>> {
    let mut starts: Vec<_> = still_there(log, kept_from)?.into_iter().collect();
    starts.push(lanes.start.clone());
    // Without a lane, log is read from no other position.
    starts.extend(lanes.missing.is_empty().then(|| main.start.clone()));
    starts.dedup();
    Ok(starts.into())
}

/// Returns the position from which log was kept, if that log still exists.
fn still_there(
    log: &Log,
    kept_from: Option<CheckpointPosition>,
) -> Result<Option<CheckpointPosition>> {
    let Some(kept_from) = kept_from else {
        return Ok(None);
    };
    match log.tail(&kept_from) {
        Ok(_) => Ok(Some(kept_from)),
        // The next open may be able to read that log; opening without it would release it.
        Err(error @ LogError::Io { .. }) if !braid_rt::mutant!("an_error_is_an_absence") => {
            Err(error.into())
        }
        // The log was deleted or is damaged. Only feeds lose it.
        Err(_) => Ok(None),
    }
}

/// Frees trees that no table refers to, of tables that were dropped while their pages were in use.
fn remove_dead_tables(engine: &Arc<Engine>) -> Result<()> {
    let mut alive = Catalog::of(engine).ids()?;
    alive.insert(CATALOG_ID);
    for store in engine.stores() {
        for id in store.tree_ids() {
            if !alive.contains(&id) {
                braid_rt::coverage_point("opening: a tree that no table refers to");
                match store.drop_tree(id) {
                    // Pages that cannot be found stay allocated; nothing else is lost.
                    Err(StoreError::Corrupted { .. }) => {}
                    dropped => dropped?,
                }
            }
        }
    }
    Ok(())
}

/// Retires the tombstones that the log left in the tables. They refer to the tables as handles do: a
/// drop or a move marks these, and waits until no tombstone refers to the tree that it frees.
fn retire_tombstones(engine: &Arc<Engine>, removals: Vec<Removal>) {
    if removals.is_empty() {
        return;
    }
    // A table that cannot be looked up keeps its tombstones, until a scan finds them.
    let catalog = Catalog::of(engine);
    let names = catalog.names_by_id().unwrap_or_default();
    let find = |id: u32| {
        if id == CATALOG_ID {
            return Some(engine.tables.catalog.clone());
        }
        let name = names.get(&id)?;
        let found = catalog.find(name).ok()?.filter(|core| core.id == id);
        if braid_rt::mutant!("forget_tables_of_tombstones") {
            engine.tables.by_name.write().remove(name);
        }
        found
    };
    let mut cores: HashMap<u32, Option<Arc<TableCore>>> = HashMap::new();
    for (table, key, version) in removals {
        if let Some(core) = cores.entry(table).or_insert_with(|| find(table)) {
            braid_rt::coverage_point("opening: a tombstone to be purged");
            let tombstone = Tombstone::new(version, core.clone(), &key);
            engine.gc.shard().lock().retire(tombstone);
        } else {
            braid_rt::coverage_point("opening: a removal from a table that is dropped");
        }
    }
}
