//! Closing a database.

use std::sync::Arc;

use super::instance::Instance;
use crate::error::{Error, Result};

impl Instance {
    /// Closes the database: refuses further commits, flushes, writes a last checkpoint, stops the
    /// threads, shuts the gate, and releases the lock on the directory.
    pub(crate) fn shutdown(&self) -> Result<()> {
        let engine = &self.engine;
        if engine.is_inherited() {
            return Err(Error::Forked);
        }
        if !engine.refuse_users() {
            return Ok(());
        }
        self.stop_threads();
        self.notifier.notify();
        // Commits that were assigned a sequence number before this are in the log, and the flush
        // writes them. Later ones fail.
        if !braid_rt::mutant!("accept_commits_after_close") {
            engine.log.seal();
        }
        let written = {
            // Wait for a running checkpoint, and start no other.
            let _last = self.hold_checkpoints();
            self.final_checkpoint()
        };
        let result = written.and(engine.log.clone().close().map_err(Error::from));
        self.release();
        engine.report_health();
        result
    }

    /// Ends the threads of an open that failed, without writing anything. The caller shuts the
    /// gate, unless it tries again.
    pub(crate) fn abandon(&self) {
        self.engine.refuse_users();
        self.stop_threads();
        self.engine.empty_pool();
    }

    fn stop_threads(&self) {
        // Before the checkpoint thread ends, for which these commits wait.
        self.engine.log.end_waiting();
        self.stop_maintenance();
        self.archive.ticker.stop();
    }

    /// Shuts the gate (I9), which releases the lock on the directory.
    fn release(&self) {
        self.engine.empty_pool();
        self.engine
            .stores()
            .for_each(|store| store.give_room_back());
        self.files.gate.shut(|| {
            // Old handles may still read, and reads in place pass no gate (I9).
            self.engine
                .stores()
                .for_each(|store| store.read_in_place(false));
            for space in self.engine.spaces.all() {
                space.locks.lock().clear();
            }
            self.publisher.unpublish();
            self.archive.release();
            if let Some(readers) = &self.readers {
                readers.release();
            }
        });
    }

    fn final_checkpoint(&self) -> Result<()> {
        let engine = &self.engine;
        engine.check_not_poisoned()?;
        engine.log.sync()?;
        if engine.was_opened_read_only() {
            return Ok(());
        }
        // If archiving fails, the log is kept, and the next open continues archiving from it.
        let _ = self.run_archiver();
        let _ = self.archive.note(&engine.log, &self.copies);
        if self.is_checkpoint_due() {
            self.checkpoint_locked()
        } else {
            Ok(())
        }
    }
}

/// Closes the database when the last handle is dropped.
#[derive(Debug)]
pub(crate) struct Closer(pub(crate) Arc<Instance>);

impl Drop for Closer {
    fn drop(&mut self) {
        if self.0.engine.is_inherited() {
            // All of the instance belongs to the parent process, including threads and locks: leak
            // it unchanged.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        // No caller can receive the error. Acknowledged transactions are in the log, where the next
        // open finds them.
        let _ = self.0.shutdown();
    }
}
