//! The functions of SQLite that this crate calls.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::abi::{Connection, Context, Initialize, Opaque, SqlFunction, Statement, Value, Vfs};
use crate::last_error;

/// Oldest version of SQLite with all that is needed.
pub(crate) const OLDEST: c_int = 3_032_000;

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
            size: size_of::<$crate::Library>(),
            free: bindings::sqlite3_free as *const _,
            libversion_number: bindings::sqlite3_libversion_number as *const _,
            vfs_find: bindings::sqlite3_vfs_find as *const _,
            vfs_register: bindings::sqlite3_vfs_register as *const _,
            log: bindings::sqlite3_log as *const _,
            uri_parameter: bindings::sqlite3_uri_parameter as *const _,
            malloc64: bindings::sqlite3_malloc64 as *const _,
            filename_database: bindings::sqlite3_filename_database as *const _,
            auto_extension: bindings::sqlite3_auto_extension as *const _,
            create_function: bindings::sqlite3_create_function_v2 as *const _,
            context_connection: bindings::sqlite3_context_db_handle as *const _,
            value_text: bindings::sqlite3_value_text as *const _,
            result_text: bindings::sqlite3_result_text as *const _,
            result_error: bindings::sqlite3_result_error as *const _,
            result_error_code: bindings::sqlite3_result_error_code as *const _,
            file_control: bindings::sqlite3_file_control as *const _,
            prepare: bindings::sqlite3_prepare_v2 as *const _,
            step: bindings::sqlite3_step as *const _,
            column_text: bindings::sqlite3_column_text as *const _,
            finalize: bindings::sqlite3_finalize as *const _,
        };
        let is_default: bool = $is_default;
        // SAFETY: these are the functions of the SQLite that the program is linked with.
        unsafe { $crate::register(&library, is_default) }
    }};
}

