//! Version garbage collection: frees versions and tombstones that no snapshot can see.

use std::sync::Arc;

use braid_log::SeqNo;
use braid_rt::Latch;
use braid_store::{Change, LoadRefusal, Record, StoreError};

use super::Engine;
use crate::base::written::Written;
use crate::mvcc::gc::{GcBuffer, RetiredChain, Shard, Tombstone};
use crate::mvcc::versions::SpareVersions;
use crate::schema::table::TableCore;

/// Maximum number of queue entries, and of versions of one chain, that one step examines. A commit
/// takes one step, so that no commit pays for all, and waits for at most one step of another
/// thread.
pub(super) const STEP_MAX: usize = 64;

/// Number of entries in a shard from which on a commit raises the watermark for them. Raising it
/// changes a cache line that all threads use, and collecting a few entries at once takes no longer
/// than one with each commit. The background thread collects fewer entries.
const RAISE_FROM: usize = 16;

/// Number of chains that a commit takes from the queue, and prefetches, before it trims the first
/// of them. Their last use is a flush ago.
const TOGETHER: usize = 8;

const _: () = assert!(STEP_MAX.is_multiple_of(TOGETHER));

/// What became of a tombstone.
enum Purge {
    Done,
    /// It needs a page that must not be loaded now.
    NotInMemory,
    /// It has to wait until a checkpoint makes room, or has begun.
    Blocked,
}

impl Engine {
    /// Counts a commit, adds what it replaced and removed to this thread's shard, and takes one step of
    /// collecting the shard, or as many as a large transaction adds.
    #[inline]
    pub(crate) fn collect_versions(&self, buffer: &mut GcBuffer) {
        // Without background threads, no other thread collects what this one leaves.
        self.collect_step(buffer, !self.settings.background);
    }

    #[inline]
    fn collect_step(&self, buffer: &mut GcBuffer, reads_pages: bool) {
        // Before pruning, after which the count may wrap.
        let versions = buffer.versions;
        if !buffer.long.is_empty() {
            self.prune_long_chains(buffer);
        }
        let shard = self.gc.shard();
        let exceeds = {
            let mut shard = shard.lock();
            shard.commits += 1;
            buffer.add_to(&mut shard, STEP_MAX);
            self.collect_due(&mut shard, buffer);
            shard.take_excess()
        };
        if versions > STEP_MAX || buffer.has_retired() {
            self.add_retired(buffer, versions);
        }
        self.free_trimmed(buffer);
        if !buffer.due.is_empty() {
            self.purge_due(shard, &mut buffer.due, reads_pages);
        }
        if exceeds {
            self.request_collection();
        }
    }

    /// Adds the rest of what a large transaction replaced and removed, a step at a time, and collects
    /// as much as it adds: otherwise versions that no snapshot needs would pile up.
    #[cold]
    #[inline(never)]
    fn add_retired(&self, buffer: &mut GcBuffer, versions: usize) {
        let shard = self.gc.shard();
        let mut left = versions.max(buffer.retired.len() + buffer.tombstones.len());
        while buffer.has_retired() {
            buffer.add_to(&mut shard.lock(), STEP_MAX);
        }
        buffer.retired = Vec::new();
        buffer.tombstones = Vec::new();
        while left > 0 && self.collect_due(&mut shard.lock(), buffer) {
            left = left.saturating_sub(STEP_MAX);
            self.free_trimmed(buffer);
        }
    }

    /// Collects everything below the watermark.
    pub(crate) fn collect_all_versions(&self) {
        let _collecting = self.gc.collecting.lock();
        // A step raises the watermark for its first entry only, and then takes what is below.
        self.snapshots.advance(self.log.visible_seqno());
        let mut buffer = GcBuffer::default();
        for shard in self.gc.shards() {
            let mut left = shard.lock().cold_len();
            while self.collect_step_of(shard, &mut left, &mut buffer) {}
        }
    }

