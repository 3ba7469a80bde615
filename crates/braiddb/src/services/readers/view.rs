//! The reader's side: opening a state that remains valid, and newer ones.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_io::{
    Announcement, Device, DirectoryLock, OverlayDevice, ReaderGuard, ReaderNeeds, ReaderTable,
};
use braid_log::{CheckpointPosition, CommitProgress, Pacer, Recovered, SeqNo};
use braid_rt::Mutex;
use braid_store::Store;

use super::paced::{PacedReads, announced_progress};
use crate::error::{Error, Result};
use crate::options::Builder;
use crate::schema::table::Identity;

/// Maximum time that a reader waits for a writer that is recovering the log.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum time that a reader waits for the writer to notice it and to announce what is durable.
const NOTICE: Duration = Duration::from_secs(1);

/// Maximum number of attempts to open a state while the writer moves to the next.
const ATTEMPTS: u32 = 100;

const PAUSE: Duration = Duration::from_millis(1);

/// Source of a reader's states.
#[derive(Debug)]
pub(crate) struct Source {
    /// Identity of all states that are read from this source: handles of tables are valid for each
    /// of them.
    identity: u64,
    base: Arc<dyn Device>,
    /// The directory, for error messages.
    path: PathBuf,
    /// The reader table. Without one there is no writer: a lock or the caller ensures that.
    table: Option<Arc<dyn ReaderTable>>,
    /// How all that is read is paced, if it is.
    pace: Option<Pace>,
    _lock: Option<DirectoryLock>,
}

/// The pace of a check, which reads all of a database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Maximum number of bytes per second, which replaces pauses while the writer commits.
    pub(crate) max_rate: Option<u64>,
}

/// One attempt to open a state.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// Device that reads from the medium and keeps changes in memory.
    pub(crate) device: Arc<dyn Device>,
    /// The medium.
    base: Arc<dyn Device>,
    path: PathBuf,
    /// The number of the pinned checkpoint, if there may be a writer.
    checkpoint: Option<u64>,
    /// The identity of the source.
    pub(crate) source: u64,
    /// The sequence number up to which the log is durable, if there is a writer.
    pub(crate) durable: Option<SeqNo>,
    /// Paces all reads, if they are paced.
    reads: Option<PacedReads>,
    /// An older position, if log is needed from there on.
    pub(crate) kept_from: Option<CheckpointPosition>,
}

/// The pins of a state, held while the state is open.
#[derive(Debug)]
pub(crate) struct Pins {
    checkpoint: u64,
    /// The writer's announcement when the state was opened.
    announced: Option<Announcement>,
    is_claimed: bool,
    _pages: Box<dyn ReaderGuard>,
    log: Option<Box<dyn ReaderGuard>>,
}

/// The origin of a database that was opened for reading.
#[derive(Debug)]
pub(crate) struct View {
    source: Arc<Source>,
    options: Builder,
    /// The pins; `None` without a reader table.
    pins: Option<Pins>,
    /// Position where the checkpoint began.
    start: CheckpointPosition,
    /// Pins of log for readers of changes, oldest first.
    log: Mutex<Vec<Arc<LogPin>>>,
    /// Pauses background work while the writer commits.
    pacer: Pacer,
}

/// Pin of the log after a checkpoint.
#[derive(Debug)]
pub(crate) struct LogPin {
    pub(crate) start: CheckpointPosition,
    _pin: Box<dyn ReaderGuard>,
}

impl Pins {
    /// Lets the writer release the log of the state.
    pub(crate) fn release_log(&mut self) {
        self.log = None;
    }
}

/// Outcome of an attempt.
enum Tried<T> {
    Opened(T, Pins),
    /// The state has changed since, or does not exist yet: try again.
    Again(Error),
}

impl Attempt {
    /// Creates the only attempt to read a device without a writer.
    pub(crate) fn alone(device: Arc<dyn Device>) -> Result<Self> {
        Source::new(device, PathBuf::new(), None, None).attempt(None, None, None)
    }

    /// Wraps the device of another part of the database, so that it is read as this one's device.
    pub(crate) fn paced(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        paced(self.reads.as_ref(), device)
    }

