//! Cursors: ranges of keys, read from both ends.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;

use braid::{Bytes, Error, Readable, prefix_bounds};

use super::range::{bounds_of, braid_range};
use crate::boundary::{Failure, Outcome, call};
use crate::handle_error::Ended;
use crate::handles::{Locked, braid_cursor, braid_snapshot, braid_table, braid_tx, number};
use crate::memory::{Out, array, braid_slice, bytes};
use crate::objects::{Bounds, BytesRange, Cursor, Given, SnapshotScan, Source, Tx, rest};
use crate::registry::{CURSORS, SNAPSHOTS, TRANSACTIONS, table};
use crate::status::braid_status::{self, BRAID_END, BRAID_OK};

/// A key and its value, in the library's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_entry {
    /// The key.
    pub key: braid_slice,
    /// The value.
    pub value: braid_slice,
}

/// End of the range from which a cursor reads.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_direction {
    /// From the smallest key upward.
    BRAID_FORWARD = 0,
    /// From the largest key downward.
    BRAID_REVERSE = 1,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Reverse,
}

impl Cursor {
    /// Returns the next entry without copying, if the cursor reads a snapshot. A write to a
    /// transaction closes its ranges, but must not invalidate returned entries.
    #[inline]
    fn show(&mut self, direction: Direction) -> Option<Outcome<Option<braid_entry>>> {
        let Source::Snapshot(scan) = &mut self.source else {
            return None;
        };
        if self.over.is_some() {
            return None;
        }
        let next = |range: &mut BytesRange<'_>| {
            let next = match direction {
                Direction::Forward => range.next_in_place(),
                Direction::Reverse => range.next_back_in_place(),
            };
            next.map(|next| next.map(|(key, value)| entry_of(key, value)))
        };
        match scan.with_range(next) {
            Some(Ok(entry)) => Some(Ok(Some(entry))),
            Some(Err(error)) => {
                self.over = Some(Err(error.clone()));
                Some(Err(error.into()))
            }
            None => {
                self.over = Some(Ok(()));
                Some(Ok(None))
            }
        }
    }

    /// Reads up to `max` entries; returns an empty slice at the end.
    #[inline]
    fn read(&mut self, id: u64, direction: Direction, max: usize) -> Outcome<&[(Bytes, Bytes)]> {
        if self.over.is_none() {
            let place = match &mut self.source {
                Source::Snapshot(scan) => Place::Snapshot(scan),
                Source::Transaction(handle) => {
                    let mut tx = transaction(*handle)?;
                    let rest = rest(&self.bounds, &self.front, &self.back);
                    let place = tx.open_range(id, |tx| tx.range(&self.table, rest))?;
                    Place::Transaction(tx, place)
                }
            };
            let given = match direction {
                Direction::Forward => &mut self.front,
                Direction::Reverse => &mut self.back,
            };
            let fill = |range: &mut BytesRange<'_>| fill(range, direction, max, given);
            self.over = match place {
                Place::Snapshot(scan) => scan.with_range(fill),
                Place::Transaction(mut tx, place) => tx.with_range(place, fill),
            };
            if !given.is_empty() {
                return Ok(given);
            }
        }
        match &self.over {
            Some(Err(error)) => Err(error.clone().into()),
            _ => Ok(&[]),
        }
    }
}

/// An open range.
enum Place<'a> {
    Snapshot(&'a mut SnapshotScan),
    Transaction(Locked<'static, braid_tx, Tx>, usize),
}

fn transaction(handle: usize) -> Outcome<Locked<'static, braid_tx, Tx>> {
    TRANSACTIONS.lock(std::ptr::without_provenance_mut(handle))
}

/// Replaces the previous entries. Returns how the range ended, if it did.
#[inline]
fn fill(
    range: &mut BytesRange<'_>,
    direction: Direction,
    max: usize,
    given: &mut Given,
) -> Option<Result<(), Error>> {
    let mut count = 0;
    let mut end = None;
    while count < max {
        let next = match direction {
            Direction::Forward => range.next(),
            Direction::Reverse => range.next_back(),
        };
        match next {
            // Free one entry for each new one: freeing all at once takes the allocator's slow path.
            Some(Ok(entry)) => match given.get_mut(count) {
                Some(place) => *place = entry,
                None => given.push(entry),
            },
            Some(Err(error)) => {
                end = Some(Err(error));
                break;
            }
            None => {
                end = Some(Ok(()));
                break;
            }
        }
        count += 1;
    }
    given.truncate(count);
    end
}

