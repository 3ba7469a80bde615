//! What a transaction carries: its private writes, what it read, and the locks it holds.
//!
//! Contexts are pooled, so that a transaction allocates nothing in the steady state.

use std::ops::Bound;
use std::sync::Arc;

use braid_rt::narrow;
use bytes::Bytes;
use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use braid_store::{RecordMeta, SHORT_KEY_MAX, Stamp, WriterRoom, layer_entries};

use super::hint_cache::HintCache;
use super::savepoints::Savepoints;
use crate::format::redo::{self, Redo};
use crate::locks::table::{Owner, User, next_owner};
use crate::mvcc::range_reads::RangeReads;
use crate::mvcc::registry::Registration;
use crate::schema::table::TableCore;

/// Up to this many writes a linear search beats a hash table.
const LINEAR_MAX: usize = 16;

/// A buffer that one large transaction grew is not kept for the small ones that follow.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Nor is an index of writes for more than these, unless they come.
const INDEX_KEPT_MAX: usize = 1 << 10;

/// A table in a set of tables of 64 bits, which several may share: see
/// [`braid_log::PendingCommit::set_signature`].
pub(crate) fn signature_of(table_id: u32) -> u64 {
    1 << (table_id % u64::BITS)
}

pub(crate) fn hash_key(table: u32, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, u64::from(table))
}

/// A key's bit in [`WriteSet::filter`].
#[inline]
fn filter_bit(hash: u64) -> u64 {
    1 << (hash >> (u64::BITS - 6))
}

/// One write, pointing into [`WriteSet::redo`].
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) hash: u64,
    /// Index into the context's tables.
    pub(crate) table: u32,
    record_at: u32,
    key_at: u32,
    value_at: u32,
    end: u32,
    pub(crate) removes: bool,
    /// A later write of the same key took its place.
    superseded: bool,
}

/// The writes of a transaction. The redo buffer already has the form in which it goes to the log.
#[derive(Debug, Default)]
pub(crate) struct WriteSet {
    redo: Vec<u8>,
    writes: Vec<Write>,
    by_key: HashTable<u32>,
    /// Has the bits of all keys written, and perhaps others: most keys that are looked up were not.
    filter: u64,
    superseded: usize,
    savepoints: Savepoints,
    /// The tables written, at least, as [`signature_of`] has them.
    signature: u64,
}

impl WriteSet {
    /// The tables that are written, and perhaps others.
    pub(crate) fn signature(&self) -> u64 {
        self.signature
    }

    /// The bytes that the log will hold.
    pub(crate) fn bytes(&self) -> usize {
        self.redo.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// The writes, with those that lost their effect.
    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    #[inline(always)]
    fn find_index(&self, hash: u64, table: u32, key: &[u8]) -> Option<usize> {
        if self.filter & filter_bit(hash) == 0 {
            return None;
        }
        self.find_among(hash, table, key)
    }

    fn find_among(&self, hash: u64, table: u32, key: &[u8]) -> Option<usize> {
        let is_it =
            |w: &Write| w.hash == hash && w.table == table && !w.superseded && self.key(w) == key;
        if self.writes.len() <= LINEAR_MAX {
            return self.writes.iter().position(is_it);
        }
        self.by_key
            .find(hash, |&i| is_it(&self.writes[i as usize]))
            .map(|&i| i as usize)
    }

    /// The transaction's own write of a key: its value, or `None` inside for a removal.
    #[inline]
    pub(crate) fn find(&self, hash: u64, table: u32, key: &[u8]) -> Option<Option<&[u8]>> {
        self.find_index(hash, table, key)
            .map(|i| self.value(&self.writes[i]))
    }

    /// Adds a write; one of the same key before it loses its effect.
    #[inline]
    pub(crate) fn put(
        &mut self,
        hash: u64,
        table: u32,
        table_id: u32,
        key: &[u8],
        value: Option<&[u8]>,
    ) {
        if braid_rt::mutant!("footprint_of_one_write") {
            self.signature = 0;
        }
        self.signature |= signature_of(table_id);
        let before = self.find_index(hash, table, key);
        self.filter |= filter_bit(hash);
        let record_at = narrow(self.redo.len());
        let extent = redo::encode(
            Redo {
                table: table_id,
                key,
                value,
            },
            &mut self.redo,
        );
        let index = narrow(self.writes.len());
        self.writes.push(Write {
            hash,
            table,
            record_at,
            key_at: narrow(extent.key_at),
            value_at: narrow(extent.value_at),
            end: narrow(self.redo.len()),
            removes: value.is_none(),
            superseded: false,
        });
        if let Some(before) = before {
            self.writes[before].superseded = true;
            self.superseded += 1;
            self.savepoints.note(index, before);
            if self.writes.len() > LINEAR_MAX + 1 {
                let entry = self.by_key.find_mut(hash, |&i| i as usize == before);
                *entry.expect("every live write is indexed") = index;
                return;
            }
        }
        if self.writes.len() > LINEAR_MAX {
            self.index(hash, index);
        }
    }

    /// Adds the last write to the hash table; the first time, all of them.
    fn index(&mut self, hash: u64, index: u32) {
        let writes = &self.writes;
        let rehash = |&i: &u32| writes[i as usize].hash;
        if writes.len() > LINEAR_MAX + 1 {
            self.by_key.insert_unique(hash, index, rehash);
            return;
        }
        for (i, write) in writes.iter().enumerate().filter(|(_, w)| !w.superseded) {
            self.by_key.insert_unique(write.hash, narrow(i), rehash);
        }
    }

    /// Notes where the writes are, to come back to; returns the savepoint's number.
    #[cold]
    pub(crate) fn savepoint(&mut self) -> u64 {
        self.savepoints.add(self.writes.len(), self.redo.len())
    }

    /// Takes back the writes made since a savepoint of this transaction that still stands; `false` if it
    /// is none.
    #[cold]
    pub(crate) fn rollback_to(&mut self, savepoint: u64) -> bool {
        let Some((writes, redo)) = self.savepoints.return_to(savepoint) else {
            return false;
        };
        while self.writes.len() > writes {
            let index = self.writes.len() - 1;
            let hash = self.writes[index].hash;
            let before = self.savepoints.take_note(narrow(index));
            if let Some(before) = before {
                self.writes[before as usize].superseded = false;
                self.superseded -= 1;
            }
            if let Ok(mut entry) = self.by_key.find_entry(hash, |&i| i as usize == index) {
                match before {
                    Some(before) => *entry.get_mut() = before,
                    None => drop(entry.remove()),
                }
            }
            self.writes.pop();
        }
        if writes <= LINEAR_MAX {
            // It is filled anew by the write that needs it.
            self.by_key.clear();
        }
        self.redo.truncate(redo);
        true
    }

    /// The writes that count, one a key, in the order in which they were made.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Write> {
        self.writes.iter().filter(|w| !w.superseded)
    }

