//! The functions of SQLite that this crate calls.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::abi::Vfs;

/// Oldest version of SQLite with all that is needed.
pub(crate) const OLDEST: c_int = 3_032_000;

// Places in `sqlite3_api_routines`, to which SQLite only appends.
const FREE: usize = 58;
const LIBVERSION_NUMBER: usize = 67;
const VFS_FIND: usize = 141;
const VFS_REGISTER: usize = 142;
const LOG: usize = 167;
const URI_PARAMETER: usize = 189;
const MALLOC64: usize = 197;
const FILENAME_DATABASE: usize = 246;

/// Registers the VFS `braid` with the SQLite whose bindings are in a module, such as
/// `rusqlite::ffi`. Evaluates to the result of [`register`](crate::register()).
///
/// ```
/// use rusqlite::{Connection, OpenFlags};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// braid_sqlite::register!(rusqlite::ffi)?;
/// # let directory = tempfile::tempdir()?;
/// # std::env::set_current_dir(&directory)?;
/// let db = Connection::open_with_flags("file:app.db?vfs=braid", OpenFlags::default())?;
/// db.pragma_update(None, "journal_mode", "wal")?;
/// db.execute("CREATE TABLE t (a)", [])?;
/// # db.query_row("PRAGMA braid_mode", [], |row| row.get::<_, String>(0))?;
/// # Ok(())
/// # }
/// ```
///
/// `register!(rusqlite::ffi, is_default: true)` makes `braid` the default VFS.
#[macro_export]
macro_rules! register {
    ($($bindings:ident)::+) => {
        $crate::register!($($bindings)::+, is_default: false)
    };
    ($($bindings:ident)::+, is_default: $is_default:expr) => {{
        use $($bindings)::+ as bindings;
        let library = $crate::Library {
            free: bindings::sqlite3_free as *const _,
            libversion_number: bindings::sqlite3_libversion_number as *const _,
            vfs_find: bindings::sqlite3_vfs_find as *const _,
            vfs_register: bindings::sqlite3_vfs_register as *const _,
            log: bindings::sqlite3_log as *const _,
            uri_parameter: bindings::sqlite3_uri_parameter as *const _,
            malloc64: bindings::sqlite3_malloc64 as *const _,
            filename_database: bindings::sqlite3_filename_database as *const _,
        };
        let is_default: bool = $is_default;
        // SAFETY: these are the functions of the SQLite that the program is linked with.
        unsafe { $crate::register(&library, is_default) }
    }};
}

/// Addresses of the functions of SQLite that this crate calls, for programs that link SQLite
/// statically. [`register!`](crate::register!) fills it from bindings.
///
/// C has the same structure: eight addresses in this order, for [`crate::braid_sqlite_register`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Library {
    /// `sqlite3_free`.
    pub free: *const c_void,
    /// `sqlite3_libversion_number`.
    pub libversion_number: *const c_void,
    /// `sqlite3_vfs_find`.
    pub vfs_find: *const c_void,
    /// `sqlite3_vfs_register`.
    pub vfs_register: *const c_void,
    /// `sqlite3_log`.
    pub log: *const c_void,
    /// `sqlite3_uri_parameter`.
    pub uri_parameter: *const c_void,
    /// `sqlite3_malloc64`.
    pub malloc64: *const c_void,
    /// `sqlite3_filename_database`.
    pub filename_database: *const c_void,
}

/// Why the VFS cannot be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// SQLite lacks functions.
    #[error(
        "cannot register the VFS \"braid\": SQLite has version {found}, and it needs 3.32.0 or newer"
    )]
    TooOld {
        /// The version's number, such as 3031001.
        found: i32,
    },
    /// SQLite has no default VFS, or refuses another one.
    #[error("cannot register the VFS \"braid\": SQLite answers {code}")]
    Refused {
        /// SQLite's code.
        code: i32,
    },
}

/// The functions, with their types.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    free: unsafe extern "C" fn(*mut c_void),
    libversion_number: unsafe extern "C" fn() -> c_int,
    pub(crate) vfs_find: unsafe extern "C" fn(*const c_char) -> *mut Vfs,
    pub(crate) vfs_register: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    log: unsafe extern "C" fn(c_int, *const c_char, ...),
    uri_parameter: unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char,
    malloc64: unsafe extern "C" fn(u64) -> *mut c_void,
    pub(crate) filename_database: unsafe extern "C" fn(*const c_char) -> *const c_char,
}

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// The functions of the SQLite with which the VFS was registered first.
pub(crate) fn functions() -> Option<&'static Functions> {
    FUNCTIONS.get()
}

