//! Connections with the extension and without it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::Once;

use rusqlite::{Connection, OpenFlags, ffi};
use tempfile::TempDir;

/// Prints the reasons of the extension, which SQLite's codes do not have.
unsafe extern "C" fn report(_: *mut c_void, code: c_int, message: *const c_char) {
    // SAFETY: SQLite passes a string.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    if message.starts_with("braid:") {
        eprintln!("{code}: {message}");
    }
}

/// Registers the VFS with the SQLite of these tests.
pub(crate) fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: nothing has used SQLite yet, and the function has the type that the option expects.
        unsafe {
            let report: unsafe extern "C" fn(*mut c_void, c_int, *const c_char) = report;
            ffi::sqlite3_config(ffi::SQLITE_CONFIG_LOG, report, null_mut::<c_void>());
        }
        braid_sqlite::register!(rusqlite::ffi).unwrap();
        // Twice is allowed.
        braid_sqlite::register!(rusqlite::ffi, is_default: false).unwrap();
    });
}

/// A directory on the disk, and one for logs.
pub(crate) struct Directory {
    directory: TempDir,
    logs: TempDir,
}

impl Directory {
    pub(crate) fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let logs = if memory.is_dir() {
            tempfile::tempdir_in(memory)
        } else {
            tempfile::tempdir()
        };
        Self {
            directory: tempfile::tempdir().unwrap(),
            logs: logs.unwrap(),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("app.db")
    }

    pub(crate) fn wal(&self) -> PathBuf {
        self.directory.path().join("app.db-wal")
    }

    pub(crate) fn uri(&self) -> String {
        let (path, logs) = (self.path(), self.logs.path());
        let memory = if logs.starts_with("/dev/shm") {
            ""
        } else {
            "&braid_memory=emulated"
        };
        format!(
            "file:{}?vfs=braid&braid_log={}{memory}",
            path.display(),
            logs.display()
        )
    }

    /// Logs that exist.
    pub(crate) fn logs(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.logs.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    pub(crate) fn open(&self) -> Connection {
        let db = open(&self.uri()).unwrap();
        let mode: String = db
            .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
            .unwrap();
        assert_eq!(mode, "wal");
        db
    }

    /// A connection of SQLite without the extension.
    pub(crate) fn stock(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }
}

pub(crate) fn open(uri: &str) -> rusqlite::Result<Connection> {
    register();
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(uri, flags)
}

/// All rows of a query as text.
pub(crate) fn rows(db: &Connection, query: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = db.prepare(query)?;
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        let values = (0..columns).map(|column| format!("{:?}", row.get_ref(column)));
        Ok(values.collect::<Vec<_>>().join("|"))
    })?;
    rows.collect()
}

pub(crate) fn run(db: &Connection, sql: &str) {
    rows(db, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
}

pub(crate) fn pragma(db: &Connection, sql: &str) -> rusqlite::Result<String> {
    db.query_row(sql, [], |row| row.get(0))
}

/// A number from `PRAGMA braid_stats`.
pub(crate) fn stat(db: &Connection, name: &str) -> u64 {
    let stats = pragma(db, "PRAGMA braid_stats").unwrap();
    let found = stats
        .split(' ')
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    found
        .unwrap_or_else(|| panic!("{name} in {stats}"))
        .parse()
        .unwrap()
}

pub(crate) fn is_sound(db: &Connection) {
    assert_eq!(pragma(db, "PRAGMA integrity_check").unwrap(), "ok");
}
