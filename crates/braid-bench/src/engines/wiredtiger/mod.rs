//! WiredTiger, the system's library: a B-tree with a log and snapshot isolation.

mod ffi;
mod operations;

use std::ffi::{CStr, CString, c_int};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use self::ffi::*;
use super::{
    Abilities, Acknowledgement, Body, KvEngine, Mode, Operations, Order, Session, Stop, TableId,
    Transaction, Wait,
};
use crate::BenchError;

#[allow(clippy::unnecessary_wraps)] // the registry's signature
pub(super) fn version() -> Result<String, String> {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the numbers are written by the call only.
    unsafe { wiredtiger_version(&raw mut major, &raw mut minor, &raw mut patch) };
    Ok(format!("{major}.{minor}.{patch}"))
}

pub(super) fn open(
    dir: &Path,
    tables: &[&str],
    cache_bytes: usize,
) -> Result<Box<dyn KvEngine>, BenchError> {
    open_with("wiredtiger", "fsync", dir, tables, cache_bytes)
}

pub(super) fn open_dsync(
    dir: &Path,
    tables: &[&str],
    cache_bytes: usize,
) -> Result<Box<dyn KvEngine>, BenchError> {
    open_with("wiredtiger-dsync", "dsync", dir, tables, cache_bytes)
}

/// Settings, after <https://source.wiredtiger.com/3.2.1/tune_durability.html>: a log, and
/// `transaction_sync` to sync it in each commit, by `fsync`, the default, or `dsync`, which the
/// text calls slower in general, but that differs by system. The cache is sized by the caller; a
/// checkpoint a minute, or each 2 GB of log, is what MongoDB, whose engine this is, asks for. Log
/// files are preallocated by default.
fn open_with(
    name: &'static str,
    method: &str,
    dir: &Path,
    tables: &[&str],
    cache_bytes: usize,
) -> Result<Box<dyn KvEngine>, BenchError> {
    let home = text(&dir.to_string_lossy())?;
    let config = text(&format!(
        "create,cache_size={},session_max=1000,log=(enabled=true),\
         transaction_sync=(enabled=true,method={method}),checkpoint=(wait=60,log_size=2GB)",
        cache_bytes.max(1 << 20)
    ))?;
    let mut connection = null_mut();
    // SAFETY: the strings outlive the call.
    check(unsafe { braid_wt_open(home.as_ptr(), config.as_ptr(), &raw mut connection) })
        .map_err(failed)?;
    let uris = (0..tables.len())
        .map(|table| text(&format!("table:t{table}")))
        .collect::<Result<_, _>>()?;
    let engine = WiredTiger {
        name,
        connection,
        uris,
        dir: dir.to_owned(),
        counts_statistics: OnceLock::new(),
    };
    let session = engine.open_session().map_err(failed)?;
    for uri in &engine.uris {
        // SAFETY: the session is open, the strings outlive the call.
        check(unsafe { braid_wt_create(session.0, uri.as_ptr(), FORMAT.as_ptr()) })
            .map_err(failed)?;
    }
    drop(session);
    Ok(Box::new(engine))
}

/// Keys and values of bytes.
const FORMAT: &CStr = c"key_format=u,value_format=u";

fn text(text: &str) -> Result<CString, BenchError> {
    CString::new(text).map_err(|error| BenchError::peer("wiredtiger", error))
}

/// An error code of WiredTiger.
struct Code(c_int);

fn check(code: c_int) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { Err(Code(code)) }
}

impl Code {
    fn is_not_found(&self) -> bool {
        // SAFETY: a constant.
        self.0 == unsafe { braid_wt_notfound }
    }

    /// Returns whether another session uses the table.
    fn is_busy(&self) -> bool {
        // SAFETY: a constant.
        self.0 == unsafe { braid_wt_busy }
    }
}

fn failed(Code(code): Code) -> BenchError {
    // SAFETY: the string is copied before another call can change it.
    let text = unsafe { CStr::from_ptr(wiredtiger_strerror(code)) };
    BenchError::peer("wiredtiger", text.to_string_lossy().into_owned())
}

