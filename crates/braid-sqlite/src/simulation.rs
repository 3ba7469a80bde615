//! Files and logs that lose in a power failure what was not durable.
//!
//! A [`Disk`] is a real directory, for SQLite's locks and shared memory, of which it remembers what was
//! synced. The logs in it are simulated memory. The power fails at an operation of a log (a store, a
//! flush, a fence) or at an event of a file (a write, a cut, a sync, a deletion). Creating and
//! deleting a file is durable at once; of writes, any sectors survive until the file is synced.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use braid_pmem::{Mapping, Region, RegionError, RegionOptions, SimulatedMemory};
use braid_pmem::{SimulatedOptions, Survivors};

const SECTOR: usize = 512;
/// Most bytes of a log.
pub(crate) const LOG_BYTES: u64 = 512 << 10;

/// Where the power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// An operation of the log with this number, in the order of their creation.
    Log(usize, u64),
    /// An event of a file.
    File(u64),
}

#[derive(Clone, Debug)]
pub(crate) enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

/// A file's bytes that survive for certain, and the changes since.
#[derive(Debug, Default)]
struct Contents {
    durable: Vec<u8>,
    pending: Vec<Change>,
}

fn apply(bytes: &mut Vec<u8>, change: &Change, survives: &mut dyn FnMut() -> bool) {
    match change {
        Change::Truncate(len) => {
            if survives() {
                bytes.resize(*len, 0);
            }
        }
        Change::Write(at, new) => {
            let mut start = 0;
            while start < new.len() {
                let end = (start + SECTOR - (at + start) % SECTOR).min(new.len());
                if survives() {
                    bytes.resize(bytes.len().max(at + end), 0);
                    bytes[at + start..at + end].copy_from_slice(&new[start..end]);
                }
                start = end;
            }
        }
    }
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<PathBuf, Contents>,
    logs: HashMap<PathBuf, SimulatedMemory>,
    /// Every log since the last start, also deleted ones.
    created: Vec<SimulatedMemory>,
    events: u64,
    point: Option<Point>,
    is_off: bool,
}

/// A directory on a machine whose power fails.
#[derive(Debug)]
pub(crate) struct Disk {
    directory: PathBuf,
    state: Mutex<State>,
}

static DISKS: Mutex<Vec<Arc<Disk>>> = Mutex::new(Vec::new());

/// The simulated disk that contains a path.
pub(crate) fn disk_of(path: &Path) -> Option<Arc<Disk>> {
    let disks = lock(&DISKS);
    let found = disks
        .iter()
        .find(|disk| path.parent() == Some(&disk.directory));
    found.cloned()
}

/// Locks a mutex, also after a test has failed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn off() -> io::Error {
    io::Error::other("the power is off")
}