    fn moved(&self) -> Error {
        Error::locked(&self.path)
    }

    /// Whether pins protect the state from a writer, so that the directories of tablespaces need no locks.
    pub(crate) fn is_pinned(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// Checks that the tablespaces which could not be opened, `is_any_absent`, are unusable in this state:
    /// a writer that publishes checkpoints or drops tablespaces makes them unusable only after it has
    /// published a newer checkpoint of the main one. The state is also too old if a tablespace
    /// `is_ahead` of the durable log, because its checkpoint was published since.
    pub(crate) fn check_tablespaces(&self, is_any_absent: bool, is_ahead: bool) -> Result<()> {
        if self.durable.is_none() || braid_rt::mutant!("trust_the_first_tablespaces") {
            return Ok(());
        }
        if is_ahead {
            return Err(self.moved());
        }
        if is_any_absent {
            self.check_checkpoint(Store::newest_checkpoint(self.base.clone())?)?;
        }
        Ok(())
    }

    /// Checks that an opened store is at the pinned checkpoint. The store was opened after the pin
    /// was set, so if that checkpoint is still the newest, the writer will see the pin.
    pub(crate) fn check_checkpoint(&self, found: u64) -> Result<()> {
        match self.checkpoint {
            Some(pinned) if pinned != found && !braid_rt::mutant!("trust_the_first_look") => {
                braid_rt::coverage_point("readers: a newer checkpoint came between look and pin");
                Err(self.moved())
            }
            _ => Ok(()),
        }
    }

    /// Ensures that the log that was read was complete, and is durable.
    /// `with_logs` returns the device of the log, given that of the database's own files.
    pub(crate) fn settle(
        &self,
        recovered: &Recovered,
        with_logs: impl FnOnce(&Arc<dyn Device>) -> Arc<dyn Device>,
    ) -> Result<()> {
        let base = with_logs(&self.base);
        if self.durable.is_none() {
            // I4, I10: a process that ended before its flush may have left writes only in a
            // volatile cache.
            if !braid_rt::mutant!("show_unsettled_log") {
                recovered.make_durable(&*base)?;
            }
        } else if !recovered.is_still_there(&*base)? {
            return Err(self.moved());
        }
        Ok(())
    }
}

fn paced(reads: Option<&PacedReads>, device: Arc<dyn Device>) -> Arc<dyn Device> {
    match reads {
        Some(reads) => reads.of(device),
        None => device,
    }
}

impl Source {
    pub(crate) fn new(
        base: Arc<dyn Device>,
        path: PathBuf,
        table: Option<Arc<dyn ReaderTable>>,
        lock: Option<DirectoryLock>,
    ) -> Self {
        Self {
            identity: Identity::number(),
            base,
            path,
            table,
            pace: None,
            _lock: lock,
        }
    }

    /// Paces the reads of all states.
    pub(crate) fn paced(mut self, pace: Pace) -> Self {
        self.pace = Some(pace);
        self
    }

    /// Returns the error of a reader that the writer overtook; a retry may succeed.
    fn busy(&self) -> Error {
        Error::locked(&self.path)
    }

    /// Calls `open` until it opens a state that is complete and remains valid.
    pub(crate) fn open_with<T>(
        &self,
        kept_from: Option<&CheckpointPosition>,
        mut open: impl FnMut(&Attempt) -> Result<T>,
    ) -> Result<(T, Option<Pins>)> {
        let Some(table) = &self.table else {
            let attempt = self.attempt(None, None, kept_from)?;
            return Ok((open(&attempt)?, None));
        };
        let deadline = braid_rt::now() + PATIENCE;
        let mut attempts = 0;
        loop {
            match self.try_once(&**table, kept_from, &mut open)? {
                Tried::Opened(opened, pins) => return Ok((opened, Some(pins))),
                Tried::Again(error) => {
                    attempts += 1;
                    let is_waiting = matches!(error, Error::Locked { .. });
                    if braid_rt::now() > deadline || (!is_waiting && attempts >= ATTEMPTS) {
                        return Err(error);
                    }
                }
            }
            braid_rt::sleep(PAUSE);
        }
    }

