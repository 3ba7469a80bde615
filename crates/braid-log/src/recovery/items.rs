//! Parts of the log that replay processes one by one: runs of chunks, and large log records.

use std::sync::Arc;

use braid_rt::to_usize;

use crate::LogError;
use crate::base::numbers::{FlushNo, LaneId, SeqNo};
use crate::format::BLOCK;
use crate::format::chunk::{CHUNK_HEADER, ChunkHeader};
use crate::format::log_record::LogRecords;
use crate::format::segment::{Segment, segment_name};
use crate::recovery::reader::{Expected, ReadChunk, SegmentReader};
use crate::recovery::windows::{WindowSlice, Windows};

/// Log bytes of one unit of work in parallel replay.
pub(super) fn extent_bytes() -> u64 {
    if braid_rt::simulation::is_on() {
        32 << 10
    } else {
        4 << 20
    }
}

/// One transaction in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// The sequence number, the last of the transaction's numbers.
    pub seqno: SeqNo,
    /// Number of sequence numbers assigned to the transaction.
    pub records: u32,
    /// The bytes that were appended.
    pub payload: &'a [u8],
}

/// The place of log records in the order of the log. Of two, each component may be the greater one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Newest {
    pub(crate) seqno: SeqNo,
    pub(crate) flush: FlushNo,
}

impl Newest {
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            seqno: self.seqno.max(other.seqno),
            flush: self.flush.max(other.flush),
        }
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
    /// The newest of its whole log records.
    pub(crate) newest: Newest,
    /// The chunks, if they are still in memory.
    pub(crate) bytes: Option<WindowSlice>,
}

impl Extent {
    /// Appends another extent, if it follows and the result is not too long. A torn flush may lie
    /// in between.
    pub(super) fn append(&mut self, next: &Self, extent_bytes: u64) -> bool {
        let is_next = self.end == next.offset && self.end - self.offset < extent_bytes;
        let appended = is_next
            && match (&mut self.bytes, &next.bytes) {
                (Some(bytes), Some(next)) => bytes.append(next),
                (None, None) => true,
                _ => false,
            };
        if appended {
            self.end = next.end;
            self.newest = self.newest.max(next.newest);
        }
        appended
    }

    /// Calls `f` for every chunk with its whole log records.
    fn for_each<E: From<LogError>>(
        &self,
        windows: &Arc<Windows>,
        f: &mut impl FnMut(FlushNo, Vec<LogRecord<'_>>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (lane, segment) = (self.lane, &self.segment);
        let changed = |offset| changed(lane, segment, offset);
        let mut reader = SegmentReader::until(windows, lane, segment, self.end);
        let mut expected = self.expected;
        let mut offset = self.offset;
        while offset < self.end {
            let chunk = match &self.bytes {
                // The scan has checked them.
                Some(bytes) => checked_chunk(bytes, self.offset, offset),
                None => reader.chunk(offset, &expected)?,
            };
            let Some(ReadChunk { header, bytes, crc }) = chunk else {
                return Err(changed(offset).into());
            };
            let payload = &bytes[CHUNK_HEADER..CHUNK_HEADER + header.payload_len as usize];
            let mut found = Vec::new();
            let mut log_records = LogRecords::new(payload);
            while let Some(log_record) = log_records.next().map_err(|_| changed(offset))? {
                if log_record.is_whole() {
                    found.push(LogRecord {
                        seqno: log_record.transaction(),
                        records: log_record.records,
                        payload: log_record.split().1,
                    });
                }
            }
            f(header.flush, found)?;
            offset = header.end_at(offset);
            expected = Expected {
                sequence: expected.sequence + 1,
                link: crc,
                ..expected
            };
        }
        Ok(())
    }
}

fn changed(lane: LaneId, segment: &Segment, offset: u64) -> LogError {
    let name = segment_name(lane, segment.sequence);
    LogError::corrupted("a chunk changed after it was scanned", &name, offset)
}

/// Returns the chunk at `offset` of a segment, whose bytes from `start` on the scan has checked.
fn checked_chunk(bytes: &WindowSlice, start: u64, offset: u64) -> Option<ReadChunk> {
    let at = to_usize(offset - start);
    let header = ChunkHeader::decode(&bytes[at..])?;
    Some(ReadChunk {
        header,
        bytes: bytes.part(at, header.size_at(offset)),
        crc: 0,
    })
}

/// A part of a stream: `len` payload bytes at `offset` of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) segment: Segment,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// CRC-32C of the bytes.
    pub(crate) crc: u32,
    /// The bytes, if they are still in memory.
    pub(crate) bytes: Option<WindowSlice>,
}

