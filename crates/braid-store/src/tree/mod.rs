//! The B+-tree: optimistic latch coupling down (Leis et al. 2016), one leaf changed at a time;
//! splits and merges in a second, latched pass.

mod batch;
pub(crate) mod damage;
mod detached;
pub(crate) mod dropped;
mod estimate;
mod large;
pub(crate) mod layers;
mod leaf_hint;
mod lost;
mod merged;
pub(crate) mod overflow;
mod position;
mod repack;
mod scan;
mod structure;
mod value;

use std::cell::OnceCell;
use std::ops::Bound;
use std::sync::Arc;

use braid_rt::thread::Backoff;
use bytes::Bytes;

use crate::SHORT_KEY_MAX;
use crate::buffer_pool::{Pool, ReadPage, WritePage};
use crate::error::StoreError;
use crate::node::{
    FLAG_TOMBSTONE, INLINE_MAX, KIND_INNER, KIND_LEAF, LeafRecord, NewValue, Node, inline_max,
};
use crate::page::PageId;

use self::layers::LongKeys;
use self::leaf_hint::Slot;
use self::value::Place;

pub use batch::TOGETHER;
pub use damage::DamagedRange;
pub use detached::DetachedValue;
pub use dropped::DroppedTree;
pub use estimate::{Estimate, TreeStats};
pub use leaf_hint::LeafHint;
pub use position::Position;
pub use scan::{Direction, LeafScan, Record};
pub use value::{OldRecord, ValueRef};

/// The parts of a record other than key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordMeta {
    /// The caller's number for the change that made the record.
    pub version: u64,
    /// Whether the record says that the key was removed.
    pub tombstone: bool,
}

/// The result of [`Tree::get`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The record's version and kind.
    pub meta: RecordMeta,
    /// The value, if it was requested and the record is not a tombstone.
    pub value: Option<Bytes>,
}

/// A record, and the part taken of its value, if the value was requested and exists.
pub type Taken<T> = (RecordMeta, Option<T>);

/// A leaf at the moment it was read; see [`Tree::is_current`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// A change to a record; see [`Tree::modify`].
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
    /// Removes the record from the tree.
    Remove,
}

fn meta_of(record: &LeafRecord) -> RecordMeta {
    RecordMeta {
        version: record.version,
        tombstone: record.is_tombstone(),
    }
}

fn broken(pool: &Pool, id: PageId) -> StoreError {
    pool.damaged_page(id, "another page refers to it, but it does not exist")
}

fn astray(pool: &Pool, id: PageId) -> StoreError {
    pool.damaged_page(id, "its key range does not match its parent's")
}

/// A way down the tree, which chooses a node's child.
trait Way<'a> {
    fn child(&self, page: ReadPage<'a>, node: Node<'a>) -> PageId;
}

/// The way to the leaf of a key.
struct ToKey<'k>(&'k [u8]);

impl<'a> Way<'a> for ToKey<'_> {
    // This search is all of a descent's work.
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

/// Words of a page that the search in a leaf of small records reads.
const SEARCHED: usize = 64;

/// More levels than any tree has: a longer descent is a cycle.
const LEVELS_MAX: usize = 64;

/// Names a tree among those of several stores: its root, and in the highest byte the number of its
/// store. Page ids need fewer bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TreeName(u64);

impl TreeName {
    fn of(pool: &Pool, root: PageId) -> Self {
        if braid_rt::mutant!("confuse_the_trees_of_two_stores") {
            return Self(root);
        }
        Self(root | u64::from(pool.number) << 56)
    }
}

/// An ordered map from keys to versioned values. Cheap to clone; all methods may be called from any
/// thread.
#[derive(Clone, Debug)]
pub struct Tree {
    pool: Arc<Pool>,
    /// The tree's number in its store.
    id: u32,
    pub(crate) root: PageId,
    /// Distinguishes the tree from those of all stores with other numbers.
    name: TreeName,
    /// The keys that the tree's nodes can't hold; a tree of layers has none.
    long: Option<Arc<LongKeys>>,
}

impl Tree {
    pub(crate) fn new(pool: Arc<Pool>, id: u32, root: PageId, long: Arc<LongKeys>) -> Self {
        let long = Some(long);
        let name = TreeName::of(&pool, root);
        Self {
            pool,
            id,
            root,
            name,
            long,
        }
    }

