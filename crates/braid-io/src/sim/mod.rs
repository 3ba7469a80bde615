//! A device that loses power, fails, fills up and has media faults on demand, all from one seed.
//!
//! Through a crash, the device keeps no more than [`crate::device`]'s documentation promises:
//! durable writes and synced data certainly survive; each other 512-byte sector, each other length,
//! and the name changes since the last directory sync, survive or not as the seed decides. A device
//! with blocks of a cache line is persistent memory: there, each aligned word of eight bytes survives
//! or not. That is every state that a processor may leave, whichever order its lines and the stores
//! within a line keep, and more.
//!
//! If one thread uses the device, every operation is complete when it returns. Under
//! [`braid_rt::simulation`], operations take time: several are in flight at once, end in any order,
//! and are torn together when the power fails; a sync covers the data written before it began. Two
//! writes of a sector that are in flight at once land in either order, whichever ends first.

mod blocks;
mod content;
mod file;
mod media_faults;
mod mirror;
mod state;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use braid_rt::atomic::{AtomicU64, Ordering};
use braid_rt::{Mutex, MutexGuard};

pub use self::media_faults::{FileCopies, FileFaults, MediaFaults};

use self::blocks::Blocks;
use self::content::Content;
use self::file::SimFile;
use self::state::{Failing, State, Step};
use crate::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode, ReaderTable};

const BLOCK: usize = 4096;

/// The unit in which a disk tears a write.
const SECTOR: usize = 512;

/// The unit in which a processor writes to persistent memory.
const LINE: usize = 64;

/// The unit in which a crash tears a write to persistent memory.
const WORD: usize = 8;

/// Bytes of a page, for users that write whole pages; see [`MediaFaults::StalePage`].
const PAGE: usize = 2 * BLOCK;

/// One in this many operations takes much longer, under a simulation.
const SPIKES: u32 = 64;

/// A simulated device; see the module's documentation. Clones are handles of the same device.
#[derive(Clone, Debug)]
pub struct SimDevice {
    state: Arc<Mutex<State>>,
    /// [`State::faults`], for callers that must not wait for the state.
    faults: Arc<AtomicU64>,
    /// The claim of a handle that [`SimDevice::claim`] returned.
    claim: Option<u64>,
}

/// The right to use a simulated device, like a lock on a directory. Released when it is dropped.
#[derive(Debug)]
pub struct Claim(SimDevice);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.state.lock().owner = None;
    }
}

impl SimDevice {
    /// Creates an empty device.
    pub fn new(seed: u64) -> Self {
        Self::in_state(State {
            rng: fastrand::Rng::with_seed(seed),
            ..State::default()
        })
    }

    fn in_state(state: State) -> Self {
        let faults = state.faults.clone();
        Self {
            state: Arc::new(Mutex::new(state)),
            faults,
            claim: None,
        }
    }

    /// Returns the device for one opener, and its claim. After the claim is dropped, an operation
    /// through that handle, or through a file opened with it, panics (I9), unless the power is off.
    ///
    /// # Panics
    /// If another opener has it.
    pub fn claim(&self) -> (Self, Claim) {
        let mut state = self.state.lock();
        assert!(state.owner.is_none(), "the device has an owner");
        state.claims += 1;
        state.owner = Some(state.claims);
        let device = Self {
            claim: state.owner,
            ..self.clone()
        };
        (device.clone(), Claim(device))
    }

