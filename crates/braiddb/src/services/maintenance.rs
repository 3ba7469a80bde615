//! Background threads, and the work of the maintenance thread: checkpoints, flushes that no thread
//! waits for, version garbage collection, the sweep of expired entries, and reports.

use std::sync::Arc;
use std::time::Duration;

use braid_rt::thread::JoinHandle;

use super::instance::Instance;
use crate::error::{Error, Result};

/// Interval at which the thread checks whether a checkpoint is due. At a gigabyte of log per
/// second, 50 MB are written in this time, a small part of the log between two checkpoints.
const TICK: Duration = Duration::from_millis(50);

impl Instance {
    /// Starts the maintenance thread.
    pub(crate) fn start_maintenance(self: &Arc<Self>) -> Result<()> {
        let thread = self.start_thread("braid-maintenance", |instance| {
            let Some(flush) = instance.engine.flush_timer.sleep(TICK) else {
                return false;
            };
            if flush {
                instance.engine.log.request_flush();
            }
            instance.maintain();
            true
        })?;
        self.maintenance.set(thread);
        Ok(())
    }

    fn maintain(&self) {
        let engine = &self.engine;
        engine.collect_all_versions();
        engine.report_health();
        self.publish_stats();
        self.look_for_readers();
        if engine.poisoned().is_some() {
            return;
        }
        // A table that cannot be swept must not prevent checkpoints.
        let result = self.checkpoint_if_due();
        if let Err(error) = result.and(self.sweeps.sweep_some(engine)) {
            // The next tick retries; meanwhile `health` reports the error.
            engine.health.set_checkpoint_error(Some(error));
            engine.report_health();
        }
    }

    fn checkpoint_if_due(&self) -> Result<()> {
        self.engine.free_dropped_tables()?;
        if self.is_log_long() || self.lacks_checkpoint() {
            self.checkpoint()?;
        }
        Ok(())
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
                instance.engine.report_health();
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
        let (sender, reported) = mpsc::channel();
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
        for health in [reported.recv().unwrap(), db.health()] {
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