    pub(crate) fn live_len(&self) -> usize {
        self.writes.len() - self.superseded
    }

    /// Entries that the long keys among the writes add to layers at most; a removal adds none.
    pub(crate) fn layer_entries(&self) -> usize {
        let key_len = |write: &Write| (write.value_at - write.key_at) as usize;
        let long = self.writes.iter().filter(|w| key_len(w) > SHORT_KEY_MAX);
        let put = long.filter(|w| !w.superseded && !w.removes);
        put.map(|w| layer_entries(key_len(w))).sum()
    }

    pub(crate) fn key(&self, write: &Write) -> &[u8] {
        &self.redo[write.key_at as usize..write.value_at as usize]
    }

    pub(crate) fn value(&self, write: &Write) -> Option<&[u8]> {
        (!write.removes).then(|| &self.redo[write.value_at as usize..write.end as usize])
    }

    /// The redo records of the live writes, for the log: each key once, so that replay in any order of
    /// the records of one transaction gives the same.
    #[inline]
    pub(crate) fn log_payload(&mut self) -> &[u8] {
        if self.superseded > 0 {
            self.drop_superseded();
        }
        &self.redo
    }

    #[cold]
    fn drop_superseded(&mut self) {
        let mut redo = Vec::with_capacity(self.redo.len());
        self.writes.retain(|w| !w.superseded);
        for write in &mut self.writes {
            let at: u32 = narrow(redo.len());
            redo.extend_from_slice(&self.redo[write.record_at as usize..write.end as usize]);
            let shift = write.record_at - at;
            write.record_at -= shift;
            write.key_at -= shift;
            write.value_at -= shift;
            write.end -= shift;
        }
        self.redo = redo;
        self.superseded = 0;
        // The index holds positions from before; nothing is looked up after this point.
        self.by_key.clear();
    }

