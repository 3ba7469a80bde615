//! Removing entries by range or by predicate.

use std::ffi::c_void;

use braid::{Bytes, Result, Transaction};

use super::range::{bounds_of, braid_range};
use crate::boundary::{Failure, Outcome, call};
use crate::handles::{braid_table, braid_tx};
use crate::memory::{Optional, Out, UserData, braid_slice};
use crate::objects::BytesTable;
use crate::registry::{TRANSACTIONS, table};
use crate::status::braid_status::{self, BRAID_NOT_FOUND, BRAID_OK};
use crate::value::{Value, braid_value};

/// Decides whether an entry stays. The entry is valid during the call.
pub type braid_keep_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, key: braid_slice, value: braid_slice) -> bool>;

/// Calls `keep` with each entry of a range, in key order, on this thread. Removes the entries for
/// which `keep` returns `false`, and sets `count`, which may be NULL, to their number. Otherwise it
/// behaves like `braid_tx_remove_range`.
///
/// # Safety
///
/// `keep` may be called with `data`. It must not unwind or call `longjmp`. Otherwise that of
/// `braid_tx_remove_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_retain(
    tx: *mut braid_tx,
    table: *mut braid_table,
    range: *const braid_range,
    keep: braid_keep_callback,
    data: *mut c_void,
    count: *mut u64,
) -> braid_status {
    call(|| {
        let keep = keep.ok_or(Failure::null("keep"))?;
        let data = UserData::new(data);
        // SAFETY: this function's contract.
        let (mut out, bounds) = unsafe { (Optional::new(count), bounds_of(range)?) };
        let mut tx = TRANSACTIONS.lock(tx)?;
        let table = self::table(table)?;
        let removed = tx.writer().retain(&table.table, bounds, |key, value| {
            // SAFETY: this function's contract.
            unsafe { keep(data.get(), braid_slice::of(key), braid_slice::of(value)) }
        })?;
        out.set(removed);
        Ok(BRAID_OK)
    })
}

type Pop = fn(&mut Transaction, &BytesTable) -> Result<Option<(Bytes, Bytes)>>;

/// # Safety
///
/// As for [`braid_tx_pop_first`].
unsafe fn pop(
    tx: *mut braid_tx,
    table: *mut braid_table,
    (key, value): (*mut braid_value, *mut braid_value),
    pop: Pop,
) -> Outcome {
    // SAFETY: this function's contract.
    let (mut key, mut value) = unsafe { (Out::named(key, "key")?, Out::value(value)?) };
    let mut tx = TRANSACTIONS.lock(tx)?;
    let Some(popped) = pop(tx.writer(), &self::table(table)?.table)? else {
        return Ok(BRAID_NOT_FOUND);
    };
    key.set_value(Value::of_bytes(popped.0));
    value.set_value(Value::of_bytes(popped.1));
    Ok(BRAID_OK)
}

/// Removes the entry with the smallest key of a table, and sets `key` and `value` to it. Free both
/// with `braid_value_free`. Returns `BRAID_NOT_FOUND` if the table is empty. Another transaction
/// that inserts a smaller key meanwhile conflicts with this one.
///
/// # Safety
///
/// `key` and `value` are NULL or point to where a value fits, each to another place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_pop_first(
    tx: *mut braid_tx,
    table: *mut braid_table,
    key: *mut braid_value,
    value: *mut braid_value,
) -> braid_status {
    // SAFETY: this function's contract.
    call(|| unsafe { pop(tx, table, (key, value), Transaction::pop_first) })
}

/// Removes the entry with the largest key of a table, as `braid_tx_pop_first` does with the
/// smallest.
///
/// # Safety
///
/// As for `braid_tx_pop_first`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_pop_last(
    tx: *mut braid_tx,
    table: *mut braid_table,
    key: *mut braid_value,
    value: *mut braid_value,
) -> braid_status {
    // SAFETY: this function's contract.
    call(|| unsafe { pop(tx, table, (key, value), Transaction::pop_last) })
}