    /// Whether both are handles of the same device.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// The state, for an operation of the claim's owner.
    fn own(&self) -> MutexGuard<'_, State> {
        let state = self.state.lock();
        assert!(
            self.claim.is_none() || self.claim == state.owner || state.crashed,
            "I9: the device is used after its lock was released"
        );
        state
    }

    /// Returns the number of writes, syncs and name changes so far.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// Cuts the power during the `n`-th step from now, counted from 1: that step and all later ones
    /// fail.
    pub fn crash_after(&self, n: u64) {
        let mut state = self.state.lock();
        state.crash_at = Some(state.steps + n);
    }

    /// Cuts the power immediately.
    pub fn power_off(&self) {
        self.state.lock().power_off();
    }

    /// Ends the process that uses the device: all its later operations fail.
    /// [`SimDevice::after_kill`] returns the device that the next process finds.
    pub fn kill(&self) {
        self.state.lock().kill();
    }

    /// Whether a sync (`false`) or a durable write (`true`) is in flight that `pick` accepts, with
    /// the name of its file: the data is or soon will be visible, and is not durable yet.
    pub fn is_syncing(&self, pick: impl Fn(&str, bool) -> bool) -> bool {
        self.state.lock().is_syncing(pick)
    }

    /// Whether the power is off.
    pub fn has_crashed(&self) -> bool {
        self.state.lock().crashed
    }

    /// Makes the first write at or after the `n`-th step from now fail, once.
    pub fn fail_write_after(&self, n: u64) {
        let mut state = self.state.lock();
        let at = Some(state.steps + n);
        state.failing_writes = Failing {
            at,
            for_good: false,
        };
    }

    /// Makes the first sync at or after the `n`-th step from now fail, once. As on Linux, the data
    /// that it should have made durable may be lost although later syncs succeed.
    pub fn fail_sync_after(&self, n: u64) {
        let mut state = self.state.lock();
        let at = Some(state.steps + n);
        state.failing_syncs = Failing {
            at,
            for_good: false,
        };
    }

    /// Makes all writes and syncs from the `n`-th step from now on fail.
    pub fn break_after(&self, n: u64) {
        let mut state = self.state.lock();
        let at = Some(state.steps + n);
        state.failing_writes = Failing { at, for_good: true };
        state.failing_syncs = state.failing_writes;
    }

    /// Makes the first read at or after the `n`-th step from now fail, once.
    pub fn fail_read_after(&self, n: u64) {
        let mut state = self.state.lock();
        let at = Some(state.steps + n);
        state.failing_reads = Failing {
            at,
            for_good: false,
        };
    }

    /// Makes one in `one_in` reads fail, at random; 0 for none.
    pub fn fail_reads_at_random(&self, one_in: u32) {
        self.state.lock().flaky_reads = one_in;
    }

    /// Clears all injected faults, so that the device works again. If the power is off, it stays
    /// off.
    pub fn repair(&self) {
        let mut state = self.state.lock();
        state.failing_writes = Failing::default();
        state.failing_syncs = Failing::default();
        state.failing_reads = Failing::default();
        state.flaky_reads = 0;
    }

    /// Returns the number of operations that failed by an injected fault, or for lack of room.
    pub fn faults(&self) -> u64 {
        // Relaxed: it is read when the operations that may fail have ended.
        self.faults.load(Ordering::Relaxed)
    }

    /// Makes all later syncs and durable writes report success without effect, like a volatile
    /// cache that claims to be durable.
    pub fn lie(&self) {
        self.state.lock().lies = true;
    }

    /// Sets [`Device::block_size`]: 64, 512 or 4,096 (the default) bytes. With 64, the device is
    /// persistent memory, whose torn writes tear words of eight bytes; otherwise they tear sectors
    /// of 512 bytes.
    ///
    /// # Panics
    /// If it is none of these.
    pub fn set_block_size(&self, bytes: usize) {
        assert!(
            [LINE, SECTOR, BLOCK].contains(&bytes),
            "a block is a cache line, a sector or a page"
        );
        let mut state = self.state.lock();
        state.block = Some(bytes);
        state.log_block = Some(bytes);
    }

    /// Sets the block size of the log's files, whose names begin with `log-`, as if they were on
    /// another medium, which loses power at the same time. Call it after
    /// [`SimDevice::set_block_size`].
    ///
    /// # Panics
    /// As [`SimDevice::set_block_size`].
    pub fn set_log_block_size(&self, bytes: usize) {
        assert!(
            [LINE, SECTOR, BLOCK].contains(&bytes),
            "a block is a cache line, a sector or a page"
        );
        self.state.lock().log_block = Some(bytes);
    }

    /// Lets one in this many operations take much longer, under a simulation; 64 by default.
    pub fn set_spikes(&self, one_in: u32) {
        self.state.lock().spikes = Some(one_in);
    }

    /// Limits the bytes of all files together; `None` for no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity = bytes;
    }

    /// Returns the bytes of all files together.
    pub fn used(&self) -> u64 {
        self.state.lock().used()
    }

    /// Returns the medium after a loss of power, now or earlier, as a new working device.
    #[must_use]
    pub fn after_crash(&self) -> Self {
        Self::in_state(self.state.lock().left())
    }

    /// Returns the device as the next process finds it if this process is killed now and the
    /// machine keeps running, as a new working device. The next process reads everything that was
    /// written (of writes in flight, any part), but unsynced data stays volatile: unless a process
    /// syncs it, a later loss of power may lose it.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        Self::in_state(self.state.lock().inherited())
    }

    /// Lets the time of an operation pass.
    fn take_time(&self, micros: Range<u64>) {
        if !braid_rt::simulation::is_on() {
            return;
        }
        let time = {
            let state = &mut *self.state.lock();
            let (rng, spikes) = (&mut state.rng, state.spikes.unwrap_or(SPIKES));
            let spike = if rng.u32(..spikes) == 0 { 50 } else { 1 };
            Duration::from_nanos(rng.u64(micros.start * 1_000..micros.end * 1_000)) * spike
        };
        braid_rt::sleep(time);
    }

    fn named(&self) -> io::Result<MutexGuard<'_, State>> {
        self.take_time(5..50);
        let mut state = self.own();
        state.step(Step::Name)?;
        Ok(state)
    }

    /// Acquires the state for a change of names.
    fn renamed(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.named()?;
        state.name_changes += 1;
        Ok(state)
    }
}

