//! The format of the catalog: its keys, and its entries, one for each table.

use crate::base::limits::MAX_TABLE_NAME_LEN;
use crate::base::table_options::TableOptions;
use crate::error::{Error, Result};

/// The catalog's own number, and its tree's.
pub(crate) const CATALOG_ID: u32 = 1;

/// Tables' numbers are below this: the redo records keep 31 bits for one.
pub(crate) const ID_END: u32 = u32::MAX >> 1;

/// The key under which the next table's number lies.
pub(crate) const NEXT_ID: &[u8] = &[0];

/// The first byte of the keys that name tables.
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

/// What the catalog says of a table.
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
            // A version that knows of no options takes all of it for types, which nobody asks for.
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
            // Another name for the catalog itself would let its bytes be written as a table's.
            (id >= FIRST_ID).then_some(Self { id, types, options })
        });
        entry.ok_or_else(|| damaged("an entry of a table is malformed"))
    }
}

/// The first byte of a key that is removed, though it never is there, by the transaction that names a table
/// which was loaded past the log: so that those who read the log know.
pub(crate) const LOADED: u8 = b'L';

pub(crate) fn loaded_key(id: u32) -> Vec<u8> {
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
