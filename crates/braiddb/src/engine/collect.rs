//! Version garbage collection: frees versions and tombstones that no snapshot can see.

use std::sync::Arc;

use braid_log::SeqNo;
use braid_store::{Change, Record};

use super::Engine;
use crate::base::written::Written;
use crate::mvcc::gc::{Retired, Shard, Tombstone};
use crate::schema::table::TableCore;

/// Maximum number of retired versions that one commit examines, so that no commit pays for all.
const STEP_MAX: usize = 64;

impl Engine {
    /// Collects this thread's shard, up to [`STEP_MAX`] versions.
    pub(crate) fn collect_versions(&self) {
        self.collect_shard(&mut self.gc.lock_shard(), STEP_MAX);
    }

    /// Collects everything below the watermark.
    pub(crate) fn collect_all_versions(&self) {
        for shard in self.gc.shards() {
            self.collect_shard(&mut shard.lock(), usize::MAX);
        }
    }

    fn collect_shard(&self, shard: &mut Shard, at_most: usize) {
        let Some(first) = shard.retired.front() else {
            return;
        };
        let mut watermark = self.snapshots.watermark();
        if first.end > watermark {
            let durable_seqno = self.log.durable_seqno();
            if first.end > durable_seqno {
                return;
            }
            self.snapshots.advance(durable_seqno);
            watermark = self.snapshots.watermark();
        }
        for _ in 0..at_most {
            if shard.retired.len() == 1 && braid_rt::mutant!("keep_the_last_version") {
                break;
            }
            let due = |retired: &mut Retired| retired.end <= watermark;
            let Some(retired) = shard.retired.pop_front_if(due) else {
                break;
            };
            match &retired.tombstone {
                None => {
                    let mut chain = self.locks.versions(retired.stripe).lock();
                    chain.trim(watermark, &mut shard.spare);
                }
                Some(tombstone) if !self.store.has_room_to_purge(&tombstone.key) => {
                    // The next checkpoint frees room.
                    shard.retired.push_front(retired);
                    break;
                }
                Some(tombstone) => self.purge(tombstone, retired.end),
            }
        }
        for large in shard.spare.large.drain(..) {
            self.store.free_detached(large);
        }
    }

    /// Removes the tombstone of commit `end` from its tree.
    #[cold]
    fn purge(&self, tombstone: &Tombstone, end: SeqNo) {
        // A checkpoint must not switch the epoch while a page changes. If a checkpoint is about to,
        // this tombstone stays until a scan finds it.
        let Some(_gate) = self.page_gate.try_read() else {
            return;
        };
        if tombstone.table.is_dropped() {
            return;
        }
        // An error costs space only: the tombstone stays, and the next user of the page gets the
        // same error.
        let _ = tombstone.table.tree.modify(&tombstone.key, |old| {
            let is_it = old
                .map(|old| old.meta())
                .is_some_and(|meta| meta.tombstone && meta.seqno() == end);
            if is_it {
                // Before the removal of the tombstone, see `none_purged_from`.
                self.gc.note_purge(end);
            }
            (if is_it { Change::Remove } else { Change::Keep }, ())
        });
    }

