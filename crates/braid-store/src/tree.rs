//! The B+-tree: optimistic latch coupling down (Leis et al. 2016), one leaf changed at a time; splits and
//! merges in a second, latched pass.

mod batch;
mod position;
mod scan;

use std::cell::OnceCell;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::detached::DetachedValue;
use crate::error::StoreError;
use crate::node::{
    Contents, Entry, FLAG_OVERFLOW, FLAG_TOMBSTONE, INLINE_MAX, KIND_INNER, KIND_LEAF, LeafRecord,
    NewValue, Node,
};
use crate::overflow;
use crate::page::{PageId, WORDS};
use crate::pool::{Pool, ReadPage, Waits, WritePage};

pub use batch::TOGETHER;
pub use position::Position;
pub use scan::{Direction, LeafScan, Record};

/// What belongs to a record beside key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordMeta {
    /// The caller's number for the change that made the record.
    pub version: u64,
    /// Whether the record says that the key was removed.
    pub tombstone: bool,
}

/// What [`Tree::get`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The record's version and kind.
    pub meta: RecordMeta,
    /// The value, if it was wanted and the record is no tombstone.
    pub value: Option<Bytes>,
}

/// A value where it lies; see [`Tree::read`].
#[derive(Clone, Copy, Debug)]
pub struct ValueRef<'a>(Place<'a>);

#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    /// In a leaf, which others may be changing.
    Leaf(Node<'a>, &'a LeafRecord),
    Copied(&'a Bytes),
    Memory(&'a [u8]),
}

impl<'a> ValueRef<'a> {
    /// A copy.
    #[inline]
    pub fn to_bytes(self) -> Bytes {
        match self.0 {
            Place::Leaf(node, record) => node.stored_value(record).into(),
            Place::Copied(bytes) => bytes.clone(),
            Place::Memory(bytes) => Bytes::copy_from_slice(bytes),
        }
    }

    /// A copy, in a buffer that may be a little longer.
    #[inline(always)]
    pub fn to_vec(self) -> Vec<u8> {
        match self.0 {
            Place::Leaf(node, record) => node.padded_value(record),
            Place::Copied(bytes) => bytes.to_vec(),
            Place::Memory(bytes) => bytes.to_vec(),
        }
    }

    /// The value itself, if it can be had without a copy.
    #[inline(always)]
    pub fn shared(self) -> Option<&'a Bytes> {
        match self.0 {
            Place::Copied(bytes) => Some(bytes),
            Place::Leaf(..) | Place::Memory(_) => None,
        }
    }

    /// Makes `out` a copy.
    #[inline]
    pub fn copy_to(self, out: &mut Vec<u8>) {
        out.clear();
        match self.0 {
            Place::Leaf(node, record) => node.append_stored_value(record, out),
            Place::Copied(bytes) => out.extend_from_slice(bytes),
            Place::Memory(bytes) => out.extend_from_slice(bytes),
        }
    }
}

impl<'a> From<&'a Bytes> for ValueRef<'a> {
    fn from(bytes: &'a Bytes) -> Self {
        Self(Place::Copied(bytes))
    }
}

impl<'a> From<&'a [u8]> for ValueRef<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Place::Memory(bytes))
    }
}

/// A record, and what was taken of its value, if that was wanted and there is one.
pub type Taken<T> = (RecordMeta, Option<T>);

/// A leaf at the moment it was read; see [`Tree::is_current`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    page: PageId,
    version: u64,
}

impl Stamp {
    #[inline]
    fn of(page: &ReadPage<'_>) -> Self {
        Self {
            page: page.id,
            version: page.version(),
        }
    }
}

/// What a change does to a record; see [`Tree::modify`].
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Nothing.
    Keep,
    /// Sets the value.
    Put {
        /// The record's new version.
        version: u64,
        /// The new value.
        value: &'a [u8],
    },
    /// Marks the key as removed.
    Tombstone {
        /// The record's new version.
        version: u64,
    },
    /// Takes the record out of the tree.
    Remove,
}

