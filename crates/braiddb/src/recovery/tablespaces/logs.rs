//! Logs of tablespaces: side lanes of the database's log, whose files are with those of the tablespace.
//!
//! A tablespace's number determines its lane. The position of the newest checkpoint says which lanes
//! have log. One that has none yet is created when the database is opened, and no transaction uses it
//! before a checkpoint whose position has it is durable: a lane that the position lacks is ignored by
//! recovery.

use std::sync::Arc;

use braid_io::{Device, RoutedDevice};
use braid_log::{
    CheckpointPosition, FlushNo, LanePosition, Log, LogError, LogOptions, Recovered, SeqNo,
    lane_of_name,
};

use super::owner::check_log_owner;
use super::place::{Attached, missing_at};
use super::{LIST_FILE, Listed, Opening, fault};
use crate::engine::spaces::{Space, side_of};
use crate::error::{Error, Result, TablespaceError};
use crate::format::space::ListedSpace;
use crate::services::readers::Attempt;

/// The place of a tablespace's log.
#[derive(Debug)]
pub(crate) struct LogPlaceOf<'a> {
    pub(crate) entry: &'a ListedSpace,
    /// The device, or why it cannot be used.
    pub(crate) device: Result<Arc<dyn Device>>,
    /// The device without a view that keeps changes in memory.
    pub(crate) base: Option<Arc<dyn Device>>,
}

/// The log of a database with its tablespaces' logs.
#[derive(Debug)]
pub(crate) struct LogLanes {
    /// The device of all files.
    pub(crate) device: Arc<dyn Device>,
    /// Devices of the side lanes, without views.
    bases: Vec<(usize, Arc<dyn Device>)>,
    /// The number of side lanes, used or not.
    pub(crate) side_lanes: usize,
    /// Where the log begins, without the lanes that are missing.
    pub(crate) start: CheckpointPosition,
    /// The tablespaces whose lanes are missing, by number: only for reading.
    pub(crate) missing: Vec<u8>,
    /// The name of the first one, if it is known.
    missing_name: Option<String>,
    /// The memory nodes of the side lanes.
    pub(crate) nodes: Vec<Option<usize>>,
}

impl LogLanes {
    /// Returns the lanes of a log without those of tablespaces.
    pub(crate) fn none(device: Arc<dyn Device>) -> Self {
        Self {
            device,
            bases: Vec::new(),
            start: CheckpointPosition {
                seqno: SeqNo::NONE,
                flush: FlushNo::NONE,
                lanes: Vec::new(),
            },
            missing: Vec::new(),
            missing_name: None,
            side_lanes: 0,
            nodes: Vec::new(),
        }
    }

