//! The writer's side: registration, and keeping what readers pin. `announcing` is the rest of it.
//!
//! A pin names a checkpoint of the main tablespace. Each checkpoint of another tablespace belongs to a
//! range of these: from the one that was the newest when it was published, which it follows, to the one
//! that is the newest when it is replaced. It is kept as long as a reader pins any of the range.

use std::io;
use std::ops::Range;
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
    /// The blocks of earlier checkpoints.
    pages: Vec<KeptPages>,
    /// Every block that a data file had when it was opened, for readers of checkpoints before this
    /// one.
    files: Vec<(u64, PinnedFile)>,
    /// The log after checkpoints.
    log: Vec<(u64, Arc<AtomicU64>)>,
}

/// The blocks of an earlier checkpoint of a tablespace.
#[derive(Debug)]
struct KeptPages {
    /// Number of the tablespace.
    space: u8,
    /// The checkpoints of the main tablespace whose readers need the blocks.
    of: Range<u64>,
    _pages: PinnedCheckpoint,
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

    /// Pins all blocks of a data file if there are readers of checkpoints of the main tablespace before
    /// `sequence`: only the previous writer knew which blocks they need. Call before any change.
    pub(crate) fn pin_older(&self, store: &Store, sequence: u64) -> Result<()> {
        if self.needs_older(sequence) {
            self.kept.lock().files.push((sequence, store.pin_file()?));
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

    /// Returns whether a reader pins a checkpoint of the main tablespace before `sequence`.
    pub(crate) fn needs_older(&self, sequence: u64) -> bool {
        self.is_pinned(0..sequence, ReaderNeeds::Pages)
    }

    /// Returns whether a reader pins one of these checkpoints, of which the pages were just replaced.
    pub(crate) fn needs_pages(&self, of: Range<u64>) -> bool {
        let needed = self.is_pinned(of, ReaderNeeds::Pages);
        if needed {
            braid_rt::coverage_point("readers: a replaced checkpoint is kept");
        }
        needed
    }

    /// Keeps replaced pages of a tablespace for as long as a reader pins one of the checkpoints `of` the
    /// main tablespace.
    pub(crate) fn keep_pages(&self, space: u8, of: Range<u64>, pages: PinnedCheckpoint) {
        let _pages = pages;
        self.kept.lock().pages.push(KeptPages { space, of, _pages });
    }

    /// Forgets the pages of a tablespace that was dropped: readers have its files open.
    pub(crate) fn forget_space(&self, space: u8) {
        self.kept.lock().pages.retain(|kept| kept.space != space);
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
        let Kept { pages, files, log } = &mut *kept;
        pages.retain(|kept| self.is_pinned(kept.of.clone(), ReaderNeeds::Pages));
        log.retain(|&(sequence, _)| self.is_pinned(sequence..sequence + 1, ReaderNeeds::Log));
        files.retain(|&(sequence, _)| self.is_pinned(0..sequence, ReaderNeeds::Pages));
    }

    /// Unregisters the writer when the database is closed.
    pub(crate) fn release(&self) {
        *self.kept.lock() = Kept::default();
        *self.claim.lock() = None;
    }
}
