//! Beginning an incarnation, which happens before the log's first write, not when it is opened.
//!
//! So an opening without writes leaves no files, and works on a read-only device. Until the
//! incarnation begins, every lane keeps the end that recovery found and is short of space, so the
//! first commit calls [`Core::begin`].

use std::sync::atomic::Ordering;

use braid_io::Device;
use braid_rt::narrow;

use crate::LogError;
use crate::base::numbers::{LaneId, SeqNo};
use crate::flush::core::Core;
use crate::flush::lane::{Lane, LaneEnd};
use crate::format::BLOCK;
use crate::format::padding::Padding;
use crate::format::segment::{SegmentHeader, is_unfinished_name};
use crate::options::{FlushMode, LogOptions};
use crate::protocol;
use crate::segments::pool::SegmentPool;
use crate::segments::quota::Quota;
use crate::segments::state::PoolFiles;

impl Core {
    /// Whether the incarnation has begun: each lane has a segment whose durable header says so.
    #[inline]
    pub(crate) fn is_begun(&self) -> bool {
        // Acquire: pairs with `begin`.
        self.begun.load(Ordering::Acquire)
    }

    /// Begins the incarnation, unless it has begun: every lane starts a fresh segment whose durable
    /// header records `base`, the last number of older incarnations that is kept, and the part kept
    /// of the previous incarnation.
    ///
    /// # Errors
    /// [`LogError::OutOfSpace`] or [`LogError::Io`] while files are prepared: the next call tries
    /// again. A failed write of a header poisons the log.
    #[cold]
    pub(crate) fn begin(&self) -> Result<(), LogError> {
        let mut before = self.beginning.lock();
        if self.is_begun() {
            return Ok(());
        }
        if let Some(error) = self.poison() {
            return Err(error);
        }
        // I6: files before the position where recovery started are reused from here on, so the
        // checkpoint with that position must be durable. Recovery may have found a checkpoint that
        // a failed or killed process had written but not made durable.
        if let Some(settle) = before
            .as_ref()
            .filter(|_| !braid_rt::mutant!("begin_unsettled"))
        {
            settle()?;
        }
        *before = None;
        self.prepare_to_begin().map_err(|error| {
            if error.is_storage_full() {
                self.out_of_space(0, true)
            } else {
                error
            }
        })?;
        self.begin_lanes()
            .inspect_err(|error| self.set_poison(&error.to_string()))?;
        self.begun.store(true, Ordering::Release);
        self.lanes.iter().for_each(|lane| self.refresh_space(lane));
        // It deletes what earlier incarnations have left.
        self.preparer.notify();
        Ok(())
    }

    /// Prepares a segment in each lane, and makes its name durable.
    fn prepare_to_begin(&self) -> Result<(), LogError> {
        let device = &*self.device;
        remove_unfinished(device)?;
        for lane in self.lanes.iter().filter(|lane| !lane.is_absent()) {
            self.mark_earlier(lane)?;
            self.unmark(lane)?;
            let has_thread = self.options.flush_mode == FlushMode::Background;
            if !has_thread || braid_rt::mutant!("delete_before_the_first_commit") {
                lane.pool.delete_retired(device, false, &self.quota)?;
            }
            lane.pool.sync_unused()?;
            prepare_first(&lane.pool, device, &self.options, &self.quota)?;
        }
        preallocate(&self.lanes, device, &self.options, &self.quota)?;
        // Names before contents: a header counts only in a file that is found. A killed process may
        // have left names that are not durable.
        device
            .sync_directory()
            .map_err(|error| LogError::io("cannot make the log's file names durable", error))
    }

    /// I1: writes the successor marks that a crash prevented. What lies in such a successor was not
    /// acknowledged before the crash. From here on, it is a part of the log that everything acknowledged
    /// later depends on, so its loss must be noticed.
    fn mark_earlier(&self, lane: &Lane) -> Result<(), LogError> {
        let mut seal = lane.seal.lock();
        while let Some((sequence, header)) = seal.unmarked.last()
            && !braid_rt::mutant!("leave_a_segment_unmarked")
        {
            // Without the segment, a checkpoint covers it.
            if let Some(segment) = lane.pool.find(*sequence) {
                braid_rt::coverage_point("recovery: a missing successor mark is written");
                segment.write_header(lane.index, &header.encode(&*self.device))?;
            }
            seal.unmarked.pop();
        }
        Ok(())
    }

    /// Removes the successor mark from the segment where the lane ends, if it has one: the next
    /// segment was begun while earlier flushes were in flight, and these were torn. The next
    /// segment may now be deleted or recycled, so recovery must not report it as missing.
    fn unmark(&self, lane: &Lane) -> Result<(), LogError> {
        let mut seal = lane.seal.lock();
        if seal.header.successor.is_none() || braid_rt::mutant!("keep_a_successor_mark") {
            return Ok(());
        }
        braid_rt::coverage_point("recovery: a successor mark is removed");
        let unmarked = SegmentHeader {
            successor: None,
            ..seal.header.clone()
        };
        let block = unmarked.encode(&*self.device);
        seal.segment.write_header(lane.index, &block)?;
        seal.header = unmarked;
        Ok(())
    }

