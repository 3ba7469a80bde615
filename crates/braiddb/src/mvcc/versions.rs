//! Old versions: overwritten values that a snapshot may still read.
//!
//! The tree holds the newest version of a key. Older versions are kept here, in memory, from just
//! before they are overwritten until no snapshot can read them. A version is visible to snapshots
//! in `begin..end`: `begin` is the sequence number of the commit that wrote the version, `end` that
//! of the commit that replaced it. Of a large value only the key is kept here; the value stays in
//! its pages, which are freed with the version.

//!
//! Blocks of memory have more than 120 bytes here. glibc keeps smaller ones apart when they are
//! freed, and merges all of them in one go when some thread next allocates a large block: a commit
//! that did so after the end of a snapshot over a million versions waited for a tenth of a second
//! (`docs/decisions/0042-keep-versions-out-of-fast-bins.md`).

use braid_log::SeqNo;
use braid_rt::narrow;
use braid_store::{DetachedValue, OldRecord, StoreError};
use smallvec::SmallVec;

use crate::base::written::Written;
use crate::mvcc::registry::OpenSnapshots;

/// Largest block of memory that glibc merges with others only later (fast bins, on 64-bit
/// machines).
pub(crate) const FAST_BIN_MAX: usize = 120;

/// Number of bytes of the key and the value that a version holds in its own block.
const INLINE: usize = FAST_BIN_MAX;

/// Number of versions that a list holds in its own block.
const INLINE_NEWER: usize = 13;

const _: () = assert!(size_of::<OldVersion>() > FAST_BIN_MAX);
const _: () = assert!(size_of::<Newer>() > FAST_BIN_MAX);

/// The address at which a version was, to prefetch it. The version may be gone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VersionHint(usize);

impl VersionHint {
    /// Prefetches what trimming a chain reads of the version.
    #[inline]
    pub(crate) fn prefetch(self) {
        let start = std::ptr::without_provenance::<u8>(self.0);
        for at in [0, size_of::<OldVersion>() - INLINE - 1] {
            braid_rt::prefetch(start.wrapping_add(at));
        }
    }
}

/// One overwritten value.
#[derive(Debug)]
pub(crate) struct OldVersion {
    table: u32,
    key_len: u32,
    begin: SeqNo,
    end: SeqNo,
    large: Option<DetachedValue>,
    /// Number of bytes of the key and the value, unless the value is large.
    len: usize,
    /// These bytes, the key first, if they have room here.
    inline: [u8; INLINE],
    /// Otherwise.
    long: Vec<u8>,
}

