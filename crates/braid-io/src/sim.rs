//! A device that loses power, fails and fills up on demand, all from one seed.
//!
//! What it keeps through a crash is no more than [`crate::device`]'s text promises: durable writes and
//! what was synced for sure; of everything else, each 512-byte sector, each length, and the name changes
//! since the last directory sync, survive or not as the seed says. Driven by one thread it is
//! deterministic.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode, WriteOp};

const BLOCK: usize = 4096;

/// The unit in which a write is torn.
const SECTOR: usize = 512;

#[derive(Clone, Debug, Default)]
struct Content {
    /// What a crash leaves for sure.
    durable: Vec<u8>,
    /// What a read sees.
    current: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    names: BTreeMap<String, usize>,
    /// The names that a crash leaves for sure.
    durable_names: BTreeMap<String, usize>,
    contents: Vec<Content>,
    rng: fastrand::Rng,
    steps: u64,
    crash_at: Option<u64>,
    crashed: bool,
    fail_write_at: Option<u64>,
    fail_sync_at: Option<u64>,
    capacity: Option<u64>,
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
    Write,
    Sync,
    Name,
}

impl State {
    /// Counts a step. `Err(true)`: this is the step at which the power goes; `Err(false)`: it is off.
    fn power(&mut self) -> Result<(), bool> {
        if self.crashed {
            return Err(false);
        }
        self.steps += 1;
        if self.crash_at.is_some_and(|at| self.steps >= at) {
            self.crashed = true;
            return Err(true);
        }
        Ok(())
    }

    fn step(&mut self, step: Step) -> io::Result<()> {
        self.power().map_err(|_| crashed())?;
        let fails = match step {
            Step::Write => &mut self.fail_write_at,
            Step::Sync => &mut self.fail_sync_at,
            Step::Name => return Ok(()),
        };
        if fails.is_some_and(|at| self.steps >= at) {
            *fails = None;
            return Err(io::Error::other("simulated I/O error"));
        }
        Ok(())
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
        if more > 0 {
            self.contents[id].current.resize(len, 0);
        }
        Ok(())
    }

    /// Puts bytes where a read sees them; all of them, or, torn, any of their sectors.
    fn put(&mut self, id: usize, bytes: &[u8], start: usize, torn: bool) {
        let current = &mut self.contents[id].current;
        for (i, sector) in bytes.chunks(SECTOR).enumerate() {
            let at = start + i * SECTOR;
            if at + sector.len() <= current.len() && !(torn && self.rng.bool()) {
                current[at..at + sector.len()].copy_from_slice(sector);
            }
        }
    }

