//! Read-write transactions.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use braid::{Bytes, Durability, Isolation, Readable, Savepoint, TransactionOptions, ValueRef};

use crate::boundary::{Failure, Outcome, call};
use crate::cursor::{bounds_of, braid_range};
use crate::database::database;
use crate::handles::{Ended, Exclusive, braid_db, braid_table, braid_ticket, braid_tx, number};
use crate::memory::{Optional, Out, braid_slice, bytes, entry, optional, optional_bytes};
use crate::scan::Tx;
use crate::status::braid_status::{self, BRAID_EXISTS, BRAID_MISMATCH, BRAID_NOT_FOUND, BRAID_OK};
use crate::table::table;
use crate::ticket::give_ticket;
use crate::value::{Found, Value, braid_value, found_in, give};

pub(crate) static TRANSACTIONS: Exclusive<braid_tx, Tx> = Exclusive::new();

/// What concurrent transactions see of each other.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_isolation {
    /// As if the transactions ran one after the other. Reads see the newest state and are validated at
    /// commit; until then two reads may disagree, and then the commit fails with `BRAID_CONFLICT`.
    BRAID_SERIALIZABLE = 0,
    /// Reads see the state at the beginning; the first of two writers of a key wins. Allows write skew.
    BRAID_SNAPSHOT_ISOLATION = 1,
}

/// When a commit is safe from a crash of the system.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_durability {
    /// Before the commit returns, or its ticket tells so.
    BRAID_DURABLE = 0,
    /// Within a time after the commit returns. A crash may lose it, but never a part of it, and nothing that
    /// a later durable transaction builds on.
    BRAID_BUFFERED = 1,
    /// With the next durable transaction or checkpoint, whenever that is; otherwise like `BRAID_BUFFERED`.
    BRAID_NOT_DURABLE = 2,
}

/// How a transaction behaves. All zeros: serializable, and durable when its commit returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_tx_options {
    /// A `braid_isolation`.
    pub isolation: c_int,
    /// A `braid_durability`.
    pub durability: c_int,
    /// With `BRAID_BUFFERED`: within how many microseconds.
    pub buffered_us: u64,
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
        })
    }
}

/// Begins a transaction. `options` may be NULL, which is the same as all zeros.
///
/// The handle ends with `braid_tx_commit`, `braid_tx_commit_async`, `braid_tx_submit` or `braid_tx_abort`. Any thread may use
/// it, but one at a time.
///
/// # Safety
///
/// `options` is NULL or points to options; `tx` is NULL or points to where a handle fits.
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

/// Sets when the commit is safe: `durability` is a `braid_durability`.
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

/// Notes where the transaction is, so that `braid_tx_rollback_to` can take back what it writes from here on.
/// `savepoint` is set to a number that stands for this point of this transaction; it needs no freeing.
///
/// # Safety
///
/// `savepoint` is NULL or points to where the number fits.
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

/// Takes back all writes made since a savepoint, and forgets the savepoints made since; the savepoint itself
/// stands. What was read since stays read, and locks stay held. `BRAID_SAVEPOINT_GONE`, with nothing changed, if it
/// is another transaction's, or the transaction returned to a point before it.
#[unsafe(no_mangle)]
pub extern "C" fn braid_tx_rollback_to(tx: *mut braid_tx, savepoint: u64) -> braid_status {
    call(|| {
        let savepoint = Savepoint::from_bits(savepoint);
        TRANSACTIONS.lock(tx)?.writer().rollback_to(&savepoint)?;
        Ok(BRAID_OK)
    })
}

/// Makes the writes visible and durable, together or not at all. `BRAID_OK` says that they are on the device,
/// or, with a durability of less, that they are visible.
///
/// The transaction is over afterwards, whatever is returned, unless the handle itself was wrong or busy. After
/// `BRAID_CONFLICT` or `BRAID_OUT_OF_SPACE` nothing of it remains; after `BRAID_POISONED` only opening the
/// database again tells whether it survives. `seqno`, which may be NULL, is set to its place in the
/// serial order.
///
/// # Safety
///
/// `seqno` is NULL or points to where the number fits.
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

