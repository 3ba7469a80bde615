//! Tablespaces: stores of their own for some of the tables, which share the log or have parts of it of
//! their own.
//!
//! A table's number contains that of its tablespace ([`space_of`]), and its handle leads to its tree.
//! So a transaction or a reader needs this list only to reserve room, and to find the store of a
//! table that is opened, dropped or replayed. The main tablespace, [`Engine::store`], is not in it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{DeviceChoice, DirectoryLock};
use braid_log::{Fragment, PendingCommit};
use braid_rt::atomic::{AtomicBool, Ordering};
use braid_rt::{Mutex, RwLock};
use braid_store::{Store, WriterRoom};

use super::Engine;
use super::context::Context;
use super::space_state::SpaceState;
use crate::error::{Error, Result, TablespaceError};
use crate::format::space::{ListedLog, ListedSpace};
use crate::schema::entry::{MAIN_SPACE, SPACES_MAX, damaged, space_of};
use crate::schema::table::TableCore;

/// Returns the side lane of a tablespace's log, counted from 0.
pub(crate) fn side_of(number: u8) -> usize {
    usize::from(number) - 1
}

/// A tablespace other than the main one.
pub(crate) struct Space {
    pub(crate) number: u8,
    pub(crate) name: String,
    /// Random; the same in the list of tablespaces and in the tablespace's files.
    pub(crate) identity: u128,
    pub(crate) store: Store,
    /// The directory, with links resolved; `None` on a device that the caller provides.
    pub(crate) directory: Option<PathBuf>,
    /// How the directory is accessed.
    pub(crate) access: DeviceChoice,
    pub(crate) pool_bytes: usize,
    /// Whether it has a log of its own.
    pub(crate) has_log: bool,
    /// The system's number of the memory node that was chosen for it, which this machine may lack.
    pub(crate) node: Option<u16>,
    /// Whether transactions write to that log: once a checkpoint has its position.
    uses_log: AtomicBool,
    /// The place of its log, if that is not with its data file.
    pub(crate) log: Option<ListedLog>,
    /// The locks on the directories, until the database is closed.
    pub(crate) locks: Mutex<Vec<DirectoryLock>>,
    pub(crate) uses: Mutex<Uses>,
    /// Which checkpoint its data file has.
    pub(crate) state: SpaceState,
}

/// Uses of a tablespace during which it is not dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    /// Names of the tables that are being loaded.
    pub(crate) loads: Vec<String>,
    /// Number of backups that copy it.
    pub(crate) copies: usize,
}

/// A tablespace that a backup copies.
#[derive(Debug)]
pub(crate) struct SpaceUse(Arc<Space>);

impl SpaceUse {
    /// Returns all tablespaces of an engine.
    pub(crate) fn all_of(engine: &Engine) -> Vec<Self> {
        if engine.spaces.all().is_empty() {
            return Vec::new();
        }
        // A drop holds this lock from its look at the uses to its end.
        let _change = engine.tables.change.lock();
        let hold = |space: Arc<Space>| {
            space.uses.lock().copies += 1;
            Self(space)
        };
        engine.spaces.all().into_iter().map(hold).collect()
    }

    pub(crate) fn space(&self) -> &Space {
        &self.0
    }
}

impl Drop for SpaceUse {
    fn drop(&mut self) {
        self.0.uses.lock().copies -= 1;
    }
}

impl Space {
    /// Creates a tablespace of the list.
    pub(crate) fn new(
        entry: &ListedSpace,
        store: Store,
        directory: Option<PathBuf>,
        access: DeviceChoice,
        log: Option<ListedLog>,
        locks: Vec<DirectoryLock>,
    ) -> Self {
        Self {
            number: entry.number,
            name: entry.name.clone(),
            identity: entry.identity,
            store,
            directory,
            access,
            pool_bytes: usize::try_from(entry.pool_bytes).unwrap_or(usize::MAX),
            has_log: entry.has_log,
            node: entry.node,
            uses_log: AtomicBool::new(false),
            log,
            locks: Mutex::new(locks),
            uses: Mutex::default(),
            state: SpaceState::default(),
        }
    }

