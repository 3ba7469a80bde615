//! Replay of the log: only the newest write of each key reaches a tree.
//!
//! Writes are gathered in memory, partitioned by the hash of their key; a newer write of a key
//! replaces an older one. A full partition is applied in key order. Most logs update the same keys
//! repeatedly between two checkpoints, so this costs one descent for each key instead of one for
//! each write, and neighbouring keys share cached pages.

use std::mem;
use std::sync::OnceLock;

use braid_rt::atomic::{AtomicUsize, Ordering};
use braid_rt::{Mutex, narrow};

use braid_log::{LogRecord, SeqNo};
use braid_store::{Change, DamagedRange, LeafHint, Store, StoreError, Tree};

use super::gathered::{BYTES_MAX, Found, Gathered, Write};
use crate::base::written::Written;
use crate::error::{Error, Result};
use crate::format::redo::{self, Redo};
use crate::schema::entry::{MAIN_SPACE, space_of};

const PARTITIONS: usize = 64;

/// Writes that are gathered in a partition at once.
const AT_ONCE: usize = 64;

/// Writes that are sorted by partition at once: so few that they and their bytes in the log stay in
/// a core's cache.
const SORTED: usize = 2048;

/// Returns the approximate number of bytes of keys and values that all partitions hold together:
/// a part of a buffer pool that is hardly used meanwhile.
pub(crate) fn gathered_bytes_max(pool_bytes: usize) -> usize {
    // Simulated logs are short.
    if braid_rt::simulation::is_on() {
        32 << 10
    } else {
        (pool_bytes / 4).max(64 << 20)
    }
}

/// Returns the partition of a key's hash, whose lowest bits find the write in the partition.
#[inline]
fn partition_of(hash: u64) -> usize {
    (hash >> 32) as usize % PARTITIONS
}

/// A replayed removal: table, key, version.
pub(crate) type Removal = (u32, Box<[u8]>, SeqNo);

/// Replay in progress; see the module documentation.
pub(crate) struct Replay<'a> {
    store: &'a Store,
    /// The stores of the tablespaces other than the main one, by number.
    spaces: &'a [(u8, Store)],
    partitions: Vec<Mutex<Gathered>>,
    partition_bytes_max: usize,
    /// Trees of the tables with the lowest numbers, each looked up once.
    trees: Box<[OnceLock<Tree>]>,
    removals: Mutex<Vec<Removal>>,
    /// Whether writes to damaged pages are skipped, each counted in `damage`.
    skips_damage: bool,
    damage: Mutex<Vec<(DamagedRange, u64)>>,
}

/// Returns a transaction's writes.
fn found<'a>(log_record: &LogRecord<'a>) -> impl Iterator<Item = Result<Found<'a>>> + use<'a> {
    let version = log_record.seqno;
    redo::decode(log_record.payload).map(move |redo| Ok(Found::new(redo?, version)))
}

/// Result of a replay.
pub(crate) struct Replayed {
    pub(crate) removals: Vec<Removal>,
    /// Unreachable key ranges, which stay unreadable, and the number of writes skipped in each.
    pub(crate) damage: Vec<(DamagedRange, u64)>,
}

impl<'a> Replay<'a> {
    /// Creates a replay whose partitions hold about `bytes_max` bytes.
    pub(crate) fn new(store: &'a Store, bytes_max: usize) -> Self {
        Self {
            store,
            spaces: &[],
            partition_bytes_max: (bytes_max / PARTITIONS).min(BYTES_MAX),
            partitions: (0..PARTITIONS).map(|_| Mutex::default()).collect(),
            trees: (0..256).map(|_| OnceLock::new()).collect(),
            removals: Mutex::default(),
            skips_damage: false,
            damage: Mutex::default(),
        }
    }

    /// Creates a single-threaded replay for a read-only database. Writes that lead to damaged pages
    /// are skipped, and these pages stay unreadable.
    pub(crate) fn around_damage(store: &'a Store, bytes_max: usize) -> Self {
        Self {
            skips_damage: true,
            ..Self::new(store, bytes_max)
        }
    }

    /// Replays the writes to tables in these tablespaces, too; those to tables in others are skipped:
    /// such a tablespace was dropped.
    pub(crate) fn with_spaces(self, spaces: &'a [(u8, Store)]) -> Self {
        Self { spaces, ..self }
    }

