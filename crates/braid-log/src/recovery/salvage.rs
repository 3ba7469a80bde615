//! Recovery of a damaged log: up to the damage.

use std::sync::Arc;

use braid_io::Device;

use crate::base::numbers::SeqNo;
use crate::format::checkpoint_position::CheckpointPosition;
use crate::format::segment::SegmentHeader;
use crate::options::FlushMode;
use crate::recovery::cut::Damage;
use crate::recovery::recovered::Recovered;
use crate::recovery::scan::ScanMode;
use crate::{LogError, LogOptions};

impl Recovered {
    /// See [`Log::salvage`](crate::Log::salvage).
    pub(crate) fn salvage(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
    ) -> Result<(Self, Vec<String>), LogError> {
        let mode = ScanMode {
            read_ahead: options.flush_mode == FlushMode::Background,
            salvage: true,
            limit: None,
        };
        let mut scanned = Self::scan_lanes(&device, &options, start, mode, &|_| {}, None)?;
        let scans = &mut scanned.lanes;
        let mut notes = Vec::new();
        // The greatest durable seqno that any chunk records.
        let mut durable = start.seqno;
        for scan in scans.iter() {
            notes.extend(scan.broken.clone());
            let found = scan.found.values().map(|found| found.durable_seqno);
            let beyond = scan.beyond.iter().map(|(_, header)| header.durable_seqno);
            let behind = scan.behind.map(|behind| behind.durable_seqno);
            durable = found.chain(beyond).chain(behind).fold(durable, SeqNo::max);
        }
        // A later incarnation builds on records that are missing in this one.
        let broken = scans.iter().filter(|scan| {
            let is_later = |header: &SegmentHeader| header.incarnation > scan.end.incarnation;
            scan.broken.is_some() || scan.beyond.iter().any(|(_, header)| is_later(header))
        });
        let last = broken.map(|scan| scan.end.incarnation).min();
        if let Some(last) = last {
            for scan in scans {
                scan.found.retain(|incarnation, _| *incarnation <= last);
            }
        }
        let damage = Damage {
            durable,
            broken: last.is_some(),
        };
        let recovered = Self::decide(device, options, start.clone(), scanned, Some(damage), None)?;
        let cut = recovered.cut;
        if durable > cut {
            notes.push(format!(
                "the log is complete only up to transaction {cut}: those from {} to {durable} were durable and \
                 are lost, and so are all later ones",
                cut.next()
            ));
        }
        Ok((recovered, notes))
    }
}
