//! Creating, listing and dropping tablespaces, and the tables in them.

use std::sync::Arc;

use super::Database;
use crate::base::table_options::TableOptions;
use crate::engine::spaces::Space;
use crate::error::{Error, Result, TablespaceError};
use crate::options::TablespaceOptions;
use crate::recovery::tablespaces;
use crate::schema::entry::{MAIN_SPACE, space_of};
use crate::schema::table::{Table, type_names};
use crate::services::moving::MoveReport;
use crate::types::{Key, Value};

/// Name of the main tablespace in messages.
const MAIN: &str = "main";

impl Database {
    /// Creates a tablespace: a data file of its own, in another directory or on another device, with
    /// a page pool of its own. Tables that are created in it with [`Database::open_table_in`] are
    /// stored there. All tables share the log, unless the tablespace is to have [one of its
    /// own](TablespaceOptions::own_log). A transaction may write to tables of several tablespaces, and is
    /// durable and atomic as any other. A database has at most 63.
    ///
    /// The database records the directory, and locks it as long as it is open. If the directory is
    /// missing, or belongs to another database or to another state of this one, the database can only
    /// be opened read-only; see [`TablespaceError`]. A tablespace that is full refuses only the
    /// transactions that write to it.
    ///
    /// Other processes can [read](crate::Builder::open_read_only) the database meanwhile, with all
    /// tablespaces in directories. Earlier versions of Braid do not open it.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, disk) = (dir.path().join("db"), dir.path().join("disk"));
    /// use braid::tablespace::TablespaceOptions;
    /// let db = braid::Database::builder().pool_bytes(1 << 20).open(&path)?;
    /// let options = TablespaceOptions::in_directory(&disk).pool_bytes(1 << 20);
    /// db.create_tablespace("disk", options)?;
    /// let history = db.open_table_in::<u64, String>("disk", "history", Default::default())?;
    /// let current = db.open_table::<u64, String>("current")?;
    /// db.transact(|tx| {
    ///     tx.insert(&history, &1, "created")?;
    ///     tx.insert(&current, &1, "created")
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Tablespace`] if there is one of this name, the directory or device is not empty, or the
    /// tablespace cannot have a log of its own; [`Error::Locked`] if the directory is in use;
    /// [`Error::InvalidOption`]; those of a checkpoint and of a commit. After [`Error::Poisoned`], only
    /// the next opening knows whether the tablespace exists.
    pub fn create_tablespace(&self, name: &str, options: TablespaceOptions) -> Result<()> {
        tablespaces::create_tablespace(self.instance(), name, &options)
    }

    /// Drops a tablespace without tables, and removes its files. Its directory stays.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, disk) = (dir.path().join("db"), dir.path().join("disk"));
    /// use braid::tablespace::TablespaceOptions;
    /// let db = braid::Database::builder().pool_bytes(1 << 20).open(&path)?;
    /// let options = TablespaceOptions::in_directory(&disk).pool_bytes(1 << 20);
    /// db.create_tablespace("disk", options)?;
    /// db.drop_tablespace("disk")?;
    /// assert!(db.tablespace_names().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Tablespace`] if no tablespace has this name, it contains a table, a bulk load or a backup
    /// uses it, or an archive or a feed needs its log; the errors of a commit;
    /// [`Error::Io`] if a file cannot be removed: the tablespace does not exist any more, and the
    /// next opening removes the file.
    pub fn drop_tablespace(&self, name: &str) -> Result<()> {
        tablespaces::drop_tablespace(self.instance(), name)
    }

    /// Returns the names of the tablespaces, in the order of their numbers; of a database that was
    /// opened read-only, those that could be opened.
    /// [`Stats::tablespaces`](crate::Stats::tablespaces) says more about them.
    pub fn tablespace_names(&self) -> Vec<String> {
        let spaces = self.engine().spaces.all();
        spaces.iter().map(|space| space.name.clone()).collect()
    }

    /// Opens a table, or creates it durably in a tablespace if it does not exist.
    /// [`Database::open_table`] also opens it, in whatever tablespace it is.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, disk) = (dir.path().join("db"), dir.path().join("disk"));
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open(&path)?;
    /// # use braid::tablespace::TablespaceOptions;
    /// # db.create_tablespace("disk", TablespaceOptions::in_directory(&disk).pool_bytes(1 << 20))?;
    /// let t = db.open_table_in::<u64, String>("disk", "t", Default::default())?;
    /// assert_eq!(db.tablespace_of(&t)?.as_deref(), Some("disk"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Tablespace`] if there is no such tablespace, or the table is in another one;
    /// otherwise as [`Database::open_table_with`].
    pub fn open_table_in<K: Key, V: Value>(
        &self,
        tablespace: &str,
        name: &str,
        options: TableOptions,
    ) -> Result<Table<K, V>> {
        options.check()?;
        let space = self.space_named(tablespace)?;
        let table: Table<K, V> = self.find_or_create(Some(&space), name, options)?;
        self.check_space(&table, &space)?;
        table.check_options(options)
    }

    /// Opens a table of the types with these names as [`Database::create_untyped_table_with`] does,
    /// or creates it durably in a tablespace if it does not exist.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, disk) = (dir.path().join("db"), dir.path().join("disk"));
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open(&path)?;
    /// # use braid::tablespace::TablespaceOptions;
    /// # db.create_tablespace("disk", TablespaceOptions::in_directory(&disk).pool_bytes(1 << 20))?;
    /// let t = db.create_untyped_table_in("disk", "t", "u64", "string", Default::default())?;
    /// assert_eq!(db.tablespace_of(&t)?.as_deref(), Some("disk"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Tablespace`] if there is no such tablespace, or the table is in another one;
    /// otherwise as [`Database::create_untyped_table_with`].
    pub fn create_untyped_table_in(
        &self,
        tablespace: &str,
        name: &str,
        key_type: &str,
        value_type: &str,
        options: TableOptions,
    ) -> Result<Table> {
        let space = self.space_named(tablespace)?;
        let types = type_names(key_type, value_type);
        self.find_or_create_untyped_as(Some(&space), name, types, options)
    }

    /// Moves a table to a tablespace, or with `None` to the main one, while transactions and snapshots
    /// use it. Returns what was copied as a [`MoveReport`]: nothing if the table is already there.
    ///
    /// The records are copied in small transactions, which pause for others. They are logged, so
    /// backups, the archive and [feeds](crate::changes::Feed) continue; feeds do not report them. At
    /// the end, writes to the table wait for about one flush, and transactions that already used
    /// the table for writing, or read it with the default isolation, fail with
    /// [`ConflictKind::Moved`](crate::ConflictKind::Moved), once:
    /// [`Database::transact`] retries them. Handles, also those that were opened before, then use the
    /// table where it is. Snapshots from before the end read the old place, whose pages are freed when
    /// the last of them has ended.
    ///
    /// If the process ends during a move, the table stays where it was.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, disk) = (dir.path().join("db"), dir.path().join("disk"));
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open(&path)?;
    /// # use braid::tablespace::TablespaceOptions;
    /// # db.create_tablespace("disk", TablespaceOptions::in_directory(&disk).pool_bytes(1 << 20))?;
    /// let t = db.open_table::<u64, String>("t")?;
    /// db.transact(|tx| tx.insert(&t, &1, "one"))?;
    /// let report = db.move_table("t", Some("disk"))?;
    /// assert_eq!(report.records, 1);
    /// assert_eq!(db.tablespace_of(&t)?.as_deref(), Some("disk"));
    /// assert_eq!(db.get(&t, &1)?.as_deref(), Some("one"));
    /// db.move_table("t", None)?; // back
    /// assert_eq!(db.tablespace_of(&t)?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Tablespace`] if there is no such tablespace, or the table is already moving;
    /// [`Error::TableNotFound`], [`Error::TableDropped`]; [`Error::OutOfSpace`] if the tablespace is
    /// full; [`Error::Io`], [`Error::Closed`]. The table stays where it was. After
    /// [`Error::Poisoned`], only the next opening knows where it is.
    pub fn move_table(&self, name: &str, tablespace: Option<&str>) -> Result<MoveReport> {
        self.move_table_with(name, tablespace, |_| {})
    }

    /// Moves a table as [`Database::move_table`] does, and calls `progress` with what was copied so
    /// far, after each step.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, disk) = (dir.path().join("db"), dir.path().join("disk"));
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open(&path)?;
    /// # use braid::tablespace::TablespaceOptions;
    /// # db.create_tablespace("disk", TablespaceOptions::in_directory(&disk).pool_bytes(1 << 20))?;
    /// let t = db.open_table::<u64, u64>("t")?;
    /// db.transact(|tx| (0..1_000).try_for_each(|key| tx.insert(&t, &key, &key)))?;
    /// let mut steps = 0;
    /// let report = db.move_table_with("t", Some("disk"), |so_far| {
    ///     assert!(so_far.records <= 1_000);
    ///     steps += 1;
    /// })?;
    /// assert!(steps > 1 && report.records == 1_000);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::move_table`].
    pub fn move_table_with(
        &self,
        name: &str,
        tablespace: Option<&str>,
        progress: impl FnMut(&MoveReport),
    ) -> Result<MoveReport> {
        let space = tablespace.map(|name| self.space_named(name)).transpose()?;
        self.instance().move_table(name, space.as_ref(), progress)
    }

    pub(super) fn space_named(&self, name: &str) -> Result<Arc<Space>> {
        let engine = self.engine();
        engine.check_open()?;
        engine.spaces.named(name).ok_or_else(|| {
            let absence = engine.spaces.absence(|absent| absent.name == name);
            absence.unwrap_or_else(|| {
                let name = name.to_owned();
                Error::Tablespace(TablespaceError::NotFound { name })
            })
        })
    }

    /// Checks that a table is in the tablespace in which it was to be opened.
    pub(super) fn check_space<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        space: &Space,
    ) -> Result<()> {
        if space_of(table.core.id) == space.number {
            return Ok(());
        }
        let found = self.tablespace_of(table)?;
        Err(Error::Tablespace(TablespaceError::OtherTablespace {
            table: table.name(),
            asked: space.name.clone(),
            found: found.unwrap_or_else(|| MAIN.to_owned()),
        }))
    }

    /// Returns the name of a table's tablespace; `None` if the table is in the database's own
    /// directory.
    ///
    /// # Errors
    /// [`Error::ForeignTable`], [`Error::TableDropped`] or [`Error::Closed`].
    pub fn tablespace_of<K: Key, V: Value>(&self, table: &Table<K, V>) -> Result<Option<String>> {
        let engine = self.engine();
        let core = engine.table_here(&table.core)?;
        let number = space_of(core.id);
        if number == MAIN_SPACE {
            return Ok(None);
        }
        Ok(engine.spaces.get(number).map(|space| space.name.clone()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use braid_io::MemoryDevice;

    use crate::tablespace::{TablespaceError, TablespaceOptions};
    use crate::{Database, Error, Table, TableOptions};

    /// A thread looks the tablespace up, and another one drops it before the first creates a table.
    #[test]
    fn no_table_is_created_in_a_tablespace_that_is_dropped_meanwhile() {
        let devices: [Arc<MemoryDevice>; 2] = Default::default();
        let open = || {
            let builder = Database::builder().pool_bytes(1 << 20);
            let builder = builder.tablespace_device("one", devices[1].clone());
            builder
                .background_threads(false)
                .open_on(devices[0].clone())
        };
        let db = open().unwrap();
        let options = TablespaceOptions::on_device(devices[1].clone()).pool_bytes(1 << 20);
        db.create_tablespace("one", options).unwrap();
        let space = db.engine().spaces.named("one").unwrap();
        db.drop_tablespace("one").unwrap();
        let options = TableOptions::default();
        let typed = db.find_or_create::<u64, u64>(Some(&space), "t", options);
        let error = typed.unwrap_err();
        let is_it = matches!(
            &error,
            Error::Tablespace(TablespaceError::NotFound { name }) if name == "one"
        );
        assert!(is_it, "{error}");
        db.close().unwrap();
        let table: Table<u64, u64> = open().unwrap().open_table("t").unwrap();
        assert_eq!(table.name(), "t");
    }
}
