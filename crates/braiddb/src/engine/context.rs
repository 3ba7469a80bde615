//! Transaction contexts: a transaction's private writes, its reads, and its locks.
//!
//! Contexts are pooled, so that a transaction allocates nothing in the steady state.

use std::ops::{Bound, Range};
use std::sync::Arc;
use std::time::Duration;

use braid_log::SeqNo;
use braid_rt::narrow;
use bytes::Bytes;
use hashbrown::HashTable;

use braid_store::{LeafHint, RecordMeta, SHORT_KEY_MAX, Stamp, Taken, WriterRoom, layer_entries};

use super::hint_cache::{HintCache, HintTag};
use super::savepoints::Savepoints;
use super::spaces::SpaceRoom;
use crate::base::written::Written;
use crate::format::redo::{self, Redo};
use crate::locks::wait_graph::{Owner, User, next_owner};
use crate::mvcc::gc::GcBuffer;
use crate::mvcc::range_reads::RangeReads;
use crate::mvcc::registry::Registration;
use crate::schema::entry::{MAIN_SPACE, space_of};
use crate::schema::table::TableCore;

/// Maximum number of writes for which a linear search beats a hash table.
const LINEAR_MAX: usize = 16;

/// Maximum size of a buffer to keep for later transactions, after one large transaction grew it.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Minimum capacity to keep of the index of writes; more is kept only in proportion to its use.
const INDEX_KEPT_MAX: usize = 1 << 10;

/// Returns the bit of a table in a 64-bit set of tables. Several tables may share a bit: see
/// [`braid_log::PendingCommit::set_signature`].
pub(crate) fn signature_of(table_id: u32) -> u64 {
    1 << (table_id % u64::BITS)
}

/// Returns a key's bit in [`WriteSet::filter`].
#[inline]
fn filter_bit(hash: u64) -> u64 {
    1 << (hash >> (u64::BITS - 6))
}

/// One write, pointing into [`WriteSet::redo`].
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) hash: u64,
    /// The leaf hint that the write was given.
    pub(crate) hint: HintTag,
    /// Index into the context's tables.
    pub(crate) table: u32,
    record_at: u32,
    key_at: u32,
    value_at: u32,
    end: u32,
    pub(crate) removes: bool,
    /// Whether a later write of the same key replaced this one.
    superseded: bool,
}

/// What some writes need of a data file.
#[derive(Debug, Default)]
pub(crate) struct WriteExtent {
    /// Number of writes, including superseded ones.
    pub(crate) writes: usize,
    /// Number of bytes that they take in the log.
    pub(crate) bytes: usize,
    /// Number of entries that they may add for long keys.
    pub(crate) entries: usize,
    pub(crate) removes_only: bool,
}

/// The writes of a transaction. The redo buffer already has the log's format.
#[derive(Debug, Default)]
pub(crate) struct WriteSet {
    redo: Vec<u8>,
    writes: Vec<Write>,
    by_key: HashTable<u32>,
    /// Bloom filter over the keys written: most lookups are for keys that were not written.
    filter: u64,
    superseded: usize,
    savepoints: Savepoints,
    /// Set of the tables written, as [`signature_of`] encodes them; may contain others.
    signature: u64,
}

impl WriteSet {
    /// Returns the set of the tables written; it may contain others.
    pub(crate) fn signature(&self) -> u64 {
        self.signature
    }

