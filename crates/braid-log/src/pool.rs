//! A lane's segments: the ones in use, the ones made ready ahead of need, the ones to use again.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_io::{Device, OpenMode};

use crate::LogError;
use crate::options::{BLOCK, LogOptions};
use crate::segment::{Segment, segment_name, unfinished_name};
use crate::sync::{AtomicU64, Mutex};

/// Segment files of all lanes and their limit.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    /// Segment files that exist, in any state.
    files: AtomicU64,
}

impl Quota {
    /// Segment files that exist.
    pub(crate) fn files(&self) -> u64 {
        // Relaxed: a statistic here; the limit is kept by `take`.
        self.files.load(Ordering::Relaxed)
    }

    /// Counts a file in unless that breaks the limit.
    fn take(&self, options: &LogOptions) -> bool {
        let most = match options.max_log_bytes {
            0 => u64::MAX,
            limit => limit / options.segment_bytes,
        };
        // Relaxed: the count orders nothing else.
        self.files
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
                (n < most).then_some(n + 1)
            })
            .is_ok()
    }

    /// Counts files that were found when opening.
    pub(crate) fn add(&self, files: u64) {
        self.files.fetch_add(files, Ordering::Relaxed);
    }

    /// The error of one who needs so many bytes more than there may be, or are.
    pub(crate) fn out_of_space(
        &self,
        options: &LogOptions,
        needed: u64,
        device_full: bool,
    ) -> LogError {
        LogError::OutOfSpace {
            needed,
            used: self.files() * options.segment_bytes,
            limit: options.max_log_bytes,
            device_full,
        }
    }

    fn give_back(&self) {
        self.files.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The files of one lane.
#[derive(Debug, Default)]
pub(crate) struct PoolFiles {
    /// Segments with log in them, oldest first; the last is the one being written.
    pub(crate) live: VecDeque<Segment>,
    /// Segments ready for use, in sequence behind the live ones.
    pub(crate) ready: VecDeque<Segment>,
    /// Released segments, under their old names, to be used again.
    pub(crate) free: Vec<Segment>,
    /// Released segments to be deleted.
    pub(crate) retired: Vec<Segment>,
}

impl PoolFiles {
    /// Files that hold log or are there to take it.
    fn usable(&self) -> u64 {
        (self.live.len() + self.ready.len() + self.free.len()) as u64
    }

    /// All files.
    pub(crate) fn count(&self) -> u64 {
        self.usable() + self.retired.len() as u64
    }
}

#[derive(Debug, Default)]
struct State {
    files: PoolFiles,
    /// The sequence number of the next segment to be made ready.
    next_sequence: u64,
}

/// The segments of one lane.
#[derive(Debug)]
pub(crate) struct SegmentPool {
    lane: usize,
    state: Mutex<State>,
    /// Held while files are made, renamed or deleted, so that preparation happens once.
    work: Mutex<()>,
    ready: AtomicU64,
    recycled: AtomicU64,
}

impl SegmentPool {
    /// A pool of what was found on the device. `next_sequence` is that behind all live and ready ones.
    pub(crate) fn new(lane: usize, files: PoolFiles, next_sequence: u64) -> Self {
        let count = files.ready.len() as u64;
        Self {
            lane,
            state: Mutex::new(State {
                files,
                next_sequence,
            }),
            work: Mutex::new(()),
            ready: AtomicU64::new(count),
            recycled: AtomicU64::new(0),
        }
    }

    /// Segments that are ready.
    pub(crate) fn ready(&self) -> u64 {
        // Acquire: pairs with `prepare`, so that whoever counts on a segment finds it.
        self.ready.load(Ordering::Acquire)
    }

    /// Segment files that hold log or are there to take it.
    fn files(&self) -> u64 {
        self.state.lock().files.usable()
    }

    /// Makes segments ready until the lane has what [`LogOptions::preallocated_bytes`] asks for, or the limit is
    /// reached. Returns from which sequence number on these are, for [`SegmentPool::take_back`].
    ///
    /// # Errors
    /// The device's; then what was made is deleted, so that a full medium is not left full.
    pub(crate) fn preallocate(
        &self,
        device: &dyn Device,
        options: &LogOptions,
        quota: &Quota,
    ) -> Result<u64, LogError> {
        let first = self.state.lock().next_sequence;
        let wanted = || self.files() < options.preallocated_files();
        if wanted() {
            braid_rt::reach("log: segments are made ahead");
        }
        if let Err(error) = self.prepare_while(device, options, quota, wanted) {
            self.take_back(first, device, quota);
            return Err(error);
        }
        Ok(first)
    }

    /// Deletes ready segments, from a sequence number on.
    pub(crate) fn take_back(&self, first: u64, device: &dyn Device, quota: &Quota) {
        let mut state = self.state.lock();
        while state
            .files
            .ready
            .back()
            .is_some_and(|last| last.sequence >= first)
        {
            let last = state.files.ready.pop_back();
            state.files.retired.extend(last);
            self.ready.fetch_sub(1, Ordering::Release);
        }
        state.next_sequence = first;
        drop(state);
        // What can't be deleted now is there to be used.
        let _ = self.delete_retired(device, false, quota);
    }

    /// Segments that were used again.
    pub(crate) fn recycled(&self) -> u64 {
        self.recycled.load(Ordering::Relaxed)
    }

    /// Takes the next ready segment into use.
    pub(crate) fn take(&self) -> Option<Segment> {
        let mut state = self.state.lock();
        let segment = state.files.ready.pop_front()?;
        // Release: pairs with `ready`.
        self.ready.fetch_sub(1, Ordering::Release);
        state.files.live.push_back(segment.clone());
        Some(segment)
    }

    /// Makes one more segment ready: recycles one, or creates and zeroes one.
    ///
    /// Returns `false` if the limit forbids it.
    ///
    /// # Errors
    /// The device's; nothing is lost by it.
    pub(crate) fn prepare(
        &self,
        device: &dyn Device,
        options: &LogOptions,
        quota: &Quota,
    ) -> Result<bool, LogError> {
        let _work = self.work.lock();
        self.prepare_locked(device, options, quota)
    }

    /// Like [`SegmentPool::prepare`] as long as `wanted` says so; `wanted` is asked again once no other
    /// thread prepares.
    pub(crate) fn prepare_while(
        &self,
        device: &dyn Device,
        options: &LogOptions,
        quota: &Quota,
        wanted: impl Fn() -> bool,
    ) -> Result<bool, LogError> {
        let _work = self.work.lock();
        while wanted() {
            if !self.prepare_locked(device, options, quota)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn prepare_locked(
        &self,
        device: &dyn Device,
        options: &LogOptions,
        quota: &Quota,
    ) -> Result<bool, LogError> {
        let (sequence, old) = {
            let mut state = self.state.lock();
            (state.next_sequence, state.files.free.pop())
        };
        let name = segment_name(self.lane, sequence);
        let segment = if let Some(old) = old {
            braid_rt::reach("log: a segment is used again");
            let old_name = segment_name(self.lane, old.sequence);
            if let Err(error) = device.rename(&old_name, &name) {
                self.state.lock().files.free.push(old);
                return Err(LogError::io(
                    format!("renaming {old_name} to {name}"),
                    error,
                ));
            }
            self.recycled.fetch_add(1, Ordering::Relaxed);
            Segment { sequence, ..old }
        } else {
            if !quota.take(options) {
                return Ok(false);
            }
            let unfinished = unfinished_name(self.lane, sequence);
            match create_zeroed(device, &unfinished, &name, options.segment_bytes) {
                Ok(file) => Segment {
                    sequence,
                    len: options.segment_bytes,
                    file,
                },
                Err(error) => {
                    quota.give_back();
                    // A leftover is removed at the next attempt or opening.
                    let _ = device.remove(&unfinished);
                    return Err(LogError::io(format!("preparing {name}"), error));
                }
            }
        };
        // The name counts from here on, also if making it durable fails: then the segment is kept back.
        let mut state = self.state.lock();
        state.next_sequence = sequence + 1;
        drop(state);
        if !braid_rt::mutant!("forget_names") {
            device
                .sync_directory()
                .map_err(|error| LogError::io(format!("making the name {name} durable"), error))?;
        }
        self.state.lock().files.ready.push_back(segment);
        // Release: pairs with `ready`.
        self.ready.fetch_add(1, Ordering::Release);
        Ok(true)
    }

    /// Sets aside the segments before `sequence`, which nobody needs any more, for recycling, or for
    /// deletion if the options say so. Returns whether there were any.
    pub(crate) fn release(&self, sequence: u64, options: &LogOptions) -> bool {
        let mut state = self.state.lock();
        let mut released = 0;
        // I6: the segment being written is never released, whatever the caller says.
        while state.files.live.len() > 1 && state.files.live[0].sequence < sequence {
            if let Some(segment) = state.files.live.pop_front() {
                released += 1;
                if options.discard {
                    state.files.retired.push(segment)
                } else {
                    state.files.free.push(segment)
                }
            }
        }
        // What was needed between two checkpoints will be again; more than that goes back.
        let kept = options.preallocated_files();
        while state.files.free.len() > released.max(1) && state.files.usable() > kept {
            if let Some(segment) = state.files.free.pop() {
                state.files.retired.push(segment);
            }
        }
        released > 0
    }

    /// Deletes what [`SegmentPool::release`] set aside for it.
    ///
    /// # Errors
    /// The device's; what remains is deleted by the next call.
    pub(crate) fn delete_retired(
        &self,
        device: &dyn Device,
        discard: bool,
        quota: &Quota,
    ) -> Result<(), LogError> {
        let _work = self.work.lock();
        loop {
            let Some(segment) = self.state.lock().files.retired.pop() else {
                return Ok(());
            };
            let name = segment_name(self.lane, segment.sequence);
            let punch = if discard {
                segment.file.punch_hole(0..segment.len)
            } else {
                Ok(())
            };
            match punch.and_then(|()| device.remove(&name)) {
                Ok(()) => quota.give_back(),
                Err(error) => {
                    self.state.lock().files.retired.push(segment);
                    return Err(LogError::io(format!("deleting {name}"), error));
                }
            }
        }
    }

    /// A segment with log in it that was not released.
    pub(crate) fn find(&self, sequence: u64) -> Option<Segment> {
        let state = self.state.lock();
        let found = state
            .files
            .live
            .iter()
            .find(|live| live.sequence == sequence);
        found.cloned()
    }

    /// The oldest live segment's sequence number.
    #[cfg(test)]
    pub(crate) fn oldest(&self) -> u64 {
        self.state
            .lock()
            .files
            .live
            .front()
            .map_or(0, |segment| segment.sequence)
    }
}

/// Creates a file of `len` real zeroes under `unfinished`, makes it durable and names it `name`.
pub(crate) fn create_zeroed(
    device: &dyn Device,
    unfinished: &str,
    name: &str,
    len: u64,
) -> io::Result<Arc<dyn braid_io::File>> {
    debug_assert!(len.is_multiple_of(BLOCK as u64));
    let file = match device.open(unfinished, OpenMode::CreateNew) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            device.remove(unfinished)?;
            device.open(unfinished, OpenMode::CreateNew)?
        }
        other => other?,
    };
    file.fill_zero(0..len)?;
    file.sync()?;
    device.rename(unfinished, name)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use braid_io::MemoryDevice;

    use super::*;

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
        let pool = SegmentPool::new(0, PoolFiles::default(), 1);
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
            [segment_name(0, 3), segment_name(0, 4), segment_name(0, 5)]
        );
        assert_eq!((pool.recycled(), quota.files()), (2, 3));
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
        let pool = SegmentPool::new(0, PoolFiles::default(), 1);
        pool.preallocate(&device, &options, &quota).unwrap();
        assert_eq!((pool.ready(), quota.files()), (5, 5));
        while pool.take().is_some() {}
        pool.release(u64::MAX, &options);
        // One is enough for what is logged between two checkpoints from here on.
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
        let pool = SegmentPool::new(0, PoolFiles::default(), 1);
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
        // Room for one lane's, and for a segment of the other.
        device.set_capacity(Some(330 << 10));
        let error = crate::Log::create(std::sync::Arc::new(device.clone()), options).unwrap_err();
        assert!(matches!(error, LogError::OutOfSpace { .. }), "{error}");
        assert_eq!(device.list().unwrap().len(), 2);
    }

    #[test]
    fn discards() {
        let device = MemoryDevice::new();
        let (options, quota) = (options(), Quota::default());
        let pool = SegmentPool::new(0, PoolFiles::default(), 1);
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
}
