//! One pair of queues for commands.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_rt::{narrow, to_usize};

use super::admin::halves;
use super::prp;
use super::rings::{Answer, Rings};
use super::{ALIVE, FATAL, Host, Loss, Shared};
use crate::{
    Command, CommandKind, Completion, DmaBuffer, DriveError, DriveInfo, Queue, check_command,
};

/// Bits of a command's identifier that number its slot; the rest counts the slot's commands, so
/// that a completion that comes twice is not taken for that of the next command.
const SLOT_BITS: u32 = 8;

/// Empty polls after which the clock is read, which some machines need a system call for.
const POLLS: u32 = 1024;

/// Time between two looks at the status register, whose read takes about a microsecond.
const LOOK_EVERY: Duration = Duration::from_millis(1);

struct Slot {
    command: Command,
    /// When [`IoQueue::look`] first found the command; a fast command needs no clock.
    since: Option<Duration>,
    aborted: Option<Duration>,
}

pub(super) struct IoQueue<H: Host> {
    shared: Arc<Shared<H>>,
    info: DriveInfo,
    id: u16,
    rings: Rings,
    /// A page for each slot: its list of pages, or the range of a deallocation.
    lists: DmaBuffer,
    slots: Vec<Option<Slot>>,
    /// For each slot, the number of its next command.
    sequence: Vec<u8>,
    free: Vec<u8>,
    finished: Vec<Completion>,
    /// Resets when the queue was created; `None` if the controller does not have it.
    epoch: Option<u32>,
    polls: u32,
    looked: Duration,
}

impl<H: Host> IoQueue<H> {
    pub(super) fn open(shared: Arc<Shared<H>>, info: DriveInfo) -> Result<Self, DriveError> {
        if let Some(error) = shared.refusal(super::OPENING) {
            return Err(error);
        }
        let depth = info.queue_depth;
        let rings = Rings::new(&shared.host, narrow(depth + 1))?;
        let lists = shared.host.allocate(depth * shared.page)?;
        let id = {
            let mut admin = shared.admin.lock();
            let limit = info.queues;
            let id = admin.free_queues.pop();
            admin.used_queues += usize::from(id.is_some());
            id.ok_or(DriveError::NoQueue { limit })?
        };
        let mut queue = Self {
            id,
            rings,
            lists,
            slots: (0..depth).map(|_| None).collect(),
            sequence: vec![0; depth],
            free: (0..narrow(depth)).rev().collect(),
            finished: Vec::new(),
            epoch: None,
            polls: 0,
            looked: shared.host.now(),
            shared,
            info,
        };
        queue.create();
        if queue.epoch.is_none() {
            let error = queue.shared.refusal(super::OPENING);
            return Err(error.unwrap_or_else(|| queue.shared.error_of(Loss::Fatal, super::OPENING)));
        }
        Ok(queue)
    }

    /// Creates the pair of queues in the controller, which does not have it.
    fn create(&mut self) {
        let shared = self.shared.clone();
        let mut admin = shared.admin.lock();
        // Resets are under the lock, too.
        let epoch = shared.epoch.load(Ordering::Relaxed);
        if shared.state.load(Ordering::Relaxed) != ALIVE {
            return;
        }
        self.rings.clear();
        match admin.create(&shared, self.id, &self.rings) {
            Ok(()) => self.epoch = Some(epoch),
            Err(_) => {
                // Whether the controller has one of the two queues is unknown.
                drop(admin);
                shared.reset(epoch, Loss::TimedOut);
            }
        }
    }

    fn list(&self, slot: usize) -> (*mut u64, u64) {
        let start = self
            .lists
            .as_non_null()
            .as_ptr()
            .wrapping_add(slot * self.shared.page);
        (start.cast(), start.addr() as u64)
    }