/// The value of an old version.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OldValue<'a> {
    Bytes(&'a [u8]),
    Large(&'a DetachedValue),
}

impl Default for OldVersion {
    fn default() -> Self {
        Self {
            table: 0,
            key_len: 0,
            begin: SeqNo::default(),
            end: SeqNo::default(),
            large: None,
            len: 0,
            inline: [0; INLINE],
            long: Vec::new(),
        }
    }
}

impl OldVersion {
    /// Makes this a version written by commit `begin` and replaced by commit `end`. `bytes` are the
    /// key, of `key_len` bytes, and the value.
    #[inline]
    fn set(&mut self, table: u32, key_len: usize, bytes: &[u8], begin: SeqNo, end: SeqNo) {
        debug_assert!(begin < end, "versions follow each other: {begin} {end}");
        self.table = table;
        self.key_len = narrow(key_len);
        self.begin = begin;
        self.end = end;
        self.len = bytes.len();
        match self.inline.get_mut(..bytes.len()) {
            Some(inline) => inline.copy_from_slice(bytes),
            None => {
                self.long.clear();
                self.long.extend_from_slice(bytes);
            }
        }
    }

    /// As [`OldVersion::set`], for the record that commit `end` is about to replace, whose key and
    /// value have room in this version's own block. Copies the value once, from the leaf. Returns
    /// `false`, without a change that matters, if they have no room.
    #[inline]
    fn set_inline(
        &mut self,
        table: u32,
        key: &[u8],
        old: &OldRecord<'_>,
        begin: SeqNo,
        end: SeqNo,
    ) -> bool {
        debug_assert!(begin < end, "versions follow each other: {begin} {end}");
        let Some((key_room, value_room)) = self.inline.split_at_mut_checked(key.len()) else {
            return false;
        };
        if !old.copy_value(value_room) {
            return false;
        }
        key_room.copy_from_slice(key);
        self.table = table;
        self.key_len = narrow(key.len());
        self.begin = begin;
        self.end = end;
        self.len = key.len() + old.inline_len();
        true
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        self.inline.get(..self.len).unwrap_or(&self.long)
    }

    /// Sets a large value, which is stored in its own pages.
    fn set_large(&mut self, value: DetachedValue) {
        self.large = Some(value);
    }

    /// The space that the version takes, in bytes: memory, and the pages of a large value.
    #[inline]
    pub(crate) fn space(&self) -> isize {
        let pages = match &self.large {
            Some(large) if !braid_rt::mutant!("forget_pages_of_versions") => large.page_bytes(),
            _ => 0,
        };
        (self.memory() + pages).cast_signed()
    }

    /// Returns the address of the version.
    #[inline]
    pub(crate) fn hint(&self) -> VersionHint {
        VersionHint(std::ptr::from_ref(self).addr())
    }

    /// Prefetches the version, to [set](Self::set) it.
    #[inline]
    fn prefetch(&self) {
        let start = (&raw const *self).cast::<u8>();
        for at in (0..size_of::<Self>()).step_by(64) {
            braid_rt::prefetch_for_write(start.wrapping_add(at));
        }
    }

    /// The memory that the version takes, in bytes.
    #[inline]
    fn memory(&self) -> usize {
        size_of::<Self>() + self.long.capacity()
    }

    fn key(&self) -> &[u8] {
        &self.bytes()[..self.key_len as usize]
    }

    fn value(&self) -> OldValue<'_> {
        match &self.large {
            Some(large) => OldValue::Large(large),
            None => OldValue::Bytes(&self.bytes()[self.key_len as usize..]),
        }
    }
}

/// The old versions of the keys of one bucket of the lock table.
///
/// A chain with versions has exactly one entry in the queues of [`crate::mvcc::gc`], or the
/// collector has taken it from there. So the queues grow with the number of changed keys, not with
/// the number of changes.
#[derive(Debug, Default)]
pub(crate) struct VersionChain {
    /// The oldest version. Nearly all chains have at most one version and need no list.
    oldest: Option<Box<OldVersion>>,
    /// The other versions, oldest first; present only if `oldest` is.
    newer: Option<Box<Newer>>,
}

#[derive(Debug, Default)]
struct Newer {
    /// Number of versions at which the chain is pruned next.
    prune_at: usize,
    versions: SmallVec<[Box<OldVersion>; INLINE_NEWER]>,
}

impl Newer {
    /// Adds a version in the order of the ends.
    fn insert(&mut self, version: Box<OldVersion>) {
        let mut later = self.versions.iter().rev();
        let later = later.by_ref().take_while(|v| v.end > version.end).count();
        if later == 0 || braid_rt::mutant!("append_older_versions") {
            self.versions.push(version);
        } else {
            braid_rt::coverage_point("versions: an older one comes later");
            self.versions.insert(self.versions.len() - later, version);
        }
    }
}

/// Returns the number of versions below which pruning a chain is not worthwhile.
fn prune_min() -> usize {
    // Simulated chains are short.
    if braid_rt::simulation::is_on() { 2 } else { 16 }
}

/// What a chain needs after a version was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// Nothing: the chain already waits for its collection.
    Queued,
    /// An entry in a queue: the chain was empty.
    First,
    /// [`VersionChain::prune`]: the chain has become long.
    Long,
}

/// Versions that were dropped from a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub(crate) versions: usize,
    /// The space that they took, in bytes.
    pub(crate) bytes: isize,
}

impl Dropped {
    fn count(&mut self, version: &OldVersion) {
        self.versions += 1;
        self.bytes += version.space();
    }
}

impl VersionChain {
    /// Adds a version. Nearly always, the commit that replaced it is the newest of the chain; but
    /// transactions that change different keys may add their versions in any order.
    pub(crate) fn push(&mut self, mut version: Box<OldVersion>) -> Added {
        let Some(oldest) = &mut self.oldest else {
            self.oldest = Some(version);
            return Added::First;
        };
        if version.end < oldest.end && !braid_rt::mutant!("append_older_versions") {
            std::mem::swap(oldest, &mut version);
        }
        let newer = self.newer.get_or_insert_default();
        newer.insert(version);
        if newer.versions.len() >= newer.prune_at.max(prune_min()) {
            return Added::Long;
        }
        Added::Queued
    }

