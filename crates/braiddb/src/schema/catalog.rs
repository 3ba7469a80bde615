//! The table of tables. Its changes are ordinary transactions: logged, atomic, recovered like any other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use braid_rt::MutexGuard;
use braid_store::Tree;

use crate::database::Database;
use crate::engine::Inner;
use crate::error::{Error, Result};
use crate::read::snapshot::Readable;
use crate::schema::table::{Table, TableCore, type_names};
use crate::schema::value_format::TableOptions;
use crate::txn::transaction::Transaction;
use crate::types::{Key, Value};

/// The catalog's own number, and its tree's.
pub(crate) const CATALOG_ID: u32 = 1;

/// Tables' numbers are below this: the redo records keep 31 bits for one.
pub(crate) const ID_END: u32 = u32::MAX >> 1;

/// Maximum length of a table's name, in bytes.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// use braid::{Error, MAX_TABLE_NAME_LEN};
/// let long = db.open_table::<u32, u32>(&"t".repeat(MAX_TABLE_NAME_LEN + 1));
/// assert!(matches!(long, Err(Error::InvalidTableName { .. })));
/// # Ok(())
/// # }
/// ```
pub const MAX_TABLE_NAME_LEN: usize = 255;

/// The key under which the next table's number lies.
const NEXT_ID: &[u8] = &[0];

/// The first byte of the keys that name tables.
const NAMES: u8 = 1;

const FIRST_ID: u32 = CATALOG_ID + 1;

fn name_key(name: &str) -> Result<Vec<u8>> {
    if name.is_empty() || name.len() > MAX_TABLE_NAME_LEN {
        return Err(Error::InvalidTableName {
            name: name.to_owned(),
        });
    }
    Ok([&[NAMES], name.as_bytes()].concat())
}

fn damaged(what: &str) -> Error {
    Error::Corrupted {
        what: what.into(),
        location: "the catalog".into(),
    }
}

/// What the catalog says of a table.
struct CatalogEntry {
    id: u32,
    types: String,
    options: TableOptions,
}

impl CatalogEntry {
    fn encode(&self) -> Vec<u8> {
        let mut entry = [&self.id.to_le_bytes(), self.types.as_bytes()].concat();
        let options = self.options.encode();
        if !options.is_empty() {
            // A version that knows of no options takes all of it for types, which nobody asks for.
            entry.push(0);
            entry.extend(options);
        }
        entry
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let entry = bytes.split_first_chunk().and_then(|(id, rest)| {
            let (types, options) = match rest.iter().position(|byte| *byte == 0) {
                Some(at) => (&rest[..at], TableOptions::decode(&rest[at + 1..])?),
                None => (rest, TableOptions::default()),
            };
            let id = u32::from_le_bytes(*id);
            let types = std::str::from_utf8(types).ok()?.to_owned();
            // Another name for the catalog itself would let its bytes be written as a table's.
            (id >= FIRST_ID).then_some(Self { id, types, options })
        });
        entry.ok_or_else(|| damaged("an entry of a table is malformed"))
    }
}

/// The first byte of a key that is removed, though it never is there, by the transaction that names a table
/// which was loaded past the log: so that those who read the log know.
const LOADED: u8 = b'L';

fn loaded_key(id: u32) -> Vec<u8> {
    [&[LOADED][..], &id.to_le_bytes()].concat()
}

/// The number of the table that was loaded past the log, if the removal of this key says so.
pub(crate) fn loaded_table(key: &[u8]) -> Option<u32> {
    let (&LOADED, id) = key.split_first()? else {
        return None;
    };
    Some(u32::from_le_bytes(id.try_into().ok()?))
}

/// The number, name and options of the table that an entry is of, if it is one of a table.
pub(crate) fn table_of_entry(key: &[u8], value: &[u8]) -> Option<(u32, String, TableOptions)> {
    let (&NAMES, name) = key.split_first()? else {
        return None;
    };
    let entry = CatalogEntry::decode(value).ok()?;
    let name = String::from_utf8_lossy(name).into_owned();
    Some((entry.id, name, entry.options))
}

impl Inner {
    /// The numbers, names and options of all tables that exist.
    pub(crate) fn tables_by_id(self: &Arc<Self>) -> Result<Vec<(u32, String, TableOptions)>> {
        let tx = self.begin(Default::default());
        let names = tx.prefix(&self.catalog_table(), &[NAMES])?;
        names
            .map(|entry| entry.map(|(key, value): (Bytes, Bytes)| table_of_entry(&key, &value)))
            .filter_map(Result::transpose)
            .collect()
    }

