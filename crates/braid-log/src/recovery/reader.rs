//! A reader of chunks from a segment file through a window.

use std::io;
use std::sync::mpsc::{self, Receiver, SyncSender};

use braid_io::{AlignedBuf, Device, File, ReadOp};
use braid_rt::to_usize;

use crate::LogError;
use crate::base::numbers::LaneId;
use crate::format::BLOCK;
use crate::format::chunk::{CHUNK_HEADER, ChunkHeader};
use crate::format::segment::{Segment, segment_name};

/// Bytes read at once.
const WINDOW: usize = if cfg!(miri) { 64 << 10 } else { 4 << 20 };

/// Bytes of one read of a window; the device may perform all of them at the same time.
const READ: usize = if cfg!(miri) { 16 << 10 } else { 512 << 10 };

/// The identity that the next chunk must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) lane: LaneId,
    pub(crate) incarnation: u32,
    pub(crate) sequence: u64,
    pub(crate) link: u32,
}

/// A valid chunk, and the identity of the chunk after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadChunk<'a> {
    pub(crate) header: ChunkHeader,
    pub(crate) payload: &'a [u8],
    pub(crate) crc: u32,
}

/// Windows that are being read, or that wait for their use.
const WINDOWS_AHEAD: usize = 2;

/// Most room in front of a window for a chunk that began in the previous window.
const MARGIN: usize = if cfg!(miri) { 32 << 10 } else { 1 << 20 };

/// Returns the margin and the size of a segment's read-ahead windows.
fn margin_and_window(segment: &Segment) -> (usize, usize) {
    let size = usize::try_from(segment.len).unwrap_or(WINDOW).max(BLOCK);
    (MARGIN.min(size), WINDOW.min(size))
}

/// A thread that reads a segment's windows in order while their user works.
struct ReadAhead {
    windows: Receiver<io::Result<(AlignedBuf, usize)>>,
    used: SyncSender<AlignedBuf>,
}

impl ReadAhead {
    /// Starts reading from `offset` to the segment's end. The thread ends at the segment's end, or
    /// when the `ReadAhead` is dropped.
    fn start(device: &dyn Device, segment: &Segment, mut offset: u64) -> Option<Self> {
        if braid_rt::simulation::is_on() {
            // The simulator's threads are tasks, all of which a channel would block at once.
            return None;
        }
        let (send, windows) = mpsc::sync_channel(WINDOWS_AHEAD);
        // Room for the window in use and for the one that its user returns, on top of the waiting
        // windows.
        let (used, reuse) = mpsc::sync_channel(WINDOWS_AHEAD + 2);
        let (margin, window) = margin_and_window(segment);
        for _ in 0..=WINDOWS_AHEAD {
            used.send(device.allocate(margin + window)).ok()?;
        }
        let (file, end) = (segment.file.clone(), segment.len);
        let work = move || {
            while offset < end {
                let Ok(mut buf): Result<AlignedBuf, _> = reuse.recv() else {
                    return;
                };
                let len = to_usize((end - offset).min(window as u64));
                let read = read_window(&*file, offset, &mut buf[margin..margin + len]);
                if send.send(read.map(|()| (buf, len))).is_err() {
                    return;
                }
                offset += len as u64;
            }
        };
        // Without a thread, the reader reads windows itself.
        let started = std::thread::Builder::new().name("braid-readahead".into());
        started.spawn(work).ok()?;
        Some(Self { windows, used })
    }
}

fn read_window(file: &dyn File, mut offset: u64, window: &mut [u8]) -> io::Result<()> {
    let mut reads: Vec<_> = window
        .chunks_mut(READ)
        .map(|buf| {
            let read = ReadOp { offset, buf };
            offset += read.buf.len() as u64;
            read
        })
        .collect();
    file.read_batch(&mut reads)
}

/// Reader of one segment, from front to back.
pub(crate) struct SegmentReader<'a> {
    device: &'a dyn Device,
    lane: LaneId,
    segment: &'a Segment,
    buf: AlignedBuf,
    /// The index in `buf` of the bytes at `start` of the segment, and their count.
    at: usize,
    start: u64,
    len: usize,
    ahead: Option<ReadAhead>,
    /// Bytes after this offset will be read again.
    kept_from: u64,
    /// Bytes read from the device.
    pub(crate) bytes: u64,
}

