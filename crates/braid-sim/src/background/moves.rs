//! Moves of tables between tablespaces: a table is where the last acknowledged move left it, or where
//! an interrupted one was to bring it.

use std::collections::{BTreeMap, BTreeSet};

use braid::{Database, Error, Result};
use fastrand::Rng;

use super::{Checked, Shared};
use crate::spaces::SPARE;

/// A tablespace; `None` is the main one.
type Target = Option<String>;

/// What is known of a table that moved.
#[derive(Default)]
struct Moved {
    /// The tablespaces in which it may be.
    possible: BTreeSet<Target>,
    /// Moves that have begun and not ended.
    running: u32,
    /// Whether several moves ran since the last moment without any: their order is unknown.
    overlapped: bool,
}

#[derive(Default)]
struct State {
    tables: BTreeMap<String, Moved>,
    /// Number of openings. A move through a handle of an earlier one says nothing of this one.
    opening: u64,
}

/// The moves of a history.
#[derive(Clone, Default)]
pub(crate) struct Moves(Shared<State>);

impl Moves {
    /// Chooses a table to be moved, and up to three tablespaces, one after the other.
    pub(crate) fn choose(&self, db: &Database, rng: &mut Rng) -> Result<(String, Vec<Target>)> {
        let mut names = db.table_names()?;
        if rng.u32(..8) > 0 {
            // Most transactions use these.
            names.retain(|name| name.starts_with("values") || name == "marks");
        }
        if names.is_empty() {
            return Ok((String::new(), Vec::new()));
        }
        let table = names.swap_remove(rng.usize(..names.len()));
        let mut targets = db.tablespace_names().into_iter().map(Some);
        let targets: Vec<Target> = std::iter::once(None).chain(&mut targets).collect();
        let count = rng.usize(1..4);
        let route = (0..count).map(|_| targets[rng.usize(..targets.len())].clone());
        Ok((table, route.collect()))
    }

    /// Moves a table. Calls `meanwhile` after each step.
    pub(crate) fn make(
        &self,
        db: &Database,
        table: &str,
        target: &Target,
        meanwhile: impl FnMut(),
    ) -> Result<()> {
        let before = self.begin(db, table, target)?;
        let mut meanwhile = meanwhile;
        let moved = db.move_table_with(table, target.as_deref(), |_| meanwhile());
        self.end(table, target, before, &moved);
        moved.map(drop)
    }

    /// Notes that a move begins. Returns the number of the opening, and where the table is if no other
    /// move runs.
    fn begin(
        &self,
        db: &Database,
        table: &str,
        target: &Target,
    ) -> Result<(u64, BTreeSet<Target>)> {
        let place = place(db, table)?;
        let mut state = self.0.lock();
        let opening = state.opening;
        let moved = state.tables.entry(table.to_owned()).or_default();
        if moved.possible.is_empty() {
            moved.possible.extend(place);
        }
        moved.overlapped |= moved.running > 0;
        moved.running += 1;
        let before = moved.possible.clone();
        moved.possible.insert(target.clone());
        Ok((opening, before))
    }

    fn end<T>(
        &self,
        table: &str,
        target: &Target,
        (opening, before): (u64, BTreeSet<Target>),
        result: &Result<T>,
    ) {
        let mut state = self.0.lock();
        if state.opening != opening {
            return;
        }
        let moved = state.tables.get_mut(table).expect("the move was noted");
        moved.running -= 1;
        if !moved.overlapped {
            match result {
                Ok(_) => moved.possible = BTreeSet::from([target.clone()]),
                // Only the next opening knows.
                Err(Error::Poisoned { .. } | Error::Closed) => {}
                Err(_) => moved.possible = before,
            }
        }
        moved.overlapped &= moved.running > 0;
    }

    /// Checks the places of all tables after an opening. No client uses it yet.
    pub(crate) fn check_opened(&self, db: &Database) -> Checked {
        let tables: Vec<String> = {
            let mut state = self.0.lock();
            state.opening += 1;
            // Clients drop and create it.
            state.tables.remove(SPARE);
            state.tables.keys().cloned().collect()
        };
        for table in tables {
            let place = place(db, &table)?;
            let mut state = self.0.lock();
            let moved = state.tables.get_mut(&table).expect("it was noted");
            (moved.running, moved.overlapped) = (0, false);
            // Loaded tables are dropped.
            let Some(place) = place else { continue };
            ensure!(
                moved.possible.contains(&place),
                "the table {table} is in {place:?}, and should be in one of {:?}",
                moved.possible
            );
            moved.possible = BTreeSet::from([place]);
        }
        Ok(Ok(()))
    }
}

/// Returns the tablespace of a table, if there is such a table.
fn place(db: &Database, table: &str) -> Result<Option<Target>> {
    let table = db.untyped_table(table)?;
    table.map(|table| db.tablespace_of(&table)).transpose()
}
