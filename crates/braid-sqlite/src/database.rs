//! The methods of a database file.
//!
//! They pass everything on, but show the versions in the header as SQLite knows them (guard A), count
//! the connection's lock, and answer pragmas.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use braid_rt::mutant;

use crate::abi::{
    ERROR, FCNTL_PRAGMA, FCNTL_VFSNAME, FCNTL_WAIT, File, IOCAP_POWERSAFE_OVERWRITE, IOERR,
    IOERR_FSYNC, IOERR_SHORT_READ, IoMethods, LOCK_EXCLUSIVE, NOTFOUND, OK, SHM_CHECKPOINT_LOCK,
    SHM_EXCLUSIVE, SHM_UNLOCK, SHM_WRITE_LOCK,
};
use crate::guard;
use crate::inner::{Inner, Wrapped};
use crate::library::functions;
use crate::place::Place;
use crate::walfile::{WalError, WalFile};

/// A log that several connections of this process share.
pub(crate) type SharedWal = Arc<Mutex<WalFile>>;

/// Locks a mutex also after a panic: the log's own checks decide whether it is usable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until everything that was committed before the call is durable. Other threads can commit
/// meanwhile; those that wait as well share one flush.
fn wait(log: &SharedWal) -> Result<(), WalError> {
    let (target, waiting) = lock(log).waiting()?;
    let _one = lock(&waiting);
    let pending = lock(log).begin_sync(target)?;
    if let Some(pending) = pending {
        pending.wait()?;
        lock(log).end_sync(&pending);
    }
    Ok(())
}

/// A database that a connection has open.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) path: PathBuf,
    /// Address of the name with which SQLite opened it. A shim over our VFS passes it on.
    name: usize,
    pub(crate) place: Place,
    pub(crate) inner: Inner,
    pub(crate) is_read_only: bool,
    /// SQLite's lock of the connection.
    level: AtomicI32,
    /// Whether the connection has SQLite's lock for writers.
    is_writer: AtomicBool,
    /// Whether the connection has SQLite's lock for checkpoints.
    is_checkpointer: AtomicBool,
    /// Whether a sync of the log was left out since the connection has waited for the device.
    owes_sync: AtomicBool,
    /// The log, while the connection has its `-wal` file open.
    wal: Mutex<Option<SharedWal>>,
    /// Whether the header's versions are guarded when they are written.
    is_guarded: AtomicBool,
}

// SAFETY: the file object is used by the thread that SQLite lets use the connection. The other fields
// are `Sync`.
unsafe impl Sync for Database {}

/// Every open database of this process.
static OPEN: Mutex<Vec<Arc<Database>>> = Mutex::new(Vec::new());

impl Database {
    pub(crate) fn new(
        (path, name): (PathBuf, *const c_char),
        place: Place,
        inner: Inner,
        is_read_only: bool,
    ) -> Arc<Self> {
        let database = Arc::new(Self {
            path,
            name: name.addr(),
            place,
            inner,
            is_read_only,
            level: AtomicI32::new(0),
            is_writer: AtomicBool::new(false),
            is_checkpointer: AtomicBool::new(false),
            owes_sync: AtomicBool::new(false),
            wal: Mutex::new(None),
            is_guarded: AtomicBool::new(false),
        });
        lock(&OPEN).push(Arc::clone(&database));
        database
    }

    pub(crate) fn level(&self) -> c_int {
        // The connection's own thread stored it.
        self.level.load(Ordering::Relaxed)
    }

    /// Whether no other process can write the log: the connection has the lock for writers, or the
    /// whole database for itself.
    pub(crate) fn has_writer_lock(&self) -> bool {
        // The connection's own thread stored it.
        self.is_writer.load(Ordering::Relaxed) || self.level() >= LOCK_EXCLUSIVE
    }

