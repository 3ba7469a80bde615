//! Replay of the log: only the newest write of each key reaches a tree.
//!
//! Writes are gathered in memory, partitioned by the hash of their key; a newer write of a key
//! replaces an older one. A full partition is applied in key order. Most logs update the same keys
//! repeatedly between two checkpoints, so this costs one descent for each key instead of one for
//! each write, and neighbouring keys share cached pages.

use std::sync::OnceLock;

use braid_rt::atomic::{AtomicUsize, Ordering};
use braid_rt::{Mutex, narrow};
use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use braid_log::{LogRecord, SeqNo};
use braid_store::{Change, DamagedRange, LeafHint, Store, Tree};

use crate::base::written::Written;
use crate::error::{Error, Result};
use crate::format::redo::{self, Redo};

const PARTITIONS: usize = 64;

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

#[derive(Default)]
struct Partition {
    writes: HashTable<Write>,
    bytes: usize,
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
        for redo in redo::decode(log_record.payload) {
            let redo = redo?;
            let hash = hash_of(redo);
            let mut partition = self.partition(hash).lock();
            self.gather(&mut partition, hash, redo, log_record.seqno);
            if partition.bytes > self.partition_bytes_max {
                braid_rt::coverage_point("replay: a batch before the end");
                self.apply(&mut partition)?;
            }
        }
        Ok(())
    }

    /// Gathers a transaction's writes as long as there is room for them, and changes no tree: the
    /// transaction may come from a log that turns out to be damaged, and a failed recovery changes
    /// nothing. Returns whether all were gathered; otherwise [`Replay::add`] is to repeat it.
    pub(crate) fn try_add(&self, log_record: LogRecord<'_>) -> bool {
        for redo in redo::decode(log_record.payload) {
            let Ok(redo) = redo else { return false };
            let hash = hash_of(redo);
            let mut partition = self.partition(hash).lock();
            if partition.bytes > self.partition_bytes_max {
                braid_rt::coverage_point("replay: no room for more during the scan");
                return false;
            }
            self.gather(&mut partition, hash, redo, log_record.seqno);
        }
        true
    }

    fn partition(&self, hash: u64) -> &Mutex<Partition> {
        // The hash table uses the lowest and the highest bits.
        &self.partitions[(hash >> 32) as usize % PARTITIONS]
    }

    fn gather(&self, partition: &mut Partition, hash: u64, redo: Redo<'_>, version: SeqNo) {
        let same = |w: &Write| w.hash == hash && w.table == redo.table && w.key() == redo.key;
        if let Some(write) = partition.writes.find_mut(hash, same) {
            if (write.version < version) != braid_rt::mutant!("older_wins") {
                let before = write.bytes.len();
                write.set(redo, version);
                partition.bytes = partition.bytes + write.bytes.len() - before;
            }
            return;
        }
        let value_len = redo.value.map_or(0, <[u8]>::len);
        let mut bytes = Vec::with_capacity(redo.key.len() + value_len);
        bytes.extend_from_slice(redo.key);
        let key_len = narrow(redo.key.len());
        let mut write = Write {
            hash,
            table: redo.table,
            version,
            removes: false,
            key_len,
            bytes,
        };
        write.set(redo, version);
        partition.bytes += write.bytes.len() + size_of::<Write>();
        partition.writes.insert_unique(hash, write, |w| w.hash);
    }

    fn apply(&self, partition: &mut Partition) -> Result<()> {
        let mut writes: Vec<Write> = partition.writes.drain().collect();
        partition.bytes = 0;
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
        let Some(range) = condemned else {
            // No page on the way to the key is damaged, so a reader would trust the stale page.
            return self
                .apply_one(write, &mut LeafHint::default())
                .map_err(|_| error);
        };
        let mut damage = self.damage.lock();
        match damage.iter_mut().find(|(known, _)| *known == range) {
            Some((_, writes)) => *writes += 1,
            None => damage.push((range, 1)),
        }
        Ok(())
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
            let version = SeqNo::new(version);
            replay.gather(&mut batch, 7, redo(table, key, Some(value)), version);
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
}
