//! The part of a strand under its latch: which slot is filled, and which wait.

use std::collections::VecDeque;

use crate::base::callbacks::Action;
use crate::base::numbers::{GroupNo, SeqNo};
use crate::buffer::slot::Slot;
use crate::options::{BufferLimits, SLOTS_PER_STRAND};

/// The part of a strand under its latch.
#[derive(Debug)]
pub(crate) struct StrandState {
    pub(super) free: Vec<Slot>,
    pub(super) active: Option<Slot>,
    pub(super) full: VecDeque<Slot>,
    /// For each slot, the least number in it that is not durable; [`SeqNo::MAX`] if there is none.
    /// Unchanged while the slot is in flight.
    pub(super) unflushed: [SeqNo; SLOTS_PER_STRAND],
    /// The flush group that will take the current appends.
    pub(super) group: GroupNo,
    /// Actions to run once the groups that take these log records have assigned their number.
    pub(super) on_numbered: Vec<(GroupNo, Action)>,
    /// The part of the slots that is used.
    pub(super) limits: BufferLimits,
}

impl StrandState {
    /// Creates the state of a strand whose slots are all free.
    pub(super) fn new(free: Vec<Slot>, group: GroupNo, limits: BufferLimits) -> Self {
        StrandState {
            free,
            active: None,
            full: VecDeque::new(),
            unflushed: [SeqNo::MAX; SLOTS_PER_STRAND],
            group,
            on_numbered: Vec::new(),
            limits,
        }
    }

    /// Ensures that the active slot has room for `bytes`. Returns `false` if there is no buffer
    /// space.
    #[inline]
    pub(super) fn make_room(&mut self, bytes: usize) -> bool {
        self.has_room(bytes) || self.rotate()
    }

    #[inline]
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let slot = self.active.as_ref();
        slot.is_some_and(|slot| slot.buf.room() >= bytes)
    }

    /// Makes a free slot the active one. Returns `false` if there is none.
    #[cold]
    pub(super) fn rotate(&mut self) -> bool {
        let waiting = self.full.len() + usize::from(self.active.is_some());
        if waiting >= self.limits.slots {
            return false;
        }
        let Some(mut slot) = self.free.pop() else {
            return false;
        };
        slot.buf.limit(self.limits.slot_bytes);
        if let Some(full) = self.active.replace(slot) {
            self.full.push_back(full);
        }
        true
    }

    /// Bytes on the medium of all that no flush has taken.
    pub(crate) fn unsealed_bytes(&self) -> u64 {
        let active = self.active.iter().filter(|slot| slot.log_records > 0);
        let slots = self.full.iter().chain(active);
        slots.map(|slot| slot.chunk_bytes() as u64).sum()
    }

    /// Removes and returns the actions of groups before `group`, which have their numbers.
    pub(crate) fn take_numbered(&mut self, group: GroupNo) -> impl Iterator<Item = Action> {
        let due = self.on_numbered.extract_if(.., |(of, _)| *of < group);
        due.map(|(_, action)| action)
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// Sets the flush group that will take all further appends.
    pub(crate) fn set_group(&mut self, group: GroupNo) {
        self.group = group;
    }
}
