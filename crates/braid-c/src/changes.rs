//! Reading committed transactions in their order.

use std::ffi::c_void;
use std::time::Duration;

use braid::{Change, ChangeSet, Changes, Database, Position};

use crate::boundary::call;
use crate::database::database;
use crate::handles::{Ended, Exclusive, braid_changes, braid_db, number};
use crate::memory::{Out, braid_slice, required};
use crate::status::braid_status::{self, BRAID_END, BRAID_OK};

/// A place in the order of a database's transactions, behind one of them: where a reader of changes goes on. It may
/// be stored anywhere, and is good for as long as the database lives; one that was restored has other positions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_position {
    /// The library's; the same in every process and on every machine.
    pub bytes: [u8; 24],
}

impl braid_position {
    pub(crate) fn of(position: Position) -> Self {
        let bytes = position.to_bytes();
        Self { bytes }
    }

    pub(crate) fn get(&self) -> Position {
        Position::from_bytes(self.bytes)
    }
}

/// What a transaction did to one key.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_change {
    /// The table's number, which it keeps when it is renamed.
    pub table_id: u32,
    /// The table's name, in UTF-8 and without a NUL at its end; `data` is NULL if it was dropped before this was
    /// read.
    pub table: braid_slice,
    /// The key.
    pub key: braid_slice,
    /// The new value; `data` is NULL, as it never is otherwise, if the key was removed.
    pub value: braid_slice,
}

/// A committed transaction with what it wrote, each key once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_change_set {
    /// Its place in the serial order.
    pub seqno: u64,
    /// The position behind it.
    pub position: braid_position,
    /// Its writes to tables.
    pub changes: *const braid_change,
    /// How many they are.
    pub change_count: usize,
    /// The names of tables that became visible with it and were loaded with a `braid_loader`: what is in them does
    /// not come as changes, and is to be read from a snapshot.
    pub loaded: *const braid_slice,
    /// How many they are.
    pub loaded_count: usize,
}

/// What a handle of a reader stands for.
pub(crate) struct Reader {
    changes: Changes,
    /// What the caller looks at.
    set: Option<ChangeSet>,
    views: Vec<braid_change>,
    loaded: Vec<braid_slice>,
}

// SAFETY: what keeps it from being sent are the pointers in `views` and `loaded`, which point into `set`, beside them,
// and are followed by the caller alone.
unsafe impl Send for Reader {}

pub(crate) static CHANGES: Exclusive<braid_changes, Reader> = Exclusive::new();

const NONE: braid_slice = braid_slice {
    data: std::ptr::null::<c_void>(),
    len: 0,
};

fn view(change: &Change) -> braid_change {
    let table = change.table.as_ref();
    braid_change {
        table_id: change.table_id,
        table: table.map_or(NONE, |name| braid_slice::of(name.as_bytes())),
        key: braid_slice::of(&change.key),
        value: change.value.as_deref().map_or(NONE, braid_slice::of),
    }
}

impl Reader {
    pub(crate) fn new(changes: Changes) -> Self {
        Self {
            changes,
            set: None,
            views: Vec::new(),
            loaded: Vec::new(),
        }
    }

    fn next_within(&mut self, time: Duration) -> braid::Result<Option<braid_change_set>> {
        self.views.clear();
        self.loaded.clear();
        self.set = match time.is_zero() {
            true => self.changes.next().transpose()?,
            false => self.changes.next_within(time)?,
        };
        let Some(set) = &self.set else {
            return Ok(None);
        };
        self.views.extend(set.changes.iter().map(view));
        let loaded = set.loaded.iter();
        self.loaded
            .extend(loaded.map(|name| braid_slice::of(name.as_bytes())));
        Ok(Some(braid_change_set {
            seqno: set.seqno,
            position: braid_position::of(set.position),
            changes: self.views.as_ptr(),
            change_count: self.views.len(),
            loaded: self.loaded.as_ptr(),
            loaded_count: self.loaded.len(),
        }))
    }
}

