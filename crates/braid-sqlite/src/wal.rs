//! The methods of a `-wal` file, and what opening and deleting one does.

use std::collections::HashMap;
use std::ffi::{OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use braid_rt::mutant;

use crate::abi::{
    BUSY, CANTOPEN, FULL, File, IOERR, IOERR_DELETE, IOERR_FSYNC, IOERR_READ, IOERR_SHORT_READ,
    IOERR_WRITE, IoMethods, NOTFOUND, OK,
};
use crate::database::{Database, SharedWal, guarded, lock};
use crate::guard::{self, Versions};
use crate::inner::{Inner, Wrapped};
use crate::library::functions;
use crate::place::{Place, Tuning};
use crate::regions;
use crate::stub::{self, Stub};
use crate::walfile::{self, Cursor, WalError, WalFile};

/// Ends the name of the file.
pub(crate) const SUFFIX: &str = "-wal";

/// An open `-wal` file of a connection.
#[derive(Debug)]
struct Handle {
    database: Arc<Database>,
    /// None for a connection that only reads, when there is no log.
    wal: Option<SharedWal>,
    cursor: Cursor,
}

/// The logs that this process has open, by path.
static LOGS: Mutex<Option<HashMap<PathBuf, Weak<Mutex<WalFile>>>>> = Mutex::new(None);

/// Why a `-wal` file cannot be opened.
enum Refusal {
    Code(c_int),
    Message(String),
}

fn report(code: c_int, message: &str) -> c_int {
    if let Some(functions) = functions() {
        functions.report(code, &format!("braid: {message}"));
    }
    code
}

/// The log at a path, which the connections of a process share.
fn share(path: &Path, database: &Database) -> Result<SharedWal, WalError> {
    let mut logs = lock(&LOGS);
    let logs = logs.get_or_insert_default();
    logs.retain(|_, log| log.strong_count() > 0);
    if let Some(log) = logs.get(path).and_then(Weak::upgrade) {
        return Ok(log);
    }
    let place = &database.place;
    let log = WalFile::open(path, place.map_as(path), place.mode, place.tuning)?;
    let log = Arc::new(Mutex::new(log));
    logs.insert(path.to_owned(), Arc::downgrade(&log));
    Ok(log)
}

/// Reads a `-wal` file.
fn read_stub(wal: &Path) -> std::io::Result<Stub> {
    let mut stub = stub::read(wal)?;
    if let Stub::Log { path, database, .. } = &mut stub
        && let Some(moved) = moved_log(wal, path, database)
    {
        *path = moved;
    }
    Ok(stub)
}

/// Where a log is that lay next to its database, if both were moved with the `-wal` file: nothing is left
/// at their former paths. The `-wal` file keeps those, because the database is guarded.
fn moved_log(wal: &Path, log: &Path, database: &Path) -> Option<PathBuf> {
    let next_to = |database: &Path| Place::default().path(database);
    let now = wal.as_os_str().as_bytes().strip_suffix(SUFFIX.as_bytes())?;
    let now = Path::new(OsStr::from_bytes(now));
    let moved = next_to(now);
    let is_moved = now != database
        && log == next_to(database)
        && !database.exists()
        && !regions::exists(log)
        && regions::exists(&moved);
    is_moved.then_some(moved)
}

/// Bytes of a `-wal` file as SQLite sees it; `None` if the file is not one of ours.
pub(crate) fn visible_len(wal: &Path) -> Option<u64> {
    let Ok(Stub::Log {
        path,
        is_open: true,
        ..
    }) = read_stub(wal)
    else {
        return None;
    };
    let open = lock(&LOGS)
        .get_or_insert_default()
        .get(&path)
        .and_then(Weak::upgrade);
    let mut found = match open {
        Some(log) => return lock(&log).len(false).ok(),
        None => {
            let map_as = Place::default().map_as(&path);
            WalFile::open(&path, map_as, None, Tuning::default()).ok()?
        }
    };
    found.len(false).ok()
}

/// Removes a log that nobody has open any more.
fn forget(path: &Path) {
    let mut logs = lock(&LOGS);
    logs.get_or_insert_default().remove(path);
}

/// Whether a log belongs to a database other than this one: to use it would destroy that database. A
/// database that was moved with its `-wal` file keeps its log.
fn is_in_use_by(original: &Path, log: &Path, database: &Path) -> bool {
    if original == database || mutant!("sqlite_share_the_log_with_a_copy") {
        return false;
    }
    let file = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let mut wal = original.as_os_str().to_owned();
    wal.push(SUFFIX);
    let names_log = matches!(
        read_stub(Path::new(&wal)),
        Ok(Stub::Log { path, .. }) if path == log
    );
    // Another path can lead to the same file.
    names_log && file(original).is_some() && file(original) != file(database)
}

/// Refuses a copy of another database's `-wal` file.
fn refuse_copy(found: &Stub, database: &Database, wal: &Path) -> Result<(), Refusal> {
    match found {
        Stub::Log {
            path,
            database: original,
            ..
        } if is_in_use_by(original, path, &database.path) => Err(Refusal::Message(format!(
            "cannot open {}: it is a copy, and its log belongs to {}; copy a database with VACUUM INTO or \
             the backup API",
            wal.display(),
            original.display()
        ))),
        _ => Ok(()),
    }
}

/// Refuses a `-wal` file that does not name a log and is not one that was never written.
fn refuse_lost(found: &Stub, versions: Versions, wal: &Path) -> Result<(), Refusal> {
    // The file is durable before a database is guarded (Q2), so that zeros are a loss then.
    let is_lost = *found == Stub::Unwritten
        && versions == Versions::Guarded
        && !mutant!("sqlite_take_a_lost_stub_for_a_new_one");
    if is_lost {
        return Err(Refusal::Message(format!(
            "cannot open {}: it contains zeros, and the database has a log that it should name; deleting \
             the -wal file drops the log's transactions",
            wal.display()
        )));
    }
    // Other paths are written only while a database is not guarded.
    if *found == Stub::Torn && versions == Versions::Guarded {
        return Err(Refusal::Message(format!(
            "cannot open {}: its text does not match its checksum, and the database has a log that it \
             should name; deleting the -wal file drops the log's transactions",
            wal.display()
        )));
    }
    if *found == Stub::Foreign {
        return Err(Refusal::Message(format!(
            "cannot open {}: it has frames of SQLite without this extension; open the database once \
             without the extension and close it",
            wal.display()
        )));
    }
    Ok(())
}

/// Finds or creates the log of a database and sets both guards (Q2).
fn prepare(database: &Database, wal: &Path) -> Result<Option<SharedWal>, Refusal> {
    let message = |error: &dyn std::fmt::Display| Refusal::Message(error.to_string());
    let failed = |error: std::io::Error| {
        Refusal::Message(format!("cannot read or write {}: {error}", wal.display()))
    };
    let found = read_stub(wal).map_err(failed)?;
    let (versions, _) = guard::read(database.inner);
    refuse_lost(&found, versions, wal)?;
    refuse_copy(&found, database, wal)?;
    if let Stub::Log {
        path,
        is_open: true,
        ..
    } = &found
        && versions != Versions::Plain
    {
        return open_log(database, path).map(Some);
    }
    if database.is_read_only {
        return match found {
            Stub::Log {
                path,
                is_open: true,
                ..
            } => open_log(database, &path).map(Some),
            _ => Ok(None),
        };
    }
    // No other connection has the database open during this.
    let mut result = Ok(());
    let create = || -> Result<(), Refusal> {
        // Another process may have been here before the lock.
        let path = match read_stub(wal).map_err(failed)? {
            Stub::Foreign => return Err(Refusal::Code(BUSY)),
            Stub::Log {
                path,
                is_open: true,
                ..
            } => path,
            Stub::Log {
                path,
                is_open: false,
                ..
            } => {
                remove(&path).map_err(|error| message(&error))?;
                // The other paths that are written now can be torn.
                let code = match () {
                    () if mutant!("sqlite_keep_the_guard_of_a_closed_log") => OK,
                    () => guard::set(database.inner, false),
                };
                if code != OK {
                    return Err(Refusal::Code(code));
                }
                new_log(database, wal)?
            }
            Stub::Absent | Stub::Unwritten | Stub::Torn => new_log(database, wal)?,
        };
        stub::write(wal, &path, &database.path, true).map_err(failed)
    };
    let code = guard::exclusively(database.inner, database.level(), || {
        result = create();
        match &result {
            Ok(()) => guard::set(database.inner, true),
            Err(Refusal::Code(code)) => *code,
            Err(Refusal::Message(_)) => CANTOPEN,
        }
    });
    result?;
    if code != OK {
        if guard::is_busy(code) {
            report(
                code,
                "cannot use the log: another connection has the database open, without this extension \
                 or at the same moment; retry, or close it",
            );
        }
        return Err(Refusal::Code(code));
    }
    match read_stub(wal).map_err(failed)? {
        Stub::Log { path, .. } => open_log(database, &path).map(Some),
        _ => Err(Refusal::Code(CANTOPEN)),
    }
}

fn open_log(database: &Database, path: &Path) -> Result<SharedWal, Refusal> {
    share(path, database).map_err(|error| {
        Refusal::Message(format!(
            "cannot open the log {}: {error}; if the log is lost, deleting the -wal file drops its \
             transactions",
            path.display()
        ))
    })
}

/// Where the log of a database goes: not where there is one with transactions.
///
/// A database whose log has frames is guarded (Q2). If one is not, the log at its path is that of a
/// database that was deleted, or moved away with the `-wal` file that names the log. Nothing tells
/// which, so the log stays, and the new one gets a number.
fn free_path(database: &Database, wal: &Path) -> Result<PathBuf, Refusal> {
    let first = database.place.path(&database.path);
    let mut path = first.clone();
    for number in 1.. {
        if !regions::exists(&path) || mutant!("sqlite_replace_the_log_of_a_moved_database") {
            break;
        }
        let is_empty = share(&path, database).and_then(|log| lock(&log).is_empty());
        match is_empty {
            Ok(true) => break,
            _ if guard::read(database.inner).0 != Versions::Guarded => {}
            Ok(false) => {
                return Err(Refusal::Message(format!(
                    "cannot create the log {}: there is one with transactions, and {} does not name it; \
                     delete the log to drop them",
                    path.display(),
                    wal.display()
                )));
            }
            Err(error) => return Err(Refusal::Message(error.to_string())),
        }
        let mut numbered = first.clone().into_os_string();
        numbered.push(format!("-{number}"));
        path = PathBuf::from(numbered);
    }
    Ok(path)
}

/// Creates an empty log, and returns its path.
fn new_log(database: &Database, wal: &Path) -> Result<PathBuf, Refusal> {
    let message = |error: WalError| Refusal::Message(error.to_string());
    let path = free_path(database, wal)?;
    forget(&path);
    let page_size = guard::read(database.inner).1.unwrap_or(4096);
    let place = &database.place;
    walfile::create(&path, place.map_as(&path), page_size, place.tuning).map_err(message)?;
    // As SQLite does with its own files.
    if let Ok(metadata) = std::fs::metadata(&database.path) {
        let mode = std::fs::Permissions::from_mode(metadata.permissions().mode());
        let _ = std::fs::set_permissions(&path, mode);
    }
    Ok(path)
}

fn remove(log: &Path) -> std::io::Result<()> {
    forget(log);
    match regions::remove(log) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| stub::sync_directory(log)),
    }
}

