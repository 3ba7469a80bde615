//! The controller's side: registers, queues, commands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use braid_rt::{narrow, to_usize};

use super::memory::Memory;
use super::{ModelFaults, ModelOptions};
use crate::identify::IDENTIFY_LEN;
use crate::memory::Blocks;

/// Page size of the model.
const PAGE: u64 = 4096;

/// Time limit of the driver that the model expects.
pub(super) const TIMEOUT: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Submission {
    address: u64,
    entries: u16,
    head: u16,
    tail: u16,
}

#[derive(Default)]
struct Completions {
    address: u64,
    entries: u16,
    head: u16,
    tail: u16,
    phase: bool,
}

/// A command that was fetched.
struct Pending {
    queue: u16,
    entry: [u32; 16],
    at: Duration,
    /// Time by which a flush covers writes.
    covers: u64,
    lost: bool,
}

impl Pending {
    fn id(&self) -> u16 {
        narrow(u64::from(self.entry[0] >> 16))
    }

    fn wide(&self, at: usize) -> u64 {
        u64::from(self.entry[at]) | u64::from(self.entry[at + 1]) << 32
    }
}

pub(super) struct Device {
    options: ModelOptions,
    memory: Arc<Memory>,
    random: fastrand::Rng,
    pub(super) blocks: Blocks,
    pub(super) violations: Vec<String>,
    pub(super) now: Duration,
    pub(super) removed: bool,
    pub(super) quiesced: bool,
    registers: BTreeMap<usize, u32>,
    enabled: bool,
    ready: bool,
    /// When `ready` follows `enabled`; never if a reset is stuck.
    changes_at: Duration,
    fatal: bool,
    shut_down: bool,
    submissions: BTreeMap<u16, Submission>,
    completions: BTreeMap<u16, Completions>,
    pending: Vec<Pending>,
    /// Completions that come a second time: when, queue, command.
    late: Vec<(Duration, u16, u16)>,
}

impl Device {
    pub(super) fn new(options: ModelOptions, memory: Arc<Memory>) -> Self {
        Self {
            memory,
            random: fastrand::Rng::with_seed(options.seed),
            blocks: Blocks::new(1 << options.block_shift),
            violations: Vec::new(),
            now: Duration::ZERO,
            removed: false,
            quiesced: false,
            registers: BTreeMap::new(),
            enabled: false,
            ready: false,
            changes_at: Duration::ZERO,
            fatal: false,
            shut_down: false,
            submissions: BTreeMap::new(),
            completions: BTreeMap::new(),
            pending: Vec::new(),
            late: Vec::new(),
            options,
        }
    }

    pub(super) fn options(&self) -> &ModelOptions {
        &self.options
    }

    pub(super) fn set_faults(&mut self, faults: ModelFaults) {
        self.options.faults = faults;
    }

    fn draw(&mut self, rate: u8) -> bool {
        rate > 0 && self.random.u8(..) < rate
    }

    fn violation(&mut self, what: String) {
        if self.violations.len() < 10 {
            self.violations.push(what);
        }
    }

    pub(super) fn read(&mut self, offset: usize) -> u32 {
        if self.removed {
            return u32::MAX;
        }
        match offset {
            // Time-out of one second; the number of entries counts from zero.
            0x00 => 2 << 24 | 1 << 16 | u32::from(self.options.entries - 1),
            0x04 => 1 << 5 | u32::from(self.options.stride_shift),
            0x1c => {
                u32::from(self.ready) | u32::from(self.fatal) << 1 | u32::from(self.shut_down) << 3
            }
            _ => self.registers.get(&offset).copied().unwrap_or(0),
        }
    }

    pub(super) fn write(&mut self, offset: usize, value: u32) {
        if self.removed || self.quiesced {
            return;
        }
        if offset >= 0x1000 {
            return self.doorbell(offset - 0x1000, value);
        }
        self.registers.insert(offset, value);
        if offset != 0x14 {
            return;
        }
        if value >> 14 & 3 == 1 {
            self.blocks.flush(u64::MAX);
            self.shut_down = true;
        }
        let enable = value & 1 == 1;
        if enable != self.enabled {
            self.enabled = enable;
            let micros = self.random.u64(..20_000);
            self.changes_at = self.now + Duration::from_micros(micros);
            if self.draw(self.options.faults.stuck) && self.registers.contains_key(&usize::MAX) {
                self.changes_at = Duration::MAX;
            }
        }
    }