fn stop(code: Code) -> Stop {
    // SAFETY: a constant.
    if code.0 == unsafe { braid_wt_rollback } {
        Stop::Conflict
    } else {
        Stop::Failed(failed(code))
    }
}

struct WiredTiger {
    name: &'static str,
    connection: *mut WT_CONNECTION,
    uris: Vec<CString>,
    dir: PathBuf,
    /// Result of the call that turned statistics on.
    counts_statistics: OnceLock<c_int>,
}

// SAFETY: "WT_CONNECTION: thread-safe" (https://source.wiredtiger.com/3.2.1/threads.html); this
// owns it.
unsafe impl Send for WiredTiger {}
// SAFETY: see above.
unsafe impl Sync for WiredTiger {}

impl Drop for WiredTiger {
    fn drop(&mut self) {
        // SAFETY: the sessions borrow this, so they are closed. Every commit is durable, so an
        // error of the last checkpoint loses nothing.
        unsafe { braid_wt_close(self.connection) };
    }
}

/// An open session, which belongs to one thread at a time.
struct Handle(*mut WT_SESSION);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the session is open. Closing it closes its cursors and rolls back a running
        // transaction.
        unsafe { braid_wt_session_close(self.0) };
    }
}

impl Handle {
    /// Opens a cursor, which is closed with the session.
    fn cursor(&self, uri: &CStr, config: Option<&CStr>) -> Result<Cursor, Code> {
        let mut cursor = null_mut();
        let config = config.map_or(null(), CStr::as_ptr);
        // SAFETY: the session is open, the strings outlive the call.
        check(unsafe { braid_wt_cursor(self.0, uri.as_ptr(), config, &raw mut cursor) })?;
        Ok(Cursor(cursor))
    }

    fn checkpoint(&self, config: Option<&CStr>) -> Result<(), Code> {
        let config = config.map_or(null(), CStr::as_ptr);
        // SAFETY: the session is open, the string outlives the call.
        check(unsafe { braid_wt_checkpoint(self.0, config) })
    }
}

impl WiredTiger {
    fn open_session(&self) -> Result<Handle, Code> {
        let mut session = null_mut();
        // SAFETY: the connection is open.
        check(unsafe { braid_wt_session(self.connection, &raw mut session) })?;
        Ok(Handle(session))
    }
}

impl KvEngine for WiredTiger {
    fn name(&self) -> &str {
        self.name
    }

    fn abilities(&self) -> Abilities {
        Abilities::UPDATES
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        let session = self.open_session().map_err(failed)?;
        let mut cursors = Vec::new();
        for uri in &self.uris {
            cursors.push(session.cursor(uri, None).map_err(failed)?);
        }
        Ok(Box::new(WtSession {
            cursors,
            session,
            _engine: self,
        }))
    }

    fn settle(&self) -> Result<(), BenchError> {
        let session = self.open_session().map_err(failed)?;
        session.checkpoint(None).map_err(failed)
    }

    fn operations(&self) -> &dyn Operations {
        self
    }
}

struct WtSession<'a> {
    /// One for each table, closed with the session.
    cursors: Vec<Cursor>,
    session: Handle,
    _engine: &'a WiredTiger,
}

impl Session for WtSession<'_> {
    fn transact(
        &mut self,
        mode: Mode,
        _: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        // SAFETY: the session is open and runs no transaction.
        check(unsafe { braid_wt_begin(self.session.0, c"isolation=snapshot".as_ptr()) })
            .map_err(stop)?;
        let undo = Undo(&self.session);
        body(&mut Running {
            cursors: &self.cursors,
            mode,
        })?;
        std::mem::forget(undo);
        // SAFETY: the session is open and runs a transaction, which this ends even if it fails.
        check(unsafe { braid_wt_commit(self.session.0) }).map_err(stop)?;
        Ok(Acknowledgement::Durable)
    }

    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        self.cursors[table].get(key, found)
    }
}

/// Rolls back a transaction that was not committed.
struct Undo<'a>(&'a Handle);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        // SAFETY: the session is open and runs a transaction.
        unsafe { braid_wt_rollback_transaction(self.0.0) };
    }
}

