//! Creation of a database.

use std::sync::Arc;

use braid_io::{Device, Gate};
use braid_log::{Log, LogOptions, SeqNo};
use braid_rt::narrow;
use braid_store::{Store, StoreOptions};

use super::assemble::{catalog, log_options, open_archive, retention};
use super::contents::{self, sync_names};
use super::log_directory;
use super::tablespaces::LogLanes;
use crate::engine::spaces::Spaces;
use crate::error::Result;
use crate::format::meta::Meta;
use crate::observe::recovery::RecoveryReport;
use crate::options::Builder;
use crate::schema::entry::MAIN_SPACE;
use crate::schema::table::Identity;
use crate::services::copies::Copies;
use crate::services::readers::Readers;
use crate::services::{Instance, Parts};

pub(super) fn new_meta(options: &Builder, device: &dyn Device) -> Meta {
    let protocol = options.protocol.unwrap_or_default();
    let strands = protocol
        .forced_strands()
        .or(options.strands)
        .unwrap_or(LogOptions::default().strands);
    let lanes = match options.lanes {
        Some(lanes) => lanes.min(strands),
        // Several lanes share a limit only in whole segments.
        None if options.max_log_bytes != 0 => 1,
        None => LogOptions::default_lanes(device, protocol, strands),
    };
    Meta {
        protocol,
        strands: narrow(strands),
        lanes: narrow(lanes),
    }
}

/// Creates a database on a gated device. `fill` adds its contents; its sequence numbers begin after
/// `seqno`.
pub(crate) fn create(
    gate: &Gate,
    device: Arc<dyn Device>,
    options: &Builder,
    meta: Meta,
    seqno: SeqNo,
    fill: impl FnOnce(&Instance) -> Result<()>,
) -> Result<Arc<Instance>> {
    let began = braid_rt::now();
    // The marker is durable before any other file, and is removed after all others are durable.
    let identity = contents::mark(&*device)?;
    if let Some(place) = &options.log_place {
        log_directory::record(&*device, identity, place)?;
    }
    let readers = Readers::claim(&*device, options.background)?;
    let log_options = log_options(options, &meta, &LogLanes::none(device.clone()));
    let log = Log::create_as(device.clone(), log_options, seqno, identity)?;
    let store_options = StoreOptions {
        pool_bytes: options.pool_bytes,
        memory: options.main_memory(),
        number: MAIN_SPACE,
    };
    let store = Store::create_as(device.clone(), store_options, identity)?;
    store.write_lines(options.pmem_lines);
    store.read_in_place(options.pmem_in_place);
    let identity = Identity::new(None);
    let catalog = catalog(&store, identity)?;
    let recovery = RecoveryReport {
        duration: braid_rt::now() - began,
        ..RecoveryReport::default()
    };
    let opened_at = log.durable_seqno();
    let retention = retention(options, &log, [log.quiesce(|start| start)].into());
    let copies = Copies::open(device.clone(), log.identity())?;
    let archiver = open_archive(gate, options, &log, &retention, &copies)?;
    let parts = Parts {
        log,
        store,
        spaces: Spaces::default(),
        meta,
        catalog,
        retention,
        copies,
        archiver,
        opened_at,
        identity,
        recovery,
        gate: gate.clone(),
        readers,
    };
    let instance = Instance::new(parts, options);
    fill(&instance).inspect_err(|_| instance.abandon())?;
    instance.checkpoint()?;
    sync_names(&*device)?;
    contents::unmark(&*device)?;
    if let Some(readers) = &instance.readers {
        readers.open(&instance.engine.log);
    }
    Ok(instance)
}
