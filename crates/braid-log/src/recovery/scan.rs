//! The scan of one lane: its valid chunks, and the numbers that they hold.

use std::collections::{BTreeMap, HashMap};

use braid_io::Device;
use braid_rt::to_usize;

use crate::LogError;
use crate::base::numbers::{FlushNo, LaneId, SeqNo};
use crate::format::BLOCK;
use crate::format::checkpoint_position::LanePosition;
use crate::format::chunk::{CHUNK_HEADER, ChunkHeader, NUMBERS_MAX};
use crate::format::log_record::{LogRecordKind, LogRecords, RawLogRecord};
use crate::format::segment::{Segment, SegmentHeader, segment_name};
use crate::protocol::{Dependent, Run};
use crate::recovery::reader::{Expected, SegmentReader};

/// Runs kept before those below the durable seqno are folded into a count. Simulated logs are
/// short.
fn fold_at() -> usize {
    if braid_rt::simulation::is_on() {
        8
    } else {
        1 << 16
    }
}

/// Log bytes of one unit of work in parallel replay.
fn extent_bytes() -> u64 {
    if braid_rt::simulation::is_on() {
        32 << 10
    } else {
        4 << 20
    }
}

/// Bytes after a lane's end that are searched for chunks which a crash cannot explain.
const LOOK_BEHIND: u64 = 1 << 20;

/// A run of valid chunks in one segment.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    pub(crate) lane: LaneId,
    pub(crate) segment: Segment,
    pub(crate) offset: u64,
    pub(crate) end: u64,
    /// The first chunk.
    pub(crate) expected: Expected,
}

impl Extent {
    /// Whether a chunk at `offset` belongs to the extent. A torn flush may lie in between.
    fn takes(&self, offset: u64, extent_bytes: u64) -> bool {
        self.end == offset && self.end - self.offset < extent_bytes
    }
}

/// A part of a streamed log record: `len` payload bytes at `offset` of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) segment: Segment,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// CRC-32C of the bytes.
    pub(crate) crc: u32,
}

/// A streamed log record.
#[derive(Clone, Debug)]
pub(crate) struct Streamed {
    pub(crate) lane: LaneId,
    pub(crate) incarnation: u32,
    pub(crate) seqno: SeqNo,
    pub(crate) records: u32,
    pub(crate) total: u64,
    found: u64,
    /// The number of the flush that wrote its last part.
    pub(crate) flush: FlushNo,
    pub(crate) parts: Vec<Part>,
}

/// The contents that a lane holds of one incarnation.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The greatest durable seqno that a chunk or segment header records.
    pub(crate) durable_seqno: SeqNo,
    pub(crate) protocol: u8,
    pub(crate) base: SeqNo,
    /// The part kept of the previous incarnation, from the header.
    pub(crate) kept: Vec<u64>,
    /// Numbers of flushes.
    pub(crate) flushes: Vec<FlushNo>,
    pub(crate) dependents: Vec<Dependent>,
    /// Count of numbers up to the durable seqno whose runs were folded.
    folded: u64,
    /// All other log records.
    pub(crate) runs: Vec<Run>,
    fold_at: usize,
}

impl Found {
    fn add(&mut self, run: Run) {
        self.runs.push(run);
        if self.runs.len() >= self.fold_at.max(fold_at()) {
            braid_rt::coverage_point("scan: numbers up to the durable seqno are folded");
            let durable_seqno = self.durable_seqno;
            self.folded += count_up_to(&mut self.runs, durable_seqno);
            self.fold_at = 2 * self.runs.len();
            // An acknowledged transaction depends on no lost one.
            self.dependents
                .retain(|dependent| dependent.seqno > durable_seqno);
        }
    }

    /// Counts the numbers up to `durable_seqno`, which is at least the lane's own, and removes
    /// their runs.
    pub(crate) fn take_up_to(&mut self, durable_seqno: SeqNo) -> u64 {
        debug_assert!(durable_seqno >= self.durable_seqno || self.folded == 0);
        std::mem::take(&mut self.folded) + count_up_to(&mut self.runs, durable_seqno)
    }
}

