//! The catalog: the table of tables. Its changes are ordinary transactions: logged, atomic, and
//! recovered like any other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use braid_log::SeqNo;
use braid_rt::MutexGuard;
use braid_store::Tree;

use crate::base::table_options::TableOptions;
use crate::engine::{Engine, TableMap};
use crate::error::{Error, Result};
use crate::options::TransactionOptions;
use crate::read::snapshot::Readable;
use crate::schema::entry::{
    CATALOG_ID, CatalogEntry, FIRST_ID, MAIN_SPACE, MOVED, NAMES, NEXT_ID, SPACES, SPACES_MAX,
    SpaceEntry, damaged, ids_of_space, loaded_key, moved_key, moved_table, name_key, next_id_key,
    space_key, table_of_entry,
};
use crate::schema::table::{Table, TableCore};
use crate::txn::transaction::Transaction;

/// Opens, creates, renames and drops tables of an engine.
#[derive(Clone, Copy)]
pub(crate) struct Catalog<'e> {
    engine: &'e Arc<Engine>,
}

/// Returns all tables of an engine, which uses this function for handles from other states.
pub(crate) fn list_tables(engine: &Arc<Engine>) -> Result<TableMap> {
    let catalog = Catalog::of(engine);
    let mut found = TableMap::new();
    for (id, name, _) in catalog.tables()? {
        match catalog.find(&name) {
            Ok(Some(core)) => drop(found.insert(id, core)),
            Ok(None) => {}
            // Its tablespace is missing.
            Err(Error::Tablespace(_)) => {}
            Err(error) => return Err(error),
        }
    }
    for (former, present) in catalog.former_numbers(|_| true)? {
        if let Some(core) = found.get(&present).cloned() {
            // A number that a table has is never a former one, unless the entry is damaged.
            found.entry(former).or_insert(core);
        }
    }
    Ok(found)
}

impl<'e> Catalog<'e> {
    pub(crate) fn of(engine: &'e Arc<Engine>) -> Self {
        Self { engine }
    }
}