/// The parts of a stream that were found, in order and without a gap.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) incarnation: u32,
    /// Bytes of all of them.
    pub(crate) found: u64,
    pub(crate) parts: Vec<Part>,
}

impl Parts {
    /// Releases their memory: replay reads them again.
    pub(crate) fn forget(&mut self) {
        self.parts.iter_mut().for_each(|part| part.bytes = None);
    }
}

/// A streamed transaction.
#[derive(Clone, Debug)]
pub(crate) struct Streamed {
    pub(crate) lane: LaneId,
    pub(crate) records: u32,
    /// Its number, and the number of the flush that wrote its commit record.
    pub(crate) newest: Newest,
    pub(crate) stream: Parts,
}

impl Streamed {
    fn for_each<E: From<LogError>>(
        &self,
        windows: &Arc<Windows>,
        f: &mut impl FnMut(FlushNo, Vec<LogRecord<'_>>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut payload = Vec::with_capacity(to_usize(self.stream.found));
        for part in &self.stream.parts {
            if let Some(bytes) = &part.bytes {
                payload.extend_from_slice(bytes);
                continue;
            }
            let end = (part.offset + part.len as u64).next_multiple_of(BLOCK as u64);
            let mut reader = SegmentReader::until(windows, self.lane, &part.segment, end);
            let bytes = reader.bytes_at(part.offset, part.len)?;
            if crc32c::crc32c(&bytes) != part.crc {
                return Err(changed(self.lane, &part.segment, part.offset).into());
            }
            payload.extend_from_slice(&bytes);
        }
        let log_record = LogRecord {
            seqno: self.newest.seqno,
            records: self.records,
            payload: &payload,
        };
        f(self.newest.flush, vec![log_record])
    }
}

/// A unit of work in parallel replay.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Extent(Extent),
    Streamed(Streamed),
}

impl Item {
    pub(crate) fn lane(&self) -> LaneId {
        match self {
            Self::Extent(extent) => extent.lane,
            Self::Streamed(streamed) => streamed.lane,
        }
    }

    pub(crate) fn incarnation(&self) -> u32 {
        match self {
            Self::Extent(extent) => extent.expected.incarnation,
            Self::Streamed(streamed) => streamed.stream.incarnation,
        }
    }

    pub(crate) fn newest(&self) -> Newest {
        match self {
            Self::Extent(extent) => extent.newest,
            Self::Streamed(streamed) => streamed.newest,
        }
    }

    fn bytes(&self) -> impl Iterator<Item = &Option<WindowSlice>> {
        let (extent, parts) = match self {
            Self::Extent(extent) => (Some(&extent.bytes), &[][..]),
            Self::Streamed(streamed) => (None, &streamed.stream.parts[..]),
        };
        extent
            .into_iter()
            .chain(parts.iter().map(|part| &part.bytes))
    }

    /// Whether all of it is in memory.
    pub(crate) fn is_kept(&self) -> bool {
        self.bytes().all(Option::is_some)
    }

    /// Keeps its bytes in memory.
    pub(crate) fn keep(&self) {
        self.bytes().flatten().for_each(WindowSlice::keep);
    }

    /// Releases its memory: replay reads it again.
    pub(crate) fn forget(&mut self) {
        match self {
            Self::Extent(extent) => extent.bytes = None,
            Self::Streamed(streamed) => streamed.stream.forget(),
        }
    }

    /// Calls `f` with the log records of each flush, or parts of them, and the flush's number.
    ///
    /// # Errors
    /// Errors of `f`; [`LogError::Io`] and [`LogError::Corrupted`] if the log can no longer be
    /// read.
    pub(crate) fn for_each<E: From<LogError>>(
        &self,
        windows: &Arc<Windows>,
        mut f: impl FnMut(FlushNo, Vec<LogRecord<'_>>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Extent(extent) => extent.for_each(windows, &mut f),
            Self::Streamed(streamed) => streamed.for_each(windows, &mut f),
        }
    }
}