/// Whether a name is that of a file of the log.
fn is_log(name: &str) -> bool {
    name.starts_with("log-")
}

impl Device for SimDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Simulator
    }

    fn block_size(&self) -> usize {
        let state = self.state.lock();
        state.block_size(false).max(state.block_size(true))
    }

    fn block_size_of(&self, name: &str) -> usize {
        self.state.lock().block_size(is_log(name))
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        AlignedBuf::new(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut state = self.own();
        let id = match (state.names.get(name), mode) {
            (Some(&id), OpenMode::Existing) => id,
            (None, OpenMode::Existing) => return Err(io::ErrorKind::NotFound.into()),
            (Some(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (None, OpenMode::CreateNew) => {
                state.step(Step::Name)?;
                state.name_changes += 1;
                let id = state.contents.len();
                let content = Content::of(Blocks::default(), is_log(name));
                state.contents.push(content);
                state.names.insert(name.to_owned(), id);
                id
            }
        };
        Ok(Arc::new(SimFile {
            device: self.clone(),
            id,
            mirror: std::sync::OnceLock::new(),
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
        let state = self.own();
        let entry = |(name, &id): (&String, &usize)| Entry {
            name: name.clone(),
            len: state.contents[id].current.len() as u64,
        };
        Ok(state.names.iter().map(entry).collect())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let (names, changes) = {
            let state = self.own();
            (state.names.clone(), state.name_changes)
        };
        self.take_time(5..50);
        let mut state = self.own();
        state.step(Step::Sync)?;
        // Another sync that began later may have ended before.
        if !state.lies && changes >= state.durable_name_changes {
            state.durable_names = names;
            state.durable_name_changes = changes;
        }
        Ok(())
    }

    fn reader_table(&self, _create: bool) -> io::Result<Option<Arc<dyn ReaderTable>>> {
        Ok(Some(Arc::new(self.state.lock().readers.clone())))
    }
}

#[cfg(test)]
mod tests;