    /// Makes transactions write to the tablespace's own log, or to that of the database.
    pub(crate) fn use_log(&self, own: bool) {
        // Release: pairs with `uses_log`.
        self.uses_log.store(own, Ordering::Release);
    }

    /// Whether transactions write to the tablespace's own log.
    pub(crate) fn uses_log(&self) -> bool {
        // Acquire: a thread that sees it finds the log begun. One that sees an older value writes to
        // the database's log, or enters a lane that was given up, and the log refuses.
        self.uses_log.load(Ordering::Acquire)
    }

    /// Returns its entry in the list of tablespaces.
    pub(crate) fn entry(&self) -> ListedSpace {
        ListedSpace {
            number: self.number,
            identity: self.identity,
            pool_bytes: self.pool_bytes as u64,
            name: self.name.clone(),
            directory: self.directory.clone().unwrap_or_default(),
            access: self.access,
            has_log: self.has_log,
            log: self.log.clone(),
            node: self.node,
        }
    }

    /// Returns the directory of its log, if that has one of its own.
    pub(crate) fn log_directory(&self) -> Option<&Path> {
        let log = self.log.as_ref()?;
        let is_one = !log.directory.as_os_str().is_empty();
        is_one.then_some(&log.directory)
    }

    /// Returns its directories, and what lies in each.
    pub(crate) fn places(&self) -> impl Iterator<Item = (String, PathBuf)> + '_ {
        let data = self.directory.iter().map(|directory| {
            let what = format!("tablespace {:?}", self.name);
            (what, directory.clone())
        });
        let log = self.log_directory().into_iter().map(|directory| {
            let what = format!("the log of tablespace {:?}", self.name);
            (what, directory.to_owned())
        });
        data.chain(log)
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space")
            .field("number", &self.number)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A tablespace that cannot be opened.
#[derive(Clone, Debug)]
pub(crate) struct Absent {
    pub(crate) number: u8,
    pub(crate) name: String,
    /// The reason, with which its tables fail.
    pub(crate) error: Error,
}

/// The tablespaces of an open database, by number.
#[derive(Debug, Default)]
pub(crate) struct Spaces(RwLock<List>);

#[derive(Debug, Default)]
struct List {
    spaces: Vec<Arc<Space>>,
    /// Tablespaces that cannot be opened, in a database that was opened read-only.
    absent: Vec<Absent>,
    /// Set of the numbers in use since the database was opened. Old versions of a dropped table may
    /// refer to its tablespace by the number, so no other tablespace gets it meanwhile.
    used: u64,
}

impl Spaces {
    pub(crate) fn new(spaces: Vec<Arc<Space>>, absent: Vec<Absent>) -> Self {
        let new = Self::default();
        new.0.write().absent = absent;
        spaces.into_iter().for_each(|space| new.add(space));
        new
    }

    /// Returns why a tablespace could not be opened.
    pub(crate) fn absence(&self, is_it: impl Fn(&Absent) -> bool) -> Option<Error> {
        let list = self.0.read();
        let found = list.absent.iter().find(|absent| is_it(absent));
        found.map(|absent| absent.error.clone())
    }

    pub(crate) fn all(&self) -> Vec<Arc<Space>> {
        self.0.read().spaces.clone()
    }

    fn find(&self, mut is_it: impl FnMut(&Space) -> bool) -> Option<Arc<Space>> {
        let list = self.0.read();
        list.spaces.iter().find(|space| is_it(space)).cloned()
    }

    pub(crate) fn get(&self, number: u8) -> Option<Arc<Space>> {
        self.find(|space| space.number == number)
    }

    pub(crate) fn named(&self, name: &str) -> Option<Arc<Space>> {
        self.find(|space| space.name == name)
    }

    /// Returns the least number for a new tablespace that `is_free`.
    pub(crate) fn unused(&self, is_free: impl Fn(&u8) -> bool) -> Option<u8> {
        let used = self.0.read().used;
        let mut numbers = (MAIN_SPACE + 1..SPACES_MAX).filter(|number| used >> number & 1 == 0);
        numbers.find(is_free)
    }

