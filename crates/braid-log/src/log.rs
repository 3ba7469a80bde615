//! The log itself.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use braid_io::Device;
use braid_rt::thread::JoinHandle;
use braid_rt::{Mutex, narrow};

use crate::LogError;
use crate::base::callbacks::Action;
use crate::buffer::commit_slots::backoff;
use crate::commit::pending::PendingCommit;
use crate::commit::ticket::{StrandHandle, Ticket, UnlockPoint};
use crate::flush::begin::{preallocate, prepare_first};
use crate::flush::core::{Core, CoreParts, DEPENDENCIES_MAX, WaitTarget};
use crate::flush::lane::{Lane, LaneEnd};
use crate::flush::leader::FlushOrder;
use crate::flush::threads;
use crate::format::checkpoint_position::{CheckpointPosition, LanePosition};
use crate::format::segment::{SegmentHeader, is_unfinished_name, parse_segment_name};
use crate::options::{BLOCK, FlushMode, LockRelease, LogOptions};
use crate::protocol::hardening::Hardening;
use crate::protocol::{Dependence, Kept};
use crate::recovery::recovered::{Recovered, ScanProgress};
use crate::segments::pool::{PoolFiles, Quota, SegmentPool};
use crate::stats::LogStats;

/// A parallel write-ahead log. Clones are handles of the same log.
///
/// When the last handle goes, its threads flush what was appended and stop. See the
/// [crate's documentation](crate) for how a transaction is logged.
#[derive(Clone)]
pub struct Log(Arc<LogInner>);

pub(crate) struct LogInner {
    pub(crate) core: Arc<Core>,
    /// One a strand.
    pub(crate) strand_handles: Box<[Arc<StrandHandle>]>,
    threads: Mutex<Vec<JoinHandle>>,
}

impl fmt::Debug for LogInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core().fmt(f)
    }
}

impl Log {
    /// Assigns a fresh identity, so that files of two logs are never mixed up.
    pub fn new_identity() -> u128 {
        let half = || u128::from(braid_rt::entropy());
        half() << 64 | half()
    }

    /// Creates a log on a device that has none.
    ///
    /// # Errors
    /// [`LogError::Options`]; [`LogError::Incompatible`] if there are segments of a log;
    /// [`LogError::OutOfSpace`] or [`LogError::Io`] from the device.
    pub fn create(device: Arc<dyn Device>, options: LogOptions) -> Result<Log, LogError> {
        Self::create_behind(device, options, 0)
    }

    /// Creates a log whose first number comes behind `seqno`: for a database that was restored as
    /// of it.
    ///
    /// # Errors
    /// As [`Log::create`].
    pub fn create_behind(
        device: Arc<dyn Device>,
        options: LogOptions,
        seqno: u64,
    ) -> Result<Log, LogError> {
        Self::create_as(device, options, seqno, Self::new_identity())
    }

