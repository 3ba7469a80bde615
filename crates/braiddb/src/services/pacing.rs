//! Pacing of checkpoints and loads, so that commits find an idle device most of the time.
//!
//! A checkpoint that somebody asked for, and a load, work in pieces, and pause after each piece for
//! commits, as all background work does ([`Log::pause_background`]).
//!
//! A checkpoint that is due because the log has grown spreads its writes. It should be complete when
//! the log has grown by [`COMPLETION_TARGET`] of the bytes after which the next one is due. It pauses
//! after each batch of pages with which it is ahead of that, unless somebody waits for it or may soon
//! have to: a writer that finds too many copied images waiting writes one itself.

use std::time::{Duration, Instant};

use braid_log::{CheckpointRun, Log};
use braid_rt::MutexGuard;
use braid_store::{CheckpointProgress, Pacing};

use super::instance::Instance;

/// Part of the log between two checkpoints in which a checkpoint is written.
const COMPLETION_TARGET: f64 = 0.5;

/// Longest pause after a batch. Without new log, a checkpoint writes a batch in this time, so that
/// it ends.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// Lets a load leave the device to commits.
pub(super) struct CommitPacing(pub(super) Log);

impl Pacing for CommitPacing {
    fn is_device_needed(&self) -> bool {
        self.0.is_device_needed()
    }

    fn pause(&self, begun: Instant) {
        self.0.pause_background(begun);
    }
}

/// How a checkpoint is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// As fast as the device allows, with pauses for commits.
    Requested,
    /// In proportion to the growth of the log.
    WithLog,
}

impl Instance {
    /// Waits for a running checkpoint, which no longer pauses, and lets no other begin until the
    /// guard is dropped.
    pub(crate) fn hold_checkpoints(&self) -> MutexGuard<'_, ()> {
        let checkpoints = &self.checkpoints;
        checkpoints.add_waiter();
        self.maintenance.checkpoint.wake();
        let guard = checkpoints.running.lock();
        checkpoints.remove_waiter();
        guard
    }

    /// Pauses a checkpoint that was requested, of which a piece began at `begun`, if commits need the
    /// device and nobody needs the checkpoint more.
    pub(super) fn pause_requested_checkpoint(&self, run: &CheckpointRun<'_>, begun: Instant) {
        if braid_rt::mutant!("checkpoint_without_pauses") {
            return;
        }
        let pause = self.engine.log.background_pause(begun);
        if !pause.is_zero() {
            let ticker = &self.maintenance.checkpoint;
            ticker.pause(pause, || self.is_urgent(run));
        }
    }

    /// Pauses a checkpoint that is ahead. `log_bytes` bytes of log were written before it began.
    pub(super) fn pause_checkpoint(
        &self,
        run: &CheckpointRun<'_>,
        progress: CheckpointProgress,
        log_bytes: u64,
    ) {
        let grown = self.engine.log.stats().written_bytes - log_bytes;
        if !is_ahead(progress, grown, self.checkpoints.log_bytes_due) {
            return;
        }
        let is_urgent = || self.is_urgent(run);
        if is_urgent() {
            braid_rt::coverage_point("checkpoint: somebody waits for a paced one");
        } else {
            braid_rt::coverage_point("checkpoint: pauses");
            self.maintenance.checkpoint.pause(PAUSE_MAX, is_urgent);
        }
    }

    /// Cuts off the ends of the data files that a checkpoint has made free, with pauses for commits.
    /// Leaves the rest to the next checkpoint if somebody needs that one.
    pub(super) fn cut_off_ends(&self, run: &CheckpointRun<'_>) {
        for store in self.engine.stores() {
            let mut begun = braid_rt::now();
            while !self.is_urgent(run) && store.cut_off_some() {
                if !braid_rt::mutant!("cut_off_without_pauses") {
                    self.pause_requested_checkpoint(run, begun);
                }
                begun = braid_rt::now();
            }
        }
    }

    /// Whether somebody waits for a checkpoint that pauses, or may soon have to.
    fn is_urgent(&self, run: &CheckpointRun<'_>) -> bool {
        self.checkpoints.has_waiter()
            || run.is_urgent()
            || self.engine.has_refused()
            || (self.engine.has_many_copies() && !braid_rt::mutant!("pause_while_copies_wait"))
    }
}

