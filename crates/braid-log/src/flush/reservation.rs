//! Log space is reserved before anything is assigned, so that an admitted commit never fails for
//! lack of space.
//!
//! A lane admits commits while it has more room ahead than all of its buffers and all small commits
//! in flight can still need. Large commits reserve their bytes on top. So a small commit costs one
//! load of a flag.
//!
//! A new lane is too small for that rule: it begins with a segment of at most 64 KiB. While the
//! lane is small, every pending commit reserves its bytes, and is admitted if there is room for all
//! reserved and all buffered bytes. A small lane uses only a part of its buffers, so that a chunk
//! fits into the shortest segment. Segments grow with use. Once the segments ahead hold whole
//! buffers and the room above, the lane has grown, and stays grown while the log is open. Each lane
//! grows independently: a thread writes to one lane, so an idle lane stays small and slows no other
//! lane.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::LogError;
use crate::base::numbers::LaneId;
use crate::base::sync::{AtomicBool, AtomicU64, Mutex};
use crate::buffer::commit_slots::MAX_COMMIT_SLOTS;
use crate::flush::core::Core;
use crate::flush::lane::Lane;
use crate::format::BLOCK;
use crate::format::chunk::CHUNK_HEADER;
use crate::format::log_record::RECORD_HEADER_MAX;
use crate::options::{BufferLimits, FlushMode, LogOptions, SLOTS_PER_STRAND};

/// Payload up to which a pending commit is covered by the margin.
const SMALL_PAYLOAD: usize = BLOCK;

/// Time after a refusal of the device before the device is asked again.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Accounting of log space.
#[derive(Debug)]
pub(crate) struct SpaceState {
    /// Room that every lane keeps for buffered bytes and commits in flight.
    margin: u64,
}

/// Accounting of a lane's space.
#[derive(Debug)]
pub(crate) struct LaneSpace {
    /// Whether the lane has too little space ahead to admit new commits without a check.
    short: AtomicBool,
    /// Bytes reserved by large pending commits, and by all while the lane is small.
    reserved: AtomicU64,
    /// When the device last refused a segment. Of a lane, since lanes may be on different devices.
    refused: Mutex<Option<Instant>>,
    /// Whether the lane has the room ahead that admits small commits without a reservation. Under
    /// loom, lanes have it from the beginning.
    grown: braid_rt::atomic::AtomicBool,
}

impl LaneSpace {
    pub(crate) fn new(options: &LogOptions) -> Self {
        let is_grown = options.first_segment_bytes() >= options.grown_segment_bytes();
        Self {
            short: AtomicBool::new(false),
            reserved: AtomicU64::new(0),
            refused: Mutex::new(None),
            grown: braid_rt::atomic::AtomicBool::new(is_grown),
        }
    }

    /// Returns how much of each buffer is used.
    pub(crate) fn buffers(&self, options: &LogOptions) -> BufferLimits {
        if self.is_grown() || braid_rt::mutant!("fill_slots_of_a_small_log") {
            options.grown_buffers()
        } else {
            options.small_buffers()
        }
    }

    pub(super) fn is_grown(&self) -> bool {
        // Acquire: pairs with `has_grown`.
        self.grown.load(Ordering::Acquire)
    }
}

/// Most bytes that a payload takes on the medium if it is flushed alone.
fn worst_case(payload: u64, slot: usize) -> u64 {
    let slot = slot as u64;
    let block = BLOCK as u64;
    payload + (payload / (slot - block) + 2) * 2 * block
}

/// Most bytes that a payload which the margin otherwise covers takes on the medium: it lies in one
/// chunk.
fn small_case(payload: u64) -> u64 {
    let overhead = (CHUNK_HEADER + RECORD_HEADER_MAX) as u64;
    (payload + overhead).next_multiple_of(BLOCK as u64)
}

impl SpaceState {
    pub(crate) fn new(options: &LogOptions) -> Self {
        let mut strands = options.strands.div_ceil(options.lanes);
        if options.side_lanes > 0 {
            strands = strands.max(options.side_strands());
        }
        let strands = strands as u64;
        let buffers = strands * SLOTS_PER_STRAND as u64 * options.slot_bytes as u64;
        // More small commits at once are limited by their number, not by space.
        let entries =
            MAX_COMMIT_SLOTS.min(64) as u64 * worst_case(SMALL_PAYLOAD as u64, options.slot_bytes);
        Self {
            margin: buffers + entries.min(2 * options.segment_bytes),
        }
    }

