//! Flush timer: flushes that no thread waits for, started in time by the maintenance thread.

use std::time::{Duration, Instant};

use braid_rt::{Condvar, Mutex};

/// Deadline of the next requested flush. The maintenance thread sleeps on it; commits set it.
#[derive(Debug, Default)]
pub(crate) struct FlushTimer {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    flush_due: Option<Instant>,
}

impl FlushTimer {
    /// Requests a flush that begins within `bound`.
    pub(crate) fn flush_within(&self, bound: Duration) {
        let Some(due) = braid_rt::now_plus(bound) else {
            return;
        };
        let mut state = self.state.lock();
        if state.flush_due.is_none_or(|before| due < before) {
            state.flush_due = Some(due);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Stops the timer and wakes the maintenance thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_one();
    }

    /// Sleeps for `tick`, or until a flush is due. Returns whether a flush is due; `None` after
    /// [`FlushTimer::stop`].
    pub(crate) fn sleep(&self, tick: Duration) -> Option<bool> {
        let mut state = self.state.lock();
        let tick = braid_rt::now() + tick;
        while !state.stop {
            let until = state.flush_due.map_or(tick, |due| due.min(tick));
            if self.wake.wait_until(&mut state, until).timed_out() {
                let flush = state.flush_due.is_some_and(|due| due <= braid_rt::now());
                if flush {
                    state.flush_due = None;
                }
                return Some(flush);
            }
        }
        None
    }
}
