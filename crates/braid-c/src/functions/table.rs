//! Tables.

use std::ffi::{c_char, c_void};

use braid::ValueRef;

use super::table_options::braid_table_options;
use crate::boundary::{Failure, Outcome, call};
use crate::handle_error::Ended;
use crate::handles::{braid_db, braid_table, number};
use crate::memory::{Out, braid_slice, bytes, optional, text};
use crate::objects::{OpenDatabase, OpenTable};
use crate::registry::{TABLES, database, table};
use crate::status::braid_status::{self, BRAID_NOT_FOUND, BRAID_OK};
use crate::value::{Found, braid_value, found_in};

/// Opens a table whose keys and values are byte strings, and creates it, durably, if there is no
/// table of this name.
///
/// Any thread can use the handle, in any transaction and snapshot of the database. Free it with
/// `braid_table_free`.
///
/// # Safety
///
/// `name` is NULL or a string that ends with a NUL; `table` is NULL or points to writable memory
/// for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_table_open(
    db: *mut braid_db,
    name: *const c_char,
    table: *mut *mut braid_table,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(table, "table") }?;
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "name") }?;
        let database = OpenDatabase::clone(&*database(db)?);
        let table = database.current().open_table(name)?;
        out.set(TABLES.insert(OpenTable::new(table, database), number(db))?);
        Ok(BRAID_OK)
    })
}

/// Opens a table as `braid_table_open` does, with options. If the table does not exist, it is
/// created with these options. If it exists and was created with other options, the function
/// returns `BRAID_TABLE_OPTIONS`. If `options` is NULL, all options are zero.
///
/// # Safety
///
/// As for `braid_table_open`; `options` is NULL or points to options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_table_open_with(
    db: *mut braid_db,
    name: *const c_char,
    options: *const braid_table_options,
    table: *mut *mut braid_table,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(table, "table") }?;
        // SAFETY: this function's contract.
        let (name, options) = unsafe { (text(name, "name")?, optional(options)) };
        let options = braid_table_options::parse(options)?;
        let database = OpenDatabase::clone(&*database(db)?);
        let table = database.current().open_table_with(name, options)?;
        out.set(TABLES.insert(OpenTable::new(table, database), number(db))?);
        Ok(BRAID_OK)
    })
}

/// Sets `options` to the options that the table was created with.
///
/// # Safety
///
/// `options` is NULL or points to writable memory for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_table_get_options(
    table: *mut braid_table,
    options: *mut braid_table_options,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(options, "options") }?;
        out.set(braid_table_options::of(self::table(table)?.table.options()));
        Ok(BRAID_OK)
    })
}

/// Opens a table as `braid_table_open` does, but does not create it: if there is no table of this
/// name, it returns `BRAID_NOT_FOUND`.
///
/// # Safety
///
/// As for `braid_table_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_table_open_existing(
    db: *mut braid_db,
    name: *const c_char,
    table: *mut *mut braid_table,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(table, "table") }?;
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "name") }?;
        let database = OpenDatabase::clone(&*database(db)?);
        let Some(table) = database.current().existing_table(name)? else {
            return Ok(BRAID_NOT_FOUND);
        };
        out.set(TABLES.insert(OpenTable::new(table, database), number(db))?);
        Ok(BRAID_OK)
    })
}

/// Frees a table's handle, not the table. NULL is allowed and has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn braid_table_free(table: *mut braid_table) -> braid_status {
    call(|| {
        if !table.is_null() {
            TABLES.end(table, Ended::Freed)?;
        }
        Ok(BRAID_OK)
    })
}

/// Reads one key from the durable state, like a snapshot but at less cost. Returns
/// `BRAID_NOT_FOUND` if the key does not exist. Free the value with `braid_value_free`.
///
/// # Safety
///
/// `key` points to `key_len` bytes, or is NULL if its length is 0; `value` is NULL or points to
/// writable memory for a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_table_get(
    table: *mut braid_table,
    key: *const c_void,
    key_len: usize,
    value: *mut braid_value,
) -> braid_status {
    // SAFETY: this function's contract.
    call(move || unsafe { get(table, key, key_len, value) }.map(Found::status))
}

/// Body of [`braid_table_get`], with arguments and result in registers.
///
/// # Safety
///
/// As for [`braid_table_get`].
#[inline(never)]
unsafe fn get(
    table: *mut braid_table,
    key: *const c_void,
    key_len: usize,
    value: *mut braid_value,
) -> Outcome<Found> {
    // SAFETY: this function's contract.
    let (mut out, key) = unsafe { (Out::value(value)?, bytes(key, key_len, "key")?) };
    let table = self::table(table)?;
    let open = &*table;
    let put = |value: ValueRef<'_>| out.put(value);
    let found = open.database().current().get_by(&open.table, key, put);
    found_in(out, found)
}

/// Removes a table with all its entries, durably. Returns `BRAID_NOT_FOUND` if there is no table of
/// this name. The table's space is free after all its handles are freed and the next checkpoint is
/// written.
///
/// # Safety
///
/// `name` is NULL or a string that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_table_drop(db: *mut braid_db, name: *const c_char) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "name") }?;
        Ok(if database(db)?.current().drop_table(name)? {
            BRAID_OK
        } else {
            BRAID_NOT_FOUND
        })
    })
}

/// Renames a table, durably. Returns `BRAID_TABLE_NOT_FOUND` if there is no table with the old name,
/// and `BRAID_TABLE_EXISTS` if there is one with the new name.
///
/// # Safety
///
/// `from` and `to` are NULL or strings that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_table_rename(
    db: *mut braid_db,
    from: *const c_char,
    to: *const c_char,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (from, to) = unsafe { (text(from, "from")?, text(to, "to")?) };
        database(db)?.current().rename_table(from, to)?;
        Ok(BRAID_OK)
    })
}

/// Receives a name, in UTF-8 without a terminating NUL, which is valid during the call. Returns
/// `false` to end the listing.
pub type braid_name_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, name: braid_slice) -> bool>;

/// Calls `callback` with the name of each table of the database, in the order of names, on this
/// thread.
///
/// # Safety
///
/// `callback` may be called with `data`. It must not unwind or call `longjmp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_table_names(
    db: *mut braid_db,
    callback: braid_name_callback,
    data: *mut c_void,
) -> braid_status {
    call(|| {
        let names = database(db)?.current().table_names()?;
        // SAFETY: this function's contract.
        unsafe { report_names(&names, callback, data) }
    })
}

/// Calls `callback` with each name until it returns `false`.
///
/// # Safety
///
/// `callback` may be called with `data`.
pub(crate) unsafe fn report_names(
    names: &[String],
    callback: braid_name_callback,
    data: *mut c_void,
) -> Outcome {
    let callback = callback.ok_or(Failure::null("callback"))?;
    let mut names = names.iter().map(|name| braid_slice::of(name.as_bytes()));
    // SAFETY: this function's contract.
    let _all = names.all(|name| unsafe { callback(data, name) });
    Ok(BRAID_OK)
}
