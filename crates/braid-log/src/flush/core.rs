//! The log's shared state, and the steps by which a number becomes durable.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use braid_io::Device;
use braid_rt::{Process, RwLock};
use crossbeam_utils::CachePadded;

use crate::LogError;
use crate::base::callbacks::Callbacks;
use crate::base::event::Event;
use crate::base::holds::Holds;
use crate::base::numbers::{AtomicSeqNo, GroupNo, LaneId, SeqNo, StrandId};
use crate::base::sync::{AtomicBool, Backoff, Counter, Mutex};
use crate::base::timing::Timing;
use crate::buffer::commit_slots::CommitSlots;
use crate::buffer::strand::Strand;
use crate::flush::backpressure::Backpressure;
use crate::flush::lane::{FlushGroup, Lane};
use crate::flush::order;
use crate::flush::pacing::{CommitProgress, Pacer};
use crate::flush::reservation::SpaceState;
use crate::flush::threads::Ticker;
use crate::format::chunk::ChunkSeed;
use crate::format::padding::{flushes_at_once, is_memory};
use crate::options::{FlushMode, LogOptions, PmemCommit};
use crate::protocol::acknowledgement::{Acknowledgement, Order};
use crate::protocol::epoch::Epochs;
use crate::protocol::gsn::{Dependencies, Hardening};
use crate::protocol::{Dependence, Frontier, Protocol};
use crate::segments::quota::Quota;

/// The target of a wait: a sequence number, or the flush group that carries it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitTarget {
    /// The lane whose flush the target needs.
    pub(crate) lane: LaneId,
    /// The flush group of that lane that takes the number's bytes; [`GroupNo::NONE`] if the thread
    /// waits for everything up to the number.
    pub(crate) group: GroupNo,
    pub(crate) seqno: SeqNo,
}

impl WaitTarget {
    /// Everything up to a number.
    pub(crate) fn everything(seqno: SeqNo) -> Self {
        Self {
            lane: LaneId::new(0),
            group: GroupNo::NONE,
            seqno,
        }
    }
}

/// The numbers up to which transactions are acknowledged and visible, and what is needed to raise
/// them. They grow only. In one cache line, since a thread raises them together.
#[derive(Debug)]
struct Progress {
    /// Every number up to here is durable.
    durable_seqno: AtomicSeqNo,
    /// Every number up to here is durable and finished, as far as any thread has observed.
    visible_seqno: AtomicSeqNo,
    /// The greatest number in a durable flush that a pending commit held back.
    flushed: AtomicSeqNo,
    /// Highest sequence number awaited by a thread whose own bytes are already durable.
    awaited: AtomicSeqNo,
}

/// See [`Log::before_begin`](crate::Log::before_begin).
pub(crate) type BeforeBegin = Box<dyn Fn() -> Result<(), LogError> + Send>;