/// The record that a change is about to replace.
#[derive(Debug)]
pub struct OldRecord<'a> {
    pool: &'a Pool,
    page: PageId,
    node: Node<'a>,
    record: LeafRecord,
    kept: &'a OnceCell<DetachedValue>,
}

impl OldRecord<'_> {
    /// Its version and kind.
    pub fn meta(&self) -> RecordMeta {
        meta_of(&self.record)
    }

    /// The bytes of its value that [`OldRecord::keep_value`] appends.
    pub fn inline_len(&self) -> usize {
        match self.record.is_overflow() {
            true => 0,
            false => self.record.value_len,
        }
    }

    /// Keeps its value for others: appends it to `out`, or returns it if it is a large one, whose pages then are
    /// not freed with the record.
    ///
    /// # Errors
    /// What reading overflow pages can fail with; nothing is kept then.
    #[inline]
    pub fn keep_value(&self, out: &mut Vec<u8>) -> Result<Option<DetachedValue>, StoreError> {
        // By value, so that nothing but this branch needs them in memory.
        let Self {
            pool,
            page,
            node,
            record,
            kept,
        } = *self;
        if record.is_overflow() {
            let value = keep_overflow(pool, page, node, record)?;
            // A second time it is the same one.
            let _ = kept.set(value.clone());
            return Ok(Some(value));
        }
        node.append_stored_value(&record, out);
        Ok(None)
    }
}

#[inline(never)]
fn keep_overflow(
    pool: &Pool,
    page: PageId,
    node: Node<'_>,
    record: LeafRecord,
) -> Result<DetachedValue, StoreError> {
    let first = overflow::reference(&node.stored_value(&record));
    match overflow::pages(pool, first, record.value_len, page)? {
        Some(pages) => Ok(DetachedValue::new(pages, record.value_len)),
        None => Err(broken(first)),
    }
}

fn meta_of(record: &LeafRecord) -> RecordMeta {
    RecordMeta {
        version: record.version,
        tombstone: record.is_tombstone(),
    }
}

fn broken(id: PageId) -> StoreError {
    StoreError::damaged_page(id, "a page that is referred to does not exist")
}

fn astray(id: PageId) -> StoreError {
    StoreError::damaged_page(id, "its fences do not fit its parent")
}

/// The way down the tree, from a node, and the page that it is, to a child.
trait Way<'a> {
    fn child(&self, page: ReadPage<'a>, node: Node<'a>) -> PageId;
}

/// The way to the leaf of a key.
struct ToKey<'k>(&'k [u8]);

impl<'a> Way<'a> for ToKey<'_> {
    // It is all of the work.
    #[inline(always)]
    fn child(&self, _: ReadPage<'a>, node: Node<'a>) -> PageId {
        node.child_of(self.0)
    }
}

impl<'a, F: Fn(ReadPage<'a>, Node<'a>) -> PageId> Way<'a> for F {
    #[inline]
    fn child(&self, page: ReadPage<'a>, node: Node<'a>) -> PageId {
        self(page, node)
    }
}

/// Words of a page that the search in a leaf of small records looks at.
const SEARCHED: usize = 64;

/// More levels than any tree has: one that goes on leads in circles.
const LEVELS_MAX: usize = 64;

/// An ordered map from keys to versioned values. Cheap to clone; all methods may be called from any
/// thread.
#[derive(Clone, Debug)]
pub struct Tree {
    pool: Arc<Pool>,
    pub(crate) root: PageId,
}

impl Tree {
    pub(crate) fn new(pool: Arc<Pool>, root: PageId) -> Self {
        Self { pool, root }
    }