    /// The tree that holds the layers of long keys of the tree with this number.
    fn of_layers(pool: Arc<Pool>, id: u32, root: PageId) -> Self {
        let long = None;
        let name = TreeName::of(&pool, root);
        Self {
            pool,
            id,
            root,
            name,
            long,
        }
    }

    /// Descends to the leaf to which the way leads. Returns `None` if a page on the way changed.
    #[inline(always)]
    fn try_descend<'a>(&'a self, way: &impl Way<'a>) -> Result<Option<ReadPage<'a>>, StoreError> {
        let mut page = match self.pool.read_resident(self.root) {
            Some(page) => page,
            None => self.read_root()?,
        };
        let mut node = Node(page.page());
        for _ in 0..LEVELS_MAX {
            match node.kind() {
                KIND_LEAF => {
                    // The caller searches it. The nodes above are mostly in the caches.
                    node.prefetch_search();
                    return Ok(Some(page));
                }
                KIND_INNER => {}
                _ if page.validate() => return Err(broken(&self.pool, page.id)),
                _ => return Ok(None),
            }
            page = match self.open_child(&page, way.child(page, node))? {
                Some(child) => child,
                None => return Ok(None),
            };
            node = Node(page.page());
            node.0.prefetch(0, SEARCHED);
        }
        let what = "the tree is deeper than possible";
        Err(self.pool.damaged_page(self.root, what))
    }

