//! Log space is reserved before anything is drawn, so that a commit that was let in never fails for
//! lack of it.
//!
//! A lane lets entries in while it has more room ahead than all of its buffers and all small entries in
//! flight can still need. Large entries reserve their bytes on top.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::LogError;
use crate::core::Core;
use crate::entries::MAX_ENTRIES;
use crate::lane::Lane;
use crate::options::{BLOCK, FlushMode, LogOptions, SLOTS_PER_STRAND};
use crate::sync::{AtomicU64, Mutex};

/// Payload up to which an entry is covered by the margin.
const SMALL_PAYLOAD: usize = BLOCK;

/// How long a refusal of the device is believed before it is asked again.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Accounting of log space.
#[derive(Debug)]
pub(crate) struct SpaceState {
    /// Room every lane keeps for what is buffered and in flight.
    margin: u64,
    /// Bytes reserved by large entries in flight.
    reserved: AtomicU64,
    /// Lanes that are short.
    short_lanes: AtomicU64,
    /// When the device last refused a segment.
    refused: Mutex<Option<Instant>>,
}

/// Worst case on the medium of a payload that is flushed alone.
fn worst_case(payload: u64, options: &LogOptions) -> u64 {
    let slot = options.slot_bytes as u64;
    let block = BLOCK as u64;
    payload + (payload / (slot - block) + 2) * 2 * block
}

impl SpaceState {
    pub(crate) fn new(options: &LogOptions) -> Self {
        let strands = options.strands.div_ceil(options.lanes) as u64;
        let buffers = strands * SLOTS_PER_STRAND as u64 * options.slot_bytes as u64;
        // More small entries than this at once are slowed down by their number, not by space.
        let entries = MAX_ENTRIES.min(64) as u64 * worst_case(SMALL_PAYLOAD as u64, options);
        Self {
            margin: buffers + entries.min(2 * options.segment_bytes),
            reserved: AtomicU64::new(0),
            short_lanes: AtomicU64::new(0),
            refused: Mutex::new(None),
        }
    }

    /// The least `max_log_bytes` that lets entries in at all, with one segment to spare.
    pub(crate) fn least_log_bytes(options: &LogOptions) -> u64 {
        let usable = options.segment_bytes - (BLOCK + options.slot_bytes) as u64;
        let segments = Self::new(options).margin.div_ceil(usable) + 2;
        segments * options.lanes as u64 * options.segment_bytes
    }

    /// Forgets a refusal: space came free.
    pub(crate) fn retry_now(&self) {
        *self.refused.lock() = None;
    }
}

/// Reserved bytes; 0 for a small entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation(u64);

impl Core {
    /// Bytes the lane can take for sure, the ends of segments that a chunk does not fit into deducted.
    fn room(&self, lane: &Lane) -> u64 {
        if !self.is_begun() {
            return 0;
        }
        let slot = self.options.slot_bytes as u64;
        // Acquire: pairs with the sealing leader's store. A mix of old and new errs by one segment, which
        // was taken before the new rest was stored.
        let ready = lane.pool.ready();
        let left = lane.segment_left.load(Ordering::Acquire);
        let usable = self.options.segment_bytes - BLOCK as u64 - slot;
        left.saturating_sub(slot) + ready * usable
    }

    fn needed(&self, extra: u64) -> u64 {
        // Relaxed: every reservation checks again after it was added.
        self.space.margin + self.space.reserved.load(Ordering::Relaxed) + extra
    }

    /// Recomputes whether the lane is short. Called whenever room is used or made.
    pub(crate) fn refresh_space(&self, lane: &Lane) {
        let mut room = self.room(lane);
        loop {
            let short = room < self.needed(0);
            // SeqCst on a rarely written flag; entries read the sum.
            if lane.short.swap(short, Ordering::SeqCst) != short {
                if short {
                    self.space.short_lanes.fetch_add(1, Ordering::SeqCst);
                } else {
                    self.space.short_lanes.fetch_sub(1, Ordering::SeqCst);
                }
            }
            // Another thread may have stored an older finding after ours.
            let now = self.room(lane);
            if (now < self.needed(0)) == lane.short.load(Ordering::SeqCst) {
                break;
            }
            room = now;
        }
        if room < self.comfortable() {
            self.preparer.notify();
        }
    }