    /// Whether a sync of the log can be left out, in mode `ticket`: SQLite syncs it for a commit, or for a
    /// checkpoint that then writes into the database (Q6). With its locks in shared memory the connection
    /// knows, and syncs once before a checkpoint. Without them, under an exclusive lock, nothing tells.
    pub(crate) fn leave_out_sync(&self) -> bool {
        // The connection's own thread stored them.
        let is_checkpointer = self.is_checkpointer.load(Ordering::Relaxed)
            && !mutant!("sqlite_checkpoint_what_is_not_durable");
        let is_left_out = self.level() >= LOCK_EXCLUSIVE
            || (self.is_writer.load(Ordering::Relaxed) && !is_checkpointer);
        if is_left_out {
            self.owes_sync.store(true, Ordering::Relaxed);
        }
        is_left_out
    }

    /// Notes that everything that was committed is durable.
    pub(crate) fn note_sync(&self) {
        // The connection's own thread reads it.
        self.owes_sync.store(false, Ordering::Relaxed);
    }

    /// Waits for the device before the connection changes the database, if a sync was left out (Q6).
    fn settle(&self) -> c_int {
        // The connection's own thread stored it.
        let is_owed = self.owes_sync.load(Ordering::Relaxed)
            && !mutant!("sqlite_checkpoint_what_is_not_durable");
        if !is_owed {
            return OK;
        }
        match self.wait() {
            Ok(()) => OK,
            Err(error) => {
                if let Some(functions) = functions() {
                    functions.report(IOERR_FSYNC, &format!("braid: {error}"));
                }
                IOERR_FSYNC
            }
        }
    }

    /// Waits until everything that was committed is durable.
    fn wait(&self) -> Result<(), String> {
        // Without a log, SQLite has synced its own files.
        let wal = lock(&self.wal).clone();
        if let Some(wal) = wal {
            wait(&wal).map_err(|error| error.to_string())?;
        }
        self.note_sync();
        Ok(())
    }

    /// The database of the connection that has this path open with an exclusive lock.
    pub(crate) fn exclusive(path: &Path) -> Option<Arc<Self>> {
        let open = lock(&OPEN);
        let mut found = open
            .iter()
            .filter(|database| database.path == path && database.level() >= LOCK_EXCLUSIVE);
        found.next().cloned()
    }

    /// The database that a connection opened with the name at this address.
    pub(crate) fn named(name: *const c_char) -> Option<Arc<Self>> {
        let open = lock(&OPEN);
        let found = open
            .iter()
            .rev()
            .find(|database| database.name == name.addr());
        found.cloned()
    }

    pub(crate) fn set_wal(&self, wal: Option<SharedWal>, is_guarded: bool) {
        *lock(&self.wal) = wal;
        // Relaxed: the connection's own thread reads it.
        self.is_guarded.store(is_guarded, Ordering::Relaxed);
    }

    fn forget(self: &Arc<Self>) {
        lock(&OPEN).retain(|other| !Arc::ptr_eq(self, other));
    }

    /// Answers a pragma: `None` if it is not one of ours.
    fn pragma(&self, name: &str, value: Option<&str>) -> Option<Result<String, String>> {
        let name = name.strip_prefix("braid_")?;
        let wal = lock(&self.wal).clone();
        let text = |error: crate::walfile::WalError| error.to_string();
        Some(match (name, value, wal) {
            ("wait", _, _) => self.wait().map(|()| "durable".to_owned()),
            ("stats" | "mode" | "export", _, None) => Err(format!(
                "cannot answer braid_{name}: the database has no open log; set journal_mode = WAL and \
                 read from it"
            )),
            ("stats", _, Some(wal)) => lock(&wal).describe().map_err(text),
            ("mode", None, Some(wal)) => Ok(lock(&wal).mode().to_string()),
            ("mode", Some(value), Some(wal)) => value
                .parse()
                .map(|mode| lock(&wal).set_mode(mode))
                .map(|()| value.to_owned()),
            ("export", None, _) => Err("cannot export the log: name a file, as in \
                 PRAGMA braid_export = 'copy.db-wal'"
                .to_owned()),
            ("export", Some(path), Some(wal)) => {
                let written = lock(&wal).export(Path::new(path));
                written.map(|len| format!("{len} bytes")).map_err(text)
            }
            _ => return None,
        })
    }
}

