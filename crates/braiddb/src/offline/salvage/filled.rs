//! The contents of the new database: what was found of each table, and what is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use braid_log::{LogRecord, Recovered, SeqNo};
use braid_rt::atomic::{AtomicU64, Ordering};
use braid_store::{Change, Loss, Salvage, SalvagedEntry, Store, StoreError};

use crate::base::written::Written;
use crate::catalog::Catalog;
use crate::database::Database;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::recovery::replay::{Removal, Replay, gathered_bytes_max};
use crate::recovery::tablespaces::{DamagedSpace, LIST_FILE};
use crate::schema::entry::{CATALOG_ID, ID_END, MAIN_SPACE, SPACES_MAX, space_of};

/// Entries that belong to one of several tables: the numbers of these, and the chain.
type Place = (Vec<u32>, usize);

/// Records added to the new database, and losses. Tables of tablespaces have their old numbers here.
pub(super) struct Filled<'a> {
    main: &'a Salvage,
    spaces: &'a [DamagedSpace],
    /// The sequence number of the main tablespace's checkpoint.
    checkpoint: SeqNo,
    pub(super) entries: u64,
    pub(super) transactions: u64,
    losses: Vec<Loss>,
    /// Losses of whole tablespaces.
    lost_spaces: Vec<String>,
    made_good: Vec<String>,
    /// Entries that belong to one of several tables: their number, and the tree that they were
    /// added to.
    ambiguous: BTreeMap<Place, (u64, u32)>,
    /// Number of versions that no recovered transaction can have written.
    too_new: u64,
    /// The numbers in the new database of the tables that have another there.
    renumbered: BTreeMap<u32, u32>,
}

impl<'a> Filled<'a> {
    pub(super) fn new(main: &'a Salvage, spaces: &'a [DamagedSpace], checkpoint: SeqNo) -> Self {
        Self {
            main,
            spaces,
            checkpoint,
            entries: 0,
            transactions: 0,
            losses: Vec::new(),
            lost_spaces: Vec::new(),
            made_good: Vec::new(),
            ambiguous: BTreeMap::new(),
            too_new: 0,
            renumbered: BTreeMap::new(),
        }
    }

    /// The readable data files, each with its name in findings.
    fn sources(&self) -> Vec<(String, &'a Salvage)> {
        let spaces = self.spaces.iter().filter_map(|space| {
            let source = space.source.as_ref().ok()?;
            Some((format!("tablespace {:?}: ", space.entry.name), source))
        });
        let main = (String::new(), self.main);
        std::iter::once(main).chain(spaces).collect()
    }

    pub(super) fn fill(
        &mut self,
        engine: &Arc<Engine>,
        logs: &[Recovered],
        seqno: SeqNo,
    ) -> Result<()> {
        let removals = self.replay(engine, logs)?;
        let sources = self.sources();
        let of_sources = sources.iter().flat_map(|(_, source)| source.tree_ids());
        let used = engine.store.tree_ids().into_iter().chain(of_sources);
        let last = used.max().unwrap_or(CATALOG_ID);
        if last >= ID_END {
            return Err(Error::Corrupted {
                what: format!("table number {last} is out of range"),
                location: "the checkpoint or the log".into(),
            });
        }
        let mut next = last + 1;
        for (of, source) in sources {
            let made_good = self.read(engine, source, seqno, &mut next)?;
            let made_good = made_good.into_iter().map(|note| format!("{of}{note}"));
            self.made_good.extend(made_good);
        }
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
        let catalog = Catalog::of(engine);
        self.note_lost_spaces(&catalog, names_lost)?;
        self.renumbered = catalog.adopt_trees(names_lost, &found)?;
        Ok(())
    }

    /// Adds the entries of a data file. Returns the damage that caused no loss.
    fn read(
        &mut self,
        engine: &Engine,
        source: &Salvage,
        seqno: SeqNo,
        next: &mut u32,
    ) -> Result<Vec<String>> {
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
                        *next += 1;
                        (0, *next - 1)
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
        Ok(source.read(&mut entry, &mut |loss| losses.push(loss))?)
    }

