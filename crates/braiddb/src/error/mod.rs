//! Errors of database operations, with advice.

mod backup;
mod tablespace;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use braid_io::{Refused, VolumeFault};
use braid_log::LogError;
use braid_store::{MissingPages, StoreError};

pub use self::backup::BackupError;
pub use self::tablespace::TablespaceError;

/// The result of a database operation.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// fn ages(db: &braid::Database) -> braid::Result<braid::Table<String, u8>> {
///     db.open_table("ages")
/// }
/// ages(&db)?;
/// # Ok(())
/// # }
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason of a conflict between transactions.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
/// use braid::{ConflictKind, Error, Readable};
/// let mut tx = db.begin();
/// tx.get(&t, &1)?;
/// db.transact(|other| other.insert(&t, &1, "other"))?;
/// tx.insert(&t, &2, "mine")?;
/// assert!(matches!(tx.commit(), Err(Error::Conflict(ConflictKind::Read))));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConflictKind {
    /// Another transaction overwrote a key that this one read, before this one committed.
    Read,
    /// Another transaction inserted or removed keys in a range that this one scanned, before this
    /// one committed.
    Range,
    /// Two transactions waited for each other's locks; this one was chosen to fail.
    Deadlock,
    /// Under snapshot isolation: another transaction wrote the key after this one's snapshot.
    Write,
    /// A table that the transaction used moved to another tablespace before the transaction
    /// committed; see [`Database::move_table`](crate::Database::move_table).
    Moved,
}

impl fmt::Display for ConflictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConflictKind::Read => "a key it read was overwritten",
            ConflictKind::Range => "a range it scanned was changed",
            ConflictKind::Deadlock => "it was in a deadlock",
            ConflictKind::Write => "a key it wants to write changed after its snapshot",
            ConflictKind::Moved => "a table that it used moved to another tablespace",
        })
    }
}

