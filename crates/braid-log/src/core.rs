//! The log's shared state, and how a number becomes durable.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use braid_io::Device;
use crossbeam_utils::CachePadded;

use crate::LogError;
use crate::callbacks::{Action, Callbacks};
use crate::entries::Entries;
use crate::event::Event;
use crate::lane::Lane;
use crate::options::{FlushMode, LogOptions};
use crate::pool::Quota;
use crate::protocol::{Frontier, Protocol};
use crate::space::SpaceState;
use crate::strand::Strand;
use crate::sync::{AtomicBool, AtomicU64, Mutex, fence};

/// What all handles, tickets and threads of a log share.
pub(crate) struct Core {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) options: LogOptions,
    pub(crate) protocol: &'static dyn Protocol,
    /// Identity of the log.
    pub(crate) id: u128,
    pub(crate) incarnation: u32,
    /// The cut this incarnation started from.
    pub(crate) base: u64,
    pub(crate) entries: Entries,
    pub(crate) strands: Box<[CachePadded<Strand>]>,
    pub(crate) lanes: Box<[Lane]>,
    /// Every number up to here is durable and finished. Grows only.
    horizon: CachePadded<AtomicU64>,
    /// The greatest number in an acknowledged flush.
    pub(crate) flushed: CachePadded<AtomicU64>,
    /// An entry in flight holds the horizon back: whoever finishes next computes it anew.
    stalled: CachePadded<AtomicBool>,
    /// Notified when the horizon grows, for those whose own flush is long done.
    pub(crate) stall: Event,
    pub(crate) callbacks: Callbacks,
    poisoned: AtomicBool,
    poison: OnceLock<Arc<str>>,
    pub(crate) quota: Quota,
    pub(crate) space: SpaceState,
    /// Wakes the thread that prepares segments.
    pub(crate) preparer: Event,
    pub(crate) stopping: AtomicBool,
    /// Held by the one who quiesces.
    pub(crate) quiescing: Mutex<()>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("options", &self.options)
            .field("incarnation", &self.incarnation)
            .field("horizon", &self.horizon())
            .finish_non_exhaustive()
    }
}

