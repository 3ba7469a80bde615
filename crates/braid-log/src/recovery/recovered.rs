//! Recovery: scan all lanes, find the cut, replay in parallel, begin a new incarnation.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use braid_io::{AlignedBuf, Device, OpenMode};
use braid_rt::{Mutex, to_usize};

use crate::flush::core::CoreParts;
use crate::flush::lane::{Lane, LaneEnd};
use crate::format::BLOCK;
use crate::format::checkpoint_position::{CheckpointPosition, LanePosition};
use crate::format::chunk::INCARNATIONS_MAX;
use crate::format::log_record::{LogRecordKind, LogRecords};
use crate::format::segment::{Segment, SegmentHeader, parse_segment_name, segment_name};
use crate::options::FlushMode;
use crate::protocol::{Kept, Protocol, Run, Scanned};
use crate::recovery::reader::{Expected, SegmentReader};
use crate::recovery::salvage::{Damage, Numbers};
use crate::recovery::scan::{Extent, LaneScan, ScanMode, Streamed, scan_lane};
use crate::segments::pool::{PoolFiles, Quota, SegmentPool};
use crate::{LogError, LogOptions, ProtocolKind};

/// How far a scan has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScanProgress {
    /// Bytes of log scanned so far.
    pub bytes: u64,
    /// Bytes of all segments behind the start: an upper bound.
    pub total: u64,
}

/// One transaction in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// The sequence number, the last of the transaction's numbers.
    pub seqno: u64,
    /// How many numbers it was assigned.
    pub records: u32,
    /// What was appended.
    pub payload: &'a [u8],
}

pub(super) type Segments = BTreeMap<u64, Segment>;

/// A scanned log: replay its log records, then go on with [`Recovered::into_log`].
pub struct Recovered {
    /// The last number that counts. Everything later is given up; with a protocol whose order is not that
    /// of the numbers, some before it may be, too.
    pub cut: u64,
    device: Arc<dyn Device>,
    options: LogOptions,
    start: CheckpointPosition,
    id: u128,
    incarnation: u32,
    /// What counts of each incarnation.
    kept: BTreeMap<u32, Kept>,
    lanes: Vec<LaneScan>,
    segments: Vec<Segments>,
    discarded: u64,
    retained: Option<CheckpointPosition>,
    /// Nothing behind it counts, whatever `kept` says.
    ceiling: u64,
}

impl fmt::Debug for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recovered")
            .field("cut", &self.cut)
            .field("start", &self.start)
            .field("incarnation", &self.incarnation)
            .field("chunks", &self.chunks())
            .finish_non_exhaustive()
    }
}

/// All segment files of a device, by lane and sequence number. Opens only those of `lanes`.
fn find_segments(device: &dyn Device, lanes: usize) -> Result<Vec<Segments>, LogError> {
    let mut segments = vec![Segments::new(); lanes];
    let entries = device
        .list()
        .map_err(|error| LogError::io("cannot list the device", error))?;
    for entry in entries {
        let Some((lane, sequence)) = parse_segment_name(&entry.name) else {
            continue;
        };
        if lane < lanes {
            let file = device
                .open(&entry.name, OpenMode::Existing)
                .map_err(|error| LogError::io(format!("cannot open {}", entry.name), error))?;
            segments[lane].insert(
                sequence,
                Segment {
                    sequence,
                    // A segment has its name once it is whole, so a part of a block is damage: the
                    // header tells the length that it should have.
                    len: entry.len - entry.len % BLOCK as u64,
                    file,
                },
            );
        }
    }
    Ok(segments)
}

/// See [`Log::recovery_position`](crate::Log::recovery_position).
pub(crate) fn oldest_position(device: &dyn Device) -> Result<CheckpointPosition, LogError> {
    let none = || LogError::Incompatible {
        what: "cannot recover: there are no log files".to_owned(),
    };
    let segments = find_segments(device, LogOptions::MAX_LANES)?;
    let mut start = CheckpointPosition {
        seqno: u64::MAX,
        flush: 0,
        lanes: Vec::new(),
    };
    for (lane, segments) in segments.iter().enumerate() {
        for segment in segments.values() {
            let header = segment.header(device, lane)?;
            // A recycled or fresh file that was not begun has another header, or none.
            let Some(header) = header.filter(|h| h.sequence == segment.sequence) else {
                continue;
            };
            start.seqno = start.seqno.min(header.base);
            start.lanes.push(LanePosition {
                segment: segment.sequence,
                offset: BLOCK as u64,
                chunk: header.first_chunk,
                link: header.link,
                incarnation: header.incarnation,
            });
            break;
        }
        if start.lanes.len() <= lane {
            break;
        }
    }
    if start.lanes.is_empty() {
        Err(none())
    } else {
        Ok(start)
    }
}

