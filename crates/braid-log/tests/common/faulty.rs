//! A device that loses power and fails on demand, driven by a seed.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;

use braid_io::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode};

const SECTOR: usize = 512;

#[derive(Debug, Default, Clone)]
struct Content {
    /// What a crash leaves for sure.
    durable: Vec<u8>,
    /// What a read sees.
    current: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    /// Names as seen, and as a crash leaves them for sure.
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    contents: Vec<Content>,
    /// Operations that change the medium until the power goes; `None` for never.
    power: Option<u64>,
    /// Operations until one fails, once.
    fail_at: Option<u64>,
    /// Bytes the medium holds at most.
    capacity: Option<u64>,
    rng: fastrand::Rng,
    operations: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct FaultyDevice(Arc<Mutex<State>>);

fn other(what: &str) -> io::Error {
    io::Error::other(what.to_owned())
}

impl State {
    /// Counts an operation that changes the medium.
    fn step(&mut self) -> io::Result<()> {
        self.operations += 1;
        if let Some(left) = &mut self.power {
            if *left == 0 {
                return Err(other("the power is off"));
            }
            *left -= 1;
        }
        if let Some(left) = &mut self.fail_at {
            if *left == 0 {
                self.fail_at = None;
                return Err(other("injected failure"));
            }
            *left -= 1;
        }
        Ok(())
    }

    /// A step, or, when the power goes in the midst of it, `partly` and an error.
    fn step_or(&mut self, partly: impl FnOnce(&mut Self)) -> io::Result<()> {
        let last = self.power == Some(0);
        let done = self.step();
        if last && done.is_err() {
            partly(self);
            self.power = Some(0);
        }
        done
    }

    fn used(&self) -> u64 {
        self.names
            .values()
            .map(|&id| self.contents[id].current.len() as u64)
            .sum()
    }

    fn grow(&mut self, id: usize, end: usize) -> io::Result<()> {
        let more = end.saturating_sub(self.contents[id].current.len());
        if self
            .capacity
            .is_some_and(|capacity| self.used() + more as u64 > capacity)
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if more > 0 {
            self.contents[id].current.resize(end, 0);
        }
        Ok(())
    }
}

impl FaultyDevice {
    pub fn new(seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Self(Arc::new(Mutex::new(State {
            rng,
            ..State::default()
        })))
    }

    pub fn device(&self) -> Arc<dyn Device> {
        Arc::new(self.clone())
    }

    /// Lets the power go after so many changing operations.
    pub fn power_off_after(&self, operations: u64) {
        self.0.lock().unwrap().power = Some(operations);
    }

    /// Lets one operation fail after so many.
    pub fn fail_after(&self, operations: u64) {
        self.0.lock().unwrap().fail_at = Some(operations);
    }

    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.0.lock().unwrap().capacity = bytes;
    }

    pub fn used(&self) -> u64 {
        self.0.lock().unwrap().used()
    }

    /// Flips one bit, durably.
    pub fn flip(&self, name: &str, at: usize) {
        let mut state = self.0.lock().unwrap();
        let id = state.names[name];
        state.contents[id].current[at] ^= 1;
        state.contents[id].durable[at] ^= 1;
    }

    /// What the medium holds after the power comes back: each unsynced sector, name and length may have
    /// survived or not.
    pub fn after_crash(&self) -> Self {
        let mut state = self.0.lock().unwrap();
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
        // Renames keep their order: either all changes of names since the last sync, or none.
        let kept = if rng.bool() { names } else { durable_names };
        for (name, &id) in kept.iter() {
            let content = &contents[id];
            let (short, long) = (content.durable.len(), content.current.len());
            let len = if rng.bool() { long } else { short };
            let mut bytes = content.durable.clone();
            bytes.resize(len, 0);
            for at in (0..len.min(long)).step_by(SECTOR) {
                let end = (at + SECTOR).min(len.min(long));
                if bytes[at..end] != content.current[at..end] && rng.bool() {
                    bytes[at..end].copy_from_slice(&content.current[at..end]);
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

#[derive(Debug)]
struct FaultyFile {
    state: Arc<Mutex<State>>,
    id: usize,
}

impl Device for FaultyDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Simulator
    }

    fn block_size(&self) -> usize {
        4096
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        AlignedBuf::new(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut state = self.0.lock().unwrap();
        let id = match (state.names.get(name), mode) {
            (Some(&id), OpenMode::Existing) => id,
            (None, OpenMode::Existing) => return Err(io::ErrorKind::NotFound.into()),
            (Some(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (None, OpenMode::CreateNew) => {
                state.step()?;
                let id = state.contents.len();
                state.contents.push(Content::default());
                state.names.insert(name.to_owned(), id);
                id
            }
        };
        Ok(Arc::new(FaultyFile {
            state: Arc::clone(&self.0),
            id,
        }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.step()?;
        state
            .names
            .remove(name)
            .map(drop)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.step()?;
        let id = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), id);
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        let state = self.0.lock().unwrap();
        let entry = |(name, &id): (&String, &usize)| Entry {
            name: name.clone(),
            len: state.contents[id].current.len() as u64,
        };
        Ok(state.names.iter().map(entry).collect())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.step()?;
        state.durable_names = state.names.clone();
        Ok(())
    }
}

impl FaultyFile {
    fn write(&self, bufs: &[&[u8]], offset: u64, durable: bool) -> io::Result<()> {
        // Concurrent writes reach the medium in any order.
        let pauses = self.state.lock().unwrap().rng.u32(..8);
        (0..pauses).for_each(|_| std::thread::yield_now());
        let mut state = self.state.lock().unwrap();
        let bytes = bufs.concat();
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        let id = self.id;
        for buf in bufs {
            let address = buf.as_ptr() as usize;
            if !(address | buf.len() | start).is_multiple_of(4096) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        let put = |state: &mut State| {
            if state.contents[id].current.len() >= end {
                state.contents[id].current[start..end].copy_from_slice(&bytes);
            }
        };
        state.step_or(put)?;
        state.grow(id, end)?;
        put(&mut state);
        if durable {
            let content = &mut state.contents[id];
            let known = content.durable.len().min(end);
            if known > start {
                content.durable[start..known].copy_from_slice(&bytes[..known - start]);
            }
        }
        Ok(())
    }
}

impl File for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().unwrap().contents[self.id].current.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.step()?;
        state.grow(self.id, len as usize)?;
        state.contents[self.id].current.truncate(len as usize);
        Ok(())
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.step()?;
        state.grow(self.id, range.end as usize)?;
        state.contents[self.id].current[range.start as usize..range.end as usize].fill(0);
        Ok(())
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.fill_zero(range)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.state.lock().unwrap();
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

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.step()?;
        let content = &mut state.contents[self.id];
        content.durable = content.current.clone();
        Ok(())
    }
}