    /// Creates a log as [`Log::create_behind`] does, with an identity assigned before.
    ///
    /// # Errors
    /// As [`Log::create`].
    pub fn create_as(
        device: Arc<dyn Device>,
        options: LogOptions,
        seqno: u64,
        identity: u128,
    ) -> Result<Log, LogError> {
        if seqno >= crate::format::chunk::NUMBERS_MAX / 2 {
            return Err(LogError::Incompatible {
                what: format!(
                    "cannot create a log that continues from sequence number {seqno}: the number is out of range"
                ),
            });
        }
        let options = options.checked()?;
        let entries = device
            .list()
            .map_err(|error| LogError::io("cannot list the device", error))?;
        for entry in entries {
            if parse_segment_name(&entry.name).is_some() {
                return Err(LogError::Incompatible {
                    what: format!(
                        "cannot create the log: {} already exists; choose an empty directory",
                        entry.name
                    ),
                });
            }
            if is_unfinished_name(&entry.name) {
                device.remove(&entry.name).map_err(|error| {
                    LogError::io(format!("cannot remove {}", entry.name), error)
                })?;
            }
        }
        let kept = Kept::Numbers(seqno).words(options.lanes);
        let quota = Quota::default();
        let mut lanes = Vec::with_capacity(options.lanes);
        for index in 0..options.lanes {
            let pool = SegmentPool::new(index, &options, PoolFiles::default(), 1);
            prepare_first(&pool, &*device, &options, &quota)?;
            let Some(segment) = pool.take() else {
                unreachable!("a segment was made ready")
            };
            let header = SegmentHeader {
                log: identity,
                lane: narrow(index),
                lanes: narrow(options.lanes),
                protocol: crate::protocol::of(options.protocol).id(),
                sequence: segment.sequence,
                incarnation: 1,
                link: 0,
                base: seqno,
                first_chunk: 1,
                durable_seqno: seqno,
                len: segment.len,
                kept: kept.clone(),
                successor: None,
            };
            let end = LaneEnd {
                segment,
                header,
                offset: BLOCK as u64,
                chunk: 1,
                link: 0,
            };
            lanes.push(Lane::new(index, &options, end, pool));
        }
        preallocate(&lanes, &*device, &options, &quota)?;
        // Names before contents: a header counts only in a file that is found.
        device
            .sync_directory()
            .map_err(|error| LogError::io("cannot make the log's file names durable", error))?;
        for lane in &lanes {
            let seal = lane.seal.lock();
            let block = seal.header.encode(&*device);
            seal.segment.write_header(lane.index, &block)?;
        }
        Self::start(CoreParts {
            device,
            options,
            id: identity,
            incarnation: 1,
            begun: true,
            base: seqno,
            kept,
            lanes: lanes.into_boxed_slice(),
            quota,
        })
    }

    /// Begins to write, if nothing was written since the log was recovered with
    /// [`Recovered::into_idle_log`]: the first commit does that. To be called before a
    /// [position](Log::quiesce) is taken from which the log will be recovered: what recovery gave
    /// up is given up for good only then.
    ///
    /// # Errors
    /// [`LogError::OutOfSpace`] or [`LogError::Io`] if a file can't be prepared, and may be tried again;
    /// [`LogError::Poisoned`] if a write failed.
    pub fn begin(&self) -> Result<(), LogError> {
        match self.core().is_begun() {
            true => Ok(()),
            false => self.core().begin(),
        }
    }

    /// Calls `settle` before the log begins to write, so before it reuses or deletes a file: `settle` makes the
    /// checkpoint durable whose position recovery started from. If it fails, so does the operation that began the log,
    /// and the next one calls it again. For a log from [`Recovered::into_idle_log`] that has not begun.
    pub fn before_begin(&self, settle: impl Fn() -> Result<(), LogError> + Send + 'static) {
        *self.core().beginning.lock() = Some(Box::new(settle));
    }

    /// Puts a log together and starts its threads.
    pub(crate) fn start(parts: CoreParts) -> Result<Log, LogError> {
        let core = Arc::new(Core::new(parts));
        let strand_handles = core.strands.iter().enumerate().map(|(strand, state)| {
            Arc::new(StrandHandle {
                core: Arc::clone(&core),
                strand,
                lane: state.lane,
            })
        });
        let strand_handles = strand_handles.collect();
        let threads = match core.options.flush_mode {
            FlushMode::Background => threads::start(&core)
                .map_err(|error| LogError::io("cannot start the log's threads", error))?,
            FlushMode::Callers => Vec::new(),
        };
        Ok(Log(Arc::new(LogInner {
            core,
            strand_handles,
            threads: Mutex::new(threads),
        })))
    }

    /// Scans the log from `start`, a position given by [`Log::quiesce`], on all lanes in parallel, and
    /// finds the cut of its protocol: the last number that counts. Without a checkpoint, give
    /// [`Log::recovery_position`]. Writes nothing.
    ///
    /// # Errors
    /// [`LogError::Corrupted`] if the log lacks what it acknowledged, [`LogError::Incompatible`] if the
    /// options do not fit it, [`LogError::Options`], [`LogError::Io`].
    pub fn recover(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
        progress: &(dyn Fn(ScanProgress) + Sync),
    ) -> Result<Recovered, LogError> {
        Recovered::scan(device, options.checked()?, start, None, progress)
    }

