//! A lane: one sequence of segments and one flush pipeline, shared by its strands.

use std::collections::BTreeMap;
use std::ops::{Index, Range};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid_io::{AlignedBuf, Device, MemoryDevice, OpenMode};
use braid_rt::narrow;
use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use crate::LogError;
use crate::base::event::{Event, GroupWords};
use crate::base::numbers::{FlushNo, GroupNo, LaneId, SeqNo, StrandId};
use crate::base::sync::{AtomicBool, AtomicU32, AtomicU64, Counter, Mutex};
use crate::buffer::slot::Slot;
use crate::flush::header::HeaderOrder;
use crate::flush::reservation::LaneSpace;
use crate::format::BLOCK;
use crate::format::checkpoint_position::LanePosition;
use crate::format::padding::Padding;
use crate::format::segment::{Segment, SegmentHeader};
use crate::options::LogOptions;
use crate::protocol::gwsn::{Flush, Ready};
use crate::segments::pool::SegmentPool;
use crate::segments::quota::Quota;
use crate::segments::state::PoolFiles;

/// Most log records in a flush that another flush may overlap.
const FEW_RECORDS: u32 = 2;

/// Bytes per log record from which on another flush may overlap a flush: its duration depends on
/// its bytes, which grouping does not reduce, and without overlap the device would idle between two
/// flushes.
const LARGE_RECORD: u64 = 8 << 10;

/// Time after a flush from which on commits in memory are rare enough for flushes of their own,
/// which take one or two microseconds.
pub(crate) const RARE: Duration = Duration::from_micros(4);

/// The place of the next chunk. Held by a leader while it seals.
#[derive(Debug)]
pub(crate) struct SealState {
    pub(crate) segment: Segment,
    /// The segment's header.
    pub(crate) header: SegmentHeader,
    pub(crate) header_order: HeaderOrder,
    pub(crate) offset: u64,
    /// Sequence number of the next chunk.
    pub(crate) chunk: u64,
    /// CRC of the last chunk.
    pub(crate) link: u32,
    /// See [`LaneEnd::unmarked`].
    pub(crate) unmarked: Vec<(u64, SegmentHeader)>,
    /// The next flush group.
    pub(crate) group: GroupNo,
}

impl SealState {
    /// The place of the next chunk.
    fn end(&self) -> DurableEnd {
        DurableEnd {
            segment: self.segment.sequence,
            offset: self.offset,
        }
    }

    /// Returns the end of the lane's log, for [`SealState::move_to`].
    pub(crate) fn position(&self) -> LaneEnd {
        LaneEnd {
            segment: self.segment.clone(),
            header: self.header.clone(),
            offset: self.offset,
            chunk: self.chunk,
            link: self.link,
            unmarked: self.unmarked.clone(),
        }
    }

    /// Continues at `end`.
    pub(crate) fn move_to(&mut self, end: LaneEnd) {
        self.segment = end.segment;
        self.header = end.header;
        self.header_order = HeaderOrder::written();
        self.offset = end.offset;
        self.chunk = end.chunk;
        self.link = end.link;
        self.unmarked = end.unmarked;
    }
}

/// The end of a lane's log when the log is created or recovered.
#[derive(Debug)]
pub(crate) struct LaneEnd {
    pub(crate) segment: Segment,
    /// The segment's header.
    pub(crate) header: SegmentHeader,
    pub(crate) offset: u64,
    /// Sequence number of the next chunk.
    pub(crate) chunk: u64,
    /// CRC of the last chunk.
    pub(crate) link: u32,
    /// Earlier segments without the mark of their successor, which a crash prevented, by number, with the
    /// marked headers.
    pub(crate) unmarked: Vec<(u64, SegmentHeader)>,
}

/// Most bytes of a chunk that is copied after another one, to share a unit of the device with it.
const SHARED_MAX: usize = 1 << 10;

