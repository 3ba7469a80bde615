//! How the writer announces to readers in other processes what is durable.
//!
//! An announcement is a write to a file, which may wait for the file system. So flushes announce
//! nothing while commits follow each other: a thread announces at intervals, and readers wait for
//! an announcement that began after they asked. Once no commit has become durable for some
//! intervals, the thread announces that the durable seqno is *exact*, and rests. The next flush
//! withdraws that before its commits are acknowledged. See `docs/decisions/0068-*.md`.
//!
//! `gsn` acknowledges transactions ahead of the durable seqno. So a *round* of the thread begins with
//! the newest number acknowledged, and ends with the announcement that contains it, for which the
//! thread requests flushes. Other protocols end a round with each announcement.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_io::{Announcement, ReaderTable};
use braid_log::{Announcer, Log, SeqNo};

use crate::base::sync::{AtomicBool, Mutex};
use crate::services::threads::Ticker;

/// Interval of the thread's announcements. A reader waits for two.
const INTERVAL: Duration = Duration::from_millis(2);

/// Announcements without a new durable seqno after which the thread rests.
const IDLE_ROUNDS: u32 = if cfg!(loom) { 1 } else { 10 };

/// The writer's announcements. Clones of the [`Arc`] announce for the log's flushes.
#[derive(Debug)]
pub(crate) struct Announcements {
    table: Arc<dyn ReaderTable>,
    announced: Mutex<Announced>,
    /// Whether the next flush announces: if there are no background threads, or to withdraw an
    /// exact announcement.
    flush_announces: AtomicBool,
    /// Whether the thread announces, apart from its rests: only while there are readers.
    is_watched: AtomicBool,
    /// Whether each flush announces, with or without readers: there are no background threads.
    pub(super) always: bool,
    /// The thread that announces sleeps on it.
    pub(crate) ticker: Arc<Ticker>,
}

/// The newest announcement.
#[derive(Debug)]
struct Announced {
    newest: Announcement,
    /// Whether readers may see an exact announcement: this one, or an earlier one that could not be
    /// replaced.
    may_be_trusted: bool,
    /// The thread's announcements since a number was assigned or became durable.
    idle_rounds: u32,
    /// The newest number that was assigned before the newest of them.
    assigned: SeqNo,
    /// The newest number that was acknowledged when the current round began, if one has begun.
    round: Option<SeqNo>,
}

/// How far the commits of the writer are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commits {
    /// The newest number that was assigned.
    pub(crate) assigned: SeqNo,
    /// The newest number that was acknowledged.
    pub(crate) acknowledged: SeqNo,
    pub(crate) durable: SeqNo,
}

impl Commits {
    /// Reads the numbers of a log.
    pub(crate) fn of(log: &Log) -> Self {
        Self {
            assigned: log.last_seqno(),
            acknowledged: log.acknowledged(),
            // Last: protocols that acknowledge in order have not acknowledged more.
            durable: log.durable_seqno(),
        }
    }
}

impl Announcements {
    /// The announcements of a new writer. Without background threads, flushes make them.
    pub(crate) fn new(table: Arc<dyn ReaderTable>, background: bool) -> Self {
        let announcements = Self {
            table,
            announced: Mutex::new(Announced {
                newest: Announcement {
                    writer: braid_rt::entropy(),
                    process: std::process::id(),
                    ..Announcement::default()
                },
                // What an earlier writer announced does not count.
                may_be_trusted: false,
                idle_rounds: 0,
                assigned: SeqNo::NONE,
                round: None,
            }),
            flush_announces: AtomicBool::new(!background),
            is_watched: AtomicBool::new(false),
            always: !background,
            ticker: Arc::default(),
        };
        // If this fails, readers find another writer's announcement, which does not count.
        let _ = announcements.write(&mut announcements.announced.lock());
        announcements
    }

    /// Announces that the log is recovered up to `durable`.
    pub(crate) fn begin(&self, durable: SeqNo) {
        let mut announced = self.announced.lock();
        let newest = &mut announced.newest;
        newest.recovered = true;
        newest.exact = self.always;
        newest.durable = newest.durable.max(durable.get());
        // If this fails, readers wait until a later one is there.
        let _ = self.write(&mut announced);
    }

    /// Writes the newest announcement.
    ///
    /// # Errors
    /// If readers may still see the previous one. What that says is durable is so.
    fn write(&self, announced: &mut Announced) -> io::Result<()> {
        announced.may_be_trusted |= announced.newest.exact;
        self.table.announce(&announced.newest)?;
        announced.may_be_trusted = announced.newest.exact;
        Ok(())
    }

