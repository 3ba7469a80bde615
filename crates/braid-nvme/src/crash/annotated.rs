//! A drive that writes notes for the record of its writes.

use std::sync::Arc;
use std::time::Duration;

use super::{NOTE, Note};
use crate::{
    Blocking, Command, CommandKind, Completion, DmaBuffer, Drive, DriveError, DriveInfo, Queue,
};

/// A drive without its last 4,096 bytes, which have notes; see the module's documentation. Clones
/// share the drive.
#[derive(Clone, Debug)]
pub struct AnnotatedDrive {
    notes: Arc<Blocking>,
    info: DriveInfo,
}

impl AnnotatedDrive {
    /// Wraps a drive with blocks of at most 4,096 bytes.
    pub fn new(drive: Arc<dyn Drive>) -> Self {
        let mut info = drive.info().clone();
        let note = (NOTE / info.block_size) as u64;
        info.blocks -= note;
        // One queue is that of the notes.
        info.queues = info.queues.saturating_sub(1);
        let notes = Arc::new(Blocking::new(drive));
        Self { notes, info }
    }

    /// Notes that the program has acknowledged all operations up to the one that `payload` describes,
    /// with at most 4,056 bytes.
    ///
    /// # Errors
    ///
    /// The drive's error.
    pub fn acknowledge(&self, payload: &[u8]) -> Result<(), DriveError> {
        self.note(&Note::Acknowledged(payload.to_vec()))
    }

    /// Writes a note, and waits for it: it precedes all that follows.
    fn note(&self, note: &Note) -> Result<(), DriveError> {
        self.notes.write(self.info.blocks, &note.encode())
    }
}

impl Drive for AnnotatedDrive {
    fn info(&self) -> &DriveInfo {
        &self.info
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, DriveError> {
        Ok(Box::new(AnnotatedQueue {
            drive: self.clone(),
            queue: self.notes.drive().open_queue()?,
        }))
    }

    fn allocate(&self, len: usize) -> Result<DmaBuffer, DriveError> {
        self.notes.drive().allocate(len)
    }

    fn accepts(&self, address: *const u8, len: usize) -> bool {
        self.notes.drive().accepts(address, len)
    }
}

struct AnnotatedQueue {
    drive: AnnotatedDrive,
    queue: Box<dyn Queue>,
}

impl Queue for AnnotatedQueue {
    unsafe fn submit(&mut self, command: Command) -> Result<(), DriveError> {
        if command.kind == (CommandKind::Write { fua: true }) {
            let block = self.drive.info.block_size as u64;
            self.drive.note(&Note::Durable {
                offset: command.lba * block,
                len: u64::from(command.blocks) * block,
            })?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.queue.submit(command) }
    }

    fn kick(&mut self) {
        self.queue.kick();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        self.queue.poll(completions)
    }

    fn wait(&mut self, completions: &mut Vec<Completion>, patience: Duration) -> usize {
        self.queue.wait(completions, patience)
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }
}
