//! Change feeds: committed transactions in the order of sequence numbers.

use std::time::Duration;

use braid::Database;
use braid::changes::Position;

use crate::boundary::call;
use crate::handle_error::Ended;
use crate::handles::{braid_changes, braid_db, number};
use crate::memory::{Out, required};
use crate::objects::{Reader, braid_change_set, braid_position};
use crate::registry::{CHANGES, database};
use crate::status::braid_status::{self, BRAID_END, BRAID_OK};

/// Sets `position` to a position of the database.
///
/// # Safety
///
/// `position` is NULL or points to writable memory for one.
unsafe fn report_position(
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
        unsafe { report_position(db, position, Database::position) }
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
        unsafe { report_position(db, position, Database::oldest_position) }
    })
}

/// Sets `position` to the position after the transaction with a sequence number, for programs that
/// stored only the number.
///
/// # Safety
///
/// As for `braid_db_position`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_position_after(
    db: *mut braid_db,
    seqno: u64,
    position: *mut braid_position,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        unsafe { report_position(db, position, |database| database.position_after(seqno)) }
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