    /// Opens a child whose id was read from its parent. Returns `None` if the parent changed.
    #[inline(always)]
    fn open_child(
        &self,
        parent: &ReadPage<'_>,
        child: PageId,
    ) -> Result<Option<ReadPage<'_>>, StoreError> {
        let resident = self.pool.read_resident(child);
        // The child was this page's child when its version was taken; otherwise it may be any page.
        // (Checked before a read from the medium, too: an invalid reference must not cause one.)
        if !parent.validate() {
            return Ok(None);
        }
        match resident {
            // By value: a reference would keep every parent of a descent in memory.
            None => self.read_child(*parent, child),
            resident => Ok(resident),
        }
    }

    /// Opens the root, which may not be in memory.
    #[cold]
    fn read_root(&self) -> Result<ReadPage<'_>, StoreError> {
        self.read_existing(self.root)
            .map_err(|error| self.in_all(error))
    }

    /// Opens a child that may not be in memory; `None` if its parent changed.
    #[cold]
    fn read_child(
        &self,
        parent: ReadPage<'_>,
        child: PageId,
    ) -> Result<Option<ReadPage<'_>>, StoreError> {
        let read = self.read_existing(child);
        if !parent.validate() {
            return Ok(None);
        }
        read.map(Some)
            .map_err(|error| self.in_child(error, &parent, child))
    }

    /// Opens a page that may not be in memory.
    #[cold]
    fn read_existing(&self, id: PageId) -> Result<ReadPage<'_>, StoreError> {
        self.pool.read(id)?.ok_or_else(|| broken(&self.pool, id))
    }

    #[inline(always)]
    fn descend(&self, key: &[u8]) -> Result<ReadPage<'_>, StoreError> {
        let mut backoff = Backoff::default();
        loop {
            if let Some(page) = self.try_descend(&ToKey(key))? {
                return Ok(page);
            }
            backoff.wait();
        }
    }

    /// Reads one key. `want_value` decides by the record's version whether to copy the value.
    ///
    /// # Errors
    /// What reading pages can fail with.
    #[inline]
    pub fn get(
        &self,
        key: &[u8],
        want_value: impl Fn(RecordMeta) -> bool,
    ) -> Result<Option<Found>, StoreError> {
        let found = self.read(key, want_value, |value| value.to_bytes())?;
        Ok(found.map(|(meta, value)| Found { meta, value }))
    }

    /// Reads one key. `want_value` decides by the record's version whether to read the value; if
    /// so, `take` copies the parts of it that the caller needs. `take` is called again if the leaf
    /// changed meanwhile: only its last result is used, and earlier calls may have seen
    /// inconsistent bytes.
    ///
    /// # Errors
    /// What reading pages can fail with.
    pub fn read<T>(
        &self,
        key: &[u8],
        want_value: impl Fn(RecordMeta) -> bool,
        take: impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<Taken<T>>, StoreError> {
        self.read_by(None, key, want_value, take)
    }

    /// [`Tree::read`] that tries `hint` first, then sets it to the place where the key was found.
    ///
    /// # Errors
    /// As [`Tree::read`].
    pub fn read_at<T>(
        &self,
        hint: &mut LeafHint,
        key: &[u8],
        want_value: impl Fn(RecordMeta) -> bool,
        take: impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<Taken<T>>, StoreError> {
        self.read_by(Some(hint), key, want_value, take)
    }

    // Separate, so that a read without a leaf hint does not pay for hints.
    #[inline(always)]
    fn read_by<T>(
        &self,
        mut hint: Option<&mut LeafHint>,
        key: &[u8],
        want_value: impl Fn(RecordMeta) -> bool,
        mut take: impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<Taken<T>>, StoreError> {
        let mut backoff = Backoff::default();
        loop {
            let hint = hint.as_deref_mut();
            if let Some(outcome) = self.try_read(hint, key, &want_value, &mut take)? {
                return Ok(outcome);
            }
            if key.len() > SHORT_KEY_MAX && self.long.is_some() {
                return self.read_long(key, want_value, take);
            }
            backoff.wait();
        }
    }

    #[inline(always)]
    fn try_read<T>(
        &self,
        hint: Option<&mut LeafHint>,
        key: &[u8],
        want_value: impl Fn(RecordMeta) -> bool,
        take: &mut impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<Option<Taken<T>>>, StoreError> {
        let recalled = hint.as_ref().and_then(|hint| self.recall(hint, key));
        let is_recalled = recalled.is_some();
        let (leaf, place) = match recalled {
            Some(found) => found,
            None => {
                let Some(leaf) = self.try_descend(&ToKey(key))? else {
                    return Ok(None);
                };
                let place = Node(leaf.page()).search(key);
                (leaf, place)
            }
        };
        if let Some(hint) = hint
            && !(is_recalled && hint.is_exact())
        {
            *hint = self.leaf_hint(&leaf, key, place);
        }
        let node = Node(leaf.page());
        let Ok(i) = place else {
            // Checked here, so that reads of found keys skip it. The caller reads the layers.
            if key.len() > SHORT_KEY_MAX && self.long.is_some() {
                return Ok(None);
            }
            return Ok(leaf.validate().then_some(None));
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
            return Ok(Some(Some((meta, Some(value)))));
        };
        Ok(leaf.validate().then_some(Some((meta, value))))
    }

    /// Whether the leaf is unchanged since it was read. May return `false` for an unchanged leaf.
    pub fn is_current(&self, stamp: Stamp) -> bool {
        self.pool.version(stamp.page) == stamp.version
    }

    /// Changes one record. Calls `decide` exactly once, with the current record, while no other
    /// thread can change its leaf.
    ///
    /// A version never decreases: if another thread writes a newer version of this key while a full
    /// leaf is being split for this change, the newer version stays.
    ///
    /// # Errors
    /// What reading, allocating or evicting pages can fail with.
    pub fn modify<'v, R>(
        &self,
        key: &[u8],
        decide: impl FnOnce(Option<OldRecord<'_>>) -> (Change<'v>, R),
    ) -> Result<R, StoreError> {
        self.modify_at(&mut LeafHint::default(), key, decide)
    }

    /// [`Tree::modify`] that tries `hint` first, then sets it to the record's place.
    ///
    /// # Errors
    /// As [`Tree::modify`].
    #[inline]
    pub fn modify_at<'v, R>(
        &self,
        hint: &mut LeafHint,
        key: &[u8],
        decide: impl FnOnce(Option<OldRecord<'_>>) -> (Change<'v>, R),
    ) -> Result<R, StoreError> {
        self.modify_near(hint, None, key, decide)
    }

    /// [`Tree::modify_at`] that, if `hint` has become wrong, tries `near` next, the hint of the last
    /// changes of other keys. With `near`, `hint` [is of](LeafHint::is_of) this key and tree.
    ///
    /// # Errors
    /// As [`Tree::modify`].
    pub fn modify_near<'v, R>(
        &self,
        hint: &mut LeafHint,
        near: Option<&mut LeafHint>,
        key: &[u8],
        decide: impl FnOnce(Option<OldRecord<'_>>) -> (Change<'v>, R),
    ) -> Result<R, StoreError> {
        let (mut leaf, found, long) = if key.len() <= SHORT_KEY_MAX {
            let (leaf, found) = self.latch_at(hint, near.as_deref(), key)?;
            (leaf, found, None)
        } else {
            self.latch_long(key)?
        };
        // Before the decision: a failure to keep the page's old image must not occur after it.
        let node = Node(leaf.page_mut()?);
        let record = found.ok().map(|i| node.leaf_record(i));
        let kept = OnceCell::new();
        let old = record.map(|record| OldRecord {
            pool: &self.pool,
            page: leaf.id,
            node,
            record,
            kept: &kept,
        });
        // The only call, so that it is inlined here.
        let (change, result) = decide(old);
        if let Some(long) = long {
            self.apply_long(leaf, found, key, change, kept.get(), *long)?;
            return Ok(result);
        }
        // The common case of `apply`.
        if let (Change::Put { version, value }, Some(record)) = (change, record)
            && value.len() <= INLINE_MAX
            && !record.is_overflow()
            && record.version <= version
            && node.admits(key, found)
            && node.put_in_place(&record, &NewValue::inline(version, value))
        {
            match near {
                Some(near) => {
                    hint.follow_own(self, &leaf, true);
                    near.follow(self, &leaf, true);
                }
                None => hint.follow(self, &leaf, true),
            }
            return Ok(result);
        }
        match near {
            Some(near) => {
                hint.follow_own(self, &leaf, false);
                near.follow(self, &leaf, false);
            }
            None => hint.follow(self, &leaf, false),
        }
        self.apply(leaf, found, key, change, kept.get())?;
        Ok(result)
    }

    /// [`Tree::latch_leaf`] that tries `hint` first.
    #[inline(always)]
    fn latch_at(
        &self,
        hint: &LeafHint,
        near: Option<&LeafHint>,
        key: &[u8],
    ) -> Result<(WritePage<'_>, Slot), StoreError> {
        let recalled = match near {
            // Changes of other keys in the same leaf outdate the key's own hint.
            Some(near) => self
                .recall_own(hint, key)
                .or_else(|| self.recall_near(near, key)),
            None => self.recall(hint, key),
        };
        if let Some((leaf, place)) = recalled
            && let Some(leaf) = leaf.upgrade()
        {
            return Ok((leaf, place));
        }
        self.latch_leaf(key)
    }

    /// Latches the leaf of a key. Also returns the place in it where the key is or belongs.
    #[inline(always)]
    fn latch_leaf(&self, key: &[u8]) -> Result<(WritePage<'_>, Slot), StoreError> {
        let mut backoff = Backoff::default();
        loop {
            let leaf = self.descend(key)?;
            if let Some(leaf) = leaf.upgrade() {
                let place = Node(leaf.page()).search(key);
                return Ok((leaf, place));
            }
            backoff.wait();
        }
    }

    /// Carries out a change, splitting and merging as needed. `place` is the place of the key in
    /// its leaf; `kept` is the large value there, if the caller keeps it.
    #[inline(never)]
    fn apply<'a>(
        &'a self,
        mut leaf: WritePage<'a>,
        place: Slot,
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
                self.release_value(leaving, kept);
                return match underfull.then(|| self.merge(key)) {
                    // The record is removed; a neighbour that is damaged, or that must not be loaded, only
                    // prevents the merge of the leaf.
                    None
                    | Some(
                        Ok(()) | Err(StoreError::Corrupted { .. } | StoreError::NotInMemory(_)),
                    ) => Ok(()),
                    Some(error) => error,
                };
            }
            Change::Tombstone { version } => (version, FLAG_TOMBSTONE, &[][..]),
            Change::Put { version, value } => (version, 0, value),
        };
        if value.len() <= inline_max(key.len()) {
            let inline = NewValue::inline(version, value);
            let put = self.put(leaf, place, key, &NewValue { flags, ..inline }, kept);
            return put.map(drop);
        }
        // Writing many pages under the leaf's latch would block all other threads.
        drop(leaf);
        self.put_large(key, version, flags, value, kept)
    }

    /// Puts a record into its leaf, splitting the leaf if needed. Returns `false` if the leaf has a
    /// newer record.
    // For values that are not large, this is nearly all of the work.
    #[inline(always)]
    fn put<'a>(
        &'a self,
        mut leaf: WritePage<'a>,
        mut place: Slot,
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
                return Err(astray(&self.pool, leaf.id));
            }
            let leaving = match old {
                Some(old) => self.leaving(&leaf, &old, kept)?,
                None => None,
            };
            if node.put(place, key, new) {
                drop(leaf);
                self.release_value(leaving, kept);
                return Ok(true);
            }
            drop(leaf);
            self.split(key)?;
            (leaf, place) = self.latch_leaf(key)?;
        }
    }

    /// Whether the tree has no records; tombstones count as records.
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
}
