//! Replay of the log: only the newest write of each key reaches a tree.
//!
//! Writes are gathered in memory, partitioned by the hash of their key; a newer write of a key
//! replaces an older one. A full partition is applied in key order. Most logs update the same keys
//! repeatedly between two checkpoints, so this costs one descent for each key instead of one for
//! each write, and neighbouring keys share cached pages.

use std::sync::OnceLock;

use braid_rt::atomic::{AtomicUsize, Ordering};
use braid_rt::{Mutex, narrow, prefetch, to_usize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use braid_log::{LogRecord, SeqNo};
use braid_store::{Change, DamagedRange, LeafHint, Store, StoreError, Tree};

use crate::base::written::Written;
use crate::error::{Error, Result};
use crate::format::redo::{self, Redo};

const PARTITIONS: usize = 64;

/// Writes that are gathered in a partition at once.
const AT_ONCE: usize = 64;

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

/// Returns the hash of a write's key.
fn hash_of(redo: Redo<'_>) -> u64 {
    xxh3_64_with_seed(redo.key, redo.table.into())
}

/// The newest gathered write of a key.
struct Write {
    hash: u64,
    table: u32,
    version: SeqNo,
    removes: bool,
    key_len: u32,
    /// The key, followed by the value.
    bytes: Vec<u8>,
}

impl Write {
    fn key(&self) -> &[u8] {
        &self.bytes[..self.key_len as usize]
    }

    fn set(&mut self, redo: Redo<'_>, version: SeqNo) {
        self.version = version;
        self.removes = redo.value.is_none();
        self.bytes.truncate(self.key_len as usize);
        self.bytes.extend_from_slice(redo.value.unwrap_or_default());
    }
}

/// A transaction's write, not yet gathered.
struct Found<'a> {
    hash: u64,
    version: SeqNo,
    redo: Redo<'a>,
}

impl Found<'_> {
    fn partition(&self) -> usize {
        // Partitions find writes by the lowest bits.
        (self.hash >> 32) as usize % PARTITIONS
    }
}

/// Slots of an empty partition's table.
const SLOTS_MIN: usize = 64;

/// The newest gathered writes of some keys: a hash table with open addressing. Unlike others, it
/// can load what several keys need at the same time: its memory does not fit in the processor's
/// caches, and most of the time is spent waiting for it.
#[derive(Default)]
struct Partition {
    /// The upper half of a write's hash and its index in `writes` plus 1, or 0. At most half of the
    /// slots are used.
    slots: Vec<u64>,
    writes: Vec<Write>,
    bytes: usize,
}

impl Partition {
    const TAG: u64 = 0xffff_ffff << 32;

    /// The bits of a hash that number the slots.
    fn mask(&self) -> u64 {
        self.slots.len().max(1) as u64 - 1
    }

    /// Returns the index of a write with a hash, or the first free slot after those that may be it.
    fn find(&self, hash: u64, mut is_same: impl FnMut(&Write) -> bool) -> Result<usize, usize> {
        let mask = self.mask();
        let mut at = to_usize(hash & mask);
        while let Some(&slot) = self.slots.get(at) {
            if slot == 0 {
                break;
            }
            let index = (slot & !Self::TAG) as usize - 1;
            if (slot ^ hash) & Self::TAG == 0 && is_same(&self.writes[index]) {
                return Ok(index);
            }
            at = to_usize((at as u64 + 1) & mask);
        }
        Err(at)
    }

    fn insert(&mut self, write: Write) {
        if self.slots.len() < 2 * (self.writes.len() + 1) {
            self.slots = vec![0; (2 * self.slots.len()).max(SLOTS_MIN)];
            for index in 0..self.writes.len() {
                self.occupy(self.writes[index].hash, index);
            }
        }
        self.occupy(write.hash, self.writes.len());
        self.bytes += write.bytes.len() + size_of::<Write>();
        self.writes.push(write);
    }

    fn occupy(&mut self, hash: u64, index: usize) {
        let (Ok(at) | Err(at)) = self.find(hash, |_| false);
        self.slots[at] = hash & Self::TAG | (index as u64 + 1);
    }

