//! Opening a state for reading while another process may write.

use std::sync::Arc;
use std::time::Instant;

use braid_io::Gate;

use super::DATA_FILE;
use super::contents::{Contents, UNFINISHED, inspect};
use super::recover::recover;
use crate::error::{Error, Result};
use crate::options::Builder;
use crate::services::Instance;
use crate::services::readers::{Attempt, LogPin, Source, View};

/// Opens the newest state of a source. `before` is an older state of the same source.
pub(crate) fn open_source(
    source: Arc<Source>,
    options: Builder,
    before: Option<&Instance>,
) -> Result<Arc<Instance>> {
    let began: Instant = braid_rt::now();
    // Readers of changes continue from their positions, so the log after them is needed.
    let log_pins: Vec<Arc<LogPin>> =
        match before.and_then(|before| Some((before, before.view.get()?))) {
            None => Vec::new(),
            Some((before, view)) => view.log_pins(before.retention.needed_start()),
        };
    let kept_from = log_pins.first().map(|pin| &pin.start);
    let (instance, pins) =
        source.open_with(kept_from, |attempt| recover_view(attempt, &options, began))?;
    let start = instance.retention.newest();
    let set = instance
        .view
        .set(View::new(source, options, pins, start, log_pins));
    debug_assert!(set.is_ok(), "it is new");
    Ok(instance)
}

/// Opens a state for reading that has no handle yet.
fn recover_view(attempt: &Attempt, options: &Builder, began: Instant) -> Result<Arc<Instance>> {
    let not_there = |reason: String| Error::NotADatabase {
        path: Default::default(),
        reason,
    };
    match inspect(&*attempt.device)? {
        Contents::Database { .. } => {}
        Contents::Foreign(reason) => return Err(not_there(reason)),
        Contents::Nothing => return Err(not_there(format!("there is no {DATA_FILE} in it"))),
        Contents::Unfinished(_) => return Err(not_there(UNFINISHED.into())),
    }
    let gate = Gate::new(None);
    let device = gate.device(attempt.device.clone());
    let opened = recover(&gate, device, options, began, Some(attempt));
    if opened.is_err() {
        gate.shut(|| ());
    }
    opened
}
