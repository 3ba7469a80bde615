//! The end of a scanned lane: whether the log continues in another segment, and what lies after its
//! end.

use super::{LaneScan, Pass, restore, wrong_length};
use crate::LogError;
use crate::base::numbers::SeqNo;
use crate::format::BLOCK;
use crate::format::segment::{Segment, SegmentHeader, segment_name};
use crate::recovery::reader::SegmentReader;

/// Bytes after a lane's end that are searched for chunks which a crash cannot explain.
const LOOK_BEHIND: u64 = 1 << 20;

/// A chunk after the end of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Behind {
    /// The durable seqno that it records.
    pub(crate) durable_seqno: SeqNo,
    /// The sequence number of its segment.
    pub(crate) segment: u64,
    pub(crate) offset: u64,
}

impl LaneScan {
    /// Moves to a segment, if the log continues there.
    pub(super) fn next_segment<'a>(
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
        if self.end_header.successor.is_none() {
            let marked = self.end_header.marked(header.incarnation);
            self.unmarked.push((self.end_segment, marked));
        }
        self.end.incarnation = header.incarnation;
        self.end.seed = header.seed();
        self.end.sequence = header.first_chunk;
        self.end.link = header.link;
        self.end_header = header;
        self.begin();
        self.end_segment = sequence;
        self.end_offset = BLOCK as u64;
        Ok(Some(next))
    }

    /// Checks the segments after the end: they may be part of the log, with a damaged header.
    pub(super) fn look_beyond(&mut self, pass: &Pass<'_>) -> Result<(), LogError> {
        if self.mode.limit.is_some() {
            return Ok(());
        }
        if let Some(next) = pass.segments.get(&(self.end_segment + 1)) {
            let mut reader = SegmentReader::new(pass.windows, pass.lane, next);
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

    /// Searches for chunks after `offset`, where there is no valid chunk. A crash may leave some,
    /// of flushes that were in flight together; their durable seqnos are then not above the cut.
    pub(super) fn look_after(
        &self,
        reader: &mut SegmentReader<'_>,
        segment: &Segment,
        offset: u64,
    ) -> Result<Option<Behind>, LogError> {
        let end = segment.len.min(offset + LOOK_BEHIND);
        let step = self.end_header.chunk_unit().bytes();
        let mut found = None;
        let mut next = offset + step as u64;
        while let Some(offset) = reader.next_candidate(next, end, step)? {
            next = offset + step as u64;
            let header = reader.any_chunk(offset, self.end.seed)?.filter(|header| {
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
}
