//! Values that were overwritten but may still be read by a snapshot.
//!
//! The tree holds the newest version of a key; the versions before it lie here, in memory, from just
//! before they are overwritten until no snapshot can ask for them. A version is visible to the snapshots
//! in `begin..end`, numbers of the commits that wrote it and that replaced it. Of a large value only the key is
//! here; the value stays in its pages, which are freed when the version goes.

use std::collections::VecDeque;

use braid_rt::narrow;
use braid_store::DetachedValue;

/// One overwritten value.
#[derive(Debug, Default)]
pub(crate) struct OldVersion {
    table: u32,
    key_len: u32,
    begin: u64,
    end: u64,
    /// The key, then the value unless that is a large one.
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
    /// Makes it a version of `key`, written by `begin` and replaced by `end`. Its value of so many bytes is to
    /// be appended to what is returned.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        table: u32,
        key: &[u8],
        value_len: usize,
        begin: u64,
        end: u64,
    ) -> &mut Vec<u8> {
        debug_assert!(begin < end, "versions follow each other: {begin} {end}");
        self.table = table;
        self.key_len = narrow(key.len());
        self.begin = begin;
        self.end = end;
        self.bytes.clear();
        // Values are copied by words.
        self.bytes.reserve(key.len() + value_len + size_of::<u64>());
        self.bytes.extend_from_slice(key);
        &mut self.bytes
    }

    /// Makes its value one that lies in pages of its own.
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
    /// The oldest. Nearly all chains have one version at most, and need no list.
    oldest: Option<Box<OldVersion>>,
    /// The others, oldest first; never there without an oldest one.
    #[allow(clippy::box_collection, reason = "no list takes a word, not four")]
    newer: Option<Box<VecDeque<Box<OldVersion>>>>,
}

impl VersionChain {
    /// Adds a version that was replaced by a later commit than those before, or by the same.
    pub(crate) fn push(&mut self, version: Box<OldVersion>) {
        if self.oldest.is_none() {
            self.oldest = Some(version);
        } else {
            self.newer.get_or_insert_default().push_back(version);
        }
    }

    /// The value of a key at `snapshot`, if it is an old one.
    pub(crate) fn get(&self, table: u32, key: &[u8], snapshot: u64) -> Option<OldValue<'_>> {
        let of_key = |v: &&OldVersion| {
            v.begin <= snapshot && snapshot < v.end && v.table == table && v.key() == key
        };
        let newer = self.newer.iter().flat_map(|newer| newer.iter());
        let mut versions = self.oldest.iter().chain(newer).map(|v| &**v);
        versions.find(of_key).map(OldVersion::value)
    }

    /// Drops what no snapshot at or above `watermark` can see.
    pub(crate) fn trim(&mut self, watermark: u64, spare: &mut SpareVersions) {
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

/// Trimmed versions for those that come next, so that keeping one costs no allocation.
#[derive(Debug, Default)]
pub(crate) struct SpareVersions {
    #[allow(clippy::vec_box, reason = "they move between lists")]
    versions: Vec<Box<OldVersion>>,
    bytes: usize,
    /// The large values of trimmed versions, to be freed.
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
        chain.get(table, key, at).map(|value| match value {
            OldValue::Bytes(bytes) => bytes,
            OldValue::Large(large) => panic!("no value here is large: {large:?}"),
        })
    }

    fn version(key: &[u8], begin: u64, end: u64, value: &str) -> Box<OldVersion> {
        let mut version = SpareVersions::default().take();
        let bytes = version.begin(1, key, value.len(), begin, end);
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
        chain.trim(5, &mut spare);
        assert_eq!(value_at(&chain, 1, b"k", 4), None);
        assert_eq!(value_at(&chain, 1, b"k", 5), Some(&b"five"[..]));
        chain.push(version(b"k", 9, 12, "nine"));
        chain.trim(11, &mut spare);
        assert_eq!(value_at(&chain, 1, b"k", 9), Some(&b"nine"[..]));
        chain.trim(12, &mut spare);
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
        assert_eq!(again.begin(7, b"l", 5, 3, 4).as_ptr(), at);
        again.bytes.reserve_exact(SpareVersions::BYTES_MAX + 1);
        spare.put(again);
        assert!(spare.versions.is_empty(), "too large to be kept");
    }
}
