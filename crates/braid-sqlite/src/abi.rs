//! SQLite's structures and constants, as its public header fixes them for all 3.x versions.

use std::ffi::{c_char, c_int, c_void};

/// `sqlite3_file`, of which every VFS defines the rest.
#[repr(C)]
pub(crate) struct File {
    pub(crate) methods: *const IoMethods,
}

/// `sqlite3_io_methods`, version 3.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IoMethods {
    pub(crate) version: c_int,
    pub(crate) close: unsafe extern "C" fn(*mut File) -> c_int,
    pub(crate) read: unsafe extern "C" fn(*mut File, *mut c_void, c_int, i64) -> c_int,
    pub(crate) write: unsafe extern "C" fn(*mut File, *const c_void, c_int, i64) -> c_int,
    pub(crate) truncate: unsafe extern "C" fn(*mut File, i64) -> c_int,
    pub(crate) sync: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) file_size: unsafe extern "C" fn(*mut File, *mut i64) -> c_int,
    pub(crate) lock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) unlock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) check_reserved_lock: unsafe extern "C" fn(*mut File, *mut c_int) -> c_int,
    pub(crate) file_control: unsafe extern "C" fn(*mut File, c_int, *mut c_void) -> c_int,
    pub(crate) sector_size: unsafe extern "C" fn(*mut File) -> c_int,
    pub(crate) device_characteristics: unsafe extern "C" fn(*mut File) -> c_int,
    // Version 2.
    pub(crate) shm_map:
        Option<unsafe extern "C" fn(*mut File, c_int, c_int, c_int, *mut *mut c_void) -> c_int>,
    pub(crate) shm_lock: Option<unsafe extern "C" fn(*mut File, c_int, c_int, c_int) -> c_int>,
    pub(crate) shm_barrier: Option<unsafe extern "C" fn(*mut File)>,
    pub(crate) shm_unmap: Option<unsafe extern "C" fn(*mut File, c_int) -> c_int>,
    // Version 3.
    pub(crate) fetch:
        Option<unsafe extern "C" fn(*mut File, i64, c_int, *mut *mut c_void) -> c_int>,
    pub(crate) unfetch: Option<unsafe extern "C" fn(*mut File, i64, *mut c_void) -> c_int>,
}

/// A method that this crate does not call, and copies.
pub(crate) type Opaque = Option<unsafe extern "C" fn()>;

/// `sqlite3_vfs`, up to its version 3.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Vfs {
    pub(crate) version: c_int,
    pub(crate) file_bytes: c_int,
    pub(crate) max_path: c_int,
    pub(crate) next: *mut Vfs,
    pub(crate) name: *const c_char,
    pub(crate) app_data: *mut c_void,
    pub(crate) open:
        unsafe extern "C" fn(*mut Vfs, *const c_char, *mut File, c_int, *mut c_int) -> c_int,
    pub(crate) delete: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int) -> c_int,
    pub(crate) access: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_int) -> c_int,
    pub(crate) full_path:
        unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_char) -> c_int,
    pub(crate) dl: [Opaque; 4],
    pub(crate) randomness: Opaque,
    pub(crate) sleep: Opaque,
    pub(crate) current_time: Opaque,
    pub(crate) last_error: Opaque,
    // Version 2.
    pub(crate) current_time_64: Opaque,
    // Version 3.
    pub(crate) system_calls: [Opaque; 3],
}

/// SQLite's objects that this crate only passes on.
pub(crate) enum Connection {}
pub(crate) enum Statement {}
pub(crate) enum Context {}
pub(crate) enum Value {}

/// The implementation of a function in SQL.
pub(crate) type SqlFunction = unsafe extern "C" fn(*mut Context, c_int, *mut *mut Value);

/// What SQLite calls when a connection is opened: with the connection, a place for a message, and the
/// table of functions.
pub(crate) type Initialize =
    unsafe extern "C" fn(*mut Connection, *mut *mut c_char, *const c_void) -> c_int;

pub(crate) const OK: c_int = 0;
pub(crate) const ERROR: c_int = 1;
pub(crate) const BUSY: c_int = 5;
pub(crate) const NOMEM: c_int = 7;
pub(crate) const IOERR: c_int = 10;
pub(crate) const NOTFOUND: c_int = 12;
pub(crate) const FULL: c_int = 13;
pub(crate) const CANTOPEN: c_int = 14;
pub(crate) const MISUSE: c_int = 21;
pub(crate) const ROW: c_int = 100;
pub(crate) const OK_LOAD_PERMANENTLY: c_int = 256;
pub(crate) const IOERR_READ: c_int = IOERR | 1 << 8;
pub(crate) const IOERR_SHORT_READ: c_int = IOERR | 2 << 8;
pub(crate) const IOERR_WRITE: c_int = IOERR | 3 << 8;
pub(crate) const IOERR_FSYNC: c_int = IOERR | 4 << 8;
pub(crate) const IOERR_DELETE: c_int = IOERR | 10 << 8;

pub(crate) const OPEN_READONLY: c_int = 1;
pub(crate) const OPEN_MAIN_DB: c_int = 0x100;
pub(crate) const OPEN_WAL: c_int = 0x80000;

pub(crate) const LOCK_RESERVED: c_int = 2;
pub(crate) const LOCK_EXCLUSIVE: c_int = 4;

/// The lock of writers among those of the shared memory.
pub(crate) const SHM_WRITE_LOCK: c_int = 0;
/// The lock of checkpoints.
pub(crate) const SHM_CHECKPOINT_LOCK: c_int = 1;
pub(crate) const SHM_UNLOCK: c_int = 1;
pub(crate) const SHM_EXCLUSIVE: c_int = 8;

pub(crate) const SYNC_NORMAL: c_int = 2;
pub(crate) const IOCAP_POWERSAFE_OVERWRITE: c_int = 0x1000;

pub(crate) const FCNTL_VFSNAME: c_int = 12;
pub(crate) const FCNTL_PRAGMA: c_int = 14;
/// Ours: waits until all commits are durable. "brai". The argument is null, or a place for a message
/// that SQLite's allocator frees.
pub(crate) const FCNTL_WAIT: c_int = 0x6272_6169;

/// A function's arguments and result are UTF-8.
pub(crate) const UTF8: c_int = 1;
/// A function cannot be used in triggers and views.
pub(crate) const DIRECT_ONLY: c_int = 0x8_0000;
