//! Creating and dropping tablespaces.

use std::path::Path;
use std::sync::Arc;

use braid_log::{CheckpointPosition, Log};
use braid_rt::numa;
use braid_store::{Store, StoreOptions};

use super::list::{read_list, write_list};
use super::logs::{check_lanes, check_unit};
use super::owner::{write_log_owner, write_owner};
use super::place::{
    Around, Attached, Freeing, check_vacant, database_directory, prepare, remove_files,
};
use super::{fault, name_file, new_space};
use crate::catalog::Catalog;
use crate::engine::spaces::{Space, Uses, side_of};
use crate::error::{Result, TablespaceError};
use crate::format::space::ListedSpace;
use crate::options::TablespaceOptions;
use crate::schema::entry::{SPACES_MAX, check_space_name, space_of};
use crate::services::Instance;

/// Creates a tablespace.
pub(crate) fn create_tablespace(
    instance: &Instance,
    name: &str,
    options: &TablespaceOptions,
) -> Result<()> {
    let engine = &instance.engine;
    engine.check_open()?;
    engine.check_writable()?;
    check_space_name(name)?;
    options.validate()?;
    let _change = engine.tables.change.lock();
    engine.spaces.check_none_lags()?;
    if engine.spaces.named(name).is_some() {
        let name = name.to_owned();
        return Err(fault(TablespaceError::Exists { name }));
    }
    let device = engine.store.device().clone();
    let mut entries = read_list(&*device)?;
    let is_free = |number: &u8| entries.iter().all(|entry| entry.number != *number);
    let number = engine.spaces.unused(is_free).ok_or_else(|| {
        let max = usize::from(SPACES_MAX) - 1;
        let name = name.to_owned();
        fault(TablespaceError::TooMany { name, max })
    })?;
    let node = existing_node(name, options.memory_node)?;
    let files = &instance.files;
    let spaces = engine.spaces.all();
    let around = Around {
        gate: &files.gate,
        mode: files.mode,
        node: placed_on(node).filter(|_| files.defaults.numa),
        database: files.directory.clone(),
        log_place: files.log.clone(),
        others: spaces.iter().flat_map(|space| space.places()).collect(),
    };
    let access = options.access.unwrap_or(files.defaults.device);
    let log = options.log.as_ref();
    let log = log.map(|place| (place, options.log_access.unwrap_or(access)));
    let attached = prepare(&around, name, (&options.place, access), log)?;
    let entry = ListedSpace {
        number,
        identity: Log::new_identity(),
        pool_bytes: options.pool_bytes as u64,
        name: name.to_owned(),
        directory: attached.directory.clone().unwrap_or_default(),
        access: attached.access,
        has_log: options.own_log,
        log: attached.listed_log(),
        node,
    };
    if entry.has_log {
        check_lanes(&engine.log, &entry)?;
        check_unit(&**engine.store.device(), &*attached.device, &entry)?;
    }
    let identity = entry.identity;
    entries.push(entry);
    let space_device = attached.device.clone();
    let created = write_list(&*device, &entries)
        .and_then(|()| create_files(instance, attached, &entries[entries.len() - 1]))
        .and_then(|space| {
            instance.extend_ahead(&space.store);
            instance.start_agent(&space)?;
            engine.spaces.add(space);
            // Before the first table: from this checkpoint on, only a version that knows tablespaces
            // opens the database, and recovery finds a checkpoint in each.
            instance.whole_checkpoint()?;
            Catalog::of(engine).add_space(number, name, identity)
        });
    created.inspect_err(|_| {
        // If the log failed, it is unknown whether the tablespace exists: the next opening knows. A
        // tablespace's own device fails with the same error.
        if engine.check_not_poisoned().is_ok() {
            let _no_checkpoint = instance.hold_checkpoints();
            engine.spaces.remove(number);
            entries.pop();
            // The next opening removes whatever is left from here on.
            let _ = remove_files(&*space_device, identity, Freeing::Whole)
                .and_then(|()| write_list(&*device, &entries));
        }
    })
}

/// Checks that this machine has the memory node that was chosen for a new tablespace.
fn existing_node(name: &str, chosen: Option<usize>) -> Result<Option<u16>> {
    let Some(node) = chosen else {
        return Ok(None);
    };
    let recorded = numa::with_system_id(node).and_then(|_| u16::try_from(node).ok());
    if recorded.is_none() {
        return Err(fault(TablespaceError::NoSuchNode {
            name: name.to_owned(),
            node,
            existing: (0..numa::nodes()).map(numa::system_id).collect(),
        }));
    }
    Ok(recorded)
}

/// Returns the memory node of this process with the system's number.
fn placed_on(node: Option<u16>) -> Option<usize> {
    node.map(usize::from).and_then(numa::with_system_id)
}

