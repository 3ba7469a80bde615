//! A long data file, an old format, a damaged database.

use std::ffi::{CString, c_char, c_void};

use braid::Finding;

use crate::boundary::call;
use crate::database::database;
use crate::handles::braid_db;
use crate::memory::{self, Optional};
use crate::status::braid_status::{self, BRAID_OK};

/// What `braid_db_compact` did.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_compact_report {
    /// The data file's length before, in bytes.
    pub bytes_before: u64,
    /// Its length now.
    pub bytes_after: u64,
    /// How many checkpoints that took.
    pub checkpoints: u32,
}

/// Moves the pages at the end of the data file into free space before them, and cuts the file. Transactions go on
/// meanwhile; a crash at any moment loses nothing. `report` may be NULL. If it fails, as a checkpoint can, the
/// checkpoint before stays good.
///
/// # Safety
///
/// `report` is NULL or points to where it fits.
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

/// What `braid_upgrade` did.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_upgrade_report {
    /// The format that the data file had.
    pub from: u64,
    /// The format that it has now, the present one.
    pub to: u64,
}

/// Brings a database that nobody has open to the format of this version. One that has it already is read, its log
/// too, and left as it is. `report` may be NULL. `BRAID_INCOMPATIBLE` if the format is newer than this version's, or
/// too old to be converted.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL; `report` is NULL or points to where it fits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_upgrade(
    path: *const c_char,
    report: *mut braid_upgrade_report,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (path, mut out) = unsafe { (memory::path(path)?, Optional::new(report)) };
        let report = braid::upgrade(path)?;
        out.set(braid_upgrade_report {
            from: report.from,
            to: report.to,
        });
        Ok(BRAID_OK)
    })
}

/// What `braid_salvage` saved.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_salvage_report {
    /// Tables in the new database.
    pub tables: u64,
    /// Entries found in the pages of the newest checkpoint.
    pub entries: u64,
    /// Transactions replayed from the log.
    pub transactions: u64,
    /// How many findings say that something is lost.
    pub losses: u64,
}

/// Is told of something that `braid_salvage` came upon: damaged, but found or made good otherwise, or `is_lost`.
/// `what` lasts for the call.
pub type braid_finding_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, is_lost: bool, what: *const c_char)>;

/// Saves what can be read of a damaged database that nobody has open into a new one in the directory `into`, which is
/// made. Writes nothing to the damaged one. Each damage and each loss goes to `callback`, which may be NULL, on this
/// thread, with the table and the range of keys, or the numbers of the transactions, that it concerns. Entries of
/// which it is not known to which table they belong go to tables named `salvaged-…`. `report` may be NULL.
///
/// `BRAID_OK` also if something is lost: `report` says how much. `BRAID_NOT_A_DATABASE` also if there is something
/// in `into`; `BRAID_CORRUPTED` if there is nothing to begin with.
///
/// # Safety
///
/// `path` and `into` are NULL or strings that end with a NUL; `callback` may be called with `data` and must not unwind
/// or jump out; `report` is NULL or points to where it fits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_salvage(
    path: *const c_char,
    into: *const c_char,
    callback: braid_finding_callback,
    data: *mut c_void,
    report: *mut braid_salvage_report,
) -> braid_status {
    call(|| {
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
        let report = braid::salvage(path, into, &mut tell)?;
        out.set(braid_salvage_report {
            tables: report.tables,
            entries: report.entries,
            transactions: report.transactions,
            losses: report.losses,
        });
        Ok(BRAID_OK)
    })
}
