//! Queues of a drive in memory.

use std::ops::Range;
use std::time::Duration;

use braid_rt::to_usize;

use super::{MemoryDrive, State};
use crate::{Command, CommandKind, Completion, DriveError, Queue, check_command};

/// A command that the drive has started.
struct Started {
    command: Command,
    effect: Effect,
    result: Result<(), DriveError>,
}

/// What remains to be done when a command completes.
enum Effect {
    None,
    Write { number: u64, durable: bool },
    Flush { time: u64 },
}

pub(super) struct MemoryQueue {
    drive: MemoryDrive,
    submitted: Vec<Command>,
    started: Vec<Started>,
}

impl MemoryQueue {
    pub(super) fn new(drive: MemoryDrive) -> Self {
        Self {
            drive,
            submitted: Vec::new(),
            started: Vec::new(),
        }
    }

    fn lbas(command: &Command) -> Range<u64> {
        command.lba..command.lba + u64::from(command.blocks)
    }

    /// Performs a command: its effect on reads, not on power failures.
    fn start(&self, command: Command, state: &mut State) -> Started {
        state.commands += 1;
        let mut started = Started {
            command,
            effect: Effect::None,
            result: Ok(()),
        };
        let fault = state.fault(&command);
        let size = self.drive.info.block_size;
        let len = to_usize(u64::from(command.blocks)) * size;
        match command.kind {
            CommandKind::Read if fault.is_none() => {
                // SAFETY: the submitter keeps the memory valid and accesses it only after the
                // completion; `check_command` has compared the length with the drive's limits.
                let buffer = unsafe { std::slice::from_raw_parts_mut(command.address, len) };
                for (lba, bytes) in Self::lbas(&command).zip(buffer.chunks_mut(size)) {
                    bytes.copy_from_slice(state.blocks.newest(lba));
                }
            }
            CommandKind::Write { fua } => {
                let number = state.blocks.next_write();
                let whole = command.blocks <= self.drive.info.atomic_write_blocks;
                let took_place = !matches!(
                    fault,
                    Some(DriveError::Aborted { .. } | DriveError::Removed { .. })
                );
                if took_place {
                    // SAFETY: the submitter keeps the memory valid and unchanged until the
                    // completion.
                    let buffer = unsafe { std::slice::from_raw_parts(command.address, len) };
                    for (lba, bytes) in Self::lbas(&command).zip(buffer.chunks(size)) {
                        // A failed write takes place in any part.
                        if fault.is_none() || state.random.bool() {
                            let part = if whole { u64::MAX } else { lba };
                            state.blocks.cache(lba, number, part, bytes);
                        }
                    }
                }
                if fault.is_none() {
                    let durable = fua || !self.drive.info.volatile_cache;
                    started.effect = Effect::Write { number, durable };
                    for lba in Self::lbas(&command) {
                        state.damaged.remove(&lba);
                    }
                }
            }
            CommandKind::Flush if fault.is_none() => {
                let time = state.blocks.now();
                started.effect = Effect::Flush { time };
            }
            CommandKind::Deallocate if fault.is_none() => {
                // Zeros or the old contents, as the seed determines.
                let number = state.blocks.next_write();
                let zeros = vec![0; size];
                for lba in Self::lbas(&command) {
                    if state.random.bool() {
                        state.blocks.cache(lba, number, lba, &zeros);
                    }
                }
                let durable = !self.drive.info.volatile_cache;
                started.effect = Effect::Write { number, durable };
            }
            _ => {}
        }
        started.result = fault.map_or(Ok(()), Err);
        started
    }

    fn complete(started: Started, state: &mut State) -> Completion {
        let Started {
            command, effect, ..
        } = started;
        let mut result = started.result;
        if state.removed {
            let target = command.target();
            result = Err(DriveError::Removed { target });
        }
        if result.is_ok() {
            match effect {
                Effect::None => {}
                Effect::Write { number, durable } => {
                    state.blocks.complete(Self::lbas(&command), number, durable);
                }
                Effect::Flush { time } => state.blocks.flush(time),
            }
        }
        Completion {
            user_data: command.user_data,
            result,
        }
    }
}

impl Queue for MemoryQueue {
    unsafe fn submit(&mut self, command: Command) -> Result<(), DriveError> {
        check_command(&self.drive.info, &command)?;
        if self.in_flight() >= self.drive.info.queue_depth {
            let target = command.target();
            return Err(DriveError::QueueFull { target });
        }
        self.submitted.push(command);
        Ok(())
    }

    fn kick(&mut self) {
        if self.submitted.is_empty() {
            return;
        }
        braid_rt::yield_point();
        let drive = self.drive.clone();
        let mut state = drive.state.lock();
        for command in std::mem::take(&mut self.submitted) {
            let started = self.start(command, &mut state);
            self.started.push(started);
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        if self.started.is_empty() {
            return 0;
        }
        braid_rt::yield_point();
        let mut state = self.drive.state.lock();
        let count = state.random.usize(1..=self.started.len());
        for _ in 0..count {
            let chosen = state.random.usize(..self.started.len());
            let started = self.started.swap_remove(chosen);
            completions.push(Self::complete(started, &mut state));
        }
        count
    }

    fn wait(&mut self, completions: &mut Vec<Completion>, _patience: Duration) -> usize {
        self.poll(completions)
    }

    fn in_flight(&self) -> usize {
        self.submitted.len() + self.started.len()
    }
}