    /// The names of all tables that exist.
    pub(crate) fn table_names_by_id(self: &Arc<Self>) -> Result<BTreeMap<u32, String>> {
        let tables = self.tables_by_id()?.into_iter();
        Ok(tables.map(|(id, name, _)| (id, name)).collect())
    }

    /// The numbers of all tables that exist.
    pub(crate) fn table_ids(self: &Arc<Self>) -> Result<Vec<u32>> {
        let tx = self.begin(Default::default());
        let names = tx.prefix(&self.catalog_table(), &[NAMES])?;
        names
            .map(|entry| entry.and_then(|(_, value)| Ok(CatalogEntry::decode(&value)?.id)))
            .collect()
    }

    /// Puts right what a catalog that was salvaged says: trees without a name are dropped, as those of dropped
    /// tables, unless names are lost; then, and if they were `found`, they get one, and are of bytes. A tree that
    /// is used has a number below the next one's.
    pub(crate) fn adopt_trees(
        self: &Arc<Self>,
        names_lost: bool,
        found: &BTreeSet<u32>,
    ) -> Result<()> {
        let catalog = self.catalog_table();
        let names = self.table_names_by_id()?;
        let mut tx = self.begin(Default::default());
        let mut next = FIRST_ID;
        for id in self.store.tree_ids() {
            if id == CATALOG_ID {
                continue;
            }
            if !names.contains_key(&id) {
                if !names_lost && !found.contains(&id) {
                    self.store.drop_tree(id)?;
                    continue;
                }
                let mut name = format!("salvaged-{id}");
                while names.values().any(|other| *other == name) {
                    name.push('+');
                }
                let entry = CatalogEntry {
                    id,
                    types: Table::<Bytes, Bytes>::types(),
                    options: TableOptions::default(),
                };
                tx.insert(&catalog, &name_key(&name)?, &entry.encode())?;
            }
            next = next.max(id + 1);
        }
        // A table without a tree is empty, and has a number, too.
        next = next.max(names.keys().max().map_or(FIRST_ID, |id| id + 1));
        let known: Option<Bytes> = tx.get(&catalog, NEXT_ID)?;
        let known = known.and_then(|bytes| bytes[..].try_into().ok());
        if known.is_none_or(|bytes| u32::from_le_bytes(bytes) < next) {
            tx.insert(&catalog, NEXT_ID, &next.to_le_bytes())?;
        }
        tx.commit()?;
        Ok(())
    }

    pub(crate) fn catalog_table(&self) -> Table {
        Table::new(self.catalog.clone())
    }

    fn core(&self, name: &str, entry: CatalogEntry) -> Result<Arc<TableCore>> {
        // Creating the tree changes pages.
        let _gate = self.page_gate.read();
        let tree = self.store.tree(entry.id)?;
        let core = TableCore::new(entry.id, self.identity, tree, name, entry.types);
        Ok(Arc::new(core.with_options(entry.options)))
    }

    /// Looks a name up, in memory first.
    pub(crate) fn find_table(self: &Arc<Self>, name: &str) -> Result<Option<Arc<TableCore>>> {
        self.check_open()?;
        if let Some(core) = self.tables.read().get(name) {
            return Ok(Some(core.clone()));
        }
        // What the catalog says while it is being changed may not be durable, and may be over when it has been
        // read: the table would get a second core, which knows neither since when it is there nor of its end.
        if braid_rt::mutant!("look_while_it_changes") {
            return self.find_table_in(&braid_rt::Mutex::default().lock(), name);
        }
        self.find_table_in(&self.catalog_change.lock(), name)
    }

    /// The same for who keeps the catalog as it is.
    fn find_table_in(
        self: &Arc<Self>,
        _unchanged: &MutexGuard<'_, ()>,
        name: &str,
    ) -> Result<Option<Arc<TableCore>>> {
        if let Some(core) = self.tables.read().get(name) {
            return Ok(Some(core.clone()));
        }
        let tx = self.begin(Default::default());
        let Some(entry) = tx.get(&self.catalog_table(), &name_key(name)?)? else {
            return Ok(None);
        };
        let core = self.core(name, CatalogEntry::decode(&entry)?)?;
        self.tables.write().insert(name.to_owned(), core.clone());
        Ok(Some(core))
    }

    fn create_table(
        self: &Arc<Self>,
        name: &str,
        types: String,
        options: TableOptions,
    ) -> Result<Arc<TableCore>> {
        let mut tx = self.begin(Default::default());
        let id = self.take_id(&mut tx)?;
        let entry = CatalogEntry { id, types, options };
        tx.insert(&self.catalog_table(), &name_key(name)?, &entry.encode())?;
        tx.commit()?;
        let core = self.core(name, entry)?;
        self.tables.write().insert(name.to_owned(), core.clone());
        Ok(core)
    }