/// Runs a method; a panic becomes the given code (Q5).
pub(crate) fn guarded(code: c_int, method: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(method)).unwrap_or_else(|_| {
        if let Some(functions) = functions() {
            functions.report(code, "braid: a panic in the extension; please report it");
        }
        code
    })
}

/// The state of an open file.
///
/// # Safety
///
/// The file is one that our `xOpen` opened with this state, and SQLite has not closed it.
unsafe fn state<'a>(file: *mut File) -> &'a Arc<Database> {
    // SAFETY: `xOpen` stored the pointer from a box, which `close` frees.
    unsafe { &*(*file.cast::<Wrapped<Arc<Database>>>()).state }
}

/// Makes SQLite's file object one of ours.
///
/// # Safety
///
/// The object has the size that our VFS asks for, and the file underneath is open.
pub(crate) unsafe fn install(file: *mut File, database: Arc<Database>) {
    let version = database.inner.methods().version.clamp(1, 3);
    let table = &METHODS[usize::try_from(version - 1).unwrap_or(0)];
    let wrapped = file.cast::<Wrapped<Arc<Database>>>();
    // SAFETY: the object is ours to fill.
    unsafe {
        (*wrapped).state = Box::into_raw(Box::new(database));
        (*wrapped).file.methods = table;
    }
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    guarded(IOERR, || {
        let wrapped = file.cast::<Wrapped<Arc<Database>>>();
        // SAFETY: `install` stored the pointer; SQLite closes a file once.
        let database = unsafe { Box::from_raw((*wrapped).state) };
        database.forget();
        let code = database.inner.close();
        // SAFETY: the object is still SQLite's memory.
        unsafe {
            (*wrapped).state = std::ptr::null_mut();
            (*wrapped).file.methods = std::ptr::null();
        }
        code
    })
}

unsafe extern "C" fn read(file: *mut File, to: *mut c_void, len: c_int, offset: i64) -> c_int {
    // SAFETY: SQLite calls methods of open files.
    let inner = unsafe { Inner::of(file) };
    // SAFETY: the arguments are passed on.
    let code = unsafe { (inner.methods().read)(inner.file(), to, len, offset) };
    // A read past the end of the file fills the rest with zeros: SQLite then uses the bytes.
    if (code != OK && code != IOERR_SHORT_READ) || offset > 19 {
        return code;
    }
    guarded(IOERR, || {
        // SAFETY: SQLite's buffer has so many bytes, and the file underneath has filled them.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(to.cast::<u8>(), usize::try_from(len).unwrap_or(0))
        };
        guard::show(offset, bytes);
        code
    })
}

unsafe extern "C" fn write(file: *mut File, from: *const c_void, len: c_int, offset: i64) -> c_int {
    // SAFETY: SQLite calls methods of open files.
    let (inner, database) = unsafe { (Inner::of(file), state(file)) };
    let settled = guarded(IOERR_FSYNC, || database.settle());
    if settled != OK {
        return settled;
    }
    let count = usize::try_from(len).unwrap_or(0);
    if !guard::has_versions(offset, count) || !database.is_guarded.load(Ordering::Relaxed) {
        // SAFETY: the arguments are passed on.
        return unsafe { (inner.methods().write)(inner.file(), from, len, offset) };
    }
    guarded(IOERR, || {
        // SAFETY: SQLite's buffer has so many bytes.
        let mut bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), count) }.to_vec();
        guard::hide(offset, &mut bytes);
        // SAFETY: the copy has as many bytes.
        unsafe { (inner.methods().write)(inner.file(), bytes.as_ptr().cast(), len, offset) }
    })
}

