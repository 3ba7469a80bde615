//! Feeds: positions of change consumers, stored under names.

use std::ffi::{c_char, c_void};

use super::table::{braid_name_callback, report_names};
use crate::boundary::call;
use crate::handle_error::Ended;
use crate::handles::{braid_changes, braid_db, braid_feed, number};
use crate::memory::{Out, required, text};
use crate::objects::{Reader, braid_position};
use crate::registry::{CHANGES, FEEDS, database};
use crate::status::braid_status::{self, BRAID_NOT_FOUND, BRAID_OK};

/// Opens the feed of a name. If there is none, the function creates it, durably, at the current
/// durable position. The database remembers the position of a feed, and keeps the log after it, up
/// to `BRAID_OPTION_FEED_LOG_BYTES`. Free the handle with `braid_feed_free`; the feed exists until
/// `braid_feed_drop`.
///
/// # Safety
///
/// `name` is NULL or a string that ends with a NUL; `feed` is NULL or points to writable memory for
/// a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_feed_open(
    db: *mut braid_db,
    name: *const c_char,
    feed: *mut *mut braid_feed,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(feed, "feed") }?;
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "name") }?;
        let opened = database(db)?.current().feed(name)?;
        out.set(FEEDS.insert(opened, number(db))?);
        Ok(BRAID_OK)
    })
}

/// Sets `position` to the position up to which the feed was acknowledged. Returns
/// `BRAID_FEED_NOT_FOUND` if the feed was dropped.
///
/// # Safety
///
/// `position` is NULL or points to writable memory for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_feed_position(
    feed: *mut braid_feed,
    position: *mut braid_position,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(position, "position") }?;
        out.set(braid_position::of(FEEDS.pin(feed)?.position()?));
        Ok(BRAID_OK)
    })
}

/// Opens a reader of the transactions that were not acknowledged yet, as `braid_db_changes` does
/// from a position.
///
/// # Safety
///
/// `changes` is NULL or points to writable memory for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_feed_changes(
    feed: *mut braid_feed,
    changes: *mut *mut braid_changes,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(changes, "changes") }?;
        let feed = FEEDS.pin(feed)?;
        let reader = Reader::new(feed.changes()?);
        out.set(CHANGES.insert(reader, feed.owner())?);
        Ok(BRAID_OK)
    })
}

/// Records, durably, that the consumer has processed everything up to `position`, so the feed no
/// longer needs it. A position older than the recorded one has no effect. The call is a transaction
/// of its own.
///
/// # Safety
///
/// `position` is NULL or points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_feed_acknowledge(
    feed: *mut braid_feed,
    position: *const braid_position,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let position = unsafe { required(position, "position") }?.get();
        FEEDS.pin(feed)?.acknowledge(position)?;
        Ok(BRAID_OK)
    })
}

/// Frees a feed's handle, not the feed. NULL is allowed and has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn braid_feed_free(feed: *mut braid_feed) -> braid_status {
    call(|| {
        if !feed.is_null() {
            FEEDS.end(feed, Ended::Freed)?;
        }
        Ok(BRAID_OK)
    })
}

/// Removes a feed, durably, so that Braid no longer keeps log for it. Returns `BRAID_NOT_FOUND` if
/// there is no feed of this name.
///
/// # Safety
///
/// `name` is NULL or a string that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_feed_drop(db: *mut braid_db, name: *const c_char) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "name") }?;
        Ok(if database(db)?.current().drop_feed(name)? {
            BRAID_OK
        } else {
            BRAID_NOT_FOUND
        })
    })
}

/// Calls `callback` with the name of each feed of the database, in the order of names, on this
/// thread.
///
/// # Safety
///
/// `callback` may be called with `data`. It must not unwind or call `longjmp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_feed_names(
    db: *mut braid_db,
    callback: braid_name_callback,
    data: *mut c_void,
) -> braid_status {
    call(|| {
        let feeds = database(db)?.current().feeds().into_iter();
        let names: Vec<String> = feeds.map(|(name, _)| name).collect();
        // SAFETY: this function's contract.
        unsafe { report_names(&names, callback, data) }
    })
}