    /// Loads what gathering these writes will need.
    fn prefetch(&self, found: &[&Found<'_>]) {
        let mask = self.slots.len().wrapping_sub(1);
        for found in found {
            prefetch(
                self.slots
                    .as_ptr()
                    .wrapping_add(to_usize(found.hash) & mask),
            );
        }
        let first = |found: &Found<'_>| self.find(found.hash, |_| true).ok();
        for found in found {
            if let Some(index) = first(found) {
                prefetch(&raw const self.writes[index]);
            }
        }
        for found in found {
            if let Some(index) = first(found) {
                let bytes = &self.writes[index].bytes;
                for line in (0..bytes.len().min(256)).step_by(64) {
                    prefetch(bytes.as_ptr().wrapping_add(line));
                }
            }
        }
    }

    fn take(&mut self) -> Vec<Write> {
        std::mem::take(self).writes
    }

    /// Gathers a write, if it is the newest of its key.
    fn gather(&mut self, found: &Found<'_>) {
        let (redo, version) = (found.redo, found.version);
        let same = |w: &Write| w.hash == found.hash && w.table == redo.table && w.key() == redo.key;
        if let Ok(index) = self.find(found.hash, same) {
            let write = &mut self.writes[index];
            if (write.version < version) != braid_rt::mutant!("older_wins") {
                let before = write.bytes.len();
                write.set(redo, version);
                self.bytes = self.bytes + write.bytes.len() - before;
            }
            return;
        }
        let value_len = redo.value.map_or(0, <[u8]>::len);
        let mut bytes = Vec::with_capacity(redo.key.len() + value_len);
        bytes.extend_from_slice(redo.key);
        let mut write = Write {
            hash: found.hash,
            table: redo.table,
            version,
            removes: false,
            key_len: narrow(redo.key.len()),
            bytes,
        };
        write.set(redo, version);
        self.insert(write);
    }
}

/// A replayed removal: table, key, version.
pub(crate) type Removal = (u32, Box<[u8]>, SeqNo);

/// Replay in progress; see the module documentation.
pub(crate) struct Replay<'a> {
    store: &'a Store,
    partitions: Vec<Mutex<Partition>>,
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
    redo::decode(log_record.payload).map(move |redo| {
        let redo = redo?;
        Ok(Found {
            hash: hash_of(redo),
            version,
            redo,
        })
    })
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
            partition_bytes_max: bytes_max / PARTITIONS,
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

