//! Ways in for the fuzz targets: the decoders of what lies in log records and beside the trees.

use std::sync::Arc;

use braid_io::Device;

use crate::database::Database;
use crate::error::Result;
use crate::format::meta::Meta;
use crate::format::redo;
use crate::offline::salvage::{Finding, SalvageReport, salvage_device};
use crate::options::Builder;

/// How many redo records a log record holds; `None` if it is none.
pub fn redo_records(log_record: &[u8]) -> Option<usize> {
    let mut count = 0;
    for record in redo::decode(log_record) {
        let record = record.ok()?;
        assert!(record.key.len() + record.value.map_or(0, <[u8]>::len) < log_record.len());
        count += 1;
    }
    Some(count)
}

/// Whether the bytes are what a superblock says about a database.
pub fn is_meta(bytes: &[u8]) -> bool {
    Meta::decode(bytes).is_ok()
}

/// The bytes of a redo record.
pub fn redo_record(table: u32, key: &[u8], value: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    redo::encode(redo::Redo { table, key, value }, &mut out);
    out
}

/// Makes the checksums of a backup fit, given what does so for a page; with `rebind` also the identities of its pages.
pub fn seal_backup(bytes: &mut [u8], rebind: bool, seal_page: fn(&mut [u8])) {
    crate::services::backup::seal(bytes, rebind, seal_page);
}

/// Makes the checksums of an archive's file fit.
pub fn seal_archive(bytes: &mut [u8]) {
    crate::services::archive::seal(bytes);
}

/// As [`salvage`](crate::offline::salvage), from a device to a device. Leaves the new database open, when its trees were
/// checked.
///
/// # Panics
/// If they are not sound.
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