/// A chunk on its way to the device.
#[derive(Debug)]
pub(crate) struct SealedChunk {
    pub(crate) strand: StrandId,
    pub(crate) slot: Slot,
    /// Whether the next chunk begins in the unit of the device in which this one ends.
    pub(crate) is_followed: bool,
}

impl SealedChunk {
    /// Adds the buffers that a flush writes: for chunks that follow each other in the units of the
    /// device, that of the first one, with the others copied into it.
    pub(crate) fn gather<'a>(mut chunks: &'a mut [Self], bufs: &mut SmallVec<[&'a [u8]; 4]>) {
        while let Some((first, rest)) = std::mem::take(&mut chunks).split_first_mut() {
            let (mut is_followed, mut followers) = (first.is_followed, 0);
            while is_followed {
                let next = &mut rest[followers];
                let len = next.slot.buf.len();
                let at = Padding::LEAST.pad(first.slot.buf.len());
                first
                    .slot
                    .buf
                    .append_at(at, &next.slot.buf.finished()[..len]);
                is_followed = next.is_followed;
                followers += 1;
            }
            let bytes = first.slot.chunk_bytes();
            first.slot.buf.pad(bytes);
            bufs.push(&first.slot.buf.finished()[..bytes]);
            chunks = &mut rest[followers..];
        }
    }
}

/// Where a flush last began a unit of the device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnitBegin {
    /// The index of the chunk.
    chunk: usize,
    offset: u64,
    /// Bytes of the chunks from there on, without the padding of the last one.
    bytes: usize,
}

/// The writes of a segment's first flush other than its chunks.
#[derive(Debug)]
pub(crate) struct FirstFlush {
    /// The header block, together with the chunks.
    pub(crate) header: AlignedBuf,
    pub(crate) header_order: HeaderOrder,
    /// The previous segment.
    pub(crate) before: Segment,
    pub(crate) before_order: HeaderOrder,
    /// The header block of the previous segment with the successor mark, written after the chunks.
    pub(crate) mark: AlignedBuf,
}

/// The chunks of one flush. Boxed, since it is moved often.
#[derive(Debug)]
pub(crate) struct FlushGroup {
    pub(crate) lane: LaneId,
    pub(crate) group: GroupNo,
    pub(crate) segment: Segment,
    pub(crate) offset: u64,
    /// The further writes, if this is its segment's first flush.
    pub(crate) first: Option<Box<FirstFlush>>,
    /// Few lanes have several strands with something to flush at the same time.
    pub(crate) chunks: SmallVec<[SealedChunk; 1]>,
    pub(crate) unit_begin: UnitBegin,
    /// The offset after the chunks.
    pub(crate) end: u64,
    pub(crate) last: SeqNo,
    /// The time at which the chunks were taken, if the flush is timed.
    pub(crate) sealed_at: Option<Instant>,
    /// The flush's number, if it has chunks and the protocol numbers flushes.
    pub(crate) flush: FlushNo,
}

impl FlushGroup {
    /// Makes this flush the first of a fresh segment, whose header it also writes.
    pub(crate) fn begin_segment(&mut self, first: Box<FirstFlush>, segment: &Segment) {
        self.first = Some(first);
        self.segment = segment.clone();
        self.offset = 0;
        self.end = BLOCK as u64;
    }

    /// Adds a chunk. A small one shares a unit of the device with the chunk before it, if the buffer
    /// that begins there has room: a flush of many strands writes few units.
    pub(crate) fn push(&mut self, strand: StrandId, slot: Slot) {
        let (unit, len) = (slot.padding, slot.buf.len());
        let begin = &mut self.unit_begin;
        let at = Padding::LEAST.pad(begin.bytes);
        let is_shared = unit != Padding::LEAST
            && len <= SHARED_MAX
            && (self.chunks.get(begin.chunk))
                .is_some_and(|first| first.slot.buf.has_room_at(at, len));
        if let Some(before) = self.chunks.last_mut().filter(|_| is_shared) {
            braid_rt::coverage_point("flush: chunks share a unit of the device");
            before.is_followed = true;
            begin.bytes = at + len;
        } else {
            *begin = UnitBegin {
                chunk: self.chunks.len(),
                offset: self.end,
                bytes: len,
            };
        }
        self.end = begin.offset + unit.pad(begin.bytes) as u64;
        self.chunks.push(SealedChunk {
            strand,
            slot,
            is_followed: false,
        });
    }

