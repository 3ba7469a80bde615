//! Read-write transactions.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use braid::{Bytes, Durability, Isolation, Readable, Savepoint, TransactionOptions, ValueRef};

use super::range::{bounds_of, braid_range};
use super::ticket::give_ticket;
use crate::boundary::{Failure, Outcome, call};
use crate::handle_error::Ended;
use crate::handles::{braid_db, braid_table, braid_ticket, braid_tx, number};
use crate::memory::{Optional, Out, braid_slice, bytes, entry, optional, optional_bytes};
use crate::objects::Tx;
use crate::registry::{TRANSACTIONS, database, table};
use crate::status::braid_status::{self, BRAID_EXISTS, BRAID_MISMATCH, BRAID_NOT_FOUND, BRAID_OK};
use crate::value::{Found, Value, braid_value, found_in, give};

/// Isolation of concurrent transactions from each other.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_isolation {
    /// As if the transactions ran one after the other. Reads see the newest state and are validated
    /// at commit. Before the commit, two reads may be inconsistent with each other; then the commit
    /// fails with `BRAID_CONFLICT`.
    BRAID_SERIALIZABLE = 0,
    /// Reads see the state when the transaction began; the first of two writers of a key wins.
    /// Allows write skew.
    BRAID_SNAPSHOT_ISOLATION = 1,
}

/// When a commit is safe from a crash of the system.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_durability {
    /// The transaction is durable before the commit returns, or before its ticket says so.
    BRAID_DURABLE = 0,
    /// The transaction becomes durable within a given time after the commit returns. A crash before
    /// that may lose it, but never a part of it, and never a transaction on which a later durable
    /// one depends.
    BRAID_BUFFERED = 1,
    /// The transaction becomes durable with the next durable transaction or checkpoint, without a
    /// time limit; otherwise like `BRAID_BUFFERED`.
    BRAID_NOT_DURABLE = 2,
}

/// Options of a transaction. With all fields zero, it is serializable, and durable when its commit
/// returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_tx_options {
    /// A `braid_isolation`.
    pub isolation: c_int,
    /// A `braid_durability`.
    pub durability: c_int,
    /// With `BRAID_BUFFERED`: time until the transaction is durable, in microseconds.
    pub buffered_us: u64,
    /// Longest wait for the lock of a key, in microseconds; then the operation returns
    /// `BRAID_LOCK_TIMEOUT`. With 0, that of the database (`BRAID_OPTION_LOCK_TIMEOUT_US`).
    pub lock_timeout_us: u64,
}

fn durability_of(durability: c_int, buffered_us: u64) -> Outcome<Durability> {
    use braid_durability::*;
    if durability == BRAID_DURABLE as c_int {
        Ok(Durability::Immediate)
    } else if durability == BRAID_BUFFERED as c_int {
        Ok(Durability::Buffered(Duration::from_micros(buffered_us)))
    } else if durability == BRAID_NOT_DURABLE as c_int {
        Ok(Durability::None)
    } else {
        Err(Failure::argument(format!(
            "invalid durability {durability}: use BRAID_DURABLE, BRAID_BUFFERED or BRAID_NOT_DURABLE"
        )))
    }
}

impl braid_tx_options {
    fn parse(&self) -> Outcome<TransactionOptions> {
        let isolation = self.isolation;
        let isolation = if isolation == braid_isolation::BRAID_SERIALIZABLE as c_int {
            Isolation::Serializable
        } else if isolation == braid_isolation::BRAID_SNAPSHOT_ISOLATION as c_int {
            Isolation::Snapshot
        } else {
            return Err(Failure::argument(format!(
                "invalid isolation {isolation}: use BRAID_SERIALIZABLE or BRAID_SNAPSHOT_ISOLATION"
            )));
        };
        Ok(TransactionOptions {
            isolation,
            durability: durability_of(self.durability, self.buffered_us)?,
            lock_timeout: match self.lock_timeout_us {
                0 => None,
                us => Some(Duration::from_micros(us)),
            },
        })
    }
}