    /// The least `max_log_bytes` that admits commits, with one segment to spare.
    pub(crate) fn least_log_bytes(options: &LogOptions) -> u64 {
        let usable = options.segment_bytes - (BLOCK + options.slot_bytes) as u64;
        let segments = Self::new(options).margin.div_ceil(usable) + 2;
        segments * options.all_lanes() as u64 * options.segment_bytes
    }

    /// Bytes that a lane has left when it refuses small commits: the margin, most of it in ready
    /// segments, whose ends may stay unused.
    fn kept(&self, options: &LogOptions) -> u64 {
        let slot = options.slot_bytes as u64;
        let usable = options.segment_bytes - BLOCK as u64 - slot;
        self.margin / usable * options.segment_bytes + self.margin % usable + slot
    }
}

/// Reserved log space in bytes; 0 for a small commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation(u64);

impl Reservation {
    pub(crate) const NONE: Self = Self(0);
}

impl Core {
    /// Bytes that the lane can certainly take, less the ends of segments into which a chunk may not
    /// fit.
    pub(super) fn room(&self, lane: &Lane) -> u64 {
        if !self.is_begun() {
            return 0;
        }
        let slot = self.options.slot_bytes as u64;
        // Acquire: pairs with the sealing leader's store. A mix of old and new values errs by one
        // segment, which was taken before the new remainder was stored.
        let ready = lane.pool.ready_room();
        let left = lane.segment_left.load(Ordering::Acquire);
        left.saturating_sub(slot) + ready
    }

    pub(super) fn needed(&self, lane: &Lane, extra: u64) -> u64 {
        // Relaxed: every reservation checks again after adding its bytes.
        self.space.margin + lane.log_space.reserved.load(Ordering::Relaxed) + extra
    }

    /// Recomputes whether the lane is short of space, and has segments prepared if it lacks some.
    /// Called whenever room is used or freed.
    pub(crate) fn refresh_space(&self, lane: &Lane) {
        self.refresh_short(lane);
        if !self.is_comfortable(lane) {
            self.preparer.notify();
        }
    }

    fn refresh_short(&self, lane: &Lane) {
        loop {
            let short = self.is_short(lane);
            let flag = &lane.log_space.short;
            // Written only when it changes: every pending commit reads it.
            if flag.load(Ordering::SeqCst) != short {
                flag.store(short, Ordering::SeqCst);
            }
            // Another thread may have stored an older result after this one.
            if self.is_short(lane) == flag.load(Ordering::SeqCst) {
                break;
            }
        }
    }

    /// Bytes of log that fit before commits are refused, as far as that can be said in advance; 0
    /// without a limit.
    pub(crate) fn capacity(&self) -> u64 {
        let limit = self.options.max_log_bytes;
        let grown = self.lanes.iter().filter(|lane| lane.log_space.is_grown());
        let kept = self.space.kept(&self.options) * grown.count() as u64;
        limit.saturating_sub(kept).max(limit / 4)
    }

    fn is_short(&self, lane: &Lane) -> bool {
        !lane.log_space.is_grown() || self.room(lane) < self.needed(lane, 0) || self.is_filling()
    }

    /// Whether the lane has the segments that the preparing thread keeps ahead: one more than
    /// needed. An unwritten small lane needs none.
    pub(super) fn is_comfortable(&self, lane: &Lane) -> bool {
        let pool = &lane.pool;
        if lane.is_absent() {
            return true;
        }
        let grows = || pool.is_growing_to(self.options.grown_segment_bytes());
        if lane.log_space.is_grown() || grows() {
            self.room(lane) >= self.needed(lane, pool.next_len())
        } else {
            pool.ready() > 0 || self.is_unused(lane)
        }
    }

    /// Whether the segment being written has as much room as the shortest new segment.
    fn is_unused(&self, lane: &Lane) -> bool {
        // Acquire: see `room`.
        let left = lane.segment_left.load(Ordering::Acquire);
        self.is_begun() && left + BLOCK as u64 >= self.options.first_segment_bytes()
    }

    /// Reserves log space in the lane for a pending commit with `payload` bytes.
    #[inline]
    pub(crate) fn reserve(&self, lane: &Lane, payload: usize) -> Result<Reservation, LogError> {
        if let Some(error) = self.poison() {
            return Err(error);
        }
        // Acquire: the common case, a line that is rarely written.
        if payload <= SMALL_PAYLOAD && !lane.log_space.short.load(Ordering::Acquire) {
            return Ok(Reservation(0));
        }
        self.reserve_room(lane, payload)
    }

