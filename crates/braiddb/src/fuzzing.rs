//! Entry points for the fuzz targets: decoders of log records and of metadata.

use std::sync::Arc;

use braid_io::{Device, MemoryDevice, OpenMode};

use crate::database::Database;
use crate::error::Result;
use crate::format::meta::Meta;
use crate::format::redo;
use crate::format::space::{SpaceMeta, decode_list, encode_list};
use crate::offline::salvage::{Finding, SalvageReport, salvage_device};
use crate::options::Builder;
use crate::recovery::tablespaces::{LIST_FILE, OWNER_FILE, is_owner_note, read_list};

/// Returns the number of redo records in a log record; `None` if it is malformed.
pub fn redo_records(log_record: &[u8]) -> Option<usize> {
    let mut count = 0;
    for record in redo::decode(log_record) {
        let record = record.ok()?;
        assert!(record.key.len() + record.value.map_or(0, <[u8]>::len) < log_record.len());
        count += 1;
    }
    Some(count)
}

/// Returns whether the bytes are a superblock's metadata.
pub fn is_meta(bytes: &[u8]) -> bool {
    Meta::decode(bytes).is_ok()
}

/// Decodes the fields of a list of tablespaces. What is accepted is encoded to the same list.
pub fn is_space_list(fields: &[u8]) -> bool {
    let Some(list) = decode_list(fields) else {
        return false;
    };
    let encoded = encode_list(&list).expect("names that were decoded are valid");
    assert_eq!(decode_list(&encoded), Some(list));
    true
}

/// Decodes the metadata in a tablespace's superblock.
pub fn is_space_meta(bytes: &[u8]) -> bool {
    let Ok(meta) = SpaceMeta::decode(bytes) else {
        return false;
    };
    assert_eq!(meta.encode(), bytes);
    true
}

/// Reads files with these bytes as the list of tablespaces and as the note of one, whose checksums
/// `seals` says to repair. Returns whether one of them is accepted.
pub fn is_space_file(bytes: &[u8], seals: bool) -> bool {
    let device = MemoryDevice::new();
    let mut blocks = bytes.to_vec();
    blocks.resize(bytes.len().next_multiple_of(4096), 0);
    if seals && !blocks.is_empty() {
        let crc = crc32c::crc32c(&blocks[16..]);
        blocks[8..12].copy_from_slice(&crc.to_le_bytes());
    }
    for name in [LIST_FILE, OWNER_FILE] {
        let file = device.open(name, OpenMode::CreateNew);
        let file = file.expect("memory takes it");
        file.write_at(&[&blocks], 0).expect("memory takes it");
    }
    let list = read_list(&device).is_ok_and(|list| !list.is_empty());
    list | is_owner_note(&device)
}

/// Encodes a redo record.
pub fn redo_record(table: u32, key: &[u8], value: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    redo::encode(redo::Redo { table, key, value }, &mut out);
    out
}

/// Recomputes the checksums of a backup, given a function that does so for a page; with `rebind`,
/// also the identities of its pages.
pub fn seal_backup(bytes: &mut [u8], rebind: bool, seal_page: fn(&mut [u8])) {
    crate::services::backup::seal(bytes, rebind, seal_page);
}

/// Recomputes the checksums of an archive file.
pub fn seal_archive(bytes: &mut [u8]) {
    crate::services::archive::seal(bytes);
}

/// As [`salvage`](crate::offline::salvage), from a device to a device. Checks the new database's
/// trees and leaves it open.
///
/// # Panics
/// If a tree is not sound.
///
/// # Errors
/// As [`salvage`](crate::offline::salvage).
pub fn salvage(
    from: Arc<dyn Device>,
    into: Arc<dyn Device>,
    options: &Builder,
    sink: &mut dyn FnMut(Finding),
) -> Result<(SalvageReport, Database)> {
    let (report, db) = salvage_device(from, || Ok((None, into)), options, sink)?;
    let store = &db.engine().store;
    store.verify(&mut |damage| panic!("the new database is damaged: {}", damage.what))?;
    Ok((report, db))
}
