//! A device that loses power, fails, fills up and decays on demand, all from one seed.
//!
//! What it keeps through a crash is no more than [`crate::device`]'s text promises: durable writes and
//! what was synced for sure; of everything else, each 512-byte sector, each length, and the name changes
//! since the last directory sync, survive or not as the seed says.
//!
//! Driven by one thread, every operation is done when it returns. Under [`braid_rt::simulation`]
//! operations take time: several are under way at once, end in any order, and are torn together when the
//! power goes; a sync is for what was written before it began.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use braid_rt::Mutex;

use crate::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode, ReadOp, WriteOp};

const BLOCK: usize = 4096;

/// The unit in which a write is torn.
const SECTOR: usize = 512;

/// One in so many operations takes much longer, under a simulation.
const SPIKES: u32 = 64;

#[derive(Clone, Debug, Default)]
struct Content {
    /// What a crash leaves for sure.
    durable: Vec<u8>,
    /// What a read sees.
    current: Vec<u8>,
    /// Blocks in which the two may differ (behind the end of `durable`, from zeroes), and when they were
    /// written last.
    dirty: BTreeMap<usize, u64>,
    /// How current the blocks of `durable`, and its length, are, as far as it matters for syncs that overlap.
    synced: BTreeMap<usize, u64>,
    synced_len: u64,
    /// Counts changes.
    clock: u64,
}

/// What a sync has to make durable: the length, and the blocks with their bytes.
struct Unsynced {
    clock: u64,
    len: usize,
    blocks: Vec<(usize, u64, Vec<u8>)>,
}

impl Content {
    fn mark(&mut self, range: Range<usize>) {
        self.clock += 1;
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        self.dirty.extend(blocks.map(|block| (block, self.clock)));
    }

    fn grow(&mut self, len: usize) {
        let old = self.current.len();
        if len > old {
            self.current.resize(len, 0);
            // What was cut off before is still on the medium.
            self.mark(old..len.min(self.durable.len()).max(old));
        }
    }

    fn block(&self, block: usize) -> Range<usize> {
        let end = self.current.len();
        (block * BLOCK).min(end)..((block + 1) * BLOCK).min(end)
    }

    fn unsynced(&self) -> Unsynced {
        let bytes = |(&block, &at): (&usize, &u64)| {
            let bytes = self.current[self.block(block)].to_vec();
            (block, at, bytes)
        };
        Unsynced {
            clock: self.clock,
            len: self.current.len(),
            blocks: self.dirty.iter().map(bytes).collect(),
        }
    }

    /// A sync ends. Another one that began later may have ended before.
    fn sync(&mut self, unsynced: Unsynced) {
        if unsynced.clock >= self.synced_len {
            self.synced_len = unsynced.clock;
            self.durable.resize(unsynced.len, 0);
        }
        for (block, at, bytes) in unsynced.blocks {
            let synced = self.synced.entry(block).or_default();
            let start = block * BLOCK;
            if at <= *synced {
                continue;
            }
            *synced = at;
            if let Some(place) = self.durable.get_mut(start..start + bytes.len()) {
                place.copy_from_slice(&bytes);
            }
            if self.dirty.get(&block) == Some(&at) {
                self.dirty.remove(&block);
            }
        }
    }

    /// Loses what was not synced.
    fn forget_unsynced(&mut self) {
        self.current.clone_from(&self.durable);
        self.dirty.clear();
    }
}

/// A write that has begun.
#[derive(Debug)]
struct Write {
    file: usize,
    offset: usize,
    bytes: Vec<u8>,
    durable: bool,
}

/// When a kind of operation fails.
#[derive(Clone, Copy, Debug, Default)]
struct Failing {
    /// From this step on.
    at: Option<u64>,
    for_good: bool,
}

impl Failing {
    fn fails(&mut self, step: u64) -> bool {
        let fails = self.at.is_some_and(|at| step >= at);
        if fails && !self.for_good {
            self.at = None;
        }
        fails
    }
}

