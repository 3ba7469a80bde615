//! Old versions: overwritten values that a snapshot may still read.
//!
//! The tree holds the newest version of a key. Older versions are kept here, in memory, from just
//! before they are overwritten until no snapshot can read them. A version is visible to snapshots
//! in `begin..end`: `begin` is the sequence number of the commit that wrote the version, `end` that
//! of the commit that replaced it. Of a large value only the key is kept here; the value stays in
//! its pages, which are freed with the version.

use std::collections::VecDeque;

use braid_log::SeqNo;
use braid_rt::narrow;
use braid_store::DetachedValue;

/// One overwritten value.
#[derive(Debug, Default)]
pub(crate) struct OldVersion {
    table: u32,
    key_len: u32,
    begin: SeqNo,
    end: SeqNo,
    /// The key, then the value unless the value is large.
    bytes: Vec<u8>,
    large: Option<DetachedValue>,
}

/// The value of an old version.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OldValue<'a> {
    Bytes(&'a [u8]),
    Large(&'a DetachedValue),
}

impl OldVersion {
    /// Makes this a version of `key`, written by commit `begin` and replaced by commit `end`. The
    /// caller appends the value of `value_len` bytes to the returned buffer.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        table: u32,
        key: &[u8],
        value_len: usize,
        begin: SeqNo,
        end: SeqNo,
    ) -> &mut Vec<u8> {
        debug_assert!(begin < end, "versions follow each other: {begin} {end}");
        self.table = table;
        self.key_len = narrow(key.len());
        self.begin = begin;
        self.end = end;
        self.bytes.clear();
        // Values are copied in whole words.
        self.bytes.reserve(key.len() + value_len + size_of::<u64>());
        self.bytes.extend_from_slice(key);
        &mut self.bytes
    }

    /// Sets a large value, which is stored in its own pages.
    pub(crate) fn set_large(&mut self, value: DetachedValue) {
        self.large = Some(value);
    }

    fn key(&self) -> &[u8] {
        &self.bytes[..self.key_len as usize]
    }

    fn value(&self) -> OldValue<'_> {
        match &self.large {
            Some(large) => OldValue::Large(large),
            None => OldValue::Bytes(&self.bytes[self.key_len as usize..]),
        }
    }
}

/// The old versions of the keys of one stripe.
#[derive(Debug, Default)]
pub(crate) struct VersionChain {
    /// The oldest version. Nearly all chains have at most one version and need no list.
    oldest: Option<Box<OldVersion>>,
    /// The other versions, oldest first; present only if `oldest` is.
    #[allow(clippy::box_collection, reason = "no list takes a word, not four")]
    newer: Option<Box<VecDeque<Box<OldVersion>>>>,
}

impl VersionChain {
    /// Adds a version. The commit that replaced it is not older than those of the versions before.
    pub(crate) fn push(&mut self, version: Box<OldVersion>) {
        if self.oldest.is_none() {
            self.oldest = Some(version);
        } else {
            self.newer.get_or_insert_default().push_back(version);
        }
    }

    /// Returns the value of a key at `snapshot`, if that value is an old version.
    pub(crate) fn get(&self, table: u32, key: &[u8], snapshot: SeqNo) -> Option<OldValue<'_>> {
        let of_key = |v: &&OldVersion| {
            v.begin <= snapshot && snapshot < v.end && v.table == table && v.key() == key
        };
        let newer = self.newer.iter().flat_map(|newer| newer.iter());
        let mut versions = self.oldest.iter().chain(newer).map(|v| &**v);
        versions.find(of_key).map(OldVersion::value)
    }

    /// Drops the versions that no snapshot at or above `watermark` can see.
    pub(crate) fn trim(&mut self, watermark: SeqNo, spare: &mut SpareVersions) {
        while let Some(old) = self.oldest.take_if(|oldest| oldest.end <= watermark) {
            spare.put(old);
            if let Some(newer) = &mut self.newer {
                self.oldest = newer.pop_front();
                if newer.is_empty() {
                    self.newer = None;
                }
            }
        }
    }
}

/// Trimmed versions kept for reuse, so that storing an old version needs no allocation.
#[derive(Debug, Default)]
pub(crate) struct SpareVersions {
    #[allow(clippy::vec_box, reason = "they move between lists")]
    versions: Vec<Box<OldVersion>>,
    bytes: usize,
    /// Large values of trimmed versions, which the caller frees.
    pub(crate) large: Vec<DetachedValue>,
}

impl SpareVersions {
    const BYTES_MAX: usize = 1 << 20;

    pub(crate) fn take(&mut self) -> Box<OldVersion> {
        match self.versions.pop() {
            Some(version) => {
                self.bytes -= version.bytes.capacity();
                version
            }
            None => Box::default(),
        }
    }

    fn put(&mut self, mut version: Box<OldVersion>) {
        self.large.extend(version.large.take());
        let bytes = self.bytes + version.bytes.capacity();
        if bytes <= Self::BYTES_MAX {
            self.bytes = bytes;
            self.versions.push(version);
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
        let mut version = SpareVersions::default().take();
        let bytes = version.begin(1, key, value.len(), SeqNo::new(begin), SeqNo::new(end));
        bytes.extend_from_slice(value.as_bytes());
        version
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
        chain.trim(SeqNo::new(5), &mut spare);
        assert_eq!(value_at(&chain, 1, b"k", 4), None);
        assert_eq!(value_at(&chain, 1, b"k", 5), Some(&b"five"[..]));
        chain.push(version(b"k", 9, 12, "nine"));
        chain.trim(SeqNo::new(11), &mut spare);
        assert_eq!(value_at(&chain, 1, b"k", 9), Some(&b"nine"[..]));
        chain.trim(SeqNo::new(12), &mut spare);
        assert!(chain.oldest.is_none() && chain.newer.is_none());
        assert_eq!(spare.versions.len(), 4);
    }

    #[test]
    fn spare_versions_are_used_again_and_bounded() {
        let mut spare = SpareVersions::default();
        let small = version(b"k", 1, 2, "small");
        let at = small.bytes.as_ptr();
        spare.put(small);
        let mut again = spare.take();
        assert_eq!(spare.bytes, 0);
        assert_eq!(
            again
                .begin(7, b"l", 5, SeqNo::new(3), SeqNo::new(4))
                .as_ptr(),
            at
        );
        again.bytes.reserve_exact(SpareVersions::BYTES_MAX + 1);
        spare.put(again);
        assert!(spare.versions.is_empty(), "too large to be kept");
    }
}
