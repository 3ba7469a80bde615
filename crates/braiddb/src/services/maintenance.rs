//! Background threads. Each does one kind of work, so that a long piece of one kind delays no other:
//!
//! - `braid-timer` requests flushes that no thread waits for;
//! - `braid-checkpoint` writes checkpoints, reports, and looks for readers in other processes;
//! - `braid-announcer` announces to readers in other processes what is durable;
//! - `braid-extender` extends data files before transactions need the room;
//! - `braid-collector` collects old versions and tombstones;
//! - `braid-agent`, one for each tablespace that has one, works for threads of other memory nodes;
//! - `braid-sweeper` frees dropped tables and removes expired entries.
//!
//! The log and the archive have threads of their own.

use std::sync::{Arc, Weak};
use std::time::Duration;

use braid_log::Checkpointer;
use braid_rt::thread::JoinHandle;
use braid_store::Store;

use super::instance::Instance;
use super::readers::Commits;
use super::threads::Ticker;
use crate::error::{Error, Result};

/// Interval at which a thread checks whether it has work. At a gigabyte of log per second, 50 MB
/// are written in this time, a small part of the log between two checkpoints.
const TICK: Duration = Duration::from_millis(50);

impl Instance {
    /// Starts the background threads.
    pub(crate) fn start_maintenance(self: &Arc<Self>) -> Result<()> {
        let threads = &self.maintenance;
        threads
            .timer
            .set(self.start_thread("braid-timer", |instance| {
                let is_due = instance.engine.flush_timer.sleep();
                if is_due {
                    instance.engine.log.request_flush();
                }
                is_due
            })?);
        let thread = self.start_thread("braid-checkpoint", |instance| {
            let goes_on = instance.maintenance.checkpoint.sleep(TICK);
            if goes_on {
                instance.maintain();
            }
            goes_on
        })?;
        threads.checkpoint.thread.set(thread);
        let checkpointer = CheckpointThread::of(self);
        self.engine.log.wait_for_checkpoints(checkpointer);
        self.start_announcer()?;
        self.start_extender()?;
        self.start_agents()?;
        let thread = self.start_thread("braid-collector", |instance| {
            let collector = &instance.maintenance.collector;
            let goes_on = collector.sleep(TICK);
            if goes_on {
                collector.take_request();
                instance.engine.collect_within_limit();
            }
            goes_on
        })?;
        let collector = threads.collector.clone();
        self.engine.gc.on_request(move || collector.request());
        threads.collector.thread.set(thread);
        let mut pause = TICK;
        let thread = self.start_thread("braid-sweeper", move |instance| {
            let goes_on = instance.maintenance.sweeper.sleep(pause);
            if goes_on {
                pause = instance.sweep();
            }
            goes_on
        })?;
        threads.sweeper.thread.set(thread);
        Ok(())
    }

    fn start_announcer(self: &Arc<Self>) -> Result<()> {
        let Some(readers) = &self.readers else {
            return Ok(());
        };
        // It rests until there are readers.
        let (ticker, mut pause) = (readers.announcements.ticker.clone(), Duration::MAX);
        let thread = self.start_thread("braid-announcer", move |instance| {
            let goes_on = ticker.sleep(pause);
            ticker.take_request();
            let (log, readers) = (&instance.engine.log, instance.readers.as_ref());
            let next = readers.and_then(|readers| {
                readers
                    .announcements
                    .announce_round(|| Commits::of(log), || log.request_flush())
            });
            pause = next.unwrap_or(Duration::MAX);
            goes_on
        })?;
        readers.announcements.ticker.thread.set(thread);
        Ok(())
    }

    fn start_extender(self: &Arc<Self>) -> Result<()> {
        let ticker = self.maintenance.extender.clone();
        let thread = self.start_thread("braid-extender", {
            let ticker = ticker.clone();
            move |instance| {
                let goes_on = ticker.sleep(Duration::MAX);
                if goes_on {
                    ticker.take_request();
                    let stores = instance.engine.stores();
                    stores.for_each(|store| store.extend_ahead());
                }
                goes_on
            }
        })?;
        ticker.thread.set(thread);
        self.engine
            .stores()
            .for_each(|store| self.extend_ahead(&store));
        Ok(())
    }

    /// Lets the thread extend a store's data file before transactions need the room, if there are
    /// threads.
    pub(crate) fn extend_ahead(&self, store: &Store) {
        if self.engine.settings.background {
            let ticker = self.maintenance.extender.clone();
            store.extend_ahead_by(move || ticker.request());
        }
    }

