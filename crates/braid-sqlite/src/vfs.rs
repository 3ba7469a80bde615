//! The VFS `braid`: the default VFS, with another `-wal` file.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::abi::{
    CANTOPEN, Connection, ERROR, File, IOERR, IOERR_DELETE, MISUSE, OK, OK_LOAD_PERMANENTLY,
    OPEN_MAIN_DB, OPEN_READONLY, OPEN_WAL, Vfs,
};
use crate::database::{self, Database, guarded, lock};
use crate::inner::{Inner, PREFIX};
use crate::library::{self, Functions, Library, RegisterError, functions};
use crate::place::Place;
use crate::{wait, wal};

const NAME: &CStr = c"braid";

/// Our VFS and the one underneath, both of which last forever.
struct Registered {
    ours: *mut Vfs,
    underneath: *mut Vfs,
}

// SAFETY: the structures are not changed after registration, except by SQLite under its own lock.
unsafe impl Send for Registered {}

static REGISTERED: Mutex<Option<Registered>> = Mutex::new(None);

/// Registers the VFS `braid`, over the VFS that is the default one, and the function `braid_wait` of all
/// connections that are opened afterwards. Calling it again is cheap, and makes
/// it the default one again if `is_default`.
///
/// # Errors
///
/// [`RegisterError`].
///
/// # Safety
///
/// Each address is that of the function which the field's documentation names, all of one SQLite that
/// stays loaded.
pub unsafe fn register(library: &Library, is_default: bool) -> Result<(), RegisterError> {
    // SAFETY: as the caller says.
    let functions = unsafe { library.install() }?;
    register_with(functions, is_default)
}

/// [`register`] for C. Returns SQLite's code: `SQLITE_MISUSE` if the structure is one of an older header,
/// and lacks functions.
///
/// # Safety
///
/// As [`register`]; the pointer leads to as many bytes of a [`Library`] as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_sqlite_register(
    library: *const Library,
    is_default: c_int,
) -> c_int {
    guarded(ERROR, || {
        // SAFETY: every version of the structure starts with its size.
        if unsafe { (&raw const (*library).size).read() } < size_of::<Library>() {
            return MISUSE;
        }
        // SAFETY: as the caller says, and the structure has all fields.
        match unsafe { register(&*library, is_default != 0) } {
            Ok(()) => OK,
            Err(_) => ERROR,
        }
    })
}

/// Bytes that a `-wal` file has as SQLite sees it, for programs that watch its size; -1 if the file is
/// not one of this VFS.
///
/// # Safety
///
/// The path is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_sqlite_wal_size(path: *const c_char) -> i64 {
    let size = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: as the caller says.
        let path = unsafe { path_of(path) }?;
        i64::try_from(wal::visible_len(&path)?).ok()
    }));
    size.ok().flatten().unwrap_or(-1)
}

fn register_with(functions: &Functions, is_default: bool) -> Result<(), RegisterError> {
    let mut registered = lock(&REGISTERED);
    let ours = match &*registered {
        Some(registered) => registered.ours,
        None => {
            // SAFETY: null stands for the default VFS.
            let underneath = unsafe { (functions.vfs_find)(std::ptr::null()) };
            if underneath.is_null() {
                return Err(RegisterError::Refused { code: ERROR });
            }
            // SAFETY: a registered VFS is valid, and has at least version 1. A structure of an older
            // version is shorter; every VFS of SQLite's own has version 3.
            let copy = unsafe { *underneath };
            let ours = Vfs {
                file_bytes: copy.file_bytes + c_int::try_from(PREFIX).expect("a few words"),
                next: std::ptr::null_mut(),
                name: NAME.as_ptr(),
                open,
                delete,
                access,
                full_path,
                ..copy
            };
            let ours = Box::into_raw(Box::new(ours));
            *registered = Some(Registered { ours, underneath });
            ours
        }
    };
    // SAFETY: the name is a string.
    let is_registered = unsafe { (functions.vfs_find)(NAME.as_ptr()) } == ours;
    // Registering it again would end that it is the default one.
    if is_default || !is_registered {
        // SAFETY: the structure is never freed.
        match unsafe { (functions.vfs_register)(ours, c_int::from(is_default)) } {
            OK => {}
            code => return Err(RegisterError::Refused { code }),
        }
    }
    wait::define_when_opened(functions)
}

/// Registers from SQLite's table of functions.
///
/// # Safety
///
/// SQLite passed the connection, the table and the place for a message.
unsafe fn load(
    connection: *mut Connection,
    message: *mut *mut c_char,
    table: *const *const c_void,
) -> c_int {
    guarded(ERROR, || {
        if table.is_null() {
            return ERROR;
        }
        // The environment can make it the default VFS of programs that are not changed.
        let is_default = std::env::var_os("BRAID_SQLITE").is_some_and(|value| value == "default");
        // SAFETY: as the caller says. The table has the functions of the SQLite that is loading this.
        let result = unsafe {
            Library::from_table(table)
                .and_then(|library| library.install())
                .and_then(|functions| {
                    register_with(functions, is_default)?;
                    wait::define(functions, connection)
                })
        };
        match result {
            Ok(()) => OK,
            Err(error) => {
                if !message.is_null() {
                    // SAFETY: SQLite passes a place for a message, which it frees.
                    unsafe { *message = library::message(table, &error.to_string()) };
                }
                ERROR
            }
        }
    })
}

/// The entry point for `.load` and `load_extension`. The library stays loaded.
///
/// # Safety
///
/// SQLite calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_braidsqlite_init(
    connection: *mut c_void,
    message: *mut *mut c_char,
    table: *const c_void,
) -> c_int {
    // SAFETY: SQLite passes its own table.
    match unsafe { load(connection.cast(), message, table.cast()) } {
        OK => OK_LOAD_PERMANENTLY,
        code => code,
    }
}

