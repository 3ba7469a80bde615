//! Loading a table from sorted entries, past the log.
//!
//! The table's tree is built in the data file, beside everything else, and nothing leads to it. Then, in
//! this order: a checkpoint makes it durable, as a tree that belongs to no table; and one logged commit
//! gives it its name. A crash before that commit leaves a tree without a table, which the next opening
//! frees, or pages that nothing refers to, which are free space anyway.
//!
//! The records carry the number of the commit that was assigned the table's number, since that of
//! the last one is not known when they are written. What lies between the two is made good by
//! [`TableCore::since`]: for snapshots from before, the table is empty.
//!
//! [`TableCore::since`]: crate::schema::table::TableCore::since

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use braid_store::{TreeLoader, WriterRoom, layer_entries};
use bytes::Bytes;

use crate::MAX_VALUE_LEN;
use crate::database::Database;
use crate::engine::Inner;
use crate::error::{Error, Result};
use crate::schema::table::{Table, type_names};
use crate::schema::value_format::{TableOptions, ValueFormat};
use crate::txn::transaction::check_key;
use crate::types::{AsKey, AsValue, Key, Value};

/// Loader of a new table from entries in ascending key order; see [`Database::bulk_load`].
///
/// Dropping it before [`BulkLoader::finish`] aborts the load and leaves no trace.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// let mut loader = db.bulk_load::<u32, String>("numbers")?;
/// loader.extend([(1, "one"), (2, "two")])?;
/// loader.insert(&3, "three")?;
/// let numbers = loader.finish()?;
/// assert_eq!(db.get(&numbers, &2)?.as_deref(), Some("two"));
/// # Ok(())
/// # }
/// ```
#[must_use = "the table is there once the loader is finished"]
pub struct BulkLoader<K: Key, V: Value> {
    inner: Arc<Inner>,
    tree: TreeLoader,
    long: LongKeys,
    id: u32,
    name: String,
    /// The names of its types, as the catalog has them.
    type_names: String,
    version: u64,
    entries: u64,
    /// The encoded key before, of whose place only the first one has none.
    last: Vec<u8>,
    options: TableOptions,
    value_format: Option<ValueFormat>,
    encoded: Vec<u8>,
    /// When the entries are written, if they have a time.
    time: u64,
    /// Why nothing can be added any more.
    failed: Option<Error>,
    types: PhantomData<fn() -> (K, V)>,
}

/// The keys of a loader that the store holds already; frees them unless they become a table's.
struct LongKeys {
    inner: Arc<Inner>,
    id: u32,
    is_some: bool,
    /// Room in the data file for the next one.
    room: WriterRoom,
}

impl LongKeys {
    /// Adds an entry, as [`TreeLoader::append`] does. It changes pages of the store at once: between two flips of
    /// checkpoints, and if there is room for them.
    fn append(
        &mut self,
        tree: &mut TreeLoader,
        key: &[u8],
        version: u64,
        value: &[u8],
    ) -> Result<()> {
        let _gate = self.inner.page_gate.read();
        let size = (1 + layer_entries(key.len()), key.len() + value.len());
        let store = &self.inner.store;
        store.expect_long_keys();
        store.admit(&mut self.room, size, || false)?;
        self.is_some = true;
        tree.append(key, version, value)?;
        store.trim_room(&mut self.room);
        Ok(())
    }

    /// Leaves them to their table.
    fn release(&mut self) {
        self.is_some = false;
        self.inner.store.release_room(&mut self.room);
    }
}

impl Drop for LongKeys {
    fn drop(&mut self) {
        self.inner.store.release_room(&mut self.room);
        // What is not freed here is when the database is opened again.
        if self.is_some && self.inner.check_writable().is_ok() {
            let _gate = self.inner.page_gate.read();
            let _ = self.inner.store.drop_tree(self.id);
        }
    }
}

impl<K: Key, V: Value> BulkLoader<K, V> {
    /// Adds an entry. Its encoded key must be greater than all previous ones.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// use braid::Error;
    /// let mut loader = db.bulk_load::<u32, String>("numbers")?;
    /// loader.insert(&7, "seven")?;
    /// assert!(matches!(loader.insert(&6, "six"), Err(Error::OutOfOrder { .. })));
    /// loader.insert(&8, "eight")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfOrder`], [`Error::KeyTooLong`] or [`Error::ValueTooLong`], which skip the
    /// entry, and the loader can still be used; [`Error::OutOfSpace`] or [`Error::Io`], after which
    /// it can only be dropped; [`Error::Closed`].
    pub fn insert(
        &mut self,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
    ) -> Result<()> {
        key.with_key_bytes(|key| value.with_value_bytes(|value| self.append(key, value)))
    }

    fn append(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.check_usable()?;
        check_key(key)?;
        let max = self
            .value_format
            .map_or(MAX_VALUE_LEN, |_| ValueFormat::VALUE_LEN_MAX);
        if value.len() > max {
            let len = value.len();
            return Err(Error::ValueTooLong { len, max });
        }
        if self.entries > 0 && *key <= self.last[..] {
            return Err(Error::OutOfOrder {
                key: key.escape_ascii().to_string(),
                before: self.last.escape_ascii().to_string(),
            });
        }
        let stored = match &self.value_format {
            Some(value_format) => {
                value_format.encode(value, || self.time, &mut self.encoded);
                &self.encoded[..]
            }
            None => value,
        };
        let (tree, version) = (&mut self.tree, self.version);
        let appended = match layer_entries(key.len()) {
            0 => tree.append(key, version, stored).map_err(Error::from),
            _ => self.long.append(tree, key, version, stored),
        };
        if let Err(error) = appended {
            self.failed = Some(error.clone());
            return Err(error);
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        self.entries += 1;
        Ok(())
    }

    fn check_usable(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => self.inner.check_writable(),
        }
    }