    /// Returns the lanes of a log whose newest checkpoint has the position `start`, and whose first
    /// `lanes` belong to the database itself. Lanes `may_be_missing` if the database is only read.
    ///
    /// # Errors
    /// Why a lane that has log cannot be read.
    pub(crate) fn of(
        device: Arc<dyn Device>,
        lanes: u16,
        start: &CheckpointPosition,
        (places, may_be_missing): (Vec<LogPlaceOf<'_>>, bool),
    ) -> Result<Self> {
        let (mut present, mut missing) = (start.clone(), Vec::new());
        let mut missing_name = None;
        let lanes = usize::from(lanes);
        let used = start.lanes.get(lanes..).unwrap_or_default();
        let mut side_lanes = used.len();
        let (mut routes, mut bases) = (Vec::new(), Vec::new());
        let mut nodes = Vec::new();
        let mut found = vec![false; used.len()];
        for place in places {
            let side = side_of(place.entry.number);
            let is_used = used.get(side).is_some_and(|lane| !lane.is_absent());
            if !is_used && !place.entry.has_log {
                continue;
            }
            match place.device {
                Ok(side_device) => {
                    check_unit(&*device, &*side_device, place.entry)?;
                    routes.push((lanes + side, side_device));
                    bases.extend(place.base.map(|base| (lanes + side, base)));
                    side_lanes = side_lanes.max(side + 1);
                    nodes.resize(nodes.len().max(side + 1), None);
                    nodes[side] = place.entry.memory(true).node();
                    if is_used {
                        found[side] = true;
                    }
                }
                Err(Error::Tablespace(_)) if is_used && may_be_missing => {
                    present.lanes[lanes + side] = LanePosition::ABSENT;
                    missing.push(place.entry.number);
                    missing_name.get_or_insert_with(|| place.entry.name.clone());
                    found[side] = true;
                }
                Err(error) if is_used => return Err(error),
                Err(_) => {}
            }
        }
        let is_missing = |(side, lane): (usize, &LanePosition)| {
            (!lane.is_absent() && !found[side]).then_some(side)
        };
        if let Some(side) = used.iter().enumerate().find_map(is_missing) {
            let (name, path) = (format!("number {}", side + 1), Default::default());
            let reason = format!(
                "it has a log, and is not in {LIST_FILE}; put back that file from a copy of the database's directory"
            );
            return Err(fault(TablespaceError::Missing { name, path, reason }));
        }
        let device = if routes.is_empty() {
            device
        } else {
            Arc::new(RoutedDevice::new(device, routes, lane_of_name))
        };
        Ok(Self {
            device,
            bases,
            side_lanes,
            start: present,
            missing,
            missing_name,
            nodes,
        })
    }

    /// Converts the error of reading the log without the lanes that are missing.
    pub(in super::super) fn error_without(&self, error: LogError) -> Error {
        match (error, &self.missing_name) {
            (LogError::Undecided { what, file, offset }, Some(name)) => {
                let (name, location) = (name.clone(), format!("{file}, byte {offset}"));
                fault(TablespaceError::Undecided {
                    name,
                    what,
                    location,
                })
            }
            (error, _) => error.into(),
        }
    }

    /// Leaves out the logs that are damaged.
    pub(crate) fn without(mut self, damaged: &DamagedLogs, lanes: u16) -> Self {
        for (side, _) in &damaged.0 {
            self.start.lanes[usize::from(lanes) + side] = LanePosition::ABSENT;
            self.missing.extend(u8::try_from(side + 1));
        }
        self
    }

    /// Returns the device of all files, given that of the database's own without a view.
    pub(crate) fn base(&self, main: &Arc<dyn Device>) -> Arc<dyn Device> {
        if self.bases.is_empty() {
            return main.clone();
        }
        let bases = self.bases.clone();
        Arc::new(RoutedDevice::new(main.clone(), bases, lane_of_name))
    }
}

/// Logs of tablespaces that are damaged, each by itself.
#[derive(Debug, Default)]
pub(crate) struct DamagedLogs(Vec<(usize, LogError)>);

impl DamagedLogs {
    /// Finds the damaged ones in a log that cannot be read.
    pub(crate) fn find(lanes: &LogLanes, options: LogOptions) -> Result<Self> {
        if lanes.side_lanes == 0 {
            return Ok(Self::default());
        }
        let damaged = Log::damaged_side_lanes(&lanes.device, options, &lanes.start)?;
        Ok(Self(damaged))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes the damaged ones after the error of reading a log. Returns the error, which names a tablespace
    /// if there is any.
    pub(in super::super) fn note(
        &mut self,
        error: Error,
        (lanes, options): (&LogLanes, LogOptions),
        listed: &[Listed],
        attempt: Option<&Attempt>,
    ) -> Error {
        // While another process writes, the log may only seem damaged.
        let is_alone = attempt.is_none_or(|attempt| attempt.durable.is_none());
        let is_damage = matches!(error, Error::Corrupted { .. });
        if !is_damage || !is_alone || !self.is_empty() {
            return error;
        }
        // If the log cannot be read again, the first error counts.
        *self = Self::find(lanes, options).unwrap_or_default();
        let mut entries = listed.iter().map(|one| &one.entry);
        entries
            .find_map(|entry| self.error_of(entry))
            .unwrap_or(error)
    }

    /// Returns the error of a tablespace whose log is damaged.
    pub(crate) fn error_of(&self, entry: &ListedSpace) -> Option<Error> {
        let mut damaged = self.0.iter();
        let (_, error) = damaged.find(|(side, _)| *side == side_of(entry.number))?;
        let (name, path) = (entry.name.clone(), entry.directory.clone());
        let reason = format!("its log: {}", Error::from(error.clone()).finding());
        Some(fault(TablespaceError::Damaged { name, path, reason }))
    }
}

impl Opening<'_> {
    /// Checks that the log of a tablespace can be used, whose place is its own. Returns whether the list or
    /// the note lacks the log's present place.
    ///
    /// # Errors
    /// The log's place cannot be used, no file of the log is there although the newest checkpoint needs it,
    /// or it is damaged.
    pub(super) fn check_log(&self, attached: &Attached, entry: &ListedSpace) -> Result<bool> {
        let is_moved = check_log_owner(attached, entry, self.options)?;
        if let Some(error) = self.damaged.error_of(entry) {
            return Err(error);
        }
        let lane = self.main.lanes + side_of(entry.number);
        let position = self.main.start.lanes.get(lane);
        if position.is_none_or(LanePosition::is_absent) {
            return Ok(is_moved);
        }
        let files = attached.device.list().map_err(|error| {
            let what = format!("cannot list the files of tablespace {:?}", entry.name);
            Error::io(what, error)
        })?;
        let mut lanes = files.iter().map(|file| lane_of_name(&file.name));
        if lanes.any(|found| found == Some(lane)) {
            return Ok(is_moved);
        }
        let log = attached.log.iter().flatten().next();
        let directory = log.map_or(&attached.directory, |log| &log.directory);
        let path = directory.clone().unwrap_or_default();
        let reason = "it contains no file of its log; mount the log's disk, or put back the files";
        Err(missing_at(entry, &path, reason.into()))
    }
}

/// Checks that the flushes of the database's log fit the units of a tablespace's device: all lanes have
/// the same.
pub(super) fn check_unit(
    main: &dyn Device,
    device: &dyn Device,
    entry: &ListedSpace,
) -> Result<()> {
    // A name of a file of the log.
    const LOG_FILE: &str = "log-00-00000001.seg";
    let (unit, needed) = (main.block_size_of(LOG_FILE), device.block_size_of(LOG_FILE));
    if needed <= unit {
        return Ok(());
    }
    let reason = format!(
        "its device writes {needed} bytes at a time, and the database's log {unit}; put the log of the database on such a device, too"
    );
    let (name, path) = (entry.name.clone(), entry.directory.clone());
    Err(fault(TablespaceError::Log { name, path, reason }))
}

/// Checks that a log can have side lanes up to that of a tablespace.
pub(super) fn check_lanes(log: &Log, entry: &ListedSpace) -> Result<()> {
    let options = LogOptions {
        side_lanes: side_of(entry.number) + 1,
        ..log.options().clone()
    };
    options.check().map_err(|error| {
        let reason = Error::from(error).to_string();
        let (name, path) = (entry.name.clone(), entry.directory.clone());
        fault(TablespaceError::Log { name, path, reason })
    })
}

/// Returns the places of the logs of all listed tablespaces.
pub(in super::super) fn places(listed: &[Listed]) -> Vec<LogPlaceOf<'_>> {
    let place = |one: &'_ Listed| {
        let device = match (&one.opened, &one.left) {
            (Ok(opened), _) => Ok(opened.space.store.device().clone()),
            // Its data file cannot be used, but its log can.
            (_, Some(left)) if one.is_log_there => Ok(left.device.clone()),
            (Err(error), _) => Err(error.clone()),
        };
        (device, one.base.clone())
    };
    let places = listed.iter().map(|one| {
        let (device, base) = place(one);
        LogPlaceOf {
            entry: &one.entry,
            device,
            base,
        }
    });
    places.collect()
}

/// Names the logs of tablespaces in messages.
pub(in super::super) fn name_logs(log: &Log, spaces: &[Arc<Space>]) {
    for space in spaces.iter().filter(|space| space.has_log) {
        let owner = format!("tablespace {:?}", space.name);
        log.name_side_lane(side_of(space.number), &owner);
    }
}

/// Begins the logs that tablespaces are to have, as the log continues. Tablespaces whose logs the
/// checkpoint has use them. Returns whether any begins.
pub(in super::super) fn begin(recovered: &mut Recovered, spaces: &[Arc<Space>]) -> bool {
    let mut begins = false;
    for space in spaces.iter().filter(|space| space.has_log) {
        let side = side_of(space.number);
        if recovered.has_side_lane(side) {
            space.use_log(true);
        } else {
            recovered.begin_side_lane(side);
            begins = true;
        }
    }
    begins
}
