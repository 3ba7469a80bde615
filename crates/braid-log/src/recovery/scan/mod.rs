//! The scan of one lane: its valid chunks, and the numbers that they hold.

mod end;
mod found;
mod records;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use braid_io::Device;
use braid_rt::to_usize;

pub(super) use self::end::Behind;
pub(super) use self::found::Found;
use self::records::FoundChunk;
use crate::LogError;
use crate::base::numbers::{FlushNo, LaneId, SeqNo};
use crate::format::BLOCK;
use crate::format::checkpoint_position::LanePosition;
use crate::format::chunk::{ChunkHeader, NUMBERS_MAX};
use crate::format::padding::Padding;
use crate::format::segment::{Segment, SegmentHeader, segment_name};
use crate::recovery::early::Early;
use crate::recovery::items::{Extent, Item, Parts};
use crate::recovery::reader::{Expected, ReadAhead, SegmentReader};
use crate::recovery::windows::Windows;

/// The result of scanning one lane.
#[derive(Debug)]
pub(crate) struct LaneScan {
    pub(crate) id: u128,
    /// By incarnation.
    pub(crate) found: BTreeMap<u32, Found>,
    /// Items that remain to be replayed after the scan.
    pub(crate) items: Vec<Item>,
    /// Items in memory whose durability is unknown.
    waiting: Vec<Item>,
    /// The extent that the next chunk may belong to.
    extent: Option<Extent>,
    /// Streams of the incarnation without a commit record, by number.
    open: HashMap<u64, Parts>,
    /// The segment where the log ends, and the identity of the next chunk.
    pub(crate) end_segment: u64,
    pub(crate) end_header: SegmentHeader,
    /// The offset after its last valid chunk.
    pub(crate) end_offset: u64,
    pub(crate) end: Expected,
    /// Segments whose headers lack the mark of their successor, although the log continues in that, with
    /// the marked header.
    pub(crate) unmarked: Vec<(u64, SegmentHeader)>,
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
pub(super) struct Pass<'a> {
    pub(super) windows: &'a Arc<Windows>,
    /// Replays log records during the pass.
    pub(super) early: Option<&'a Early<'a>>,
    pub(super) lane: LaneId,
    pub(super) segments: &'a BTreeMap<u64, Segment>,
    /// Numbers up to here are skipped.
    pub(super) after: SeqNo,
    /// Called with the number of bytes that were read.
    pub(super) progress: &'a (dyn Fn(u64) + Sync),
}