    /// Bytes on the medium.
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.offset
    }
}

impl Flush for Box<FlushGroup> {
    fn lane(&self) -> LaneId {
        self.lane
    }

    fn flush(&self) -> FlushNo {
        self.flush
    }
}

#[cfg(test)]
impl FlushGroup {
    /// A group without chunks, for tests.
    pub(crate) fn empty(group: GroupNo, flush: FlushNo) -> Box<Self> {
        use braid_io::{Device, MemoryDevice, OpenMode};
        let file = MemoryDevice::new().open("x", OpenMode::CreateNew);
        Box::new(Self {
            lane: LaneId::new(0),
            group,
            segment: Segment {
                sequence: 1,
                len: 0,
                file: file.expect("memory has room"),
            },
            offset: 0,
            first: None,
            chunks: SmallVec::new(),
            unit_begin: UnitBegin::default(),
            end: 0,
            last: SeqNo::new(group.get()),
            sealed_at: None,
            flush,
        })
    }
}

/// The position up to which a lane's chunks are durable without a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DurableEnd {
    /// Sequence number of the segment.
    pub(crate) segment: u64,
    pub(crate) offset: u64,
}

/// Finished writes, acknowledged in the order of their groups.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    end: DurableEnd,
    /// The last group that was acknowledged.
    acknowledged: GroupNo,
    /// Finished groups after one that is not finished.
    waiting: BTreeMap<GroupNo, Box<FlushGroup>>,
}

impl Completion {
    /// Creates the state in which no group is finished, and `end` is the place of the first.
    fn new(end: DurableEnd) -> Self {
        Self {
            end,
            ..Self::default()
        }
    }

    /// Returns the position up to which the chunks are durable. Everything that the durable seqno
    /// covers lies before it.
    pub(crate) fn end(&self) -> DurableEnd {
        self.end
    }

    /// Adds a finished group. Returns the groups that may now be acknowledged, in order.
    pub(crate) fn finish(&mut self, group: Box<FlushGroup>) -> Ready<Box<FlushGroup>> {
        assert!(
            group.group > self.acknowledged,
            "a flush group finishes once"
        );
        let mut ready = Ready::new();
        let mut next = Some(group);
        if let Some(early) = next.take_if(|group| group.group > self.acknowledged.next()) {
            let replaced = self.waiting.insert(early.group, early);
            assert!(replaced.is_none(), "a flush group finishes once");
        }
        while let Some(group) = next {
            self.acknowledged = group.group;
            if !group.chunks.is_empty() {
                self.end = DurableEnd {
                    segment: group.segment.sequence,
                    offset: group.end,
                };
            }
            ready.push(group);
            next = self.waiting.remove(&self.acknowledged.next());
        }
        ready
    }
}

/// Sums for [`LogStats`](crate::LogStats). All relaxed: they order nothing. Those from
/// `written_bytes` to `log_records` change only under the latch of the seal state.
#[derive(Debug, Default)]
pub(crate) struct LaneCounters {
    pub(crate) written_bytes: Counter,
    pub(crate) chunk_bytes: Counter,
    pub(crate) payload_bytes: Counter,
    pub(crate) flushes: Counter,
    pub(crate) chunks: Counter,
    pub(crate) log_records: Counter,
    pub(crate) buffer_waits: Counter,
    pub(crate) queue_nanos: Counter,
    pub(crate) write_nanos: Counter,
    pub(crate) notify_nanos: Counter,
}