    /// Returns the number of bytes that the writes take in the log.
    pub(crate) fn bytes(&self) -> usize {
        self.redo.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Returns the number of writes, including superseded ones.
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

    /// Returns the transaction's own write of a key: its value, or an inner `None` for a removal.
    #[inline]
    pub(crate) fn find(&self, hash: u64, table: u32, key: &[u8]) -> Option<Option<&[u8]>> {
        self.find_index(hash, table, key)
            .map(|i| self.value(&self.writes[i]))
    }

    /// Adds a write, which supersedes an earlier write of the same key.
    #[inline]
    pub(crate) fn put(
        &mut self,
        hash: u64,
        table: u32,
        table_id: u32,
        key: &[u8],
        value: Option<&[u8]>,
    ) {
        if braid_rt::mutant!("signature_of_one_write") {
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
            hint: HintTag::NONE,
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

    /// Sets the leaf hint of the last write.
    #[inline]
    pub(crate) fn set_hint(&mut self, hint: HintTag) {
        if let Some(last) = self.writes.last_mut() {
            last.hint = hint;
        }
    }

    /// Adds the last write to the hash table; the first call adds all live writes.
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

    /// Records the current position in the write set. Returns the savepoint's number.
    #[cold]
    pub(crate) fn savepoint(&mut self) -> u64 {
        self.savepoints.add(self.writes.len(), self.redo.len())
    }

    /// Discards the writes made since a savepoint. Returns `false` if this transaction has no such
    /// savepoint.
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
            // The write that needs the index rebuilds it.
            self.by_key.clear();
        }
        self.redo.truncate(redo);
        true
    }

    /// Returns the live writes, one for each key, in the order in which they were made.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Write> {
        self.writes.iter().filter(|w| !w.superseded)
    }

    /// Returns the live writes among these.
    pub(crate) fn get(&self, range: Range<usize>) -> impl Iterator<Item = &Write> {
        self.writes[range].iter().filter(|w| !w.superseded)
    }

    /// Sorts the writes by table and key, so that those to the same leaf follow each other. No
    /// lookup by key may follow.
    pub(crate) fn sort(&mut self) {
        let redo = &self.redo;
        let key = |w: &Write| &redo[w.key_at as usize..w.value_at as usize];
        self.by_key.clear();
        self.writes
            .sort_unstable_by(|a, b| (a.table, key(a)).cmp(&(b.table, key(b))));
    }

    pub(crate) fn live_len(&self) -> usize {
        self.writes.len() - self.superseded
    }

    /// Returns the maximum number of entries that the long keys written add to layers; removals add
    /// none.
    pub(crate) fn layer_entries(&self) -> usize {
        let key_len = |write: &Write| (write.value_at - write.key_at) as usize;
        let long = self.writes.iter().filter(|w| key_len(w) > SHORT_KEY_MAX);
        let put = long.filter(|w| !w.superseded && !w.removes);
        put.map(|w| layer_entries(key_len(w))).sum()
    }

    /// Returns the extent of the writes to each tablespace, given that of each of the context's
    /// tables.
    pub(crate) fn extents(&self, space_of: impl Fn(u32) -> u8) -> Vec<(u8, WriteExtent)> {
        let mut extents: Vec<(u8, WriteExtent)> = Vec::new();
        for write in &self.writes {
            let space = space_of(write.table);
            // Of few.
            let found = extents.iter().position(|(one, _)| *one == space);
            let index = found.unwrap_or_else(|| {
                let extent = WriteExtent {
                    removes_only: true,
                    ..WriteExtent::default()
                };
                extents.push((space, extent));
                extents.len() - 1
            });
            let extent = &mut extents[index].1;
            extent.writes += 1;
            extent.bytes += (write.end - write.record_at) as usize;
            if write.superseded {
                continue;
            }
            extent.removes_only &= write.removes;
            if !write.removes {
                extent.entries += layer_entries(self.key(write).len());
            }
        }
        extents
    }

    pub(crate) fn key(&self, write: &Write) -> &[u8] {
        &self.redo[write.key_at as usize..write.value_at as usize]
    }

    pub(crate) fn value(&self, write: &Write) -> Option<&[u8]> {
        (!write.removes).then(|| &self.redo[write.value_at as usize..write.end as usize])
    }

    /// Returns the redo records of the live writes, for the log. Each key occurs once, so that
    /// replay in any order of the records of one transaction gives the same result.
    #[inline]
    pub(crate) fn log_payload(&mut self) -> &[u8] {
        if self.superseded > 0 {
            self.drop_superseded();
        }
        &self.redo
    }

    /// Returns the live writes' redo records, with the index of the table of each.
    pub(crate) fn live_redo(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.live().map(|write| {
            let record = write.record_at as usize..write.end as usize;
            (write.table as usize, &self.redo[record])
        })
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
        // The index holds stale positions; no lookup follows.
        self.by_key.clear();
    }

