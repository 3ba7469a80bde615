//! Work beside the transactions: checkpoints, flushes that nobody waits for, collecting garbage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_rt::thread::JoinHandle;
use braid_rt::{Condvar, Mutex};
use braid_store::{Checkpoint, CheckpointReport};

use crate::engine::Inner;
use crate::error::{Error, Result};
use crate::observe::trace::Phase;

/// How often the thread looks whether a checkpoint is due. At a gigabyte of log a second this lets 50 MB
/// pass unseen, a small part of what a checkpoint waits for.
const TICK: Duration = Duration::from_millis(50);

/// What the maintenance thread and those who need it share.
#[derive(Debug)]
pub(crate) struct Maintenance {
    state: Mutex<State>,
    wake: Condvar,
    thread: Mutex<Option<JoinHandle>>,
    /// The number of the newest published checkpoint and the log bytes written before it.
    pub(crate) checkpointed: AtomicU64,
    pub(crate) log_bytes_at_checkpoint: AtomicU64,
    /// Checkpoints hold every transaction up to this number.
    pub(crate) covered: AtomicU64,
    /// Log that was replayed at opening and no checkpoint covers yet.
    pub(crate) replayed_bytes: AtomicU64,
    pub(crate) last_error: Mutex<Option<Error>>,
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    flush_due: Option<Instant>,
}

