//! Bulk load of a table from sorted entries, without the log.
//!
//! The table's tree is built in the data file, and nothing refers to it. Then, in this order: a
//! checkpoint makes the tree durable, without a table; and one logged commit creates the table. A
//! crash before that commit leaves a tree without a table, which the next open frees, or pages that
//! nothing refers to, which are free space anyway.
//!
//! The records carry the sequence number of the commit that assigned the table's number, because
//! that of the last commit is unknown when the records are written. [`TableCore::since`] covers the
//! difference: for snapshots older than the last commit, the table is empty.
//!
//! [`TableCore::since`]: crate::schema::table::TableCore::since

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use braid_store::{Store, TreeLoader, WriterRoom, layer_entries};

use super::instance::Instance;
use super::pacing::CommitPacing;
use crate::MAX_VALUE_LEN;
use crate::base::table_options::TableOptions;
use crate::catalog::Catalog;
use crate::engine::Engine;
use crate::engine::spaces::Space;
use crate::error::{Error, Result};
use crate::schema::entry::space_of;
use crate::schema::table::Table;
use crate::schema::value_format::ValueFormat;
use crate::txn::transaction::{Transaction, check_key};
use crate::types::{AsKey, AsValue, Key, Value};

/// Loader of a new table from entries in ascending key order; see [`crate::Database::bulk_load`].
///
/// Dropping it before [`BulkLoader::finish`] aborts the load and leaves no trace.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// let mut loader = db.bulk_load::<u32, String>("numbers")?;
/// loader.extend([(1, "one"), (2, "two")])?;
/// loader.insert(&3, "three")?;
/// assert_eq!((loader.len(), loader.is_empty()), (3, false));
/// let numbers = loader.finish()?;
/// assert_eq!(db.get(&numbers, &2)?.as_deref(), Some("two"));
/// # Ok(())
/// # }
/// ```
#[must_use = "the table is there once the loader is finished"]
pub struct BulkLoader<K: Key, V: Value> {
    instance: Arc<Instance>,
    tree: TreeLoader,
    long: LongKeys,
    /// `None` in the main tablespace.
    loading: Option<Loading>,
    id: u32,
    name: String,
    /// The names of the types, as stored in the catalog.
    type_names: String,
    version: u64,
    entries: u64,
    /// The previous encoded key; empty before the first one.
    last: Vec<u8>,
    options: TableOptions,
    value_format: Option<ValueFormat>,
    encoded: Vec<u8>,
    /// Time of the entries, for tables with timed entries.
    time: u64,
    /// The error after which no entry can be added.
    failed: Option<Error>,
    types: PhantomData<fn() -> (K, V)>,
}

/// Long keys of a loader, which are already in the store; freed on drop unless they become a
/// table's.
struct LongKeys {
    engine: Arc<Engine>,
    /// The store of the table's tablespace.
    store: Store,
    id: u32,
    is_some: bool,
    /// Room in the data file for the next long key.
    room: WriterRoom,
}

impl LongKeys {
    /// Adds an entry, as [`TreeLoader::append`] does. The entry changes pages of the store at once:
    /// between two epoch switches of checkpoints, and if there is room for them.
    fn append(
        &mut self,
        tree: &mut TreeLoader,
        key: &[u8],
        version: u64,
        value: &[u8],
    ) -> Result<()> {
        let _gate = self.engine.change_pages();
        let size = (1 + layer_entries(key.len()), key.len() + value.len());
        let store = &self.store;
        store.expect_long_keys();
        store.admit(&mut self.room, size, || false)?;
        self.is_some = true;
        tree.append(key, version, value)?;
        store.trim_room(&mut self.room);
        Ok(())
    }

    /// Keeps the long keys for their table.
    fn release(&mut self) {
        self.is_some = false;
        self.store.release_room(&mut self.room);
    }
}