    pub(crate) fn add(&self, space: Arc<Space>) {
        let mut list = self.0.write();
        list.used |= 1 << space.number;
        list.spaces.push(space);
        list.spaces.sort_by_key(|space| space.number);
    }

    pub(crate) fn remove(&self, number: u8) {
        let mut list = self.0.write();
        list.spaces.retain(|space| space.number != number);
    }
}

/// Room in the data file of one tablespace, reserved for the transactions of a context.
#[derive(Debug)]
pub(crate) struct SpaceRoom {
    space: u8,
    room: WriterRoom,
}

impl Context {
    /// Notes that the context uses a table of a tablespace other than the main one: from now on, it
    /// has room in each tablespace by itself.
    #[cold]
    pub(super) fn divide_room(&mut self) {
        if !self.room.is_divided() {
            let room = std::mem::replace(&mut self.room, WriterRoom::divided());
            let space = MAIN_SPACE;
            self.rooms.push(SpaceRoom { space, room });
        }
    }
}

impl Engine {
    /// Returns the number of the tablespace where a table is about to be created. The caller has
    /// locked the catalog, as a drop does, which may have come first.
    pub(crate) fn check_space_is_there(&self, space: Option<&Space>) -> Result<u8> {
        let Some(space) = space else {
            return Ok(MAIN_SPACE);
        };
        let is_there = self.spaces.get(space.number).is_some();
        if !is_there && !braid_rt::mutant!("create_in_a_dropped_tablespace") {
            let name = space.name.clone();
            return Err(Error::Tablespace(TablespaceError::NotFound { name }));
        }
        space.check_writable()?;
        Ok(space.number)
    }

    /// Returns the store of a tablespace.
    pub(crate) fn store_of_space(&self, number: u8) -> Option<Store> {
        if number == MAIN_SPACE {
            return Some(self.store.clone());
        }
        self.spaces.get(number).map(|space| space.store.clone())
    }

    /// Returns the store of a table.
    pub(crate) fn store_of(&self, table_id: u32) -> Result<Store> {
        let number = space_of(table_id);
        let store = self.store_of_space(number);
        store.ok_or_else(
            || match self.spaces.absence(|absent| absent.number == number) {
                Some(error) => error,
                None => damaged("a table belongs to a tablespace that does not exist"),
            },
        )
    }

    /// Returns the stores of all tablespaces, the main one first.
    pub(crate) fn stores(&self) -> impl Iterator<Item = Store> + use<> {
        let others = self.spaces.all();
        let others = others.into_iter().map(|space| space.store.clone());
        std::iter::once(self.store.clone()).chain(others)
    }

    /// Updates the hints whether pages may be missing in memory.
    pub(crate) fn note_residency(&self) {
        self.stores().for_each(|store| store.note_residency());
    }

    /// Whether writers are copying pages faster than the running checkpoint writes them.
    pub(crate) fn has_many_copies(&self) -> bool {
        self.stores().any(|store| store.has_many_copies())
    }

    /// Whether a transaction was refused for lack of room since the newest checkpoint, which another one
    /// may end: not in a tablespace whose checkpoints fail.
    pub(crate) fn has_refused(&self) -> bool {
        let others = self.spaces.all();
        let mut others = others.iter().filter(|space| !space.is_lagging());
        self.store.has_refused() || others.any(|space| space.store.has_refused())
    }

    /// Whether the application of a transaction that was admitted may wait for pages.
    //
    // Kept with the transaction: a look at the main tablespace's pool ends the hint of that one.
    #[inline(always)]
    pub(crate) fn may_wait_for_pages(&self, state: &Context) -> bool {
        self.store.may_wait_for_pages() || (state.room.is_divided() && state.waits_for_pages)
    }

    /// Admits a transaction for which its context's room in the main tablespace does not suffice, or
    /// that may write to others; see [`Store::admit`].
    #[cold]
    #[inline(never)]
    pub(crate) fn admit_slowly(&self, state: &mut Context, size: (usize, usize)) -> Result<()> {
        if state.room.is_divided() {
            return self.admit_in_each(state);
        }
        let writes = &state.writes;
        let removes_only = || writes.live().all(|write| write.removes);
        Ok(self.store.admit(&mut state.room, size, removes_only)?)
    }

