//! Format of the catalog: its keys, and one entry for each table.

use crate::base::limits::MAX_TABLE_NAME_LEN;
use crate::base::table_options::TableOptions;
use crate::error::{Error, Result};

/// Number of the catalog and of its tree.
pub(crate) const CATALOG_ID: u32 = 1;

/// Upper bound (exclusive) of table numbers: redo records have 31 bits for one.
pub(crate) const ID_END: u32 = u32::MAX >> 1;

/// Key under which the next table number is stored.
pub(crate) const NEXT_ID: &[u8] = &[0];

/// First byte of the keys that contain table names.
pub(crate) const NAMES: u8 = 1;

pub(crate) const FIRST_ID: u32 = CATALOG_ID + 1;

pub(crate) fn name_key(name: &str) -> Result<Vec<u8>> {
    if name.is_empty() || name.len() > MAX_TABLE_NAME_LEN {
        return Err(Error::InvalidTableName {
            name: name.to_owned(),
        });
    }
    Ok([&[NAMES], name.as_bytes()].concat())
}

pub(crate) fn damaged(what: &str) -> Error {
    Error::Corrupted {
        what: what.into(),
        location: "the catalog".into(),
    }
}

/// Catalog entry of a table.
pub(crate) struct CatalogEntry {
    pub(crate) id: u32,
    pub(crate) types: String,
    pub(crate) options: TableOptions,
}

impl CatalogEntry {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut entry = [&self.id.to_le_bytes(), self.types.as_bytes()].concat();
        let options = self.options.encode();
        if !options.is_empty() {
            // A version without table options parses the whole text as types, which match no
            // request.
            entry.push(0);
            entry.extend(options);
        }
        entry
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let entry = bytes.split_first_chunk().and_then(|(id, rest)| {
            let (types, options) = match rest.iter().position(|byte| *byte == 0) {
                Some(at) => (&rest[..at], TableOptions::decode(&rest[at + 1..])?),
                None => (rest, TableOptions::default()),
            };
            let id = u32::from_le_bytes(*id);
            let types = std::str::from_utf8(types).ok()?.to_owned();
            // An entry with the catalog's own number would allow writing to the catalog as to a
            // table.
            (id >= FIRST_ID).then_some(Self { id, types, options })
        });
        entry.ok_or_else(|| damaged("an entry of a table is malformed"))
    }
}

/// First byte of the keys that mark bulk loads: the transaction that names a table loaded without
/// the log removes such a key, which never exists, so that readers of the log learn of the load.
pub(crate) const LOADED: u8 = b'L';

pub(crate) fn loaded_key(id: u32) -> Vec<u8> {
    [&[LOADED][..], &id.to_le_bytes()].concat()
}

/// Returns the number of the bulk-loaded table if this removed key marks a bulk load.
pub(crate) fn loaded_table(key: &[u8]) -> Option<u32> {
    let (&LOADED, id) = key.split_first()? else {
        return None;
    };
    Some(u32::from_le_bytes(id.try_into().ok()?))
}

/// Returns the number, name and options of a table if the catalog entry describes one.
pub(crate) fn table_of_entry(key: &[u8], value: &[u8]) -> Option<(u32, String, TableOptions)> {
    let (&NAMES, name) = key.split_first()? else {
        return None;
    };
    let entry = CatalogEntry::decode(value).ok()?;
    let name = String::from_utf8_lossy(name).into_owned();
    Some((entry.id, name, entry.options))
}
