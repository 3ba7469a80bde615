//! Bulk load of a new table from sorted entries.

use bytes::Bytes;

use super::Database;
use crate::base::table_options::TableOptions;
use crate::error::Result;
use crate::schema::table::{Table, type_names};
use crate::services::bulk::BulkLoader;
use crate::types::{Key, Value};

impl Database {
    /// Begins to load a new table from entries in ascending key order, at about the speed of
    /// sequential writes to the medium: full pages are written once, and nothing is logged.
    ///
    /// Because the entries are not logged, readers of [changes](Database::changes) see the
    /// [loaded](crate::changes::ChangeSet::loaded) table, but not its entries, and an archive
    /// cannot restore a backup past the load, so make a backup after it.
    ///
    /// The table does not exist before [`BulkLoader::finish`]; other transactions continue
    /// meanwhile. To replace an existing table, load another one and swap their names
    /// ([`Database::rename_table`]).
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use braid::Readable;
    /// # let db = braid::Database::in_memory()?;
    /// let mut loader = db.bulk_load::<u64, String>("squares")?;
    /// for n in 0..10_000u64 {
    ///     loader.insert(&n, &(n * n).to_string())?;
    /// }
    /// let squares = loader.finish()?; // durable, and visible to others
    /// assert_eq!(db.get(&squares, &99)?.as_deref(), Some("9801"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::TableExists`](crate::Error::TableExists),
    /// [`Error::InvalidTableName`](crate::Error::InvalidTableName), or those of a commit.
    pub fn bulk_load<K: Key, V: Value>(&self, name: &str) -> Result<BulkLoader<K, V>> {
        self.bulk_load_with(name, TableOptions::default())
    }

    /// Begins to load a new table with options, as [`Database::bulk_load`]. A time to live counts
    /// from this call.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// use braid::{Compression, TableOptions};
    /// let options = TableOptions {
    ///     compression: Compression::Lz4,
    ///     ..TableOptions::default()
    /// };
    /// let mut loader = db.bulk_load_with::<u32, String>("pages", options)?;
    /// loader.insert(&1, &"text ".repeat(1_000))?;
    /// let pages = loader.finish()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::bulk_load`], and [`Error::InvalidOption`](crate::Error::InvalidOption).
    pub fn bulk_load_with<K: Key, V: Value>(
        &self,
        name: &str,
        options: TableOptions,
    ) -> Result<BulkLoader<K, V>> {
        let types = Table::<K, V>::types();
        BulkLoader::begin(self.instance(), None, name, types, options)
    }

    /// Builds a table of the types with these names from encoded entries, as
    /// [`Database::bulk_load_with`] does for types that are known when the program is compiled; see
    /// [`Database::create_untyped_table`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// use braid::{AsKey, TableOptions};
    /// let mut loader = db.bulk_load_untyped("ages", "u64", "string", TableOptions::default())?;
    /// AsKey::<u64>::with_key_bytes(&7, |key| loader.insert(key, b"Ada"))?;
    /// loader.finish()?;
    /// let ages = db.open_table::<u64, String>("ages")?;
    /// assert_eq!(db.get(&ages, &7)?.as_deref(), Some("Ada"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::bulk_load_with`]. Entries are not checked: bytes that are not a valid key or
    /// value of the types fail with [`Error::Decode`](crate::Error::Decode) when they are read
    /// through a typed handle.
    pub fn bulk_load_untyped(
        &self,
        name: &str,
        key_type: &str,
        value_type: &str,
        options: TableOptions,
    ) -> Result<BulkLoader<Bytes, Bytes>> {
        let types = type_names(key_type, value_type);
        BulkLoader::begin(self.instance(), None, name, types, options)
    }

    /// Begins to load a new table in a tablespace, as [`Database::bulk_load_with`]. The tablespace
    /// is not dropped meanwhile.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, disk) = (dir.path().join("db"), dir.path().join("disk"));
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open(&path)?;
    /// # use braid::tablespace::TablespaceOptions;
    /// # db.create_tablespace("disk", TablespaceOptions::in_directory(&disk).pool_bytes(1 << 20))?;
    /// let mut loader = db.bulk_load_in::<u64, String>("disk", "squares", Default::default())?;
    /// loader.extend((0..1_000_u64).map(|n| (n, (n * n).to_string())))?;
    /// let squares = loader.finish()?;
    /// assert_eq!(db.tablespace_of(&squares)?.as_deref(), Some("disk"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::bulk_load_with`], and [`Error::Tablespace`](crate::Error::Tablespace) if there
    /// is no such tablespace.
    pub fn bulk_load_in<K: Key, V: Value>(
        &self,
        tablespace: &str,
        name: &str,
        options: TableOptions,
    ) -> Result<BulkLoader<K, V>> {
        self.bulk_load_as(tablespace, name, Table::<K, V>::types(), options)
    }

    /// Builds a table of the types with these names in a tablespace, as
    /// [`Database::bulk_load_untyped`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, disk) = (dir.path().join("db"), dir.path().join("disk"));
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open(&path)?;
    /// # use braid::tablespace::TablespaceOptions;
    /// # db.create_tablespace("disk", TablespaceOptions::in_directory(&disk).pool_bytes(1 << 20))?;
    /// use braid::AsKey;
    /// let options = Default::default();
    /// let mut loader = db.bulk_load_untyped_in("disk", "ages", "u64", "string", options)?;
    /// AsKey::<u64>::with_key_bytes(&7, |key| loader.insert(key, b"Ada"))?;
    /// let ages = loader.finish()?;
    /// assert_eq!(db.tablespace_of(&ages)?.as_deref(), Some("disk"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::bulk_load_untyped`] and [`Database::bulk_load_in`].
    pub fn bulk_load_untyped_in(
        &self,
        tablespace: &str,
        name: &str,
        key_type: &str,
        value_type: &str,
        options: TableOptions,
    ) -> Result<BulkLoader<Bytes, Bytes>> {
        self.bulk_load_as(tablespace, name, type_names(key_type, value_type), options)
    }

    /// Begins to load a table of a tablespace, given the names of its types.
    fn bulk_load_as<K: Key, V: Value>(
        &self,
        tablespace: &str,
        name: &str,
        types: String,
        options: TableOptions,
    ) -> Result<BulkLoader<K, V>> {
        let space = self.space_named(tablespace)?;
        BulkLoader::begin(self.instance(), Some(&space), name, types, options)
    }
}