/// The state that all handles, tickets and threads of a log share.
pub(crate) struct Core {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) options: LogOptions,
    pub(crate) protocol: &'static dyn Protocol,
    /// Whether flushes make no system call, see [`is_memory`].
    pub(crate) is_memory: bool,
    /// Whether flushes take less time than to wake the flusher, see [`flushes_at_once`].
    pub(crate) flushes_at_once: bool,
    /// The order in which a flush becomes durable.
    pub(crate) pmem_commit: PmemCommit,
    pub(crate) timing: Timing,
    /// The process that opened the log, and runs its threads.
    process: Process,
    /// Identity of the log.
    pub(crate) id: u128,
    /// Begins the checksum of each chunk.
    pub(crate) chunk_seed: ChunkSeed,
    pub(crate) incarnation: u32,
    /// Whether the incarnation has begun; see [`Core::begin`].
    pub(crate) begun: AtomicBool,
    /// Held while the incarnation begins. Holds the callback that must run first, until it has run.
    pub(crate) beginning: Mutex<Option<BeforeBegin>>,
    /// The cut this incarnation started from.
    pub(crate) base: SeqNo,
    /// The part kept of the previous incarnation, see [`SegmentHeader::kept`].
    ///
    /// [`SegmentHeader::kept`]: crate::format::segment::SegmentHeader::kept
    pub(crate) kept: Vec<u64>,
    pub(crate) commit_slots: CommitSlots,
    /// Number of the newest stream of this incarnation.
    pub(crate) streams: Counter,
    pub(crate) strands: Box<[CachePadded<Strand>]>,
    pub(crate) lanes: Box<[Lane]>,
    progress: CachePadded<Progress>,
    /// Further acknowledgement state that the protocol requires.
    pub(crate) acknowledgement: Acknowledgement<Box<FlushGroup>>,
    /// Whether a pending commit holds the durable seqno back: the next commit that finishes
    /// recomputes it.
    stalled: CachePadded<AtomicBool>,
    /// Notified when the durable seqno grows, for waiters whose own flush has already ended.
    pub(crate) stall: Event,
    /// See [`Log::announce_durable`](crate::Log::announce_durable).
    pub(crate) announcer: OnceLock<Box<dyn Announcer>>,
    pub(crate) callbacks: Callbacks,
    /// The least number of a transaction that was logged and not applied completely.
    unapplied: AtomicSeqNo,
    poisoned: AtomicBool,
    poison: OnceLock<Arc<str>>,
    pub(crate) quota: Quota,
    pub(crate) space: SpaceState,
    pub(crate) backpressure: Backpressure,
    /// Pauses background work, of the log and of its owner.
    pub(crate) pacer: Pacer,
    /// Wakes the thread that prepares segments.
    pub(crate) preparer: Event,
    pub(crate) ticker: Ticker,
    pub(crate) stopping: AtomicBool,
    /// Held by the thread that quiesces the log.
    pub(crate) quiescing: Mutex<()>,
    /// Held shared by large commits from before their first byte is written until they are
    /// finished, and exclusively by a thread that quiesces the log: it waits for large commits while
    /// small commits continue.
    pub(crate) large_commits: RwLock<()>,
    pub(crate) holds: Holds,
}

/// Learns of each new durable seqno; see [`Log::announce_durable`](crate::Log::announce_durable). The
/// threads that flush call it, so it must be quick.
pub trait Announcer: Send + Sync {
    /// Called before everything up to `durable` is acknowledged, by a thread that has read
    /// [`Log::last_seqno`](crate::Log::last_seqno) before, which was at least `durable`.
    ///
    /// # Errors
    /// If nothing may be acknowledged any more. Poisons the log (I8).
    fn announce(&self, durable: SeqNo) -> std::io::Result<()>;

    /// Whether nothing above the durable seqno may be acknowledged, because no thread announces it
    /// later. Otherwise `gsn` acknowledges transactions by their lanes, after a call of
    /// [`Announcer::announce`] with a smaller number.
    fn needs_order(&self) -> bool {
        false
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("options", &self.options)
            .field("incarnation", &self.incarnation)
            .field("durable_seqno", &self.durable_seqno())
            .finish_non_exhaustive()
    }
}

/// The parts from which a [`Core`] is built.
pub(crate) struct CoreParts {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) options: LogOptions,
    pub(crate) id: u128,
    pub(crate) incarnation: u32,
    pub(crate) begun: bool,
    pub(crate) base: SeqNo,
    pub(crate) kept: Vec<u64>,
    pub(crate) lanes: Box<[Lane]>,
    pub(crate) quota: Quota,
}

