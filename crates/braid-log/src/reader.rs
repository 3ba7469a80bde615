//! Reading chunks from a segment file through a window.

use braid_io::{AlignedBuf, Device};

use crate::LogError;
use crate::chunk::{CHUNK_HEADER, ChunkHeader};
use crate::options::BLOCK;
use crate::segment::{Segment, segment_name};

/// Bytes read at once.
const WINDOW: usize = 1 << 20;

/// Who the next chunk must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) lane: u16,
    pub(crate) incarnation: u32,
    pub(crate) sequence: u64,
    pub(crate) link: u32,
}

/// A valid chunk, and what to expect behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadChunk<'a> {
    pub(crate) header: ChunkHeader,
    pub(crate) payload: &'a [u8],
    pub(crate) crc: u32,
}

/// Reads one segment front to back.
pub(crate) struct SegmentReader<'a> {
    device: &'a dyn Device,
    lane: usize,
    segment: &'a Segment,
    buf: AlignedBuf,
    start: u64,
    len: usize,
    /// Bytes read from the device.
    pub(crate) bytes: u64,
}

impl<'a> SegmentReader<'a> {
    pub(crate) fn new(device: &'a dyn Device, lane: usize, segment: &'a Segment) -> Self {
        let window = WINDOW.min(segment.len as usize).max(BLOCK);
        Self {
            device,
            lane,
            segment,
            buf: device.allocate(window),
            start: 0,
            len: 0,
            bytes: 0,
        }
    }

    /// `len` bytes at `offset`; the caller made sure that the segment has them.
    pub(crate) fn bytes_at(&mut self, offset: u64, len: usize) -> Result<&[u8], LogError> {
        let inside = offset >= self.start && offset + len as u64 <= self.start + self.len as u64;
        if !inside {
            let base = offset - offset % BLOCK as u64;
            let need = (offset - base) as usize + len;
            if self.buf.len() < need {
                self.buf = self.device.allocate(need.next_multiple_of(BLOCK));
            }
            let window = (self.buf.len() as u64).min(self.segment.len - base) as usize;
            self.len = 0;
            self.segment
                .file
                .read_at(&mut self.buf[..window], base)
                .map_err(|error| {
                    let name = segment_name(self.lane, self.segment.sequence);
                    LogError::io(format!("reading {window} bytes of {name} at {base}"), error)
                })?;
            self.start = base;
            self.len = window;
            self.bytes += window as u64;
        }
        let at = (offset - self.start) as usize;
        Ok(&self.buf[at..at + len])
    }

    /// The chunk at `offset`, if it is the expected one, whole and undamaged.
    pub(crate) fn chunk(
        &mut self,
        offset: u64,
        expected: &Expected,
    ) -> Result<Option<ReadChunk<'_>>, LogError> {
        let left = self.segment.len.saturating_sub(offset);
        if left < BLOCK as u64 {
            return Ok(None);
        }
        let Some(header) = ChunkHeader::decode(self.bytes_at(offset, CHUNK_HEADER)?) else {
            return Ok(None);
        };
        let found = Expected {
            lane: header.lane,
            incarnation: header.incarnation,
            sequence: header.sequence,
            link: header.link,
        };
        if found != *expected || header.size() as u64 > left {
            return Ok(None);
        }
        let chunk = self.bytes_at(offset, header.size())?;
        Ok(header.check(chunk).map(|(payload, crc)| ReadChunk {
            header,
            payload,
            crc,
        }))
    }
}
