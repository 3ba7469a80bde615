//! Waiting for a page whose latch another thread holds, perhaps while it reads or writes the page.

use std::time::Duration;

use braid_rt::atomic::{AtomicUsize, Ordering, fence};
use braid_rt::thread::Backoff;
use braid_rt::{ANY_GATE, Condvar, Mutex, excused, to_usize};
use crossbeam_utils::CachePadded;

use super::{latch, state};
use crate::page::PageId;
use crate::sync::AtomicU64;

/// Waiters sleep at this many places. Pages that share one wake each other's waiters.
const PLACES: usize = 64;

/// Threads that sleep until a page was read or written.
///
/// A change in memory holds a latch so briefly that its release notifies nobody, and stays a single
/// store. So a waiter sleeps for a limited time, in case that its holder lost its core.
#[derive(Debug)]
pub(super) struct Arrivals {
    places: Box<[CachePadded<Place>]>,
    longest: Duration,
}

#[derive(Debug, Default)]
struct Place {
    sleepers: AtomicUsize,
    arrivals: Mutex<()>,
    arrived: Condvar,
}

impl Arrivals {
    /// Creates places whose waiters sleep for at most `longest`.
    pub(super) fn new(longest: Duration) -> Self {
        Self {
            places: (0..PLACES).map(|_| CachePadded::default()).collect(),
            longest,
        }
    }

    fn place(&self, id: PageId) -> &Place {
        &self.places[to_usize(id % PLACES as u64)]
    }

    /// Waits while the page is latched: as `backoff` says, then asleep. May return early.
    #[cold]
    pub(super) fn wait(&self, id: PageId, page: &AtomicU64, backoff: &mut Backoff) {
        if backoff.is_awake() {
            backoff.wait();
            return;
        }
        let place = self.place(id);
        // Relaxed: the fence pairs with the fence in `notify`. Either this thread sees the latch
        // released, or the notifier sees the sleeper.
        place.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut arrivals = place.arrivals.lock();
        if state::is_latched(latch::open(page))
            && let Some(deadline) = braid_rt::now_plus(self.longest)
        {
            braid_rt::coverage_point("store: a thread sleeps until a page arrives");
            // The caller may hold a gate. Its pages are in memory, so the holder of the latch only changes
            // the page, and has no processor; or it reads the page, and the caller has an excuse.
            let wait = || place.arrived.wait_until(&mut arrivals, deadline);
            excused(ANY_GATE, "a page's latch is held for a short time", wait);
        }
        place.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes the waiters of a page whose latch the caller released after a read or a write.
    pub(super) fn notify(&self, id: PageId) {
        let place = self.place(id);
        fence(Ordering::SeqCst);
        // Relaxed: see `wait`.
        if place.sleepers.load(Ordering::Relaxed) > 0 {
            // A waiter that saw the latch under the lock sleeps by now.
            drop(place.arrivals.lock());
            place.arrived.notify_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_sleeps_until_the_page_arrives() {
        let (arrivals, page) = (Arrivals::new(Duration::MAX / 4), AtomicU64::new(0));
        assert!(state::take(&page, 0).is_some());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut backoff = Backoff::default();
                while state::is_latched(latch::open(&page)) {
                    arrivals.wait(5, &page, &mut backoff);
                }
            });
            // Another page of the same place: the waiter sleeps again.
            arrivals.notify(5 + PLACES as u64);
            while arrivals.place(5).sleepers.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            arrivals.notify(6);
            assert!(!waiter.is_finished());
            latch::release(&page, 0);
            arrivals.notify(5);
        });
        assert_eq!(arrivals.place(5).sleepers.load(Ordering::Relaxed), 0);
    }
}
