//! Lock acquisition: when a transaction acquires the locks of the keys that it writes.
//!
//! A small transaction acquires each lock at the write, so that of two transactions that write the
//! same key, one waits instead of losing its work. Two large transactions that share a few keys
//! usually deadlock if they acquire a thousand locks each in the order of their writes, and make
//! others wait for long. So after a certain number of writes, a transaction releases its locks and
//! acquires all of them at commit, in the order of the keys' hashes (Silo, Tu et al. 2013 §4.4,
//! phase 1): only for the duration of the commit, and without a cycle among transactions that do
//! the same.
//!
//! A key that was read under a lock must stay locked: such a transaction keeps acquiring each lock
//! at the write. So does a transaction under snapshot isolation, where the first committer wins,
//! because each write checks, under its lock, for newer versions.

use braid_log::{LockRelease, SeqNo};

use crate::base::written::Written;
use crate::engine::Engine;
use crate::engine::context::Context;
use crate::error::{ConflictKind, Error, Result};
use crate::locks::table::{LockError, Locked};
use crate::schema::table::TableCore;

/// Maximum number of writes of a transaction that acquires each lock at the write.
const LOCKED_AT_ONCE_MAX: usize = 64;

/// Number of attempts of a commit to acquire its locks: after a deadlock it releases all of them
/// and retries. The other transactions are small and soon done, or use the same order.
const ATTEMPTS: u32 = 32;

impl Engine {
    /// Acquires the lock of a key that is about to be written, or leaves it for the commit. The
    /// caller has checked that the table may be written.
    #[inline(always)]
    pub(crate) fn lock_write(
        &self,
        state: &mut Context,
        core: &TableCore,
        key: &[u8],
        hash: u64,
    ) -> Result<()> {
        if state.writes.len() >= LOCKED_AT_ONCE_MAX && self.is_left_for_commit(state) {
            return Ok(());
        }
        self.lock_key(state, core, key, hash)
    }

    /// Acquires the lock of a key that is about to be read, and holds it until the transaction
    /// ends. The caller has checked the table.
    pub(crate) fn lock_read(
        &self,
        state: &mut Context,
        core: &TableCore,
        key: &[u8],
        hash: u64,
    ) -> Result<()> {
        state.reads_locked = true;
        self.check_writable()?;
        self.lock_key(state, core, key, hash)
    }

    #[inline(always)]
    fn lock_key(&self, state: &mut Context, core: &TableCore, key: &[u8], hash: u64) -> Result<()> {
        if let Err(error) = self.hold(state, hash) {
            return Err(self.lock_error(error, state));
        }
        match &state.snapshot {
            Some(snapshot) => self.check_first(snapshot.seqno(), core, key),
            None => Ok(()),
        }
    }

    /// Acquires the lock of a key for the transaction, unless the transaction already holds it. If
    /// the protocol holds locks until the flush, a transaction that finds the lock held triggers
    /// the flush.
    #[inline(always)]
    fn hold(&self, state: &mut Context, hash: u64) -> Result<(), LockError> {
        state.user.locks();
        if self.settings.lock_release != LockRelease::Precommit
            && self.locks.is_held_by_other(hash, state.owner)
        {
            self.flush_for_lock();
        }
        if self.locks.lock(hash, state.owner, state.lock_timeout)? == Locked::Now {
            state.locks.push(hash);
        }
        Ok(())
    }

    #[cold]
    fn flush_for_lock(&self) {
        // This transaction's own commit reports an error.
        let _ = self.log.sync();
    }

    /// Checks the rule that the first committer wins: a key changed after the snapshot cannot be
    /// overwritten.
    #[inline(never)]
    fn check_first(&self, snapshot: SeqNo, core: &TableCore, key: &[u8]) -> Result<()> {
        let found = core.tree.get(key, |_| false)?;
        // Without the snapshot, the tombstone of a later removal may be purged, and the removal
        // would not be found.
        if !braid_rt::mutant!("write_through_ended_snapshots") {
            self.check_not_ended(snapshot)?;
        }
        let newer =
            snapshot < core.since() || found.is_some_and(|found| found.meta.seqno() > snapshot);
        if newer && !braid_rt::mutant!("second_committer_wins") {
            return Err(self.conflict(ConflictKind::Write));
        }
        Ok(())
    }

