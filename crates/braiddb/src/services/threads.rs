//! Background threads.

use std::sync::Arc;
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

    /// Whether this is the calling thread.
    pub(crate) fn is_current(&self) -> bool {
        let thread = self.0.lock();
        thread.as_ref().is_some_and(JoinHandle::is_current)
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
    state: Mutex<TickerState>,
    wake: Condvar,
    pub(crate) thread: Thread,
}

#[derive(Debug, Default)]
struct TickerState {
    is_stopped: bool,
    /// Whether a turn was requested that has not begun.
    is_requested: bool,
    /// Whether the thread shall look for work before its next tick.
    is_early: bool,
}

impl Ticker {
    /// Sleeps for `time`, or until a turn is requested or the thread shall look for work. Returns `false` if the ticker was stopped.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        let is_idle =
            |state: &mut TickerState| !state.is_stopped && !state.is_requested && !state.is_early;
        self.wake.wait_while_for(&mut state, is_idle, time);
        !state.is_stopped
    }

    /// Makes the thread take a turn soon.
    pub(crate) fn request(&self) {
        self.state.lock().is_requested = true;
        self.wake.notify_all();
    }

    /// Makes the thread look for work now instead of at its next tick.
    pub(super) fn look_early(&self) {
        self.state.lock().is_early = true;
        self.wake.notify_all();
    }

    /// Pauses the thread's turn for `time`, unless or until `is_urgent`, whose changes the caller of
    /// [`Ticker::wake`] announces, a turn is requested, or the ticker is stopped.
    pub(super) fn pause(&self, time: Duration, is_urgent: impl Fn() -> bool) {
        let mut state = self.state.lock();
        let goes_on =
            |state: &mut TickerState| !state.is_stopped && !state.is_requested && !is_urgent();
        self.wake.wait_while_for(&mut state, goes_on, time);
    }

    /// Ends a pause that is urgent.
    pub(super) fn wake(&self) {
        // Under the lock: a thread that is about to pause has not asked yet, or sleeps.
        drop(self.state.lock());
        self.wake.notify_all();
    }

    /// Returns whether a turn was requested since the last call.
    pub(crate) fn take_request(&self) -> bool {
        std::mem::take(&mut self.state.lock().is_requested)
    }

    /// Returns whether the thread was asked to look for work since the last call.
    pub(super) fn take_early_look(&self) -> bool {
        std::mem::take(&mut self.state.lock().is_early)
    }

    /// Makes the thread end after its turn.
    pub(crate) fn signal(&self) {
        self.state.lock().is_stopped = true;
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
    /// Shared with the log, whose flushes announce that the log is half full.
    pub(super) checkpoint: Arc<Ticker>,
    /// Shared with the engine, whose commits request collections.
    pub(super) collector: Arc<Ticker>,
    pub(super) sweeper: Ticker,
    /// Shared with the stores, whose transactions request longer data files.
    pub(super) extender: Arc<Ticker>,
    /// The threads of the tablespaces' agents.
    pub(super) agents: Mutex<Vec<JoinHandle>>,
}

impl Maintenance {
    /// Stops the threads, apart from the timer, and waits for them to end.
    pub(super) fn stop(&self) {
        let tickers = [
            &*self.checkpoint,
            &*self.collector,
            &self.sweeper,
            &*self.extender,
        ];
        tickers.iter().for_each(|ticker| ticker.signal());
        tickers.iter().for_each(|ticker| ticker.thread.join());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use braid_io::MemoryDevice;

    use crate::Database;

    #[test]
    fn an_open_without_background_threads_starts_none() {
        let device = Arc::new(MemoryDevice::new());
        for background in [false, true, false] {
            let builder = Database::builder()
                .pool_bytes(1 << 20)
                .background_threads(background);
            let db = builder.open_on(device.clone()).unwrap();
            let timer = &db.instance().maintenance.timer;
            assert_eq!(timer.0.lock().is_some(), background);
            db.close().unwrap();
        }
    }
}
