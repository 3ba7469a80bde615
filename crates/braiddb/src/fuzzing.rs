//! Entry points for the fuzz targets: decoders of log records and of metadata.

use std::sync::Arc;

use braid_io::Device;

use crate::database::Database;
use crate::error::Result;
use crate::format::meta::Meta;
use crate::format::redo;
use crate::offline::salvage::{Finding, SalvageReport, salvage_device};
use crate::options::Builder;

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
