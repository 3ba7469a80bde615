//! The interface of a running log.

mod checked;
mod create;
mod enter;
mod recover;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_rt::atomic::{AtomicU64, Ordering};
use braid_rt::thread::JoinHandle;
use braid_rt::{HoldTime, Mutex};

use crate::LogError;
use crate::base::callbacks::Action;
use crate::base::numbers::{FlushNo, GroupNo, LaneId, SeqNo, StrandId};
use crate::base::sync::Backoff;
use crate::commit::ticket::{StrandHandle, Ticket, UnlockPoint};
use crate::flush::backpressure::{CheckpointRun, Checkpointer};
use crate::flush::core::{Announcer, Core, CoreParts, WaitTarget};
use crate::flush::lane::Lane;
use crate::flush::threads;
use crate::format::checkpoint_position::CheckpointPosition;
use crate::options::{FlushMode, LogOptions};
use crate::protocol::gwsn::FlushOrder;
use crate::protocol::kind::LockRelease;
use crate::stats::LogStats;
use crate::tail::TailReader;

/// How often [`Log::quiesce_with`] opens the commit gate again for a commit that does not end.
const ATTEMPTS: u32 = 40;

/// A parallel write-ahead log. Clones are handles of the same log.
///
/// When the last handle is dropped, the log's threads flush everything appended and stop. See the
/// [crate's documentation](crate) for how a transaction is logged.
#[derive(Clone)]
pub struct Log(Arc<LogInner>);

pub(crate) struct LogInner {
    pub(crate) core: Arc<Core>,
    /// One handle per strand.
    pub(crate) strand_handles: Box<[Arc<StrandHandle>]>,
    /// One handle per strand of the side lanes.
    side_handles: Box<[Arc<StrandHandle>]>,
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
    /// Begins the new incarnation of a log from
    /// [`Recovered::into_idle_log`](crate::Recovered::into_idle_log), unless the first commit has
    /// begun it. Must be called before taking a [position](Log::quiesce) from which the log will be
    /// recovered: records that recovery discarded are discarded permanently only then.
    ///
    /// # Errors
    /// [`LogError::OutOfSpace`] or [`LogError::Io`] if a file can't be prepared (the call may be
    /// retried); [`LogError::Poisoned`] if a write failed.
    pub fn begin(&self) -> Result<(), LogError> {
        if self.core().is_begun() {
            Ok(())
        } else {
            self.core().begin()
        }
    }

    /// Calls `settle` before the log begins to write, so before it reuses or deletes a file:
    /// `settle` makes the checkpoint durable whose position recovery started from. If it fails, the
    /// operation that began the log fails too, and the next one calls it again. For a log from
    /// [`Recovered::into_idle_log`](crate::Recovered::into_idle_log) that has not begun.
    pub fn before_begin(&self, settle: impl Fn() -> Result<(), LogError> + Send + 'static) {
        *self.core().beginning.lock() = Some(Box::new(settle));
    }

    /// Assembles a log and starts its threads.
    pub(crate) fn start(parts: CoreParts) -> Result<Log, LogError> {
        let core = Arc::new(Core::new(parts));
        let strand_handles = core.strands.iter().enumerate().map(|(strand, state)| {
            Arc::new(StrandHandle {
                core: Arc::clone(&core),
                strand: StrandId::new(strand),
                lane: state.lane,
            })
        });
        let mut strand_handles: Vec<_> = strand_handles.collect();
        let side_handles = strand_handles.split_off(core.options.strands);
        let threads = match core.options.flush_mode {
            FlushMode::Background => threads::start(&core)
                .map_err(|error| LogError::io("cannot start the log's threads", error))?,
            FlushMode::Callers => Vec::new(),
        };
        Ok(Log(Arc::new(LogInner {
            core,
            strand_handles: strand_handles.into(),
            side_handles: side_handles.into(),
            threads: Mutex::new(threads),
        })))
    }