    /// The room the preparing thread keeps ahead: one segment more than needed.
    fn comfortable(&self) -> u64 {
        self.needed(self.options.segment_bytes)
    }

    /// Makes sure that an entry with so much payload will find log space.
    #[inline]
    pub(crate) fn reserve(&self, payload: usize) -> Result<Reservation, LogError> {
        if let Some(error) = self.poison() {
            return Err(error);
        }
        // Acquire: the common case, a line that is rarely written.
        if payload <= SMALL_PAYLOAD && self.space.short_lanes.load(Ordering::Acquire) == 0 {
            return Ok(Reservation(0));
        }
        self.reserve_room(payload)
    }

    fn reserve_room(&self, payload: usize) -> Result<Reservation, LogError> {
        if payload <= SMALL_PAYLOAD {
            self.make_room(payload)?;
            return Ok(Reservation(0));
        }
        let bytes = worst_case(payload as u64, &self.options);
        self.space.reserved.fetch_add(bytes, Ordering::Relaxed);
        let reservation = Reservation(bytes);
        match self.make_room(payload) {
            Ok(()) => Ok(reservation),
            Err(error) => {
                self.unreserve(reservation);
                Err(error)
            }
        }
    }

    /// Ends a reservation: the bytes are in the buffers, or not needed.
    #[inline]
    pub(crate) fn unreserve(&self, reservation: Reservation) {
        if reservation.0 > 0 {
            self.give_room_back(reservation.0);
        }
    }

    fn give_room_back(&self, bytes: u64) {
        self.space.reserved.fetch_sub(bytes, Ordering::Relaxed);
        self.lanes.iter().for_each(|lane| self.refresh_space(lane));
    }

    /// Prepares segments until all lanes have what is needed.
    #[cold]
    fn make_room(&self, payload: usize) -> Result<(), LogError> {
        if !self.is_begun() {
            self.begin()?;
        }
        for lane in &self.lanes {
            if self.room(lane) >= self.needed(0) {
                self.refresh_space(lane);
                continue;
            }
            self.prepare_while_short(lane, payload as u64, || self.needed(0))?;
        }
        Ok(())
    }

    fn prepare_while_short(
        &self,
        lane: &Lane,
        payload: u64,
        wanted: impl Fn() -> u64,
    ) -> Result<(), LogError> {
        let believed = self.options.flush_mode == FlushMode::Background
            && self
                .space
                .refused
                .lock()
                .is_some_and(|at| braid_rt::now() - at < RETRY_AFTER);
        if believed {
            return Err(self.out_of_space(payload, true));
        }
        let pool = &lane.pool;
        let outcome = pool.prepare_while(&*self.device, &self.options, &self.quota, || {
            self.room(lane) < wanted()
        });
        self.refresh_space(lane);
        match outcome {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.out_of_space(payload, false)),
            Err(error) if error.is_storage_full() => {
                *self.space.refused.lock() = Some(braid_rt::now());
                Err(self.out_of_space(payload, true))
            }
            Err(error) => Err(error),
        }
    }

    /// Prepares segments ahead of need and deletes released ones. Errors are left to whoever needs the
    /// space.
    pub(crate) fn prepare_ahead(&self) {
        if !self.is_begun() {
            return;
        }
        for lane in &self.lanes {
            let discard = self.options.discard;
            let _ = lane
                .pool
                .delete_retired(&*self.device, discard, &self.quota);
            if self.room(lane) < self.comfortable() {
                let _ = self.prepare_while_short(lane, 0, || self.comfortable());
            }
        }
    }

    pub(crate) fn out_of_space(&self, needed: u64, device_full: bool) -> LogError {
        self.quota.out_of_space(&self.options, needed, device_full)
    }
}
