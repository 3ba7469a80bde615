//! Health of a database, by request and by callback.

use std::ffi::{CString, c_char, c_void};

use braid::{Error, Health};

use crate::boundary::{Failure, call};
use crate::handles::{braid_db, braid_options};
use crate::memory::UserData;
use crate::registry::{OPTIONS, database};
use crate::status::braid_status::{
    self, BRAID_ARCHIVE_FAILING, BRAID_CHECKPOINT_FAILING, BRAID_OK, BRAID_OUT_OF_SPACE,
};

/// Converts a state of health to an outcome for C.
fn outcome(health: &Health) -> Result<(), Failure> {
    Err(match health {
        Health::Good => return Ok(()),
        Health::CheckpointFailing { error } => Failure::of(
            BRAID_CHECKPOINT_FAILING,
            format!("the last checkpoint failed: {error}; it is retried"),
        ),
        Health::OutOfSpace { what } => Failure::of(
            BRAID_OUT_OF_SPACE,
            format!("out of space: {what}; free space or raise the limit, then retry"),
        ),
        Health::ArchiveFailing { error } => Failure::of(
            BRAID_ARCHIVE_FAILING,
            format!("cannot write the archive: {error}; it is retried"),
        ),
        Health::Poisoned { cause } => {
            let cause = cause.clone();
            Error::Poisoned { cause }.into()
        }
        Health::Damaged { what } => Error::Corrupted {
            what: "the database is damaged and was opened read-only".into(),
            location: what.clone(),
        }
        .into(),
        Health::Closed => Error::Closed.into(),
        other => Failure::of(braid_status::BRAID_OTHER, format!("{other:?}")),
    })
}

/// Returns whether the database can be written. `BRAID_OK` means that everything works. For any
/// other status, `braid_error_message` gives the reason:
///
/// - `BRAID_CHECKPOINT_FAILING`: the last checkpoint failed. Commits continue while the log has
///   space.
/// - `BRAID_OUT_OF_SPACE`: the last commit found no space. Commits that need less may succeed.
/// - `BRAID_ARCHIVE_FAILING`: the archive cannot be written. Commits continue while the log has
///   space.
/// - `BRAID_POISONED`: a write or sync failed. Reads continue; writes fail until the database is
///   opened again.
///
/// `braid_options_set_health_callback` reports changes without polling.
#[unsafe(no_mangle)]
pub extern "C" fn braid_db_health(db: *mut braid_db) -> braid_status {
    call(|| {
        outcome(&database(db)?.current().health())?;
        Ok(BRAID_OK)
    })
}

/// Receives the status that `braid_db_health` would return now. `message` gives the reason; it is
/// valid during the call, and NULL with `BRAID_OK`.
pub type braid_health_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, status: braid_status, message: *const c_char)>;

/// Sets a function that a database opened with these options calls whenever its health changes:
/// when a failure poisons it, when a commit or a checkpoint finds no space, when such a state ends,
/// and when it is closed (`BRAID_CLOSED`). The thread that notices the change makes the call within
/// 50 ms, so the function must return quickly. It receives the status that `braid_db_health` would
/// return, and a message that is valid during the call, or NULL with `BRAID_OK`.
///
/// # Safety
///
/// `callback` may be called with `data` from any thread until every database that was opened with
/// these options is closed. It must not unwind or call `longjmp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_options_set_health_callback(
    options: *mut braid_options,
    callback: braid_health_callback,
    data: *mut c_void,
) -> braid_status {
    call(|| {
        let callback = callback.ok_or(Failure::null("callback"))?;
        let mut options = OPTIONS.lock(options)?;
        let data = UserData::new(data);
        let tell = move |health: &Health| {
            let (status, message) = match outcome(health) {
                Ok(()) => (BRAID_OK, None),
                Err(failure) => {
                    let message = failure.to_string().replace('\0', "\\0");
                    (failure.status(), CString::new(message).ok())
                }
            };
            let text = message.as_ref().map_or(std::ptr::null(), |m| m.as_ptr());
            // SAFETY: this function's contract.
            unsafe { callback(data.get(), status, text) }
        };
        options.builder = options.builder.clone().on_health_change(tell);
        Ok(BRAID_OK)
    })
}