/// Whether a checkpoint has written more of its pages than the growth of the log asks for.
fn is_ahead(progress: CheckpointProgress, grown: u64, due: u64) -> bool {
    let written = progress.pages_written as f64 / progress.pages_total.max(1) as f64;
    written * COMPLETION_TARGET * due as f64 > grown as f64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, mpsc};

    use braid_io::{File, Layer, LayeredDevice, SimDevice};

    use super::*;
    use crate::{Database, Readable};

    /// Creates a database with a small pool, whose checkpoints the test writes.
    fn database() -> Database {
        let builder = Database::builder().pool_bytes(1 << 20);
        let builder = builder.background_threads(false);
        builder.open_on(Arc::new(SimDevice::new(1))).unwrap()
    }

    #[test]
    fn a_checkpoint_is_ahead_of_the_log_or_not() {
        let progress = |pages_written, pages_total| {
            let mut progress = CheckpointProgress::default();
            (progress.pages_written, progress.pages_total) = (pages_written, pages_total);
            progress
        };
        // Half of the pages for a quarter of the log.
        assert!(is_ahead(progress(50, 100), 24, 100));
        assert!(!is_ahead(progress(50, 100), 25, 100));
        assert!(is_ahead(progress(1, 100), 0, 100));
        assert!(!is_ahead(progress(0, 0), 0, 100));
        assert!(!is_ahead(progress(100, 100), 50, 100));
    }

    /// Ends only if a waiter ends the pause.
    #[test]
    fn a_checkpoint_for_which_somebody_waits_does_not_pause() {
        let db = database();
        let instance = db.instance();
        let (sender, running) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _running = instance.checkpoints.running.lock();
                sender.send(()).unwrap();
                let is_urgent = || instance.checkpoints.has_waiter();
                let ticker = &instance.maintenance.checkpoint;
                ticker.pause(Duration::from_secs(3_600), is_urgent);
            });
            running.recv().unwrap();
            drop(instance.hold_checkpoints());
        });
        assert!(!instance.checkpoints.has_waiter());
    }

    /// A writer that finds more copies waiting writes an image itself.
    #[test]
    fn a_checkpoint_does_not_pause_while_many_copies_wait() {
        let db = database();
        let t = db.open_table::<u64, u64>("t").unwrap();
        (0..5_000).for_each(|key| db.transact(|tx| tx.insert(&t, &key, &key)).unwrap());
        let instance = db.instance();
        let run = instance.engine.log.begin_checkpoint();
        let checkpoint = instance.engine.store.begin_checkpoint(Vec::new()).unwrap();
        let (sender, woken) = mpsc::channel();
        checkpoint.wake_for_copies(Arc::new(move || sender.send(()).unwrap()));
        let mut keys = (0..5_000).rev();
        while !instance.is_urgent(&run) {
            assert!(woken.try_recv().is_err());
            let key = keys.next().expect("few pages are changed");
            db.transact(|tx| tx.insert(&t, &key, &0)).unwrap();
        }
        woken.try_recv().unwrap();
        drop(checkpoint);
        assert!(!instance.is_urgent(&run));
    }

    #[test]
    fn a_paced_checkpoint_writes_every_page() {
        let db = database();
        let t = db.open_table::<u64, u64>("t").unwrap();
        (0..10_000).for_each(|key| db.transact(|tx| tx.insert(&t, &key, &key)).unwrap());
        let instance = db.instance();
        assert!(instance.is_checkpoint_due());
        instance.paced_checkpoint().unwrap();
        assert!(!instance.is_checkpoint_due() && !instance.engine.store.has_dirty_pages());
    }

    fn pauses(db: &Database) -> u64 {
        db.engine().log.stats().background_pauses
    }

    /// Commits a transaction that no thread flushes.
    fn commit_unflushed(db: &Database) {
        let t = db.open_table::<u64, u64>("t").unwrap();
        let mut tx = db.begin();
        tx.insert(&t, &1, &2).unwrap();
        drop(tx.commit_async().unwrap());
        let log = &db.engine().log;
        assert!(log.acknowledged() < log.last_seqno());
    }

    #[test]
    fn a_requested_checkpoint_pauses_for_commits() {
        let db = database();
        let t = db.open_table::<u64, u64>("t").unwrap();
        let change_all = |value: u64| {
            db.transact(|tx| (0..10_000).try_for_each(|key| tx.insert(&t, &key, &value)))
                .unwrap();
        };
        change_all(1);
        db.checkpoint().unwrap();
        // One for the commits before it, which the first piece notices.
        assert!(pauses(&db) <= 1);
        let before = pauses(&db);
        change_all(2);
        commit_unflushed(&db);
        db.checkpoint().unwrap();
        assert!(pauses(&db) > before + 1);
        assert!(!db.engine().store.has_dirty_pages());
    }

    /// Fills a table with entries of 1,000 bytes, writes a checkpoint, and drops the table.
    fn drop_filled_table(db: &Database, entries: u64) {
        let t = db.open_table::<u64, crate::Bytes>("dropped").unwrap();
        db.transact(|tx| (0..entries).try_for_each(|key| tx.insert(&t, &key, &[1; 1_000])))
            .unwrap();
        db.checkpoint().unwrap();
        drop(t);
        db.drop_table("dropped").unwrap();
    }

    /// A file system may discard what is cut off, which takes as long as the piece is large.
    #[test]
    fn cutting_off_the_end_of_the_data_file_pauses_for_commits() {
        const LARGEST: u64 = 1 << 20;
        for is_idle in [true, false] {
            let longest = Longest::default();
            let device = SimDevice::new(1);
            let device = LayeredDevice::over(Arc::new(device), longest.clone());
            let builder = Database::builder().pool_bytes(1 << 20);
            let builder = builder.background_threads(false);
            let db = builder.open_on(Arc::new(device)).unwrap();
            drop_filled_table(&db, 8_000);
            db.engine().free_dropped_tables().unwrap();
            // The blocks are free after the first checkpoint, and in no superblock after the second.
            db.checkpoint().unwrap();
            let (instance, store) = (db.instance(), &db.engine().store);
            let bytes = || store.stats().file_bytes;
            let before = bytes();
            let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
            checkpoint.write(&|_| ()).unwrap();
            checkpoint.publish_keeping(|_| false).unwrap();
            if !is_idle {
                commit_unflushed(&db);
            }
            let paused = pauses(&db);
            instance.cut_off_ends(&instance.engine.log.begin_checkpoint());
            let pieces = (before - bytes()) / LARGEST;
            assert!(pieces > 4, "{pieces}");
            assert!(longest.0.load(Ordering::Relaxed) <= LARGEST);
            // The first piece notices the commits before it.
            assert_eq!(pauses(&db) - paused <= 1, is_idle);
        }
    }

    /// Records by how many bytes a file was shortened at most.
    #[derive(Clone, Debug, Default)]
    struct Longest(Arc<AtomicU64>);

    impl Layer for Longest {
        fn set_len(&self, file: &dyn File, len: u64) -> io::Result<()> {
            let bytes = file.len()?.saturating_sub(len);
            self.0.fetch_max(bytes, Ordering::Relaxed);
            file.set_len(len)
        }
    }

    #[test]
    fn freeing_a_dropped_table_pauses_for_commits() {
        for is_idle in [true, false] {
            let db = database();
            drop_filled_table(&db, 3_000);
            let t = db.open_table::<u64, u64>("t").unwrap();
            db.transact(|tx| tx.insert(&t, &1, &1)).unwrap();
            if !is_idle {
                commit_unflushed(&db);
            }
            let (store, before) = (&db.engine().store, pauses(&db));
            let pages = store.stats().pages;
            db.engine().free_dropped_tables().unwrap();
            assert!(store.stats().pages + 300 < pages);
            // The first piece notices the commits before it.
            assert_eq!(pauses(&db) - before <= 1, is_idle);
        }
    }

    #[test]
    fn filling_leaves_pauses_for_commits() {
        for is_idle in [true, false] {
            let db = database();
            let t = db.open_table::<u64, crate::Bytes>("sparse").unwrap();
            db.transact(|tx| (0..4_000).try_for_each(|key| tx.insert(&t, &key, &[1; 1_000])))
                .unwrap();
            let rest = |key: &u64| !key.is_multiple_of(4);
            db.transact(|tx| {
                (0..4_000)
                    .filter(rest)
                    .try_for_each(|key| tx.remove(&t, &key).map(drop))
            })
            .unwrap();
            let engine = db.engine();
            engine.collect_all_versions();
            if !is_idle {
                commit_unflushed(&db);
            }
            let (pages, before) = (engine.store.stats().pages, pauses(&db));
            db.instance().fill_leaves().unwrap();
            assert!(engine.store.stats().pages < pages);
            // The first piece notices the commits before it.
            assert_eq!(pauses(&db) - before <= 1, is_idle);
        }
    }

    #[test]
    fn a_load_pauses_for_commits() {
        for is_idle in [true, false] {
            let db = database();
            let mut loader = db.bulk_load::<u64, crate::Bytes>("loaded").unwrap();
            db.engine().log.sync().unwrap();
            if !is_idle {
                commit_unflushed(&db);
            }
            let entries = (0..4_000u64).map(|key| (key, [1; 1_000]));
            loader.extend(entries).unwrap();
            // The first piece notices the commits before it.
            assert_eq!(pauses(&db) <= 1, is_idle);
            let loaded = loader.finish().unwrap();
            assert_eq!(db.snapshot().iter(&loaded).unwrap().count(), 4_000);
        }
    }
}
