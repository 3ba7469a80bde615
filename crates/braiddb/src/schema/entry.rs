//! Format of the catalog: its keys, and one entry for each table.

use crate::base::limits::MAX_TABLE_NAME_LEN;
use crate::base::table_options::TableOptions;
use crate::error::{Error, Result, TablespaceError};

/// Number of the catalog and of its tree.
pub(crate) const CATALOG_ID: u32 = 1;

/// Upper bound (exclusive) of table numbers: redo records have 31 bits for one.
pub(crate) const ID_END: u32 = u32::MAX >> 1;

/// First number of the tables in tablespaces other than the main one. Bits 24 to 29 of such a number
/// are the tablespace's, so a log record leads to the store of its table by itself.
pub(crate) const SPACED_IDS: u32 = 1 << 30;

const SPACE_SHIFT: u32 = 24;

/// Most tablespaces, the main one included.
pub(crate) const SPACES_MAX: u8 = 64;

/// Number of the main tablespace: the database's own data file, which has the catalog.
pub(crate) const MAIN_SPACE: u8 = 0;

/// Returns the number of the tablespace of a table.
#[inline]
pub(crate) fn space_of(table_id: u32) -> u8 {
    if table_id < SPACED_IDS {
        MAIN_SPACE
    } else {
        ((table_id >> SPACE_SHIFT) & 0x3f) as u8
    }
}

/// Returns the numbers of the tables that a tablespace can have.
pub(crate) fn ids_of_space(space: u8) -> std::ops::Range<u32> {
    if space == MAIN_SPACE {
        return FIRST_ID..SPACED_IDS;
    }
    let first = SPACED_IDS | u32::from(space) << SPACE_SHIFT;
    first..(first + (1 << SPACE_SHIFT)).min(ID_END)
}

/// First byte of the keys under which the next table number of a tablespace is stored.
const NEXT_IDS: u8 = b'T';

/// Returns the key under which the next table number of a tablespace is stored.
pub(crate) fn next_id_key(space: u8) -> Vec<u8> {
    match space {
        MAIN_SPACE => NEXT_ID.to_vec(),
        space => vec![NEXT_IDS, space],
    }
}

/// First byte of the keys that contain the numbers of tablespaces.
pub(crate) const SPACES: u8 = b'S';

pub(crate) fn space_key(space: u8) -> [u8; 2] {
    [SPACES, space]
}

/// Checks that a tablespace may be given this name.
pub(crate) fn check_space_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_TABLE_NAME_LEN {
        let name = name.to_owned();
        return Err(Error::Tablespace(TablespaceError::InvalidName { name }));
    }
    Ok(())
}

/// Catalog entry of a tablespace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SpaceEntry {
    pub(crate) identity: u128,
    pub(crate) name: String,
}

impl SpaceEntry {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&self.identity.to_le_bytes()[..], self.name.as_bytes()].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let entry = bytes.split_first_chunk().and_then(|(identity, name)| {
            let name = std::str::from_utf8(name).ok()?.to_owned();
            let identity = u128::from_le_bytes(*identity);
            Some(Self { identity, name })
        });
        entry.ok_or_else(|| damaged("an entry of a tablespace is malformed"))
    }
}

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
            // table, and log records have no room for greater numbers.
            (FIRST_ID..ID_END)
                .contains(&id)
                .then_some(Self { id, types, options })
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

/// Returns the catalog's entry of a tablespace if this is one.
pub(crate) fn space_of_entry(key: &[u8], value: &[u8]) -> Option<SpaceEntry> {
    matches!(key, [SPACES, _])
        .then(|| SpaceEntry::decode(value).ok())
        .flatten()
}

/// Returns the number of the bulk-loaded table if this removed key marks a bulk load.
pub(crate) fn loaded_table(key: &[u8]) -> Option<u32> {
    let (&LOADED, id) = key.split_first()? else {
        return None;
    };
    Some(u32::from_le_bytes(id.try_into().ok()?))
}

/// First byte of the keys of tables that moved to another tablespace, which gave them other numbers:
/// under each former number is the present one.
pub(crate) const MOVED: u8 = b'M';

pub(crate) fn moved_key(former: u32) -> Vec<u8> {
    [&[MOVED][..], &former.to_le_bytes()].concat()
}

/// Returns a former number of a table and its present one.
pub(crate) fn moved_table(key: &[u8], value: &[u8]) -> Option<(u32, u32)> {
    let (&MOVED, former) = key.split_first()? else {
        return None;
    };
    let number = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?));
    Some((number(former)?, number(value)?))
}

/// Returns the key whose removal marks a transaction that copies records of a table to its new tree,
/// where the table has this number. The key never exists. It is a different one for each transaction,
/// so none waits for the key's lock.
pub(crate) fn copy_key(id: u32, transaction: u64) -> Vec<u8> {
    [&moved_key(id)[..], &transaction.to_le_bytes()].concat()
}

/// Returns the table's number if this removed key marks a copy.
pub(crate) fn copied_table(key: &[u8]) -> Option<u32> {
    let (&MOVED, rest) = key.split_first()? else {
        return None;
    };
    let (id, transaction) = rest.split_first_chunk()?;
    (transaction.len() == size_of::<u64>()).then_some(u32::from_le_bytes(*id))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_table_contains_that_of_its_tablespace() {
        let mut end = 0;
        for space in MAIN_SPACE..SPACES_MAX {
            let ids = ids_of_space(space);
            assert!(ids.start >= end && ids.len() > 1 << 23, "{space}: {ids:?}");
            for id in [ids.start, ids.start + 1, ids.end - 1] {
                assert_eq!(space_of(id), space, "{id}");
            }
            end = ids.end;
        }
        assert_eq!(end, ID_END);
        assert_eq!(space_of(CATALOG_ID), MAIN_SPACE);
    }

    #[test]
    fn an_entry_of_a_tablespace_is_decoded_as_it_was_encoded() {
        let entry = SpaceEntry {
            identity: 5 << 77,
            name: "fast".into(),
        };
        let bytes = entry.encode();
        assert_eq!(SpaceEntry::decode(&bytes).unwrap(), entry);
        assert!(SpaceEntry::decode(&bytes[..15]).is_err());
        assert!(SpaceEntry::decode(&[0xff; 17]).is_err());
    }
}