    /// Collects a step's entries of a shard, and as many of its cold tombstones, of which `left` are
    /// left. Returns whether more can be collected.
    ///
    /// Commits wait for the shard. So its lock is held only while entries are taken from it and put
    /// back, and neither for the chains nor for the allocator.
    fn collect_step_of(
        &self,
        shard: &Latch<Shard>,
        left: &mut usize,
        buffer: &mut GcBuffer,
    ) -> bool {
        buffer.reserve(STEP_MAX);
        let is_more = {
            let mut shard = self.holds.garbage.of(shard.lock());
            let watermark = self.due_watermark(&shard, 1);
            let is_more = watermark.is_some_and(|at| shard.take_due(at, STEP_MAX, buffer));
            if !is_more && *left > 0 {
                let step = STEP_MAX.min(*left);
                shard.take_cold(step, &mut buffer.due);
                *left -= step;
            }
            is_more
        };
        if !buffer.chains.is_empty() {
            let held = braid_rt::mutant!("trim_under_the_shard").then(|| shard.lock());
            self.trim_taken(buffer);
            drop(held);
            buffer.add_to(&mut self.holds.garbage.of(shard.lock()), STEP_MAX);
        }
        self.free_trimmed(buffer);
        let is_blocked = !self.purge_due(shard, &mut buffer.due, true);
        !is_blocked && (is_more || *left > 0)
    }

    /// Trims the chains that were taken from a shard, a step of versions at a time. A chain with
    /// versions that are not due keeps its only entry: `buffer.retired`.
    fn trim_taken(&self, buffer: &mut GcBuffer) {
        let watermark = self.snapshots.watermark();
        while let Some(bucket) = buffer.chains.pop() {
            loop {
                buffer.spare.reserve(STEP_MAX);
                let (trimmed, left, oldest) = {
                    let chain = self.locks.versions(bucket).lock();
                    let mut chain = self.holds.versions.of(chain);
                    let (trimmed, left) = chain.trim(watermark, STEP_MAX, &mut buffer.spare);
                    (trimmed, left, chain.hint())
                };
                buffer.count_dropped(trimmed);
                match left {
                    None => break,
                    Some(end) if end <= watermark => self.free_trimmed(buffer),
                    Some(end) => {
                        if !braid_rt::mutant!("forget_the_rest_of_chains") {
                            let rest = RetiredChain {
                                end,
                                bucket,
                                oldest,
                            };
                            buffer.retired.push(rest);
                        }
                        break;
                    }
                }
            }
        }
    }

    /// Returns the watermark if it has reached the first entry of a shard. Raises it if that is
    /// necessary and possible, and the shard has `raise_from` entries.
    #[inline]
    fn due_watermark(&self, shard: &Shard, raise_from: usize) -> Option<SeqNo> {
        let first = shard.first_end()?;
        if shard.entries() < raise_from {
            return None;
        }
        let watermark = self.snapshots.watermark();
        if first <= watermark {
            return Some(watermark);
        }
        let visible_seqno = self.log.visible_seqno();
        if first > visible_seqno {
            return None;
        }
        self.snapshots.advance(visible_seqno);
        Some(self.snapshots.watermark())
    }

    /// Takes one step of a commit, if something is due. Returns whether more may be due.
    #[inline]
    fn collect_due(&self, shard: &mut Shard, buffer: &mut GcBuffer) -> bool {
        // Without background threads, no other thread collects what this one leaves.
        let raise_from = if self.settings.background {
            RAISE_FROM
        } else {
            1
        };
        let watermark = self.due_watermark(shard, raise_from);
        watermark.is_some_and(|watermark| self.collect_up_to(watermark, shard, buffer))
    }

    /// Trims chains, and moves tombstones to `buffer.due`, up to a watermark: one step. Returns whether
    /// more may be due.
    ///
    /// Trims under the shard's lock, which only the collector and a seventeenth thread share with
    /// this one: a second acquisition would cost each commit more.
    #[inline(never)]
    fn collect_up_to(&self, watermark: SeqNo, shard: &mut Shard, buffer: &mut GcBuffer) -> bool {
        let is_more = shard.take_due_tombstones(watermark, STEP_MAX, &mut buffer.due);
        let mut chains = [RetiredChain::default(); TOGETHER];
        for _ in 0..STEP_MAX / TOGETHER {
            let taken = self.take_chains(shard, watermark, &mut chains);
            for at in 0..taken {
                let bucket = chains[at].bucket;
                let mut chain = self.locks.versions(bucket).lock();
                let (trimmed, left) = chain.trim(watermark, STEP_MAX, &mut buffer.spare);
                shard.count_dropped(trimmed);
                let Some(end) = left else {
                    continue;
                };
                let rest = RetiredChain {
                    end,
                    bucket,
                    oldest: chain.hint(),
                };
                drop(chain);
                if end <= watermark {
                    let later = chains[at + 1..taken].iter().rev();
                    later.for_each(|&chain| shard.retire_chain_first(chain));
                    shard.retire_chain_first(rest);
                    return true;
                }
                shard.retire_chain(rest);
            }
            if taken < TOGETHER {
                return is_more;
            }
        }
        true
    }