    /// Retires a tombstone that a scan found, if it is older than the open of the database: no
    /// shard has an entry for such a tombstone.
    pub(crate) fn note_tombstone(&self, table: &Arc<TableCore>, record: Record<'_>) {
        if record.meta.seqno() <= self.opened_at && !self.is_read_only() {
            let retired = Retired::tombstone(record.meta.seqno(), 0, table.clone(), record.key);
            self.gc.lock_shard().retire_first(retired);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use braid_io::SimDevice;

    use crate::{Database, Isolation, Readable, Table, TransactionOptions};

    fn open(device: &SimDevice) -> (Database, Table<u64, u64>) {
        let builder = Database::builder().strands(2).pool_bytes(1 << 20);
        let builder = builder.segment_bytes(64 << 10).background_threads(false);
        let db = builder.open_on(Arc::new(device.clone())).unwrap();
        let table = db.open_table("t").unwrap();
        (db, table)
    }

    /// Opens a database whose key 1 was removed and whose key 2 exists.
    fn with_a_removal(device: &SimDevice) -> (Database, Table<u64, u64>) {
        let (db, t) = open(device);
        let both = |tx: &mut crate::Transaction| (1..3).try_for_each(|key| tx.insert(&t, &key, &7));
        db.transact(both).unwrap();
        db.transact(|tx| tx.remove(&t, &1)).unwrap();
        (db, t)
    }

    fn has_tombstone(db: &Database, table: &Table<u64, u64>) -> bool {
        let tree = db.engine().store.tree(table.core.id).unwrap();
        let found = tree.get(&1u64.to_be_bytes(), |_| false).unwrap();
        found.is_some_and(|found| found.meta.tombstone)
    }

    #[test]
    fn a_recovered_removal_is_collected() {
        let device = SimDevice::new(1);
        let before = with_a_removal(&device);
        let device = device.after_crash();
        let (db, t) = open(&device);
        assert!(has_tombstone(&db, &t));
        assert_eq!(db.stats().old_versions, 1);
        db.engine().collect_all_versions();
        assert!(!has_tombstone(&db, &t));
        assert_eq!(db.get(&t, &2).unwrap(), Some(7));
        drop(before);
    }

    #[test]
    fn a_tombstone_of_a_checkpoint_is_collected_after_a_scan() {
        let device = SimDevice::new(2);
        let (db, t) = with_a_removal(&device);
        db.close().unwrap();
        drop(t);
        let (db, t) = open(&device);
        assert!(has_tombstone(&db, &t));
        db.engine().collect_all_versions();
        assert!(has_tombstone(&db, &t));
        assert_eq!(db.snapshot().iter(&t).unwrap().count(), 1);
        assert_eq!(db.stats().old_versions, 1);
        db.engine().collect_all_versions();
        assert!(!has_tombstone(&db, &t));
        // A tombstone written since the open is retired by its commit alone.
        db.transact(|tx| tx.insert(&t, &1, &7)).unwrap();
        db.transact(|tx| tx.remove(&t, &1)).unwrap();
        let gc = db.stats().old_versions;
        assert_eq!(db.snapshot().iter(&t).unwrap().count(), 1);
        assert_eq!(db.stats().old_versions, gc);
    }

    #[test]
    fn a_tombstone_stays_when_an_older_one_of_its_key_is_collected() {
        let (db, t) = open(&SimDevice::new(4));
        let put = |value: u64| db.transact(|tx| tx.insert(&t, &1, &value)).unwrap();
        let remove = || db.transact(|tx| tx.remove(&t, &1)).unwrap();
        put(1);
        let before = db.snapshot();
        remove();
        put(2);
        let between = db.snapshot();
        remove();
        // Now the first tombstone can be collected, and the second cannot.
        drop(before);
        db.engine().collect_all_versions();
        assert!(has_tombstone(&db, &t));
        assert_eq!(between.get(&t, &1).unwrap(), Some(2));
        drop(between);
        db.engine().collect_all_versions();
        assert!(!has_tombstone(&db, &t));
    }

    #[test]
    fn a_transaction_closes_its_snapshot_however_it_ends() {
        let (db, t) = open(&SimDevice::new(3));
        let options = TransactionOptions {
            isolation: Isolation::Snapshot,
            ..TransactionOptions::default()
        };
        let begin = |key: u64| {
            let mut tx = db.begin_with(options);
            assert_eq!(tx.get(&t, &0).unwrap(), None);
            tx.insert(&t, &key, &key).unwrap();
            assert_eq!(db.stats().snapshots, 1);
            tx
        };
        begin(1).commit().unwrap();
        assert_eq!(db.stats().snapshots, 0);
        begin(2).commit_async().unwrap().wait().unwrap();
        assert_eq!(db.stats().snapshots, 0);
        drop(begin(3));
        assert_eq!(db.stats().snapshots, 0);
    }
}
