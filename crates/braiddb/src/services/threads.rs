//! Background threads.

use std::time::Duration;

use braid_rt::thread::JoinHandle;
use braid_rt::{Condvar, Mutex};

/// A background thread, once it was started.
#[derive(Debug, Default)]
pub(crate) struct Thread(Mutex<Option<JoinHandle>>);

impl Thread {
    pub(crate) fn set(&self, thread: JoinHandle) {
        *self.0.lock() = Some(thread);
    }

    /// Waits for the thread to end. The caller has told it to.
    pub(crate) fn join(&self) {
        let thread = self.0.lock().take();
        if let Some(thread) = thread
            && !thread.is_current()
        {
            // The panic hook has reported a panic there; closing continues.
            let _ = thread.join();
        }
    }
}

/// Where a thread sleeps between its turns, and is told to end.
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

    /// Ends the thread, and waits for that.
    pub(crate) fn stop(&self) {
        *self.stopped.lock() = true;
        self.wake.notify_all();
        self.thread.join();
    }
}
