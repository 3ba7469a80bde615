//! The status codes.

use std::ffi::{CStr, c_char, c_int};

use braid::Error;

/// Status returned by a function. Negative numbers are errors, which `braid_error_message`
/// explains; positive ones are outcomes that are not errors.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_status {
    /// Success.
    BRAID_OK = 0,
    /// There is no such key or name.
    BRAID_NOT_FOUND = 1,
    /// The key already exists; nothing was written.
    BRAID_EXISTS = 2,
    /// The key has another value than expected; nothing was written.
    BRAID_MISMATCH = 3,
    /// The outcome is not known yet.
    BRAID_PENDING = 4,
    /// The cursor has returned all entries, or the reader all current changes.
    BRAID_END = 5,

    /// A required argument is NULL. Nothing was done.
    BRAID_NULL_ARGUMENT = -1,
    /// An argument has an invalid value. Nothing was done.
    BRAID_INVALID_ARGUMENT = -2,
    /// The argument is not a handle, or a handle of another kind. Nothing was done.
    BRAID_INVALID_HANDLE = -3,
    /// The handle was freed, closed, committed or aborted before. Nothing was done.
    BRAID_STALE_HANDLE = -4,
    /// Another thread is using this handle in a call. Nothing was done.
    BRAID_BUSY = -5,
    /// A bug made the library panic; the operation may be incomplete. Committed data is as durable
    /// as before; close the database and open it again.
    BRAID_PANIC = -6,

    /// The transaction lost against a concurrent one and left no trace. Run it again.
    BRAID_CONFLICT = -10,
    /// Bytes on disk differ from what was written.
    BRAID_CORRUPTED = -11,
    /// The medium, or the configured limit, is full. Nothing was written, nothing is lost.
    BRAID_OUT_OF_SPACE = -12,
    /// An earlier write or sync failed, so Braid can promise nothing further: the database is
    /// read-only until it is closed and opened again.
    BRAID_POISONED = -13,
    /// The database was written by a version, or with options, that this build does not support.
    BRAID_INCOMPATIBLE = -14,
    /// Another process, or another handle of this process, has the database open.
    BRAID_LOCKED = -15,
    /// The directory exists but contains no Braid database.
    BRAID_NOT_A_DATABASE = -16,
    /// The file system does not allow writes.
    BRAID_READ_ONLY = -17,
    /// The key is longer than `BRAID_MAX_KEY_LEN` (8 KiB).
    BRAID_KEY_TOO_LONG = -18,
    /// The value is longer than `BRAID_MAX_VALUE_LEN`.
    BRAID_VALUE_TOO_LONG = -19,
    /// The writes of the transaction exceed the configured limit.
    BRAID_TRANSACTION_TOO_LARGE = -20,
    /// There is no table of this name.
    BRAID_TABLE_NOT_FOUND = -21,
    /// There is already a table of this name.
    BRAID_TABLE_EXISTS = -22,
    /// The table was dropped after the handle was opened.
    BRAID_TABLE_DROPPED = -23,
    /// The table's name is empty or longer than `BRAID_MAX_TABLE_NAME_LEN`.
    BRAID_TABLE_NAME = -24,
    /// The keys or values of the table are not byte strings: a program in another language created
    /// it.
    BRAID_TABLE_TYPE = -25,
    /// The table belongs to another database than the transaction or snapshot.
    BRAID_FOREIGN_TABLE = -26,
    /// An option is out of range.
    BRAID_OPTIONS = -27,
    /// The database was closed.
    BRAID_CLOSED = -28,
    /// The operating system refused an operation.
    BRAID_IO = -29,
    /// The last checkpoint failed. Commits continue while the log has space; Braid retries the
    /// checkpoint.
    BRAID_CHECKPOINT_FAILING = -30,
    /// An error that this version of the interface has no number for.
    BRAID_OTHER = -31,
    /// The database was opened with `BRAID_OPTION_READ_ONLY` and cannot be written.
    BRAID_OPENED_READ_ONLY = -32,
    /// The savepoint belongs to another transaction, or the transaction rolled back to an earlier
    /// point.
    BRAID_INVALID_SAVEPOINT = -33,
    /// The key is not greater than the key loaded before it.
    BRAID_OUT_OF_ORDER = -34,
    /// The table was created with options other than the requested ones.
    BRAID_TABLE_OPTIONS = -35,
    /// There is already a snapshot of this name.
    BRAID_SNAPSHOT_EXISTS = -36,
    /// No snapshot of this name was created since the database was opened.
    BRAID_SNAPSHOT_NOT_FOUND = -37,
    /// The changes after the position are gone: read the tables from scratch.
    BRAID_POSITION_LOST = -38,
    /// The position belongs to another database.
    BRAID_FOREIGN_POSITION = -39,
    /// There is no feed of this name.
    BRAID_FEED_NOT_FOUND = -40,
    /// A backup or an archive cannot be made or used; the message says why, and what to do.
    BRAID_BACKUP = -41,
    /// The archive cannot be written. Commits continue while the log, which is kept for it, has
    /// space; Braid retries.
    BRAID_ARCHIVE_FAILING = -42,
    /// A transaction cannot lock a key, because another open transaction of the same thread holds
    /// the key's lock: the thread would wait for itself forever. Commit or abort that transaction
    /// first.
    BRAID_SELF_DEADLOCK = -43,
    /// The parent process opened the database: a child made by `fork` cannot use it. Nothing was
    /// done.
    BRAID_FORKED = -44,
    /// A transaction could not lock a key, because another transaction held its lock for as long as
    /// this one was willing to wait (`BRAID_OPTION_LOCK_TIMEOUT_US`, or `lock_timeout_us` of its
    /// options). Repeat the operation, or abort the transaction and run it again.
    BRAID_LOCK_TIMEOUT = -45,
    /// Braid ended the snapshot, because old versions took more memory than
    /// `BRAID_OPTION_MAX_VERSION_BYTES` allows. Free the snapshot or abort the transaction, and begin
    /// another.
    BRAID_SNAPSHOT_TOO_OLD = -46,
    /// The directory of the log is missing, belongs to another database, or cannot be used; the
    /// message says why, and what to do. Nothing was changed.
    BRAID_LOG_DIRECTORY = -47,
    /// A tablespace is missing, belongs to another database or another state of this one, cannot be
    /// used, does not exist or exists; or the operation does not support tablespaces. The message
    /// names the tablespace, and says what to do.
    BRAID_TABLESPACE = -48,
}

