//! Approximate size of a range of keys, from a few descents.
//!
//! A descent assigns each leaf an interval of `0.0..1.0`: the root is the whole, and each inner
//! node divides its interval evenly among its children. So a position in the tree is a number, a
//! random number leads to a leaf, and the probability of reaching a leaf is the width of its
//! interval. The records of a sampled leaf, divided by that width, estimate the records of the
//! whole tree without bias (Horvitz and Thompson 1952), however uneven the fan-out. The two leaves
//! in which the range ends are counted exactly, so a range within them is not estimated at all.

use std::cell::Cell;
use std::ops::Bound;

use braid_rt::thread::Backoff;
use braid_rt::to_usize;

use super::layers::{self, Bounds, Layers};
use super::position::child_towards;
use super::scan::Direction;
use super::{Tree, Way};
use crate::buffer_pool::ReadPage;
use crate::error::StoreError;
use crate::node::Node;
use crate::page::{PageId, WORDS};

/// Leaves that are sampled between the two ends of a range.
const SAMPLES: u32 = 8;

/// Leaves that are sampled in a whole tree.
const STATS_SAMPLES: u32 = 64;

/// Levels up to which a tree's size is counted, not sampled: it then has a few hundred leaves at
/// most.
const COUNTED_LEVELS: u32 = 2;

/// Converts an estimate to a whole number: zero for a NaN or negative value, the maximum for a
/// value that exceeds it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast of a float saturates, and an estimate has no better answer"
)]
fn rounded(estimate: f64) -> u64 {
    estimate as u64
}

/// Approximate number of entries in a range of keys, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimate {
    /// Entries.
    pub entries: u64,
    /// Bytes of the keys and of the values as they are stored.
    pub bytes: u64,
}

/// The size and the shape of a tree; see [`Tree::stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TreeStats {
    /// Entries.
    pub entries: u64,
    /// Bytes of the keys and of the values as they are stored.
    pub bytes: u64,
    /// Levels, from the root to the leaves: 1 where the root is a leaf.
    pub height: u32,
    /// Leaf pages.
    pub leaf_pages: u64,
    /// The part of the leaf pages that holds data, from 0 to 1.
    pub fill: f64,
    /// Whether all leaves were counted. Otherwise everything but the height is an estimate.
    pub exact: bool,
}

/// Entries and bytes of a leaf, or of a part of one.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    entries: u64,
    bytes: u64,
}

impl Count {
    /// Counts the records of a part of a leaf. In a tree of layers, each key has one record; a link
    /// adds only bytes.
    fn of(node: Node<'_>, from: usize, to: usize, is_of_layers: bool) -> Self {
        let mut count = Self::default();
        for i in from..to.min(node.len()) {
            let record = node.leaf_record(i);
            let key_len = node.prefix_len() + record.suffix_len;
            if !record.is_tombstone() {
                count.entries += u64::from(!(is_of_layers && layers::is_no_record(key_len)));
                count.bytes += (key_len + record.value_len) as u64;
            }
        }
        count
    }
}

/// The part of the tree that a leaf covers.
#[derive(Clone, Copy, Debug)]
struct Interval {
    start: f64,
    width: f64,
    /// Levels above.
    depth: u32,
}

impl Interval {
    const WHOLE: Self = Self {
        start: 0.0,
        width: 1.0,
        depth: 0,
    };

    fn child(self, child: usize, children: usize) -> Self {
        let width = self.width / children as f64;
        Self {
            start: self.start + child as f64 * width,
            width,
            depth: self.depth + 1,
        }
    }

    fn end(self) -> f64 {
        self.start + self.width
    }
}

/// A leaf that a descent reached.
struct Visited {
    leaf: PageId,
    interval: Interval,
    /// The counts of the part that `part` selected.
    part: Count,
    whole: Count,
    used_words: usize,
    upper_fence: Option<Vec<u8>>,
}

/// Sums over leaves, or estimates of them.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    entries: f64,
    bytes: f64,
    leaves: f64,
    used_words: f64,
}

impl Sum {
    /// Adds a leaf that represents `weight` leaves.
    fn add(&mut self, leaf: &Visited, weight: f64) {
        self.entries += leaf.whole.entries as f64 * weight;
        self.bytes += leaf.whole.bytes as f64 * weight;
        self.leaves += weight;
        self.used_words += leaf.used_words as f64 * weight;
    }