    /// How far the writer's commits are, as far as it has announced them.
    fn announced_progress(&self) -> CommitProgress {
        let announced = self
            .table
            .as_ref()
            .and_then(|table| table.announcement().ok());
        announced_progress(announced.flatten())
    }

    fn attempt(
        &self,
        checkpoint: Option<u64>,
        durable: Option<SeqNo>,
        kept_from: Option<&CheckpointPosition>,
    ) -> Result<Attempt> {
        // All listed files exist: `durable` was announced before.
        let overlay = OverlayDevice::new(self.base.clone());
        let overlay = overlay.map_err(|e| Error::io("cannot list the database's files", e))?;
        let reads = self.pace.and_then(|Pace { max_rate }| {
            let announcements = durable.and(self.table.clone());
            let is_paced = announcements.is_some() || max_rate.is_some();
            let is_paced = is_paced && !braid_rt::mutant!("check_at_any_pace");
            is_paced.then(|| PacedReads::new(announcements, max_rate))
        });
        Ok(Attempt {
            device: paced(reads.as_ref(), Arc::new(overlay)),
            reads,
            base: self.base.clone(),
            path: self.path.clone(),
            checkpoint,
            source: self.identity,
            durable,
            kept_from: kept_from.cloned(),
        })
    }

    fn try_once<T>(
        &self,
        table: &dyn ReaderTable,
        kept_from: Option<&CheckpointPosition>,
        open: &mut impl FnMut(&Attempt) -> Result<T>,
    ) -> Result<Tried<T>> {
        let failed = |error| Error::io("cannot read the reader table", error);
        let is_claimed = table.is_claimed().map_err(failed)?;
        let before = table.announcement().map_err(failed)?;
        if is_claimed && !before.is_some_and(|before| before.recovered) {
            return Ok(Tried::Again(self.busy()));
        }
        // Without a writer, a retry cannot succeed.
        let again = |error| {
            if is_claimed {
                Ok(Tried::Again(error))
            } else {
                Err(error)
            }
        };
        let checkpoint = match Store::newest_checkpoint(self.base.clone()) {
            Ok(checkpoint) => checkpoint,
            Err(error) if is_claimed => return again(error.into()),
            Err(error) => {
                // If it is not a database at all, opening it returns a better error.
                open(&self.attempt(None, None, kept_from)?)?;
                return Err(error.into());
            }
        };
        let pin = |needs| {
            let pinned = table.pin(checkpoint, needs);
            pinned.map_err(|e| Error::io(format!("cannot pin checkpoint {checkpoint}"), e))
        };
        let (pages, log) = (pin(ReaderNeeds::Pages)?, pin(ReaderNeeds::Log)?);
        let durable = match (is_claimed, before) {
            (true, Some(before)) => match wait_for_notice(table, before)? {
                Some(durable) => Some(durable),
                None => return Ok(Tried::Again(self.busy())),
            },
            _ => None,
        };
        let limit = if braid_rt::mutant!("show_undurable_transactions") {
            None
        } else {
            durable
        };
        let opened = open(&self.attempt(Some(checkpoint), limit, kept_from)?);
        let after = table.announcement().map_err(failed)?;
        let is_same = if is_claimed {
            before.map(|before| before.writer) == after.map(|after| after.writer)
        } else {
            // No writer changed the database meanwhile.
            before == after && !table.is_claimed().map_err(failed)?
        };
        match opened {
            Ok(opened) if is_same => Ok(Tried::Opened(
                opened,
                Pins {
                    checkpoint,
                    announced: before.map(|before| Announcement {
                        durable: durable.map_or(before.durable, SeqNo::get),
                        ..before
                    }),
                    is_claimed,
                    _pages: pages,
                    log: Some(log),
                },
            )),
            Ok(_) => Ok(Tried::Again(self.busy())),
            Err(error) if is_same => again(error),
            Err(error) => Ok(Tried::Again(error)),
        }
    }
}

/// Waits for an announcement that contains everything that was acknowledged before this call: one
/// that is exact, or that began after it. Returns the announced durable seqno, after a timeout that
/// of the last announcement; `None` if the writer has ended, or another has taken over.
fn wait_for_notice(table: &dyn ReaderTable, before: Announcement) -> Result<Option<SeqNo>> {
    let deadline = braid_rt::now() + NOTICE;
    let mut first = None;
    loop {
        let now = table.announcement();
        let now = now.map_err(|e| Error::io("cannot read the reader table", e))?;
        let Some(now) = now.filter(|now| now.writer == before.writer) else {
            return Ok(None);
        };
        let first = *first.get_or_insert(now.rounds);
        // The writer may have looked at its durable seqno for the next round already.
        let is_complete = now.exact
            || now.rounds >= first.saturating_add(2)
            || braid_rt::mutant!("trust_a_late_announcement");
        if is_complete || braid_rt::now() > deadline {
            return Ok(Some(SeqNo::new(now.durable)));
        }
        // It may have acknowledged more than it has announced.
        if !table.is_claimed().unwrap_or(true) && !braid_rt::mutant!("trust_a_dead_writer") {
            return Ok(None);
        }
        braid_rt::sleep(PAUSE);
    }
}

impl View {
    /// Creates the view of a state whose checkpoint began at `start`; `log` contains older pins of
    /// log, for readers of changes.
    pub(crate) fn new(
        source: Arc<Source>,
        options: Builder,
        mut pins: Option<Pins>,
        start: CheckpointPosition,
        mut log: Vec<Arc<LogPin>>,
    ) -> Self {
        let log_pin = pins.as_mut().and_then(|pins| pins.log.take());
        if !log.is_empty()
            && let Some(pin) = log_pin
        {
            let start = start.clone();
            log.push(Arc::new(LogPin { start, _pin: pin }));
        }
        Self {
            pacer: Pacer::new(source.announced_progress().acknowledged),
            source,
            options,
            pins,
            start,
            log: Mutex::new(log),
        }
    }