    /// Gathers a transaction's writes. Replay compares versions (I7), so the order of the
    /// transactions does not matter and a second replay has no effect.
    pub(crate) fn add(&self, log_record: LogRecord<'_>) -> Result<()> {
        for found in found(&log_record) {
            let found = found?;
            let mut partition = self.partitions[found.partition()].lock();
            partition.gather(&found);
            if partition.bytes > self.partition_bytes_max {
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
        let Ok(all) = log_records
            .iter()
            .flat_map(found)
            .collect::<Result<Vec<_>>>()
        else {
            return false;
        };
        let mut by_partition = [const { Vec::new() }; PARTITIONS];
        for found in &all {
            by_partition[found.partition()].push(found);
        }
        for (partition, found) in self.partitions.iter().zip(by_partition) {
            for found in found.chunks(AT_ONCE) {
                let mut partition = partition.lock();
                if partition.bytes > self.partition_bytes_max {
                    braid_rt::coverage_point("replay: no room for more during the scan");
                    return false;
                }
                partition.prefetch(found);
                for found in found {
                    partition.gather(found);
                }
            }
        }
        true
    }

    fn apply(&self, partition: &mut Partition) -> Result<()> {
        let mut writes = partition.take();
        writes.sort_unstable_by(|a, b| (a.table, a.key()).cmp(&(b.table, b.key())));
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
    fn leave_out(&self, write: &Write, error: Error) -> Result<()> {
        if braid_rt::mutant!("forget_left_out_writes") {
            return Ok(());
        }
        let condemned = self.with_tree(write.table, |tree| Ok(tree.condemn(write.key())?))?;
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
    fn lose(&self, write: &Write, error: Error) -> Result<DamagedRange> {
        let Error::Corrupted { what, location } = &error else {
            return Err(error);
        };
        let cause = StoreError::Corrupted {
            what: what.clone(),
            location: location.clone(),
        };
        let range = self.with_tree(write.table, |tree| Ok(tree.lose(write.key(), &cause)))?;
        range.ok_or(error)
    }

    /// Applies one write. `hint` is the leaf hint of the previous write, in key order.
    fn apply_one(&self, write: &Write, hint: &mut LeafHint) -> Result<()> {
        let version = write.version.get();
        let (key, value) = write.bytes.split_at(write.key_len as usize);
        self.with_tree(write.table, |tree| {
            Ok(tree.modify_at(hint, key, |old| {
                let change = match old {
                    Some(old) if old.meta().seqno() >= write.version => {
                        braid_rt::coverage_point("replay: an older write in a later batch");
                        Change::Keep
                    }
                    // Even for an absent key: an older write of it may be in a later batch.
                    _ if write.removes && braid_rt::mutant!("replay_keeps_removed") => Change::Keep,
                    _ if write.removes => Change::Tombstone { version },
                    _ => Change::Put { version, value },
                };
                (change, ())
            })?)
        })?;
        if write.removes {
            self.removals
                .lock()
                .push((write.table, key.into(), write.version));
        }
        Ok(())
    }

    fn with_tree<R>(&self, id: u32, f: impl FnOnce(&Tree) -> Result<R>) -> Result<R> {
        let Some(slot) = self.trees.get(id as usize) else {
            return f(&self.store.tree(id)?);
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
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use braid_store::StoreOptions;

    use super::*;
    use crate::device::MemoryDevice;

    fn store() -> Store {
        let device = Arc::new(MemoryDevice::new());
        Store::create(
            device,
            StoreOptions {
                pool_bytes: 1 << 20,
            },
        )
        .unwrap()
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
        let mut batch = Partition::default();
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
        assert_eq!(batch.writes.len(), 3);
        let size = |write: &Write| size_of::<Write>() + write.bytes.len();
        assert_eq!(batch.bytes, batch.writes.iter().map(size).sum::<usize>());
        replay.apply(&mut batch).unwrap();
        assert_eq!((batch.writes.len(), batch.bytes), (0, 0));
        let expect = |table, key, version, value: &str| {
            let value = Some(value.as_bytes().to_vec());
            assert_eq!(found(&store, table, key), Some((version, value)));
        };
        expect(1, b"k", 5, "five");
        expect(2, b"k", 1, "of another table");
        expect(1, b"l", 2, "of another key");
    }

    /// Against a map, over many sizes of the table, with hashes that collide.
    #[test]
    fn a_partition_holds_the_newest_write_of_each_key() {
        let mut rng = fastrand::Rng::with_seed(1);
        let (mut partition, mut expected) = (Partition::default(), BTreeMap::new());
        for version in 1..20_000 {
            let key = rng.u64(..3_000);
            let bytes = key.to_be_bytes();
            let value = vec![key as u8; rng.usize(..20)];
            // A few hashes, equal in the lowest bits, in the highest, or in all.
            let hash = (key % 7) << 32 | (key % 1_000);
            let found = Found {
                hash,
                version: SeqNo::new(version),
                redo: redo(1, &bytes, Some(&value)),
            };
            partition.prefetch(&[&found]);
            partition.gather(&found);
            expected.insert(key, (version, value.clone()));
        }
        let size = |write: &Write| size_of::<Write>() + write.bytes.len();
        assert_eq!(
            partition.bytes,
            partition.writes.iter().map(size).sum::<usize>()
        );
        let found: BTreeMap<u64, (u64, Vec<u8>)> = partition
            .take()
            .iter()
            .map(|write| {
                let key = u64::from_be_bytes(write.key().try_into().unwrap());
                (key, (write.version.get(), write.bytes[8..].to_vec()))
            })
            .collect();
        assert!(found == expected);
        assert_eq!((partition.writes.len(), partition.bytes), (0, 0));
    }
}
