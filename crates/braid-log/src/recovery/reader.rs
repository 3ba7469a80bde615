//! Reading the chunks of segments from front to back, with threads that read ahead.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};

use braid_io::{File, ReadOp};
use braid_rt::to_usize;

use crate::LogError;
use crate::base::numbers::LaneId;
use crate::format::BLOCK;
use crate::format::chunk::{CHUNK_HEADER, ChunkHeader, ChunkSeed};
use crate::format::segment::{Segment, segment_name};
use crate::recovery::windows::{Window, WindowSlice, Windows};

/// Bytes read at once.
const WINDOW: usize = if cfg!(miri) { 64 << 10 } else { 4 << 20 };

/// Bytes of one read of a window; the device may perform all of them at the same time.
const READ: usize = if cfg!(miri) { 16 << 10 } else { 512 << 10 };

/// The identity that the next chunk must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) seed: ChunkSeed,
    pub(crate) lane: LaneId,
    pub(crate) incarnation: u32,
    pub(crate) sequence: u64,
    pub(crate) link: u32,
}

/// A valid chunk.
#[derive(Clone, Debug)]
pub(crate) struct ReadChunk {
    pub(crate) header: ChunkHeader,
    pub(crate) bytes: WindowSlice,
    pub(crate) crc: u32,
}

/// Threads that read a lane ahead. The device performs the reads of one of them while another one
/// waits for a processor.
const THREADS_AHEAD: usize = 2;

/// Windows that each of these threads has read and that wait for their use.
const WINDOWS_AHEAD: usize = 1;

/// Room in front of a window for a chunk that began in the previous window. A longer beginning
/// costs a copy of the window.
const MARGIN: usize = if cfg!(miri) { 32 << 10 } else { 1 << 20 };

/// Returns the margin and the size of a segment's windows.
fn margin_and_window(segment: &Segment) -> (usize, usize) {
    let (margin, window) = if braid_rt::simulation::is_on() {
        // Simulated segments are short.
        (16 << 10, 64 << 10)
    } else {
        (MARGIN, WINDOW)
    };
    let size = usize::try_from(segment.len).unwrap_or(window).max(BLOCK);
    (margin.min(size), window.min(size))
}

/// The offset of the block that contains an offset. Reads begin there, since the device that wrote
/// the log may have had a smaller unit than the one that is read.
fn block_of(offset: u64) -> u64 {
    offset - offset % BLOCK as u64
}

/// A window that was read ahead: of which segment, and with how many bytes.
type WindowAhead = (u64, io::Result<(Window, usize)>);

/// Threads that read the windows of a lane's segments, in turns, while their user works.
pub(crate) struct ReadAhead {
    threads: Vec<Receiver<WindowAhead>>,
    /// The thread that has the next window.
    turn: Cell<usize>,
}

impl ReadAhead {
    /// Starts reading the first segment from `offset`, and the others from their first chunks. The
    /// threads end after the last segment, or when the `ReadAhead` is dropped. Returns `None` if
    /// the reader shall read the windows itself.
    pub(crate) fn start<'a>(
        windows: &Arc<Windows>,
        segments: impl Iterator<Item = &'a Segment>,
        offset: u64,
    ) -> Option<Self> {
        if braid_rt::simulation::is_on() {
            // The simulator's threads are tasks, all of which a channel would block at once.
            return None;
        }
        let segments: Vec<Segment> = segments.cloned().collect();
        let offset = block_of(offset);
        let start = |thread: usize| {
            let (send, receive) = mpsc::sync_channel(WINDOWS_AHEAD);
            let (segments, windows) = (segments.clone(), Arc::clone(windows));
            let work = move || read_ahead(&segments, offset, thread, &windows, &send);
            let started = std::thread::Builder::new().name("braid-readahead".into());
            started.spawn(work).ok().map(|_| receive)
        };
        Some(Self {
            threads: (0..THREADS_AHEAD).map(start).collect::<Option<_>>()?,
            turn: Cell::new(0),
        })
    }

    /// Returns the next window of a segment. A log may leave a segment before its end, so windows
    /// of earlier segments are skipped.
    fn next(&self, sequence: u64) -> Option<io::Result<(Window, usize)>> {
        loop {
            let turn = self.turn.get();
            let (of, read) = self.threads[turn % THREADS_AHEAD].recv().ok()?;
            self.turn.set(turn + 1);
            if of >= sequence {
                // A reader takes all windows of its segment, or stops.
                debug_assert_eq!(of, sequence);
                return Some(read);
            }
        }
    }
}

