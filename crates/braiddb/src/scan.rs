//! Range scans from both ends: the tree's records as a view sees them, merged with own writes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use braid_store::{Direction, LeafScan, Record, Stamp};

use crate::context::{Context, Fingerprint, OwnWrite, RangeRead, hash_key, in_bounds};
use crate::database::Inner;
use crate::error::Result;
use crate::table::{Table, TableCore};
use crate::types::{Key, Value};

/// Which versions a reader sees.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View {
    /// The newest of each key.
    Latest,
    /// The newest of each key up to this commit number.
    At(u64),
}

fn as_slices(bound: &Bound<Bytes>) -> Bound<&[u8]> {
    bound.as_ref().map(|b| &b[..])
}

/// The bound on the other side of the same point.
fn complement(bound: &Bound<Bytes>) -> Bound<Bytes> {
    match bound {
        Bound::Included(key) => Bound::Excluded(key.clone()),
        Bound::Excluded(key) => Bound::Included(key.clone()),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// The leaf that one end of a scan is in.
#[derive(Debug)]
struct Leaf {
    records: std::vec::IntoIter<Record>,
    /// Where the leaf's part of the range ends, as seen from where the scan entered it.
    entered: Bound<Bytes>,
    far_end: Bound<Bytes>,
    stamp: Stamp,
    fingerprint: Fingerprint,
    newest: u64,
}

/// One end of a scan over the tree.
#[derive(Debug)]
struct End {
    /// Where to enter the next leaf; `None` when the range is exhausted.
    next: Option<Bound<Bytes>>,
    leaf: Option<Leaf>,
    peeked: Option<Record>,
    /// The two ends have met.
    met: bool,
}

/// A scan of raw bytes; [`Range`] puts the types on.
pub(crate) struct RawRange<'a> {
    inner: &'a Inner,
    table: Arc<TableCore>,
    view: View,
    /// For entries that have a time.
    now: u64,
    /// Where reads are recorded for validation, and the context's index of the table.
    tracked: Option<(&'a RefCell<Box<Context>>, u32)>,
    lower: Bound<Bytes>,
    upper: Bound<Bytes>,
    own: VecDeque<OwnWrite>,
    front: End,
    back: End,
    failed: bool,
}

impl<'a> RawRange<'a> {
    pub(crate) fn new(
        inner: &'a Inner,
        table: Arc<TableCore>,
        view: View,
        now: u64,
        bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
        own: Vec<OwnWrite>,
        tracked: Option<(&'a RefCell<Box<Context>>, u32)>,
    ) -> Self {
        let lower = bounds.0.map(Bytes::from);
        let upper = bounds.1.map(Bytes::from);
        // Before there was a table, only own writes are seen.
        let no_table = matches!(view, View::At(number) if number < table.since);
        let end = |next: &Bound<Bytes>| End {
            next: (!no_table).then(|| next.clone()),
            leaf: None,
            peeked: None,
            met: false,
        };
        let front = end(&lower);
        let back = end(&upper);
        let empty = is_empty_range(as_slices(&lower), as_slices(&upper));
        let own = own.into();
        Self {
            inner,
            table,
            view,
            now,
            tracked,
            lower,
            upper,
            own,
            front,
            back,
            failed: empty,
        }
    }

    fn step(&mut self, direction: Direction) -> Result<Option<(Bytes, Bytes)>> {
        loop {
            self.peek(direction)?;
            let end = match direction {
                Direction::Forward => &mut self.front,
                Direction::Reverse => &mut self.back,
            };
            let own = match direction {
                Direction::Forward => self.own.front(),
                Direction::Reverse => self.own.back(),
            };
            let peeked = end.peeked.as_ref().filter(|_| !end.met);
            let (take_tree, take_own) = match (peeked, own) {
                (None, None) => return Ok(None),
                (Some(_), None) => (true, false),
                (None, Some(_)) => (false, true),
                (Some(record), Some(own)) => {
                    let order = match direction {
                        Direction::Forward => record.key.cmp(&own.key),
                        Direction::Reverse => own.key.cmp(&record.key),
                    };
                    (order.is_le(), order.is_ge())
                }
            };
            let record = if take_tree { end.peeked.take() } else { None };
            let own = match (take_own, direction) {
                (false, _) => None,
                (true, Direction::Forward) => self.own.pop_front(),
                (true, Direction::Reverse) => self.own.pop_back(),
            };
            let (key, value) = match (record, own) {
                (_, Some(own)) => (own.key, own.value),
                (Some(record), None) => (record.key, Some(record.value)),
                (None, None) => return Ok(None),
            };
            match direction {
                Direction::Forward => self.lower = Bound::Excluded(key.clone()),
                Direction::Reverse => self.upper = Bound::Excluded(key.clone()),
            }
            if let Some(value) = self.table.open(value, || self.now)? {
                return Ok(Some((key, value)));
            }
        }
    }

    /// Brings the next visible record of one end to its `peeked`, if there is one in the bounds.
    fn peek(&mut self, direction: Direction) -> Result<()> {
        loop {
            let end = match direction {
                Direction::Forward => &mut self.front,
                Direction::Reverse => &mut self.back,
            };
            if let Some(record) = &end.peeked {
                // The other end may have come past it meanwhile.
                if in_bounds(&record.key, as_slices(&self.lower), as_slices(&self.upper)) {
                    return Ok(());
                }
                end.met = true;
                return Ok(());
            }
            if let Some(leaf) = &mut end.leaf {
                if let Some(record) = leaf.records.next() {
                    leaf.newest = leaf.newest.max(record.meta.version);
                    if !record.meta.tombstone {
                        leaf.fingerprint.add(&record.key, record.meta.version);
                    }
                    let view = self.view;
                    if let Some(record) = visible(self.inner, &self.table, view, record) {
                        end.peeked = Some(record);
                    }
                    continue;
                }
                let leaf = end.leaf.take();
                self.record_read(direction, leaf, None);
                continue;
            }
            let Some(entered) = end.next.take() else {
                return Ok(());
            };
            let (from, to) = match direction {
                Direction::Forward => (as_slices(&entered), as_slices(&self.upper)),
                Direction::Reverse => (as_slices(&entered), as_slices(&self.lower)),
            };
            let scanned: LeafScan = self.table.tree.scan_leaf(from, to, direction)?;
            let far_end = match (&scanned.next, direction) {
                (Some(next), _) => complement(next),
                (None, Direction::Forward) => self.upper.clone(),
                (None, Direction::Reverse) => self.lower.clone(),
            };
            end.next = scanned.next;
            end.leaf = Some(Leaf {
                records: scanned.records.into_iter(),
                entered,
                far_end,
                stamp: scanned.stamp,
                fingerprint: Fingerprint::default(),
                newest: 0,
            });
        }
    }

    /// Notes what was read of a leaf, up to `stopped_at` or its far end.
    fn record_read(
        &self,
        direction: Direction,
        leaf: Option<Leaf>,
        stopped_at: Option<Bound<Bytes>>,
    ) {
        let (Some((context, table)), Some(leaf)) = (self.tracked, leaf) else {
            return;
        };
        let far = stopped_at.unwrap_or(leaf.far_end);
        let (lower, upper) = match direction {
            Direction::Forward => (leaf.entered, far),
            Direction::Reverse => (far, leaf.entered),
        };
        let reads = &mut context.borrow_mut().reads;
        reads.newest = reads.newest.max(leaf.newest);
        reads.ranges.push(RangeRead {
            table,
            lower,
            upper,
            stamp: leaf.stamp,
            fingerprint: leaf.fingerprint,
        });
    }

    pub(crate) fn next_raw(&mut self, direction: Direction) -> Option<Result<(Bytes, Bytes)>> {
        if self.failed {
            return None;
        }
        match self.step(direction) {
            Ok(item) => item.map(Ok),
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

impl Drop for RawRange<'_> {
    fn drop(&mut self) {
        for direction in [Direction::Forward, Direction::Reverse] {
            let end = match direction {
                Direction::Forward => &mut self.front,
                Direction::Reverse => &mut self.back,
            };
            let Some(leaf) = end.leaf.take() else {
                continue;
            };
            // A record that was only looked at belongs to what was seen, and so does the gap before it.
            let seen_to = match (&end.peeked, direction) {
                (Some(record), _) => Bound::Included(record.key.clone()),
                // Everything that the iterator gave out, or skipped, lies before the present bound.
                (None, Direction::Forward) => complement(&self.lower),
                (None, Direction::Reverse) => complement(&self.upper),
            };
            let seen_to = match (seen_to, leaf.records.as_slice().is_empty()) {
                (_, true) => None,
                (bound, false) => Some(bound),
            };
            self.record_read(direction, Some(leaf), seen_to);
        }
    }
}

/// The version of a record that a view sees.
fn visible(inner: &Inner, table: &Arc<TableCore>, view: View, record: Record) -> Option<Record> {
    match view {
        View::At(snapshot) if record.meta.version > snapshot => {
            let stripe = inner.locks.stripe_of(hash_key(table.id, &record.key));
            let chain = inner.locks.versions(stripe).lock();
            let value = chain.get(table.id, &record.key, snapshot)?;
            let value = Bytes::copy_from_slice(value);
            Some(Record { value, ..record })
        }
        _ if record.meta.tombstone => {
            inner.note_tombstone(table, &record);
            None
        }
        _ => Some(record),
    }
}

fn is_empty_range(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
            a >= b
        }
    }
}

/// An iterator over a range of a table, from both ends; see [`crate::Readable::range`].
///
/// After an error it ends.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
/// # let t: braid::Table<u32, String> = db.table("t")?;
/// # use braid::Readable;
/// # db.transact(|tx| (0..9).try_for_each(|i| tx.insert(&t, &i, "x")))?;
/// let snapshot = db.snapshot();
/// let mut range = snapshot.range(&t, 2..7)?;
/// assert_eq!(range.next().transpose()?.map(|(key, _)| key), Some(2));
/// assert_eq!(range.next_back().transpose()?.map(|(key, _)| key), Some(6));
/// assert_eq!(range.count(), 3);
/// # Ok(())
/// # }
/// ```
pub struct Range<'a, K: Key, V: Value> {
    raw: RawRange<'a>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<'a, K: Key, V: Value> Range<'a, K, V> {
    pub(crate) fn new(raw: RawRange<'a>, _table: &Table<K, V>) -> Self {
        Self {
            raw,
            types: PhantomData,
        }
    }

    fn take(&mut self, direction: Direction) -> Option<Result<(K, V)>> {
        let item = self.raw.next_raw(direction)?;
        let typed = item
            .and_then(|(key, value)| Ok((K::from_key_bytes(key)?, V::from_value_bytes(value)?)));
        if typed.is_err() {
            self.raw.failed = true;
        }
        Some(typed)
    }
}

impl<K: Key, V: Value> Iterator for Range<'_, K, V> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.take(Direction::Forward)
    }
}

impl<K: Key, V: Value> DoubleEndedIterator for Range<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.take(Direction::Reverse)
    }
}

impl<K: Key, V: Value> std::iter::FusedIterator for Range<'_, K, V> {}

impl<K: Key, V: Value> std::fmt::Debug for Range<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Range")
            .field("table", &self.raw.table.name.read())
            .finish_non_exhaustive()
    }
}