/// Makes the writes visible, and gives a ticket that tells when they are durable. The transaction is over
/// afterwards as with `braid_tx_commit`. `ticket` may be NULL: then nobody is told, and the transaction
/// becomes durable all the same. The ticket is freed with `braid_ticket_free`.
///
/// # Safety
///
/// `ticket` is NULL or points to where a handle fits.
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

/// Makes the writes visible, as `braid_tx_commit_async` does, and sets `seqno` to the transaction's
/// place in the serial order instead of giving a ticket: `braid_db_wait` waits for it, and there is
/// nothing to free.
///
/// # Safety
///
/// `seqno` is NULL or points to where it fits.
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

/// Ends a transaction without a trace. NULL is allowed, and does nothing.
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

/// The value of a key, the transaction's own writes included; `BRAID_NOT_FOUND` if it is not there. A value is
/// freed with `braid_value_free`.
///
/// # Safety
///
/// `key` points to `key_len` bytes, or is NULL if there are none; `value` is NULL or points to where a value
/// fits.
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

/// The body of [`braid_tx_get`], which takes and returns what it does in registers.
///
/// # Safety
/// That of [`braid_tx_get`].
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

/// The value of a key, as `braid_tx_get`, locked against other writers until the transaction ends: for a value
/// that is about to be written, so that hot keys queue instead of conflicting. `BRAID_CONFLICT` on a deadlock.
///
/// # Safety
///
/// That of `braid_tx_get`.
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

/// Whether a key is there: `BRAID_OK` or `BRAID_NOT_FOUND`.
///
/// # Safety
///
/// `key` points to `key_len` bytes, or is NULL if there are none.
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
            match tx.reader().contains_key(&self::table(table)?.table, key)? {
                true => BRAID_OK,
                false => BRAID_NOT_FOUND,
            },
        )
    })
}

/// Sets `len` to how many entries a table has, the transaction's own writes included. They are counted one by one, and
/// all of them count as read: the transaction conflicts with everybody who adds or removes one.
///
/// # Safety
///
/// `len` is NULL or points to where a number fits.
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

/// Sets the value of a key, whether it was there or not. `BRAID_CONFLICT` on a deadlock; then, as after any
/// error, the transaction goes on until it is aborted or committed.
///
/// # Safety
///
/// `key` points to `key_len` bytes and `value` to `value_len`, or they are NULL if there are none.
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

/// Sets the value of a key that is not there; `BRAID_EXISTS` if it is.
///
/// # Safety
///
/// That of `braid_tx_insert`.
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
        Ok(
            match tx.writer().insert_if_absent(&table.table, key, value)? {
                true => BRAID_OK,
                false => BRAID_EXISTS,
            },
        )
    })
}

/// Sets the value of a key to `desired` (NULL: removes it) if it is `expected` (NULL: if it is not there);
/// `BRAID_MISMATCH` if not.
///
/// # Safety
///
/// `key` points to `key_len` bytes, or is NULL if there are none; `expected` and `desired` are NULL or point
/// to slices whose `data` points to `len` bytes, or is NULL if there are none.
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
        Ok(match outcome {
            true => BRAID_OK,
            false => BRAID_MISMATCH,
        })
    })
}

/// Removes a key; `BRAID_NOT_FOUND` if it is not there.
///
/// # Safety
///
/// `key` points to `key_len` bytes, or is NULL if there are none.
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
        Ok(match tx.writer().remove(&self::table(table)?.table, key)? {
            true => BRAID_OK,
            false => BRAID_NOT_FOUND,
        })
    })
}

/// Removes all keys of a range, and sets `count`, which may be NULL, to how many there were. `range` may be NULL, for all
/// keys. Other transactions that put a key into the range meanwhile conflict with this one. The keys are gathered in
/// memory; for a whole table, `braid_table_drop` costs less.
///
/// # Safety
///
/// `range` is NULL or points to a range, the `data` of whose keys points to `len` bytes, or is NULL if there
/// are none; `count` is NULL or points to where a number fits.
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
