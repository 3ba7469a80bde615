//! Transactions of an archive, after the last backup.

use braid_log::{LogRecord, SeqNo};
use braid_store::Store;
use bytes::Bytes;

use crate::error::{BackupError, Result};
use crate::format::redo::{self, Redo};
use crate::recovery::replay::{Replay, gathered_bytes_max};
use crate::schema::entry::{CATALOG_ID, SpaceEntry, loaded_table, space_of_entry, table_of_entry};
use crate::services::archive::{Archive, ArchivedTransaction};
use crate::services::backup::format::Manifest;

/// Replays the archived transactions up to `until`. Returns how many there were.
pub(super) fn replay_archive(
    archive: &Archive,
    (store, spaces): (&Store, &[(u8, Store)]),
    manifest: &Manifest,
    until: u64,
) -> Result<u64> {
    let replay = Replay::new(store, gathered_bytes_max(0)).with_spaces(spaces);
    let mut transactions = 0;
    archive.read(
        manifest.seqno,
        until,
        &mut |transaction: ArchivedTransaction<'_>| {
            transactions += 1;
            check_spaces(manifest, transaction)?;
            check_loaded(manifest, transaction)?;
            replay.add(LogRecord {
                seqno: SeqNo::new(transaction.seqno),
                records: 1,
                payload: transaction.payload,
            })
        },
    )?;
    replay.finish(braid_rt::thread::parallelism())?;
    Ok(transactions)
}

/// Refuses a transaction that creates a tablespace: the backup has no place for it.
fn check_spaces(manifest: &Manifest, transaction: ArchivedTransaction<'_>) -> Result<()> {
    for redo in redo::decode(transaction.payload) {
        let redo = redo?;
        let created = (redo.table == CATALOG_ID)
            .then(|| space_of_entry(redo.key, redo.value?))
            .flatten();
        let is_new = |space: &SpaceEntry| manifest.space(space.identity).is_none();
        if let Some(space) = created.filter(is_new)
            && !braid_rt::mutant!("restore_past_a_new_tablespace")
        {
            return Err(BackupError::NewTablespace {
                name: space.name,
                seqno: transaction.seqno,
            }
            .into());
        }
    }
    Ok(())
}

/// Refuses a transaction that creates a bulk-loaded table, unless the backup has the table's tree.
fn check_loaded(manifest: &Manifest, transaction: ArchivedTransaction<'_>) -> Result<()> {
    for redo in redo::decode(transaction.payload) {
        let redo = redo?;
        let loaded = (redo.table == CATALOG_ID && redo.value.is_none())
            .then(|| loaded_table(redo.key))
            .flatten();
        let Some(id) = loaded.filter(|id| !manifest.has_tree(*id)) else {
            continue;
        };
        let named = |redo: Redo<'_>| {
            let value = Bytes::copy_from_slice(redo.value?);
            table_of_entry(redo.key, &value).filter(|(named, ..)| *named == id)
        };
        let mut all = redo::decode(transaction.payload).filter_map(|redo| named(redo.ok()?));
        return Err(BackupError::LoadedTable {
            table: all.next().map_or_else(String::new, |(_, name, _)| name),
            seqno: transaction.seqno,
        }
        .into());
    }
    Ok(())
}
