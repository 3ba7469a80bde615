//! The writer's side: announcing the durable seqno, and keeping what readers pin.
//!
//! An announcement is a write to a file, which may wait for the file system. So flushes announce
//! nothing while commits follow each other: a thread announces at intervals, and readers wait for
//! an announcement that began after they asked. Once no commit has become durable for some
//! intervals, the thread announces that the durable seqno is *exact*, and rests. The next flush
//! withdraws that before its commits are acknowledged. See `docs/decisions/0068-*.md`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use braid_io::{Announcement, Device, ReaderGuard, ReaderNeeds, ReaderTable};
use braid_log::{Announcer, Log, SeqNo};
use braid_rt::Mutex;
use braid_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use braid_store::{PinnedCheckpoint, PinnedFile, Store};

use crate::error::{Error, Result};
use crate::services::retention::Retention;
use crate::services::threads::Ticker;

/// Interval of the thread's announcements. A reader waits for two.
const INTERVAL: Duration = Duration::from_millis(2);

/// Announcements without a new durable seqno after which the thread rests.
const IDLE_ROUNDS: u32 = 10;

/// The writer's state about readers in other processes.
#[derive(Debug)]
pub(crate) struct Readers {
    table: Arc<dyn ReaderTable>,
    claim: Mutex<Option<Box<dyn ReaderGuard>>>,
    announced: Mutex<Announced>,
    /// Whether the next flush announces: if there are no background threads, or to withdraw an
    /// exact announcement.
    flush_announces: AtomicBool,
    /// Whether the thread announces, apart from its rests: only while there are readers.
    is_watched: AtomicBool,
    /// Whether each flush announces, with or without readers: there are no background threads.
    always: bool,
    /// The thread that announces sleeps on it.
    pub(crate) ticker: Arc<Ticker>,
    kept: Mutex<Kept>,
}

/// The newest announcement.
#[derive(Debug)]
struct Announced {
    newest: Announcement,
    /// The thread's announcements since a number was assigned or became durable.
    idle_rounds: u32,
    /// The newest number that was assigned before the newest of them.
    assigned: SeqNo,
}

/// How far the commits of the writer are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commits {
    /// The newest number that was assigned.
    pub(crate) assigned: SeqNo,
    pub(crate) durable: SeqNo,
}

impl Commits {
    /// Reads both numbers of a log.
    pub(crate) fn of(log: &Log) -> Self {
        Self {
            assigned: log.last_seqno(),
            durable: log.durable_seqno(),
        }
    }
}

/// Pages and log kept for readers.
#[derive(Debug, Default)]
struct Kept {
    /// The blocks of earlier checkpoints, by checkpoint number.
    pages: Vec<(u64, PinnedCheckpoint)>,
    /// Every block that the file had when it was opened, for readers of checkpoints before this
    /// one.
    file: Option<(u64, PinnedFile)>,
    /// The log after checkpoints.
    log: Vec<(u64, Arc<AtomicU64>)>,
}

impl Readers {
    /// Registers the process as the writer of a database. Returns `None` if the device does not
    /// support readers.
    pub(crate) fn claim(device: &dyn Device, background: bool) -> Result<Option<Arc<Self>>> {
        let failed = |error| Error::io("cannot register as the writer in the reader table", error);
        let table = match device.reader_table(true) {
            Ok(table) => table,
            // Without a table, readers do not open while there is a writer. The writer can
            // continue.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => None,
            Err(error) => return Err(failed(error)),
        };
        let Some(table) = table else { return Ok(None) };
        let readers = Self::of_table(table, background).map_err(failed)?;
        Ok(Some(Arc::new(readers)))
    }

    fn of_table(table: Arc<dyn ReaderTable>, background: bool) -> io::Result<Self> {
        let claim = table.claim()?;
        let readers = Self {
            table,
            claim: Mutex::new(Some(claim)),
            announced: Mutex::new(Announced {
                newest: Announcement {
                    writer: braid_rt::entropy(),
                    process: std::process::id(),
                    ..Announcement::default()
                },
                idle_rounds: 0,
                assigned: SeqNo::NONE,
            }),
            flush_announces: AtomicBool::new(!background),
            is_watched: AtomicBool::new(false),
            always: !background,
            ticker: Arc::default(),
            kept: Mutex::default(),
        };
        readers.write(&readers.announced.lock().newest);
        Ok(readers)
    }

