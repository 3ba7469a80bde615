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
//! 5. append the redo records to the strand, or an abort record if the validation failed;
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
mod dependencies;
mod precommit;
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
    pub(crate) fn commit(mut self, options: TransactionOptions) -> Result<Commit> {
        let clock = CommitClock::start(self.engine.settings.slow_commit);
        let pre = self.precommit(options, true);
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

    pub(crate) fn commit_async(mut self, options: TransactionOptions) -> Result<Ticket> {
        let clock = CommitClock::start(self.engine.settings.slow_commit);
        match self.precommit(options, false) {
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
        self.engine.store.trim_room(&mut self.state.get_mut().room);
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use braid_log::SeqNo;

    use super::validate::validate;
    use crate::device::MemoryDevice;
    use crate::engine::context::hash_key;
    use crate::{ConflictKind, Database, Error, Readable, Table};

    fn open() -> (Database, Table<u64, u64>) {
        let builder = Database::builder().strands(2).pool_bytes(1 << 20);
        let device = Arc::new(MemoryDevice::new());
        let db = builder.segment_bytes(64 << 10).open_on(device).unwrap();
        let t = db.open_table("t").unwrap();
        (db, t)
    }

    /// T reads that a range is empty, V inserts a key into it, and T's validation begins at V's
    /// sequence number. Then W removes the key with the next one, the tombstone is purged, and T's
    /// validation reaches the range. T has found that its other reads are the state after V, so the
    /// range must be, too.
    #[test]
    fn a_purged_removal_after_the_number_is_a_conflict() {
        let (db, t) = open();
        let engine = db.engine();
        let mut tx = db.begin();
        assert_eq!(tx.range(&t, 1..3).unwrap().count(), 0);
        db.transact(|v| v.insert(&t, &2, &2)).unwrap();
        let seqno = engine.log.last_seqno().next();
        db.transact(|w| w.remove(&t, &2)).unwrap();
        engine.collect_all_versions();
        assert!(!engine.gc.none_purged_from(seqno));
        let context = tx.context.as_mut().unwrap();
        let state = &mut **context.state.get_mut();
        state
            .reads
            .add_ranges(context.ranges.get_mut(), || SeqNo::NONE);
        let validated = validate(engine, state, seqno);
        assert!(matches!(
            validated,
            Err(Error::Conflict(ConflictKind::Range))
        ));
    }

    /// As above, but the removal is still in the leaf when the validation reaches it.
    #[test]
    fn a_removal_at_the_number_of_a_reader_is_a_conflict() {
        let (db, t) = open();
        let engine = db.engine();
        let mut tx = db.begin();
        assert_eq!(tx.range(&t, 1..3).unwrap().count(), 0);
        // The snapshot retains the tombstone.
        let snapshot = db.snapshot();
        db.transact(|v| v.insert(&t, &2, &2)).unwrap();
        let seqno = engine.log.last_seqno().next();
        db.transact(|w| w.remove(&t, &2)).unwrap();
        assert!(engine.gc.none_purged_from(seqno));
        let context = tx.context.as_mut().unwrap();
        let state = &mut **context.state.get_mut();
        state
            .reads
            .add_ranges(context.ranges.get_mut(), || SeqNo::NONE);
        let validated = validate(engine, state, seqno);
        assert!(matches!(
            validated,
            Err(Error::Conflict(ConflictKind::Range))
        ));
        drop(snapshot);
    }

    #[test]
    fn the_leaves_of_blind_writes_are_loaded_before_the_commit() {
        let (db, t) = open();
        let rows = 200_000;
        let mut load = db.bulk_load::<u64, u64>("large").unwrap();
        (0..rows).for_each(|key| load.insert(&key, &key).unwrap());
        load.finish().unwrap();
        let large: Table<u64, u64> = db.open_table("large").unwrap();
        assert_eq!(db.snapshot().iter(&large).unwrap().count() as u64, rows);
        let engine = db.engine();
        let tree = &large.core.tree;
        let is_in_memory = |key: u64| tree.is_in_memory(&key.to_be_bytes());
        assert!(engine.store.may_miss_pages());
        let keys = || (0..12u64).map(|i| i * rows / 12);
        let mut tx = db.begin();
        tx.insert(&t, &1, &1).unwrap();
        keys().for_each(|key| tx.insert(&large, &key, &0).unwrap());
        let missing = keys().filter(|&key| !is_in_memory(key)).count();
        assert!(missing > 4, "{missing} of the leaves were evicted");
        let state = tx.context.as_mut().unwrap().state.get_mut();
        super::precommit::load_leaves(engine, state);
        let left: Vec<u64> = keys().filter(|&key| !is_in_memory(key)).collect();
        assert!(left.is_empty(), "{left:?} of {missing} are still missing");
        tx.commit().unwrap();
        assert!(keys().all(|key| db.get(&large, &key).unwrap() == Some(0)));
    }

    /// No panic in a commit is known, but one must not leave locks that no thread releases.
    #[test]
    fn a_commit_that_panics_releases_its_locks() {
        let (db, t) = open();
        let locks = &db.engine().locks;
        let mut tx = db.begin();
        tx.get(&t, &1).unwrap();
        tx.insert(&t, &2, &2).unwrap();
        let stripe = locks.stripe_of(hash_key(t.core.id, &2u64.to_be_bytes()));
        assert!(locks.is_held_by_other(stripe, 0));
        // Another transaction changes the leaf, so that validation rereads the key and finds no
        // table.
        db.transact(|other| other.insert(&t, &3, &3)).unwrap();
        tx.state().borrow_mut().reads.points[0].table = u32::MAX;
        assert!(catch_unwind(AssertUnwindSafe(|| tx.commit())).is_err());
        assert!(!locks.is_held_by_other(stripe, 0));
        db.transact(|tx| tx.insert(&t, &2, &4)).unwrap();
        assert_eq!(db.get(&t, &2).unwrap(), Some(4));
    }
}