    /// Calls `announcer` with each new [durable seqno](Log::durable_seqno). Can be set once.
    pub fn announce_durable(&self, announcer: impl Announcer + 'static) {
        let _ = self.core().announcer.set(Box::new(announcer));
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    #[cfg(test)]
    pub(crate) fn inner(&self) -> &LogInner {
        &self.0
    }

    /// Returns the log's identity, which was assigned when it was created and which its segments
    /// carry.
    pub fn identity(&self) -> u128 {
        self.core().id
    }

    /// The options in effect.
    pub fn options(&self) -> &LogOptions {
        &self.core().options
    }

    /// The durable seqno: every number up to it is durable. Never decreases.
    ///
    /// Most commits hold it back until they are finished. Those that
    /// [take long](crate::PendingCommit::begin_long_apply) hold back the [visible
    /// seqno](Log::visible_seqno) only.
    pub fn durable_seqno(&self) -> SeqNo {
        self.core().durable_seqno()
    }

    /// The visible seqno: every number up to it is durable, and its commit finished. Never
    /// decreases. Stays below a transaction whose writes [could not be
    /// applied](crate::PendingCommit::fail).
    #[inline]
    pub fn visible_seqno(&self) -> SeqNo {
        self.core().visible_seqno()
    }

    /// Waits until every pending commit with a number up to `seqno` is finished, so that a snapshot
    /// of what is finished contains everything up to there. Returns early if one of them [could not
    /// be applied](crate::PendingCommit::fail). The caller read `seqno` from this log's [durable
    /// seqno](Log::durable_seqno) or [`Log::acknowledged`].
    #[cold]
    pub fn wait_finished(&self, seqno: SeqNo) {
        let core = self.core();
        let mut backoff = Backoff::default();
        // A log that was not poisoned yet seems to be in order: its snapshots are complete.
        let is_hopeless = || core.stays_invisible(seqno) && core.is_poisoned();
        let is_unfinished = || self.applied_before() <= seqno && !is_hopeless();
        // A child made by `fork` has no thread that finishes anything.
        while is_unfinished() && core.check_process().is_ok() {
            braid_rt::coverage_point("log: a snapshot waits for a long application");
            backoff.wait();
        }
    }

    /// The newest number assigned.
    pub fn last_seqno(&self) -> SeqNo {
        self.core().commit_slots.last_seqno()
    }

    /// Appends one record: [`Log::enter`], assign one number, append, finish.
    ///
    /// # Errors
    /// As [`Log::enter`].
    pub fn append(&self, payload: &[&[u8]]) -> Result<Ticket, LogError> {
        let mut entry = self.enter(payload)?;
        entry.assign(1);
        entry.append(payload);
        Ok(entry.finish())
    }

    /// Returns a ticket for everything up to `seqno`.
    pub fn ticket(&self, seqno: SeqNo) -> Ticket {
        Ticket::new(Arc::clone(&self.0.strand_handles[0]), seqno, GroupNo::NONE)
    }

    /// Blocks until everything assigned so far is durable.
    ///
    /// # Errors
    /// [`LogError::Poisoned`], also if everything that was assigned is durable: the bytes of a large
    /// commit may have been lost before it was assigned a number.
    pub fn sync(&self) -> Result<(), LogError> {
        let (core, seqno) = (self.core(), self.last_seqno());
        if core.acknowledgement.epochs().is_some() {
            // An epoch that ended before this number may still be in flight.
            while core.durable_seqno() < seqno {
                core.end_epoch();
                core.wait(WaitTarget::everything(seqno.min(core.epoch_end())))?;
            }
        }
        core.wait(WaitTarget::everything(seqno))?;
        // I8: nothing is acknowledged after a failure, however much is durable.
        match core.poison() {
            Some(error) if !braid_rt::mutant!("sync_a_poisoned_log") => Err(error),
            _ => Ok(()),
        }
    }

    /// Starts a flush of the buffers, without waiting. Does nothing with [`FlushMode::Callers`].
    pub fn request_flush(&self) {
        self.core().request_flush_of_dirty();
    }

    /// Returns the greatest [`UnlockPoint`] of the strand up to which transactions may release
    /// their locks. Covers everything once the log has failed.
    pub fn unlockable(&self, strand: StrandId) -> u64 {
        let core = self.core();
        if core.poison().is_some() {
            return u64::MAX;
        }
        match core.protocol.lock_release() {
            LockRelease::Precommit => u64::MAX,
            // Flushes assign their number before they release the latch that this acquires.
            LockRelease::Numbered => core.strands[strand].open_group().get() - 1,
            LockRelease::Durable => core.durable_seqno().get(),
        }
    }

    /// Calls `f` once a transaction's locks may be released, or the log has failed: on the thread
    /// that reaches the point, or immediately on this one. `f` should be short, and must not block
    /// on this log.
    pub fn when_unlockable(&self, point: UnlockPoint, f: impl FnOnce() + Send + 'static) {
        let core = self.core();
        let strand = &core.strands[point.strand()];
        match core.protocol.lock_release() {
            LockRelease::Precommit => f(),
            LockRelease::Durable => {
                self.ticket(SeqNo::new(point.at())).when_known(move |_| f());
            }
            LockRelease::Numbered => {
                let action = Action::Call(Box::new(move |_| f()));
                if let Some(action) = strand.when_numbered(GroupNo::new(point.at()), action) {
                    action.run(&Ok(()));
                } else if let Some(error) = core.poison() {
                    // The log may have failed in between, and then no thread seals any more.
                    let due: Vec<_> = strand
                        .lock()
                        .take_numbered(GroupNo::new(u64::MAX))
                        .collect();
                    due.into_iter()
                        .for_each(|action| action.run(&Err(error.clone())));
                }
            }
        }
    }

    /// Whether transactions must name their dependencies with [`PendingCommit::depends_on`](crate::PendingCommit::depends_on).
    pub fn wants_dependencies(&self) -> bool {
        let core = self.core();
        core.protocol.dependence().is_wanted(core.lanes.len())
    }

    /// The greatest number that has been acknowledged. With `gsn` it may be greater than the
    /// [durable seqno](Log::durable_seqno).
    pub fn acknowledged(&self) -> SeqNo {
        self.core().acknowledged()
    }

    /// Number of kinds of progress, see [`Log::on_progress`]: one, or with `gsn` one per lane and
    /// one for all lanes.
    pub fn progress_kinds(&self) -> usize {
        let core = self.core();
        1 + core.acknowledgement.lanes().map_or(0, |_| core.lanes.len())
    }

    /// Calls `f` once anything above `seqno` is acknowledged as progress of that kind, or the log
    /// has failed. Requests no flush. A caller that registers for all kinds is called on any
    /// progress.
    ///
    /// # Panics
    /// If `kind` is not less than [`Log::progress_kinds`].
    pub fn on_progress(&self, kind: usize, seqno: SeqNo, f: impl FnOnce() + Send + 'static) {
        assert!(kind < self.progress_kinds(), "one of the kinds");
        let core = self.core();
        // The shard of callbacks that wait for everything, or of those that follow a lane.
        let shard = match kind {
            0 => core.strands.len(),
            lane if braid_rt::mutant!("follow_other_lanes") => lane - 1,
            lane => core.options.strands_of(LaneId::new(lane - 1)).0.start,
        };
        let action = Action::Call(Box::new(move |_| f()));
        core.callbacks.add(shard, seqno.next(), action);
        if let Some(error) = core.poison() {
            core.callbacks.run(SeqNo::MAX, &Err(error));
        } else if self.acknowledged() > seqno {
            core.run_callbacks();
        }
    }

    /// Every number below this is finished: the least number of a pending commit, otherwise the
    /// next number to be assigned.
    pub fn applied_before(&self) -> SeqNo {
        let commit_slots = &self.core().commit_slots;
        // The counter first, see `CommitSlots`.
        let next = commit_slots.last_seqno().next();
        next.min(commit_slots.pending().unfinished)
    }

    /// Waits until every pending commit with a number below `below` has finished, if its
    /// [signature](crate::PendingCommit::set_signature) matches.
    ///
    /// A pending commit may wait for smaller numbers than its own, never for greater ones, so no
    /// cycle of waits arises. Does not return if `below` is greater than `last_seqno() + 1` and no
    /// thread assigns.
    pub fn wait_applied(&self, below: SeqNo, signature: u64) {
        let commit_slots = &self.core().commit_slots;
        let are_finished = || {
            commit_slots.last_seqno().next() >= below && commit_slots.are_finished(below, signature)
        };
        if are_finished() {
            return;
        }
        self.core().publish();
        let mut backoff = Backoff::default();
        while !are_finished() {
            backoff.wait();
        }
    }

    /// Waits until no commit that [takes long](crate::PendingCommit::begin_long_apply) and whose
    /// [signature](crate::PendingCommit::set_signature) matches is being applied. A commit that will wait
    /// for [writes of others](Log::wait_applied) calls this before it [enters](Log::enter), because
    /// from then on others wait for it.
    pub fn wait_long_applied(&self, signature: u64) {
        let mut backoff = Backoff::default();
        while self.core().commit_slots.is_applying(signature) {
            backoff.wait();
        }
    }

    /// Blocks new commits, waits for those in flight, and calls `f` with the position of the log:
    /// everything up to its number is finished, and everything later will lie after its positions.
    /// Used for a checkpoint's consistent instant. Keep `f` short, since all commits wait for it.
    /// `f` must neither commit nor wait.
    ///
    /// The number is not durable yet: see [`Log::sync`].
    pub fn quiesce<R>(&self, f: impl FnOnce(CheckpointPosition) -> R) -> R {
        self.quiesce_with(|_| Some(()), f)
    }

    /// As [`Log::quiesce`], while the caller also holds what `also` acquires, after no large commit is
    /// in flight and before commits are blocked. `also` waits only if its argument is `true`.
    ///
    /// If `also` returns `None`, or if a commit in flight does not end within microseconds, everything
    /// is released, so that nobody waits for that commit, and tried again later. Only after tens of
    /// milliseconds does the call insist.
    pub fn quiesce_with<G, R>(
        &self,
        also: impl Fn(bool) -> Option<G>,
        f: impl FnOnce(CheckpointPosition) -> R,
    ) -> R {
        let mut f = Some(f);
        let mut call = |position| f.take().map(|f| f(position));
        for attempt in 0.. {
            if let Some(result) = self.try_quiesce(attempt >= ATTEMPTS, &also, &mut call) {
                return result;
            }
            braid_rt::coverage_point("log: the commit gate opens again for a commit in flight");
            braid_rt::sleep(Duration::from_micros(20 << attempt.min(5)));
        }
        unreachable!("it insists in the end")
    }

    fn try_quiesce<G, R>(
        &self,
        insists: bool,
        also: &impl Fn(bool) -> Option<G>,
        f: &mut impl FnMut(CheckpointPosition) -> Option<R>,
    ) -> Option<R> {
        let core = self.core();
        let _large = core.holds.large_commits.of(core.large_commits.write());
        let _also = also(insists)?;
        let _one = core.quiescing.lock();
        // Either all lanes have begun, or none.
        let _begun = core.beginning.lock();
        let _closed = core.holds.commit_gate.of(());
        let quiet = core.commit_slots.try_quiesce(insists, || {
            let places = core.lanes.iter().map(Lane::place).collect();
            let mut position = CheckpointPosition {
                seqno: core.commit_slots.last_seqno(),
                flush: core
                    .acknowledgement
                    .flushes()
                    .map_or(FlushNo::NONE, FlushOrder::newest),
                lanes: places,
            };
            position.trim(core.options.lanes);
            f(position)
        });
        quiet.flatten()
    }

    /// Rejects all further commits with [`LogError::Closed`], and waits for those in flight. After
    /// [`Log::sync`] every commit that entered is durable, or the log is poisoned.
    pub fn seal(&self) {
        let core = self.core();
        let _large = core.large_commits.write();
        let _one = core.quiescing.lock();
        core.commit_slots.seal();
    }

    /// Lets commits that find no log space request a checkpoint, and wait for it. Without this, such
    /// a commit waits only for a checkpoint that is running, and otherwise fails at once. Can be set
    /// once.
    ///
    /// The threads that commit call `checkpointer`. If the thread that writes checkpoints commits
    /// between two of them, [`Checkpointer::request`] must return `false` on it.
    pub fn wait_for_checkpoints(&self, checkpointer: impl Checkpointer + 'static) {
        let pressure = &self.core().backpressure;
        pressure.set_checkpointer(Box::new(checkpointer));
    }

    /// Announces a checkpoint, before its position is taken with [`Log::quiesce`]: from now on,
    /// commits slow down if the log fills up too fast. The caller drops the result after it has
    /// [released](Log::release) the log before that position, or has given up, and does not commit
    /// until then. One checkpoint runs at a time.
    pub fn begin_checkpoint(&self) -> CheckpointRun<'_> {
        CheckpointRun::begin(self.core())
    }

