//! Several keys in one call, and estimates of how many there are.

use braid::{Bytes, Readable};

use crate::boundary::{Outcome, call};
use crate::cursor::{bounds_of, braid_range};
use crate::handles::{braid_snapshot, braid_table, braid_tx};
use crate::memory::{Optional, Out, braid_slice, bytes, elements};
use crate::snapshot::SNAPSHOTS;
use crate::status::braid_status::{self, BRAID_OK};
use crate::table::{BytesTable, table};
use crate::transaction::TRANSACTIONS;
use crate::value::{Value, braid_value};

/// The keys that a caller names.
///
/// # Safety
/// `keys` is NULL or points to `count` slices, each of which is that of [`bytes`].
unsafe fn keys_of<'a>(keys: *const braid_slice, count: usize) -> Outcome<Vec<&'a [u8]>> {
    // SAFETY: this function's contract.
    let keys = unsafe { elements(keys, count, "keys") }?;
    // SAFETY: this function's contract.
    let of_slice = |key: &braid_slice| unsafe { bytes(key.data, key.len, "key") };
    keys.iter().map(of_slice).collect()
}

/// Places for values, all of which say that there is none.
///
/// # Safety
/// `values` is NULL or points to where `count` values fit.
unsafe fn places(values: *mut braid_value, count: usize) -> Outcome<Vec<Out<braid_value>>> {
    let place = |i| {
        let value = match values.is_null() {
            true => values,
            false => values.wrapping_add(i),
        };
        // SAFETY: this function's contract.
        unsafe { Out::named(value, "values") }
    };
    (0..count).map(place).collect()
}

/// Puts the values of keys where the caller wants them.
///
/// # Safety
/// Those of [`keys_of`] and [`places`].
unsafe fn get_many(
    reader: &impl Readable,
    table: &BytesTable,
    keys: *const braid_slice,
    count: usize,
    values: *mut braid_value,
) -> Outcome {
    // SAFETY: this function's contract. The keys first: their number is checked with them.
    let keys = unsafe { keys_of(keys, count) }?;
    // SAFETY: this function's contract.
    let places = unsafe { places(values, count) }?;
    let found: Vec<Option<Bytes>> = reader.get_many(table, keys)?;
    for (mut place, value) in places.into_iter().zip(found) {
        if let Some(value) = value {
            place.set_value(Value::of_bytes(value));
        }
    }
    Ok(BRAID_OK)
}

/// Reads several keys of what is durable now, all of one moment: what they need is fetched at the same time, so that
/// it takes less than one call after the other. `values` is set to as many values as there are keys, in their order;
/// one whose `data` is NULL says that its key is not there. The others are freed with `braid_value_free` each. After an error
/// none is a value.
///
/// # Safety
///
/// `keys` is NULL or points to `count` slices, each of whose `data` points to `len` bytes or is NULL if there are none;
/// `values` is NULL or points to where `count` values fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_table_get_many(
    table: *mut braid_table,
    keys: *const braid_slice,
    count: usize,
    values: *mut braid_value,
) -> braid_status {
    call(|| {
        let open = self::table(table)?;
        let snapshot = open.database().snapshot();
        // SAFETY: this function's contract.
        unsafe { get_many(&snapshot, &open.table, keys, count, values) }
    })
}

/// Reads several keys of a snapshot, as `braid_table_get_many` does of what is durable now.
///
/// # Safety
///
/// That of `braid_table_get_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_snapshot_get_many(
    snapshot: *mut braid_snapshot,
    table: *mut braid_table,
    keys: *const braid_slice,
    count: usize,
    values: *mut braid_value,
) -> braid_status {
    call(|| {
        let snapshot = SNAPSHOTS.pin(snapshot)?;
        let open = self::table(table)?;
        // SAFETY: this function's contract.
        unsafe { get_many(&**snapshot, &open.table, keys, count, values) }
    })
}

/// Reads several keys in a transaction, its own writes included, as `braid_table_get_many` does of what is durable now.
///
/// # Safety
///
/// That of `braid_table_get_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_get_many(
    tx: *mut braid_tx,
    table: *mut braid_table,
    keys: *const braid_slice,
    count: usize,
    values: *mut braid_value,
) -> braid_status {
    call(|| {
        let tx = TRANSACTIONS.lock(tx)?;
        let open = self::table(table)?;
        // SAFETY: this function's contract.
        unsafe { get_many(tx.reader(), &open.table, keys, count, values) }
    })
}

/// Brings what reading or writing these keys needs into memory, all at once, before the transaction needs it. A hint: it
/// changes nothing and is no read of the transaction.
///
/// # Safety
///
/// `keys` is NULL or points to `count` slices, each of whose `data` points to `len` bytes or is NULL if there are none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_prefetch(
    tx: *mut braid_tx,
    table: *mut braid_table,
    keys: *const braid_slice,
    count: usize,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let keys = unsafe { keys_of(keys, count) }?;
        let tx = TRANSACTIONS.lock(tx)?;
        tx.reader().prefetch(&self::table(table)?.table, keys)?;
        Ok(BRAID_OK)
    })
}

/// Brings what reading these keys needs into memory, as `braid_tx_prefetch` does.
///
/// # Safety
///
/// That of `braid_tx_prefetch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_snapshot_prefetch(
    snapshot: *mut braid_snapshot,
    table: *mut braid_table,
    keys: *const braid_slice,
    count: usize,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let keys = unsafe { keys_of(keys, count) }?;
        let snapshot = SNAPSHOTS.pin(snapshot)?;
        snapshot.prefetch(&self::table(table)?.table, keys)?;
        Ok(BRAID_OK)
    })
}

/// Estimates how many entries a range has, and how many bytes their keys and values have as they are stored, from a few
/// pages of the table, whatever its size: exact in a small range, usually within some ten per cent in a large one.
/// `range` may be NULL, which is the whole table. `entries` and `bytes` may be NULL.
///
/// # Safety
///
/// `range` is NULL or points to a range whose keys, where there are some, point to as many bytes as they say; `entries`
/// and `bytes` are NULL or point to where a number fits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_table_estimate(
    table: *mut braid_table,
    range: *const braid_range,
    entries: *mut u64,
    bytes: *mut u64,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (mut entries, mut bytes) = unsafe { (Optional::new(entries), Optional::new(bytes)) };
        // SAFETY: this function's contract.
        let bounds = unsafe { bounds_of(range) }?;
        let open = self::table(table)?;
        let estimate = open.database().estimate(&open.table, bounds)?;
        entries.set(estimate.entries);
        bytes.set(estimate.bytes);
        Ok(BRAID_OK)
    })
}
