//! A lane's segments: those in use, those prepared ahead of need, and those to recycle.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_io::{Device, OpenMode};

use crate::LogError;
use crate::base::holds::SegmentHolds;
use crate::base::numbers::LaneId;
use crate::base::sync::{AtomicU64, Counter, Mutex};
use crate::format::BLOCK;
use crate::format::segment::{Segment, segment_name, unfinished_name};
use crate::options::LogOptions;
use crate::segments::quota::Quota;

/// The files of one lane.
#[derive(Debug, Default)]
pub(crate) struct PoolFiles {
    /// Segments with log in them, oldest first; the last is the one being written.
    pub(crate) live: VecDeque<Segment>,
    /// Segments ready for use, in sequence after the live ones.
    pub(crate) ready: VecDeque<Segment>,
    /// Released segments to be recycled, under their old names.
    pub(crate) free: Vec<Segment>,
    /// Released segments to be deleted.
    pub(crate) retired: Vec<Segment>,
}

impl PoolFiles {
    fn usable(&self) -> impl Iterator<Item = &Segment> {
        self.live.iter().chain(&self.ready).chain(&self.free)
    }

    /// All files.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Segment> {
        self.usable().chain(&self.retired)
    }

    /// Bytes of files that hold log or are ready to hold it.
    fn usable_bytes(&self) -> u64 {
        self.usable().map(|file| file.len).sum()
    }
}

#[derive(Debug, Default)]
struct State {
    files: PoolFiles,
    /// The sequence number of the next segment to be prepared.
    next_sequence: u64,
    /// The first segment that was taken into use since the log was opened.
    first: Option<u64>,
    /// The length of the segment that is being prepared; 0 if there is none.
    preparing: u64,
    /// The least length of a segment that is prepared.
    least: u64,
    /// The initial value of `least`.
    shortest: u64,
    /// Whether the lane has grown: `least` no longer changes.
    has_grown: bool,
    /// Whether the device refused a segment of `least` bytes while the lane was to grow. The lane
    /// stays small until log is released.
    is_stunted: bool,
    /// The greatest length of a segment.
    most: u64,
    /// Whether all segments have the length `most`.
    preallocated: bool,
}

impl State {
    /// Bytes of the segments that this opening has written, or will write next, and that are kept.
    fn in_use(&self) -> u64 {
        let first = self.first.unwrap_or(u64::MAX);
        let live = self.files.live.iter().filter(|file| file.sequence >= first);
        live.chain(&self.files.ready).map(|file| file.len).sum()
    }

    /// The length of the next segment: the bytes in use, so that the log doubles.
    fn next_len(&self) -> u64 {
        if self.preallocated {
            return self.most;
        }
        let doubled = self.in_use().checked_next_power_of_two();
        doubled.unwrap_or(u64::MAX).max(self.least).min(self.most)
    }

    /// The length of a shorter segment after the device had no room for `len` bytes; `None` if no
    /// segment may be that short. A lane that has not grown then stays small.
    fn shorter(&mut self, len: u64) -> Option<u64> {
        if self.preallocated || braid_rt::mutant!("insist_on_long_segments") {
            return None;
        }
        if len <= self.least && !self.has_grown && self.least > self.shortest {
            self.is_stunted = true;
            self.least = self.shortest;
        }
        let half = (len / 2).next_multiple_of(BLOCK as u64).max(self.least);
        (half < len).then_some(half)
    }

    /// Removes the longest released segment, to recycle it.
    fn pop_free(&mut self) -> Option<Segment> {
        let free = self.files.free.iter().enumerate();
        let (at, longest) = free.max_by_key(|(_, file)| file.len)?;
        if longest.len < self.least {
            self.files.retired.append(&mut self.files.free);
            return None;
        }
        Some(self.files.free.swap_remove(at))
    }
}

