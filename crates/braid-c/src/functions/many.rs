//! Batched reads, prefetches, and estimates of a range's size.

use std::mem::MaybeUninit;

use braid::{Bytes, Readable};

use super::range::{bounds_of, braid_range};
use crate::boundary::{Outcome, call};
use crate::handles::{braid_snapshot, braid_table, braid_tx};
use crate::memory::{Optional, Out, array, braid_slice, bytes, elements};
use crate::objects::BytesTable;
use crate::registry::{SNAPSHOTS, TRANSACTIONS, table};
use crate::status::braid_status::{self, BRAID_OK};
use crate::value::{Value, braid_value};

/// Returns the caller's keys.
///
/// # Safety
///
/// `keys` is NULL or points to `count` slices that meet the contract of [`bytes`].
unsafe fn keys_of<'a>(keys: *const braid_slice, count: usize) -> Outcome<Vec<&'a [u8]>> {
    // SAFETY: this function's contract.
    let keys = unsafe { elements(keys, count, "keys") }?;
    // SAFETY: this function's contract.
    let key_of = |key: &braid_slice| unsafe { bytes(key.data, key.len, "key") };
    keys.iter().map(key_of).collect()
}

/// The keys of a batched read, and the caller's array for their values.
struct Batch<'a> {
    keys: Vec<&'a [u8]>,
    values: Vec<Out<braid_value>>,
}

impl<'a> Batch<'a> {
    /// Reads the keys and sets each element of `values` to no value. The values are set first,
    /// before anything can fail that the caller does not see in `values` itself: the caller may
    /// free all of them after any error.
    ///
    /// # Safety
    ///
    /// As for [`keys_of`]; `values` is NULL or has room for `count` values.
    unsafe fn new(
        keys: *const braid_slice,
        count: usize,
        values: *mut braid_value,
    ) -> Outcome<Self> {
        // SAFETY: this function's contract.
        let values = unsafe { array(values, count, "values") }?;
        // SAFETY: `array` returned places that are fit for writing.
        let no_value = |value: &mut MaybeUninit<braid_value>| unsafe {
            Out::named(value.as_mut_ptr(), "values")
        };
        let values = values.iter_mut().map(no_value).collect::<Outcome<_>>()?;
        // SAFETY: this function's contract.
        let keys = unsafe { keys_of(keys, count) }?;
        Ok(Self { keys, values })
    }

    /// Reads the keys of a table and sets the values of those that exist.
    fn read(self, reader: &impl Readable, table: &BytesTable) -> Outcome {
        let found: Vec<Option<Bytes>> = reader.get_many(table, self.keys)?;
        for (mut place, value) in self.values.into_iter().zip(found) {
            if let Some(value) = value {
                place.set_value(Value::of_bytes(value));
            }
        }
        Ok(BRAID_OK)
    }
}

/// Reads `count` keys from one snapshot of the durable state. The reads of the keys' pages overlap,
/// so one call takes less time than a call per key. `values` has room for `count` values:
/// `values[i]` is set to the value of `keys[i]`, and its `data` is NULL if the key does not exist.
/// Free each value with `braid_value_free`. After an error, no element holds a value, and freeing
/// all of them is safe.
///
/// # Safety
///
/// `keys` is NULL or points to `count` slices, each of whose `data` points to `len` bytes or is
/// NULL if `len` is 0; `values` is NULL or points to writable memory for `count` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_table_get_many(
    table: *mut braid_table,
    keys: *const braid_slice,
    count: usize,
    values: *mut braid_value,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let batch = unsafe { Batch::new(keys, count, values) }?;
        let open = self::table(table)?;
        batch.read(&open.database().current().snapshot(), &open.table)
    })
}

/// Reads `count` keys of a snapshot, as `braid_table_get_many` does for the durable state.
///
/// # Safety
///
/// As for `braid_table_get_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_snapshot_get_many(
    snapshot: *mut braid_snapshot,
    table: *mut braid_table,
    keys: *const braid_slice,
    count: usize,
    values: *mut braid_value,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let batch = unsafe { Batch::new(keys, count, values) }?;
        let snapshot = SNAPSHOTS.pin(snapshot)?;
        batch.read(&**snapshot, &self::table(table)?.table)
    })
}

/// Reads `count` keys, including the transaction's own writes, as `braid_table_get_many` does.
///
/// # Safety
///
/// As for `braid_table_get_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_get_many(
    tx: *mut braid_tx,
    table: *mut braid_table,
    keys: *const braid_slice,
    count: usize,
    values: *mut braid_value,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let batch = unsafe { Batch::new(keys, count, values) }?;
        let tx = TRANSACTIONS.lock(tx)?;
        batch.read(tx.reader(), &self::table(table)?.table)
    })
}

/// Loads the pages of these keys into memory, all at once, before the transaction reads or writes
/// the keys. This is a hint: it changes nothing and adds nothing to the transaction's read set.
///
/// # Safety
///
/// `keys` is NULL or points to `count` slices, each of whose `data` points to `len` bytes or is
/// NULL if `len` is 0.
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

/// Loads the pages of these keys into memory, as `braid_tx_prefetch` does.
///
/// # Safety
///
/// As for `braid_tx_prefetch`.
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

/// Estimates the number of entries in a range of keys, and the bytes of their keys and values as
/// stored. It reads a few pages, whatever the table's size. The result is exact for a small range,
/// and usually within ten per cent for a large one. If `range` is NULL, it means the whole table.
/// `entries` and `bytes` may be NULL.
///
/// # Safety
///
/// `range` is NULL or points to a range whose keys point to as many bytes as they say; `entries`
/// and `bytes` are NULL or point to room for a number.
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
        let estimate = open.database().current().estimate(&open.table, bounds)?;
        entries.set(estimate.entries);
        bytes.set(estimate.bytes);
        Ok(BRAID_OK)
    })
}