/// Defines the functions: for each a name, its place in `sqlite3_api_routines`, to which SQLite only
/// appends, and its type.
macro_rules! functions {
    ($($(#[$what:meta])* $name:ident = $place:literal: $kind:ty,)*) => {
        /// Addresses of the functions of SQLite that this crate calls, for programs that link SQLite
        /// statically. [`register!`](crate::register!) fills it from bindings.
        ///
        /// C has the same structure, with its size and the addresses in this order, for
        /// [`crate::braid_sqlite_register`].
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct Library {
            /// Bytes of this structure: a header of another version may have fewer functions.
            pub size: usize,
            $($(#[$what])* pub $name: *const c_void,)*
        }

        /// The functions, with their types.
        #[derive(Clone, Copy)]
        pub(crate) struct Functions {
            $(pub(crate) $name: $kind,)*
        }

        impl Library {
            /// Reads SQLite's table.
            ///
            /// # Safety
            ///
            /// The table is that of SQLite 3.32 or newer.
            unsafe fn read(table: *const *const c_void) -> Self {
                // SAFETY: the table of these versions has an entry at each of the places.
                unsafe { Self { size: size_of::<Self>(), $($name: *table.add($place),)* } }
            }

            /// # Safety
            ///
            /// Each address is that of the function which the field's documentation names.
            unsafe fn functions(&self) -> Functions {
                // SAFETY: function pointers have the size of object pointers on Unix, none is null
                // because it is a function's address, and the types are those of SQLite's header.
                unsafe {
                    Functions { $($name: std::mem::transmute::<*const c_void, $kind>(self.$name),)* }
                }
            }
        }
    };
}

functions! {
    /// `sqlite3_free`.
    free = 58: unsafe extern "C" fn(*mut c_void),
    /// `sqlite3_libversion_number`.
    libversion_number = 67: unsafe extern "C" fn() -> c_int,
    /// `sqlite3_vfs_find`.
    vfs_find = 141: unsafe extern "C" fn(*const c_char) -> *mut Vfs,
    /// `sqlite3_vfs_register`.
    vfs_register = 142: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    /// `sqlite3_log`.
    log = 167: unsafe extern "C" fn(c_int, *const c_char, ...),
    /// `sqlite3_uri_parameter`.
    uri_parameter = 189: unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char,
    /// `sqlite3_malloc64`.
    malloc64 = 197: unsafe extern "C" fn(u64) -> *mut c_void,
    /// `sqlite3_filename_database`.
    filename_database = 246: unsafe extern "C" fn(*const c_char) -> *const c_char,
    /// `sqlite3_auto_extension`.
    auto_extension = 192: unsafe extern "C" fn(Initialize) -> c_int,
    /// `sqlite3_create_function_v2`.
    create_function = 162: unsafe extern "C" fn(
        *mut Connection, *const c_char, c_int, c_int, *mut c_void, Option<SqlFunction>,
        Option<SqlFunction>, Opaque, Opaque,
    ) -> c_int,
    /// `sqlite3_context_db_handle`.
    context_connection = 149: unsafe extern "C" fn(*mut Context) -> *mut Connection,
    /// `sqlite3_value_text`.
    value_text = 109: unsafe extern "C" fn(*mut Value) -> *const c_char,
    /// `sqlite3_result_text`.
    result_text = 85: unsafe extern "C" fn(
        *mut Context, *const c_char, c_int, Option<unsafe extern "C" fn(*mut c_void)>,
    ),
    /// `sqlite3_result_error`.
    result_error = 80: unsafe extern "C" fn(*mut Context, *const c_char, c_int),
    /// `sqlite3_result_error_code`.
    result_error_code = 146: unsafe extern "C" fn(*mut Context, c_int),
    /// `sqlite3_file_control`.
    file_control = 127: unsafe extern "C" fn(
        *mut Connection, *const c_char, c_int, *mut c_void,
    ) -> c_int,
    /// `sqlite3_prepare_v2`.
    prepare = 116: unsafe extern "C" fn(
        *mut Connection, *const c_char, c_int, *mut *mut Statement, *mut *const c_char,
    ) -> c_int,
    /// `sqlite3_step`.
    step = 94: unsafe extern "C" fn(*mut Statement) -> c_int,
    /// `sqlite3_column_text`.
    column_text = 36: unsafe extern "C" fn(*mut Statement, c_int) -> *const c_char,
    /// `sqlite3_finalize`.
    finalize = 57: unsafe extern "C" fn(*mut Statement) -> c_int,
}

/// Place of `sqlite3_mprintf`.
const MPRINTF: usize = 69;

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

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// The functions of the SQLite with which the VFS was registered first.
pub(crate) fn functions() -> Option<&'static Functions> {
    FUNCTIONS.get()
}

impl Library {
    /// Reads the table that SQLite passes to extensions.
    ///
    /// # Errors
    ///
    /// [`RegisterError::TooOld`]: the table may be shorter than this crate expects.
    ///
    /// # Safety
    ///
    /// The table is that of any SQLite 3.
    pub(crate) unsafe fn from_table(table: *const *const c_void) -> Result<Self, RegisterError> {
        type Version = unsafe extern "C" fn() -> c_int;
        // SAFETY: every version since 3.5.0 has this function at this place.
        let version: Version = unsafe { std::mem::transmute(*table.add(67)) };
        // SAFETY: it has no preconditions.
        let found = unsafe { version() };
        if found < OLDEST {
            return Err(RegisterError::TooOld { found });
        }
        // SAFETY: as the caller says, and the version is new enough.
        Ok(unsafe { Self::read(table) })
    }

    /// Remembers the functions.
    ///
    /// # Safety
    ///
    /// Each address is that of the function which the field's documentation names.
    pub(crate) unsafe fn install(&self) -> Result<&'static Functions, RegisterError> {
        // SAFETY: as the caller says.
        let functions = unsafe { self.functions() };
        // SAFETY: it has no preconditions.
        let found = unsafe { (functions.libversion_number)() };
        if found < OLDEST {
            return Err(RegisterError::TooOld { found });
        }
        Ok(FUNCTIONS.get_or_init(|| functions))
    }
}

/// Copies a message into memory that the SQLite of this table frees. Null if there is none.
///
/// # Safety
///
/// The table is that of any SQLite 3.
pub(crate) unsafe fn message(table: *const *const c_void, text: &str) -> *mut c_char {
    type Format = unsafe extern "C" fn(*const c_char, ...) -> *mut c_char;
    let Ok(text) = CString::new(text) else {
        return std::ptr::null_mut();
    };
    // SAFETY: every version has this function at this place; the format has one string, which is given.
    unsafe {
        let format: Format = std::mem::transmute(*table.add(MPRINTF));
        format(c"%s".as_ptr(), text.as_ptr())
    }
}

impl Functions {
    /// Reports a message to the program's error log, and keeps it for `braid_error()`.
    pub(crate) fn report(&self, code: c_int, message: &str) {
        last_error::note(message);
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
