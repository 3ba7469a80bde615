//! Snapshots.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use braid::{Readable, ValueRef};

use super::table::{braid_name_callback, report_names};
use crate::boundary::{Outcome, call};
use crate::handle_error::Ended;
use crate::handles::{braid_db, braid_snapshot, braid_table, number};
use crate::memory::{Optional, Out, bytes, text};
use crate::registry::{SNAPSHOTS, database, table};
use crate::status::braid_status::{self, BRAID_NOT_FOUND, BRAID_OK};
use crate::value::{Found, braid_value, found_in};

/// Takes a read-only view of the durable state. A snapshot never blocks a writer, never waits for
/// one, and never conflicts. While it is open, overwritten values stay in memory for it. Free it
/// with `braid_snapshot_free`.
///
/// # Safety
///
/// `snapshot` is NULL or points to writable memory for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_snapshot_open(
    db: *mut braid_db,
    snapshot: *mut *mut braid_snapshot,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(snapshot, "snapshot") }?;
        let taken = Arc::new(database(db)?.current().snapshot());
        out.set(SNAPSHOTS.insert(taken, number(db))?);
        Ok(BRAID_OK)
    })
}

/// Takes a snapshot, as `braid_snapshot_open` does, and keeps it under a name until
/// `braid_snapshot_drop`, so that other threads can find it. It exists only while the database is
/// open, because the old versions that it needs are in memory. `snapshot`, which may be NULL, is
/// set to a handle of the snapshot. Returns `BRAID_SNAPSHOT_EXISTS` if the name is taken.
///
/// # Safety
///
/// `name` is NULL or a string that ends with a NUL; `snapshot` is NULL or points to writable memory
/// for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_snapshot_create(
    db: *mut braid_db,
    name: *const c_char,
    snapshot: *mut *mut braid_snapshot,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (mut out, name) = unsafe { (Optional::handle(snapshot), text(name, "name")?) };
        let taken = Arc::new(database(db)?.current().create_snapshot(name)?);
        if out.is_wanted() {
            out.set(SNAPSHOTS.insert(taken, number(db))?);
        }
        Ok(BRAID_OK)
    })
}

/// Opens the snapshot of a name; it shows the state in which it was created. Returns
/// `BRAID_SNAPSHOT_NOT_FOUND` if there is none, for example because the database was closed and
/// opened again. Free it with `braid_snapshot_free`.
///
/// # Safety
///
/// `name` is NULL or a string that ends with a NUL; `snapshot` is NULL or points to writable memory
/// for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_snapshot_open_named(
    db: *mut braid_db,
    name: *const c_char,
    snapshot: *mut *mut braid_snapshot,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(snapshot, "snapshot") }?;
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "name") }?;
        let found = Arc::new(database(db)?.current().open_snapshot(name)?);
        out.set(SNAPSHOTS.insert(found, number(db))?);
        Ok(BRAID_OK)
    })
}

/// Removes a snapshot's name. Returns `BRAID_NOT_FOUND` if there is no snapshot of this name. Open
/// handles of the snapshot stay valid.
///
/// # Safety
///
/// `name` is NULL or a string that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_snapshot_drop(
    db: *mut braid_db,
    name: *const c_char,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "name") }?;
        Ok(if database(db)?.current().drop_snapshot(name) {
            BRAID_OK
        } else {
            BRAID_NOT_FOUND
        })
    })
}

/// Calls `callback` with the name of each named snapshot, in the order of names, on this thread.
///
/// # Safety
///
/// `callback` may be called with `data`. It must not unwind or call `longjmp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_snapshot_names(
    db: *mut braid_db,
    callback: braid_name_callback,
    data: *mut c_void,
) -> braid_status {
    call(|| {
        let names = database(db)?.current().snapshot_names();
        // SAFETY: this function's contract.
        unsafe { report_names(&names, callback, data) }
    })
}

/// Frees a snapshot. Its cursors stay valid until they are freed. NULL is allowed and has no
/// effect.
#[unsafe(no_mangle)]
pub extern "C" fn braid_snapshot_free(snapshot: *mut braid_snapshot) -> braid_status {
    call(|| {
        if !snapshot.is_null() {
            SNAPSHOTS.end(snapshot, Ended::Freed)?;
        }
        Ok(BRAID_OK)
    })
}

/// Sets `seqno` to the sequence number of the newest transaction that the snapshot shows.
///
/// # Safety
///
/// `seqno` is NULL or points to writable memory for the number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_snapshot_seqno(
    snapshot: *mut braid_snapshot,
    seqno: *mut u64,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(seqno, "seqno") }?;
        out.set(SNAPSHOTS.pin(snapshot)?.seqno());
        Ok(BRAID_OK)
    })
}

/// Reads a key. Returns `BRAID_NOT_FOUND` if the key does not exist. Free the value with
/// `braid_value_free`.
///
/// # Safety
///
/// `key` points to `key_len` bytes, or is NULL if its length is 0; `value` is NULL or points to
/// writable memory for a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_snapshot_get(
    snapshot: *mut braid_snapshot,
    table: *mut braid_table,
    key: *const c_void,
    key_len: usize,
    value: *mut braid_value,
) -> braid_status {
    // SAFETY: this function's contract.
    call(move || unsafe { get(snapshot, table, key, key_len, value) }.map(Found::status))
}

/// Body of [`braid_snapshot_get`], with arguments and result in registers.
///
/// # Safety
///
/// As for [`braid_snapshot_get`].
#[inline(never)]
unsafe fn get(
    snapshot: *mut braid_snapshot,
    table: *mut braid_table,
    key: *const c_void,
    key_len: usize,
    value: *mut braid_value,
) -> Outcome<Found> {
    // SAFETY: this function's contract.
    let (mut out, key) = unsafe { (Out::value(value)?, bytes(key, key_len, "key")?) };
    let snapshot = SNAPSHOTS.pin(snapshot)?;
    let table = self::table(table)?;
    let put = |value: ValueRef<'_>| out.put(value);
    let found = snapshot.get_by(&table.table, key, put);
    found_in(out, found)
}

/// Checks whether a key exists: returns `BRAID_OK` or `BRAID_NOT_FOUND`.
///
/// # Safety
///
/// `key` points to `key_len` bytes, or is NULL if its length is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_snapshot_contains(
    snapshot: *mut braid_snapshot,
    table: *mut braid_table,
    key: *const c_void,
    key_len: usize,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let key = unsafe { bytes(key, key_len, "key") }?;
        let snapshot = SNAPSHOTS.pin(snapshot)?;
        Ok(if snapshot.contains_key(&self::table(table)?.table, key)? {
            BRAID_OK
        } else {
            BRAID_NOT_FOUND
        })
    })
}

/// Sets `len` to the number of entries of a table. The function counts them one by one, which takes
/// as long as reading all of them.
///
/// # Safety
///
/// `len` is NULL or points to writable memory for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_snapshot_len(
    snapshot: *mut braid_snapshot,
    table: *mut braid_table,
    len: *mut u64,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(len, "len") }?;
        let snapshot = SNAPSHOTS.pin(snapshot)?;
        out.set(snapshot.len(&self::table(table)?.table)?);
        Ok(BRAID_OK)
    })
}
