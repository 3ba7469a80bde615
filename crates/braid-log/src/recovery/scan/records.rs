//! The log records of a scanned lane, and where they lie.

use std::collections::HashMap;

use super::{LaneScan, Pass};
use crate::LogError;
use crate::base::numbers::{FlushNo, LaneId, SeqNo};
use crate::format::chunk::{CHUNK_HEADER, ChunkHeader};
use crate::format::log_record::{LogRecordKind, LogRecords, RawLogRecord};
use crate::format::segment::{Segment, segment_name};
use crate::protocol::{Dependent, Run};
use crate::recovery::reader::Expected;

/// Log bytes of one unit of work in parallel replay.
pub(super) fn extent_bytes() -> u64 {
    if braid_rt::simulation::is_on() {
        32 << 10
    } else {
        4 << 20
    }
}

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
    pub(super) fn takes(&self, offset: u64, extent_bytes: u64) -> bool {
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
    pub(super) found: u64,
    /// The number of the flush that wrote its last part.
    pub(crate) flush: FlushNo,
    pub(crate) parts: Vec<Part>,
}

impl LaneScan {
    /// Records the log records of a chunk of a complete flush.
    pub(super) fn log_records(
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