    /// Returns the value of a key at `snapshot`, if that value is an old version.
    pub(crate) fn get(&self, table: u32, key: &[u8], snapshot: SeqNo) -> Option<OldValue<'_>> {
        let of_key = |v: &&OldVersion| {
            v.begin <= snapshot && snapshot < v.end && v.table == table && v.key() == key
        };
        if let Some(found) = self.oldest.as_deref().filter(of_key) {
            return Some(found.value());
        }
        let versions = &self.newer.as_ref()?.versions;
        // The versions are in the order of their ends.
        let first = versions.partition_point(|v| v.end <= snapshot);
        let mut visible = versions[first..].iter().map(|v| &**v);
        visible.find(of_key).map(OldVersion::value)
    }

    /// Drops versions that no snapshot at or above `watermark` can see, at most `at_most`. Returns
    /// what it dropped, and the end of the oldest version that is left.
    #[inline]
    pub(crate) fn trim(
        &mut self,
        watermark: SeqNo,
        at_most: usize,
        spare: &mut SpareVersions,
    ) -> (Dropped, Option<SeqNo>) {
        let mut trimmed = Dropped::default();
        let is_due = |oldest: &mut Box<OldVersion>| at_most > 0 && oldest.end <= watermark;
        if let Some(oldest) = self.oldest.take_if(is_due) {
            trimmed.count(&oldest);
            spare.put(oldest);
            if self.newer.is_some() {
                self.trim_newer(watermark, at_most, &mut trimmed, spare);
            }
        }
        (trimmed, self.oldest.as_ref().map(|oldest| oldest.end))
    }

    /// Goes on with [`VersionChain::trim`] after the oldest version. The first version that is left
    /// becomes the oldest.
    #[inline(never)]
    fn trim_newer(
        &mut self,
        watermark: SeqNo,
        at_most: usize,
        trimmed: &mut Dropped,
        spare: &mut SpareVersions,
    ) {
        let Some(newer) = &mut self.newer else {
            return;
        };
        let more = newer.versions.iter().take(at_most - trimmed.versions);
        let due = more.take_while(|version| version.end <= watermark).count();
        let taken = newer.versions.len().min(due + 1);
        let mut taken = newer.versions.drain(..taken);
        for version in taken.by_ref().take(due) {
            trimmed.count(&version);
            spare.put(version);
        }
        self.oldest = taken.next();
        drop(taken);
        if newer.versions.is_empty() {
            spare.lists.extend(self.newer.take());
        }
    }

    /// Drops the versions that no snapshot can see although an older snapshot is open: interval
    /// collection (Böttcher et al., VLDB 2020, §4.3). Keeps at least one version, so that a chain
    /// with versions stays one. The chain is pruned again when it is twice as long, so that each
    /// addition costs a constant number of steps.
    ///
    /// Returns what it dropped.
    pub(crate) fn prune(&mut self, open: &OpenSnapshots, spare: &mut SpareVersions) -> Dropped {
        let mut pruned = Dropped::default();
        let Some(newer) = &mut self.newer else {
            return pruned;
        };
        let mut drop = |version: Box<OldVersion>| {
            pruned.count(&version);
            spare.put(version);
        };
        // In place, which allocates nothing.
        let mut kept = 0;
        for at in 0..newer.versions.len() {
            let version = &newer.versions[at];
            if open.can_see(version.begin, version.end) {
                newer.versions.swap(kept, at);
                kept += 1;
            }
        }
        newer.versions.drain(kept..).for_each(&mut drop);
        let is_kept = |oldest: &OldVersion| open.can_see(oldest.begin, oldest.end);
        if !newer.versions.is_empty()
            && let Some(oldest) = self.oldest.take_if(|oldest| !is_kept(oldest))
        {
            drop(oldest);
            self.oldest = Some(newer.versions.remove(0));
        }
        newer.prune_at = 2 * newer.versions.len();
        if newer.versions.is_empty() {
            spare.lists.extend(self.newer.take());
        }
        pruned
    }

    /// Returns the address of the oldest version.
    #[inline]
    pub(crate) fn hint(&self) -> VersionHint {
        let oldest = self.oldest.as_deref();
        oldest.map(OldVersion::hint).unwrap_or_default()
    }

    /// Returns, for each version, the commit that replaced it and the space that it takes, in bytes.
    pub(crate) fn space(&self) -> impl Iterator<Item = (SeqNo, isize)> {
        let newer = self.newer.iter().flat_map(|newer| &newer.versions);
        let versions = self.oldest.iter().chain(newer);
        versions.map(|version| (version.end, version.space()))
    }
}