    /// Encodes a command into the submission queue.
    fn push(&mut self, slot: u8, command: &Command) {
        let index = usize::from(slot);
        let (list, list_address) = self.list(index);
        let id = u32::from(slot) | u32::from(self.sequence[index]) << SLOT_BITS;
        let mut entry = [0; 16];
        entry[0] = id << 16;
        entry[1] = self.info.namespace;
        let mut store = |at: usize, word: u64| {
            // SAFETY: the list has a page, and `transfer_max` and `ranges` limit the words to it;
            // the controller reads it only while the slot is occupied.
            unsafe { list.add(at).write_volatile(word.to_le()) }
        };
        match command.kind {
            CommandKind::Read | CommandKind::Write { .. } => {
                let len = u64::from(command.blocks) * self.info.block_size as u64;
                let page = self.shared.page as u64;
                let address = command.address.addr() as u64;
                let [first, second] = prp::describe(address, len, page, &mut store, list_address);
                entry[0] |= if command.kind == CommandKind::Read {
                    2
                } else {
                    1
                };
                [entry[6], entry[7]] = halves(first);
                [entry[8], entry[9]] = halves(second);
                [entry[10], entry[11]] = halves(command.lba);
                entry[12] = command.blocks - 1;
                if command.kind == (CommandKind::Write { fua: true })
                    && !braid_rt::mutant!("nvme_write_without_fua")
                {
                    entry[12] |= 1 << 30;
                }
            }
            CommandKind::Flush => {}
            CommandKind::Deallocate => {
                entry[0] |= 9;
                store(0, u64::from(command.blocks) << 32);
                store(1, command.lba);
                [entry[6], entry[7]] = halves(list_address);
                entry[11] = 4;
            }
        }
        self.rings.push(&entry);
    }

    /// Takes the completions that the controller has written.
    fn reap(&mut self) {
        if self.epoch.is_none() {
            return;
        }
        while let Some(answer) = self.rings.next() {
            self.take(answer);
        }
        let doorbell = self.shared.doorbell(self.id, true);
        self.rings.answer(&self.shared.host, doorbell);
    }

    fn take(&mut self, answer: Answer) {
        let index = usize::from(answer.id & 0xff);
        let sequence = answer.id >> SLOT_BITS;
        let expected = self.sequence.get(index).map(|s| u16::from(*s));
        if answer.queue != self.id
            || expected != Some(sequence) && !braid_rt::mutant!("nvme_any_completion")
            || self.slots.get(index).is_none_or(Option::is_none)
        {
            // A completion that came twice, or one of no command: its command has ended.
            return;
        }
        let Some(slot) = self.slots[index].take() else {
            return;
        };
        let target = slot.command.target();
        let result = match answer.status {
            0 => Ok(()),
            // Aborted, since it took too long.
            _ if slot.aborted.is_some() => Err(self.shared.error_of(Loss::TimedOut, target)),
            status => Err(DriveError::of_status(target, status, self.info.blocks)),
        };
        self.finish(index, slot.command.user_data, result);
    }

    fn finish(&mut self, index: usize, user_data: u64, result: Result<(), DriveError>) {
        self.sequence[index] = self.sequence[index].wrapping_add(1);
        self.free.push(narrow(index));
        self.finished.push(Completion { user_data, result });
    }

    /// Ends all commands after the controller was disabled or quiesced (rule N1), and creates the
    /// queue again.
    fn restore(&mut self) {
        self.reap();
        self.epoch = None;
        // What ended a command that did not itself take too long.
        let loss = match self.shared.status() {
            Err(loss) => loss,
            Ok(_) => Loss::Fatal,
        };
        for index in 0..self.slots.len() {
            let Some(slot) = self.slots[index].take() else {
                continue;
            };
            let target = slot.command.target();
            let error = match slot.aborted {
                Some(_) => self.shared.error_of(Loss::TimedOut, target),
                None if loss == Loss::Removed => self.shared.error_of(loss, target),
                None => DriveError::Aborted {
                    target,
                    status: 0x007,
                },
            };
            self.finish(index, slot.command.user_data, Err(error));
        }
        self.create();
    }

    /// Whether a reset has ended the queue's commands.
    fn is_lost(&self) -> bool {
        self.epoch != Some(self.shared.epoch.load(Ordering::Acquire))
    }