use braid_status::*;

const ALL: &[(braid_status, &CStr)] = &[
    (BRAID_OK, c"BRAID_OK"),
    (BRAID_NOT_FOUND, c"BRAID_NOT_FOUND"),
    (BRAID_EXISTS, c"BRAID_EXISTS"),
    (BRAID_MISMATCH, c"BRAID_MISMATCH"),
    (BRAID_PENDING, c"BRAID_PENDING"),
    (BRAID_END, c"BRAID_END"),
    (BRAID_NULL_ARGUMENT, c"BRAID_NULL_ARGUMENT"),
    (BRAID_INVALID_ARGUMENT, c"BRAID_INVALID_ARGUMENT"),
    (BRAID_INVALID_HANDLE, c"BRAID_INVALID_HANDLE"),
    (BRAID_STALE_HANDLE, c"BRAID_STALE_HANDLE"),
    (BRAID_BUSY, c"BRAID_BUSY"),
    (BRAID_PANIC, c"BRAID_PANIC"),
    (BRAID_CONFLICT, c"BRAID_CONFLICT"),
    (BRAID_CORRUPTED, c"BRAID_CORRUPTED"),
    (BRAID_OUT_OF_SPACE, c"BRAID_OUT_OF_SPACE"),
    (BRAID_POISONED, c"BRAID_POISONED"),
    (BRAID_INCOMPATIBLE, c"BRAID_INCOMPATIBLE"),
    (BRAID_LOCKED, c"BRAID_LOCKED"),
    (BRAID_NOT_A_DATABASE, c"BRAID_NOT_A_DATABASE"),
    (BRAID_READ_ONLY, c"BRAID_READ_ONLY"),
    (BRAID_KEY_TOO_LONG, c"BRAID_KEY_TOO_LONG"),
    (BRAID_VALUE_TOO_LONG, c"BRAID_VALUE_TOO_LONG"),
    (BRAID_TRANSACTION_TOO_LARGE, c"BRAID_TRANSACTION_TOO_LARGE"),
    (BRAID_TABLE_NOT_FOUND, c"BRAID_TABLE_NOT_FOUND"),
    (BRAID_TABLE_EXISTS, c"BRAID_TABLE_EXISTS"),
    (BRAID_TABLE_DROPPED, c"BRAID_TABLE_DROPPED"),
    (BRAID_TABLE_NAME, c"BRAID_TABLE_NAME"),
    (BRAID_TABLE_TYPE, c"BRAID_TABLE_TYPE"),
    (BRAID_FOREIGN_TABLE, c"BRAID_FOREIGN_TABLE"),
    (BRAID_OPTIONS, c"BRAID_OPTIONS"),
    (BRAID_CLOSED, c"BRAID_CLOSED"),
    (BRAID_IO, c"BRAID_IO"),
    (BRAID_CHECKPOINT_FAILING, c"BRAID_CHECKPOINT_FAILING"),
    (BRAID_OTHER, c"BRAID_OTHER"),
    (BRAID_OPENED_READ_ONLY, c"BRAID_OPENED_READ_ONLY"),
    (BRAID_INVALID_SAVEPOINT, c"BRAID_INVALID_SAVEPOINT"),
    (BRAID_OUT_OF_ORDER, c"BRAID_OUT_OF_ORDER"),
    (BRAID_TABLE_OPTIONS, c"BRAID_TABLE_OPTIONS"),
    (BRAID_SNAPSHOT_EXISTS, c"BRAID_SNAPSHOT_EXISTS"),
    (BRAID_SNAPSHOT_NOT_FOUND, c"BRAID_SNAPSHOT_NOT_FOUND"),
    (BRAID_POSITION_LOST, c"BRAID_POSITION_LOST"),
    (BRAID_FOREIGN_POSITION, c"BRAID_FOREIGN_POSITION"),
    (BRAID_FEED_NOT_FOUND, c"BRAID_FEED_NOT_FOUND"),
    (BRAID_BACKUP, c"BRAID_BACKUP"),
    (BRAID_ARCHIVE_FAILING, c"BRAID_ARCHIVE_FAILING"),
    (BRAID_SELF_DEADLOCK, c"BRAID_SELF_DEADLOCK"),
    (BRAID_FORKED, c"BRAID_FORKED"),
    (BRAID_LOCK_TIMEOUT, c"BRAID_LOCK_TIMEOUT"),
    (BRAID_SNAPSHOT_TOO_OLD, c"BRAID_SNAPSHOT_TOO_OLD"),
    (BRAID_LOG_DIRECTORY, c"BRAID_LOG_DIRECTORY"),
    (BRAID_TABLESPACE, c"BRAID_TABLESPACE"),
];

