//! The writer's side: announcing the durable seqno, and keeping what readers pin.

use std::io;
use std::sync::Arc;

use braid_io::{Announcement, Device, ReaderGuard, ReaderNeeds, ReaderTable};
use braid_log::{Log, SeqNo};
use braid_rt::Mutex;
use braid_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use braid_store::{PinnedCheckpoint, PinnedFile, Store};

use crate::error::{Error, Result};
use crate::services::retention::Retention;

/// The writer's state about readers in other processes.
#[derive(Debug)]
pub(crate) struct Readers {
    table: Arc<dyn ReaderTable>,
    claim: Mutex<Option<Box<dyn ReaderGuard>>>,
    announced: Mutex<Announcement>,
    /// Whether flushes announce the durable seqno: only while there are readers.
    watched: AtomicBool,
    /// Whether flushes announce it without readers, too: no thread checks for readers.
    always: bool,
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
        let claim = table.claim().map_err(failed)?;
        let readers = Self {
            table,
            claim: Mutex::new(Some(claim)),
            announced: Mutex::new(Announcement {
                writer: braid_rt::entropy(),
                process: std::process::id(),
                ..Announcement::default()
            }),
            watched: AtomicBool::new(!background),
            always: !background,
            kept: Mutex::default(),
        };
        readers.write(&readers.announced.lock());
        Ok(Some(Arc::new(readers)))
    }

    fn write(&self, announcement: &Announcement) {
        // If the write fails, readers use the previous announcement, which is still durable.
        let _ = self.table.announce(announcement);
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
        let readers = self.clone();
        log.announce_durable(move |durable| readers.announce(durable));
        let mut announced = self.announced.lock();
        announced.recovered = true;
        announced.exact = self.always;
        announced.durable = announced.durable.max(log.durable_seqno().get());
        self.write(&announced);
    }

    /// Announces that everything up to `durable` is durable.
    fn announce(&self, durable: SeqNo) {
        // SeqCst: see `look`.
        if self.watched.load(Ordering::SeqCst) {
            let durable = durable.get();
            let mut announced = self.announced.lock();
            if durable > announced.durable {
                announced.durable = durable;
                self.write(&announced);
            }
        }
    }

    /// Checks for readers that came or left. Called at intervals, and by each thread that writes a
    /// checkpoint.
    pub(crate) fn look(&self, log: &Log) {
        self.release_unpinned();
        let any = 0..u64::MAX;
        let is_watched = self.always
            || self.is_pinned(any.clone(), ReaderNeeds::Pages)
            || self.is_pinned(any, ReaderNeeds::Log);
        // SeqCst: a flush either sees this store and announces, or advanced the durable seqno
        // before it is loaded here.
        self.watched.store(is_watched, Ordering::SeqCst);
        let durable = log.durable_seqno().get();
        let mut announced = self.announced.lock();
        if is_watched != announced.exact || (is_watched && durable > announced.durable) {
            announced.exact = is_watched;
            announced.durable = announced.durable.max(durable);
            self.write(&announced);
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