    /// Announces that everything up to `durable`, which is about to be acknowledged, is durable; or
    /// that the durable seqno is not exact any more.
    ///
    /// # Errors
    /// If readers may still trust an exact announcement without that: nothing may be acknowledged.
    #[cold]
    fn announce_flush(&self, durable: SeqNo) -> io::Result<()> {
        let mut announced = self.announced.lock();
        let newest = &mut announced.newest;
        if self.always || braid_rt::mutant!("announce_each_flush") {
            if durable.get() > newest.durable {
                newest.durable = durable.get();
                self.write(&mut announced)?;
            }
            return Ok(());
        }
        if announced.may_be_trusted && !braid_rt::mutant!("let_an_exact_announcement_stand") {
            let newest = &mut announced.newest;
            newest.exact = false;
            newest.durable = newest.durable.max(durable.get());
            announced.idle_rounds = 0;
            self.write(&mut announced)?;
        }
        // SeqCst: after the announcement, so that another flush waits for that.
        self.flush_announces.store(false, Ordering::SeqCst);
        self.ticker.request();
        Ok(())
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
        // Under the lock: see `watch`.
        if !self.is_watched.load(Ordering::SeqCst) || announced.newest.exact {
            return None;
        }
        let Commits {
            assigned, durable, ..
        } = commits();
        let is_idle = durable.get() <= announced.newest.durable && assigned == announced.assigned;
        announced.assigned = assigned;
        announced.idle_rounds = if is_idle {
            announced.idle_rounds + 1
        } else {
            0
        };
        let may_rest = announced.idle_rounds >= IDLE_ROUNDS;
        self.write_round(&mut announced, commits, may_rest);
        let (is_exact, is_ended) = (announced.newest.exact, announced.round.is_none());
        drop(announced);
        if may_rest && !is_exact || !is_ended && !braid_rt::mutant!("leave_lanes_unflushed") {
            // Nobody waits for the last commits, such as one that was aborted, or for those of
            // another lane.
            flush();
        }
        (!is_exact).then_some(INTERVAL)
    }

    /// Announces everything that is durable now. If `may_be_exact`, asks the next flush to announce,
    /// and says that the durable seqno is exact unless a flush has overlooked that and may still
    /// acknowledge a greater one.
    fn write_round(
        &self,
        announced: &mut Announced,
        commits: impl Fn() -> Commits,
        may_be_exact: bool,
    ) {
        let early = braid_rt::mutant!("count_commits_before_asking_flushes").then(&commits);
        if may_be_exact {
            // SeqCst: before the numbers are read. A flush reads the newest number that was assigned,
            // and then this word. If it overlooks this store, it acknowledges nothing greater than
            // the assigned number that is read here.
            self.flush_announces.store(true, Ordering::SeqCst);
        }
        let Commits {
            assigned,
            acknowledged,
            durable,
        } = early.unwrap_or_else(commits);
        let is_all_durable =
            durable >= assigned || braid_rt::mutant!("overlook_a_flush_that_publishes");
        let newest = &mut announced.newest;
        newest.exact = may_be_exact && is_all_durable;
        newest.durable = newest.durable.max(durable.get());
        let round = *announced.round.get_or_insert(acknowledged);
        if newest.durable >= round.get() || braid_rt::mutant!("count_unfinished_rounds") {
            newest.rounds += 1;
            announced.round = None;
        }
        // If this fails, readers wait for the next round, or for a flush that withdraws.
        let _ = self.write(announced);
    }

    /// Begins or ends announcements by the thread: there are readers, or there are none. `commits`
    /// reads how far commits are.
    pub(crate) fn watch(&self, is_watched: bool, commits: impl Fn() -> Commits) {
        if is_watched == self.is_watched.load(Ordering::SeqCst) {
            return;
        }
        // Under the lock: another thread may watch, or the announcing thread may rest.
        let mut announced = self.announced.lock();
        self.is_watched.store(is_watched, Ordering::SeqCst);
        announced.idle_rounds = 0;
        announced.newest.exact = false;
        self.write_round(&mut announced, commits, is_watched);
        if is_watched {
            if !announced.newest.exact {
                self.ticker.request();
            }
        } else {
            // An exact announcement that could not be replaced is for the next flush to withdraw.
            let is_withdrawn = !announced.may_be_trusted;
            self.flush_announces.store(!is_withdrawn, Ordering::SeqCst);
        }
    }
}

/// What the log calls when transactions become durable.
pub(crate) struct FlushAnnouncer(pub(crate) Arc<Announcements>);

impl Announcer for FlushAnnouncer {
    fn announce(&self, durable: SeqNo) -> io::Result<()> {
        let announcements = &self.0;
        if announcements.flush_announces.load(Ordering::SeqCst) {
            announcements.announce_flush(durable)?;
        }
        Ok(())
    }

