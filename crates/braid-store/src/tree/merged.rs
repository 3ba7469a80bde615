//! Scans of a tree with long keys: they merge the records that a step read from a leaf with the
//! long keys whose home leaf it is.

use std::cmp::Ordering;
use std::ops::Bound;

use braid_rt::narrow;
use bytes::Bytes;

use super::layers::{Bounds, Layers};
use super::scan::{Direction, Extent, LeafScan, Step};
use super::{RecordMeta, Tree};
use crate::error::StoreError;
use crate::node::INLINE_MAX;

/// Bytes of long keys and their values after which a step reads no further ones.
const LONG_BYTES_MAX: usize = 1 << 18;

/// A long key and its record.
struct Long {
    key: Vec<u8>,
    meta: RecordMeta,
    value: Bytes,
}

/// Long keys of a range, from one end.
#[derive(Default)]
struct Found {
    keys: Vec<Long>,
    bytes: usize,
    /// Whether the range has no more long keys.
    is_all: bool,
}

impl Layers {
    /// Reads at most `at_most` long keys of a range, and at least one if there is one.
    fn find(
        &self,
        range: Bounds<'_>,
        direction: Direction,
        at_most: usize,
    ) -> Result<Found, StoreError> {
        let mut found = Found::default();
        let is_all = self.each_key(range, direction, &mut |key, scan, i| {
            if found.keys.len() >= at_most || found.bytes >= LONG_BYTES_MAX {
                return false;
            }
            let (meta, value) = (scan.record(i).meta, scan.value(i));
            found.bytes += key.len() + value.len();
            let key = key.to_vec();
            found.keys.push(Long { key, meta, value });
            true
        })?;
        found.is_all = is_all;
        Ok(found)
    }
}

/// Returns the bound on the other side of the place where a scan continues.
fn complement(bound: Bound<&[u8]>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Excluded(key),
        Bound::Excluded(key) => Bound::Included(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// Records merged from two sources.
#[derive(Default)]
struct Merged {
    bytes: Vec<u8>,
    records: Vec<Extent>,
    large: Vec<Bytes>,
}

impl Merged {
    fn push(&mut self, key: &[u8], meta: RecordMeta, value: Bytes) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let end = self.bytes.len();
        let large = (value.len() > INLINE_MAX).then_some(narrow(self.large.len()));
        match large {
            None => self.bytes.extend_from_slice(&value),
            Some(_) => self.large.push(value),
        }
        self.records.push(Extent {
            meta,
            key: (narrow(start), narrow(end)),
            value: (narrow(end), narrow(self.bytes.len())),
            large,
        });
    }
}

impl Tree {
    /// Adds the long keys to the records that a step read from their home leaf: see
    /// [`layers`](super::layers) on why the leaf need not be validated.
    #[cold]
    pub(super) fn with_long_keys(
        layers: &Layers,
        scan: LeafScan,
        step: &Step<'_>,
    ) -> Result<LeafScan, StoreError> {
        let far = match &scan.next {
            Some(next) => complement(next.as_ref().map(|key| &key[..])),
            None => step.to,
        };
        let range = match step.direction {
            Direction::Forward => (step.from, far),
            Direction::Reverse => (far, step.from),
        };
        layers.1.check(range)?;
        let found = layers.find(range, step.direction, step.at_most)?;
        if found.keys.is_empty() {
            Ok(scan)
        } else {
            Ok(merge(scan, found, step))
        }
    }
}

/// Merges both in the order of the step, as far as both were read.
fn merge(short: LeafScan, long: Found, step: &Step<'_>) -> LeafScan {
    let mut merged = Merged::default();
    let (mut i, mut j) = (0, 0);
    while merged.records.len() < step.at_most {
        let order = match (i < short.len(), long.keys.get(j)) {
            (false, None) => break,
            // Further long keys may precede the next short one.
            (true, None) if !long.is_all => break,
            (true, None) => Ordering::Less,
            (false, Some(_)) => Ordering::Greater,
            (true, Some(long)) => {
                let order = short.record(i).key.cmp(&long.key);
                match step.direction {
                    Direction::Forward => order,
                    Direction::Reverse => order.reverse(),
                }
            }
        };
        if order.is_lt() {
            let record = short.record(i);
            merged.push(record.key, record.meta, short.value(i));
            i += 1;
        } else {
            let Long { key, meta, value } = &long.keys[j];
            merged.push(key, *meta, value.clone());
            j += 1;
        }
    }
    let is_through = i == short.len() && j == long.keys.len() && long.is_all;
    let Merged {
        bytes,
        records,
        large,
    } = merged;
    let mut scan = LeafScan {
        bytes: bytes.into(),
        records,
        large,
        ..short
    };
    if !is_through {
        let last = scan.key(scan.len() - 1);
        (scan.next, scan.position) = (Some(Bound::Excluded(last)), None);
    }
    scan
}
