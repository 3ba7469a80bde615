//! Named snapshots.

use super::Database;
use crate::error::Result;
use crate::read::snapshot::Snapshot;

impl Database {
    /// Takes a snapshot as [`Database::snapshot`] does, and keeps it under a name until
    /// [`Database::drop_snapshot`], so that other threads can open it.
    ///
    /// A named snapshot ends when the database is closed, because old versions are kept in memory.
    /// For a lasting copy of a state, make a backup.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use braid::Readable;
    /// # let db = braid::Database::in_memory()?;
    /// let table: braid::Table<u32, u32> = db.open_table("t")?;
    /// db.transact(|tx| tx.insert(&table, &1, &1))?;
    /// db.create_snapshot("before the migration")?;
    /// db.transact(|tx| tx.insert(&table, &1, &2))?;
    ///
    /// let before = db.open_snapshot("before the migration")?; // on any thread
    /// assert_eq!(before.get(&table, &1)?, Some(1));
    /// db.drop_snapshot("before the migration");
    /// assert_eq!(before.get(&table, &1)?, Some(1)); // until it is dropped itself
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::SnapshotExists`](crate::Error::SnapshotExists),
    /// [`Error::Closed`](crate::Error::Closed).
    pub fn create_snapshot(&self, name: &str) -> Result<Snapshot> {
        let named = &self.instance().named;
        Ok(self.keep_open(named.create(self.engine(), name)?))
    }

    /// Opens a named snapshot, which sees the state at its creation.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// use braid::Error;
    /// db.create_snapshot("monday")?;
    /// let monday = db.open_snapshot("monday")?;
    /// assert!(matches!(db.open_snapshot("tuesday"), Err(Error::SnapshotNotFound { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::SnapshotNotFound`](crate::Error::SnapshotNotFound) if there is none, also after the
    /// database was reopened; [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld) if Braid ended
    /// it: drop it, and create it again.
    pub fn open_snapshot(&self, name: &str) -> Result<Snapshot> {
        let named = &self.instance().named;
        Ok(self.keep_open(named.open(self.engine(), name)?))
    }

    /// Returns the names of all named snapshots, sorted.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// db.create_snapshot("monday")?;
    /// assert_eq!(db.snapshot_names(), ["monday"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn snapshot_names(&self) -> Vec<String> {
        self.instance().named.names(self.engine())
    }

    /// Drops a named snapshot; returns whether it existed. Handles that are open keep the snapshot.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// db.create_snapshot("monday")?;
    /// assert!(db.drop_snapshot("monday"));
    /// assert!(!db.drop_snapshot("monday"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn drop_snapshot(&self, name: &str) -> bool {
        self.instance().named.remove(self.engine(), name)
    }
}
