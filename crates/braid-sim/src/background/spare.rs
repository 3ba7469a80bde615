//! A tablespace that clients create, use and drop: it exists with all its rows, or not at all.

use braid::tablespace::TablespaceError;
use braid::{Bytes, Database, Error, Readable, Result, Table};
use fastrand::Rng;

use super::{Checked, Shared};
use crate::spaces::{SPARE, Spaces};
use crate::tables::open_in;

/// Most rows that one change adds.
const ROWS: u64 = 40;

/// Whether the tablespace, or its table, exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Known {
    #[default]
    Absent,
    Present,
    /// An operation failed that may have created or dropped it.
    InDoubt,
}

#[derive(Default)]
struct State {
    /// The devices of the present opening.
    spaces: Option<Spaces>,
    /// Whether a client changes it: one at a time.
    busy: bool,
    space: Known,
    table: Known,
    /// The table has at least the first, at most the second number of rows.
    rows: (u64, u64),
}

/// The spare tablespace of a history.
#[derive(Clone, Default)]
pub(crate) struct Spare(Shared<State>);

impl Spare {
    /// Begins a round with these devices.
    pub(crate) fn begin(&self, spaces: Spaces) {
        let mut state = self.0.lock();
        state.spaces = Some(spaces);
        state.busy = false;
    }

    /// Creates the tablespace, adds rows to its table, or drops it.
    pub(crate) fn change(&self, db: &Database, rng: &mut Rng) -> Result<()> {
        let spaces = {
            let mut state = self.0.lock();
            if std::mem::replace(&mut state.busy, true) {
                return Ok(());
            }
            state.spaces.clone().expect("a round has devices")
        };
        let exists = db.tablespace_names().iter().any(|name| name == SPARE);
        let changed = match (exists, rng.u32(..3)) {
            (false, _) => self.create(db, &spaces),
            (true, 0) => self.drop(db),
            (true, _) => self.add_rows(db, rng.u64(1..ROWS)),
        };
        self.0.lock().busy = false;
        changed
    }

    fn create(&self, db: &Database, spaces: &Spaces) -> Result<()> {
        self.0.lock().space = Known::InDoubt;
        match spaces.create_spare(db) {
            Ok(()) => {
                braid_rt::coverage_point("a tablespace created");
                self.0.lock().space = Known::Present;
                Ok(())
            }
            // An earlier attempt, which failed, has left its files.
            Err(Error::Tablespace(TablespaceError::Occupied { .. })) => Ok(()),
            created => created,
        }
    }

    fn add_rows(&self, db: &Database, count: u64) -> Result<()> {
        {
            let mut state = self.0.lock();
            if state.table != Known::Present {
                state.table = Known::InDoubt;
                // A drop that failed may have left rows.
                state.rows.0 = 0;
            }
        }
        let table: Table<u64, Bytes> = open_in(db, Some(SPARE), SPARE, Default::default())?;
        let mut from = 0;
        for row in db.snapshot().iter(&table)? {
            // The engine may end the snapshot.
            row?;
            from += 1;
        }
        {
            let most = &mut self.0.lock().rows.1;
            *most = (*most).max(from + count);
        }
        let added = db.transact(|tx| {
            (from..from + count).try_for_each(|row| tx.insert(&table, &row, &value(row)[..]))
        });
        if added.is_ok() {
            // Only now: after a drop that failed, a table that is visible may be gone later.
            let mut state = self.0.lock();
            state.table = Known::Present;
            // `gsn` acknowledges transactions before snapshots show them, so rows may be added twice.
            state.rows.0 = state.rows.0.max(from + count);
        }
        added
    }

    fn drop(&self, db: &Database) -> Result<()> {
        self.0.lock().table = Known::InDoubt;
        db.drop_table(SPARE)?;
        {
            let mut state = self.0.lock();
            state.table = Known::Absent;
            state.rows = (0, 0);
            state.space = Known::InDoubt;
        }
        match db.drop_tablespace(SPARE) {
            Ok(()) => {
                braid_rt::coverage_point("a tablespace dropped");
                self.0.lock().space = Known::Absent;
                Ok(())
            }
            // A snapshot keeps its table, a backup copies it, or a reader needs its log.
            Err(Error::Tablespace(
                TablespaceError::NotEmpty { .. }
                | TablespaceError::Busy { .. }
                | TablespaceError::LogNeeded { .. },
            )) => {
                self.0.lock().space = Known::Present;
                Ok(())
            }
            dropped => dropped,
        }
    }

    /// Checks the tablespace after an opening. No client uses it yet.
    pub(crate) fn check_opened(&self, db: &Database) -> Checked {
        let exists = db.tablespace_names().iter().any(|name| name == SPARE);
        let table: Option<Table<u64, Bytes>> = db.existing_table(SPARE)?;
        let mut rows = 0;
        if let Some(table) = &table {
            for entry in db.snapshot().iter(table)? {
                let (row, found) = entry?;
                ensure!(
                    row == rows && found[..] == value(row)[..],
                    "row {row} of the spare tablespace comes after {rows} others"
                );
                rows += 1;
            }
        }
        let mut state = self.0.lock();
        let fits = |known: Known, exists: bool| match known {
            Known::InDoubt => true,
            known => (known == Known::Present) == exists,
        };
        ensure!(
            fits(state.space, exists),
            "the spare tablespace was {:?}, and exists: {exists}",
            state.space
        );
        ensure!(
            fits(state.table, table.is_some()),
            "the table of the spare tablespace was {:?}, and exists: {}",
            state.table,
            table.is_some()
        );
        let (least, most) = state.rows;
        ensure!(
            table.is_none() || (least..=most).contains(&rows),
            "the spare tablespace has {rows} rows, of {least} to {most}"
        );
        let now = |exists| {
            if exists {
                Known::Present
            } else {
                Known::Absent
            }
        };
        (state.space, state.table) = (now(exists), now(table.is_some()));
        state.rows = (rows, rows);
        Ok(Ok(()))
    }
}

/// The value of a row.
fn value(row: u64) -> Vec<u8> {
    vec![row as u8; (row * 37 % 300) as usize]
}
