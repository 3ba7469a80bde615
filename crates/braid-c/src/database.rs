//! Opening, closing, and what concerns a database as a whole.

use std::ffi::{c_char, c_int, c_void};
use std::mem;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use braid::{Commit, ConflictKind, Database, Error, MemoryDevice};

use crate::boundary::{Failure, Outcome, call};
use crate::bulk::LOADERS;
use crate::changes::CHANGES;
use crate::cursor::CURSORS;
use crate::feed::FEEDS;
use crate::handles::{Ended, Pinned, Process, Shared, braid_db, braid_options, braid_tx, number};
use crate::memory::{self, Optional, Out};
use crate::options::options_of;
use crate::scan::Tx;
use crate::snapshot::SNAPSHOTS;
use crate::stats::{braid_recovery_report, braid_stats};
use crate::status::braid_status::{self, BRAID_CONFLICT, BRAID_OK};
use crate::table::TABLES;
use crate::transaction::TRANSACTIONS;

/// What a database's handle stands for.
#[derive(Clone)]
pub(crate) enum OpenDatabase {
    /// Open for writing.
    Writer(Database),
    /// Only read: the newest state that was asked for.
    Reader(Arc<RwLock<Database>>),
}

/// A database, in the state that new reads show.
pub(crate) enum Current<'a> {
    Writer(&'a Database),
    State(Database),
}

impl Deref for Current<'_> {
    type Target = Database;

    #[inline(always)]
    fn deref(&self) -> &Database {
        match self {
            Current::Writer(database) => database,
            Current::State(database) => database,
        }
    }
}

impl OpenDatabase {
    fn new(database: Database, read_only: bool) -> Self {
        match read_only {
            true => Self::Reader(Arc::new(RwLock::new(database))),
            false => Self::Writer(database),
        }
    }

    #[inline(always)]
    pub(crate) fn current(&self) -> Current<'_> {
        match self {
            Self::Writer(database) => Current::Writer(database),
            Self::Reader(newest) => Current::State(state(newest)),
        }
    }

    /// Moves to the newest durable state; returns whether it is newer.
    fn refresh(&self) -> Outcome<bool> {
        let Self::Reader(newest) = self else {
            return Ok(false);
        };
        // Readers go on with the state before meanwhile.
        let mut database = state(newest);
        if !database.refresh()? {
            return Ok(false);
        }
        let mut newest = newest.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have refreshed to a newer state.
        if database.durable_seqno() <= newest.durable_seqno() {
            return Ok(false);
        }
        let before = mem::replace(&mut *newest, database);
        drop(newest);
        drop(before);
        Ok(true)
    }
}

#[inline(never)]
fn state(newest: &RwLock<Database>) -> Database {
    let newest = newest.read().unwrap_or_else(PoisonError::into_inner);
    newest.clone()
}

impl Process for braid_db {
    type Object = OpenDatabase;
}

static DATABASES: Shared<braid_db, OpenDatabase> = Shared::new();

#[inline(always)]
pub(crate) fn database(handle: *mut braid_db) -> Outcome<Pinned<'static, braid_db, OpenDatabase>> {
    DATABASES.pin(handle)
}

/// Opens the database in a directory, and creates it if need be.
///
/// `options` may be NULL: then all are at their defaults. With `BRAID_DEVICE_MEMORY` the database is in
/// memory, and `path` is not looked at. The handle is closed with `braid_db_close`.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL; `db` is NULL or points to where a handle fits.
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
            match options.read_only {
                true => builder.open_read_only_on(device)?,
                false => builder.open_on(device)?,
            }
        } else {
            // SAFETY: this function's contract.
            let path = unsafe { memory::path(path) }?;
            match options.read_only {
                true => builder.open_read_only(path)?,
                false => builder.open(path)?,
            }
        };
        let database = OpenDatabase::new(database, options.read_only);
        out.set(DATABASES.insert(database, 0)?);
        Ok(BRAID_OK)
    })
}

