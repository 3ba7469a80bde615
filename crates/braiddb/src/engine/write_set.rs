//! The writes of a transaction, as redo records.

mod order;

use std::ops::{Bound, Range};

use braid_rt::narrow;
use bytes::Bytes;
use hashbrown::HashTable;

use braid_store::{SHORT_KEY_MAX, layer_entries};

use super::context::KEPT_BYTES_MAX;
use super::hint_cache::HintTag;
use super::savepoints::Savepoints;
use crate::format::redo::{self, Redo};
use order::Order;

/// Maximum number of writes for which a linear search beats a hash table.
const LINEAR_MAX: usize = 16;

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

/// Index of more than [`LINEAR_MAX`] writes.
#[derive(Debug, Default)]
struct Index {
    /// The live writes.
    by_key: HashTable<u32>,
    /// For scans. Empty if `by_key` is.
    order: Order,
}

impl Index {
    fn clear(&mut self) {
        self.by_key.clear();
        self.order.clear();
    }
}

/// The writes of a transaction. The redo buffer already has the log's format.
#[derive(Debug, Default)]
pub(crate) struct WriteSet {
    redo: Vec<u8>,
    writes: Vec<Write>,
    /// Finds the writes of a transaction that has many.
    index: Index,
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
        self.index
            .by_key
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
                let entry = self.index.by_key.find_mut(hash, |&i| i as usize == before);
                *entry.expect("every live write is indexed") = index;
                return;
            }
        }
        if self.writes.len() > LINEAR_MAX {
            self.add_to_index(hash, index);
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
    fn add_to_index(&mut self, hash: u64, index: u32) {
        let writes = &self.writes;
        let rehash = |&i: &u32| writes[i as usize].hash;
        if writes.len() > LINEAR_MAX + 1 {
            self.index.by_key.insert_unique(hash, index, rehash);
            return;
        }
        for (i, write) in writes.iter().enumerate().filter(|(_, w)| !w.superseded) {
            self.index
                .by_key
                .insert_unique(write.hash, narrow(i), rehash);
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
        self.index.order.clear();
        while self.writes.len() > writes {
            let index = self.writes.len() - 1;
            let hash = self.writes[index].hash;
            let before = self.savepoints.take_note(narrow(index));
            if let Some(before) = before {
                self.writes[before as usize].superseded = false;
                self.superseded -= 1;
            }
            if let Ok(mut entry) = self.index.by_key.find_entry(hash, |&i| i as usize == index) {
                match before {
                    Some(before) => *entry.get_mut() = before,
                    None => drop(entry.remove()),
                }
            }
            self.writes.pop();
        }
        if writes <= LINEAR_MAX {
            // The write that needs the index rebuilds it.
            self.index.clear();
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
        self.index.clear();
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
        self.index.clear();
    }

    /// Returns the live writes of a table inside the bounds, in key order, for a scan to merge.
    pub(crate) fn sorted_range(
        &mut self,
        table: u32,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Vec<OwnWrite> {
        if self.writes.len() > LINEAR_MAX {
            return self.ordered_range(table, lower, upper);
        }
        let mut found: Vec<&Write> = self
            .live()
            .filter(|w| w.table == table)
            .filter(|w| in_bounds(self.key(w), lower, upper))
            .collect();
        found.sort_unstable_by(|a, b| self.key(a).cmp(self.key(b)));
        found.into_iter().map(|w| self.own_write(w)).collect()
    }

    /// As [`WriteSet::sorted_range`], of many writes: a search instead of a look at each of them, which
    /// would take a transaction that scans between its writes quadratic time.
    fn ordered_range(
        &mut self,
        table: u32,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Vec<OwnWrite> {
        let (redo, writes) = (&self.redo, &self.writes);
        let at = |i: u32| {
            let write = &writes[i as usize];
            let key = &redo[write.key_at as usize..write.value_at as usize];
            (write.table, key)
        };
        let is_live = |i: u32| !writes[i as usize].superseded;
        self.index.order.extend(writes.len(), at, is_live);
        let found = self.index.order.range(table, lower, upper, at).iter();
        found
            .map(|&i| self.own_write(&writes[i as usize]))
            .collect()
    }

    fn own_write(&self, write: &Write) -> OwnWrite {
        OwnWrite {
            key: Bytes::copy_from_slice(self.key(write)),
            value: self.value(write).map(Bytes::copy_from_slice),
        }
    }

    pub(super) fn clear(&mut self) {
        let kept = INDEX_KEPT_MAX.max(8 * self.writes.len());
        self.writes.clear();
        if self.index.by_key.capacity() > kept {
            // Clearing takes time proportional to the capacity, for a small transaction too.
            self.index = Index::default();
        } else if !self.index.by_key.is_empty() {
            self.index.clear();
        }
        self.superseded = 0;
        self.signature = 0;
        self.filter = 0;
        self.redo.clear();
        self.savepoints.clear();
        if self.redo.capacity() > KEPT_BYTES_MAX {
            self.redo = Vec::new();
            self.writes = Vec::new();
            self.index = Index::default();
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

#[cfg(test)]
mod tests;