/// Reads the windows of one of the threads.
fn read_ahead(
    segments: &[Segment],
    mut offset: u64,
    thread: usize,
    windows: &Arc<Windows>,
    send: &SyncSender<WindowAhead>,
) {
    let mut turn = 0;
    for segment in segments {
        let (margin, size) = margin_and_window(segment);
        while offset < segment.len {
            let len = to_usize((segment.len - offset).min(size as u64));
            if turn % THREADS_AHEAD == thread {
                let mut window = windows.take(margin + size);
                let read = read_window(&*segment.file, offset, &mut window[margin..margin + len]);
                let read = read.map(|()| (window, len));
                if send.send((segment.sequence, read)).is_err() {
                    return;
                }
            }
            offset += len as u64;
            turn += 1;
        }
        offset = BLOCK as u64;
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
    windows: &'a Arc<Windows>,
    lane: LaneId,
    segment: &'a Segment,
    /// Bytes after this offset are not needed.
    until: u64,
    window: Option<Arc<Window>>,
    /// The index in the window of the bytes at `start` of the segment, and their count.
    at: usize,
    start: u64,
    len: usize,
    ahead: Option<&'a ReadAhead>,
    /// Bytes read from the device.
    pub(crate) bytes: u64,
}

impl<'a> SegmentReader<'a> {
    pub(crate) fn new(windows: &'a Arc<Windows>, lane: LaneId, segment: &'a Segment) -> Self {
        Self {
            windows,
            lane,
            segment,
            until: segment.len,
            window: None,
            at: 0,
            start: 0,
            len: 0,
            ahead: None,
            bytes: 0,
        }
    }

    /// As [`Self::new`], but reads no block after `until`.
    pub(crate) fn until(
        windows: &'a Arc<Windows>,
        lane: LaneId,
        segment: &'a Segment,
        until: u64,
    ) -> Self {
        Self {
            until: until.next_multiple_of(BLOCK as u64),
            ..Self::new(windows, lane, segment)
        }
    }

    /// Creates a reader of the windows that `ahead` reads, of which the first begins at `offset`.
    pub(crate) fn ahead(
        windows: &'a Arc<Windows>,
        lane: LaneId,
        segment: &'a Segment,
        offset: u64,
        ahead: Option<&'a ReadAhead>,
    ) -> Self {
        Self {
            start: block_of(offset),
            ahead,
            ..Self::new(windows, lane, segment)
        }
    }

    /// Returns `len` bytes at `offset`; the caller has checked that the segment contains them.
    pub(crate) fn bytes_at(&mut self, offset: u64, len: usize) -> Result<WindowSlice, LogError> {
        let end = offset + len as u64;
        loop {
            let has = self.start..=self.start + self.len as u64;
            if has.contains(&offset)
                && has.contains(&end)
                && let Some(window) = &self.window
            {
                let at = self.at + to_usize(offset - self.start);
                return Ok(WindowSlice::new(window, at, len));
            }
            let next = self.start + self.len as u64;
            if !has.contains(&offset) && block_of(offset) != next {
                self.jump(offset);
            }
            self.next_window(offset.min(self.start + self.len as u64))?;
        }
    }

    /// Leaves the bytes read so far, and the windows read ahead.
    fn jump(&mut self, offset: u64) {
        self.ahead = None;
        self.start = block_of(offset);
        self.len = 0;
    }

    /// Adds the next window to the bytes from `offset` on, and drops those before.
    fn next_window(&mut self, offset: u64) -> Result<(), LogError> {
        let end = self.start + self.len as u64;
        let (margin, size) = margin_and_window(self.segment);
        let failed = |error| self.failed(end, size, error);
        let read = self.ahead.and_then(|a| a.next(self.segment.sequence));
        let (mut window, len) = match read {
            Some(read) => read.map_err(failed)?,
            None => {
                // Without a thread, or after the last window that is needed.
                let is_needed = end < self.until;
                let until = if is_needed {
                    self.until
                } else {
                    self.segment.len
                };
                let len = to_usize((until - end).min(size as u64));
                let mut window = self.windows.take(margin + len);
                read_window(&*self.segment.file, end, &mut window[margin..margin + len])
                    .map_err(failed)?;
                (window, len)
            }
        };
        self.bytes += len as u64;
        let kept = to_usize(end - offset);
        let mut at = margin;
        if kept > margin {
            let mut larger = self.windows.take(kept + len);
            larger[kept..kept + len].copy_from_slice(&window[margin..margin + len]);
            (window, at) = (larger, kept);
        }
        if let Some(before) = &self.window {
            let from = self.at + to_usize(offset - self.start);
            window[at - kept..at].copy_from_slice(&before[from..from + kept]);
        }
        (self.at, self.start, self.len) = (at - kept, offset, kept + len);
        self.window = Some(Arc::new(window));
        Ok(())
    }

    fn failed(&self, offset: u64, len: usize, error: io::Error) -> LogError {
        let name = segment_name(self.lane, self.segment.sequence);
        LogError::io(
            format!("cannot read {len} bytes of {name} at {offset}"),
            error,
        )
    }

    /// Returns the first offset at which a chunk may begin, in steps of `step` from `offset` on and
    /// before `end`. Looks through a block at a time, because most of them contain none.
    pub(crate) fn next_candidate(
        &mut self,
        mut offset: u64,
        end: u64,
        step: usize,
    ) -> Result<Option<u64>, LogError> {
        let end = end.min(self.segment.len);
        while offset < end {
            let left = to_usize(end - offset);
            // A multiple of the step, except at the end.
            let bytes = self.bytes_at(offset, left.min(BLOCK.max(step)))?;
            let mut places = (0..bytes.len()).step_by(step);
            if let Some(at) = places.find(|&at| ChunkHeader::may_begin(&bytes[at..])) {
                return Ok(Some(offset + at as u64));
            }
            offset += bytes.len() as u64;
        }
        Ok(None)
    }

    /// Returns the header of any complete and undamaged chunk of the log at `offset`.
    pub(crate) fn any_chunk(
        &mut self,
        offset: u64,
        seed: ChunkSeed,
    ) -> Result<Option<ChunkHeader>, LogError> {
        let left = self.segment.len.saturating_sub(offset);
        if left < CHUNK_HEADER as u64 {
            return Ok(None);
        }
        let header = ChunkHeader::decode(&self.bytes_at(offset, CHUNK_HEADER)?);
        let size = |header: &ChunkHeader| header.size_at(offset);
        let Some(header) = header.filter(|header| size(header) as u64 <= left) else {
            return Ok(None);
        };
        let chunk = self.bytes_at(offset, size(&header))?;
        Ok(header.check(seed, &chunk).map(|_| header))
    }

    /// Returns the chunk at `offset`, if it is the expected one, complete and undamaged.
    pub(crate) fn chunk(
        &mut self,
        offset: u64,
        expected: &Expected,
    ) -> Result<Option<ReadChunk>, LogError> {
        let left = self.segment.len.saturating_sub(offset);
        if left < CHUNK_HEADER as u64 {
            return Ok(None);
        }
        let Some(header) = ChunkHeader::decode(&self.bytes_at(offset, CHUNK_HEADER)?) else {
            return Ok(None);
        };
        let found = Expected {
            seed: expected.seed,
            lane: header.lane,
            incarnation: header.incarnation,
            sequence: header.sequence,
            link: if braid_rt::mutant!("skip_link") {
                expected.link
            } else {
                header.link
            },
        };
        let size = header.size_at(offset);
        if found != *expected || size as u64 > left {
            return Ok(None);
        }
        let bytes = self.bytes_at(offset, size)?;
        let checked = header.check(expected.seed, &bytes).map(|(_, crc)| crc);
        Ok(checked.map(|crc| ReadChunk { header, bytes, crc }))
    }
}

#[cfg(test)]
mod tests {
    use braid_io::{Device, MemoryDevice, OpenMode};

    use super::*;
    use crate::base::numbers::{FlushNo, SeqNo, StrandId};
    use crate::format::padding::Padding;

    #[test]
    fn candidates_lie_at_steps_up_to_the_end() {
        let device = MemoryDevice::new();
        let file = device.open("x", OpenMode::CreateNew).unwrap();
        let len = 3 * BLOCK as u64;
        file.set_len(len).unwrap();
        // The second lies between two steps of 64 bytes, the last one in the last step.
        let (first, last) = (BLOCK as u64 - 64, len - 64);
        for offset in [first, first + 100, first + 128, last] {
            file.write_at(&[&b"BCHK"[..]], offset).unwrap();
        }
        let sequence = 1;
        let segment = Segment {
            sequence,
            len,
            file,
        };
        let windows = Windows::new(Arc::new(device.clone()), 0);
        let mut reader = SegmentReader::new(&windows, LaneId::new(0), &segment);
        let mut found = |from: u64, end: u64, step: usize| {
            let (mut next, mut found) = (from, Vec::new());
            while let Some(at) = reader.next_candidate(next, end, step).unwrap() {
                found.push(at);
                next = at + step as u64;
            }
            found
        };
        assert_eq!(found(0, len, 64), [first, first + 128, last]);
        assert_eq!(found(64, u64::MAX, 64), [first, first + 128, last]);
        assert_eq!(found(first + 64, last, 64), [first + 128]);
        assert_eq!(found(first, len, 4096), [first, last]);
        assert_eq!(found(first + 128, len, 8192), [first + 128]);
        assert!(found(len, u64::MAX, 64).is_empty());
    }

    /// A recycled segment is full of valid chunks; only the expected one counts.
    #[test]
    fn only_the_expected_chunk_counts() {
        let device = MemoryDevice::new();
        let file = device.open("x", OpenMode::CreateNew).unwrap();
        file.set_len(3 * BLOCK as u64).unwrap();
        let expected = Expected {
            seed: ChunkSeed::of(7),
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
            padding: Padding::BLOCK,
        };
        let mut chunk = device.allocate(2 * BLOCK);
        header.seal(expected.seed, &mut chunk);
        file.write_at(&[&chunk], BLOCK as u64).unwrap();
        let segment = Segment {
            sequence: 1,
            len: 3 * BLOCK as u64,
            file,
        };
        let windows = Windows::new(Arc::new(device.clone()), 0);
        let mut reader = SegmentReader::new(&windows, LaneId::new(1), &segment);
        let mut found = |offset: usize, expected: Expected| {
            reader.chunk(offset as u64, &expected).unwrap().is_some()
        };
        assert!(found(BLOCK, expected));
        assert!(!found(0, expected) && !found(2 * BLOCK, expected) && !found(3 * BLOCK, expected));
        for other in [
            Expected {
                seed: ChunkSeed::of(8),
                ..expected
            },
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
        .seal(expected.seed, &mut long);
        segment
            .file
            .write_at(&[&long[..2 * BLOCK]], BLOCK as u64)
            .unwrap();
        let mut reader = SegmentReader::new(&windows, LaneId::new(1), &segment);
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
            let windows = Windows::new(Arc::new(device.clone()), 0);
            let ahead = ReadAhead::start(&windows, [&segment].into_iter(), from as u64);
            let ahead = Some(&ahead.unwrap());
            let lane = LaneId::new(0);
            let mut readers = [
                SegmentReader::new(&windows, lane, &segment),
                SegmentReader::ahead(&windows, lane, &segment, from as u64, ahead),
                SegmentReader::until(&windows, lane, &segment, len as u64),
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
                        found[..] == content[offset..offset + want],
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
            let once = |reader: &SegmentReader<'_>| reader.bytes == (len - from) as u64;
            assert!(jumps || readers.iter().all(once));
        }
    }

    /// A log may leave a segment before its end, and continues in the next one.
    #[test]
    fn a_thread_reads_one_segment_after_another() {
        let device = MemoryDevice::new();
        let segment = |sequence: u64, len: usize| {
            let file = device
                .open(&format!("{sequence}"), OpenMode::CreateNew)
                .unwrap();
            let mut content = device.allocate(len);
            content.fill(sequence as u8);
            file.write_at(&[&content], 0).unwrap();
            Segment {
                sequence,
                len: len as u64,
                file,
            }
        };
        let segments = [
            segment(3, 2 * WINDOW),
            segment(4, BLOCK),
            segment(5, 3 * BLOCK),
        ];
        let windows = Windows::new(Arc::new(device.clone()), 0);
        let start = WINDOW as u64 / 2;
        let ahead = ReadAhead::start(&windows, segments.iter(), start).unwrap();
        let mut read = 0;
        for (at, segment) in segments.iter().enumerate() {
            let start = if at == 0 { start } else { BLOCK as u64 };
            let lane = LaneId::new(0);
            let mut reader = SegmentReader::ahead(&windows, lane, segment, start, Some(&ahead));
            if start < segment.len {
                let bytes = reader.bytes_at(start, BLOCK).unwrap();
                assert_eq!(bytes[..], [segment.sequence as u8; BLOCK]);
            }
            read += reader.bytes;
        }
        assert_eq!(read, (WINDOW + 2 * BLOCK) as u64);
    }
}
