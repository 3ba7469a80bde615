//! The reader's side: it finds a state that stays, and newer ones.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use braid_io::{
    Announcement, Device, DirectoryLock, OverlayDevice, ReaderGuard, ReaderNeeds, ReaderTable,
};
use braid_log::{CheckpointPosition, Recovered};
use braid_rt::Mutex;
use braid_store::Store;

use crate::error::{Error, Result};
use crate::options::Builder;
use crate::schema::table::Identity;

/// How long a reader waits for a writer that is recovering the log.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it waits for the writer to notice it, and announce each flush from then on.
const NOTICE: Duration = Duration::from_secs(1);

/// How often it tries to open a state, while the writer goes on to the next.
const ATTEMPTS: u32 = 100;

const PAUSE: Duration = Duration::from_millis(1);

/// Where a reader's states come from.
#[derive(Debug)]
pub(crate) struct Source {
    /// The same for all states that are read from here: handles of tables are good for each of
    /// them.
    seqno: u64,
    base: Arc<dyn Device>,
    /// The directory, for errors.
    path: PathBuf,
    /// `None` where there is none. Then there is no writer, as a lock or the caller sees to.
    table: Option<Arc<dyn ReaderTable>>,
    _lock: Option<DirectoryLock>,
}

/// One attempt to open a state.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// Shows what the medium holds, and keeps to itself what is changed.
    pub(crate) device: Arc<dyn Device>,
    /// The medium.
    base: Arc<dyn Device>,
    path: PathBuf,
    /// The number of the checkpoint that is pinned, if there may be a writer.
    checkpoint: Option<u64>,
    /// The number of the source.
    pub(crate) source: u64,
    /// Up to where the log is durable, if there is a writer.
    pub(crate) durable: Option<u64>,
    /// An older position, from which log is wanted, too.
    pub(crate) kept_from: Option<CheckpointPosition>,
}

/// What a state pins, from its opening on.
#[derive(Debug)]
pub(crate) struct Pins {
    checkpoint: u64,
    /// What the writer had announced.
    announced: Option<Announcement>,
    is_claimed: bool,
    _pages: Box<dyn ReaderGuard>,
    log: Option<Box<dyn ReaderGuard>>,
}

/// What a database that was opened to read from knows of its origin.
#[derive(Debug)]
pub(crate) struct View {
    source: Arc<Source>,
    options: Builder,
    /// None where there is no table.
    pins: Option<Pins>,
    /// Where the checkpoint began.
    start: CheckpointPosition,
    /// Pins of log: of readers of changes, from the oldest on.
    log: Mutex<Vec<Arc<LogPin>>>,
}

/// The log behind a checkpoint.
#[derive(Debug)]
pub(crate) struct LogPin {
    pub(crate) start: CheckpointPosition,
    _pin: Box<dyn ReaderGuard>,
}

/// How an attempt ended.
enum Tried<T> {
    Opened(T, Pins),
    /// The state went on meanwhile, or is not there yet: to be tried again.
    Again(Error),
}

impl Attempt {
    /// The only attempt to read a device that nobody writes.
    pub(crate) fn alone(device: Arc<dyn Device>) -> Result<Self> {
        Source::new(device, PathBuf::new(), None, None).attempt(None, None, None)
    }

    fn moved(&self) -> Error {
        Error::locked(&self.path)
    }

    /// Whether a store that was opened is that of the pinned checkpoint. It was opened after the
    /// pin, so if it is the newest one still, the writer will find the pin.
    pub(crate) fn check_checkpoint(&self, found: u64) -> Result<()> {
        match self.checkpoint {
            Some(pinned) if pinned != found && !braid_rt::mutant!("trust_the_first_look") => {
                braid_rt::coverage_point("readers: a newer checkpoint came between look and pin");
                Err(self.moved())
            }
            _ => Ok(()),
        }
    }

    /// Makes sure that the log that was read was all there, and lasts.
    pub(crate) fn settle(&self, recovered: &Recovered) -> Result<()> {
        if self.durable.is_none() {
            // I4, I10: what a process that ended before its flush has left may be in a volatile cache only.
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
            seqno: Identity::number(),
            base,
            path,
            table,
            _lock: lock,
        }
    }