    /// Writes an announcement. Returns whether readers see it; otherwise, they use the previous one,
    /// which is still durable.
    fn write(&self, announcement: &Announcement) -> bool {
        self.table.announce(announcement).is_ok()
    }

    /// Pins all blocks of the file if there are readers of checkpoints before the newest one,
    /// `sequence`: only the previous writer knew which blocks they need. Call before any change.
    pub(crate) fn pin_older(&self, store: &Store, sequence: u64) -> Result<()> {
        if self.is_pinned(0..sequence, ReaderNeeds::Pages) {
            self.kept.lock().file = Some((sequence, store.pin_file()?));
        }
        Ok(())
    }

    /// Announces that the log is recovered, and from then on everything that becomes durable.
    pub(crate) fn open(self: &Arc<Self>, log: &Log) {
        log.announce_durable(FlushAnnouncer(self.clone()));
        let mut announced = self.announced.lock();
        let newest = &mut announced.newest;
        newest.recovered = true;
        newest.exact = self.always;
        newest.durable = newest.durable.max(log.durable_seqno().get());
        self.write(newest);
    }

    /// Announces that everything up to `durable`, which is about to be acknowledged, is durable; or
    /// that the durable seqno is not exact any more.
    #[cold]
    fn announce_flush(&self, durable: SeqNo) {
        let mut announced = self.announced.lock();
        let newest = &mut announced.newest;
        if self.always || braid_rt::mutant!("announce_each_flush") {
            if durable.get() > newest.durable {
                newest.durable = durable.get();
                self.write(newest);
            }
            return;
        }
        if newest.exact && !braid_rt::mutant!("let_an_exact_announcement_stand") {
            newest.exact = false;
            newest.durable = newest.durable.max(durable.get());
            newest.exact = !self.write(newest);
            announced.idle_rounds = 0;
        }
        if !announced.newest.exact {
            // SeqCst: after the announcement, so that another flush waits for that.
            self.flush_announces.store(false, Ordering::SeqCst);
            self.ticker.request();
        }
    }

    /// Announces at the end of an interval, from the thread that does. `commits` reads how far
    /// commits are, and `flush` requests a flush of commits that nobody waits for. Returns the time
    /// until the next announcement; `None` if the thread rests until a flush or a new reader requests
    /// one.
    pub(crate) fn announce_round(
        &self,
        commits: impl Fn() -> Commits,
        flush: impl FnOnce(),
    ) -> Option<Duration> {
        let mut announced = self.announced.lock();
        // Under the lock: see `look`.
        if !self.is_watched.load(Ordering::SeqCst) || announced.newest.exact {
            return None;
        }
        let Commits { assigned, durable } = commits();
        let is_idle = durable.get() <= announced.newest.durable && assigned == announced.assigned;
        announced.assigned = assigned;
        announced.idle_rounds = if is_idle {
            announced.idle_rounds + 1
        } else {
            0
        };
        let may_rest = announced.idle_rounds >= IDLE_ROUNDS;
        self.write_round(&mut announced.newest, commits, may_rest);
        let is_exact = announced.newest.exact;
        drop(announced);
        if may_rest && !is_exact {
            // Nobody waits for the last commits, such as one that was aborted.
            flush();
        }
        (!is_exact).then_some(INTERVAL)
    }