    fn write(&mut self, id: usize, bytes: &[u8], offset: u64, durable: bool) -> io::Result<()> {
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        let was_on = !self.crashed;
        if let Err(error) = self.step(Step::Write) {
            if was_on {
                // The write that was under way when it happened.
                self.put(id, bytes, start, true);
            }
            return Err(error);
        }
        self.grow(id, end)?;
        self.put(id, bytes, start, false);
        if durable {
            // The bytes only; a length that was not synced may still be lost, and they with it.
            let content = &mut self.contents[id];
            let known = content.durable.len().min(end);
            if known > start {
                content.durable[start..known].copy_from_slice(&bytes[..known - start]);
            }
        }
        Ok(())
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

    /// Whether the power is off.
    pub fn has_crashed(&self) -> bool {
        self.0.lock().crashed
    }

    /// Lets the first write at or after the `n`-th step from now fail, once.
    pub fn fail_write_after(&self, n: u64) {
        let mut state = self.0.lock();
        state.fail_write_at = Some(state.steps + n);
    }

    /// Lets the first sync at or after the `n`-th step from now fail, once. As on Linux, the data that it
    /// should have made durable may be lost although later syncs succeed.
    pub fn fail_sync_after(&self, n: u64) {
        let mut state = self.0.lock();
        state.fail_sync_at = Some(state.steps + n);
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
        let Content { durable, current } = &mut state.contents[id];
        if let Some(byte) = durable.get_mut(byte) {
            *byte ^= 1 << (bit % 8);
        }
        current
            .get_mut(byte)
            .map(|byte| *byte ^= 1 << (bit % 8))
            .is_some()
    }

    /// What the medium holds when the power comes back, as a new device that works.
    #[must_use]
    pub fn after_crash(&self) -> Self {
        let mut state = self.0.lock();
        let State {
            names,
            durable_names,
            contents,
            rng,
            ..
        } = &mut *state;
        let mut left = State {
            rng: rng.fork(),
            ..State::default()
        };
        // A file system keeps the order of changes of names: here all since the last sync, or none.
        let kept = if rng.bool() { names } else { durable_names };
        for (name, &id) in kept.iter() {
            let content = &contents[id];
            let long = content.current.len();
            let len = if rng.bool() {
                long
            } else {
                content.durable.len()
            };
            let mut bytes = content.durable.clone();
            bytes.resize(len, 0);
            for at in (0..len.min(long)).step_by(SECTOR) {
                let sector = at..(at + SECTOR).min(len.min(long));
                if bytes[sector.clone()] != content.current[sector.clone()] && rng.bool() {
                    bytes[sector.clone()].copy_from_slice(&content.current[sector]);
                }
            }
            left.names.insert(name.clone(), left.contents.len());
            left.contents.push(Content {
                durable: bytes.clone(),
                current: bytes,
            });
        }
        left.durable_names = left.names.clone();
        Self(Arc::new(Mutex::new(left)))
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
                let id = state.contents.len();
                state.contents.push(Content::default());
                state.names.insert(name.to_owned(), id);
                id
            }
        };
        Ok(Arc::new(SimFile {
            state: self.0.clone(),
            id,
        }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step(Step::Name)?;
        state
            .names
            .remove(name)
            .map(drop)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step(Step::Name)?;
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
        let mut state = self.0.lock();
        state.step(Step::Name)?;
        state.durable_names = state.names.clone();
        Ok(())
    }
}

#[derive(Debug)]
struct SimFile {
    state: Arc<Mutex<State>>,
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
    fn write(&self, bufs: &[&[u8]], offset: u64, durable: bool) -> io::Result<()> {
        check_aligned(bufs, offset)?;
        self.state
            .lock()
            .write(self.id, &bufs.concat(), offset, durable)
    }
}

impl File for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().contents[self.id].current.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.step(Step::Write)?;
        state.grow(self.id, len as usize)?;
        state.contents[self.id].current.truncate(len as usize);
        Ok(())
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        let zeroes = vec![0; range.end.saturating_sub(range.start) as usize];
        self.state
            .lock()
            .write(self.id, &zeroes, range.start, false)
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
        check_aligned(&[buf], offset)?;
        let state = self.state.lock();
        if state.crashed {
            return Err(crashed());
        }
        let start = offset as usize;
        let bytes = state.contents[self.id]
            .current
            .get(start..start + buf.len());
        buf.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.write(bufs, offset, false)
    }

    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.write(bufs, offset, true)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> io::Result<()> {
        let mut order: Vec<usize> = (0..ops.len()).collect();
        self.state.lock().rng.shuffle(&mut order);
        order
            .into_iter()
            .try_for_each(|i| self.write_at(&[ops[i].buf], ops[i].offset))
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        let was_on = !state.crashed;
        let synced = state.step(Step::Sync);
        let State {
            contents,
            rng,
            crashed,
            ..
        } = &mut *state;
        let content = &mut contents[self.id];
        match synced {
            Ok(()) => content.durable.clone_from(&content.current),
            // A failed sync may have dropped what it could not write; later syncs succeed all the same.
            Err(_) if was_on && !*crashed && rng.bool() => {
                content.current.clone_from(&content.durable);
            }
            Err(_) => {}
        }
        synced
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
        device.crash_after(1);
        assert!(file.sync().is_err() && file.read_at(&mut block(0), 0).is_err());
    }
}
