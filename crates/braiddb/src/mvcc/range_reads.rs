//! Range reads of a transaction's scans, made without locks and validated at commit.

use std::ops::Bound;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use braid_log::SeqNo;
use braid_store::Stamp;

/// Maximum size of a buffer to keep for later scans, after one large scan grew it.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// A range read: the part of a scan inside one leaf.
#[derive(Debug)]
pub(crate) struct RangeRead {
    /// The context's index of the table.
    pub(crate) table: u32,
    lower: Bound<KeyAt>,
    upper: Bound<KeyAt>,
    pub(crate) stamp: Stamp,
    /// Fingerprint of the keys and versions read, without tombstones. `None` while a scan is in the
    /// leaf, and permanently if the scan was forgotten (`std::mem::forget`): then the scan may have
    /// read anything in the leaf.
    pub(crate) fingerprint: Option<Fingerprint>,
}

/// Range of a key's bytes in [`RangeReads::keys`].
#[derive(Clone, Copy, Debug)]
struct KeyAt {
    start: usize,
    end: usize,
}

/// Digest of a set of (key, version) pairs, independent of their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    sum: u64,
    count: u64,
}

impl Fingerprint {
    pub(crate) fn add(&mut self, key: &[u8], version: SeqNo) {
        let hash = xxh3_64_with_seed(key, version.get());
        self.sum = self.sum.wrapping_add(hash);
        self.count += 1;
    }
}

/// The range reads of a transaction.
#[derive(Debug, Default)]
pub(crate) struct RangeReads {
    keys: Vec<u8>,
    reads: Vec<RangeRead>,
    /// Number of range reads without a fingerprint.
    open: usize,
    newest: SeqNo,
}

impl RangeReads {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.reads.len()
    }

    /// Returns the newest version that was read.
    pub(crate) fn newest(&self) -> SeqNo {
        self.newest
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &RangeRead> {
        self.reads.iter()
    }

    pub(crate) fn bounds(&self, read: &RangeRead) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let key = |at: KeyAt| &self.keys[at.start..at.end];
        (read.lower.map(key), read.upper.map(key))
    }

    /// Returns whether every range read has a fingerprint.
    pub(crate) fn is_complete(&self) -> bool {
        self.open == 0
    }

    /// Adds a range read when a scan enters a leaf. Returns its index for [`RangeReads::end`].
    pub(crate) fn begin(&mut self, table: u32, stamp: Stamp) -> usize {
        self.reads.push(RangeRead {
            table,
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
            stamp,
            fingerprint: None,
        });
        self.open += 1;
        self.reads.len() - 1
    }

    /// Completes a range read; `newest` is the newest version in it.
    pub(crate) fn end(
        &mut self,
        place: usize,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        fingerprint: Fingerprint,
        newest: SeqNo,
    ) {
        let mut keep = |key: &[u8]| {
            let start = self.keys.len();
            self.keys.extend_from_slice(key);
            let end = self.keys.len();
            KeyAt { start, end }
        };
        let read = &mut self.reads[place];
        read.lower = lower.map(&mut keep);
        read.upper = upper.map(&mut keep);
        read.fingerprint = Some(fingerprint);
        self.open -= 1;
        self.newest = self.newest.max(newest);
    }

    /// Clears the range reads, keeping the memory.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.is_empty() {
            return;
        }
        self.keys.clear();
        self.reads.clear();
        self.open = 0;
        self.newest = SeqNo::NONE;
        if self.keys.capacity() > KEPT_BYTES_MAX {
            *self = Self::default();
        }
    }
}