    /// Reads the overflow pages of a record that was read in a consistent leaf; `None` if the record was
    /// replaced meanwhile. The leaf's version can't tell that: reading a value larger than the pool puts
    /// the leaf out of memory.
    fn read_overflow(
        &self,
        key: &[u8],
        record: &LeafRecord,
        stored: &[u8],
    ) -> Result<Option<Bytes>, StoreError> {
        let first = overflow::reference(stored);
        let mut value = Vec::new();
        let is_whole = overflow::read(&self.pool, first, record.value_len, &mut value)?;
        let mut waits = Waits::default();
        let unchanged = loop {
            if let Some(leaf) = self.try_descend(&ToKey(key))? {
                let node = Node(leaf.page());
                let same = node.search(key).is_ok_and(|i| {
                    let now = node.leaf_record(i);
                    now.version == record.version && now.flags == record.flags
                });
                if leaf.validate() {
                    break same;
                }
            }
            waits.wait();
        };
        match (unchanged, is_whole) {
            (true, true) => Ok(Some(value.into())),
            (true, false) => Err(broken(first)),
            (false, _) => Ok(None),
        }
    }

    /// Goes down to the leaf that the way leads to; `None` if something changed on it.
    #[inline(always)]
    fn try_descend<'a>(&'a self, way: &impl Way<'a>) -> Result<Option<ReadPage<'a>>, StoreError> {
        let mut page = match self.pool.read_resident(self.root) {
            Some(page) => page,
            None => self.read_existing(self.root)?,
        };
        let mut node = Node(page.page());
        for _ in 0..LEVELS_MAX {
            match node.kind() {
                KIND_LEAF => return Ok(Some(page)),
                KIND_INNER => {}
                _ if page.validate() => return Err(broken(page.id)),
                _ => return Ok(None),
            }
            page = match self.open_child(&page, way.child(page, node))? {
                Some(child) => child,
                None => return Ok(None),
            };
            node = Node(page.page());
            node.0.prefetch(0, SEARCHED);
        }
        let what = "the tree is impossibly deep";
        Err(StoreError::damaged_page(self.root, what))
    }