/// Trimmed versions kept for reuse, so that storing an old version needs no allocation.
///
/// Versions are trimmed under locks, and freed later, by [`SpareVersions::shed`]: the allocator may
/// have other work to do first, or wait for a thread that has. After many frees of small blocks,
/// either can take hundreds of milliseconds.
#[derive(Debug, Default)]
pub(crate) struct SpareVersions {
    #[allow(clippy::vec_box, reason = "they move between lists")]
    versions: Vec<Box<OldVersion>>,
    /// The memory of `versions`, in bytes.
    bytes: usize,
    /// Where a version's key and value are put together.
    scratch: Vec<u8>,
    /// Lists of chains that became short.
    #[allow(clippy::vec_box, reason = "they move between lists")]
    lists: Vec<Box<Newer>>,
    /// Large values of trimmed versions, each with its table's number; the caller frees them.
    pub(crate) large: Vec<(u32, DetachedValue)>,
}

impl SpareVersions {
    /// The versions that a thousand transactions of ten writes replace between two flushes.
    const BYTES_MAX: usize = 2 << 20;

    pub(crate) fn take(&mut self) -> Box<OldVersion> {
        match self.versions.pop() {
            Some(version) => {
                self.bytes -= version.memory();
                if let Some(next) = self.versions.last() {
                    next.prefetch();
                }
                version
            }
            None => Box::default(),
        }
    }

