//! What the logs of a damaged database have.
//!
//! A log that is missing or damaged does not cost what the others have: without it, they are read as far
//! as their transactions are known to have been durable everywhere. A log that is damaged has the
//! beginning of all, too.

use braid_log::{CheckpointPosition, Log, LogError, LogOptions, Recovered, SeqNo};

use super::Finding;
use crate::error::{Error, Result};
use crate::format::meta::Meta;
use crate::recovery::tablespaces::{DamagedLogs, DamagedSpace, LogLanes};

/// A part of the log, and what it lacks.
type Part = (Recovered, Vec<String>);

/// Reads the log as far as its damage lets it. Of a later part, only transactions after the cuts of the
/// earlier ones count.
pub(super) fn read(
    lanes: Result<LogLanes>,
    (meta, start, known): (&Meta, &CheckpointPosition, SeqNo),
    spaces: &[DamagedSpace],
    tell: &mut dyn FnMut(Finding),
) -> Result<Vec<Recovered>> {
    let read = lanes.and_then(|lanes| {
        tell_of_missing(&lanes, spaces, tell);
        read_parts(lanes, (meta, known), spaces, tell)
    });
    match read {
        Ok(parts) => {
            let (logs, losses): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            for loss in losses.into_iter().flatten() {
                tell(Finding::Lost(format!("log: {loss}")));
            }
            Ok(logs)
        }
        Err(error @ (Error::Corrupted { .. } | Error::Tablespace(_))) => {
            tell(Finding::Lost(format!(
                "log: every transaction after sequence number {}: {error}",
                start.seqno
            )));
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// Reports the tablespaces whose logs cannot be read.
fn tell_of_missing(lanes: &LogLanes, spaces: &[DamagedSpace], tell: &mut dyn FnMut(Finding)) {
    let is_missing = |space: &&DamagedSpace| lanes.missing.contains(&space.entry.number);
    for space in spaces.iter().filter(is_missing) {
        if let Err(error) = space.log_place(&*lanes.device).device {
            tell_of(space, lanes.start.seqno, &error, tell);
        }
    }
}

fn tell_of(space: &DamagedSpace, after: SeqNo, error: &Error, tell: &mut dyn FnMut(Finding)) {
    tell(Finding::Lost(format!(
        "log: what transactions after sequence number {after} wrote to tablespace {:?}: {error}",
        space.entry.name
    )));
}

/// Reads the log with all lanes that are there, and without those that are damaged.
fn read_parts(
    lanes: LogLanes,
    (meta, known): (&Meta, SeqNo),
    spaces: &[DamagedSpace],
    tell: &mut dyn FnMut(Finding),
) -> Result<Vec<Part>> {
    let options = meta.log_options(lanes.side_lanes);
    let start = lanes.start.seqno;
    let all = read_lanes(&lanes, options.clone(), (known, start));
    let is_damaged = match &all {
        Ok((_, losses)) => lanes.missing.is_empty() && !losses.is_empty(),
        Err(error) => matches!(error, Error::Corrupted { .. }),
    };
    if !is_damaged || braid_rt::mutant!("salvage_up_to_the_first_damage") {
        return Ok(vec![all?]);
    }
    // If the log cannot be read again, the first outcome counts.
    let damaged = DamagedLogs::find(&lanes, options.clone()).unwrap_or_default();
    if damaged.is_empty() {
        return Ok(vec![all?]);
    }
    let first = all.ok();
    let reach = first.as_ref().map_or(start, |(log, _)| log.cut);
    let others = read_lanes(
        &lanes.without(&damaged, meta.lanes),
        options,
        (known, reach),
    )?;
    for space in spaces {
        if let Some(error) = damaged.error_of(&space.entry) {
            tell_of(space, reach, &error, tell);
        }
    }
    // What it lacks is what the damaged lanes have.
    let first = first.map(|(log, _)| (log, Vec::new()));
    Ok(first.into_iter().chain([others]).collect())
}

/// Reads the log as far as its damage lets it, given the newest checkpoint, and how far the log is read
/// otherwise.
fn read_lanes(
    lanes: &LogLanes,
    options: LogOptions,
    (known, reach): (SeqNo, SeqNo),
) -> Result<Part> {
    let (device, start) = (&lanes.device, &lanes.start);
    if !lanes.missing.is_empty() {
        // Numbers that only a missing log has are no gaps, if they are known to have been durable, as
        // those that a checkpoint has.
        let options = options.clone();
        let proven = Log::recover_proven(device.clone(), options, start, known, None, &|_| {});
        match proven {
            Ok(recovered) => {
                let lost = format!(
                    "what transactions after sequence number {} wrote to other tablespaces, since only a missing log \
                     knows whether they were durable",
                    recovered.cut.max(reach)
                );
                return Ok((recovered, vec![lost]));
            }
            Err(LogError::Corrupted { .. } | LogError::Undecided { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Log::salvage(device.clone(), options, start)?)
}