/// Removes the runs that end at or before `durable_seqno`; returns the count of their numbers.
fn count_up_to(runs: &mut Vec<Run>, durable_seqno: SeqNo) -> u64 {
    let mut count = 0;
    runs.retain(|run| {
        let keep = run.last > durable_seqno;
        if !keep {
            count += run.last.count_after(run.first) + 1;
        }
        keep
    });
    count
}

/// A chunk after the end of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Behind {
    /// The durable seqno that it records.
    pub(crate) durable_seqno: SeqNo,
    /// The sequence number of its segment.
    pub(crate) segment: u64,
    pub(crate) offset: u64,
}

/// The result of scanning one lane.
#[derive(Debug)]
pub(crate) struct LaneScan {
    pub(crate) id: u128,
    /// By incarnation.
    pub(crate) found: BTreeMap<u32, Found>,
    pub(crate) extents: Vec<Extent>,
    pub(crate) streamed: Vec<Streamed>,
    /// The segment where the log ends, and the identity of the next chunk.
    pub(crate) end_segment: u64,
    pub(crate) end_header: SegmentHeader,
    /// The offset after its last valid chunk.
    pub(crate) end_offset: u64,
    pub(crate) end: Expected,
    pub(crate) chunks: u64,
    pub(crate) bytes: u64,
    /// Segments after the end whose headers belong to this log: (name, header).
    pub(crate) beyond: Vec<(String, SegmentHeader)>,
    /// The greatest durable seqno that a chunk of the end's incarnation, or of a later one, records
    /// after the end.
    pub(crate) behind: Option<Behind>,
    /// The evidence that the log continues after the end, if there is any. Set by a scan that
    /// salvages.
    pub(crate) broken: Option<String>,
    mode: ScanMode,
}

/// The mode in which a lane is scanned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanMode {
    /// Whether one thread reads while another one checks.
    pub(crate) read_ahead: bool,
    /// Whether damage ends the lane instead of the scan, and all numbers are kept.
    pub(crate) salvage: bool,
    /// Records after this number are skipped, and the log after it is not checked: another process
    /// is writing there.
    pub(crate) limit: Option<SeqNo>,
}

impl ScanMode {
    fn up_to_limit(self, seqno: SeqNo) -> SeqNo {
        self.limit.map_or(seqno, |limit| seqno.min(limit))
    }
}

/// The inputs of one pass over a lane.
pub(crate) struct Pass<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) lane: LaneId,
    pub(crate) segments: &'a BTreeMap<u64, Segment>,
    /// Numbers up to here are skipped.
    pub(crate) after: SeqNo,
    /// Called with the number of bytes that were read.
    pub(crate) progress: &'a (dyn Fn(u64) + Sync),
}

/// Scans a lane from `start`.
pub(crate) fn scan_lane(
    pass: &Pass<'_>,
    start: &LanePosition,
    mode: ScanMode,
) -> Result<LaneScan, LogError> {
    let name = segment_name(pass.lane, start.segment);
    let Some(first) = pass.segments.get(&start.segment) else {
        // No crash removes it: it is deleted only after a later checkpoint is durable.
        let what = "the segment where recovery starts is missing";
        return Err(LogError::corrupted(restore(what), &name, 0));
    };
    let header = first.header(pass.device, pass.lane)?;
    let header = header.filter(|h| {
        h.lane == pass.lane && h.sequence == start.segment && h.incarnation == start.incarnation
    });
    let Some(header) = header else {
        braid_rt::coverage_point("damage: the header of the segment where recovery begins");
        let what = "the header does not match the checkpoint position";
        return Err(LogError::corrupted(restore(what), &name, 0));
    };
    let mut broken = wrong_length(&header, first);
    if broken.is_none() && !is_whole_before(pass.device, first, start, &header)? {
        broken = Some(
            "the chunk before the checkpoint position is missing: the file is an older copy"
                .to_owned(),
        );
    }
    if let Some(broken) = broken.as_ref().filter(|_| !mode.salvage) {
        return Err(LogError::corrupted(restore(broken), &name, start.offset));
    }
    if start.offset < BLOCK as u64
        || start.offset > first.len
        || !start.offset.is_multiple_of(BLOCK as u64)
    {
        return Err(LogError::corrupted(
            "the checkpoint position is out of range",
            &name,
            start.offset,
        ));
    }
    let broken = broken.map(|broken| format!("{broken} ({name})"));
    let mut scan = LaneScan::new(pass.lane, start, header, broken, mode);
    scan.segments(pass, first)?;
    scan.look_beyond(pass)?;
    scan.drop_incomplete();
    Ok(scan)
}