    /// Ends a piece of background work that began at `begun`, as
    /// [`Log::pause_background`](braid_log::Log::pause_background) does: pauses if the writer has
    /// announced commits.
    pub(crate) fn pause_background(&self, begun: Instant) {
        self.pacer.pause(begun, self.source.announced_progress());
    }

    pub(crate) fn source(&self) -> &Arc<Source> {
        &self.source
    }

    pub(crate) fn options(&self) -> &Builder {
        &self.options
    }

    /// Returns the pins of log for readers of changes that continue after `needed`.
    pub(crate) fn log_pins(&self, needed: SeqNo) -> Vec<Arc<LogPin>> {
        let log = self.log.lock();
        let oldest = log.iter().map(|pin| pin.start.seqno);
        let from = oldest.filter(|&seqno| seqno <= needed).max();
        let is_needed = |pin: &&Arc<LogPin>| Some(pin.start.seqno) >= from;
        log.iter().filter(is_needed).cloned().collect()
    }

    /// Pins the log after the checkpoint of this state for readers of changes, if it still exists.
    pub(crate) fn pin_log(&self) {
        let (Some(table), Some(pins)) = (&self.source.table, &self.pins) else {
            return;
        };
        let mut log = self.log.lock();
        if log.iter().any(|pin| pin.start.seqno == self.start.seqno) {
            return;
        }
        // Without the pin the log may be released; the reader of changes then gets an error.
        if let Ok(pin) = table.pin(pins.checkpoint, ReaderNeeds::Log) {
            let start = self.start.clone();
            log.push(Arc::new(LogPin { start, _pin: pin }));
        }
    }