    /// Ends a piece of background work that began at `begun`: sleeps, at most 10 ms, if commits need
    /// the device or the processors. Background work that reads or writes much calls this after each
    /// piece of some hundred KiB.
    pub fn pause_background(&self, begun: Instant) {
        let core = self.core();
        core.pacer.pause(begun, core.commit_progress());
    }

    /// Whether commits need the device, so that background work should do little at once.
    pub fn is_device_needed(&self) -> bool {
        let core = self.core();
        core.pacer.is_device_needed(core.commit_progress())
    }

    /// As [`Log::pause_background`], but returns how long to pause instead of sleeping.
    pub fn background_pause(&self, begun: Instant) -> Duration {
        let core = self.core();
        core.pacer.pause_after(begun, core.commit_progress())
    }

    /// Whether a commit waits for a checkpoint to release log.
    pub fn has_waiting_commits(&self) -> bool {
        self.core().backpressure.has_waiting_commits()
    }

    /// Makes the commits that wait for a checkpoint fail with [`LogError::Closed`], and all that
    /// would wait for one from now on. Called before the thread that writes checkpoints ends.
    pub fn end_waiting(&self) {
        self.core().backpressure.close();
    }

    /// Releases the log before `start` (I6). The caller has made durable the checkpoint that
    /// replaces it, and will recover from `start` or later. Whole segments are recycled, or
    /// discarded as the options say.
    ///
    /// # Errors
    /// [`LogError::Incompatible`] if `start` is not of this log, [`LogError::Io`] with
    /// [`FlushMode::Callers`] (otherwise the background thread retries).
    pub fn release(&self, start: &CheckpointPosition) -> Result<(), LogError> {
        let core = self.core();
        let wrong = |what: &str| {
            Err(LogError::Incompatible {
                what: what.to_owned(),
            })
        };
        if !core.options.fit(start) {
            return wrong("cannot release the log: the position has another number of lanes");
        }
        // I6: released log is finished, and lies before the place where the log is written.
        if start.seqno > core.commit_slots.last_seqno() {
            return wrong("cannot release the log: the position is ahead of its end");
        }
        // A lane that was given up has nothing to release.
        let lanes = || {
            let present = core.lanes.iter().filter(|lane| !lane.is_absent());
            present.map(|lane| (lane, start.lane(lane.index)))
        };
        for (lane, position) in lanes() {
            if position.segment > lane.seal.lock().segment.sequence {
                return wrong("cannot release the log: the position is ahead of its end");
            }
        }
        let mut released = false;
        for (lane, position) in lanes() {
            released |= lane.pool.release(position.segment, &core.options);
        }
        // After a full device, a checkpoint makes the log ask the device for space again.
        core.retry_now();
        if released {
            core.backpressure.note_release();
            match core.options.flush_mode {
                FlushMode::Background => core.preparer.notify(),
                FlushMode::Callers => core.delete_released()?,
            }
        }
        Ok(())
    }

