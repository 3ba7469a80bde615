//! Replaying the log: only the newest write of each key reaches a tree.
//!
//! Writes are gathered in memory, partitioned by the hash of their key, an older one of a key giving way
//! to a newer one; a full partition is applied in key order. A log that updates the same keys again and
//! again, as most do between two checkpoints, so costs one descent a key and not one a write, and
//! neighbours share their pages' caches.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_rt::{Mutex, narrow};
use hashbrown::HashTable;

use braid_log::LogRecord;
use braid_store::{Change, DamagedRange, LeafHint, Store, Tree};

use crate::engine::context::hash_key;
use crate::error::{Error, Result};
use crate::format::redo::{self, Redo};

const PARTITIONS: usize = 64;

/// All partitions together hold about this many bytes of keys and values.
fn gathered_bytes_max() -> usize {
    // Simulated logs are short.
    if braid_rt::simulation::is_on() {
        32 << 10
    } else {
        64 << 20
    }
}

/// The newest write of a key so far.
struct Write {
    hash: u64,
    table: u32,
    version: u64,
    removes: bool,
    key_len: u32,
    /// The key and, behind it, the value.
    bytes: Vec<u8>,
}

impl Write {
    fn key(&self) -> &[u8] {
        &self.bytes[..self.key_len as usize]
    }

    fn set(&mut self, redo: Redo<'_>, version: u64) {
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

/// A removal that was replayed: table, key, version.
pub(crate) type Removal = (u32, Box<[u8]>, u64);

/// See the module's text.
pub(crate) struct Replay<'a> {
    store: &'a Store,
    partitions: Vec<Mutex<Partition>>,
    /// The trees of the first tables, looked up once each.
    trees: Box<[OnceLock<Tree>]>,
    removals: Mutex<Vec<Removal>>,
    /// Whether writes to damaged pages are left out, each with an entry in `damage`.
    goes_around_damage: bool,
    damage: Mutex<Vec<(DamagedRange, u64)>>,
}

/// What a replay came to.
pub(crate) struct Replayed {
    pub(crate) removals: Vec<Removal>,
    /// Keys that could not be reached, and how many of their writes were left out. They stay unreadable.
    pub(crate) damage: Vec<(DamagedRange, u64)>,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(store: &'a Store) -> Self {
        Self {
            store,
            partitions: (0..PARTITIONS).map(|_| Mutex::default()).collect(),
            trees: (0..256).map(|_| OnceLock::new()).collect(),
            removals: Mutex::default(),
            goes_around_damage: false,
            damage: Mutex::default(),
        }
    }

    /// A replay for a database that is only read, on one thread: it leaves out the writes that lead to damaged pages,
    /// and keeps these pages unreadable.
    pub(crate) fn around_damage(store: &'a Store) -> Self {
        Self {
            goes_around_damage: true,
            ..Self::new(store)
        }
    }

    /// Takes a transaction's writes in. I7: by version, so the order of the transactions does not matter
    /// and a second replay does no harm.
    pub(crate) fn add(&self, log_record: LogRecord<'_>) -> Result<()> {
        for redo in redo::decode(log_record.payload) {
            let redo = redo?;
            let hash = hash_key(redo.table, redo.key);
            // The table's own index uses the lowest and the highest bits.
            let partition = &self.partitions[(hash >> 32) as usize % PARTITIONS];
            let mut partition = partition.lock();
            self.gather(&mut partition, hash, redo, log_record.seqno);
            if partition.bytes > gathered_bytes_max() / PARTITIONS {
                braid_rt::coverage_point("replay: a batch before the end");
                self.apply(&mut partition)?;
            }
        }
        Ok(())
    }

    fn gather(&self, partition: &mut Partition, hash: u64, redo: Redo<'_>, version: u64) {
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
                Err(error @ Error::Corrupted { .. }) if self.goes_around_damage => {
                    hint = LeafHint::default();
                    self.leave_out(write, error)?;
                }
                applied => applied?,
            }
        }
        Ok(())
    }

    /// After a write failed since a page is damaged: makes sure that its key can't be read.
    fn leave_out(&self, write: &Write, error: Error) -> Result<()> {
        if braid_rt::mutant!("forget_left_out_writes") {
            return Ok(());
        }
        let condemned = self.with_tree(write.table, |tree| Ok(tree.condemn(write.key())?))?;
        let Some(range) = condemned else {
            // Nothing is damaged on the way to the key, so its page would be believed as it is.
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

    /// `hint` is that of the write before, in the order of the keys.
    fn apply_one(&self, write: &Write, hint: &mut LeafHint) -> Result<()> {
        let version = write.version;
        let (key, value) = write.bytes.split_at(write.key_len as usize);
        self.with_tree(write.table, |tree| {
            Ok(tree.modify_at(hint, key, |old| {
                let change = match old {
                    Some(old) if old.meta().version >= version => {
                        braid_rt::coverage_point("replay: an older write in a later batch");
                        Change::Keep
                    }
                    // Even if the key is not there: an older write of it may come in a later batch.
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
                .push((write.table, key.into(), version));
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

    /// Applies what is still gathered, on several threads.
    pub(crate) fn finish(self, threads: usize) -> Result<Replayed> {
        let next = AtomicUsize::new(0);
        let work = || {
            // Relaxed: the partitions were filled before the threads.
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
