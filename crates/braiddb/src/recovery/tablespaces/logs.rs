//! Logs of tablespaces: side lanes of the database's log, whose files are with those of the tablespace.
//!
//! A tablespace's number determines its lane. The position of the newest checkpoint says which lanes
//! have log. One that has none yet is created when the database is opened, and no transaction uses it
//! before a checkpoint whose position has it is durable: a lane that the position lacks is ignored by
//! recovery.

use std::sync::Arc;

use braid_io::{Device, RoutedDevice};
use braid_log::{
    CheckpointPosition, FlushNo, LanePosition, Log, LogOptions, Recovered, SeqNo, lane_of_name,
};

use super::{LIST_FILE, Listed, fault};
use crate::engine::spaces::{Space, side_of};
use crate::error::{Error, Result, TablespaceError};
use crate::format::space::ListedSpace;

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
        if !routes.is_empty() {
            return Ok(Self {
                device: Arc::new(RoutedDevice::new(device, routes, lane_of_name)),
                bases,
                side_lanes,
                start: present,
                missing,
                nodes,
            });
        }
        Ok(Self {
            device,
            bases,
            side_lanes,
            start: present,
            missing,
            nodes,
        })
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
