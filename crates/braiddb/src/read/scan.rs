//! Range scans from both ends: the tree's records, merged with the transaction's own writes.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use braid_log::SeqNo;
use braid_rt::Mutex;
use braid_store::{Direction, LeafScan, LoadRefusal, Position, Record};

use crate::base::written::Written;
use crate::engine::Engine;
use crate::engine::write_set::{OwnWrite, in_bounds};
use crate::error::{ConflictKind, Result};
use crate::mvcc::range_reads::{Fingerprint, RangeReads};
use crate::schema::table::{Table, TableCore};
use crate::types::{Key, Value};

/// Maximum number of records in the first batch that an end of a scan reads. Later batches grow, so
/// that a short scan reads little and a long scan reads a whole leaf at a time.
const FIRST_BATCH: usize = 4;
const BATCH_GROWTH: usize = 4;

/// Selects the versions that a reader sees.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View {
    /// The newest version of each key.
    Latest,
    /// The newest version of each key up to this sequence number.
    At(SeqNo),
}

fn as_slices<T: AsRef<[u8]>>(bound: &Bound<T>) -> Bound<&[u8]> {
    bound.as_ref().map(T::as_ref)
}

/// Returns the bound on the other side of the same point.
fn complement<T>(bound: Bound<T>) -> Bound<T> {
    match bound {
        Bound::Included(key) => Bound::Excluded(key),
        Bound::Excluded(key) => Bound::Included(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// Sets a bound to begin just after a key.
fn move_past(bound: &mut Bound<Vec<u8>>, key: &[u8]) {
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
    /// The version in the tree.
    Newest,
    /// An old version, with this value.
    Old(Bytes),
}

/// Location of the entry that a step found.
#[derive(Clone, Copy)]
enum Found {
    /// A record in the end's current leaf, by its index.
    InLeaf(usize),
    /// The entry in [`RawRange::apart`].
    Apart,
}

/// The part of a leaf that one end of a scan has read.
#[derive(Debug)]
struct Leaf {
    scan: LeafScan,
    /// Index of the next record to examine.
    at: usize,
    /// The visible version of the record before `at`, if the scan has not returned it yet.
    peeked: Option<Visible>,
    /// Index of the last record that the scan returned, unless an own write was returned since.
    given: Option<usize>,
    read: Option<LeafRead>,
}

/// A range read of one leaf, which the commit validates.
#[derive(Debug)]
struct LeafRead {
    /// Index among the range reads of the transaction.
    place: usize,
    /// The bound where the scan entered the leaf.
    entered: Bound<Bytes>,
    /// The bound where the leaf ends, in scan direction.
    far_end: Bound<Bytes>,
    fingerprint: Fingerprint,
    newest: SeqNo,
}

impl Leaf {
    /// Returns the key of the peeked record.
    fn peeked_key(&self) -> Option<&[u8]> {
        self.peeked.as_ref()?;
        Some(self.scan.record(self.at - 1).key)
    }
}

/// Position where an end of a scan enters its next leaf.
#[derive(Debug)]
enum Next {
    /// At the range's own bound.
    Bound,
    At(Bound<Bytes>, Option<Position>),
    /// The range is exhausted.
    Nowhere,
}

impl Next {
    /// Returns the place in any tree.
    fn without_position(self) -> Self {
        match self {
            Self::At(bound, _) => Self::At(bound, None),
            next => next,
        }
    }
}

/// One end of a scan over the tree.
#[derive(Debug)]
struct End {
    next: Next,
    leaf: Option<Leaf>,
    /// Maximum number of records to read from the next leaf.
    batch: usize,
    /// Whether this end has returned or skipped an entry.
    moved: bool,
    /// Whether this end has met the other end.
    met: bool,
}

impl End {
    /// Returns the key of the peeked record.
    fn peeked_key(&self) -> Option<&[u8]> {
        let leaf = self.leaf.as_ref().filter(|_| !self.met);
        leaf.and_then(Leaf::peeked_key)
    }

    /// Returns the bound of what this end has consumed. `range` is the range's bound at this end,
    /// which moves only when the scan leaves the leaf.
    fn bound<'b>(&'b self, range: &'b Bound<Vec<u8>>) -> Bound<&'b [u8]> {
        let leaf = self.leaf.as_ref();
        match leaf.and_then(|leaf| Some(leaf.scan.record(leaf.given?))) {
            Some(record) => Bound::Excluded(record.key),
            None => as_slices(range),
        }
    }

    /// Consumes the peeked record. Returns its index, and its visible value if an old version is
    /// visible.
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

/// Scan over encoded keys and values; [`Range`] adds the types.
pub(crate) struct RawRange<'a> {
    engine: &'a Engine,
    table: Arc<TableCore>,
    view: View,
    /// Current time, for tables with timed entries.
    now: u64,
    /// Range reads to validate at commit, and the context's index of the table.
    tracked: Option<(&'a Mutex<RangeReads>, u32)>,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    own: VecDeque<OwnWrite>,
    front: End,
    back: End,
    /// The entry last returned in place, if it is not in a leaf.
    apart: (Bytes, Bytes),
    failed: bool,
    /// Whether it loads no pages; see [`Snapshot::set_nonblocking`](crate::Snapshot::set_nonblocking).
    is_nonblocking: bool,
}

impl<'a> RawRange<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        table: Arc<TableCore>,
        (view, is_nonblocking): (View, bool),
        now: u64,
        (lower, upper): (Bound<Vec<u8>>, Bound<Vec<u8>>),
        own: Vec<OwnWrite>,
        tracked: Option<(&'a Mutex<RangeReads>, u32)>,
    ) -> Self {
        let (table, no_table) = match view {
            View::At(seqno) if seqno < table.since() => match table.clone().as_of(seqno) {
                Some(table) => (table, false),
                // A snapshot older than the table sees only own writes.
                None => (table, true),
            },
            _ => (table, false),
        };
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
            is_nonblocking,
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
                // The transaction's own write replaces the record.
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
                move_past(bound, &own.key);
                (own.key, own.value)
            };
            if let Some(value) = self.table.open(value, || self.now)? {
                self.apart = (key, value);
                return Ok(Some(Found::Apart));
            }
        }
    }

    /// As [`RawRange::step`], but fails where it would load a page.
    #[cold]
    #[inline(never)]
    fn step_in_memory(&mut self, direction: Direction) -> Result<Option<Found>> {
        let _refusal = LoadRefusal::new();
        self.step(direction)
    }

    /// Advances one end to its next visible record inside the bounds, if there is one.
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
                // The other end may have passed the peeked record since.
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
                    read.newest = read.newest.max(record.meta.seqno());
                    if !record.meta.tombstone {
                        read.fingerprint.add(record.key, record.meta.seqno());
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
                move_past(bound, leaf.scan.record(i).key);
            }
            if let Some(leaf) = end.leaf.take() {
                self.note_read(direction, &leaf, None);
            }
        }
    }

    /// Moves one end into its next leaf. Returns whether there is one.
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
        let scan = self
            .engine
            .scan_leaf(&self.table, position, (from, far), direction, batch);
        // After the read: the table may have moved meanwhile, and its old tree may be empty.
        if self.table.is_moved()
            && let Some(successor) = self.moved_to()?
        {
            self.follow_move(successor);
            self.end(direction).next = next.without_position();
            return self.enter(direction);
        }
        let scan = scan?;
        if let Some((reads, _)) = self.tracked {
            self.engine.check_shown(|| {
                let newest = scan.records().map(|record| record.meta.seqno()).max();
                reads.lock().newest().max(newest.unwrap_or(SeqNo::NONE))
            })?;
        }
        let read = self.tracked.map(|(reads, table)| LeafRead {
            // Register the read now, not when the scan leaves the leaf: the caller may forget the
            // scan.
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
            newest: SeqNo::NONE,
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

    /// Returns the table's successor, if the scan reads that one from now on.
    #[cold]
    fn moved_to(&self) -> Result<Option<Arc<TableCore>>> {
        match self.view {
            View::At(seqno) => Ok(self.table.replaced_by(seqno).cloned()),
            // The transaction's commit would fail, too.
            View::Latest => Err(self.engine.conflict(ConflictKind::Moved)),
        }
    }

    /// Continues in the tree to which the table has moved.
    #[cold]
    fn follow_move(&mut self, successor: Arc<TableCore>) {
        self.table = successor;
        for end in [&mut self.front, &mut self.back] {
            let next = std::mem::replace(&mut end.next, Next::Nowhere);
            end.next = next.without_position();
        }
    }

    /// Records the range read of a leaf, up to `stopped_at` or to the leaf's far end.
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
        let found = if self.is_nonblocking {
            self.step_in_memory(direction)
        } else {
            self.step(direction)
        };
        // After the step, whose result means nothing if the snapshot has ended, and also after an
        // error: pages of a large value may have been freed under the reader.
        if let View::At(seqno) = self.view
            && self.engine.snapshots.is_ended(seqno)
            && !braid_rt::mutant!("scan_ended_snapshots")
        {
            self.failed = true;
            return Some(Err(self.engine.snapshot_too_old(seqno)));
        }
        match found {
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

    /// Returns the next entry in place, valid until the next step at either end.
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
            // A peeked record counts as read, and so does the gap before it. Without a peeked
            // record, everything that was returned or skipped lies before the end's bound.
            let seen_to = match leaf.peeked_key() {
                Some(key) => Bound::Included(key),
                None => complement(end.bound(bound)),
            };
            let is_through = leaf.at == leaf.scan.len();
            self.note_read(direction, leaf, (!is_through).then_some(seen_to));
        }
    }
}

/// Returns the version of a record that a view sees.
fn visible(
    engine: &Engine,
    table: &Arc<TableCore>,
    view: View,
    record: Record<'_>,
) -> Result<Option<Visible>> {
    Ok(match view {
        View::At(snapshot) if record.meta.seqno() > snapshot => {
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
/// The iterator ends after an error.
///
/// Keys and values of type [`Bytes`] are not copied one by one: entries read together from a page
/// share some ten KiB of memory, which is freed with the last of them. Copy entries to keep a few
/// of many for a long time.
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

    /// Counts the remaining entries without decoding keys and values.
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
    /// other languages, which copy the entry.
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