/// Begins a transaction. If `options` is NULL, all options are zero.
///
/// `braid_tx_commit`, `braid_tx_commit_async`, `braid_tx_submit` or `braid_tx_abort` ends the
/// transaction and its handle. Any thread may use it, but only one at a time.
///
/// # Safety
///
/// `options` is NULL or points to options; `tx` is NULL or points to writable memory for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_begin(
    db: *mut braid_db,
    options: *const braid_tx_options,
    tx: *mut *mut braid_tx,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (mut out, options) = unsafe { (Out::handle(tx, "tx")?, optional(options)) };
        let options = match options {
            Some(options) => options.parse()?,
            None => TransactionOptions::default(),
        };
        let begun = database(db)?.current().begin_with(options);
        out.set(TRANSACTIONS.insert(Tx::new(begun), number(db))?);
        Ok(BRAID_OK)
    })
}

/// Sets the durability of the commit. `durability` is a `braid_durability`.
#[unsafe(no_mangle)]
pub extern "C" fn braid_tx_set_durability(
    tx: *mut braid_tx,
    durability: c_int,
    buffered_us: u64,
) -> braid_status {
    call(|| {
        let durability = durability_of(durability, buffered_us)?;
        TRANSACTIONS.lock(tx)?.writer().set_durability(durability);
        Ok(BRAID_OK)
    })
}

/// Marks a savepoint, so that `braid_tx_rollback_to` can undo later writes. `savepoint` is set to a
/// number that identifies this point of this transaction. It needs no freeing.
///
/// # Safety
///
/// `savepoint` is NULL or points to writable memory for the number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_savepoint(
    tx: *mut braid_tx,
    savepoint: *mut u64,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(savepoint, "savepoint") }?;
        out.set(TRANSACTIONS.lock(tx)?.writer().savepoint().to_bits());
        Ok(BRAID_OK)
    })
}

/// Undoes all writes made since a savepoint, and discards the savepoints set since then; the
/// savepoint itself stays valid. Reads made since then are still validated, and locks stay held.
/// Returns `BRAID_INVALID_SAVEPOINT`, and changes nothing, if the savepoint belongs to another
/// transaction, or the transaction rolled back to an earlier point.
#[unsafe(no_mangle)]
pub extern "C" fn braid_tx_rollback_to(tx: *mut braid_tx, savepoint: u64) -> braid_status {
    call(|| {
        let savepoint = Savepoint::from_bits(savepoint);
        TRANSACTIONS.lock(tx)?.writer().rollback_to(&savepoint)?;
        Ok(BRAID_OK)
    })
}

/// Makes the writes visible and durable, all or none. `BRAID_OK` means that they are durable, or,
/// with a weaker durability, that they are visible.
///
/// The transaction ends, whatever the function returns, unless the handle itself was invalid or
/// busy. After `BRAID_CONFLICT` or `BRAID_OUT_OF_SPACE` it leaves no trace. After `BRAID_POISONED`,
/// only opening the database again shows whether it survived. `seqno`, which may be NULL, is set to
/// the transaction's sequence number, its place in the serial order.
///
/// # Safety
///
/// `seqno` is NULL or points to writable memory for the number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_commit(tx: *mut braid_tx, seqno: *mut u64) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Optional::new(seqno) };
        TRANSACTIONS.end_with(tx, Ended::Committed, |tx| {
            out.set(tx.into_transaction().commit()?.seqno());
            Ok(BRAID_OK)
        })?
    })
}

/// Makes the writes visible, and returns a ticket that reports when they are durable. The
/// transaction ends as with `braid_tx_commit`. If `ticket` is NULL, there is no report, but the
/// transaction becomes durable all the same. Free the ticket with `braid_ticket_free`.
///
/// # Safety
///
/// `ticket` is NULL or points to writable memory for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_commit_async(
    tx: *mut braid_tx,
    ticket: *mut *mut braid_ticket,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let out = unsafe { Optional::handle(ticket) };
        TRANSACTIONS.end_with(tx, Ended::Committed, |tx| {
            give_ticket(out, tx.into_transaction().commit_async()?)?;
            Ok(BRAID_OK)
        })?
    })
}

