//! Transaction contexts: a transaction's private writes, its reads, and its locks.
//!
//! Contexts are pooled, so that a transaction allocates nothing in the steady state.

use std::sync::Arc;
use std::time::Duration;

use braid_log::SeqNo;
use braid_rt::narrow;
use bytes::Bytes;

use braid_store::{RecordMeta, Stamp, WriterRoom};

use super::agents::ReadCopy;
use super::hint_cache::{HintCache, TABLES};
use super::spaces::SpaceRoom;
use super::write_set::WriteSet;
use crate::base::written::Written;
use crate::locks::wait_graph::{Owner, User, next_owner};
use crate::mvcc::gc::GcBuffer;
use crate::mvcc::range_reads::RangeReads;
use crate::mvcc::registry::Registration;
use crate::schema::entry::{MAIN_SPACE, space_of};
use crate::schema::table::TableCore;

/// Maximum size of a buffer to keep for later transactions, after one large transaction grew it.
pub(super) const KEPT_BYTES_MAX: usize = 1 << 20;

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
    /// Whether the application of the writes may wait for pages of any of these tablespaces.
    pub(crate) waits_for_pages: bool,
    pub(crate) gc: GcBuffer,
    /// Keys that the program has announced, and their records that agents have read.
    pub(crate) ahead: ReadAhead,
}

/// A key that the program has announced.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) table: u32,
    pub(crate) key: Bytes,
}

impl Wanted {
    pub(crate) fn is(&self, (table, key): (u32, &[u8])) -> bool {
        self.table == table && self.key == key
    }
}

/// A record that an agent has read before the transaction reads it.
#[derive(Debug)]
pub(crate) struct Ahead {
    pub(crate) wanted: Wanted,
    pub(crate) copy: ReadCopy,
}

/// Keys for agents to read ahead, and the records that they have read.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    pub(crate) wanted: Vec<Wanted>,
    pub(crate) found: Vec<Ahead>,
}

impl ReadAhead {
    /// Removes and returns what was read of a key.
    pub(crate) fn take(&mut self, wanted: (u32, &[u8])) -> Option<ReadCopy> {
        let at = self
            .found
            .iter()
            .position(|ahead| ahead.wanted.is(wanted))?;
        Some(self.found.swap_remove(at).copy)
    }

    fn is_empty(&self) -> bool {
        self.wanted.is_empty() && self.found.is_empty()
    }

    #[cold]
    fn clear(&mut self) {
        self.wanted.clear();
        self.found.clear();
    }
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
            waits_for_pages: false,
            ahead: ReadAhead::default(),
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
    #[inline]
    pub(crate) fn table_index(&mut self, table: &Arc<TableCore>) -> u32 {
        let found = self.tables.iter().position(|t| Arc::ptr_eq(t, table));
        narrow(found.unwrap_or_else(|| self.add_table(table)))
    }

    #[cold]
    fn add_table(&mut self, table: &Arc<TableCore>) -> usize {
        if space_of(table.id) != MAIN_SPACE {
            self.divide_room();
        }
        self.tables.push(table.clone());
        self.tables.len() - 1
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
            self.ahead.clear();
        }
        if self.encoded.capacity() > KEPT_BYTES_MAX {
            self.encoded = Vec::new();
        }
        // Keeping the tables saves the next transaction two atomic operations on a shared cache
        // line for each, and keeps the tables' hints valid, which go by index.
        self.forget_dropped_tables();
        self.tables.truncate(TABLES);
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
}
