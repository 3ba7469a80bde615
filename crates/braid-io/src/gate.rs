//! The gate between a database and its devices (invariant I9).
//!
//! Every operation on a file of an open database passes the database's [`Gate`]. Closing the
//! database shuts the gate, waits for the operations inside, and only then releases the lock on the
//! directory. So no operation of a closed database reads or writes a file that another opener may
//! own by then, whatever handles, threads and callbacks still exist.
//!
//! The gate also belongs to one process: in a child made by `fork` it refuses every operation.

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use braid_rt::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use braid_rt::{Mutex, Process, thread};

use crate::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode, ReadOp, ReaderTable, WriteOp};

/// Number of counters over which the threads inside are distributed.
const SHARDS: usize = 16;

/// Why a [`Gate`] refused an operation: the inner error of an [`io::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The gate is shut.
    #[error("the database is closed; open it again")]
    Shut,
    /// The gate belongs to the parent of this process.
    #[error(
        "the database was opened by the parent process, and a child made by fork cannot use it; open it after the fork"
    )]
    Forked,
}

impl Refused {
    /// Returns the refusal in an error, if there is one.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        io::Error::other(refused)
    }
}

/// A value that a gate keeps until it is shut, such as a [`DirectoryLock`](crate::DirectoryLock).
pub type Held = Box<dyn Any + Send + Sync>;

/// Admits operations of one open database until it is shut. Clones are the same gate. See the
/// module's documentation.
#[derive(Clone)]
pub struct Gate(Arc<GateState>);

/// Number of threads inside, of those that share this counter; in a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
struct Shard(AtomicU32);

struct GateState {
    /// Number of the process in which the gate is open; once the gate is shut, that of no process.
    open_in: AtomicU64,
    process: Process,
    inside: [Shard; SHARDS],
    /// Dropped when the gate is shut and empty, or with the last device and file behind it.
    held: Mutex<Option<Held>>,
    /// Whether `held` was released, for the assertion of I9.
    released: AtomicBool,
}

/// An operation inside the gate.
struct Inside<'a> {
    gate: &'a GateState,
    shard: &'a AtomicU32,
}

impl Gate {
    /// Creates an open gate that keeps `held` until it is shut.
    pub fn new(held: Option<Held>) -> Self {
        let process = Process::current();
        Self(Arc::new(GateState {
            open_in: AtomicU64::new(process.number()),
            process,
            inside: Default::default(),
            held: Mutex::new(held),
            released: AtomicBool::new(false),
        }))
    }

    /// Returns `device` behind this gate.
    pub fn device(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(GatedDevice {
            inner: device,
            gate: self.clone(),
        })
    }

    /// Runs an operation inside the gate. `call` says what it is.
    ///
    /// # Errors
    ///
    /// [`Refused`], or the operation's error.
    ///
    /// # Panics
    ///
    /// If the lock was released meanwhile, which would violate I9. In debug builds, if the thread holds
    /// [what commits wait for](braid_rt::expect_no_gate).
    pub fn pass<T>(&self, call: &str, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        braid_rt::expect_no_gate(call);
        let _inside = self.0.enter()?;
        let outcome = operation();
        assert!(
            !self.0.released.load(Ordering::SeqCst),
            "I9: no operation is under way after the lock is released"
        );
        outcome
    }

    /// Refuses all further operations, waits for those inside, and releases what the gate holds. In
    /// between, it runs `last`, while no operation is inside. Has no effect in a child made by
    /// `fork`, because the operations and the held value belong to the parent.
    pub fn shut(&self, last: impl FnOnce()) {
        let gate = &*self.0;
        if !gate.process.is_current() {
            return;
        }
        if braid_rt::mutant!("release_the_lock_before_the_gate") {
            gate.release();
            braid_rt::sleep(std::time::Duration::from_millis(1));
        }
        let stays_open = braid_rt::mutant!("leave_the_gate_open");
        if !stays_open {
            // SeqCst: pairs with `enter`. Either the operation sees the gate shut, or
            // `wait_for_operations` sees the operation.
            let shut = Process::none().number();
            gate.open_in.store(shut, Ordering::SeqCst);
        }
        if !stays_open && !braid_rt::mutant!("close_ignores_operations") {
            gate.wait_for_operations();
        }
        last();
        gate.release();
    }
}