    #[cold]
    fn is_left_for_commit(&self, state: &mut Context) -> bool {
        if state.locks_in_commit {
            return true;
        }
        if state.reads_locked || state.snapshot.is_some() {
            return false;
        }
        self.unlock_all(state);
        state.locks_in_commit = true;
        true
    }

    /// Acquires the locks that were left for the commit.
    #[cold]
    pub(crate) fn lock_for_commit(&self, state: &mut Context) -> Result<()> {
        if braid_rt::mutant!("leave_unlocked") {
            return Ok(());
        }
        let mut hashes: Vec<u64> = state.writes.live().map(|write| write.hash).collect();
        hashes.sort_unstable();
        for attempt in 1.. {
            let mut all = hashes.iter();
            match all.try_for_each(|&hash| self.hold(state, hash)) {
                Ok(()) => return Ok(()),
                Err(LockError::Cycle) if attempt < ATTEMPTS && !state.reads_locked => {
                    self.unlock_all(state);
                }
                Err(error) => return Err(self.lock_error(error, state)),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Returns the error of a lock that could not be acquired.
    #[cold]
    fn lock_error(&self, error: LockError, state: &Context) -> Error {
        match error {
            LockError::Cycle => self.conflict(ConflictKind::Deadlock),
            LockError::OwnThread => {
                self.counters.conflict();
                Error::SelfDeadlock
            }
            LockError::Timeout => {
                self.counters.conflict();
                Error::LockTimeout {
                    timeout: state.lock_timeout,
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::LOCKED_AT_ONCE_MAX;
    use crate::device::MemoryDevice;
    use crate::{Database, Error, Table};

    /// A refused write leaves no hint of a leaf of the other database, whose pages this one does not
    /// have.
    #[test]
    fn a_foreign_table_is_refused_before_its_leaf_is_approached() {
        let open = || {
            let builder = Database::builder().strands(1).pool_bytes(1 << 20);
            let device = Arc::new(MemoryDevice::new());
            builder.segment_bytes(64 << 10).open_on(device).unwrap()
        };
        let (db, other) = (open(), open());
        let foreign: Table<u64, u64> = other.open_table("t").unwrap();
        let dropped: Table<u64, u64> = db.open_table("t").unwrap();
        db.drop_table("t").unwrap();
        let mut tx = db.begin();
        for table in [&foreign, &dropped] {
            for key in 0..2 * LOCKED_AT_ONCE_MAX as u64 {
                let refused = tx.insert(table, &key, &1).unwrap_err();
                assert!(matches!(
                    refused,
                    Error::ForeignTable { .. } | Error::TableDropped { .. }
                ));
            }
        }
        let is_refused = |core: &Arc<_>| {
            let mut refused = [&foreign.core, &dropped.core].into_iter();
            refused.any(|refused| Arc::ptr_eq(refused, core))
        };
        assert!(!tx.state().borrow().tables.iter().any(is_refused));
    }

    #[test]
    fn keys_read_under_a_lock_stay_locked() {
        // Small, so that Miri takes little time.
        let builder = Database::builder().strands(2).pool_bytes(1 << 20);
        let device = Arc::new(MemoryDevice::new());
        let db = builder.segment_bytes(64 << 10).open_on(device).unwrap();
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        let locks = &db.engine().locks;
        let is_locked = |key: u64| locks.is_held_by_other(t.core.hash(&key.to_be_bytes()), 0);
        let (read, written) = (0, 1);
        let mut reads = db.begin();
        assert_eq!(reads.get_for_update(&t, &read).unwrap(), None);
        let mut writes = db.begin();
        writes.insert(&t, &written, &1).unwrap();
        assert!(is_locked(read) && is_locked(written));
        for key in 0..2 * LOCKED_AT_ONCE_MAX as u64 {
            reads.insert(&t, &(2 * key), &1).unwrap();
            writes.insert(&t, &(2 * key + 1), &1).unwrap();
        }
        assert!(is_locked(read) && !is_locked(written));
        reads.commit().unwrap();
        writes.commit().unwrap();
        assert!(!is_locked(read));
    }
}
