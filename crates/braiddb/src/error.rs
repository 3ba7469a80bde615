//! What can go wrong, and what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::Refused;
use braid_log::LogError;
use braid_store::StoreError;

/// The result of a database operation.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
/// fn ages(db: &braid::Database) -> braid::Result<braid::Table<String, u8>> {
///     db.table("ages")
/// }
/// ages(&db)?;
/// # Ok(())
/// # }
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a transaction lost against another one.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
/// # let t: braid::Table<u32, String> = db.table("t")?;
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
    /// A key that the transaction read was written by another one before this one committed.
    Read,
    /// A range that the transaction scanned got or lost keys before this one committed.
    Range,
    /// Two transactions waited for each other's keys; this one gave way.
    Deadlock,
    /// Under snapshot isolation: a key to be written was changed after the snapshot.
    Write,
}

impl fmt::Display for ConflictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConflictKind::Read => "a key it read was overwritten",
            ConflictKind::Range => "a range it scanned was changed",
            ConflictKind::Deadlock => "it was in a deadlock",
            ConflictKind::Write => "a key it wants to write changed after its snapshot",
        })
    }
}

/// Everything that a database operation can fail with.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
/// # let t: braid::Table<u32, String> = db.table("t")?;
/// use braid::Error;
/// match db.table::<String, u64>("t") {
///     Err(Error::TableType { found, asked, .. }) => println!("it holds {found}, not {asked}"),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The transaction lost against a concurrent one and left no trace. Run it again
    /// ([`crate::Database::transact`] does).
    #[error("the transaction conflicts with a concurrent one: {0}; run it again")]
    Conflict(ConflictKind),

    /// A transaction cannot lock a key, because another open transaction that the same thread used last holds the lock: the
    /// thread would wait for itself forever. Keys share locks by their hash, so the two transactions need not write the
    /// same key. Commit or abort one of them, or write through a single transaction.
    ///
    /// The transaction that gets this error stays open; what it wrote before is not lost. A commit that gets it has ended its
    /// transaction without a trace. If another thread goes on with the transaction that holds the lock within 100
    /// milliseconds, the lock is waited for.
    #[error(
        "cannot lock a key: another open transaction of this thread holds its lock, which keys share by their hash; commit or abort that transaction first, or write through it"
    )]
    SelfDeadlock,

    /// Bytes on disk are not what was written.
    #[error(
        "corrupted: {what} ({location}); verify the database, then restore a backup or salvage what can be read"
    )]
    Corrupted {
        /// What is damaged.
        what: String,
        /// File and offset or page.
        location: String,
    },

    /// The medium, or the configured limit, is full. Nothing was written, nothing is lost, and what is in
    /// memory or in the data file can be read; writes succeed again once space is freed. A checkpoint frees space of the
    /// log, and blocks of the data file whose pages were changed or removed. Transactions that only remove entries are
    /// refused last.
    #[error("out of space: {what}; free space or raise the limit, then retry")]
    OutOfSpace {
        /// What needed the space.
        what: String,
    },

    /// An earlier write or sync failed, so nothing further can be promised (fail stop). The database
    /// is read-only until it is reopened, which recovers every acknowledged transaction.
    #[error("poisoned by an earlier failure: {cause}; close and reopen the database")]
    Poisoned {
        /// The first failure.
        cause: String,
    },

    /// The database was written by a version or with options that this build can't serve.
    #[error("incompatible: {what}")]
    Incompatible {
        /// What does not fit, and what would.
        what: String,
    },

    /// Another process, or another handle of this process, has the database open.
    #[error("cannot open {}: it is in use by {}; close it there first", path.display(), holder_name(*holder))]
    Locked {
        /// The directory of the database, or of the archive.
        path: PathBuf,
        /// The process that has it open, where the system tells.
        holder: Option<u32>,
    },

    /// The directory exists but holds no Braid database.
    #[error("cannot open {} as a Braid database: {reason}", path.display())]
    NotADatabase {
        /// The directory.
        path: PathBuf,
        /// What was found instead.
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
    /// [`crate::TableOptions`].
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

    /// Entries of a bulk load must come in ascending order of their encoded keys.
    #[error(
        "cannot load key {key} after {before}: keys must ascend; sort the entries, each key once, and load them again"
    )]
    OutOfOrder {
        /// The key's encoded bytes, escaped.
        key: String,
        /// Those of the key before.
        before: String,
    },

    /// A savepoint is of another transaction, or was rolled past.
    #[error(
        "cannot roll back to the savepoint: it belongs to another transaction, or this one has rolled back to an earlier point; set a new savepoint"
    )]
    SavepointGone,

    /// There is no table of this name.
    #[error("there is no table {name:?}; check the name, or create it")]
    TableMissing {
        /// The name asked for.
        name: String,
    },

    /// There is already a table of this name.
    #[error("cannot create table {name:?}: it exists; open it, or choose another name")]
    TableExists {
        /// The name asked for.
        name: String,
    },

    /// The table was dropped while this handle was held.
    #[error(
        "cannot use table {name:?}: it was dropped; open the table again if it was created anew"
    )]
    TableDropped {
        /// The table's last name.
        name: String,
    },

    /// The table's name is empty or over [`crate::MAX_TABLE_NAME_LEN`].
    #[error("invalid table name {name:?}: a name has 1 to {max} bytes", max = crate::MAX_TABLE_NAME_LEN)]
    TableName {
        /// The name asked for.
        name: String,
    },

    /// The table holds other types than those asked for.
    #[error(
        "cannot open table {name:?}: it holds {found}, not {asked}; request the types that it holds"
    )]
    TableType {
        /// The table's name.
        name: String,
        /// Its types as stored, `key -> value`.
        found: String,
        /// The types asked for.
        asked: String,
    },

    /// The table was created with other options than those asked for.
    #[error(
        "cannot open table {name:?}: it was created with {found:?}, not {asked:?}; request the same options, or none"
    )]
    TableOptions {
        /// The table's name.
        name: String,
        /// Its options.
        found: Box<crate::TableOptions>,
        /// The options asked for.
        asked: Box<crate::TableOptions>,
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
        /// The type asked for.
        type_name: &'static str,
        /// What does not fit.
        reason: String,
    },

    /// An option is out of its range.
    #[error("invalid option {option}: {reason}")]
    Options {
        /// The option's name.
        option: &'static str,
        /// Which values are allowed.
        reason: String,
    },

    /// There is already a snapshot of this name.
    #[error("cannot create snapshot {name:?}: it exists; drop it, or choose another name")]
    SnapshotExists {
        /// The name asked for.
        name: String,
    },

    /// The log behind a position is not kept any more: more came than is kept for readers of changes, or nobody
    /// had asked for it.
    #[error(
        "cannot read the changes after number {asked}: the log keeps only those after {oldest}; rescan the tables, then resume from a newer position"
    )]
    PositionLost {
        /// The number asked for.
        asked: u64,
        /// The oldest number from which changes can be read.
        oldest: u64,
    },

    /// A position that is not one of this database: of another one, or of one that this was restored from.
    #[error(
        "cannot resume from position {position}: it belongs to another database; rescan the tables, then resume from a position of this one"
    )]
    ForeignPosition {
        /// The position.
        position: crate::changes::Position,
    },

    /// No transaction of this database has this number yet, so nobody can wait for it.
    #[error("no transaction has the number {number}: the newest is {newest}")]
    NumberMissing {
        /// The number asked for.
        number: u64,
        /// The newest number.
        newest: u64,
    },

    /// There is no feed of this name.
    #[error("there is no feed {name:?}; check the name, or create it")]
    FeedMissing {
        /// The name asked for.
        name: String,
    },

    /// There is no snapshot of this name. Snapshots end with the opened database.
    #[error(
        "there is no snapshot {name:?}: named snapshots end when the database is closed; create it again"
    )]
    SnapshotMissing {
        /// The name asked for.
        name: String,
    },

    /// The database was opened with [`crate::Database::open_read_only`].
    #[error("cannot write: the database was opened read-only; open it for writing")]
    OpenedReadOnly,

    /// A backup or an archive is not what is needed; says what to do.
    #[error(transparent)]
    Backup(crate::backup::BackupError),

    /// The database was closed. A commit that fails with this wrote nothing.
    #[error("the database is closed; open it again")]
    Closed,

    /// The database was opened by a parent of this process. A child made by `fork` cannot use what it inherited: the
    /// files and the lock on them are the parent's, and so are the threads.
    #[error(
        "the database was opened by the parent process, and a child made by fork cannot use it; open it in the \
         process that uses it, after the fork"
    )]
    Forked,

    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// Whether running the same transaction again can succeed without any other change.
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
        matches!(self, Error::Conflict(_))
    }

    /// The error without advice, for a list of findings.
    pub(crate) fn finding(&self) -> String {
        match self {
            Error::Corrupted { what, location } => format!("corrupted: {what} ({location})"),
            error => error.to_string(),
        }
    }

    /// That a directory is locked, with who locked it.
    pub(crate) fn locked(path: &Path) -> Self {
        Error::Locked {
            path: path.to_owned(),
            holder: braid_io::lock_holder(path),
        }
    }

    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::of_device(what.into(), Arc::new(source))
    }

    /// What a failed operation on a file means.
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

