//! Pauses of background work for the sake of commits.
//!
//! Background work that reads or writes much would take all that commits leave of the device, and
//! commits would queue. So it works in pieces, and pauses after a piece if commits need the device:
//! transactions were committed while the piece took its time, or one is not durable yet. A pause is
//! [`PAUSE_FACTOR`] times as long as the piece, so the device has three quarters of its time for
//! commits, however much background work there is: all of it shares one [`Pacer`], and a piece that ends
//! during the pause of another one has its own pause after that. Without commits, there are no pauses.

use std::time::{Duration, Instant};

use braid_rt::Mutex;
use braid_rt::atomic::{AtomicU64, Ordering};

use crate::base::numbers::SeqNo;

/// Pause after a piece, in multiples of the time that the piece took.
const PAUSE_FACTOR: u32 = 3;

/// Longest pause, so that the work makes progress whatever the device and other work do.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// Time after which a commit that is not durable does not count any more: nobody waits for a commit
/// without a bound, and a log that has failed acknowledges nothing.
const OUTSTANDING_MAX: Duration = Duration::from_secs(10);

/// Divides the device between commits and background work; see the module documentation.
#[derive(Debug)]
pub struct Pacer {
    state: Mutex<State>,
    /// Number of pauses.
    pauses: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// When the pauses of all pieces so far end.
    turn: Option<Instant>,
    /// The newest sequence number that was seen.
    newest: SeqNo,
    /// When it was seen first, unless it was assigned before the pacer was created.
    seen_at: Option<Instant>,
}

/// How far commits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitProgress {
    /// The newest sequence number that was assigned.
    pub assigned: SeqNo,
    /// The greatest sequence number that was acknowledged.
    pub acknowledged: SeqNo,
}

impl Pacer {
    /// Creates the pacer of a log whose newest sequence number is `newest`.
    pub fn new(newest: SeqNo) -> Self {
        let state = State {
            turn: None,
            newest,
            seen_at: None,
        };
        Self {
            state: Mutex::new(state),
            pauses: AtomicU64::new(0),
        }
    }

    /// Sleeps after a piece of background work that began at `begun`, if commits need the device.
    pub fn pause(&self, begun: Instant, progress: CommitProgress) {
        let pause = self.pause_after(begun, progress);
        if !pause.is_zero() {
            braid_rt::sleep(pause);
        }
    }

    /// Returns how long to pause after a piece of background work that began at `begun`; zero if no
    /// commit needs the device. For a caller that ends the pause when somebody waits for the work.
    ///
    /// # Panics
    /// In debug builds, if the thread holds something that commits may wait for.
    pub fn pause_after(&self, begun: Instant, progress: CommitProgress) -> Duration {
        // Whether it pauses or not, so that any test of the work finds it.
        debug_assert!(
            !braid_rt::is_holding(),
            "background work pauses while commits wait for what it holds"
        );
        let now = braid_rt::now();
        let mut state = self.state.lock();
        if !state.is_busy(begun, now, progress) {
            return Duration::ZERO;
        }
        // Relaxed: a counter.
        self.pauses.fetch_add(1, Ordering::Relaxed);
        braid_rt::coverage_point("log: background work pauses for commits");
        let turn = state.reserve(begun, now);
        turn.saturating_duration_since(now)
    }

    /// Whether commits need the device, so that background work should use small pieces: one is not
    /// durable yet, or was assigned its number since the last piece ended.
    pub fn is_device_needed(&self, progress: CommitProgress) -> bool {
        let mut state = self.state.lock();
        let now = braid_rt::now();
        progress.assigned > state.newest || state.is_busy(now, now, progress)
    }

    /// Returns how long to pause after a piece of work that commits may soon wait for: that takes
    /// no turns with other background work, which leaves it its part of the device.
    pub(crate) fn pause_after_needed(&self, begun: Instant) -> Duration {
        let now = braid_rt::now();
        self.state.lock().reserve(begun, now);
        (now.saturating_duration_since(begun) * PAUSE_FACTOR).min(PAUSE_MAX)
    }

    /// The number of pauses so far.
    pub fn pauses(&self) -> u64 {
        // Relaxed: a counter.
        self.pauses.load(Ordering::Relaxed)
    }
}

impl State {
    /// Whether commits have needed the device since `begun`, or need it now.
    fn is_busy(&mut self, begun: Instant, now: Instant, progress: CommitProgress) -> bool {
        if progress.assigned > self.newest {
            self.newest = progress.assigned;
            self.seen_at = Some(now);
        }
        let is_new = |seen: Instant| {
            now.saturating_duration_since(seen) < OUTSTANDING_MAX
                || braid_rt::mutant!("pause_for_commits_that_nobody_flushes")
        };
        let is_outstanding = progress.acknowledged < progress.assigned
            && self.seen_at.is_some_and(is_new)
            && !braid_rt::mutant!("ignore_outstanding_commits");
        let is_since = self.seen_at.is_some_and(|seen| seen > begun)
            && !braid_rt::mutant!("ignore_commits_during_a_piece");
        is_outstanding || is_since || braid_rt::mutant!("pause_without_commits")
    }

