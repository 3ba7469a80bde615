//! Commit: from private writes to an acknowledged transaction.
//!
//! [`precommit`](PooledContext::precommit) takes these steps. Their order makes the order of the
//! log a serial order, read-only snapshots included:
//!
//! 1. reserve space in the data file and in the log, so that nothing can fail for lack of space
//!    once a sequence number is assigned, and load the leaves that the writes change, so that no
//!    later transaction waits for a page;
//! 2. mark the write locks as committing;
//! 3. assign the sequence number;
//! 4. validate the reads (`validate`; Silo, Tu et al. 2013 §4.4, with 3 before 4 instead of
//!    after), and collect the dependencies for protocols that want them (`dependencies`);
//! 5. append the redo records to the strand, or an abort record if the validation failed; if the
//!    next step may take long, no longer hold back the acknowledgement of other transactions;
//! 6. apply the writes to the trees, and keep the replaced versions for snapshots (`apply`);
//! 7. release the locks (early lock release; `serial` waits for the flush);
//! 8. leave the commit slot, and wait for the sequence number to be durable.
//!
//! If T reads x and W writes x, and T's validation did not see W's mark, then W marked after T had
//! its sequence number, so W's is larger: reads-before-overwrites agrees with the order of the
//! sequence numbers. Writes-before-reads and writes-before-writes agree because the later
//! transaction is assigned its sequence number after it saw the write of the earlier one. So a
//! prefix of the sequence numbers is a prefix of a serial order (I3, I7), and a snapshot at any
//! sequence number is consistent.

mod apply;
mod by_agents;
mod dependencies;
mod leaves;
mod precommit;
#[cfg(all(test, not(loom)))]
mod tests;
mod ticket;
mod validate;

use braid_log::{LockRelease, SeqNo};

pub use self::ticket::{Commit, Ticket};
use crate::engine::{Engine, PooledContext};
use crate::error::{Error, Result};
use crate::observe::trace::CommitClock;
use crate::options::{Durability, TransactionOptions};

/// A transaction that other transactions can see and whose flush is pending.
struct Precommitted {
    seqno: SeqNo,
    ticket: braid_log::Ticket,
}

impl PooledContext {
    /// Commits. Fails if it `is_nonblocking` and would load pages.
    pub(crate) fn commit(
        mut self,
        options: TransactionOptions,
        is_nonblocking: bool,
    ) -> Result<Commit> {
        let clock = CommitClock::start(self.engine.settings.slow_commit);
        let pre = self.precommit(options, true, is_nonblocking);
        let pre = match pre {
            Ok(pre) => pre,
            Err(error) => {
                self.fail(&error);
                return Err(error);
            }
        };
        let waits = options.durability == Durability::Immediate;
        if waits && self.engine.settings.lock_release == LockRelease::Durable {
            // This thread waits for the flush anyway, so it releases the locks itself afterwards.
            let outcome = pre.ticket.wait();
            self.abort();
            outcome?;
        } else {
            self.end(&pre.ticket, options.durability);
            if waits {
                pre.ticket.wait()?;
            } else {
                pre.ticket.detach();
            }
        }
        clock.stop(pre.seqno);
        Ok(Commit { seqno: pre.seqno })
    }

    /// Commits as [`PooledContext::commit`], without waiting for the device.
    pub(crate) fn commit_async(
        mut self,
        options: TransactionOptions,
        is_nonblocking: bool,
    ) -> Result<Ticket> {
        let clock = CommitClock::start(self.engine.settings.slow_commit);
        match self.precommit(options, false, is_nonblocking) {
            Ok(pre) => {
                self.end(&pre.ticket, options.durability);
                clock.stop(pre.seqno);
                Ok(Ticket {
                    seqno: pre.seqno,
                    log: pre.ticket,
                })
            }
            Err(error) => {
                self.fail(&error);
                Err(error)
            }
        }
    }

    /// Aborts a transaction whose commit failed.
    #[cold]
    fn fail(mut self, error: &Error) {
        self.engine.trim_room(self.state.get_mut());
        // A conflict says nothing about the database's health, and conflicting transactions must
        // not contend for a shared counter.
        if error.is_retryable() || self.engine.is_inherited() {
            return self.abort();
        }
        let engine = self.engine.clone();
        self.abort();
        engine.note_failure(error);
    }

    /// Returns the context to the pool after the precommit. Defers the release of locks that the
    /// protocol still needs.
    #[inline(always)]
    fn end(self, ticket: &braid_log::Ticket, durability: Durability) {
        let engine = &self.engine;
        if let Durability::Buffered(bound) = durability
            && engine.settings.background
            && !braid_rt::mutant!("buffered_forever")
        {
            engine.flush_timer.flush_within(bound);
        }
        {
            let state = &mut *self.state.borrow_mut();
            if !state.locks.is_empty() {
                engine.defer_unlocks(state, ticket.unlock_point());
                if durability == Durability::None && !braid_rt::mutant!("hold_without_flush") {
                    flush_for_locks(engine);
                }
            }
            engine.close_snapshot(state);
        }
        Engine::recycle(self);
    }

    /// Releases the transaction's locks and snapshot, and returns the context to the pool.
    pub(crate) fn abort(self) {
        if self.engine.is_inherited() {
            // The locks belong to the parent process, in which the same transaction is open.
            return std::mem::forget(self);
        }
        {
            let mut state = self.state.borrow_mut();
            self.engine.unlock_all(&mut state);
            self.engine.close_snapshot(&mut state);
        }
        if self.engine.log.is_poisoned() {
            // The failure ended the transaction, possibly at a write. Call the listener without
            // locks.
            self.engine.report_health();
        }
        Engine::recycle(self);
    }
}

/// Starts a flush that no commit requests: without it, transactions would wait for the deferred
/// locks forever.
#[cold]
fn flush_for_locks(engine: &Engine) {
    if engine.settings.background {
        engine.log.request_flush();
    } else {
        // The next commit reports an error.
        let _ = engine.log.sync();
    }
}
