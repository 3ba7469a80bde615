//! Transactions of one or several writes in a single call.

use std::ffi::c_int;

use braid::Transaction;

use super::ticket::give_ticket;
use crate::boundary::{Failure, Outcome, call};
use crate::handles::{braid_db, braid_table, braid_ticket, number};
use crate::memory::{Optional, Out, braid_slice, bytes, elements};
use crate::objects::OpenTable;
use crate::registry::{TABLES, database, table};
use crate::status::braid_status::{self, BRAID_OK};

/// Operation of a write.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_operation {
    /// Sets the value of the key, whether or not the key exists.
    BRAID_PUT = 0,
    /// Removes the key, if it exists; the value is ignored.
    BRAID_REMOVE = 1,
}

/// A write of `braid_db_write`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_write {
    /// The table.
    pub table: *mut braid_table,
    /// A `braid_operation`.
    pub operation: c_int,
    /// The key.
    pub key: braid_slice,
    /// The value.
    pub value: braid_slice,
}

impl braid_write {
    /// # Safety
    ///
    /// Key and value, if used, meet the contract of [`bytes`].
    #[inline(always)]
    unsafe fn apply(&self, tx: &mut Transaction, table: &OpenTable) -> Outcome<()> {
        // SAFETY: this function's contract.
        let key = unsafe { bytes(self.key.data, self.key.len, "key") }?;
        if self.operation == braid_operation::BRAID_PUT as c_int {
            // SAFETY: this function's contract.
            let value = unsafe { bytes(self.value.data, self.value.len, "value") }?;
            tx.insert(&table.table, key, value)?;
        } else if self.operation == braid_operation::BRAID_REMOVE as c_int {
            tx.remove(&table.table, key)?;
        } else {
            return Err(no_operation(self.operation));
        }
        Ok(())
    }
}

#[cold]
fn no_operation(operation: c_int) -> Failure {
    Failure::argument(format!(
        "invalid operation {operation}: use BRAID_PUT or BRAID_REMOVE"
    ))
}

/// # Safety
///
/// The writes meet the contract of [`braid_write::apply`].
#[cold]
#[inline(never)]
unsafe fn apply_rest(
    first: *mut braid_table,
    writes: &[braid_write],
    tx: &mut Transaction,
) -> Outcome<()> {
    let mut at = (first, table(first)?);
    for write in writes {
        // Usually, all writes are to the same table.
        if write.table != at.0 {
            at = (write.table, table(write.table)?);
        }
        // SAFETY: this function's contract.
        unsafe { write.apply(tx, &at.1) }?;
    }
    Ok(())
}

/// # Safety
///
/// The writes meet the contract of [`braid_write::apply`]; the first one is to this table.
#[inline(always)]
unsafe fn apply(writes: &[braid_write], tx: &mut Transaction, first: &OpenTable) -> Outcome<()> {
    let [one, rest @ ..] = writes else {
        return Ok(());
    };
    // SAFETY: this function's contract.
    unsafe { one.apply(tx, first) }?;
    if !rest.is_empty() {
        // SAFETY: this function's contract.
        unsafe { apply_rest(one.table, rest, tx) }?;
    }
    Ok(())
}

/// Runs the writes in a transaction, which `commit` commits, and retries after a conflict.
///
/// # Safety
///
/// As for [`braid_db_write`].
#[inline(always)]
unsafe fn run(
    db: *mut braid_db,
    writes: *const braid_write,
    count: usize,
    commit: impl Fn(Transaction) -> Outcome<()> + Copy,
) -> Outcome {
    // SAFETY: this function's contract.
    let writes = unsafe { elements(writes, count, "writes") }?;
    // A table knows its database, so usually only one handle is looked up.
    if let [first, ..] = writes
        && let Some(table) = TABLES.pin_if_there(first.table)
        && table.owner() == number(db)
    {
        let open = &*table;
        let mut tx = open.database().current().begin();
        // SAFETY: the same.
        let outcome = match unsafe { apply(writes, &mut tx, open) } {
            Ok(()) => commit(tx),
            Err(failure) => Err(failure),
        };
        match outcome {
            Ok(()) => return Ok(BRAID_OK),
            Err(failure) if failure.is_conflict() => {}
            Err(failure) => return Err(failure),
        }
    }
    // A copy, so that the original can stay in registers.
    let again = commit;
    // SAFETY: the same.
    unsafe { run_again(db, writes, &again) }
}

