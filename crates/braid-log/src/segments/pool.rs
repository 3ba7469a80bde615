//! A lane's segments: those in use, those prepared ahead of need, and those to recycle.

use std::sync::atomic::Ordering;

use braid_io::Device;

use crate::LogError;
use crate::base::holds::SegmentHolds;
use crate::base::numbers::LaneId;
use crate::base::sync::{AtomicU64, Counter, Mutex};
use crate::format::BLOCK;
use crate::format::segment::{Segment, segment_name, unfinished_name};
use crate::options::LogOptions;
use crate::segments::new_file::{NewFile, Pause, Reason};
use crate::segments::quota::Quota;
use crate::segments::state::{PoolFiles, State};
use crate::segments::turn::Turns;

/// The greatest part of a segment made in need that may stay unused, as its divisor.
const UNUSABLE_PART: u64 = 4;

/// The segments of one lane.
#[derive(Debug)]
pub(crate) struct SegmentPool {
    lane: LaneId,
    state: Mutex<State>,
    /// Taken while a segment gets its number, so that a number is given once. A commit or a flush
    /// that lacks a segment makes it in its turn.
    turns: Turns,
    /// Held while a file is made ahead of need, without a turn. Acquired before a turn.
    ahead: Mutex<()>,
    /// Held while released files are deleted. Acquired after a turn.
    deletion: Mutex<()>,
    pub(crate) holds: SegmentHolds,
    ready: AtomicU64,
    /// Bytes that the ready segments can certainly take.
    ready_room: AtomicU64,
    /// The length of the next segment to be made.
    next_len: Counter,
    /// Count of segments prepared.
    prepared: AtomicU64,
    recycled: AtomicU64,
    /// How often a commit or a flush lacked a segment.
    lacks: Counter,
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
                least: options.first_segment_bytes(),
                shortest: options.first_segment_bytes(),
                most: options.segment_bytes,
                preallocated: options.preallocated_bytes > 0,
                ..State::default()
            }),
            turns: Turns::default(),
            ahead: Mutex::new(()),
            deletion: Mutex::new(()),
            holds: SegmentHolds::default(),
            prepared: AtomicU64::new(0),
            recycled: AtomicU64::new(0),
            lacks: Counter::new(0),
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
        state.prepares_only(least) && state.files.ready.iter().all(|file| file.len >= least)
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

    /// I10: makes the lengths of the files durable that an opening has found and that hold no log. A killed
    /// process may have cut them off, see [`SegmentPool::delete_some`], and the header that is written to
    /// such a file when it is used says how long it is.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn sync_unused(&self) -> Result<(), LogError> {
        if braid_rt::mutant!("use_files_of_unsynced_length") {
            return Ok(());
        }
        let unused: Vec<Segment> = {
            let files = &self.state.lock().files;
            files.ready.iter().chain(&files.free).cloned().collect()
        };
        unused
            .iter()
            .try_for_each(|segment| segment.sync(self.lane))
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
        if let Err(error) = self.prepare_while(device, options, quota, 0, wanted) {
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
        let _turn = self.turns.take();
        // What can't be deleted now is deleted before the next segment takes its number.
        let _ = self.delete_unpublished(device, quota);
    }

    /// Number of segments recycled.
    pub(crate) fn recycled(&self) -> u64 {
        self.recycled.load(Ordering::Relaxed)
    }

    /// How often a commit or a flush found no segment ready, and made one or waited for one.
    pub(crate) fn lacks(&self) -> u64 {
        // Relaxed: a statistic.
        self.lacks.load(Ordering::Relaxed)
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

    /// Prepares one more segment, for a flush that lacks it: recycles a released one, or creates and
    /// zeroes a new one.
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
        let before = self.prepared();
        self.prepare_while(device, options, quota, 0, || self.prepared() == before)
    }

    /// Like [`SegmentPool::prepare`] for a commit that needs `needed` bytes, repeated while `wanted`
    /// returns true; `wanted` is evaluated while no other thread prepares.
    pub(crate) fn prepare_while(
        &self,
        device: &dyn Device,
        options: &LogOptions,
        quota: &Quota,
        needed: u64,
        wanted: impl Fn() -> bool,
    ) -> Result<bool, LogError> {
        let unusable = BLOCK as u64 + self.slot;
        let whole = (needed + unusable).max(UNUSABLE_PART * unusable);
        if wanted() {
            self.lacks.fetch_add(1, Ordering::Relaxed);
        }
        loop {
            let (refused, prepared) = {
                let _turn = self.turns.take();
                loop {
                    if !wanted() {
                        return Ok(true);
                    }
                    let prepared = self.prepared();
                    match self
                        .prepare_in_turn(device, options, quota, |state| state.urgent_len(whole))
                    {
                        Ok(true) => {}
                        refused => break (refused, prepared),
                    }
                }
            };
            let lacks_room = match &refused {
                Ok(_) => true,
                Err(error) => error.is_storage_full(),
            };
            if !lacks_room || !self.wait_for_ahead(prepared) {
                return refused;
            }
        }
    }

    /// Waits for the file that is being made ahead, which may have taken the room that a commit was
    /// refused. Returns whether there was one since `prepared` segments were prepared.
    fn wait_for_ahead(&self, prepared: u64) -> bool {
        if braid_rt::mutant!("refuse_instead_of_waiting") {
            return false;
        }
        let is_any = self.state.lock().ahead > 0;
        if is_any {
            drop(self.ahead.lock());
        }
        is_any || self.prepared() != prepared
    }

    /// Prepares segments ahead of need while `wanted` returns true, with pauses. A commit or a flush
    /// that lacks a segment meanwhile does not wait for the file, except while it gets its name: then
    /// it is ready sooner than another segment could be.
    ///
    /// Returns `false` if the limit forbids another segment.
    ///
    /// # Errors
    /// Errors of the device; the pool is unchanged.
    pub(crate) fn prepare_ahead_while(
        &self,
        device: &dyn Device,
        options: &LogOptions,
        quota: &Quota,
        wanted: impl Fn() -> bool,
        pause: Pause<'_>,
    ) -> Result<bool, LogError> {
        let _ahead = self.ahead.lock();
        while wanted() {
            let has_free = self.state.lock().has_free();
            let is_prepared = if has_free {
                let _turn = self.turns.take_ahead(&self.holds.files);
                self.prepare_in_turn(device, options, quota, State::next_len)?
            } else {
                self.make_ahead(device, options, quota, pause)?
            };
            if !is_prepared {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes a new segment, and takes a turn only to give it a number.
    fn make_ahead(
        &self,
        device: &dyn Device,
        options: &LogOptions,
        quota: &Quota,
        pause: Pause<'_>,
    ) -> Result<bool, LogError> {
        let unfinished = unfinished_name(self.lane, NewFile::AHEAD);
        let new = {
            let mut state = self.state.lock();
            state.ahead = state.next_len();
            (state.ahead, state.least)
        };
        if let Err(error) = self.make_quota(device, new.0, options, quota) {
            self.state.lock().ahead = 0;
            return Err(error);
        }
        let reason = Reason::Ahead(pause);
        let made = self.make_fitting(device, &unfinished, new, options, quota, reason);
        let named = made.and_then(|made| {
            let Some(file) = made else {
                return Ok(false);
            };
            let _turn = self.turns.take_ahead(&self.holds.files);
            let published = self.name(device, file, quota);
            published.and_then(|segment| self.publish(device, segment))?;
            Ok(true)
        });
        self.state.lock().ahead = 0;
        named
    }

    /// Prepares a segment. The caller has the turn.
    fn prepare_in_turn(
        &self,
        device: &dyn Device,
        options: &LogOptions,
        quota: &Quota,
        len: impl Fn(&State) -> u64,
    ) -> Result<bool, LogError> {
        let (sequence, old, new) = {
            let mut state = self.state.lock();
            let old = state.pop_free();
            let len = len(&state);
            state.preparing = old.as_ref().map_or(len, |old| old.len);
            (state.next_sequence, old, (len, state.least))
        };
        let made = match old {
            Some(old) => self.recycle(device, old, quota).map(Some),
            None => {
                let unfinished = unfinished_name(self.lane, sequence);
                self.make_quota(device, new.0, options, quota)
                    .and_then(|()| {
                        let reason = Reason::Need;
                        self.make_fitting(device, &unfinished, new, options, quota, reason)
                    })
                    .and_then(|file| file.map(|file| self.name(device, file, quota)).transpose())
            }
        };
        let published = made.and_then(|made| {
            made.map(|segment| self.publish(device, segment))
                .transpose()
        });
        self.state.lock().preparing = 0;
        Ok(published?.is_some())
    }

    /// Makes the name of a segment durable, and offers the segment for use. The caller has the turn.
    fn publish(&self, device: &dyn Device, segment: Segment) -> Result<(), LogError> {
        let named = if braid_rt::mutant!("forget_names") {
            Ok(())
        } else {
            device.sync_directory()
        };
        let mut state = self.state.lock();
        if let Err(error) = named {
            // The segment is deleted before the next one takes its number.
            let name = segment_name(self.lane, segment.sequence);
            state.files.retired.push(segment);
            return Err(LogError::io(
                format!("cannot make the name {name} durable"),
                error,
            ));
        }
        debug_assert_eq!(state.next_sequence, segment.sequence);
        state.next_sequence = segment.sequence + 1;
        // Release: pairs with `ready` and `ready_room`.
        self.ready_room
            .fetch_add(self.usable(&segment), Ordering::Release);
        state.files.ready.push_back(segment);
        self.note_len(&state);
        self.ready.fetch_add(1, Ordering::Release);
        self.prepared.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Returns the number of the next segment. The caller has the turn, and then gives the name.
    fn next_sequence(&self, device: &dyn Device, quota: &Quota) -> Result<u64, LogError> {
        self.delete_unpublished(device, quota)?;
        Ok(self.state.lock().next_sequence)
    }

    /// Gives a released segment a new name. The caller has the turn.
    fn recycle(
        &self,
        device: &dyn Device,
        old: Segment,
        quota: &Quota,
    ) -> Result<Segment, LogError> {
        braid_rt::coverage_point("log: a segment is used again");
        let old_name = segment_name(self.lane, old.sequence);
        let renamed = self.next_sequence(device, quota).and_then(|sequence| {
            let name = segment_name(self.lane, sequence);
            let renamed = device.rename(&old_name, &name);
            renamed
                .map(|()| sequence)
                .map_err(|error| LogError::io(format!("cannot rename {old_name} to {name}"), error))
        });
        match renamed {
            Ok(sequence) => {
                self.recycled.fetch_add(1, Ordering::Relaxed);
                Ok(Segment { sequence, ..old })
            }
            Err(error) => {
                self.state.lock().files.free.push(old);
                Err(error)
            }
        }
    }

    /// Gives a new file the name of the next segment. The caller has the turn.
    fn name(&self, device: &dyn Device, file: NewFile, quota: &Quota) -> Result<Segment, LogError> {
        let len = file.len();
        let named = self.next_sequence(device, quota).and_then(|sequence| {
            let name = segment_name(self.lane, sequence);
            file.name(device, sequence, &name)
        });
        if named.is_err() {
            quota.release(len);
        }
        named
    }

    /// Creates a file of the given length, or of a shorter length for which the device and the limit
    /// have room. `note` gets each length that is tried. Returns `None` if the limit has no room for
    /// the least length.
    fn make_fitting(
        &self,
        device: &dyn Device,
        unfinished: &str,
        (mut len, mut least): (u64, u64),
        options: &LogOptions,
        quota: &Quota,
        reason: Reason<'_>,
    ) -> Result<Option<NewFile>, LogError> {
        loop {
            let error =
                match NewFile::make(device, unfinished, (len, least), options, quota, reason) {
                    Err(error) if error.is_storage_full() => error,
                    made => return made,
                };
            // Files that the new one was to replace.
            let deleted = self.delete_retired(device, options.discard, quota)?;
            if deleted > 0 {
                continue;
            }
            let mut state = self.state.lock();
            let Some(shorter) = state.shorter(len) else {
                return Err(error);
            };
            (len, least) = (shorter, state.least);
            match reason {
                Reason::Need => state.preparing = len,
                Reason::Ahead(_) => state.ahead = len,
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

mod deletion;
#[cfg(all(test, not(loom)))]
mod tests;
