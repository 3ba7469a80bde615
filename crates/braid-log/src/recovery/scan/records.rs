//! The log records of a scanned lane, and where they lie.

use std::mem;

use super::{LaneScan, Pass};
use crate::LogError;
use crate::base::numbers::SeqNo;
use crate::format::chunk::CHUNK_HEADER;
use crate::format::log_record::{LogRecordKind, LogRecords, RawLogRecord};
use crate::format::segment::{Segment, segment_name};
use crate::protocol::{Dependent, Run};
use crate::recovery::items::{Extent, Item, Newest, Part, Streamed, extent_bytes};
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
            end: found.offset + found.chunk.header.size() as u64,
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
            self.open.values_mut().for_each(Streamed::forget);
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
            let this = Newest {
                seqno: log_record.seqno,
                flush: header.flush,
            };
            if log_record.is_whole() && log_record.seqno > pass.after {
                newest = newest.max(this);
            }
            if self.mode.up_to_limit(log_record.seqno) < log_record.seqno {
                braid_rt::coverage_point("scan: a log record that is not known to be durable");
            } else if log_record.seqno > pass.after {
                let (end, len) = (log_records.position(), log_record.payload.len());
                let at = CHUNK_HEADER + end - len;
                let place = || Place {
                    segment,
                    offset: found.offset + at as u64,
                    bytes: bytes.part(at, len),
                };
                let incarnation = header.incarnation;
                self.log_record(pass, incarnation, this, &log_record, place);
            } else {
                braid_rt::coverage_point("scan: a log record that the checkpoint has");
            }
        }
    }

    /// Records a log record.
    fn log_record<'a>(
        &mut self,
        pass: &Pass<'_>,
        incarnation: u32,
        newest: Newest,
        log_record: &RawLogRecord<'_>,
        place: impl FnOnce() -> Place<'a>,
    ) {
        let seqno = log_record.seqno;
        let is_complete = match log_record.kind {
            LogRecordKind::Data | LogRecordKind::Abort | LogRecordKind::Dependent { .. } => true,
            LogRecordKind::First { total } => {
                let streamed = Streamed {
                    lane: pass.lane,
                    incarnation,
                    records: log_record.records,
                    total,
                    found: 0,
                    newest,
                    parts: Vec::new(),
                };
                self.open.insert(seqno, streamed);
                self.part(pass, newest, 0, place())
            }
            LogRecordKind::Next { offset } => self.part(pass, newest, offset, place()),
        };
        let found = self.found.entry(incarnation).or_default();
        if let LogRecordKind::Dependent { .. } = log_record.kind {
            found.dependents.push(Dependent {
                seqno,
                on: log_record.split().0.collect(),
            });
        }
        if is_complete {
            found.add(Run {
                first: log_record.first(),
                last: seqno,
                flush: newest.flush,
            });
        }
    }

    /// Records a part, at `offset` of the payload, of a streamed log record. Returns whether it was
    /// the last one.
    fn part(&mut self, pass: &Pass<'_>, newest: Newest, offset: u64, place: Place<'_>) -> bool {
        let streamed = self.open.get_mut(&newest.seqno);
        // A part without its beginning: its number is missing. A lane's chunks follow each other,
        // so no crash explains this.
        let Some(streamed) = streamed.filter(|streamed| streamed.found == offset) else {
            return false;
        };
        streamed.found += place.bytes.len() as u64;
        streamed.newest = newest;
        let part = Part {
            segment: place.segment.clone(),
            offset: place.offset,
            len: place.bytes.len(),
            crc: crc32c::crc32c(&place.bytes),
            bytes: pass.early.is_some().then_some(place.bytes),
        };
        part.bytes.iter().for_each(WindowSlice::keep);
        streamed.parts.push(part);
        let is_complete = streamed.found == streamed.total;
        if is_complete && let Some(streamed) = self.open.remove(&newest.seqno) {
            self.add_item(pass, Item::Streamed(streamed));
        }
        is_complete
    }
}
