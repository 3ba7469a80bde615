//! The segment files of a log that is not running: finding them, and sorting them for the log that
//! continues.

use std::collections::BTreeMap;

use braid_io::{Device, OpenMode};

use crate::LogError;
use crate::base::numbers::{FlushNo, LaneId, SeqNo};
use crate::flush::begin::{Beginning, first_lane};
use crate::flush::lane::{Lane, LaneEnd};
use crate::format::BLOCK;
use crate::format::checkpoint_position::{CheckpointPosition, LanePosition};
use crate::format::segment::{Segment, parse_segment_name, segment_name};
use crate::options::{FlushMode, LogOptions};
use crate::recovery::scan::LaneScan;
use crate::segments::pool::SegmentPool;
use crate::segments::quota::Quota;
use crate::segments::state::PoolFiles;

/// The segments of a lane by their sequence numbers.
pub(super) type Segments = BTreeMap<u64, Segment>;

/// Finds all segment files of a device, by lane and sequence number. Opens only the files of the
/// first `lanes` lanes.
pub(super) fn find_segments(device: &dyn Device, lanes: usize) -> Result<Vec<Segments>, LogError> {
    let mut segments = vec![Segments::new(); lanes];
    let entries = device
        .list()
        .map_err(|error| LogError::io("cannot list the device", error))?;
    for entry in entries {
        let Some((lane, sequence)) = parse_segment_name(&entry.name) else {
            continue;
        };
        if lane.get() < lanes {
            let file = device
                .open(&entry.name, OpenMode::Existing)
                .map_err(|error| LogError::io(format!("cannot open {}", entry.name), error))?;
            segments[lane.get()].insert(
                sequence,
                Segment {
                    sequence,
                    // A segment receives its name once it is complete, so a partial block is
                    // damage: the header records the correct length.
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
        seqno: SeqNo::MAX,
        flush: FlushNo::NONE,
        lanes: Vec::new(),
    };
    for (lane, segments) in segments.iter().enumerate() {
        for segment in segments.values() {
            let header = segment.header(device, LaneId::new(lane))?;
            // A recycled or fresh file that was not begun has another header, or no header.
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

/// Device flushes that run at the same time: the device combines them, and a single one takes as
/// long as reading megabytes of log.
const SYNCS: usize = 16;

/// Makes segments durable, on several threads.
///
/// I1: the cut includes chunks that may have been read from a volatile cache: those of a failed
/// write, or of a process that ended before its flush. Readers see them from here on, and the new
/// incarnation's base includes them, so they are made durable first.
pub(super) fn sync_segments(
    options: &LogOptions,
    segments: &[(LaneId, &Segment)],
) -> Result<(), LogError> {
    let threads = match options.flush_mode {
        FlushMode::Background => segments.len().clamp(1, SYNCS),
        FlushMode::Callers => 1,
    };
    let sync = |thread: usize| {
        let mut of_thread = segments.iter().skip(thread).step_by(threads);
        of_thread.try_for_each(|(lane, segment)| segment.sync(*lane))
    };
    braid_rt::thread::scatter(threads, sync)
        .into_iter()
        .collect()
}

/// Creates the log of a lane that has none. Removes what an interrupted creation has left: no
/// position has the lane, so none of its files counts.
pub(super) fn begin_lane(
    lane: LaneId,
    device: &dyn Device,
    options: &LogOptions,
    segments: Segments,
    beginning: &Beginning,
    quota: &Quota,
) -> Result<Lane, LogError> {
    for sequence in segments.into_keys() {
        let name = segment_name(lane, sequence);
        device
            .remove(&name)
            .map_err(|error| LogError::io(format!("cannot remove {name}"), error))?;
    }
    let begun = first_lane(lane, device, options, beginning, quota)?;
    // Names before contents: a header counts only in a file that is found.
    device
        .sync_directory()
        .map_err(|error| LogError::io("cannot make the log's file names durable", error))?;
    {
        let seal = begun.seal.lock();
        let block = seal.header.encode(device);
        seal.segment.write_header(lane, &block)?;
    }
    Ok(begun)
}

/// Resumes a lane at the end of its log: sorts its files into those that recovery needs, those
/// ready for use, and the rest.
pub(super) fn resume_lane(
    options: &LogOptions,
    scan: LaneScan,
    segments: Segments,
    start: &LanePosition,
    quota: &Quota,
) -> Result<Lane, LogError> {
    let lane = scan.end.lane;
    let fresh = scan.end_segment + 1;
    let mut files = PoolFiles::default();
    for (sequence, segment) in segments {
        let fits = (options.first_segment_bytes()..=options.segment_bytes).contains(&segment.len);
        let next_ready = fresh + files.ready.len() as u64;
        if sequence >= start.segment && sequence < fresh {
            files.live.push_back(segment);
        } else if sequence == next_ready && fits {
            braid_rt::coverage_point("recovery: the next segment is ready");
            // Incarnation, sequence number and link distinguish old contents from new.
            files.ready.push_back(segment);
        } else if sequence < start.segment && fits && !options.discard {
            braid_rt::coverage_point("recovery: an old segment is kept for use");
            files.free.push(segment);
        } else {
            braid_rt::coverage_point("recovery: a segment is removed");
            files.retired.push(segment);
        }
    }
    let Some(segment) = files.live.back().cloned() else {
        unreachable!("the scan ended in a segment")
    };
    quota.add(files.all());
    let next = fresh + files.ready.len() as u64;
    let pool = SegmentPool::new(lane, options, files, next);
    let end = LaneEnd {
        segment,
        header: scan.end_header,
        offset: scan.end_offset,
        chunk: scan.end.sequence,
        link: scan.end.link,
        unmarked: scan.unmarked,
    };
    Ok(Lane::new(lane, options, end, pool))
}