    /// Allows `count` versions to be trimmed without an allocation.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.versions.reserve(count);
        self.lists.reserve(count);
        self.large.reserve(count);
    }

    /// Makes a version of the record that commit `end` is about to replace, with this key.
    #[inline]
    pub(crate) fn fill(
        &mut self,
        version: &mut OldVersion,
        table: u32,
        key: &[u8],
        old: &OldRecord<'_>,
        end: SeqNo,
    ) -> Result<(), StoreError> {
        let begin = old.meta().seqno();
        if version.set_inline(table, key, old, begin, end) {
            return Ok(());
        }
        self.fill_long(version, table, key, old, end)
    }

    /// As [`SpareVersions::fill`], for a value that is large, or has no room in the version's block.
    #[inline(never)]
    fn fill_long(
        &mut self,
        version: &mut OldVersion,
        table: u32,
        key: &[u8],
        old: &OldRecord<'_>,
        end: SeqNo,
    ) -> Result<(), StoreError> {
        let bytes = self.begin(key, old.inline_len());
        if let Some(large) = old.keep_value(bytes)? {
            version.set_large(large);
        }
        version.set(table, key.len(), bytes, old.meta().seqno(), end);
        Ok(())
    }

    /// Begins a version: returns an empty buffer with room for the key and a value of `value_len`
    /// bytes, for [`OldVersion::set`], with the key in it.
    #[inline]
    fn begin(&mut self, key: &[u8], value_len: usize) -> &mut Vec<u8> {
        self.scratch.clear();
        // Values are copied in whole words.
        let room = key.len() + value_len + size_of::<u64>();
        self.scratch.reserve(room);
        self.scratch.extend_from_slice(key);
        &mut self.scratch
    }

    /// Whether [`SpareVersions::shed`], or the caller, has something to free.
    #[inline]
    pub(crate) fn is_worth_shedding(&self) -> bool {
        self.bytes > Self::BYTES_MAX || !self.lists.is_empty() || !self.large.is_empty()
    }

    /// Frees what is not worth keeping. Call without any lock.
    pub(crate) fn shed(&mut self) {
        while self.bytes > Self::BYTES_MAX {
            drop(self.take());
        }
        self.lists.clear();
    }

    #[inline]
    fn put(&mut self, mut version: Box<OldVersion>) {
        if let Some(large) = version.large.take() {
            self.large.push((version.table, large));
        }
        self.bytes += version.memory();
        self.versions.push(version);
        if braid_rt::mutant!("free_versions_under_locks") {
            self.shed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_at<'a>(chain: &'a VersionChain, table: u32, key: &[u8], at: u64) -> Option<&'a [u8]> {
        chain
            .get(table, key, SeqNo::new(at))
            .map(|value| match value {
                OldValue::Bytes(bytes) => bytes,
                OldValue::Large(large) => panic!("no value here is large: {large:?}"),
            })
    }

    fn version(key: &[u8], begin: u64, end: u64, value: &str) -> Box<OldVersion> {
        let mut spare = SpareVersions::default();
        let mut version = spare.take();
        let bytes = spare.begin(key, value.len());
        bytes.extend_from_slice(value.as_bytes());
        version.set(1, key.len(), bytes, SeqNo::new(begin), SeqNo::new(end));
        version
    }

    fn trim(
        chain: &mut VersionChain,
        spare: &mut SpareVersions,
        watermark: u64,
        at_most: usize,
    ) -> (usize, Option<u64>) {
        let (trimmed, left) = chain.trim(SeqNo::new(watermark), at_most, spare);
        (trimmed.versions, left.map(SeqNo::get))
    }

    #[test]
    fn a_snapshot_sees_the_version_of_its_time_until_it_is_trimmed() {
        let mut chain = VersionChain::default();
        let mut spare = SpareVersions::default();
        chain.push(version(b"k", 2, 5, "two"));
        chain.push(version(b"k", 5, 9, "five"));
        chain.push(version(b"other", 1, 9, "other"));
        assert_eq!(value_at(&chain, 1, b"k", 1), None);
        assert_eq!(value_at(&chain, 1, b"k", 4), Some(&b"two"[..]));
        assert_eq!(value_at(&chain, 1, b"k", 5), Some(&b"five"[..]));
        assert_eq!(value_at(&chain, 1, b"k", 9), None);
        assert_eq!(value_at(&chain, 2, b"k", 4), None);
        assert_eq!(trim(&mut chain, &mut spare, 5, usize::MAX), (1, Some(9)));
        assert_eq!(value_at(&chain, 1, b"k", 4), None);
        assert_eq!(value_at(&chain, 1, b"k", 5), Some(&b"five"[..]));
        chain.push(version(b"k", 9, 12, "nine"));
        assert_eq!(trim(&mut chain, &mut spare, 11, 1), (1, Some(9)));
        assert_eq!(trim(&mut chain, &mut spare, 11, usize::MAX), (1, Some(12)));
        assert_eq!(value_at(&chain, 1, b"k", 9), Some(&b"nine"[..]));
        assert_eq!(trim(&mut chain, &mut spare, 12, usize::MAX), (1, None));
        assert!(chain.oldest.is_none() && chain.newer.is_none());
        assert_eq!(spare.versions.len(), 4);
    }

    /// Commits of different keys of a bucket add their versions in any order.
    #[test]
    fn versions_that_come_late_are_found_and_trimmed_in_order() {
        let keys = ["a", "b", "c", "d", "e"];
        // Commit 10 + i replaced the version of key i.
        for order in [[3, 1, 4, 0, 2], [4, 3, 2, 1, 0], [1, 0, 2, 4, 3]] {
            let (mut chain, mut spare) = (VersionChain::default(), SpareVersions::default());
            for at in order {
                chain.push(version(keys[at].as_bytes(), 1, 10 + at as u64, keys[at]));
            }
            for (at, key) in keys.iter().enumerate() {
                let end = 10 + at as u64;
                for snapshot in [1, end - 1] {
                    let found = value_at(&chain, 1, key.as_bytes(), snapshot);
                    assert_eq!(found, Some(key.as_bytes()), "{order:?}");
                }
                assert_eq!(value_at(&chain, 1, key.as_bytes(), end), None);
                let left = keys.get(at + 1).map(|_| end + 1);
                assert_eq!(trim(&mut chain, &mut spare, end, usize::MAX), (1, left));
            }
        }
    }

    /// Ends each of 1,000 commits of one key while snapshots 3 and 500 are open.
    #[test]
    fn a_long_chain_keeps_what_open_snapshots_see() {
        let (mut chain, mut spare) = (VersionChain::default(), SpareVersions::default());
        let open = |next| OpenSnapshots::new(&[3, 500], next);
        let (mut most, mut count) = (0, 0);
        for end in 2..1_000 {
            let value = (end - 1).to_string();
            count += 1;
            if chain.push(version(b"k", end - 1, end, &value)) == Added::Long {
                count -= chain.prune(&open(end), &mut spare).versions;
            }
            most = most.max(count);
        }
        // Twice the versions that are kept: those of the snapshots and the newest.
        assert!(most <= 18, "{most} versions");
        assert_eq!(value_at(&chain, 1, b"k", 3), Some(&b"3"[..]));
        assert_eq!(value_at(&chain, 1, b"k", 500), Some(&b"500"[..]));
        assert_eq!(value_at(&chain, 1, b"k", 998), Some(&b"998"[..]));
        assert_eq!(
            trim(&mut chain, &mut spare, 1_000, usize::MAX),
            (count, None)
        );
    }

    #[test]
    fn pruning_keeps_what_later_snapshots_can_see() {
        let (mut chain, mut spare) = (VersionChain::default(), SpareVersions::default());
        for end in 2..12 {
            chain.push(version(b"k", end - 1, end, "value"));
        }
        // A snapshot that is opened later begins at 7 or above.
        let pruned = chain.prune(&OpenSnapshots::new(&[], 7), &mut spare);
        assert_eq!(pruned.versions, 6);
        assert_eq!(spare.versions.len(), 6);
        // In addition to the oldest. The next pruning takes as many steps as additions came before
        // it.
        let newer = chain.newer.as_ref().unwrap();
        assert_eq!((newer.versions.len(), newer.prune_at), (3, 6));
        for at in 7..11 {
            assert!(value_at(&chain, 1, b"k", at).is_some(), "{at}");
        }
        // A chain with versions stays one, because it has an entry in a queue.
        let pruned = chain.prune(&OpenSnapshots::new(&[], 20), &mut spare);
        assert_eq!(pruned.versions, 3);
        assert!(chain.oldest.is_some() && chain.newer.is_none());
    }

    #[test]
    fn spare_versions_are_used_again_and_bounded() {
        let mut spare = SpareVersions::default();
        let small = version(b"k", 1, 2, "small");
        let at = small.bytes().as_ptr();
        spare.put(small);
        let mut again = spare.take();
        assert_eq!(spare.bytes, 0);
        again.set(7, 1, b"lvalue", SeqNo::new(3), SeqNo::new(4));
        assert_eq!(again.bytes().as_ptr(), at);
        again.long.reserve_exact(SpareVersions::BYTES_MAX + 1);
        spare.put(again);
        assert_eq!(spare.versions.len(), 1, "nothing is freed under a lock");
        spare.shed();
        assert!(spare.versions.is_empty(), "too large to be kept");
        assert_eq!(spare.bytes, 0);
    }

    /// The chain's lock is held while its versions are trimmed or pruned.
    #[test]
    fn only_shedding_frees_what_was_trimmed() {
        let mut chain = VersionChain::default();
        let (mut spare, mut trimmed) = (SpareVersions::default(), Dropped::default());
        let value = "v".repeat(SpareVersions::BYTES_MAX / 4);
        for round in 0..2 {
            for end in 2..12 {
                chain.push(version(b"k", end - 1, end, &value));
            }
            trimmed = if round == 0 {
                chain.trim(SeqNo::new(12), usize::MAX, &mut spare).0
            } else {
                chain.prune(&OpenSnapshots::new(&[], 12), &mut spare)
            };
            let is_list_kept = spare.lists.len() == 1;
            assert!(chain.newer.is_none() && is_list_kept, "round {round}");
            assert_eq!(spare.versions.len(), trimmed.versions);
            spare.shed();
            assert_eq!((spare.versions.len(), spare.lists.len()), (3, 0));
            spare = SpareVersions::default();
        }
        assert_eq!(trimmed.versions, 9, "pruning keeps a version");
    }
}