/// The segments of one lane.
#[derive(Debug)]
pub(crate) struct SegmentPool {
    lane: LaneId,
    state: Mutex<State>,
    /// Held while files are made, renamed or deleted, so that a segment is prepared once.
    work: Mutex<()>,
    pub(crate) holds: SegmentHolds,
    ready: AtomicU64,
    /// Bytes that the ready segments can certainly take.
    ready_room: AtomicU64,
    /// The length of the next segment to be made.
    next_len: Counter,
    /// Count of segments prepared.
    prepared: AtomicU64,
    recycled: AtomicU64,
    /// Bytes of the segments with log in them.
    live_bytes: Counter,
    /// Count of segments released.
    released: Counter,
    /// Bytes at the end of a segment that may stay unused because a chunk does not fit.
    slot: u64,
}

impl SegmentPool {
    /// Creates a pool of the files found on the device. `next_sequence` is the sequence number
    /// after all live and ready segments.
    pub(crate) fn new(
        lane: LaneId,
        options: &LogOptions,
        files: PoolFiles,
        next_sequence: u64,
    ) -> Self {
        let pool = Self {
            lane,
            ready: AtomicU64::new(files.ready.len() as u64),
            ready_room: AtomicU64::new(0),
            next_len: Counter::new(0),
            state: Mutex::new(State {
                files,
                next_sequence,
                first: None,
                preparing: 0,
                least: options.first_segment_bytes(),
                shortest: options.first_segment_bytes(),
                has_grown: false,
                is_stunted: false,
                most: options.segment_bytes,
                preallocated: options.preallocated_bytes > 0,
            }),
            work: Mutex::new(()),
            holds: SegmentHolds::default(),
            prepared: AtomicU64::new(0),
            recycled: AtomicU64::new(0),
            live_bytes: Counter::new(0),
            released: Counter::new(0),
            slot: options.slot_bytes as u64,
        };
        let state = pool.state.lock();
        let room = state.files.ready.iter().map(|file| pool.usable(file)).sum();
        pool.ready_room.store(room, Ordering::Relaxed);
        let live = state.files.live.iter().map(|file| file.len).sum();
        pool.live_bytes.store(live, Ordering::Relaxed);
        pool.note_len(&state);
        drop(state);
        pool
    }

    /// Bytes that a segment can certainly take.
    fn usable(&self, segment: &Segment) -> u64 {
        segment.len.saturating_sub(BLOCK as u64 + self.slot)
    }

    /// Bytes that the ready segments can certainly take, less the ends into which a chunk may not
    /// fit.
    pub(crate) fn ready_room(&self) -> u64 {
        // Acquire: pairs with `prepare`, so that a thread that counts on a segment finds it.
        self.ready_room.load(Ordering::Acquire)
    }

    /// Number of segments prepared so far.
    pub(crate) fn prepared(&self) -> u64 {
        self.prepared.load(Ordering::Acquire)
    }

    /// The length of the next segment to be made.
    pub(crate) fn next_len(&self) -> u64 {
        // Relaxed: a hint for the amount to prepare.
        self.next_len.load(Ordering::Relaxed)
    }

    fn note_len(&self, state: &State) {
        self.next_len.store(state.next_len(), Ordering::Relaxed);
    }

    /// Whether `needed` bytes have room, for any division into chunks and any order of flushes, in
    /// the `left` bytes of the current segment and in the ready ones. No chunk (with closed
    /// flushes, no flush) is longer than `unit`.
    pub(crate) fn fits(&self, needed: u64, left: u64, unit: u64) -> bool {
        let state = self.state.lock();
        let ready = state.files.ready.iter().map(|file| file.len - BLOCK as u64);
        // The last segment leaves no bytes unused, and each earlier one less than a unit.
        let whole = ready.clone().chain([left]).max().unwrap_or(0);
        let parts = ready.chain([left]).map(|len| len.saturating_sub(unit));
        needed <= whole.max(parts.sum())
    }

