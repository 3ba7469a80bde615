//! The time in which a cache line goes from one processor to another: what threads pay for each line
//! that they share, and the reason why a run with several threads can be slow by itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Turns of one round.
const TURNS: u64 = 5_000;

/// Rounds, of which the median counts: in some, the system may run both threads on one processor.
const ROUNDS: usize = 9;

/// Looks at the line before a thread lets others run.
const LOOKS: u32 = 200;

/// A word with a pair of cache lines of its own; some processors fetch lines in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

/// Returns the nanoseconds in which a line goes from one thread to another, the median of some rounds;
/// `None` on a machine with one processor.
pub(crate) fn exchange_ns() -> Option<f64> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    if processors < 2 {
        return None;
    }
    let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    rounds.sort_by(f64::total_cmp);
    Some(rounds[ROUNDS / 2])
}

/// Two threads raise a number in turns: the mean time of a turn, in nanoseconds.
fn round() -> f64 {
    let line = Line(AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| take_odd_turns(&line));
        // Measured from the other thread's first turn, so without its start.
        await_value(&line, 0);
        raise(&line, 0);
        await_value(&line, 2);
        let began = Instant::now();
        for turn in (2..2 * TURNS).step_by(2) {
            await_value(&line, turn);
            raise(&line, turn);
        }
        began.elapsed().as_nanos() as f64 / (2 * TURNS - 2) as f64
    })
}

/// The turns of the other thread.
fn take_odd_turns(line: &Line) {
    for turn in (1..2 * TURNS).step_by(2) {
        await_value(line, turn);
        raise(line, turn);
    }
}

fn await_value(line: &Line, value: u64) {
    let mut looks = 0;
    // Acquire: pairs with the store in `raise`.
    while line.0.load(Ordering::Acquire) != value {
        looks += 1;
        if looks % LOOKS == 0 {
            thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

fn raise(line: &Line, value: u64) {
    // Release: pairs with the load in `await_value`.
    line.0.store(value + 1, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_to_another_processor_in_a_plausible_time() {
        let Some(ns) = exchange_ns() else { return };
        // Faster than a cache is impossible; a millisecond would be a thread that slept.
        assert!(ns > 1.0 && ns < 1e6, "{ns}");
    }
}