    /// Returns the store of a table; `None` if its tablespace is not there.
    fn store_of(&self, table: u32) -> Option<&'a Store> {
        match space_of(table) {
            MAIN_SPACE => Some(self.store),
            number => {
                let found = self.spaces.iter().find(|(space, _)| *space == number);
                found.map(|(_, store)| store)
            }
        }
    }

    /// Gathers a transaction's writes. Replay compares versions (I7), so the order of the
    /// transactions does not matter and a second replay has no effect.
    pub(crate) fn add(&self, log_record: LogRecord<'_>) -> Result<()> {
        for found in found(&log_record) {
            let found = found?;
            let mut partition = self.partitions[partition_of(found.hash)].lock();
            partition.gather(&found);
            if partition.bytes() > self.partition_bytes_max {
                braid_rt::coverage_point("replay: a batch before the end");
                self.apply(&mut partition)?;
            }
        }
        Ok(())
    }

    /// Gathers the writes of some transactions as long as there is room for them, and changes no
    /// tree: the transactions may come from a log that turns out to be damaged, and a failed
    /// recovery changes nothing. Returns whether all were gathered; otherwise [`Replay::add`] is to
    /// repeat them.
    pub(crate) fn try_add(&self, log_records: &[LogRecord<'_>]) -> bool {
        let mut all = Vec::with_capacity(SORTED);
        for found in log_records.iter().flat_map(found) {
            let Ok(found) = found else { return false };
            all.push(found);
            if all.len() == SORTED {
                if !self.gather(&all) {
                    return false;
                }
                all.clear();
            }
        }
        self.gather(&all)
    }

    /// Gathers at most [`SORTED`] writes, by partition. Returns whether there was room for them.
    fn gather(&self, all: &[Found<'_>]) -> bool {
        // A counting sort of the writes' indices. After it, `ends` has the end of each partition.
        let mut ends = [0; PARTITIONS + 1];
        for found in all {
            ends[partition_of(found.hash) + 1] += 1;
        }
        for i in 0..PARTITIONS {
            ends[i + 1] += ends[i];
        }
        let mut sorted = [0u16; SORTED];
        for (index, found) in all.iter().enumerate() {
            let end = &mut ends[partition_of(found.hash)];
            sorted[*end] = narrow(index);
            *end += 1;
        }
        let mut begin = 0;
        for (partition, end) in self.partitions.iter().zip(ends) {
            let found = &sorted[begin..end];
            begin = end;
            if found.is_empty() {
                continue;
            }
            let mut partition = partition.lock();
            for found in found.chunks(AT_ONCE) {
                if partition.bytes() > self.partition_bytes_max {
                    braid_rt::coverage_point("replay: no room for more during the scan");
                    return false;
                }
                let found = found.iter().map(|&index| &all[usize::from(index)]);
                partition.prefetch(found.clone());
                found.for_each(|found| partition.gather(found));
            }
        }
        true
    }

    fn apply(&self, partition: &mut Gathered) -> Result<()> {
        let gathered = mem::take(partition);
        let writes = gathered.sorted();
        let mut hint = LeafHint::default();
        for write in &writes {
            match self.apply_one(write, &mut hint) {
                Err(error @ Error::Corrupted { .. }) if self.skips_damage => {
                    hint = LeafHint::default();
                    self.leave_out(write, error)?;
                }
                applied => applied?,
            }
        }
        Ok(())
    }

    /// Skips a write that failed because of a damaged page, and makes its key unreadable.
    fn leave_out(&self, write: &Write<'_>, error: Error) -> Result<()> {
        if braid_rt::mutant!("forget_left_out_writes") {
            return Ok(());
        }
        let Redo { table, key, .. } = write.redo;
        let condemned = self.with_tree(table, |tree| Ok(tree.condemn(key)?))?;
        let range = match condemned {
            Some(range) => range,
            // No page on the way to the key is damaged, so a reader would trust the stale page.
            None => match self.apply_one(write, &mut LeafHint::default()) {
                Ok(()) => return Ok(()),
                Err(_) => self.lose(write, error)?,
            },
        };
        let mut damage = self.damage.lock();
        match damage.iter_mut().find(|(known, _)| *known == range) {
            Some((_, writes)) => *writes += 1,
            None => damage.push((range, 1)),
        }
        Ok(())
    }

    /// Makes the key of a write unreadable, if the write needs a damaged page that readers of the key
    /// do not.
    fn lose(&self, write: &Write<'_>, error: Error) -> Result<DamagedRange> {
        let Error::Corrupted { what, location } = &error else {
            return Err(error);
        };
        let cause = StoreError::Corrupted {
            what: what.clone(),
            location: location.clone(),
        };
        let Redo { table, key, .. } = write.redo;
        let range = self.with_tree(table, |tree| Ok(tree.lose(key, &cause)))?;
        range.ok_or(error)
    }

    /// Applies one write. `hint` is the leaf hint of the previous write, in key order.
    fn apply_one(&self, write: &Write<'_>, hint: &mut LeafHint) -> Result<()> {
        let version = write.version.get();
        let Redo { table, key, value } = write.redo;
        if self.store_of(table).is_none() {
            // To a tablespace that was dropped.
            return Ok(());
        }
        self.with_tree(table, |tree| {
            Ok(tree.modify_at(hint, key, |old| {
                let change = match (old, value) {
                    (Some(old), _) if old.meta().seqno() >= write.version => {
                        braid_rt::coverage_point("replay: an older write in a later batch");
                        Change::Keep
                    }
                    (_, Some(value)) => Change::Put { version, value },
                    // Even for an absent key: an older write of it may be in a later batch.
                    (_, None) if braid_rt::mutant!("replay_keeps_removed") => Change::Keep,
                    (_, None) => Change::Tombstone { version },
                };
                (change, ())
            })?)
        })?;
        if value.is_none() {
            self.removals
                .lock()
                .push((table, key.into(), write.version));
        }
        Ok(())
    }

    fn with_tree<R>(&self, id: u32, f: impl FnOnce(&Tree) -> Result<R>) -> Result<R> {
        let Some(slot) = self.trees.get(id as usize) else {
            let store = self.store_of(id).unwrap_or(self.store);
            return f(&store.tree(id)?);
        };
        match slot.get() {
            Some(tree) => f(tree),
            None => {
                let tree = self.store.tree(id)?;
                f(slot.get_or_init(|| tree))
            }
        }
    }

    /// Applies the remaining writes on several threads.
    pub(crate) fn finish(self, threads: usize) -> Result<Replayed> {
        let next = AtomicUsize::new(0);
        let work = || {
            // Relaxed: the partitions were filled before the threads started.
            while let Some(partition) = self.partitions.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.apply(&mut partition.lock())?;
            }
            Ok::<(), Error>(())
        };
        let done = braid_rt::thread::scatter(threads.max(1), |_| work());
        done.into_iter().collect::<Result<()>>()?;
        Ok(Replayed {
            removals: self.removals.into_inner(),
            damage: self.damage.into_inner(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use braid_store::StoreOptions;

    use super::*;
    use crate::device::MemoryDevice;

    fn store() -> Store {
        let device = Arc::new(MemoryDevice::new());
        Store::create(device, StoreOptions::of_pool(1 << 20)).unwrap()
    }

    fn redo<'a>(table: u32, key: &'a [u8], value: Option<&'a [u8]>) -> Redo<'a> {
        Redo { table, key, value }
    }

    /// Replays one transaction as a batch of its own. Returns whether it is a removal to be purged.
    fn replay(store: &Store, seqno: u64, redo: Redo<'_>) -> bool {
        let mut payload = Vec::new();
        redo::encode(redo, &mut payload);
        let replay = Replay::new(store, 1 << 20);
        let log_record = LogRecord {
            seqno: SeqNo::new(seqno),
            records: 1,
            payload: &payload,
        };
        replay.add(log_record).unwrap();
        let replayed = replay.finish(2).unwrap();
        assert!(replayed.damage.is_empty());
        !replayed.removals.is_empty()
    }

    /// The version of a key, and its value, or `None` for a tombstone.
    fn found(store: &Store, table: u32, key: &[u8]) -> Option<(u64, Option<Vec<u8>>)> {
        let found = store.tree(table).unwrap().get(key, |_| true).unwrap()?;
        let value = found.value.map(|value| value.to_vec());
        assert_eq!(value.is_none(), found.meta.tombstone);
        Some((found.meta.version, value))
    }

    /// Strands are replayed in any order, and a batch may end anywhere (I7).
    #[test]
    fn an_older_write_in_a_later_batch_changes_nothing() {
        for (older, newer) in [
            (Some(&b"old"[..]), Some(&b"new"[..])),
            (None, Some(b"new")),
            (Some(b"old"), None),
        ] {
            let store = store();
            assert_eq!(replay(&store, 5, redo(1, b"k", newer)), newer.is_none());
            assert_eq!(replay(&store, 3, redo(1, b"k", older)), older.is_none());
            let expected = Some((5, newer.map(<[u8]>::to_vec)));
            assert_eq!(found(&store, 1, b"k"), expected);
            replay(&store, 7, redo(1, b"k", Some(b"last")));
            assert_eq!(found(&store, 1, b"k"), Some((7, Some(b"last".to_vec()))));
        }
    }

    #[test]
    fn a_batch_has_the_newest_write_of_each_key() {
        let store = store();
        let replay = Replay::new(&store, 1 << 20);
        let mut batch = Gathered::default();
        // All with one hash, as keys that collide.
        let mut gather = |version, table, key: &[u8], value: &[u8]| {
            batch.gather(&Found {
                hash: 7,
                version: SeqNo::new(version),
                redo: redo(table, key, Some(value)),
            });
        };
        gather(3, 1, b"k", b"three");
        gather(5, 1, b"k", b"five");
        gather(4, 1, b"k", b"a long value that is old");
        gather(1, 2, b"k", b"of another table");
        gather(2, 1, b"l", b"of another key");
        assert_eq!(batch.sorted().len(), 3);
        replay.apply(&mut batch).unwrap();
        assert_eq!((batch.sorted().len(), batch.bytes()), (0, 0));
        let expect = |table, key, version, value: &str| {
            let value = Some(value.as_bytes().to_vec());
            assert_eq!(found(&store, table, key), Some((version, value)));
        };
        expect(1, b"k", 5, "five");
        expect(2, b"k", 1, "of another table");
        expect(1, b"l", 2, "of another key");
    }
}
