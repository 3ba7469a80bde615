//! A drive that writes notes for the record of its writes.

use std::sync::Arc;

use super::observed::{ObservedDrive, Observer};
use super::{NOTE, Note};
use crate::{Blocking, Command, CommandKind, DmaBuffer, Drive, DriveError, DriveInfo, Queue};

/// Writes notes to the end of a drive.
#[derive(Debug)]
struct Notes {
    blocking: Blocking,
    /// The first block of the notes.
    lba: u64,
}

impl Notes {
    /// Writes a note, and waits for it: it precedes all that follows.
    fn write(&self, note: &Note) -> Result<(), DriveError> {
        self.blocking.write(self.lba, &note.encode())
    }
}

impl Observer for Notes {
    fn submitting(&self, command: &Command, data: &[u8]) -> Result<(), DriveError> {
        if command.kind != (CommandKind::Write { fua: true }) {
            return Ok(());
        }
        let block = self.blocking.info().block_size as u64;
        self.write(&Note::Durable {
            offset: command.lba * block,
            len: data.len() as u64,
        })
    }
}

/// A drive without its last 4,096 bytes, which have notes; see the module's documentation. Clones
/// share the drive.
#[derive(Clone, Debug)]
pub struct AnnotatedDrive {
    drive: ObservedDrive<Notes>,
}

impl AnnotatedDrive {
    /// Wraps a drive with blocks of at most 4,096 bytes.
    pub fn new(drive: Arc<dyn Drive>) -> Self {
        let mut info = drive.info().clone();
        info.blocks -= (NOTE / info.block_size) as u64;
        // One queue is that of the notes.
        info.queues = info.queues.saturating_sub(1);
        let notes = Notes {
            blocking: Blocking::new(drive.clone()),
            lba: info.blocks,
        };
        Self {
            drive: ObservedDrive::with_info(drive, info, notes),
        }
    }

    /// Notes that the program has acknowledged what `payload` describes, with at most 4,056 bytes.
    ///
    /// # Errors
    ///
    /// The drive's error.
    pub fn acknowledge(&self, payload: &[u8]) -> Result<(), DriveError> {
        let note = Note::Acknowledged(payload.to_vec());
        self.drive.observer().write(&note)
    }
}

impl Drive for AnnotatedDrive {
    fn info(&self) -> &DriveInfo {
        self.drive.info()
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, DriveError> {
        self.drive.open_queue()
    }

    fn allocate(&self, len: usize) -> Result<DmaBuffer, DriveError> {
        self.drive.allocate(len)
    }

    fn accepts(&self, address: *const u8, len: usize) -> bool {
        self.drive.accepts(address, len)
    }
}
