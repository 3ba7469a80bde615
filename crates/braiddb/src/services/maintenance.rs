//! The maintenance thread: checkpoints, flushes that no thread waits for, version garbage
//! collection, the sweep of expired entries, and reports.

use std::sync::Arc;
use std::time::Duration;

use super::Instance;
use super::threads::Thread;
use crate::error::Result;

/// How often the thread checks whether a checkpoint is due. At a gigabyte of log per second, 50 MB
/// are written in this time, a small part of the log between two checkpoints.
const TICK: Duration = Duration::from_millis(50);

/// The maintenance thread. It sleeps in the engine's flush timer.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    thread: Thread,
}

impl Maintenance {
    /// Waits for the thread to end. The flush timer was stopped.
    pub(crate) fn stop(&self) {
        self.thread.join();
    }
}

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
        self.maintenance.thread.set(thread);
        Ok(())
    }

    fn maintain(&self) {
        let engine = &self.engine;
        engine.collect_all_versions();
        engine.tell_health();
        self.publish_stats();
        self.look_for_readers();
        if engine.poisoned().is_some() {
            return;
        }
        // A table that cannot be swept must not prevent checkpoints.
        let result = self.checkpoint_if_due();
        if let Err(error) = result.and(self.sweeps.sweep_some(engine)) {
            // The next tick tries again; meanwhile `health` reports the error.
            engine.health.set_checkpoint_error(Some(error));
            engine.tell_health();
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