impl Recovered {
    pub(crate) fn scan(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
        limit: Option<u64>,
        progress: &(dyn Fn(ScanProgress) + Sync),
    ) -> Result<Self, LogError> {
        // The checkpoint was published once everything before it was durable.
        let limit = limit.map(|limit| limit.max(start.seqno));
        let mode = ScanMode {
            read_ahead: options.flush_mode == FlushMode::Background,
            salvage: false,
            limit,
        };
        let (segments, scans) = Self::scan_lanes(&device, &options, start, mode, progress)?;
        Self::decide(device, options, start.clone(), segments, scans, None, limit)
    }

    pub(super) fn scan_lanes(
        device: &Arc<dyn Device>,
        options: &LogOptions,
        start: &CheckpointPosition,
        mode: ScanMode,
        progress: &(dyn Fn(ScanProgress) + Sync),
    ) -> Result<(Vec<Segments>, Vec<LaneScan>), LogError> {
        if start.lanes.len() != options.lanes {
            return Err(LogError::Incompatible {
                what: format!(
                    "cannot open the log with {1} lanes: it was created with {0}; leave the option out",
                    start.lanes.len(),
                    options.lanes
                ),
            });
        }
        let segments = find_segments(&**device, options.lanes)?;
        let total = segments
            .iter()
            .zip(&start.lanes)
            .flat_map(|(segments, start)| segments.range(start.segment..))
            .map(|(_, segment)| segment.len)
            .sum();
        let scanned = AtomicU64::new(0);
        let report = |bytes: u64| {
            // Relaxed: only the sum matters.
            let bytes = scanned.fetch_add(bytes, Ordering::Relaxed) + bytes;
            progress(ScanProgress { bytes, total });
        };
        let scan = |lane: usize| {
            let (segments, position) = (&segments[lane], &start.lanes[lane]);
            scan_lane(
                &**device,
                lane,
                segments,
                position,
                start.seqno,
                mode,
                &report,
            )
        };
        let scans = braid_rt::thread::scatter(options.lanes, scan);
        let scans: Result<Vec<_>, _> = scans.into_iter().collect();
        Ok((segments, scans?))
    }

