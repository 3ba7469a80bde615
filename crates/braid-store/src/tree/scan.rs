//! Scans of a range, one leaf or a part of one at a time.
//!
//! The scanned records of a leaf are copied once, into one buffer; records are slices of it.

use std::cmp::Ordering;
use std::ops::{Bound, Range};

use braid_rt::narrow;
use braid_rt::thread::Backoff;
use bytes::Bytes;

use super::position::{Ahead, Position, Reached};
use super::{RecordMeta, Stamp, Tree, astray, meta_of};
use crate::error::StoreError;
use crate::node::{LeafRecord, Node};
use crate::page::{PAGE_SIZE, PageId};

/// Bytes of values outside of the leaf after which a step of a scan reads no further ones.
const LARGE_BYTES_MAX: usize = 1 << 18;

/// The order of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// By ascending keys.
    Forward,
    /// By descending keys.
    Reverse,
}

impl Direction {
    pub(super) fn opposite(self) -> Self {
        match self {
            Direction::Forward => Direction::Reverse,
            Direction::Reverse => Direction::Forward,
        }
    }
}

/// One record of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Version and kind.
    pub meta: RecordMeta,
    /// The value; empty for a tombstone.
    pub value: &'a [u8],
}

/// A leaf's part of a range, or the first of it; see [`Tree::scan_leaf`].
#[derive(Clone, Debug)]
pub struct LeafScan {
    /// The keys and values of the records.
    pub(super) bytes: Bytes,
    pub(super) records: Vec<Extent>,
    /// The values that are not in `bytes`, in the order of their records.
    pub(super) large: Vec<Bytes>,
    /// The leaf, for [`Tree::is_current`].
    pub stamp: Stamp,
    /// The bound at which the scan continues: the lower bound of a forward scan, the upper bound of
    /// a reverse one. `None` if the range is exhausted.
    pub next: Option<Bound<Bytes>>,
    /// The position of that bound in the tree, if it is known.
    pub position: Option<Position>,
}

/// A record in a [`LeafScan`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) meta: RecordMeta,
    pub(super) key: (u32, u32),
    pub(super) value: (u32, u32),
    /// The index of its value among the large ones.
    pub(super) large: Option<u32>,
}

impl Extent {
    fn key(&self) -> Range<usize> {
        self.key.0 as usize..self.key.1 as usize
    }

    fn value(&self) -> Range<usize> {
        self.value.0 as usize..self.value.1 as usize
    }
}

impl LeafScan {
    /// The number of records, tombstones included.
    #[inline]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The records in the scan's order, tombstones included.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.records.iter().map(|extent| self.at(extent))
    }

    /// The record at a position in the scan's order.
    ///
    /// # Panics
    /// If `i` is not less than [`LeafScan::len`]; this also applies to the other functions with a
    /// position.
    #[inline]
    pub fn record(&self, i: usize) -> Record<'_> {
        self.at(&self.records[i])
    }

    #[inline]
    fn at(&self, extent: &Extent) -> Record<'_> {
        let value = match extent.large {
            Some(i) => &self.large[i as usize],
            None => &self.bytes[extent.value()],
        };
        Record {
            key: &self.bytes[extent.key()],
            meta: extent.meta,
            value,
        }
    }

    /// The key of the record at a position. It shares the memory of all records.
    #[inline]
    pub fn key(&self, i: usize) -> Bytes {
        self.bytes.slice(self.records[i].key())
    }

    /// The value of the record at a position. It shares the memory of all records, unless it is a
    /// large one.
    #[inline]
    pub fn value(&self, i: usize) -> Bytes {
        let extent = &self.records[i];
        match extent.large {
            Some(i) => self.large[i as usize].clone(),
            None => self.bytes.slice(extent.value()),
        }
    }
}

/// A record whose value is in its own pages.
struct Large {
    /// Its position in the scan's order.
    position: usize,
    record: LeafRecord,
}

/// The copy of a leaf that may have been changing.
#[derive(Default)]
struct Copied {
    bytes: Vec<u8>,
    records: Vec<Extent>,
    large: Vec<Large>,
}