impl GateState {
    fn enter(&self) -> io::Result<Inside<'_>> {
        let shard = &self.inside[thread::index() % SHARDS].0;
        // SeqCst: before the check of the gate, pairs with `shut`.
        shard.fetch_add(1, Ordering::SeqCst);
        let inside = Inside { gate: self, shard };
        if self.is_open() {
            return Ok(inside);
        }
        drop(inside);
        Err(if self.process.is_current() {
            braid_rt::coverage_point("gate: an operation comes after close");
            Refused::Shut.into()
        } else {
            Refused::Forked.into()
        })
    }

    fn is_open(&self) -> bool {
        Process::from_number(self.open_in.load(Ordering::SeqCst)).is_current()
    }

    fn wait_for_operations(&self) {
        for Shard(shard) in &self.inside {
            loop {
                // SeqCst: after the gate was shut, see `shut`.
                match shard.load(Ordering::SeqCst) {
                    0 => break,
                    count => {
                        braid_rt::coverage_point("gate: close waits for an operation");
                        braid_rt::wait(shard, count);
                    }
                }
            }
        }
    }

    fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
        let held = self.held.lock().take();
        drop(held);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // SeqCst: before the check of the gate. Either this thread sees it shut, or the thread that
        // shuts it sees the count.
        if self.shard.fetch_sub(1, Ordering::SeqCst) == 1 && !self.gate.is_open() {
            braid_rt::wake_all(self.shard);
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("open", &self.0.is_open())
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct GatedDevice {
    inner: Arc<dyn Device>,
    gate: Gate,
}

impl Device for GatedDevice {
    fn kind(&self) -> DeviceKind {
        self.inner.kind()
    }

    fn block_size(&self) -> usize {
        self.inner.block_size()
    }

    fn kind_of(&self, name: &str) -> DeviceKind {
        self.inner.kind_of(name)
    }

    fn block_size_of(&self, name: &str) -> usize {
        self.inner.block_size_of(name)
    }

    fn writes_at_once(&self, name: &str) -> bool {
        self.inner.writes_at_once(name)
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        self.inner.allocate(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let inner = self
            .gate
            .pass("the opening of a file", || self.inner.open(name, mode))?;
        let gate = self.gate.clone();
        Ok(Arc::new(GatedFile { inner, gate }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.gate
            .pass("the removal of a file", || self.inner.remove(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.gate
            .pass("the renaming of a file", || self.inner.rename(from, to))
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        self.gate
            .pass("the listing of a directory", || self.inner.list())
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.gate
            .pass("a sync of a directory", || self.inner.sync_directory())
    }

    fn reader_table(&self, create: bool) -> io::Result<Option<Arc<dyn ReaderTable>>> {
        self.gate.pass("an access to the readers", || {
            self.inner.reader_table(create)
        })
    }
}

#[derive(Debug)]
struct GatedFile {
    inner: Arc<dyn File>,
    gate: Gate,
}

impl File for GatedFile {
    fn len(&self) -> io::Result<u64> {
        self.gate.pass("an access to a file", || self.inner.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.gate
            .pass("a change of a file's length", || self.inner.set_len(len))
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.gate
            .pass("an allocation of space", || self.inner.reserve(len))
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        self.gate
            .pass("a write of zeroes", || self.inner.fill_zero(range))
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.gate
            .pass("the release of space", || self.inner.punch_hole(range))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.gate.pass("a read", || self.inner.read_at(buf, offset))
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.gate
            .pass("a write", || self.inner.write_at(bufs, offset))
    }

    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.gate.pass("a durable write", || {
            self.inner.write_durable_at(bufs, offset)
        })
    }

    fn write_marked_at(&self, mark: &[u8], bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.gate.pass("a durable write", || {
            self.inner.write_marked_at(mark, bufs, offset)
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.pass("a sync", || self.inner.sync())
    }

    /// Loads of words pass no gate: their user ends them before it shuts the gate (I9).
    fn words(&self) -> Option<&[std::sync::atomic::AtomicU64]> {
        self.inner.words()
    }

    fn check_words(&self, range: Range<u64>) -> io::Result<()> {
        self.inner.check_words(range)
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> io::Result<()> {
        self.gate.pass("a read", || self.inner.read_batch(ops))
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> io::Result<()> {
        self.gate.pass("a write", || self.inner.write_batch(ops))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::MemoryDevice;

    /// Records that it was dropped.
    struct Reported(Arc<AtomicBool>);

    impl Drop for Reported {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn gate() -> (Gate, Arc<AtomicBool>) {
        let released = Arc::new(AtomicBool::new(false));
        let held = Reported(released.clone());
        (Gate::new(Some(Box::new(held))), released)
    }

    fn is_refused<T>(outcome: io::Result<T>) -> bool {
        let refused = outcome.map_err(|error| Refused::of(&error));
        matches!(refused, Err(Some(Refused::Shut)))
    }

    #[test]
    fn a_shut_gate_refuses_every_operation() {
        let memory = MemoryDevice::new();
        let (gate, released) = gate();
        let device = gate.device(Arc::new(memory.clone()));
        let file = device.open("x", OpenMode::CreateNew).unwrap();
        let mut block = device.allocate(4096);
        block.fill(7);
        file.write_at(&[&block], 0).unwrap();
        assert!(!released.load(Ordering::SeqCst));
        let mut was_held = false;
        gate.shut(|| was_held = !released.load(Ordering::SeqCst));
        assert!(was_held && released.load(Ordering::SeqCst));
        // A second call has no effect.
        gate.shut(|| ());
        let mut read = device.allocate(4096);
        assert!(is_refused(device.open("x", OpenMode::Existing)));
        assert!(is_refused(device.open("y", OpenMode::CreateNew)));
        assert!(is_refused(device.remove("x")));
        assert!(is_refused(device.rename("x", "y")));
        assert!(is_refused(device.list()));
        assert!(is_refused(device.sync_directory()));
        assert!(is_refused(file.len()));
        assert!(is_refused(file.set_len(0)));
        assert!(is_refused(file.reserve(1 << 20)));
        assert!(is_refused(file.fill_zero(0..4096)));
        assert!(is_refused(file.punch_hole(0..4096)));
        assert!(is_refused(file.read_at(&mut read, 0)));
        assert!(is_refused(file.write_at(&[&read], 0)));
        assert!(is_refused(file.write_durable_at(&[&read], 0)));
        assert!(is_refused(file.sync()));
        let buf = &mut read[..];
        assert!(is_refused(
            file.read_batch(&mut [ReadOp { buf, offset: 0 }])
        ));
        let buf = &read[..];
        assert!(is_refused(file.write_batch(&[WriteOp { buf, offset: 0 }])));
        assert!(is_refused(gate.pass("a test", || Ok(()))));
        let names: Vec<_> = memory
            .list()
            .unwrap()
            .into_iter()
            .map(|entry| entry.name)
            .collect();
        assert_eq!(names, ["x"]);
        memory
            .open("x", OpenMode::Existing)
            .unwrap()
            .read_at(&mut read, 0)
            .unwrap();
        assert!(read[..] == block[..]);
    }

    #[test]
    fn shutting_waits_for_operations_inside() {
        let (gate, released) = gate();
        let (entered, inside) = mpsc::channel();
        let (resume, wait) = mpsc::channel::<()>();
        let passing = gate.clone();
        let seen = released.clone();
        let operation = std::thread::spawn(move || {
            passing.pass("a test", || {
                entered.send(()).unwrap();
                wait.recv().unwrap();
                Ok(seen.load(Ordering::SeqCst))
            })
        });
        inside.recv().unwrap();
        let shutting = gate.clone();
        let shut = std::thread::spawn(move || shutting.shut(|| ()));
        // From now on the gate is shut, and `shut` still waits.
        while !is_refused(gate.pass("a test", || Ok(()))) {
            std::thread::yield_now();
        }
        assert!(!released.load(Ordering::SeqCst));
        resume.send(()).unwrap();
        assert!(!operation.join().unwrap().unwrap());
        shut.join().unwrap();
        assert!(released.load(Ordering::SeqCst));
    }

    /// As after an opening that failed halfway.
    #[test]
    fn a_gate_that_is_not_shut_holds_as_long_as_its_last_file() {
        let (gate, released) = gate();
        let device = gate.device(Arc::new(MemoryDevice::new()));
        let file = device.open("x", OpenMode::CreateNew).unwrap();
        drop((gate, device));
        assert!(!released.load(Ordering::SeqCst));
        drop(file);
        assert!(released.load(Ordering::SeqCst));
    }
}