/// The process that has a directory open, in words.
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
            LogError::OutOfSpace { .. } => Error::OutOfSpace {
                what: error.to_string(),
            },
            LogError::Corrupted { what, file, offset } => Error::Corrupted {
                what,
                location: format!("{file}, byte {offset}"),
            },
            LogError::Incompatible { what } => Error::Incompatible { what },
            LogError::Released { .. } => Error::Corrupted {
                what: error.to_string(),
                location: "log".into(),
            },
            LogError::Options { what } => Error::Options {
                option: "log",
                reason: what,
            },
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
            StoreError::Options { option, reason } => Error::Options { option, reason },
            StoreError::Poisoned { cause } => Error::Poisoned { cause },
            StoreError::PoolExhausted => Error::Options {
                option: "pool_bytes",
                reason: "too small for the pages in use at once; make it larger".into(),
            },
            error => Error::Io {
                what: "the data file".into(),
                source: Arc::new(io::Error::other(error.to_string())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quota is a full device, wherever it is met.
    #[test]
    fn a_lack_of_space_is_one_error() {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            let (what, source) = (String::from("writing"), Arc::new(io::Error::from(kind)));
            let errors = [
                Error::io("writing", kind.into()),
                LogError::Io { what, source }.into(),
            ];
            for error in errors {
                assert!(matches!(error, Error::OutOfSpace { .. }), "{error:?}");
            }
        }
    }
}