impl LaneCounters {
    pub(crate) fn add(counter: &Counter, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    /// Adds to a counter that changes only under a latch, which the caller holds.
    pub(crate) fn add_latched(counter: &Counter, value: u64) {
        let sum = counter.load(Ordering::Relaxed) + value;
        counter.store(sum, Ordering::Relaxed);
    }
}

/// Whether another flush may overlap one with `log_records` log records and `bytes` bytes.
fn may_overlap(log_records: u32, bytes: u64) -> bool {
    log_records <= FEW_RECORDS || bytes >= u64::from(log_records) * LARGE_RECORD
}

/// A lane.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) index: LaneId,
    /// Its strands are `index`, `index + lanes`, `index + 2 * lanes`, ...
    pub(crate) strands: Range<usize>,
    pub(crate) step: usize,
    /// What the lane's files belong to, for messages; empty for the log's own lanes.
    pub(crate) owner: OnceLock<String>,
    /// Whether it is a side lane that has no log. Under loom, all lanes have one.
    absent: braid_rt::atomic::AtomicBool,
    pub(crate) seal: Mutex<SealState>,
    pub(crate) completion: Mutex<Completion>,
    /// Flushes in flight.
    in_flight: CachePadded<AtomicU32>,
    most_in_flight: u32,
    /// Whether another flush may overlap the one that began last.
    overlaps: AtomicBool,
    /// The last group that was sealed.
    sealed: AtomicU64,
    /// The last group whose chunks are durable and acknowledged in order.
    acknowledged: CachePadded<AtomicU64>,
    /// The words on which the waiters of each group sleep.
    pub(crate) groups: GroupWords,
    /// Notified when buffer space becomes free.
    pub(crate) space: Event,
    /// Whether a caller that does not block has requested a flush.
    pub(crate) wanted: CachePadded<AtomicBool>,
    /// Wakes the flusher thread.
    pub(crate) flusher: Event,
    /// When a flush began, or the flusher was needed, in nanoseconds since `created`; only where
    /// flushes take less time than to wake the flusher.
    busy: AtomicU64,
    created: Instant,
    pub(crate) pool: SegmentPool,
    /// Bytes left in the segment being written.
    pub(crate) segment_left: AtomicU64,
    /// On its own cache line: every pending commit reads it.
    pub(crate) log_space: CachePadded<LaneSpace>,
    pub(crate) counters: CachePadded<LaneCounters>,
}

impl Lane {
    pub(crate) fn new(index: LaneId, options: &LogOptions, at: LaneEnd, pool: SegmentPool) -> Self {
        let at_is_absent = at.header.sequence == LanePosition::ABSENT.segment;
        let seal = SealState {
            segment: at.segment,
            header: at.header,
            // A creation writes the first header before any flush.
            header_order: HeaderOrder::written(),
            offset: at.offset,
            chunk: at.chunk,
            link: at.link,
            unmarked: at.unmarked,
            // Groups are counted from 1.
            group: GroupNo::new(1),
        };
        let (strands, step) = options.strands_of(index);
        Self {
            index,
            strands,
            step,
            owner: OnceLock::new(),
            absent: braid_rt::atomic::AtomicBool::new(at_is_absent),
            segment_left: AtomicU64::new(seal.segment.len.saturating_sub(seal.offset)),
            completion: Mutex::new(Completion::new(seal.end())),
            seal: Mutex::new(seal),
            in_flight: CachePadded::new(AtomicU32::new(0)),
            most_in_flight: narrow(options.flushes_in_flight),
            overlaps: AtomicBool::new(true),
            sealed: AtomicU64::new(0),
            acknowledged: CachePadded::new(AtomicU64::new(0)),
            groups: GroupWords::new(),
            space: Event::default(),
            wanted: CachePadded::new(AtomicBool::new(false)),
            flusher: Event::default(),
            busy: AtomicU64::new(0),
            created: braid_rt::now(),
            pool,
            log_space: CachePadded::new(LaneSpace::new(options)),
            counters: CachePadded::new(LaneCounters::default()),
        }
    }

