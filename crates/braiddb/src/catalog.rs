//! The table of tables. Its changes are ordinary transactions: logged, atomic, recovered like any other.

use std::sync::Arc;

use bytes::Bytes;

use crate::database::{Database, Inner};
use crate::error::{Error, Result};
use crate::snapshot::Readable;
use crate::table::{Table, TableCore};
use crate::transaction::Transaction;
use crate::types::{Key, Value};

/// The catalog's own number, and its tree's.
pub(crate) const CATALOG_ID: u32 = 1;

/// The longest name of a table, in bytes.
pub const MAX_TABLE_NAME_LEN: usize = 255;

/// The key under which the next table's number lies.
const NEXT_ID: &[u8] = &[0];

/// The first byte of the keys that name tables.
const NAMES: u8 = 1;

const FIRST_ID: u32 = CATALOG_ID + 1;

fn name_key(name: &str) -> Result<Vec<u8>> {
    if name.is_empty() || name.len() > MAX_TABLE_NAME_LEN {
        return Err(Error::TableName {
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

/// A table's entry: its number and types.
fn encode_entry(id: u32, types: &str) -> Vec<u8> {
    [&id.to_le_bytes(), types.as_bytes()].concat()
}

fn decode_entry(bytes: &Bytes) -> Result<(u32, String)> {
    let entry = bytes.split_first_chunk().and_then(|(id, types)| {
        let (id, types) = (u32::from_le_bytes(*id), std::str::from_utf8(types).ok()?);
        // Another name for the catalog itself would let its bytes be written as a table's.
        (id >= FIRST_ID).then(|| (id, types.to_owned()))
    });
    entry.ok_or_else(|| damaged("a table's entry"))
}

/// The number and name of the table that an entry is of, if it is one of a table.
pub(crate) fn table_of_entry(key: &[u8], value: &[u8]) -> Option<(u32, String)> {
    let (&NAMES, name) = key.split_first()? else {
        return None;
    };
    let id = u32::from_le_bytes(*value.first_chunk()?);
    Some((id, String::from_utf8_lossy(name).into_owned()))
}

impl Inner {
    /// The numbers and names of all tables that exist.
    pub(crate) fn table_names_by_id(self: &Arc<Self>) -> Result<Vec<(u32, String)>> {
        let tx = self.begin(Default::default());
        let names = tx.prefix(&self.catalog_table(), &[NAMES])?;
        names
            .map(|entry| entry.map(|(key, value): (Bytes, Bytes)| table_of_entry(&key, &value)))
            .filter_map(Result::transpose)
            .collect()
    }

    /// The numbers of all tables that exist.
    pub(crate) fn table_ids(self: &Arc<Self>) -> Result<Vec<u32>> {
        let tx = self.begin(Default::default());
        let names = tx.prefix(&self.catalog_table(), &[NAMES])?;
        names
            .map(|entry| entry.and_then(|(_, value)| Ok(decode_entry(&value)?.0)))
            .collect()
    }

    pub(crate) fn catalog_table(&self) -> Table {
        Table::new(self.catalog.clone())
    }

    fn core(&self, name: &str, id: u32, types: String) -> Result<Arc<TableCore>> {
        // Creating the tree changes pages.
        let _gate = self.page_gate.read();
        let tree = self.store.tree(id)?;
        Ok(Arc::new(TableCore::new(
            id,
            self.identity,
            tree,
            name,
            types,
        )))
    }

    /// Looks a name up, in memory first.
    fn find_table(self: &Arc<Self>, name: &str) -> Result<Option<Arc<TableCore>>> {
        if let Some(core) = self.tables.read().get(name) {
            return Ok(Some(core.clone()));
        }
        let tx = self.begin(Default::default());
        let Some(entry) = tx.get(&self.catalog_table(), &name_key(name)?)? else {
            return Ok(None);
        };
        let (id, types) = decode_entry(&entry)?;
        let core = self.core(name, id, types)?;
        self.tables.write().insert(name.to_owned(), core.clone());
        Ok(Some(core))
    }

    fn create_table(self: &Arc<Self>, name: &str, types: &str) -> Result<Arc<TableCore>> {
        let catalog = self.catalog_table();
        let mut tx = self.begin(Default::default());
        let next: Option<Bytes> = tx.get_for_update(&catalog, NEXT_ID)?;
        let id = match next {
            None => FIRST_ID,
            Some(bytes) => {
                let bytes = bytes[..]
                    .try_into()
                    .map_err(|_| damaged("the next table's number"))?;
                u32::from_le_bytes(bytes)
            }
        };
        // The redo records keep 31 bits for a table's number.
        if id >= u32::MAX >> 1 {
            return Err(Error::OutOfSpace {
                what: "the numbers for tables are used up".into(),
            });
        }
        tx.insert(&catalog, NEXT_ID, &(id + 1).to_le_bytes())?;
        tx.insert(&catalog, &name_key(name)?, &encode_entry(id, types))?;
        tx.commit()?;
        let core = self.core(name, id, types.to_owned())?;
        self.tables.write().insert(name.to_owned(), core.clone());
        Ok(core)
    }

    /// Commits the removal of a table's name. The table is dead from before the commit draws its number.
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

impl Database {
    /// A handle to a table, which is created, durably, if there is none of this name.
    ///
    /// # Errors
    /// [`Error::TableName`], [`Error::TableType`] if the table holds other types, or what a commit can
    /// fail with.
    pub fn table<K: Key, V: Value>(&self, name: &str) -> Result<Table<K, V>> {
        if let Some(table) = self.existing_table(name)? {
            return Ok(table);
        }
        let inner = self.inner();
        let _change = inner.catalog_change.lock();
        match self.existing_table(name)? {
            Some(table) => Ok(table),
            None => Ok(Table::new(
                inner.create_table(name, &Table::<K, V>::types())?,
            )),
        }
    }

    /// A handle to a table, or `None` if there is none of this name.
    ///
    /// # Errors
    /// As [`Database::table`].
    pub fn existing_table<K: Key, V: Value>(&self, name: &str) -> Result<Option<Table<K, V>>> {
        name_key(name)?;
        let Some(core) = self.inner().find_table(name)? else {
            return Ok(None);
        };
        let asked = Table::<K, V>::types();
        if core.types != asked {
            let found = core.types.clone();
            return Err(Error::TableType {
                name: name.to_owned(),
                found,
                asked,
            });
        }
        Ok(Some(Table::new(core)))
    }

    /// The names of all tables, sorted.
    ///
    /// # Errors
    /// What reading can fail with.
    pub fn table_names(&self) -> Result<Vec<String>> {
        let inner = self.inner();
        let tx = inner.begin(Default::default());
        let names = tx.prefix(&inner.catalog_table(), &[NAMES])?;
        let decode =
            |key: Bytes| String::from_utf8(key[1..].to_vec()).map_err(|_| damaged("a name"));
        names
            .map(|entry| entry.and_then(|(key, _)| decode(key)))
            .collect()
    }

    /// Removes a table with all it holds; says whether there was one of this name.
    ///
    /// Its space is free once no handle to it is left, after the next checkpoint.
    ///
    /// # Errors
    /// What a commit can fail with.
    pub fn drop_table(&self, name: &str) -> Result<bool> {
        let inner = self.inner();
        let _change = inner.catalog_change.lock();
        let Some(core) = inner.find_table(name)? else {
            return Ok(false);
        };
        let mut tx = inner.begin(Default::default());
        tx.remove(&inner.catalog_table(), &name_key(name)?)?;
        inner.commit_drop(tx, &core)?;
        inner.tables.write().remove(name);
        Ok(true)
    }

    /// Gives a table another name.
    ///
    /// # Errors
    /// [`Error::TableMissing`], [`Error::TableExists`], [`Error::TableName`], or what a commit can fail
    /// with.
    pub fn rename_table(&self, from: &str, to: &str) -> Result<()> {
        let inner = self.inner();
        let (from_key, to_key) = (name_key(from)?, name_key(to)?);
        let _change = inner.catalog_change.lock();
        let missing = || Error::TableMissing {
            name: from.to_owned(),
        };
        let core = inner.find_table(from)?.ok_or_else(missing)?;
        if inner.find_table(to)?.is_some() {
            return Err(Error::TableExists {
                name: to.to_owned(),
            });
        }
        let catalog = inner.catalog_table();
        let mut tx = inner.begin(Default::default());
        tx.remove(&catalog, &from_key)?;
        tx.insert(&catalog, &to_key, &encode_entry(core.id, &core.types))?;
        tx.commit()?;
        let mut tables = inner.tables.write();
        tables.remove(from);
        *core.name.write() = to.to_owned();
        tables.insert(to.to_owned(), core);
        Ok(())
    }
}
