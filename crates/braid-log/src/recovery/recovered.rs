//! A scanned log: the part that it keeps, and the conversion to a running log.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use braid_io::{Device, OpenMode};
use braid_rt::atomic::{AtomicU64, Ordering};

use crate::base::numbers::{LaneId, SeqNo};
use crate::flush::begin::Beginning;
use crate::flush::core::CoreParts;
use crate::flush::lane::Lane;
use crate::format::checkpoint_position::{CheckpointPosition, LanePosition};
use crate::format::chunk::INCARNATIONS_MAX;
use crate::format::segment::{SegmentHeader, segment_name};
use crate::options::FlushMode;
use crate::protocol::Kept;
use crate::recovery::cut::{Cut, Damage};
use crate::recovery::early::{DuringScan, Early, Replayed};
use crate::recovery::files::{Segments, begin_lane, find_segments, resume_lane, sync_segments};
use crate::recovery::scan::{LaneScan, Pass, ScanMode, scan_lane};
use crate::recovery::windows::Windows;
use crate::segments::quota::Quota;
use crate::{LogError, LogOptions};

/// Progress of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScanProgress {
    /// Bytes of log scanned so far.
    pub bytes: u64,
    /// Bytes of all segments after the start: an upper bound.
    pub total: u64,
}

/// The scans of all lanes.
pub(super) struct ScannedLanes {
    pub(super) segments: Vec<Segments>,
    pub(super) lanes: Vec<LaneScan>,
    windows: Arc<Windows>,
    /// The outcome of the replay during the scan.
    replayed: Option<Replayed>,
}

/// A scanned log: replay its log records, then continue with [`Recovered::into_log`].
pub struct Recovered {
    /// The last number that recovery keeps. Everything later is discarded; with a protocol whose
    /// order is not that of the numbers, some earlier transactions may be discarded, too.
    pub cut: SeqNo,
    pub(super) device: Arc<dyn Device>,
    options: LogOptions,
    pub(super) start: CheckpointPosition,
    id: u128,
    incarnation: u32,
    /// The part of each incarnation that recovery keeps.
    pub(super) kept: BTreeMap<u32, Kept>,
    pub(super) lanes: Vec<LaneScan>,
    /// Memory for reading the log.
    pub(super) windows: Arc<Windows>,
    /// Whether log records were replayed during the scan, and which.
    pub(super) is_replaying: bool,
    pub(super) replayed: Replayed,
    segments: Vec<Segments>,
    discarded: u64,
    retained: Option<CheckpointPosition>,
    /// The side lanes whose log begins.
    beginning: Vec<LaneId>,
    /// Nothing after this number is kept, even if `kept` includes it.
    pub(super) ceiling: SeqNo,
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

impl Recovered {
    pub(crate) fn scan(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
        limit: Option<SeqNo>,
        progress: &(dyn Fn(ScanProgress) + Sync),
        during: Option<&DuringScan<'_>>,
    ) -> Result<Self, LogError> {
        // The checkpoint was published once everything before it was durable.
        let limit = limit.map(|limit| limit.max(start.seqno));
        let mode = ScanMode {
            read_ahead: options.flush_mode == FlushMode::Background,
            salvage: false,
            limit,
        };
        let scanned = Self::scan_lanes(&device, &options, start, mode, progress, during)?;
        Self::decide(device, options, start.clone(), scanned, None, limit)
    }

    /// Scans a log of which side lanes are missing: those that `start` lacks.
    pub(crate) fn scan_proven(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
        (known, limit): (SeqNo, Option<SeqNo>),
        progress: &(dyn Fn(ScanProgress) + Sync),
    ) -> Result<Self, LogError> {
        let known = known.max(start.seqno);
        let limit = limit.map(|limit| limit.max(known));
        let mode = ScanMode {
            read_ahead: options.flush_mode == FlushMode::Background,
            salvage: false,
            limit,
        };
        let mut scanned = Self::scan_lanes(&device, &options, start, mode, progress, None)?;
        let cut = Cut::find_proven(start, &mut scanned.lanes, known, limit)?;
        Self::assemble(device, options, start.clone(), scanned, cut)
    }