/// How a sector on the medium is not what was written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// A bit is flipped.
    FlippedBit,
    /// It is all zeroes.
    LostSector,
    /// It is what it was before it was written last.
    StaleSector,
}

#[derive(Debug, Default)]
struct State {
    names: BTreeMap<String, usize>,
    name_changes: u64,
    /// The names that a crash leaves for sure, and how many changes there were up to them.
    durable_names: BTreeMap<String, usize>,
    durable_name_changes: u64,
    contents: Vec<Content>,
    /// Writes under way, under a simulation.
    writes: BTreeMap<u64, Write>,
    next_write: u64,
    rng: fastrand::Rng,
    steps: u64,
    crash_at: Option<u64>,
    crashed: bool,
    failing_writes: Failing,
    failing_syncs: Failing,
    failing_reads: Failing,
    capacity: Option<u64>,
    /// What sectors held before they were last overwritten, if anybody will ask.
    stale: Option<BTreeMap<(usize, usize), Vec<u8>>>,
    lies: bool,
}

/// See the module's text. Clones are the same device.
#[derive(Clone, Debug)]
pub struct SimDevice(Arc<Mutex<State>>);

fn crashed() -> io::Error {
    io::Error::other("simulated crash")
}

/// What a step of the simulation is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Read,
    Write,
    Sync,
    Name,
}

impl State {
    fn step(&mut self, step: Step) -> io::Result<()> {
        if self.crashed {
            return Err(crashed());
        }
        if step != Step::Read {
            self.steps += 1;
            if self.crash_at.is_some_and(|at| self.steps >= at) {
                self.power_off();
                return Err(crashed());
            }
        }
        let failing = match step {
            Step::Read => &mut self.failing_reads,
            Step::Write => &mut self.failing_writes,
            Step::Sync => &mut self.failing_syncs,
            Step::Name => return Ok(()),
        };
        if failing.fails(self.steps) {
            return Err(io::Error::other("simulated I/O error"));
        }
        Ok(())
    }

    /// Tears what is under way.
    fn power_off(&mut self) {
        self.crashed = true;
        for write in std::mem::take(&mut self.writes).into_values() {
            self.put(&write, true);
        }
    }

    fn used(&self) -> u64 {
        self.names
            .values()
            .map(|&id| self.contents[id].current.len() as u64)
            .sum()
    }

    fn grow(&mut self, id: usize, len: usize) -> io::Result<()> {
        let more = len.saturating_sub(self.contents[id].current.len());
        if self
            .capacity
            .is_some_and(|capacity| self.used() + more as u64 > capacity)
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.contents[id].grow(len);
        Ok(())
    }

    /// Puts bytes where a read sees them; all of them, or, torn, any of their sectors.
    fn put(&mut self, write: &Write, torn: bool) {
        let content = &mut self.contents[write.file];
        for (i, sector) in write.bytes.chunks(SECTOR).enumerate() {
            let at = write.offset + i * SECTOR;
            let place = at..at + sector.len();
            if place.end <= content.current.len() && !(torn && self.rng.bool()) {
                if let Some(stale) = &mut self.stale
                    && content.current[place.clone()] != *sector
                {
                    let old = content.current[place.clone()].to_vec();
                    stale.insert((write.file, at / SECTOR), old);
                }
                content.current[place].copy_from_slice(sector);
            }
        }
        let end = write.offset + write.bytes.len();
        content.mark(write.offset..end.min(content.current.len()));
        if write.durable && !torn {
            // The bytes only; a length that was not synced may still be lost, and they with it.
            let known = content.durable.len().min(end);
            if known > write.offset {
                let place = write.offset..known;
                content.durable[place.clone()].copy_from_slice(&write.bytes[..place.len()]);
                for block in place.start / BLOCK..place.end / BLOCK {
                    content.dirty.remove(&block);
                    content.synced.insert(block, content.clock);
                }
            }
        }
    }

