//! Backups.

use std::io::Write;
use std::path::Path;

use super::Database;
use crate::error::Result;
use crate::services::backup::{Backup, BackupReport};

impl Database {
    /// Makes a full backup while the database is in use; see [`Backup::to_path`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// let db = braid::Database::open(dir.path().join("shop"))?;
    /// let orders = db.open_table::<u64, String>("orders")?;
    /// db.transact(|tx| tx.insert(&orders, &1, "tea"))?;
    ///
    /// let full = db.backup(dir.path().join("monday"))?;
    /// db.transact(|tx| tx.insert(&orders, &2, "cups"))?;
    /// let since = db
    ///     .backup_options()
    ///     .incremental_from(dir.path().join("monday"))
    ///     .to_path(dir.path().join("tuesday"))?;
    /// assert!(since.seqno > full.seqno);
    ///
    /// let chain = [dir.path().join("monday"), dir.path().join("tuesday")];
    /// braid::backup::restore(&chain, dir.path().join("restored"))?;
    /// let restored = braid::Database::open(dir.path().join("restored"))?;
    /// let orders = restored.open_table::<u64, String>("orders")?;
    /// assert_eq!(restored.get(&orders, &2)?.as_deref(), Some("cups"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Backup::to_path`].
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<BackupReport> {
        self.backup_options().to_path(path)
    }

    /// Writes a full backup to a stream while the database is in use; see [`Backup::to_writer`].
    ///
    /// # Errors
    /// As [`Backup::to_writer`].
    pub fn backup_to(&self, writer: &mut dyn Write) -> Result<BackupReport> {
        self.backup_options().to_writer(writer)
    }

    /// Returns the options of a backup, which then makes it.
    pub fn backup_options(&self) -> Backup<'_> {
        Backup::new(self.instance())
    }
}