    pub(super) fn scan_lanes(
        device: &Arc<dyn Device>,
        options: &LogOptions,
        start: &CheckpointPosition,
        mode: ScanMode,
        progress: &(dyn Fn(ScanProgress) + Sync),
        during: Option<&DuringScan<'_>>,
    ) -> Result<ScannedLanes, LogError> {
        if !options.fit(start) || start.lanes.len() > options.all_lanes() {
            return Err(LogError::Incompatible {
                what: format!(
                    "cannot open the log with {1} lanes: it was created with {0}; leave the option out",
                    start.lanes.len(),
                    options.all_lanes()
                ),
            });
        }
        let lanes = options.all_lanes();
        let segments = find_segments(&**device, lanes)?;
        let total = segments
            .iter()
            .zip(&start.lanes)
            .filter(|(_, start)| !start.is_absent())
            .flat_map(|(segments, start)| segments.range(start.segment..))
            .map(|(_, segment)| segment.len)
            .sum();
        let scanned = AtomicU64::new(0);
        let report = |bytes: u64| {
            // Relaxed: only the sum matters.
            let bytes = scanned.fetch_add(bytes, Ordering::Relaxed) + bytes;
            progress(ScanProgress { bytes, total });
        };
        let windows = Windows::new(
            Arc::clone(device),
            during.map_or(0, |during| during.waiting_bytes),
        );
        let early = during.map(|during| Early::new(during, start.seqno, &windows, lanes));
        let scan = |lane: usize| {
            let pass = Pass {
                windows: &windows,
                early: early.as_ref(),
                lane: LaneId::new(lane),
                segments: &segments[lane],
                after: start.seqno,
                progress: &report,
            };
            let position = start.lane(pass.lane);
            let scan = || {
                if position.is_absent() {
                    Ok(LaneScan::absent(pass.lane, mode))
                } else {
                    scan_lane(&pass, &position, mode)
                }
            };
            match &early {
                Some(early) => early.scanning(scan),
                None => scan(),
            }
        };
        let threads = early.as_ref().map_or(0, Early::threads);
        let scans = braid_rt::thread::scatter(lanes + threads, |thread| {
            if thread < lanes {
                return Some(scan(thread));
            }
            early.iter().for_each(Early::work);
            None
        });
        let lanes: Result<Vec<_>, _> = scans.into_iter().flatten().collect();
        Ok(ScannedLanes {
            segments,
            lanes: lanes?,
            windows,
            replayed: early.map(Early::into_replayed),
        })
    }

    /// Combines the scans of all lanes.
    pub(super) fn decide(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: CheckpointPosition,
        mut scanned: ScannedLanes,
        damage: Option<Damage>,
        limit: Option<SeqNo>,
    ) -> Result<Self, LogError> {
        let cut = Cut::find(&start, &mut scanned.lanes, damage, limit)?;
        Self::assemble(device, options, start, scanned, cut)
    }

    /// Combines the scans of all lanes with the cut.
    fn assemble(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: CheckpointPosition,
        scanned: ScannedLanes,
        cut: Cut,
    ) -> Result<Self, LogError> {
        let ScannedLanes {
            segments,
            lanes,
            windows,
            replayed,
        } = scanned;
        let is_replaying = replayed.is_some();
        let replayed = replayed.unwrap_or_default();
        if let Some((lane, incarnation, seqno)) = replayed.beyond(&cut.kept, cut.ceiling) {
            return Err(LogError::corrupted(
                format!(
                    "the log says that number {seqno} of incarnation {incarnation} was durable, but what it depends on is missing"
                ),
                &segment_name(lane, lanes[lane.get()].end_segment),
                0,
            ));
        }
        Ok(Self {
            cut: cut.cut,
            device,
            options,
            start,
            id: lanes[0].id,
            incarnation: cut.incarnation,
            kept: cut.kept,
            lanes,
            windows,
            is_replaying,
            replayed,
            segments,
            discarded: cut.discarded,
            retained: None,
            beginning: Vec::new(),
            ceiling: cut.ceiling,
        })
    }