impl Drop for LongKeys {
    fn drop(&mut self) {
        if !braid_rt::mutant!("keep_the_room_of_an_aborted_load") {
            self.store.release_room(&mut self.room);
        }
        // Long keys that are not freed here are freed by the next open.
        let is_freed = !braid_rt::mutant!("keep_the_long_keys_of_an_aborted_load");
        if self.is_some && is_freed && self.engine.check_writable().is_ok() {
            let _gate = self.engine.change_pages();
            let _ = self.store.drop_tree(self.id);
        }
    }
}

/// A load into a tablespace, which is not dropped meanwhile.
pub(super) struct Loading {
    space: Arc<Space>,
    name: String,
}

impl Loading {
    /// Begins a load. The caller has locked the catalog, as a drop does.
    pub(super) fn begin(space: &Arc<Space>, name: &str) -> Self {
        let name = name.to_owned();
        space.uses.lock().loads.push(name.clone());
        let space = space.clone();
        Self { space, name }
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        let loads = &mut self.space.uses.lock().loads;
        // Several loads may have one name, of which the first to finish gets it.
        if let Some(at) = loads.iter().position(|name| *name == self.name) {
            loads.swap_remove(at);
        }
    }
}

impl<K: Key, V: Value> BulkLoader<K, V> {
    pub(crate) fn begin(
        instance: &Arc<Instance>,
        space: Option<&Arc<Space>>,
        name: &str,
        type_names: String,
        options: TableOptions,
    ) -> Result<Self> {
        options.check()?;
        let engine = &instance.engine;
        engine.check_writable()?;
        let (id, version, loading) = {
            let change = engine.tables.change.lock();
            let catalog = Catalog::of(engine);
            catalog.check_name_is_free(&change, name)?;
            let number = engine.check_space_is_there(space.map(|space| &**space))?;
            let loading = space.map(|space| Loading::begin(space, name));
            let mut tx = Transaction::begin(engine, Default::default());
            let id = catalog.take_id(&mut tx, number)?;
            (id, tx.commit()?.seqno(), loading)
        };
        let store = loading
            .as_ref()
            .map_or(&engine.store, |loading| &loading.space.store);
        let tree = store.load(id, engine.settings.background)?;
        Ok(Self {
            instance: instance.clone(),
            tree: tree.paced(Arc::new(CommitPacing(engine.log.clone()))),
            long: LongKeys {
                engine: engine.clone(),
                store: store.clone(),
                id,
                is_some: false,
                room: WriterRoom::default(),
            },
            loading,
            id,
            name: name.to_owned(),
            type_names,
            version,
            entries: 0,
            last: Vec::new(),
            options,
            value_format: options.value_format(),
            encoded: Vec::new(),
            time: options.time_to_live.map_or(0, |_| engine.clock.now()),
            failed: None,
            types: PhantomData,
        })
    }

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
            None => self.instance.engine.check_writable(),
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
            instance,
            mut long,
            id,
            name,
            type_names,
            options,
            loading: _loading,
            ..
        } = self;
        let engine = &instance.engine;
        let store = long.store.clone();
        let catalog = Catalog::of(engine);
        catalog.check_name_is_free(&engine.tables.change.lock(), &name)?;
        self.tree.finish()?;
        let tree = {
            let _gate = engine.change_pages();
            long.release();
            self.tree.attach()
        };
        let make_durable = || {
            if braid_rt::mutant!("name_before_contents") {
                Ok(())
            } else {
                instance.checkpoint_for(space_of(id))
            }
        };
        let named =
            make_durable().and_then(|()| catalog.name_loaded(&name, id, tree, type_names, options));
        let core = named.inspect_err(|error| {
            // If the log failed, it is unknown whether the commit survives; if it does, the tree is
            // needed.
            if !matches!(error, Error::Poisoned { .. }) {
                let _gate = engine.change_pages();
                // Pages that cannot be freed now are freed by the next open.
                let _ = store.drop_tree(id);
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
