//! The admin queue: one command at a time, which the caller waits for.

use std::time::Duration;

use braid_rt::to_usize;

use super::rings::{Entry, Rings};
use super::{Host, Shared};
use crate::DriveError;

/// Longest time of an admin command.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why an admin command has no result.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    Status(u16),
    TimedOut,
}

pub(super) struct Admin {
    pub(super) rings: Rings,
    next_id: u16,
    /// Numbers of queues that are not open.
    pub(super) free_queues: Vec<u16>,
    /// Number of open queues.
    pub(super) used_queues: usize,
}

impl Admin {
    pub(super) fn new(host: &impl Host, entries: u16) -> Result<Self, DriveError> {
        Ok(Self {
            rings: Rings::new(host, entries)?,
            next_id: 0,
            free_queues: Vec::new(),
            used_queues: 0,
        })
    }

    /// Performs a command, and returns its result. After a time-out the controller must be reset.
    fn execute<H: Host>(&mut self, shared: &Shared<H>, mut entry: Entry) -> Result<u32, Failure> {
        let host = &shared.host;
        self.next_id = self.next_id.wrapping_add(1);
        entry[0] |= u32::from(self.next_id) << 16;
        self.rings.push(&entry);
        self.rings.ring(host, shared.doorbell(0, false));
        let end = host.now() + TIMEOUT.min(shared.options.timeout);
        let mut round = 0;
        loop {
            while let Some(answer) = self.rings.next() {
                self.rings.answer(host, shared.doorbell(0, true));
                // Others are late, or twice there.
                if answer.id == self.next_id && answer.queue == 0 {
                    return match answer.status {
                        0 => Ok(answer.result),
                        status => Err(Failure::Status(status)),
                    };
                }
            }
            if host.now() > end || shared.status().is_err() {
                return Err(Failure::TimedOut);
            }
            host.pause(round);
            round += 1;
        }
    }

    pub(super) fn identify<H: Host>(
        &mut self,
        shared: &Shared<H>,
        address: u64,
        cns: u32,
        namespace: u32,
    ) -> Result<(), Failure> {
        let mut entry = [0; 16];
        entry[0] = 6;
        entry[1] = namespace;
        [entry[6], entry[7]] = halves(address);
        entry[10] = cns;
        self.execute(shared, entry).map(drop)
    }

    /// Asks for queues, and returns how many the controller allows.
    pub(super) fn set_queues<H: Host>(
        &mut self,
        shared: &Shared<H>,
        count: usize,
    ) -> Result<usize, Failure> {
        let last = u32::try_from(count.clamp(1, 0xffff) - 1).unwrap_or(0);
        let mut entry = [0; 16];
        entry[0] = 9;
        entry[10] = 7;
        entry[11] = last << 16 | last;
        let result = self.execute(shared, entry)?;
        Ok(to_usize(u64::from((result & 0xffff).min(result >> 16))) + 1)
    }

    /// Creates a pair of queues without interrupts.
    pub(super) fn create<H: Host>(
        &mut self,
        shared: &Shared<H>,
        id: u16,
        rings: &Rings,
    ) -> Result<(), Failure> {
        let (submission, completion) = rings.addresses();
        let sizes = u32::from(rings.entries() - 1) << 16 | u32::from(id);
        let mut entry = [0; 16];
        entry[0] = 5;
        [entry[6], entry[7]] = halves(completion);
        entry[10] = sizes;
        entry[11] = 1;
        self.execute(shared, entry)?;
        entry[0] = 1;
        [entry[6], entry[7]] = halves(submission);
        entry[11] = u32::from(id) << 16 | 1;
        self.execute(shared, entry).map(drop)
    }

    /// Deletes a pair of queues; the controller then uses none of its commands' memory.
    pub(super) fn delete<H: Host>(&mut self, shared: &Shared<H>, id: u16) -> Result<(), Failure> {
        let mut entry = [0; 16];
        entry[0] = 0;
        entry[10] = u32::from(id);
        self.execute(shared, entry)?;
        entry[0] = 4;
        self.execute(shared, entry).map(drop)
    }

    /// Asks the controller to abort a command. The command itself completes, too.
    pub(super) fn abort<H: Host>(
        &mut self,
        shared: &Shared<H>,
        queue: u16,
        id: u16,
    ) -> Result<(), Failure> {
        let mut entry = [0; 16];
        entry[0] = 8;
        entry[10] = u32::from(id) << 16 | u32::from(queue);
        self.execute(shared, entry).map(drop)
    }
}

/// Returns the low and the high half.
pub(super) fn halves(word: u64) -> [u32; 2] {
    [
        braid_rt::narrow(word & 0xffff_ffff),
        braid_rt::narrow(word >> 32),
    ]
}
