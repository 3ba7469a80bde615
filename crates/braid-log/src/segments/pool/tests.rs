//! Tests of the segment pool.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use braid_io::{AlignedBuf, DeviceKind, Entry, File, MemoryDevice, OpenMode};

use super::*;
use crate::format::segment::is_unfinished_name;

fn options() -> LogOptions {
    LogOptions {
        segment_bytes: 64 << 10,
        slot_bytes: 8 << 10,
        max_log_bytes: 192 << 10,
        ..LogOptions::default()
    }
}

#[test]
fn prepares_recycles_and_keeps_the_limit() {
    let device = MemoryDevice::new();
    let (options, quota) = (options(), Quota::default());
    let pool = SegmentPool::new(LaneId::new(0), &options, PoolFiles::default(), 1);
    for _ in 0..3 {
        assert!(pool.prepare(&device, &options, &quota).unwrap());
    }
    assert!(!pool.prepare(&device, &options, &quota).unwrap());
    assert_eq!(quota.files(), 3);
    for sequence in 1..=3 {
        assert_eq!(pool.take().unwrap().sequence, sequence);
    }
    assert!(pool.take().is_none());
    assert!(pool.release(3, &options));
    assert_eq!(pool.oldest(), 3);
    assert!(pool.prepare(&device, &options, &quota).unwrap());
    assert!(pool.prepare(&device, &options, &quota).unwrap());
    assert!(!pool.prepare(&device, &options, &quota).unwrap());
    let names: Vec<_> = device.list().unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(
        names,
        [3, 4, 5].map(|sequence| segment_name(LaneId::new(0), sequence))
    );
    assert_eq!((pool.recycled(), quota.files()), (2, 3));
}

#[test]
fn released_segments_too_short_to_be_recycled_make_room() {
    let device = MemoryDevice::new();
    let options = LogOptions {
        segment_bytes: 256 << 10,
        max_log_bytes: 256 << 10,
        ..options()
    };
    let quota = Quota::default();
    let pool = SegmentPool::new(LaneId::new(0), &options, PoolFiles::default(), 1);
    while pool.prepare(&device, &options, &quota).unwrap() {}
    let is_short = |len: u64| len < options.segment_bytes / 2;
    while is_short(pool.state.lock().files.ready[0].len) {
        pool.take().unwrap();
    }
    pool.take().unwrap();
    assert!(pool.has_grown_to(options.segment_bytes / 2));
    assert!(pool.release(u64::MAX, &options));
    assert!(
        pool.state
            .lock()
            .files
            .free
            .iter()
            .all(|file| is_short(file.len))
    );
    assert!(pool.prepare(&device, &options, &quota).unwrap());
}

#[test]
fn preallocated_segments_stay() {
    let device = MemoryDevice::new();
    let options = LogOptions {
        max_log_bytes: 0,
        preallocated_bytes: 300 << 10,
        ..options()
    };
    let quota = Quota::default();
    let pool = SegmentPool::new(LaneId::new(0), &options, PoolFiles::default(), 1);
    pool.preallocate(&device, &options, &quota).unwrap();
    assert_eq!((pool.ready(), quota.files()), (5, 5));
    while pool.take().is_some() {}
    pool.release(u64::MAX, &options);
    // From here on, one segment holds everything that is logged between two checkpoints.
    let turn = |options: &LogOptions| {
        pool.prepare(&device, options, &quota).unwrap();
        pool.take().unwrap();
        pool.release(u64::MAX, options);
        pool.delete_retired(&device, false, &quota).unwrap();
        assert_eq!(device.list().unwrap().len() as u64, quota.files());
        quota.files()
    };
    assert_eq!(turn(&options), 5);
    assert_eq!(turn(&options), 5);
    let options = LogOptions {
        preallocated_bytes: 0,
        ..options
    };
    assert_eq!(turn(&options), 2);
}

#[test]
fn a_medium_too_small_for_preallocation_is_left_as_it_was() {
    let device = braid_io::SimDevice::new(7);
    let options = LogOptions {
        max_log_bytes: 0,
        preallocated_bytes: 320 << 10,
        ..options()
    };
    device.set_capacity(Some(200 << 10));
    let quota = Quota::default();
    let pool = SegmentPool::new(LaneId::new(0), &options, PoolFiles::default(), 1);
    assert!(pool.prepare(&device, &options, &quota).unwrap());
    let error = pool.preallocate(&device, &options, &quota).unwrap_err();
    assert!(error.is_storage_full(), "{error}");
    assert_eq!((pool.ready(), quota.files()), (1, 1));
    assert_eq!(device.list().unwrap().len(), 1);
    assert_eq!(pool.take().unwrap().sequence, 1);
}

