//! Counts of stores, flushes and fences.
//!
//! A thread counts in one of a few stripes, each in cache lines of its own: threads that commit at
//! the same time do not exchange a line. While there are enough stripes, each thread has one of its
//! own until it ends, in which it counts without an atomic addition: after a flush, it would wait
//! like a fence.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const STRIPES: usize = 16;

/// The stripe of all threads that found no free one.
const SHARED: usize = STRIPES - 1;

/// Stands for the stripe of a thread that has not counted yet.
const UNKNOWN: usize = usize::MAX;

/// The stripes that belong to threads: a bit for each.
struct Owners(AtomicU32);

impl Owners {
    /// Acquires a free stripe for the calling thread; [`SHARED`] if there is none.
    fn acquire(&'static self) -> Owned {
        let mut taken = self.0.load(Ordering::Relaxed);
        loop {
            let index = (taken.trailing_ones() as usize).min(SHARED);
            if index == SHARED {
                return Owned {
                    owners: self,
                    index,
                };
            }
            // Acquire: pairs with the release below. This thread adds to the last owner's sums.
            match self.0.compare_exchange_weak(
                taken,
                taken | 1 << index,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    return Owned {
                        owners: self,
                        index,
                    };
                }
                Err(now) => taken = now,
            }
        }
    }
}

/// A thread's stripe, until the thread ends.
struct Owned {
    owners: &'static Owners,
    index: usize,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // What the thread counts from here on, in destructors of other thread-local values.
        let _ = MINE.try_with(|mine| mine.set(SHARED));
        if self.index != SHARED && !braid_rt::mutant!("pmem_keep_stripe_of_ended_thread") {
            // Release: pairs with `acquire`.
            self.owners
                .0
                .fetch_and(!(1 << self.index), Ordering::Release);
        }
    }
}

static OWNERS: Owners = Owners(AtomicU32::new(0));

thread_local! {
    /// The calling thread's stripe. Without a destructor, so that a load suffices to read it.
    static MINE: Cell<usize> = const { Cell::new(UNKNOWN) };
    static OWNED: Owned = OWNERS.acquire();
}

/// Acquires a stripe for the calling thread.
#[cold]
fn acquire() -> usize {
    // A thread that already destroys its values shares.
    let mine = OWNED.try_with(|owned| owned.index).unwrap_or(SHARED);
    MINE.set(mine);
    mine
}

/// What was done to a mapping since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappingStats {
    /// Bytes written.
    pub bytes_written: u64,
    /// Lines flushed. A line counts each time that it is flushed. A range of an ordinary file
    /// counts in lines, too.
    pub lines_flushed: u64,
    /// Fences.
    pub fences: u64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    bytes_written: AtomicU64,
    lines_flushed: AtomicU64,
    fences: AtomicU64,
}

/// The counters of a mapping. All accesses are relaxed: the counts order nothing.
#[derive(Debug, Default)]
pub(crate) struct Counters([Stripe; STRIPES]);

impl Counters {
    /// Adds to a counter of the thread's stripe.
    #[inline]
    fn add(&self, counter: impl FnOnce(&Stripe) -> &AtomicU64, count: u64) {
        let mine = match MINE.get() {
            UNKNOWN => acquire(),
            mine => mine,
        };
        let counter = counter(&self.0[mine]);
        if mine == SHARED {
            counter.fetch_add(count, Ordering::Relaxed);
        } else {
            // No other thread ever stores here.
            let sum = counter.load(Ordering::Relaxed).wrapping_add(count);
            counter.store(sum, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn wrote(&self, bytes: usize) {
        self.add(|stripe| &stripe.bytes_written, bytes as u64);
    }

    #[inline]
    pub(crate) fn flushed(&self, lines: u64) {
        self.add(|stripe| &stripe.lines_flushed, lines);
    }

    #[inline]
    pub(crate) fn fenced(&self) {
        self.add(|stripe| &stripe.fences, 1);
    }

    pub(crate) fn sum(&self) -> MappingStats {
        let mut sum = MappingStats::default();
        for stripe in &self.0 {
            sum.bytes_written += stripe.bytes_written.load(Ordering::Relaxed);
            sum.lines_flushed += stripe.lines_flushed.load(Ordering::Relaxed);
            sum.fences += stripe.fences.load(Ordering::Relaxed);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    /// A thread that ends releases its stripe, and the next thread acquires it.
    #[test]
    fn an_ended_thread_releases_its_stripe() {
        static OWNERS: Owners = Owners(AtomicU32::new(0));
        thread_local! {
            static OWNED: Owned = OWNERS.acquire();
        }
        let acquire = || OWNED.with(|owned| owned.index);
        for _ in 0..3 * STRIPES {
            assert_eq!(thread::spawn(acquire).join().unwrap(), 0);
        }
        let all = Barrier::new(STRIPES + 3);
        let mut indexes: Vec<_> = thread::scope(|scope| {
            let acquire = || {
                let index = acquire();
                all.wait();
                index
            };
            let threads: Vec<_> = (0..STRIPES + 3).map(|_| scope.spawn(acquire)).collect();
            let indexes = threads.into_iter().map(|thread| thread.join().unwrap());
            indexes.collect()
        });
        indexes.sort_unstable();
        let own = 0..SHARED;
        assert_eq!(indexes, own.chain([SHARED; 4]).collect::<Vec<_>>());
        assert_eq!(thread::spawn(acquire).join().unwrap(), 0);
    }

    #[test]
    fn nothing_is_lost_if_there_are_more_threads_than_stripes() {
        let counters = Counters::default();
        let times: u64 = if cfg!(miri) { 10 } else { 1_000 };
        thread::scope(|scope| {
            for _ in 0..3 * STRIPES {
                scope.spawn(|| (0..times).for_each(|_| counters.flushed(2)));
            }
        });
        let flushed = 3 * STRIPES as u64 * times * 2;
        assert_eq!(counters.sum().lines_flushed, flushed);
    }
}
