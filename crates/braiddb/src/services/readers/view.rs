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

use crate::error::{Error, Result};
use crate::options::Builder;
use crate::schema::table::Identity;

/// Maximum time that a reader waits for a writer that is recovering the log.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum time that a reader waits for the writer to notice it and to announce each flush.
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
    _lock: Option<DirectoryLock>,
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
    /// Where the writer announces its commits, if there is one.
    pub(crate) announcements: Option<Arc<dyn ReaderTable>>,
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

    fn moved(&self) -> Error {
        Error::locked(&self.path)
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
    pub(crate) fn settle(&self, recovered: &Recovered) -> Result<()> {
        if self.durable.is_none() {
            // I4, I10: a process that ended before its flush may have left writes only in a
            // volatile cache.
            if !braid_rt::mutant!("show_unsettled_log") {
                recovered.make_durable(&*self.base)?;
            }
        } else if !recovered.is_still_there(&*self.base)? {
            return Err(self.moved());
        }
        Ok(())
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
            _lock: lock,
        }
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

    /// The newest sequence number that the writer has announced as durable.
    fn announced_durable(&self) -> SeqNo {
        let announced = self
            .table
            .as_ref()
            .and_then(|table| table.announcement().ok());
        announced
            .flatten()
            .map_or(SeqNo::NONE, |announced| SeqNo::new(announced.durable))
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
        Ok(Attempt {
            device: Arc::new(overlay),
            base: self.base.clone(),
            path: self.path.clone(),
            checkpoint,
            source: self.identity,
            announcements: durable.and(self.table.clone()),
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

/// Waits until the writer has noticed the pins; from then on it announces everything that it
/// acknowledges. Returns the announced durable seqno, after a timeout that of the last
/// announcement; `None` if another writer has taken over.
fn wait_for_notice(table: &dyn ReaderTable, before: Announcement) -> Result<Option<SeqNo>> {
    let deadline = braid_rt::now() + NOTICE;
    loop {
        let now = table.announcement();
        let now = now.map_err(|e| Error::io("cannot read the reader table", e))?;
        match now.filter(|now| now.writer == before.writer) {
            None => return Ok(None),
            Some(now) if now.exact || braid_rt::now() > deadline => {
                return Ok(Some(SeqNo::new(now.durable)));
            }
            // The writer ended; its last announcement is valid.
            Some(now) if !table.is_claimed().unwrap_or(true) => {
                return Ok(Some(SeqNo::new(now.durable)));
            }
            Some(_) => braid_rt::sleep(PAUSE),
        }
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
            pacer: Pacer::new(source.announced_durable()),
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
        let progress = CommitProgress::durable(self.source.announced_durable());
        self.pacer.pause(begun, progress);
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
            (Some(now), Some(then)) => {
                let is_exact = now.exact || !is_claimed;
                now.writer == then.writer && now.durable == then.durable && is_exact
            }
            (now, then) => now.is_none() && then.is_none(),
        };
        Ok(!is_same
            || is_claimed != pins.is_claimed
            || Store::newest_checkpoint(self.source.base.clone())? != pins.checkpoint)
    }
}