    /// Replays the log, before pages are read: its versions are newer, and it tells which table
    /// numbers are in use. Returns the removals.
    fn replay(&mut self, engine: &Engine, logs: &[Recovered]) -> Result<Vec<Removal>> {
        let all_in_one = |space| (space, engine.store.clone());
        let spaces: Vec<(u8, Store)> = (MAIN_SPACE + 1..SPACES_MAX).map(all_in_one).collect();
        let replay = Replay::new(&engine.store, gathered_bytes_max(0)).with_spaces(&spaces);
        let transactions = AtomicU64::new(0);
        let mut replayed = SeqNo::NONE;
        for log in logs {
            log.for_each_parallel(1, |log_record: LogRecord<'_>| {
                let is_lost = log_record.seqno == log.cut
                    && braid_rt::mutant!("salvage_loses_the_newest_transaction");
                if log_record.seqno <= replayed || is_lost {
                    return Ok(());
                }
                transactions.fetch_add(1, Ordering::Relaxed);
                replay.add(log_record)
            })?;
            replayed = replayed.max(log.cut);
        }
        self.transactions = transactions.into_inner();
        Ok(replay.finish(1)?.removals)
    }

    /// Notes the tablespaces of the salvaged catalog that cannot be read, or not in the state of the
    /// main one. Without the whole catalog, the list says which ones exist.
    fn note_lost_spaces(&mut self, catalog: &Catalog<'_>, names_lost: bool) -> Result<()> {
        let tables = catalog.tables()?;
        let existing = catalog.spaces()?;
        if braid_rt::mutant!("salvage_hides_lost_tablespaces") {
            return Ok(());
        }
        let of_catalog =
            |space: &&DamagedSpace| names_lost || existing.iter().any(|(_, entry)| space.is(entry));
        for space in self.spaces.iter().filter(of_catalog) {
            let (name, number) = (&space.entry.name, space.entry.number);
            let tables = || tables_in(&tables, number);
            match (&space.source, space.other_state) {
                (Err(error), _) => match tables() {
                    None if !names_lost => {
                        let note = format!("tablespace {name:?}, which has no tables: ");
                        self.made_good.push(note + &error.finding());
                    }
                    tables => {
                        self.lost_spaces.push(whole(name, tables, &error.finding()));
                    }
                },
                (Ok(_), Some(found)) if tables().is_some() || names_lost => {
                    let loss = self.of_other_state(name, found);
                    self.lost_spaces.push(loss);
                }
                (Ok(_), _) => {}
            }
        }
        for (number, entry) in &existing {
            if !self.spaces.iter().any(|space| space.is(entry)) {
                let reason = format!("it is not in {LIST_FILE}, so its directory is not known");
                let tables = tables_in(&tables, *number);
                self.lost_spaces.push(whole(&entry.name, tables, &reason));
            }
        }
        Ok(())
    }

    fn of_other_state(&self, name: &str, found: u64) -> String {
        let expected = self.checkpoint.get();
        if found < expected {
            format!(
                "tablespace {name:?}: changes of its tables from sequence number {} to {expected}: its newest readable checkpoint has sequence number {found}",
                found + 1
            )
        } else {
            format!(
                "tablespace {name:?}: perhaps changes of its tables: its newest readable checkpoint, with sequence number {found}, is of another state than that of the other tablespaces, {expected}"
            )
        }
    }

    /// Returns the damage that caused no loss.
    pub(super) fn take_made_good(&mut self) -> Vec<String> {
        std::mem::take(&mut self.made_good)
    }

    /// Returns the losses, with the tables' current names.
    pub(super) fn named_losses(&self, db: &Database) -> Result<Vec<String>> {
        let names = Catalog::of(db.engine()).names_by_id()?;
        let name_in_new = |tree: &u32| names.get(self.renumbered.get(tree).unwrap_or(tree));
        let name = |tree: &u32| match (name_in_new(tree), *tree) {
            (Some(name), id) => match self.spaces.iter().find(|one| one.has(id)) {
                Some(space) => format!("table {name:?} of tablespace {:?}", space.entry.name),
                None => format!("table {name:?}"),
            },
            (None, CATALOG_ID) => "the catalog, which holds the names of tables".to_owned(),
            (None, id) => format!("table number {id}, whose name is not known"),
        };
        let bound = |key: &Option<Vec<u8>>, none: &str| match key {
            Some(key) => format!("\"{}\"", key.escape_ascii()),
            None => none.to_owned(),
        };
        let mut lines = self.lost_spaces.clone();
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
            let to = name_in_new(to).map_or("", |name| name);
            lines.push(format!(
                "the table of {count} entries: they were saved in table {to:?}, and belong to {}",
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

/// Returns the quoted names of a tablespace's tables; `None` if there are none.
fn tables_in<T>(tables: &[(u32, String, T)], space: u8) -> Option<String> {
    let names = tables.iter().filter(|(id, ..)| space_of(*id) == space);
    let names: Vec<String> = names.map(|(_, name, _)| format!("{name:?}")).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Returns the loss of a whole tablespace.
fn whole(name: &str, tables: Option<String>, reason: &str) -> String {
    let tables = match tables {
        Some(tables) => format!("entries of its tables {tables}"),
        None => "entries of its tables".into(),
    };
    format!(
        "tablespace {name:?}: {tables}, except those in the log after the newest checkpoint ({reason})"
    )
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
