//! Reading chunks from a segment file through a window.

use braid_io::{AlignedBuf, Device, ReadOp};

use crate::LogError;
use crate::chunk::{CHUNK_HEADER, ChunkHeader};
use crate::options::BLOCK;
use crate::segment::{Segment, segment_name};

/// Bytes read at once.
const WINDOW: usize = 4 << 20;

/// Bytes of one read of a window; the device may perform all of them at the same time.
const READ: usize = 512 << 10;

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
            let mut offset = base;
            let mut reads: Vec<_> = self.buf[..window]
                .chunks_mut(READ)
                .map(|buf| {
                    let read = ReadOp { offset, buf };
                    offset += read.buf.len() as u64;
                    read
                })
                .collect();
            self.segment.file.read_batch(&mut reads).map_err(|error| {
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

#[cfg(test)]
mod tests {
    use braid_io::{MemoryDevice, OpenMode};

    use super::*;

    /// A recycled segment is full of valid chunks; only the expected one counts.
    #[test]
    fn only_the_expected_chunk_counts() {
        let device = MemoryDevice::new();
        let file = device.open("x", OpenMode::CreateNew).unwrap();
        file.set_len(3 * BLOCK as u64).unwrap();
        let expected = Expected {
            lane: 1,
            incarnation: 2,
            sequence: 3,
            link: 4,
        };
        let header = ChunkHeader {
            lane: 1,
            strand: 0,
            incarnation: 2,
            sequence: 3,
            first: 1,
            last: 1,
            horizon: 0,
            payload_len: 5000,
            pieces: 1,
            link: 4,
        };
        let mut chunk = device.allocate(2 * BLOCK);
        header.seal(&mut chunk);
        file.write_at(&[&chunk], BLOCK as u64).unwrap();
        let segment = Segment {
            sequence: 1,
            len: 3 * BLOCK as u64,
            file,
        };
        let mut reader = SegmentReader::new(&device, 1, &segment);
        let mut found = |offset: usize, expected: Expected| {
            reader.chunk(offset as u64, &expected).unwrap().is_some()
        };
        assert!(found(BLOCK, expected));
        assert!(!found(0, expected) && !found(2 * BLOCK, expected) && !found(3 * BLOCK, expected));
        for other in [
            Expected {
                lane: 0,
                ..expected
            },
            Expected {
                incarnation: 1,
                ..expected
            },
            Expected {
                sequence: 4,
                ..expected
            },
            Expected {
                link: 5,
                ..expected
            },
        ] {
            assert!(!found(BLOCK, other), "{other:?}");
        }
        // A length that points behind the segment.
        let mut long = device.allocate(4 * BLOCK);
        ChunkHeader {
            payload_len: 3 * BLOCK as u32,
            ..header
        }
        .seal(&mut long);
        segment
            .file
            .write_at(&[&long[..2 * BLOCK]], BLOCK as u64)
            .unwrap();
        let mut reader = SegmentReader::new(&device, 1, &segment);
        assert!(reader.chunk(BLOCK as u64, &expected).unwrap().is_none());
    }
}
