//! The service that keeps the archive up to date.

use std::sync::Arc;
use std::time::Duration;

use braid_log::Log;

use super::write::Archiver;
use crate::engine::ArchiveError;
use crate::error::Result;
use crate::services::Instance;
use crate::services::copies::Copies;
use crate::services::threads::Ticker;

/// The archive of a database, if it has one, and the thread that writes it.
pub(crate) struct ArchiveWriter {
    archiver: Option<Arc<Archiver>>,
    pub(crate) ticker: Ticker,
    interval: Duration,
}

impl ArchiveWriter {
    pub(crate) fn new(archiver: Option<Archiver>, interval: Duration) -> Self {
        Self {
            archiver: archiver.map(Arc::new),
            ticker: Ticker::default(),
            interval,
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.archiver.is_some()
    }

    /// Returns the last sequence number in the archive, if there is one.
    pub(crate) fn archived(&self) -> Option<u64> {
        self.archiver.as_ref().map(|archiver| archiver.archived())
    }

    /// Returns what reports why writing the archive fails.
    pub(crate) fn error(&self) -> Option<ArchiveError> {
        let archiver = self.archiver.clone()?;
        Some(Arc::new(move || archiver.error()))
    }

    /// Notes on both sides how far the archive is, when the database is closed.
    pub(crate) fn note(&self, log: &Log, copies: &Copies) -> Result<()> {
        match &self.archiver {
            None => Ok(()),
            Some(archiver) => archiver.note(log, copies),
        }
    }

    /// Releases the lock on the archive.
    pub(crate) fn release(&self) {
        if let Some(archiver) = &self.archiver {
            archiver.release();
        }
    }
}

impl Instance {
    /// Archives everything that is durable, if there is an archive. If that fails, `health` reports
    /// it, and the log is kept for the next attempt.
    pub(crate) fn run_archiver(&self) -> Result<()> {
        match &self.archive.archiver {
            None => Ok(()),
            Some(archiver) => archiver.run(&self.engine.log, &self.retention, &self.copies),
        }
    }

    /// Returns the last sequence number in the archive, for a checkpoint. Without background
    /// threads, the checkpoint writes the archive.
    pub(crate) fn archive_at_checkpoint(&self) -> Option<u64> {
        // A database that is being created has nothing to archive yet, and may be created again
        // after a crash.
        let is_behind = |archived| archived < self.engine.log.durable_seqno();
        if !self.engine.settings.background && self.archive.archived().is_some_and(is_behind) {
            let _ = self.run_archiver();
        }
        self.archive.archived()
    }

    /// Starts the thread that writes the archive, if there is one.
    pub(crate) fn start_archiver(self: &Arc<Self>) -> Result<()> {
        if !self.archive.is_on() {
            return Ok(());
        }
        let thread = self.start_thread("braid-archive", |instance| {
            if !instance.archive.ticker.sleep(instance.archive.interval) {
                return false;
            }
            // `health` reports an error.
            let _ = instance.run_archiver();
            true
        })?;
        self.archive.ticker.thread.set(thread);
        Ok(())
    }
}