    /// Returns the live writes of a table inside the bounds, in key order, for a scan to merge.
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
            // Clearing takes time proportional to the capacity, for a small transaction too.
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

/// A transaction's own write, as a scan sees it.
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
    /// Hash of the key, by which the lock table finds it.
    pub(crate) hash: u64,
    /// Offset in the keys' buffer. `usize`: the keys that a transaction reads may exceed 4 GiB.
    key_at: usize,
    key_len: u32,
    /// The version read, of a value or of a removal; [`SeqNo::NONE`] if the key had no record.
    pub(crate) version: SeqNo,
    pub(crate) absent: bool,
    pub(crate) stamp: Stamp,
}

/// Reads of a transaction, those without locks to be validated at commit.
#[derive(Debug, Default)]
pub(crate) struct ReadSet {
    keys: Vec<u8>,
    pub(crate) points: Vec<PointRead>,
    pub(crate) ranges: RangeReads,
    /// Versions read under a lock, if the log asks for dependencies, and removals that validation
    /// relied on.
    pub(crate) locked: Vec<SeqNo>,
    /// The newest version read: a transaction without writes waits until it is durable (I4).
    pub(crate) newest: SeqNo,
}

impl ReadSet {
    /// Returns whether there is nothing to validate.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.points.is_empty() && self.ranges.is_empty()
    }

    pub(crate) fn add_point(
        &mut self,
        table: u32,
        hash: u64,
        key: &[u8],
        found: Option<RecordMeta>,
        stamp: Stamp,
    ) {
        let version = found.map_or(SeqNo::NONE, |meta| meta.seqno());
        let key_at = self.keys.len();
        self.keys.extend_from_slice(key);
        self.points.push(PointRead {
            table,
            hash,
            key_at,
            // A key has at most `MAX_KEY_LEN` bytes.
            key_len: narrow(key.len()),
            version,
            absent: found.is_none_or(|meta| meta.tombstone),
            stamp,
        });
        self.newest = self.newest.max(version);
    }

    /// Adds removals that came after the reads. Other transactions inserted the keys after they were
    /// read as absent, and removed them again: the transaction depends on these removals.
    #[cold]
    pub(crate) fn add_removals(&mut self, removals: Vec<SeqNo>) {
        self.newest = removals.iter().copied().fold(self.newest, SeqNo::max);
        self.locked.extend(removals);
    }

    /// Moves the range reads of the transaction's scans into this set. A forgotten scan recorded no
    /// version; `newest` bounds what it read.
    #[inline]
    pub(crate) fn add_ranges(&mut self, ranges: &mut RangeReads, newest: impl FnOnce() -> SeqNo) {
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
        if self.is_empty() && self.locked.is_empty() && self.newest == SeqNo::NONE {
            return;
        }
        self.keys.clear();
        self.locked.clear();
        self.points.clear();
        self.ranges.clear();
        self.newest = SeqNo::NONE;
        if self.keys.capacity() > KEPT_BYTES_MAX {
            *self = Self::default();
        }
    }
}

/// The state of one running transaction.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) owner: Owner,
    /// The thread that uses the context, for transactions that wait for its locks.
    pub(crate) user: Arc<User>,
    pub(crate) writes: WriteSet,
    pub(crate) reads: ReadSet,
    /// The hashes of the keys whose write lock this transaction holds.
    pub(crate) locks: Vec<u64>,
    /// Longest wait for a lock.
    pub(crate) lock_timeout: Duration,
    /// Whether the transaction read a key whose lock must be held until commit.
    pub(crate) reads_locked: bool,
    /// Set of the tables from which keys were read under a lock, by index; the last bit stands for
    /// all tables from there on.
    pub(crate) tables_locked: u64,
    /// Whether the write locks are acquired at commit; see [`crate::txn::lock_acquisition`].
    pub(crate) locks_in_commit: bool,
    /// Leaf hints of keys used recently.
    pub(crate) hints: HintCache,
    /// The tables in use; writes and reads refer to tables by index.
    pub(crate) tables: Vec<Arc<TableCore>>,
    /// The snapshot that the transaction reads, under snapshot isolation.
    pub(crate) snapshot: Option<Registration>,
    /// Current time for tables with timed entries, fixed at the first use of such a table.
    pub(crate) time: Option<u64>,
    /// Buffer for encoding values.
    pub(crate) encoded: Vec<u8>,
    /// Room in the data file reserved for the transactions' writes, kept from one transaction to
    /// the next.
    pub(crate) room: WriterRoom,
    /// That room for each tablespace, if `room` is divided.
    pub(crate) rooms: Vec<SpaceRoom>,
    pub(crate) gc: GcBuffer,
    /// What an agent has read ahead.
    pub(crate) ahead: Vec<Ahead>,
}

