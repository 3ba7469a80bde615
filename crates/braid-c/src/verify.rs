//! Looking at a database that is not open.

use std::ffi::{CString, c_char, c_void};

use crate::boundary::{Failure, call};
use crate::memory::{self, Optional};
use crate::status::braid_status::{self, BRAID_CORRUPTED, BRAID_OK};
use crate::stream::{Sink, braid_write_callback};

/// What `braid_verify` looked at, and how much it found wrong.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_verify_report {
    /// Pages of the data file.
    pub pages: u64,
    /// Records in them, those of removed keys included.
    pub records: u64,
    /// Tables, the catalog included.
    pub tables: u64,
    /// Bytes of log behind the newest checkpoint.
    pub log_bytes: u64,
    /// Transactions in it.
    pub log_transactions: u64,
    /// Findings.
    pub damages: u64,
}

/// Is told of one damage; `what` lasts for the call.
pub type braid_damage_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, what: *const c_char)>;

/// Checks a database that nobody has open: every checksum, the order of the trees, the accounting of space,
/// the chains of the log. Writes nothing. Each finding goes to `callback`, which may be NULL, on this
/// thread, and the counts to `report`, which may be NULL.
///
/// `BRAID_OK` if nothing is wrong, `BRAID_CORRUPTED` if something is; both with a report. Otherwise what kept
/// it from looking: `BRAID_NOT_A_DATABASE`, `BRAID_LOCKED`, `BRAID_INCOMPATIBLE`, `BRAID_IO`.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL; `callback` may be called with `data` and must not unwind
/// or jump out; `report` is NULL or points to where it fits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_verify(
    path: *const c_char,
    callback: braid_damage_callback,
    data: *mut c_void,
    report: *mut braid_verify_report,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (path, mut out) = unsafe { (memory::path(path)?, Optional::new(report)) };
        let mut tell = |damage: String| {
            let damage = CString::new(damage.replace('\0', "\\0")).unwrap_or_default();
            if let Some(callback) = callback {
                // SAFETY: this function's contract.
                unsafe { callback(data, damage.as_ptr()) }
            }
        };
        let report = braid::verify(path, &mut tell)?;
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
    })
}

/// Prints a database that nobody has open, for people to read: its properties, its pages, and the transactions of its
/// log. The text, in UTF-8, goes to `write` piece by piece, on this thread.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL; `write` may be called with `data` and must not unwind or jump out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_dump(
    path: *const c_char,
    write: braid_write_callback,
    data: *mut c_void,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (path, mut sink) = unsafe { (memory::path(path)?, Sink::new(write, data)?) };
        braid::dump(path, &mut sink)?;
        Ok(BRAID_OK)
    })
}