    /// Makes the log from its start to its end and the names of all files durable, since parts of
    /// them may be in a volatile cache only. For a reader, which begins no incarnation. On a
    /// read-only device, this does nothing.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn make_durable(&self, device: &dyn Device) -> Result<(), LogError> {
        for (scan, start) in self.present_lanes() {
            for sequence in start.segment..=scan.end_segment {
                let name = segment_name(scan.end.lane, sequence);
                let synced = device.open(&name, OpenMode::Existing);
                match synced.and_then(|file| file.sync()) {
                    Err(error) if is_unwritable(&error) => return Ok(()),
                    synced => synced.map_err(|error| {
                        LogError::io(format!("cannot make {name} durable"), error)
                    })?,
                }
            }
        }
        match device.sync_directory() {
            Err(error) if !is_unwritable(&error) => Err(LogError::io(
                "cannot make the names of the database's files durable",
                error,
            )),
            _ => Ok(()),
        }
    }

    /// Whether the log from its start to its end is still there, though another process may have
    /// released it since. A segment is renamed or removed before its contents change, so if this
    /// returns true, all bytes read before belonged to the log.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn is_still_there(&self, device: &dyn Device) -> Result<bool, LogError> {
        for (scan, start) in self.present_lanes() {
            for sequence in start.segment..=scan.end_segment {
                let name = segment_name(scan.end.lane, sequence);
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

    /// The lanes that have log, with the positions at which their scans began.
    fn present_lanes(&self) -> impl Iterator<Item = (&LaneScan, LanePosition)> {
        let lanes = self.lanes.iter().filter(|scan| !scan.is_absent());
        lanes.map(|scan| (scan, self.start.lane(scan.end.lane)))
    }

    /// Whether a [side lane](LogOptions::side_lanes) has log.
    pub fn has_side_lane(&self, side: usize) -> bool {
        let lane = self.options.lanes + side;
        self.lanes.get(lane).is_some_and(|scan| !scan.is_absent())
    }

    /// Creates the log of a side lane that has none, as the log continues. Files that a creation
    /// which was interrupted has left are removed. No record may be written there before a checkpoint
    /// with a position that has the lane is durable: without one, recovery ignores the lane.
    ///
    /// # Panics
    /// If the log has no such side lane.
    pub fn begin_side_lane(&mut self, side: usize) {
        assert!(side < self.options.side_lanes, "one of the side lanes");
        if !self.has_side_lane(side) {
            self.beginning.push(LaneId::new(self.options.lanes + side));
        }
    }

    /// The position at which the scan began.
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

    /// Log records that were accepted [during the scan](crate::DuringScan).
    pub fn replayed_records(&self) -> u64 {
        self.replayed.log_records
    }

    /// Complete log records found after the cut and discarded.
    pub fn discarded_records(&self) -> u64 {
        self.discarded
    }

    /// Also keeps the log from an earlier position on, until it is [released](crate::Log::release).
    ///
    /// # Errors
    /// [`LogError::Incompatible`] if `from` is not an earlier position of this log.
    pub fn retain(&mut self, from: CheckpointPosition) -> Result<(), LogError> {
        // What a lane had that was given up since is not needed.
        let is_before = self.options.fit(&from)
            && (self.present_lanes())
                .all(|(scan, start)| from.lane(scan.end.lane).segment <= start.segment);
        if !is_before {
            return Err(LogError::Incompatible {
                what: "cannot retain the log: the position is not before the recovery position"
                    .to_owned(),
            });
        }
        self.retained = Some(from);
        Ok(())
    }

    /// Returns the parts of a log that continues after the cut. Makes the recovered records
    /// durable.
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
            beginning,
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
        let kept_segments: Vec<_> = lanes
            .iter()
            .zip(&segments)
            .filter(|(scan, _)| !scan.is_absent())
            .flat_map(|(scan, segments)| {
                let from = kept_from.lane(scan.end.lane).segment;
                let kept = segments.range(from..=scan.end_segment);
                kept.map(|(_, segment)| (scan.end.lane, segment))
            })
            .collect();
        sync_segments(&options, &kept_segments)?;
        let Some(kept) = kept.get(&incarnation) else {
            unreachable!("the newest incarnation has a cut")
        };
        let next = Beginning {
            identity: id,
            incarnation: incarnation + 1,
            base: cut,
            kept: kept.words(options.all_lanes()),
        };
        let quota = Quota::default();
        let found = lanes.into_iter().zip(segments);
        let lanes = found
            .map(|(scan, segments)| {
                let lane = scan.end.lane;
                if !scan.is_absent() {
                    return resume_lane(&options, scan, segments, &kept_from.lane(lane), &quota);
                }
                if !beginning.contains(&lane) {
                    return Lane::absent(lane, &options);
                }
                begin_lane(lane, &*device, &options, segments, &next, &quota)
            })
            .collect::<Result<_, _>>()?;
        Ok(CoreParts {
            device,
            kept: next.kept,
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

/// Whether a sync failed because the file system is read-only.
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

#[cfg(test)]
mod tests {
    use braid_io::{AlignedBuf, DeviceKind, Entry, File, MemoryDevice};

    use super::*;
    use crate::Log;
    use crate::format::BLOCK;

    /// A device that refuses to open files, or to sync its directory.
    #[derive(Debug, Default)]
    struct Refusing {
        inner: MemoryDevice,
        opens: Option<io::ErrorKind>,
        syncs: Option<io::ErrorKind>,
    }

    impl Device for Refusing {
        fn kind(&self) -> DeviceKind {
            self.inner.kind()
        }
        fn block_size(&self) -> usize {
            self.inner.block_size()
        }
        fn allocate(&self, len: usize) -> AlignedBuf {
            self.inner.allocate(len)
        }
        fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
            match self.opens {
                Some(kind) => Err(kind.into()),
                None => self.inner.open(name, mode),
            }
        }
        fn remove(&self, name: &str) -> io::Result<()> {
            self.inner.remove(name)
        }
        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.inner.rename(from, to)
        }
        fn list(&self) -> io::Result<Vec<Entry>> {
            self.inner.list()
        }
        fn sync_directory(&self) -> io::Result<()> {
            self.syncs.map_or(Ok(()), |kind| Err(kind.into()))
        }
    }

    /// Chunks of two incarnations with one number would be indistinguishable.
    #[test]
    fn incarnation_numbers_are_used_once() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        let options = LogOptions::default();
        let log = Log::create(Arc::clone(&device), options.clone()).unwrap();
        let start = log.quiesce(|start| start);
        drop(log);
        let continued = |incarnation: u32| {
            let (device, options) = (Arc::clone(&device), options.clone());
            let mut recovered =
                Recovered::scan(device, options, &start, None, &|_| {}, None).unwrap();
            let kept = recovered.kept.remove(&recovered.incarnation).unwrap();
            recovered.kept.insert(incarnation, kept);
            recovered.incarnation = incarnation;
            recovered.into_parts().map(|parts| parts.incarnation)
        };
        let last = INCARNATIONS_MAX - 1;
        assert!(matches!(continued(last - 1), Ok(next) if next == last));
        let refused = continued(last);
        assert!(matches!(refused, Err(LogError::Incompatible { .. })));
    }

    /// I1: what a lane's chunks call durable may be in another lane.
    #[test]
    fn a_scan_finds_what_chunks_call_durable() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        let options = LogOptions::default();
        let log = Log::create(Arc::clone(&device), options.clone()).unwrap();
        let start = log.quiesce(|start| start);
        for _ in 0..5 {
            log.append(&[b"a record"]).unwrap().wait().unwrap();
        }
        let recovered = Recovered::scan(device, options, &start, None, &|_| {}, None).unwrap();
        let found = recovered.lanes.iter().flat_map(|lane| lane.found.values());
        let durable = found.map(|found| found.durable_seqno.get()).max();
        assert_eq!(
            durable,
            Some(4),
            "the last chunk was written after the others"
        );
    }

    #[test]
    fn only_a_file_system_that_refuses_writes_excuses_a_sync() {
        let is_excused = |kind| is_unwritable(&io::Error::from(kind));
        assert!(is_excused(io::ErrorKind::ReadOnlyFilesystem));
        assert!(is_excused(io::ErrorKind::PermissionDenied));
        assert!(!is_excused(io::ErrorKind::Other));
        assert!(!is_excused(io::ErrorKind::NotFound));
    }

    /// Scans a new log with one segment after another, up to a limit if another process writes it.
    fn written(device: &MemoryDevice, damage: impl FnOnce(), limit: Option<u64>) -> ScanOutcome {
        let device: Arc<dyn Device> = Arc::new(device.clone());
        let options = LogOptions {
            strands: 1,
            segment_bytes: 68 << 10,
            slot_bytes: 8 << 10,
            ..LogOptions::default()
        };
        let log = Log::create(Arc::clone(&device), options.clone()).unwrap();
        let start = log.quiesce(|start| start);
        for _ in 0..40 {
            log.append(&[&[7; 3_000]]).unwrap().wait().unwrap();
        }
        drop(log);
        damage();
        Recovered::scan(
            device,
            options,
            &start,
            limit.map(SeqNo::new),
            &|_| {},
            None,
        )
    }

    type ScanOutcome = Result<Recovered, LogError>;

    #[test]
    fn a_reader_needs_no_log_after_the_announced_transaction() {
        let first = segment_name(LaneId::new(0), 1);
        let second = segment_name(LaneId::new(0), 2);
        // A chunk in the middle, and the header of a segment that is followed by another.
        for (name, block) in [(&first, 8), (&second, 0)] {
            for limit in [None, Some(2)] {
                let device = MemoryDevice::new();
                let damage = || {
                    let file = device.open(name, OpenMode::Existing).unwrap();
                    let zeroes = AlignedBuf::new(BLOCK);
                    file.write_at(&[&zeroes], (block * BLOCK) as u64).unwrap();
                };
                let found = written(&device, damage, limit);
                match limit {
                    None => assert!(matches!(found, Err(LogError::Corrupted { .. }))),
                    Some(limit) => assert_eq!(found.unwrap().cut.get(), limit, "{name}"),
                }
            }
        }
    }

    #[test]
    fn a_readers_errors_are_those_of_the_medium() {
        let recovered = written(&MemoryDevice::new(), || {}, None).unwrap();
        let inner = MemoryDevice::new();
        let other = written(&inner, || {}, None).unwrap();
        let refusing = |opens, syncs| Refusing {
            inner: inner.clone(),
            opens,
            syncs,
        };
        let (unwritable, failed) = (io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::Other);
        let settled = |device: &Refusing| other.make_durable(device).is_ok();
        assert!(settled(&refusing(None, None)));
        assert!(settled(&refusing(Some(unwritable), None)));
        assert!(!settled(&refusing(Some(failed), None)));
        assert!(settled(&refusing(None, Some(unwritable))));
        assert!(!settled(&refusing(None, Some(failed))));
        let found = |opens| other.is_still_there(&refusing(opens, None)).ok();
        assert_eq!(found(None), Some(true));
        assert_eq!(found(Some(io::ErrorKind::NotFound)), Some(false));
        assert_eq!(found(Some(failed)), None);
        // The segments of another log have the same names.
        assert!(!recovered.is_still_there(&inner).unwrap());
    }
}
