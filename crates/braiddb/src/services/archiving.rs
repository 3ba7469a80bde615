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
    /// threads, or if commits wait for log space, the checkpoint writes the archive.
    pub(crate) fn archive_at_checkpoint(&self) -> Option<SeqNo> {
        let (engine, log) = (&self.engine, &self.engine.log);
        let is_urgent = !engine.settings.background || log.has_waiting_commits();
        // A database under creation has nothing to archive yet, and may be created again after a
        // crash.
        if is_urgent && self.lacks_archiving() {
            let _ = self.run_archiver();
        }
        self.archive.archived()
    }

    /// Whether there is an archive that lacks durable transactions.
    pub(crate) fn lacks_archiving(&self) -> bool {
        let has_more = |archived| archived < self.engine.log.durable_seqno();
        self.archive.archived().is_some_and(has_more)
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