    /// Looks for commands that take too long, and at the controller's status.
    fn look(&mut self) {
        let now = self.shared.host.now();
        if now.saturating_sub(self.looked) < LOOK_EVERY {
            return;
        }
        self.looked = now;
        let Some(epoch) = self.epoch else { return };
        match self.shared.status() {
            Err(loss) => return self.shared.reset(epoch, loss),
            Ok(status) if status & FATAL != 0 => return self.shared.reset(epoch, Loss::Fatal),
            Ok(_) => {}
        }
        let timeout = self.shared.options.timeout;
        for index in 0..self.slots.len() {
            let sequence = self.sequence[index];
            let Some(slot) = &mut self.slots[index] else {
                continue;
            };
            let grace = slot.aborted.map(|at| at + timeout / 2);
            if grace.is_some_and(|end| now > end) {
                return self.shared.reset(epoch, Loss::TimedOut);
            }
            let since = *slot.since.get_or_insert(now);
            if grace.is_some() || now <= since + timeout {
                continue;
            }
            slot.aborted = Some(now);
            let id = narrow(index | usize::from(sequence) << SLOT_BITS);
            let mut admin = self.shared.admin.lock();
            if self.shared.epoch.load(Ordering::Relaxed) != epoch {
                return;
            }
            let aborted = admin.abort(&self.shared, self.id, id);
            drop(admin);
            if aborted.is_err() {
                return self.shared.reset(epoch, Loss::TimedOut);
            }
        }
    }

    fn commands(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl<H: Host> Queue for IoQueue<H> {
    unsafe fn submit(&mut self, command: Command) -> Result<(), DriveError> {
        check_command(&self.info, &command)?;
        let target = command.target();
        if let Some(error) = self.shared.refusal(target) {
            return Err(error);
        }
        if matches!(command.kind, CommandKind::Read | CommandKind::Write { .. }) {
            let len = to_usize(u64::from(command.blocks)) * self.info.block_size;
            if !self.shared.host.contains(command.address.addr(), len) {
                let reason = "the drive cannot access the buffer";
                return Err(DriveError::Invalid { target, reason });
            }
        }
        if self.in_flight() >= self.info.queue_depth {
            return Err(DriveError::QueueFull { target });
        }
        if self.is_lost() {
            self.restore();
            if self.epoch.is_none() {
                let error = self.shared.refusal(target);
                return Err(error.unwrap_or_else(|| self.shared.error_of(Loss::Fatal, target)));
            }
        }
        let slot = self.free.pop().expect("a slot for every command in flight");
        self.push(slot, &command);
        self.slots[usize::from(slot)] = Some(Slot {
            command,
            since: None,
            aborted: None,
        });
        Ok(())
    }

    fn kick(&mut self) {
        if self.epoch.is_some() && !self.is_lost() {
            let doorbell = self.shared.doorbell(self.id, false);
            self.rings.ring(&self.shared.host, doorbell);
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        self.shared.host.step();
        self.reap();
        if self.finished.is_empty() && self.commands() > 0 {
            self.polls += 1;
            if self.polls >= POLLS {
                self.polls = 0;
                self.look();
            }
            if self.is_lost() {
                self.restore();
            }
        } else {
            self.polls = 0;
        }
        let count = self.finished.len();
        completions.append(&mut self.finished);
        count
    }

    fn wait(&mut self, completions: &mut Vec<Completion>, patience: Duration) -> usize {
        let mut end = None;
        let mut round = 0;
        loop {
            let count = self.poll(completions);
            if count > 0 || self.in_flight() == 0 {
                return count;
            }
            if round >= self.shared.host.spins() {
                let now = self.shared.host.now();
                if now > *end.get_or_insert(now + patience) {
                    return 0;
                }
                // A sleeping thread polls less often; it looks each time.
                self.polls = POLLS;
            }
            self.shared.host.pause(round);
            round += 1;
        }
    }

    fn in_flight(&self) -> usize {
        self.commands() + self.finished.len()
    }
}

impl<H: Host> Drop for IoQueue<H> {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        if let Some(epoch) = self.epoch {
            let deleted = {
                let mut admin = shared.admin.lock();
                shared.epoch.load(Ordering::Relaxed) != epoch
                    || admin.delete(&shared, self.id).is_ok()
            };
            if !deleted {
                // Rule N1: the memory is freed after this.
                shared.reset(epoch, Loss::TimedOut);
            }
        }
        let mut admin = shared.admin.lock();
        admin.used_queues -= 1;
        admin.free_queues.push(self.id);
    }
}
