//! How a thread asks for a flush, and waits for one.

use std::sync::atomic::Ordering;

use braid_rt::{SEQUENCE_NUMBER, excused};

use crate::LogError;
use crate::base::callbacks::Action;
use crate::base::numbers::{GroupNo, LaneId, SeqNo, StrandId};
use crate::base::sync::{fence, spin_loop};
use crate::buffer::strand::Strand;
use crate::flush::core::{Core, WaitTarget};
use crate::flush::lane::{Lane, LaneCounters};
use crate::options::FlushMode;

/// How often a thread looks for the end of a flush to persistent memory before it lets another
/// thread run. A pause of the processor takes about 50 ns.
const SPINS: u32 = 64;

/// How often it does so before it sleeps: together as long as it takes to sleep and to be woken.
const ROUNDS: u32 = 8;

impl Core {
    /// Registers an action that runs once a target is durable.
    pub(crate) fn register(&self, strand: StrandId, target: WaitTarget, action: Action) {
        // Actions that wait for everything have their own shard, since their targets are reached
        // later.
        let shard = if target.group == GroupNo::NONE {
            self.strands.len()
        } else {
            strand.get()
        };
        self.callbacks.add(shard, target.seqno, action);
        self.await_commits(target.seqno);
        match self.outcome(target) {
            None => self.request_flush_everywhere(target.lane),
            Some(Ok(())) => self.run_callbacks(),
            Some(Err(error)) => self.callbacks.run(SeqNo::MAX, &Err(error)),
        }
    }

    /// Requests a flush without waiting for it. Must be called after the append.
    #[inline]
    pub(crate) fn request_flush(&self, lane: &Lane) {
        if self.wants_flusher(lane) {
            lane.flusher.notify();
        }
    }

    /// Requests a flush. Returns whether the flusher must be notified, or the caller flush.
    #[inline]
    fn wants_flusher(&self, lane: &Lane) -> bool {
        if self.options.flush_mode == FlushMode::Callers {
            return false;
        }
        // SeqCst fence: this append comes before the load of `wanted`. A thread that clears
        // `wanted` checks for unflushed bytes afterwards, so if this thread finds it set, its bytes
        // are seen.
        fence(Ordering::SeqCst);
        if lane.wanted.load(Ordering::Relaxed) || lane.wanted.swap(true, Ordering::SeqCst) {
            return false;
        }
        // If a flush is in flight, its leader sees `wanted` when it releases the permit.
        !lane.is_flushing()
    }

    /// Requests a flush for a commit that has left its slot. Flushes if that takes less time than to
    /// wake the flusher; but the flusher, once awake, takes many commits at a time.
    #[inline]
    fn request_or_lead(&self, lane: &Lane) {
        if !self.wants_flusher(lane) {
            return;
        }
        if self.flushes_at_once && lane.note_busy(braid_rt::now()) {
            let led = self.lead(lane);
            if led || braid_rt::mutant!("forget_a_refused_flush") {
                return;
            }
        }
        // Also after a flush of another thread, which may have begun before the request: only the
        // flusher withdraws a request without a flush.
        lane.flusher.notify();
    }

    /// Requests a flush of all lanes that have unflushed bytes.
    pub(crate) fn request_flush_of_dirty(&self) {
        let dirty = self.lanes.iter().filter(|lane| self.is_dirty(lane));
        dirty.for_each(|lane| self.request_flush(lane));
    }

    /// Requests a flush for an asynchronous commit; with groups, flushes if the commit fills its
    /// group.
    #[inline]
    pub(crate) fn request_flush_or_group(&self, strand: &Strand) {
        let lane = &self.lanes[strand.lane];
        match self.options.group_size {
            0 => self.request_or_lead(lane),
            size => {
                // Relaxed: an error of a few commits only makes the group that much larger or
                // smaller.
                if strand.in_group.fetch_add(1, Ordering::Relaxed) + 1 >= size {
                    strand.in_group.store(0, Ordering::Relaxed);
                    if !self.lead(lane) {
                        self.request_flush(lane);
                    }
                }
            }
        }
    }