impl Core {
    pub(crate) fn new(parts: CoreParts) -> Self {
        let CoreParts {
            device,
            options,
            id,
            incarnation,
            begun,
            base,
            kept,
            lanes,
            quota,
        } = parts;
        let protocol = crate::protocol::of(options.protocol);
        let is_memory = is_memory(&*device);
        let timing = Timing::of(is_memory);
        let order = protocol.order();
        let numbered_lanes = (order == Order::Lanes).then_some(options.all_lanes());
        let commit_slots = CommitSlots::new(base, options.all_strands(), numbered_lanes);
        let strands = (0..options.all_strands())
            .map(|index| {
                let lane = options.lane_of(index);
                let used = lanes[lane.get()].log_space.buffers(&options);
                let unflushed = commit_slots.unflushed(StrandId::new(index));
                let (bytes, group) = (options.slot_bytes, GroupNo::new(1));
                let node = options.node_of(index);
                let strand =
                    Strand::new(&*device, lane, bytes, used, unflushed, group, node).timed(timing);
                CachePadded::new(if protocol.consolidates() {
                    strand.consolidating()
                } else {
                    strand
                })
            })
            .collect();
        let core = Self {
            protocol,
            is_memory,
            flushes_at_once: flushes_at_once(&*device),
            pmem_commit: order::of(&*device, options.pmem_commit),
            timing,
            process: Process::current(),
            acknowledgement: Acknowledgement::new(order, options.all_lanes(), base),
            id,
            chunk_seed: ChunkSeed::of(id),
            incarnation,
            begun: AtomicBool::new(begun),
            beginning: Mutex::new(None),
            base,
            kept,
            commit_slots,
            streams: Counter::new(0),
            strands,
            lanes,
            progress: CachePadded::new(Progress {
                durable_seqno: AtomicSeqNo::new(base),
                visible_seqno: AtomicSeqNo::new(base),
                flushed: AtomicSeqNo::new(base),
                awaited: AtomicSeqNo::new(SeqNo::NONE),
            }),
            unapplied: AtomicSeqNo::new(SeqNo::MAX),
            stalled: CachePadded::new(AtomicBool::new(false)),
            stall: Event::default(),
            announcer: OnceLock::new(),
            callbacks: Callbacks::new(options.all_strands() + 1),
            poisoned: AtomicBool::new(false),
            poison: OnceLock::new(),
            quota,
            space: SpaceState::new(&options),
            backpressure: Backpressure::default(),
            pacer: Pacer::new(base),
            preparer: Event::default(),
            ticker: Ticker::default(),
            stopping: AtomicBool::new(false),
            quiescing: Mutex::new(()),
            large_commits: RwLock::new(()),
            holds: Holds::default(),
            device,
            options,
        };
        core.lanes.iter().for_each(|lane| core.refresh_space(lane));
        core
    }

    /// Every number up to here is durable.
    pub(crate) fn durable_seqno(&self) -> SeqNo {
        // SeqCst: waiters announce themselves before this load, see `advance`.
        self.progress.durable_seqno.load(Ordering::SeqCst)
    }

    /// The greatest number that has been acknowledged.
    pub(crate) fn acknowledged(&self) -> SeqNo {
        let hardened = self
            .acknowledgement
            .lanes()
            .map_or(SeqNo::NONE, Hardening::greatest);
        hardened.max(self.durable_seqno())
    }

    /// How far commits are, for the pacer.
    pub(crate) fn commit_progress(&self) -> CommitProgress {
        CommitProgress {
            // First: what is acknowledged later is not outstanding.
            assigned: self.commit_slots.last_seqno(),
            acknowledged: self.acknowledged(),
        }
    }

    /// Every number up to here is durable and finished.
    #[inline]
    pub(crate) fn visible_seqno(&self) -> SeqNo {
        // SeqCst: as Acquire, pairs with `raise_visible`.
        let visible = self.progress.visible_seqno.load(Ordering::SeqCst);
        if visible == self.durable_seqno() {
            visible
        } else {
            self.raise_visible()
        }
    }

    /// Recomputes the number up to which everything is durable and finished.
    #[cold]
    pub(crate) fn raise_visible(&self) -> SeqNo {
        // The counter first, see `CommitSlots`.
        let assigned = self.commit_slots.last_seqno();
        let pending = self.commit_slots.pending();
        self.publish_visible(assigned.min(pending.unfinished.prev()))
    }