    /// Takes chains that the watermark has reached from a shard, and prefetches what trimming them
    /// will access. Returns their number.
    #[inline]
    fn take_chains(
        &self,
        shard: &mut Shard,
        watermark: SeqNo,
        chains: &mut [RetiredChain; TOGETHER],
    ) -> usize {
        let mut places = chains.iter_mut();
        shard.take_due_chains(watermark, TOGETHER, |chain| {
            self.locks.prefetch_for_write(chain.bucket);
            chain.oldest.prefetch();
            if let Some(place) = places.next() {
                *place = chain;
            }
        })
    }

    /// Drops versions between open snapshots from the chains that have become long.
    #[cold]
    #[inline(never)]
    fn prune_long_chains(&self, buffer: &mut GcBuffer) {
        let open = self.snapshots.survey(self.log.visible_seqno());
        while let Some(bucket) = buffer.long.pop() {
            // Another thread is surveying: a later addition to the chain asks again.
            if let Some(open) = &open {
                let mut chain = self.locks.versions(bucket).lock();
                let pruned = chain.prune(open, &mut buffer.spare);
                buffer.count_dropped(pruned);
            }
        }
    }

    /// Frees what was trimmed. Call without any lock.
    #[inline]
    pub(super) fn free_trimmed(&self, buffer: &mut GcBuffer) {
        if buffer.spare.is_worth_shedding() {
            self.shed(&mut buffer.spare);
        }
    }

    #[cold]
    #[inline(never)]
    fn shed(&self, spare: &mut SpareVersions) {
        while let Some((table, large)) = spare.large.pop() {
            // The pages of a dropped tablespace are gone.
            if let Ok(store) = self.store_of(table) {
                store.free_detached(large);
            }
        }
        spare.shed();
    }

    /// Purges tombstones. A commit that may not read pages leaves those for which that would take reads to
    /// the background thread. Returns `false` if a tombstone cannot be purged now; then it
    /// and the rest are due again.
    #[cold]
    #[inline(never)]
    fn purge_due(&self, shard: &Latch<Shard>, due: &mut Vec<Tombstone>, reads_pages: bool) -> bool {
        let mut due = due.drain(..);
        while let Some(tombstone) = due.next() {
            let is_cold = !reads_pages
                && !tombstone.table.tree.is_in_memory_to_remove(&tombstone.key)
                && !braid_rt::mutant!("purge_cold_leaves_at_commit");
            // A leaf that remains small after a merge may need further neighbours, which can wait.
            let reads = reads_pages || braid_rt::mutant!("purge_and_read_neighbours");
            let _refusal = (!reads).then(LoadRefusal::new);
            let purge = if is_cold {
                Purge::NotInMemory
            } else {
                self.purge(&tombstone)
            };
            match purge {
                Purge::Done => {}
                Purge::NotInMemory => shard.lock().retire_cold(tombstone),
                Purge::Blocked => {
                    let mut shard = shard.lock();
                    due.rev().for_each(|rest| shard.retire_first(rest));
                    shard.retire_first(tombstone);
                    return false;
                }
            }
        }
        true
    }

    /// Removes a tombstone from its tree.
    #[cold]
    fn purge(&self, tombstone: &Tombstone) -> Purge {
        let end = tombstone.end;
        // The next checkpoint frees room.
        if !tombstone.table.tree.has_room_to_purge(&tombstone.key) {
            return Purge::Blocked;
        }
        // A checkpoint must not switch the epoch while a page changes.
        let Some(_gate) = self.try_change_pages() else {
            return Purge::Blocked;
        };
        if tombstone.table.is_gone() {
            return Purge::Done;
        }
        let purged = tombstone.table.tree.modify(&tombstone.key, |old| {
            let is_it = old
                .map(|old| old.meta())
                .is_some_and(|meta| meta.tombstone && meta.seqno() == end);
            if is_it {
                // Before the removal of the tombstone, see `none_purged_from`.
                self.gc.note_purge(end);
            }
            (if is_it { Change::Remove } else { Change::Keep }, ())
        });
        match purged {
            // The leaf was evicted a moment ago.
            Err(StoreError::NotInMemory(_)) => Purge::NotInMemory,
            // Another error costs space only: the tombstone stays, and the next user of the page gets the
            // same error.
            _ => Purge::Done,
        }
    }

