//! Random commands on the model of a controller, and the check of their outcomes.

use std::collections::BTreeMap;
use std::time::Duration;

use braid_rt::{narrow, to_usize};

use super::device::TIMEOUT;
use super::{ModelFaults, ModelHost, ModelOptions};
use crate::controller::{ControllerOptions, NvmeDrive};
use crate::{Command, CommandKind, Completion, DmaBuffer, Drive, DriveError, Queue};

/// Counts of an exercise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exercise {
    /// Commands that were accepted.
    pub commands: u64,
    /// Commands that failed.
    pub failed: u64,
    /// Resets of the controller.
    pub resets: u64,
    /// Whether the drive or a queue could not be opened, since the controller took too long.
    pub refused: bool,
    /// Whether the drive was gone in the end.
    pub removed: bool,
}

/// A value that a block may have.
struct Value {
    stamp: u64,
    /// When the write completed successfully.
    completed: Option<u64>,
}

/// A command in flight.
struct Flight {
    kind: CommandKind,
    lba: u64,
    buffer: Option<(DmaBuffer, usize)>,
    stamp: u64,
    submitted: u64,
}

struct Run {
    random: fastrand::Rng,
    options: ModelOptions,
    drive: NvmeDrive<ModelHost>,
    /// Per block: the newest value that is durable, and all later ones.
    blocks: Vec<Vec<Value>>,
    flights: BTreeMap<u64, Flight>,
    busy: Vec<bool>,
    clock: u64,
    report: Exercise,
}

/// Runs the driver over a controller that misbehaves as `seed` determines, and checks that
///
/// - the driver never breaks a rule that [`ModelHost`] checks (N1);
/// - every accepted command completes exactly once, in bounded time;
/// - a successful read returns what the block may contain;
/// - after a power failure, a block contains what a successful flush or FUA write covered, or
///   something newer (N2).
///
/// # Errors
///
/// The violation.
pub fn exercise(seed: u64) -> Result<Exercise, String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let options = controller(&mut random);
    let host = ModelHost::new(options);
    let mut report = Exercise::default();
    let controller = ControllerOptions {
        timeout: TIMEOUT,
        queue_depth: random.usize(1..16),
        queues: 3,
        ..ControllerOptions::default()
    };
    let drive = match NvmeDrive::open(host.clone(), controller) {
        Ok(drive) => drive,
        // The controller took too long for an admin command.
        Err(DriveError::TimedOut { .. }) => {
            report.refused = true;
            let violations = host.violations();
            return violations
                .first()
                .map_or(Ok(report), |first| Err(first.clone()));
        }
        Err(error) => return Err(format!("cannot open the drive: {error}")),
    };
    let mut run = Run {
        random,
        options,
        drive,
        blocks: (0..64)
            .map(|_| {
                vec![Value {
                    stamp: 0,
                    completed: Some(0),
                }]
            })
            .collect(),
        flights: BTreeMap::new(),
        busy: vec![false; 64],
        clock: 0,
        report,
    };
    let outcome = run.all();
    report = run.report;
    report.resets = run.drive.resets().into();
    let blocks = std::mem::take(&mut run.blocks);
    // A drive that was not shut down.
    let after = host.after_power_failure(seed);
    drop(run);
    let violations = host.violations();
    if let Some(first) = violations.first() {
        return Err(first.clone());
    }
    outcome?;
    for (lba, values) in blocks.iter().enumerate() {
        let stamp = stamp_of(&after(lba as u64))?;
        if !values.iter().any(|value| value.stamp == stamp) {
            let known: Vec<u64> = values.iter().map(|value| value.stamp).collect();
            return Err(format!(
                "block {lba} has {stamp} after a power failure, not {known:?}"
            ));
        }
    }
    Ok(report)
}