    /// Returns a reader of all transactions after `start`, a position from [`Log::quiesce`] that
    /// was not released.
    ///
    /// The reader does not prevent a release: reading log that was [released](Log::release)
    /// meanwhile is an error.
    ///
    /// # Errors
    /// [`LogError::Released`] if the log at `start` was released, [`LogError::Incompatible`] if
    /// `start` is of another log, [`LogError::Corrupted`] or [`LogError::Io`].
    pub fn tail(&self, start: &CheckpointPosition) -> Result<TailReader, LogError> {
        TailReader::new(self.core(), start)
    }

    /// Returns the bytes of the log's files between two positions, counted in whole segments.
    pub fn bytes_between(&self, from: &CheckpointPosition, to: &CheckpointPosition) -> u64 {
        let lanes = self.core().lanes.iter();
        lanes
            .map(|lane| {
                let (from, to) = (from.lane(lane.index), to.lane(lane.index));
                lane.pool.bytes_between(from.segment, to.segment)
            })
            .sum()
    }

    /// Poisons the log (I8): nothing more is acknowledged, and no flush begins. Every waiter gets
    /// the cause; of several causes, the first is kept.
    pub fn poison(&self, cause: &str) {
        self.core().set_poison(cause);
    }

    /// Whether the log has stopped.
    #[inline]
    pub fn is_poisoned(&self) -> bool {
        self.core().is_poisoned()
    }