/// A table's cursor; its session stays open while this is used.
struct Cursor(*mut WT_CURSOR);

impl Cursor {
    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        // SAFETY: the cursor is open, the key is borrowed until after the reset.
        match check(unsafe { braid_wt_search(self.0, key.as_ptr().cast(), key.len()) }) {
            Ok(()) => {
                let _reset = Reset(self);
                found(self.value().map_err(stop)?);
                Ok(true)
            }
            Err(code) if code.is_not_found() => Ok(false),
            Err(code) => Err(stop(code)),
        }
    }

    /// Returns the current key; the cursor must not move while the bytes are used.
    fn key(&self) -> Result<&[u8], Code> {
        let (mut start, mut len) = (null(), 0);
        // SAFETY: the cursor is open; the bytes live until it moves.
        unsafe {
            check(braid_wt_key(self.0, &raw mut start, &raw mut len))?;
            Ok(bytes(start.cast(), len))
        }
    }

    /// Returns the current value; the cursor must not move while the bytes are used.
    fn value(&self) -> Result<&[u8], Code> {
        let (mut start, mut len) = (null(), 0);
        // SAFETY: the same.
        unsafe {
            check(braid_wt_value(self.0, &raw mut start, &raw mut len))?;
            Ok(bytes(start.cast(), len))
        }
    }

    fn advance(&self, order: Order) -> Result<(), Code> {
        // SAFETY: the cursor is open.
        check(unsafe {
            match order {
                Order::Ascending => braid_wt_next(self.0),
                Order::Descending => braid_wt_prev(self.0),
            }
        })
    }

    fn scan(
        &self,
        (from, to): (&[u8], &[u8]),
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Code> {
        let start = match order {
            Order::Ascending => from,
            Order::Descending => to,
        };
        let _reset = Reset(self);
        if start.is_empty() {
            // WiredTiger refuses to search for an empty key, which is below all others.
            match order {
                // From no position to the first record.
                Order::Ascending => self.advance(order)?,
                Order::Descending => return Ok(()),
            }
        } else {
            let mut side = 0;
            // SAFETY: the cursor is open, the key is borrowed until it moves.
            check(unsafe {
                braid_wt_search_near(self.0, start.as_ptr().cast(), start.len(), &raw mut side)
            })?;
            let is_outside = match order {
                Order::Ascending => side < 0,
                Order::Descending => side >= 0,
            };
            if is_outside {
                self.advance(order)?;
            }
        }
        loop {
            let key = self.key()?;
            if key < from || key >= to || !visit(key, self.value()?) {
                return Ok(());
            }
            self.advance(order)?;
        }
    }
}

/// Resets the cursor, whose position keeps a page in the cache.
struct Reset<'a>(&'a Cursor);

impl Drop for Reset<'_> {
    fn drop(&mut self) {
        // SAFETY: the cursor is open.
        unsafe { braid_wt_reset(self.0.0) };
    }
}

/// # Safety
/// `len` bytes at `start` must stay unchanged for `'a`.
unsafe fn bytes<'a>(start: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: this function's contract.
    unsafe { std::slice::from_raw_parts(start, len) }
}

struct Running<'a> {
    cursors: &'a [Cursor],
    mode: Mode,
}

impl Transaction for Running<'_> {
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        self.cursors[table].get(key, found)
    }

    fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        self.mode.writable()?;
        // SAFETY: the cursor is open, the bytes are copied; an insert leaves the cursor without a
        // position.
        check(unsafe {
            braid_wt_put(
                self.cursors[table].0,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
            )
        })
        .map_err(stop)
    }

    fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        self.mode.writable()?;
        let cursor = &self.cursors[table];
        let _reset = Reset(cursor);
        // SAFETY: the cursor is open, the key is borrowed until after the reset.
        match check(unsafe { braid_wt_remove(cursor.0, key.as_ptr().cast(), key.len()) }) {
            Err(code) if !code.is_not_found() => Err(stop(code)),
            _ => Ok(()),
        }
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        to: &[u8],
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        match self.cursors[table].scan((from, to), order, visit) {
            Err(code) if !code.is_not_found() => Err(stop(code)),
            _ => Ok(()),
        }
    }
}