/// As [`run`], when the fast path does not apply.
///
/// # Safety
///
/// The writes meet the contract of [`braid_write::apply`].
#[cold]
#[inline(never)]
unsafe fn run_again(
    db: *mut braid_db,
    writes: &[braid_write],
    commit: &dyn Fn(Transaction) -> Outcome<()>,
) -> Outcome {
    database(db)?.current().retry(|mut tx| {
        // SAFETY: this function's contract.
        let applied = writes.first().map_or(Ok(()), |first| unsafe {
            apply(writes, &mut tx, &*table(first.table)?)
        });
        match applied.and_then(|()| commit(tx)) {
            Ok(()) => Ok(Ok(BRAID_OK)),
            Err(failure) => failure
                .into_error()
                .map_or_else(|wrong| Ok(Err(wrong)), Err),
        }
    })?
}

/// Makes several writes in one transaction and commits it. `BRAID_OK` means that all writes are
/// durable. After any other status none was made, except after `BRAID_POISONED`: then only opening
/// the database again shows whether the writes survived. The writes are made in the given order.
/// After a conflict with another transaction, the function retries up to 1,000 times before it
/// returns `BRAID_CONFLICT`. `seqno`, which may be NULL, is set to the transaction's sequence
/// number.
///
/// A write consists of a table, an operation (`BRAID_PUT` is 0), a key, and a value.
///
/// # Safety
///
/// `writes` points to `count` writes, or is NULL if `count` is 0; the `data` of their keys and
/// values points to `len` bytes, or is NULL if its length is 0; `seqno` is NULL or points to
/// writable memory for the number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_write(
    db: *mut braid_db,
    writes: *const braid_write,
    count: usize,
    seqno: *mut u64,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let out = unsafe { Optional::new(seqno) };
        let commit = move |tx: Transaction| {
            let mut out = out;
            out.set(tx.commit()?.seqno());
            Ok(())
        };
        // SAFETY: this function's contract.
        unsafe { run(db, writes, count, commit) }
    })
}

/// Makes several writes in one transaction, as `braid_db_write` does, but does not wait until they
/// are durable. The writes are visible to other transactions, and the ticket reports when they are
/// durable. If `ticket` is NULL, there is no report, but the writes become durable all the same.
/// Free the ticket with `braid_ticket_free`.
///
/// # Safety
///
/// As for `braid_db_write`; `ticket` is NULL or points to writable memory for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_write_async(
    db: *mut braid_db,
    writes: *const braid_write,
    count: usize,
    ticket: *mut *mut braid_ticket,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let out = unsafe { Optional::handle(ticket) };
        let commit = move |tx: Transaction| give_ticket(out, tx.commit_async()?);
        // SAFETY: this function's contract.
        unsafe { run(db, writes, count, commit) }
    })
}

/// Makes several writes in one transaction, as `braid_db_write_async` does. Instead of returning a
/// ticket, it sets `seqno` to the transaction's sequence number: wait for it with `braid_db_wait`.
/// There is nothing to free. This is the cheapest way to keep many writes in flight.
///
/// # Safety
///
/// As for `braid_db_write`; `seqno` is NULL or points to writable memory for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_submit(
    db: *mut braid_db,
    writes: *const braid_write,
    count: usize,
    seqno: *mut u64,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(seqno, "seqno") }?;
        let commit = move |tx: Transaction| {
            let mut out = out;
            out.set(tx.commit_async()?.into_seqno());
            Ok(())
        };
        // SAFETY: this function's contract.
        unsafe { run(db, writes, count, commit) }
    })
}