fn over_transaction(
    tx: *mut braid_tx,
    table: *mut braid_table,
    bounds: Bounds,
) -> Outcome<*mut braid_cursor> {
    let source = Source::Transaction(tx.addr());
    let mut tx = TRANSACTIONS.lock(tx)?;
    let table = self::table(table)?.table.clone();
    let cursor = CURSORS.insert(Cursor::new(source, table, bounds), tx.owner())?;
    // Report errors of the table here rather than with the first entry.
    let locked = CURSORS.lock(cursor)?;
    let rest = rest(&locked.bounds, &locked.front, &locked.back);
    if let Err(error) = tx.open_range(number(cursor), |tx| tx.range(&locked.table, rest)) {
        locked.end(Ended::Freed);
        return Err(error.into());
    }
    Ok(cursor)
}

fn over_snapshot(
    snapshot: *mut braid_snapshot,
    table: *mut braid_table,
    bounds: Bounds,
) -> Outcome<*mut braid_cursor> {
    let snapshot = SNAPSHOTS.pin(snapshot)?;
    let table = self::table(table)?.table.clone();
    let none = Given::new();
    let range = rest(&bounds, &none, &none);
    let scan = SnapshotScan::new(Arc::clone(&snapshot), |s| s.range(&table, range))?;
    let cursor = Cursor::new(Source::Snapshot(scan), table, bounds);
    CURSORS.insert(cursor, snapshot.owner())
}

/// Opens a cursor over a range of a table as a transaction sees it, including its own writes. If
/// `range` is NULL, the cursor covers all keys. Free it with `braid_cursor_free`.
///
/// The transaction may write while the cursor is open. The cursor continues after the last entry
/// that it returned, and shows writes there. After the transaction has ended, using the cursor
/// returns `BRAID_STALE_HANDLE`. A call with the cursor also counts as a call with the transaction:
/// one thread at a time.
///
/// # Safety
///
/// `range` is NULL or points to a range, the `data` of whose keys points to `len` bytes, or is NULL
/// if its length is 0; `cursor` is NULL or points to writable memory for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_range(
    tx: *mut braid_tx,
    table: *mut braid_table,
    range: *const braid_range,
    cursor: *mut *mut braid_cursor,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (mut out, bounds) = unsafe { (Out::handle(cursor, "cursor")?, bounds_of(range)?) };
        out.set(over_transaction(tx, table, bounds)?);
        Ok(BRAID_OK)
    })
}

/// Opens a cursor over the keys that begin with a prefix, as `braid_tx_range` does for a range.
///
/// # Safety
///
/// `prefix` points to `prefix_len` bytes, or is NULL if its length is 0; `cursor` is NULL or points
/// to writable memory for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_prefix(
    tx: *mut braid_tx,
    table: *mut braid_table,
    prefix: *const c_void,
    prefix_len: usize,
    cursor: *mut *mut braid_cursor,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(cursor, "cursor") }?;
        // SAFETY: this function's contract.
        let prefix = unsafe { bytes(prefix, prefix_len, "prefix") }?;
        out.set(over_transaction(tx, table, prefix_bounds(prefix))?);
        Ok(BRAID_OK)
    })
}

/// Opens a cursor over a range of a table as a snapshot sees it. If `range` is NULL, the cursor
/// covers all keys. Until the cursor is freed with `braid_cursor_free`, it keeps the state of the
/// snapshot.
///
/// # Safety
///
/// As for `braid_tx_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_snapshot_range(
    snapshot: *mut braid_snapshot,
    table: *mut braid_table,
    range: *const braid_range,
    cursor: *mut *mut braid_cursor,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (mut out, bounds) = unsafe { (Out::handle(cursor, "cursor")?, bounds_of(range)?) };
        out.set(over_snapshot(snapshot, table, bounds)?);
        Ok(BRAID_OK)
    })
}

/// Opens a cursor over the keys that begin with a prefix, as `braid_snapshot_range` does for a
/// range.
///
/// # Safety
///
/// As for `braid_tx_prefix`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_snapshot_prefix(
    snapshot: *mut braid_snapshot,
    table: *mut braid_table,
    prefix: *const c_void,
    prefix_len: usize,
    cursor: *mut *mut braid_cursor,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(cursor, "cursor") }?;
        // SAFETY: this function's contract.
        let prefix = unsafe { bytes(prefix, prefix_len, "prefix") }?;
        out.set(over_snapshot(snapshot, table, prefix_bounds(prefix))?);
        Ok(BRAID_OK)
    })
}