/// Creates the note and the data file of a tablespace, without a checkpoint.
fn create_files(
    instance: &Instance,
    attached: Attached,
    entry: &ListedSpace,
) -> Result<Arc<Space>> {
    let database = database_directory(instance);
    write_owner(&*attached.device, entry.identity, &database)?;
    if let Some(log) = attached.log_device() {
        // It may be the device of the data.
        let path = entry.log.as_ref().map(|log| log.directory.as_path());
        check_vacant(&**log, &entry.name, path.unwrap_or(Path::new("")))?;
        write_log_owner(&*attached.device, entry.identity, &database)?;
    }
    let defaults = &instance.files.defaults;
    let store_options = StoreOptions {
        pool_bytes: usize::try_from(entry.pool_bytes).unwrap_or(usize::MAX),
        memory: entry.memory(defaults.numa),
        number: entry.number,
    };
    let device = attached.device.clone();
    let store = Store::create_as(device, store_options, entry.identity)?;
    store.write_lines(defaults.pmem_lines);
    store.read_in_place(defaults.pmem_in_place);
    let space = new_space(entry, attached, store);
    name_file(&space);
    Ok(space)
}

/// Checks, after a checkpoint, that nothing needs the log of a tablespace that is to be dropped: that the
/// log which is kept for an archive, a feed or a reader has nothing in the tablespace's lane.
fn check_log_unneeded(instance: &Instance, space: &Space) -> Result<()> {
    instance.whole_checkpoint()?;
    let retention = &instance.retention;
    let lane = usize::from(instance.checkpoints.meta.lanes) + side_of(space.number);
    let place = |position: &CheckpointPosition| position.lanes.get(lane).copied();
    let oldest = retention.position_before(retention.oldest());
    if oldest.is_none_or(|oldest| place(&oldest) == place(&retention.newest())) {
        return Ok(());
    }
    let holder = retention.holder(instance.archive.archived());
    let (name, holder) = (
        space.name.clone(),
        holder.unwrap_or_else(|| "another process".into()),
    );
    Err(fault(TablespaceError::LogNeeded { name, holder }))
}

/// Drops a tablespace, which must have no tables.
pub(crate) fn drop_tablespace(instance: &Instance, name: &str) -> Result<()> {
    let engine = &instance.engine;
    engine.check_open()?;
    engine.check_writable()?;
    let _change = engine.tables.change.lock();
    engine.spaces.check_none_lags()?;
    let named = engine.spaces.named(name);
    let space = named.ok_or_else(|| {
        let name = name.to_owned();
        fault(TablespaceError::NotFound { name })
    })?;
    let number = space.number;
    // Tombstones refer to their tables.
    engine.collect_all_versions();
    engine.free_dropped_tables()?;
    let catalog = Catalog::of(engine);
    let is_in = |id: u32| space_of(id) == number;
    let existing = catalog.names_by_id()?.into_iter();
    let existing = existing.filter_map(|(id, name)| is_in(id).then_some(name));
    let dropped = engine.tables.dropped.lock();
    // The empty tree of a table that moved is left to its handles.
    let dropped = dropped.iter().filter(|core| !core.is_moved());
    let moved = engine.tables.moved.lock();
    let left = dropped.chain(moved.iter()).filter(|core| is_in(core.id));
    let dropped: Vec<String> = left.map(|core| core.name.read().clone()).collect();
    drop(moved);
    let Uses { loads, copies } = space.uses.lock().clone();
    let loaded = loads.into_iter();
    let loaded = loaded.filter(|_| !braid_rt::mutant!("drop_a_tablespace_during_a_load"));
    if let Some(table) = existing.chain(dropped).chain(loaded).next()
        && !braid_rt::mutant!("drop_a_tablespace_with_tables")
    {
        let name = name.to_owned();
        return Err(fault(TablespaceError::NotEmpty { name, table }));
    }
    if copies > 0 && !braid_rt::mutant!("drop_a_tablespace_during_a_backup") {
        let name = name.to_owned();
        return Err(fault(TablespaceError::Busy { name }));
    }
    let side = side_of(number);
    if engine.log.has_side_lane(side) {
        check_log_unneeded(instance, &space)?;
    }
    catalog.remove_space(number)?;
    // A running checkpoint writes to the tablespace.
    let no_checkpoint = instance.hold_checkpoints();
    engine.spaces.remove(number);
    instance.stop_agent(number);
    if engine.log.has_side_lane(side) {
        engine.log.retire_side_lane(side)?;
    }
    // An opening needs the files of the tablespaces that the newest checkpoint's catalog has, before
    // it knows what the log says.
    if !braid_rt::mutant!("remove_a_tablespace_before_the_checkpoint") {
        instance.whole_checkpoint_locked()?;
    }
    // From here on, no checkpoint writes to it.
    drop(no_checkpoint);
    space.store.read_in_place(false);
    let checkpoint = engine.store.stats().checkpoint_sequence;
    let readers = instance.readers.as_deref();
    if let Some(readers) = readers {
        readers.forget_space(number);
    }
    let is_read = readers.is_some_and(|readers| readers.needs_older(checkpoint))
        && !braid_rt::mutant!("cut_off_what_readers_read");
    let pause = |begun| engine.log.pause_background(begun);
    let freeing = if is_read || braid_rt::mutant!("free_dropped_files_whole") {
        Freeing::Whole
    } else {
        Freeing::Pieces(&pause)
    };
    remove_files(&**space.store.device(), space.identity, freeing)?;
    let device = engine.store.device();
    let mut entries = read_list(&**device)?;
    entries.retain(|entry| entry.number != number);
    write_list(&**device, &entries)?;
    space.locks.lock().clear();
    Ok(())
}