unsafe extern "C" fn truncate(file: *mut File, len: i64) -> c_int {
    // SAFETY: SQLite calls methods of open files.
    let (inner, database) = unsafe { (Inner::of(file), state(file)) };
    match guarded(IOERR_FSYNC, || database.settle()) {
        // SAFETY: the arguments are passed on.
        OK => unsafe { (inner.methods().truncate)(inner.file(), len) },
        code => code,
    }
}

unsafe extern "C" fn lock_file(file: *mut File, level: c_int) -> c_int {
    // SAFETY: SQLite calls methods of open files.
    let (inner, database) = unsafe { (Inner::of(file), state(file)) };
    let code = inner.lock(level);
    if code == OK {
        database.level.fetch_max(level, Ordering::Relaxed);
    }
    code
}

unsafe extern "C" fn unlock_file(file: *mut File, level: c_int) -> c_int {
    // SAFETY: SQLite calls methods of open files.
    let (inner, database) = unsafe { (Inner::of(file), state(file)) };
    let code = inner.unlock(level);
    database.level.fetch_min(level, Ordering::Relaxed);
    code
}

unsafe extern "C" fn shm_lock(file: *mut File, offset: c_int, n: c_int, flags: c_int) -> c_int {
    // SAFETY: SQLite calls methods of open files.
    let (inner, database) = unsafe { (Inner::of(file), state(file)) };
    let Some(method) = inner.methods().shm_lock else {
        return IOERR;
    };
    // SAFETY: the arguments are passed on.
    let code = unsafe { method(inner.file(), offset, n, flags) };
    if offset == SHM_WRITE_LOCK && code == OK && flags & (SHM_UNLOCK | SHM_EXCLUSIVE) != 0 {
        let is_writer = flags & SHM_UNLOCK == 0;
        database.is_writer.store(is_writer, Ordering::Relaxed);
    }
    if (offset..offset + n).contains(&SHM_CHECKPOINT_LOCK) && code == OK {
        let is_checkpointer = flags & SHM_UNLOCK == 0;
        // Relaxed: the connection's own thread reads it.
        database
            .is_checkpointer
            .store(is_checkpointer, Ordering::Relaxed);
    }
    code
}

unsafe extern "C" fn device_characteristics(file: *mut File) -> c_int {
    // SAFETY: SQLite calls methods of open files.
    let (inner, database) = unsafe { (Inner::of(file), state(file)) };
    // SAFETY: the file underneath is open.
    let found = unsafe { (inner.methods().device_characteristics)(inner.file()) };
    if lock(&database.wal).is_some() {
        // A torn write to the log spoils no earlier bytes: SQLite need not pad transactions.
        found | IOCAP_POWERSAFE_OVERWRITE
    } else {
        found
    }
}