/// A record that an agent has read before the transaction reads it.
#[derive(Debug)]
pub(crate) struct Ahead {
    pub(crate) table: u32,
    pub(crate) key: Bytes,
    pub(crate) hint: LeafHint,
    pub(crate) found: Option<Taken<Bytes>>,
}

impl Context {
    pub(crate) fn new(owner: Owner, user: Arc<User>) -> Self {
        Self {
            owner,
            user,
            writes: WriteSet::default(),
            reads: ReadSet::default(),
            locks: Vec::new(),
            lock_timeout: Duration::MAX,
            reads_locked: false,
            tables_locked: 0,
            locks_in_commit: false,
            hints: HintCache::default(),
            tables: Vec::new(),
            snapshot: None,
            time: None,
            encoded: Vec::new(),
            room: WriterRoom::default(),
            rooms: Vec::new(),
            gc: GcBuffer::default(),
            ahead: Vec::new(),
        }
    }

    /// Assigns a new owner number, because the locks stay held under the old number. Returns the
    /// old number.
    pub(crate) fn renew_owner(&mut self) -> Owner {
        let held = self.owner;
        self.owner = next_owner(held);
        self.user.set_owner(self.owner);
        held
    }

    /// Returns the context's index of a table, adding the table if necessary.
    pub(crate) fn table_index(&mut self, table: &Arc<TableCore>) -> u32 {
        let found = self.tables.iter().position(|t| Arc::ptr_eq(t, table));
        narrow(found.unwrap_or_else(|| {
            if space_of(table.id) != MAIN_SPACE {
                self.divide_room();
            }
            self.tables.push(table.clone());
            self.tables.len() - 1
        }))
    }

    /// Notes that a key of a table was read under a lock.
    #[inline]
    pub(crate) fn note_locked(&mut self, table: u32) {
        self.tables_locked |= 1 << table.min(u64::BITS - 1);
    }

    /// Whether keys of a table may have been read under a lock.
    pub(crate) fn has_locked(&self, table: u32) -> bool {
        self.tables_locked >> table.min(u64::BITS - 1) & 1 == 1
    }

    /// Resets the context for the next transaction, keeping the memory.
    pub(crate) fn clear(&mut self) {
        debug_assert!(
            self.locks.is_empty(),
            "a context is returned to the pool without locks"
        );
        self.writes.clear();
        self.reads.clear();
        self.reads_locked = false;
        self.tables_locked = 0;
        self.locks_in_commit = false;
        self.time = None;
        if !self.ahead.is_empty() {
            self.forget_ahead();
        }
        if self.encoded.capacity() > KEPT_BYTES_MAX {
            self.encoded = Vec::new();
        }
        // Keeping some tables saves the next transaction an atomic increment on a shared cache
        // line.
        self.forget_dropped_tables();
        self.tables.truncate(4);
    }

    #[cold]
    fn forget_ahead(&mut self) {
        self.ahead.clear();
    }

    /// Releases tables that were dropped or moved; a dropped table's pages are freed after the last reference is gone.
    pub(crate) fn forget_dropped_tables(&mut self) {
        if self.tables.iter().any(|table| table.is_gone()) {
            self.tables.retain(|table| !table.is_gone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use xxhash_rust::xxh3::xxh3_64;

    /// The test never touches the pages of the 4 GiB.
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
                set.put(xxh3_64(&key), 0, 3, &key, value.as_deref());
                model.insert(key, value);
            }
            for len in 0..30 {
                let key = vec![b'k'; len];
                let found = set
                    .find(xxh3_64(&key), 0, &key)
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
