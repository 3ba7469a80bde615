//! Which pages the evictor keeps: those that are used again.
//!
//! A page that is loaded is cold, and cold pages are what the evictor looks for. Its hand marks a cold
//! page at the first visit. At the second one, a page that was used between the visits becomes hot,
//! and any other is evicted. So a scan, a check, a backup or writes to many pages pass through the
//! cold pages, and leave the hot ones in memory.
//!
//! The state word of an evicted page keeps when it was evicted, in evictions. A page that is loaded
//! before the pool has evicted as many pages as it has frames is hot at once: it is used often enough
//! to be worth a frame, although not often enough for the few frames of cold pages.
//!
//! At least an eighth of the frames is left to cold pages. If more are hot, a second hand visits the
//! hot pages, and makes those cold that were not used between two visits.
//!
//! This is 2Q (Johnson and Shasha, VLDB 1994), with marks instead of queues, so that a reader of a
//! page in memory does nothing for it.

use std::sync::atomic::Ordering;

use braid_rt::atomic::{AtomicU32, AtomicUsize};

use super::Pool;
use super::state;
use crate::sync::AtomicU64;

/// The part of the frames that is left to cold pages, as a divisor.
const COLD_PART: usize = 8;

/// Most units in which the evictions of a full pool are counted: so few that an eviction long ago
/// seldom looks like a recent one.
const UNITS: usize = 1 << 14;

const _: () = assert!(state::EVICTED_TIMES >= 64 * UNITS as u64);

/// How often the page in a frame is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Heat {
    Cold,
    /// Cold, and marked by the evictor.
    Seen,
    Hot,
}

/// The [`Heat`] of the page in a frame. Relaxed: the evictor only needs it to be right for most pages.
#[derive(Debug, Default)]
pub(super) struct FrameHeat(AtomicU32);

impl FrameHeat {
    pub(super) fn get(&self) -> Heat {
        Self::of(self.0.load(Ordering::Relaxed))
    }

    fn of(word: u32) -> Heat {
        match word {
            0 => Heat::Cold,
            1 => Heat::Seen,
            _ => Heat::Hot,
        }
    }

    fn swap(&self, heat: Heat) -> Heat {
        Self::of(self.0.swap(heat as u32, Ordering::Relaxed))
    }
}

/// The hot pages of a pool.
#[derive(Debug, Default)]
pub(super) struct HotPages {
    count: AtomicUsize,
    /// The next frame that the second hand visits.
    hand: AtomicUsize,
}

impl Pool {
    pub(super) fn set_heat(&self, frame: usize, heat: Heat) {
        let was_hot = self.info[frame].heat.swap(heat) == Heat::Hot;
        match (was_hot, heat == Heat::Hot) {
            (false, true) => self.hot.count.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.hot.count.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
    }

    /// Evictions that count as one unit of time.
    fn unit(&self) -> u64 {
        self.frames.count().div_ceil(UNITS) as u64
    }

    /// The time, in units of evictions.
    fn eviction_time(&self) -> u64 {
        self.counters.evictions.load(Ordering::Relaxed) / self.unit()
    }

    /// The frame number of a page that is evicted now.
    pub(super) fn evicted_now(&self) -> u64 {
        if braid_rt::mutant!("forget_evicted_pages") {
            return state::NONE;
        }
        state::evicted_at(self.eviction_time())
    }

    /// The heat of a page that is loaded, and whose state word was `word`.
    pub(super) fn heat_of_loaded(&self, word: u64) -> Heat {
        match state::since_eviction(word, self.eviction_time()) {
            Some(time) if time * self.unit() <= self.frames.count() as u64 => Heat::Hot,
            _ => Heat::Cold,
        }
    }

    /// Whether the evictor leaves the page in a frame in memory at its visit, after `steps` visits
    /// without success. A page that was used since the first visit becomes hot.
    pub(super) fn is_kept(&self, frame: usize, steps: usize, state: impl FnOnce() -> bool) -> bool {
        match self.info[frame].heat.get() {
            // After two rounds, all cold pages are pinned.
            Heat::Hot => steps <= 2 * self.frames.count() && !braid_rt::mutant!("evict_hot_pages"),
            Heat::Seen if state() => {
                self.set_heat(frame, Heat::Hot);
                true
            }
            Heat::Seen | Heat::Cold => false,
        }
    }

    /// Notes that the evictor has visited a page that stays in memory.
    pub(super) fn note_visit(&self, frame: usize, state: &AtomicU64) {
        let is_marked = state::mark(state, frame as u64) == Some(true);
        if is_marked && self.info[frame].heat.get() == Heat::Cold {
            self.set_heat(frame, Heat::Seen);
        }
    }

    /// Makes hot pages cold if too many are hot.
    pub(super) fn cool(&self) {
        let count = self.frames.count();
        let most = count - count / COLD_PART;
        // Two rounds mark all pages, and find the marks.
        for _ in 0..2 * count {
            if self.hot.count.load(Ordering::Relaxed) <= most {
                return;
            }
            let frame = self.hot.hand.fetch_add(1, Ordering::Relaxed) % count;
            let info = &self.info[frame];
            if info.heat.get() != Heat::Hot {
                continue;
            }
            let id = info.page.load(Ordering::Relaxed);
            let visited = self
                .state(id)
                .and_then(|state| state::mark(state, frame as u64));
            // It keeps its mark: the evictor's next visit is the second one.
            if visited == Some(true) {
                self.set_heat(frame, Heat::Seen);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
