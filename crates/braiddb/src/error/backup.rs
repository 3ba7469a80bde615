//! Errors of backups and archives, with advice.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Reason why a backup or archive cannot be made or used, other than a failing medium; in
/// [`crate::Error::Backup`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("notes.txt");
/// use braid::Error;
/// use braid::backup::{BackupError, info};
///
/// std::fs::write(&path, "not a backup").unwrap();
/// let found = info(&path);
/// assert!(matches!(found, Err(Error::Backup(BackupError::NotABackup { .. }))));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The file is not a backup.
    #[error("cannot read backup {backup}: it is not a backup of a Braid database; check the path")]
    NotABackup {
        /// The backup's name.
        backup: String,
    },
    /// The backup is truncated: writing or copying it was interrupted.
    #[error(
        "cannot read backup {backup}: its end is missing; copy it again, or use another backup"
    )]
    Incomplete {
        /// The backup's name.
        backup: String,
    },
    /// The backup's bytes differ from those that were written.
    #[error(
        "cannot read backup {backup}: it is damaged: {what}; use another copy or another backup"
    )]
    Damaged {
        /// The backup's name.
        backup: String,
        /// What is damaged.
        what: String,
    },
    /// The backup was written by a newer version.
    #[error(
        "cannot read backup {backup}: it has format {format}, this build reads {known}; use a matching version"
    )]
    Format {
        /// The backup's name.
        backup: String,
        /// The format found.
        format: u32,
        /// The format that this build reads.
        known: u32,
    },
    /// The backup belongs to another database than the preceding backups or the open database. A
    /// restored database counts as another one: begin with a full backup of it.
    #[error(
        "cannot combine backup {backup} with this database: it belongs to another one; begin with a full backup"
    )]
    OtherDatabase {
        /// The backup's name.
        backup: String,
    },
    /// The first backup given is an incremental one.
    #[error(
        "cannot restore backup {backup} first: it is incremental and builds on the backup up to sequence number {parent}; give that backup, and all that it builds on, before this one"
    )]
    NotFull {
        /// The backup's name.
        backup: String,
        /// Sequence number of the backup that it builds on.
        parent: u64,
    },
    /// A backup does not build on the one given before it.
    #[error(
        "cannot restore backup {backup}: it builds on the backup up to sequence number {needs}, and the preceding one reaches {found}; give all backups from the oldest to the newest"
    )]
    BrokenChain {
        /// The backup's name.
        backup: String,
        /// Sequence number of the backup that it builds on.
        needs: u64,
        /// Sequence number of the preceding backup.
        found: u64,
    },
    /// No backup was given.
    #[error("cannot restore: no backup was given; begin with a full backup")]
    Nothing,
    /// A backup has a tablespace for which no place was given.
    #[error(
        "cannot restore tablespace {name:?}: no place was given for it; name a new or empty directory with tablespace_directory"
    )]
    NoPlace {
        /// The tablespace's name.
        name: String,
    },
    /// A place was given for a tablespace that none of the backups has.
    #[error("cannot restore tablespace {name:?}: no backup has one of this name; check the name")]
    UnknownTablespace {
        /// The requested name.
        name: String,
    },
    /// The parent of an incremental backup is newer than the database.
    #[error(
        "cannot make an incremental backup: its parent, up to sequence number {parent}, is newer than this database, which was restored to an earlier state; make a full backup"
    )]
    NewerParent {
        /// Sequence number of the parent.
        parent: u64,
    },
    /// This process has the database open read-only, or such a process made the parent. Only the
    /// process that writes knows which pages changed.
    #[error(
        "cannot make an incremental backup here: only the process that writes the database makes one, on top of a backup that it made; make a full backup"
    )]
    MadeByReader,
    /// The destination of a backup or of a restored database is not empty.
    #[error("cannot write to {}: it contains {found:?}; choose an empty or new place", path.display())]
    DestinationInUse {
        /// The destination.
        path: PathBuf,
        /// What was found there.
        found: String,
    },
    /// The backup or archive would be in the database's own directory, and be lost with it.
    #[error(
        "cannot write to {}: it lies inside the database {}; choose a place outside of it",
        path.display(),
        database.display()
    )]
    InsideDatabase {
        /// The destination.
        path: PathBuf,
        /// The database's directory.
        database: PathBuf,
    },
    /// The archive lacks transactions.
    #[error(
        "cannot restore: the archive lacks the transactions with sequence numbers {from} to {to}{}; restore up to {}, or give a backup that reaches {to} or more",
        Since(*since),
        from - 1
    )]
    Hole {
        /// First missing sequence number.
        from: u64,
        /// Last missing sequence number.
        to: u64,
        /// The missing transactions were committed after this time, if the archive records it.
        since: Option<SystemTime>,
    },
    /// The archive contains no transactions and does not record where it begins, so it is unknown
    /// whether any are missing.
    #[error(
        "cannot restore from archive {archive}: it contains no transactions; give the directory that the database archives to, or restore without an archive"
    )]
    EmptyArchive {
        /// The archive's directory, or `(on a device)`.
        archive: String,
    },
    /// The log released transactions before they were archived, and no backup contains them. Later
    /// transactions are archived.
    #[error(
        "archive {archive} lacks the transactions with sequence numbers {from} to {to}{}: the log released them before they were archived; make a new backup of the database, which the archive then continues (it is complete from there to sequence number {archived})",
        Since(*since)
    )]
    ArchiveGap {
        /// The archive's directory, or `(on a device)`.
        archive: String,
        /// First missing sequence number.
        from: u64,
        /// Last missing sequence number.
        to: u64,
        /// The missing transactions were committed after this time, if the archive records it.
        since: Option<SystemTime>,
        /// The archive is complete from `to` to this number.
        archived: u64,
    },
    /// Another copy of this database writes to the archive.
    #[error(
        "cannot write to archive {archive}: it belongs to another copy of this database; archive to a new directory and make a full backup, or, if the other copy is gone for good, remove the file OWNER from the archive and open the database again"
    )]
    ArchiveOwned {
        /// The archive's directory, or `(on a device)`.
        archive: String,
    },
    /// A table was bulk-loaded without the log, so the archive lacks its entries.
    #[error(
        "cannot restore table {table:?}: transaction {seqno} loaded it in bulk, without the log, after the backup; restore up to sequence number {}, or give a later backup",
        seqno - 1
    )]
    LoadedTable {
        /// The table's name.
        table: String,
        /// Sequence number of the transaction that made it visible.
        seqno: u64,
    },
    /// A tablespace was created after the backup, so the backup does not say where its tables are.
    #[error(
        "cannot restore tablespace {name:?}: transaction {seqno} created it after the backup; restore up to sequence number {}, or give a later backup",
        seqno - 1
    )]
    NewTablespace {
        /// The tablespace's name.
        name: String,
        /// Sequence number of the transaction that created it.
        seqno: u64,
    },
    /// The archive belongs to another database.
    #[error(
        "cannot use archive {archive}: it belongs to another database; give the archive of the database that was backed up"
    )]
    OtherArchive {
        /// The archive's directory, or `(on a device)`.
        archive: String,
    },
    /// The archive contains transactions that the database lacks: the database's files were
    /// replaced by older ones, or another database was archived there.
    #[error(
        "cannot write to archive {archive}: it reaches sequence number {archived}, the database only {database}; archive to a new directory, and begin with a full backup"
    )]
    ArchiveAhead {
        /// The archive's directory, or `(on a device)`.
        archive: String,
        /// Last sequence number in the archive.
        archived: u64,
        /// Last sequence number of the database.
        database: u64,
    },
    /// The requested time is ambiguous, because the clock was set back.
    #[error(
        "cannot restore up to this time: the clock was set back, and showed the time after sequence number {earliest} and again after {latest}; restore up to one of these sequence numbers, or one between them"
    )]
    ClockSetBack {
        /// Durable sequence number when the clock first showed the time.
        earliest: u64,
        /// Durable sequence number when the clock last showed the time.
        latest: u64,
    },
    /// The requested point is outside of what the backups and the archive cover.
    #[error(
        "cannot restore up to {asked}: the backups and the archive reach from sequence number {from} to {to}; choose a point between them, or give further backups"
    )]
    OutOfReach {
        /// The requested point.
        asked: String,
        /// Least sequence number that can be restored to.
        from: u64,
        /// Greatest sequence number that can be restored to.
        to: u64,
    },
}

/// A time in a message, in UTC; empty if the time is unknown.
struct Since(Option<SystemTime>);

impl std::fmt::Display for Since {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(time) = self.0 else {
            return Ok(());
        };
        let time = time.duration_since(SystemTime::UNIX_EPOCH);
        let seconds = time.unwrap_or(Duration::ZERO).as_secs();
        let (year, month, day) = civil(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
        write!(
            f,
            " (committed after {year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z)"
        )
    }
}

/// Returns the date of a day since 1970. (H. Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms".)
fn civil(days: u64) -> (u64, u64, u64) {
    // Counted from 1 March of the year 0, so that a leap day is the last of its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12 + 1;
    (400 * era + year_of_era + u64::from(month <= 2), month, day)
}

impl From<BackupError> for crate::Error {
    fn from(error: BackupError) -> Self {
        crate::Error::Backup(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_utc() {
        let gap_since =
            |seconds| Since(Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)));
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_825_599, "2000-02-29T11:59:59Z"),
            (1_769_860_800, "2026-01-31T12:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(
                gap_since(seconds).to_string(),
                format!(" (committed after {text})")
            );
        }
        assert_eq!(Since(None).to_string(), "");
    }
}