    /// Returns the cause, if the log has stopped: a failed write, or the argument of
    /// [`Log::poison`].
    pub fn poisoned(&self) -> Option<String> {
        match self.core().poison() {
            Some(LogError::Poisoned { cause }) => Some(cause.to_string()),
            _ => None,
        }
    }

    /// Adds the bytes of the strands' buffers that lie on each memory node to `bytes`, which has an
    /// element for [each](braid_rt::numa::nodes). Returns whether the system told it.
    pub fn count_buffers(&self, bytes: &mut [u64]) -> bool {
        let mut strands = self.core().strands.iter();
        strands.all(|strand| strand.count(bytes))
    }

    /// Adds the bytes of the buffers of a [side lane](crate::LogOptions::side_lanes) as
    /// [`Log::count_buffers`] does; nothing if there is none.
    pub fn count_side_buffers(&self, side: usize, bytes: &mut [u64]) -> bool {
        let core = self.core();
        let lane = LaneId::new(core.options.lanes + side);
        let mut strands = core.strands.iter().filter(|strand| strand.lane == lane);
        strands.all(|strand| strand.count(bytes))
    }

    /// Returns counters of the log since it was opened. They are read one by one, not at one
    /// instant.
    pub fn stats(&self) -> LogStats {
        let core = self.core();
        let delays = core.backpressure.delays();
        let mut stats = LogStats {
            segments: core.quota.files(),
            used_bytes: core.used_bytes(),
            limit_bytes: core.options.max_log_bytes,
            space_waits: delays.waits,
            delayed_commits: delays.delayed,
            delay_time: delays.time,
            background_pauses: core.pacer.pauses(),
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
            stats.segment_waits += lane.pool.lacks();
        }
        let consolidated = core.strands.iter().map(|strand| get(&strand.consolidated));
        stats.consolidated_records = consolidated.sum();
        stats
    }