    /// Opens a page that was read as a child in another one; `None` if that one changed.
    #[inline(always)]
    fn open_child(
        &self,
        parent: &ReadPage<'_>,
        child: PageId,
    ) -> Result<Option<ReadPage<'_>>, StoreError> {
        let resident = self.pool.read_resident(child);
        // The child was this page's child when its version was taken: else it may be anything. (Before
        // a page is read from the medium, too: nothing is for a reference that is nonsense.)
        if !parent.validate() {
            return Ok(None);
        }
        match resident {
            None => {
                let read = self.read_existing(child);
                if !parent.validate() {
                    return Ok(None);
                }
                read.map(Some)
            }
            resident => Ok(resident),
        }
    }

    /// Opens a page that may not be in memory.
    #[cold]
    fn read_existing(&self, id: PageId) -> Result<ReadPage<'_>, StoreError> {
        self.pool.read(id)?.ok_or_else(|| broken(id))
    }

    #[inline(always)]
    fn descend(&self, key: &[u8]) -> Result<ReadPage<'_>, StoreError> {
        let mut waits = Waits::default();
        loop {
            if let Some(page) = self.try_descend(&ToKey(key))? {
                return Ok(page);
            }
            waits.wait();
        }
    }

    /// Reads one key. `want_value` says from the record's version whether the value is copied out.
    ///
    /// # Errors
    /// What reading pages can fail with.
    #[inline]
    pub fn get(
        &self,
        key: &[u8],
        want_value: impl Fn(RecordMeta) -> bool,
    ) -> Result<(Option<Found>, Stamp), StoreError> {
        let (found, stamp) = self.read(key, want_value, |value| value.to_bytes())?;
        let found = found.map(|(meta, value)| Found { meta, value });
        Ok((found, stamp))
    }

    /// Reads one key. `want_value` says from the record's version whether the value is wanted; if so,
    /// `take` copies of it what it likes. `take` is called again if the leaf was changed under it: only
    /// what it returned last counts, and what it saw before may be nonsense.
    ///
    /// # Errors
    /// What reading pages can fail with.
    pub fn read<T>(
        &self,
        key: &[u8],
        want_value: impl Fn(RecordMeta) -> bool,
        mut take: impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<(Option<Taken<T>>, Stamp), StoreError> {
        let mut waits = Waits::default();
        loop {
            if let Some(outcome) = self.try_read(key, &want_value, &mut take)? {
                return Ok(outcome);
            }
            waits.wait();
        }
    }

    #[inline]
    #[allow(clippy::type_complexity, reason = "it is that of `read`, or none")]
    fn try_read<T>(
        &self,
        key: &[u8],
        want_value: impl Fn(RecordMeta) -> bool,
        take: &mut impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<(Option<Taken<T>>, Stamp)>, StoreError> {
        let Some(leaf) = self.try_descend(&ToKey(key))? else {
            return Ok(None);
        };
        let node = Node(leaf.page());
        let stamp = Stamp::of(&leaf);
        let Ok(i) = node.search(key) else {
            return Ok(leaf.validate().then_some((None, stamp)));
        };
        let record = node.leaf_record(i);
        let meta = meta_of(&record);
        let value = if meta.tombstone || !want_value(meta) {
            None
        } else if !record.is_overflow() {
            Some(take(ValueRef(Place::Leaf(node, &record))))
        } else {
            let stored = node.stored_value(&record);
            if !leaf.validate() {
                return Ok(None);
            }
            let Some(value) = self.read_overflow(key, &record, &stored)? else {
                return Ok(None);
            };
            let value = take(ValueRef(Place::Copied(&value)));
            return Ok(Some((Some((meta, Some(value))), stamp)));
        };
        Ok(leaf.validate().then_some((Some((meta, value)), stamp)))
    }

    /// Whether nothing changed in the leaf since it was read. May say no without reason.
    pub fn is_current(&self, stamp: Stamp) -> bool {
        self.pool.version(stamp.page) == stamp.version
    }

    /// Changes one record. `decide` is called exactly once, with the present record, while nobody else
    /// can change its leaf.
    ///
    /// A version never goes back: should a newer one of this key come in while a full leaf is being
    /// split for this change, that one stays.
    ///
    /// # Errors
    /// What reading, allocating or evicting pages can fail with.
    pub fn modify<'v, R>(
        &self,
        key: &[u8],
        decide: impl FnOnce(Option<OldRecord<'_>>) -> (Change<'v>, R),
    ) -> Result<R, StoreError> {
        let mut leaf = self.latch_leaf(key)?;
        // Before the decision: a failure to keep the page's old image must not come after it.
        let node = Node(leaf.page_mut()?);
        let found = node.search(key);
        let record = found.ok().map(|i| node.leaf_record(i));
        let kept = OnceCell::new();
        let old = record.map(|record| OldRecord {
            pool: &self.pool,
            page: leaf.id,
            node,
            record,
            kept: &kept,
        });
        let (change, result) = decide(old);
        // The common case of `apply`.
        if let (Change::Put { version, value }, Some(record)) = (change, record)
            && value.len() <= INLINE_MAX
            && !record.is_overflow()
            && record.version <= version
            && node.admits(key, found)
            && node.put_in_place(&record, &NewValue::inline(version, value))
        {
            return Ok(result);
        }
        self.apply(leaf, found, key, change, kept.get())?;
        Ok(result)
    }

    #[inline(always)]
    fn latch_leaf(&self, key: &[u8]) -> Result<WritePage<'_>, StoreError> {
        let mut waits = Waits::default();
        loop {
            let leaf = self.descend(key)?;
            if let Some(leaf) = leaf.upgrade() {
                return Ok(leaf);
            }
            waits.wait();
        }
    }

    /// Carries a change out, splitting and merging as need be. `place` is where the key is, or belongs,
    /// in its leaf; `kept` is the large value there, if somebody keeps that.
    #[inline(never)]
    fn apply<'a>(
        &'a self,
        mut leaf: WritePage<'a>,
        place: Result<usize, usize>,
        key: &[u8],
        change: Change<'_>,
        kept: Option<&DetachedValue>,
    ) -> Result<(), StoreError> {
        let (version, flags, value) = match change {
            Change::Keep => return Ok(()),
            Change::Remove => {
                let node = Node(leaf.page_mut()?);
                let Ok(i) = place else {
                    return Ok(());
                };
                let leaving = self.leaving(&leaf, &node.leaf_record(i), kept)?;
                node.remove(i);
                let underfull = node.is_underfull();
                drop(leaf);
                self.let_go(leaving, kept);
                return if underfull { self.merge(key) } else { Ok(()) };
            }
            Change::Tombstone { version } => (version, FLAG_TOMBSTONE, &[][..]),
            Change::Put { version, value } => (version, 0, value),
        };
        if value.len() <= INLINE_MAX {
            let inline = NewValue::inline(version, value);
            let put = self.put(leaf, place, key, &NewValue { flags, ..inline }, kept);
            return put.map(drop);
        }
        // Writing many pages under the leaf's latch would hold everybody else up.
        drop(leaf);
        self.put_large(key, version, flags, value, kept)
    }

    /// Puts a value into pages of its own, and its record into its leaf.
    #[inline(never)]
    fn put_large(
        &self,
        key: &[u8],
        version: u64,
        flags: u64,
        value: &[u8],
        kept: Option<&DetachedValue>,
    ) -> Result<(), StoreError> {
        let written = overflow::write(&self.pool, value)?;
        let reference = written.pages()[0].to_le_bytes();
        let new = NewValue {
            version,
            flags: flags | FLAG_OVERFLOW,
            len: value.len(),
            stored: &reference,
        };
        let put = self.latch_leaf(key).and_then(|leaf| {
            let place = Node(leaf.page()).search(key);
            self.put(leaf, place, key, &new, kept)
        });
        if !matches!(put, Ok(true)) {
            self.pool.discard(written.pages());
        }
        put.map(drop)
    }

    /// The large value of a record that is about to go from its leaf, unless it lies there.
    #[inline(always)]
    fn leaving(
        &self,
        leaf: &WritePage<'_>,
        record: &LeafRecord,
        kept: Option<&DetachedValue>,
    ) -> Result<Option<DetachedValue>, StoreError> {
        if !record.is_overflow() {
            return Ok(None);
        }
        // All that can fail comes before the change.
        match kept {
            Some(kept) => Ok(Some(kept.clone())),
            None => keep_overflow(&self.pool, leaf.id, Node(leaf.page()), *record).map(Some),
        }
    }

    /// After a large value was taken out of its leaf: frees its pages, unless somebody keeps it.
    #[inline(always)]
    fn let_go(&self, value: Option<DetachedValue>, kept: Option<&DetachedValue>) {
        let Some(value) = value else { return };
        if kept.is_some() && !braid_rt::mutant!("free_large_values_early") {
            self.pool.detach(value.pages());
        } else {
            self.pool.discard(value.pages());
        }
    }

    /// Puts a record into its leaf, splitting that if need be; `false` if a newer one is there.
    // For values that are not large it is nearly all of the work.
    #[inline(always)]
    fn put<'a>(
        &'a self,
        mut leaf: WritePage<'a>,
        mut place: Result<usize, usize>,
        key: &[u8],
        new: &NewValue<'_>,
        kept: Option<&DetachedValue>,
    ) -> Result<bool, StoreError> {
        loop {
            let node = Node(leaf.page_mut()?);
            let old = place.ok().map(|i| node.leaf_record(i));
            if old.is_some_and(|old| old.version > new.version) {
                return Ok(false);
            }
            if !node.admits(key, place) {
                return Err(astray(leaf.id));
            }
            let leaving = match old {
                Some(old) => self.leaving(&leaf, &old, kept)?,
                None => None,
            };
            if node.put(place, key, new) {
                drop(leaf);
                self.let_go(leaving, kept);
                return Ok(true);
            }
            drop(leaf);
            self.split(key)?;
            leaf = self.latch_leaf(key)?;
            place = Node(leaf.page()).search(key);
        }
    }

    /// Latches a node.
    fn latch(&self, id: PageId) -> Result<WritePage<'_>, StoreError> {
        let page = self.pool.write(id)?.ok_or_else(|| broken(id))?;
        match Node(page.page()).kind() {
            KIND_LEAF | KIND_INNER => Ok(page),
            _ => Err(StoreError::damaged_page(id, "it is no node")),
        }
    }

    /// Latches a child, which is where its parent says: splits and merges rely on that.
    fn latch_child(
        &self,
        parent: &WritePage<'_>,
        position: usize,
    ) -> Result<WritePage<'_>, StoreError> {
        let node = Node(parent.page());
        let id = node.child_at(position);
        if id == parent.id {
            return Err(astray(id));
        }
        let child = self.latch(id)?;
        let found = Node(child.page());
        if (found.lower_fence(), found.upper_fence()) != node.bounds_of_child(position) {
            return Err(astray(id));
        }
        Ok(child)
    }

    /// Splits the leaf of a key, and full inner nodes on the way to it, from the root down with at most
    /// two latches held.
    fn split(&self, key: &[u8]) -> Result<(), StoreError> {
        let mut parent = self.latch(self.root)?;
        if Node(parent.page()).is_leaf() || !Node(parent.page()).has_room_for_separator() {
            self.split_root(&mut parent, key)?;
        }
        loop {
            let node = Node(parent.page());
            let mut child = self.latch_child(&parent, node.child_position(key))?;
            let child_node = Node(child.page());
            let is_leaf = child_node.is_leaf();
            if is_leaf && child_node.len() < 2 {
                return Ok(());
            }
            if is_leaf || !child_node.has_room_for_separator() {
                let mut right = self.pool.allocate()?;
                let target = Node(parent.page_mut()?);
                let source = Node(child.page_mut()?);
                let mut bytes = Vec::new();
                let mut contents = Contents::read(source, &mut bytes);
                let (separator, upper) = contents.split(key);
                upper.write(Node(right.page_mut()?));
                contents.write(source);
                target.insert_separator(&separator, child.id, right.id);
                if *key >= separator[..] {
                    child = right;
                }
            }
            if is_leaf {
                return Ok(());
            }
            parent = child;
        }
    }

    /// Moves the root's contents into two new children; the root's id stays.
    fn split_root(&self, root: &mut WritePage<'_>, key: &[u8]) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        let mut contents = Contents::read(Node(root.page()), &mut bytes);
        if contents.entries.len() < 2 {
            return Ok(());
        }
        let mut left = self.pool.allocate()?;
        let mut right = match self.pool.allocate() {
            Ok(right) => right,
            Err(error) => {
                left.free()?;
                return Err(error);
            }
        };
        let target = Node(root.page_mut()?);
        let (separator, upper) = contents.split(key);
        contents.write(Node(left.page_mut()?));
        upper.write(Node(right.page_mut()?));
        let entry = Entry {
            key: &separator[..],
            head: left.id,
            ..Entry::default()
        };
        Contents {
            kind: KIND_INNER,
            rightmost: right.id,
            entries: vec![entry],
            ..Contents::default()
        }
        .write(target);
        Ok(())
    }

    /// Merges underfull nodes on the way to a key with a neighbour, from the root down.
    fn merge(&self, key: &[u8]) -> Result<(), StoreError> {
        let mut parent = self.latch(self.root)?;
        loop {
            let node = Node(parent.page());
            if node.is_leaf() {
                return Ok(());
            }
            if node.len() == 0 && parent.id == self.root {
                // The root has one child: it takes that one's contents over.
                let child = self.latch_child(&parent, 0)?;
                let mut bytes = Vec::new();
                let contents = Contents::read(Node(child.page()), &mut bytes);
                contents.write(Node(parent.page_mut()?));
                child.free()?;
                continue;
            }
            let position = node.child_position(key);
            let child = self.latch_child(&parent, position)?;
            if !Node(child.page()).is_underfull() || node.len() == 0 {
                parent = child;
                continue;
            }
            // Latches are taken from left to right, so the child is let go.
            drop(child);
            // Both neighbours: whoever removes keys in order leaves small nodes on one side and full ones on
            // the other.
            let mut merged = None;
            for left in [position.checked_sub(1), Some(position)]
                .into_iter()
                .flatten()
            {
                if merged.is_none() && left < node.len() {
                    merged = self.merge_children(&mut parent, left)?;
                }
            }
            parent = match merged {
                // The root is looked at again.
                Some(_) if node.len() == 0 && parent.id == self.root => continue,
                Some(child) => child,
                None => self.latch_child(&parent, position)?,
            };
        }
    }

    /// Merges the child at `left` with the next one, if a node with some room holds both.
    fn merge_children(
        &self,
        parent: &mut WritePage<'_>,
        left: usize,
    ) -> Result<Option<WritePage<'_>>, StoreError> {
        let node = Node(parent.page());
        let mut child = self.latch_child(parent, left)?;
        if node.child_at(left + 1) == child.id {
            return Err(astray(child.id));
        }
        let next = self.latch_child(parent, left + 1)?;
        if Node(child.page()).kind() != Node(next.page()).kind() {
            return Err(astray(next.id));
        }
        let (small, other) = (Node(child.page()), Node(next.page()));
        // Without taking them apart; the fences between them would go.
        if small.used_words() + other.used_words() > WORDS {
            return Ok(None);
        }
        let (mut bytes, mut other_bytes) = (Vec::new(), Vec::new());
        let separator = node.key(left);
        let mut contents = Contents::read(small, &mut bytes);
        contents.append(&separator, Contents::read(other, &mut other_bytes));
        if contents.words() > WORDS * 3 / 4 {
            return Ok(None);
        }
        let target = Node(parent.page_mut()?);
        contents.write(Node(child.page_mut()?));
        target.set_child_at(left + 1, child.id);
        target.remove(left);
        next.free()?;
        Ok(Some(child))
    }

    /// Whether there is no record, tombstones included.
    ///
    /// # Errors
    /// What reading pages can fail with.
    pub fn is_empty(&self) -> Result<bool, StoreError> {
        let (mut from, mut position) = (Bound::Unbounded, None);
        loop {
            let lower = from.as_ref().map(|b: &Bytes| &b[..]);
            let scan = self.scan_leaf(position, lower, Bound::Unbounded, Direction::Forward, 1)?;
            match scan.next {
                _ if !scan.is_empty() => return Ok(false),
                Some(next) => (from, position) = (next, scan.position),
                None => return Ok(true),
            }
        }
    }

    /// Frees all pages, the root included.
    pub(crate) fn free_all(&self) -> Result<(), StoreError> {
        let mut stack = vec![self.root];
        while let Some(id) = stack.pop() {
            let page = self.latch(id)?;
            let node = Node(page.page());
            if node.is_leaf() {
                for i in 0..node.len() {
                    let leaving = self.leaving(&page, &node.leaf_record(i), None)?;
                    self.let_go(leaving, None);
                }
                page.free()?;
            } else {
                stack.extend((0..=node.len()).map(|i| node.child_at(i)));
                page.free()?;
            }
        }
        Ok(())
    }
}
