//! A reader of the log in the order of its numbers while the log is written.
//!
//! Strands write their log records to chunks in any order, and lanes advance at different speeds.
//! The durable seqno in each chunk restores the order: everything up to it was durable when the
//! chunk was sealed, so it lies in earlier chunks. Once every lane was read to a chunk with a
//! durable seqno of at least `h`, all log records up to `h` were read. A lane that was read to its
//! durable end holds everything up to the current durable seqno.
//!
//! After the end of an incarnation, the next one's header says which part of it is kept, as in
//! recovery. Every transaction handed out is durable and is kept forever.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use braid_io::AlignedBuf;
use braid_rt::to_usize;

use crate::LogError;
use crate::base::numbers::{FlushNo, LaneId, SeqNo};
use crate::flush::core::Core;
use crate::flush::lane::{DurableEnd, Lane};
use crate::format::BLOCK;
use crate::format::checkpoint_position::{CheckpointPosition, LanePosition};
use crate::format::chunk::{CHUNK_HEADER, ChunkHeader};
use crate::format::log_record::{LogRecordKind, LogRecords, Rest};
use crate::format::segment::{Segment, SegmentHeader, segment_name};
use crate::protocol::kind::ProtocolKind;
use crate::protocol::{Kept, Protocol};
use crate::recovery::items::LogRecord;
use crate::recovery::reader::Expected;

/// Bytes read at once, at most, beyond what a single chunk takes.
const WINDOW: usize = 256 << 10;

/// A transaction that was read and waits for its predecessors.
struct Waiting {
    flush: FlushNo,
    records: u32,
    payload: Vec<u8>,
    /// The rest of the transaction, if this is a fragment of it.
    rest: Rest,
}

/// The contents of the first header of an incarnation.
struct Begun {
    base: SeqNo,
    kept: Vec<u64>,
    protocol: &'static dyn Protocol,
}

/// Reads the transactions of a running log in the order of their numbers; see
/// [`Log::tail`](crate::Log::tail).
pub struct TailReader {
    core: Arc<Core>,
    lanes: Vec<Cursor>,
    /// The incarnation whose transactions are handed out.
    incarnation: u32,
    begun: BTreeMap<u32, Begun>,
    /// Transactions of this incarnation that were read and not yet handed out.
    waiting: BTreeMap<SeqNo, Waiting>,
    /// Everything up to here was handed out.
    done: SeqNo,
    /// The number at which the reader began: it ignores everything up to here.
    from: SeqNo,
}

impl fmt::Debug for TailReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TailReader")
            .field("incarnation", &self.incarnation)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

/// A place in a lane.
struct Cursor {
    lane: LaneId,
    segment: Segment,
    offset: u64,
    next: Expected,
    /// The first chunk of the next incarnation, if that continues after this segment. Chunks of
    /// this segment from there on are ignored: another process may be writing them.
    end: Option<u64>,
    /// Every log record of the lane up to this number was read.
    durable_seqno: SeqNo,
    /// The bytes of streams without a commit record, by number.
    streams: HashMap<u64, Vec<u8>>,
    window: AlignedBuf,
    window_at: u64,
    window_len: usize,
}

impl TailReader {
    /// See [`Log::tail`](crate::Log::tail).
    pub(crate) fn new(core: &Arc<Core>, start: &CheckpointPosition) -> Result<Self, LogError> {
        if !core.options.fit(start) {
            return Err(LogError::Incompatible {
                what: "cannot read the log: the position has another number of lanes; use a position of this log".to_owned(),
            });
        }
        let mut tail = Self {
            core: Arc::clone(core),
            lanes: Vec::new(),
            incarnation: u32::MAX,
            begun: BTreeMap::new(),
            waiting: BTreeMap::new(),
            done: start.seqno,
            from: start.seqno,
        };
        // The contents that the headers of this incarnation have, or will have.
        tail.begun.insert(
            core.incarnation,
            Begun {
                base: core.base,
                kept: core.kept.clone(),
                protocol: core.protocol,
            },
        );
        for lane in core.lanes.iter().filter(|lane| !lane.is_absent()) {
            let position = tail.position_in(lane, start)?;
            let cursor = tail.open(lane.index, &position, start.seqno)?;
            tail.incarnation = tail.incarnation.min(position.incarnation);
            tail.lanes.push(cursor);
        }
        Ok(tail)
    }

