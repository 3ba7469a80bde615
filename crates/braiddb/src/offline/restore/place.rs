//! The directory or device of a restored database: it is empty before, and marked meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{Device, LOCK_FILE_NAME, OpenMode, READERS_FILE_NAME};
use braid_log::{CheckpointPosition, FlushMode, Log, LogOptions, SeqNo};
use braid_store::Store;

use crate::error::{BackupError, Error, Result};
use crate::format::meta::Meta;
use crate::format::space::SpaceMeta;
use crate::options::LogPlace;
use crate::recovery::{log_directory, opening};
use crate::services::backup::RESTORING_FILE;
use crate::services::backup::format::Manifest;

/// Returns the stamp of a restored database's first checkpoint; 0 if there are no tablespaces.
pub(super) fn first_stamp(manifest: &Manifest) -> u64 {
    u64::from(!manifest.spaces.is_empty())
}

pub(super) fn check_empty(path: &Path) -> Result<()> {
    let entries = braid_io::list_directory(path).map_err(|error| opening(path, error))?;
    match entries.into_iter().next() {
        None => Ok(()),
        Some(found) => Err(BackupError::DestinationInUse {
            path: path.to_owned(),
            found,
        }
        .into()),
    }
}

pub(super) fn begin(device: &dyn Device) -> Result<()> {
    let failed = |e| Error::io("cannot restore the database", e);
    let entries = device.list().map_err(failed)?;
    let is_other = |name: &str| name != LOCK_FILE_NAME && name != READERS_FILE_NAME;
    if let Some(entry) = entries.iter().find(|entry| is_other(&entry.name)) {
        return Err(BackupError::DestinationInUse {
            path: PathBuf::from("the device"),
            found: entry.name.clone(),
        }
        .into());
    }
    let marker = device.open(RESTORING_FILE, OpenMode::CreateNew);
    drop(marker.map_err(failed)?);
    device.sync_directory().map_err(failed)
}

pub(super) fn end(device: &dyn Device) -> Result<()> {
    let failed = |e| Error::io("cannot restore the database", e);
    device.sync_directory().map_err(failed)?;
    device.remove(RESTORING_FILE).map_err(failed)?;
    device.sync_directory().map_err(failed)
}

fn write_checkpoint(store: &Store, meta: Vec<u8>) -> Result<()> {
    let mut checkpoint = store.begin_checkpoint(meta)?;
    checkpoint.write(&|_| {})?;
    checkpoint.publish()?;
    Ok(())
}

/// Begins a log after `seqno` in its place, and writes a checkpoint whose log begins there.
pub(super) fn begin_log(
    device: &Arc<dyn Device>,
    (store, spaces, manifest): (&Store, &[(u8, Store)], &Manifest),
    meta: &Meta,
    seqno: u64,
    place: Option<&LogPlace>,
) -> Result<()> {
    let identity = Log::new_identity();
    if let Some(place) = place {
        log_directory::record(&**device, identity, place)?;
    }
    // Nothing is written to this log: make it as small as its protocol allows.
    let slot_bytes = 8 << 10;
    let slots = 4 * u64::from(meta.strands) * slot_bytes as u64;
    let options = LogOptions {
        slot_bytes,
        segment_bytes: (2 * slots).max(256 << 10),
        flush_mode: FlushMode::Callers,
        ..meta.log_options(0)
    };
    let log = Log::create_as(device.clone(), options, SeqNo::new(seqno), identity)?;
    let start: CheckpointPosition = log.quiesce(|start| start);
    let first = first_stamp(manifest);
    let mut stamps = std::iter::repeat_with(braid_rt::entropy);
    let stamp = match first {
        0 => 0,
        // Random, because no other database has a checkpoint with this stamp.
        first => stamps
            .find(|stamp| ![0, first].contains(stamp))
            .expect("random numbers do not end"),
    };
    for space in &manifest.spaces {
        let (identity, number) = (space.entry.identity, space.entry.number);
        let store = spaces.iter().find(|(other, _)| *other == number);
        let Some((_, store)) = store else { continue };
        let meta = SpaceMeta {
            identity,
            number,
            stamp,
            follows: first,
            seqno: start.seqno,
        };
        write_checkpoint(store, meta.encode())?;
    }
    write_checkpoint(store, meta.encode(&start, None, stamp))?;
    log.close()?;
    Ok(())
}
