//! Opening a device.

use std::sync::Arc;
use std::time::Instant;

use braid_io::{Device, Gate, Held};
use braid_log::SeqNo;

use super::DATA_FILE;
use super::contents::{self, Contents, inspect};
use super::create::{create, new_meta};
use super::recover::recover;
use crate::error::{Error, Result};
use crate::options::Builder;
use crate::services::Instance;
use crate::services::readers::Attempt;

pub(crate) fn open_device(
    device: Arc<dyn Device>,
    lock: Option<Held>,
    options: Builder,
) -> Result<Arc<Instance>> {
    options.validate()?;
    let gate = Gate::new(lock);
    let opened = open_gated(&gate, gate.device(device), options);
    if opened.is_err() {
        // I9: no thread of the failed open may use the device during the next open.
        gate.shut(|| ());
    }
    opened
}

fn open_gated(gate: &Gate, device: Arc<dyn Device>, options: Builder) -> Result<Arc<Instance>> {
    let began = braid_rt::now();
    let (fresh, marked) = match inspect(&*device)? {
        Contents::Database { marked } => (false, marked),
        Contents::Foreign(reason) => {
            return Err(Error::NotADatabase {
                path: Default::default(),
                reason,
            });
        }
        Contents::Nothing if !options.create_if_missing => {
            return Err(Error::NotADatabase {
                path: Default::default(),
                reason: format!(
                    "it contains no {DATA_FILE}; check the path, or create a database there"
                ),
            });
        }
        Contents::Nothing => (true, false),
        Contents::Unfinished(files) => {
            braid_rt::coverage_point("opening: an unfinished creation is removed");
            contents::remove(&*device, &files)?;
            (true, false)
        }
    };
    let instance = if fresh {
        let meta = new_meta(&options, &*device);
        create(
            gate,
            device.clone(),
            &options,
            meta,
            SeqNo::NONE,
            |_| Ok(()),
        )?
    } else {
        recover_or_read_only(gate, &device, &options, began)?
    };
    if marked && !instance.engine.is_read_only() {
        braid_rt::coverage_point("opening: the marker of a finished creation is removed");
        // A killed process may have written the checkpoint that completed the creation, without a
        // sync (I10).
        if !braid_rt::mutant!("unmark_unsettled") {
            let settled = instance.engine.store.settle();
            settled.inspect_err(|_| instance.abandon())?;
        }
        contents::unmark(&*device).inspect_err(|_| instance.abandon())?;
    }
    if instance.engine.settings.background {
        let started = instance.start_maintenance();
        let started = started.and_then(|()| instance.start_archiver());
        started.inspect_err(|_| instance.abandon())?;
    }
    Ok(instance)
}

/// Recovers a database. If recovery must change damaged pages, or cannot read pages that say what
/// the database contains, the database is opened read-only: nothing is written to the device, so
/// the log keeps the writes that the damaged pages lack, and everything else can be read.
fn recover_or_read_only(
    gate: &Gate,
    device: &Arc<dyn Device>,
    options: &Builder,
    began: Instant,
) -> Result<Arc<Instance>> {
    let error = match recover(gate, device.clone(), options, began, None) {
        Err(error @ Error::Corrupted { .. }) if !options.read_only => error,
        recovered => return recovered,
    };
    let attempt = Attempt::alone(device.clone())?;
    let (device, options) = (attempt.device.clone(), options.clone().reading());
    match recover(gate, device, &options, began, Some(&attempt)) {
        Ok(instance) if instance.engine.damage().is_some() => {
            braid_rt::coverage_point("opening: read-only, since a page is damaged");
            Ok(instance)
        }
        _ => Err(error),
    }
}