/// Returns the status for an error of the engine.
pub(crate) fn of_error(error: &Error) -> braid_status {
    match error {
        Error::Conflict(_) => BRAID_CONFLICT,
        Error::Corrupted { .. } | Error::Decode { .. } => BRAID_CORRUPTED,
        Error::OutOfSpace { .. } => BRAID_OUT_OF_SPACE,
        Error::Poisoned { .. } => BRAID_POISONED,
        Error::Incompatible { .. } => BRAID_INCOMPATIBLE,
        Error::Locked { .. } => BRAID_LOCKED,
        Error::NotADatabase { .. } => BRAID_NOT_A_DATABASE,
        Error::LogDirectory { .. } => BRAID_LOG_DIRECTORY,
        Error::Tablespace(_) => BRAID_TABLESPACE,
        Error::ReadOnly { .. } => BRAID_READ_ONLY,
        Error::KeyTooLong { .. } => BRAID_KEY_TOO_LONG,
        Error::ValueTooLong { .. } => BRAID_VALUE_TOO_LONG,
        Error::TransactionTooLarge { .. } => BRAID_TRANSACTION_TOO_LARGE,
        Error::TableNotFound { .. } => BRAID_TABLE_NOT_FOUND,
        Error::TableExists { .. } => BRAID_TABLE_EXISTS,
        Error::TableDropped { .. } => BRAID_TABLE_DROPPED,
        Error::InvalidTableName { .. } => BRAID_TABLE_NAME,
        Error::TableTypeMismatch { .. } => BRAID_TABLE_TYPE,
        Error::ForeignTable { .. } => BRAID_FOREIGN_TABLE,
        Error::InvalidOption { .. } => BRAID_OPTIONS,
        Error::Closed => BRAID_CLOSED,
        Error::Forked => BRAID_FORKED,
        Error::Io { .. } => BRAID_IO,
        Error::OpenedReadOnly => BRAID_OPENED_READ_ONLY,
        Error::InvalidSavepoint => BRAID_INVALID_SAVEPOINT,
        Error::OutOfOrder { .. } => BRAID_OUT_OF_ORDER,
        Error::TableOptionsMismatch { .. } => BRAID_TABLE_OPTIONS,
        Error::SnapshotExists { .. } => BRAID_SNAPSHOT_EXISTS,
        Error::SnapshotNotFound { .. } => BRAID_SNAPSHOT_NOT_FOUND,
        Error::PositionLost { .. } => BRAID_POSITION_LOST,
        Error::ForeignPosition { .. } => BRAID_FOREIGN_POSITION,
        Error::FeedNotFound { .. } => BRAID_FEED_NOT_FOUND,
        Error::SeqnoNotFound { .. } => BRAID_INVALID_ARGUMENT,
        Error::Backup(_) => BRAID_BACKUP,
        Error::SelfDeadlock => BRAID_SELF_DEADLOCK,
        Error::LockTimeout { .. } => BRAID_LOCK_TIMEOUT,
        Error::SnapshotTooOld { .. } => BRAID_SNAPSHOT_TOO_OLD,
        _ => BRAID_OTHER,
    }
}