/// Makes the writes visible, as `braid_tx_commit_async` does. Instead of returning a ticket, it
/// sets `seqno` to the transaction's sequence number: wait for it with `braid_db_wait`. There is
/// nothing to free.
///
/// # Safety
///
/// `seqno` is NULL or points to writable memory for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_submit(tx: *mut braid_tx, seqno: *mut u64) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(seqno, "seqno") }?;
        TRANSACTIONS.end_with(tx, Ended::Committed, |tx| {
            out.set(tx.into_transaction().commit_async()?.into_seqno());
            Ok(BRAID_OK)
        })?
    })
}

/// Ends a transaction and discards its writes. NULL is allowed and has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn braid_tx_abort(tx: *mut braid_tx) -> braid_status {
    call(|| {
        if !tx.is_null() {
            let tx = TRANSACTIONS.end(tx, Ended::Aborted)?;
            tx.into_transaction().abort();
        }
        Ok(BRAID_OK)
    })
}

/// Reads a key, including the transaction's own writes. Returns `BRAID_NOT_FOUND` if the key does
/// not exist. Free the value with `braid_value_free`.
///
/// # Safety
///
/// `key` points to `key_len` bytes, or is NULL if its length is 0; `value` is NULL or points to
/// writable memory for a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_get(
    tx: *mut braid_tx,
    table: *mut braid_table,
    key: *const c_void,
    key_len: usize,
    value: *mut braid_value,
) -> braid_status {
    // SAFETY: this function's contract.
    call(move || unsafe { get(tx, table, key, key_len, value) }.map(Found::status))
}

/// Body of [`braid_tx_get`], with arguments and result in registers.
///
/// # Safety
///
/// As for [`braid_tx_get`].
#[inline(never)]
unsafe fn get(
    tx: *mut braid_tx,
    table: *mut braid_table,
    key: *const c_void,
    key_len: usize,
    value: *mut braid_value,
) -> Outcome<Found> {
    // SAFETY: this function's contract.
    let (mut out, key) = unsafe { (Out::value(value)?, bytes(key, key_len, "key")?) };
    let tx = TRANSACTIONS.lock(tx)?;
    let table = self::table(table)?;
    let put = |value: ValueRef<'_>| out.put(value);
    let found = tx.reader().get_by(&table.table, key, put);
    found_in(out, found)
}

/// Reads a key as `braid_tx_get` does, and locks it against other writers until the transaction
/// ends. Use it for a value that the transaction is going to write, so that transactions queue for
/// a hot key instead of conflicting. Returns `BRAID_CONFLICT` on a deadlock.
///
/// # Safety
///
/// As for `braid_tx_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_get_for_update(
    tx: *mut braid_tx,
    table: *mut braid_table,
    key: *const c_void,
    key_len: usize,
    value: *mut braid_value,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (out, key) = unsafe { (Out::value(value)?, bytes(key, key_len, "key")?) };
        let mut tx = TRANSACTIONS.lock(tx)?;
        let found = tx
            .writer()
            .get_for_update(&self::table(table)?.table, key)?;
        Ok(give(out, found.map(Value::of_bytes)))
    })
}

/// Checks whether a key exists: returns `BRAID_OK` or `BRAID_NOT_FOUND`.
///
/// # Safety
///
/// `key` points to `key_len` bytes, or is NULL if its length is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_contains(
    tx: *mut braid_tx,
    table: *mut braid_table,
    key: *const c_void,
    key_len: usize,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let key = unsafe { bytes(key, key_len, "key") }?;
        let tx = TRANSACTIONS.lock(tx)?;
        Ok(
            if tx.reader().contains_key(&self::table(table)?.table, key)? {
                BRAID_OK
            } else {
                BRAID_NOT_FOUND
            },
        )
    })
}

/// Sets `len` to the number of entries of a table, including the transaction's own writes. The
/// function counts the entries one by one, and all of them belong to the transaction's read set, so
/// the transaction conflicts with every transaction that adds or removes an entry.
///
/// # Safety
///
/// `len` is NULL or points to writable memory for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_len(
    tx: *mut braid_tx,
    table: *mut braid_table,
    len: *mut u64,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(len, "len") }?;
        let tx = TRANSACTIONS.lock(tx)?;
        out.set(tx.reader().len(&self::table(table)?.table)?);
        Ok(BRAID_OK)
    })
}

