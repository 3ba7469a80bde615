//! Appends by several threads at once, each of which copies its own bytes: the consolidation array
//! of `aether`.

use std::sync::atomic::Ordering;

use braid_rt::narrow;

use super::Strand;
use super::state::StrandState;
use crate::base::numbers::GroupNo;
use crate::base::sync::{LatchGuard, spin_loop};
use crate::buffer::shared_buffer::Reservation;
use crate::buffer::slot::AssignedNumbers;
use crate::format::log_record::{LogRecordHeader, RECORD_HEADER_MAX};

/// Attempts to acquire a latch before a thread joins a group that waits for it: about the duration
/// of one append.
const TRIES: usize = if cfg!(all(test, loom)) { 1 } else { 32 };

/// A thread's request to the strand when it appends together with other threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    numbers: AssignedNumbers,
    payload_len: usize,
    /// Bytes of the whole log record.
    bytes: usize,
}

/// A thread's share: its part of a slot, and the flush group that will take it. `None` if the log
/// failed.
pub(super) type Share = Option<(Reservation, GroupNo)>;

impl Strand {
    /// Whether contending threads append together.
    pub(crate) fn consolidates(&self) -> bool {
        self.consolidation.is_some()
    }

    /// Appends a log record that is not split, in a strand that [`Strand::consolidates`]. If there
    /// is no buffer space, `wait` must call its argument until that returns true, or the log has
    /// failed. Returns the group that will flush the log record; [`GroupNo::NONE`] if the log has
    /// failed.
    pub(crate) fn append_together(
        &self,
        hint: usize,
        header: LogRecordHeader,
        numbers: AssignedNumbers,
        payload: &[&[u8]],
        wait: impl Fn(&mut dyn FnMut() -> bool),
    ) -> GroupNo {
        let mut room = [0; RECORD_HEADER_MAX];
        // The previous log record is not known yet.
        let header_len = header.encode(None, &mut room);
        let request = Request {
            numbers,
            payload_len: header.payload_len,
            bytes: header_len + header.payload_len,
        };
        let Some((part, group)) = self.obtain(hint, request, wait) else {
            return GroupNo::NONE;
        };
        // In parallel with other threads, without the latch.
        let header = std::iter::once(&room[..header_len]);
        part.fill(header.chain(payload.iter().copied()));
        group
    }

    #[inline]
    fn obtain(
        &self,
        hint: usize,
        request: Request,
        wait: impl Fn(&mut dyn FnMut() -> bool),
    ) -> Share {
        if let Some(mut state) = self.try_lock() {
            let reserved = self.reserve(&mut state, &[request]);
            drop(state);
            return self.reserve_or_wait(reserved, &[request], wait);
        }
        self.obtain_together(hint, request, wait)
    }

    /// Returns the reservation, or waits for buffer space and reserves.
    #[inline]
    fn reserve_or_wait(
        &self,
        mut reserved: Share,
        requests: &[Request],
        wait: impl Fn(&mut dyn FnMut() -> bool),
    ) -> Share {
        if reserved.is_none() {
            wait(&mut || {
                reserved = self.reserve(&mut self.state.lock(), requests);
                reserved.is_some()
            });
        }
        reserved
    }

    #[inline(never)]
    fn obtain_together(
        &self,
        hint: usize,
        request: Request,
        wait: impl Fn(&mut dyn FnMut() -> bool),
    ) -> Share {
        let limit = narrow(self.whole_record_bytes() + RECORD_HEADER_MAX);
        let joined = self.consolidation.as_ref().map_or(Err(request), |array| {
            array.join(hint, request, narrow(request.bytes), limit)
        });
        let member = match joined {
            Ok(member) => member,
            Err(request) => {
                let reserved = self.reserve(&mut self.state.lock(), &[request]);
                return self.reserve_or_wait(reserved, &[request], wait);
            }
        };
        if member.leads() {
            let mut state = self.state.lock();
            let requests = member.close();
            let reserved = self.reserve(&mut state, &requests);
            drop(state);
            if requests.len() > 1 {
                let count = requests.len() as u64;
                self.consolidated.fetch_add(count, Ordering::Relaxed);
            }
            let mut reserved = self.reserve_or_wait(reserved, &requests, wait);
            member.serve(requests.iter().map(|request| {
                let (part, group) = reserved.as_mut()?;
                Some((part.split_front(request.bytes), *group))
            }));
        }
        member.share()
    }

    /// Acquires the latch unless it stays busy. (The paper tries once. A thread that joins a group
    /// waits until its leader has run, and a flush waits until all members have run: with more
    /// threads than cores this takes long.)
    fn try_lock(&self) -> Option<LatchGuard<'_, StrandState>> {
        (0..TRIES).find_map(|_| {
            let state = self.state.try_lock();
            if state.is_none() {
                spin_loop();
            }
            state
        })
    }

    /// Reserves room for the log records of several threads in the active slot. Returns `None` if
    /// there is no room.
    #[inline]
    fn reserve(&self, state: &mut StrandState, requests: &[Request]) -> Share {
        let bytes = requests.iter().map(|request| request.bytes).sum();
        if !state.make_room(bytes) {
            return None;
        }
        let slot = state.active.as_mut()?;
        let part = slot.buf.reserve(bytes);
        for request in requests {
            slot.add(request.numbers, request.payload_len);
        }
        self.appended(state);
        Some((part, state.group))
    }
}