    /// A write begins: refused, or from now on under way. Returns its number.
    fn begin(&mut self, mut write: Write) -> io::Result<u64> {
        write.durable &= !self.lies;
        let was_on = !self.crashed;
        if let Err(error) = self.step(Step::Write) {
            if was_on {
                // The write that was under way when it happened.
                self.put(&write, true);
            }
            return Err(error);
        }
        self.grow(write.file, write.offset + write.bytes.len())?;
        self.next_write += 1;
        self.writes.insert(self.next_write, write);
        Ok(self.next_write)
    }

    /// A write ends, unless the power went before.
    fn end(&mut self, write: u64) -> io::Result<()> {
        let write = self.writes.remove(&write).ok_or_else(crashed)?;
        self.put(&write, false);
        Ok(())
    }

    /// What is left of the files when what is not durable survives as `keep` says.
    fn left(
        &mut self,
        kept_names: bool,
        mut keep: impl FnMut(&mut fastrand::Rng) -> bool,
    ) -> State {
        let rng = &mut self.rng;
        let mut left = State {
            rng: rng.fork(),
            ..State::default()
        };
        // A file system keeps the order of changes of names: here all since the last sync, or none.
        let names = if kept_names {
            &self.names
        } else {
            &self.durable_names
        };
        for (name, &id) in names {
            let content = &self.contents[id];
            let long = content.current.len();
            let len = if keep(rng) {
                long
            } else {
                content.durable.len()
            };
            let mut bytes = content.durable.clone();
            bytes.resize(len, 0);
            for &block in content.dirty.keys() {
                let place = content.block(block);
                for at in place.clone().step_by(SECTOR) {
                    let sector = at..(at + SECTOR).min(place.end).min(len);
                    if sector.start < sector.end
                        && bytes[sector.clone()] != content.current[sector.clone()]
                        && keep(rng)
                    {
                        bytes[sector.clone()].copy_from_slice(&content.current[sector]);
                    }
                }
            }
            if let Some(stale) = &self.stale {
                let own = stale.range((id, 0)..(id + 1, 0));
                let to = left.stale.get_or_insert_default();
                to.extend(own.map(|(&(_, at), old)| ((left.contents.len(), at), old.clone())));
            }
            for write in self.writes.values().filter(|write| write.file == id) {
                for (i, sector) in write.bytes.chunks(SECTOR).enumerate() {
                    let at = write.offset + i * SECTOR;
                    let place = bytes.get_mut(at..at + sector.len());
                    if let Some(place) = place.filter(|_| rng.bool()) {
                        place.copy_from_slice(sector);
                    }
                }
            }
            left.names.insert(name.clone(), left.contents.len());
            left.contents.push(Content {
                durable: bytes.clone(),
                current: bytes,
                ..Content::default()
            });
        }
        if self.stale.is_some() {
            left.stale.get_or_insert_default();
        }
        left.lies = self.lies;
        left.durable_names = left.names.clone();
        left
    }
}

impl SimDevice {
    /// An empty device.
    pub fn new(seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Self(Arc::new(Mutex::new(State {
            rng,
            ..State::default()
        })))
    }

    /// How many writes, syncs and name changes there were.
    pub fn steps(&self) -> u64 {
        self.0.lock().steps
    }

    /// Lets the power go in the midst of the `n`-th step from now, counted from 1: it and everything
    /// after it fails.
    pub fn crash_after(&self, n: u64) {
        let mut state = self.0.lock();
        state.crash_at = Some(state.steps + n);
    }

    /// Lets the power go now.
    pub fn power_off(&self) {
        self.0.lock().power_off();
    }

    /// Whether the power is off.
    pub fn has_crashed(&self) -> bool {
        self.0.lock().crashed
    }

    /// Lets the first write at or after the `n`-th step from now fail, once.
    pub fn fail_write_after(&self, n: u64) {
        let mut state = self.0.lock();
        let at = Some(state.steps + n);
        state.failing_writes = Failing {
            at,
            for_good: false,
        };
    }