/// Error of a database operation.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
/// use braid::Error;
/// match db.open_table::<String, u64>("t") {
///     Err(Error::TableTypeMismatch { found, asked, .. }) => println!("it holds {found}, not {asked}"),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The transaction conflicts with a concurrent one and left no trace. Retry it, as
    /// [`crate::Database::transact`] does.
    #[error("the transaction conflicts with a concurrent one: {0}; run it again")]
    Conflict(ConflictKind),

    /// A transaction cannot lock a key, because another open transaction that the same thread used
    /// last holds the lock: the thread would wait for itself forever. Commit or abort one of them,
    /// or write through a single transaction.
    ///
    /// The transaction that gets this error stays open and keeps its earlier writes. A commit that
    /// gets this error has ended its transaction without a trace. If another thread uses the
    /// transaction that holds the lock within 100 milliseconds, Braid waits for the lock instead.
    #[error(
        "cannot lock a key: another open transaction of this thread holds its lock; commit or abort that transaction first, or write through it"
    )]
    SelfDeadlock,

    /// A transaction could not lock a key, because another transaction held the lock for as long as
    /// this one was willing to wait; see [`Builder::lock_timeout`](crate::Builder::lock_timeout).
    ///
    /// The transaction that gets this error stays open and keeps its locks and earlier writes: it
    /// can repeat the operation, or abort and run again. A commit that gets this error has ended its
    /// transaction without a trace. [`Database::transact`](crate::Database::transact) returns the
    /// error without a retry.
    #[error(
        "cannot lock a key: another transaction held its lock for {timeout:?}, the lock time-out; run the transaction again, or wait longer (lock_timeout)"
    )]
    LockTimeout {
        /// Time for which the transaction waited.
        timeout: Duration,
    },

    /// Bytes on disk differ from those that were written.
    #[error(
        "corrupted: {what} ({location}); verify the database, then restore a backup or salvage what can be read"
    )]
    Corrupted {
        /// What is damaged.
        what: String,
        /// File and offset or page.
        location: String,
    },

    /// The medium, or the configured limit, is full. Nothing was written and nothing is lost; the
    /// contents of memory and of the data file can be read. Writes succeed again once space is
    /// freed. A checkpoint frees space of the log, and blocks of the data file whose pages were
    /// changed or removed. Transactions that only remove entries are refused last.
    #[error("out of space: {what}; free space or raise the limit, then retry")]
    OutOfSpace {
        /// What needed the space.
        what: String,
    },

    /// An earlier write or sync failed, so no further commit can be durable (fail-stop). The
    /// database is read-only until it is reopened, which recovers every acknowledged transaction.
    ///
    /// A checkpoint, or reading a page, also fails with it after a failed sync of a data file. Then
    /// commits continue, because the log has them, while there is log space;
    /// [`Health::CheckpointFailing`](crate::Health::CheckpointFailing) has the same error.
    #[error("poisoned by an earlier failure: {cause}; close and reopen the database")]
    Poisoned {
        /// The first failure.
        cause: String,
    },

    /// The database was written by a version or with options that this build does not support.
    #[error("{what}")]
    Incompatible {
        /// What is incompatible, and what to do.
        what: String,
    },

    /// Another process, or another handle of this process, has the database open.
    #[error("cannot open {}: it is in use by {}; close it there first", path.display(), holder_name(*holder))]
    Locked {
        /// The directory of the database, or of the archive.
        path: PathBuf,
        /// The process that has it open, if the system reports it.
        holder: Option<u32>,
    },

    /// The directory is missing, or does not contain a Braid database.
    #[error("cannot open {} as a Braid database: {reason}", directory_name(path))]
    NotADatabase {
        /// The directory; empty on a device.
        path: PathBuf,
        /// What was found instead.
        reason: String,
    },

    /// The directory of the log, see [`Builder::log_directory`](crate::Builder::log_directory), is
    /// missing, belongs to another database, or cannot be used. Nothing was changed.
    #[error("cannot use {} as the directory of the log: {reason}", path.display())]
    LogDirectory {
        /// The directory.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },

    /// The file system does not allow writes.
    #[error("cannot write to {}: the directory or its file system is read-only; open the database read-only, or make the directory writable", path.display())]
    ReadOnly {
        /// The database's directory.
        path: PathBuf,
    },

    /// A key is longer than [`crate::MAX_KEY_LEN`].
    #[error(
        "cannot write a key of {len} bytes: the limit is {max}; shorten it, or store the long part in the value"
    )]
    KeyTooLong {
        /// The key's length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },

    /// A value is longer than [`crate::MAX_VALUE_LEN`], or than that less 9 bytes in a table with
    /// [`crate::base::table_options::TableOptions`].
    #[error(
        "cannot write a value of {len} bytes: the limit is {max}; divide it among several entries"
    )]
    ValueTooLong {
        /// The value's length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },

    /// The transaction's writes are over the configured limit.
    #[error(
        "cannot add the write to the transaction: its writes would exceed {max} bytes; split it, or raise transaction_bytes_max"
    )]
    TransactionTooLarge {
        /// The limit in bytes.
        max: usize,
    },

    /// Entries of a bulk load are not in ascending order of their encoded keys.
    #[error(
        "cannot load key {key} after {before}: keys must ascend; sort the entries, each key once, and load them again"
    )]
    OutOfOrder {
        /// The key's encoded bytes, escaped.
        key: String,
        /// The previous key's encoded bytes, escaped.
        before: String,
    },

    /// The savepoint belongs to another transaction, or the transaction was rolled back to an
    /// earlier point.
    #[error(
        "cannot roll back to the savepoint: it belongs to another transaction, or this one has rolled back to an earlier point; set a new savepoint"
    )]
    InvalidSavepoint,

    /// There is no table of this name.
    #[error("there is no table {name:?}; check the name, or create it")]
    TableNotFound {
        /// The requested name.
        name: String,
    },

    /// There is already a table of this name.
    #[error("cannot create table {name:?}: it exists; open it, or choose another name")]
    TableExists {
        /// The requested name.
        name: String,
    },

    /// The table was dropped while this handle was held.
    #[error("cannot use table {name:?}: it was dropped; open it again if it was created again")]
    TableDropped {
        /// The table's last name.
        name: String,
    },

    /// The table's name is empty or over [`crate::MAX_TABLE_NAME_LEN`].
    #[error("invalid table name {name:?}: must be 1 to {max} bytes long", max = crate::base::limits::MAX_TABLE_NAME_LEN)]
    InvalidTableName {
        /// The requested name.
        name: String,
    },

    /// The table has other types than those requested.
    #[error(
        "cannot open table {name:?}: it holds {found}, not {asked}; request the types that it holds"
    )]
    TableTypeMismatch {
        /// The table's name.
        name: String,
        /// Its types as stored, `key -> value`.
        found: String,
        /// The requested types.
        asked: String,
    },

    /// The table was created with other options than those requested.
    #[error(
        "cannot open table {name:?}: it was created with {found:?}, not {asked:?}; request the same options, or none"
    )]
    TableOptionsMismatch {
        /// The table's name.
        name: String,
        /// Its options.
        found: Box<crate::base::table_options::TableOptions>,
        /// The requested options.
        asked: Box<crate::base::table_options::TableOptions>,
    },

    /// A table handle of another database was used.
    #[error(
        "cannot use table {name:?}: the handle belongs to another database; open the table in this one"
    )]
    ForeignTable {
        /// The table's name.
        name: String,
    },

    /// Stored bytes do not decode as the table's type.
    #[error(
        "cannot decode stored bytes as {type_name}: {reason}; read the table with the types that it was written with"
    )]
    Decode {
        /// The requested type.
        type_name: &'static str,
        /// Why decoding failed.
        reason: String,
    },

    /// An option is out of its range.
    #[error("invalid option {option}: {reason}")]
    InvalidOption {
        /// The option's name.
        option: &'static str,
        /// The allowed values.
        reason: String,
    },

    /// There is already a snapshot of this name.
    #[error("cannot create snapshot {name:?}: it exists; drop it, or choose another name")]
    SnapshotExists {
        /// The requested name.
        name: String,
    },

    /// Braid ended the snapshot, because old versions took more space than
    /// [`Builder::max_version_bytes`](crate::Builder::max_version_bytes) allows. What was read before
    /// is correct.
    ///
    /// A transaction with [`Isolation::Snapshot`](crate::Isolation::Snapshot) that gets this error
    /// can neither read nor write. It can still commit what it has written.
    /// [`Database::transact`](crate::Database::transact) returns the error without a retry.
    #[error(
        "cannot use the snapshot at sequence number {seqno}: Braid ended it, because old versions took more than {max} bytes; begin a new snapshot, or raise max_version_bytes"
    )]
    SnapshotTooOld {
        /// The snapshot's sequence number.
        seqno: u64,
        /// The limit in bytes.
        max: usize,
    },

    /// The log after a position was released: more was written than is kept for readers of changes,
    /// or it was not kept for any reader.
    #[error(
        "cannot read the changes after sequence number {asked}: the log keeps only those after {oldest}; rescan the tables, then resume from a newer position"
    )]
    PositionLost {
        /// The requested sequence number.
        asked: u64,
        /// The oldest sequence number after which changes can be read.
        oldest: u64,
    },

    /// The position belongs to another database, perhaps to the one that this database was restored
    /// from.
    #[error(
        "cannot resume from position {position}: it belongs to another database; rescan the tables, then resume from a position of this one"
    )]
    ForeignPosition {
        /// The position.
        position: crate::base::position::Position,
    },

    /// No transaction of this database has this sequence number yet.
    #[error(
        "cannot wait for sequence number {seqno}: no transaction has it yet, the newest is {newest}; wait for a number that a commit returned"
    )]
    SeqnoNotFound {
        /// The requested sequence number.
        seqno: u64,
        /// The newest sequence number.
        newest: u64,
    },

    /// There is no feed of this name.
    #[error("there is no feed {name:?}; check the name, or create it")]
    FeedNotFound {
        /// The requested name.
        name: String,
    },

    /// There is no snapshot of this name. Named snapshots end when the database is closed.
    #[error(
        "there is no snapshot {name:?}: named snapshots end when the database is closed; create it again"
    )]
    SnapshotNotFound {
        /// The requested name.
        name: String,
    },

    /// The database was opened with [`crate::Database::open_read_only`].
    #[error("cannot write: the database was opened read-only; open it for writing")]
    OpenedReadOnly,

    /// A backup or an archive cannot be made or used.
    #[error(transparent)]
    Backup(BackupError),

    /// A tablespace cannot be created, opened or dropped.
    #[error(transparent)]
    Tablespace(TablespaceError),

    /// The database was closed. A commit that fails with this wrote nothing.
    #[error("the database is closed; open it again")]
    Closed,

    /// The database was opened by a parent of this process. A child made by `fork` cannot use the
    /// inherited database: its files, their lock and its threads belong to the parent.
    #[error(
        "the database was opened by the parent process, and a child made by fork cannot use it; open it in the \
         process that uses it, after the fork"
    )]
    Forked,

    /// A read needs pages that are not in memory, and must not wait for the medium; see
    /// [`Snapshot::set_nonblocking`](crate::Snapshot::set_nonblocking). Load them with
    /// [`Database::load_pages`](crate::Database::load_pages), and read again.
    #[error(
        "cannot read without waiting: {} pages are not in memory; load them on another thread, and read again",
        .0.len()
    )]
    NotInMemory(MissingPages),

    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// Returns whether retrying the same transaction can succeed without any other change.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use braid::{ConflictKind, Error};
    /// assert!(Error::Conflict(ConflictKind::Deadlock).is_retryable());
    /// assert!(!Error::Closed.is_retryable());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Error::Conflict(_) | Error::LockTimeout { .. } | Error::SnapshotTooOld { .. }
        )
    }

    /// Returns the error without advice, for a list of findings.
    pub(crate) fn finding(&self) -> String {
        match self {
            Error::Corrupted { what, location } => format!("corrupted: {what} ({location})"),
            error => error.to_string(),
        }
    }

    /// Returns the error of a locked directory, with the process that locked it.
    pub(crate) fn locked(path: &Path) -> Self {
        Error::Locked {
            path: path.to_owned(),
            holder: braid_io::lock_holder(path),
        }
    }

    /// Converts the error of a volume that cannot be opened, if it is one: the kinds are those of a
    /// directory in the same state.
    pub(crate) fn of_volume(path: &Path, error: &io::Error) -> Option<Self> {
        let path = path.to_owned();
        let what = error.to_string();
        Some(match braid_io::volume_fault(error)? {
            VolumeFault::Claimed => Error::locked(&path),
            VolumeFault::NotAVolume => Error::NotADatabase { path, reason: what },
            VolumeFault::Newer => Error::Incompatible { what },
            VolumeFault::Damaged => Error::Corrupted {
                what,
                location: path.display().to_string(),
            },
        })
    }

    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::of_device(what.into(), Arc::new(source))
    }

    /// Converts an error of a file operation.
    fn of_device(what: String, source: Arc<io::Error>) -> Self {
        match (Refused::of(&source), source.kind()) {
            (Some(Refused::Shut), _) => Error::Closed,
            (Some(Refused::Forked), _) => Error::Forked,
            (None, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
                Error::OutOfSpace { what }
            }
            (None, _) => Error::Io { what, source },
        }
    }
}