unsafe extern "C" fn file_control(
    file: *mut File,
    operation: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: SQLite calls methods of open files.
    let (inner, database) = unsafe { (Inner::of(file), state(file)) };
    // SAFETY: the arguments are passed on.
    let pass = || unsafe { (inner.methods().file_control)(inner.file(), operation, argument) };
    let Some(functions) = functions() else {
        return pass();
    };
    match operation {
        FCNTL_PRAGMA => guarded(ERROR, || {
            let arguments = argument.cast::<*mut c_char>();
            let text = |index: usize| {
                // SAFETY: the argument is an array: answer, name, value or null.
                let text = unsafe { *arguments.add(index) };
                // SAFETY: the entries are strings, or null.
                (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
            };
            let name = text(1).unwrap_or_default();
            let Some(answer) = database.pragma(&name, text(2).as_deref()) else {
                return pass();
            };
            let (code, answer) = match answer {
                Ok(answer) => (OK, answer),
                Err(error) => (ERROR, error),
            };
            // SAFETY: the first entry is for the answer, which SQLite frees.
            unsafe { *arguments = functions.string(&answer) };
            code
        }),
        FCNTL_WAIT => guarded(IOERR_FSYNC, || match database.wait() {
            Ok(()) => OK,
            Err(error) => {
                functions.report(IOERR_FSYNC, &format!("braid: {error}"));
                if !argument.is_null() {
                    // SAFETY: the argument is null, or a place for a message.
                    unsafe { *argument.cast::<*mut c_char>() = functions.string(&error) };
                }
                IOERR_FSYNC
            }
        }),
        FCNTL_VFSNAME => guarded(NOTFOUND, || {
            let code = pass();
            let slot = argument.cast::<*mut c_char>();
            // SAFETY: the argument leads to a string of SQLite's, or null.
            let inner_name = unsafe { *slot };
            if inner_name.is_null() {
                return code;
            }
            // SAFETY: the VFS underneath stored a string.
            let name = unsafe { CStr::from_ptr(inner_name) }.to_string_lossy();
            let named = functions.string(&format!("braid/{name}"));
            // SAFETY: SQLite allocated the string and gets another one.
            unsafe {
                functions.free(inner_name);
                *slot = named;
            }
            OK
        }),
        _ => pass(),
    }
}

unsafe extern "C" fn fetch(
    file: *mut File,
    offset: i64,
    len: c_int,
    to: *mut *mut c_void,
) -> c_int {
    // SAFETY: SQLite calls methods of open files.
    let inner = unsafe { Inner::of(file) };
    // The page with the header is read, so that SQLite sees the versions that it knows.
    match inner.methods().fetch {
        // SAFETY: the arguments are passed on.
        Some(fetch) if offset > 0 => unsafe { fetch(inner.file(), offset, len, to) },
        _ => {
            // SAFETY: SQLite passes a place for the address.
            unsafe { *to = std::ptr::null_mut() };
            OK
        }
    }
}

/// Passes a call on to the method of this name.
macro_rules! pass {
    ($name:ident ( $($argument:ident : $kind:ty),* ) -> $result:ty) => {
        unsafe extern "C" fn $name(file: *mut File $(, $argument: $kind)*) -> $result {
            // SAFETY: SQLite calls methods of open files; the arguments are passed on.
            unsafe {
                let inner = Inner::of(file);
                (inner.methods().$name)(inner.file() $(, $argument)*)
            }
        }
    };
}

/// Passes a call on to a method that this version of the table has.
macro_rules! pass_optional {
    ($name:ident ( $($argument:ident : $kind:ty),* ) -> $result:ty, $none:expr) => {
        unsafe extern "C" fn $name(file: *mut File $(, $argument: $kind)*) -> $result {
            // SAFETY: SQLite calls methods of open files; the arguments are passed on. Our table has
            // the version of the one underneath, so that the entry exists.
            unsafe {
                let inner = Inner::of(file);
                match inner.methods().$name {
                    Some(method) => method(inner.file() $(, $argument)*),
                    None => $none,
                }
            }
        }
    };
}

pass!(sync(flags: c_int) -> c_int);
pass!(file_size(to: *mut i64) -> c_int);
pass!(check_reserved_lock(to: *mut c_int) -> c_int);
pass!(sector_size() -> c_int);
pass_optional!(shm_map(page: c_int, size: c_int, extend: c_int, to: *mut *mut c_void) -> c_int, IOERR);
pass_optional!(shm_barrier() -> (), ());
pass_optional!(shm_unmap(delete: c_int) -> c_int, OK);
pass_optional!(unfetch(offset: i64, at: *mut c_void) -> c_int, OK);

const fn methods(version: c_int) -> IoMethods {
    IoMethods {
        version,
        close,
        read,
        write,
        truncate,
        sync,
        file_size,
        lock: lock_file,
        unlock: unlock_file,
        check_reserved_lock,
        file_control,
        sector_size,
        device_characteristics,
        shm_map: Some(shm_map),
        shm_lock: Some(shm_lock),
        shm_barrier: Some(shm_barrier),
        shm_unmap: Some(shm_unmap),
        fetch: Some(fetch),
        unfetch: Some(unfetch),
    }
}

/// One table for each version of the VFS underneath.
static METHODS: [IoMethods; 3] = [methods(1), methods(2), methods(3)];