#[test]
fn all_lanes_are_preallocated_or_none() {
    let device = braid_io::SimDevice::new(7);
    let options = LogOptions {
        max_log_bytes: 0,
        preallocated_bytes: 8 * (64 << 10),
        strands: 2,
        lanes: 2,
        flush_mode: crate::FlushMode::Callers,
        ..options()
    };
    // Room for one lane's segments, and for one segment of the other lane.
    device.set_capacity(Some(330 << 10));
    let error = crate::Log::create(std::sync::Arc::new(device.clone()), options).unwrap_err();
    assert!(matches!(error, LogError::OutOfSpace { .. }), "{error}");
    assert_eq!(device.list().unwrap().len(), 2);
}

#[test]
fn discards() {
    let device = MemoryDevice::new();
    let (options, quota) = (options(), Quota::default());
    let pool = SegmentPool::new(LaneId::new(0), &options, PoolFiles::default(), 1);
    for _ in 0..2 {
        pool.prepare(&device, &options, &quota).unwrap();
        pool.take().unwrap();
    }
    let options = LogOptions {
        discard: true,
        ..options
    };
    assert!(pool.release(2, &options));
    assert!(!pool.release(2, &options));
    pool.delete_retired(&device, true, &quota).unwrap();
    assert_eq!((device.list().unwrap().len(), quota.files()), (1, 1));
}

/// The step of making a file ahead that a [`HeldDevice`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Name,
}

/// A device that performs a step for the file that is made ahead only once a test allows it.
#[derive(Debug)]
struct HeldDevice {
    inner: MemoryDevice,
    held: Step,
    /// Gets a message when the step is due.
    asked: Sender<()>,
    /// Has a message, or has lost its sender, when the step may be performed.
    allowed: Mutex<Receiver<()>>,
}

impl HeldDevice {
    /// Returns the device, and the ends that a test uses.
    fn new(held: Step) -> (Self, Receiver<()>, Sender<()>) {
        let ((asked, is_asked), (allow, allowed)) = (channel(), channel());
        let device = Self {
            inner: MemoryDevice::new(),
            held,
            asked,
            allowed: Mutex::new(allowed),
        };
        (device, is_asked, allow)
    }

    fn hold(&self, step: Step, name: &str) {
        let ahead = unfinished_name(LaneId::new(0), NewFile::AHEAD);
        assert!(is_unfinished_name(&ahead), "an opening would not remove it");
        if step == self.held && name == ahead {
            self.asked.send(()).unwrap();
            let _ = self.allowed.lock().recv();
        }
    }
}

impl Device for HeldDevice {
    fn kind(&self) -> DeviceKind {
        self.inner.kind()
    }
    fn block_size(&self) -> usize {
        self.inner.block_size()
    }
    fn allocate(&self, len: usize) -> AlignedBuf {
        self.inner.allocate(len)
    }
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.hold(Step::Create, name);
        self.inner.open(name, mode)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.hold(Step::Name, from);
        self.inner.rename(from, to)
    }
    fn list(&self) -> io::Result<Vec<Entry>> {
        self.inner.list()
    }
    fn sync_directory(&self) -> io::Result<()> {
        self.inner.sync_directory()
    }
}

#[test]
fn a_commit_makes_a_short_segment_while_a_long_one_is_made() {
    let (device, asked, allow) = HeldDevice::new(Step::Create);
    let long = 256 << 10;
    let options = LogOptions {
        segment_bytes: 1 << 20,
        max_log_bytes: 0,
        ..options()
    };
    let quota = Quota::default();
    let pool = SegmentPool::new(LaneId::new(0), &options, PoolFiles::default(), 1);
    // The log doubles.
    while pool.next_len() < long {
        assert!(pool.prepare(&device, &options, &quota).unwrap());
        pool.take().unwrap();
    }
    let ahead = || {
        let wanted = || pool.ready() == 0;
        pool.prepare_ahead_while(&device, &options, &quota, wanted, &|_, _| {})
    };
    std::thread::scope(|scope| {
        // A failure drops it, which lets the other thread end.
        let allow = allow;
        let ahead = scope.spawn(ahead);
        asked.recv().unwrap();
        assert!(pool.prepare(&device, &options, &quota).unwrap());
        let first = pool.take().unwrap();
        assert!(first.len < long / 2, "{}", first.len);
        // Three quarters of it can certainly be used.
        assert!(pool.usable(&first) * 4 >= first.len * 3, "{}", first.len);
        // A large commit makes one segment, and not several short ones.
        let needed = 150 << 10;
        let wanted = || pool.ready_room() < needed;
        let made = pool.prepare_while(&device, &options, &quota, needed, wanted);
        assert!(made.unwrap());
        assert_eq!(pool.ready(), 1);
        let second = pool.take().unwrap();
        assert!(second.len < long, "{}", second.len);
        allow.send(()).unwrap();
        assert!(ahead.join().unwrap().unwrap());
        let third = pool.take().unwrap();
        assert_eq!(third.sequence, first.sequence + 2);
        assert!(third.len >= long, "{}", third.len);
    });
    let left = device.list().unwrap();
    assert!(!left.iter().any(|entry| is_unfinished_name(&entry.name)));
}

