//! The writer's side: registration, and keeping what readers pin. `announcing` is the rest of it.

use std::io;
use std::sync::Arc;

use braid_io::{Device, ReaderGuard, ReaderNeeds, ReaderTable};
use braid_log::{Log, SeqNo};
use braid_rt::Mutex;
use braid_rt::atomic::AtomicU64;
use braid_store::{PinnedCheckpoint, PinnedFile, Store};

use super::announcing::{Announcements, Commits, FlushAnnouncer};
use crate::error::{Error, Result};
use crate::services::retention::Retention;

/// The writer's state about readers in other processes.
#[derive(Debug)]
pub(crate) struct Readers {
    table: Arc<dyn ReaderTable>,
    claim: Mutex<Option<Box<dyn ReaderGuard>>>,
    pub(crate) announcements: Arc<Announcements>,
    kept: Mutex<Kept>,
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
        let announcements = Arc::new(Announcements::new(table.clone(), background));
        Ok(Self {
            table,
            announcements,
            claim: Mutex::new(Some(claim)),
            kept: Mutex::default(),
        })
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
        log.announce_durable(FlushAnnouncer(self.announcements.clone()));
        self.announcements.begin(log.durable_seqno());
    }

    /// Checks for readers that came or left. Called at intervals, and by each thread that writes a
    /// checkpoint. `commits` reads how far commits are.
    pub(crate) fn look(&self, commits: impl Fn() -> Commits) {
        self.release_unpinned();
        if self.announcements.always {
            return;
        }
        let any = 0..u64::MAX;
        let is_watched = self.is_pinned(any.clone(), ReaderNeeds::Pages)
            || self.is_pinned(any, ReaderNeeds::Log);
        self.announcements.watch(is_watched, commits);
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
