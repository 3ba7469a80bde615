//! Tablespaces, and the tables in them.

use std::ffi::{c_char, c_int, c_uint, c_void};

use braid::tablespace::{MoveReport, TablespaceOptions};

use super::stats::microseconds;
use super::table::{braid_name_callback, report_names};
use super::table_options::braid_table_options;
use crate::boundary::{Failure, Outcome, call};
use crate::handles::{braid_db, braid_loader, braid_table, number};
use crate::memory::{Optional, Out, UserData, optional, optional_text, path, text};
use crate::objects::{Loading, OpenDatabase, OpenTable};
use crate::registry::{LOADERS, TABLES, database};
use crate::status::braid_status::{self, BRAID_OK};

/// Options of a tablespace, set when it is created and recorded with it. With all fields zero, they are
/// the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_tablespace_options {
    /// Bytes of the tablespace's own page pool; 0 for the default, 64 MiB.
    pub pool_bytes: usize,
    /// 1: the tablespace has a log of its own in its directory. The log begins when the database is
    /// opened the next time: until then, transactions write to that of the database.
    pub own_log: c_int,
    /// 1: the tablespace is bound to the memory node (NUMA) `memory_node`. The page pool, and the
    /// buffers of its own log, lie in the node's memory, and the threads that flush that log and write
    /// checkpoints of the tablespace run on the node's processors. At a later opening on a machine
    /// without the node, it works as one without.
    pub on_memory_node: c_int,
    /// The system's number of the node.
    pub memory_node: c_uint,
    /// A directory for the log alone, which is created if it is missing and must be empty; NULL: the
    /// log is with the data. The tablespace then has a log of its own, whatever `own_log` is.
    pub log_directory: *const c_char,
}

impl braid_tablespace_options {
    /// Applies these options to those of a tablespace.
    ///
    /// # Safety
    ///
    /// `log_directory` is NULL or a string that ends with a NUL.
    unsafe fn apply(&self, mut options: TablespaceOptions) -> Outcome<TablespaceOptions> {
        let flag = |value: c_int, name: &str| match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Failure::argument(format!(
                "invalid {name} {value}: use 0 or 1"
            ))),
        };
        options = options.own_log(flag(self.own_log, "own_log")?);
        if self.pool_bytes > 0 {
            options = options.pool_bytes(self.pool_bytes);
        }
        if flag(self.on_memory_node, "on_memory_node")? {
            options = options.memory_node(braid_rt::to_usize(self.memory_node.into()));
        }
        if !self.log_directory.is_null() {
            // SAFETY: this function's contract.
            options = options.log_directory(unsafe { path(self.log_directory) }?);
        }
        Ok(options)
    }
}

/// Creates a tablespace, durably: a data file of its own in another directory, which is created if it
/// is missing and must be empty, with a page pool of `pool_bytes` bytes of its own (0 for the
/// default, 64 MiB). The database records the directory, and every later opening needs it.
///
/// # Safety
///
/// `name` and `directory` are NULL or strings that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_create_tablespace(
    db: *mut braid_db,
    name: *const c_char,
    directory: *const c_char,
    pool_bytes: usize,
) -> braid_status {
    let options = braid_tablespace_options {
        pool_bytes,
        own_log: 0,
        on_memory_node: 0,
        memory_node: 0,
        log_directory: std::ptr::null(),
    };
    // SAFETY: this function's contract.
    unsafe { braid_db_create_tablespace_with(db, name, directory, &raw const options) }
}

/// Creates a tablespace as `braid_db_create_tablespace` does, with `options`: the bytes of its pool, a
/// log of its own, perhaps in a directory for it alone, and the memory node (NUMA) to which it is bound. If
/// `options` is NULL, all options are zero.
///
/// # Safety
///
/// `name` and `directory` are NULL or strings that end with a NUL. `options` is NULL or points to
/// options, whose `log_directory` is NULL or such a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_create_tablespace_with(
    db: *mut braid_db,
    name: *const c_char,
    directory: *const c_char,
    options: *const braid_tablespace_options,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (name, directory) = unsafe { (text(name, "name")?, text(directory, "directory")?) };
        let mut chosen = TablespaceOptions::in_directory(directory);
        // SAFETY: this function's contract.
        if let Some(options) = unsafe { optional(options) } {
            // SAFETY: the same.
            chosen = unsafe { options.apply(chosen) }?;
        }
        database(db)?.current().create_tablespace(name, chosen)?;
        Ok(BRAID_OK)
    })
}

/// Drops a tablespace without tables, durably, and removes its files. Its directory stays.
///
/// # Safety
///
/// `name` is NULL or a string that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_drop_tablespace(
    db: *mut braid_db,
    name: *const c_char,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let name = unsafe { text(name, "name") }?;
        database(db)?.current().drop_tablespace(name)?;
        Ok(BRAID_OK)
    })
}