    /// Publishes that every number up to `finished` is finished, unless its writes could not be
    /// applied. Returns the number up to which everything is durable and finished.
    fn publish_visible(&self, finished: SeqNo) -> SeqNo {
        // SeqCst, after the commit slots: a transaction that could not be applied stores its number
        // before it releases its slot.
        let applied = finished.min(self.unapplied.load(Ordering::SeqCst).prev());
        let visible = applied.min(self.durable_seqno());
        let before = self
            .progress
            .visible_seqno
            .fetch_max(visible, Ordering::SeqCst);
        before.max(visible)
    }

    /// Whether a number is that of a transaction which could not be applied, or a greater one: it
    /// never becomes visible.
    pub(crate) fn stays_invisible(&self, seqno: SeqNo) -> bool {
        seqno >= self.unapplied.load(Ordering::SeqCst)
    }

    /// Records that a logged transaction with this first number is not applied completely. Must be
    /// called before it releases its commit slot.
    pub(crate) fn note_unapplied(&self, first: SeqNo) {
        if !braid_rt::mutant!("show_failed_transactions") {
            self.unapplied.fetch_min(first, Ordering::SeqCst);
        }
    }

    /// Whether a wait target is acknowledged.
    pub(crate) fn is_reached(&self, target: WaitTarget) -> bool {
        match self.acknowledgement.lanes() {
            Some(hardening) if target.group != GroupNo::NONE => {
                hardening.hardened(target.lane) >= target.seqno
            }
            _ => self.durable_seqno() >= target.seqno,
        }
    }

    /// The outcome of a wait target, if it is known.
    pub(crate) fn outcome(&self, target: WaitTarget) -> Option<Result<(), LogError>> {
        // The poison first: if it is unset, no failed write was acknowledged before the load of the
        // durable seqno. A number may be durable although the log is poisoned.
        let poison = self.poison();
        if self.is_reached(target) {
            return Some(Ok(()));
        }
        poison.map(Err)
    }

    /// Checks that this process opened the log: a child made by `fork` has none of the log's
    /// threads, so it must never wait.
    ///
    /// # Errors
    /// [`LogError::Forked`].
    pub(crate) fn check_process(&self) -> Result<(), LogError> {
        if self.process.is_current() {
            Ok(())
        } else {
            Err(LogError::Forked)
        }
    }

    /// The error of a poisoned log.
    #[inline]
    pub(crate) fn poison(&self) -> Option<LogError> {
        // SeqCst: pairs with `set_poison`, as the condition of every sleeper.
        if !self.poisoned.load(Ordering::SeqCst) {
            return None;
        }
        self.poison_error()
    }

    #[cold]
    fn poison_error(&self) -> Option<LogError> {
        self.poison.get().map(|cause| LogError::Poisoned {
            cause: cause.clone(),
        })
    }

