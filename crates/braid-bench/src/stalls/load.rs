//! The steady load: an open loop. Every operation has a time at which it is due, whatever happened
//! to the operations before it, and its latency counts from that time. So a stall counts for all
//! operations that would have run during it, not only for one per thread.

use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::window::Window;
use crate::BenchError;
use crate::tally::{histogram, nanos};

/// Maximum time after the window in which delayed operations are still performed.
const DRAIN: Duration = Duration::from_secs(20);

/// Time until the first operation is due, in which the threads start.
const START: Duration = Duration::from_millis(10);

/// One operation of a client; returns when it is acknowledged.
pub(super) type Operation<'a> = Box<dyn FnMut(&Window) -> Result<(), BenchError> + 'a>;

/// A system under load.
pub(super) trait Service: Sync {
    /// Returns the operations of a thread, numbered from 0.
    fn client(&self, thread: usize) -> Result<Operation<'_>, BenchError>;
}

/// The load of all threads together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) threads: usize,
    /// Operations per second.
    pub(super) per_s: f64,
    /// Time before the disturbance, in which the load runs alone.
    pub(super) lead: Duration,
}

impl Pace {
    /// Returns when an operation of a thread is due. Threads take turns at regular intervals.
    fn due(self, thread: usize, operation: u64) -> u64 {
        let position = operation as f64 * self.threads as f64 + thread as f64;
        nanos(START) + (position / self.per_s * 1e9) as u64
    }
}

/// Measurements of a load.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Nanoseconds from the time at which an operation was due to its acknowledgement.
    pub(super) latency: Histogram<u64>,
    /// Number of operations that were due but not performed; their latency is a lower bound.
    pub(super) unfinished: u64,
    /// Longest time without an acknowledgement.
    pub(super) gap: Duration,
    /// Length of the measurement.
    pub(super) length: Duration,
}

/// Applies the load while `disturb` runs on this thread, which opens the window. The load ends when
/// `disturb` returns.
pub(super) fn run<R>(
    service: &dyn Service,
    pace: Pace,
    disturb: impl FnOnce(&Window) -> Result<R, BenchError>,
) -> Result<(Outcome, R), BenchError> {
    let window = Window::new();
    let (clients, disturbed) = thread::scope(|scope| {
        let window = &window;
        let clients: Vec<_> = (0..pace.threads)
            .map(|thread| scope.spawn(move || client(service, pace, thread, window)))
            .collect();
        let close = CloseOnDrop(window);
        thread::sleep(pace.lead);
        let disturbed = disturb(window);
        drop(close);
        let clients: Vec<_> = clients
            .into_iter()
            .map(|client| client.join().unwrap_or(Err(BenchError::Panicked)))
            .collect();
        (clients, disturbed)
    });
    let mut latency = histogram();
    let mut unfinished = 0;
    for client in clients {
        let client = client?;
        latency += client.latency;
        unfinished += client.unfinished;
    }
    let outcome = Outcome {
        latency,
        unfinished,
        gap: window.longest_gap(),
        length: window.length(),
    };
    Ok((outcome, disturbed?))
}

/// Ends the load, also if the disturbance panics.
struct CloseOnDrop<'a>(&'a Window);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct Tally {
    latency: Histogram<u64>,
    unfinished: u64,
}

/// One thread of the load.
fn client(
    service: &dyn Service,
    pace: Pace,
    thread: usize,
    window: &Window,
) -> Result<Tally, BenchError> {
    let mut perform = service.client(thread)?;
    let mut tally = Tally {
        latency: histogram(),
        unfinished: 0,
    };
    for operation in 0.. {
        let due = pace.due(thread, operation);
        let early = Duration::from_nanos(due.saturating_sub(window.now()));
        if !early.is_zero() {
            thread::sleep(early);
        }
        if due >= window.until() {
            break;
        }
        if window.now() > window.until().saturating_add(nanos(DRAIN)) {
            tally.unfinished += u64::from(window.counts(due));
        } else {
            perform(window)?;
            window.acknowledge(window.now());
        }
        if window.counts(due) {
            tally.latency.saturating_record(window.now() - due);
        }
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Acknowledges at once, except that the first operation in the window takes this long.
    struct Stalling(Duration, AtomicBool);

    impl Service for Stalling {
        fn client(&self, _thread: usize) -> Result<Operation<'_>, BenchError> {
            Ok(Box::new(|window| {
                if window.counts(window.now()) && !self.1.swap(true, Ordering::Relaxed) {
                    thread::sleep(self.0);
                }
                Ok(())
            }))
        }
    }

    #[test]
    fn a_stall_counts_for_every_operation_that_was_due_in_it() {
        let stall = Duration::from_millis(200);
        let service = Stalling(stall, AtomicBool::new(false));
        let pace = Pace {
            threads: 1,
            per_s: 1_000.0,
            lead: stall,
        };
        let (outcome, ()) = run(&service, pace, |window| {
            window.open();
            thread::sleep(stall * 2);
            Ok(())
        })
        .unwrap();
        // 400 operations, of which 200 waited 200 ms down to 1 ms.
        let late = outcome.latency.count_between(50_000_000, u64::MAX);
        assert!(late >= 100, "{late} of {}", outcome.latency.len());
        // The operation that stalls may have been due before the window, by as much as a busy machine
        // was late then; the next ones count.
        let longest = Duration::from_nanos(outcome.latency.max());
        assert!(longest >= stall / 2, "{longest:?}");
        assert!(outcome.gap >= stall, "{outcome:?}");
        assert_eq!(outcome.unfinished, 0);
    }

    #[test]
    fn an_error_of_a_client_or_of_the_disturbance_ends_the_run() {
        struct Failing;
        impl Service for Failing {
            fn client(&self, _thread: usize) -> Result<Operation<'_>, BenchError> {
                Err(BenchError::Panicked)
            }
        }
        let pace = Pace {
            threads: 2,
            per_s: 100.0,
            lead: Duration::ZERO,
        };
        assert!(run(&Failing, pace, |_| Ok(())).is_err());
        let service = Stalling(Duration::ZERO, AtomicBool::new(false));
        let failed: Result<(_, ()), _> = run(&service, pace, |_| Err(BenchError::Panicked));
        assert!(failed.is_err());
    }
}