    /// The live writes of a table inside the bounds, in key order: own writes for a scan to merge.
    pub(crate) fn sorted_range(
        &self,
        table: u32,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Vec<OwnWrite> {
        let mut found: Vec<&Write> = self
            .live()
            .filter(|w| w.table == table)
            .filter(|w| in_bounds(self.key(w), lower, upper))
            .collect();
        found.sort_unstable_by(|a, b| self.key(a).cmp(self.key(b)));
        found
            .into_iter()
            .map(|w| OwnWrite {
                key: Bytes::copy_from_slice(self.key(w)),
                value: self.value(w).map(Bytes::copy_from_slice),
            })
            .collect()
    }

    fn clear(&mut self) {
        let kept = INDEX_KEPT_MAX.max(8 * self.writes.len());
        self.writes.clear();
        if self.by_key.capacity() > kept {
            // To clear it takes as long as it is large, for a small transaction too.
            self.by_key = HashTable::new();
        } else if !self.by_key.is_empty() {
            self.by_key.clear();
        }
        self.superseded = 0;
        self.signature = 0;
        self.filter = 0;
        self.redo.clear();
        self.savepoints.clear();
        if self.redo.capacity() > KEPT_BYTES_MAX {
            self.redo = Vec::new();
            self.writes = Vec::new();
            self.by_key = HashTable::new();
        }
    }
}

/// A transaction's own write as a scan sees it.
#[derive(Clone, Debug)]
pub(crate) struct OwnWrite {
    pub(crate) key: Bytes,
    pub(crate) value: Option<Bytes>,
}

pub(crate) fn in_bounds(key: &[u8], lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    let above = match lower {
        Bound::Included(bound) => key >= bound,
        Bound::Excluded(bound) => key > bound,
        Bound::Unbounded => true,
    };
    above
        && match upper {
            Bound::Included(bound) => key <= bound,
            Bound::Excluded(bound) => key < bound,
            Bound::Unbounded => true,
        }
}

/// A key that was read without a lock, to be validated at commit.
#[derive(Debug)]
pub(crate) struct PointRead {
    pub(crate) table: u32,
    stripe: u32,
    /// The keys that a transaction reads may be more than 4 GiB.
    key_at: usize,
    key_len: u32,
    /// The version seen: a value's, or the removal's; 0 if there was nothing.
    pub(crate) version: u64,
    pub(crate) absent: bool,
    pub(crate) stamp: Stamp,
}

impl PointRead {
    /// The lock stripe of the key.
    pub(crate) fn stripe(&self) -> usize {
        self.stripe as usize
    }
}

/// What a transaction read without locks.
#[derive(Debug, Default)]
pub(crate) struct ReadSet {
    keys: Vec<u8>,
    pub(crate) points: Vec<PointRead>,
    pub(crate) ranges: RangeReads,
    /// Versions read under a lock, if somebody wants to know.
    pub(crate) locked: Vec<u64>,
    /// The newest version read: a transaction without writes waits until it is durable (I4).
    pub(crate) newest: u64,
}

impl ReadSet {
    /// Whether there is nothing to validate.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.points.is_empty() && self.ranges.is_empty()
    }

    pub(crate) fn add_point(
        &mut self,
        table: u32,
        stripe: usize,
        key: &[u8],
        found: Option<RecordMeta>,
        stamp: Stamp,
    ) {
        let version = found.map_or(0, |meta| meta.version);
        let key_at = self.keys.len();
        self.keys.extend_from_slice(key);
        self.points.push(PointRead {
            table,
            // A table of locks has at most `STRIPES_MAX` of them; a key, `MAX_KEY_LEN` bytes.
            stripe: narrow(stripe),
            key_at,
            key_len: narrow(key.len()),
            version,
            absent: found.is_none_or(|meta| meta.tombstone),
            stamp,
        });
        self.newest = self.newest.max(version);
    }

    /// Takes in what the transaction's scans read. What a forgotten one read is at most as new as the newest number.
    #[inline]
    pub(crate) fn add_ranges(&mut self, ranges: &mut RangeReads, newest: impl FnOnce() -> u64) {
        if !ranges.is_empty() {
            let newest = if ranges.is_complete() {
                ranges.newest()
            } else {
                newest()
            };
            self.newest = self.newest.max(newest);
            std::mem::swap(&mut self.ranges, ranges);
        }
    }

    pub(crate) fn key(&self, read: &PointRead) -> &[u8] {
        &self.keys[read.key_at..][..read.key_len as usize]
    }

    #[inline]
    fn clear(&mut self) {
        if self.is_empty() && self.locked.is_empty() && self.newest == 0 {
            return;
        }
        self.keys.clear();
        self.locked.clear();
        self.points.clear();
        self.ranges.clear();
        self.newest = 0;
        if self.keys.capacity() > KEPT_BYTES_MAX {
            *self = Self::default();
        }
    }
}

/// The state of one running transaction.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) owner: Owner,
    /// For those who wait for its locks.
    pub(crate) user: Arc<User>,
    pub(crate) writes: WriteSet,
    pub(crate) reads: ReadSet,
    /// The stripes whose write lock this transaction holds.
    pub(crate) locks: Vec<usize>,
    /// Whether something was read that must stay locked.
    pub(crate) reads_locked: bool,
    /// Whether the locks of the writes are left for the commit; see [`crate::lock_acquisition`].
    pub(crate) locks_in_commit: bool,
    /// Where it came by keys.
    pub(crate) hints: HintCache,
    /// The tables in use; writes and reads refer to them by index.
    pub(crate) tables: Vec<Arc<TableCore>>,
    /// Under snapshot isolation: what it reads.
    pub(crate) snapshot: Option<Registration>,
    /// The time that it has for tables in which entries have one, once it came to such a table.
    pub(crate) time: Option<u64>,
    /// Where values are encoded.
    pub(crate) encoded: Vec<u8>,
    /// Room in the data file for what its transactions write; kept from one to the next.
    pub(crate) room: WriterRoom,
}