    /// Retires a tombstone that a scan found, if it is older than the open of the database: no
    /// shard has an entry for such a tombstone.
    pub(crate) fn note_tombstone(&self, table: &Arc<TableCore>, record: Record<'_>) {
        if record.meta.seqno() <= self.opened_at && !self.is_read_only() {
            let tombstone = Tombstone::new(record.meta.seqno(), table.clone(), record.key);
            self.gc.shard().lock().retire_first(tombstone);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use braid_io::SimDevice;
    use braid_log::SeqNo;
    use braid_rt::Latch;

    use super::STEP_MAX;
    use crate::mvcc::gc::{GcBuffer, RetiredChain, Shard};
    use crate::mvcc::versions::VersionHint;
    use crate::{Database, Isolation, Readable, Table, TransactionOptions};

    /// Longer than anything below takes: a test that waits so long has failed.
    const PATIENCE: Duration = Duration::from_secs(60);

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
    fn recovered_removals_of_several_tables_are_collected() {
        let device = SimDevice::new(4);
        let (db, t) = with_a_removal(&device);
        let other: Table<u64, u64> = db.open_table("other").unwrap();
        db.transact(|tx| tx.insert(&other, &1, &7)).unwrap();
        db.transact(|tx| tx.remove(&other, &1)).unwrap();
        let device = device.after_crash();
        let (recovered, _) = open(&device);
        let tables = ["t", "other"].map(|name| recovered.open_table(name).unwrap());
        assert!(tables.iter().all(|t| has_tombstone(&recovered, t)));
        recovered.engine().collect_all_versions();
        assert!(!tables.iter().any(|t| has_tombstone(&recovered, t)));
        drop((db, t));
    }

    /// A tombstone that refers to another core of the table would be purged from pages that a drop
    /// has freed, and a tree would be freed while the tombstone refers to it.
    #[test]
    fn recovered_removals_refer_to_tables_as_handles_do() {
        let device = SimDevice::new(5);
        let before = with_a_removal(&device);
        let device = device.after_crash();
        let (db, t) = open(&device);
        let tables_of_tombstones = || {
            let gc = &db.engine().gc;
            let of_shard = |shard: &Latch<Shard>| {
                let shard = shard.lock();
                let tables = shard.tombstones(0, usize::MAX).map(|of| of.table.clone());
                tables.collect::<Vec<_>>()
            };
            gc.shards().flat_map(of_shard).collect::<Vec<_>>()
        };
        let tables = tables_of_tombstones();
        assert!(!tables.is_empty());
        assert!(tables.iter().any(|table| Arc::ptr_eq(table, &t.core)));
        drop(tables);
        let id = t.core.id;
        drop(t);
        db.drop_table("t").unwrap();
        assert!(
            tables_of_tombstones()
                .iter()
                .all(|table| table.id != id || table.is_gone())
        );
        db.engine().collect_all_versions();
        db.engine().free_dropped_tables().unwrap();
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
    fn everything_visible_is_collected_with_a_late_watermark() {
        let (db, t) = open(&SimDevice::new(7));
        let put = |key: u64| db.transact(|tx| tx.insert(&t, &key, &key)).unwrap();
        (1..3).for_each(put);
        let old = db.snapshot();
        db.transact(|tx| tx.remove(&t, &1)).unwrap();
        let removed = db.engine().log.last_seqno();
        put(2);
        drop(old);
        db.engine().snapshots.advance(removed);
        db.engine().collect_all_versions();
        assert_eq!(db.stats().old_versions, 0);
    }

    #[test]
    fn versions_under_an_old_snapshot_grow_with_keys_not_with_updates() {
        let (db, t) = open(&SimDevice::new(5));
        let put = |key: u64, value: u64| db.transact(|tx| tx.insert(&t, &key, &value)).unwrap();
        (0..10).for_each(|key| put(key, key));
        let old = db.snapshot();
        for value in 100..1_100 {
            put(value % 10, value);
            let versions = db.stats().old_versions;
            assert!(versions <= 10 * 18, "{versions} versions after {value}");
        }
        for key in 0..10 {
            assert_eq!(old.get(&t, &key).unwrap(), Some(key));
            assert_eq!(db.snapshot().get(&t, &key).unwrap(), Some(1_090 + key));
        }
        drop(old);
        db.engine().collect_all_versions();
        assert_eq!(db.stats().old_versions, 0);
    }

    #[test]
    fn a_commit_reads_no_page_to_collect_a_removal() {
        let (db, t) = open(&SimDevice::new(6));
        let mut load = db.bulk_load::<u64, u64>("large").unwrap();
        let rows = 200_000;
        (0..rows).for_each(|key| load.insert(&key, &key).unwrap());
        load.finish().unwrap();
        let large: Table<u64, u64> = db.open_table("large").unwrap();
        let old = db.snapshot();
        db.transact(|tx| tx.remove(&large, &0)).unwrap();
        // Fills the pool with other leaves.
        for _ in 0..2 {
            db.checkpoint().unwrap();
            let rest = db.snapshot().range(&large, rows / 2..).unwrap().count();
            assert_eq!(rest as u64, rows / 2);
        }
        let engine = db.engine();
        let tree = engine.store.tree(large.core.id).unwrap();
        assert!(!tree.is_in_memory(&0u64.to_be_bytes()));
        drop(old);
        let collect = |reads_pages| {
            let loads = db.stats().store.page_loads;
            engine.collect_step(&mut GcBuffer::default(), reads_pages);
            db.stats().store.page_loads - loads
        };
        assert_eq!(db.stats().old_versions, 2);
        assert_eq!(
            collect(false),
            0,
            "a commit that leaves the page to another thread"
        );
        assert_eq!(db.stats().old_versions, 1, "the tombstone stays");
        assert_eq!(collect(false), 0);
        engine.collect_all_versions();
        assert_eq!(db.stats().old_versions, 0);
        assert_eq!(tree.get(&0u64.to_be_bytes(), |_| false).unwrap(), None);
        drop(t);
    }

    /// Commits of the shard do not wait for what holds the chain.
    #[test]
    fn the_collector_waits_for_a_chain_without_its_shard() {
        let (db, t) = open(&SimDevice::new(8));
        let old = {
            db.transact(|tx| tx.insert(&t, &1, &1)).unwrap();
            let old = db.snapshot();
            db.transact(|tx| tx.insert(&t, &1, &2)).unwrap();
            old
        };
        let engine = db.engine();
        let mut bucket = None;
        for shard in engine.gc.shards() {
            for chain in shard.lock().chains(0, 2) {
                assert_eq!(bucket.replace(chain.bucket), None, "one chain");
            }
        }
        let chain = engine.locks.versions(bucket.unwrap()).lock();
        drop(old);
        std::thread::scope(|scope| {
            let collector = scope.spawn(|| engine.collect_all_versions());
            let is_free = |shard: &Latch<Shard>| {
                let shard = shard.try_lock();
                shard.is_some_and(|shard| shard.first_end().is_none())
            };
            // The collector has taken the entry, and cannot trim the chain yet.
            let start = Instant::now();
            while !engine.gc.shards().all(is_free) {
                assert!(start.elapsed() < PATIENCE, "the shard is held");
                std::thread::yield_now();
            }
            // And it does not take the shard once more to wait for the chain.
            for _ in 0..1_000 {
                assert!(engine.gc.shards().all(is_free), "the shard is held");
                std::thread::yield_now();
            }
            assert!(!collector.is_finished());
            drop(chain);
        });
        assert_eq!(db.stats().old_versions, 0);
    }

    #[test]
    fn the_rest_of_a_chain_is_collected_later() {
        let (db, t) = open(&SimDevice::new(9));
        let put = |value: u64| db.transact(|tx| tx.insert(&t, &1, &value)).unwrap();
        put(1);
        let first = db.snapshot();
        put(2);
        let second = db.snapshot();
        put(3);
        drop(first);
        db.engine().collect_all_versions();
        assert_eq!(db.stats().old_versions, 1);
        assert_eq!(second.get(&t, &1).unwrap(), Some(2));
        drop(second);
        db.engine().collect_all_versions();
        assert_eq!(db.stats().old_versions, 0);
    }

    #[test]
    fn one_hold_takes_at_most_one_step() {
        let (mut shard, mut buffer) = (Shard::default(), GcBuffer::default());
        let entries = 2 * STEP_MAX - 1;
        for bucket in 0..entries {
            let end = SeqNo::new(7);
            shard.retire_chain(RetiredChain {
                end,
                bucket,
                oldest: VersionHint::default(),
            });
        }
        let mut take = |watermark| {
            let is_more = shard.take_due(SeqNo::new(watermark), STEP_MAX, &mut buffer);
            (is_more, buffer.chains.len())
        };
        assert_eq!(take(6), (false, 0), "none is due");
        assert_eq!(take(7), (true, STEP_MAX));
        assert_eq!(take(7), (false, entries));
        let taken: Vec<_> = (0..entries).collect();
        assert_eq!(buffer.chains, taken);
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