impl Catalog<'_> {
    fn begin(&self) -> Transaction {
        // It waits at most for the flush of an earlier change of the catalog.
        let options = TransactionOptions {
            lock_timeout: Some(Duration::MAX),
            ..TransactionOptions::default()
        };
        Transaction::begin(self.engine, options)
    }

    /// Returns the numbers, names and options of all existing tables.
    pub(crate) fn tables(&self) -> Result<Vec<(u32, String, TableOptions)>> {
        let tx = self.begin();
        let names = tx.prefix(&self.table(), &[NAMES])?;
        names
            .map(|entry| entry.map(|(key, value): (Bytes, Bytes)| table_of_entry(&key, &value)))
            .filter_map(Result::transpose)
            .collect()
    }

    /// Returns the names of all existing tables, by table number.
    pub(crate) fn names_by_id(&self) -> Result<BTreeMap<u32, String>> {
        let tables = self.tables()?.into_iter();
        Ok(tables.map(|(id, name, _)| (id, name)).collect())
    }

    /// Returns the numbers of all existing tables, after checking that none has that of another, or one
    /// that a new table would get: two tables would share a tree.
    pub(crate) fn ids(&self) -> Result<BTreeSet<u32>> {
        let tx = self.begin();
        let mut ids = BTreeSet::new();
        for entry in tx.prefix(&self.table(), &[NAMES])? {
            let (_, value): (Bytes, Bytes) = entry?;
            if !ids.insert(CatalogEntry::decode(&value)?.id) {
                return Err(damaged("two tables have the same number"));
            }
        }
        for space in MAIN_SPACE..SPACES_MAX {
            let last = ids.range(ids_of_space(space)).next_back();
            let next = last.map(|_| self.next_id(&tx, space)).transpose()?;
            if last >= next.as_ref() && last.is_some() {
                return Err(damaged("the next table number is that of a table"));
            }
        }
        Ok(ids)
    }

    /// Returns the number that the next table of a tablespace gets, or the end of its numbers.
    fn next_id(&self, tx: &Transaction, space: u8) -> Result<u32> {
        let ids = ids_of_space(space);
        let next: Option<Bytes> = tx.get(&self.table(), &next_id_key(space)[..])?;
        let Some(bytes) = next else {
            return Ok(ids.start);
        };
        let next = bytes[..].try_into().map(u32::from_le_bytes);
        next.ok()
            .filter(|next| (ids.start..=ids.end).contains(next))
            .ok_or_else(|| damaged("the next table number is malformed"))
    }

    /// Returns the numbers and entries of all tablespaces other than the main one.
    pub(crate) fn spaces(&self) -> Result<Vec<(u8, SpaceEntry)>> {
        let tx = self.begin();
        let entries = tx.prefix(&self.table(), &[SPACES])?;
        let mut spaces = Vec::new();
        for entry in entries {
            let (key, value): (Bytes, Bytes) = entry?;
            if let ([_, number], Ok(entry)) = (&key[..], SpaceEntry::decode(&value)) {
                spaces.push((*number, entry));
            }
        }
        Ok(spaces)
    }

    /// Repairs a salvaged catalog. Trees without a name are dropped, like those of dropped tables;
    /// but if names were lost, and for the trees in `found`, they get a name and the type bytes.
    /// The salvaged database has no further tablespaces, so their tables get numbers of the main one:
    /// returns the new number of each. The next table number is set above that of every used tree.
    pub(crate) fn adopt_trees(
        &self,
        names_lost: bool,
        found: &BTreeSet<u32>,
    ) -> Result<BTreeMap<u32, u32>> {
        let catalog = self.table();
        let mut tx = self.begin();
        // A salvaged catalog may have several names for a table, after it was renamed.
        let mut named: BTreeMap<u32, Vec<(Bytes, CatalogEntry)>> = BTreeMap::new();
        for entry in tx.prefix(&catalog, &[NAMES])? {
            let (key, value): (Bytes, Bytes) = entry?;
            if let Ok(entry) = CatalogEntry::decode(&value) {
                named.entry(entry.id).or_default().push((key, entry));
            }
        }
        let mut trees = BTreeSet::new();
        for id in self.engine.store.tree_ids() {
            let stays = named.contains_key(&id) || names_lost || found.contains(&id);
            match id {
                CATALOG_ID => {}
                id if stays => drop(trees.insert(id)),
                id => self.engine.store.drop_tree(id)?,
            }
        }
        let ids = ids_of_space(MAIN_SPACE);
        let known: Option<Bytes> = tx.get(&catalog, NEXT_ID)?;
        let known = known.and_then(|bytes| bytes[..].try_into().ok());
        let known = known.map_or(0, u32::from_le_bytes).min(ids.end);
        // A table without a tree is empty, but has a number, too.
        let used: BTreeSet<u32> = trees.iter().chain(named.keys()).copied().collect();
        let last = used.range(ids.clone()).next_back();
        let mut next = last.map_or(FIRST_ID, |last| last + 1).max(known);
        let mut renumbered = BTreeMap::new();
        for id in used {
            let mut number = id;
            if !ids.contains(&id) && !braid_rt::mutant!("salvage_keeps_numbers_of_tablespaces") {
                (number, next) = (next, next + 1);
                renumbered.insert(id, number);
                if trees.contains(&id) {
                    self.engine.store.renumber_tree(id, number);
                }
            }
            if !named.contains_key(&id) {
                let entry = CatalogEntry {
                    id: number,
                    types: Table::<Bytes, Bytes>::types(),
                    options: TableOptions::default(),
                };
                tx.insert(&catalog, &self.salvaged_key(&tx, number)?, &entry.encode())?;
            }
            let mut names = named.remove(&id).into_iter().flatten();
            if let Some((key, entry)) = names.next()
                && number != id
            {
                let entry = CatalogEntry {
                    id: number,
                    ..entry
                };
                tx.insert(&catalog, &key, &entry.encode())?;
            }
            // Tables of several names would share a tree.
            names.try_for_each(|(key, _)| tx.remove(&catalog, &key).map(drop))?;
        }
        if next > ids.end {
            return Err(Error::OutOfSpace {
                what: "all table numbers are in use".into(),
            });
        }
        if known < next {
            tx.insert(&catalog, NEXT_ID, &next.to_le_bytes())?;
        }
        for space in MAIN_SPACE + 1..SPACES_MAX {
            tx.remove(&catalog, &space_key(space)[..])?;
            tx.remove(&catalog, &next_id_key(space)[..])?;
        }
        // The salvaged database has no log in which former numbers occur.
        for former in self.former_numbers(|_| true)?.into_keys() {
            tx.remove(&catalog, &moved_key(former)[..])?;
        }
        tx.commit()?;
        Ok(renumbered)
    }

    /// Returns the key of a name for a salvaged table that has none.
    fn salvaged_key(&self, tx: &Transaction, id: u32) -> Result<Vec<u8>> {
        let mut name = format!("salvaged-{id}");
        while tx.get(&self.table(), &name_key(&name)?)?.is_some() {
            name.push('+');
        }
        name_key(&name)
    }

    pub(crate) fn table(&self) -> Table {
        Table::new(self.engine.tables.catalog.clone())
    }

    /// Opens the tree of a table, and creates it if it does not exist.
    pub(crate) fn core(&self, name: &str, entry: CatalogEntry) -> Result<Arc<TableCore>> {
        // Creating a tree changes pages.
        let _gate = self.engine.change_pages();
        let tree = self.engine.store_of(entry.id)?.tree(entry.id)?;
        let former = if self.engine.is_read_only() {
            let is_it = |present: u32| present == entry.id;
            self.former_numbers(is_it)?.into_keys().collect()
        } else {
            Vec::new()
        };
        let core = TableCore::new(
            entry.id,
            self.engine.tables.identity,
            tree,
            name,
            entry.types,
        );
        Ok(Arc::new(
            core.with_options(entry.options).with_former(former),
        ))
    }

    /// Finds a table by name, first in memory.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Arc<TableCore>>> {
        self.engine.check_open()?;
        if let Some(core) = self.engine.tables.by_name.read().get(name) {
            return Ok(Some(core.clone()));
        }
        // While the catalog is being changed, its contents may not be durable, and may be outdated
        // once they are read: the table would get a second core, which knows neither its beginning
        // nor its end.
        if braid_rt::mutant!("look_while_it_changes") {
            return self.find_in(&braid_rt::Mutex::default().lock(), name);
        }
        self.find_in(&self.engine.tables.change.lock(), name)
    }

    /// As [`Catalog::find`], for a caller that holds the lock against catalog changes.
    pub(crate) fn find_in(
        &self,
        _unchanged: &MutexGuard<'_, ()>,
        name: &str,
    ) -> Result<Option<Arc<TableCore>>> {
        if let Some(core) = self.engine.tables.by_name.read().get(name) {
            return Ok(Some(core.clone()));
        }
        let tx = self.begin();
        let Some(entry) = tx.get(&self.table(), &name_key(name)?)? else {
            return Ok(None);
        };
        let core = self.core(name, CatalogEntry::decode(&entry)?)?;
        self.engine
            .tables
            .by_name
            .write()
            .insert(name.to_owned(), core.clone());
        Ok(Some(core))
    }

    /// Creates a table in a tablespace.
    pub(crate) fn create(
        &self,
        space: u8,
        name: &str,
        types: String,
        options: TableOptions,
    ) -> Result<Arc<TableCore>> {
        let mut tx = self.begin();
        let id = self.take_id(&mut tx, space)?;
        let entry = CatalogEntry { id, types, options };
        tx.insert(&self.table(), &name_key(name)?, &entry.encode())?;
        tx.commit()?;
        let core = self.core(name, entry)?;
        self.engine
            .tables
            .by_name
            .write()
            .insert(name.to_owned(), core.clone());
        Ok(core)
    }

    /// Assigns a number to a new table of a tablespace.
    pub(crate) fn take_id(&self, tx: &mut Transaction, space: u8) -> Result<u32> {
        let catalog = self.table();
        let key = next_id_key(space);
        let _: Option<Bytes> = tx.get_for_update(&catalog, &key[..])?;
        let id = self.next_id(tx, space)?;
        if id == ids_of_space(space).end {
            return Err(Error::OutOfSpace {
                what: "all table numbers are in use".into(),
            });
        }
        tx.insert(&catalog, &key[..], &(id + 1).to_le_bytes())?;
        Ok(id)
    }

    /// Adds a tablespace whose files are durable.
    pub(crate) fn add_space(&self, number: u8, name: &str, identity: u128) -> Result<()> {
        let name = name.to_owned();
        let entry = SpaceEntry { identity, name };
        let mut tx = self.begin();
        tx.insert(&self.table(), &space_key(number)[..], &entry.encode())?;
        tx.commit()?;
        Ok(())
    }

    /// Removes a tablespace without tables.
    pub(crate) fn remove_space(&self, number: u8) -> Result<()> {
        let mut tx = self.begin();
        tx.remove(&self.table(), &space_key(number)[..])?;
        tx.commit()?;
        Ok(())
    }

    /// Creates the table of a loaded tree, which a checkpoint has made durable, by giving it a
    /// name.
    pub(crate) fn name_loaded(
        &self,
        name: &str,
        id: u32,
        tree: Tree,
        types: String,
        options: TableOptions,
    ) -> Result<Arc<TableCore>> {
        let change = self.engine.tables.change.lock();
        self.check_name_is_free(&change, name)?;
        let mut tx = self.begin();
        let entry = CatalogEntry { id, types, options };
        tx.insert(&self.table(), &name_key(name)?, &entry.encode())?;
        // This removal marks the bulk load, see `LOADED`.
        tx.insert(&self.table(), &loaded_key(id)[..], &[][..])?;
        tx.remove(&self.table(), &loaded_key(id)[..])?;
        let core = TableCore::new(id, self.engine.tables.identity, tree, name, entry.types);
        let core = core.with_options(options);
        // After an error, the catalog of the failed database may contain the name without it being
        // durable. No reader sees it then (I8).
        let since = SeqNo::new(tx.commit()?.seqno());
        let core = Arc::new(core.loaded_at(since));
        let mut tables = self.engine.tables.by_name.write();
        tables.insert(name.to_owned(), core.clone());
        Ok(core)
    }

    /// Gives a table the number of its complete copy in another tablespace.
    pub(crate) fn renumber(&self, tx: &mut Transaction, table: &TableCore, id: u32) -> Result<()> {
        let catalog = self.table();
        let entry = CatalogEntry {
            id,
            types: table.types.clone(),
            options: table.options,
        };
        tx.insert(&catalog, &name_key(&table.name.read())?, &entry.encode())?;
        let former = self.former_numbers(|number| number == table.id)?;
        for former in former.into_keys().chain([table.id]) {
            tx.insert(&catalog, &moved_key(former)[..], &id.to_le_bytes())?;
        }
        Ok(())
    }

    /// Returns the former numbers of tables that moved, with the present ones, of which `which` says
    /// whether to include them.
    pub(crate) fn former_numbers(&self, which: impl Fn(u32) -> bool) -> Result<BTreeMap<u32, u32>> {
        let tx = self.begin();
        let mut found = BTreeMap::new();
        for entry in tx.prefix(&self.table(), &[MOVED])? {
            let (key, value): (Bytes, Bytes) = entry?;
            found.extend(moved_table(&key, &value).filter(|(_, present)| which(*present)));
        }
        Ok(found)
    }

    /// Checks that a table may be given this name.
    pub(crate) fn check_name_is_free(
        &self,
        unchanged: &MutexGuard<'_, ()>,
        name: &str,
    ) -> Result<()> {
        name_key(name)?;
        match self.find_in(unchanged, name)? {
            None => Ok(()),
            Some(_) => Err(Error::TableExists {
                name: name.to_owned(),
            }),
        }
    }

    /// Commits the removal of a table's name. The table is marked as dropped before the commit
    /// assigns its sequence number.
    fn commit_drop(&self, tx: Transaction, core: &Arc<TableCore>) -> Result<()> {
        core.set_dropped(true);
        if let Err(error) = tx.commit() {
            core.set_dropped(false);
            return Err(error);
        }
        self.engine.tables.dropped.lock().push(core.clone());
        Ok(())
    }

    /// Returns the names of all tables, sorted.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let tx = self.begin();
        let names = tx.prefix(&self.table(), &[NAMES])?;
        let decode = |key: Bytes| {
            String::from_utf8(key[1..].to_vec()).map_err(|_| damaged("a table name is not UTF-8"))
        };
        names
            .map(|entry| entry.and_then(|(key, _): (Bytes, Bytes)| decode(key)))
            .collect()
    }

    /// Drops a table. Returns whether it existed.
    pub(crate) fn drop_table(&self, name: &str) -> Result<bool> {
        self.engine.check_open()?;
        let change = self.engine.tables.change.lock();
        let Some(core) = self.find_in(&change, name)? else {
            return Ok(false);
        };
        let mut tx = self.begin();
        tx.remove(&self.table(), &name_key(name)?)?;
        for (former, _) in self.former_numbers(|number| number == core.id)? {
            tx.remove(&self.table(), &moved_key(former)[..])?;
        }
        self.commit_drop(tx, &core)?;
        self.engine.tables.by_name.write().remove(name);
        Ok(true)
    }

    /// Renames a table.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.engine.check_open()?;
        let (from_key, to_key) = (name_key(from)?, name_key(to)?);
        let change = self.engine.tables.change.lock();
        let missing = || Error::TableNotFound {
            name: from.to_owned(),
        };
        let core = self.find_in(&change, from)?.ok_or_else(missing)?;
        self.check_name_is_free(&change, to)?;
        let catalog = self.table();
        let mut tx = self.begin();
        tx.remove(&catalog, &from_key)?;
        let entry = CatalogEntry {
            id: core.id,
            types: core.types.clone(),
            options: core.options,
        };
        tx.insert(&catalog, &to_key, &entry.encode())?;
        tx.commit()?;
        let mut tables = self.engine.tables.by_name.write();
        tables.remove(from);
        *core.name.write() = to.to_owned();
        tables.insert(to.to_owned(), core);
        Ok(())
    }
}
