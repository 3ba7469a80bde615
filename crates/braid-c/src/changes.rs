//! Change feeds: committed transactions in the order of sequence numbers.

use std::ffi::c_void;
use std::time::Duration;

use braid::{Change, ChangeSet, Changes, Database, Position};

use crate::boundary::call;
use crate::database::database;
use crate::handles::{Ended, Exclusive, braid_changes, braid_db, number};
use crate::memory::{Out, braid_slice, required};
use crate::status::braid_status::{self, BRAID_END, BRAID_OK};

/// Position in the order of a database's transactions, after one of them. A program can store it
/// anywhere, and continue reading changes from it. It stays valid as long as the database exists; a
/// restored database has other positions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_position {
    /// Opaque; the same in every process and on every machine.
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

/// Change of one key by a transaction.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_change {
    /// Identifier of the table, which stays the same when the table is renamed.
    pub table_id: u32,
    /// Name of the table, in UTF-8 without a terminating NUL. `data` is NULL if the table was
    /// dropped before the change was read.
    pub table: braid_slice,
    /// The key.
    pub key: braid_slice,
    /// The new value; `data` is NULL if the key was removed, and only then.
    pub value: braid_slice,
}

/// A committed transaction and its changes; each key occurs once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_change_set {
    /// Sequence number of the transaction, its place in the serial order.
    pub seqno: u64,
    /// Position after the transaction.
    pub position: braid_position,
    /// The changes.
    pub changes: *const braid_change,
    /// Number of changes.
    pub change_count: usize,
    /// Names of tables that a bulk load (`braid_loader`) made visible with this transaction. Their
    /// entries are not listed as changes; read them from a snapshot.
    pub loaded: *const braid_slice,
    /// Number of loaded tables.
    pub loaded_count: usize,
}

/// Object of a reader's handle.
pub(crate) struct Reader {
    changes: Changes,
    /// The set that the caller is reading.
    set: Option<ChangeSet>,
    views: Vec<braid_change>,
    loaded: Vec<braid_slice>,
}

// SAFETY: only the pointers in `views` and `loaded` make the type not `Send`. They point into
// `set`, which moves with them, and only the caller dereferences them.
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

/// Sets `position` to a position of the database.
///
/// # Safety
///
/// `position` is NULL or points to writable memory for one.
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

/// Sets `position` to the position after all transactions that are durable now.
///
/// # Safety
///
/// `position` is NULL or points to writable memory for one.
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

/// Sets `position` to the oldest position from which changes can be read. Without feeds, this is
/// the beginning of the newest checkpoint.
///
/// # Safety
///
/// As for `braid_db_position`.
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

/// Sets `position` to the position after the transaction with a sequence number, for programs that
/// stored only the number.
///
/// # Safety
///
/// As for `braid_db_position`.
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

/// Opens a reader of the committed, durable transactions after a position, in the order of sequence
/// numbers. While the reader is open, Braid keeps the log that it has not read, up to
/// `BRAID_OPTION_FEED_LOG_BYTES`. Returns `BRAID_POSITION_LOST` if the log after the position is
/// gone, and `BRAID_FOREIGN_POSITION` if the position belongs to another database. Free the reader
/// with `braid_changes_free`.
///
/// # Safety
///
/// `from` is NULL or points to a position; `changes` is NULL or points to writable memory for a
/// handle.
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

/// Returns the next transaction. If there is none, the function waits for one, for at most
/// `timeout_us` microseconds, and then returns `BRAID_END`; a later call may return a transaction.
/// The pointers in `set` are valid until the next call with this reader. Returns
/// `BRAID_POSITION_LOST` if the reader fell behind by more log than Braid keeps for it.
///
/// # Safety
///
/// `set` is NULL or points to writable memory for one. No other thread uses the reader, or frees
/// it, while the caller reads the set.
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

/// Sets `position` to the position after all transactions that the reader has returned, and after
/// the transactions without changes that it has skipped.
///
/// # Safety
///
/// `position` is NULL or points to writable memory for one.
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

/// Frees a reader. NULL is allowed and has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn braid_changes_free(changes: *mut braid_changes) -> braid_status {
    call(|| {
        if !changes.is_null() {
            drop(CHANGES.end(changes, Ended::Freed)?);
        }
        Ok(BRAID_OK)
    })
}