/// Returns a controller with random properties and faults.
fn controller(random: &mut fastrand::Rng) -> ModelOptions {
    let mut rate = |most: u8| {
        if random.bool() { 0 } else { random.u8(..=most) }
    };
    let faults = ModelFaults {
        lost: rate(12),
        slow: rate(20),
        duplicate: rate(100),
        foreign: rate(60),
        error: rate(40),
        deaf: rate(255),
        fatal: rate(4),
        removed: rate(2),
        stuck: rate(40),
        forgetful: rate(255),
    };
    ModelOptions {
        seed: random.u64(..),
        blocks: 64,
        block_shift: if random.bool() { 9 } else { 12 },
        volatile_cache: random.u8(..4) > 0,
        queues: random.u16(1..4),
        entries: random.u16(2..20),
        stride_shift: random.u8(..3),
        transfer_shift: random.u8(1..4),
        faults,
    }
}

/// Returns the stamp that fills a block.
fn stamp_of(bytes: &[u8]) -> Result<u64, String> {
    let words: Vec<u64> = bytes
        .chunks(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect();
    if words.iter().any(|word| *word != words[0]) {
        return Err(format!("a block is mixed: {:?}", &words[..4]));
    }
    Ok(words[0])
}

impl Run {
    fn all(&mut self) -> Result<(), String> {
        let count = self.random.usize(1..=self.drive.info().queues);
        let mut queues = Vec::new();
        for _ in 0..count {
            match self.drive.open_queue() {
                Ok(queue) => queues.push(queue),
                // The controller took too long for an admin command, and was reset.
                Err(_) if self.drive.resets() > 0 => self.report.refused = true,
                Err(error) => return Err(format!("no queue: {error}")),
            }
        }
        if queues.is_empty() {
            return Ok(());
        }
        let mut done = Vec::new();
        for _ in 0..self.random.usize(20..60) {
            let chosen = self.random.usize(..queues.len());
            for _ in 0..self.random.usize(..6) {
                self.submit(&mut *queues[chosen])?;
            }
            queues[chosen].kick();
            for queue in &mut queues {
                if self.random.bool() {
                    queue.poll(&mut done);
                } else {
                    queue.wait(&mut done, Duration::from_millis(2));
                }
            }
            self.finish(&mut done)?;
        }
        // A queue that is dropped with commands in flight, which then have no outcome.
        if self.random.u8(..8) == 0 {
            self.report.removed |= self.is_gone();
            let lost = queues.len();
            drop(queues);
            for flight in std::mem::take(&mut self.flights).into_values() {
                drop(flight);
            }
            return if lost > 0 {
                Ok(())
            } else {
                Err("no queue".into())
            };
        }
        for round in 0.. {
            for queue in &mut queues {
                queue.wait(&mut done, Duration::from_millis(20));
            }
            self.finish(&mut done)?;
            if queues.iter().all(|queue| queue.in_flight() == 0) {
                break;
            }
            if round > 500 {
                return Err(format!("{} commands hang", self.flights.len()));
            }
        }
        if !self.flights.is_empty() {
            return Err(format!("{} commands have no outcome", self.flights.len()));
        }
        self.report.removed = self.is_gone();
        Ok(())
    }

    fn is_gone(&self) -> bool {
        use crate::controller::Host;
        self.drive.host().read(0x1c) == u32::MAX
    }

    fn submit(&mut self, queue: &mut dyn Queue) -> Result<(), String> {
        let size = 1usize << self.options.block_shift;
        let most = (self.drive.info().max_transfer / size).min(12) as u64;
        let blocks = self.random.u64(1..=most);
        let lba = self.random.u64(..=64 - blocks);
        let kind = match self.random.u8(..20) {
            0..7 => CommandKind::Read,
            7..12 => CommandKind::Write { fua: false },
            12..15 => CommandKind::Write { fua: true },
            15..19 => CommandKind::Flush,
            _ => CommandKind::Deallocate,
        };
        let range = to_usize(lba)..to_usize(lba + blocks);
        let is_flush = kind == CommandKind::Flush;
        if !is_flush && self.busy[range.clone()].contains(&true) {
            return Ok(());
        }
        self.clock += 1;
        let stamp = if kind == CommandKind::Deallocate {
            0
        } else {
            self.clock
        };
        let mut buffer = None;
        if matches!(kind, CommandKind::Read | CommandKind::Write { .. }) {
            let len = to_usize(blocks) * size;
            let shift = 4 * self.random.usize(..1024) * usize::from(self.random.bool());
            let mut memory = self
                .drive
                .allocate(len + shift)
                .map_err(|e| e.to_string())?;
            for word in memory[shift..].chunks_mut(8) {
                word.copy_from_slice(&stamp.to_le_bytes());
            }
            buffer = Some((memory, shift));
        }
        let address = buffer
            .as_ref()
            .map_or(std::ptr::null_mut(), |(memory, shift)| {
                memory.as_non_null().as_ptr().wrapping_add(*shift)
            });
        let command = Command {
            kind,
            lba,
            blocks: narrow(blocks),
            address,
            user_data: self.clock,
        };
        // SAFETY: `flights` keeps the buffer until the command has completed.
        match unsafe { queue.submit(command) } {
            Ok(()) => {}
            Err(DriveError::Invalid { target, reason }) => {
                return Err(format!("cannot {target}: {reason}"));
            }
            Err(DriveError::OutOfRange { .. }) => return Err("out of range".into()),
            Err(_) => return Ok(()),
        }
        self.report.commands += 1;
        if !is_flush {
            self.busy[range.clone()].fill(true);
            if kind != CommandKind::Read {
                for values in &mut self.blocks[range] {
                    values.push(Value {
                        stamp,
                        completed: None,
                    });
                }
            }
        }
        let flight = Flight {
            kind,
            lba: if is_flush { 0 } else { lba | blocks << 32 },
            buffer,
            stamp,
            submitted: self.clock,
        };
        self.flights.insert(self.clock, flight);
        Ok(())
    }

    fn finish(&mut self, done: &mut Vec<Completion>) -> Result<(), String> {
        for completion in done.drain(..) {
            self.clock += 1;
            let Some(flight) = self.flights.remove(&completion.user_data) else {
                return Err(format!("command {} completes twice", completion.user_data));
            };
            let (lba, blocks) = (flight.lba & 0xffff_ffff, flight.lba >> 32);
            let range = to_usize(lba)..to_usize(lba + blocks);
            self.busy[range.clone()].fill(false);
            if completion.result.is_err() {
                self.report.failed += 1;
                continue;
            }
            let resets = self.drive.resets();
            match flight.kind {
                CommandKind::Read => self.check_read(&flight, range, resets > 0)?,
                CommandKind::Flush => {
                    for values in &mut self.blocks {
                        let covered = |value: &Value| {
                            value.completed.is_some_and(|at| at <= flight.submitted)
                        };
                        if let Some(at) = values.iter().rposition(covered) {
                            values.drain(..at);
                        }
                    }
                }
                CommandKind::Write { .. } | CommandKind::Deallocate => {
                    let durable = flight.kind == (CommandKind::Write { fua: true })
                        || !self.options.volatile_cache;
                    for values in &mut self.blocks[range] {
                        let Some(at) = values.iter().rposition(|v| v.stamp == flight.stamp) else {
                            return Err("a write completes after its value".into());
                        };
                        values[at].completed = Some(self.clock);
                        if durable {
                            values.drain(..at);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn check_read(
        &self,
        flight: &Flight,
        range: std::ops::Range<usize>,
        any: bool,
    ) -> Result<(), String> {
        let Some((memory, shift)) = &flight.buffer else {
            return Err("a read has a buffer".into());
        };
        let size = 1 << self.options.block_shift;
        for (lba, bytes) in range.zip(memory[*shift..].chunks(size)) {
            let stamp = stamp_of(bytes)?;
            let values = &self.blocks[lba];
            // Without a reset, the newest completed value or one of a failed write after it.
            let first = values.iter().rposition(|value| value.completed.is_some());
            let first = if any { 0 } else { first.unwrap_or(0) };
            if !values[first..].iter().any(|value| value.stamp == stamp) {
                let known: Vec<u64> = values.iter().map(|value| value.stamp).collect();
                return Err(format!("block {lba} reads as {stamp}, not {known:?}"));
            }
        }
        Ok(())
    }
}
