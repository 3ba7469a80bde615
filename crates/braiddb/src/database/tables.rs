//! Opening, creating, renaming and dropping tables.

use std::sync::Arc;

use super::Database;
use crate::base::table_options::TableOptions;
use crate::catalog::Catalog;
use crate::engine::spaces::Space;
use crate::error::{Error, Result};
use crate::schema::entry::name_key;
use crate::schema::table::{Table, TableCore, type_names};
use crate::types::{Key, Value};

impl Database {
    fn catalog(&self) -> Catalog<'_> {
        Catalog::of(self.engine())
    }

    /// Opens a table, or creates it durably if it does not exist. An existing table may have any
    /// [`TableOptions`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let ages = db.open_table::<String, u8>("ages")?;
    /// assert_eq!(ages.name(), "ages");
    /// assert!(db.open_table::<String, String>("ages").is_err()); // it holds other types
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidTableName`], [`Error::TableTypeMismatch`] if the table has other types, or
    /// those of a commit.
    pub fn open_table<K: Key, V: Value>(&self, name: &str) -> Result<Table<K, V>> {
        self.find_or_create(None, name, TableOptions::default())
    }

    /// Opens a table with these options, or creates it durably if it does not exist.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use braid::{Compression, Error, TableOptions};
    /// # let db = braid::Database::in_memory()?;
    /// let compressed = TableOptions {
    ///     compression: Compression::Lz4,
    ///     ..TableOptions::default()
    /// };
    /// let pages = db.open_table_with::<u32, String>("pages", compressed)?;
    /// let plain = db.open_table_with::<u32, String>("pages", TableOptions::default());
    /// assert!(matches!(plain, Err(Error::TableOptionsMismatch { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::open_table`], [`Error::TableOptionsMismatch`] if the table was created with
    /// others, and [`Error::InvalidOption`].
    pub fn open_table_with<K: Key, V: Value>(
        &self,
        name: &str,
        options: TableOptions,
    ) -> Result<Table<K, V>> {
        options.check()?;
        let table: Table<K, V> = self.find_or_create(None, name, options)?;
        table.check_options(options)
    }

    pub(super) fn find_or_create<K: Key, V: Value>(
        &self,
        space: Option<&Space>,
        name: &str,
        options: TableOptions,
    ) -> Result<Table<K, V>> {
        if let Some(table) = self.existing_table(name)? {
            return Ok(table);
        }
        let change = self.engine().tables.change.lock();
        let catalog = self.catalog();
        match catalog.find_in(&change, name)? {
            Some(core) => Table::of_core(core),
            None => {
                let number = self.engine().check_space_is_there(space)?;
                let core = catalog.create(number, name, Table::<K, V>::types(), options)?;
                Ok(Table::new(core))
            }
        }
    }

    /// Opens a table; returns `None` if it does not exist.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// assert!(db.existing_table::<u32, u32>("t")?.is_none());
    /// db.open_table::<u32, u32>("t")?;
    /// assert!(db.existing_table::<u32, u32>("t")?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Database::open_table`].
    pub fn existing_table<K: Key, V: Value>(&self, name: &str) -> Result<Option<Table<K, V>>> {
        name_key(name)?;
        let core = self.catalog().find(name)?;
        core.map(Table::of_core).transpose()
    }

    /// Opens a table of any types to access its encoded keys and values; returns `None` if it does
    /// not exist. For tools that handle any table: [`Table::type_names`] returns the types of the
    /// bytes.
    ///
    /// Writes through the handle are not checked: bytes that are not a valid key or value of the
    /// table's types fail with [`Error::Decode`] when they are read through a typed handle.
    ///
    /// ```
    /// use braid::{AsKey, Bytes, Database};
    ///
    /// # fn main() -> braid::Result<()> {
    /// # let db = Database::in_memory()?;
    /// let ages = db.open_table::<u64, String>("ages")?;
    /// db.transact(|tx| tx.insert(&ages, &7, "Ada"))?;
    ///
    /// let untyped = db.untyped_table("ages")?.expect("it exists");
    /// assert_eq!(untyped.type_names(), ("u64", "string"));
    /// let key = AsKey::<u64>::with_key_bytes(&7, <[u8]>::to_vec);
    /// assert_eq!(db.get(&untyped, &key)?, Some(Bytes::from("Ada")));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidTableName`], or those of reading.
    pub fn untyped_table(&self, name: &str) -> Result<Option<Table>> {
        name_key(name)?;
        Ok(self.catalog().find(name)?.map(Table::new))
    }

    /// Opens a table of the types with these names (see [`Key::TYPE_NAME`] and
    /// [`Value::TYPE_NAME`]) as [`Database::untyped_table`] does, or creates it durably if it does
    /// not exist. An existing table may have any [`TableOptions`];
    /// [`Database::create_untyped_table_with`] requires certain ones.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// // As a tool does that copies tables whose types it does not know:
    /// let copy = db.create_untyped_table("ages", "u64", "string")?;
    /// db.transact(|tx| tx.insert(&copy, &7_u64.to_be_bytes(), b"Ada"))?;
    ///
    /// let ages = db.open_table::<u64, String>("ages")?;
    /// assert_eq!(db.get(&ages, &7)?.as_deref(), Some("Ada"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidTableName`], [`Error::TableTypeMismatch`] if the table has other types, or
    /// those of a commit.
    pub fn create_untyped_table(
        &self,
        name: &str,
        key_type: &str,
        value_type: &str,
    ) -> Result<Table> {
        let types = type_names(key_type, value_type);
        self.find_or_create_untyped(None, name, types, TableOptions::default())
    }

    /// As [`Database::create_untyped_table`], with options as in [`Database::open_table_with`].
    ///
    /// # Errors
    /// As [`Database::create_untyped_table`], [`Error::TableOptionsMismatch`] if the table was
    /// created with others, and [`Error::InvalidOption`].
    pub fn create_untyped_table_with(
        &self,
        name: &str,
        key_type: &str,
        value_type: &str,
        options: TableOptions,
    ) -> Result<Table> {
        let types = type_names(key_type, value_type);
        self.find_or_create_untyped_as(None, name, types, options)
    }

    /// Finds or creates a table that has the given types, options and tablespace.
    pub(super) fn find_or_create_untyped_as(
        &self,
        space: Option<&Space>,
        name: &str,
        types: String,
        options: TableOptions,
    ) -> Result<Table> {
        options.check()?;
        let table = self.find_or_create_untyped(space, name, types, options)?;
        if let Some(space) = space {
            self.check_space(&table, space)?;
        }
        table.check_options(options)
    }

    fn find_or_create_untyped(
        &self,
        space: Option<&Space>,
        name: &str,
        asked: String,
        options: TableOptions,
    ) -> Result<Table> {
        self.engine().check_open()?;
        name_key(name)?;
        let change = self.engine().tables.change.lock();
        let catalog = self.catalog();
        match catalog.find_in(&change, name)? {
            Some(core) if core.types != asked => Err(Error::TableTypeMismatch {
                name: name.to_owned(),
                found: core.types.clone(),
                asked,
            }),
            Some(core) => Ok(Table::new(core)),
            None => {
                let number = self.engine().check_space_is_there(space)?;
                Ok(Table::new(catalog.create(number, name, asked, options)?))
            }
        }
    }

    /// Returns the names of all tables, sorted.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// db.open_table::<u32, u32>("pears")?;
    /// db.open_table::<u32, u32>("apples")?;
    /// assert_eq!(db.table_names()?, ["apples", "pears"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of reading.
    pub fn table_names(&self) -> Result<Vec<String>> {
        self.catalog().names()
    }

    /// Drops a table with all of its entries; returns whether it existed.
    ///
    /// Its space is freed by the next checkpoint after the last handle to it is dropped.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// assert!(db.drop_table("t")?);
    /// assert!(!db.drop_table("t")?);
    /// assert!(db.get(&t, &1).is_err()); // the handle is of no use any more
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of a commit.
    pub fn drop_table(&self, name: &str) -> Result<bool> {
        self.catalog().drop_table(name)
    }

    /// Renames a table.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// db.rename_table("t", "u")?;
    /// assert_eq!(t.name(), "u"); // handles follow
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::TableNotFound`], [`Error::TableExists`], [`Error::InvalidTableName`], or those of a
    /// commit.
    pub fn rename_table(&self, from: &str, to: &str) -> Result<()> {
        self.catalog().rename(from, to)
    }
}

impl<K: Key, V: Value> Table<K, V> {
    /// Returns a handle if the table has these types.
    fn of_core(core: Arc<TableCore>) -> Result<Self> {
        let asked = Self::types();
        if core.types != asked {
            return Err(Error::TableTypeMismatch {
                name: core.name.read().clone(),
                found: core.types.clone(),
                asked,
            });
        }
        Ok(Self::new(core))
    }

    /// Returns the table if it was created with these options.
    pub(super) fn check_options(self, asked: TableOptions) -> Result<Self> {
        if self.core.options.encode() == asked.encode() {
            return Ok(self);
        }
        Err(Error::TableOptionsMismatch {
            name: self.name(),
            found: Box::new(self.core.options),
            asked: Box::new(asked),
        })
    }
}
