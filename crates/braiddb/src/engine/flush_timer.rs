//! Flush timer: flushes that no thread waits for, started in time by a thread of their own.

use std::time::{Duration, Instant};

use braid_rt::{Condvar, Mutex};

/// Deadline of the next requested flush. The timer thread sleeps on it; commits set it.
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

    /// Stops the timer and wakes its thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_one();
    }

    /// Sleeps until a flush is due. Returns `false` after [`FlushTimer::stop`].
    pub(crate) fn sleep(&self) -> bool {
        let mut state = self.state.lock();
        while !state.stop {
            match state.flush_due {
                None => self.wake.wait(&mut state),
                Some(due) if due <= braid_rt::now() => {
                    state.flush_due = None;
                    return true;
                }
                Some(due) => drop(self.wake.wait_until(&mut state, due)),
            }
        }
        false
    }
}