impl Copied {
    /// Copies the first records of a part of a leaf, in the scan's direction. Returns `None` if
    /// they exceed the page. Between records it prefetches the next leaf, a part at a time: the
    /// processor drops prefetches beyond those that it can keep in flight.
    #[inline(never)]
    fn read(
        node: Node<'_>,
        part: &Range<usize>,
        direction: Direction,
        at_most: usize,
        mut ahead: Option<Ahead<'_>>,
    ) -> Option<Self> {
        let count = part.len().min(at_most);
        // The average record size of this leaf, and the whole last word.
        let size = PAGE_SIZE / node.len().max(1) + node.prefix_len().min(PAGE_SIZE);
        let mut copied = Self {
            bytes: Vec::with_capacity(count * size + 8),
            records: Vec::with_capacity(count),
            large: Vec::new(),
        };
        let mut large_bytes = 0;
        let (mut i, step) = match direction {
            Direction::Forward => (part.start, 1),
            Direction::Reverse => (part.end.wrapping_sub(1), usize::MAX),
        };
        for position in 0..count {
            if large_bytes >= LARGE_BYTES_MAX {
                break;
            }
            if let Some(ahead) = &mut ahead {
                ahead.prefetch();
            }
            let record = node.leaf_record(i);
            i = i.wrapping_add(step);
            let large = record.is_overflow().then(|| {
                large_bytes += record.value_len;
                copied.large.push(Large { position, record });
                narrow::<u32>(copied.large.len()) - 1
            });
            let (key, value) = node.append_record(&record, &mut copied.bytes)?;
            copied.records.push(Extent {
                meta: meta_of(&record),
                key: (narrow(key.start), narrow(key.end)),
                value: (narrow(value.start), narrow(value.end)),
                large,
            });
        }
        Some(copied)
    }
}

/// The request of one step of a scan.
pub(super) struct Step<'a> {
    pub(super) from: Bound<&'a [u8]>,
    pub(super) to: Bound<&'a [u8]>,
    pub(super) direction: Direction,
    pub(super) at_most: usize,
}

impl Step<'_> {
    /// Whether the step begins in this leaf: a step that a damaged node leads to the wrong leaf
    /// would make no progress.
    fn begins_in(&self, node: Node<'_>) -> bool {
        match (self.from, self.direction) {
            (Bound::Unbounded, Direction::Forward) => node.compare_lower(&[]).is_none(),
            (Bound::Unbounded, Direction::Reverse) => node.compare_upper(&[]).is_none(),
            (Bound::Excluded(key), Direction::Reverse) => {
                node.compare_lower(key).is_none_or(Ordering::is_lt)
            }
            (Bound::Included(key) | Bound::Excluded(key), _) => {
                node.compare_lower(key).is_none_or(Ordering::is_le)
                    && node.compare_upper(key).is_none_or(Ordering::is_gt)
            }
        }
    }

    /// The slots of a leaf in the range.
    fn part_of(&self, node: Node<'_>) -> Range<usize> {
        match self.direction {
            Direction::Forward => between(node, self.from, self.to),
            Direction::Reverse => between(node, self.to, self.from),
        }
    }

    /// The slots of a part that the step reads if their values are not very large.
    fn first_of(&self, part: &Range<usize>) -> Range<usize> {
        let count = part.len().min(self.at_most);
        match self.direction {
            Direction::Forward => part.start..part.start + count,
            Direction::Reverse => part.end - count..part.end,
        }
    }

    /// The bound at which a scan continues after a leaf, if its range extends that far.
    fn after(&self, node: Node<'_>) -> Option<Bound<Bytes>> {
        match self.direction {
            Direction::Forward => {
                let continues = match self.to {
                    Bound::Unbounded => true,
                    Bound::Included(to) => node.compare_upper(to).is_some_and(Ordering::is_le),
                    Bound::Excluded(to) => node.compare_upper(to).is_some_and(Ordering::is_lt),
                };
                let fence = continues.then(|| node.upper_fence()).flatten()?;
                Some(Bound::Included(fence.into()))
            }
            Direction::Reverse => {
                let continues = match self.to {
                    Bound::Unbounded => true,
                    Bound::Included(to) | Bound::Excluded(to) => {
                        node.compare_lower(to).is_some_and(Ordering::is_gt)
                    }
                };
                let fence = continues.then(|| node.lower_fence()).flatten()?;
                Some(Bound::Excluded(fence.into()))
            }
        }
    }
}

/// The slots of a leaf that lie between two bounds. A bound outside of the leaf does not share its
/// prefix, and excludes no slot.
fn between(node: Node<'_>, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Range<usize> {
    let position = |key: &[u8], after_equal: bool| match node.search(key) {
        Ok(i) => i + usize::from(after_equal),
        Err(i) => i,
    };
    let is_outside_lower = |key| node.compare_lower(key).is_some_and(Ordering::is_gt);
    let is_outside_upper = |key| node.compare_upper(key).is_some_and(Ordering::is_le);
    let start = match lower {
        Bound::Unbounded => 0,
        Bound::Included(key) | Bound::Excluded(key) if is_outside_lower(key) => 0,
        Bound::Included(key) => position(key, false),
        Bound::Excluded(key) => position(key, true),
    };
    let end = match upper {
        Bound::Unbounded => node.len(),
        Bound::Included(key) | Bound::Excluded(key) if is_outside_upper(key) => node.len(),
        Bound::Included(key) => position(key, true),
        Bound::Excluded(key) => position(key, false),
    };
    start..end.max(start)
}

