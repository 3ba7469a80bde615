//! Records the writes of a drive within the process.

use std::sync::Arc;

use braid_rt::Mutex;

use super::log::{DISCARD, FLUSH, first_sector, header};
use super::observed::{ObservedDrive, Observer};
use crate::{Command, CommandKind, Drive, DriveError};

/// Bytes of a sector of the record.
const SECTOR: u64 = 512;

/// Records writes, flushes and deallocations when they are submitted, without forced unit access, as
/// QEMU does for its drives.
#[derive(Debug)]
pub struct Recorder {
    block_size: u64,
    record: Mutex<Vec<u8>>,
}

impl Recorder {
    /// Wraps a drive, whose record begins empty.
    pub fn wrap(drive: Arc<dyn Drive>) -> ObservedDrive<Self> {
        let recorder = Self {
            block_size: drive.info().block_size as u64,
            record: Mutex::new(first_sector(SECTOR)),
        };
        ObservedDrive::new(drive, recorder)
    }

    /// Returns the record, for a [`WriteLog`](super::WriteLog).
    pub fn record(&self) -> Vec<u8> {
        self.record.lock().clone()
    }
}

impl Observer for Recorder {
    fn submitting(&self, command: &Command, data: &[u8]) -> Result<(), DriveError> {
        let sectors = u64::from(command.blocks) * self.block_size / SECTOR;
        let (sectors, flags) = match command.kind {
            CommandKind::Read => return Ok(()),
            CommandKind::Write { .. } => (sectors, 0),
            CommandKind::Flush => (0, FLUSH),
            CommandKind::Deallocate => (sectors, DISCARD),
        };
        let start = command.lba * self.block_size / SECTOR;
        let mut record = self.record.lock();
        record.extend(header(SECTOR, [start, sectors, flags, 0]));
        record.extend_from_slice(data);
        Ok(())
    }
}
