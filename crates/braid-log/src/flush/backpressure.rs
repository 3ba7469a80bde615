//! Backpressure: commits slow down while the log fills up faster than a checkpoint frees it, and
//! wait for a checkpoint once the log is full.
//!
//! The owner of the log writes the checkpoints. It announces when one begins, how far it is, and
//! when it has ended ([`CheckpointRun`]). If it has a thread that writes checkpoints, commits request
//! them ([`Checkpointer`]); otherwise, commits wait only for a checkpoint that is already running.
//!
//! All of this happens while log space is reserved: before a commit has a commit slot or a sequence
//! number, so neither another commit nor the checkpoint waits for it. A commit is refused only if no
//! checkpoint runs or can run, or if complete checkpoints that began after the commit asked have
//! released no log of its lane.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use braid_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use braid_rt::{Condvar, Mutex};

use crate::LogError;
use crate::flush::core::Core;
use crate::flush::lane::Lane;
use crate::flush::reservation::Reservation;

/// Fill level from which on a running checkpoint slows commits down.
const SLOW_FROM: f64 = 0.5;

/// Part of the room left at the beginning of a checkpoint by which the log may run ahead of the
/// checkpoint before the delay is greatest.
const AHEAD_MAX: f64 = 0.5;

/// The least of these parts, as a fill level, so that the delay grows with the fill level even if
/// the log is nearly full when the checkpoint begins.
const SPAN_MIN: f64 = 1.0 / 16.0;

/// Longest delay of one commit.
const DELAY_MAX: Duration = Duration::from_millis(5);

/// Shortest delay. Shorter ones are added up, and the commit that reaches this sum waits for all:
/// the system's timers are not more precise.
const DELAY_MIN: Duration = Duration::from_micros(100);

/// Complete checkpoints that release nothing of the lane after which a commit is refused. The first
/// one may begin before the archive has everything that it covers, and so release nothing.
const IN_VAIN_MAX: u64 = 2;

/// Writes checkpoints for a log; see [`Log::wait_for_checkpoints`](crate::Log::wait_for_checkpoints).
pub trait Checkpointer: Send + Sync {
    /// Requests a checkpoint, without waiting. Returns `false` if none can run, or the next one
    /// would release nothing.
    fn request(&self) -> bool;

    /// Called when more than half of the log's limit is used, no checkpoint runs, and none was
    /// announced since log was last released. The threads that flush call it, so it must be quick,
    /// and it must not drop the log.
    fn half_full(&self);

    /// Describes what keeps log that recovery does not need; `None` if nothing does.
    fn log_kept_for(&self) -> Option<String>;
}

/// Checkpoints of the owner, and the commits that wait for them.
#[derive(Default)]
pub(crate) struct Backpressure {
    checkpointer: OnceLock<Box<dyn Checkpointer>>,
    state: Mutex<State>,
    /// Notified when a checkpoint has ended, and when waiting is no longer possible.
    changed: Condvar,
    /// Held by the first of the commits that wait. Only its reservation is counted while it waits,
    /// so that later commits do not use up the room that it needs.
    first: Mutex<()>,
    /// Whether a checkpoint is running.
    is_running: AtomicBool,
    /// Progress of the running checkpoint, from 0 to 1, as the bits of an `f64`.
    progress: AtomicU64,
    /// Whether [`Checkpointer::half_full`] was called since log was released.
    is_announced: AtomicBool,
    /// Fill level when the running checkpoint began, as the bits of an `f64`.
    filled_before: AtomicU64,
    /// Delays that no commit has waited for yet, in nanoseconds.
    debt: AtomicU64,
    waiting: AtomicU64,
    waits: AtomicU64,
    delayed: AtomicU64,
    delay_nanos: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Checkpoints that have begun.
    begun: u64,
    /// Checkpoints that have ended, published or not.
    ended: u64,
    /// Whether commits no longer wait.
    is_closed: bool,
}

impl fmt::Debug for Backpressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backpressure")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// Counters of [`Backpressure`].
pub(crate) struct Delays {
    pub(crate) waits: u64,
    pub(crate) delayed: u64,
    pub(crate) time: Duration,
}

