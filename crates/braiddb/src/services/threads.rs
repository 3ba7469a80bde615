//! Background threads.

use std::sync::Arc;
use std::time::Duration;

use braid_rt::thread::JoinHandle;
use braid_rt::{Condvar, Mutex};

use super::Instance;
use crate::error::{Error, Result};

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

impl Instance {
    /// Starts a thread that calls `turn` until that returns `false` or the database is dropped. If
    /// the thread panics, it poisons the database, which cannot be relied on without the thread.
    pub(crate) fn start_thread(
        self: &Arc<Self>,
        name: &'static str,
        mut turn: impl FnMut(&Arc<Self>) -> bool + Send + 'static,
    ) -> Result<JoinHandle> {
        // Weak references: the thread must not keep the database open.
        let (weak, watched) = (Arc::downgrade(self), Arc::downgrade(self));
        let work = move || while weak.upgrade().is_some_and(|instance| turn(&instance)) {};
        let died = move |panic: &str| {
            if let Some(instance) = watched.upgrade() {
                let cause = format!("the thread {name} panicked: {panic}");
                instance.engine.poison(&cause);
                instance.engine.tell_health();
            }
        };
        let thread = braid_rt::thread::spawn_watched(name, work, died);
        thread.map_err(|e| Error::io(format!("cannot start the thread {name}"), e))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use crate::device::MemoryDevice;
    use crate::{Database, Error, Health, Readable};

    #[test]
    fn a_thread_that_dies_poisons_the_database() {
        let (sender, told) = mpsc::channel();
        let builder = Database::builder().strands(2).pool_bytes(1 << 20);
        let builder = builder.segment_bytes(64 << 10).background_threads(false);
        let listened = builder.on_health_change(move |health| drop(sender.send(health.clone())));
        let db = listened.open_on(Arc::new(MemoryDevice::new())).unwrap();
        let t = db.open_table::<u64, u64>("t").unwrap();
        db.transact(|tx| tx.insert(&t, &1, &1)).unwrap();
        let died = |_: &Arc<_>| std::panic::resume_unwind(Box::new("out of order"));
        let thread = db.instance().start_thread("braid-test", died).unwrap();
        assert!(thread.join().is_err());
        let cause = "the thread braid-test panicked: out of order";
        for health in [told.recv().unwrap(), db.health()] {
            assert!(matches!(health, Health::Poisoned { cause: found } if found == cause));
        }
        let commit = db.transact(|tx| tx.insert(&t, &1, &2)).unwrap_err();
        let checkpoint = db.checkpoint().unwrap_err();
        for error in [commit, checkpoint] {
            assert!(matches!(error, Error::Poisoned { cause: found } if found == cause));
        }
        assert_eq!(db.snapshot().get(&t, &1).unwrap(), Some(1));
    }
}
