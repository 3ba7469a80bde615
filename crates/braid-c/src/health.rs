//! Whether a database works, asked for or told.

use std::ffi::{CString, c_char, c_void};

use braid::{Error, Health};

use crate::boundary::{Failure, call};
use crate::database::database;
use crate::handles::{braid_db, braid_options};
use crate::memory::UserData;
use crate::options::OPTIONS;
use crate::status::braid_status::{
    self, BRAID_ARCHIVE_FAILING, BRAID_CHECKPOINT_FAILING, BRAID_OK, BRAID_OUT_OF_SPACE,
};

/// What a state of health is to C.
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

/// Whether the database can be written to. `BRAID_OK`: everything works. Otherwise `braid_error_message`
/// tells why: `BRAID_CHECKPOINT_FAILING`: the last checkpoint failed, commits go on while there is log space.
/// `BRAID_OUT_OF_SPACE`: the last commit found no room; others that need less may succeed.
/// `BRAID_ARCHIVE_FAILING`: the archive can't be written, commits go on while the log has room.
/// `BRAID_POISONED`: a write or sync failed, reads go on, writes fail until the database is opened again.
#[unsafe(no_mangle)]
pub extern "C" fn braid_db_health(db: *mut braid_db) -> braid_status {
    call(|| {
        outcome(&database(db)?.current().health())?;
        Ok(BRAID_OK)
    })
}

/// Is told what `braid_db_health` would return now; `message`, which lasts for the call and is NULL with `BRAID_OK`,
/// says why.
pub type braid_health_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, status: braid_status, message: *const c_char)>;

/// Sets what databases that are opened with these options call when their health becomes another: when a failure
/// poisons one, when a commit or a checkpoint finds no space, when that is over, and when it is closed
/// (`BRAID_CLOSED`). It is called on the thread that notices, within 50 ms, and must be short.
///
/// # Safety
///
/// `callback` may be called with `data` from any thread until every database that was opened with these options is
/// closed. It must not unwind or jump out.
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
