//! The log records of a scanned lane, and where they lie.

use std::mem;

use super::{LaneScan, Pass};
use crate::LogError;
use crate::base::numbers::SeqNo;
use crate::format::chunk::CHUNK_HEADER;
use crate::format::log_record::{LogRecordKind, LogRecords, RawLogRecord};
use crate::format::segment::{Segment, segment_name};
use crate::protocol::{Dependent, Run};
use crate::recovery::items::{Extent, Item, Newest, Part, Parts, Streamed, extent_bytes};
use crate::recovery::reader::{Expected, ReadChunk};
use crate::recovery::windows::WindowSlice;

/// A valid chunk at an offset of a segment.
pub(super) struct FoundChunk {
    pub(super) offset: u64,
    pub(super) expected: Expected,
    pub(super) chunk: ReadChunk,
}

/// Bytes of a log record's payload at an offset of a segment.
struct Place<'a> {
    segment: &'a Segment,
    offset: u64,
    bytes: WindowSlice,
}

impl LaneScan {
    /// Records a chunk of a complete flush.
    pub(super) fn chunk(
        &mut self,
        pass: &Pass<'_>,
        segment: &Segment,
        found: &FoundChunk,
    ) -> Result<(), LogError> {
        let newest = self.log_records(pass, segment, found)?;
        if newest.seqno == SeqNo::NONE {
            braid_rt::coverage_point("scan: a chunk without a whole log record to replay");
            return Ok(());
        }
        let keeps = pass.early.is_some();
        let next = Extent {
            lane: pass.lane,
            segment: segment.clone(),
            offset: found.offset,
            end: found.chunk.header.end_at(found.offset),
            expected: found.expected,
            newest,
            bytes: keeps.then(|| found.chunk.bytes.clone()),
        };
        if let Some(extent) = &mut self.extent {
            if extent.append(&next, extent_bytes()) {
                return Ok(());
            }
            braid_rt::coverage_point("scan: the next part to be replayed");
            self.close_extent(pass);
        }
        self.extent = Some(next);
        Ok(())
    }

    /// Adds the extent to what is replayed.
    pub(super) fn close_extent(&mut self, pass: &Pass<'_>) {
        if let Some(extent) = self.extent.take() {
            self.add_item(pass, Item::Extent(extent));
        }
    }

    /// Adds an item to what is replayed: at once, if it is known to be durable, otherwise after the
    /// scan. Items for which there is no room in memory will be read again.
    fn add_item(&mut self, pass: &Pass<'_>, item: Item) {
        let Some(early) = pass.early else {
            self.items.push(item);
            return;
        };
        item.keep();
        self.waiting.push(item);
        for item in mem::take(&mut self.waiting) {
            if self.is_certain(&item) {
                braid_rt::coverage_point("scan: log records are replayed during the scan");
                early.add(item);
            } else {
                self.waiting.push(item);
            }
        }
        if early.is_full() {
            braid_rt::coverage_point("scan: no room for log records that wait for the cut");
            if braid_rt::mutant!("lose_what_waits") {
                self.waiting.clear();
            }
            self.open.values_mut().for_each(Parts::forget);
            self.waiting.iter_mut().for_each(Item::forget);
            self.items.append(&mut self.waiting);
        }
    }

    /// Whether the cut includes all log records of an item, or recovery fails.
    fn is_certain(&self, item: &Item) -> bool {
        let found = self.found.get(&item.incarnation());
        let durable_seqno = found.map_or(SeqNo::NONE, |found| found.durable_seqno);
        item.newest().seqno <= durable_seqno || braid_rt::mutant!("replay_what_may_be_lost")
    }

