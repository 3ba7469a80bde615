//! Compaction, format upgrades, and salvage of damaged databases.

use std::ffi::{CString, c_char, c_void};

use braid::offline::{Finding, Salvage};

use super::options::options_of;
use crate::boundary::{Outcome, call};
use crate::handles::{braid_db, braid_options};
use crate::memory::{self, Optional};
use crate::registry::database;
use crate::status::braid_status::{self, BRAID_OK};

/// Result of `braid_db_compact`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_compact_report {
    /// Length of the data file before the compaction, in bytes.
    pub bytes_before: u64,
    /// Length of the data file after the compaction, in bytes.
    pub bytes_after: u64,
    /// Number of checkpoints that the compaction wrote.
    pub checkpoints: u32,
}

/// Moves the pages at the end of the data file into free space before them, and truncates the file.
/// Transactions continue meanwhile, and a crash at any moment loses nothing. `report` may be NULL.
/// The function can fail as a checkpoint can; the previous checkpoint then stays valid.
///
/// # Safety
///
/// `report` is NULL or points to writable memory for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_compact(
    db: *mut braid_db,
    report: *mut braid_compact_report,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Optional::new(report) };
        let report = database(db)?.current().compact()?;
        out.set(braid_compact_report {
            bytes_before: report.bytes_before,
            bytes_after: report.bytes_after,
            checkpoints: report.checkpoints,
        });
        Ok(BRAID_OK)
    })
}

/// Result of `braid_upgrade`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_upgrade_report {
    /// Format of the data file before the upgrade.
    pub from: u64,
    /// Format of the data file now: that of this version.
    pub to: u64,
}

/// Converts a database that no process has open to the format of this version. If the database
/// already has this format, the function reads it, including its log, and leaves it unchanged.
/// `report` may be NULL.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL; `report` is NULL or points to writable memory
/// for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_upgrade(
    path: *const c_char,
    report: *mut braid_upgrade_report,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (path, mut out) = unsafe { (memory::path(path)?, Optional::new(report)) };
        let report = braid::offline::upgrade(path)?;
        out.set(braid_upgrade_report {
            from: report.from,
            to: report.to,
        });
        Ok(BRAID_OK)
    })
}

/// Result of `braid_salvage`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_salvage_report {
    /// Number of tables in the new database.
    pub tables: u64,
    /// Number of entries found in the pages of the newest checkpoint.
    pub entries: u64,
    /// Number of transactions replayed from the log.
    pub transactions: u64,
    /// Number of findings that report a loss.
    pub losses: u64,
}

/// Receives a finding of `braid_salvage`: damage that was repaired from other data, or, with
/// `is_lost`, a loss. `what` is valid during the call.
pub type braid_finding_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, is_lost: bool, what: *const c_char)>;

/// Saves all readable data of a damaged database that no process has open in a new database in the
/// directory `into`, which it creates. It writes nothing to the damaged database. It passes each
/// damage and each loss to `callback`, which may be NULL, on this thread, with the table and the
/// range of keys, or the sequence numbers, that it concerns. Entries whose table cannot be
/// determined go to tables named `salvaged-…`. Returns `BRAID_OK` even if data is lost; `report`,
/// which may be NULL, says how much.
///
/// # Safety
///
/// `path` and `into` are NULL or strings that end with a NUL; `callback` may be called with `data`
/// and must not unwind or call `longjmp`; `report` is NULL or points to writable memory for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_salvage(
    path: *const c_char,
    into: *const c_char,
    callback: braid_finding_callback,
    data: *mut c_void,
    report: *mut braid_salvage_report,
) -> braid_status {
    // SAFETY: this function's contract.
    call(|| unsafe { run_salvage(path, into, &Salvage::new(), callback, data, report) })
}

/// Salvages a database as `braid_salvage` does, with its tablespaces where `options` say, see
/// `braid_options_set_tablespace_directory`. Other options have no effect.
///
/// # Safety
///
/// As for `braid_salvage`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_salvage_with(
    path: *const c_char,
    into: *const c_char,
    options: *mut braid_options,
    callback: braid_finding_callback,
    data: *mut c_void,
    report: *mut braid_salvage_report,
) -> braid_status {
    call(|| {
        let salvage = options_of(options)?.salvage();
        // SAFETY: this function's contract.
        unsafe { run_salvage(path, into, &salvage, callback, data, report) }
    })
}

/// Salvages a database.
///
/// # Safety
///
/// As for `braid_salvage`.
unsafe fn run_salvage(
    path: *const c_char,
    into: *const c_char,
    salvage: &Salvage,
    callback: braid_finding_callback,
    data: *mut c_void,
    report: *mut braid_salvage_report,
) -> Outcome {
    // SAFETY: this function's contract.
    let (path, into) = unsafe { (memory::path(path)?, memory::path(into)?) };
    // SAFETY: this function's contract.
    let mut out = unsafe { Optional::new(report) };
    let mut tell = |finding: Finding| {
        let (is_lost, what) = match finding {
            Finding::Lost(what) => (true, what),
            Finding::Damaged(what) => (false, what),
            other => (false, format!("{other:?}")),
        };
        let what = CString::new(what.replace('\0', "\\0")).unwrap_or_default();
        if let Some(callback) = callback {
            // SAFETY: this function's contract.
            unsafe { callback(data, is_lost, what.as_ptr()) }
        }
    };
    let report = salvage.run(path, into, &mut tell)?;
    out.set(braid_salvage_report {
        tables: report.tables,
        entries: report.entries,
        transactions: report.transactions,
        losses: report.losses,
    });
    Ok(BRAID_OK)
}
