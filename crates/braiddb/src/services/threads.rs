//! Background threads.

use std::time::Duration;

use braid_rt::thread::JoinHandle;
use braid_rt::{Condvar, Mutex};

/// Handle of a background thread, after it was started.
#[derive(Debug, Default)]
pub(crate) struct Thread(Mutex<Option<JoinHandle>>);

impl Thread {
    pub(crate) fn set(&self, thread: JoinHandle) {
        *self.0.lock() = Some(thread);
    }

    /// Waits for the thread to end. The caller has already signalled it to end.
    pub(crate) fn join(&self) {
        let thread = self.0.lock().take();
        if let Some(thread) = thread
            && !thread.is_current()
        {
            // The panic hook has reported a panic of the thread; closing continues.
            let _ = thread.join();
        }
    }
}

/// Timer on which a thread sleeps between its turns, until it is stopped.
#[derive(Debug, Default)]
pub(crate) struct Ticker {
    stopped: Mutex<bool>,
    wake: Condvar,
    pub(crate) thread: Thread,
}

impl Ticker {
    /// Sleeps for `time`. Returns `false` if the ticker was stopped.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        self.wake
            .wait_while_for(&mut stopped, |stopped| !*stopped, time);
        !*stopped
    }

    /// Makes the thread end after its turn.
    pub(crate) fn signal(&self) {
        *self.stopped.lock() = true;
        self.wake.notify_all();
    }

    /// Stops the thread and waits for it to end.
    pub(crate) fn stop(&self) {
        self.signal();
        self.thread.join();
    }
}

/// The threads of an open database; see [`super::maintenance`].
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    /// Sleeps in the engine's flush timer.
    pub(super) timer: Thread,
    pub(super) checkpoint: Ticker,
    pub(super) collector: Ticker,
    pub(super) sweeper: Ticker,
}

impl Maintenance {
    /// Stops the threads, apart from the timer, and waits for them to end.
    pub(super) fn stop(&self) {
        let tickers = [&self.checkpoint, &self.collector, &self.sweeper];
        tickers.iter().for_each(|ticker| ticker.signal());
        tickers.iter().for_each(|ticker| ticker.thread.join());
    }
}