/// The key and version of a record because of which a leaf must be read again.
type Replaced = Option<(Bytes, u64)>;

impl Tree {
    /// Reads at most `at_most` records of one leaf's part of a range, long keys included, from one
    /// end: forward from `from` (a lower bound) to `to` (an upper bound), in reverse from `from`
    /// (an upper bound) to `to` (a lower bound). Reads fewer if their values are very large, but at
    /// least one.
    ///
    /// `near` saves the descent if this step continues an earlier step of this tree: it is the
    /// earlier step's [`LeafScan::position`], `from` is its [`LeafScan::next`], and the direction
    /// is the same.
    ///
    /// # Errors
    /// What reading pages can fail with.
    pub fn scan_leaf(
        &self,
        mut near: Option<Position>,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
        at_most: usize,
    ) -> Result<LeafScan, StoreError> {
        let step = Step {
            from,
            to,
            direction,
            at_most: at_most.max(1),
        };
        let mut backoff = Backoff::default();
        let mut replaced = None;
        loop {
            let reached = match near.take() {
                Some(position) => self
                    .try_reach_near(position)
                    .map_err(|error| self.with_next_leaves(error, position, &step))?,
                None => self.try_reach(from, direction)?,
            };
            if let Some(reached) = reached
                && let Some(scan) = self.try_scan_leaf(reached, &step, &mut replaced)?
            {
                // After the leaf was read: inserting the first long key in its range changes it.
                return match self.layers() {
                    Some(layers) => Self::with_long_keys(layers, scan, &step),
                    None => Ok(scan),
                };
            }
            backoff.wait();
        }
    }

    fn try_scan_leaf(
        &self,
        Reached {
            leaf,
            branch,
            is_near,
        }: Reached<'_>,
        step: &Step<'_>,
        replaced: &mut Replaced,
    ) -> Result<Option<LeafScan>, StoreError> {
        let node = Node(leaf.page());
        let begins_here = step.begins_in(node);
        let part = step.part_of(node);
        let is_whole = part.len() <= step.at_most;
        let after = is_whole.then(|| step.after(node)).flatten();
        let next = branch.and_then(|branch| branch.next(step.direction));
        // A caller that requests more records than the leaf has will also request the next leaf.
        let ahead = match next {
            Some(next) if part.len() < step.at_most && after.is_some() => {
                self.ahead(next, node, part.len())
            }
            _ => None,
        };
        // Also if the previous step prefetched it already: the processor drops some prefetches.
        node.prefetch_records(step.first_of(&part));
        let copied = Copied::read(node, &part, step.direction, step.at_most, ahead);
        // From here on, the copied bytes are consistent.
        if !leaf.validate() {
            return Ok(None);
        }
        match begins_here {
            true => {}
            false if is_near => return Ok(None),
            false => return Err(astray(&self.pool, leaf.id)),
        }
        let what = "a record extends past its page";
        let copied = copied.ok_or_else(|| self.pool.damaged_page(leaf.id, what))?;
        let Copied {
            bytes,
            records,
            large,
        } = copied;
        let is_all = records.len() == part.len();
        let mut scan = LeafScan {
            bytes: bytes.into(),
            records,
            large: Vec::new(),
            stamp: Stamp::of(&leaf),
            next: after,
            position: next.map(|branch| self.position(branch)),
        };
        if let (false, Some(last)) = (is_all, scan.len().checked_sub(1)) {
            scan.next = Some(Bound::Excluded(scan.key(last)));
            scan.position = branch.map(|branch| self.position(branch));
        }
        if large.is_empty() || self.read_large(&mut scan, &large, leaf.id, replaced)? {
            Ok(Some(scan))
        } else {
            Ok(None)
        }
    }

    /// Reads the large values of a leaf. Returns `false` if one was replaced since the leaf was
    /// read.
    #[cold]
    fn read_large(
        &self,
        scan: &mut LeafScan,
        large: &[Large],
        leaf: PageId,
        replaced: &mut Replaced,
    ) -> Result<bool, StoreError> {
        for Large { position, record } in large {
            let extent = scan.records[*position];
            let key = scan.bytes.slice(extent.key());
            let reference = scan.bytes.slice(extent.value());
            let Some(value) = self.read_overflow(&key, record, &reference)? else {
                // A record that is still in this leaf, although its key leads elsewhere, is in the
                // wrong leaf.
                let again = Some((key, record.version));
                if *replaced == again {
                    return Err(astray(&self.pool, leaf));
                }
                *replaced = again;
                return Ok(false);
            };
            scan.large.push(value);
        }
        Ok(true)
    }
}