    /// Lets the first sync at or after the `n`-th step from now fail, once. As on Linux, the data that it
    /// should have made durable may be lost although later syncs succeed.
    pub fn fail_sync_after(&self, n: u64) {
        let mut state = self.0.lock();
        let at = Some(state.steps + n);
        state.failing_syncs = Failing {
            at,
            for_good: false,
        };
    }

    /// Lets all writes and syncs from the `n`-th step from now on fail.
    pub fn break_after(&self, n: u64) {
        let mut state = self.0.lock();
        let at = Some(state.steps + n);
        state.failing_writes = Failing { at, for_good: true };
        state.failing_syncs = state.failing_writes;
    }

    /// Lets the first read at or after the `n`-th step from now fail, once.
    pub fn fail_read_after(&self, n: u64) {
        let mut state = self.0.lock();
        let at = Some(state.steps + n);
        state.failing_reads = Failing {
            at,
            for_good: false,
        };
    }

    /// Works as before once more, whatever was to fail. The power stays off if it is.
    pub fn mend(&self) {
        let mut state = self.0.lock();
        state.failing_writes = Failing::default();
        state.failing_syncs = Failing::default();
        state.failing_reads = Failing::default();
    }

    /// From now on syncs and durable writes do not do what they say, as with a cache that claims to be none.
    pub fn lie(&self) {
        self.0.lock().lies = true;
    }

    /// How many bytes all files together may take; `None` for any number.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.0.lock().capacity = bytes;
    }

    /// The bytes that all files together take.
    pub fn used(&self) -> u64 {
        self.0.lock().used()
    }

    /// Flips a bit of a file, durably. Says whether the file has that byte.
    pub fn flip_bit(&self, name: &str, byte: usize, bit: u32) -> bool {
        let mut state = self.0.lock();
        let Some(&id) = state.names.get(name) else {
            return false;
        };
        let Content {
            durable, current, ..
        } = &mut state.contents[id];
        if let Some(byte) = durable.get_mut(byte) {
            *byte ^= 1 << (bit % 8);
        }
        current
            .get_mut(byte)
            .map(|byte| *byte ^= 1 << (bit % 8))
            .is_some()
    }

    /// Remembers what sectors held, so that they can become stale.
    pub fn remember_stale(&self) {
        self.0.lock().stale.get_or_insert_default();
    }

    /// Lets a sector of a file whose name `pick` likes decay. Returns the file and the byte, or `None` if
    /// there is nothing that could.
    pub fn decay(&self, decay: Decay, pick: impl Fn(&str) -> bool) -> Option<(String, usize)> {
        let state = &mut *self.0.lock();
        let names = state.names.iter().filter(|(name, _)| pick(name));
        let files: Vec<(&String, usize)> = names.map(|(name, &id)| (name, id)).collect();
        let mut sectors = Vec::new();
        for (name, id) in files {
            let current = &state.contents[id].current;
            let stale = state.stale.as_ref();
            sectors.extend((0..current.len() / SECTOR).filter_map(|sector| {
                let bytes = &current[sector * SECTOR..(sector + 1) * SECTOR];
                let old = stale.and_then(|stale| stale.get(&(id, sector)));
                let may = match decay {
                    Decay::StaleSector => old.is_some_and(|old| old != bytes),
                    _ => bytes.iter().any(|byte| *byte != 0),
                };
                may.then(|| (name.clone(), id, sector))
            }));
        }
        if sectors.is_empty() {
            return None;
        }
        let (name, id, sector) = sectors.swap_remove(state.rng.usize(..sectors.len()));
        let place = sector * SECTOR..(sector + 1) * SECTOR;
        let mut bytes = state.contents[id].current[place.clone()].to_vec();
        match decay {
            Decay::FlippedBit => {
                bytes[state.rng.usize(..SECTOR)] ^= 1 << state.rng.u32(..8);
            }
            Decay::LostSector => bytes.fill(0),
            Decay::StaleSector => {
                let old = state.stale.as_ref()?.get(&(id, sector))?;
                bytes.clone_from(old);
            }
        }
        let content = &mut state.contents[id];
        content.current[place.clone()].copy_from_slice(&bytes);
        if let Some(durable) = content.durable.get_mut(place.clone()) {
            durable.copy_from_slice(&bytes);
        }
        Some((name, place.start))
    }

    /// What the medium holds if the power goes now, or went before, as a new device that works.
    #[must_use]
    pub fn after_crash(&self) -> Self {
        let mut state = self.0.lock();
        let names = state.rng.bool();
        let left = state.left(names, fastrand::Rng::bool);
        Self(Arc::new(Mutex::new(left)))
    }

    /// What the next process finds if this one is killed now and the machine runs on, as a new device that
    /// works. (Of writes under way, any part.)
    #[must_use]
    pub fn after_kill(&self) -> Self {
        let mut state = self.0.lock();
        // The system still has what was not synced, and may lose it later; here it has written it.
        let left = state.left(true, |_| true);
        Self(Arc::new(Mutex::new(left)))
    }

    /// Lets the time of an operation pass.
    fn take_time(&self, micros: Range<u64>) {
        if !braid_rt::simulation::is_on() {
            return;
        }
        let time = {
            let rng = &mut self.0.lock().rng;
            let spike = if rng.u32(..SPIKES) == 0 { 50 } else { 1 };
            Duration::from_nanos(rng.u64(micros.start * 1_000..micros.end * 1_000)) * spike
        };
        braid_rt::sleep(time);
    }

    fn named(&self) -> io::Result<braid_rt::MutexGuard<'_, State>> {
        self.take_time(5..50);
        let mut state = self.0.lock();
        state.step(Step::Name)?;
        Ok(state)
    }

    /// For a change of names.
    fn renamed(&self) -> io::Result<braid_rt::MutexGuard<'_, State>> {
        let mut state = self.named()?;
        state.name_changes += 1;
        Ok(state)
    }
}

