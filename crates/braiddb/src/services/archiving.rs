//! Scheduling of the archive's writes.

use std::sync::Arc;

use braid_log::SeqNo;

use super::instance::Instance;
use crate::error::Result;

impl Instance {
    /// Archives everything that is durable, if there is an archive. If that fails, `health` reports
    /// it, and the log is kept for the next attempt.
    pub(crate) fn run_archiver(&self) -> Result<()> {
        self.archive
            .run(&self.engine.log, &self.retention, &self.copies)
    }

    /// Returns the last sequence number in the archive, for a checkpoint. Without background
    /// threads, the checkpoint writes the archive.
    pub(crate) fn archive_at_checkpoint(&self) -> Option<SeqNo> {
        // A database under creation has nothing to archive yet, and may be created again after a
        // crash.
        let has_more = |archived| archived < self.engine.log.durable_seqno();
        if !self.engine.settings.background && self.archive.archived().is_some_and(has_more) {
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
            if !instance.archive.sleep() {
                return false;
            }
            // `health` reports the error.
            let _ = instance.run_archiver();
            true
        })?;
        self.archive.ticker.thread.set(thread);
        Ok(())
    }
}