/// Where a function that gives a position gets it from.
///
/// # Safety
/// `position` is NULL or points to where one fits.
unsafe fn tell_position(
    db: *mut braid_db,
    position: *mut braid_position,
    of: impl FnOnce(&Database) -> Position,
) -> crate::boundary::Outcome {
    // SAFETY: this function's contract.
    let mut out = unsafe { Out::new(position, "position") }?;
    out.set(braid_position::of(of(&database(db)?.current())));
    Ok(BRAID_OK)
}

/// Sets `position` to the one behind all that is durable now.
///
/// # Safety
///
/// `position` is NULL or points to where one fits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_position(
    db: *mut braid_db,
    position: *mut braid_position,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        unsafe { tell_position(db, position, Database::position) }
    })
}

/// Sets `position` to the oldest one from which changes can be read: with no feeds, the beginning of the newest
/// checkpoint.
///
/// # Safety
///
/// That of `braid_db_position`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_oldest_position(
    db: *mut braid_db,
    position: *mut braid_position,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        unsafe { tell_position(db, position, Database::oldest_position) }
    })
}

/// Sets `position` to the one behind the transaction of a number, for who kept only that.
///
/// # Safety
///
/// That of `braid_db_position`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_position_behind(
    db: *mut braid_db,
    seqno: u64,
    position: *mut braid_position,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        unsafe { tell_position(db, position, |database| database.position_behind(seqno)) }
    })
}

/// Opens a reader of the committed, durable transactions behind a position, in their order. While it is open, the log
/// that it has not read is kept, up to `BRAID_OPTION_FEED_LOG_BYTES`. `BRAID_POSITION_LOST` if that behind the position
/// is not kept any more, `BRAID_FOREIGN_POSITION` if it is none of this database. It is freed with
/// `braid_changes_free`.
///
/// # Safety
///
/// `from` is NULL or points to a position; `changes` is NULL or points to where a handle fits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_changes(
    db: *mut braid_db,
    from: *const braid_position,
    changes: *mut *mut braid_changes,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(changes, "changes") }?;
        // SAFETY: this function's contract.
        let from = unsafe { required(from, "from") }?.get();
        let reader = Reader::new(database(db)?.current().changes(from)?);
        out.set(CHANGES.insert(reader, number(db))?);
        Ok(BRAID_OK)
    })
}

/// Gives the next transaction; if there is none, waits for one, but not for longer than `timeout_us` microseconds.
/// `BRAID_END` if there is none for now: it can be asked again. What `set` points to lasts until the next call with
/// this reader. `BRAID_POSITION_LOST` if the reader was left behind by more log than is kept for it.
///
/// # Safety
///
/// `set` is NULL or points to where one fits. No other thread uses the reader, or frees it, as long as what was given is
/// looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_changes_next(
    changes: *mut braid_changes,
    timeout_us: u64,
    set: *mut braid_change_set,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(set, "set") }?;
        let mut reader = CHANGES.lock(changes)?;
        Ok(
            match reader.next_within(Duration::from_micros(timeout_us))? {
                Some(set) => {
                    out.set(set);
                    BRAID_OK
                }
                None => BRAID_END,
            },
        )
    })
}

/// Sets `position` to the one behind what the reader gave so far, and behind transactions that had nothing to show.
///
/// # Safety
///
/// `position` is NULL or points to where one fits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_changes_position(
    changes: *mut braid_changes,
    position: *mut braid_position,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(position, "position") }?;
        out.set(braid_position::of(
            CHANGES.lock(changes)?.changes.position(),
        ));
        Ok(BRAID_OK)
    })
}

/// Frees a reader. NULL is allowed, and does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn braid_changes_free(changes: *mut braid_changes) -> braid_status {
    call(|| {
        if !changes.is_null() {
            drop(CHANGES.end(changes, Ended::Freed)?);
        }
        Ok(BRAID_OK)
    })
}
