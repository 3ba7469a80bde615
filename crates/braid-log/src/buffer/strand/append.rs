//! Appends by one thread: whole log records, fragments, and parts of streams.

use std::sync::atomic::Ordering;

use super::Strand;
use super::state::StrandState;
use crate::base::numbers::{GroupNo, SeqNo};
use crate::buffer::slot::{AssignedNumbers, Slot};
use crate::format::log_record::{
    FragmentHeader, LogRecordHeader, LogRecordKind, RECORD_HEADER_MAX,
};
use crate::options::SLOTS_PER_STRAND;

impl Strand {
    /// Appends a log record that is not split. Returns the group that will flush it, or `None` if
    /// there is no buffer space for now.
    #[inline]
    pub(crate) fn try_append(
        &self,
        numbers: AssignedNumbers,
        kind: LogRecordKind,
        payload: &[&[u8]],
        payload_len: usize,
    ) -> Option<GroupNo> {
        // Within the latch, so that no register keeps the header meanwhile.
        let encode = |previous, out: &mut [u8]| {
            let header = LogRecordHeader {
                seqno: numbers.last,
                records: numbers.records(),
                kind,
                payload_len,
            };
            header.encode(Some(previous), out)
        };
        self.try_append_with(numbers, encode, payload, payload_len)
    }

    /// Appends the fragment of a transaction whose first number is `first`, as
    /// [`Strand::try_append`] does.
    ///
    /// I13: until the fragment is durable, the whole transaction counts as not durable, so that no
    /// durable seqno divides it.
    pub(crate) fn try_append_fragment(
        &self,
        header: FragmentHeader,
        first: SeqNo,
        payload: &[&[u8]],
    ) -> Option<GroupNo> {
        let own = SeqNo::new(header.seqno.get() + 1 - u64::from(header.records));
        let mut numbers = AssignedNumbers {
            first,
            last: header.seqno,
        };
        if braid_rt::mutant!("divide_transactions") {
            numbers.first = own;
        }
        if braid_rt::mutant!("acknowledge_after_the_first_part") && header.rest.before > 0 {
            numbers.first = SeqNo::MAX;
        }
        // The number of a fragment stands alone.
        let encode = |_, out: &mut [u8]| header.encode(out);
        self.try_append_with(numbers, encode, payload, header.payload_len)
    }

    /// Appends a log record whose header `encode` makes.
    #[inline]
    fn try_append_with(
        &self,
        numbers: AssignedNumbers,
        encode: impl FnOnce(SeqNo, &mut [u8]) -> usize,
        payload: &[&[u8]],
        payload_len: usize,
    ) -> Option<GroupNo> {
        let mut state = self.state.lock();
        if !state.make_room(payload_len + RECORD_HEADER_MAX) {
            return None;
        }
        let Some(slot) = state.active.as_mut() else {
            unreachable!("there is room")
        };
        slot.write(encode, payload, payload_len);
        slot.add(numbers, payload_len);
        self.appended(&mut state);
        Some(state.group)
    }

    /// Appends a part of a stream: as much of `payload`, which begins at `offset` of the stream, as
    /// the current slot holds, at least one byte. Returns the bytes taken, or `None` if there is no
    /// buffer space for now. Leaves the slots after the next one to other commits.
    pub(crate) fn try_append_part(
        &self,
        stream: u64,
        offset: u64,
        payload: &[u8],
    ) -> Option<usize> {
        let mut state = self.state.lock();
        let may_rotate = state.full.is_empty() || state.limits.slots < SLOTS_PER_STRAND;
        let has_room = state.has_room(RECORD_HEADER_MAX + 1);
        if !has_room && (!may_rotate || !state.rotate()) {
            return None;
        }
        let slot = state.active.as_mut()?;
        let part = &payload[..payload.len().min(slot.buf.room() - RECORD_HEADER_MAX)];
        let header = LogRecordHeader {
            seqno: SeqNo::NONE,
            records: 0,
            kind: LogRecordKind::Part { stream, offset },
            payload_len: part.len(),
        };
        let encode = |previous, out: &mut [u8]| header.encode(Some(previous), out);
        slot.write(encode, &[part], part.len());
        slot.count(part.len());
        self.appended(&mut state);
        Some(part.len())
    }

    /// Updates the state after an append to the active slot.
    #[inline]
    pub(super) fn appended(&self, state: &mut StrandState) {
        let Some(slot) = state.active.as_mut() else {
            return;
        };
        let changed = state.unflushed[slot.id] != slot.first;
        state.unflushed[slot.id] = slot.first;
        if !slot.is_opened {
            self.opened(slot, state.group);
        }
        if changed && !braid_rt::mutant!("forget_unflushed_numbers") {
            self.publish_unflushed(state);
        }
    }

    /// Updates the state after the first log record of a slot.
    #[cold]
    fn opened(&self, slot: &mut Slot, group: GroupNo) {
        slot.is_opened = true;
        slot.opened = self.timing.read(group);
        // SeqCst: see `is_dirty`.
        self.dirty.store(true, Ordering::SeqCst);
    }

    /// Publishes the least number that is not durable, after it may have changed.
    pub(super) fn publish_unflushed(&self, state: &StrandState) {
        let least = state.unflushed.iter().copied().min();
        // Release: pairs with `oldest_unflushed`.
        self.unflushed
            .store(least.unwrap_or(SeqNo::MAX), Ordering::Release);
    }
}