/// Removes the log of a `-wal` file that SQLite deletes, then guard A (Q3). Guard B goes with the
/// file.
pub(crate) fn delete(wal: &Path, database: &Path) -> c_int {
    let failed = |error: std::io::Error| {
        report(
            IOERR_DELETE,
            &format!("cannot delete the log of {}: {error}", wal.display()),
        )
    };
    let (path, named) = match read_stub(wal) {
        Ok(Stub::Log { path, database, .. }) => (path, database),
        Ok(_) => return OK,
        Err(error) => return failed(error),
    };
    // A crash from here on leaves a database without frames in its log. The paths stay, since the database
    // is guarded.
    let announced = if mutant!("sqlite_delete_the_log_unannounced") {
        Ok(())
    } else {
        stub::write(wal, &path, &named, false)
    };
    if let Err(error) = announced.and_then(|()| remove(&path)) {
        return failed(error);
    }
    match Database::exclusive(database) {
        Some(database) => {
            database.set_wal(None, false);
            guard::set(database.inner, false)
        }
        None => OK,
    }
}

/// Makes SQLite's file object a `-wal` file of a database. The file underneath is open, and is closed
/// if this fails.
///
/// # Safety
///
/// The object has the size that our VFS asks for.
pub(crate) unsafe fn open(file: *mut File, wal: &Path, database: Arc<Database>) -> c_int {
    // SAFETY: as the caller says.
    let inner = unsafe { Inner::of(file) };
    let found = match prepare(&database, wal) {
        Ok(found) => found,
        Err(refusal) => {
            inner.close();
            return match refusal {
                Refusal::Code(code) => code,
                Refusal::Message(message) => report(CANTOPEN, &message),
            };
        }
    };
    database.set_wal(found.clone(), !database.is_read_only);
    let handle = Handle {
        database,
        wal: found,
        cursor: Cursor::default(),
    };
    let wrapped = file.cast::<Wrapped<Handle>>();
    // SAFETY: the object is ours to fill.
    unsafe {
        (*wrapped).state = Box::into_raw(Box::new(handle));
        (*wrapped).file.methods = &METHODS;
    }
    OK
}

