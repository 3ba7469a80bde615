//! The tables that handles refer to.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use braid_rt::atomic::AtomicBool;
use braid_rt::{Mutex, RwLock};

use super::Engine;
use crate::error::Result;
use crate::schema::table::{Identity, TableCore};

/// Nodes of a dropped table that are read between two pauses for commits.
const NODES_PER_PIECE: u32 = 32;

/// Tables by their numbers.
pub(crate) type TableMap = BTreeMap<u32, Arc<TableCore>>;

/// Function that lists all tables of an engine. The catalog, a layer above the engine, provides it
/// and uses a transaction.
pub(crate) type ListTables = fn(&Arc<Engine>) -> Result<TableMap>;

/// Returns the table of a handle that was dropped or moved, unless it was dropped.
#[cold]
fn newest(table: &Arc<TableCore>) -> Result<&Arc<TableCore>> {
    let newest = table.newest();
    newest.check_alive()?;
    Ok(newest)
}

/// The open tables of a database.
pub(crate) struct Tables {
    /// Tables that were opened. Only the holder of `change` modifies this map, so that a table has
    /// one core.
    pub(crate) by_name: RwLock<HashMap<String, Arc<TableCore>>>,
    /// Held while a table is created, renamed or dropped.
    pub(crate) change: Mutex<()>,
    /// Dropped tables whose pages are freed once no handle is left.
    pub(crate) dropped: Mutex<Vec<Arc<TableCore>>>,
    /// Tables that moved, whose old trees are emptied once no snapshot needs them.
    pub(crate) moved: Mutex<Vec<Arc<TableCore>>>,
    /// Whether a table has moved since the database was opened.
    pub(crate) have_moved: AtomicBool,
    /// Held while such pages are freed, so that a thread that frees all waits for another's table.
    freeing: Mutex<()>,
    pub(crate) catalog: Arc<TableCore>,
    pub(crate) identity: Identity,
    /// All tables of this state, loaded when a handle from another state is first used.
    of_state: OnceLock<TableMap>,
    list: ListTables,
}

impl Tables {
    pub(crate) fn new(catalog: Arc<TableCore>, identity: Identity, list: ListTables) -> Self {
        Self {
            by_name: RwLock::default(),
            change: Mutex::default(),
            dropped: Mutex::default(),
            moved: Mutex::default(),
            have_moved: AtomicBool::new(false),
            freeing: Mutex::default(),
            catalog,
            identity,
            of_state: OnceLock::new(),
            list,
        }
    }
}

impl Engine {
    /// Returns the table of a handle as it is in this state of the database, for reading.
    #[inline]
    pub(crate) fn table_here<'a>(
        self: &'a Arc<Self>,
        table: &'a Arc<TableCore>,
    ) -> Result<&'a Arc<TableCore>> {
        if table.database.state != self.tables.identity.state {
            return self.table_of_state(table);
        }
        self.check_open()?;
        if table.is_gone() {
            return newest(table);
        }
        Ok(table)
    }

    /// Returns the table of a handle for writing in this state of the database.
    #[inline]
    pub(crate) fn table_to_write<'a>(
        &self,
        table: &'a Arc<TableCore>,
    ) -> Result<&'a Arc<TableCore>> {
        if table.database.state != self.tables.identity.state {
            return Err(table.foreign());
        }
        self.check_open()?;
        if !table.is_settled() {
            return self.unsettled_table(table);
        }
        Ok(table)
    }

    /// Returns the table of a handle for writing, after a move that is being completed.
    #[cold]
    fn unsettled_table<'a>(&self, table: &'a Arc<TableCore>) -> Result<&'a Arc<TableCore>> {
        let mut table = newest(table)?;
        while table.is_sealed() {
            braid_rt::coverage_point("move: a write waits for its end");
            table.wait_unsealed();
            self.check_open()?;
            table = newest(table)?;
        }
        Ok(table)
    }

    /// Returns the table with the number of a handle from another state of the same database.
    #[cold]
    #[inline(never)]
    fn table_of_state(self: &Arc<Self>, table: &TableCore) -> Result<&Arc<TableCore>> {
        let is_foreign = table.database.source != self.tables.identity.source;
        if is_foreign && !braid_rt::mutant!("read_foreign_tables") {
            return Err(table.foreign());
        }
        self.check_open()?;
        braid_rt::coverage_point("readers: a table's handle is used in another state");
        let tables = match self.tables.of_state.get() {
            Some(tables) => tables,
            None => {
                let found = (self.tables.list)(self)?;
                self.tables.of_state.get_or_init(|| found)
            }
        };
        let found = if braid_rt::mutant!("find_tables_by_name") {
            tables
                .values()
                .find(|found| *found.name.read() == *table.name.read())
        } else {
            table.numbers().find_map(|number| tables.get(&number))
        };
        found.ok_or_else(|| table.not_alive())
    }

    /// Frees the pages of dropped tables that no handle, and so no reader, refers to. Stops early if
    /// the database is closed: the next open frees the rest.
    pub(crate) fn free_dropped_tables(&self) -> Result<()> {
        let _freeing = self.tables.freeing.lock();
        self.empty_moved_tables()?;
        while let Some(core) = self.take_unused_table() {
            // Finding the pages reads all of the table.
            let (nodes, begun) = (Cell::new(0), Cell::new(braid_rt::now()));
            let goes_on = || {
                nodes.set(nodes.get() + 1);
                if nodes.get() % NODES_PER_PIECE == 0 {
                    if !braid_rt::mutant!("free_tables_without_pauses") {
                        self.log.pause_background(begun.get());
                    }
                    begun.set(braid_rt::now());
                }
                !self.is_closed()
            };
            let Ok(store) = self.store_of(core.id) else {
                // The table moved, and then its tablespace was dropped.
                continue;
            };
            match store.find_dropped(core.id, &goes_on) {
                Ok(Some(dropped)) => {
                    let gate = self.change_pages();
                    store.detach_dropped(&dropped);
                    drop(gate);
                    store.free_dropped(dropped)?;
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    // The next call tries again.
                    self.tables.dropped.lock().push(core);
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Removes a table that nothing refers to from the list of dropped tables.
    fn take_unused_table(&self) -> Option<Arc<TableCore>> {
        let mut dropped = self.tables.dropped.lock();
        if dropped.iter().any(|core| Arc::strong_count(core) > 1) {
            self.forget_dropped_tables();
        }
        // One reference is the list's own. A dropped table is in no map, so no new reference can
        // appear.
        let is_unused = |core: &Arc<TableCore>| Arc::strong_count(core) == 1;
        let unused = dropped.iter().position(is_unused)?;
        Some(dropped.swap_remove(unused))
    }
}