impl Maintenance {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            wake: Condvar::new(),
            thread: Mutex::default(),
            checkpointed: AtomicU64::new(0),
            covered: AtomicU64::new(0),
            log_bytes_at_checkpoint: AtomicU64::new(0),
            replayed_bytes: AtomicU64::new(0),
            last_error: Mutex::default(),
        }
    }

    /// Sees to it that a flush begins within `bound`.
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

    /// Log that no checkpoint covers, if `written` bytes were written in all.
    pub(crate) fn log_bytes_to_recover(&self, written: u64) -> u64 {
        // Relaxed: a checkpoint that ends just now may be seen in part, which the next look corrects.
        let replayed = self.replayed_bytes.load(Ordering::Relaxed);
        let before = self.log_bytes_at_checkpoint.load(Ordering::Relaxed);
        (written + replayed).saturating_sub(before)
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && !thread.is_current()
        {
            // A panic there has been reported by the panic hook; closing goes on.
            let _ = thread.join();
        }
    }

    /// Sleeps until something is due. Says whether to go on, and whether a flush is due.
    fn sleep(&self) -> Option<bool> {
        let mut state = self.state.lock();
        let tick = braid_rt::now() + TICK;
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

/// Where a thread sleeps between its turns, and is told to end.
#[derive(Debug, Default)]
pub(crate) struct Ticker {
    stopped: Mutex<bool>,
    wake: Condvar,
    thread: Mutex<Option<JoinHandle>>,
}

impl Ticker {
    fn set_thread(&self, thread: JoinHandle) {
        *self.thread.lock() = Some(thread);
    }

    /// Sleeps for `time`; `false` if it was stopped.
    fn sleep(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        self.wake
            .wait_while_for(&mut stopped, |stopped| !*stopped, time);
        !*stopped
    }

    /// Ends the thread, and waits for that.
    pub(crate) fn stop(&self) {
        *self.stopped.lock() = true;
        self.wake.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && !thread.is_current()
        {
            // A panic there has been reported by the panic hook; closing goes on.
            let _ = thread.join();
        }
    }
}

impl Inner {
    /// Starts a thread that calls `turn` again and again, until that says no or the database has gone. If the
    /// thread panics, it poisons the database, which could not be relied on without it.
    fn start_thread(
        self: &Arc<Self>,
        name: &'static str,
        mut turn: impl FnMut(&Arc<Self>) -> bool + Send + 'static,
    ) -> Result<JoinHandle> {
        // Weak references: the thread must not keep the database open.
        let (weak, watched) = (Arc::downgrade(self), Arc::downgrade(self));
        let work = move || while weak.upgrade().is_some_and(|inner| turn(&inner)) {};
        let died = move |panic: &str| {
            if let Some(inner) = watched.upgrade() {
                inner.poison(&format!("the thread {name} panicked: {panic}"));
                inner.tell_health();
            }
        };
        let thread = braid_rt::thread::spawn_watched(name, work, died);
        thread.map_err(|e| Error::io(format!("cannot start the thread {name}"), e))
    }

    /// Starts the maintenance thread.
    pub(crate) fn start_maintenance(self: &Arc<Self>) -> Result<()> {
        let thread = self.start_thread("braid-maintenance", |inner| {
            let Some(flush) = inner.maintenance.sleep() else {
                return false;
            };
            if flush {
                inner.log.request_flush();
            }
            inner.maintain();
            true
        })?;
        *self.maintenance.thread.lock() = Some(thread);
        Ok(())
    }

    fn maintain(self: &Arc<Self>) {
        self.collect_all_versions();
        self.tell_health();
        self.publish_stats();
        self.look_for_readers();
        if self.poisoned().is_some() {
            return;
        }
        let written = self.log.stats().written_bytes;
        let result = self.free_dropped_tables().and_then(|()| {
            // Log that was kept for the archive or a feed goes with a checkpoint, too. And where the data file is full,
            // what the newest checkpoint replaces is free only after the next.
            let releasable = self.retention.releasable(self.archived());
            if self
                .maintenance
                .log_bytes_to_recover(written)
                .max(releasable)
                >= self.checkpoint_log_bytes
                || self.lacks_checkpoint()
            {
                self.checkpoint()?;
            }
            Ok(())
        });
        // A table that can't be swept must not keep checkpoints from being made.
        if let Err(error) = result.and(self.sweep_some()) {
            // The next tick tries again; `health` tells meanwhile.
            *self.maintenance.last_error.lock() = Some(error);
            self.tell_health();
        }
    }

    /// Sees who reads in other processes; see [`crate::readers`].
    fn look_for_readers(&self) {
        if let Some(readers) = &self.readers {
            readers.look(&self.log);
        }
    }

    /// Keeps the log behind the newest checkpoint if a reader in another process needs it.
    fn keep_log_for_readers(&self, sequence: u64) {
        if let Some(readers) = &self.readers {
            let seqno = self.maintenance.checkpointed.load(Ordering::Acquire);
            readers.keep_log(sequence, seqno, &self.retention);
        }
    }

    /// How far the archive is, if there is one.
    fn archived(&self) -> Option<u64> {
        self.archiver.as_ref().map(|archiver| archiver.archived())
    }

    /// Brings the archive up to what is durable, if there is one. If that fails, `health` tells, and the log
    /// is kept for the next attempt.
    pub(crate) fn run_archiver(&self) -> Result<()> {
        match &self.archiver {
            None => Ok(()),
            Some(archiver) => archiver.run(&self.log, &self.retention, &self.copies),
        }
    }

    /// How far the archive is, for a checkpoint. Where there are no threads, the checkpoint is what writes it.
    fn archive_at_checkpoint(&self) -> Option<u64> {
        // A database that is being created has nothing to archive yet, and may be created again after a crash.
        let is_behind = |archived| archived < self.log.durable_seqno();
        if !self.background && self.archived().is_some_and(is_behind) {
            let _ = self.run_archiver();
        }
        self.archived()
    }

    /// Starts the thread that writes the archive.
    pub(crate) fn start_archiver(self: &Arc<Self>) -> Result<()> {
        if self.archiver.is_none() {
            return Ok(());
        }
        let thread = self.start_thread("braid-archive", |inner| {
            if !inner.archive_ticker.sleep(inner.archive_interval) {
                return false;
            }
            // `health` tells of an error.
            let _ = inner.run_archiver();
            true
        })?;
        self.archive_ticker.set_thread(thread);
        Ok(())
    }

    /// Whether a transaction was refused for lack of room in the data file, and a checkpoint may make some.
    fn lacks_checkpoint(&self) -> bool {
        self.store.has_refused() && (self.is_checkpoint_due() || self.store.has_dirty_pages())
    }

    /// Whether anything was committed since the newest checkpoint.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        self.log.last_seqno() != self.maintenance.covered.load(Ordering::Acquire)
    }

    /// Writes a checkpoint of the state between two transactions.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _one_at_a_time = self.checkpoint_running.lock();
        self.check_open()?;
        self.checkpoint_locked()
    }

    /// As [`Inner::checkpoint`], for who holds `checkpoint_running`.
    pub(crate) fn checkpoint_locked(&self) -> Result<()> {
        self.checkpoint_with(|_| {})
    }

    /// Writes a checkpoint that makes the data file as short as it can.
    pub(crate) fn shrinking_checkpoint(&self) -> Result<()> {
        let _one_at_a_time = self.checkpoint_running.lock();
        self.check_open()?;
        self.checkpoint_with(Checkpoint::shrink)
    }

    fn checkpoint_with(&self, prepare: impl FnOnce(&mut Checkpoint)) -> Result<()> {
        let phase = Phase::checkpoint();
        let report = self
            .write_checkpoint(prepare)
            .inspect_err(|error| phase.failed(error))?;
        phase.published(report.sequence, report.pages_written);
        Ok(())
    }

    fn check_publishable(&self) -> Result<()> {
        match braid_rt::mutant!("checkpoint_what_failed") {
            true => Ok(()),
            false => self.check_not_poisoned(),
        }
    }

    fn write_checkpoint(&self, prepare: impl FnOnce(&mut Checkpoint)) -> Result<CheckpointReport> {
        // What recovery gave up must be given up in the log before a checkpoint lets it begin later.
        if !braid_rt::mutant!("checkpoint_what_may_come_back") {
            self.log.begin()?;
        }
        let log_bytes = self.log.stats().written_bytes;
        let archived = self.archive_at_checkpoint();
        let replaced = self.store.stats().checkpoint_sequence;
        self.keep_log_for_readers(replaced);
        // Between the transactions, for as long as it takes to switch the epoch.
        let gate = self.page_gate.write();
        let begun = self.log.quiesce(|start| {
            // I8: a transaction that could not be applied poisons the log before it leaves it, so it is seen here,
            // and its pages are in no image.
            self.check_publishable()?;
            let kept_from = self.retention.begin_checkpoint(&start, archived);
            let meta = self.meta.encode(&start, Some(&kept_from));
            let checkpoint = self.store.begin_checkpoint(meta)?;
            Ok::<_, Error>((start, kept_from, checkpoint))
        });
        drop(gate);
        let (start, kept_from, mut checkpoint) = begun?;
        prepare(&mut checkpoint);
        if braid_rt::mutant!("reuse_log_before_checkpoint") {
            self.log.release(&start)?;
        }
        if self.log.durable_seqno() < start.seqno {
            braid_rt::coverage_point("checkpoint: waits for the log");
        }
        checkpoint.write(&|_| {
            self.publish_stats();
            self.look_for_readers();
        })?;
        // I5: log before checkpoint. Everything in the images is durable in the log before a durable
        // superblock refers to them.
        let durable = self.log.ticket(start.seqno).wait();
        if !braid_rt::mutant!("checkpoint_what_failed") {
            durable?;
            assert!(
                self.log.durable_seqno() >= start.seqno,
                "I5: the log before the checkpoint"
            );
        }
        // I8: a failure since the epoch switch concerns no image, but nothing is published after
        // it.
        self.check_publishable()?;
        let needs_pages = |sequence| {
            let readers = self.readers.as_ref();
            readers.is_some_and(|readers| readers.needs_pages(sequence))
        };
        let (report, kept) = checkpoint.publish_keeping(needs_pages)?;
        if let (Some(readers), Some(kept)) = (&self.readers, kept) {
            readers.keep_pages(kept);
        }
        self.keep_log_for_readers(replaced);
        self.maintenance
            .checkpointed
            .store(start.seqno, Ordering::Release);
        self.maintenance
            .covered
            .store(start.seqno, Ordering::Release);
        self.maintenance
            .log_bytes_at_checkpoint
            .store(log_bytes, Ordering::Relaxed);
        self.maintenance.replayed_bytes.store(0, Ordering::Relaxed);
        *self.maintenance.last_error.lock() = None;
        self.counters.checkpoint();
        // I6: checkpoint before reuse. The superblock that makes this log unneeded is durable.
        let kept_from = self.retention.end_checkpoint(&kept_from, &start);
        self.log.release(&kept_from)?;
        self.look_for_readers();
        Ok(report)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use crate::{Database, Error, Health, MemoryDevice, Readable};

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
        let thread = db.inner().start_thread("braid-test", died).unwrap();
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