    /// Reserves the device for a piece that has ended, and for its pause. Returns when the pause
    /// ends.
    fn reserve(&mut self, begun: Instant, now: Instant) -> Instant {
        let took = now.saturating_duration_since(begun).min(PAUSE_MAX);
        let begun = now - took;
        let free = match self.turn {
            Some(turn) if !braid_rt::mutant!("pace_each_work_alone") => turn.max(begun),
            _ => begun,
        };
        let end = free + took * (1 + PAUSE_FACTOR);
        let turn = if braid_rt::mutant!("pause_without_limit") {
            end
        } else {
            end.min(now + PAUSE_MAX)
        };
        self.turn = Some(turn);
        turn
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn progress(assigned: u64, acknowledged: u64) -> CommitProgress {
        CommitProgress {
            assigned: SeqNo::new(assigned),
            acknowledged: SeqNo::new(acknowledged),
        }
    }

    fn state(newest: u64) -> State {
        Pacer::new(SeqNo::new(newest)).state.into_inner()
    }

    #[test]
    fn work_pauses_while_a_commit_is_outstanding() {
        let (mut state, begun) = (state(7), braid_rt::now());
        assert!(!state.is_busy(begun, begun + MS, progress(7, 7)));
        assert!(state.is_busy(begun, begun + MS, progress(8, 7)));
        for at in 1..10 {
            assert!(state.is_busy(begun + at * MS, begun + (at + 1) * MS, progress(8, 7)));
        }
        assert!(!state.is_busy(begun + 10 * MS, begun + 11 * MS, progress(8, 8)));
        assert!(state.is_busy(begun + 11 * MS, begun + 12 * MS, progress(9, 8)));
        let late = begun + 12 * MS + OUTSTANDING_MAX;
        assert!(!state.is_busy(late - MS, late, progress(9, 8)));
    }

    #[test]
    fn work_pauses_after_a_piece_during_which_transactions_committed() {
        let (mut state, begun) = (state(7), braid_rt::now());
        assert!(state.is_busy(begun, begun + 2 * MS, progress(9, 9)));
        // A piece of other work that began before the commit was seen.
        assert!(state.is_busy(begun + MS, begun + 3 * MS, progress(9, 9)));
        assert!(!state.is_busy(begun + 2 * MS, begun + 4 * MS, progress(9, 9)));
        assert!(state.is_busy(begun + 4 * MS, begun + 5 * MS, progress(10, 10)));
    }

    #[test]
    fn commits_need_the_device_until_a_piece_ends_without_one() {
        let pacer = Pacer::new(SeqNo::new(7));
        assert!(!pacer.is_device_needed(progress(7, 7)));
        assert!(pacer.is_device_needed(progress(8, 7)));
        assert!(pacer.is_device_needed(progress(8, 8)));
        pacer.pause_after(braid_rt::now(), progress(8, 8));
        assert!(!pacer.is_device_needed(progress(8, 8)));
    }

    #[test]
    fn commits_have_three_quarters_of_the_time() {
        let (mut state, begun) = (state(0), braid_rt::now());
        assert_eq!(state.reserve(begun, begun + MS), begun + 4 * MS);
        // After a time without work, there is no turn to wait for.
        let later = begun + 50 * MS;
        assert_eq!(state.reserve(later, later + 2 * MS), later + 8 * MS);
        // Two pieces at the same time have their pauses one after the other.
        let later = begun + 100 * MS;
        assert_eq!(state.reserve(later, later + MS), later + 4 * MS);
        assert_eq!(state.reserve(later, later + MS), later + 8 * MS);
    }

    #[test]
    fn no_pause_is_longer_than_the_limit() {
        let (mut state, begun) = (state(0), braid_rt::now());
        let end = begun + 5_000 * MS;
        assert_eq!(state.reserve(begun, end), end + PAUSE_MAX);
        for _ in 0..10 {
            assert_eq!(state.reserve(end - MS, end), end + PAUSE_MAX);
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "commits wait for what it holds")]
    fn nothing_is_held_during_a_pause() {
        let _gate = braid_rt::Marked::new("page gate", ());
        let pacer = Pacer::new(SeqNo::new(1));
        pacer.pause_after(braid_rt::now(), progress(1, 1));
    }

    #[test]
    fn pauses_are_counted_and_needed_work_has_no_turn() {
        let pacer = Pacer::new(SeqNo::new(1));
        let begun = braid_rt::now();
        assert!(pacer.pause_after(begun, progress(1, 1)).is_zero());
        assert_eq!(pacer.pauses(), 0);
        let long_ago = begun.checked_sub(PAUSE_MAX).unwrap_or(begun);
        assert!(pacer.pause_after(long_ago, progress(2, 1)) <= PAUSE_MAX);
        assert_eq!(pacer.pauses(), 1);
        // The device is reserved, but not for this.
        assert!(pacer.pause_after_needed(braid_rt::now()) < PAUSE_MAX);
    }
}