    /// Finds the cut. In a log with damage no chunk's word is taken for what was durable, only what is there. In
    /// one that another process writes, the cut is what that process says is durable (`limit`), and all of
    /// it must be there.
    pub(super) fn decide(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: CheckpointPosition,
        segments: Vec<Segments>,
        mut lanes: Vec<LaneScan>,
        damage: Option<Damage>,
        limit: Option<u64>,
    ) -> Result<Self, LogError> {
        let id = lanes[0].id;
        if lanes.iter().any(|lane| lane.id != id) {
            // Files of another log, moved here: no crash does that.
            return Err(LogError::Incompatible {
                what: "cannot open the log: its files belong to different logs; restore the files that belong together".to_owned(),
            });
        }
        // What the header of each incarnation says: of all lanes' the same.
        let mut begun: BTreeMap<u32, Begun> = BTreeMap::new();
        for lane in &lanes {
            for (&incarnation, found) in &lane.found {
                let Some(kind) = ProtocolKind::from_id(found.protocol) else {
                    return Err(LogError::Incompatible {
                        what: format!(
                            "cannot open the log: it was written with commit protocol number {}, which this build does not know; use a matching version",
                            found.protocol
                        ),
                    });
                };
                let says = begun.entry(incarnation).or_insert_with(|| Begun {
                    base: found.base,
                    kept: found.kept.clone(),
                    protocol: crate::protocol::of(kind),
                });
                if says.base != found.base
                    || says.kept != found.kept
                    || says.protocol.id() != found.protocol
                {
                    return Err(LogError::corrupted(
                        format!("the headers of incarnation {incarnation} differ between lanes"),
                        &segment_name(usize::from(lane.end.lane), lane.end_segment),
                        0,
                    ));
                }
            }
        }
        let Some((&incarnation, newest)) = begun.last_key_value() else {
            unreachable!("the first header of each lane counts")
        };
        let (newest_base, protocol) = (newest.base, newest.protocol);
        if limit.is_some_and(|limit| newest_base > limit) {
            return Err(LogError::corrupted(
                "another process began to write the log during the read",
                &segment_name(usize::from(lanes[0].end.lane), lanes[0].end_segment),
                0,
            ));
        }
        // What counts of each older incarnation is written in the header of the one after it.
        let mut kept: BTreeMap<u32, Kept> = begun
            .iter()
            .zip(begun.values().skip(1))
            .map(|((&incarnation, begun), next)| {
                (incarnation, begun.protocol.kept(next.base, &next.kept))
            })
            .collect();
        // Older incarnations count in the gap rule if they followed the same one, and it is by numbers.
        let uniform = begun.values().all(|b| b.protocol.id() == protocol.id())
            && kept.values().all(|kept| matches!(kept, Kept::Numbers(_)))
            && matches!(protocol.kept(0, &[0]), Kept::Numbers(_));
        let base = if uniform {
            start.seqno
        } else {
            braid_rt::coverage_point("recovery: incarnations that do not count as one");
            start.seqno.max(newest_base)
        };
        let mut durable_seqno = if damage.is_some() {
            base
        } else {
            base.max(newest_base)
        };
        for lane in lanes.iter().filter(|_| damage.is_none()) {
            for (&of, found) in &lane.found {
                // What a later incarnation discarded was never acknowledged.
                let next = begun.range(of + 1..).next();
                if next.is_some_and(|(_, next)| found.durable_seqno > next.base) {
                    // Chunks of two logs: no crash, nor any one damaged block.
                    return Err(LogError::corrupted(
                        format!(
                            "a chunk of incarnation {of} calls number {} durable, but a later incarnation discarded it",
                            found.durable_seqno
                        ),
                        &segment_name(usize::from(lane.end.lane), lane.end_segment),
                        0,
                    ));
                }
                durable_seqno = durable_seqno.max(found.durable_seqno);
            }
        }
        durable_seqno = durable_seqno.max(limit.unwrap_or(0));
        let in_newest = start
            .lanes
            .iter()
            .all(|lane| lane.incarnation == incarnation);
        if !in_newest {
            braid_rt::coverage_point("recovery: begins in an older incarnation");
        }
        if lanes.iter().any(|lane| lane.chunks == 0) && lanes.iter().any(|lane| lane.chunks > 0) {
            braid_rt::coverage_point("recovery: a lane without chunks beside one with some");
        }
        let mut scanned = Scanned {
            base,
            durable_seqno,
            flush_base: if in_newest { start.flush } else { 0 },
            ..Scanned::default()
        };
        let mut discarded = 0;
        for (index, lane) in lanes.iter_mut().enumerate() {
            let mut dependents = Vec::new();
            for (&of, found) in &mut lane.found {
                if let Some(kept) = kept.get(&of) {
                    let before = found.runs.len();
                    if found
                        .runs
                        .iter()
                        .any(|run| !kept.holds(index, run.last, run.flush))
                    {
                        braid_rt::coverage_point(
                            "recovery: dead log records of an older incarnation",
                        );
                    }
                    found
                        .runs
                        .retain(|run| kept.holds(index, run.last, run.flush));
                    discarded += (before - found.runs.len()) as u64;
                }
                let count = found.take_up_to(durable_seqno);
                if uniform || of == incarnation {
                    scanned.found_to_durable += count;
                }
                if of == incarnation {
                    scanned.flushes.append(&mut found.flushes);
                    dependents.append(&mut found.dependents);
                }
                scanned.tail.append(&mut found.runs);
            }
            dependents.sort_unstable_by_key(|dependent| dependent.seqno);
            scanned.dependents.push(dependents);
        }
        scanned.tail.sort_unstable();
        scanned.flushes.sort_unstable();
        // Of a log that is being written, the cut of its protocol says no more than that nothing is missing.
        let newest_kept = match (protocol.cut(&scanned)?, limit) {
            (kept, None) => kept,
            (kept, Some(limit)) => kept.up_to(limit),
        };
        let lane_of = |seqno: u64| to_usize(seqno % lanes.len() as u64);
        let counts = |run: &Run| newest_kept.holds(lane_of(run.last), run.last, run.flush);
        let mut cut = base.max(durable_seqno);
        for run in &scanned.tail {
            match counts(run) {
                true => cut = cut.max(run.last),
                false => {
                    braid_rt::coverage_point("recovery: whole log records behind the cut");
                    discarded += 1;
                }
            }
        }
        let mut ceiling = limit.unwrap_or(u64::MAX);
        if let Some(damage) = damage {
            // A prefix of the numbers is one of a serial order, whatever the protocol goes by. And the first
            // number missing may be one of an older incarnation, whose later ones go with it.
            let whole = Numbers {
                base: newest_base,
                stride: protocol.stride(lanes.len()),
            }
            .up_to_gap(start.seqno.max(newest_base), &scanned.tail);
            if damage.broken || whole < damage.durable {
                cut = cut.min(whole);
            }
            ceiling = cut;
        } else if limit.is_none() {
            cut = protocol.next_base(newest_base, cut, lanes.len());
        }
        kept.insert(incarnation, newest_kept);
        for (index, lane) in lanes.iter().enumerate().filter(|_| damage.is_none()) {
            if let Some(behind) = lane.behind
                && lane.end.incarnation == incarnation
                && behind.durable_seqno > cut
            {
                let durable_seqno = behind.durable_seqno;
                braid_rt::coverage_point("damage: a chunk behind the end names what is missing");
                return Err(LogError::corrupted(
                    format!(
                        "the log ends at number {cut}, but this chunk says that {durable_seqno} was durable"
                    ),
                    &segment_name(index, behind.segment),
                    behind.offset,
                ));
            }
            for (name, header) in &lane.beyond {
                // Chunks in flight together may be lost in any order; that leaves segments behind the end.
                // But none of a later incarnation, and none begun with a durable seqno behind the
                // cut.
                braid_rt::coverage_point("recovery: a segment behind the end");
                let later = header.incarnation > lane.end.incarnation;
                if later || (header.incarnation == incarnation && header.durable_seqno > cut) {
                    braid_rt::coverage_point(
                        "damage: a segment behind the end shows that log is missing",
                    );
                    return Err(LogError::corrupted(
                        format!("the log ends at number {cut}, before this segment"),
                        name,
                        0,
                    ));
                }
            }
        }
        Ok(Self {
            cut,
            device,
            options,
            start,
            id,
            incarnation,
            kept,
            lanes,
            segments,
            discarded,
            retained: None,
            ceiling,
        })
    }