    fn needs_order(&self) -> bool {
        self.0.always && !braid_rt::mutant!("acknowledge_by_lanes_without_threads")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::AtomicU64;

    use braid_io::{Device, MemoryDevice, ReaderGuard, ReaderNeeds};

    use super::*;

    /// A reader table that counts announcements, or refuses them.
    #[derive(Debug)]
    struct Counted {
        table: Arc<dyn ReaderTable>,
        written: AtomicU64,
        refuses: AtomicBool,
    }

    impl ReaderTable for Counted {
        fn claim(&self) -> io::Result<Box<dyn ReaderGuard>> {
            self.table.claim()
        }
        fn is_claimed(&self) -> io::Result<bool> {
            self.table.is_claimed()
        }
        fn announce(&self, announcement: &Announcement) -> io::Result<()> {
            if self.refuses.load(Ordering::SeqCst) {
                return Err(io::Error::other("refused"));
            }
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
        /// The newest number acknowledged by a lane, ahead of the durable seqno.
        ahead: Cell<u64>,
        durable: Cell<u64>,
        requested_flushes: Cell<u64>,
    }

    impl Writer {
        fn new(background: bool) -> Self {
            let table = MemoryDevice::new().reader_table(true).unwrap().unwrap();
            let table = Arc::new(Counted {
                table,
                written: AtomicU64::new(0),
                refuses: AtomicBool::new(false),
            });
            let announcements = Announcements::new(table.clone(), background);
            announcements.begin(SeqNo::NONE);
            Self {
                table,
                flushes: FlushAnnouncer(Arc::new(announcements)),
                assigned: Cell::new(0),
                ahead: Cell::new(0),
                durable: Cell::new(0),
                requested_flushes: Cell::new(0),
            }
        }

        fn commits(&self) -> Commits {
            Commits {
                assigned: SeqNo::new(self.assigned.get()),
                acknowledged: SeqNo::new(self.ahead.get().max(self.durable.get())),
                durable: SeqNo::new(self.durable.get()),
            }
        }

        /// Begins a flush of everything up to `durable`, which publishes that later.
        fn announce(&self, durable: u64) {
            self.assigned.set(self.assigned.get().max(durable));
            self.flushes.announce(SeqNo::new(durable)).unwrap();
        }

        /// As [`Writer::announce`]; returns whether the flush may acknowledge.
        fn may_acknowledge(&self, durable: u64) -> bool {
            self.flushes.announce(SeqNo::new(durable)).is_ok()
        }

        fn refuse(&self, refuses: bool) {
            self.table.refuses.store(refuses, Ordering::SeqCst);
        }

        fn publish(&self, durable: u64) {
            self.durable.set(durable);
        }

        fn flush(&self, durable: u64) {
            self.announce(durable);
            self.publish(durable);
        }

        fn look(&self) {
            let any = 0..u64::MAX;
            let is_pinned = |needs| self.table.is_pinned(any.clone(), needs).unwrap();
            let is_watched = is_pinned(ReaderNeeds::Pages) || is_pinned(ReaderNeeds::Log);
            let announcements = &self.flushes.0;
            if !announcements.always {
                announcements.watch(is_watched, || self.commits());
            }
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

    /// Readers trust an exact announcement as long as it stands, with or without other readers.
    #[test]
    fn nothing_is_acknowledged_while_an_exact_announcement_cannot_be_withdrawn() {
        for ends in [false, true] {
            let writer = Writer::new(true);
            let pin = writer.table.pin(7, ReaderNeeds::Pages).unwrap();
            writer.look();
            assert!(writer.newest().exact);
            writer.refuse(true);
            if ends {
                drop(pin);
                writer.look();
            }
            for durable in 1..4 {
                assert!(!writer.may_acknowledge(durable) && writer.newest().exact);
            }
            writer.refuse(false);
            assert!(writer.may_acknowledge(4) && !writer.newest().exact);
            writer.refuse(true);
            assert!(writer.may_acknowledge(5), "nobody trusts it");
        }
        let writer = Writer::new(false);
        writer.announce(1);
        writer.refuse(true);
        assert!(!writer.may_acknowledge(2));
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
        let announcements = &writer.flushes.0;
        announcements.watch(true, || {
            assert!(announcements.flush_announces.load(Ordering::SeqCst));
            writer.commits()
        });
        assert!(writer.newest().exact);
    }

    /// `gsn` has acknowledged 2 by its lane, and 1 lies in the buffer of another lane.
    #[test]
    fn a_round_ends_when_it_has_announced_what_was_acknowledged() {
        let writer = Writer::new(true);
        let _pin = writer.table.pin(7, ReaderNeeds::Pages).unwrap();
        writer.look();
        writer.assigned.set(2);
        writer.announce(0);
        assert!(
            !writer.newest().exact,
            "withdrawn before the lane acknowledges"
        );
        writer.ahead.set(2);
        let asked = writer.newest().rounds;
        for requests in 1..5 {
            assert_eq!(writer.round(), Some(INTERVAL));
            assert_eq!(writer.newest().rounds, asked);
            assert_eq!(writer.requested_flushes.get(), requests);
        }
        // Others go on meanwhile, and do not delay the round.
        writer.assigned.set(5);
        writer.ahead.set(5);
        writer.publish(3);
        assert_eq!(writer.round(), Some(INTERVAL));
        let newest = writer.newest();
        assert_eq!((newest.rounds, newest.durable), (asked + 1, 3));
        writer.publish(4);
        assert_eq!(writer.round(), Some(INTERVAL));
        assert_eq!(writer.newest().rounds, asked + 1, "5 was acknowledged");
        writer.publish(5);
        writer.rest();
        let newest = writer.newest();
        assert!(newest.exact && newest.durable == 5 && newest.rounds >= asked + 2);
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
