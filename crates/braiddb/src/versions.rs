//! Values that were overwritten but may still be read by a snapshot.
//!
//! The tree holds the newest version of a key; the versions before it lie here, in memory, from just
//! before they are overwritten until no snapshot can ask for them. A version is visible to the snapshots
//! in `begin..end`, numbers of the commits that wrote it and that replaced it.

use bytes::Bytes;

/// One overwritten value.
#[derive(Debug)]
struct OldVersion {
    table: u32,
    key: Box<[u8]>,
    begin: u64,
    end: u64,
    value: Bytes,
}

/// The old versions of the keys of one stripe, oldest first.
#[derive(Debug, Default)]
pub(crate) struct VersionChain(Vec<OldVersion>);

impl VersionChain {
    /// Keeps `value`, written by `begin` and replaced by `end`.
    pub(crate) fn push(&mut self, table: u32, key: &[u8], begin: u64, end: u64, value: Bytes) {
        debug_assert!(begin < end, "versions follow each other: {begin} {end}");
        self.0.push(OldVersion {
            table,
            key: key.into(),
            begin,
            end,
            value,
        });
    }

    /// The value of a key at `snapshot`, if it is an old one.
    pub(crate) fn get(&self, table: u32, key: &[u8], snapshot: u64) -> Option<Bytes> {
        let of_key = |v: &&OldVersion| {
            v.begin <= snapshot && snapshot < v.end && v.table == table && *v.key == *key
        };
        self.0.iter().rev().find(of_key).map(|v| v.value.clone())
    }

    /// Drops what no snapshot at or above `watermark` can see.
    pub(crate) fn trim(&mut self, watermark: u64) {
        self.0.retain(|v| v.end > watermark);
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_sees_the_version_of_its_time_until_it_is_trimmed() {
        let mut chain = VersionChain::default();
        chain.push(1, b"k", 2, 5, "two".into());
        chain.push(1, b"k", 5, 9, "five".into());
        chain.push(1, b"other", 1, 9, "other".into());
        assert_eq!(chain.get(1, b"k", 1), None);
        assert_eq!(chain.get(1, b"k", 4), Some("two".into()));
        assert_eq!(chain.get(1, b"k", 5), Some("five".into()));
        assert_eq!(chain.get(1, b"k", 9), None);
        assert_eq!(chain.get(2, b"k", 4), None);
        chain.trim(5);
        assert_eq!(chain.get(1, b"k", 4), None);
        assert_eq!(chain.get(1, b"k", 5), Some("five".into()));
    }
}