    /// Creates a side lane that has no log: no commit writes to it, and it has no files.
    pub(crate) fn absent(index: LaneId, options: &LogOptions) -> Result<Self, LogError> {
        let file = MemoryDevice::new().open("absent", OpenMode::CreateNew);
        let file = file.map_err(|error| LogError::io("cannot make room for a lane", error))?;
        let end = LaneEnd {
            segment: Segment {
                sequence: LanePosition::ABSENT.segment,
                len: 0,
                file,
            },
            header: SegmentHeader::absent(index),
            offset: 0,
            chunk: 1,
            link: 0,
            unmarked: Vec::new(),
        };
        let pool = SegmentPool::new(index, options, PoolFiles::default(), 1);
        Ok(Self::new(index, options, end, pool))
    }

    /// Whether the lane has no log.
    pub(crate) fn is_absent(&self) -> bool {
        // Acquire: pairs with `retire`.
        self.absent.load(Ordering::Acquire)
    }

    /// Gives the lane's log up: no commit writes to it any more, and nothing that it has is needed.
    /// The caller removes its files.
    pub(crate) fn retire(&self, quota: &Quota) {
        // Release: pairs with `is_absent`. Commits that are in their slots have left them, and later
        // ones see it.
        self.absent.store(true, Ordering::Release);
        self.pool.forget(quota);
    }

    /// Returns the place of the next chunk.
    pub(crate) fn place(&self) -> LanePosition {
        let seal = self.seal.lock();
        if self.is_absent() {
            return LanePosition::ABSENT;
        }
        LanePosition {
            segment: seal.segment.sequence,
            offset: seal.offset,
            chunk: seal.chunk,
            link: seal.link,
            incarnation: seal.header.incarnation,
        }
    }

    /// Continues at the segment that was just begun.
    pub(crate) fn begin_at(&self, seal: &SealState) {
        self.completion.lock().end = seal.end();
        self.segment_left
            .store(seal.segment.len - seal.offset, Ordering::Release);
    }

    /// Indices of the lane's strands.
    pub(crate) fn strands(&self) -> impl Iterator<Item = StrandId> {
        // `step_by` would divide first, which takes longer than the loop.
        let (mut next, end, step) = (self.strands.start, self.strands.end, self.step);
        std::iter::from_fn(move || {
            let strand = (next < end).then(|| StrandId::new(next));
            next += step;
            strand
        })
    }