impl Disk {
    pub(crate) fn new(directory: &Path) -> Arc<Self> {
        let disk = Arc::new(Self {
            directory: directory.to_owned(),
            state: Mutex::default(),
        });
        lock(&DISKS).push(Arc::clone(&disk));
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn is_off(&self) -> bool {
        let mut state = self.state();
        state.notice();
        state.is_off
    }

    /// Chooses where the power fails next.
    pub(crate) fn fail_at(&self, point: Option<Point>) {
        let mut state = self.state();
        state.point = point;
        if let Some(Point::Log(number, operation)) = point
            && let Some(memory) = state.created.get(number)
        {
            memory.power_off_at(operation);
        }
    }

    /// How many operations each log has had, and how many events the files.
    pub(crate) fn counts(&self) -> (Vec<u64>, u64) {
        let state = self.state();
        let logs = state.created.iter().map(SimulatedMemory::operations);
        (logs.collect(), state.events)
    }

    /// Turns the machine on again, with what the failure leaves; or, if only the process ended, with
    /// everything.
    pub(crate) fn restart(&self, survivors: Option<Survivors>) {
        let mut state = self.state();
        let mut random = match survivors {
            Some(Survivors::Random(seed)) => fastrand::Rng::with_seed(seed),
            _ => fastrand::Rng::with_seed(0),
        };
        let mut survives = || match survivors {
            None | Some(Survivors::Everything) => true,
            Some(Survivors::Nothing) => false,
            Some(Survivors::Random(_)) => random.bool(),
        };
        if survivors.is_some() {
            for (path, contents) in &mut state.files {
                for change in std::mem::take(&mut contents.pending) {
                    apply(&mut contents.durable, &change, &mut survives);
                }
                std::fs::write(path, &contents.durable).unwrap();
            }
        }
        for entry in std::fs::read_dir(&self.directory).unwrap() {
            let path = entry.unwrap().path();
            if path.to_string_lossy().ends_with("-shm") {
                std::fs::remove_file(path).unwrap();
            }
        }
        let mut logs = HashMap::new();
        for (path, memory) in state.logs.drain() {
            let found = match survivors {
                Some(survivors) => SimulatedMemory::from_image(&memory.crash(survivors), options()),
                None => memory.kill(),
            };
            logs.insert(path, found);
        }
        *state = State {
            files: std::mem::take(&mut state.files),
            created: logs.values().cloned().collect(),
            logs,
            ..State::default()
        };
    }

    pub(crate) fn create_region(
        &self,
        path: &Path,
        region_options: &RegionOptions,
    ) -> Result<Region, RegionError> {
        let memory = SimulatedMemory::new(Region::MIN_LEN, options());
        let mut state = self.state();
        state.notice();
        match state.point {
            _ if state.is_off => memory.power_off(),
            Some(Point::Log(number, operation)) if number == state.created.len() => {
                memory.power_off_at(operation);
            }
            _ => {}
        }
        if !state.is_off {
            state.created.push(memory.clone());
            state.logs.insert(path.to_owned(), memory.clone());
        }
        drop(state);
        Region::create_in(Mapping::simulated(&memory), region_options)
    }

    pub(crate) fn open_region(
        &self,
        path: &Path,
        region_options: &RegionOptions,
    ) -> Result<Region, RegionError> {
        let found = self.state().logs.get(path).cloned();
        match found {
            Some(memory) => Region::open_in(Mapping::simulated(&memory), region_options),
            // There is no file, either.
            None => Region::open(path, region_options),
        }
    }

    pub(crate) fn rename_region(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.event(|state| {
            let memory = state.logs.remove(from).ok_or(io::ErrorKind::NotFound)?;
            state.logs.insert(to.to_owned(), memory);
            Ok(())
        })
    }

    pub(crate) fn remove_region(&self, path: &Path) -> io::Result<()> {
        self.event(|state| match state.logs.remove(path) {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::NotFound.into()),
        })
    }

    pub(crate) fn has_region(&self, path: &Path) -> bool {
        self.state().logs.contains_key(path)
    }

    /// Runs an event, unless the power is off or fails just before it.
    fn event<T>(&self, call: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state();
        state.notice();
        if state.point == Some(Point::File(state.events)) {
            state.turn_off();
        }
        if state.is_off {
            return Err(off());
        }
        state.events += 1;
        call(&mut state)
    }

    /// Notes that a file exists.
    pub(crate) fn create_file(&self, path: &Path) -> io::Result<()> {
        self.event(|state| {
            state.files.entry(path.to_owned()).or_default();
            Ok(())
        })
    }

    pub(crate) fn change_file(&self, path: &Path, change: Change) -> io::Result<()> {
        self.event(|state| {
            let contents = state.files.entry(path.to_owned()).or_default();
            contents.pending.push(change);
            Ok(())
        })
    }

    pub(crate) fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.event(|state| {
            let contents = state.files.entry(path.to_owned()).or_default();
            for change in std::mem::take(&mut contents.pending) {
                apply(&mut contents.durable, &change, &mut || true);
            }
            Ok(())
        })
    }

    pub(crate) fn delete_file(&self, path: &Path) -> io::Result<()> {
        self.event(|state| {
            state.files.remove(path);
            Ok(())
        })
    }

    /// Gives a file of a machine that is on another name.
    pub(crate) fn rename_file(&self, from: &Path, to: &Path) {
        std::fs::rename(from, to).unwrap();
        let mut state = self.state();
        if let Some(contents) = state.files.remove(from) {
            state.files.insert(to.to_owned(), contents);
        }
    }

    /// Writes a file as a whole, then makes it durable.
    pub(crate) fn write_file(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.change_file(path, Change::Write(0, bytes.to_vec()))?;
        self.change_file(path, Change::Truncate(bytes.len()))?;
        std::fs::write(path, bytes)?;
        self.sync_file(path)
    }
}

impl State {
    /// Turns everything off after the power of a log failed.
    fn notice(&mut self) {
        if !self.is_off && self.created.iter().any(SimulatedMemory::is_off) {
            self.turn_off();
        }
    }

    fn turn_off(&mut self) {
        self.is_off = true;
        for memory in &self.created {
            memory.power_off();
        }
    }
}

pub(crate) fn forget(disk: &Arc<Disk>) {
    lock(&DISKS).retain(|other| !Arc::ptr_eq(disk, other));
}

fn options() -> SimulatedOptions {
    SimulatedOptions::default().capacity(1 << 20)
}