impl Device for SimDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Simulator
    }

    fn block_size(&self) -> usize {
        BLOCK
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        AlignedBuf::new(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut state = self.0.lock();
        let id = match (state.names.get(name), mode) {
            (Some(&id), OpenMode::Existing) => id,
            (None, OpenMode::Existing) => return Err(io::ErrorKind::NotFound.into()),
            (Some(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (None, OpenMode::CreateNew) => {
                state.step(Step::Name)?;
                state.name_changes += 1;
                let id = state.contents.len();
                state.contents.push(Content::default());
                state.names.insert(name.to_owned(), id);
                id
            }
        };
        Ok(Arc::new(SimFile {
            device: self.clone(),
            id,
        }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let removed = self.renamed()?.names.remove(name);
        removed
            .map(drop)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.renamed()?;
        let id = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), id);
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        let state = self.0.lock();
        let entry = |(name, &id): (&String, &usize)| Entry {
            name: name.clone(),
            len: state.contents[id].current.len() as u64,
        };
        Ok(state.names.iter().map(entry).collect())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let (names, changes) = {
            let state = self.0.lock();
            (state.names.clone(), state.name_changes)
        };
        let mut state = self.named()?;
        // Another one that began later may have ended before.
        if !state.lies && changes >= state.durable_name_changes {
            state.durable_names = names;
            state.durable_name_changes = changes;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct SimFile {
    device: SimDevice,
    id: usize,
}

fn check_aligned(bufs: &[&[u8]], offset: u64) -> io::Result<()> {
    let block = BLOCK as u64;
    let is_aligned =
        |buf: &&[u8]| buf.len().is_multiple_of(BLOCK) && buf.as_ptr().addr().is_multiple_of(BLOCK);
    if offset.is_multiple_of(block) && bufs.iter().all(is_aligned) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "offset, length or buffer is not aligned",
    ))
}

impl SimFile {
    /// Writes that are under way at the same time and end in any order.
    fn write_all(&self, ops: Vec<(u64, Vec<u8>)>, durable: bool) -> io::Result<()> {
        let device = &self.device;
        let write = |(offset, bytes)| Write {
            file: self.id,
            offset: offset as usize,
            bytes,
            durable,
        };
        if !braid_rt::simulation::is_on() {
            let mut state = device.0.lock();
            return ops.into_iter().try_for_each(|op| {
                let number = state.begin(write(op))?;
                state.end(number)
            });
        }
        let mut state = device.0.lock();
        let mut begun = Vec::with_capacity(ops.len());
        let mut outcome = Ok(());
        for op in ops {
            match state.begin(write(op)) {
                Ok(number) => begun.push(number),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        drop(state);
        device.take_time(5..60);
        let mut state = device.0.lock();
        state.rng.shuffle(&mut begun);
        // If one was refused, the others are done all the same.
        let ended = begun.into_iter().try_for_each(|number| state.end(number));
        outcome.and(ended)
    }
}

impl File for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.device.0.lock().contents[self.id].current.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.device.take_time(5..50);
        let mut state = self.device.0.lock();
        state.step(Step::Write)?;
        state.grow(self.id, len as usize)?;
        let content = &mut state.contents[self.id];
        content.current.truncate(len as usize);
        let blocks = content.current.len().div_ceil(BLOCK);
        content.clock += 1;
        content.dirty.retain(|&block, _| block < blocks);
        Ok(())
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.device.take_time(5..50);
        let mut state = self.device.0.lock();
        state.step(Step::Write)?;
        if state.contents[self.id].current.len() < len as usize {
            state.grow(self.id, len as usize)?;
            state.contents[self.id].clock += 1;
        }
        Ok(())
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        let zeroes = vec![0; range.end.saturating_sub(range.start) as usize];
        self.write_all(vec![(range.start, zeroes)], false)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        let end = range.end.min(self.len()?);
        if range.start < end {
            self.fill_zero(range.start..end)
        } else {
            Ok(())
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_batch(&mut [ReadOp { buf, offset }])
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> io::Result<()> {
        self.device.take_time(2..20);
        let mut state = self.device.0.lock();
        for op in ops {
            check_aligned(&[op.buf], op.offset)?;
            state.step(Step::Read)?;
            let start = op.offset as usize;
            let bytes = state.contents[self.id]
                .current
                .get(start..start + op.buf.len());
            op.buf
                .copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        }
        Ok(())
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        check_aligned(bufs, offset)?;
        self.write_all(vec![(offset, bufs.concat())], false)
    }

    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        check_aligned(bufs, offset)?;
        self.write_all(vec![(offset, bufs.concat())], true)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> io::Result<()> {
        for op in ops {
            check_aligned(&[op.buf], op.offset)?;
        }
        let mut writes: Vec<_> = ops.iter().map(|op| (op.offset, op.buf.to_vec())).collect();
        self.device.0.lock().rng.shuffle(&mut writes);
        self.write_all(writes, false)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.device.0.lock();
        let was_on = !state.crashed;
        if let Err(error) = state.step(Step::Sync) {
            if was_on && !state.crashed && state.rng.bool() {
                // It may have dropped what it could not write; later syncs succeed all the same.
                state.contents[self.id].forget_unsynced();
            }
            return Err(error);
        }
        let unsynced = state.contents[self.id].unsynced();
        drop(state);
        self.device.take_time(20..200);
        let mut state = self.device.0.lock();
        if state.crashed {
            return Err(crashed());
        }
        if !state.lies {
            state.contents[self.id].sync(unsynced);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(byte: u8) -> AlignedBuf {
        let mut buf = AlignedBuf::new(2 * BLOCK);
        buf.fill(byte);
        buf
    }

    fn bytes_of(device: &SimDevice, name: &str) -> Option<Vec<u8>> {
        let file = device.open(name, OpenMode::Existing).ok()?;
        let mut buf = AlignedBuf::new((file.len().unwrap() as usize).max(1));
        let len = file.len().unwrap() as usize;
        file.read_at(&mut buf[..len], 0).unwrap();
        Some(buf[..len].to_vec())
    }

    #[test]
    fn what_was_synced_survives_and_what_was_not_sometimes_does() {
        let mut outcomes = std::collections::BTreeMap::<&str, u32>::new();
        let seeds = if cfg!(miri) { 6 } else { 200 };
        for seed in 0..seeds {
            let device = SimDevice::new(seed);
            let file = device.open("f", OpenMode::CreateNew).unwrap();
            file.write_at(&[&block(1)], 0).unwrap();
            file.sync().unwrap();
            device.sync_directory().unwrap();
            file.write_durable_at(&[&block(2)[..BLOCK]], 0).unwrap();
            file.write_at(&[&block(3)[..BLOCK]], BLOCK as u64).unwrap();
            let bytes = bytes_of(&device.after_crash(), "f").expect("a synced name survives");
            assert!(
                bytes[..BLOCK].iter().all(|b| *b == 2),
                "durable, seed {seed}"
            );
            let new = bytes[BLOCK..].chunks(SECTOR).filter(|s| s[0] == 3).count();
            assert!(
                bytes[BLOCK..].iter().all(|b| matches!(b, 1 | 3)),
                "seed {seed}"
            );
            let outcome = match new {
                0 => "lost",
                n if n == BLOCK / SECTOR => "kept",
                _ => "torn",
            };
            *outcomes.entry(outcome).or_default() += 1;
        }
        assert!(u64::from(outcomes["torn"]) > seeds / 2, "{outcomes:?}");
    }

    #[test]
    fn the_same_seed_does_the_same() {
        let run = |seed| {
            let device = SimDevice::new(seed);
            let file = device.open("f", OpenMode::CreateNew).unwrap();
            device.sync_directory().unwrap();
            device.crash_after(3);
            for byte in 0..9 {
                let _ = file.write_at(&[&block(byte)], 0);
            }
            assert!(device.has_crashed());
            bytes_of(&device.after_crash(), "f")
        };
        assert_eq!(run(5), run(5));
        assert!((0..50).any(|seed| run(seed) != run(5)));
    }

    #[test]
    fn faults_come_when_they_were_asked_for() {
        let device = SimDevice::new(1);
        let file = device.open("f", OpenMode::CreateNew).unwrap();
        device.fail_write_after(2);
        file.write_at(&[&block(1)], 0).unwrap();
        assert!(file.write_at(&[&block(1)], 0).is_err());
        file.write_at(&[&block(1)], 0).unwrap();
        device.fail_sync_after(1);
        assert!(file.sync().is_err());
        file.sync().unwrap();
        device.set_capacity(Some(3 * BLOCK as u64));
        let full = file.write_at(&[&block(1)], 2 * BLOCK as u64).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        file.write_at(&[&block(1)], 0).unwrap();
        device.fail_read_after(0);
        assert!(file.read_at(&mut block(0), 0).is_err());
        file.read_at(&mut block(0), 0).unwrap();
        device.break_after(1);
        assert!(file.sync().is_err() && file.sync().is_err());
        device.mend();
        file.sync().unwrap();
        device.crash_after(1);
        assert!(file.sync().is_err() && file.read_at(&mut block(0), 0).is_err());
    }

    #[test]
    fn a_killed_process_leaves_what_it_wrote_and_a_lying_cache_does_not() {
        let lost = (0..100).filter(|&seed| {
            let device = SimDevice::new(seed);
            let file = device.open("f", OpenMode::CreateNew).unwrap();
            if seed % 2 == 0 {
                file.write_at(&[&block(1)], 0).unwrap();
                assert_eq!(bytes_of(&device.after_kill(), "f"), Some(block(1).to_vec()));
                return false;
            }
            device.sync_directory().unwrap();
            device.lie();
            file.write_durable_at(&[&block(1)], 0).unwrap();
            file.sync().unwrap();
            bytes_of(&device.after_crash(), "f") != Some(block(1).to_vec())
        });
        assert!(lost.count() > 25);
    }

    #[test]
    fn what_was_cut_off_may_come_back() {
        let seen: std::collections::BTreeSet<Vec<u8>> = (0..100)
            .filter_map(|seed| {
                let device = SimDevice::new(seed);
                let file = device.open("f", OpenMode::CreateNew).unwrap();
                device.sync_directory().unwrap();
                file.write_at(&[&block(1)], 0).unwrap();
                file.sync().unwrap();
                file.set_len(BLOCK as u64).unwrap();
                file.set_len(2 * BLOCK as u64).unwrap();
                let bytes = bytes_of(&device.after_crash(), "f").unwrap();
                assert!(bytes[..BLOCK].iter().all(|b| *b == 1));
                bytes.get(BLOCK..).map(|b| vec![b[0]])
            })
            .collect();
        assert_eq!(seen.len(), 2, "{seen:?}");
    }

    #[test]
    fn sectors_decay() {
        let device = SimDevice::new(2);
        device.remember_stale();
        let file = device.open("f", OpenMode::CreateNew).unwrap();
        file.write_at(&[&block(1)], 0).unwrap();
        file.write_at(&[&block(2)[..BLOCK]], 0).unwrap();
        assert_eq!(device.decay(Decay::LostSector, |name| name != "f"), None);
        let (name, at) = device.decay(Decay::StaleSector, |_| true).unwrap();
        let bytes = bytes_of(&device, &name).unwrap();
        assert!(
            matches!(bytes[at], 0 | 1)
                && bytes.iter().filter(|b| **b == 2).count() == BLOCK - SECTOR
                || at >= BLOCK
        );
        let (_, at) = device.decay(Decay::LostSector, |_| true).unwrap();
        assert_eq!(bytes_of(&device, "f").unwrap()[at], 0);
        let before = bytes_of(&device, "f").unwrap();
        let (_, at) = device.decay(Decay::FlippedBit, |_| true).unwrap();
        let after = bytes_of(&device, "f").unwrap();
        let differ: Vec<usize> = (0..before.len())
            .filter(|&i| before[i] != after[i])
            .collect();
        assert!(differ.len() == 1 && (at..at + SECTOR).contains(&differ[0]));
    }

    #[test]
    fn under_a_simulation_writes_end_in_any_order_and_syncs_are_for_what_was_before() {
        use braid_rt::{simulation, thread};
        let outcomes: std::collections::BTreeSet<Vec<u8>> = (0..200)
            .map(|seed| {
                let options = simulation::Options {
                    seed,
                    steps_max: 10_000,
                    stalls: 0,
                };
                let (outcome, _) = simulation::run(&options, move || {
                    let device = SimDevice::new(seed);
                    let file = device.open("f", OpenMode::CreateNew).unwrap();
                    file.write_at(&[&block(9)], 0).unwrap();
                    file.sync().unwrap();
                    device.sync_directory().unwrap();
                    let done = thread::scatter(3, |i| {
                        if i == 2 {
                            return file.sync().is_ok();
                        }
                        let at = i as u64 * BLOCK as u64;
                        file.write_at(&[&block(i as u8)[..BLOCK]], at).is_ok()
                    });
                    assert_eq!(done, [true; 3]);
                    bytes_of(&device.after_crash(), "f").unwrap()
                });
                let bytes = outcome.unwrap();
                [bytes[0], bytes[BLOCK]].to_vec()
            })
            .collect();
        assert!(outcomes.len() == 4, "{outcomes:?}");
    }
}
