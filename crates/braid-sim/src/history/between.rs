//! Events while no process has the database open: damage, and another configuration.

use std::sync::Arc;

use braid::Protocol;
use braid_io::{Device, FileFaults, MediaFaults, SimDevice};
use fastrand::Rng;

use super::History;
use crate::check::Violation;
use crate::foreign;
use crate::record::Round;
use crate::tables::Tables;

/// The bytes of a block of the data file.
const BLOCK: usize = 8192;

/// Upper bound of the identities of blocks that are pages, or were never written.
const MAP: u64 = 1 << 62;

const MEDIA_FAULTS: [MediaFaults; 4] = [
    MediaFaults::FlippedBit,
    MediaFaults::LostSector,
    MediaFaults::StaleSector,
    MediaFaults::StalePage,
];

impl History {
    /// Injects the events that may happen while no process has the database open.
    pub(super) fn between(&mut self) {
        // A copy would need the files of all tablespaces.
        if let Some(archive) = &mut self.archive
            && self.spaces.devices().is_empty()
        {
            archive.copy_database(&self.device, &mut self.rng);
        }
        if self.plan.tamper {
            self.tamper();
        }
        if self.plan.media_faults && self.rng.bool() {
            self.damage();
        }
        self.reconfigure();
    }

    /// Cuts, removes or replaces a log file.
    fn tamper(&mut self) {
        let older = std::mem::replace(&mut self.copies, self.device.copy_files());
        // A crash may leave a segment that no mark names; what it holds was not acknowledged, but
        // openings show it. Until the database is written to, nothing reveals its loss; see
        // docs/durability.md.
        if !self.has_written {
            return;
        }
        let fault = [FileFaults::Cut, FileFaults::Gone, FileFaults::Older][self.rng.usize(..3)];
        let pick = |name: &str| name.ends_with(".seg");
        if self.device.fault_file(fault, &older, pick).is_none() {
            return;
        }
        // At most once in a history: the evidence of a second loss may be lost with the first. And
        // the lost log may be log that is kept for a feed or an archive.
        self.plan.tamper = false;
        self.plan.feed = false;
        self.archive = None;
        self.tampered = true;
        self.count(match fault {
            FileFaults::Cut => "a log file cut",
            FileFaults::Gone => "a log file removed",
            FileFaults::Older => "a log file replaced by an earlier copy",
        });
    }

    /// Checks that the loss of the last log files is noticed, however many are lost: the database
    /// refuses to open, or it has every acknowledged transaction of the round.
    pub(super) fn check_without_last_log_files(
        &mut self,
        round: &Round,
        protocol: Protocol,
    ) -> Result<(), Violation> {
        let files = self.device.list().unwrap_or_default().into_iter();
        let mut names: Vec<String> = files.map(|file| file.name).collect();
        names.retain(|name| name.ends_with(".seg"));
        names.sort_unstable();
        for kept in 1..names.len() {
            let device = self.device.after_kill();
            for gone in &names[kept..] {
                device.remove(gone).expect("a new device works");
            }
            let builder = self.plan.builder(&mut Rng::with_seed(self.plan.seed));
            let opened = builder.open_on(Arc::new(device));
            let found = opened.and_then(|db| Tables::existing(&db)?.found_in(&db.snapshot()));
            self.count("the last log files removed");
            if let Ok(found) = found {
                let checked = self.check(round, Some(&found), protocol);
                checked.map_err(|error| format!("without {} and later: {error}", names[kept]))?;
            }
        }
        Ok(())
    }

    /// Damages a sector or a page of the log or the data file.
    fn damage(&mut self) {
        let device = self.spaces.target(&self.device);
        let is_space = self.spaces.has(&device);
        let log = self.rng.bool() && (!is_space || self.plan.has_logs());
        // The log does not consist of pages.
        let kinds = if log { 3 } else { 4 };
        let fault = MEDIA_FAULTS[self.rng.usize(..kinds)];
        let pick = |name: &str| name.ends_with(".braid") != log;
        let identities = identities(&device);
        let Some((_, byte)) = device.media_faults(fault, pick) else {
            return;
        };
        let identity = identities.get(byte / BLOCK).copied().unwrap_or_default();
        self.one_page = !log && !self.decayed && identity < MAP && byte >= 2 * BLOCK;
        self.decayed = true;
        // The actual and the expected contents now differ.
        self.plan.leases = false;
        self.plan.loads = false;
        self.plan.feed = false;
        self.plan.copies = false;
        self.archive = None;
        if is_space {
            self.count("media fault in a tablespace");
        }
        self.count(match (fault, log) {
            (MediaFaults::FlippedBit, true) => "flipped bit in the log",
            (MediaFaults::FlippedBit, false) => "flipped bit in the data file",
            (MediaFaults::LostSector, true) => "lost sector in the log",
            (MediaFaults::LostSector, false) => "lost sector in the data file",
            (MediaFaults::StaleSector, true) => "stale sector in the log",
            (MediaFaults::StaleSector, false) => "stale sector in the data file",
            (MediaFaults::StalePage, _) => "stale page in the data file",
        });
    }

    /// Occasionally chooses another protocol or another number of strands for the next opening.
    fn reconfigure(&mut self) {
        let forced = self.plan.protocol.forced_strands().is_some();
        if self.rng.u32(..10) == 0 {
            let others = Protocol::ALL.iter().copied();
            let others = others.filter(|p| p.forced_strands().is_some() == forced);
            let others: Vec<Protocol> = others.collect();
            self.plan.protocol = others[self.rng.usize(..others.len())];
            self.count("protocol switched");
        }
        if self.rng.u32(..8) == 0 && !forced {
            self.plan.strands = self.plan.lanes + self.rng.usize(..3);
            self.count("number of strands changed");
        }
    }
}

/// Returns the identities in the blocks of the data file.
fn identities(device: &SimDevice) -> Vec<u64> {
    let bytes = foreign::read(device, "data.braid").unwrap_or_default();
    let blocks = bytes.chunks_exact(BLOCK);
    blocks
        .map(|block| u64::from_le_bytes(block[8..16].try_into().expect("eight bytes")))
        .collect()
}