    /// Assigns the number of a new table.
    pub(crate) fn take_id(&self, tx: &mut Transaction) -> Result<u32> {
        let catalog = self.catalog_table();
        let next: Option<Bytes> = tx.get_for_update(&catalog, NEXT_ID)?;
        let id = match next {
            None => FIRST_ID,
            Some(bytes) => {
                let bytes = bytes[..]
                    .try_into()
                    .map_err(|_| damaged("the next table number is malformed"))?;
                u32::from_le_bytes(bytes)
            }
        };
        if id >= ID_END {
            return Err(Error::OutOfSpace {
                what: "all table numbers are in use".into(),
            });
        }
        tx.insert(&catalog, NEXT_ID, &(id + 1).to_le_bytes())?;
        Ok(id)
    }

    /// Gives a loaded tree, which a checkpoint has made durable, its name: from here on it is a table.
    pub(crate) fn name_loaded(
        self: &Arc<Self>,
        name: &str,
        id: u32,
        tree: Tree,
        types: String,
        options: TableOptions,
    ) -> Result<Arc<TableCore>> {
        let change = self.catalog_change.lock();
        self.check_name_is_free(&change, name)?;
        let mut tx = self.begin(Default::default());
        let entry = CatalogEntry { id, types, options };
        tx.insert(&self.catalog_table(), &name_key(name)?, &entry.encode())?;
        // See `LOADED`.
        tx.insert(&self.catalog_table(), &loaded_key(id)[..], &[][..])?;
        tx.remove(&self.catalog_table(), &loaded_key(id)[..])?;
        let core = TableCore::new(id, self.identity, tree, name, entry.types);
        let core = core.with_options(options);
        // After an error the name may be in the catalog of a database that has failed, and not be durable. Nobody
        // is shown it then (I8).
        let since = tx.commit()?.seqno();
        let core = Arc::new(core.loaded_at(since));
        let mut tables = self.tables.write();
        tables.insert(name.to_owned(), core.clone());
        Ok(core)
    }

    /// That a table may be given this name.
    pub(crate) fn check_name_is_free(
        self: &Arc<Self>,
        unchanged: &MutexGuard<'_, ()>,
        name: &str,
    ) -> Result<()> {
        name_key(name)?;
        match self.find_table_in(unchanged, name)? {
            None => Ok(()),
            Some(_) => Err(Error::TableExists {
                name: name.to_owned(),
            }),
        }
    }

    /// Commits the removal of a table's name. The table is dead from before the commit assigns its
    /// number.
    fn commit_drop(&self, tx: Transaction, core: &Arc<TableCore>) -> Result<()> {
        core.set_dropped(true);
        if let Err(error) = tx.commit() {
            core.set_dropped(false);
            return Err(error);
        }
        self.dropped.lock().push(core.clone());
        Ok(())
    }

    /// Frees the pages of dropped tables that no handle, and so no reader, refers to any more.
    pub(crate) fn free_dropped_tables(&self) -> Result<()> {
        let mut dropped = self.dropped.lock();
        if dropped.iter().any(|core| Arc::strong_count(core) > 1) {
            self.forget_dropped_tables();
        }
        let mut i = 0;
        while i < dropped.len() {
            // One is the list's own. A dropped table is in no map, so no new reference can come up.
            if Arc::strong_count(&dropped[i]) > 1 {
                i += 1;
                continue;
            }
            let core = dropped.swap_remove(i);
            let id = core.id;
            drop(core);
            let _gate = self.page_gate.read();
            self.store.drop_tree(id)?;
        }
        Ok(())
    }
}

impl<K: Key, V: Value> Table<K, V> {
    /// The handle, if the table is of these types.
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