    fn doorbell(&mut self, offset: usize, value: u32) {
        let number = offset / (4 << self.options.stride_shift);
        let queue: u16 = narrow(number / 2);
        let is_completion = number % 2 == 1;
        let entries = if is_completion {
            self.completions.get(&queue).map(|queue| queue.entries)
        } else {
            self.submissions.get(&queue).map(|queue| queue.entries)
        };
        // A thread may ring after another one has reset the controller.
        let Some(entries) = entries else { return };
        if value >= u32::from(entries) {
            return self.violation(format!("doorbell of queue {queue} has value {value}"));
        }
        let value: u16 = narrow(u64::from(value));
        if is_completion {
            if let Some(queue) = self.completions.get_mut(&queue) {
                queue.head = value;
            }
        } else if let Some(queue) = self.submissions.get_mut(&queue) {
            queue.tail = value;
        }
    }

    /// Lets time pass, and does some of what the controller has to do.
    pub(super) fn advance(&mut self, time: Duration) {
        self.now += time;
        if self.removed || self.quiesced {
            return;
        }
        if self.ready != self.enabled && self.now >= self.changes_at {
            self.change();
        }
        // A controller that is being disabled still accesses memory.
        if !self.ready || self.fatal {
            return;
        }
        self.fetch();
        let due = self.late.iter().position(|(at, ..)| *at <= self.now);
        if let Some(due) = due {
            let (_, queue, id) = self.late.swap_remove(due);
            self.post(queue, queue, id, 0, 0);
        }
        for _ in 0..self.random.usize(0..4) {
            let due: Vec<usize> = (0..self.pending.len())
                .filter(|i| self.pending[*i].at <= self.now && !self.pending[*i].lost)
                .collect();
            let Some(chosen) = self.random.choice(due) else {
                break;
            };
            if !self.has_room(self.pending[chosen].queue) {
                continue;
            }
            let pending = self.pending.swap_remove(chosen);
            if pending.queue == 0 {
                self.perform_admin(&pending);
            } else {
                self.perform(&pending);
            }
        }
    }

    /// Ends an enabling or a disabling.
    fn change(&mut self) {
        self.ready = self.enabled;
        self.fatal = false;
        if self.enabled {
            let register = |at| u64::from(self.registers.get(&at).copied().unwrap_or(0));
            let wide = |at: usize| register(at) | register(at + 4) << 32;
            let (submission, completion) = (wide(0x28), wide(0x30));
            let sizes = register(0x24);
            self.submissions.insert(
                0,
                Submission {
                    address: submission,
                    entries: narrow((sizes & 0xfff) + 1),
                    ..Submission::default()
                },
            );
            self.completions.insert(
                0,
                Completions {
                    address: completion,
                    entries: narrow((sizes >> 16 & 0xfff) + 1),
                    phase: true,
                    ..Completions::default()
                },
            );
            // From now on, resets can hang.
            self.registers.insert(usize::MAX, 1);
            return;
        }
        // Commands that were not completed may have taken place.
        for pending in std::mem::take(&mut self.pending) {
            if pending.queue != 0 && pending.entry[0] & 0xff == 1 && self.random.bool() {
                self.store(&pending);
            }
        }
        self.late.clear();
        self.submissions.clear();
        self.completions.clear();
        if self.draw(self.options.faults.forgetful) && self.options.volatile_cache {
            self.blocks = self.blocks.survivors(self.random.u64(..));
        }
    }

    /// Fetches commands from the submission queues.
    fn fetch(&mut self) {
        let numbers: Vec<u16> = self.submissions.keys().copied().collect();
        for number in numbers {
            for _ in 0..self.random.usize(0..4) {
                let Some(queue) = self.submissions.get_mut(&number) else {
                    break;
                };
                if queue.head == queue.tail {
                    break;
                }
                let address = queue.address + u64::from(queue.head) * 64;
                queue.head = (queue.head + 1) % queue.entries;
                let mut bytes = [0; 64];
                if !self.memory.read(address, &mut bytes) {
                    self.violation(format!("submission queue {number} is in freed memory"));
                    break;
                }
                let mut entry = [0; 16];
                for (word, bytes) in entry.iter_mut().zip(bytes.chunks(4)) {
                    *word = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
                }
                let mut delay = Duration::from_micros(self.random.u64(..200));
                let faults = self.options.faults;
                let mut lost = false;
                if number > 0 {
                    if self.draw(faults.slow) {
                        delay = TIMEOUT * self.random.u32(5..20) / 10;
                    }
                    lost = self.draw(faults.lost);
                    self.fatal |= self.draw(faults.fatal);
                    self.removed |= self.draw(faults.removed);
                }
                self.pending.push(Pending {
                    queue: number,
                    entry,
                    at: self.now + delay,
                    covers: self.blocks.now(),
                    lost,
                });
            }
        }
    }

    /// Whether the completion queue has room for a completion.
    fn has_room(&self, queue: u16) -> bool {
        self.completions.get(&queue).is_some_and(|queue| {
            let used = (queue.tail + queue.entries - queue.head) % queue.entries;
            used + 1 < queue.entries
        })
    }