/// Closes a database: waits for what is committed, writes a last checkpoint, stops the threads, unlocks the
/// directory. The handle is good for nothing afterwards, whatever is returned.
///
/// What is still open of the database ends with it: transactions are aborted, and tables, snapshots, cursors,
/// loaders, feeds and readers of changes are freed. What another thread is using at this moment stays until that thread frees it, and
/// answers `BRAID_CLOSED`. Tickets stay: what they tell is still true.
///
/// A failure (`BRAID_POISONED`, or what a checkpoint can fail with) says that the last checkpoint was not
/// written; what was acknowledged is safe even so.
#[unsafe(no_mangle)]
pub extern "C" fn braid_db_close(db: *mut braid_db) -> braid_status {
    call(|| {
        let database = OpenDatabase::clone(&*DATABASES.pin(db)?);
        DATABASES.end(db, Ended::Closed)?;
        let outcome = database.current().clone().close();
        let (owner, ended) = (number(db), Ended::DatabaseClosed);
        CURSORS.end_all_of(owner, ended);
        TRANSACTIONS.end_all_of(owner, ended);
        SNAPSHOTS.end_all_of(owner, ended);
        TABLES.end_all_of(owner, ended);
        LOADERS.end_all_of(owner, ended);
        CHANGES.end_all_of(owner, ended);
        FEEDS.end_all_of(owner, ended);
        outcome?;
        Ok(BRAID_OK)
    })
}

/// Moves a database that was opened with `BRAID_OPTION_READ_ONLY` to the newest durable state: tables, and
/// snapshots and transactions from then on, show it; what is open keeps its state. While another process
/// writes, the new state has every transaction that was acknowledged before the call, and nothing that a
/// crash could take back. `newer`, which may be NULL, is set to whether the state is newer than the one
/// before. For a database that is open for writing, this does nothing. After an error (those of
/// `braid_db_open`) the state is the one before.
///
/// # Safety
///
/// `newer` is NULL or points to room for a `bool`.
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

/// Waits until everything committed so far is durable, whatever its durability.
#[unsafe(no_mangle)]
pub extern "C" fn braid_db_sync(db: *mut braid_db) -> braid_status {
    call(|| {
        database(db)?.current().sync()?;
        Ok(BRAID_OK)
    })
}

/// Waits until the transaction of a number (`braid_db_submit`, `braid_tx_submit`), and all before it, are durable.
/// `BRAID_POISONED` if the log failed before; `BRAID_INVALID_ARGUMENT` if no transaction has the number yet.
#[unsafe(no_mangle)]
pub extern "C" fn braid_db_wait(db: *mut braid_db, seqno: u64) -> braid_status {
    call(|| {
        database(db)?.current().wait_durable(seqno)?;
        Ok(BRAID_OK)
    })
}

/// Writes a checkpoint now: the log before it is no longer needed, and its space is reused. If it fails
/// (`BRAID_OUT_OF_SPACE`, `BRAID_IO`, `BRAID_POISONED`), the checkpoint before stays good.
#[unsafe(no_mangle)]
pub extern "C" fn braid_db_checkpoint(db: *mut braid_db) -> braid_status {
    call(|| {
        database(db)?.current().checkpoint()?;
        Ok(BRAID_OK)
    })
}

/// Sets `seqno` to the number up to which all transactions are durable.
///
/// # Safety
///
/// `seqno` is NULL or points to where the number fits.
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

/// Counts since the database was opened, and present sizes.
///
/// # Safety
///
/// `stats` is NULL or points to where they fit.
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

/// What opening the database had to recover.
///
/// # Safety
///
/// `report` is NULL or points to where it fits.
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

/// The body of a transaction that `braid_db_transact` runs. It returns 0 to have it committed, and anything
/// else to have it aborted; the status of a call that failed is passed on. It must not end the transaction.
pub type braid_body = Option<unsafe extern "C" fn(data: *mut c_void, tx: *mut braid_tx) -> c_int>;

/// Runs `body` in a serializable transaction and commits it, again and again while the body returns, or the
/// commit fails with, `BRAID_CONFLICT`, with growing pauses, at most 1,000 times.
///
/// Returns `BRAID_OK` once it is durable; what the body returned if that was neither 0 nor `BRAID_CONFLICT`;
/// otherwise the status of what failed. `seqno`, which may be NULL, is set to the transaction's
/// place in the serial order.
///
/// # Safety
///
/// `body` may be called with `data`, several times. It must not unwind or jump out. `seqno` is NULL
/// or points to where the number fits.
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
                // In a serializable transaction nothing else conflicts before the commit.
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
    /// By the body.
    Returned(c_int),
    /// The transaction's handle.
    Failed(Failure),
}