impl Backpressure {
    pub(crate) fn set_checkpointer(&self, checkpointer: Box<dyn Checkpointer>) {
        let _ = self.checkpointer.set(checkpointer);
    }

    /// Whether a commit waits for a checkpoint.
    pub(crate) fn has_waiting_commits(&self) -> bool {
        // Relaxed: a hint.
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Wakes all waiting commits after a change that ends their wait other than a checkpoint.
    pub(crate) fn wake(&self) {
        // Under the lock: a commit that is about to wait has not seen the change yet, or waits.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// Makes commits that wait, or would wait, fail with [`LogError::Closed`].
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    pub(crate) fn delays(&self) -> Delays {
        // Relaxed: statistics.
        Delays {
            waits: self.waits.load(Ordering::Relaxed),
            delayed: self.delayed.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.delay_nanos.load(Ordering::Relaxed)),
        }
    }

    fn count_time(&self, since: Instant) {
        let time = braid_rt::now().saturating_duration_since(since);
        // Relaxed: a statistic.
        self.delay_nanos.fetch_add(nanos(time), Ordering::Relaxed);
    }

    fn begin(&self, fill: f64) {
        self.filled_before.store(fill.to_bits(), Ordering::Relaxed);
        self.progress.store(0f64.to_bits(), Ordering::Relaxed);
        self.state.lock().begun += 1;
        // SeqCst: the flag `short` is derived from it, see `refresh_space`.
        self.is_running.store(true, Ordering::SeqCst);
    }

    fn end(&self) {
        self.is_running.store(false, Ordering::SeqCst);
        self.state.lock().ended += 1;
        if !braid_rt::mutant!("forget_log_space_waiters") {
            self.changed.notify_all();
        }
    }

    /// Lets the next flush announce a log that is more than half full. Called after log was released.
    pub(crate) fn note_release(&self) {
        // Release: pairs with the swap in `announce_fill`.
        self.is_announced.store(false, Ordering::Release);
    }

    /// The delay of each commit at a fill level. The log may fill up in proportion to the progress
    /// of the checkpoint; the further it is ahead of that, the longer the delay.
    fn delay(&self, fill: f64) -> Duration {
        let before = f64::from_bits(self.filled_before.load(Ordering::Relaxed));
        let progress = f64::from_bits(self.progress.load(Ordering::Relaxed));
        let from = before.clamp(SLOW_FROM, 1.0);
        let allowed = from + (1.0 - from) * progress;
        let span = (AHEAD_MAX * (1.0 - from)).max(SPAN_MIN);
        let ahead = ((fill - allowed) / span).clamp(0.0, 1.0);
        DELAY_MAX.mul_f64(ahead * ahead)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A checkpoint of the log's owner, from before its position is taken until the log before it is
/// released. Dropping it ends it, and wakes the commits that wait for it.
#[derive(Debug)]
pub struct CheckpointRun<'a> {
    core: &'a Core,
}

impl<'a> CheckpointRun<'a> {
    pub(crate) fn begin(core: &'a Core) -> Self {
        core.backpressure.begin(core.fill());
        Self { core }
    }

    /// Records how much of its work the checkpoint has done.
    pub fn note_progress(&self, done: u64, total: u64) {
        let progress = done as f64 / total.max(1) as f64;
        let bits = progress.clamp(0.0, 1.0).to_bits();
        // Relaxed: an older value slows commits down a little more.
        self.core
            .backpressure
            .progress
            .store(bits, Ordering::Relaxed);
    }

    /// Whether the log is so full that commits slow down, or wait for this checkpoint.
    pub fn is_urgent(&self) -> bool {
        self.core.is_filling() || self.core.backpressure.has_waiting_commits()
    }
}

impl Drop for CheckpointRun<'_> {
    fn drop(&mut self) {
        self.core.backpressure.end();
        let lanes = &self.core.lanes;
        lanes.iter().for_each(|lane| self.core.refresh_space(lane));
    }
}

/// A commit that found no log space, and what it has to see before it is refused.
struct Asked {
    /// Checkpoints begun when the commit asked: all later ones begin after it.
    begun: u64,
    /// Segments of the lane released by then.
    released: u64,
}

impl Core {
    /// Bytes of log that no checkpoint has released.
    pub(crate) fn used_bytes(&self) -> u64 {
        let used = |lane: &Lane| {
            // Relaxed: two statistics, which are not read at one instant.
            let left = lane.segment_left.load(Ordering::Relaxed);
            lane.pool.live_bytes().saturating_sub(left)
        };
        self.lanes.iter().map(used).sum()
    }