/// Returns the name of a status, such as `"BRAID_CONFLICT"`, or `"unknown"` for a number that is
/// not a status.
#[unsafe(no_mangle)]
pub extern "C" fn braid_status_name(status: c_int) -> *const c_char {
    let found = ALL.iter().find(|(known, _)| *known as c_int == status);
    found.map_or(c"unknown", |(_, name)| name).as_ptr()
}

/// Returns whether running the same transaction again can succeed without any other change.
#[unsafe(no_mangle)]
pub extern "C" fn braid_status_is_retryable(status: c_int) -> bool {
    [BRAID_CONFLICT, BRAID_LOCK_TIMEOUT, BRAID_SNAPSHOT_TOO_OLD]
        .iter()
        .any(|retryable| *retryable as c_int == status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid::ConflictKind;
    use std::time::Duration;

    #[test]
    fn each_status_has_a_number_and_a_name_of_its_own() {
        for (i, (status, name)) in ALL.iter().enumerate() {
            assert_eq!(format!("{status:?}"), name.to_str().unwrap());
            assert!(ALL[..i].iter().all(|(other, _)| other != status));
        }
    }

    #[test]
    fn retryable_errors_of_the_engine_are_retryable() {
        let errors = [
            Error::Conflict(ConflictKind::Deadlock),
            Error::Closed,
            Error::SelfDeadlock,
            Error::LockTimeout {
                timeout: Duration::ZERO,
            },
            Error::SnapshotTooOld { seqno: 1, max: 2 },
            Error::OutOfSpace { what: "".into() },
        ];
        for error in errors {
            let status = of_error(&error) as c_int;
            assert_eq!(braid_status_is_retryable(status), error.is_retryable());
        }
    }
}