    /// Records the log records of a chunk of a complete flush. Returns the newest whole one.
    fn log_records(
        &mut self,
        pass: &Pass<'_>,
        segment: &Segment,
        found: &FoundChunk,
    ) -> Result<Newest, LogError> {
        let (header, bytes) = (&found.chunk.header, &found.chunk.bytes);
        let end = CHUNK_HEADER + header.payload_len as usize;
        let mut log_records = LogRecords::new(&bytes[CHUNK_HEADER..end]);
        let mut newest = Newest::default();
        loop {
            let log_record = log_records.next().map_err(|_| {
                let name = segment_name(pass.lane, segment.sequence);
                let what = "a chunk with a valid checksum contains no valid records";
                LogError::corrupted(what, &name, found.offset)
            })?;
            let Some(log_record) = log_record else {
                return Ok(newest);
            };
            let (end, len) = (log_records.position(), log_record.payload.len());
            let at = CHUNK_HEADER + end - len;
            let place = || Place {
                segment,
                offset: found.offset + at as u64,
                bytes: bytes.part(at, len),
            };
            if let LogRecordKind::Part { stream, offset } = log_record.kind {
                self.part(pass, header.incarnation, stream, offset, place());
                continue;
            }
            if !log_record.rest.is_nothing() && !self.end_header.shares_units {
                let name = segment_name(pass.lane, segment.sequence);
                let what = "a log of an earlier version contains the fragment of a transaction";
                return Err(LogError::corrupted(what, &name, found.offset));
            }
            // A fragment counts with its transaction, which no durable seqno and no cut divides.
            let this = Newest {
                seqno: log_record.transaction(),
                flush: header.flush,
            };
            if log_record.is_whole() && log_record.seqno > pass.after {
                newest = newest.max(this);
            }
            if self.mode.up_to_limit(this.seqno) < this.seqno {
                braid_rt::coverage_point("scan: a log record that is not known to be durable");
            } else if log_record.seqno > pass.after {
                self.log_record(pass, header.incarnation, this, &log_record);
            } else {
                braid_rt::coverage_point("scan: a log record that the checkpoint has");
            }
        }
    }

    /// Records a log record with a number.
    fn log_record(
        &mut self,
        pass: &Pass<'_>,
        incarnation: u32,
        newest: Newest,
        log_record: &RawLogRecord<'_>,
    ) {
        let seqno = log_record.seqno;
        if let LogRecordKind::Commit { stream, total } = log_record.kind {
            // Without its parts, its number is missing. A lane's chunks follow each other, so no
            // crash explains this.
            let Some(stream) = self.open.remove(&stream).filter(|s| s.found == total) else {
                return;
            };
            let streamed = Streamed {
                lane: pass.lane,
                records: log_record.records,
                newest,
                stream,
            };
            self.add_item(pass, Item::Streamed(streamed));
        } else if let Some(stream) = log_record.aborted_stream() {
            braid_rt::coverage_point("scan: a stream that was aborted");
            self.open.remove(&stream);
        }
        let found = self.found.entry(incarnation).or_default();
        if let LogRecordKind::Dependent { .. } | LogRecordKind::Commit { .. } = log_record.kind {
            let on: Vec<_> = log_record.split().0.collect();
            if !on.is_empty() {
                found.dependents.push(Dependent { seqno, on });
            }
        }
        found.add(Run {
            first: log_record.first(),
            last: seqno,
            flush: newest.flush,
            rest: log_record.rest,
        });
    }

    /// Records a part, at `offset` of a stream.
    fn part(
        &mut self,
        pass: &Pass<'_>,
        incarnation: u32,
        stream: u64,
        offset: u64,
        place: Place<'_>,
    ) {
        let stream = self.open.entry(stream).or_insert(Parts {
            incarnation,
            found: 0,
            parts: Vec::new(),
        });
        // After a gap, the stream stays incomplete.
        if stream.found != offset {
            return;
        }
        stream.found += place.bytes.len() as u64;
        let part = Part {
            segment: place.segment.clone(),
            offset: place.offset,
            len: place.bytes.len(),
            crc: crc32c::crc32c(&place.bytes),
            bytes: pass.early.is_some().then_some(place.bytes),
        };
        part.bytes.iter().for_each(WindowSlice::keep);
        stream.parts.push(part);
    }
}
