//! Numbers of threads that count their uses of shared objects, each in a counter of its own.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of counters of an object. All but the last belong to one thread each.
pub(super) const COUNTERS: usize = if cfg!(all(test, loom)) { 3 } else { 16 };
/// Counter of all threads that found the others taken.
pub(super) const OF_ALL: usize = COUNTERS - 1;

/// Taken numbers, as bits.
static TAKEN: AtomicU32 = AtomicU32::new(0);
const _: () = assert!(OF_ALL < u32::BITS as usize);

const NONE: usize = usize::MAX;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(NONE) };
    /// Frees the number when the thread exits, with all recorded counters. Separate, because each
    /// access to a thread-local with a destructor costs a check.
    static AT_END: AtEnd = const { AtEnd };
}

struct AtEnd;

/// Returns the counter of the calling thread. No other thread uses it at the same time, unless it
/// is [`OF_ALL`].
#[inline]
pub(super) fn counter() -> usize {
    match NUMBER.get() {
        NONE => draw(),
        drawn => drawn,
    }
}

#[cold]
fn draw() -> usize {
    let lowest = |taken: u32| {
        let free = taken.trailing_ones();
        ((free as usize) < OF_ALL).then_some(taken | 1 << free)
    };
    // A thread that is about to exit takes no number, because it could not free it.
    let number = match AT_END.try_with(|_| ()) {
        // Acquire: pairs with the release of the thread that had the number before, whose counts
        // now belong to this thread.
        Ok(()) => TAKEN
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, lowest)
            .map_or(OF_ALL, |taken| taken.trailing_ones() as usize),
        Err(_) => OF_ALL,
    };
    NUMBER.set(number);
    number
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        super::recent::forget();
        let number = NUMBER.replace(OF_ALL);
        if number < OF_ALL {
            TAKEN.fetch_and(!(1 << number), Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Barrier, Mutex};

    use super::*;

    #[test]
    fn threads_at_one_time_have_different_numbers() {
        const THREADS: usize = 40;
        let (barrier, numbers) = (Barrier::new(THREADS), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let number = counter();
                    assert_eq!(counter(), number);
                    barrier.wait();
                    numbers.lock().unwrap().push(number);
                    barrier.wait();
                });
            }
        });
        let numbers = numbers.into_inner().unwrap();
        let own: Vec<_> = numbers.iter().filter(|n| **n < OF_ALL).collect();
        let different: BTreeSet<_> = own.iter().collect();
        assert_eq!(own.len(), different.len());
        assert!(!own.is_empty() && numbers.len() == THREADS);
    }
}