    /// Returns the place in a lane from which the reader reads: if the lane had no log at `start`,
    /// its first chunk.
    fn position_in(
        &self,
        lane: &Lane,
        start: &CheckpointPosition,
    ) -> Result<LanePosition, LogError> {
        let position = start.lane(lane.index);
        if !position.is_absent() {
            return Ok(position);
        }
        let first = self.segment(lane.index, 1)?;
        let header = self.header(lane.index, &first)?;
        Ok(LanePosition {
            segment: header.sequence,
            offset: BLOCK as u64,
            chunk: header.first_chunk,
            link: header.link,
            incarnation: header.incarnation,
        })
    }

    fn cursor(&mut self, lane: LaneId) -> &mut Cursor {
        let found = self.lanes.iter_mut().find(|cursor| cursor.lane == lane);
        found.expect("the lane of a cursor")
    }

    /// Calls `f` for each transaction that became durable, in the order of the numbers, until there
    /// are no more or they hold more than about `bytes`. Returns the number up to which all were
    /// handed out, which is the [durable seqno](crate::Log::durable_seqno) if there were no more.
    ///
    /// # Errors
    /// [`LogError::Released`] if the log was released before it was read, [`LogError::Corrupted`]
    /// or [`LogError::Io`]. The reader must then be dropped.
    pub fn read(
        &mut self,
        bytes: usize,
        f: &mut dyn FnMut(LogRecord<'_>),
    ) -> Result<SeqNo, LogError> {
        let idle = !self.core.is_begun();
        // In this order: everything that the durable seqno covers lies before the ends that are
        // read after it.
        let durable_seqno = if braid_rt::mutant!("tail_beyond_the_durable_seqno") {
            self.core.commit_slots.last_seqno()
        } else {
            self.core.durable_seqno()
        };
        let ends: Vec<DurableEnd> = self
            .core
            .lanes
            .iter()
            .map(|lane| lane.completion.lock().end())
            .collect();
        let mut room = bytes;
        loop {
            // If nothing was written since the log was opened, an end is the end of its
            // incarnation.
            let is_past = |cursor: &Cursor| {
                cursor.next.incarnation > self.incarnation
                    || idle && cursor.is_at(ends[cursor.lane.get()])
            };
            if self.incarnation < self.core.incarnation && self.lanes.iter().all(is_past) {
                if !self.end_incarnation(&mut room, f)? {
                    return Ok(self.done);
                }
                continue;
            }
            let settled = |cursor: &Cursor| {
                if cursor.is_at(ends[cursor.lane.get()]) {
                    durable_seqno
                } else {
                    cursor.durable_seqno
                }
            };
            let current = self.incarnation;
            let here = |cursor: &&Cursor| cursor.next.incarnation <= current;
            let to = self.lanes.iter().filter(here).map(settled).min();
            let to = to.unwrap_or(durable_seqno);
            // A chunk of a log that another process writes may have a durable seqno greater than
            // this log's base.
            let most = if current < self.core.incarnation {
                self.core.base
            } else {
                SeqNo::MAX
            };
            if !self.hand_out(to.min(most), &mut room, f) {
                return Ok(self.done);
            }
            let behind = self
                .lanes
                .iter()
                .filter(here)
                .filter(|cursor| !cursor.is_at(ends[cursor.lane.get()]))
                .min_by_key(|cursor| cursor.durable_seqno);
            match behind.map(|cursor| cursor.lane) {
                Some(lane) => self.advance(lane, ends[lane.get()])?,
                None => return Ok(self.done),
            }
        }
    }

    /// Hands out the waiting transactions up to a number. Returns `false` if `room` was not enough.
    fn hand_out(&mut self, to: SeqNo, room: &mut usize, f: &mut dyn FnMut(LogRecord<'_>)) -> bool {
        while let Some(entry) = self.waiting.first_entry().filter(|e| *e.key() <= to) {
            let (mut seqno, mut waiting) = entry.remove_entry();
            // The next fragments have the next numbers, and no number up to `to` is missing.
            while waiting.rest.after > 0
                && !waiting.rest.shares_number
                && let Some((last, next)) = self.waiting.pop_first()
            {
                seqno = last;
                waiting.records += next.records;
                waiting.rest.after = next.rest.after;
                waiting.payload.extend(next.payload);
            }
            f(LogRecord {
                seqno,
                records: waiting.records,
                payload: &waiting.payload,
            });
            self.done = seqno;
            let len = waiting.payload.len().max(1);
            match room.checked_sub(len) {
                Some(left) => *room = left,
                None => return false,
            }
        }
        self.done = self.done.max(to);
        true
    }

    /// Ends an incarnation that was read completely in all lanes: hands out the transactions that
    /// are kept, and drops the rest. Returns `false` if `room` was not enough.
    fn end_incarnation(
        &mut self,
        room: &mut usize,
        f: &mut dyn FnMut(LogRecord<'_>),
    ) -> Result<bool, LogError> {
        let own = self.begun.get(&self.incarnation);
        let next = self.begun.range(self.incarnation + 1..).next();
        let (Some(own), Some((&incarnation, next))) = (own, next) else {
            unreachable!("both headers were read")
        };
        let lanes = own.kept.len();
        let kept: Kept = own.protocol.kept(next.base, &next.kept, lanes);
        let base = next.base;
        self.waiting
            .retain(|&seqno, waiting| kept.holds(seqno, waiting.flush));
        if !self.hand_out(base, room, f) {
            return Ok(false);
        }
        if let Some((seqno, _)) = self.waiting.first_key_value() {
            let what = format!("record {seqno} is kept, but the log continues after number {base}");
            return Err(LogError::corrupted(what, "the log", 0));
        }
        self.incarnation = incarnation;
        Ok(true)
    }

    /// A cursor at a position.
    fn open(
        &mut self,
        lane: LaneId,
        position: &LanePosition,
        seqno: SeqNo,
    ) -> Result<Cursor, LogError> {
        let segment = self.segment(lane, position.segment)?;
        let header = self.header(lane, &segment)?;
        let is_there = header.incarnation == position.incarnation
            && (BLOCK as u64..=segment.len).contains(&position.offset)
            && header.chunk_unit().divides(position.offset);
        if !is_there {
            return Err(self.unexpected(lane, &segment, 0));
        }
        self.note(&header)?;
        Ok(Cursor {
            lane,
            end: self.incarnation_end(lane, &segment, position.incarnation)?,
            segment,
            offset: position.offset,
            next: Expected {
                seed: header.seed(),
                lane,
                incarnation: position.incarnation,
                sequence: position.chunk,
                link: position.link,
            },
            durable_seqno: seqno,
            streams: HashMap::new(),
            window: self.core.device.allocate(BLOCK),
            window_at: 0,
            window_len: 0,
        })
    }

    /// The sequence number of the chunk before which an incarnation ends, if it ends in this
    /// segment.
    fn incarnation_end(
        &self,
        lane: LaneId,
        segment: &Segment,
        incarnation: u32,
    ) -> Result<Option<u64>, LogError> {
        if incarnation >= self.core.incarnation {
            return Ok(None);
        }
        {
            // Under the latch that a beginning incarnation acquires.
            let seal = self.core.lanes[lane].seal.lock();
            if seal.segment.sequence == segment.sequence {
                return Ok(Some(seal.chunk));
            }
        }
        let next = self.segment(lane, segment.sequence + 1)?;
        let header = self.header(lane, &next)?;
        Ok((header.incarnation > incarnation).then_some(header.first_chunk))
    }

    fn segment(&self, lane: LaneId, sequence: u64) -> Result<Segment, LogError> {
        let found = self.core.lanes[lane].pool.find(sequence);
        found.ok_or_else(|| LogError::Released {
            file: segment_name(lane, sequence),
        })
    }

    /// Reads the header of a segment, which must belong to this log.
    fn header(&self, lane: LaneId, segment: &Segment) -> Result<SegmentHeader, LogError> {
        let name = segment_name(lane, segment.sequence);
        let header = SegmentHeader::read(&*self.core.device, &*segment.file, &name)?;
        let header = header.filter(|header| {
            header.log == self.core.id
                && header.lane == lane
                && header.sequence == segment.sequence
                && header.len == segment.len
        });
        header.ok_or_else(|| self.unexpected(lane, segment, 0))
    }

    fn note(&mut self, header: &SegmentHeader) -> Result<(), LogError> {
        let Some(kind) = ProtocolKind::from_header_id(header.protocol) else {
            return Err(LogError::Incompatible {
                what: format!(
                    "cannot read the log: it was written with commit protocol number {}, which this build does not know; use a matching version",
                    header.protocol
                ),
            });
        };
        self.begun
            .entry(header.incarnation)
            .or_insert_with(|| Begun {
                base: header.base,
                kept: header.kept.clone(),
                protocol: crate::protocol::of(kind),
            });
        Ok(())
    }

    /// Returns the error for bytes that are missing where they were written.
    fn unexpected(&self, lane: LaneId, segment: &Segment, offset: u64) -> LogError {
        let file = segment_name(lane, segment.sequence);
        match self.core.lanes[lane].pool.find(segment.sequence) {
            Some(_) => LogError::corrupted("the log changed after it was written", &file, offset),
            None => LogError::Released { file },
        }
    }

    /// Reads one flush of a lane, or moves to its next segment.
    fn advance(&mut self, lane: LaneId, end: DurableEnd) -> Result<(), LogError> {
        let incarnation = self.core.incarnation;
        let Self {
            lanes,
            waiting,
            from,
            ..
        } = self;
        let Some(cursor) = lanes.iter_mut().find(|cursor| cursor.lane == lane) else {
            unreachable!("the lane of a cursor")
        };
        let is_last = cursor.segment.sequence == end.segment;
        let limit = if is_last {
            end.offset
        } else {
            cursor.segment.len
        };
        let mut flush: Vec<(u64, ChunkHeader)> = Vec::new();
        while let Some(header) = cursor.chunk(limit)? {
            flush.push((cursor.offset, header));
            cursor.offset = header.end_at(cursor.offset);
            if header.more == 0 {
                break;
            }
        }
        if flush.last().is_some_and(|(_, header)| header.more == 0) {
            for (offset, header) in flush {
                cursor.log_records(offset, &header, *from, waiting)?;
            }
            return Ok(());
        }
        let at_end = cursor.offset;
        // The segment or the incarnation ends here.
        let segment = cursor.segment.clone();
        if is_last && cursor.next.incarnation == incarnation {
            return Err(self.unexpected(lane, &segment, at_end));
        }
        if is_last && at_end == end.offset {
            // Nothing was written since the log was opened.
            return Ok(());
        }
        let next = self.segment(lane, segment.sequence + 1)?;
        let header = self.header(lane, &next)?;
        let cursor = &*self.cursor(lane);
        let fits = header.first_chunk == cursor.next.sequence && header.link == cursor.next.link;
        let continues = header.incarnation == cursor.next.incarnation && flush.is_empty();
        if !fits || !(continues || header.incarnation > cursor.next.incarnation) {
            return Err(self.unexpected(lane, &segment, at_end));
        }
        self.note(&header)?;
        let end = self.incarnation_end(lane, &next, header.incarnation)?;
        let cursor = self.cursor(lane);
        cursor.end = end;
        if header.incarnation > cursor.next.incarnation {
            // Streams without a commit record at the end of the incarnation stay without one.
            cursor.streams.clear();
            cursor.durable_seqno = header.base;
        }
        cursor.next.incarnation = header.incarnation;
        cursor.next.seed = header.seed();
        cursor.durable_seqno = cursor.durable_seqno.max(header.durable_seqno);
        cursor.segment = next;
        cursor.offset = BLOCK as u64;
        cursor.window_len = 0;
        Ok(())
    }
}

impl Cursor {
    fn is_at(&self, end: DurableEnd) -> bool {
        self.segment.sequence == end.segment && self.offset == end.offset
    }

    /// Reads the chunk at the cursor, and moves the cursor after it. Returns `None` if the chunk is
    /// not the expected one. Reads nothing at or after `limit`.
    fn chunk(&mut self, limit: u64) -> Result<Option<ChunkHeader>, LogError> {
        if self.offset + CHUNK_HEADER as u64 > limit || self.end == Some(self.next.sequence) {
            return Ok(None);
        }
        let (offset, expected) = (self.offset, self.next);
        let Some(header) = ChunkHeader::decode(self.bytes(offset, CHUNK_HEADER, limit)?) else {
            return Ok(None);
        };
        let found = Expected {
            seed: expected.seed,
            lane: header.lane,
            incarnation: header.incarnation,
            sequence: header.sequence,
            link: header.link,
        };
        let size = header.size_at(offset);
        if found != expected || offset + size as u64 > limit {
            return Ok(None);
        }
        let Some((_, crc)) = header.check(expected.seed, self.bytes(offset, size, limit)?) else {
            return Ok(None);
        };
        self.next.sequence += 1;
        self.next.link = crc;
        Ok(Some(header))
    }

    /// Records the log records of a chunk of a complete flush.
    fn log_records(
        &mut self,
        offset: u64,
        header: &ChunkHeader,
        after: SeqNo,
        waiting: &mut BTreeMap<SeqNo, Waiting>,
    ) -> Result<(), LogError> {
        let lane = self.lane;
        let name = segment_name(lane, self.segment.sequence);
        let damaged = || {
            LogError::corrupted(
                "a chunk with a valid checksum contains no valid records",
                &name,
                offset,
            )
        };
        let size = header.size_at(offset);
        let len = header.payload_len as usize;
        // Moved out, so that log records can be stored while it is read.
        self.bytes(offset, size, offset + size as u64)?;
        let window = std::mem::replace(&mut self.window, AlignedBuf::new(BLOCK));
        let at = to_usize(offset - self.window_at) + CHUNK_HEADER;
        let mut log_records = LogRecords::new(&window[at..at + len]);
        while let Some(log_record) = log_records.next().map_err(|_| damaged())? {
            let seqno = log_record.seqno;
            let complete = match log_record.kind {
                LogRecordKind::Part { stream, offset } => {
                    let read = self.streams.entry(stream).or_default();
                    if read.len() as u64 == offset {
                        read.extend_from_slice(log_record.payload);
                    }
                    None
                }
                // Without all parts, it belongs to an earlier transaction.
                LogRecordKind::Commit { stream, total } => {
                    let read = self.streams.remove(&stream);
                    read.filter(|read| read.len() as u64 == total)
                }
                LogRecordKind::Abort => {
                    if let Some(stream) = log_record.aborted_stream() {
                        self.streams.remove(&stream);
                    }
                    None
                }
                LogRecordKind::Data | LogRecordKind::Dependent { .. } => {
                    (seqno > after).then(|| log_record.split().1.to_vec())
                }
            };
            if let Some(payload) = complete.filter(|_| seqno > after) {
                let rest = log_record.rest;
                match waiting.entry(seqno) {
                    // Fragments with one number lie in several lanes.
                    Entry::Occupied(mut first) if rest.shares_number => {
                        first.get_mut().payload.extend(payload);
                    }
                    entry => drop(entry.insert_entry(Waiting {
                        flush: header.flush,
                        records: log_record.records,
                        payload,
                        rest,
                    })),
                }
            }
        }
        self.window = window;
        self.durable_seqno = self.durable_seqno.max(header.durable_seqno);
        Ok(())
    }

    /// Returns `len` bytes at `offset`, which must end before `limit`.
    fn bytes(&mut self, offset: u64, len: usize, limit: u64) -> Result<&[u8], LogError> {
        let end = self.window_at + self.window_len as u64;
        if offset < self.window_at || offset + len as u64 > end {
            // Whole blocks, since the device that wrote the log may have had a smaller unit. What
            // lies after `limit` is being written, so it is read again later.
            let from = offset - offset % BLOCK as u64;
            let most = to_usize(limit - from);
            let useful = (to_usize(offset - from) + len).max(WINDOW).min(most);
            let want = useful.next_multiple_of(BLOCK);
            if self.window.len() < want {
                self.window = AlignedBuf::new(want);
            }
            self.window_len = 0;
            let read = self.segment.file.read_at(&mut self.window[..want], from);
            read.map_err(|error| {
                let name = segment_name(self.lane, self.segment.sequence);
                LogError::io(
                    format!("cannot read {want} bytes of {name} at {from}"),
                    error,
                )
            })?;
            self.window_at = from;
            self.window_len = useful;
        }
        let at = to_usize(offset - self.window_at);
        Ok(&self.window[at..at + len])
    }
}