    /// As [`Log::recover`] for a log that another process may be writing: what counts is everything up to
    /// `durable`, which that process announced before this was called, and nothing else. Fails if not all of
    /// that is there, also because the log was released meanwhile. Where a protocol's sequence numbers do not tell,
    /// [`Recovered::is_still_there`] does, after the last use. `device` must keep to itself what is
    /// written (see [`braid_io::OverlayDevice`]).
    ///
    /// # Errors
    /// As [`Log::recover`].
    pub fn recover_up_to(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
        durable: u64,
        progress: &(dyn Fn(ScanProgress) + Sync),
    ) -> Result<Recovered, LogError> {
        Recovered::scan(device, options.checked()?, start, Some(durable), progress)
    }

    /// Calls `announce` with the [durable seqno](Log::durable_seqno) before it moves there, so
    /// before anything up to it is acknowledged. Can be set once. `announce` is called by the
    /// threads that flush, and must be quick.
    pub fn announce_durable(&self, announce: impl Fn(u64) + Send + Sync + 'static) {
        let _ = self.core().announce.set(Box::new(announce));
    }

    /// As [`Log::recover`] for a damaged log: where that fails for what was acknowledged and is gone, this
    /// ends the log before it, and says so. What is returned is the state after a prefix of what was
    /// committed, so it is consistent. Not meant for [`Recovered::into_log`].
    ///
    /// # Errors
    /// [`LogError::Corrupted`] if the log is not there from `start` on; as [`Log::recover`] otherwise.
    pub fn salvage(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
    ) -> Result<(Recovered, Vec<String>), LogError> {
        Recovered::salvage(device, options.checked()?, start)
    }

    /// The start of the oldest log on a device: for a user of the log who keeps no checkpoints.
    ///
    /// # Errors
    /// [`LogError::Incompatible`] if there is no log, [`LogError::Io`].
    pub fn recovery_position(device: &dyn Device) -> Result<CheckpointPosition, LogError> {
        crate::recovery::recovered::oldest_position(device)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    #[cfg(all(test, loom))]
    pub(crate) fn inner(&self) -> &LogInner {
        &self.0
    }

    /// The log's own number, assigned when it was created, which its segments carry.
    pub fn identity(&self) -> u128 {
        self.core().id
    }

    /// The options in effect.
    pub fn options(&self) -> &LogOptions {
        &self.core().options
    }

    /// The durable seqno: every number up to it is durable, and its commit finished. Grows only.
    pub fn durable_seqno(&self) -> u64 {
        self.core().durable_seqno()
    }

    /// The newest number assigned.
    pub fn last_seqno(&self) -> u64 {
        self.core().commit_slots.last_seqno()
    }

    /// Begins to commit a transaction with `payload_bytes` bytes of log: reserves log space, takes the
    /// thread's commit slot, and waits while the log is quiesced. A thread that is in flight must not
    /// enter again before it has finished.
    ///
    /// # Errors
    /// [`LogError::OutOfSpace`], [`LogError::Poisoned`] or [`LogError::Closed`], before anything
    /// was assigned; [`LogError::Io`] if the space would have to be made and that failed.
    #[inline]
    pub fn enter(&self, payload_bytes: usize) -> Result<PendingCommit<'_>, LogError> {
        let core = self.core();
        let dependencies = match &core.hardening {
            Some(_) => DEPENDENCIES_MAX * size_of::<u64>(),
            None => 0,
        };
        let thread = braid_rt::thread::index();
        let strand_handles = &self.0.strand_handles;
        let strand_handle = &strand_handles[thread % strand_handles.len()];
        let lane = &core.lanes[strand_handle.lane];
        let reservation = core.reserve(lane, payload_bytes + dependencies)?;
        let Some(slot) = core.commit_slots.enter(thread) else {
            braid_rt::coverage_point("log: a commit comes after close");
            core.unreserve(strand_handle.lane, reservation);
            return Err(LogError::Closed);
        };
        Ok(PendingCommit::new(strand_handle, slot, reservation))
    }