    /// Announces everything that is durable now. If `may_be_exact`, asks the next flush to announce,
    /// and says that the durable seqno is exact unless a flush has overlooked that and may still
    /// publish a greater one.
    fn write_round(
        &self,
        newest: &mut Announcement,
        commits: impl Fn() -> Commits,
        may_be_exact: bool,
    ) {
        let early = braid_rt::mutant!("count_commits_before_asking_flushes").then(&commits);
        if may_be_exact {
            // SeqCst: before the numbers are read. A flush reads the newest number that was assigned,
            // and then this word. If it overlooks this store, it publishes nothing greater than the
            // assigned number that is read here.
            self.flush_announces.store(true, Ordering::SeqCst);
        }
        let Commits { assigned, durable } = early.unwrap_or_else(commits);
        let is_all_durable =
            durable >= assigned || braid_rt::mutant!("overlook_a_flush_that_publishes");
        newest.exact = may_be_exact && is_all_durable;
        newest.durable = newest.durable.max(durable.get());
        newest.rounds += 1;
        self.write(newest);
    }

    /// Checks for readers that came or left. Called at intervals, and by each thread that writes a
    /// checkpoint. `commits` reads how far commits are.
    pub(crate) fn look(&self, commits: impl Fn() -> Commits) {
        self.release_unpinned();
        if self.always {
            return;
        }
        let any = 0..u64::MAX;
        let is_watched = self.is_pinned(any.clone(), ReaderNeeds::Pages)
            || self.is_pinned(any, ReaderNeeds::Log);
        if is_watched == self.is_watched.load(Ordering::SeqCst) {
            return;
        }
        // Under the lock: another thread may look, or the announcing thread may rest.
        let mut announced = self.announced.lock();
        self.is_watched.store(is_watched, Ordering::SeqCst);
        announced.idle_rounds = 0;
        let newest = &mut announced.newest;
        newest.exact = false;
        self.write_round(newest, commits, is_watched);
        if is_watched {
            if !newest.exact {
                self.ticker.request();
            }
        } else {
            self.flush_announces.store(false, Ordering::SeqCst);
        }
    }

    /// Returns whether a reader pins one of the checkpoints, as far as is known.
    fn is_pinned(&self, checkpoints: std::ops::Range<u64>, needs: ReaderNeeds) -> bool {
        // If the table cannot be read, assume a pin.
        let pinned = self.table.is_pinned(checkpoints, needs).unwrap_or(true);
        pinned && !braid_rt::mutant!("ignore_readers")
    }

    /// Returns whether a reader needs the pages of the checkpoint that was just replaced.
    pub(crate) fn needs_pages(&self, sequence: u64) -> bool {
        let needed = self.is_pinned(sequence..sequence + 1, ReaderNeeds::Pages);
        if needed {
            braid_rt::coverage_point("readers: a replaced checkpoint is kept");
        }
        needed
    }

    /// Keeps the pages of a replaced checkpoint for as long as a reader needs them.
    pub(crate) fn keep_pages(&self, pages: PinnedCheckpoint) {
        self.kept.lock().pages.push((pages.sequence(), pages));
    }

    /// Keeps the log after the newest checkpoint, or the previous one, if a reader needs it; within
    /// the same limit as for feeds.
    pub(crate) fn keep_log(&self, sequence: u64, seqno: SeqNo, retention: &Retention) {
        let mut kept = self.kept.lock();
        let is_kept = kept.log.iter().any(|(kept, _)| *kept == sequence);
        if !is_kept && self.is_pinned(sequence..sequence + 1, ReaderNeeds::Log) {
            braid_rt::coverage_point("readers: log is kept");
            kept.log
                .extend(retention.add_reader(seqno).map(|held| (sequence, held)));
        }
    }

    /// Releases everything that no reader pins.
    fn release_unpinned(&self) {
        let mut kept = self.kept.lock();
        let Kept { pages, file, log } = &mut *kept;
        let is_needed = |sequence: u64, needs| self.is_pinned(sequence..sequence + 1, needs);
        pages.retain(|(sequence, _)| is_needed(*sequence, ReaderNeeds::Pages));
        log.retain(|(sequence, _)| is_needed(*sequence, ReaderNeeds::Log));
        file.take_if(|(sequence, _)| !self.is_pinned(0..*sequence, ReaderNeeds::Pages));
    }

