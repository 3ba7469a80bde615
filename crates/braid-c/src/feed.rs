//! Named consumers of changes.

use std::ffi::{c_char, c_void};

use braid::Feed;

use crate::boundary::call;
use crate::changes::{CHANGES, Reader, braid_position};
use crate::database::database;
use crate::handles::{Ended, Process, Shared, braid_changes, braid_db, braid_feed, number};
use crate::memory::{Out, required, text};
use crate::status::braid_status::{self, BRAID_NOT_FOUND, BRAID_OK};
use crate::table::{braid_name_callback, tell_names};

impl Process for braid_feed {
    type Object = Feed;
}

pub(crate) static FEEDS: Shared<braid_feed, Feed> = Shared::new();

/// Opens the feed of a name, which is created, durably, if there is none: it then begins behind what is durable now.
/// The database remembers how far a feed has come, and keeps the log behind that for it, up to
/// `BRAID_OPTION_FEED_LOG_BYTES`. The handle is freed with `braid_feed_free`; the feed stays until
/// `braid_feed_drop`.
///
/// # Safety
///
/// `name` is NULL or a string that ends with a NUL; `feed` is NULL or points to where a handle fits.
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

/// Sets `position` to that up to which the feed was acknowledged; `BRAID_FEED_MISSING` if it was dropped.
///
/// # Safety
///
/// `position` is NULL or points to where one fits.
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

/// Opens a reader of the transactions that were not acknowledged yet, as `braid_db_changes` does from a position.
///
/// # Safety
///
/// `changes` is NULL or points to where a handle fits.
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

/// Notes, durably, that everything up to `position` was taken over, so that it is not needed any more. An older
/// position than the one noted changes nothing. This is a transaction of its own.
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

/// Frees a feed's handle, not the feed. NULL is allowed, and does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn braid_feed_free(feed: *mut braid_feed) -> braid_status {
    call(|| {
        if !feed.is_null() {
            FEEDS.end(feed, Ended::Freed)?;
        }
        Ok(BRAID_OK)
    })
}

/// Removes a feed, durably: the log is not kept for it any more. `BRAID_NOT_FOUND` if there is none of this name.
///
/// # Safety
///
/// `name` is NULL or a string that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_feed_drop(db: *mut braid_db, name: *const c_char) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "name") }?;
        Ok(match database(db)?.current().drop_feed(name)? {
            true => BRAID_OK,
            false => BRAID_NOT_FOUND,
        })
    })
}

/// Calls `callback` with the name of each feed of the database, in their order, on this thread.
///
/// # Safety
///
/// `callback` may be called with `data`. It must not unwind or jump out.
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
        unsafe { tell_names(&names, callback, data) }
    })
}