/// Calls `callback` with the name of each tablespace, in the order of their numbers, on this
/// thread.
///
/// # Safety
///
/// `callback` may be called with `data`. It must not unwind or call `longjmp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_tablespace_names(
    db: *mut braid_db,
    callback: braid_name_callback,
    data: *mut c_void,
) -> braid_status {
    call(|| {
        let names = database(db)?.current().tablespace_names();
        // SAFETY: this function's contract.
        unsafe { report_names(&names, callback, data) }
    })
}

/// Opens a table as `braid_table_open_with` does, and creates it in a tablespace if it does not exist.
/// `braid_table_open` opens it later, in whatever tablespace it is.
///
/// # Safety
///
/// As for `braid_table_open_with`; `tablespace` is NULL or a string that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_table_open_in(
    db: *mut braid_db,
    tablespace: *const c_char,
    name: *const c_char,
    options: *const braid_table_options,
    table: *mut *mut braid_table,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(table, "table") }?;
        // SAFETY: this function's contract.
        let (space, name) = unsafe { (text(tablespace, "tablespace")?, text(name, "name")?) };
        // SAFETY: this function's contract.
        let options = braid_table_options::parse(unsafe { optional(options) })?;
        let database = OpenDatabase::clone(&*database(db)?);
        let table = database.current().open_table_in(space, name, options)?;
        out.set(TABLES.insert(OpenTable::new(table, database), number(db))?);
        Ok(BRAID_OK)
    })
}

/// Begins a bulk load as `braid_loader_new` does, of a new table in a tablespace. The tablespace is not
/// dropped during the load.
///
/// # Safety
///
/// As for `braid_loader_new`; `tablespace` is NULL or a string that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_loader_new_in(
    db: *mut braid_db,
    tablespace: *const c_char,
    name: *const c_char,
    options: *const braid_table_options,
    loader: *mut *mut braid_loader,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::handle(loader, "loader") }?;
        // SAFETY: this function's contract.
        let (space, name) = unsafe { (text(tablespace, "tablespace")?, text(name, "name")?) };
        // SAFETY: this function's contract.
        let options = braid_table_options::parse(unsafe { optional(options) })?;
        let database = OpenDatabase::clone(&*database(db)?);
        let loader = database.current().bulk_load_in(space, name, options)?;
        out.set(LOADERS.insert(Loading { loader, database }, number(db))?);
        Ok(BRAID_OK)
    })
}

/// Result of `braid_table_move`, and its progress.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_move_report {
    /// Number of records copied. A record that changed during the move counts several times.
    pub records: u64,
    /// Bytes of their keys and values, as they are stored.
    pub bytes: u64,
    /// Time for which writes to the table waited at the end of the move, in microseconds.
    pub writers_waited_us: u64,
}

impl braid_move_report {
    fn of(report: &MoveReport) -> Self {
        Self {
            records: report.records,
            bytes: report.bytes,
            writers_waited_us: microseconds(report.writers_waited),
        }
    }
}

/// Receives what a move has copied so far. `progress` is valid during the call.
pub type braid_move_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, progress: *const braid_move_report)>;

/// Moves a table to a tablespace, or to the main one if `tablespace` is NULL, while transactions and
/// snapshots use it. Does nothing if the table is already there.
///
/// The records are copied in small transactions. At the end, writes to the table wait for about one
/// flush, and transactions that already used the table for writing, or read it with the default
/// isolation, fail once with `BRAID_CONFLICT`. Handles, also those that were opened before, then
/// use the table where it is. Snapshots from before the end read the old place, whose pages are
/// freed when the last of them has ended. If the process ends during a move, or the move fails, the
/// table stays where it was; after `BRAID_POISONED`, only the next opening knows where it is.
///
/// The function calls `progress` with `data` on this thread after each step. `progress` and `report`
/// may be NULL.
///
/// # Safety
///
/// `name` and `tablespace` are NULL or strings that end with a NUL; `progress` may be called with
/// `data` and must not unwind or call `longjmp`; `report` is NULL or points to writable memory for
/// it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_table_move(
    db: *mut braid_db,
    name: *const c_char,
    tablespace: *const c_char,
    progress: braid_move_callback,
    data: *mut c_void,
    report: *mut braid_move_report,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Optional::new(report) };
        // SAFETY: this function's contract.
        let (name, space) = unsafe {
            (
                text(name, "name")?,
                optional_text(tablespace, "tablespace")?,
            )
        };
        let data = UserData::new(data);
        let tell = |so_far: &MoveReport| {
            if let Some(progress) = progress {
                // SAFETY: this function's contract.
                unsafe { progress(data.get(), &braid_move_report::of(so_far)) }
            }
        };
        let database = database(db)?;
        let moved = database.current().move_table_with(name, space, tell)?;
        out.set(braid_move_report::of(&moved));
        Ok(BRAID_OK)
    })
}