#[inline]
fn entry_of(key: &[u8], value: &[u8]) -> braid_entry {
    braid_entry {
        key: braid_slice::of(key),
        value: braid_slice::of(value),
    }
}

/// Returns as many entries as fit, and their number.
#[inline]
fn give(
    cursor: *mut braid_cursor,
    direction: Direction,
    room: &mut [MaybeUninit<braid_entry>],
) -> Outcome<usize> {
    let mut locked = CURSORS.lock(cursor)?;
    let read = locked.read(number(cursor), direction, room.len())?;
    for (place, (key, value)) in room.iter_mut().zip(read) {
        place.write(entry_of(key, value));
    }
    Ok(read.len())
}

/// Returns one entry, or that none is left.
#[inline]
fn give_one(cursor: *mut braid_cursor, direction: Direction, mut out: Out<braid_entry>) -> Outcome {
    let mut locked = CURSORS.lock(cursor)?;
    let entry = match locked.show(direction) {
        Some(entry) => entry?,
        None => {
            let read = locked.read(number(cursor), direction, 1)?;
            read.first().map(|(key, value)| entry_of(key, value))
        }
    };
    let Some(entry) = entry else {
        return Ok(BRAID_END);
    };
    out.set(entry);
    Ok(BRAID_OK)
}

fn end_if_none(count: usize) -> braid_status {
    match count {
        0 => BRAID_END,
        _ => BRAID_OK,
    }
}

/// Returns the remaining entry with the smallest key, or `BRAID_END` if none is left. The pointers
/// in `entry` are valid until the next call with this cursor. After an error, every further call
/// returns the same error.
///
/// # Safety
///
/// `entry` is NULL or points to writable memory for an entry. No other thread uses the cursor, or
/// frees it, while the caller reads the entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_cursor_next(
    cursor: *mut braid_cursor,
    entry: *mut braid_entry,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(entry, "entry") }?;
        give_one(cursor, Direction::Forward, out)
    })
}

/// Returns the remaining entry with the largest key, otherwise as `braid_cursor_next`. Calls of
/// both functions can be mixed; the cursor returns each entry once.
///
/// # Safety
///
/// As for `braid_cursor_next`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_cursor_next_back(
    cursor: *mut braid_cursor,
    entry: *mut braid_entry,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(entry, "entry") }?;
        give_one(cursor, Direction::Reverse, out)
    })
}

/// Returns up to `capacity` entries at once, which costs less than a call per entry. `direction` is
/// a `braid_direction`. `count` is set to the number of entries. If none is left, it is set to 0,
/// and the function returns `BRAID_END`. The pointers in the entries are valid until the next call
/// with this cursor. A serializable transaction validates all returned entries as read.
///
/// # Safety
///
/// `entries` is NULL or points to writable memory for `capacity` entries; `count` is NULL or points
/// to writable memory for a number. No other thread uses the cursor, or frees it, while the
/// caller reads the entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_cursor_fetch(
    cursor: *mut braid_cursor,
    direction: c_int,
    entries: *mut braid_entry,
    capacity: usize,
    count: *mut usize,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut count = unsafe { Out::new(count, "count") }?;
        count.set(0);
        // SAFETY: this function's contract.
        let entries = unsafe { array(entries, capacity, "entries") }?;
        let direction = if direction == braid_direction::BRAID_FORWARD as c_int {
            Direction::Forward
        } else if direction == braid_direction::BRAID_REVERSE as c_int {
            Direction::Reverse
        } else {
            return Err(Failure::argument(format!(
                "invalid direction {direction}: use BRAID_FORWARD or BRAID_REVERSE"
            )));
        };
        if capacity == 0 {
            return Err(Failure::argument(
                "invalid capacity 0: there must be room for an entry".into(),
            ));
        }
        let given = give(cursor, direction, entries)?;
        count.set(given);
        Ok(end_if_none(given))
    })
}

/// Frees a cursor. NULL is allowed and has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn braid_cursor_free(cursor: *mut braid_cursor) -> braid_status {
    call(|| {
        if cursor.is_null() {
            return Ok(BRAID_OK);
        }
        let ended = CURSORS.end(cursor, Ended::Freed)?;
        if let Source::Transaction(handle) = ended.source
            && let Ok(mut tx) = transaction(handle)
        {
            tx.close_range(number(cursor));
        }
        Ok(BRAID_OK)
    })
}