    /// Says what the files of a [side lane](crate::LogOptions::side_lanes) belong to, for the message
    /// of a write that fails. Only the first call for a lane counts.
    pub fn name_side_lane(&self, side: usize, owner: &str) {
        let core = self.core();
        if let Some(lane) = core.lanes.get(core.options.lanes + side) {
            let _ = lane.owner.set(owner.to_owned());
        }
    }

    /// Returns the bytes written to a [side lane](crate::LogOptions::side_lanes) since the log was opened; 0
    /// if there is none.
    pub fn side_lane_bytes(&self, side: usize) -> u64 {
        let core = self.core();
        let lane = core.lanes.get(core.options.lanes + side);
        lane.map_or(0, |lane| {
            lane.counters.written_bytes.load(Ordering::Relaxed)
        })
    }

    /// Returns, by the name of a gate, the longest time for which work other than a commit has held
    /// something that commits wait for.
    pub fn longest_holds(&self) -> Vec<(&'static str, HoldTime)> {
        let core = self.core();
        let lanes = core.lanes.iter().map(|lane| &lane.pool.holds);
        crate::base::holds::by_gate(&core.holds, lanes)
    }

    /// Flushes everything and stops the log's threads. Other handles and tickets keep working,
    /// without background flushes.
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
            // The threads belong to the parent process.
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
