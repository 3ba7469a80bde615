//! A drive whose commands and completions an observer sees.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use braid_rt::to_usize;

use crate::{
    Command, CommandKind, Completion, DmaBuffer, Drive, DriveError, DriveInfo, Queue, Target,
    check_command,
};

/// Sees the commands of a drive before the drive does, and the outcomes before the program does.
pub trait Observer: Send + Sync + fmt::Debug + 'static {
    /// Called with a valid command before it is submitted, and with the bytes of a write (otherwise
    /// none).
    ///
    /// # Errors
    ///
    /// An error refuses the command.
    fn submitting(&self, command: &Command, data: &[u8]) -> Result<(), DriveError> {
        let _ = (command, data);
        Ok(())
    }

    /// Called with a command that has completed, and its outcome.
    fn completed(&self, target: Target, result: &Result<(), DriveError>) {
        let _ = (target, result);
    }
}

/// A drive that passes every command to an [`Observer`] first. Clones share the drive.
#[derive(Debug)]
pub struct ObservedDrive<O> {
    drive: Arc<dyn Drive>,
    info: DriveInfo,
    observer: Arc<O>,
}

impl<O> Clone for ObservedDrive<O> {
    fn clone(&self) -> Self {
        Self {
            drive: self.drive.clone(),
            info: self.info.clone(),
            observer: self.observer.clone(),
        }
    }
}

impl<O: Observer> ObservedDrive<O> {
    /// Wraps a drive, and describes it as `info`.
    pub(super) fn with_info(drive: Arc<dyn Drive>, info: DriveInfo, observer: O) -> Self {
        Self {
            drive,
            info,
            observer: Arc::new(observer),
        }
    }

    /// Wraps a drive.
    pub fn new(drive: Arc<dyn Drive>, observer: O) -> Self {
        let info = drive.info().clone();
        Self::with_info(drive, info, observer)
    }

    /// Returns the observer.
    pub fn observer(&self) -> &O {
        &self.observer
    }
}

impl<O: Observer> Drive for ObservedDrive<O> {
    fn info(&self) -> &DriveInfo {
        &self.info
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, DriveError> {
        Ok(Box::new(ObservedQueue {
            drive: self.clone(),
            queue: self.drive.open_queue()?,
            in_flight: HashMap::new(),
        }))
    }

    fn allocate(&self, len: usize) -> Result<DmaBuffer, DriveError> {
        self.drive.allocate(len)
    }

    fn accepts(&self, address: *const u8, len: usize) -> bool {
        self.drive.accepts(address, len)
    }
}

struct ObservedQueue<O> {
    drive: ObservedDrive<O>,
    queue: Box<dyn Queue>,
    /// Commands in flight, by their user data; several may have the same.
    in_flight: HashMap<u64, Vec<Target>>,
}

impl<O: Observer> ObservedQueue<O> {
    /// Shows the last `count` completions to the observer.
    fn show(&mut self, completions: &[Completion], count: usize) -> usize {
        for completion in &completions[completions.len() - count..] {
            let targets = self.in_flight.get_mut(&completion.user_data);
            if let Some(target) = targets.and_then(Vec::pop) {
                self.drive.observer.completed(target, &completion.result);
            }
        }
        count
    }
}

impl<O: Observer> Queue for ObservedQueue<O> {
    unsafe fn submit(&mut self, command: Command) -> Result<(), DriveError> {
        check_command(&self.drive.info, &command)?;
        let len = to_usize(u64::from(command.blocks)) * self.drive.info.block_size;
        let data = match command.kind {
            // SAFETY: the caller promises that the command's memory is valid and unchanged.
            CommandKind::Write { .. } => unsafe {
                std::slice::from_raw_parts(command.address, len)
            },
            _ => &[],
        };
        self.drive.observer.submitting(&command, data)?;
        // SAFETY: the caller's promise.
        unsafe { self.queue.submit(command) }?;
        let same = self.in_flight.entry(command.user_data).or_default();
        same.push(command.target());
        Ok(())
    }

    fn kick(&mut self) {
        self.queue.kick();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let count = self.queue.poll(completions);
        self.show(completions, count)
    }

    fn wait(&mut self, completions: &mut Vec<Completion>, patience: Duration) -> usize {
        let count = self.queue.wait(completions, patience);
        self.show(completions, count)
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }
}
