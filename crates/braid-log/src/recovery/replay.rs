//! Replay of the log records that recovery keeps.

use braid_rt::atomic::{AtomicBool, AtomicUsize, Ordering};

use braid_io::AlignedBuf;
use braid_rt::{Mutex, to_usize};

use crate::LogError;
use crate::base::numbers::{FlushNo, LaneId, SeqNo};
use crate::format::BLOCK;
use crate::format::log_record::{LogRecordKind, LogRecords};
use crate::format::segment::segment_name;
use crate::recovery::reader::{Expected, SegmentReader};
use crate::recovery::recovered::{LogRecord, Recovered};
use crate::recovery::scan::{Extent, Streamed};

impl Recovered {
    /// Calls `f` for every log record that recovery keeps and whose number is greater than
    /// `start.seqno`, on up to `threads` threads, in no particular order: the caller's replay must
    /// let the newer version win. Stops at the first error. May be called more than once.
    ///
    /// # Errors
    /// Errors of `f`; [`LogError::Io`] and [`LogError::Corrupted`] if the log can no longer be
    /// read.
    pub fn for_each_parallel<E, F>(&self, threads: usize, f: F) -> Result<(), E>
    where
        E: From<LogError> + Send,
        F: Fn(LogRecord<'_>) -> Result<(), E> + Sync,
    {
        let extents: Vec<&Extent> = self.lanes.iter().flat_map(|lane| &lane.extents).collect();
        let streamed: Vec<&Streamed> = self.lanes.iter().flat_map(|lane| &lane.streamed).collect();
        let items = extents.len() + streamed.len();
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let failure = Mutex::new(None);
        let work = || {
            let mut buf = self.device.allocate(BLOCK);
            while !stop.load(Ordering::Relaxed) {
                // Relaxed: the items were created before the threads.
                let item = next.fetch_add(1, Ordering::Relaxed);
                let done = match (extents.get(item), item.checked_sub(extents.len())) {
                    (Some(extent), _) => self.replay_extent(extent, &mut buf, &f),
                    (None, Some(at)) if at < streamed.len() => {
                        self.replay_streamed(streamed[at], &f)
                    }
                    _ => return,
                };
                if let Err(error) = done {
                    braid_rt::coverage_point("recovery: replay fails");
                    stop.store(true, Ordering::Relaxed);
                    failure.lock().get_or_insert(error);
                }
            }
        };
        braid_rt::thread::scatter(threads.clamp(1, items.max(1)), |_| work());
        failure.into_inner().map_or(Ok(()), Err)
    }

    /// Calls `f` for every log record on this thread, see [`Recovered::for_each_parallel`].
    ///
    /// # Errors
    /// As [`Recovered::for_each_parallel`].
    pub fn for_each(&self, f: impl FnMut(LogRecord<'_>) + Send) -> Result<(), LogError> {
        let f = Mutex::new(f);
        self.for_each_parallel(1, |log_record| {
            (f.lock())(log_record);
            Ok(())
        })
    }

    fn counts(&self, lane: LaneId, incarnation: u32, seqno: SeqNo, flush: FlushNo) -> bool {
        if braid_rt::mutant!("resurrect_the_dead") {
            return seqno > self.start.seqno;
        }
        let kept = self.kept.get(&incarnation);
        let is_new = seqno > self.start.seqno && seqno <= self.ceiling;
        is_new && kept.is_some_and(|kept| kept.holds(lane, seqno, flush))
    }

    fn replay_extent<E, F>(&self, extent: &Extent, buf: &mut AlignedBuf, f: &F) -> Result<(), E>
    where
        E: From<LogError>,
        F: Fn(LogRecord<'_>) -> Result<(), E>,
    {
        let changed = |offset| {
            let name = segment_name(extent.lane, extent.segment.sequence);
            LogError::corrupted("a chunk changed after it was scanned", &name, offset)
        };
        let empty = self.device.allocate(BLOCK);
        let reused = std::mem::replace(buf, empty);
        let mut reader =
            SegmentReader::with_buffer(&*self.device, extent.lane, &extent.segment, reused);
        let mut expected = extent.expected;
        let mut offset = extent.offset;
        while offset < extent.end {
            let Some(chunk) = reader.chunk(offset, &expected)? else {
                return Err(changed(offset).into());
            };
            let mut log_records = LogRecords::new(chunk.payload);
            while let Some(log_record) = log_records.next().map_err(|_| changed(offset))? {
                let is_whole = matches!(
                    log_record.kind,
                    LogRecordKind::Data | LogRecordKind::Dependent { .. }
                );
                let flush = chunk.header.flush;
                if is_whole
                    && self.counts(extent.lane, expected.incarnation, log_record.seqno, flush)
                {
                    f(LogRecord {
                        seqno: log_record.seqno,
                        records: log_record.records,
                        payload: log_record.split().1,
                    })?;
                }
            }
            offset += chunk.header.size() as u64;
            expected = Expected {
                sequence: expected.sequence + 1,
                link: chunk.crc,
                ..expected
            };
        }
        *buf = reader.into_buffer();
        Ok(())
    }

    fn replay_streamed<E, F>(&self, streamed: &Streamed, f: &F) -> Result<(), E>
    where
        E: From<LogError>,
        F: Fn(LogRecord<'_>) -> Result<(), E>,
    {
        let Streamed {
            lane,
            incarnation,
            seqno,
            flush,
            ..
        } = *streamed;
        if !self.counts(lane, incarnation, seqno, flush) {
            braid_rt::coverage_point("recovery: a large log record that does not count");
            return Ok(());
        }
        braid_rt::coverage_point("recovery: a large log record");
        let mut payload = Vec::with_capacity(to_usize(streamed.total));
        for part in &streamed.parts {
            let mut reader = SegmentReader::new(&*self.device, streamed.lane, &part.segment);
            let bytes = reader.bytes_at(part.offset, part.len)?;
            if crc32c::crc32c(bytes) != part.crc {
                let name = segment_name(streamed.lane, part.segment.sequence);
                let what = "a chunk changed after it was scanned";
                return Err(LogError::corrupted(what, &name, part.offset).into());
            }
            payload.extend_from_slice(bytes);
        }
        f(LogRecord {
            seqno: streamed.seqno,
            records: streamed.records,
            payload: &payload,
        })
    }
}
