//! A strand: an append buffer of a few slots, one filling while the others are flushed.

mod append;
mod state;
#[cfg(test)]
mod tests;
mod together;

use std::ops::Index;
use std::sync::atomic::Ordering;

use braid_io::Device;
use braid_rt::numa;
use crossbeam_utils::CachePadded;

pub(crate) use self::state::StrandState;
use self::together::{Request, Share};
use crate::base::callbacks::Action;
use crate::base::numbers::{GroupNo, LaneId, SeqNo, StrandId};
use crate::base::sync::{AtomicBool, AtomicU32, Counter, Latch, LatchGuard};
use crate::base::timing::Timing;
use crate::buffer::commit_slots::Unflushed;
use crate::buffer::consolidation::Consolidation;
use crate::buffer::slot::{SLOT_OVERHEAD, Slot};
use crate::format::padding::Padding;
use crate::options::{BufferLimits, SLOTS_PER_STRAND};

/// A strand.
#[derive(Debug)]
pub(crate) struct Strand {
    pub(crate) lane: LaneId,
    /// See [`Strand::whole_record_bytes`]. It orders nothing, so loom does not model it.
    whole_record_bytes: braid_rt::atomic::AtomicUsize,
    state: Latch<StrandState>,
    /// The least number in `state.unflushed`, for threads without the latch.
    unflushed: Unflushed,
    /// Whether there are bytes that no flush has taken.
    dirty: AtomicBool,
    /// The flushes for which the time of the first log record is read.
    timing: Timing,
    /// Asynchronous commits since the last full group, if there are groups.
    pub(crate) in_group: AtomicU32,
    /// The consolidation array, if contending threads append together.
    consolidation: Option<Consolidation<Request, Share>>,
    /// Log records that were appended together with others.
    pub(crate) consolidated: Counter,
    /// The slots' addresses and lengths, to count their bytes while flushes own them.
    memory: Box<[(usize, usize)]>,
}

impl Strand {
    /// Creates a strand with slots of `slot_bytes`, of which `used` are used until the strand
    /// [grows](Strand::grow). The slots lie on the memory node `node`, if there is one.
    pub(crate) fn new(
        device: &dyn Device,
        lane: LaneId,
        slot_bytes: usize,
        used: BufferLimits,
        unflushed: Unflushed,
        group: GroupNo,
        node: Option<usize>,
    ) -> Self {
        let allocate = || {
            let mut buf = device.allocate(slot_bytes);
            if let Some(node) = node {
                buf.place(node);
            }
            buf
        };
        let free: Vec<Slot> = (0..SLOTS_PER_STRAND)
            .rev()
            .map(|id| Slot::new(id, allocate(), Padding::of(device)))
            .collect();
        let memory = free.iter().map(|slot| slot.buf.memory()).collect();
        Self {
            lane,
            memory,
            whole_record_bytes: braid_rt::atomic::AtomicUsize::new(used.slot_bytes - SLOT_OVERHEAD),
            state: Latch::new(StrandState::new(free, group, used)),
            unflushed,
            dirty: AtomicBool::new(false),
            timing: Timing::of(false),
            in_group: AtomicU32::new(0),
            consolidation: None,
            consolidated: Counter::new(0),
        }
    }

    /// Adds the bytes of the slots on each memory node. Returns whether the system told it.
    pub(crate) fn count(&self, bytes: &mut [u64]) -> bool {
        let mut slots = self.memory.iter();
        // Only the system gets the addresses.
        slots.all(|(start, len)| numa::count(std::ptr::without_provenance(*start), *len, bytes))
    }

    /// Selects the flushes that are timed.
    pub(crate) fn timed(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }

    /// Makes contending threads append together.
    pub(crate) fn consolidating(self) -> Self {
        Self {
            consolidation: Some(Consolidation::new()),
            ..self
        }
    }

    /// Payload bytes up to which a log record is never split. Grows only.
    #[inline]
    pub(crate) fn whole_record_bytes(&self) -> usize {
        // Relaxed: an old value only splits a record needlessly.
        self.whole_record_bytes.load(Ordering::Relaxed)
    }

    /// Uses more of the slots from here on.
    pub(crate) fn grow(&self, limits: BufferLimits) {
        let mut state = self.state.lock();
        state.limits = limits;
        // Under the latch: a slot that becomes active after the new value is read has the room.
        self.whole_record_bytes
            .store(limits.slot_bytes - SLOT_OVERHEAD, Ordering::Relaxed);
    }

    /// Whether there are bytes that no flush has taken. `SeqCst`: a waiter that announced itself
    /// reads this, and a thread that frees a flush permit reads the announcement.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::SeqCst)
    }

    /// Returns the least number that is not durable, or [`SeqNo::MAX`]. Covers every log
    /// record whose commit the caller has seen leave its slot.
    #[inline]
    pub(crate) fn oldest_unflushed(&self) -> SeqNo {
        // Acquire: pairs with `publish_unflushed`. A commit appends before it leaves its slot.
        self.unflushed.load(Ordering::Acquire)
    }

    /// The least number that no flush has taken; [`SeqNo::MAX`] if there is none.
    pub(crate) fn oldest_unsealed(&self) -> SeqNo {
        let state = self.state.lock();
        let slots = state.full.iter().chain(&state.active);
        slots.map(|slot| slot.first).min().unwrap_or(SeqNo::MAX)
    }

    /// Keeps `action` until `group` has its number. Returns the action if the group already has its
    /// number.
    pub(crate) fn when_numbered(&self, group: GroupNo, action: Action) -> Option<Action> {
        let mut state = self.state.lock();
        if state.group > group {
            return Some(action);
        }
        state.on_numbered.push((group, action));
        None
    }

    /// Returns the flush group that takes the current appends.
    pub(crate) fn open_group(&self) -> GroupNo {
        self.state.lock().group
    }

    pub(crate) fn lock(&self) -> LatchGuard<'_, StrandState> {
        self.state.lock()
    }

    /// Takes the oldest slot with contents, if its size on the medium is at most `room`.
    pub(crate) fn take(&self, state: &mut StrandState, room: u64) -> Taken {
        let next = state
            .full
            .front()
            .or(state.active.as_ref().filter(|slot| slot.log_records > 0));
        let Some(size) = next.map(|slot| slot.chunk_bytes() as u64) else {
            // SeqCst: see `is_dirty`. Under the latch, so no append is missed.
            self.dirty.store(false, Ordering::SeqCst);
            return Taken::Nothing;
        };
        if size > room {
            return Taken::TooLarge;
        }
        match state.full.pop_front().or_else(|| state.active.take()) {
            Some(slot) => Taken::Slot(slot),
            None => Taken::Nothing,
        }
    }

    /// Recycles a slot whose chunk is durable and acknowledged in order.
    pub(crate) fn recycle(&self, mut slot: Slot) {
        slot.reset();
        let mut state = self.state.lock();
        state.unflushed[slot.id] = SeqNo::MAX;
        self.publish_unflushed(&state);
        state.free.push(slot);
    }
}

impl Index<StrandId> for [CachePadded<Strand>] {
    type Output = Strand;

    #[inline]
    fn index(&self, strand: StrandId) -> &Strand {
        &self[strand.get()]
    }
}

/// The result of [`Strand::take`].
#[derive(Debug)]
pub(crate) enum Taken {
    /// A slot.
    Slot(Slot),
    /// The oldest slot does not fit.
    TooLarge,
    /// No slot has contents.
    Nothing,
}