    fn begin_lanes(&self) -> Result<(), LogError> {
        for lane in self.lanes.iter().filter(|lane| !lane.is_absent()) {
            let mut seal = lane.seal.lock();
            if seal.header.incarnation == self.incarnation {
                // A side lane whose log begins with this incarnation.
                continue;
            }
            let end = seal.position();
            let first = self.next_segment(lane, &mut seal)?;
            if let Err(error) = seal.segment.write_header(lane.index, &first.header) {
                // The log's end is unchanged: a tail reader finds the recovered records, and no new
                // header.
                if !braid_rt::mutant!("stay_at_a_failed_beginning") {
                    seal.move_to(end);
                }
                return Err(error);
            }
            Self::finish_segment_begin(lane, &seal.segment, *first)?;
            lane.begin_at(&seal);
        }
        Ok(())
    }
}

/// The contents of the headers with which an incarnation begins.
#[derive(Debug)]
pub(crate) struct Beginning {
    /// Identity of the log.
    pub(crate) identity: u128,
    pub(crate) incarnation: u32,
    /// The last number of older incarnations that is kept.
    pub(crate) base: SeqNo,
    /// See [`SegmentHeader::kept`].
    pub(crate) kept: Vec<u64>,
}

/// Creates a lane that has no log yet: its first segment exists, and the header is not written.
pub(crate) fn first_lane(
    index: LaneId,
    device: &dyn Device,
    options: &LogOptions,
    beginning: &Beginning,
    quota: &Quota,
) -> Result<Lane, LogError> {
    let pool = SegmentPool::new(index, options, PoolFiles::default(), 1);
    prepare_first(&pool, device, options, quota)?;
    let Some(segment) = pool.take() else {
        unreachable!("a segment was made ready")
    };
    let header = SegmentHeader {
        log: beginning.identity,
        lane: index,
        lanes: narrow(options.all_lanes()),
        protocol: protocol::of(options.protocol).header_id(options.side_lanes),
        sequence: segment.sequence,
        incarnation: beginning.incarnation,
        link: 0,
        base: beginning.base,
        first_chunk: 1,
        durable_seqno: beginning.base,
        len: segment.len,
        padding: Padding::of(device),
        has_seed: true,
        shares_units: true,
        kept: beginning.kept.clone(),
        successor: None,
    };
    let end = LaneEnd {
        segment,
        header,
        offset: BLOCK as u64,
        chunk: 1,
        link: 0,
        unmarked: Vec::new(),
    };
    Ok(Lane::new(index, options, end, pool))
}

/// Prepares the segment with which a lane begins. A full log begins, too, otherwise the checkpoint
/// that frees space could not be written.
pub(crate) fn prepare_first(
    pool: &SegmentPool,
    device: &dyn Device,
    options: &LogOptions,
    quota: &Quota,
) -> Result<(), LogError> {
    let unlimited = LogOptions {
        max_log_bytes: 0,
        ..options.clone()
    };
    let prepared = pool.prepare_while(device, &unlimited, quota, 0, || pool.ready() == 0);
    prepared.map(drop)
}

/// Creates the segments that the options preallocate, in all lanes or in none.
pub(crate) fn preallocate(
    lanes: &[Lane],
    device: &dyn Device,
    options: &LogOptions,
    quota: &Quota,
) -> Result<(), LogError> {
    let mut made = Vec::with_capacity(lanes.len());
    for lane in &lanes[..options.lanes] {
        match lane.pool.preallocate(device, options, quota) {
            Ok(first) => made.push((lane, first)),
            Err(error) => {
                for (lane, first) in made {
                    lane.pool.take_back(first, device, quota);
                }
                return Err(if error.is_storage_full() {
                    quota.out_of_space(options, options.preallocated_bytes, true)
                } else {
                    error
                });
            }
        }
    }
    Ok(())
}

/// Removes files that a process was preparing as segments when it ended.
pub(crate) fn remove_unfinished(device: &dyn Device) -> Result<(), LogError> {
    let entries = device
        .list()
        .map_err(|error| LogError::io("cannot list the device", error))?;
    for entry in entries
        .iter()
        .filter(|entry| is_unfinished_name(&entry.name))
    {
        braid_rt::coverage_point("recovery: an unfinished segment is removed");
        device
            .remove(&entry.name)
            .map_err(|error| LogError::io(format!("cannot remove {}", entry.name), error))?;
    }
    Ok(())
}
