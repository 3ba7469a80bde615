//! Snapshots that are found by a name.
//!
//! They hold old versions in memory, like all snapshots, and end with the opened database.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, OnceLock, Weak};

use braid_rt::Mutex;

use crate::database::Database;
use crate::engine::Inner;
use crate::error::{Error, Result};
use crate::mvcc::registry::Registration;
use crate::read::snapshot::Snapshot;

/// A registration that the name and the opened snapshots share.
#[derive(Debug)]
pub(crate) struct NamedHold {
    /// Weak: the database itself has the names.
    inner: Weak<Inner>,
    registration: Registration,
    /// For entries that have one; the same for all who open it.
    pub(crate) time: OnceLock<u64>,
}

impl NamedHold {
    pub(crate) fn seqno(&self) -> u64 {
        self.registration.seqno()
    }
}

impl Drop for NamedHold {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade().filter(|inner| !inner.is_inherited()) {
            inner.snapshots.close(&self.registration);
        }
    }
}

/// The named snapshots of an opened database.
#[derive(Debug, Default)]
pub(crate) struct NamedSnapshots(Mutex<BTreeMap<String, Arc<NamedHold>>>);

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
    /// [`Error::SnapshotExists`], [`Error::Closed`].
    pub fn create_snapshot(&self, name: &str) -> Result<Snapshot> {
        let inner = self.inner();
        inner.check_open()?;
        // Not under the lock, since taking a snapshot may wait for a flush.
        let hold = Arc::new(NamedHold {
            inner: Arc::downgrade(inner),
            registration: inner.open_snapshot(),
            time: OnceLock::new(),
        });
        match inner.named.0.lock().entry(name.to_owned()) {
            Entry::Occupied(_) => Err(Error::SnapshotExists {
                name: name.to_owned(),
            }),
            Entry::Vacant(free) => {
                free.insert(hold.clone());
                Ok(self.keep_open(Snapshot::named(inner.clone(), hold)))
            }
        }
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
    /// [`Error::SnapshotNotFound`] if there is none, also after the database was reopened.
    pub fn open_snapshot(&self, name: &str) -> Result<Snapshot> {
        let inner = self.inner();
        inner.check_open()?;
        let hold = inner.named.0.lock().get(name).cloned();
        let hold = hold.ok_or_else(|| Error::SnapshotNotFound {
            name: name.to_owned(),
        })?;
        Ok(self.keep_open(Snapshot::named(inner.clone(), hold)))
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
        let inner = self.inner();
        if inner.is_inherited() {
            return Vec::new();
        }
        inner.named.0.lock().keys().cloned().collect()
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
        let inner = self.inner();
        if inner.is_inherited() {
            return false;
        }
        // Dropped without the lock.
        let hold = inner.named.0.lock().remove(name);
        hold.is_some()
    }
}