    /// Appends one record: [`Log::enter`], assign one number, append, finish.
    ///
    /// # Errors
    /// As [`Log::enter`].
    pub fn append(&self, payload: &[&[u8]]) -> Result<Ticket, LogError> {
        let mut entry = self.enter(payload.iter().map(|part| part.len()).sum())?;
        entry.assign(1);
        entry.append(payload);
        Ok(entry.finish())
    }

    /// A ticket for everything up to `seqno`.
    pub fn ticket(&self, seqno: u64) -> Ticket {
        Ticket::new(Arc::clone(&self.0.strand_handles[0]), seqno, 0)
    }

    /// Blocks until everything assigned so far is durable.
    ///
    /// # Errors
    /// [`LogError::Poisoned`].
    pub fn sync(&self) -> Result<(), LogError> {
        let (core, seqno) = (self.core(), self.last_seqno());
        if core.protocol.has_epochs() {
            // One may be under way, which ended before our number.
            while core.durable_seqno() < seqno {
                core.end_epoch();
                core.wait(WaitTarget::everything(seqno.min(core.epoch_end())))?;
            }
        }
        core.wait(WaitTarget::everything(seqno))
    }

    /// Starts to flush what is buffered, without waiting. Does nothing with [`FlushMode::Callers`].
    pub fn request_flush(&self) {
        self.core().request_flush_of_dirty();
    }

    /// How far the strand's transactions have come to the point where their locks may go: those with an
    /// [`UnlockPoint`] up to this. Everything, once the log has failed.
    pub fn unlockable(&self, strand: usize) -> u64 {
        let core = self.core();
        if core.poison().is_some() {
            return u64::MAX;
        }
        match core.protocol.lock_release() {
            LockRelease::Precommit => u64::MAX,
            // Flushes assign their number before they let go of the latch that this takes.
            LockRelease::Numbered => core.strands[strand].open_group() - 1,
            LockRelease::Durable => core.durable_seqno(),
        }
    }

    /// Calls `f` once a transaction's locks may go, or the log has failed: on the thread that sees to it,
    /// or at once on this one. `f` should be short, and must not block on this log.
    pub fn when_unlockable(&self, point: UnlockPoint, f: impl FnOnce() + Send + 'static) {
        let core = self.core();
        let strand = &core.strands[point.strand()];
        match core.protocol.lock_release() {
            LockRelease::Precommit => f(),
            LockRelease::Durable => {
                self.ticket(point.at()).when_known(move |_| f());
            }
            LockRelease::Numbered => {
                let action = Action::Call(Box::new(move |_| f()));
                if let Some(action) = strand.when_numbered(point.at(), action) {
                    action.run(&Ok(()));
                } else if let Some(error) = core.poison() {
                    // It may have failed in between, and nobody seals any more.
                    let due: Vec<_> = strand.lock().take_numbered(u64::MAX).collect();
                    due.into_iter()
                        .for_each(|action| action.run(&Err(error.clone())));
                }
            }
        }
    }

    /// Whether transactions say what they depend on: [`PendingCommit::depends_on`].
    pub fn wants_dependencies(&self) -> bool {
        let core = self.core();
        match core.protocol.dependence() {
            Dependence::Implied => false,
            Dependence::Durable => true,
            // What lies in the own lane is sealed no later than its reader.
            Dependence::Sealed | Dependence::Recorded => core.lanes.len() > 1,
        }
    }

    /// The greatest number that has been acknowledged to anybody. With `gsn` it may be greater than the
    /// [durable seqno](Log::durable_seqno).
    pub fn acknowledged(&self) -> u64 {
        let core = self.core();
        let hardened = core.hardening.as_ref().map_or(0, Hardening::greatest);
        hardened.max(core.durable_seqno())
    }

    /// How many kinds of progress there are, see [`Log::on_progress`]: one, or with `gsn` one a lane and one
    /// of all.
    pub fn progress_kinds(&self) -> usize {
        let core = self.core();
        1 + core.hardening.as_ref().map_or(0, |_| core.lanes.len())
    }

