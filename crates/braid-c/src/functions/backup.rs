//! Backups, archives, and restoring.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::time::{Duration, SystemTime};

use braid::Database;
use braid::backup::{Backup, BackupProgress, BackupReport, Restore, RestoreReport, Until};

use super::options::device;
use super::stats::microseconds;
use crate::boundary::{Failure, Outcome, call};
use crate::handles::braid_db;
use crate::memory::{self, Optional, Out, UserData, required};
use crate::registry::database;
use crate::status::braid_status::{self, BRAID_NOT_FOUND, BRAID_OK};
use crate::stream::{Sink, braid_source, braid_write_callback};

/// Progress of a backup or a restore.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_backup_progress {
    /// Number of pages copied so far.
    pub pages: u64,
    /// Total number of pages to copy, as far as known.
    pub pages_total: u64,
}

/// Receives the progress of a backup or a restore. `progress` is valid during the call.
pub type braid_backup_callback =
    Option<unsafe extern "C" fn(data: *mut c_void, progress: *const braid_backup_progress)>;

/// Contents and cost of a backup.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_backup_report {
    /// The backup contains exactly the transactions up to this sequence number.
    pub seqno: u64,
    /// Number of pages of the database.
    pub pages_total: u64,
    /// Number of pages copied: all pages, or those that changed since the parent.
    pub pages: u64,
    /// Bytes read from the data file.
    pub read_bytes: u64,
    /// Bytes written to the backup.
    pub written_bytes: u64,
}

impl braid_backup_report {
    fn of(report: &BackupReport) -> Self {
        Self {
            seqno: report.seqno,
            pages_total: report.pages_total,
            pages: report.pages,
            read_bytes: report.read_bytes,
            written_bytes: report.written_bytes,
        }
    }
}

/// Description in a backup file.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_backup_info {
    /// The identity of the database that was backed up. A restored database has another one.
    pub identity: [u8; 16],
    /// The backup contains the transactions up to this sequence number.
    pub seqno: u64,
    /// Time of the backup, in microseconds since 1970.
    pub time_us: u64,
    /// Whether the backup is incremental, so that it needs its parent.
    pub is_incremental: bool,
    /// Sequence number of the parent backup; 0 if the backup is full.
    pub parent: u64,
    /// Number of pages in the backup.
    pub pages: u64,
}

/// Point to which a database is restored.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_until {
    /// All transactions in the backups and the archive.
    BRAID_UNTIL_END = 0,
    /// The transactions up to a sequence number.
    BRAID_UNTIL_SEQNO = 1,
    /// The transactions that were durable at a time, in microseconds since 1970, as precisely as
    /// the archive records times.
    BRAID_UNTIL_TIME = 2,
}

/// Source and target point of `braid_restore`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_restore_options {
    /// Paths of the backup files: the full backup first, then the incremental backups from the
    /// oldest to the newest.
    pub backups: *const *const c_char,
    /// Number of backups.
    pub backup_count: usize,
    /// NULL, or as many sources as there are backups. A source whose `read` is set replaces the
    /// path with the same index, which may then be NULL.
    pub streams: *const braid_source,
    /// Directory of the archive, see `braid_options_set_archive`; NULL for no archive.
    pub archive: *const c_char,
    /// A `braid_until`.
    pub until: c_int,
    /// Sequence number or time of the point, depending on `until`.
    pub until_value: u64,
    /// How the medium is accessed: a `braid_device` other than `BRAID_DEVICE_MEMORY`.
    pub device: c_int,
    /// Memory for pages while the archive is replayed, in bytes, at least 512 KiB; 0 for 64 MiB.
    pub pool_bytes: usize,
    /// Receives the progress, on this thread; may be NULL.
    pub progress: braid_backup_callback,
    /// Passed to `progress`.
    pub data: *mut c_void,
    /// Permissions of the database's files, see `BRAID_OPTION_FILE_MODE`; 0 for 0600.
    pub file_mode: u32,
    /// New directories of the tablespaces of the last backup; NULL if it has none.
    pub tablespaces: *const braid_tablespace_directory,
    /// Number of those.
    pub tablespace_count: usize,
}

/// New directory of a tablespace that `braid_restore` restores.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_tablespace_directory {
    /// Name of the tablespace.
    pub name: *const c_char,
    /// The directory, which is empty or does not exist.
    pub directory: *const c_char,
    /// A directory for the log alone, which is empty or does not exist, of a tablespace that has a log of
    /// its own; NULL: the log is with the data.
    pub log_directory: *const c_char,
}

/// Result of a restore.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_restore_report {
    /// The database contains exactly the transactions up to this sequence number. Later
    /// transactions get greater numbers.
    pub seqno: u64,
    /// Sequence number up to which the backups reach.
    pub backup_seqno: u64,
    /// Number of pages read from the backups.
    pub pages: u64,
    /// Number of transactions replayed from the archive.
    pub transactions: u64,
}