    /// Whether all segments after the current one have at least `least` bytes. If the log has grown
    /// to that size, this ensures it for later segments.
    pub(crate) fn has_grown_to(&self, least: u64) -> bool {
        let mut state = self.state.lock();
        if state.is_stunted || state.in_use() < least {
            return false;
        }
        state.least = state.least.max(least);
        self.note_len(&state);
        let is_long = |len: u64| len >= least;
        (state.preparing == 0 || is_long(state.preparing))
            && state.files.ready.iter().all(|file| is_long(file.len))
    }

    /// Keeps the length that the lane has grown to, unless a full device has reduced it since
    /// [`SegmentPool::has_grown_to`]. Returns whether the length is kept.
    pub(crate) fn stay_grown(&self) -> bool {
        let mut state = self.state.lock();
        state.has_grown = !state.is_stunted;
        state.has_grown
    }

    /// Whether the log has grown so far that no segment shorter than `least` is created.
    pub(crate) fn is_growing_to(&self, least: u64) -> bool {
        self.state.lock().least >= least
    }

    /// Number of segments that are ready.
    pub(crate) fn ready(&self) -> u64 {
        // Acquire: pairs with `prepare`, so that a thread that counts on a segment finds it.
        self.ready.load(Ordering::Acquire)
    }

    /// Bytes of the segments that hold log, including the rest of the current one.
    pub(crate) fn live_bytes(&self) -> u64 {
        // Relaxed: a statistic.
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Number of segments released so far.
    pub(crate) fn released(&self) -> u64 {
        // Relaxed: read after the end of the checkpoint that released them, which a lock orders.
        self.released.load(Ordering::Relaxed)
    }

    /// Bytes of segment files that hold log or are ready to hold it.
    fn bytes(&self) -> u64 {
        self.state.lock().files.usable_bytes()
    }

    /// Bytes of the segments from `from` on and before `to` that hold log.
    pub(crate) fn bytes_between(&self, from: u64, to: u64) -> u64 {
        let state = self.state.lock();
        let live = state.files.live.iter();
        live.filter(|file| (from..to).contains(&file.sequence))
            .map(|file| file.len)
            .sum()
    }

    /// Prepares segments until the lane has the bytes of [`LogOptions::preallocated_bytes`], or the
    /// limit is reached. Returns the first of their sequence numbers, for
    /// [`SegmentPool::take_back`].
    ///
    /// # Errors
    /// Errors of the device. The new segments are then deleted, so that a full medium is not left
    /// full.
    pub(crate) fn preallocate(
        &self,
        device: &dyn Device,
        options: &LogOptions,
        quota: &Quota,
    ) -> Result<u64, LogError> {
        let first = self.state.lock().next_sequence;
        let wanted = || self.bytes() < options.preallocated_by_lane();
        if wanted() {
            braid_rt::coverage_point("log: segments are preallocated");
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
            let Some(last) = state.files.ready.pop_back() else {
                break;
            };
            self.uncount(&last);
            state.files.retired.push(last);
        }
        state.next_sequence = first;
        drop(state);
        // A segment that can't be deleted now stays ready for use.
        let _ = self.delete_retired(device, false, quota);
    }

    /// Number of segments recycled.
    pub(crate) fn recycled(&self) -> u64 {
        self.recycled.load(Ordering::Relaxed)
    }

    /// Takes the next ready segment into use.
    pub(crate) fn take(&self) -> Option<Segment> {
        let mut state = self.state.lock();
        let segment = state.files.ready.pop_front()?;
        self.uncount(&segment);
        self.live_bytes.fetch_add(segment.len, Ordering::Relaxed);
        state.first.get_or_insert(segment.sequence);
        state.files.live.push_back(segment.clone());
        self.note_len(&state);
        Some(segment)
    }

    /// Uncounts a segment that is no longer ready.
    fn uncount(&self, segment: &Segment) {
        // Release: pairs with `ready` and `ready_room`.
        self.ready_room
            .fetch_sub(self.usable(segment), Ordering::Release);
        self.ready.fetch_sub(1, Ordering::Release);
    }

    /// Prepares one more segment: recycles a released one, or creates and zeroes a new one.
    ///
    /// Returns `false` if the limit forbids it.
    ///
    /// # Errors
    /// Errors of the device; the pool is unchanged.
    pub(crate) fn prepare(
        &self,
        device: &dyn Device,
        options: &LogOptions,
        quota: &Quota,
    ) -> Result<bool, LogError> {
        let _work = self.holds.files.of(self.work.lock());
        self.prepare_locked(device, options, quota)
    }

    /// Like [`SegmentPool::prepare`], repeated while `wanted` returns true; `wanted` is evaluated
    /// while no other thread prepares.
    pub(crate) fn prepare_while(
        &self,
        device: &dyn Device,
        options: &LogOptions,
        quota: &Quota,
        wanted: impl Fn() -> bool,
    ) -> Result<bool, LogError> {
        let _work = self.holds.files.of(self.work.lock());
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
        self.delete_retired_locked(device, options.discard, quota)?;
        let (sequence, old, len, least) = {
            let mut state = self.state.lock();
            let old = state.pop_free();
            let len = state.next_len();
            state.preparing = old.as_ref().map_or(len, |old| old.len);
            (state.next_sequence, old, len, state.least)
        };
        if old.is_none() && !braid_rt::mutant!("count_retired_segments") {
            // Segments that were just found too short to be recycled count against the limit.
            self.delete_retired_locked(device, options.discard, quota)?;
        }
        let made = match old {
            Some(old) => self.recycle(device, old, sequence).map(Some),
            None => self.make_fitting(device, sequence, (len, least), options, quota),
        };
        let mut state = self.state.lock();
        let segment = match made {
            Ok(Some(segment)) => segment,
            made => {
                state.preparing = 0;
                return made.map(|_| false);
            }
        };
        drop(state);
        let named = if braid_rt::mutant!("forget_names") {
            Ok(())
        } else {
            device.sync_directory()
        };
        let mut state = self.state.lock();
        state.preparing = 0;
        if let Err(error) = named {
            // The segment is deleted before the next one takes its number.
            let name = segment_name(self.lane, sequence);
            state.files.retired.push(segment);
            return Err(LogError::io(
                format!("cannot make the name {name} durable"),
                error,
            ));
        }
        state.next_sequence = sequence + 1;
        // Release: pairs with `ready` and `ready_room`.
        self.ready_room
            .fetch_add(self.usable(&segment), Ordering::Release);
        state.files.ready.push_back(segment);
        self.note_len(&state);
        self.ready.fetch_add(1, Ordering::Release);
        self.prepared.fetch_add(1, Ordering::Release);
        Ok(true)
    }

    /// Gives a released segment a new name.
    fn recycle(
        &self,
        device: &dyn Device,
        old: Segment,
        sequence: u64,
    ) -> Result<Segment, LogError> {
        braid_rt::coverage_point("log: a segment is used again");
        let old_name = segment_name(self.lane, old.sequence);
        let name = segment_name(self.lane, sequence);
        if let Err(error) = device.rename(&old_name, &name) {
            self.state.lock().files.free.push(old);
            return Err(LogError::io(
                format!("cannot rename {old_name} to {name}"),
                error,
            ));
        }
        self.recycled.fetch_add(1, Ordering::Relaxed);
        Ok(Segment { sequence, ..old })
    }

    /// Creates a segment of the given length, or of a shorter length for which the device has room.
    fn make_fitting(
        &self,
        device: &dyn Device,
        sequence: u64,
        (mut len, mut least): (u64, u64),
        options: &LogOptions,
        quota: &Quota,
    ) -> Result<Option<Segment>, LogError> {
        loop {
            let error = match self.make(device, sequence, (len, least), options, quota) {
                Err(error) if error.is_storage_full() => error,
                made => return made,
            };
            {
                let mut state = self.state.lock();
                let Some(shorter) = state.shorter(len) else {
                    return Err(error);
                };
                (len, least) = (shorter, state.least);
                state.preparing = len;
            }
            // Files that a longer one was to replace.
            self.delete_retired_locked(device, options.discard, quota)?;
        }
    }

    /// Creates a segment of `len` bytes, or of at least `least` bytes if the limit has no room for
    /// `len`. Returns `None` if the limit has no room for `least` bytes.
    fn make(
        &self,
        device: &dyn Device,
        sequence: u64,
        (len, least): (u64, u64),
        options: &LogOptions,
        quota: &Quota,
    ) -> Result<Option<Segment>, LogError> {
        let Some(len) = quota.take(len, least, options) else {
            return Ok(None);
        };
        if len > least {
            braid_rt::coverage_point("log: segments grow");
        }
        let name = segment_name(self.lane, sequence);
        let unfinished = unfinished_name(self.lane, sequence);
        match create_zeroed(device, &unfinished, &name, len) {
            Ok(file) => Ok(Some(Segment {
                sequence,
                len,
                file,
            })),
            Err(error) => {
                quota.release(len);
                // The next attempt or opening removes a leftover file.
                let _ = device.remove(&unfinished);
                Err(LogError::io(format!("cannot prepare {name}"), error))
            }
        }
    }

    /// Releases the segments before `sequence`, which are no longer needed, for recycling, or for
    /// deletion if the options say so. Returns whether there were any.
    pub(crate) fn release(&self, sequence: u64, options: &LogOptions) -> bool {
        let mut state = self.holds.list.of(self.state.lock());
        let mut released = 0;
        // I6: the segment being written is never released, even if the caller asks for it.
        while state.files.live.len() > 1 && state.files.live[0].sequence < sequence {
            if let Some(segment) = state.files.live.pop_front() {
                released += 1;
                self.live_bytes.fetch_sub(segment.len, Ordering::Relaxed);
                if options.discard {
                    state.files.retired.push(segment)
                } else {
                    state.files.free.push(segment)
                }
            }
        }
        self.released.fetch_add(released as u64, Ordering::Relaxed);
        state.is_stunted &= released == 0;
        // The bytes needed between two checkpoints will be needed again; further segments are
        // deleted.
        let kept = options.preallocated_by_lane();
        while state.files.free.len() > released.max(1) {
            // The shortest one first.
            let free = state.files.free.iter().enumerate();
            let Some((at, len)) = free
                .map(|(at, file)| (at, file.len))
                .min_by_key(|&(_, len)| len)
            else {
                break;
            };
            if state.files.usable_bytes() < kept + len {
                break;
            }
            let segment = state.files.free.swap_remove(at);
            state.files.retired.push(segment);
        }
        self.note_len(&state);
        released > 0
    }

    /// Deletes the segments that [`SegmentPool::release`] marked for deletion.
    ///
    /// # Errors
    /// Errors of the device; the next call deletes the remaining segments.
    pub(crate) fn delete_retired(
        &self,
        device: &dyn Device,
        discard: bool,
        quota: &Quota,
    ) -> Result<(), LogError> {
        let _work = self.holds.files.of(self.work.lock());
        self.delete_retired_locked(device, discard, quota)
    }

    /// Deletes the released segments, also those kept for recycling. Returns whether it deleted any.
    pub(crate) fn give_up_free(&self, device: &dyn Device, discard: bool, quota: &Quota) -> bool {
        let _work = self.holds.files.of(self.work.lock());
        let is_any = {
            let files = &mut self.state.lock().files;
            files.retired.append(&mut files.free);
            !files.retired.is_empty()
        };
        // The next call deletes what cannot be deleted now.
        is_any && self.delete_retired_locked(device, discard, quota).is_ok()
    }

    fn delete_retired_locked(
        &self,
        device: &dyn Device,
        discard: bool,
        quota: &Quota,
    ) -> Result<(), LogError> {
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
                Ok(()) => quota.release(segment.len),
                Err(error) => {
                    self.state.lock().files.retired.push(segment);
                    return Err(LogError::io(format!("cannot delete {name}"), error));
                }
            }
        }
    }

    /// Finds a live segment that was not released.
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
mod tests;