/// Runs a method with the state of its file and the log; without a log it returns `none`.
///
/// # Safety
///
/// The file is open, with the methods of this module. SQLite calls no two methods of it at once.
unsafe fn with(
    file: *mut File,
    error_code: c_int,
    none: c_int,
    method: impl FnOnce(&mut WalFile, &mut Cursor, &Database) -> Result<c_int, WalError>,
) -> c_int {
    guarded(error_code, || {
        // SAFETY: `open` stored a pointer from a box, which `close` frees.
        let handle = unsafe { &mut *(*file.cast::<Wrapped<Handle>>()).state };
        let Some(wal) = &handle.wal else {
            return none;
        };
        let result = method(&mut lock(wal), &mut handle.cursor, &handle.database);
        match result {
            Ok(code) => code,
            Err(error) if error.is_full() => report(FULL, &error.to_string()),
            Err(error) => report(error_code, &error.to_string()),
        }
    })
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    guarded(IOERR, || {
        let wrapped = file.cast::<Wrapped<Handle>>();
        // SAFETY: `open` stored the pointer; SQLite closes a file once.
        let handle = unsafe { Box::from_raw((*wrapped).state) };
        // The database stays guarded until the log is deleted.
        handle.database.set_wal(None, !handle.database.is_read_only);
        drop(handle);
        // SAFETY: the file underneath is open, and the object is still SQLite's memory.
        unsafe {
            let code = Inner::of(file).close();
            (*wrapped).state = std::ptr::null_mut();
            (*wrapped).file.methods = std::ptr::null();
            code
        }
    })
}

