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

    /// Stops the thread and waits for it to end.
    pub(crate) fn stop(&self) {
        *self.stopped.lock() = true;
        self.wake.notify_all();
        self.thread.join();
    }
}
