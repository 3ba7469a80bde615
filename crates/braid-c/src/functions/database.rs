//! Opening and closing databases, and operations on whole databases.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use braid::device::MemoryDevice;
use braid::{Commit, ConflictKind, Error};

use super::options::options_of;
use super::stats::{braid_recovery_report, braid_stats};
use crate::boundary::{Failure, call};
use crate::handle_error::Ended;
use crate::handles::{braid_db, braid_options, braid_tx, number};
use crate::memory::{self, Optional, Out};
use crate::objects::{OpenDatabase, Tx};
use crate::registry::{DATABASES, TRANSACTIONS, database, end_all_of};
use crate::status::braid_status::{self, BRAID_CONFLICT, BRAID_OK};

/// Opens the database in a directory, and creates it if it is missing.
///
/// If `options` is NULL, all options have their defaults. With `BRAID_DEVICE_MEMORY` the database
/// is in memory, and `path` is ignored. Close the handle with `braid_db_close`.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL; `db` is NULL or points to writable memory for a
/// handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_open(
    path: *const c_char,
    options: *mut braid_options,
    db: *mut *mut braid_db,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(db, "db") }?;
        let options = options_of(options)?;
        let builder = options.builder;
        let database = if options.in_memory {
            let device = Arc::new(MemoryDevice::new());
            if options.read_only {
                builder.open_read_only_on(device)?
            } else {
                builder.open_on(device)?
            }
        } else {
            // SAFETY: this function's contract.
            let path = unsafe { memory::path(path) }?;
            if options.read_only {
                builder.open_read_only(path)?
            } else {
                builder.open(path)?
            }
        };
        let database = OpenDatabase::new(database, options.read_only);
        out.set(DATABASES.insert(database, 0)?);
        Ok(BRAID_OK)
    })
}

/// Closes a database: waits for committed transactions, writes a last checkpoint, stops the
/// threads, and unlocks the directory. The handle is invalid afterwards, whatever the function
/// returns.
///
/// Closing aborts open transactions, and frees the database's tables, snapshots, cursors, loaders,
/// feeds and readers of changes. An object that another thread is using at this time stays until
/// that thread frees it; calls with it return `BRAID_CLOSED`. Tickets stay valid, and their results
/// remain true.
///
/// A failure (`BRAID_POISONED`, or any failure of a checkpoint) means that the last checkpoint was
/// not written. No acknowledged transaction is lost.
#[unsafe(no_mangle)]
pub extern "C" fn braid_db_close(db: *mut braid_db) -> braid_status {
    call(|| {
        let database = OpenDatabase::clone(&*DATABASES.pin(db)?);
        DATABASES.end(db, Ended::Closed)?;
        let outcome = database.current().clone().close();
        let (owner, ended) = (number(db), Ended::DatabaseClosed);
        end_all_of(owner, ended);
        outcome?;
        Ok(BRAID_OK)
    })
}

/// Moves a database that was opened with `BRAID_OPTION_READ_ONLY` to the newest durable state.
/// Tables, and snapshots and transactions that begin later, show the new state; open snapshots,
/// transactions and cursors keep theirs. A table's handle is valid in every state; in a state in
/// which the table does not exist, its use returns `BRAID_TABLE_DROPPED`. While another process
/// writes, the new state contains every transaction that was acknowledged before the call, and
/// nothing that a crash could take back. `newer`, which may be NULL, is set to whether the new
/// state is newer than the previous one. For a database that is open for writing, this function
/// does nothing. After an error, the database keeps the previous state. A table's handle keeps the
/// state in which it was opened in memory; a program that refreshes often should open its tables
/// again from time to time.
///
/// # Safety
///
/// `newer` is NULL or points to writable memory for a `bool`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_refresh(db: *mut braid_db, newer: *mut bool) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Optional::new(newer) };
        out.set(false);
        out.set(database(db)?.refresh()?);
        Ok(BRAID_OK)
    })
}

/// Waits until everything committed so far is durable, whatever durability each transaction has.
#[unsafe(no_mangle)]
pub extern "C" fn braid_db_sync(db: *mut braid_db) -> braid_status {
    call(|| {
        database(db)?.current().sync()?;
        Ok(BRAID_OK)
    })
}

/// Waits until the transaction with a sequence number (from `braid_db_submit` or
/// `braid_tx_submit`), and all transactions before it, are durable. `braid_db_durable_seqno` checks
/// without waiting.
#[unsafe(no_mangle)]
pub extern "C" fn braid_db_wait(db: *mut braid_db, seqno: u64) -> braid_status {
    call(|| {
        database(db)?.current().wait_durable(seqno)?;
        Ok(BRAID_OK)
    })
}

