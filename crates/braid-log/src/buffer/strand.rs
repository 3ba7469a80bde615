//! A strand: an append buffer of a few slots, one filling while the others are flushed.

use std::collections::VecDeque;
use std::ops::Index;
use std::sync::atomic::Ordering;
use std::time::Instant;

use braid_io::Device;
use braid_rt::{narrow, numa};
use crossbeam_utils::CachePadded;

use crate::base::callbacks::Action;
use crate::base::numbers::{GroupNo, LaneId, SeqNo, StrandId};
use crate::base::sync::{AtomicBool, AtomicU32, Counter, Latch, LatchGuard, spin_loop};
use crate::base::timing::Timing;
use crate::buffer::commit_slots::Unflushed;
use crate::buffer::consolidation::Consolidation;
use crate::buffer::shared_buffer::{Reservation, SharedBuffer};
use crate::format::chunk::CHUNK_HEADER;
use crate::format::log_record::{
    FragmentHeader, LogRecordHeader, LogRecordKind, RECORD_HEADER_MAX,
};
use crate::format::padding::Padding;
use crate::options::{BufferLimits, SLOTS_PER_STRAND};

/// Attempts to acquire a latch before a thread joins a group that waits for it: about the duration
/// of one append.
const TRIES: usize = if cfg!(all(test, loom)) { 1 } else { 32 };

/// Bytes of a slot that a log record's payload can't take.
const SLOT_OVERHEAD: usize = CHUNK_HEADER + RECORD_HEADER_MAX;

/// A buffer that becomes one chunk.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The room for the chunk header, then the log records.
    pub(crate) buf: SharedBuffer,
    id: usize,
    pub(crate) padding: Padding,
    /// Sequence number of the last log record, against which the next one's is encoded.
    previous: SeqNo,
    pub(crate) first: SeqNo,
    pub(crate) last: SeqNo,
    pub(crate) log_records: u32,
    pub(crate) payload: u64,
    /// The time of the first log record, if its flush is timed.
    pub(crate) opened: Option<Instant>,
    /// Whether there is a log record.
    is_opened: bool,
}

impl Slot {
    fn reset(&mut self) {
        self.buf.reset(CHUNK_HEADER);
        self.previous = SeqNo::NONE;
        self.first = SeqNo::MAX;
        self.last = SeqNo::NONE;
        self.log_records = 0;
        self.payload = 0;
        self.opened = None;
        self.is_opened = false;
    }

    /// Bytes on the medium, if the slot shares no unit of the device.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.padding.pad(self.buf.len())
    }

    /// Writes a log record, for which there is room.
    #[inline]
    fn write(&mut self, header: LogRecordHeader, payload: &[&[u8]]) {
        let previous = Some(self.previous);
        let most = RECORD_HEADER_MAX + header.payload_len;
        self.buf.append_with(most, |out| {
            let mut at = header.encode(previous, out);
            for part in payload {
                out[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            at
        });
    }

    /// Counts a log record with numbers.
    #[inline]
    fn add(&mut self, numbers: AssignedNumbers, payload_len: usize) {
        self.previous = numbers.last;
        self.first = self.first.min(numbers.first);
        self.last = self.last.max(numbers.last);
        self.count(payload_len);
    }

    /// Counts a log record.
    #[inline]
    fn count(&mut self, payload_len: usize) {
        self.log_records += 1;
        self.payload += payload_len as u64;
    }

    /// The least number in the slot; [`SeqNo::NONE`] if it holds parts of streams only.
    pub(crate) fn least(&self) -> SeqNo {
        match self.last {
            SeqNo::NONE => SeqNo::NONE,
            _ => self.first,
        }
    }
}

/// The numbers in a log record's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AssignedNumbers {
    /// The first number of the transaction.
    pub(crate) first: SeqNo,
    /// The sequence number, its last.
    pub(crate) last: SeqNo,
}

impl AssignedNumbers {
    /// The count of these numbers: one for each write of the transaction, which counts them in 32
    /// bits.
    #[inline]
    pub(crate) fn records(self) -> u32 {
        narrow(self.last.get() - self.first.get() + 1)
    }
}

/// A thread's request to the strand when it appends together with other threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    numbers: AssignedNumbers,
    payload_len: usize,
    /// Bytes of the whole log record.
    bytes: usize,
}

/// A thread's share: its part of a slot, and the flush group that will take it. `None` if the log
/// failed.
type Share = Option<(Reservation, GroupNo)>;