    /// The part of the log's limit that is used, from 0 to 1; 0 without a limit.
    pub(crate) fn fill(&self) -> f64 {
        match self.capacity() {
            0 => 0.0,
            capacity => (self.used_bytes() as f64 / capacity as f64).min(1.0),
        }
    }

    /// Whether a checkpoint is running and the log is so full that commits may have to slow down.
    pub(crate) fn is_filling(&self) -> bool {
        // SeqCst: see `Backpressure::begin`.
        self.options.max_log_bytes != 0
            && self.backpressure.is_running.load(Ordering::SeqCst)
            && self.fill() > SLOW_FROM
    }

    /// Wakes the thread that writes checkpoints as soon as half of the log's limit is used, so that the
    /// checkpoint does not begin only at the thread's next tick. Called for each flush.
    #[inline]
    pub(crate) fn announce_fill(&self) {
        if self.options.max_log_bytes != 0 {
            self.announce_half_full();
        }
    }

    fn announce_half_full(&self) {
        let pressure = &self.backpressure;
        let Some(checkpointer) = pressure.checkpointer.get() else {
            return;
        };
        let is_half_full = || self.fill() > SLOW_FROM;
        // Relaxed: a checkpoint that begins meanwhile makes the next one begin early at most once.
        let is_known = pressure.is_announced.load(Ordering::Relaxed)
            || pressure.is_running.load(Ordering::Relaxed);
        if is_known || !is_half_full() || braid_rt::mutant!("wait_for_the_tick") {
            return;
        }
        // Acquire: after a release of log that set the flag back, the second look sees the release,
        // so that the flag never stays set for a log that is less than half full.
        if !pressure.is_announced.swap(true, Ordering::AcqRel) {
            if is_half_full() {
                braid_rt::coverage_point("log: half of its limit is used");
                checkpointer.half_full();
            } else {
                pressure.note_release();
            }
        }
    }

    /// Delays a commit while the log fills up faster than the running checkpoint allows. Returns
    /// whether it did.
    #[cold]
    pub(crate) fn slow_down(&self) -> bool {
        let pressure = &self.backpressure;
        let delay = nanos(pressure.delay(self.fill()));
        if delay > 0 {
            braid_rt::coverage_point("log: commits slow down");
        }
        // Relaxed: a sum that orders nothing.
        let due = pressure.debt.fetch_add(delay, Ordering::Relaxed) + delay;
        if due < nanos(DELAY_MIN) {
            return false;
        }
        let due = Duration::from_nanos(pressure.debt.swap(0, Ordering::Relaxed)).min(DELAY_MAX);
        if due < DELAY_MIN {
            // Another commit waits for these delays.
            return false;
        }
        let since = braid_rt::now();
        let mut state = pressure.state.lock();
        let ended = state.ended;
        let goes_on =
            |state: &mut State| state.ended == ended && !state.is_closed && !self.is_poisoned();
        pressure.changed.wait_while_for(&mut state, goes_on, due);
        drop(state);
        // Relaxed: a statistic.
        pressure.delayed.fetch_add(1, Ordering::Relaxed);
        pressure.count_time(since);
        true
    }