/// Returns the advice for a log file that is damaged or missing.
fn restore(what: &str) -> String {
    format!("{what} (restore the file, or salvage the rest into a new database)")
}

/// Reports a file whose length differs from the one in its header. No crash changes the length.
fn wrong_length(header: &SegmentHeader, segment: &Segment) -> Option<String> {
    let (len, expected) = (segment.len, header.len);
    let is_wrong = len != expected && !braid_rt::mutant!("believe_any_length");
    is_wrong.then(|| format!("the file has {len} bytes, its header says {expected}"))
}

/// Whether the chunk before the start position is in the segment. It was durable before the
/// checkpoint with that position, so a copy of the log without it is older than the checkpoint. The
/// chunk's contents are not needed, so its header is enough.
fn is_whole_before(
    device: &dyn Device,
    segment: &Segment,
    start: &LanePosition,
    header: &SegmentHeader,
) -> Result<bool, LogError> {
    let first = BLOCK as u64;
    if start.offset == first {
        return Ok(header.first_chunk == start.chunk && header.link == start.link);
    }
    if start.offset < first
        || start.offset > segment.len
        || !start.offset.is_multiple_of(first)
        || braid_rt::mutant!("believe_an_older_copy")
    {
        return Ok(true);
    }
    let name = segment_name(header.lane, segment.sequence);
    // Most chunks are small; one can be as large as the segment.
    for window in [64 << 10, 1 << 20, u64::MAX] {
        let from = start.offset.saturating_sub(window).max(first);
        let len = to_usize(start.offset - from);
        let mut bytes = device.allocate(len);
        let read = segment.file.read_at(&mut bytes[..len], from);
        read.map_err(|error| LogError::io(format!("cannot read {len} bytes of {name}"), error))?;
        let is_before = |at: usize| {
            ChunkHeader::decode(&bytes[at..]).is_some_and(|chunk| {
                chunk.lane == header.lane
                    && chunk.incarnation == start.incarnation
                    && chunk.sequence + 1 == start.chunk
            })
        };
        if (0..len).step_by(BLOCK).any(is_before) {
            return Ok(true);
        }
        if from == first {
            break;
        }
    }
    Ok(false)
}

impl LaneScan {
    pub(super) fn new(
        lane: LaneId,
        start: &LanePosition,
        header: SegmentHeader,
        broken: Option<String>,
        mode: ScanMode,
    ) -> Self {
        Self {
            id: header.log,
            found: BTreeMap::new(),
            extents: Vec::new(),
            streamed: Vec::new(),
            end_segment: start.segment,
            end_header: header,
            end_offset: start.offset,
            end: Expected {
                lane,
                incarnation: start.incarnation,
                sequence: start.chunk,
                link: start.link,
            },
            chunks: 0,
            bytes: 0,
            beyond: Vec::new(),
            behind: None,
            broken,
            mode,
        }
    }

    /// Scans segment after segment, as far as the log continues.
    fn segments(&mut self, pass: &Pass<'_>, first: &Segment) -> Result<(), LogError> {
        self.begin();
        let mut segment = first;
        loop {
            match self.segment(pass, segment) {
                Err(error @ LogError::Corrupted { .. }) if self.mode.salvage => {
                    self.broken = Some(error.to_string());
                    return Ok(());
                }
                scanned => scanned?,
            }
            match self.next_segment(pass, segment.sequence + 1)? {
                Some(next) => segment = next,
                None => return Ok(()),
            }
        }
    }

