//! Side lanes that are damaged by themselves.

use std::sync::Arc;

use braid_io::Device;

use crate::format::checkpoint_position::{CheckpointPosition, LanePosition};
use crate::options::FlushMode;
use crate::recovery::recovered::Recovered;
use crate::recovery::scan::ScanMode;
use crate::{LogError, LogOptions};

impl Recovered {
    /// See [`Log::damaged_side_lanes`](crate::Log::damaged_side_lanes).
    pub(crate) fn damaged_side_lanes(
        device: &Arc<dyn Device>,
        options: &LogOptions,
        start: &CheckpointPosition,
    ) -> Result<Vec<(usize, LogError)>, LogError> {
        let mode = ScanMode {
            read_ahead: options.flush_mode == FlushMode::Background,
            salvage: false,
            limit: None,
        };
        let scan = |position: &CheckpointPosition| {
            let scanned = Self::scan_lanes(device, options, position, mode, &|_| {}, None);
            match scanned {
                Ok(_) => Ok(None),
                Err(error @ LogError::Corrupted { .. }) => Ok(Some(error)),
                Err(error) => Err(error),
            }
        };
        let mut without = start.clone();
        without.lanes[options.lanes..].fill(LanePosition::ABSENT);
        if scan(&without)?.is_some() {
            return Ok(Vec::new());
        }
        let mut damaged = Vec::new();
        for (side, position) in start.lanes[options.lanes..].iter().enumerate() {
            if position.is_absent() {
                continue;
            }
            let mut with_one = without.clone();
            with_one.lanes[options.lanes + side] = *position;
            damaged.extend(scan(&with_one)?.map(|error| (side, error)));
        }
        Ok(damaged)
    }
}