    /// Begins to commit a transaction of a database whose tablespaces have logs: it has a fragment in
    /// each log to which it writes.
    #[cold]
    #[inline(never)]
    pub(crate) fn enter_logs(&self, state: &mut Context) -> Result<PendingCommit<'_>> {
        let payload = state.writes.log_payload();
        if !state.room.is_divided() {
            return Ok(self.log.enter(&[payload])?);
        }
        let side_of = |table: &Arc<TableCore>| {
            let space = self.spaces.get(space_of(table.id));
            let space = space.filter(|space| space.uses_log());
            space.map(|space| side_of(space.number))
        };
        let sides: Vec<Option<usize>> = state.tables.iter().map(side_of).collect();
        let mut fragments: Vec<Fragment> = Vec::new();
        for (table, redo) in state.writes.live_redo() {
            let side = sides[table];
            let found = fragments.iter().position(|fragment| fragment.side == side);
            let index = found.unwrap_or_else(|| {
                fragments.push(Fragment {
                    side,
                    records: 0,
                    payload: Vec::with_capacity(redo.len()),
                });
                fragments.len() - 1
            });
            fragments[index].records += 1;
            fragments[index].payload.extend_from_slice(redo);
        }
        Ok(self.log.enter_fragments(fragments)?)
    }

    /// Reserves room in each tablespace to which a transaction writes. If one is full, only the
    /// transactions that write to it fail.
    fn admit_in_each(&self, state: &mut Context) -> Result<()> {
        let Context {
            writes,
            tables,
            rooms,
            waits_for_pages,
            ..
        } = state;
        *waits_for_pages = false;
        for (space, extent) in writes.extents(|table| space_of(tables[table as usize].id)) {
            let missing = || damaged("a written table's tablespace is missing");
            let store = if space == MAIN_SPACE {
                self.store.clone()
            } else {
                let space = self.spaces.get(space).ok_or_else(missing)?;
                space.check_writable()?;
                space.store.clone()
            };
            if extent.entries > 0 {
                store.expect_long_keys();
            }
            if store.may_wait_for_pages() {
                *waits_for_pages = true;
                // A large transaction loads its next leaves, of whatever tablespace, if the main one asks.
                self.store.expect_waits();
            }
            let index = rooms.iter().position(|room| room.space == space);
            let index = index.unwrap_or_else(|| {
                let room = WriterRoom::default();
                rooms.push(SpaceRoom { space, room });
                rooms.len() - 1
            });
            let size = (extent.writes + extent.entries, extent.bytes);
            let room = &mut rooms[index].room;
            if braid_rt::mutant!("admit_in_the_main_tablespace_only") && space != MAIN_SPACE {
                continue;
            }
            let admitted = store.admit(room, size, || extent.removes_only);
            admitted.inspect_err(|_| braid_rt::coverage_point("room: a tablespace is full"))?;
        }
        Ok(())
    }

    /// Releases the room that a context no longer needs, except a little for its next transaction.
    #[inline]
    pub(crate) fn trim_room(&self, state: &mut Context) {
        if state.room.is_large() {
            self.trim_large_room(state);
        }
    }

    #[cold]
    fn trim_large_room(&self, state: &mut Context) {
        if !state.room.is_divided() {
            return self.store.trim_room(&mut state.room);
        }
        for SpaceRoom { space, room } in &mut state.rooms {
            if let Some(store) = self.store_of_space(*space) {
                store.trim_room(room);
            }
        }
    }

    /// Releases all room that a context was promised.
    pub(crate) fn release_room(&self, state: &mut Context) {
        if !state.room.is_divided() {
            return self.store.release_room(&mut state.room);
        }
        for SpaceRoom { space, mut room } in state.rooms.drain(..) {
            // A tablespace that was dropped needs none.
            if let Some(store) = self.store_of_space(space) {
                store.release_room(&mut room);
            }
        }
    }
}