    /// The table, if it was created with these options.
    fn check_options(self, asked: TableOptions) -> Result<Self> {
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

impl Database {
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
    /// [`Error::InvalidTableName`], [`Error::TableTypeMismatch`] if the table has other types, or those of a
    /// commit.
    pub fn open_table<K: Key, V: Value>(&self, name: &str) -> Result<Table<K, V>> {
        self.find_or_create(name, TableOptions::default())
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
    /// As [`Database::open_table`], [`Error::TableOptionsMismatch`] if the table was created with others, and
    /// [`Error::InvalidOption`].
    pub fn open_table_with<K: Key, V: Value>(
        &self,
        name: &str,
        options: TableOptions,
    ) -> Result<Table<K, V>> {
        options.check()?;
        let table: Table<K, V> = self.find_or_create(name, options)?;
        table.check_options(options)
    }

    fn find_or_create<K: Key, V: Value>(
        &self,
        name: &str,
        options: TableOptions,
    ) -> Result<Table<K, V>> {
        if let Some(table) = self.existing_table(name)? {
            return Ok(table);
        }
        let inner = self.inner();
        let change = inner.catalog_change.lock();
        match inner.find_table_in(&change, name)? {
            Some(core) => Table::of_core(core),
            None => {
                let core = inner.create_table(name, Table::<K, V>::types(), options)?;
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
        let core = self.inner().find_table(name)?;
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
        Ok(self.inner().find_table(name)?.map(Table::new))
    }

    /// Opens a table of the types with these names (see [`Key::TYPE_NAME`] and
    /// [`Value::TYPE_NAME`]) as [`Database::untyped_table`] does, or creates it durably if it does
    /// not exist. An existing table may have any [`TableOptions`].
    ///
    /// # Errors
    /// [`Error::InvalidTableName`], [`Error::TableTypeMismatch`] if the table has other types, or those of a
    /// commit.
    pub fn create_untyped_table(
        &self,
        name: &str,
        key_type: &str,
        value_type: &str,
    ) -> Result<Table> {
        self.find_or_create_untyped(
            name,
            type_names(key_type, value_type),
            TableOptions::default(),
        )
    }

    /// As [`Database::create_untyped_table`], with options as in [`Database::open_table_with`].
    ///
    /// # Errors
    /// As [`Database::create_untyped_table`], [`Error::TableOptionsMismatch`] if the table was created with others,
    /// and [`Error::InvalidOption`].
    pub fn create_untyped_table_with(
        &self,
        name: &str,
        key_type: &str,
        value_type: &str,
        options: TableOptions,
    ) -> Result<Table> {
        options.check()?;
        let types = type_names(key_type, value_type);
        let table = self.find_or_create_untyped(name, types, options)?;
        table.check_options(options)
    }

    fn find_or_create_untyped(
        &self,
        name: &str,
        asked: String,
        options: TableOptions,
    ) -> Result<Table> {
        let inner = self.inner();
        inner.check_open()?;
        name_key(name)?;
        let change = inner.catalog_change.lock();
        match inner.find_table_in(&change, name)? {
            Some(core) if core.types != asked => Err(Error::TableTypeMismatch {
                name: name.to_owned(),
                found: core.types.clone(),
                asked,
            }),
            Some(core) => Ok(Table::new(core)),
            None => Ok(Table::new(inner.create_table(name, asked, options)?)),
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
        let inner = self.inner();
        let tx = inner.begin(Default::default());
        let names = tx.prefix(&inner.catalog_table(), &[NAMES])?;
        let decode = |key: Bytes| {
            String::from_utf8(key[1..].to_vec()).map_err(|_| damaged("a table name is not UTF-8"))
        };
        names
            .map(|entry| entry.and_then(|(key, _)| decode(key)))
            .collect()
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
        let inner = self.inner();
        inner.check_open()?;
        let change = inner.catalog_change.lock();
        let Some(core) = inner.find_table_in(&change, name)? else {
            return Ok(false);
        };
        let mut tx = inner.begin(Default::default());
        tx.remove(&inner.catalog_table(), &name_key(name)?)?;
        inner.commit_drop(tx, &core)?;
        inner.tables.write().remove(name);
        Ok(true)
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
    /// [`Error::TableNotFound`], [`Error::TableExists`], [`Error::InvalidTableName`], or those of a commit.
    pub fn rename_table(&self, from: &str, to: &str) -> Result<()> {
        let inner = self.inner();
        inner.check_open()?;
        let (from_key, to_key) = (name_key(from)?, name_key(to)?);
        let change = inner.catalog_change.lock();
        let missing = || Error::TableNotFound {
            name: from.to_owned(),
        };
        let core = inner.find_table_in(&change, from)?.ok_or_else(missing)?;
        inner.check_name_is_free(&change, to)?;
        let catalog = inner.catalog_table();
        let mut tx = inner.begin(Default::default());
        tx.remove(&catalog, &from_key)?;
        let entry = CatalogEntry {
            id: core.id,
            types: core.types.clone(),
            options: core.options,
        };
        tx.insert(&catalog, &to_key, &entry.encode())?;
        tx.commit()?;
        let mut tables = inner.tables.write();
        tables.remove(from);
        *core.name.write() = to.to_owned();
        tables.insert(to.to_owned(), core);
        Ok(())
    }
}