    /// Adds entries with [`BulkLoader::insert`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let mut loader = db.bulk_load::<u32, u32>("squares")?;
    /// loader.extend((0..1_000u32).map(|n| (n, n * n)))?;
    /// assert_eq!(loader.len(), 1_000);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first error of [`BulkLoader::insert`]; the entries before it are added.
    pub fn extend<Q: AsKey<K>, W: AsValue<V>>(
        &mut self,
        entries: impl IntoIterator<Item = (Q, W)>,
    ) -> Result<()> {
        let mut entries = entries.into_iter();
        entries.try_for_each(|(key, value)| self.insert(&key, &value))
    }

    /// Returns the number of entries added.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let loader = db.bulk_load::<u32, u32>("t")?;
    /// assert!(loader.is_empty() && loader.len() == 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn len(&self) -> u64 {
        self.entries
    }

    /// Returns whether no entry was added.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// assert!(db.bulk_load::<u32, u32>("t")?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Finishes the load: makes all entries durable with a checkpoint, and then visible at once.
    /// The table exists when this returns; earlier snapshots do not see it.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let before = db.snapshot();
    /// let loader = db.bulk_load::<u32, u32>("t")?;
    /// assert!(db.table_names()?.is_empty());
    /// let table = loader.finish()?;
    /// assert_eq!(db.table_names()?, ["t"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::TableExists`] if a table of this name was created meanwhile, [`Error::OutOfSpace`],
    /// [`Error::Io`], [`Error::Poisoned`] or [`Error::Closed`]. The table does not exist then;
    /// after `Poisoned`, this is known only after reopening.
    pub fn finish(mut self) -> Result<Table<K, V>> {
        self.check_usable()?;
        let Self {
            inner,
            mut long,
            id,
            name,
            type_names,
            options,
            ..
        } = self;
        inner.check_name_is_free(&inner.catalog_change.lock(), &name)?;
        self.tree.finish()?;
        let tree = {
            let _gate = inner.page_gate.read();
            long.release();
            self.tree.attach()
        };
        let make_durable = || match braid_rt::mutant!("name_before_contents") {
            true => Ok(()),
            false => inner.checkpoint(),
        };
        let named =
            make_durable().and_then(|()| inner.name_loaded(&name, id, tree, type_names, options));
        let core = named.inspect_err(|error| {
            // Whether the commit of a failed log counts is not known: if it does, the tree is wanted.
            if !matches!(error, Error::Poisoned { .. }) {
                let _gate = inner.page_gate.read();
                // Pages that can't be freed now are when the database is opened again.
                let _ = inner.store.drop_tree(id);
            }
        })?;
        Ok(Table::new(core))
    }
}

impl<K: Key, V: Value> fmt::Debug for BulkLoader<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkLoader")
            .field("table", &self.name)
            .field("entries", &self.entries)
            .finish_non_exhaustive()
    }
}

impl Database {
    /// Begins to load a new table from entries in ascending key order, at about the speed of
    /// sequential writes to the medium: full pages are written once, and nothing is logged.
    ///
    /// Because the entries are not logged, readers of [changes](Database::changes) see the
    /// [loaded](crate::ChangeSet::loaded) table, but not its entries, and an archive cannot restore
    /// a backup past the load, so make a backup after it.
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
    /// [`Error::TableExists`], [`Error::InvalidTableName`], or those of a commit.
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
    /// As [`Database::bulk_load`], and [`Error::InvalidOption`].
    pub fn bulk_load_with<K: Key, V: Value>(
        &self,
        name: &str,
        options: TableOptions,
    ) -> Result<BulkLoader<K, V>> {
        self.loader(name, Table::<K, V>::types(), options)
    }

    /// Builds a table of the types with these names from encoded entries, as [`Database::bulk_load_with`] does for
    /// types that are known when the program is compiled; see [`Database::create_untyped_table`].
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
    /// value of the types fail with [`Error::Decode`] when they are read through a typed handle.
    pub fn bulk_load_untyped(
        &self,
        name: &str,
        key_type: &str,
        value_type: &str,
        options: TableOptions,
    ) -> Result<BulkLoader<Bytes, Bytes>> {
        self.loader(name, type_names(key_type, value_type), options)
    }

    fn loader<K: Key, V: Value>(
        &self,
        name: &str,
        type_names: String,
        options: TableOptions,
    ) -> Result<BulkLoader<K, V>> {
        options.check()?;
        let inner = self.inner();
        inner.check_writable()?;
        let (id, version) = {
            let change = inner.catalog_change.lock();
            inner.check_name_is_free(&change, name)?;
            let mut tx = inner.begin(Default::default());
            let id = inner.take_id(&mut tx)?;
            (id, tx.commit()?.seqno())
        };
        Ok(BulkLoader {
            inner: inner.clone(),
            tree: inner.store.load(id, inner.background)?,
            long: LongKeys {
                inner: inner.clone(),
                id,
                is_some: false,
                room: WriterRoom::default(),
            },
            id,
            name: name.to_owned(),
            type_names,
            version,
            entries: 0,
            last: Vec::new(),
            options,
            value_format: options.value_format(),
            encoded: Vec::new(),
            time: options.time_to_live.map_or(0, |_| inner.clock.now()),
            failed: None,
            types: PhantomData,
        })
    }
}