/// What a [`Core`] starts from.
pub(crate) struct CoreParts {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) options: LogOptions,
    pub(crate) id: u128,
    pub(crate) incarnation: u32,
    pub(crate) base: u64,
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
            base,
            lanes,
            quota,
        } = parts;
        let strands = (0..options.strands)
            .map(|index| {
                let lane = index % options.lanes;
                CachePadded::new(Strand::new(&*device, lane, options.slot_bytes, 1))
            })
            .collect();
        let core = Self {
            protocol: crate::protocol::of(options.protocol),
            id,
            incarnation,
            base,
            entries: Entries::new(base),
            strands,
            lanes,
            horizon: CachePadded::new(AtomicU64::new(base)),
            flushed: CachePadded::new(AtomicU64::new(base)),
            stalled: CachePadded::new(AtomicBool::new(false)),
            stall: Event::default(),
            callbacks: Callbacks::new(options.strands),
            poisoned: AtomicBool::new(false),
            poison: OnceLock::new(),
            quota,
            space: SpaceState::new(&options),
            preparer: Event::default(),
            stopping: AtomicBool::new(false),
            quiescing: Mutex::new(()),
            device,
            options,
        };
        core.lanes.iter().for_each(|lane| core.refresh_space(lane));
        core
    }

    /// Every number up to here is durable and finished.
    pub(crate) fn horizon(&self) -> u64 {
        // SeqCst: waiters announce themselves before this look, see `advance`.
        self.horizon.load(Ordering::SeqCst)
    }

    /// The outcome for a number, if it is known.
    pub(crate) fn outcome(&self, number: u64) -> Option<Result<(), LogError>> {
        // The poison first: if it is unset, nothing that failed was acknowledged before the look at the
        // horizon. A number may well be durable though the log is poisoned.
        let poison = self.poison();
        if self.horizon() >= number {
            return Some(Ok(()));
        }
        poison.map(Err)
    }

    /// The error of a poisoned log.
    pub(crate) fn poison(&self) -> Option<LogError> {
        // SeqCst: pairs with `set_poison`, as the condition of every sleeper.
        if !self.poisoned.load(Ordering::SeqCst) {
            return None;
        }
        self.poison.get().map(|cause| LogError::Poisoned {
            cause: cause.clone(),
        })
    }

    /// I8: stops the log after a failed write. Everybody who waits learns the cause.
    pub(crate) fn set_poison(&self, cause: &str) {
        // The first cause counts.
        let _ = self.poison.set(cause.into());
        // SeqCst: see `poison`.
        self.poisoned.store(true, Ordering::SeqCst);
        for lane in &self.lanes {
            lane.groups.finish_all();
            lane.space.notify();
        }
        self.stall.notify();
        if let Some(error) = self.poison() {
            self.callbacks.run(self.horizon(), &Ok(()));
            self.callbacks.run(u64::MAX, &Err(error));
        }
    }

    fn frontier(&self) -> Frontier {
        // The order matters, see `Entries` and `Protocol::horizon`: what is drawn after the first look is
        // greater; what left its entry before the second is in a strand's buffer by the third.
        let drawn = self.entries.last_number();
        let entries = self.entries.oldest();
        let strands = self
            .strands
            .iter()
            .map(|strand| strand.oldest_unflushed())
            .min();
        Frontier {
            drawn,
            entries,
            strands: strands.unwrap_or(u64::MAX),
        }
    }

    /// Computes the horizon anew and notifies those who waited for it.
    pub(crate) fn publish(&self) {
        let frontier = self.frontier();
        self.advance(self.protocol.horizon(&frontier));
        // Acquire: any value the leader that called us stored is seen, it was this thread.
        if frontier.entries <= self.flushed.load(Ordering::Acquire) {
            // SeqCst: pairs with `left_entry`. Either the entry sees the flag when it leaves, or we see it
            // gone in the second look.
            self.stalled.store(true, Ordering::SeqCst);
            let frontier = self.frontier();
            self.advance(self.protocol.horizon(&frontier));
        }
    }

    fn advance(&self, horizon: u64) {
        // I8: nothing is acknowledged after a failure.
        if self.poison().is_some() {
            return;
        }
        // SeqCst: before the looks at who waits, see `horizon`.
        let before = self.horizon.fetch_max(horizon, Ordering::SeqCst);
        if horizon > before {
            self.stall.notify();
            self.callbacks.run(horizon, &Ok(()));
        }
    }

    /// To be called after an entry has left. Usually one look at a flag.
    pub(crate) fn left_entry(&self, lane: usize) {
        // SeqCst: pairs with `publish`.
        if self.stalled.load(Ordering::SeqCst) {
            self.unstall(lane);
        }
    }

    #[cold]
    fn unstall(&self, lane: usize) {
        if self.stalled.swap(false, Ordering::SeqCst) {
            self.publish();
            // What others wait for may lie in our buffer, and we may not be about to wait.
            match self.options.flush_mode {
                FlushMode::Background => self.request_flush(&self.lanes[lane]),
                FlushMode::Callers => {
                    self.lead(&self.lanes[lane]);
                }
            }
        }
    }

    /// Registers what to do once `number` is durable.
    pub(crate) fn register(&self, lane: usize, shard: usize, number: u64, action: Action) {
        self.callbacks.add(shard, number, action);
        match self.outcome(number) {
            None => self.request_flush_everywhere(lane),
            Some(Ok(())) => self.callbacks.run(self.horizon(), &Ok(())),
            Some(Err(error)) => self.callbacks.run(u64::MAX, &Err(error)),
        }
    }

    /// Asks for a flush without waiting for it. To be called after the append.
    pub(crate) fn request_flush(&self, lane: &Lane) {
        if self.options.flush_mode == FlushMode::Callers {
            return;
        }
        // SeqCst fence: our append comes before the look at `wanted`. Whoever clears it looks for unflushed
        // bytes afterwards, so if we find it set, ours are seen.
        fence(Ordering::SeqCst);
        if lane.wanted.load(Ordering::Relaxed) || lane.wanted.swap(true, Ordering::SeqCst) {
            return;
        }
        // If a flush is under way, its leader sees `wanted` when it gives the permit back.
        if !lane.is_flushing() {
            lane.flusher.notify();
        }
    }

    /// Like [`Core::request_flush`], for what the horizon waits for in other lanes too.
    pub(crate) fn request_flush_everywhere(&self, own: usize) {
        for lane in &self.lanes {
            if lane.index == own || self.is_dirty(lane) {
                self.request_flush(lane);
            }
        }
    }

    /// Blocks until `number` is durable, flushing if nobody else does. `group` is the flush group of the
    /// lane that takes the number's bytes, or 0 if unknown.
    pub(crate) fn wait(&self, lane: usize, group: u64, number: u64) -> Result<(), LogError> {
        let lane = &self.lanes[lane];
        loop {
            if let Some(outcome) = self.outcome(number) {
                return outcome;
            }
            if self.lead(lane) {
                continue;
            }
            if lane.is_acknowledged(group) {
                self.wait_stalled(number);
                continue;
            }
            let key = lane.groups.listen(group);
            // Announced: whatever changes from here on, or is seen changed here, ends the sleep.
            let settled = lane.is_acknowledged(group) || self.outcome(number).is_some();
            if !settled && !self.may_lead(lane) {
                lane.groups.wait(group, key);
            }
        }
    }

    /// Own bytes are durable (or unknown), but the horizon is behind: flush what others buffered, or
    /// sleep until it moves.
    #[cold]
    fn wait_stalled(&self, number: u64) {
        let listener = self.stall.listen();
        if self.outcome(number).is_some() {
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

    /// Waits until a strand may have buffer space again, flushing if nobody else does. `false` if the log
    /// is poisoned.
    #[cold]
    pub(crate) fn wait_for_buffer(&self, strand: usize, retry: &mut dyn FnMut() -> bool) -> bool {
        let lane = &self.lanes[self.strands[strand].lane];
        crate::lane::LaneCounters::add(&lane.counters.buffer_waits, 1);
        loop {
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
        }
    }

    /// Whether a lane has bytes that no flush has taken.
    pub(crate) fn is_dirty(&self, lane: &Lane) -> bool {
        lane.strands().any(|strand| self.strands[strand].is_dirty())
    }

    /// Whether [`Core::lead`] might do something.
    pub(crate) fn may_lead(&self, lane: &Lane) -> bool {
        lane.may_acquire() && self.is_dirty(lane) && self.poison().is_none()
    }
}
