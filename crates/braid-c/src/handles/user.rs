//! Numbers of threads that count their uses of shared objects, each in a counter of its own.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counters of an object. All but the last have one thread each.
pub(super) const COUNTERS: usize = 16;
/// The counter of all threads that came when the others were taken.
pub(super) const OF_ALL: usize = COUNTERS - 1;

/// The numbers that threads have, as bits.
static TAKEN: AtomicU32 = AtomicU32::new(0);
const _: () = assert!(OF_ALL < u32::BITS as usize);

/// A thread's number, until it ends.
struct Number(Cell<usize>);

const NONE: usize = usize::MAX;

thread_local! {
    static NUMBER: Number = const { Number(Cell::new(NONE)) };
}

/// The counter that the calling thread uses. Nobody else does at the same time, unless it is [`OF_ALL`].
#[inline]
pub(super) fn counter() -> usize {
    // A thread that is about to end has no number any more.
    NUMBER
        .try_with(|number| match number.0.get() {
            NONE => number.draw(),
            drawn => drawn,
        })
        .unwrap_or(OF_ALL)
}

impl Number {
    #[cold]
    fn draw(&self) -> usize {
        let lowest = |taken: u32| {
            let free = taken.trailing_ones();
            ((free as usize) < OF_ALL).then_some(taken | 1 << free)
        };
        // Acquire: pairs with the release of the thread that had the number before, whose counts are this one's now.
        let before = TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, lowest);
        let number = before.map_or(OF_ALL, |taken| taken.trailing_ones() as usize);
        self.0.set(number);
        number
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let number = self.0.get();
        if number < OF_ALL {
            TAKEN.fetch_and(!(1 << number), Ordering::Release);
        }
    }
}

#[cfg(test)]
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
