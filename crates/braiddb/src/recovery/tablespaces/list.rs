//! The list of tablespaces in the database's directory.

use braid_io::Device;

use super::super::contents::sync_names;
use super::place::ignore_missing;
use crate::error::{Error, Result};
use crate::format::note;
use crate::format::space::{ListedSpace, decode_list, encode_list};
use crate::schema::entry::{MAIN_SPACE, SPACES_MAX, check_space_name};

/// The list in the database's directory.
pub(crate) const LIST_FILE: &str = "TABLESPACES";

const LIST_MAGIC: [u8; 8] = *b"BRAIDTS\x01";

/// Reads the list of tablespaces.
pub(crate) fn read_list(device: &dyn Device) -> Result<Vec<ListedSpace>> {
    let found = note::read_list(device, LIST_FILE, LIST_MAGIC);
    let found = found.map_err(|e| Error::io(format!("cannot read {LIST_FILE}"), e))?;
    let Some(fields) = found else {
        return Ok(Vec::new());
    };
    let decoded = fields.ok().and_then(|fields| decode_list(&fields));
    decoded
        .filter(|list| is_sound(list))
        .ok_or_else(|| Error::Corrupted {
            what: "the list of tablespaces is unreadable".into(),
            location: LIST_FILE.into(),
        })
}

/// Whether each entry has a name, a log if it has a place for one, and a number and an identity of its own, as a tablespace can have them.
/// Two have the same name if one is the rest of a drop.
fn is_sound(list: &[ListedSpace]) -> bool {
    list.iter().enumerate().all(|(index, entry)| {
        let mut others = list[..index].iter();
        let has_log = entry.has_log || entry.log.is_none();
        has_log
            && (MAIN_SPACE + 1..SPACES_MAX).contains(&entry.number)
            && check_space_name(&entry.name).is_ok()
            && others.all(|other| other.number != entry.number && other.identity != entry.identity)
    })
}

/// Replaces the list of tablespaces durably.
pub(super) fn write_list(device: &dyn Device, entries: &[ListedSpace]) -> Result<()> {
    if entries.is_empty() {
        let removed = ignore_missing(device.remove(LIST_FILE));
        removed.map_err(|e| Error::io(format!("cannot remove {LIST_FILE}"), e))?;
        return sync_names(device);
    }
    let fields = encode_list(entries).ok_or_else(|| Error::InvalidOption {
        option: "tablespace",
        reason: "the name of its directory must be valid UTF-8".into(),
    })?;
    let written = note::write(device, LIST_FILE, LIST_MAGIC, &fields);
    written.map_err(|e| Error::io(format!("cannot write {LIST_FILE}"), e))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use braid_io::MemoryDevice;

    use super::*;
    use crate::tablespace::TablespaceOptions;
    use crate::{Database, Table};

    /// A machine with more memory nodes created the tablespace.
    #[test]
    fn a_tablespace_works_on_a_machine_without_its_memory_node() {
        let devices: [Arc<MemoryDevice>; 2] = Default::default();
        let open = || {
            let builder = Database::builder().pool_bytes(1 << 20);
            let builder = builder.tablespace_device("far", devices[1].clone());
            builder
                .background_threads(false)
                .open_on(devices[0].clone())
                .unwrap()
        };
        let db = open();
        let options = TablespaceOptions::on_device(devices[1].clone()).pool_bytes(1 << 20);
        db.create_tablespace("far", options).unwrap();
        let created: Table<u64, u64> = db.open_table_in("far", "t", Default::default()).unwrap();
        db.transact(|tx| tx.insert(&created, &1, &2)).unwrap();
        db.close().unwrap();
        let mut entries = read_list(&*devices[0]).unwrap();
        entries[0].node = Some(777);
        write_list(&*devices[0], &entries).unwrap();
        for _ in 0..2 {
            let db = open();
            let space = &db.stats().tablespaces[0];
            assert_eq!((space.memory_node, space.is_on_node), (Some(777), false));
            let table: Table<u64, u64> = db.open_table("t").unwrap();
            assert_eq!(db.get(&table, &1).unwrap(), Some(2));
            db.transact(|tx| tx.insert(&table, &2, &3)).unwrap();
            db.close().unwrap();
        }
        assert_eq!(read_list(&*devices[0]).unwrap()[0].node, Some(777));
    }
}