impl braid_restore_report {
    fn of(report: &RestoreReport) -> Self {
        Self {
            seqno: report.seqno,
            backup_seqno: report.backup_seqno,
            pages: report.pages,
            transactions: report.transactions,
        }
    }
}

fn tell(callback: braid_backup_callback, data: UserData) -> impl Fn(BackupProgress) {
    move |progress| {
        let progress = braid_backup_progress {
            pages: progress.pages,
            pages_total: progress.pages_total,
        };
        if let Some(callback) = callback {
            // SAFETY: the contract of the function that was given the callback.
            unsafe { callback(data.get(), &progress) }
        }
    }
}

/// Makes a backup while the database is in use. If `parent` is NULL, the backup is full. If
/// `parent` is the path of an earlier backup of this database, the backup contains only the pages
/// that changed since then. `path` is a file that must not exist yet, or an existing directory, in
/// which the backup is named `backup-NUMBER.braid`. The file gets its name only once it is complete
/// and durable.
///
/// The function calls `progress` with `data` on this thread. `progress` and `report` may be NULL.
/// To restore an incremental backup, `braid_restore` also needs its parent, and all backups that
/// the parent builds on.
///
/// # Safety
///
/// `path` and `parent` are NULL or strings that end with a NUL; `progress` may be called with
/// `data` and must not unwind or call `longjmp`; `report` is NULL or points to writable memory for
/// it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_backup(
    db: *mut braid_db,
    path: *const c_char,
    parent: *const c_char,
    progress: braid_backup_callback,
    data: *mut c_void,
    report: *mut braid_backup_report,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (path, parent) = unsafe { (memory::path(path)?, optional_path(parent)?) };
        // SAFETY: this function's contract.
        let mut out = unsafe { Optional::new(report) };
        let database = database(db)?;
        let database = database.current();
        let backup = backup_of(&database, parent, progress, data);
        out.set(braid_backup_report::of(&backup.to_path(path)?));
        Ok(BRAID_OK)
    })
}

fn backup_of<'a>(
    database: &'a Database,
    parent: Option<&Path>,
    progress: braid_backup_callback,
    data: *mut c_void,
) -> Backup<'a> {
    let backup = database.backup_options();
    let backup = match parent {
        Some(parent) => backup.incremental_from(parent),
        None => backup,
    };
    backup.progress(tell(progress, UserData::new(data)))
}

/// Makes a backup as `braid_db_backup` does, and passes it to `write` in parts, on this thread, in
/// the format of a backup file: for a pipe, a socket, or the storage of another program. A restore
/// detects a backup that is incomplete. `data` is passed to `write` and to `progress`.
///
/// # Safety
///
/// `parent` is NULL or a string that ends with a NUL; `write` and `progress` may be called with
/// `data` and must not unwind or call `longjmp`; `report` is NULL or points to writable memory for
/// it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_backup_to(
    db: *mut braid_db,
    write: braid_write_callback,
    parent: *const c_char,
    progress: braid_backup_callback,
    data: *mut c_void,
    report: *mut braid_backup_report,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (mut sink, parent) = unsafe { (Sink::new(write, data)?, optional_path(parent)?) };
        // SAFETY: this function's contract.
        let mut out = unsafe { Optional::new(report) };
        let database = database(db)?;
        let database = database.current();
        let backup = backup_of(&database, parent, progress, data);
        out.set(braid_backup_report::of(&backup.to_writer(&mut sink)?));
        Ok(BRAID_OK)
    })
}

/// Reads the description in a backup file, without reading its pages.
///
/// # Safety
///
/// `path` is NULL or a string that ends with a NUL; `info` is NULL or points to writable memory for
/// it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_backup_read_info(
    path: *const c_char,
    info: *mut braid_backup_info,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (path, mut out) = unsafe { (memory::path(path)?, Out::new(info, "info")?) };
        let info = braid::backup::info(path)?;
        let since = info.time.duration_since(SystemTime::UNIX_EPOCH);
        out.set(braid_backup_info {
            identity: info.identity.to_le_bytes(),
            seqno: info.seqno,
            time_us: microseconds(since.unwrap_or_default()),
            is_incremental: info.parent.is_some(),
            parent: info.parent.unwrap_or(0),
            pages: info.pages,
        });
        Ok(BRAID_OK)
    })
}