    pub(crate) fn stop_maintenance(&self) {
        self.engine.flush_timer.stop();
        self.maintenance.stop();
        if let Some(readers) = &self.readers {
            readers.announcements.ticker.stop();
        }
        self.maintenance.timer.join();
        self.stop_agents();
    }

    fn maintain(&self) {
        let engine = &self.engine;
        engine.report_health();
        self.publish_stats();
        self.look_for_readers();
        engine.note_residency();
        let is_requested = self.maintenance.checkpoint.take_request();
        let is_half_full = self.maintenance.checkpoint.take_early_look();
        if engine.poisoned().is_some() {
            return;
        }
        let outcome = if is_requested || self.lacks_checkpoint() {
            self.checkpoint()
        } else if self.is_log_long() || (is_half_full && self.may_release_log()) {
            self.paced_checkpoint()
        } else {
            return;
        };
        self.report_failure(outcome.err());
    }

    /// Frees dropped tables and removes expired entries. Returns the time to pause.
    fn sweep(&self) -> Duration {
        if self.engine.poisoned().is_some() {
            return TICK;
        }
        self.report_failure(self.engine.free_dropped_tables().err());
        match self.sweeps.sweep_some(&self.engine) {
            Ok(removed) if removed > 0 => Duration::ZERO,
            outcome => {
                self.report_failure(outcome.err());
                TICK
            }
        }
    }

    /// Reports a failure of background work, which the next turn tries again.
    fn report_failure(&self, error: Option<Error>) {
        if error.is_some() {
            self.engine.health.set_checkpoint_error(error);
            self.engine.report_health();
        }
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

/// The checkpoint thread, as the log knows it.
struct CheckpointThread {
    instance: Weak<Instance>,
    /// For the threads of the log, which must not drop the database.
    ticker: Arc<Ticker>,
}

impl CheckpointThread {
    fn of(instance: &Arc<Instance>) -> Self {
        Self {
            instance: Arc::downgrade(instance),
            ticker: instance.maintenance.checkpoint.clone(),
        }
    }
}

impl Checkpointer for CheckpointThread {
    fn request(&self) -> bool {
        let Some(instance) = self.instance.upgrade() else {
            return false;
        };
        let thread = &instance.maintenance.checkpoint;
        // A listener that the thread calls may commit.
        if !instance.may_release_log() || thread.thread.is_current() {
            return false;
        }
        thread.request();
        true
    }

    fn half_full(&self) {
        self.ticker.look_early();
    }

    fn log_kept_for(&self) -> Option<String> {
        let instance = self.instance.upgrade()?;
        if let Some(space) = instance.engine.spaces.first_lagging() {
            let name = &space.name;
            return Some(format!(
                "tablespace {name:?}, whose data file could not be written"
            ));
        }
        instance.retention.holder(instance.archive.archived())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use crate::device::MemoryDevice;
    use crate::{Database, Error, Health, Readable};

    /// No tick passes, because no thread runs.
    #[test]
    fn a_log_that_is_half_full_wakes_the_checkpoint_thread() {
        let builder = Database::builder()
            .strands(1)
            .pool_bytes(1 << 20)
            .segment_bytes(64 << 10)
            .checkpoint_log_bytes(1 << 20)
            .max_log_bytes(2 << 20)
            .background_threads(false);
        let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
        let t = db.open_table::<u64, crate::Bytes>("t").unwrap();
        let instance = db.instance();
        let log = &instance.engine.log;
        log.wait_for_checkpoints(super::CheckpointThread::of(instance));
        let is_early = || instance.maintenance.checkpoint.take_early_look();
        let insert = || db.transact(|tx| tx.insert(&t, &1, &[1; 1_000])).unwrap();
        while log.stats().used_bytes < 500_000 {
            insert();
            assert!(!is_early());
        }
        while !instance.is_log_long() {
            insert();
        }
        assert!(is_early(), "the log is half full");
        insert();
        assert!(!is_early(), "the thread knows it");
        instance.checkpoint().unwrap();
        while !is_early() {
            insert();
        }
        // The thread looks before as much log is written as the options ask for.
        assert!(!instance.is_log_long());
        instance.maintenance.checkpoint.look_early();
        let forever = std::time::Duration::MAX;
        assert!(instance.maintenance.checkpoint.sleep(forever));
        instance.maintain();
        assert!(!instance.is_checkpoint_due());
        assert!(!is_early());
    }

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