    /// Reserves log space for a commit that found none, as soon as checkpoints have released
    /// enough. Waits for a checkpoint before it fails, if one runs or can run. `is_delayed` says
    /// whether the commit is already counted as delayed.
    #[cold]
    pub(crate) fn wait_for_space(
        &self,
        lane: &Lane,
        payload: usize,
        is_delayed: bool,
    ) -> Result<Reservation, LogError> {
        let pressure = &self.backpressure;
        let since = braid_rt::now();
        let asked = Asked {
            begun: pressure.state.lock().begun,
            released: lane.pool.released(),
        };
        // Relaxed: statistics, and a hint for the checkpoint.
        pressure.waits.fetch_add(1, Ordering::Relaxed);
        pressure
            .delayed
            .fetch_add(u64::from(!is_delayed), Ordering::Relaxed);
        pressure.waiting.fetch_add(1, Ordering::Relaxed);
        let reserved = {
            let _first = pressure.first.lock();
            self.reserve_first(lane, payload, asked)
        };
        pressure.waiting.fetch_sub(1, Ordering::Relaxed);
        pressure.count_time(since);
        let kept_for = || pressure.checkpointer.get()?.log_kept_for();
        reserved.map_err(|error| error.log_kept_for(kept_for))
    }

    /// Reserves log space for the first of the commits that wait.
    fn reserve_first(
        &self,
        lane: &Lane,
        payload: usize,
        mut asked: Asked,
    ) -> Result<Reservation, LogError> {
        let pressure = &self.backpressure;
        let reservation = self.count_reservation(lane, payload);
        let mut had_others = false;
        loop {
            let (ended, released) = (pressure.state.lock().ended, lane.pool.released());
            let has_others = self.has_other_reservations(lane, reservation);
            let refused = match self.make_room(lane, payload) {
                Ok(()) => return Ok(reservation),
                Err(error) => error,
            };
            let is_inconclusive = std::mem::replace(&mut had_others, has_others) || has_others;
            if released != asked.released || is_inconclusive {
                // Other commits have used what was released, or hold the space until they have
                // written to it, which no checkpoint before can release.
                asked = Asked {
                    begun: pressure.state.lock().begun,
                    released,
                };
            }
            let is_hopeless = ended >= asked.begun + IN_VAIN_MAX;
            let is_space = matches!(refused, LogError::OutOfSpace { .. });
            let waited = if !is_space || is_hopeless {
                Err(refused)
            } else {
                self.wait_for_checkpoint(ended, refused)
            };
            if let Err(error) = waited {
                self.unreserve(lane.index, reservation);
                return Err(error);
            }
        }
    }

    /// Waits until more than `ended` checkpoints have ended.
    fn wait_for_checkpoint(&self, ended: u64, refused: LogError) -> Result<(), LogError> {
        let pressure = &self.backpressure;
        // A running checkpoint may release enough, but it may also have begun too early, so the
        // next one is requested, too. Before the lock, which the owner may need.
        let checkpointer = pressure.checkpointer.get();
        let is_requested = checkpointer.is_some_and(|checkpointer| checkpointer.request());
        let mut state = pressure.state.lock();
        loop {
            if let Some(error) = self.poison() {
                return Err(error);
            }
            if state.is_closed {
                return Err(LogError::Closed);
            }
            if state.ended > ended {
                return Ok(());
            }
            if !is_requested && state.begun == state.ended {
                return Err(refused);
            }
            braid_rt::coverage_point("log: a commit waits for a checkpoint");
            pressure.changed.wait(&mut state);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_with_the_lead_over_the_checkpoint() {
        let pressure = Backpressure::default();
        pressure.begin(0.25);
        assert_eq!(pressure.delay(0.5), Duration::ZERO);
        let delays = [0.51, 0.55, 0.6, 0.7, 0.75].map(|fill| pressure.delay(fill));
        assert!(delays.is_sorted_by(|a, b| a < b), "{delays:?}");
        assert!(delays[0] > Duration::ZERO && delays[0] < Duration::from_micros(10));
        assert_eq!(pressure.delay(0.75), DELAY_MAX);
        assert_eq!(pressure.delay(1.0), DELAY_MAX);
        pressure.progress.store(0.5f64.to_bits(), Ordering::Relaxed);
        assert_eq!(pressure.delay(0.75), Duration::ZERO);
        assert!(pressure.delay(0.8) > Duration::ZERO);
        // A log that is nearly full when a checkpoint begins.
        pressure.begin(0.99);
        assert!(pressure.delay(1.0) < DELAY_MAX / 10);
    }
}
