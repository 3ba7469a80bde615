//! Bulk loads: building a table from sorted entries, without the log.

use std::ffi::{c_char, c_void};

use super::table_options::braid_table_options;
use crate::boundary::call;
use crate::handle_error::Ended;
use crate::handles::{braid_db, braid_loader, braid_table};
use crate::memory::{Optional, Out, entry, optional, text};
use crate::objects::{Loading, OpenDatabase, OpenTable};
use crate::registry::{LOADERS, TABLES, database};
use crate::status::braid_status::{self, BRAID_OK};

/// Begins a bulk load: it builds a new table from entries in ascending key order, and bypasses the
/// log. Use it for large amounts of data. The table is invisible until `braid_loader_finish`. If
/// `options` is NULL, all options are zero. Returns `BRAID_TABLE_EXISTS` if there is a table of
/// this name. `braid_loader_finish` or `braid_loader_abort` ends the load.
///
/// # Safety
///
/// `name` is NULL or a string that ends with a NUL; `options` is NULL or points to options;
/// `loader` is NULL or points to writable memory for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_loader_new(
    db: *mut braid_db,
    name: *const c_char,
    options: *const braid_table_options,
    loader: *mut *mut braid_loader,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(loader, "loader") }?;
        // SAFETY: this function's contract.
        let (name, options) = unsafe { (text(name, "name")?, optional(options)) };
        let options = braid_table_options::parse(options)?;
        let database = OpenDatabase::clone(&*database(db)?);
        let loader = database.current().bulk_load_with(name, options)?;
        let owner = crate::handles::number(db);
        out.set(LOADERS.insert(Loading { loader, database }, owner)?);
        Ok(BRAID_OK)
    })
}

/// Adds an entry. Its key must be greater than all previous ones; otherwise the function returns
/// `BRAID_OUT_OF_ORDER`. After this error, and after a key or value that is too long, the load
/// continues without the entry. After `BRAID_OUT_OF_SPACE` or `BRAID_IO`, the loader can only be
/// aborted.
///
/// # Safety
///
/// `key` points to `key_len` bytes and `value` to `value_len`, or they are NULL if their length is
/// 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_loader_insert(
    loader: *mut braid_loader,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (key, value) = unsafe { entry((key, key_len), (value, value_len)) }?;
        LOADERS.lock(loader)?.loader.insert(key, value)?;
        Ok(BRAID_OK)
    })
}

/// Sets `count` to the number of entries added so far.
///
/// # Safety
///
/// `count` is NULL or points to writable memory for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_loader_count(
    loader: *mut braid_loader,
    count: *mut u64,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(count, "count") }?;
        out.set(LOADERS.lock(loader)?.loader.len());
        Ok(BRAID_OK)
    })
}

/// Makes all entries durable with a checkpoint, and then visible at once. `table`, which may be
/// NULL, is set to a handle of the table. The load ends, whatever the function returns, unless the
/// handle itself was invalid or busy. If it does not return `BRAID_OK`, there is no table; but
/// after `BRAID_POISONED`, only opening the database again shows whether there is one.
///
/// # Safety
///
/// `table` is NULL or points to writable memory for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_loader_finish(
    loader: *mut braid_loader,
    table: *mut *mut braid_table,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Optional::handle(table) };
        let locked = LOADERS.lock(loader)?;
        let owner = locked.owner();
        let Loading { loader, database } = locked.end(Ended::Finished);
        let loaded = loader.finish()?;
        if out.is_wanted() {
            out.set(TABLES.insert(OpenTable::new(loaded, database), owner)?);
        }
        Ok(BRAID_OK)
    })
}

/// Ends a bulk load and discards its entries. NULL is allowed and has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn braid_loader_abort(loader: *mut braid_loader) -> braid_status {
    call(|| {
        if !loader.is_null() {
            drop(LOADERS.end(loader, Ended::Aborted)?);
        }
        Ok(BRAID_OK)
    })
}