/// The entry point for `sqlite3_auto_extension`, which expects another code.
///
/// # Safety
///
/// SQLite calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_sqlite_auto_init(
    connection: *mut c_void,
    message: *mut *mut c_char,
    table: *const c_void,
) -> c_int {
    // SAFETY: SQLite passes its own table.
    unsafe { load(connection.cast(), message, table.cast()) }
}

fn underneath() -> *mut Vfs {
    let registered = lock(&REGISTERED);
    let registered = registered
        .as_ref()
        .expect("methods are called after registration");
    registered.underneath
}

/// The path in a file name.
///
/// # Safety
///
/// The name is a string, or null.
unsafe fn path_of(name: *const c_char) -> Option<PathBuf> {
    if name.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    Some(PathBuf::from(OsStr::from_bytes(bytes)))
}

/// The database of a `-wal` file.
fn database_of(wal: &Path) -> Option<PathBuf> {
    let name = wal
        .as_os_str()
        .as_bytes()
        .strip_suffix(wal::SUFFIX.as_bytes())?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

unsafe extern "C" fn open(
    _: *mut Vfs,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    guarded(CANTOPEN, || {
        // SAFETY: SQLite passes an object for us to fill. Without methods it is not open.
        unsafe { (*file).methods = std::ptr::null() };
        let vfs = underneath();
        // SAFETY: SQLite passes a name, or null.
        let path = unsafe { path_of(name) };
        let (Some(path), Some(functions)) = (path, functions()) else {
            // SAFETY: the arguments are passed on, with the VFS underneath.
            return unsafe { ((*vfs).open)(vfs, name, file, flags, out_flags) };
        };
        if flags & (OPEN_MAIN_DB | OPEN_WAL) == 0 {
            // SAFETY: as above. The object is larger than the VFS underneath needs.
            return unsafe { ((*vfs).open)(vfs, name, file, flags, out_flags) };
        }
        // SAFETY: the object has the size that our VFS asks for.
        let inner = unsafe { Inner::of(file) };
        inner.clear();
        let mut opened = 0;
        if flags & OPEN_MAIN_DB != 0 {
            let parameter = |key: &'static str| {
                let (query, variable) = match key {
                    "braid_log" => (c"braid_log", "BRAID_LOG"),
                    "braid_memory" => (c"braid_memory", "BRAID_MEMORY"),
                    "braid_latency" => (c"braid_latency", "BRAID_LATENCY"),
                    "braid_pages" => (c"braid_pages", "BRAID_PAGES"),
                    "braid_block" => (c"braid_block", "BRAID_BLOCK"),
                    _ => (c"braid_mode", "BRAID_MODE"),
                };
                // SAFETY: this is the name of a main database.
                let value = unsafe { functions.parameter(name, query) };
                value.or_else(|| std::env::var(variable).ok())
            };
            let place = match Place::read(parameter) {
                Ok(place) => place,
                Err(error) => {
                    functions.report(CANTOPEN, &format!("braid: {error}"));
                    return CANTOPEN;
                }
            };
            // SAFETY: the arguments are passed on.
            let code = unsafe { ((*vfs).open)(vfs, name, inner.file(), flags, &raw mut opened) };
            if code != OK {
                if inner.is_open() {
                    inner.close();
                }
                return code;
            }
            let is_read_only = opened & OPEN_READONLY != 0;
            let database = Database::new((path, name), place, inner, is_read_only);
            // SAFETY: the file underneath is open.
            unsafe { database::install(file, database) };
        } else {
            // SAFETY: SQLite passes the name of a `-wal` file that it derived from a database's.
            let database = Database::named(unsafe { (functions.filename_database)(name) });
            let Some(database) = database else {
                functions.report(
                    CANTOPEN,
                    "braid: cannot open a -wal file without its database",
                );
                return CANTOPEN;
            };
            // SAFETY: the arguments are passed on.
            let code = unsafe { ((*vfs).open)(vfs, name, inner.file(), flags, &raw mut opened) };
            if code != OK {
                if inner.is_open() {
                    inner.close();
                }
                return code;
            }
            // SAFETY: the object has the size that our VFS asks for.
            let code = unsafe { wal::open(file, &path, database) };
            if code != OK {
                return code;
            }
        }
        if !out_flags.is_null() {
            // SAFETY: SQLite passes a place for the flags.
            unsafe { *out_flags = opened };
        }
        OK
    })
}

unsafe extern "C" fn delete(_: *mut Vfs, name: *const c_char, sync: c_int) -> c_int {
    guarded(IOERR_DELETE, || {
        let vfs = underneath();
        // SAFETY: SQLite passes a name.
        let path = unsafe { path_of(name) };
        if let Some(path) = path
            && let Some(database) = database_of(&path)
        {
            let code = wal::delete(&path, &database);
            if code != OK {
                return code;
            }
        }
        // SAFETY: the arguments are passed on.
        unsafe { ((*vfs).delete)(vfs, name, sync) }
    })
}

unsafe extern "C" fn access(
    _: *mut Vfs,
    name: *const c_char,
    flags: c_int,
    to: *mut c_int,
) -> c_int {
    guarded(IOERR, || {
        let vfs = underneath();
        // SAFETY: the arguments are passed on.
        unsafe { ((*vfs).access)(vfs, name, flags, to) }
    })
}

unsafe extern "C" fn full_path(
    _: *mut Vfs,
    name: *const c_char,
    len: c_int,
    to: *mut c_char,
) -> c_int {
    guarded(CANTOPEN, || {
        let vfs = underneath();
        // SAFETY: the arguments are passed on.
        unsafe { ((*vfs).full_path)(vfs, name, len, to) }
    })
}