    /// Whether a flush is in flight. `SeqCst`: see [`Lane::release`].
    pub(crate) fn is_flushing(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) > 0
    }

    /// Records that a flush begins, or the flusher is needed, at `now`. Returns whether that was long
    /// ago the last time, or is the first time.
    pub(crate) fn note_busy(&self, now: Instant) -> bool {
        let nanos = now.saturating_duration_since(self.created).as_nanos();
        let now = u64::try_from(nanos).unwrap_or(u64::MAX).max(1);
        // Relaxed: a hint.
        let last = self.busy.load(Ordering::Relaxed);
        self.busy.store(now, Ordering::Relaxed);
        last == 0 || u128::from(now.saturating_sub(last)) >= RARE.as_nanos()
    }

    /// Whether one more flush may begin alongside this many others.
    ///
    /// A second flush in flight pays when there is little to group: two threads then overlap their
    /// waits. With more waiters, a second flush only halves the groups and costs CPU. (Measured
    /// with 1 to 32 blocking threads: `examples/log_bench.rs`.) With large log records it keeps the
    /// device busy.
    fn admits(&self, others: u32) -> bool {
        // Relaxed: a hint. A thread that an old value refuses sleeps until an in-flight flush ends.
        others == 0 || (others < self.most_in_flight && self.overlaps.load(Ordering::Relaxed))
    }

    /// Records the number of log records and bytes of the flush that begins.
    pub(crate) fn set_last_flush(&self, log_records: u32, bytes: u64) {
        self.overlaps
            .store(may_overlap(log_records, bytes), Ordering::Relaxed);
    }

    /// Whether [`Lane::acquire`] might succeed. `SeqCst`: see [`Lane::release`].
    pub(crate) fn may_acquire(&self) -> bool {
        self.admits(self.in_flight.load(Ordering::SeqCst))
    }

    /// Acquires a permit to perform one flush.
    pub(crate) fn acquire(&self) -> bool {
        // SeqCst: see `release`.
        self.in_flight
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| {
                self.admits(n).then_some(n + 1)
            })
            .is_ok()
    }

    /// Releases the permit. The caller then looks for a thread to wake as the next leader.
    ///
    /// `SeqCst`, as are the announcements of waiters (group words, events, `wanted`) and their load
    /// of `in_flight` afterwards: either the waiter sees the permit free, or this thread sees the
    /// waiter.
    pub(crate) fn release(&self) {
        let before = self.in_flight.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "a permit is released once");
    }

    /// Records that a group is sealed. Called under the latch of the seal state.
    pub(crate) fn set_sealed(&self, group: GroupNo) {
        // Relaxed: a hint, see `is_being_written`.
        self.sealed.store(group.get(), Ordering::Relaxed);
    }

    /// Whether an in-flight or finished flush contains `group`: the group is then acknowledged, or
    /// the log poisoned, without further action. A stale answer is `false`, and costs at most a
    /// flush that could have waited.
    pub(crate) fn is_being_written(&self, group: GroupNo) -> bool {
        group != GroupNo::NONE && self.sealed.load(Ordering::Relaxed) >= group.get()
    }

    /// Whether all of `group` is durable and acknowledged in order.
    pub(crate) fn is_acknowledged(&self, group: GroupNo) -> bool {
        // SeqCst: pairs with `acknowledge`; the caller announced itself in the group's word before.
        self.acknowledged.load(Ordering::SeqCst) >= group.get()
    }

    /// Marks a group and wakes its waiters.
    pub(crate) fn acknowledge(&self, group: GroupNo) {
        // SeqCst: before the load of the group's word, see `is_acknowledged`. `fetch_max`, because
        // two leaders may get here in either order.
        self.acknowledged.fetch_max(group.get(), Ordering::SeqCst);
        self.groups.finish(group);
    }
}

impl Index<LaneId> for [Lane] {
    type Output = Lane;

    #[inline]
    fn index(&self, lane: LaneId) -> &Lane {
        &self[lane.get()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_overlap_where_grouping_saves_nothing() {
        assert!(may_overlap(2, 4_096), "two waiters");
        assert!(!may_overlap(1_000, 130_000), "many small ones go together");
        assert!(
            may_overlap(8, 8 * 65_600),
            "many large ones keep the device busy"
        );
    }

    #[test]
    fn commits_are_rare_that_come_a_while_after_each_other() {
        let log = crate::Log::create(
            std::sync::Arc::new(braid_io::MemoryDevice::new()),
            LogOptions::default(),
        );
        let log = log.unwrap();
        let lane = &log.core().lanes[0];
        let at = |nanos| lane.note_busy(lane.created + Duration::from_nanos(nanos));
        let rare = [0, 1, 2_000, 6_000, 9_999, 14_000].map(at);
        assert_eq!(rare, [true, false, false, true, false, true]);
        let before = lane.note_busy(lane.created);
        assert!(!before, "the clock of another processor may lag");
    }

    #[test]
    fn groups_are_acknowledged_in_order() {
        let mut completion = Completion::default();
        let mut finish = |n| {
            completion
                .finish(FlushGroup::empty(GroupNo::new(n), FlushNo::NONE))
                .iter()
                .map(|g| g.group.get())
                .collect::<Vec<_>>()
        };
        assert_eq!(finish(2), [0; 0]);
        assert_eq!(finish(3), [0; 0]);
        assert_eq!(finish(1), [1, 2, 3]);
        assert_eq!(finish(4), [4]);
    }
}