/// Restores a database from backups, and from an archive if one is given, into a directory that is
/// empty or does not exist. When the function returns `BRAID_OK`, everything is durable. `report`
/// may be NULL. If the function fails, the directory does not contain a usable database; empty it
/// before the next attempt. For `BRAID_BACKUP`, the message says what is wrong with the backups,
/// the archive, the requested point or the directory.
///
/// To restore a backup from a stream, set a `read` function at its place in `streams` of the
/// options. The function returns up to the requested number of bytes, 0 at the end, or -1 on an
/// error (`BRAID_IO`). A chain can mix files and streams. `file_mode` of the options sets the
/// permissions of the database's files, as `BRAID_OPTION_FILE_MODE` does. `tablespaces` of the options
/// names a new directory for each tablespace of the last backup.
///
/// # Safety
///
/// `options` is NULL or points to options, whose `backups` point to `backup_count` strings that end
/// with a NUL, as `archive` does unless it is NULL, whose `streams` are NULL or point to as many
/// sources, which give no more than they are asked for, whose `tablespaces` point to
/// `tablespace_count` groups of such strings or, for `log_directory`, NULL, and whose `progress` may be called with `data`; no callback may unwind or call `longjmp`; `path` is NULL or a string that ends with a
/// NUL; `report` is NULL or points to writable memory for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_restore(
    options: *const braid_restore_options,
    path: *const c_char,
    report: *mut braid_restore_report,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let (path, mut out) = unsafe { (memory::path(path)?, Optional::new(report)) };
        // SAFETY: this function's contract.
        let restore = unsafe { required(options, "options")?.parse() }?;
        out.set(braid_restore_report::of(&restore.run(path)?));
        Ok(BRAID_OK)
    })
}

/// Archives everything that is durable now, durably. `seqno`, which may be NULL, is set to the
/// sequence number up to which the archive goes. Returns `BRAID_NOT_FOUND` if the database was
/// opened without an archive.
///
/// # Safety
///
/// `seqno` is NULL or points to writable memory for the number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_db_archive_now(db: *mut braid_db, seqno: *mut u64) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Optional::new(seqno) };
        Ok(match database(db)?.current().archive_now()? {
            Some(archived) => {
                out.set(archived);
                BRAID_OK
            }
            None => BRAID_NOT_FOUND,
        })
    })
}

/// # Safety
///
/// As for [`memory::path`].
unsafe fn optional_path<'a>(string: *const c_char) -> Outcome<Option<&'a Path>> {
    if string.is_null() {
        Ok(None)
    } else {
        // SAFETY: this function's contract.
        unsafe { memory::path(string) }.map(Some)
    }
}

impl braid_restore_options {
    /// # Safety
    ///
    /// As for [`braid_restore`].
    unsafe fn parse(&self) -> Outcome<Restore<'_>> {
        let mut restore = Restore::new();
        // SAFETY: this function's contract.
        let backups = unsafe { memory::elements(self.backups, self.backup_count, "backups") }?;
        let streams = if self.streams.is_null() {
            &[]
        } else {
            // SAFETY: the same.
            unsafe { memory::elements(self.streams, self.backup_count, "streams") }?
        };
        for (index, backup) in backups.iter().enumerate() {
            // SAFETY: the same.
            let stream = streams
                .get(index)
                .and_then(|stream| unsafe { stream.open() });
            restore = match stream {
                Some(stream) => restore.stream(stream),
                // SAFETY: the same.
                None => restore.backup(unsafe { memory::path(*backup) }?),
            };
        }
        // SAFETY: this function's contract.
        if let Some(archive) = unsafe { optional_path(self.archive) }? {
            restore = restore.archive(archive);
        }
        // SAFETY: this function's contract.
        let spaces =
            unsafe { memory::elements(self.tablespaces, self.tablespace_count, "tablespaces") }?;
        for space in spaces {
            // SAFETY: the same.
            let (name, directory) = unsafe {
                (
                    memory::text(space.name, "name")?,
                    memory::path(space.directory)?,
                )
            };
            restore = restore.tablespace_directory(name, directory);
            if !space.log_directory.is_null() {
                // SAFETY: the same.
                let log = unsafe { memory::path(space.log_directory) }?;
                restore = restore.tablespace_log_directory(name, log);
            }
        }
        restore = restore.until(self.parse_until()?);
        let medium = u64::try_from(self.device).ok().and_then(device);
        let medium = medium.filter(|medium| *medium != braid::device::DeviceChoice::Memory);
        let no_device = || {
            Failure::argument(format!(
                "cannot restore to device {}: choose a device that stores files",
                self.device
            ))
        };
        restore = restore.device(medium.ok_or_else(no_device)?);
        if self.pool_bytes > 0 {
            restore = restore.pool_bytes(self.pool_bytes);
        }
        if self.file_mode > 0 {
            restore = restore.file_mode(self.file_mode);
        }
        Ok(restore.progress(tell(self.progress, UserData::new(self.data))))
    }

    fn parse_until(&self) -> Outcome<Until> {
        use braid_until::*;
        let (until, value) = (self.until, self.until_value);
        if until == BRAID_UNTIL_END as c_int {
            Ok(Until::End)
        } else if until == BRAID_UNTIL_SEQNO as c_int {
            Ok(Until::Seqno(value))
        } else if until == BRAID_UNTIL_TIME as c_int {
            let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(value));
            let too_late = || {
                Failure::argument(format!(
                    "cannot restore up to time {value}: it is out of range"
                ))
            };
            Ok(Until::Time(time.ok_or_else(too_late)?))
        } else {
            let what = format!("invalid until {until}: use one of the BRAID_UNTIL constants");
            Err(Failure::argument(what))
        }
    }
}