    /// Whether the log has stopped.
    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        // SeqCst: see `poison`.
        self.poisoned.load(Ordering::SeqCst)
    }

    /// I8: stops the log after a failed write, or a failure that leaves the state in memory in
    /// doubt. Every waiter gets the cause.
    pub(crate) fn set_poison(&self, cause: &str) {
        if braid_rt::mutant!("continue_after_failure") {
            return;
        }
        braid_rt::coverage_point("log: poisoned");
        // The first cause counts.
        let _ = self.poison.set(cause.into());
        // SeqCst: see `poison`.
        self.poisoned.store(true, Ordering::SeqCst);
        for lane in &self.lanes {
            lane.groups.finish_all();
            lane.space.notify();
        }
        self.stall.notify();
        self.backpressure.wake();
        if let Some(error) = self.poison() {
            self.run_callbacks();
            self.callbacks.run(SeqNo::MAX, &Err(error.clone()));
            for strand in &self.strands {
                let due: Vec<_> = strand
                    .lock()
                    .take_numbered(GroupNo::new(u64::MAX))
                    .collect();
                due.into_iter()
                    .for_each(|action| action.run(&Err(error.clone())));
            }
        }
    }

    /// Computes the number up to which everything is durable; with hardening, also that of each
    /// lane. Also returns the number up to which everything is finished.
    fn frontier(&self) -> (Frontier, Vec<SeqNo>, SeqNo) {
        // The order matters, see `CommitSlots` and `Protocol::durable_seqno`: a number assigned
        // after the first load is greater; a commit that was logged before the second is in a
        // strand's buffer by the third. The epoch's end is loaded before all of these, so an epoch
        // that ends later counts later.
        let epoch_end = self.epoch_end();
        let assigned = self.commit_slots.last_seqno();
        let pending = self.commit_slots.pending();
        let logged = assigned.min(pending.unlogged.prev());
        let mut lanes = Vec::new();
        let mut strands = SeqNo::MAX;
        for lane in &self.lanes {
            let oldest = lane
                .strands()
                .map(|strand| self.strands[strand].oldest_unflushed())
                .min()
                .unwrap_or(SeqNo::MAX);
            strands = strands.min(oldest);
            if self.acknowledgement.lanes().is_some() {
                lanes.push(logged.min(oldest.prev()));
            }
        }
        let frontier = Frontier {
            assigned,
            commit_slots: pending.unlogged,
            strands,
            epoch_end,
        };
        (frontier, lanes, assigned.min(pending.unfinished.prev()))
    }

    /// Recomputes what is acknowledged, and notifies the waiters.
    ///
    /// A pending commit must also call this before it waits for other commits: before its
    /// assignment, its slot held a smaller number than now, and the durable seqno computed from
    /// that may be too small for the other commits' waiters.
    pub(crate) fn publish(&self) {
        self.publish_flush(SeqNo::NONE);
    }

    /// As [`Core::publish`], after a flush whose greatest number is `last` became durable and is to be
    /// acknowledged.
    pub(crate) fn publish_flush(&self, last: SeqNo) {
        if self.publish_quietly(last) {
            self.run_callbacks();
        }
    }

    /// Like [`Core::publish_flush`], without running callbacks. Returns whether there may be any to
    /// run.
    fn publish_quietly(&self, last: SeqNo) -> bool {
        let (commit_slots, mut rose) = self.publish_frontier();
        if commit_slots <= last && !braid_rt::mutant!("forget_flushes_held_back") {
            // Release: pairs with the load below. Only now, because few flushes are held back, and
            // all threads change this line.
            self.progress.flushed.fetch_max(last, Ordering::Release);
        }
        // Acquire: pairs with the flushes that a pending commit holds back.
        let flushed = self.progress.flushed.load(Ordering::Acquire);
        // SeqCst: pairs with `await_commits`.
        let awaited = self.progress.awaited.load(Ordering::SeqCst);
        // With epochs, a thread that waits for a number waits for the end of the number's epoch,
        // and so for later commits.
        let needed = flushed.max(awaited).max(self.epoch_end());
        if commit_slots <= needed && !braid_rt::mutant!("skip_second_look") {
            // SeqCst: pairs with `left_slot`. Either the commit sees the flag when it leaves, or
            // the second load finds the commit gone.
            self.stalled.store(true, Ordering::SeqCst);
            rose |= self.publish_frontier().1;
        }
        rose
    }

    /// Announces a waiter for everything up to `seqno`. Pending commits with smaller numbers may
    /// not plan to flush (they asked for no durability), so they must flush when they leave. Must
    /// be called before the check for unflushed bytes. Returns whether there are such commits.
    pub(crate) fn await_commits(&self, seqno: SeqNo) -> bool {
        // SeqCst on all: either this thread sees the commit, or the commit's bytes are in the
        // buffer by the next load, or the commit sees the flag when it leaves. A thread that clears
        // the flag checks whether it is still needed.
        if braid_rt::mutant!("sleep_unannounced") {
            return true;
        }
        self.progress.awaited.fetch_max(seqno, Ordering::SeqCst);
        let any = self.commit_slots.pending().unlogged <= seqno;
        if any {
            self.stalled.store(true, Ordering::SeqCst);
        }
        any
    }

    /// Whether a thread, or a flush that pending commits held back, may wait for a number.
    pub(crate) fn is_awaited(&self, seqno: SeqNo) -> bool {
        // SeqCst and Acquire: pair with `await_commits` and `publish_quietly`. A thread that
        // announces itself later finds the bytes in the buffers.
        let awaited = self.progress.awaited.load(Ordering::SeqCst);
        awaited.max(self.progress.flushed.load(Ordering::Acquire)) >= seqno
    }

    /// Publishes the durable seqno and the hardened numbers from one frontier: `publish` must know
    /// what held either of them back. Returns the least number of a commit that is not logged, and
    /// whether anything rose.
    fn publish_frontier(&self) -> (SeqNo, bool) {
        let (frontier, mut lanes, finished) = self.frontier();
        // I8: nothing is acknowledged after a failure.
        if self.poison().is_some() {
            return (frontier.commit_slots, false);
        }
        let hardening = self.acknowledgement.lanes();
        let durable_seqno = self.protocol.durable_seqno(&frontier);
        // Before anything is acknowledged, which lanes may do ahead of the durable seqno.
        if let Some(announcer) = self.announcer.get() {
            let may_run_ahead = hardening.is_some() && !braid_rt::mutant!("harden_unannounced");
            if may_run_ahead || durable_seqno > self.durable_seqno() {
                let announced = announcer.announce(durable_seqno);
                if let Err(error) = announced
                    && !braid_rt::mutant!("acknowledge_after_a_failed_withdrawal")
                {
                    let cause =
                        format!("cannot announce a commit to readers in other processes: {error}");
                    self.set_poison(&cause);
                    return (frontier.commit_slots, false);
                }
            }
            if announcer.needs_order() {
                (lanes.iter_mut()).for_each(|lane| *lane = durable_seqno.min(*lane));
            }
        }
        let hardened = hardening.is_some_and(|hardening| hardening.advance(&lanes));
        // SeqCst: before the loads that find waiters, see `durable_seqno`.
        let before = self
            .progress
            .durable_seqno
            .fetch_max(durable_seqno, Ordering::SeqCst);
        let rose = durable_seqno > before;
        if rose {
            self.publish_visible(finished);
        }
        if hardened || rose {
            self.stall.notify();
        }
        (frontier.commit_slots, hardened || rose)
    }

    /// The last number of the newest epoch that has ended; [`SeqNo::NONE`] if there are no
    /// epochs.
    pub(crate) fn epoch_end(&self) -> SeqNo {
        self.acknowledgement
            .epochs()
            .map_or(SeqNo::NONE, Epochs::end)
    }

    /// Ends the epoch with the newest number assigned so far, if transactions are acknowledged by
    /// epochs.
    pub(crate) fn end_epoch(&self) {
        let Some(epochs) = self.acknowledgement.epochs() else {
            return;
        };
        if epochs.end_with(self.commit_slots.last_seqno(), self.durable_seqno()) {
            self.publish();
            self.request_flush_of_dirty();
        }
    }

    /// Runs the callbacks of all acknowledged transactions.
    pub(crate) fn run_callbacks(&self) {
        let all = self.strands.len();
        match self.acknowledgement.lanes() {
            None => self.callbacks.run(self.durable_seqno(), &Ok(())),
            Some(hardening) => {
                for (shard, strand) in self.strands.iter().enumerate() {
                    let hardened = hardening.hardened(strand.lane);
                    self.callbacks.run_shard(shard, hardened, &Ok(()));
                }
                self.callbacks.run_shard(all, self.durable_seqno(), &Ok(()));
            }
        }
    }

    /// Handles a transaction's dependencies before its append; see
    /// [`PendingCommit::depends_on`](crate::PendingCommit::depends_on). `is_own` says whether a lane
    /// gets a part of the transaction. Returns the dependencies to name in its log record.
    pub(crate) fn depend(
        &self,
        is_own: impl Fn(LaneId) -> bool,
        seqno: SeqNo,
        on: &[SeqNo],
    ) -> Vec<SeqNo> {
        let newest = on.iter().copied().max().unwrap_or(SeqNo::NONE);
        if newest <= self.durable_seqno() {
            return Vec::new();
        }
        match self.protocol.dependence() {
            Dependence::Implied => {}
            // The transaction's own commit reports an error.
            Dependence::Durable => drop(self.wait(WaitTarget::everything(newest))),
            Dependence::Sealed => self.wait_sealed(is_own, newest),
            Dependence::Recorded => {
                let hardening = self.acknowledgement.lanes();
                match hardening.map(|hardening| hardening.depend(seqno, on)) {
                    Some(Dependencies::Named(named)) => return named,
                    Some(Dependencies::Awaited(newest)) => {
                        drop(self.wait(WaitTarget::everything(newest)));
                    }
                    None => {}
                }
            }
        }
        Vec::new()
    }

    /// I14: waits until everything up to `seqno` that lies in lanes which get no part of the
    /// transaction is in flushes that have their numbers. In the transaction's own lanes, it is in no
    /// later flush than the transaction.
    fn wait_sealed(&self, is_own: impl Fn(LaneId) -> bool, seqno: SeqNo) {
        if braid_rt::mutant!("append_before_dependencies") {
            return;
        }
        let mut backoff = Backoff::default();
        for lane in self.lanes.iter().filter(|lane| !is_own(lane.index)) {
            let is_open = || {
                lane.strands()
                    .any(|strand| self.strands[strand].oldest_unsealed() <= seqno)
            };
            while is_open() && self.poison().is_none() {
                if !self.lead(lane) {
                    backoff.wait();
                }
            }
        }
    }

    /// Publishes progress after a pending commit has left its slot. Usually only loads a flag.
    #[inline]
    pub(crate) fn left_slot(&self, lane: LaneId) {
        // SeqCst: pairs with `publish`.
        if self.stalled.load(Ordering::SeqCst) {
            self.unstall(lane);
        }
    }

    #[cold]
    fn unstall(&self, lane: LaneId) {
        if self.stalled.swap(false, Ordering::SeqCst) {
            self.publish();
            self.flush_for_others(lane);
        }
    }

    /// Other threads may wait for bytes in a lane's buffers, and this thread may not wait itself.
    fn flush_for_others(&self, lane: LaneId) {
        match self.options.flush_mode {
            FlushMode::Background if !self.flushes_at_once => {
                self.request_flush(&self.lanes[lane]);
            }
            FlushMode::Background | FlushMode::Callers => {
                self.lead(&self.lanes[lane]);
            }
        }
    }

    /// Publishes progress after a commit was logged that is not finished. Runs no callbacks, which
    /// may wait for a snapshot, and so for this commit. Returns whether
    /// [`Core::catch_up`] must be called once the commit has left its slot.
    #[cold]
    pub(crate) fn logged(&self, lane: LaneId) -> bool {
        if !self.stalled.swap(false, Ordering::SeqCst) {
            return false;
        }
        self.publish_quietly(SeqNo::NONE);
        if self.options.flush_mode == FlushMode::Background {
            self.request_flush(&self.lanes[lane]);
        }
        true
    }

    /// Does what [`Core::logged`] had to leave undone.
    #[cold]
    pub(crate) fn catch_up(&self, lane: LaneId) {
        self.run_callbacks();
        self.flush_for_others(lane);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