    /// Calls `f` once anything above `seqno` is acknowledged as a progress of that kind, or the log
    /// has failed. Asks for no flush. Whoever registers for all kinds is called when there is
    /// progress at all.
    ///
    /// # Panics
    /// If there is no such kind.
    pub fn on_progress(&self, kind: usize, seqno: u64, f: impl FnOnce() + Send + 'static) {
        assert!(kind < self.progress_kinds(), "one of the kinds");
        let core = self.core();
        // The shard of those who wait for everything, or one that follows a lane.
        let shard = match kind {
            0 => core.strands.len(),
            lane => lane - 1,
        };
        let action = Action::Call(Box::new(move |_| f()));
        core.callbacks.add(shard, seqno + 1, action);
        if let Some(error) = core.poison() {
            core.callbacks.run(u64::MAX, &Err(error));
        } else if self.acknowledged() > seqno {
            core.run_callbacks();
        }
    }

    /// Every number below this is finished: the least of a pending commit, or else the next one to
    /// be assigned.
    pub fn applied_before(&self) -> u64 {
        let commit_slots = &self.core().commit_slots;
        // The counter first, see `CommitSlots`.
        let next = commit_slots.last_seqno() + 1;
        next.min(commit_slots.oldest())
    }

    /// Waits (spinning, then yielding) until every pending commit with a number below `below` has
    /// finished, if its [signature](PendingCommit::set_signature) matches.
    ///
    /// A pending commit may wait for smaller numbers than its own, never for greater ones, so
    /// nobody waits in a circle. Does not return if `below` is greater than `last_seqno() + 1` and
    /// nobody assigns.
    pub fn wait_applied(&self, below: u64, signature: u64) {
        let commit_slots = &self.core().commit_slots;
        let are_finished = || {
            commit_slots.last_seqno() + 1 >= below && commit_slots.are_finished(below, signature)
        };
        if are_finished() {
            return;
        }
        self.core().publish();
        let mut spins = 0;
        while !are_finished() {
            backoff(&mut spins);
        }
    }

    /// Keeps new commits out, waits for those in flight, and calls `f` with the position of the
    /// log: everything up to its number is finished, everything later will lie behind its
    /// positions. For a checkpoint's consistent instant; keep `f` short, all commits wait for it.
    /// `f` must not commit.
    ///
    /// The number is not durable yet: see [`Log::sync`].
    pub fn quiesce<R>(&self, f: impl FnOnce(CheckpointPosition) -> R) -> R {
        let core = self.core();
        let _one = core.quiescing.lock();
        // Either all lanes have begun, or none.
        let _begun = core.beginning.lock();
        core.commit_slots.quiesce(|| {
            let lanes = core.lanes.iter().map(|lane| {
                let seal = lane.seal.lock();
                LanePosition {
                    segment: seal.segment.sequence,
                    offset: seal.offset,
                    chunk: seal.chunk,
                    link: seal.link,
                    incarnation: seal.header.incarnation,
                }
            });
            let lanes = lanes.collect();
            f(CheckpointPosition {
                seqno: core.commit_slots.last_seqno(),
                flush: core.flush_order.as_ref().map_or(0, FlushOrder::newest),
                lanes,
            })
        })
    }

    /// Refuses all further commits with [`LogError::Closed`], and waits for those in flight.
    /// Nothing is appended any more: after a [`Log::sync`] everything that ever entered is durable,
    /// or the log is poisoned.
    pub fn seal(&self) {
        let core = self.core();
        let _one = core.quiescing.lock();
        core.commit_slots.seal();
    }