impl Library {
    /// Reads the table that SQLite passes to extensions.
    ///
    /// # Safety
    ///
    /// The table is that of SQLite 3.32 or newer, or of an older one, which `None` then says.
    pub(crate) unsafe fn from_table(table: *const *const c_void) -> Option<Self> {
        // SAFETY: every version since 3.5.0 has this entry, and the caller's table is valid.
        let at = |index| unsafe { *table.add(index) };
        let version = at(LIBVERSION_NUMBER);
        // SAFETY: the entry at this index is `int (*)(void)` in every version.
        let version: unsafe extern "C" fn() -> c_int = unsafe { std::mem::transmute(version) };
        // SAFETY: it has no preconditions.
        if unsafe { version() } < OLDEST {
            return None;
        }
        Some(Self {
            free: at(FREE),
            libversion_number: at(LIBVERSION_NUMBER),
            vfs_find: at(VFS_FIND),
            vfs_register: at(VFS_REGISTER),
            log: at(LOG),
            uri_parameter: at(URI_PARAMETER),
            malloc64: at(MALLOC64),
            filename_database: at(FILENAME_DATABASE),
        })
    }

    /// Remembers the functions.
    ///
    /// # Safety
    ///
    /// Each address is that of the function which the field's documentation names.
    pub(crate) unsafe fn install(&self) -> Result<&'static Functions, RegisterError> {
        use std::mem::transmute as cast;
        // SAFETY: function pointers have the size of object pointers on Unix, none is null because
        // it is a function's address, and the types are those of SQLite's header.
        let functions = unsafe {
            Functions {
                free: cast::<*const c_void, unsafe extern "C" fn(*mut c_void)>(self.free),
                libversion_number: cast::<*const c_void, unsafe extern "C" fn() -> c_int>(
                    self.libversion_number,
                ),
                vfs_find: cast::<*const c_void, unsafe extern "C" fn(*const c_char) -> *mut Vfs>(
                    self.vfs_find,
                ),
                vfs_register: cast::<*const c_void, unsafe extern "C" fn(*mut Vfs, c_int) -> c_int>(
                    self.vfs_register,
                ),
                log: cast::<*const c_void, unsafe extern "C" fn(c_int, *const c_char, ...)>(
                    self.log,
                ),
                uri_parameter: cast::<
                    *const c_void,
                    unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char,
                >(self.uri_parameter),
                malloc64: cast::<*const c_void, unsafe extern "C" fn(u64) -> *mut c_void>(
                    self.malloc64,
                ),
                filename_database: cast::<
                    *const c_void,
                    unsafe extern "C" fn(*const c_char) -> *const c_char,
                >(self.filename_database),
            }
        };
        // SAFETY: it has no preconditions.
        let found = unsafe { (functions.libversion_number)() };
        if found < OLDEST {
            return Err(RegisterError::TooOld { found });
        }
        Ok(FUNCTIONS.get_or_init(|| functions))
    }
}

impl Functions {
    /// Reports a message to the program's error log.
    pub(crate) fn report(&self, code: c_int, message: &str) {
        let Ok(message) = CString::new(message.replace('\0', "")) else {
            return;
        };
        // SAFETY: the format has one string, which is given.
        unsafe { (self.log)(code, c"%s".as_ptr(), message.as_ptr()) }
    }

    /// A parameter of the URI of a file name.
    ///
    /// # Safety
    ///
    /// SQLite passed the name to `xOpen` of a main database.
    pub(crate) unsafe fn parameter(&self, name: *const c_char, key: &CStr) -> Option<String> {
        // SAFETY: the caller's name has the form that SQLite's function expects.
        let value = unsafe { (self.uri_parameter)(name, key.as_ptr()) };
        if value.is_null() {
            return None;
        }
        // SAFETY: SQLite returns a string within the name.
        let value = unsafe { CStr::from_ptr(value) };
        Some(value.to_string_lossy().into_owned())
    }

    /// Copies a string into memory that SQLite frees. Null if there is none.
    pub(crate) fn string(&self, text: &str) -> *mut c_char {
        let bytes = text.as_bytes();
        // SAFETY: it has no preconditions.
        let memory = unsafe { (self.malloc64)(bytes.len() as u64 + 1) }.cast::<u8>();
        if !memory.is_null() {
            // SAFETY: SQLite allocated one byte more than the string has.
            unsafe {
                memory.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                memory.add(bytes.len()).write(0);
            }
        }
        memory.cast()
    }

    /// Frees a string of SQLite's.
    ///
    /// # Safety
    ///
    /// SQLite allocated it, and nothing refers to it any more.
    pub(crate) unsafe fn free(&self, text: *mut c_char) {
        // SAFETY: as the caller says.
        unsafe { (self.free)(text.cast()) }
    }
}
