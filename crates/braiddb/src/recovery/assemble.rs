//! Components of a database that both creation and recovery assemble.

use std::collections::VecDeque;
use std::sync::Arc;

use braid_io::Gate;
use braid_log::{CheckpointPosition, FlushMode, Log, LogOptions, SeqNo};
use braid_rt::to_usize;
use braid_store::Store;

use super::tablespaces::LogLanes;
use crate::error::Result;
use crate::format::meta::Meta;
use crate::options::{ArchivePlace, Builder};
use crate::schema::entry::CATALOG_ID;
use crate::schema::table::{Identity, TableCore};
use crate::services::archive::{Archiver, ON_DEVICE};
use crate::services::copies::{Copies, check_outside};
use crate::services::retention::Retention;

pub(super) fn log_options(options: &Builder, meta: &Meta, lanes: &LogLanes) -> LogOptions {
    let defaults = LogOptions::default();
    LogOptions {
        protocol: meta.protocol,
        strands: meta.strands.into(),
        lanes: meta.lanes.into(),
        side_lanes: lanes.side_lanes,
        side_nodes: lanes.nodes.clone(),
        segment_bytes: options.segment_bytes,
        max_log_bytes: options.max_log_bytes,
        preallocated_bytes: options.preallocated_log_bytes,
        flushes_in_flight: options
            .flushes_in_flight
            .unwrap_or(defaults.flushes_in_flight),
        flush_mode: if options.background {
            FlushMode::Background
        } else {
            FlushMode::Callers
        },
        discard: options.discard,
        numa: options.numa,
        pmem_commit: options.pmem_commit,
        group_size: options.group_size,
        epoch: options.epoch,
        slot_bytes: defaults.slot_bytes.min(to_usize(options.segment_bytes / 4)),
    }
}

/// Creates the retention of log beyond what recovery needs.
pub(super) fn retention(
    options: &Builder,
    log: &Log,
    starts: VecDeque<CheckpointPosition>,
) -> Retention {
    let most = match options.max_log_bytes {
        0 => u64::MAX,
        most => most / 4,
    };
    let feed_bytes = options.feed_log_bytes.min(most);
    let log = log.clone();
    let bytes =
        move |from: &CheckpointPosition, to: &CheckpointPosition| log.bytes_between(from, to);
    Retention::new(starts, bytes, feed_bytes)
}

pub(super) fn open_archive(
    gate: &Gate,
    options: &Builder,
    log: &Log,
    retention: &Retention,
    copies: &Copies,
) -> Result<Option<Archiver>> {
    let oldest = retention.oldest().get();
    Ok(match &options.archive {
        None => {
            // The next open with the archive continues from the last archived transaction.
            let kept = copies.archived().map(SeqNo::new);
            retention.set_archive(kept.filter(|_| !braid_rt::mutant!("forget_the_archive")));
            None
        }
        Some(ArchivePlace::Directory(path)) => {
            check_outside(options.directory.as_deref(), path)?;
            let place = options.log_place.as_ref();
            check_outside(place.map(|place| place.directory.as_path()), path)?;
            let mode = options.file_mode;
            Some(Archiver::open(gate, path, mode, log, oldest, copies)?)
        }
        Some(ArchivePlace::Device(device)) => {
            let device = gate.device(device.clone());
            let archiver = Archiver::open_on(device, ON_DEVICE, log, oldest, copies)?;
            Some(archiver)
        }
    })
}

pub(super) fn catalog(store: &Store, identity: Identity) -> Result<Arc<TableCore>> {
    let tree = store.tree(CATALOG_ID)?;
    Ok(Arc::new(TableCore::new(
        CATALOG_ID,
        identity,
        tree,
        "(catalog)",
        String::new(),
    )))
}
