//! Range scans from both ends: the tree's records as a view sees them, merged with own writes.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use braid_rt::Mutex;
use braid_store::{Direction, LeafScan, Position, Record};

use crate::engine::Engine;
use crate::engine::context::{OwnWrite, in_bounds};
use crate::error::Result;
use crate::mvcc::range_reads::{Fingerprint, RangeReads};
use crate::schema::table::{Table, TableCore};
use crate::types::{Key, Value};

/// Records that the first step of an end reads at most; those that follow read more and more, so that a short
/// scan reads little and a long one all of a leaf at once.
const FIRST_BATCH: usize = 4;
const BATCH_GROWTH: usize = 4;

/// Which versions a reader sees.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View {
    /// The newest of each key.
    Latest,
    /// The newest of each key up to this sequence number.
    At(u64),
}

fn as_slices<T: AsRef<[u8]>>(bound: &Bound<T>) -> Bound<&[u8]> {
    bound.as_ref().map(T::as_ref)
}

/// The bound on the other side of the same point.
fn complement<T>(bound: Bound<T>) -> Bound<T> {
    match bound {
        Bound::Included(key) => Bound::Excluded(key),
        Bound::Excluded(key) => Bound::Included(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// Makes a bound the one behind a key.
fn move_behind(bound: &mut Bound<Vec<u8>>, key: &[u8]) {
    let mut bytes = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(bytes) | Bound::Excluded(bytes) => bytes,
        Bound::Unbounded => Vec::new(),
    };
    bytes.clear();
    bytes.extend_from_slice(key);
    *bound = Bound::Excluded(bytes);
}

/// The version of a record that a reader sees.
#[derive(Debug)]
enum Visible {
    /// The one in the tree.
    Newest,
    /// This old one.
    Old(Bytes),
}

/// Where the entry is that a step comes to.
#[derive(Clone, Copy)]
enum Found {
    /// A record of the end's leaf, by its position.
    InLeaf(usize),
    /// What the range has apart.
    Apart,
}

/// The part of a leaf that one end of a scan is in.
#[derive(Debug)]
struct Leaf {
    scan: LeafScan,
    /// The next record to look at.
    at: usize,
    /// What is seen of the record before that, if it was not given out yet.
    peeked: Option<Visible>,
    /// The last record that was given out, if nothing else was since.
    given: Option<usize>,
    read: Option<LeafRead>,
}

/// What is noted of a leaf's part, to be validated.
#[derive(Debug)]
struct LeafRead {
    /// Its place among what the transaction's scans read.
    place: usize,
    /// Where the scan entered it.
    entered: Bound<Bytes>,
    /// Where it ends, as seen from there.
    far_end: Bound<Bytes>,
    fingerprint: Fingerprint,
    newest: u64,
}

impl Leaf {
    /// The key of the record that waits to be given out.
    fn peeked_key(&self) -> Option<&[u8]> {
        self.peeked.as_ref()?;
        Some(self.scan.record(self.at - 1).key)
    }
}

/// Where an end of a scan enters its next leaf.
#[derive(Debug)]
enum Next {
    /// At the bound that the range has there.
    Bound,
    At(Bound<Bytes>, Option<Position>),
    /// The range is exhausted.
    Nowhere,
}

/// One end of a scan over the tree.
#[derive(Debug)]
struct End {
    next: Next,
    leaf: Option<Leaf>,
    /// The records to read of the next leaf at most.
    batch: usize,
    /// It gave something out.
    moved: bool,
    /// The two ends have met.
    met: bool,
}

impl End {
    /// The key of the record that waits to be given out.
    fn peeked_key(&self) -> Option<&[u8]> {
        let leaf = self.leaf.as_ref().filter(|_| !self.met);
        leaf.and_then(Leaf::peeked_key)
    }

    /// Where what it gave out ends. `range` is the range's bound there, which is only moved when the leaf is left.
    fn bound<'b>(&'b self, range: &'b Bound<Vec<u8>>) -> Bound<&'b [u8]> {
        let leaf = self.leaf.as_ref();
        match leaf.and_then(|leaf| Some(leaf.scan.record(leaf.given?))) {
            Some(record) => Bound::Excluded(record.key),
            None => as_slices(range),
        }
    }

    /// Gives out the record that waits for it, or lets it go: its position, and the value that is seen of it if that is
    /// not the tree's.
    #[inline]
    fn take(&mut self) -> Option<(usize, Option<Bytes>)> {
        if self.met {
            return None;
        }
        let leaf = self.leaf.as_mut()?;
        let peeked = leaf.peeked.take()?;
        let i = leaf.at - 1;
        leaf.given = Some(i);
        self.moved = true;
        Some(match peeked {
            Visible::Newest => (i, None),
            Visible::Old(value) => (i, Some(value)),
        })
    }
}

/// A scan of raw bytes; [`Range`] puts the types on.
pub(crate) struct RawRange<'a> {
    engine: &'a Engine,
    table: Arc<TableCore>,
    view: View,
    /// For entries that have a time.
    now: u64,
    /// Where reads are noted for validation, and the context's index of the table.
    tracked: Option<(&'a Mutex<RangeReads>, u32)>,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    own: VecDeque<OwnWrite>,
    front: End,
    back: End,
    /// What was given out in place, if it is not in a leaf.
    apart: (Bytes, Bytes),
    failed: bool,
}

impl<'a> RawRange<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        table: Arc<TableCore>,
        view: View,
        now: u64,
        (lower, upper): (Bound<Vec<u8>>, Bound<Vec<u8>>),
        own: Vec<OwnWrite>,
        tracked: Option<(&'a Mutex<RangeReads>, u32)>,
    ) -> Self {
        // Before there was a table, only own writes are seen.
        let no_table = matches!(view, View::At(seqno) if seqno < table.since);
        let end = || End {
            next: if no_table { Next::Nowhere } else { Next::Bound },
            leaf: None,
            batch: FIRST_BATCH,
            moved: false,
            met: false,
        };
        Self {
            engine,
            table,
            view,
            now,
            tracked,
            failed: is_empty_range(as_slices(&lower), as_slices(&upper)),
            lower,
            upper,
            own: own.into(),
            front: end(),
            back: end(),
            apart: (Bytes::new(), Bytes::new()),
        }
    }

    fn end(&mut self, direction: Direction) -> &mut End {
        match direction {
            Direction::Forward => &mut self.front,
            Direction::Reverse => &mut self.back,
        }
    }

    #[inline]
    fn step(&mut self, direction: Direction) -> Result<Option<Found>> {
        loop {
            self.peek(direction)?;
            let (end, own, bound) = match direction {
                Direction::Forward => (&mut self.front, self.own.front(), &mut self.lower),
                Direction::Reverse => (&mut self.back, self.own.back(), &mut self.upper),
            };
            let order = match own {
                None => Ordering::Less,
                Some(own) => match (end.peeked_key(), direction) {
                    (None, _) => Ordering::Greater,
                    (Some(key), Direction::Forward) => key.cmp(&own.key),
                    (Some(key), Direction::Reverse) => own.key[..].cmp(key),
                },
            };
            let (key, value) = if order.is_lt() {
                let Some((i, old)) = end.take() else {
                    return Ok(None);
                };
                if old.is_none() && self.table.value_format.is_none() {
                    return Ok(Some(Found::InLeaf(i)));
                }
                let Some(leaf) = &end.leaf else {
                    return Ok(None);
                };
                let value = old.unwrap_or_else(|| leaf.scan.value(i));
                (leaf.scan.key(i), Some(value))
            } else {
                // A write of the transaction's own takes the place of the record.
                if order.is_eq() {
                    end.take();
                }
                let own = match direction {
                    Direction::Forward => self.own.pop_front(),
                    Direction::Reverse => self.own.pop_back(),
                };
                let Some(own) = own else { return Ok(None) };
                if let Some(leaf) = &mut end.leaf {
                    leaf.given = None;
                }
                end.moved = true;
                move_behind(bound, &own.key);
                (own.key, own.value)
            };
            if let Some(value) = self.table.open(value, || self.now)? {
                self.apart = (key, value);
                return Ok(Some(Found::Apart));
            }
        }
    }

    /// Comes to the next visible record of one end, if there is one in the bounds.
    fn peek(&mut self, direction: Direction) -> Result<()> {
        loop {
            let (end, other) = match direction {
                Direction::Forward => (&mut self.front, &self.back),
                Direction::Reverse => (&mut self.back, &self.front),
            };
            let Some(leaf) = &mut end.leaf else {
                if self.enter(direction)? {
                    continue;
                } else {
                    return Ok(());
                }
            };
            if leaf.peeked.is_some() {
                // The other end may have come past it meanwhile.
                if other.moved
                    && let Some(key) = leaf.peeked_key()
                {
                    let is_left = match direction {
                        Direction::Forward => {
                            in_bounds(key, Bound::Unbounded, other.bound(&self.upper))
                        }
                        Direction::Reverse => {
                            in_bounds(key, other.bound(&self.lower), Bound::Unbounded)
                        }
                    };
                    end.met = !is_left;
                }
                return Ok(());
            }
            if leaf.at < leaf.scan.len() {
                let record = leaf.scan.record(leaf.at);
                leaf.at += 1;
                if let Some(read) = &mut leaf.read {
                    read.newest = read.newest.max(record.meta.version);
                    if !record.meta.tombstone {
                        read.fingerprint.add(record.key, record.meta.version);
                    }
                }
                leaf.peeked = visible(self.engine, &self.table, self.view, record)?;
                continue;
            }
            let bound = match direction {
                Direction::Forward => &mut self.lower,
                Direction::Reverse => &mut self.upper,
            };
            if let Some(i) = leaf.given {
                move_behind(bound, leaf.scan.record(i).key);
            }
            if let Some(leaf) = end.leaf.take() {
                self.note_read(direction, &leaf, None);
            }
        }
    }

    /// Brings one end into its next leaf, if there is one.
    fn enter(&mut self, direction: Direction) -> Result<bool> {
        self.engine.check_open()?;
        let next = std::mem::replace(&mut self.end(direction).next, Next::Nowhere);
        let (near, far) = match direction {
            Direction::Forward => (as_slices(&self.lower), self.back.bound(&self.upper)),
            Direction::Reverse => (as_slices(&self.upper), self.front.bound(&self.lower)),
        };
        let (from, position) = match &next {
            Next::Bound => (near, None),
            Next::At(bound, position) => (as_slices(bound), *position),
            Next::Nowhere => return Ok(false),
        };
        let batch = match direction {
            Direction::Forward => self.front.batch,
            Direction::Reverse => self.back.batch,
        };
        let tree = &self.table.tree;
        let scan = tree.scan_leaf(position, from, far, direction, batch)?;
        if let Some((reads, _)) = self.tracked {
            self.engine.check_shown(|| {
                let newest = scan.records().map(|record| record.meta.version).max();
                reads.lock().newest().max(newest.unwrap_or(0))
            })?;
        }
        let read = self.tracked.map(|(reads, table)| LeafRead {
            // From here on, and not only when the scan leaves the leaf: it may be forgotten in it.
            place: reads.lock().begin(table, scan.stamp),
            entered: match &next {
                Next::At(bound, _) => bound.clone(),
                _ => near.map(Bytes::copy_from_slice),
            },
            far_end: match &scan.next {
                Some(next) => complement(next.clone()),
                None => far.map(Bytes::copy_from_slice),
            },
            fingerprint: Fingerprint::default(),
            newest: 0,
        });
        let end = self.end(direction);
        if let Some(next) = &scan.next {
            end.next = Next::At(next.clone(), scan.position);
        }
        end.batch = batch.saturating_mul(BATCH_GROWTH);
        end.leaf = Some(Leaf {
            scan,
            at: 0,
            peeked: None,
            given: None,
            read,
        });
        Ok(true)
    }

    /// Notes what was read of a leaf, up to `stopped_at` or its far end.
    fn note_read(&self, direction: Direction, leaf: &Leaf, stopped_at: Option<Bound<&[u8]>>) {
        let (Some((reads, _)), Some(read)) = (self.tracked, &leaf.read) else {
            return;
        };
        let far = stopped_at.unwrap_or(as_slices(&read.far_end));
        let entered = as_slices(&read.entered);
        let bounds = match direction {
            Direction::Forward => (entered, far),
            Direction::Reverse => (far, entered),
        };
        reads
            .lock()
            .end(read.place, bounds, read.fingerprint, read.newest);
    }

    #[inline]
    fn next_found(&mut self, direction: Direction) -> Option<Result<Found>> {
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

    pub(crate) fn next_raw(&mut self, direction: Direction) -> Option<Result<(Bytes, Bytes)>> {
        match self.next_found(direction)? {
            Ok(Found::InLeaf(i)) => {
                let leaf = self.end(direction).leaf.as_ref()?;
                Some(Ok((leaf.scan.key(i), leaf.scan.value(i))))
            }
            Ok(Found::Apart) => Some(Ok(std::mem::take(&mut self.apart))),
            Err(error) => Some(Err(error)),
        }
    }

    /// The same, where it lies: until the next step, from either end.
    fn next_in_place(&mut self, direction: Direction) -> Option<Result<(&[u8], &[u8])>> {
        match self.next_found(direction)? {
            Ok(Found::InLeaf(i)) => {
                let record = self.end(direction).leaf.as_ref()?.scan.record(i);
                Some(Ok((record.key, record.value)))
            }
            Ok(Found::Apart) => Some(Ok((&self.apart.0, &self.apart.1))),
            Err(error) => Some(Err(error)),
        }
    }
}

impl Drop for RawRange<'_> {
    fn drop(&mut self) {
        if self.tracked.is_none() {
            return;
        }
        for direction in [Direction::Forward, Direction::Reverse] {
            let (end, bound) = match direction {
                Direction::Forward => (&self.front, &self.lower),
                Direction::Reverse => (&self.back, &self.upper),
            };
            let Some(leaf) = &end.leaf else { continue };
            // A record that was only looked at belongs to what was seen, and so does the gap before it.
            // Otherwise all that was given out, or skipped, lies before the end's bound.
            let seen_to = match leaf.peeked_key() {
                Some(key) => Bound::Included(key),
                None => complement(end.bound(bound)),
            };
            let is_through = leaf.at == leaf.scan.len();
            self.note_read(direction, leaf, (!is_through).then_some(seen_to));
        }
    }
}

/// What a view sees of a record.
fn visible(
    engine: &Engine,
    table: &Arc<TableCore>,
    view: View,
    record: Record<'_>,
) -> Result<Option<Visible>> {
    Ok(match view {
        View::At(snapshot) if record.meta.version > snapshot => {
            let value = engine.read_old(table, record.key, snapshot, |value| value.to_bytes())?;
            value.map(Visible::Old)
        }
        _ if record.meta.tombstone => {
            engine.note_tombstone(table, record);
            None
        }
        _ => Some(Visible::Newest),
    })
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

/// Iterator over a range of a table, from both ends; see [`crate::Readable::range`].
///
/// After an error it ends.
///
/// Keys and values of type [`Bytes`] are not copied one by one: those read from a page together
/// share memory, up to some ten KiB, which is freed with the last of them. Copy entries to keep a
/// few of many for long.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
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

    /// How many entries there are, without making keys and values of them.
    pub(crate) fn count_entries(mut self) -> Result<u64> {
        let mut count = 0;
        while let Some(entry) = self.raw.next_raw(Direction::Forward) {
            entry?;
            count += 1;
        }
        Ok(count)
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

impl Range<'_, Bytes, Bytes> {
    /// Returns the next entry in place, valid until the next call at either end. For bindings to
    /// other languages, which copy it.
    #[doc(hidden)]
    #[inline]
    pub fn next_in_place(&mut self) -> Option<Result<(&[u8], &[u8])>> {
        self.raw.next_in_place(Direction::Forward)
    }

    /// Returns the next entry from the other end in place, as [`Range::next_in_place`].
    #[doc(hidden)]
    #[inline]
    pub fn next_back_in_place(&mut self) -> Option<Result<(&[u8], &[u8])>> {
        self.raw.next_in_place(Direction::Reverse)
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