    /// Makes the log from its start to its end durable, of which a part may be in a volatile cache only: for a
    /// reader, which begins no incarnation. Where nothing can be written, there is nothing to be made durable.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn make_durable(&self, device: &dyn Device) -> Result<(), LogError> {
        for (lane, scan) in self.lanes.iter().enumerate() {
            for sequence in self.start.lanes[lane].segment..=scan.end_segment {
                let name = segment_name(lane, sequence);
                let synced = device.open(&name, OpenMode::Existing);
                match synced.and_then(|file| file.sync()) {
                    Err(error) if is_unwritable(&error) => return Ok(()),
                    synced => synced.map_err(|error| {
                        LogError::io(format!("cannot make {name} durable"), error)
                    })?,
                }
            }
        }
        Ok(())
    }

    /// Whether the log from its start to its end is still there, though another process may have released
    /// it since. A segment is renamed or removed before its contents change, so if this is so, all that was read
    /// before was the log's.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn is_still_there(&self, device: &dyn Device) -> Result<bool, LogError> {
        for (lane, scan) in self.lanes.iter().enumerate() {
            for sequence in self.start.lanes[lane].segment..=scan.end_segment {
                let name = segment_name(lane, sequence);
                let file = match device.open(&name, OpenMode::Existing) {
                    Ok(file) => file,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                    Err(error) => return Err(LogError::io(format!("cannot open {name}"), error)),
                };
                let header = SegmentHeader::read(device, &*file, &name)?;
                if header.is_none_or(|header| header.log != scan.id || header.sequence != sequence)
                {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Where the scan began.
    pub fn start(&self) -> &CheckpointPosition {
        &self.start
    }

    /// Bytes read by the scan.
    pub fn scanned_bytes(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.bytes).sum()
    }

    /// Valid chunks found.
    pub fn chunks(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.chunks).sum()
    }

    /// Whole log records found behind the cut and given up.
    pub fn discarded_records(&self) -> u64 {
        self.discarded
    }

    /// Calls `f` for every log record that counts and whose number is greater than `start.seqno`,
    /// on up to `threads` threads, in no particular order: replay with "the newer version wins".
    /// Stops at the first error. May be called more than once.
    ///
    /// # Errors
    /// Those of `f`; [`LogError::Io`] and [`LogError::Corrupted`] if the log can't be read any more.
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
                // Relaxed: the items were made before the threads.
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

    fn counts(&self, lane: usize, incarnation: u32, seqno: u64, flush: u64) -> bool {
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

    /// Keeps the log from an earlier position on, too, until it is [released](crate::Log::release).
    ///
    /// # Errors
    /// [`LogError::Incompatible`] if it is no earlier position of this log.
    pub fn retain(&mut self, from: CheckpointPosition) -> Result<(), LogError> {
        let lanes = from.lanes.iter().zip(&self.start.lanes);
        let is_before = from.lanes.len() == self.start.lanes.len()
            && lanes.into_iter().all(|(a, b)| a.segment <= b.segment);
        if !is_before {
            return Err(LogError::Incompatible {
                what: "cannot retain the log: the position is not before the recovery position"
                    .to_owned(),
            });
        }
        self.retained = Some(from);
        Ok(())
    }

    /// What a log starts from that goes on behind the cut. Makes what was recovered durable.
    pub(crate) fn into_parts(self) -> Result<CoreParts, LogError> {
        let Self {
            cut,
            device,
            options,
            start,
            id,
            incarnation,
            kept,
            lanes,
            segments,
            retained,
            ..
        } = self;
        let kept_from = retained.as_ref().unwrap_or(&start);
        if incarnation + 1 >= INCARNATIONS_MAX {
            return Err(LogError::Incompatible {
                what: "cannot open the log again: its incarnation numbers are used up; copy the tables to a new database"
                    .to_owned(),
            });
        }
        if begun_twice(&lanes) {
            braid_rt::coverage_point("recovery: several incarnations");
        }
        let quota = Quota::default();
        let found = lanes.into_iter().zip(segments).zip(&kept_from.lanes);
        let lanes = found
            .map(|((scan, segments), position)| lane(&options, scan, segments, position, &quota))
            .collect::<Result<_, _>>()?;
        let Some(kept) = kept.get(&incarnation) else {
            unreachable!("the newest incarnation has a cut")
        };
        Ok(CoreParts {
            device,
            kept: kept.words(options.lanes),
            options,
            id,
            incarnation: incarnation + 1,
            begun: false,
            base: cut,
            lanes,
            quota,
        })
    }
}

/// Whether a sync failed because nothing can be written there.
fn is_unwritable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::Unsupported
            | io::ErrorKind::PermissionDenied
    )
}