    #[cold]
    fn reserve_room(&self, lane: &Lane, payload: usize) -> Result<Reservation, LogError> {
        let is_delayed = self.is_filling() && self.slow_down();
        // A log that has not begun has no room, however many segments are ready.
        let is_written = self.is_begun() || braid_rt::mutant!("prepare_before_the_log_begins");
        if payload > SMALL_PAYLOAD && lane.log_space.is_grown() && is_written {
            self.prepare_before_counting(lane, payload as u64);
        }
        let reservation = self.count_reservation(lane, payload);
        match self.make_room(lane, payload) {
            Ok(()) => Ok(reservation),
            Err(error) => {
                self.unreserve(lane.index, reservation);
                match error {
                    LogError::OutOfSpace { .. } => self.wait_for_space(lane, payload, is_delayed),
                    error => Err(error),
                }
            }
        }
    }

    /// Prepares the segments for a large commit before it is counted: once it is counted, and the
    /// lane lacks them, small commits prepare segments, too.
    fn prepare_before_counting(&self, lane: &Lane, payload: u64) {
        let bytes = worst_case(payload, self.options.slot_bytes);
        let wanted = || self.room(lane) < self.needed(lane, bytes);
        if wanted() {
            // The caller meets an error again.
            let _ = self.prepare_while_short(lane, payload, wanted);
        }
    }

    /// Counts the bytes of a pending commit, for which the caller then makes room.
    pub(crate) fn count_reservation(&self, lane: &Lane, payload: usize) -> Reservation {
        let bytes = match payload <= SMALL_PAYLOAD {
            true if lane.log_space.is_grown() => return Reservation(0),
            true => small_case(payload as u64),
            false => {
                let slot = lane.log_space.buffers(&self.options).slot_bytes;
                worst_case(payload as u64, slot)
            }
        };
        // Release: with the latch in `has_exact_room` and `has_grown`, every later check counts it.
        lane.log_space.reserved.fetch_add(bytes, Ordering::Release);
        Reservation(bytes)
    }

    /// Ends the part of a reservation that a stream no longer needs: `rest` of its payload bytes are
    /// not in the buffers yet.
    pub(crate) fn shrink_reservation(
        &self,
        lane: LaneId,
        reservation: &mut Reservation,
        rest: usize,
    ) {
        let slot = self.lanes[lane].log_space.buffers(&self.options).slot_bytes;
        let needed = worst_case(rest as u64, slot);
        let bytes = reservation.0.saturating_sub(needed);
        reservation.0 -= bytes;
        self.unreserve(lane, Reservation(bytes));
    }

    /// Whether other commits have reserved space in the lane.
    pub(crate) fn has_other_reservations(&self, lane: &Lane, own: Reservation) -> bool {
        // Acquire: pairs with `count_reservation`.
        lane.log_space.reserved.load(Ordering::Acquire) > own.0
    }

    /// Ends a reservation: the bytes are in the buffers, or no longer needed.
    #[inline]
    pub(crate) fn unreserve(&self, lane: LaneId, reservation: Reservation) {
        if reservation.0 > 0 {
            self.give_room_back(&self.lanes[lane], reservation.0);
        }
    }

    #[cold]
    fn give_room_back(&self, lane: &Lane, bytes: u64) {
        // Release: pairs with `has_exact_room`.
        lane.log_space.reserved.fetch_sub(bytes, Ordering::Release);
        self.refresh_space(lane);
    }

    /// Prepares segments until the lane has the room needed.
    #[cold]
    pub(crate) fn make_room(&self, lane: &Lane, payload: usize) -> Result<(), LogError> {
        loop {
            let made = self.try_make_room(lane, payload);
            let is_refused = matches!(made, Err(LogError::OutOfSpace { .. }));
            if !is_refused || !self.reclaim(lane) {
                return made;
            }
        }
    }

    /// Forgets refusals of the devices after space became free.
    pub(crate) fn retry_now(&self) {
        for lane in &self.lanes {
            *lane.log_space.refused.lock() = None;
        }
    }