    /// Returns whether there may be a newer state.
    pub(crate) fn may_be_old(&self) -> Result<bool> {
        let (Some(table), Some(pins)) = (&self.source.table, &self.pins) else {
            return Ok(false);
        };
        let failed = |error| Error::io("cannot read the reader table", error);
        let announced = table.announcement().map_err(failed)?;
        let is_claimed = table.is_claimed().map_err(failed)?;
        let is_same = match (announced, pins.announced) {
            (Some(now), Some(then)) if now.writer == then.writer => {
                let durable = if is_claimed {
                    wait_for_notice(&**table, now)?
                } else {
                    Some(SeqNo::new(now.durable))
                };
                durable == Some(SeqNo::new(then.durable))
            }
            (now, then) => now.is_none() && then.is_none(),
        };
        Ok(!is_same
            || is_claimed != pins.is_claimed
            || Store::newest_checkpoint(self.source.base.clone())? != pins.checkpoint)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io;

    use super::*;

    /// A reader table whose writer announces these, one after the other, and then ends.
    #[derive(Debug)]
    struct Scripted(Mutex<Vec<Announcement>>);

    impl Scripted {
        /// Creates the table; the announcements are (writer, rounds, durable, exact).
        fn new(announcements: &[(u64, u64, u64, bool)]) -> Self {
            let announcement = |&(writer, rounds, durable, exact): &_| Announcement {
                writer,
                rounds,
                durable,
                exact,
                ..Announcement::default()
            };
            Self(Mutex::new(
                announcements.iter().rev().map(announcement).collect(),
            ))
        }

        /// Waits as a reader that has seen an announcement of writer 1.
        fn wait(&self) -> Option<u64> {
            let before = Announcement {
                writer: 1,
                ..Announcement::default()
            };
            wait_for_notice(self, before).unwrap().map(SeqNo::get)
        }
    }

    impl ReaderTable for Scripted {
        fn claim(&self) -> io::Result<Box<dyn ReaderGuard>> {
            unreachable!("only readers use it")
        }
        fn is_claimed(&self) -> io::Result<bool> {
            Ok(self.0.lock().len() > 1)
        }
        fn announce(&self, _: &Announcement) -> io::Result<()> {
            unreachable!("only readers use it")
        }
        fn announcement(&self) -> io::Result<Option<Announcement>> {
            let mut left = self.0.lock();
            let next = if left.len() > 1 {
                left.pop()
            } else {
                left.last().copied()
            };
            Ok(next)
        }
        fn pin(&self, _: u64, _: ReaderNeeds) -> io::Result<Box<dyn ReaderGuard>> {
            unreachable!("it has no checkpoints")
        }
        fn is_pinned(&self, _: std::ops::Range<u64>, _: ReaderNeeds) -> io::Result<bool> {
            unreachable!("it has no checkpoints")
        }
    }

    /// With a rate, all reads of a check are paced; without one, those next to a writer.
    #[test]
    fn a_check_is_paced_next_to_a_writer_or_with_a_rate() {
        let device = Arc::new(braid_io::MemoryDevice::new());
        let table = device.reader_table(true).unwrap();
        let is_paced = |pace: Option<Pace>, durable: Option<u64>| {
            let source = Source::new(device.clone(), PathBuf::new(), table.clone(), None);
            let source = Source { pace, ..source };
            let attempt = source.attempt(None, durable.map(SeqNo::new), None).unwrap();
            attempt.reads.is_some()
        };
        let pace = |max_rate| Some(Pace { max_rate });
        assert!(is_paced(pace(None), Some(1)) && !is_paced(pace(None), None));
        assert!(is_paced(pace(Some(1)), Some(1)) && is_paced(pace(Some(1)), None));
        assert!(!is_paced(None, Some(1)) && !is_paced(None, None));
    }

    #[test]
    fn a_reader_waits_for_an_announcement_that_began_after_it_asked() {
        let exact = [(1, 5, 10, true), (1, 6, 11, true)];
        assert_eq!(Scripted::new(&exact).wait(), Some(10));
        let later = [(1, 5, 10, false), (1, 5, 11, false), (1, 5, 12, true)];
        assert_eq!(
            Scripted::new(&[&later[..], &exact].concat()).wait(),
            Some(12)
        );
        // The one of round 6 may have begun before.
        let rounds = [5, 5, 6, 6, 7, 8].map(|round| (1, round, 2 * round, false));
        assert_eq!(Scripted::new(&rounds).wait(), Some(14));
    }

    /// What a writer has acknowledged since its last announcement is in the log.
    #[test]
    fn a_writer_that_has_ended_announces_nothing() {
        assert_eq!(Scripted::new(&[(1, 5, 10, false)]).wait(), None);
        let other = [(1, 5, 10, false), (2, 9, 10, true), (2, 9, 10, true)];
        assert_eq!(Scripted::new(&other).wait(), None);
    }
}
