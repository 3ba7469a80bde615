//! What WiredTiger can do next to a load.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null;

use super::ffi::*;
use super::{Code, Cursor, FORMAT, Handle, WiredTiger, check, failed, text};
use crate::BenchError;
use crate::engines::{OldState, Operations, Rows, Stop, TableId};

/// Number of times that work is tried that needs a table for itself.
const TRIES: u32 = 100;

/// Returns the object of a table that no session uses.
fn uri_of(name: &str) -> Result<CString, BenchError> {
    text(&format!("table:{name}"))
}

impl Operations for WiredTiger {
    fn checkpoint(&self) -> Result<(), BenchError> {
        self.with_session(|session| session.checkpoint(None))
    }

    /// Through a bulk cursor. It is not logged; a checkpoint of the table makes it durable.
    fn bulk_load(&self, name: &str, rows: Rows) -> Result<(), BenchError> {
        let uri = uri_of(name)?;
        let target = text(&format!("target=(\"table:{name}\")"))?;
        self.with_session(|session| {
            // SAFETY: the session is open, the strings outlive the call.
            check(unsafe { braid_wt_create(session.0, uri.as_ptr(), FORMAT.as_ptr()) })?;
            let cursor = session.cursor(&uri, Some(c"bulk"))?;
            rows.try_each(|key, value| {
                let (data, len) = (value.as_ptr().cast(), value.len());
                // SAFETY: the cursor is open, the bytes are copied.
                check(unsafe { braid_wt_put(cursor.0, key.as_ptr().cast(), key.len(), data, len) })
            })?;
            // SAFETY: the cursor is open, and is not used afterwards.
            check(unsafe { braid_wt_cursor_close(cursor.0) })?;
            session.checkpoint(Some(&target))
        })
    }

    fn drop_table(&self, name: &str) -> Result<(), BenchError> {
        let uri = uri_of(name)?;
        // SAFETY: the session is open, the string outlives the call.
        self.unless_busy(|session| check(unsafe { braid_wt_drop(session.0, uri.as_ptr()) }))
    }

    fn snapshot(&self, table: TableId) -> Result<Box<dyn OldState + '_>, BenchError> {
        let session = self.open_session().map_err(failed)?;
        let cursor = session.cursor(&self.uris[table], None).map_err(failed)?;
        let isolation = c"isolation=snapshot";
        // SAFETY: the session is open and runs no transaction. Its end rolls this one back.
        check(unsafe { braid_wt_begin(session.0, isolation.as_ptr()) }).map_err(failed)?;
        Ok(Box::new(Old {
            cursor,
            _session: session,
            _engine: self,
        }))
    }

    /// A backup cursor names the files, which are copied while it is open.
    fn backup(&self, to: &Path) -> Result<(), BenchError> {
        fs::create_dir(to).map_err(|error| BenchError::file("create", to, error))?;
        let session = self.open_session().map_err(failed)?;
        let cursor = session.cursor(c"backup:", None).map_err(failed)?;
        loop {
            let mut name = null();
            // SAFETY: the cursor is open; the name is used before it moves.
            let file = unsafe {
                match check(braid_wt_next(cursor.0)) {
                    Err(code) if code.is_not_found() => return Ok(()),
                    moved => moved.map_err(failed)?,
                }
                check(braid_wt_name(cursor.0, &raw mut name)).map_err(failed)?;
                OsStr::from_bytes(CStr::from_ptr(name).to_bytes())
            };
            let copy = to.join(file);
            fs::copy(self.dir.join(file), &copy)
                .and_then(|_| fs::File::open(&copy)?.sync_all())
                .map_err(|error| BenchError::file("copy", &copy, error))?;
        }
    }

    fn compact(&self, table: TableId, _into: &Path) -> Result<(), BenchError> {
        let uri = &self.uris[table];
        // SAFETY: the session is open, the string outlives the call.
        self.with_session(|session| check(unsafe { braid_wt_compact(session.0, uri.as_ptr()) }))
    }

    fn verify(&self, name: &str) -> Result<(), BenchError> {
        let uri = uri_of(name)?;
        // SAFETY: the session is open, the string outlives the call.
        self.unless_busy(|session| check(unsafe { braid_wt_verify(session.0, uri.as_ptr()) }))
    }

    /// Reads all counters through a statistics cursor. The benchmark's other runs do without these
    /// counters, so this turns them on.
    fn stats(&self) -> Result<(), BenchError> {
        // SAFETY: the connection is open, the string outlives the call.
        self.counts_statistics.get_or_init(|| unsafe {
            braid_wt_reconfigure(self.connection, c"statistics=(fast)".as_ptr())
        });
        self.with_session(|session| {
            let cursor = session.cursor(c"statistics:", None)?;
            loop {
                // SAFETY: the cursor is open.
                match check(unsafe { braid_wt_next(cursor.0) }) {
                    Err(code) if code.is_not_found() => return Ok(()),
                    moved => moved?,
                }
            }
        })
    }
}

impl WiredTiger {
    fn with_session(
        &self,
        work: impl FnOnce(&Handle) -> Result<(), Code>,
    ) -> Result<(), BenchError> {
        let session = self.open_session().map_err(failed)?;
        work(&session).map_err(failed)
    }

    /// Repeats work that needs a table for itself while a checkpoint, which also uses it, runs.
    fn unless_busy(&self, work: impl Fn(&Handle) -> Result<(), Code>) -> Result<(), BenchError> {
        let session = self.open_session().map_err(failed)?;
        for _ in 0..TRIES {
            match work(&session) {
                // Waits for the checkpoint that runs.
                Err(code) if code.is_busy() => session.checkpoint(None).map_err(failed)?,
                result => return result.map_err(failed),
            }
        }
        work(&session).map_err(failed)
    }
}

/// A transaction that stays open; its session closes the cursor.
struct Old<'a> {
    cursor: Cursor,
    _session: Handle,
    _engine: &'a WiredTiger,
}

impl OldState for Old<'_> {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        self.cursor.get(key, found)
    }
}
