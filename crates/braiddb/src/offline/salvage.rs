//! Salvage: copying everything readable of a damaged database into a new one.
//!
//! The damaged database is only read. The records found of its newest checkpoint (see
//! [`braid_store::Salvage`]) and of the log after it are added, with their sequence numbers, to the
//! trees of a new database. Replay then decides which version is newer, as recovery does. The new
//! database is marked as unfinished until all of it is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use braid_io::{Device, DirectoryLock, Gate, Held};
use braid_log::{CheckpointPosition, Log, LogOptions, LogRecord, Recovered, SeqNo};
use braid_rt::atomic::{AtomicU64, Ordering};
use braid_store::{Change, Loss, Salvage, SalvagedEntry, StoreError};

use crate::base::written::Written;
use crate::catalog::Catalog;
use crate::database::Database;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::format::meta::Meta;
use crate::offline::verify::{Locks, Offline};
use crate::options::Builder;
use crate::recovery;
use crate::recovery::replay::{Removal, Replay, gathered_bytes_max};
use crate::recovery::tablespaces;
use crate::schema::entry::{CATALOG_ID, ID_END};
use crate::services::Instance;

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
/// [`Error::Incompatible`]; [`Error::Corrupted`] if no checkpoint can be found;
/// [`Error::OutOfSpace`] or [`Error::Io`].
pub fn salvage(
    path: impl AsRef<Path>,
    into: impl AsRef<Path>,
    sink: &mut dyn FnMut(Finding),
) -> Result<SalvageReport> {
    let mut without_log = 0;
    let (_locks, device) = match Offline::device(path.as_ref()) {
        Err(error @ Error::LogDirectory { .. }) => {
            sink(Finding::Lost(format!("the log: {error}")));
            without_log = 1;
            let (lock, device) = Offline::data_device(path.as_ref())?;
            (Locks(lock, None), device)
        }
        opened => opened?,
    };
    // Small segments: the user's next open chooses its own sizes, and a log is needed here.
    let options = Builder::default()
        .background_threads(false)
        .segment_bytes(1 << 20);
    let into = || {
        let (lock, device) = new_directory(into.as_ref())?;
        Ok((Some(Box::new(lock) as Held), device))
    };
    let (mut report, db) = salvage_device(device, into, &options, sink)?;
    report.losses += without_log;
    db.close()?;
    Ok(report)
}