    /// Unregisters the writer when the database is closed.
    pub(crate) fn release(&self) {
        *self.kept.lock() = Kept::default();
        *self.claim.lock() = None;
    }
}

/// What the log calls when transactions become durable.
struct FlushAnnouncer(Arc<Readers>);

impl Announcer for FlushAnnouncer {
    fn announce(&self, durable: SeqNo) {
        let readers = &self.0;
        if readers.flush_announces.load(Ordering::SeqCst) {
            readers.announce_flush(durable);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use braid_io::MemoryDevice;

    use super::*;

    /// A reader table that counts announcements.
    #[derive(Debug)]
    struct Counted {
        table: Arc<dyn ReaderTable>,
        written: AtomicU64,
    }

    impl ReaderTable for Counted {
        fn claim(&self) -> io::Result<Box<dyn ReaderGuard>> {
            self.table.claim()
        }
        fn is_claimed(&self) -> io::Result<bool> {
            self.table.is_claimed()
        }
        fn announce(&self, announcement: &Announcement) -> io::Result<()> {
            self.written.fetch_add(1, Ordering::Relaxed);
            self.table.announce(announcement)
        }
        fn announcement(&self) -> io::Result<Option<Announcement>> {
            self.table.announcement()
        }
        fn pin(&self, checkpoint: u64, needs: ReaderNeeds) -> io::Result<Box<dyn ReaderGuard>> {
            self.table.pin(checkpoint, needs)
        }
        fn is_pinned(
            &self,
            checkpoints: std::ops::Range<u64>,
            needs: ReaderNeeds,
        ) -> io::Result<bool> {
            self.table.is_pinned(checkpoints, needs)
        }
    }

    /// A writer without a log: the test is its flushes, and its announcing thread.
    struct Writer {
        table: Arc<Counted>,
        flushes: FlushAnnouncer,
        assigned: Cell<u64>,
        durable: Cell<u64>,
        requested_flushes: Cell<u64>,
    }

    impl Writer {
        fn new(background: bool) -> Self {
            let table = MemoryDevice::new().reader_table(true).unwrap().unwrap();
            let table = Arc::new(Counted {
                table,
                written: AtomicU64::new(0),
            });
            let readers = Readers::of_table(table.clone(), background).unwrap();
            {
                let newest = &mut readers.announced.lock().newest;
                (newest.recovered, newest.exact) = (true, !background);
                readers.write(newest);
            }
            Self {
                table,
                flushes: FlushAnnouncer(Arc::new(readers)),
                assigned: Cell::new(0),
                durable: Cell::new(0),
                requested_flushes: Cell::new(0),
            }
        }

        fn commits(&self) -> Commits {
            Commits {
                assigned: SeqNo::new(self.assigned.get()),
                durable: SeqNo::new(self.durable.get()),
            }
        }

        /// Begins a flush of everything up to `durable`, which publishes that later.
        fn announce(&self, durable: u64) {
            self.assigned.set(self.assigned.get().max(durable));
            self.flushes.announce(SeqNo::new(durable));
        }

        fn publish(&self, durable: u64) {
            self.durable.set(durable);
        }

        fn flush(&self, durable: u64) {
            self.announce(durable);
            self.publish(durable);
        }

        fn look(&self) {
            self.flushes.0.look(|| self.commits());
        }

        fn round(&self) -> Option<Duration> {
            let flushes = &self.requested_flushes;
            let flush = || flushes.set(flushes.get() + 1);
            self.flushes.0.announce_round(|| self.commits(), flush)
        }

        /// Announces until the thread would rest.
        fn rest(&self) {
            for _ in 0..IDLE_ROUNDS + 1 {
                if self.round().is_none() {
                    return;
                }
            }
            panic!("the thread does not rest: {:?}", self.newest());
        }

        fn newest(&self) -> Announcement {
            self.table.announcement().unwrap().unwrap()
        }

        fn written(&self) -> u64 {
            self.table.written.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn flushes_write_nothing_for_readers_while_they_follow_each_other() {
        let writer = Writer::new(true);
        writer.flush(1);
        assert_eq!(writer.newest().durable, 0, "nobody reads");
        assert_eq!(writer.round(), None);
        let pin = writer.table.pin(7, ReaderNeeds::Log).unwrap();
        writer.look();
        assert!(writer.newest().exact && writer.newest().durable == 1);
        let before = writer.written();
        (2..=1_000).for_each(|durable| writer.flush(durable));
        assert_eq!(writer.written() - before, 1, "the first flush");
        assert!(!writer.newest().exact && writer.newest().durable == 2);
        assert!(
            writer.flushes.0.ticker.take_request(),
            "the thread is woken"
        );
        assert_eq!(writer.round(), Some(INTERVAL));
        assert!(!writer.newest().exact && writer.newest().durable == 1_000);
        drop(pin);
        writer.look();
        assert_eq!(writer.round(), None);
        let before = writer.written();
        (1_001..1_100).for_each(|durable| writer.flush(durable));
        assert_eq!(writer.written(), before);
        assert!(!writer.newest().exact);
    }

    /// A reader relies on an exact announcement at once.
    #[test]
    fn a_flush_withdraws_an_exact_announcement_before_it_acknowledges() {
        let writer = Writer::new(true);
        let _pin = writer.table.pin(7, ReaderNeeds::Pages).unwrap();
        writer.look();
        for durable in 1..5 {
            assert!(writer.newest().exact);
            writer.announce(durable);
            assert!(!writer.newest().exact);
            writer.publish(durable);
            let rounds = writer.newest().rounds;
            writer.rest();
            assert!(writer.newest().exact && writer.newest().durable == durable);
            assert!(writer.newest().rounds > rounds + 2);
            assert_eq!(writer.round(), None, "it rests");
        }
    }

    /// The flush has found that it need not announce, and publishes later.
    #[test]
    fn no_announcement_is_exact_while_a_flush_publishes() {
        let writer = Writer::new(true);
        // Another thread, which also found nobody.
        writer.announce(1);
        let _pin = writer.table.pin(7, ReaderNeeds::Pages).unwrap();
        writer.look();
        assert!(!writer.newest().exact);
        (0..3 * IDLE_ROUNDS).for_each(|_| assert_eq!(writer.round(), Some(INTERVAL)));
        assert!(!writer.newest().exact);
        writer.publish(1);
        writer.rest();
        assert!(writer.newest().exact && writer.newest().durable == 1);
    }

    /// A flush that overlooks the question publishes at most what was assigned before it.
    #[test]
    fn flushes_are_asked_to_announce_before_commits_are_counted() {
        let writer = Writer::new(true);
        let _pin = writer.table.pin(7, ReaderNeeds::Pages).unwrap();
        let readers = &writer.flushes.0;
        readers.look(|| {
            assert!(readers.flush_announces.load(Ordering::SeqCst));
            writer.commits()
        });
        assert!(writer.newest().exact);
    }

    /// Nobody waits for an aborted transaction, or for one without durability.
    #[test]
    fn the_last_commits_are_flushed_once_no_more_follow() {
        let writer = Writer::new(true);
        let _pin = writer.table.pin(7, ReaderNeeds::Pages).unwrap();
        writer.assigned.set(1);
        writer.look();
        assert!(!writer.newest().exact);
        for assigned in 2..3 * u64::from(IDLE_ROUNDS) {
            writer.assigned.set(assigned);
            assert_eq!(writer.round(), Some(INTERVAL));
        }
        assert_eq!(writer.requested_flushes.get(), 0, "others follow");
        while writer.requested_flushes.get() == 0 {
            assert_eq!(writer.round(), Some(INTERVAL));
        }
        writer.flush(writer.assigned.get());
        writer.rest();
        assert!(writer.newest().exact);
    }

    #[test]
    fn without_background_threads_each_flush_announces() {
        let writer = Writer::new(false);
        for durable in 1..5 {
            writer.announce(durable);
            assert!(writer.newest().exact && writer.newest().durable == durable);
            writer.publish(durable);
            writer.look();
        }
    }
}