    /// Releases the log before `start` (I6): the caller has made durable what makes it unneeded, and will
    /// recover from `start` or later. Whole segments are recycled, or discarded as the options say.
    ///
    /// # Errors
    /// [`LogError::Incompatible`] if `start` is not of this log, [`LogError::Io`] with
    /// [`FlushMode::Callers`] (else the background thread tries again).
    pub fn release(&self, start: &CheckpointPosition) -> Result<(), LogError> {
        let core = self.core();
        let wrong = |what: &str| {
            Err(LogError::Incompatible {
                what: what.to_owned(),
            })
        };
        if start.lanes.len() != core.lanes.len() {
            return wrong("cannot release the log: the position has another number of lanes");
        }
        // I6: what is released was finished, and lies before the place where the log is written.
        if start.seqno > core.commit_slots.last_seqno() {
            return wrong("cannot release the log: the position is ahead of its end");
        }
        for (lane, position) in core.lanes.iter().zip(&start.lanes) {
            if position.segment > lane.seal.lock().segment.sequence {
                return wrong("cannot release the log: the position is ahead of its end");
            }
        }
        let mut released = false;
        for (lane, position) in core.lanes.iter().zip(&start.lanes) {
            released |= lane.pool.release(position.segment, &core.options);
        }
        // Who checkpoints after the device was full wants to know whether it still is.
        core.space.retry_now();
        if released {
            match core.options.flush_mode {
                FlushMode::Background => core.preparer.notify(),
                FlushMode::Callers => {
                    let discard = core.options.discard;
                    for lane in &core.lanes {
                        lane.pool
                            .delete_retired(&*core.device, discard, &core.quota)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Bytes of the log's files from one position on and before another: of whole segments.
    pub fn bytes_between(&self, from: &CheckpointPosition, to: &CheckpointPosition) -> u64 {
        let lanes = self.core().lanes.iter();
        lanes
            .zip(from.lanes.iter().zip(&to.lanes))
            .map(|(lane, (from, to))| lane.pool.bytes_between(from.segment, to.segment))
            .sum()
    }

    /// Stops the log (I8): nothing is acknowledged any more, and no flush begins. Every waiter gets the cause; of
    /// several causes the first counts.
    pub fn poison(&self, cause: &str) {
        self.core().set_poison(cause);
    }

    /// Whether the log has stopped.
    #[inline]
    pub fn is_poisoned(&self) -> bool {
        self.core().is_poisoned()
    }

    /// The cause, if the log has stopped: a failed write, or what [`Log::poison`] was told.
    pub fn poisoned(&self) -> Option<String> {
        match self.core().poison() {
            Some(LogError::Poisoned { cause }) => Some(cause.to_string()),
            _ => None,
        }
    }

    /// What the log has done since it was opened. Sums are read one by one, not at one instant.
    pub fn stats(&self) -> LogStats {
        let core = self.core();
        let mut stats = LogStats {
            segments: core.quota.files(),
            ..LogStats::default()
        };
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for lane in &core.lanes {
            let counters = &*lane.counters;
            stats.written_bytes += get(&counters.written_bytes);
            stats.chunk_bytes += get(&counters.chunk_bytes);
            stats.payload_bytes += get(&counters.payload_bytes);
            stats.flushes += get(&counters.flushes);
            stats.chunks += get(&counters.chunks);
            stats.records += get(&counters.log_records);
            stats.buffer_waits += get(&counters.buffer_waits);
            stats.queue_time += Duration::from_nanos(get(&counters.queue_nanos));
            stats.write_time += Duration::from_nanos(get(&counters.write_nanos));
            stats.notify_time += Duration::from_nanos(get(&counters.notify_nanos));
            stats.segments_ready += lane.pool.ready();
            stats.segments_recycled += lane.pool.recycled();
        }
        let consolidated = core.strands.iter().map(|strand| get(&strand.consolidated));
        stats.consolidated_records = consolidated.sum();
        stats
    }

    /// Flushes everything and stops the log's threads. Other handles and tickets keep working, without
    /// background flushes.
    ///
    /// # Errors
    /// [`LogError::Poisoned`].
    pub fn close(self) -> Result<(), LogError> {
        let flushed = self.sync();
        self.0.stop();
        flushed
    }
}

impl LogInner {
    fn stop(&self) {
        if self.core.check_process().is_err() {
            // They are the parent's.
            return;
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        threads::stop(&self.core, threads);
    }
}

impl Drop for LogInner {
    fn drop(&mut self) {
        self.stop();
    }
}