/// As [`salvage`], given the damaged database's device and a function that creates the new one's.
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
    let advice = "open it, or restore a copy of all its directories";
    tablespaces::check_none(&*device, "salvage the database", advice)?;
    let mut source = Salvage::open(device.clone())?;
    for note in source.notes() {
        tell(Finding::Damaged(note.clone()));
    }
    for loss in source.lost() {
        tell(Finding::Lost(loss.clone()));
    }
    let (meta, start) = Meta::decode(source.meta())?;
    source.set_newest(start.seqno.get());
    let log = salvage_log(device, &meta, &start, &mut tell)?;
    let (lock, new_device) = into()?;
    let seqno = log
        .as_ref()
        .map_or(start.seqno, |log| log.cut.max(start.seqno));
    let mut filled = Filled::default();
    let fill = |instance: &Instance| filled.fill(&instance.engine, &source, log.as_ref(), seqno);
    let gate = Gate::new(lock);
    let device = gate.device(new_device);
    let instance = recovery::create(&gate, device, options, meta, seqno, fill)?;
    let db = Database::from_instance(instance);
    for note in std::mem::take(&mut filled.made_good) {
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

/// Creates and locks a directory for the new database.
fn new_directory(into: &Path) -> Result<(DirectoryLock, Arc<dyn Device>)> {
    let failed = |error| match Error::of_volume(into, &error) {
        Some(error) => error,
        None => Error::io(format!("cannot create {}", into.display()), error),
    };
    braid_io::create_directory(into).map_err(failed)?;
    if !braid_io::list_directory(into).map_err(failed)?.is_empty() {
        return Err(Error::NotADatabase {
            path: into.to_owned(),
            reason: "it is not empty; choose an empty directory for the new database".into(),
        });
    }
    Offline::lock(into)
}

fn salvage_log(
    device: Arc<dyn Device>,
    meta: &Meta,
    start: &CheckpointPosition,
    tell: &mut dyn FnMut(Finding),
) -> Result<Option<Recovered>> {
    let options = LogOptions {
        protocol: meta.protocol,
        strands: meta.strands.into(),
        lanes: meta.lanes.into(),
        ..LogOptions::default()
    };
    match Log::salvage(device, options, start).map_err(Error::from) {
        Ok((recovered, losses)) => {
            losses
                .into_iter()
                .for_each(|loss| tell(Finding::Lost(format!("log: {loss}"))));
            Ok(Some(recovered))
        }
        Err(error @ Error::Corrupted { .. }) => {
            tell(Finding::Lost(format!(
                "log: every transaction after sequence number {}: {error}",
                start.seqno
            )));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Records added to the new database, and losses.
#[derive(Default)]
struct Filled {
    entries: u64,
    transactions: u64,
    losses: Vec<Loss>,
    made_good: Vec<String>,
    /// Entries that belong to one of several tables: their number, and the tree that they were
    /// added to.
    ambiguous: BTreeMap<(Vec<u32>, usize), (u64, u32)>,
    /// Number of versions that no recovered transaction can have written.
    too_new: u64,
}

impl Filled {
    fn fill(
        &mut self,
        engine: &Arc<Engine>,
        source: &Salvage,
        log: Option<&Recovered>,
        seqno: SeqNo,
    ) -> Result<()> {
        let removals = match log {
            None => Vec::new(),
            Some(log) => self.replay(engine, log)?,
        };
        let used = engine.store.tree_ids().into_iter().chain(source.tree_ids());
        let last = used.max().unwrap_or(CATALOG_ID);
        if last >= ID_END {
            return Err(Error::Corrupted {
                what: format!("table number {last} is out of range"),
                location: "the checkpoint or the log".into(),
            });
        }
        let mut next = last + 1;
        let Self {
            entries,
            losses,
            ambiguous,
            too_new,
            ..
        } = self;
        let mut entry = |entry: SalvagedEntry<'_>| -> Result<(), StoreError> {
            if entry.version > seqno.get() {
                *too_new += 1;
                return Ok(());
            }
            *entries += 1;
            let tree = match *entry.trees {
                [tree] => tree,
                ref trees => {
                    let place = (trees.to_vec(), entry.chain);
                    let (count, tree) = ambiguous.entry(place).or_insert_with(|| {
                        next += 1;
                        (0, next - 1)
                    });
                    *count += 1;
                    *tree
                }
            };
            engine.store.tree(tree)?.modify(entry.key, |old| {
                let newer = old.is_some_and(|old| old.meta().version >= entry.version);
                let change = if newer {
                    Change::Keep
                } else {
                    Change::Put {
                        version: entry.version,
                        value: entry.value,
                    }
                };
                (change, ())
            })
        };
        self.made_good = source.read(&mut entry, &mut |loss| losses.push(loss))?;
        purge(engine, removals)?;
        let of_catalog = |loss: &Loss| match loss {
            Loss::Range { tree, .. } | Loss::Value { tree, .. } => *tree == CATALOG_ID,
            _ => false,
        };
        let names_lost = self.losses.iter().any(of_catalog)
            || self
                .ambiguous
                .keys()
                .any(|(trees, _)| trees.contains(&CATALOG_ID));
        let found: BTreeSet<u32> = self.ambiguous.values().map(|(_, tree)| *tree).collect();
        Catalog::of(engine).adopt_trees(names_lost, &found)
    }

    /// Replays the log, before pages are read: its versions are newer, and it tells which table
    /// numbers are in use. Returns the removals.
    fn replay(&mut self, engine: &Engine, log: &Recovered) -> Result<Vec<Removal>> {
        let replay = Replay::new(&engine.store, gathered_bytes_max(0));
        let transactions = AtomicU64::new(0);
        log.for_each_parallel(1, |log_record: LogRecord<'_>| {
            transactions.fetch_add(1, Ordering::Relaxed);
            replay.add(log_record)
        })?;
        self.transactions = transactions.into_inner();
        Ok(replay.finish(1)?.removals)
    }

    /// Returns the losses, with the tables' current names.
    fn named_losses(&self, db: &Database) -> Result<Vec<String>> {
        let names = Catalog::of(db.engine()).names_by_id()?;
        let name = |tree: &u32| match (names.get(tree), *tree) {
            (Some(name), _) => format!("table {name:?}"),
            (None, CATALOG_ID) => "the catalog, which holds the names of tables".to_owned(),
            (None, id) => format!("table number {id}, whose name is not known"),
        };
        let bound = |key: &Option<Vec<u8>>, none: &str| match key {
            Some(key) => format!("\"{}\"", key.escape_ascii()),
            None => none.to_owned(),
        };
        let mut lines = Vec::new();
        for loss in &self.losses {
            lines.push(match loss {
                Loss::Range {
                    tree,
                    from,
                    to,
                    cause,
                } => format!(
                    "{}: entries from {} up to but not including {} ({cause})",
                    name(tree),
                    bound(from, "the first"),
                    bound(to, "the end")
                ),
                Loss::Value { tree, key, cause } => {
                    format!(
                        "{}: the entry \"{}\" ({cause})",
                        name(tree),
                        key.escape_ascii()
                    )
                }
                other => format!("{other:?}"),
            });
        }
        for ((trees, _), (count, to)) in &self.ambiguous {
            let trees: Vec<String> = trees.iter().map(name).collect();
            lines.push(format!(
                "the table of {count} entries: they were saved in {}, and belong to {}",
                name(to),
                trees.join(" or ")
            ));
        }
        if self.too_new > 0 {
            lines.push(format!(
                "{} entries whose newest version in data.braid was not durable in the log",
                self.too_new
            ));
        }
        Ok(lines)
    }
}

/// Purges the tombstones of replayed removals: the new database has no older snapshot.
fn purge(engine: &Engine, removals: Vec<Removal>) -> Result<()> {
    for (table, key, version) in removals {
        engine.store.tree(table)?.modify(&key, |old| match old {
            Some(old) if old.meta().tombstone && old.meta().seqno() == version => {
                (Change::Remove, ())
            }
            _ => (Change::Keep, ()),
        })?;
    }
    Ok(())
}
