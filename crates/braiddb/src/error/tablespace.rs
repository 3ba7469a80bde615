//! Errors of tablespaces, with advice.

use std::path::{Path, PathBuf};

/// Reason why a tablespace cannot be created, opened or dropped, other than a failing medium; in
/// [`crate::Error::Tablespace`]. A database with one that cannot be opened can only be opened
/// read-only: opening a table of that tablespace fails with the reason, and all others are readable.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// use braid::Error;
/// use braid::tablespace::TablespaceError;
///
/// let dropped = db.drop_tablespace("fast");
/// assert!(matches!(dropped, Err(Error::Tablespace(TablespaceError::NotFound { .. }))));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TablespaceError {
    /// There is no tablespace of this name.
    #[error("there is no tablespace {name:?}; check the name, or create it")]
    NotFound {
        /// The requested name.
        name: String,
    },
    /// There is already a tablespace of this name.
    #[error("cannot create tablespace {name:?}: it exists; choose another name")]
    Exists {
        /// The requested name.
        name: String,
    },
    /// The name is empty or over [`crate::MAX_TABLE_NAME_LEN`].
    #[error("invalid tablespace name {name:?}: must be 1 to {max} bytes long", max = crate::base::limits::MAX_TABLE_NAME_LEN)]
    InvalidName {
        /// The requested name.
        name: String,
    },
    /// The database has as many tablespaces as it can have.
    #[error(
        "cannot create tablespace {name:?}: the database has {max}, the most that it can have; drop one first"
    )]
    TooMany {
        /// The requested name.
        name: String,
        /// The limit, without the main tablespace.
        max: usize,
    },
    /// The tablespace contains a table, one that is being loaded or moves there, a dropped one that a
    /// handle, a scan or a transaction still uses, or one that moved away and that a snapshot reads.
    #[error(
        "cannot drop tablespace {name:?}: it contains table {table:?}; drop or move the table, and drop the handles \
         and snapshots that use it"
    )]
    NotEmpty {
        /// The tablespace's name.
        name: String,
        /// A table in it.
        table: String,
    },
    /// A backup copies the tablespace.
    #[error(
        "cannot drop tablespace {name:?}: a backup copies it; retry when the backup is complete"
    )]
    Busy {
        /// The tablespace's name.
        name: String,
    },
    /// An archive or a feed has not read the tablespace's log yet.
    #[error(
        "cannot drop tablespace {name:?}: {holder} needs its log; retry when it has read that, or remove it"
    )]
    LogNeeded {
        /// The tablespace's name.
        name: String,
        /// The archive, the feed or the reader.
        holder: String,
    },
    /// The tablespace cannot have a log of its own.
    #[error(
        "tablespace {name:?} in {} cannot have a log of its own: {reason}",
        place(path)
    )]
    Log {
        /// The tablespace's name.
        name: String,
        /// The directory; empty on a device.
        path: PathBuf,
        /// The obstacle, and the user's remedy.
        reason: String,
    },
    /// This machine does not have the memory node that was chosen for the tablespace.
    #[error(
        "cannot create tablespace {name:?} on memory node {node}: this machine has {}; choose one of them, or none",
        nodes(existing)
    )]
    NoSuchNode {
        /// The tablespace's name.
        name: String,
        /// The system's number of the chosen node.
        node: usize,
        /// The numbers of the nodes that have memory, and processors that this process may use.
        existing: Vec<usize>,
    },
    /// The table exists in another tablespace.
    #[error(
        "cannot open table {table:?} in tablespace {asked:?}: it is in {found:?}; open it there, or without a tablespace"
    )]
    OtherTablespace {
        /// The table's name.
        table: String,
        /// The requested tablespace.
        asked: String,
        /// The table's tablespace; `main` for the database's own directory.
        found: String,
    },
    /// The table is already moving.
    #[error("cannot move table {table:?}: it is already moving; retry when that move has ended")]
    Moving {
        /// The table's name.
        table: String,
    },
    /// The directory or the device of a new tablespace cannot be used.
    #[error("cannot create tablespace {name:?} in {}: {reason}", place(path))]
    Occupied {
        /// The tablespace's name.
        name: String,
        /// The directory; empty on a device.
        path: PathBuf,
        /// The obstacle, and the user's remedy.
        reason: String,
    },
    /// The tablespace's directory or its data file does not exist, perhaps because its disk is not
    /// mounted. Nothing was changed.
    #[error("cannot open tablespace {name:?} in {}: {reason}", place(path))]
    Missing {
        /// The tablespace's name.
        name: String,
        /// The directory; empty on a device.
        path: PathBuf,
        /// The missing part, and the user's remedy.
        reason: String,
    },
    /// The directory belongs to another database, or to another tablespace. Nothing was changed.
    #[error("cannot open tablespace {name:?} in {}: {reason}", place(path))]
    Foreign {
        /// The tablespace's name.
        name: String,
        /// The directory; empty on a device.
        path: PathBuf,
        /// What it belongs to, and what to do.
        reason: String,
    },
    /// The tablespace is of an older or a newer state than the others: it was restored or copied
    /// alone. Nothing was changed.
    #[error(
        "cannot open tablespace {name:?} in {}: its newest checkpoint has sequence number {found}, that of the other \
         tablespaces {expected}, and neither follows the other; put back the files that belong together",
        place(path)
    )]
    OtherState {
        /// The tablespace's name.
        name: String,
        /// The directory; empty on a device.
        path: PathBuf,
        /// The sequence number of the tablespace's newest checkpoint.
        found: u64,
        /// That of the main tablespace.
        expected: u64,
    },
    /// The tablespace's files are damaged, or written by another version. Nothing was changed.
    #[error("cannot open tablespace {name:?} in {}: {reason}", place(path))]
    Damaged {
        /// The tablespace's name.
        name: String,
        /// The directory; empty on a device.
        path: PathBuf,
        /// The damaged part.
        reason: String,
    },
    /// The log of the others ends in a way that a crash may leave, or damage, and only the log of this
    /// tablespace, which is missing or damaged itself, shows which. Nothing was changed.
    #[error(
        "cannot read the database without the log of tablespace {name:?}: {what} ({location}), and only that log shows \
         whether a crash left this; bring back the tablespace, or salvage what is there"
    )]
    Undecided {
        /// The tablespace's name.
        name: String,
        /// What was found at the end of the others' log.
        what: String,
        /// The file, and the byte in it.
        location: String,
    },
    /// The tablespace's data file could not be written, so its tables can only be read. Everything
    /// acknowledged is in the log, which is kept for it.
    #[error(
        "tablespace {name:?} in {} can only be read, since its data file could not be written: {cause}; repair its \
         device and open the database again",
        place(path)
    )]
    Failed {
        /// The tablespace's name.
        name: String,
        /// The directory; empty on a device.
        path: PathBuf,
        /// The failure.
        cause: String,
    },
    /// The operation does not support databases with further tablespaces.
    #[error(
        "cannot {operation}: the database has tablespace {name:?}, which this does not support; {advice}"
    )]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// A tablespace of the database.
        name: String,
        /// What to do instead.
        advice: &'static str,
    },
}

/// Returns the place of a tablespace, as messages name it.
fn place(path: &Path) -> String {
    if path.as_os_str().is_empty() {
        return "its device".into();
    }
    path.display().to_string()
}

/// Returns the memory nodes of a machine, as messages name them.
fn nodes(existing: &[usize]) -> String {
    match existing {
        [only] => format!("memory node {only} alone"),
        many => {
            let numbers: Vec<String> = many.iter().map(ToString::to_string).collect();
            format!("memory nodes {}", numbers.join(", "))
        }
    }
}
