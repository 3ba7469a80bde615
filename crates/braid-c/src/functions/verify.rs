//! Verification and dump of closed databases.

use std::ffi::{CString, c_char, c_void};

use braid::offline::Verify;

use super::options::options_of;
use crate::boundary::{Failure, Outcome, call};
use crate::handles::braid_options;
use crate::memory::{self, Optional};
use crate::status::braid_status::{self, BRAID_CORRUPTED, BRAID_OK};
use crate::stream::{Sink, braid_write_callback};

/// Result of `braid_verify`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_verify_report {
    /// Number of pages of the data file.
    pub pages: u64,
    /// Number of records in the pages, including those of removed keys.
    pub records: u64,
    /// Number of tables, including the catalog.
    pub tables: u64,
    /// Bytes of log after the newest checkpoint.
    pub log_bytes: u64,
    /// Number of transactions in that log.
    pub log_transactions: u64,
    /// Number of findings.
    pub damages: u64,
}

/// Receives one finding. `what` is valid during the call.
pub type braid_damage_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, what: *const c_char)>;

/// Checks a database: every checksum, the order of the trees, the accounting of space, and the
/// chains of the log. It writes nothing. It passes each finding to `callback` on this thread, and
/// the counts to `report`; both may be NULL. While another process writes the database, the
/// function checks the newest checkpoint and the log up to the durable sequence number.
///
/// Returns `BRAID_OK` if there is no damage, and `BRAID_CORRUPTED` if there is some, both with a
/// report. Any other status says why the check was not possible.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL; `callback` may be called with `data` and must
/// not unwind or call `longjmp`; `report` is NULL or points to writable memory for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_verify(
    path: *const c_char,
    callback: braid_damage_callback,
    data: *mut c_void,
    report: *mut braid_verify_report,
) -> braid_status {
    // SAFETY: this function's contract.
    call(|| unsafe { check(path, &Verify::new(), callback, data, report) })
}

/// Checks a database as `braid_verify` does, with its tablespaces where `options` say, see
/// `braid_options_set_tablespace_directory`. Other options have no effect.
///
/// # Safety
///
/// As for `braid_verify`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_verify_with(
    path: *const c_char,
    options: *mut braid_options,
    callback: braid_damage_callback,
    data: *mut c_void,
    report: *mut braid_verify_report,
) -> braid_status {
    call(|| {
        let verify = options_of(options)?.verify();
        // SAFETY: this function's contract.
        unsafe { check(path, &verify, callback, data, report) }
    })
}

/// Checks a database.
///
/// # Safety
///
/// As for `braid_verify`.
unsafe fn check(
    path: *const c_char,
    verify: &Verify,
    callback: braid_damage_callback,
    data: *mut c_void,
    report: *mut braid_verify_report,
) -> Outcome {
    // SAFETY: this function's contract.
    let (path, mut out) = unsafe { (memory::path(path)?, Optional::new(report)) };
    let mut tell = |damage: String| {
        let damage = CString::new(damage.replace('\0', "\\0")).unwrap_or_default();
        if let Some(callback) = callback {
            // SAFETY: this function's contract.
            unsafe { callback(data, damage.as_ptr()) }
        }
    };
    let report = verify.check(path, &mut tell)?;
    out.set(braid_verify_report {
        pages: report.pages,
        records: report.records,
        tables: report.tables,
        log_bytes: report.log_bytes,
        log_transactions: report.log_transactions,
        damages: report.damages,
    });
    if report.damages > 0 {
        let what = format!(
            "found {} damages in {}; restore a backup or salvage what can be read",
            report.damages,
            path.display()
        );
        return Err(Failure::of(BRAID_CORRUPTED, what));
    }
    Ok(BRAID_OK)
}

/// Prints a database for people to read: its properties, its pages, and the transactions of its
/// log. It passes the text, in UTF-8, to `write` in parts, on this thread.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL; `write` may be called with `data` and must not
/// unwind or call `longjmp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_dump(
    path: *const c_char,
    write: braid_write_callback,
    data: *mut c_void,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (path, mut sink) = unsafe { (memory::path(path)?, Sink::new(write, data)?) };
        braid::offline::dump(path, &mut sink)?;
        Ok(BRAID_OK)
    })
}