    /// Deletes the released segments that other lanes keep for recycling. Returns whether there were
    /// any.
    fn reclaim(&self, lane: &Lane) -> bool {
        let (device, discard) = (&*self.device, self.options.discard);
        let others = self.lanes.iter().filter(|other| other.index != lane.index);
        let reclaimed =
            others.filter(|other| other.pool.give_up_free(device, discard, &self.quota));
        let is_space = reclaimed.count() > 0;
        if is_space {
            self.retry_now();
        }
        is_space
    }

    fn try_make_room(&self, lane: &Lane, payload: usize) -> Result<(), LogError> {
        if !self.is_begun() {
            self.begin()?;
        }
        let payload = payload as u64;
        if !self.has_grown(lane) {
            self.make_exact_room(lane, payload)?;
        }
        // The lane may have grown meanwhile without counting this reservation.
        if lane.log_space.is_grown() {
            self.make_room_above_margin(lane, payload)
        } else {
            Ok(())
        }
    }

    fn make_room_above_margin(&self, lane: &Lane, payload: u64) -> Result<(), LogError> {
        let is_short = || self.room(lane) < self.needed(lane, 0);
        if is_short() {
            self.prepare_while_short(lane, payload, is_short)
        } else {
            self.refresh_space(lane);
            Ok(())
        }
    }

    /// Prepares segments until all reserved and buffered bytes of a small lane have room.
    fn make_exact_room(&self, lane: &Lane, payload: u64) -> Result<(), LogError> {
        loop {
            let prepared = lane.pool.prepared();
            if self.has_exact_room(lane) {
                match self.options.flush_mode {
                    FlushMode::Background if self.is_comfortable(lane) => {}
                    FlushMode::Background => self.preparer.notify(),
                    FlushMode::Callers => self.prepare_to_grow(lane),
                }
                return Ok(());
            }
            self.prepare_while_short(lane, payload, || lane.pool.prepared() == prepared)?;
        }
    }

    /// Prepares the room of a grown lane once it is due, if no thread does so in the background. A
    /// log with a limit grows only as needed, so that files created ahead do not use up the limit.
    fn prepare_to_grow(&self, lane: &Lane) {
        let is_limited = self.options.max_log_bytes != 0;
        let least = self.options.grown_segment_bytes();
        let grows = || lane.pool.is_growing_to(least) && self.room(lane) < self.needed(lane, 0);
        if !is_limited && grows() {
            // Without this room, the lane stays small until log space is released.
            let _ = self.prepare_while_short(lane, 0, grows);
        }
    }

    fn has_exact_room(&self, lane: &Lane) -> bool {
        // Under the latch: bytes that leave the buffers take their room in the segment at the same
        // instant; and of two commits that reserve concurrently, the one that acquires the latch
        // later sees both reservations.
        let seal = lane.seal.lock();
        // Acquire, and before the buffers: bytes whose reservation has ended are in a buffer that
        // is read below.
        let reserved = lane.log_space.reserved.load(Ordering::Acquire);
        let buffered = if braid_rt::mutant!("forget_buffered_bytes") {
            0
        } else {
            let strands = lane.strands().map(|strand| self.strands[strand].lock());
            strands.map(|state| state.unsealed_bytes()).sum::<u64>()
        };
        let left = seal.segment.len.saturating_sub(seal.offset);
        let unit = self.options.unit_bytes(self.options.small_buffers());
        lane.pool.fits(reserved + buffered, left, unit)
    }

    /// Whether the lane has grown; records it as soon as it has.
    fn has_grown(&self, lane: &Lane) -> bool {
        if lane.log_space.is_grown() {
            return true;
        }
        let least = self.options.grown_segment_bytes();
        if !lane.pool.has_grown_to(least) || self.room(lane) < self.needed(lane, 0) {
            return false;
        }
        {
            // Under the latch: a reservation is counted above, or its commit finds the lane grown;
            // see `has_exact_room`.
            let _seal = lane.seal.lock();
            if self.room(lane) < self.needed(lane, 0) || !lane.pool.stay_grown() {
                return false;
            }
            lane.log_space.grown.store(true, Ordering::Release);
        }
        braid_rt::coverage_point("log: it has grown");
        let strands = lane.strands().map(|strand| &self.strands[strand]);
        strands.for_each(|strand| strand.grow(self.options.grown_buffers()));
        self.refresh_space(lane);
        true
    }

