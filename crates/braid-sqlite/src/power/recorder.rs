//! A VFS under `braid` that notes what SQLite writes into the files of a simulated disk.
//!
//! The files are those of the VFS `unix`, whose table of methods is replaced by a copy.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Once};

use rusqlite::ffi;

use crate::abi::{File, IOERR, IoMethods, OK, OPEN_MAIN_DB, Vfs};
use crate::database::lock;
use crate::simulation::{Change, Disk, disk_of};

const OPEN_MAIN_JOURNAL: c_int = 0x800;

/// An open file, by the address of its object.
#[derive(Clone)]
struct Recorded {
    disk: Arc<Disk>,
    path: PathBuf,
    methods: &'static IoMethods,
}

static FILES: Mutex<Option<HashMap<usize, Recorded>>> = Mutex::new(None);
static UNIX: Mutex<usize> = Mutex::new(0);

/// The path in a file name.
///
/// # Safety
///
/// The name is a string, or null.
unsafe fn path_of(name: *const c_char) -> Option<PathBuf> {
    // SAFETY: as the caller says.
    (!name.is_null()).then(|| PathBuf::from(unsafe { CStr::from_ptr(name) }.to_str().unwrap()))
}

fn recorded(file: *mut File) -> Recorded {
    lock(&FILES).get_or_insert_default()[&file.addr()].clone()
}

fn unix() -> *mut Vfs {
    std::ptr::with_exposed_provenance_mut(*lock(&UNIX))
}

/// Registers the recorder, and `braid` over it.
pub(super) fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: null stands for the default VFS; its structure is valid, and ours never freed.
        unsafe {
            let unix = ffi::sqlite3_vfs_find(std::ptr::null()).cast::<Vfs>();
            *lock(&UNIX) = unix.expose_provenance();
            let ours = Box::leak(Box::new(Vfs {
                next: std::ptr::null_mut(),
                name: c"recorder".as_ptr(),
                open,
                delete,
                ..*unix
            }));
            assert_eq!(
                ffi::sqlite3_vfs_register((&raw mut *ours).cast(), 1),
                ffi::SQLITE_OK
            );
        }
        crate::register!(rusqlite::ffi).unwrap();
    });
}

unsafe extern "C" fn open(
    _: *mut Vfs,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let unix = unix();
    // SAFETY: SQLite's arguments are passed on.
    let code = unsafe { ((*unix).open)(unix, name, file, flags, out_flags) };
    // SAFETY: SQLite passes a name, or null.
    let path = unsafe { path_of(name) };
    let Some(path) = path else { return code };
    if code != OK || flags & (OPEN_MAIN_DB | OPEN_MAIN_JOURNAL) == 0 {
        return code;
    }
    let Some(disk) = disk_of(&path) else {
        return code;
    };
    // SAFETY: the file is open, so that its methods are valid.
    let methods: &'static IoMethods = unsafe { &*(*file).methods };
    if disk.create_file(&path).is_err() {
        // SAFETY: as above.
        unsafe { (methods.close)(file) };
        return IOERR;
    }
    let patched = Box::leak(Box::new(IoMethods {
        close,
        write,
        truncate,
        sync,
        ..*methods
    }));
    let recorded = Recorded {
        disk,
        path,
        methods,
    };
    lock(&FILES)
        .get_or_insert_default()
        .insert(file.addr(), recorded);
    // SAFETY: the table is never freed.
    unsafe { (*file).methods = patched };
    OK
}

unsafe extern "C" fn delete(_: *mut Vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: SQLite passes a name.
    let path = unsafe { path_of(name) }.unwrap();
    if let Some(disk) = disk_of(&path)
        && disk.delete_file(&path).is_err()
    {
        return IOERR;
    }
    let unix = unix();
    // SAFETY: SQLite's arguments are passed on.
    unsafe { ((*unix).delete)(unix, name, sync) }
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    let recorded = lock(&FILES)
        .get_or_insert_default()
        .remove(&file.addr())
        .unwrap();
    // SAFETY: SQLite closes an open file.
    unsafe { (recorded.methods.close)(file) }
}

unsafe extern "C" fn write(file: *mut File, from: *const c_void, len: c_int, offset: i64) -> c_int {
    let recorded = recorded(file);
    let at = usize::try_from(offset).unwrap();
    // SAFETY: SQLite's buffer has so many bytes.
    let bytes = unsafe {
        std::slice::from_raw_parts(from.cast::<u8>(), usize::try_from(len).unwrap()).to_vec()
    };
    match recorded
        .disk
        .change_file(&recorded.path, Change::Write(at, bytes))
    {
        // SAFETY: SQLite's arguments are passed on.
        Ok(()) => unsafe { (recorded.methods.write)(file, from, len, offset) },
        Err(_) => IOERR,
    }
}

unsafe extern "C" fn truncate(file: *mut File, len: i64) -> c_int {
    let recorded = recorded(file);
    let change = Change::Truncate(usize::try_from(len).unwrap());
    match recorded.disk.change_file(&recorded.path, change) {
        // SAFETY: SQLite's arguments are passed on.
        Ok(()) => unsafe { (recorded.methods.truncate)(file, len) },
        Err(_) => IOERR,
    }
}

unsafe extern "C" fn sync(file: *mut File, _: c_int) -> c_int {
    let recorded = recorded(file);
    match recorded.disk.sync_file(&recorded.path) {
        Ok(()) => OK,
        Err(_) => IOERR,
    }
}