/// Scans a lane from `start`.
pub(super) fn scan_lane(
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
    let header = first.header(pass.windows.device(), pass.lane)?;
    let header = header.filter(|h| {
        h.lane == pass.lane && h.sequence == start.segment && h.incarnation == start.incarnation
    });
    let Some(header) = header else {
        braid_rt::coverage_point("damage: the header of the segment where recovery begins");
        let what = "the header does not match the checkpoint position";
        return Err(LogError::corrupted(restore(what), &name, 0));
    };
    let mut broken = wrong_length(&header, first);
    if broken.is_none() && !is_whole_before(pass.windows.device(), first, start, &header)? {
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
        || !Padding::LEAST.divides(start.offset)
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
    scan.drop_incomplete(None);
    scan.items.append(&mut scan.waiting);
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
        || !header.chunk_unit().divides(start.offset)
        || braid_rt::mutant!("believe_an_older_copy")
    {
        return Ok(true);
    }
    let name = segment_name(header.lane, segment.sequence);
    // Most chunks are small; one can be as large as the segment.
    for window in [64 << 10, 1 << 20, u64::MAX] {
        let from = start.offset.saturating_sub(window).max(first);
        let from = from - from % first;
        let len = to_usize(start.offset - from);
        // Whole blocks, since the device that wrote the log may have had a smaller unit.
        let blocks = len.next_multiple_of(BLOCK);
        let mut bytes = device.allocate(blocks);
        let read = segment.file.read_at(&mut bytes[..blocks], from);
        read.map_err(|error| LogError::io(format!("cannot read {len} bytes of {name}"), error))?;
        let is_before = |at: usize| {
            ChunkHeader::decode(&bytes[at..]).is_some_and(|chunk| {
                chunk.lane == header.lane
                    && chunk.incarnation == start.incarnation
                    && chunk.sequence + 1 == start.chunk
            })
        };
        let unit = header.chunk_unit().bytes();
        if (0..len).step_by(unit).any(is_before) {
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
        let seed = header.seed();
        Self {
            id: header.log,
            found: BTreeMap::new(),
            items: Vec::new(),
            waiting: Vec::new(),
            extent: None,
            open: HashMap::new(),
            end_segment: start.segment,
            end_header: header,
            end_offset: start.offset,
            end: Expected {
                seed,
                lane,
                incarnation: start.incarnation,
                sequence: start.chunk,
                link: start.link,
            },
            unmarked: Vec::new(),
            chunks: 0,
            bytes: 0,
            beyond: Vec::new(),
            behind: None,
            broken,
            mode,
        }
    }

    /// Returns the scan of a side lane that has no log.
    pub(super) fn absent(lane: LaneId, mode: ScanMode) -> Self {
        let header = SegmentHeader::absent(lane);
        Self::new(lane, &LanePosition::ABSENT, header, None, mode)
    }

    /// Whether the lane has no log.
    pub(crate) fn is_absent(&self) -> bool {
        self.end_segment == LanePosition::ABSENT.segment
    }

    /// Scans segment after segment, as far as the log continues.
    fn segments(&mut self, pass: &Pass<'_>, first: &Segment) -> Result<(), LogError> {
        self.begin();
        let mut segment = first;
        let following = pass.segments.range(first.sequence..);
        let ahead = if self.mode.read_ahead {
            let segments = following.map(|(_, segment)| segment);
            ReadAhead::start(pass.windows, segments, self.end_offset)
        } else {
            None
        };
        loop {
            match self.segment(pass, segment, ahead.as_ref()) {
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

    /// Drops the streams without a commit record, except those of an incarnation.
    fn drop_incomplete(&mut self, except: Option<u32>) {
        let found = self.open.len();
        self.open
            .retain(|_, stream| Some(stream.incarnation) == except);
        if self.open.len() < found {
            braid_rt::coverage_point("scan: a stream without a commit record");
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
        let header = segment.header(pass.windows.device(), pass.lane)?;
        Ok(header
            .filter(|h| h.log == self.id && h.lane == pass.lane && h.sequence == segment.sequence))
    }

    /// Scans a segment from the end of the log so far.
    fn segment(
        &mut self,
        pass: &Pass<'_>,
        segment: &Segment,
        ahead: Option<&ReadAhead>,
    ) -> Result<(), LogError> {
        let mut offset = self.end_offset;
        let mut reader = SegmentReader::ahead(pass.windows, pass.lane, segment, offset, ahead);
        self.drop_incomplete(Some(self.end.incarnation));
        let mut reported = 0;
        // Chunks of a flush whose last chunk was not read yet. A flush is kept completely or not at
        // all: no part of a torn flush can have been acknowledged.
        let mut flush: Vec<FoundChunk> = Vec::new();
        while let Some(chunk) = reader.chunk(offset, &self.end)? {
            let (header, crc) = (chunk.header, chunk.crc);
            self.note_durable(pass, segment, offset, &header)?;
            flush.push(FoundChunk {
                offset,
                expected: self.end,
                chunk,
            });
            offset = header.end_at(offset);
            self.chunks += 1;
            self.end.sequence += 1;
            self.end.link = crc;
            self.end_offset = offset;
            if header.more > 0 && !braid_rt::mutant!("half_flushes") {
                continue;
            }
            for found in flush.drain(..) {
                reported += found.chunk.header.size_at(found.offset) as u64;
                self.chunk(pass, segment, &found)?;
            }
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
        if !self.end_header.padding.divides(offset) {
            braid_rt::coverage_point("scan: ends within a unit of the device");
        }
        self.close_extent(pass);
        // Only for the last segment: an end after which a later segment continues is a proper end.
        if self.mode.limit.is_none() {
            self.behind = self.look_after(&mut reader, segment, offset)?;
        }
        self.bytes += reader.bytes;
        (pass.progress)(reported);
        Ok(())
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
                padding: Padding::BLOCK,
                has_seed: true,
                shares_units: true,
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