    fn post(&mut self, queue: u16, from: u16, id: u16, status: u16, result: u32) {
        if !self.has_room(queue) {
            return;
        }
        let head = self.submissions.get(&queue).map_or(0, |queue| queue.head);
        let Some(completions) = self.completions.get_mut(&queue) else {
            return;
        };
        let last = u32::from(id) | u32::from(completions.phase) << 16 | u32::from(status) << 17;
        let middle = u32::from(head) | u32::from(from) << 16;
        let mut bytes = [0; 16];
        for (bytes, word) in bytes.chunks_mut(4).zip([result, 0, middle, last]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let address = completions.address + u64::from(completions.tail) * 16;
        completions.tail = (completions.tail + 1) % completions.entries;
        completions.phase ^= completions.tail == 0;
        if !self.memory.write(address, &bytes) {
            self.violation(format!("completion queue {queue} is in freed memory"));
        }
    }

    fn perform_admin(&mut self, pending: &Pending) {
        let entry = pending.entry;
        let queue: u16 = narrow(u64::from(entry[10] & 0xffff));
        let entries = (entry[10] >> 16) + 1;
        let (mut status, mut result) = (0, 0);
        match entry[0] & 0xff {
            6 => {
                let data = self.describe(entry[10] & 0xff == 1, entry[1]);
                match data {
                    Some(data) if self.memory.write(pending.wide(6), &data) => {}
                    Some(_) => self.violation("identify into freed memory".into()),
                    None => status = 0x00b,
                }
            }
            9 => {
                let last = u32::from(self.options.queues - 1);
                result = last << 16 | last;
            }
            5 | 1 if entries < 2 || entries > u32::from(self.options.entries) || queue == 0 => {
                self.violation(format!("queue {queue} with {entries} entries"));
                status = 0x102;
            }
            5 => {
                let queues = Completions {
                    address: pending.wide(6),
                    entries: narrow(u64::from(entries)),
                    phase: true,
                    ..Completions::default()
                };
                if self.completions.insert(queue, queues).is_some() {
                    self.violation(format!("completion queue {queue} created twice"));
                }
            }
            1 => {
                let queues = Submission {
                    address: pending.wide(6),
                    entries: narrow(u64::from(entries)),
                    ..Submission::default()
                };
                if !self.completions.contains_key(&queue)
                    || self.submissions.insert(queue, queues).is_some()
                {
                    self.violation(format!("submission queue {queue} created out of order"));
                }
            }
            0 => {
                self.submissions.remove(&queue);
                self.pending.retain(|pending| pending.queue != queue);
                self.late.retain(|(_, of, _)| *of != queue);
            }
            4 => {
                self.completions.remove(&queue);
            }
            8 => {
                let id: u16 = narrow(u64::from(entry[10] >> 16));
                let found = self
                    .pending
                    .iter()
                    .position(|pending| pending.queue == queue && pending.id() == id);
                result = 1;
                if let Some(found) = found
                    && self.has_room(queue)
                    && !self.draw(self.options.faults.deaf)
                {
                    self.pending.swap_remove(found);
                    self.post(queue, queue, id, 0x007, 0);
                    result = 0;
                }
            }
            other => {
                self.violation(format!("admin command {other}"));
                status = 1;
            }
        }
        self.post(0, 0, pending.id(), status, result);
    }

    /// The data of an Identify command.
    fn describe(&self, controller: bool, namespace: u32) -> Option<Vec<u8>> {
        let mut data = vec![0; IDENTIFY_LEN];
        if controller {
            data[4..24].copy_from_slice(b"MODEL               ");
            data[24..64].fill(b' ');
            data[24..40].copy_from_slice(b"Braid model     ");
            data[77] = self.options.transfer_shift;
            data[258] = 3;
            data[512] = 0x66;
            data[513] = 0x44;
            data[516] = 1;
            data[520] = 4;
            data[525] = self.options.volatile_cache.into();
        } else if namespace == 1 {
            data[..8].copy_from_slice(&self.options.blocks.to_le_bytes());
            data[128 + 2] = self.options.block_shift;
        } else {
            return None;
        }
        Some(data)
    }

    fn perform(&mut self, pending: &Pending) {
        let faults = self.options.faults;
        let (queue, id) = (pending.queue, pending.id());
        let kind = pending.entry[0] & 0xff;
        let mut status = if self.draw(faults.error) {
            *[0x281, 0x280, 0x006, 0x371]
                .get(self.random.usize(..4))
                .expect("four kinds")
        } else {
            0
        };
        match kind {
            0 if status == 0 => self.blocks.flush(pending.covers),
            1 if status == 0 || self.random.bool() => {
                if let Some((number, lbas)) = self.store(pending)
                    && status == 0
                {
                    let fua = pending.entry[12] >> 30 & 1 == 1;
                    let durable = fua || !self.options.volatile_cache;
                    self.blocks.complete(lbas, number, durable);
                }
            }
            2 if status == 0 => self.load(pending),
            9 if status == 0 => status = self.deallocate(pending),
            0 | 1 | 2 | 9 => {}
            other => self.violation(format!("command {other}")),
        }
        self.post(queue, queue, id, status, 0);
        if self.draw(faults.duplicate) {
            let at = self.now + Duration::from_micros(self.random.u64(..1000));
            self.late.push((at, queue, id));
        }
        if self.draw(faults.foreign) {
            let (from, id) = (self.random.u16(..3), self.random.u16(..));
            let exists = |pending: &Pending| pending.queue == queue && pending.id() == id;
            if from != queue || !self.pending.iter().any(exists) {
                // Only wrong identifiers: nothing can tell a wrong completion with a right one.
                let from = if from == queue { from + 1 } else { from };
                self.post(queue, from, id, 0, 0);
            }
        }
    }

    /// The pages of a transfer, each with its length.
    fn pages(&mut self, pending: &Pending) -> Vec<(u64, usize)> {
        let blocks = u64::from(pending.entry[12] & 0xffff) + 1;
        let len = blocks << self.options.block_shift;
        let (first, second) = (pending.wide(6), pending.wide(8));
        let mut pages = vec![first];
        let rest = len.saturating_sub(PAGE - first % PAGE).div_ceil(PAGE);
        match rest {
            0 => {}
            1 => pages.push(second),
            _ => {
                for i in 0..rest {
                    let mut word = [0; 8];
                    if !self.memory.read(second + i * 8, &mut word) {
                        self.violation("a list of pages is in freed memory".into());
                        return Vec::new();
                    }
                    pages.push(u64::from_le_bytes(word));
                }
            }
        }
        if rest << 12 > PAGE << self.options.transfer_shift {
            self.violation(format!("a transfer of {len} bytes"));
        }
        let mut left = len;
        let mut parts = Vec::new();
        for (i, page) in pages.into_iter().enumerate() {
            if page % 4 != 0 || i > 0 && page % PAGE != 0 {
                self.violation(format!("page {i} of a transfer is at {page:#x}"));
            }
            let part = left.min(PAGE - page % PAGE);
            parts.push((page, to_usize(part)));
            left -= part;
        }
        parts
    }

    /// The blocks of a command.
    fn lbas(&mut self, pending: &Pending) -> Option<std::ops::Range<u64>> {
        let lba = pending.wide(10);
        let end = lba.checked_add(u64::from(pending.entry[12] & 0xffff) + 1);
        if pending.entry[1] != 1 || end.is_none_or(|end| end > self.options.blocks) {
            self.violation(format!("blocks {lba} to {end:?}"));
            return None;
        }
        Some(lba..end?)
    }

    /// Puts the blocks of a write into the cache.
    fn store(&mut self, pending: &Pending) -> Option<(u64, std::ops::Range<u64>)> {
        let lbas = self.lbas(pending)?;
        let mut data = Vec::new();
        for (address, len) in self.pages(pending) {
            let mut part = vec![0; len];
            if !self.memory.read(address, &mut part) {
                self.violation("N1: a write reads freed memory".into());
                return None;
            }
            data.extend(part);
        }
        let number = self.blocks.next_write();
        for (lba, bytes) in lbas.clone().zip(data.chunks(1 << self.options.block_shift)) {
            self.blocks.cache(lba, number, lba, bytes);
        }
        Some((number, lbas))
    }

    fn load(&mut self, pending: &Pending) {
        let Some(lbas) = self.lbas(pending) else {
            return;
        };
        let data: Vec<u8> = lbas
            .flat_map(|lba| self.blocks.newest(lba).to_vec())
            .collect();
        let mut at = 0;
        for (address, len) in self.pages(pending) {
            if !self.memory.write(address, &data[at..at + len]) {
                return self.violation("N1: a read writes freed memory".into());
            }
            at += len;
        }
    }

    fn deallocate(&mut self, pending: &Pending) -> u16 {
        let mut range = [0; 16];
        if !self.memory.read(pending.wide(6), &mut range) {
            self.violation("N1: a range is in freed memory".into());
            return 0x004;
        }
        let word = |at: usize| u32::from_le_bytes(range[at..at + 4].try_into().expect("four"));
        let lba = u64::from(word(8)) | u64::from(word(12)) << 32;
        let end = lba + u64::from(word(4));
        if end > self.options.blocks || pending.entry[11] & 4 == 0 {
            self.violation(format!("deallocation of {lba} to {end}"));
            return 0x080;
        }
        let number = self.blocks.next_write();
        let zeros = vec![0; 1 << self.options.block_shift];
        for lba in lba..end {
            self.blocks.cache(lba, number, lba, &zeros);
        }
        self.blocks
            .complete(lba..end, number, !self.options.volatile_cache);
        0
    }
}