/// Sets the value of a key, whether or not the key exists. Returns `BRAID_CONFLICT` on a deadlock.
/// As after any error, the transaction stays open until it is aborted or committed.
///
/// # Safety
///
/// `key` points to `key_len` bytes and `value` to `value_len`, or they are NULL if their length is
/// 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_insert(
    tx: *mut braid_tx,
    table: *mut braid_table,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (key, value) = unsafe { entry((key, key_len), (value, value_len)) }?;
        let mut tx = TRANSACTIONS.lock(tx)?;
        tx.writer().insert(&self::table(table)?.table, key, value)?;
        Ok(BRAID_OK)
    })
}

/// Sets the value of a key if the key does not exist; otherwise returns `BRAID_EXISTS`.
///
/// # Safety
///
/// As for `braid_tx_insert`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_insert_if_absent(
    tx: *mut braid_tx,
    table: *mut braid_table,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (key, value) = unsafe { entry((key, key_len), (value, value_len)) }?;
        let mut tx = TRANSACTIONS.lock(tx)?;
        let table = self::table(table)?;
        Ok(if tx.writer().insert_if_absent(&table.table, key, value)? {
            BRAID_OK
        } else {
            BRAID_EXISTS
        })
    })
}

/// If the value of a key equals `expected` (NULL: if the key does not exist), sets it to `desired`
/// (NULL: removes the key). Otherwise returns `BRAID_MISMATCH`.
///
/// # Safety
///
/// `key` points to `key_len` bytes, or is NULL if its length is 0; `expected` and `desired` are
/// NULL or point to slices whose `data` points to `len` bytes, or is NULL if its length is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_compare_and_set(
    tx: *mut braid_tx,
    table: *mut braid_table,
    key: *const c_void,
    key_len: usize,
    expected: *const braid_slice,
    desired: *const braid_slice,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let key = unsafe { bytes(key, key_len, "key") }?;
        // SAFETY: this function's contract.
        let (expected, desired) = unsafe {
            (
                optional_bytes(expected, "expected")?.map(Bytes::copy_from_slice),
                optional_bytes(desired, "desired")?.map(Bytes::copy_from_slice),
            )
        };
        let mut tx = TRANSACTIONS.lock(tx)?;
        let table = self::table(table)?;
        let outcome =
            tx.writer()
                .compare_and_set(&table.table, key, expected.as_ref(), desired.as_ref())?;
        Ok(if outcome { BRAID_OK } else { BRAID_MISMATCH })
    })
}

/// Removes a key. Returns `BRAID_NOT_FOUND` if the key does not exist.
///
/// # Safety
///
/// `key` points to `key_len` bytes, or is NULL if its length is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_remove(
    tx: *mut braid_tx,
    table: *mut braid_table,
    key: *const c_void,
    key_len: usize,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let key = unsafe { bytes(key, key_len, "key") }?;
        let mut tx = TRANSACTIONS.lock(tx)?;
        Ok(if tx.writer().remove(&self::table(table)?.table, key)? {
            BRAID_OK
        } else {
            BRAID_NOT_FOUND
        })
    })
}

/// Removes all keys of a range, and sets `count`, which may be NULL, to their number. If `range` is
/// NULL, it removes all keys. Another transaction that inserts a key into the range meanwhile
/// conflicts with this one. The function collects the keys in memory; to remove a whole table,
/// `braid_table_drop` costs less.
///
/// # Safety
///
/// `range` is NULL or points to a range, the `data` of whose keys points to `len` bytes, or is NULL
/// if its length is 0; `count` is NULL or points to writable memory for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tx_remove_range(
    tx: *mut braid_tx,
    table: *mut braid_table,
    range: *const braid_range,
    count: *mut u64,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (mut out, bounds) = unsafe { (Optional::new(count), bounds_of(range)?) };
        let mut tx = TRANSACTIONS.lock(tx)?;
        let table = self::table(table)?;
        out.set(tx.writer().remove_range(&table.table, bounds)?);
        Ok(BRAID_OK)
    })
}