    fn stats(self, height: u32, exact: bool) -> TreeStats {
        TreeStats {
            entries: rounded(self.entries),
            bytes: rounded(self.bytes),
            height,
            leaf_pages: rounded(self.leaves),
            fill: self.used_words / (self.leaves * WORDS as f64),
            exact,
        }
    }
}

/// A way down that chooses a child by the node, and records the interval of the leaf.
struct Chosen<'c, F> {
    choose: F,
    interval: &'c Cell<Interval>,
}

impl<'a, F: Fn(Node<'a>, Interval) -> usize> Way<'a> for Chosen<'_, F> {
    fn child(&self, _: ReadPage<'a>, node: Node<'a>) -> PageId {
        let interval = self.interval.get();
        let child = (self.choose)(node, interval).min(node.len());
        self.interval.set(interval.child(child, node.len() + 1));
        node.child_at(child)
    }
}

impl Tree {
    /// Estimates the records in a range, tombstones excluded. Exact for a range within two
    /// neighbouring leaves, unless it has keys longer than [`SHORT_KEY_MAX`](crate::SHORT_KEY_MAX).
    ///
    /// # Errors
    /// What reading pages can fail with.
    pub fn estimate(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<Estimate, StoreError> {
        if is_empty(lower, upper) {
            return Ok(Estimate::default());
        }
        let short = self.estimate_own(lower, upper)?;
        let long = match self.layers() {
            Some(layers) => layers.estimate(lower, upper)?,
            None => Estimate::default(),
        };
        Ok(Estimate {
            entries: short.entries + long.entries,
            bytes: short.bytes + long.bytes,
        })
    }

    /// Estimates the records in a range of the tree's own pages.
    fn estimate_own(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<Estimate, StoreError> {
        let first = self.visit(
            |node, _| child_towards(node, lower, Direction::Forward),
            |node| (first_in(node, lower), node.len()),
        )?;
        let last = self.visit(
            |node, _| child_towards(node, upper, Direction::Reverse),
            |node| (0, after_last_in(node, upper)),
        )?;
        let sum = |of: fn(&Count) -> u64| of(&first.part) + of(&last.part);
        let (entries, bytes) = (sum(|count| count.entries), sum(|count| count.bytes));
        if first.leaf == last.leaf && !braid_rt::mutant!("estimate_a_leaf_twice") {
            // Both parts together cover the leaf, with the records in the range counted twice.
            return Ok(Estimate {
                entries: entries.saturating_sub(first.whole.entries),
                bytes: bytes.saturating_sub(first.whole.bytes),
            });
        }
        let between = self.sample(SAMPLES, first.interval.end(), last.interval.start)?;
        Ok(Estimate {
            entries: entries + rounded(between.entries),
            bytes: bytes + rounded(between.bytes),
        })
    }

    /// The size and the shape of the tree, tombstones excluded. Reads 64 leaves of a tree of three
    /// or more levels, and all of a smaller one; with `exact`, it always reads all. While the tree
    /// changes, each leaf counts as it is when it is read.
    ///
    /// # Errors
    /// What reading pages can fail with.
    pub fn stats(&self, exact: bool) -> Result<TreeStats, StoreError> {
        let mut stats = self.own_stats(exact)?;
        if let Some(layers) = self.layers() {
            // Keys that are too long for the tree's own pages.
            let long = layers.0.own_stats(exact)?;
            let leaf_pages = stats.leaf_pages + long.leaf_pages;
            let used = stats.fill * stats.leaf_pages as f64 + long.fill * long.leaf_pages as f64;
            stats = TreeStats {
                entries: stats.entries + long.entries,
                bytes: stats.bytes + long.bytes,
                height: stats.height.max(long.height),
                leaf_pages,
                fill: used / leaf_pages as f64,
                exact: stats.exact && long.exact,
            };
        }
        Ok(stats)
    }

    /// [`Tree::stats`] of the tree's own pages.
    fn own_stats(&self, exact: bool) -> Result<TreeStats, StoreError> {
        let mut leaf = self.visit(|_, _| 0, |_| (0, 0))?;
        let height = leaf.interval.depth + 1;
        if !exact && height > COUNTED_LEVELS {
            let sum = self.sample(STATS_SAMPLES, 0.0, 1.0)?;
            return Ok(sum.stats(height, false));
        }
        let mut sum = Sum::default();
        loop {
            sum.add(&leaf, 1.0);
            let Some(next) = leaf.upper_fence else {
                return Ok(sum.stats(height, true));
            };
            let bound = Bound::Included(&next[..]);
            let towards = |node: Node<'_>, _| child_towards(node, bound, Direction::Forward);
            leaf = self.visit(towards, |_| (0, 0))?;
        }
    }

    /// Estimates all leaves whose intervals begin in `start..end` from at most `samples` of them.
    fn sample(&self, samples: u32, start: f64, end: f64) -> Result<Sum, StoreError> {
        let step = (end - start) / f64::from(samples);
        let mut sum = Sum::default();
        for i in 0..samples {
            let at = start + (f64::from(i) + 0.5) * step;
            // Neighbouring leaves share an end up to rounding.
            if step < f64::EPSILON || at >= end {
                break;
            }
            let sampled = self.visit(
                |node, interval| {
                    let children = (node.len() + 1) as f64;
                    to_usize(rounded((at - interval.start) / interval.width * children))
                },
                |_| (0, 0),
            )?;
            sum.add(&sampled, step / sampled.interval.width);
        }
        Ok(sum)
    }

    /// Goes down to a leaf and counts the records of a part of it, and all of them.
    fn visit(
        &self,
        choose: impl Fn(Node<'_>, Interval) -> usize,
        part: impl Fn(Node<'_>) -> (usize, usize),
    ) -> Result<Visited, StoreError> {
        let interval = Cell::new(Interval::WHOLE);
        let way = Chosen {
            choose: &choose,
            interval: &interval,
        };
        let mut backoff = Backoff::default();
        loop {
            interval.set(Interval::WHOLE);
            if let Some(leaf) = self.try_descend(&way)? {
                let node = Node(leaf.page());
                let (from, to) = part(node);
                let visited = Visited {
                    leaf: leaf.id,
                    interval: interval.get(),
                    part: Count::of(node, from, to, self.long.is_none()),
                    whole: Count::of(node, 0, node.len(), self.long.is_none()),
                    used_words: node.used_words(),
                    upper_fence: node.upper_fence(),
                };
                if leaf.validate() {
                    return Ok(visited);
                }
            }
            backoff.wait();
        }
    }
}

impl Layers {
    /// Estimates the long keys in a range: as many of all as the range has of the tree's bytes
    /// below the layer where its bounds part.
    fn estimate(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Result<Estimate, StoreError> {
        let part = |layer, range: Bounds<'_>| {
            let (lower, upper) = layers::entries(layer, range);
            let (lower, upper) = (
                lower.as_ref().map(|key| &key[..]),
                upper.as_ref().map(|key| &key[..]),
            );
            if is_empty(lower, upper) {
                Ok(Estimate::default())
            } else {
                self.0.estimate_own(lower, upper)
            }
        };
        let (layer, range) = self.common_layer((lower, upper))?;
        let own = part(layer, range)?;
        let whole = part(layer, (Bound::Unbounded, Bound::Unbounded))?;
        let all = self.0.estimate_own(Bound::Unbounded, Bound::Unbounded)?;
        // Layers have no order among each other, so those below this one can't be told from others:
        // in the first layer all are below, in another one at least the records that it holds
        // itself.
        let below = if layer == layers::FIRST {
            all.entries.saturating_sub(whole.entries)
        } else {
            0
        };
        let share = own.bytes as f64 / whole.bytes.max(1) as f64;
        Ok(Estimate {
            entries: own.entries + rounded((below as f64 * share).round()),
            bytes: if layer == layers::FIRST {
                rounded(all.bytes as f64 * share)
            } else {
                own.bytes
            },
        })
    }
}

/// The position of the first record of a leaf that a lower bound admits.
fn first_in(node: Node<'_>, lower: Bound<&[u8]>) -> usize {
    match lower {
        Bound::Unbounded => 0,
        Bound::Included(key) => node.search(key).unwrap_or_else(|above| above),
        Bound::Excluded(key) => node.search(key).map_or_else(|above| above, |at| at + 1),
    }
}

/// The position after the last record of a leaf that an upper bound admits.
fn after_last_in(node: Node<'_>, upper: Bound<&[u8]>) -> usize {
    match upper {
        Bound::Unbounded => node.len(),
        Bound::Included(key) => node.search(key).map_or_else(|above| above, |at| at + 1),
        Bound::Excluded(key) => node.search(key).unwrap_or_else(|above| above),
    }
}

/// Whether no key is in a range.
fn is_empty(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (
            Bound::Included(lower) | Bound::Excluded(lower),
            Bound::Included(upper) | Bound::Excluded(upper),
        ) => lower >= upper,
    }
}