    /// The error of a reader that the writer was ahead of, to whom it is worth while to try again.
    fn busy(&self) -> Error {
        Error::locked(&self.path)
    }

    /// Calls `open` until it opened a state that is whole and stays.
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

    fn attempt(
        &self,
        checkpoint: Option<u64>,
        durable: Option<u64>,
        kept_from: Option<&CheckpointPosition>,
    ) -> Result<Attempt> {
        // What is listed now is there: `durable` was announced before.
        let overlay = OverlayDevice::new(self.base.clone());
        let overlay = overlay.map_err(|e| Error::io("cannot list the database's files", e))?;
        Ok(Attempt {
            device: Arc::new(overlay),
            base: self.base.clone(),
            path: self.path.clone(),
            checkpoint,
            source: self.seqno,
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
        // With no writer, what can't be opened can't be opened.
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
                // It may be no database at all, which opening it tells better.
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
        let limit = if braid_rt::mutant!("show_what_is_not_durable") {
            None
        } else {
            durable
        };
        let opened = open(&self.attempt(Some(checkpoint), limit, kept_from)?);
        let after = table.announcement().map_err(failed)?;
        let is_same = if is_claimed {
            before.map(|before| before.writer) == after.map(|after| after.writer)
        } else {
            // Nobody wrote meanwhile.
            before == after && !table.is_claimed().map_err(failed)?
        };
        match opened {
            Ok(opened) if is_same => Ok(Tried::Opened(
                opened,
                Pins {
                    checkpoint,
                    announced: before.map(|before| Announcement {
                        durable: durable.unwrap_or(before.durable),
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

/// Waits until the writer has noticed the pins, for then what it announces is what it acknowledges;
/// returns that. If that takes long, what was announced is taken. `None` if the writer is another
/// one by now.
fn wait_for_notice(table: &dyn ReaderTable, before: Announcement) -> Result<Option<u64>> {
    let deadline = braid_rt::now() + NOTICE;
    loop {
        let now = table.announcement();
        let now = now.map_err(|e| Error::io("cannot read the reader table", e))?;
        match now.filter(|now| now.writer == before.writer) {
            None => return Ok(None),
            Some(now) if now.exact || braid_rt::now() > deadline => return Ok(Some(now.durable)),
            // The writer ended; what it announced last counts.
            Some(now) if !table.is_claimed().unwrap_or(true) => return Ok(Some(now.durable)),
            Some(_) => braid_rt::sleep(PAUSE),
        }
    }
}

impl View {
    /// Makes the view of a state whose checkpoint began at `start`; `log` are older pins of log,
    /// for readers of changes.
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
            source,
            options,
            pins,
            start,
            log: Mutex::new(log),
        }
    }

    pub(crate) fn source(&self) -> &Arc<Source> {
        &self.source
    }

    pub(crate) fn options(&self) -> &Builder {
        &self.options
    }

    /// The pins of log that readers of changes need, which continue at `needed`.
    pub(crate) fn log_pins(&self, needed: u64) -> Vec<Arc<LogPin>> {
        let log = self.log.lock();
        let oldest = log.iter().map(|pin| pin.start.seqno);
        let from = oldest.filter(|&seqno| seqno <= needed).max();
        let is_needed = |pin: &&Arc<LogPin>| Some(pin.start.seqno) >= from;
        log.iter().filter(is_needed).cloned().collect()
    }

    /// Keeps the log behind the checkpoint of this state for readers of changes, as far as it is
    /// still there.
    pub(crate) fn pin_log(&self) {
        let (Some(table), Some(pins)) = (&self.source.table, &self.pins) else {
            return;
        };
        let mut log = self.log.lock();
        if log.iter().any(|pin| pin.start.seqno == self.start.seqno) {
            return;
        }
        // Without the pin the log may go, which the reader of changes is told then.
        if let Ok(pin) = table.pin(pins.checkpoint, ReaderNeeds::Log) {
            let start = self.start.clone();
            log.push(Arc::new(LogPin { start, _pin: pin }));
        }
    }

    /// Whether a newer state can be there.
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