/// Returns the path of a directory; a device has none.
fn directory_name(path: &Path) -> String {
    if path.as_os_str().is_empty() {
        return "the device".into();
    }
    path.display().to_string()
}

/// Describes the process that has a directory open.
fn holder_name(holder: Option<u32>) -> String {
    match holder {
        Some(process) if process == std::process::id() => "another handle of this process".into(),
        Some(process) => format!("process {process}"),
        None => "another process or handle".into(),
    }
}

impl From<LogError> for Error {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Poisoned { cause } => Error::Poisoned {
                cause: cause.to_string(),
            },
            LogError::OutOfSpace {
                needed,
                used,
                limit,
                device_full,
                kept_for,
            } => {
                let why = if device_full {
                    "the device is full".to_owned()
                } else {
                    format!("it has {used} of at most {limit} bytes")
                };
                let mut what = format!("cannot append {needed} bytes to the log: {why}");
                if let Some(kept_for) = kept_for {
                    what += &format!(", kept for {kept_for}");
                }
                Error::OutOfSpace { what }
            }
            LogError::Corrupted { what, file, offset } => Error::Corrupted {
                what,
                location: format!("{file}, byte {offset}"),
            },
            LogError::Undecided { what, file, offset } => Error::Corrupted {
                what: format!(
                    "{what}, and only the log of the missing tablespace shows whether a crash left this"
                ),
                location: format!("{file}, byte {offset}"),
            },
            LogError::Incompatible { what } => Error::Incompatible { what },
            LogError::Released { .. } => Error::Corrupted {
                what: error.to_string(),
                location: "log".into(),
            },
            LogError::Options { option, reason } => Error::InvalidOption { option, reason },
            LogError::Io { what, source } => Error::of_device(what, source),
            LogError::Closed => Error::Closed,
            LogError::Forked => Error::Forked,
            error => Error::Io {
                what: "the log".into(),
                source: Arc::new(io::Error::other(error.to_string())),
            },
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Io { what, source } => Error::of_device(what, source),
            StoreError::Corrupted { what, location } => Error::Corrupted { what, location },
            StoreError::OutOfSpace { what } => Error::OutOfSpace { what },
            StoreError::Incompatible { what } => Error::Incompatible { what },
            StoreError::Options { option, reason } => Error::InvalidOption { option, reason },
            StoreError::Poisoned { cause } => Error::Poisoned { cause },
            StoreError::NotInMemory(pages) => Error::NotInMemory(pages),
            StoreError::PoolExhausted => Error::InvalidOption {
                option: "pool_bytes",
                reason: "too small for the pages in use at the same time; make it larger".into(),
            },
            error => Error::Io {
                what: "the data file".into(),
                source: Arc::new(io::Error::other(error.to_string())),
            },
        }
    }
}