unsafe extern "C" fn read(file: *mut File, to: *mut c_void, len: c_int, offset: i64) -> c_int {
    let count = usize::try_from(len).unwrap_or(0);
    // SAFETY: SQLite's buffer has so many bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), count) };
    bytes.fill(0);
    // SAFETY: SQLite calls methods of open files.
    unsafe {
        with(file, IOERR_READ, IOERR_SHORT_READ, |wal, cursor, _| {
            let offset = u64::try_from(offset).unwrap_or(u64::MAX);
            let read = wal.read(cursor, offset, bytes)?;
            Ok(if read == count { OK } else { IOERR_SHORT_READ })
        })
    }
}

unsafe extern "C" fn write(file: *mut File, from: *const c_void, len: c_int, offset: i64) -> c_int {
    let count = usize::try_from(len).unwrap_or(0);
    // SAFETY: SQLite's buffer has so many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), count) };
    // SAFETY: SQLite calls methods of open files.
    unsafe {
        with(file, IOERR_WRITE, IOERR_WRITE, |wal, cursor, _| {
            let offset = u64::try_from(offset).unwrap_or(u64::MAX);
            wal.write(cursor, offset, bytes).map(|()| OK)
        })
    }
}

unsafe extern "C" fn truncate(file: *mut File, len: i64) -> c_int {
    // SAFETY: SQLite calls methods of open files.
    unsafe {
        with(file, IOERR_WRITE, OK, |wal, cursor, _| {
            let len = u64::try_from(len).unwrap_or(0);
            wal.truncate(cursor, len).map(|()| OK)
        })
    }
}

unsafe extern "C" fn sync(file: *mut File, _: c_int) -> c_int {
    // SAFETY: SQLite calls methods of open files.
    unsafe {
        with(file, IOERR_FSYNC, OK, |wal, _, database| {
            // Q6
            if wal.mode().is_ticket && database.leave_out_sync() {
                return Ok(OK);
            }
            wal.sync()?;
            database.note_sync();
            Ok(OK)
        })
    }
}

unsafe extern "C" fn file_size(file: *mut File, to: *mut i64) -> c_int {
    // SAFETY: SQLite passes a place for the length.
    unsafe { *to = 0 };
    // SAFETY: SQLite calls methods of open files.
    unsafe {
        with(file, IOERR, OK, |wal, _, database| {
            let len = wal.len(database.has_writer_lock() && !database.is_read_only)?;
            *to = i64::try_from(len).unwrap_or(i64::MAX);
            Ok(OK)
        })
    }
}

unsafe extern "C" fn no_lock(_: *mut File, _: c_int) -> c_int {
    OK
}

unsafe extern "C" fn check_reserved_lock(_: *mut File, to: *mut c_int) -> c_int {
    // SAFETY: SQLite passes a place for the answer.
    unsafe { *to = 0 };
    OK
}

unsafe extern "C" fn file_control(_: *mut File, _: c_int, _: *mut c_void) -> c_int {
    NOTFOUND
}

unsafe extern "C" fn sector_size(_: *mut File) -> c_int {
    4096
}

unsafe extern "C" fn device_characteristics(_: *mut File) -> c_int {
    crate::abi::IOCAP_POWERSAFE_OVERWRITE
}

static METHODS: IoMethods = IoMethods {
    version: 1,
    close,
    read,
    write,
    truncate,
    sync,
    file_size,
    lock: no_lock,
    unlock: no_lock,
    check_reserved_lock,
    file_control,
    sector_size,
    device_characteristics,
    shm_map: None,
    shm_lock: None,
    shm_barrier: None,
    shm_unmap: None,
    fetch: None,
    unfetch: None,
};