impl Context {
    pub(crate) fn new(owner: Owner, user: Arc<User>) -> Self {
        Self {
            owner,
            user,
            writes: WriteSet::default(),
            reads: ReadSet::default(),
            locks: Vec::new(),
            reads_locked: false,
            locks_in_commit: false,
            hints: HintCache::default(),
            tables: Vec::new(),
            snapshot: None,
            time: None,
            encoded: Vec::new(),
            room: WriterRoom::default(),
        }
    }

    /// Takes a new owner number, since locks are held on under the present one, which is returned.
    pub(crate) fn renew_owner(&mut self) -> Owner {
        let held = self.owner;
        self.owner = next_owner(held);
        self.user.set_owner(self.owner);
        held
    }

    /// The context's index of a table.
    pub(crate) fn table_index(&mut self, table: &Arc<TableCore>) -> u32 {
        let found = self.tables.iter().position(|t| Arc::ptr_eq(t, table));
        narrow(found.unwrap_or_else(|| {
            self.tables.push(table.clone());
            self.tables.len() - 1
        }))
    }

    /// Forgets everything but the memory, for the next transaction.
    pub(crate) fn clear(&mut self) {
        debug_assert!(
            self.locks.is_empty(),
            "a context is given back without locks"
        );
        self.writes.clear();
        self.reads.clear();
        self.reads_locked = false;
        self.locks_in_commit = false;
        self.time = None;
        if self.encoded.capacity() > KEPT_BYTES_MAX {
            self.encoded = Vec::new();
        }
        // Keeping one table saves the next transaction an atomic increment on a shared line.
        self.forget_dropped_tables();
        self.tables.truncate(4);
    }

    /// Gives up dropped tables, whose pages are kept for as long as anybody refers to them.
    pub(crate) fn forget_dropped_tables(&mut self) {
        if self.tables.iter().any(|table| table.is_dropped()) {
            self.tables.retain(|table| !table.is_dropped());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The pages of the 4 GiB are never touched.
    #[test]
    #[cfg(all(target_os = "linux", target_pointer_width = "64", not(miri)))]
    fn more_keys_than_32_bits_can_count_are_found_again() {
        let mut keys = vec![0; (u32::MAX as usize) + 4096];
        keys.truncate((u32::MAX as usize) - 1);
        let mut reads = ReadSet {
            keys,
            ..ReadSet::default()
        };
        for key in [&b"one"[..], b"two", b"three"] {
            reads.add_point(0, 7, key, None, Stamp::default());
        }
        let keys: Vec<_> = reads.points.iter().map(|read| reads.key(read)).collect();
        assert_eq!(keys, [&b"one"[..], b"two", b"three"]);
    }

    #[test]
    fn a_write_set_is_a_map_whose_payload_holds_each_key_once() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..if cfg!(miri) { 3 } else { 200 } {
            let mut set = WriteSet::default();
            let mut model = BTreeMap::new();
            for _ in 0..rng.usize(0..60) {
                let key = vec![b'k'; rng.usize(0..30)];
                let value = rng.bool().then(|| vec![rng.u8(..); rng.usize(0..50)]);
                set.put(hash_key(3, &key), 0, 3, &key, value.as_deref());
                model.insert(key, value);
            }
            for len in 0..30 {
                let key = vec![b'k'; len];
                let found = set
                    .find(hash_key(3, &key), 0, &key)
                    .map(|v| v.map(<[u8]>::to_vec));
                assert_eq!(found, model.get(&key).cloned(), "seed {seed}");
            }
            let sorted = set.sorted_range(0, Bound::Excluded(b"k"), Bound::Unbounded);
            let of_model = model.iter().filter(|(k, _)| k.len() > 1);
            assert!(
                sorted
                    .iter()
                    .map(|w| (w.key.to_vec(), w.value.as_ref().map(|v| v.to_vec())))
                    .eq(of_model.map(|(k, v)| (k.clone(), v.clone()))),
                "seed {seed}"
            );
            let payload = set.log_payload().to_vec();
            let mut logged = BTreeMap::new();
            for redo in redo::decode(&payload) {
                let redo = redo.unwrap();
                let before = logged.insert(redo.key.to_vec(), redo.value.map(<[u8]>::to_vec));
                assert_eq!(before, None, "a key is logged once; seed {seed}");
            }
            assert_eq!(logged, model, "seed {seed}");
            for write in set.live() {
                assert_eq!(
                    model[set.key(write)].as_deref(),
                    set.value(write),
                    "seed {seed}"
                );
            }
        }
    }
}