    /// Like [`Core::request_flush`], also for other lanes whose bytes hold the durable seqno back.
    pub(crate) fn request_flush_everywhere(&self, own: LaneId) {
        for lane in &self.lanes {
            if lane.index == own || self.is_dirty(lane) {
                self.request_flush(lane);
            }
        }
    }

    /// Blocks until a target is durable, flushing if no other thread does.
    pub(crate) fn wait(&self, target: WaitTarget) -> Result<(), LogError> {
        let lane = &self.lanes[target.lane];
        let group = target.group;
        loop {
            if let Some(outcome) = self.outcome(target) {
                return outcome;
            }
            self.check_process()?;
            // Waiters on an in-flight flush do not start another: a second flush does not help
            // them, and would delay them after the first has ended. Threads whose bytes the second
            // flush would take lead it themselves.
            if !lane.is_being_written(group) && self.lead(lane) {
                continue;
            }
            if self.is_memory && self.spin(target) {
                continue;
            }
            if lane.is_acknowledged(group) {
                self.wait_stalled(target);
                continue;
            }
            let key = lane.groups.listen(group);
            // The waiter is announced: a change from here on, or one seen here, ends the sleep.
            let settled = lane.is_acknowledged(group) || self.outcome(target).is_some();
            if !settled && (lane.is_being_written(group) || !self.may_lead(lane)) {
                lane.groups.wait(group, key);
            }
        }
    }

    /// Waits for a flush to persistent memory without sleeping, for a few microseconds: it takes less
    /// time than to sleep and to be woken. Returns whether the outcome is known.
    fn spin(&self, target: WaitTarget) -> bool {
        let rounds = if braid_rt::simulation::is_on() {
            1
        } else {
            ROUNDS
        };
        (0..rounds).any(|round| {
            if round > 0 {
                // The thread that flushes may wait for this processor.
                braid_rt::thread::yield_now();
            }
            (0..SPINS).any(|_| {
                spin_loop();
                self.is_reached(target) || self.is_poisoned()
            })
        })
    }

    /// Waits for other threads' commits: the own bytes are durable (or unknown), but the durable
    /// seqno is smaller. Flushes other threads' buffers, or sleeps until the durable seqno moves.
    #[cold]
    fn wait_stalled(&self, target: WaitTarget) {
        let listener = self.stall.listen();
        // After `listen`: an epoch can end only once the previous one is acknowledged, which may
        // happen from here on.
        if self.options.flush_mode == FlushMode::Callers {
            self.end_epoch();
        }
        if !self.await_commits(target.seqno) && !braid_rt::mutant!("believe_old_bounds") {
            self.publish();
        }
        if self.outcome(target).is_some() {
            return;
        }
        let mut led = false;
        for lane in &self.lanes {
            led |= self.lead(lane);
        }
        if !led && !self.lanes.iter().any(|lane| self.may_lead(lane)) {
            listener.wait();
        }
    }

    /// Waits until a strand may have buffer space again, flushing if no other thread does. Returns
    /// `false` if the log is poisoned.
    #[cold]
    pub(crate) fn wait_for_buffer(
        &self,
        strand: StrandId,
        retry: &mut dyn FnMut() -> bool,
    ) -> bool {
        let lane = &self.lanes[self.strands[strand].lane];
        LaneCounters::add(&lane.counters.buffer_waits, 1);
        let wait = || loop {
            if self.poison().is_some() {
                return false;
            }
            let listener = lane.space.listen();
            if retry() {
                return true;
            }
            if self.lead(lane) || self.may_lead(lane) || self.poison().is_some() {
                continue;
            }
            listener.wait();
        };
        // The caller may have a sequence number. All bytes in the buffers precede its own in the log, so
        // nothing that waits for the caller could be durable before they are.
        excused(SEQUENCE_NUMBER, "the log's buffers are full", wait)
    }

    /// Whether a lane has bytes that no flush has taken.
    pub(crate) fn is_dirty(&self, lane: &Lane) -> bool {
        lane.strands().any(|strand| self.strands[strand].is_dirty())
    }

    /// Whether [`Core::lead`] might flush something.
    pub(crate) fn may_lead(&self, lane: &Lane) -> bool {
        lane.may_acquire() && self.is_dirty(lane) && self.poison().is_none()
    }
}