/// Writes a checkpoint now. Recovery then no longer needs the log before the checkpoint, and Braid
/// reuses its space. If the checkpoint fails (`BRAID_OUT_OF_SPACE`, `BRAID_IO`, `BRAID_POISONED`),
/// the previous one stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn braid_db_checkpoint(db: *mut braid_db) -> braid_status {
    call(|| {
        database(db)?.current().checkpoint()?;
        Ok(BRAID_OK)
    })
}

/// Sets `seqno` to the durable sequence number: all transactions up to it are durable.
///
/// # Safety
///
/// `seqno` is NULL or points to writable memory for the number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_durable_seqno(
    db: *mut braid_db,
    seqno: *mut u64,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(seqno, "seqno") }?;
        out.set(database(db)?.current().durable_seqno());
        Ok(BRAID_OK)
    })
}

/// Gets counters, which start at zero when the database is opened, and current sizes.
///
/// # Safety
///
/// `stats` is NULL or points to writable memory for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_stats(
    db: *mut braid_db,
    stats: *mut braid_stats,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(stats, "stats") }?;
        out.set(braid_stats::of(&database(db)?.current().stats()));
        Ok(BRAID_OK)
    })
}

/// Reports what was recovered when the database was opened.
///
/// # Safety
///
/// `report` is NULL or points to writable memory for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_recovery(
    db: *mut braid_db,
    report: *mut braid_recovery_report,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(report, "report") }?;
        out.set(braid_recovery_report::of(
            database(db)?.current().recovery(),
        ));
        Ok(BRAID_OK)
    })
}

/// Body of a transaction for `braid_db_transact`. It returns 0 to commit the transaction, and any
/// other number to abort it; return the status of a failed call unchanged. The body must not end
/// the transaction.
pub type braid_body = Option<unsafe extern "C" fn(data: *mut c_void, tx: *mut braid_tx) -> c_int>;

/// Runs `body` in a serializable transaction and commits it. If the body returns `BRAID_CONFLICT`,
/// or the commit fails with it, the function runs both again after a pause that grows each time, up
/// to 1,000 times.
///
/// Returns `BRAID_OK` once the transaction is durable. If the body returns neither 0 nor
/// `BRAID_CONFLICT`, the function returns that value; otherwise it returns the status of the failed
/// step. `seqno`, which may be NULL, is set to the transaction's sequence number, its place in the
/// serial order.
///
/// # Safety
///
/// `body` may be called with `data`, several times. It must not unwind or call `longjmp`. `seqno`
/// is NULL or points to writable memory for the number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_transact(
    db: *mut braid_db,
    body: braid_body,
    data: *mut c_void,
    seqno: *mut u64,
) -> c_int {
    let mut passed_on = None;
    let status = call(|| {
        let body = body.ok_or(Failure::null("body"))?;
        // SAFETY: this function's contract.
        let mut out = unsafe { Optional::new(seqno) };
        let owner = crate::handles::number(db);
        let attempt = database(db)?.current().retry(|tx| {
            let handle = match TRANSACTIONS.insert(Tx::new(tx), owner) {
                Ok(handle) => handle,
                Err(error) => return Ok(Attempt::Failed(error)),
            };
            // SAFETY: this function's contract.
            let returned = unsafe { body(data, handle) };
            let tx = match TRANSACTIONS.lock(handle) {
                Ok(locked) if returned == 0 => locked.end(Ended::Committed),
                Ok(locked) => locked.end(Ended::Aborted),
                Err(error) => return Ok(Attempt::Failed(error)),
            };
            match returned {
                0 => tx.into_transaction().commit().map(Attempt::Committed),
                // In a serializable transaction, only a deadlock causes a conflict before the
                // commit.
                CONFLICT => Err(Error::Conflict(ConflictKind::Deadlock)),
                other => Ok(Attempt::Returned(other)),
            }
        })?;
        match attempt {
            Attempt::Committed(commit) => out.set(commit.seqno()),
            Attempt::Returned(other) => passed_on = Some(other),
            Attempt::Failed(failure) => return Err(failure),
        }
        Ok(BRAID_OK)
    });
    passed_on.unwrap_or(status as c_int)
}

const CONFLICT: c_int = BRAID_CONFLICT as c_int;

enum Attempt {
    Committed(Commit),
    /// The body returned this number.
    Returned(c_int),
    /// A call or the commit failed.
    Failed(Failure),
}