/// The part of a strand under its latch.
#[derive(Debug)]
pub(crate) struct StrandState {
    free: Vec<Slot>,
    active: Option<Slot>,
    full: VecDeque<Slot>,
    /// For each slot, the least number in it that is not durable; [`SeqNo::MAX`] if there is none.
    /// Unchanged while the slot is in flight.
    unflushed: [SeqNo; SLOTS_PER_STRAND],
    /// The flush group that will take the current appends.
    group: GroupNo,
    /// Actions to run once the groups that take these log records have assigned their number.
    on_numbered: Vec<(GroupNo, Action)>,
    /// The part of the slots that is used.
    limits: BufferLimits,
}

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
            .map(|id| {
                let mut slot = Slot {
                    buf: SharedBuffer::new(allocate()),
                    id,
                    padding: Padding::of(device),
                    previous: SeqNo::NONE,
                    first: SeqNo::NONE,
                    last: SeqNo::NONE,
                    log_records: 0,
                    payload: 0,
                    opened: None,
                    is_opened: false,
                };
                slot.reset();
                slot
            })
            .collect();
        let memory = free.iter().map(|slot| slot.buf.memory()).collect();
        Self {
            lane,
            memory,
            whole_record_bytes: braid_rt::atomic::AtomicUsize::new(used.slot_bytes - SLOT_OVERHEAD),
            state: Latch::new(StrandState {
                free,
                active: None,
                full: VecDeque::new(),
                unflushed: [SeqNo::MAX; SLOTS_PER_STRAND],
                group,
                on_numbered: Vec::new(),
                limits: used,
            }),
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
        let need = payload_len + RECORD_HEADER_MAX;
        let mut state = self.state.lock();
        if !state.make_room(need) {
            return None;
        }
        self.put(&mut state, numbers, kind, payload, payload_len);
        Some(state.group)
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
        payload: &[u8],
    ) -> Option<GroupNo> {
        let mut state = self.state.lock();
        if !state.make_room(payload.len() + RECORD_HEADER_MAX) {
            return None;
        }
        let Some(slot) = state.active.as_mut() else {
            unreachable!("there is room")
        };
        slot.buf
            .append_with(RECORD_HEADER_MAX + payload.len(), |out| {
                let at = header.encode(out);
                out[at..at + payload.len()].copy_from_slice(payload);
                at + payload.len()
            });
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
        slot.add(numbers, payload.len());
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
        slot.write(header, &[part]);
        slot.count(part.len());
        self.appended(&mut state);
        Some(part.len())
    }

    #[inline]
    fn put(
        &self,
        state: &mut StrandState,
        numbers: AssignedNumbers,
        kind: LogRecordKind,
        payload: &[&[u8]],
        payload_len: usize,
    ) {
        let Some(slot) = state.active.as_mut() else {
            unreachable!("the caller made room")
        };
        let header = LogRecordHeader {
            seqno: numbers.last,
            records: numbers.records(),
            kind,
            payload_len,
        };
        slot.write(header, payload);
        slot.add(numbers, payload_len);
        self.appended(state);
    }

    /// Updates the state after an append to the active slot.
    #[inline]
    fn appended(&self, state: &mut StrandState) {
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
    fn publish_unflushed(&self, state: &StrandState) {
        let least = state.unflushed.iter().copied().min();
        // Release: pairs with `oldest_unflushed`.
        self.unflushed
            .store(least.unwrap_or(SeqNo::MAX), Ordering::Release);
    }

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

impl StrandState {
    /// Ensures that the active slot has room for `bytes`. Returns `false` if there is no buffer
    /// space.
    #[inline]
    fn make_room(&mut self, bytes: usize) -> bool {
        self.has_room(bytes) || self.rotate()
    }

    #[inline]
    fn has_room(&self, bytes: usize) -> bool {
        let slot = self.active.as_ref();
        slot.is_some_and(|slot| slot.buf.room() >= bytes)
    }

    /// Makes a free slot the active one. Returns `false` if there is none.
    #[cold]
    fn rotate(&mut self) -> bool {
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

#[cfg(test)]
mod tests {
    use braid_io::MemoryDevice;

    use super::*;
    use crate::buffer::commit_slots::CommitSlots;

    fn strand() -> Strand {
        strand_with(SLOTS_PER_STRAND)
    }

    fn strand_with(slots: usize) -> Strand {
        let limits = BufferLimits {
            slot_bytes: 8192,
            slots,
        };
        Strand::new(
            &MemoryDevice::new(),
            LaneId::new(0),
            8192,
            limits,
            CommitSlots::new(SeqNo::NONE, 1, None).unflushed(StrandId::new(0)),
            GroupNo::new(1),
            None,
        )
    }

    /// On a machine with one node, all slots lie there; `scripts/guest-numa.sh` runs this on machines
    /// with several.
    #[test]
    fn slots_lie_on_the_strands_memory_node() {
        const SLOT: usize = 512 << 10;
        let limits = BufferLimits {
            slot_bytes: SLOT,
            slots: SLOTS_PER_STRAND,
        };
        for node in 0..numa::nodes() {
            let strand = Strand::new(
                &MemoryDevice::new(),
                LaneId::new(0),
                SLOT,
                limits,
                CommitSlots::new(SeqNo::NONE, 1, None).unflushed(StrandId::new(0)),
                GroupNo::new(1),
                Some(node),
            );
            // A flush owns one of them.
            assert!(append(&strand, 1, 1_000).is_some());
            let taken = strand.take(&mut strand.lock(), SLOT as u64);
            assert!(matches!(taken, Taken::Slot(_)));
            let mut bytes = vec![0; numa::nodes()];
            if !strand.count(&mut bytes) {
                eprintln!("skipped: the system does not tell where memory lies");
                return;
            }
            // A slot need not begin with a page of the system.
            let least = (SLOTS_PER_STRAND * SLOT) as u64 / 100 * 99;
            assert!(bytes[node] >= least, "node {node}: {bytes:?}");
        }
    }

    fn append(strand: &Strand, seqno: u64, len: usize) -> Option<GroupNo> {
        let payload = vec![7; len];
        let numbers = AssignedNumbers {
            first: SeqNo::new(seqno),
            last: SeqNo::new(seqno),
        };
        strand.try_append(numbers, LogRecordKind::Data, &[&payload], len)
    }

    #[test]
    fn fills_rotates_and_drains() {
        let strand = strand();
        assert!(!strand.is_dirty());
        let mut seqno = 0;
        while append(&strand, seqno + 1, 1000).is_some() {
            seqno += 1;
        }
        assert_eq!(seqno, 8 * SLOTS_PER_STRAND as u64);
        assert!(strand.is_dirty());
        assert_eq!(strand.oldest_unflushed().get(), 1);
        let mut taken = Vec::new();
        let mut state = strand.lock();
        assert!(matches!(strand.take(&mut state, 4096), Taken::TooLarge));
        while let Taken::Slot(slot) = strand.take(&mut state, 8192) {
            taken.push(slot);
        }
        drop(state);
        assert!(!strand.is_dirty());
        assert_eq!(taken.len(), SLOTS_PER_STRAND);
        assert_eq!(
            (
                taken[1].first.get(),
                taken[1].last.get(),
                taken[1].log_records
            ),
            (9, 16, 8)
        );
        // Still unflushed, and without room, until the slots are recycled.
        assert_eq!(strand.oldest_unflushed().get(), 1);
        assert_eq!(append(&strand, 100, 10), None);
        for slot in taken {
            strand.recycle(slot);
        }
        assert_eq!(strand.oldest_unflushed(), SeqNo::MAX);
        strand.lock().set_group(GroupNo::new(5));
        assert_eq!(append(&strand, 100, 10), Some(GroupNo::new(5)));
        assert_eq!(strand.oldest_unflushed().get(), 100);
    }

    #[test]
    fn no_more_slots_wait_for_a_flush_than_may() {
        let strand = strand_with(1);
        let mut seqno = 0;
        while append(&strand, seqno + 1, 1000).is_some() {
            seqno += 1;
        }
        assert_eq!(seqno, 8);
        let bytes = strand.lock().unsealed_bytes();
        assert!(bytes <= 8192, "{bytes}");
        // A slot in flight does not wait for a flush.
        let mut state = strand.lock();
        let Taken::Slot(slot) = strand.take(&mut state, 8192) else {
            panic!("the slot is taken");
        };
        drop(state);
        assert!(append(&strand, seqno + 1, 1000).is_some());
        strand.recycle(slot);
    }

    #[test]
    fn the_least_number_counts() {
        let strand = strand();
        append(&strand, 9, 10);
        append(&strand, 4, 10);
        append(&strand, 6, 10);
        assert_eq!(strand.oldest_unflushed().get(), 4);
    }
}
