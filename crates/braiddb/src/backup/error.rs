//! What can be wrong with backups and archives, and what to do about it.

use std::path::PathBuf;

/// Why a backup can't be made or restored, beyond what a medium fails with; in [`crate::Error::Backup`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// It is no backup at all.
    #[error("{backup} is no backup of a Braid database")]
    NotABackup {
        /// The backup's name.
        backup: String,
    },
    /// It ends before its end: making it, or copying it, was interrupted.
    #[error("{backup} is incomplete; copy it again, or make another backup")]
    Incomplete {
        /// The backup's name.
        backup: String,
    },
    /// Its bytes are not those that were written.
    #[error("{backup} is damaged: {what}; use another copy or another backup")]
    Damaged {
        /// The backup's name.
        backup: String,
        /// What does not fit.
        what: String,
    },
    /// It was written by a newer version.
    #[error("{backup} has format {format}, this build reads {known}; use a matching version")]
    Format {
        /// The backup's name.
        backup: String,
        /// The format found.
        format: u32,
        /// The format that this build reads.
        known: u32,
    },
    /// It is of another database than the one or ones before, or than the one that is open. A database that
    /// was restored counts as another one: begin with a full backup of it.
    #[error("{backup} is a backup of another database; a restored one begins with a full backup")]
    OtherDatabase {
        /// The backup's name.
        backup: String,
    },
    /// The first backup given is an incremental one.
    #[error(
        "{backup} is an incremental backup on top of the one up to number {parent}; give that one, and what it builds on, before it"
    )]
    NotFull {
        /// The backup's name.
        backup: String,
        /// The number of the backup that it builds on.
        parent: u64,
    },
    /// A backup does not build on the one given before it.
    #[error(
        "{backup} builds on the backup up to number {needs}, and the one before it goes up to {found}; give them from the oldest to the newest, none left out"
    )]
    BrokenChain {
        /// The backup's name.
        backup: String,
        /// The number of the backup that it builds on.
        needs: u64,
        /// The number of the one that was given before it.
        found: u64,
    },
    /// No backup was given.
    #[error("there is no backup to restore; give a full one first")]
    Nothing,
    /// The parent of an incremental backup is newer than the database.
    #[error(
        "the backup up to number {parent} is newer than this database, which was set back since; make a full backup"
    )]
    NewerParent {
        /// The parent's number.
        parent: u64,
    },
    /// The place for a backup or a restored database is taken.
    #[error("{} holds {found:?}; choose an empty or new place", path.display())]
    DestinationInUse {
        /// The place.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// Transactions are missing in the archive.
    #[error(
        "the archive lacks the transactions from number {from} to {to}; restore up to {}, or give a backup that goes up to {to} or more",
        from - 1
    )]
    Hole {
        /// The first number that is missing.
        from: u64,
        /// The last number that is missing.
        to: u64,
    },
    /// A table was loaded past the log, so its entries are not in the archive.
    #[error(
        "table {table:?} was loaded past the log by transaction {number}, behind the backup: restore up to {}, or give a backup that goes further",
        number - 1
    )]
    LoadedTable {
        /// The table's name.
        table: String,
        /// The transaction that made it visible.
        number: u64,
    },
    /// The archive is of another database.
    #[error(
        "the archive {archive} is of another database; give the one of the database that was backed up"
    )]
    OtherArchive {
        /// The archive's name.
        archive: String,
    },
    /// The archive has transactions that the database has not: the database's files were set back, or it was
    /// archived elsewhere.
    #[error(
        "the archive {archive} goes up to number {archived}, the database only to {database}; archive to a new place, beginning with a full backup"
    )]
    ArchiveAhead {
        /// The archive's name.
        archive: String,
        /// The last number in the archive.
        archived: u64,
        /// The database's last number.
        database: u64,
    },
    /// The clock showed the time that was asked for more than once, since it was set back in between.
    #[error(
        "the clock was set back, so that this time came more than once: after number {earliest} and after {latest}; restore up to a number, one of these or between them"
    )]
    ClockSetBack {
        /// What was durable when the time came first.
        earliest: u64,
        /// What was durable when the time came last.
        latest: u64,
    },
    /// A point in time that neither the backups nor the archive reach.
    #[error("{asked} can't be reached: the backups and the archive go from number {from} to {to}")]
    OutOfReach {
        /// What was asked for.
        asked: String,
        /// The least number that can be restored to.
        from: u64,
        /// The greatest number that can be restored to.
        to: u64,
    },
}

impl From<BackupError> for crate::Error {
    fn from(error: BackupError) -> Self {
        crate::Error::Backup(error)
    }
}