    /// Moves to a segment, if the log continues there.
    fn next_segment<'a>(
        &mut self,
        pass: &Pass<'a>,
        sequence: u64,
    ) -> Result<Option<&'a Segment>, LogError> {
        let next = pass.segments.get(&sequence);
        let header = match next {
            Some(next) => self.header(pass, next)?,
            None => None,
        };
        let gap = self.gap(next, header.as_ref());
        if let Some(what) = gap.filter(|_| self.mode.limit.is_none()) {
            let name = segment_name(pass.lane, sequence);
            if !self.mode.salvage {
                return Err(LogError::corrupted(restore(&what), &name, 0));
            }
            self.broken.get_or_insert(format!("{what} ({name})"));
            return Ok(None);
        }
        let Some(next) = next else {
            braid_rt::coverage_point("scan: ends with the last segment");
            return Ok(None);
        };
        let Some(header) = header.filter(|header| self.is_continued_by(header)) else {
            braid_rt::coverage_point("scan: ends before a segment that does not continue");
            return Ok(None);
        };
        braid_rt::coverage_point(if header.incarnation > self.end.incarnation {
            "scan: on to a later incarnation"
        } else {
            "scan: on to the next segment"
        });
        self.end.incarnation = header.incarnation;
        self.end.sequence = header.first_chunk;
        self.end.link = header.link;
        self.end_header = header;
        self.begin();
        self.end_segment = sequence;
        self.end_offset = BLOCK as u64;
        Ok(Some(next))
    }

    /// Checks the segments after the end: they may be part of the log, with a damaged header.
    fn look_beyond(&mut self, pass: &Pass<'_>) -> Result<(), LogError> {
        if self.mode.limit.is_some() {
            return Ok(());
        }
        if let Some(next) = pass.segments.get(&(self.end_segment + 1)) {
            let mut reader = SegmentReader::new(pass.device, pass.lane, next);
            let behind = self.look_after(&mut reader, next, 0)?;
            self.behind = self.behind.max(behind);
        }
        for (sequence, segment) in pass.segments.range(self.end_segment + 1..) {
            if let Some(header) = self.header(pass, segment)? {
                self.beyond
                    .push((segment_name(pass.lane, *sequence), header));
            }
        }
        Ok(())
    }

    /// Drops the streamed log records that lack parts.
    fn drop_incomplete(&mut self) {
        let found = self.streamed.len();
        self.streamed
            .retain(|streamed| streamed.found == streamed.total);
        if self.streamed.len() < found {
            braid_rt::coverage_point("scan: a large log record without its end");
        }
    }

    /// Records the contents of the header of the segment at the end.
    fn begin(&mut self) {
        let header = &self.end_header;
        let found = self.found.entry(header.incarnation).or_default();
        found.durable_seqno = found
            .durable_seqno
            .max(self.mode.up_to_limit(header.durable_seqno));
        found.base = header.base;
        found.kept.clone_from(&header.kept);
        found.protocol = header.protocol;
        if self.mode.salvage {
            found.fold_at = usize::MAX;
        }
    }

    /// Returns the header of a segment of this lane that was begun under its name.
    fn header(
        &self,
        pass: &Pass<'_>,
        segment: &Segment,
    ) -> Result<Option<SegmentHeader>, LogError> {
        let header = segment.header(pass.device, pass.lane)?;
        Ok(header
            .filter(|h| h.log == self.id && h.lane == pass.lane && h.sequence == segment.sequence))
    }

    /// Returns the evidence that log is missing after the end, from the next segment and its
    /// header.
    fn gap(&self, next: Option<&Segment>, header: Option<&SegmentHeader>) -> Option<String> {
        // The mark was written after the header, even if the chunks before it were lost.
        let mark = self
            .end_header
            .successor
            .filter(|_| !braid_rt::mutant!("believe_a_missing_segment"));
        if let Some(mark) = mark
            && header.is_none_or(|header| header.incarnation < mark)
        {
            braid_rt::coverage_point("damage: a segment that was begun is missing");
            return Some(match next {
                None => "the segment is missing, but the one before it says that it was begun",
                Some(_) => {
                    "the segment's header is missing or outdated, but the segment before it says that it was begun"
                }
            }.to_owned());
        }
        let (header, next) = header.zip(next)?;
        let wrong_length = wrong_length(header, next);
        if wrong_length.is_some() {
            braid_rt::coverage_point("damage: a segment of another length");
            return wrong_length;
        }
        // A later incarnation began after the last chunk that its recovery had found and made
        // durable.
        let is_later = header.incarnation > self.end.incarnation;
        let fits = header.first_chunk == self.end.sequence && header.link == self.end.link;
        if is_later && !fits && !braid_rt::mutant!("believe_a_later_incarnation") {
            braid_rt::coverage_point("damage: chunks before a later incarnation are missing");
            return Some("chunks before the segment are damaged or missing".to_owned());
        }
        None
    }

    /// Whether the log continues in a segment: in the same incarnation after this scan's last
    /// chunk, or in a later one.
    fn is_continued_by(&self, header: &SegmentHeader) -> bool {
        header.incarnation > self.end.incarnation
            || (header.incarnation == self.end.incarnation
                && header.first_chunk == self.end.sequence
                && header.link == self.end.link)
    }

    /// Scans a segment from the end of the log so far.
    fn segment(&mut self, pass: &Pass<'_>, segment: &Segment) -> Result<(), LogError> {
        let mut offset = self.end_offset;
        let mut reader = if self.mode.read_ahead {
            SegmentReader::ahead(pass.device, pass.lane, segment, offset)
        } else {
            SegmentReader::new(pass.device, pass.lane, segment)
        };
        let mut extent: Option<Extent> = None;
        let extent_bytes = extent_bytes();
        let mut open = self.open_streams();
        let mut reported = 0;
        // Chunks of a flush whose last chunk was not read yet. A flush is kept completely or not at
        // all: no part of a torn flush can have been acknowledged.
        let mut flush: Vec<(u64, Expected, ChunkHeader)> = Vec::new();
        reader.keep_from(offset);
        while let Some(chunk) = reader.chunk(offset, &self.end)? {
            let (header, crc) = (chunk.header, chunk.crc);
            self.note_durable(pass, segment, offset, &header)?;
            flush.push((offset, self.end, header));
            offset += header.size() as u64;
            self.chunks += 1;
            self.end.sequence += 1;
            self.end.link = crc;
            self.end_offset = offset;
            if header.more > 0 && !braid_rt::mutant!("half_flushes") {
                continue;
            }
            for (offset, expected, header) in flush.drain(..) {
                let size = header.size() as u64;
                let chunk = reader.bytes_at(offset, header.size())?;
                self.log_records(pass, segment, offset, &header, chunk, &mut open)?;
                match &mut extent {
                    Some(extent) if extent.takes(offset, extent_bytes) => extent.end += size,
                    _ => {
                        let next = Extent {
                            lane: pass.lane,
                            segment: segment.clone(),
                            offset,
                            end: offset + size,
                            expected,
                        };
                        if extent.is_some() {
                            braid_rt::coverage_point("scan: the next part to be replayed");
                        }
                        self.extents.extend(extent.replace(next));
                    }
                }
                reported += size;
            }
            reader.keep_from(offset);
            if header.flush != FlushNo::NONE {
                let found = self.found.entry(header.incarnation).or_default();
                found.flushes.push(header.flush);
            }
            if reported >= 1 << 20 {
                (pass.progress)(reported);
                reported = 0;
            }
        }
        if !flush.is_empty() {
            braid_rt::coverage_point("scan: a torn flush");
        }
        self.extents.extend(extent);
        // Only for the last segment: an end after which a later segment continues is a proper end.
        if self.mode.limit.is_none() {
            self.behind = self.look_after(&mut reader, segment, offset)?;
        }
        self.bytes += reader.bytes;
        (pass.progress)(reported);
        Ok(())
    }

    /// Streamed log records of the incarnation that lack parts, by number, as indices into
    /// `streamed`.
    fn open_streams(&self) -> HashMap<SeqNo, usize> {
        let streamed = self.streamed.iter().enumerate();
        let open = streamed.filter(|(_, streamed)| {
            streamed.found < streamed.total && streamed.incarnation == self.end.incarnation
        });
        open.map(|(at, streamed)| (streamed.seqno, at)).collect()
    }

    /// Records a chunk's durable seqno.
    fn note_durable(
        &mut self,
        pass: &Pass<'_>,
        segment: &Segment,
        offset: u64,
        header: &ChunkHeader,
    ) -> Result<(), LogError> {
        if header.durable_seqno.get().max(header.flush.get()) >= NUMBERS_MAX {
            let name = segment_name(pass.lane, segment.sequence);
            let what = "a chunk with a good CRC has numbers that no log comes to";
            return Err(LogError::corrupted(what, &name, offset));
        }
        let durable_seqno = self.mode.up_to_limit(header.durable_seqno);
        let found = self.found.entry(header.incarnation).or_default();
        found.durable_seqno = found.durable_seqno.max(durable_seqno);
        Ok(())
    }

    /// Records the log records of a chunk of a complete flush.
    fn log_records(
        &mut self,
        pass: &Pass<'_>,
        segment: &Segment,
        offset: u64,
        header: &ChunkHeader,
        chunk: &[u8],
        open: &mut HashMap<SeqNo, usize>,
    ) -> Result<(), LogError> {
        let end = CHUNK_HEADER + header.payload_len as usize;
        let mut log_records = LogRecords::new(&chunk[CHUNK_HEADER..end]);
        loop {
            let log_record = log_records.next().map_err(|_| {
                let name = segment_name(pass.lane, segment.sequence);
                let what = "a chunk with a valid checksum contains no valid records";
                LogError::corrupted(what, &name, offset)
            })?;
            let Some(log_record) = log_record else {
                return Ok(());
            };
            if self.mode.up_to_limit(log_record.seqno) < log_record.seqno {
                braid_rt::coverage_point("scan: a log record that is not known to be durable");
            } else if log_record.seqno > pass.after {
                let at = offset + (CHUNK_HEADER + log_records.position()) as u64;
                self.log_record(pass.lane, segment, header, log_record, at, open);
            } else {
                braid_rt::coverage_point("scan: a log record that the checkpoint has");
            }
        }
    }

    /// Searches for chunks after `offset`, where there is no valid chunk. A crash may leave some,
    /// of flushes that were in flight together; their durable seqnos are then not above the cut.
    fn look_after(
        &self,
        reader: &mut SegmentReader<'_>,
        segment: &Segment,
        offset: u64,
    ) -> Result<Option<Behind>, LogError> {
        let end = segment.len.min(offset + LOOK_BEHIND);
        let mut found = None;
        for offset in (offset..end).step_by(BLOCK).skip(1) {
            let header = reader.any_chunk(offset)?.filter(|header| {
                header.lane == self.end.lane
                    && header.incarnation >= self.end.incarnation
                    && header.sequence >= self.end.sequence
            });
            if header.is_some() {
                braid_rt::coverage_point("scan: a chunk after the end");
            }
            found = found.max(header.map(|header| Behind {
                durable_seqno: header.durable_seqno,
                segment: segment.sequence,
                offset,
            }));
        }
        Ok(found)
    }

    /// Records a log record whose payload ends at `end` of the segment.
    fn log_record(
        &mut self,
        lane: LaneId,
        segment: &Segment,
        header: &ChunkHeader,
        log_record: RawLogRecord<'_>,
        end: u64,
        open: &mut HashMap<SeqNo, usize>,
    ) {
        let incarnation = header.incarnation;
        let len = log_record.payload.len();
        let part = || Part {
            segment: segment.clone(),
            offset: end - len as u64,
            len,
            crc: crc32c::crc32c(log_record.payload),
        };
        let complete = match log_record.kind {
            LogRecordKind::Data | LogRecordKind::Abort | LogRecordKind::Dependent { .. } => true,
            LogRecordKind::First { total } => {
                open.insert(log_record.seqno, self.streamed.len());
                self.streamed.push(Streamed {
                    lane,
                    incarnation,
                    seqno: log_record.seqno,
                    records: log_record.records,
                    total,
                    found: len as u64,
                    flush: header.flush,
                    parts: vec![part()],
                });
                len as u64 == total
            }
            LogRecordKind::Next { offset } => match open.get(&log_record.seqno) {
                Some(&at) if self.streamed[at].found == offset => {
                    let streamed = &mut self.streamed[at];
                    streamed.found += len as u64;
                    streamed.flush = header.flush;
                    streamed.parts.push(part());
                    streamed.found == streamed.total
                }
                // A part without its beginning: its number is missing. A lane's chunks follow each
                // other, so no crash explains this.
                _ => false,
            },
        };
        let found = self.found.entry(incarnation).or_default();
        if let LogRecordKind::Dependent { .. } = log_record.kind {
            found.dependents.push(Dependent {
                seqno: log_record.seqno,
                on: log_record.split().0.collect(),
            });
        }
        if complete {
            found.add(Run {
                first: log_record.first(),
                last: log_record.seqno,
                flush: header.flush,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_folded_count_once() {
        let many = fold_at() as u64;
        let dependent = |number| Dependent {
            seqno: SeqNo::new(number),
            on: Vec::new(),
        };
        let mut found = Found {
            durable_seqno: SeqNo::new(many - 10),
            dependents: [many - 11, many - 10, many - 9].map(dependent).to_vec(),
            ..Found::default()
        };
        let mut add = |number| {
            let number = SeqNo::new(number);
            found.add(Run {
                first: number,
                last: number,
                flush: FlushNo::NONE,
            });
            found.runs.len() as u64
        };
        for number in 1..many {
            assert_eq!(add(number), number);
        }
        assert_eq!(add(many), 10);
        assert_eq!((found.folded, found.fold_at), (many - 10, 20));
        assert_eq!(found.dependents, [dependent(many - 9)]);
        assert_eq!(found.take_up_to(SeqNo::new(many - 4)), many - 4);
        assert_eq!(found.runs.len(), 4);
        assert_eq!(found.take_up_to(SeqNo::new(many)), 4);
    }

    /// The chunks of a segment may be lost, but its header says how far the log was durable. The
    /// log of another process counts up to the limit only.
    #[test]
    fn a_header_records_what_was_durable() {
        let durable = |salvage, limit: Option<u64>| {
            let mode = ScanMode {
                read_ahead: false,
                salvage,
                limit: limit.map(SeqNo::new),
            };
            let start = LanePosition {
                segment: 1,
                offset: BLOCK as u64,
                chunk: 1,
                link: 0,
                incarnation: 1,
            };
            let header = SegmentHeader {
                log: 77,
                lane: LaneId::new(0),
                lanes: 1,
                protocol: 3,
                sequence: 1,
                incarnation: 1,
                link: 0,
                base: SeqNo::new(2),
                first_chunk: 1,
                durable_seqno: SeqNo::new(5),
                len: 1 << 20,
                kept: vec![2],
                successor: None,
            };
            let mut scan = LaneScan::new(LaneId::new(0), &start, header, None, mode);
            scan.begin();
            scan.end_header.durable_seqno = SeqNo::new(4);
            scan.begin();
            let found = &scan.found[&1];
            assert_eq!((found.protocol, found.base.get()), (3, 2));
            assert_eq!(found.kept, [2]);
            assert_eq!(found.fold_at == usize::MAX, salvage, "nothing is folded");
            found.durable_seqno.get()
        };
        assert_eq!(durable(false, None), 5);
        assert_eq!(durable(true, None), 5);
        assert_eq!(durable(false, Some(3)), 3);
    }
}
