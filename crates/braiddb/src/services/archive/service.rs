//! The archive of an open database.

use std::sync::Arc;
use std::time::Duration;

use braid_log::{Log, SeqNo};

use super::write::Archiver;
use crate::engine::ArchiveError;
use crate::error::Result;
use crate::services::copies::Copies;
use crate::services::retention::Retention;
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
    pub(crate) fn archived(&self) -> Option<SeqNo> {
        let archived = |archiver: &Arc<Archiver>| SeqNo::new(archiver.archived());
        self.archiver.as_ref().map(archived)
    }

    /// Returns a function that reports why writing the archive fails.
    pub(crate) fn error(&self) -> Option<ArchiveError> {
        let archiver = self.archiver.clone()?;
        Some(Arc::new(move || archiver.error()))
    }

    /// Whether the last attempt to write the archive failed.
    pub(crate) fn is_failing(&self) -> bool {
        let archiver = self.archiver.as_ref();
        archiver.is_some_and(|archiver| archiver.error().is_some())
    }

    /// Sleeps until the archive is due to be written. Returns `false` once the thread must end.
    pub(crate) fn sleep(&self) -> bool {
        self.ticker.sleep(self.interval)
    }

    /// Archives everything that is durable, if there is an archive.
    pub(crate) fn run(&self, log: &Log, retention: &Retention, copies: &Copies) -> Result<()> {
        match &self.archiver {
            None => Ok(()),
            Some(archiver) => archiver.run(log, retention, copies),
        }
    }

    /// Records how far the archive is, in the archive and in the database, when the database is
    /// closed.
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