fn begun_twice(lanes: &[LaneScan]) -> bool {
    lanes.iter().any(|lane| lane.found.len() > 1)
}

/// What the first header of an incarnation says.
struct Begun {
    base: u64,
    kept: Vec<u64>,
    protocol: &'static dyn Protocol,
}

/// A lane at the end of its log: sorts its files into those that recovery needs, those ready for use, and
/// the rest.
fn lane(
    options: &LogOptions,
    scan: LaneScan,
    segments: Segments,
    start: &LanePosition,
    quota: &Quota,
) -> Result<Lane, LogError> {
    let lane = usize::from(scan.end.lane);
    let fresh = scan.end_segment + 1;
    let mut files = PoolFiles::default();
    for (sequence, segment) in segments {
        let fits = (options.first_segment_bytes()..=options.segment_bytes).contains(&segment.len);
        let next_ready = fresh + files.ready.len() as u64;
        if sequence >= start.segment && sequence < fresh {
            // I1: the cut counts chunks that were read, perhaps from a volatile cache: those of a write that
            // failed, or of a process that ended before its flush. Readers see them from here on, and the
            // new incarnation's base vouches for them, so they are made durable before.
            segment.file.sync().map_err(|error| {
                let name = segment_name(lane, sequence);
                LogError::io(format!("cannot make {name} durable"), error)
            })?;
            files.live.push_back(segment);
        } else if sequence == next_ready && fits {
            braid_rt::coverage_point("recovery: the next segment is ready");
            // Old contents are told from new by incarnation, sequence number and link.
            files.ready.push_back(segment);
        } else if sequence < start.segment && fits && !options.discard {
            braid_rt::coverage_point("recovery: an old segment is kept for use");
            files.free.push(segment);
        } else {
            braid_rt::coverage_point("recovery: a segment goes");
            files.retired.push(segment);
        }
    }
    let Some(segment) = files.live.back().cloned() else {
        unreachable!("the scan ended in a segment")
    };
    quota.add(&files);
    let next = fresh + files.ready.len() as u64;
    let pool = SegmentPool::new(lane, options, files, next);
    let end = LaneEnd {
        segment,
        header: scan.end_header,
        offset: scan.end_offset,
        chunk: scan.end.sequence,
        link: scan.end.link,
    };
    Ok(Lane::new(lane, options, end, pool))
}