    /// Prepares segments while `wanted` returns true.
    fn prepare_while_short(
        &self,
        lane: &Lane,
        payload: u64,
        wanted: impl Fn() -> bool,
    ) -> Result<(), LogError> {
        self.prepare_with(lane, payload, || {
            let (device, options) = (&*self.device, &self.options);
            let needed = worst_case(payload, options.slot_bytes);
            lane.pool
                .prepare_while(device, options, &self.quota, needed, wanted)
        })
    }

    /// Has segments prepared for `payload` bytes, unless the device has just refused some.
    pub(super) fn prepare_with(
        &self,
        lane: &Lane,
        payload: u64,
        prepare: impl FnOnce() -> Result<bool, LogError>,
    ) -> Result<(), LogError> {
        let believed = self.options.flush_mode == FlushMode::Background
            && lane
                .log_space
                .refused
                .lock()
                .is_some_and(|at| braid_rt::now() - at < RETRY_AFTER);
        if believed {
            return Err(self.out_of_space(payload, true));
        }
        let outcome = prepare();
        if matches!(outcome, Ok(true)) {
            self.refresh_space(lane);
            return Ok(());
        }
        // Without notifying the preparing thread, which would be refused, too.
        self.refresh_short(lane);
        match outcome {
            Ok(_) => Err(self.out_of_space(payload, false)),
            Err(error) if error.is_storage_full() => {
                *lane.log_space.refused.lock() = Some(braid_rt::now());
                Err(self.out_of_space(payload, true))
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn out_of_space(&self, needed: u64, device_full: bool) -> LogError {
        self.quota.out_of_space(&self.options, needed, device_full)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use braid_io::MemoryDevice;

    use super::*;
    use crate::Log;

    /// Returns a log of at most 2 MiB.
    fn small(flush_mode: FlushMode) -> Log {
        let options = LogOptions {
            strands: 1,
            segment_bytes: 256 << 10,
            slot_bytes: 32 << 10,
            max_log_bytes: 2 << 20,
            flush_mode,
            ..LogOptions::default()
        };
        Log::create(Arc::new(MemoryDevice::new()), options).unwrap()
    }

    fn fill(log: &Log) {
        let error = loop {
            match log.append(&[&[1; 2_000]]) {
                Ok(ticket) => ticket.wait().unwrap(),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LogError::OutOfSpace { .. }), "{error}");
    }

    #[test]
    fn a_full_log_lets_the_preparing_thread_sleep() {
        let log = small(FlushMode::Callers);
        fill(&log);
        let core = log.core();
        assert!(!core.is_comfortable(&core.lanes[0]));
        let listener = core.preparer.listen();
        core.prepare_ahead();
        assert!(!listener.is_notified());
        drop(listener);
        let listener = core.preparer.listen();
        core.refresh_space(&core.lanes[0]);
        assert!(listener.is_notified());
    }

    #[test]
    fn a_lane_has_time_to_prepare_until_commits_need_the_file() {
        let options = LogOptions {
            strands: 1,
            segment_bytes: 256 << 10,
            slot_bytes: 32 << 10,
            flush_mode: FlushMode::Callers,
            ..LogOptions::default()
        };
        let log = Log::create(Arc::new(MemoryDevice::new()), options).unwrap();
        let (core, lane) = (log.core(), &log.core().lanes[0]);
        while !lane.log_space.is_grown() {
            log.append(&[&[1; 2_000]]).unwrap().wait().unwrap();
        }
        while !core.is_comfortable(lane) {
            core.prepare_ahead();
        }
        let whole = lane.pool.next_len();
        assert!(core.has_time_to_prepare(lane, whole));
        while core.has_time_to_prepare(lane, whole) {
            log.append(&[&[1; 2_000]]).unwrap().wait().unwrap();
        }
        // With half of the file written, commits may use as much of what is ready.
        assert!(core.has_time_to_prepare(lane, whole / 2));
        while core.has_time_to_prepare(lane, whole / 2) {
            log.append(&[&[1; 2_000]]).unwrap().wait().unwrap();
        }
        assert!(core.room(lane) > core.needed(lane, 0), "nobody waits yet");
    }

    #[test]
    fn the_fill_level_of_a_full_log_is_about_one() {
        for flush_mode in [FlushMode::Callers, FlushMode::Background] {
            let log = small(flush_mode);
            let core = log.core();
            assert!(core.fill() < 0.1);
            fill(&log);
            let fill = core.used_bytes() as f64 / core.capacity() as f64;
            assert!((0.9..=1.1).contains(&fill), "{flush_mode:?}: {fill}");
        }
    }
}