/// A commit without a segment needs the file that is getting its name, which is ready first.
#[test]
fn a_commit_takes_the_segment_that_is_getting_its_name() {
    let (device, asked, allow) = HeldDevice::new(Step::Name);
    let (options, quota) = (options(), Quota::default());
    let pool = SegmentPool::new(LaneId::new(0), &options, PoolFiles::default(), 1);
    let wanted = || pool.ready() == 0;
    std::thread::scope(|scope| {
        // A failure drops it, which lets the other thread end.
        let allow = allow;
        let ahead =
            scope.spawn(|| pool.prepare_ahead_while(&device, &options, &quota, wanted, &|_, _| {}));
        asked.recv().unwrap();
        assert!(!pool.turns.is_needed(), "locked while a file gets its name");
        let commit = scope.spawn(|| pool.prepare_while(&device, &options, &quota, 0, wanted));
        while !pool.turns.is_needed() && !commit.is_finished() {
            std::thread::yield_now();
        }
        allow.send(()).unwrap();
        assert!(ahead.join().unwrap().unwrap());
        assert!(commit.join().unwrap().unwrap());
    });
    assert_eq!((pool.prepared(), pool.ready(), quota.files()), (1, 1, 1));
    assert_eq!(pool.lacks(), 1);
    assert!(
        pool.prepare_while(&device, &options, &quota, 0, wanted)
            .unwrap()
    );
    assert_eq!(pool.lacks(), 1, "no segment was lacking");
}

/// The file that is made ahead may take the last room that the limit leaves.
#[test]
fn a_commit_waits_for_a_long_segment_that_took_the_room() {
    let (device, asked, allow) = HeldDevice::new(Step::Create);
    let options = LogOptions {
        segment_bytes: 128 << 10,
        max_log_bytes: 128 << 10,
        ..options()
    };
    let quota = Quota::default();
    let pool = SegmentPool::new(LaneId::new(0), &options, PoolFiles::default(), 1);
    pool.state.lock().least = 128 << 10;
    let (tries, tried) = channel();
    let tries = Mutex::new(tries);
    let ahead = || {
        let wanted = || pool.ready() == 0;
        pool.prepare_ahead_while(&device, &options, &quota, wanted, &|_, _| {})
    };
    std::thread::scope(|scope| {
        // A failure drops it, which lets the other thread end.
        let allow = allow;
        let ahead = scope.spawn(ahead);
        asked.recv().unwrap();
        let commit = scope.spawn(|| {
            let wanted = || {
                tries.lock().send(()).unwrap();
                pool.ready() == 0
            };
            pool.prepare_while(&device, &options, &quota, 0, wanted)
        });
        tried.recv().unwrap();
        // The commit releases the lock once it was refused.
        drop(pool.turns.take());
        allow.send(()).unwrap();
        assert!(commit.join().unwrap().unwrap(), "refused");
        assert!(ahead.join().unwrap().unwrap());
    });
    assert_eq!((pool.ready(), quota.files()), (1, 1));
}

/// Between the pieces, the device serves flushes.
#[test]
fn a_segment_is_made_ahead_with_pauses_and_in_need_without() {
    let device = MemoryDevice::new();
    let options = LogOptions {
        segment_bytes: 1 << 20,
        max_log_bytes: 0,
        ..options()
    };
    let quota = Quota::default();
    let pool = SegmentPool::new(LaneId::new(0), &options, PoolFiles::default(), 1);
    pool.state.lock().least = 1 << 20;
    let pauses = Mutex::new(Vec::new());
    let pause = |left, _| {
        let unfinished = unfinished_name(LaneId::new(0), NewFile::AHEAD);
        let file = device.open(&unfinished, OpenMode::Existing).unwrap();
        pauses.lock().push((file.len().unwrap(), left));
    };
    let wanted = || pool.ready() == 0;
    let made = pool.prepare_ahead_while(&device, &options, &quota, wanted, &pause);
    assert!(made.unwrap());
    let quarter = 256 << 10;
    let quarters = [
        (quarter, 3 * quarter),
        (2 * quarter, 2 * quarter),
        (3 * quarter, quarter),
    ];
    assert_eq!(*pauses.lock(), quarters);
    assert_eq!(pool.take().unwrap().len, 1 << 20);
    assert!(pool.prepare(&device, &options, &quota).unwrap());
    assert_eq!(pauses.lock().len(), 3);
}