impl<'a> SegmentReader<'a> {
    pub(crate) fn new(device: &'a dyn Device, lane: LaneId, segment: &'a Segment) -> Self {
        Self {
            device,
            lane,
            segment,
            buf: device.allocate(BLOCK),
            at: 0,
            start: 0,
            len: 0,
            ahead: None,
            kept_from: u64::MAX,
            bytes: 0,
        }
    }

    /// Creates a reader that reuses an earlier reader's buffer, see [`Self::into_buffer`].
    pub(crate) fn with_buffer(
        device: &'a dyn Device,
        lane: LaneId,
        segment: &'a Segment,
        buf: AlignedBuf,
    ) -> Self {
        Self {
            buf,
            ..Self::new(device, lane, segment)
        }
    }

    /// Returns the buffer, whose allocation costs more than filling it.
    pub(crate) fn into_buffer(self) -> AlignedBuf {
        self.buf
    }

    /// Creates a reader with a thread that reads ahead, from `offset` on.
    pub(crate) fn ahead(
        device: &'a dyn Device,
        lane: LaneId,
        segment: &'a Segment,
        offset: u64,
    ) -> Self {
        Self {
            start: offset,
            ahead: ReadAhead::start(device, segment, offset),
            ..Self::new(device, lane, segment)
        }
    }

    /// Returns `len` bytes at `offset`; the caller has checked that the segment contains them.
    pub(crate) fn bytes_at(&mut self, offset: u64, len: usize) -> Result<&[u8], LogError> {
        while !self.has(offset, len) {
            if !self.next_window(offset)? {
                self.read(offset, len)?;
            }
        }
        let at = self.at + to_usize(offset - self.start);
        Ok(&self.buf[at..at + len])
    }

    /// Keeps bytes from `offset` on, which will be read again, when the window moves.
    pub(crate) fn keep_from(&mut self, offset: u64) {
        self.kept_from = offset;
    }

    fn has(&self, offset: u64, len: usize) -> bool {
        offset >= self.start && offset + len as u64 <= self.start + self.len as u64
    }

    /// Moves to the window that was read ahead, and keeps the bytes after `offset`. Returns whether
    /// there was such a window.
    fn next_window(&mut self, offset: u64) -> Result<bool, LogError> {
        let end = self.start + self.len as u64;
        let (margin, window) = margin_and_window(self.segment);
        let offset = offset.min(self.kept_from);
        let fits = (self.start..=end).contains(&offset) && end - offset <= margin as u64;
        let next = match &self.ahead {
            Some(ahead) if fits => ahead.windows.recv().ok(),
            _ => None,
        };
        let Some(next) = next else {
            self.ahead = None;
            return Ok(false);
        };
        let (mut buf, len) = next.map_err(|error| self.failed(end, window, error))?;
        let kept = to_usize(end - offset);
        let from = self.at + to_usize(offset - self.start);
        buf[margin - kept..margin].copy_from_slice(&self.buf[from..from + kept]);
        let used = std::mem::replace(&mut self.buf, buf);
        if let Some(ahead) = &self.ahead
            && used.len() == margin + window
        {
            // If the thread does not take the window, it has finished the segment.
            let _ = ahead.used.try_send(used);
        }
        (self.at, self.start, self.len) = (margin - kept, offset, kept + len);
        self.bytes += len as u64;
        Ok(true)
    }

    /// Reads a window on the calling thread.
    fn read(&mut self, offset: u64, len: usize) -> Result<(), LogError> {
        let base = offset - offset % BLOCK as u64;
        let need = to_usize(offset - base) + len;
        let size = need.max(WINDOW.min(to_usize(self.segment.len)));
        if self.buf.len() < size {
            self.buf = self.device.allocate(size.next_multiple_of(BLOCK));
        }
        let window = to_usize((self.buf.len() as u64).min(self.segment.len - base));
        self.len = 0;
        read_window(&*self.segment.file, base, &mut self.buf[..window])
            .map_err(|error| self.failed(base, window, error))?;
        (self.at, self.start, self.len) = (0, base, window);
        self.bytes += window as u64;
        Ok(())
    }

    fn failed(&self, offset: u64, len: usize, error: io::Error) -> LogError {
        let name = segment_name(self.lane, self.segment.sequence);
        LogError::io(
            format!("cannot read {len} bytes of {name} at {offset}"),
            error,
        )
    }

    /// Returns the header of any complete and undamaged chunk at `offset`.
    pub(crate) fn any_chunk(&mut self, offset: u64) -> Result<Option<ChunkHeader>, LogError> {
        let left = self.segment.len.saturating_sub(offset);
        if left < BLOCK as u64 {
            return Ok(None);
        }
        let header = ChunkHeader::decode(self.bytes_at(offset, CHUNK_HEADER)?);
        let Some(header) = header.filter(|header| header.size() as u64 <= left) else {
            return Ok(None);
        };
        let chunk = self.bytes_at(offset, header.size())?;
        Ok(header.check(chunk).map(|_| header))
    }

    /// Returns the chunk at `offset`, if it is the expected one, complete and undamaged.
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
            link: if braid_rt::mutant!("skip_link") {
                expected.link
            } else {
                header.link
            },
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
    use crate::base::numbers::{FlushNo, SeqNo, StrandId};

    /// A recycled segment is full of valid chunks; only the expected one counts.
    #[test]
    fn only_the_expected_chunk_counts() {
        let device = MemoryDevice::new();
        let file = device.open("x", OpenMode::CreateNew).unwrap();
        file.set_len(3 * BLOCK as u64).unwrap();
        let expected = Expected {
            lane: LaneId::new(1),
            incarnation: 2,
            sequence: 3,
            link: 4,
        };
        let header = ChunkHeader {
            lane: LaneId::new(1),
            strand: StrandId::new(0),
            incarnation: 2,
            sequence: 3,
            first: SeqNo::new(1),
            last: SeqNo::new(1),
            durable_seqno: SeqNo::NONE,
            payload_len: 5000,
            log_records: 1,
            link: 4,
            more: 0,
            flush: FlushNo::NONE,
        };
        let mut chunk = device.allocate(2 * BLOCK);
        header.seal(&mut chunk);
        file.write_at(&[&chunk], BLOCK as u64).unwrap();
        let segment = Segment {
            sequence: 1,
            len: 3 * BLOCK as u64,
            file,
        };
        let mut reader = SegmentReader::new(&device, LaneId::new(1), &segment);
        let mut found = |offset: usize, expected: Expected| {
            reader.chunk(offset as u64, &expected).unwrap().is_some()
        };
        assert!(found(BLOCK, expected));
        assert!(!found(0, expected) && !found(2 * BLOCK, expected) && !found(3 * BLOCK, expected));
        for other in [
            Expected {
                lane: LaneId::new(0),
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
        // A length that reaches past the segment's end.
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
        let mut reader = SegmentReader::new(&device, LaneId::new(1), &segment);
        assert!(reader.chunk(BLOCK as u64, &expected).unwrap().is_none());
    }

    /// Sequential reads over window borders, with jumps that leave the windows, with and without a
    /// thread.
    #[test]
    fn every_way_to_read_finds_the_same_bytes() {
        let len = 3 * WINDOW + 5 * BLOCK;
        let device = MemoryDevice::new();
        let file = device.open("x", OpenMode::CreateNew).unwrap();
        let mut content = device.allocate(len);
        fastrand::Rng::with_seed(7).fill(&mut content);
        file.write_at(&[&content], 0).unwrap();
        let segment = Segment {
            sequence: 1,
            len: len as u64,
            file,
        };
        for jumps in [false, true] {
            let mut rng = fastrand::Rng::with_seed(8);
            let from = BLOCK;
            let mut readers = [
                SegmentReader::new(&device, LaneId::new(0), &segment),
                SegmentReader::ahead(&device, LaneId::new(0), &segment, from as u64),
            ];
            let mut offset = from;
            while offset < len {
                let large = if jumps { 2 * MARGIN } else { MARGIN };
                let most = if rng.u8(..10) == 0 {
                    large
                } else {
                    MARGIN / 16
                };
                let want = rng.usize(1..=most.min(len - offset));
                for reader in &mut readers {
                    let found = reader.bytes_at(offset as u64, want).unwrap();
                    assert!(
                        found == &content[offset..offset + want],
                        "{want} at {offset}"
                    );
                }
                if jumps && rng.u8(..40) == 0 {
                    offset = offset.saturating_sub(BLOCK);
                } else {
                    offset += rng.usize(0..=want);
                }
            }
            // Without a jump, no byte is read twice.
            assert!(jumps || readers[1].bytes == (len - from) as u64);
        }
    }
}
