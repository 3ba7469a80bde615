//! The position at which a scan continues, known from the previous step.
//!
//! The next leaf of a scan is usually a child of the same parent as the previous one. While the
//! parent's version is unchanged, so are its separators, and the adjacent child begins where the
//! last one ended: the step needs no descent from the root. A split or a merge of the parent's
//! children, or its eviction, changes the parent's version, and the step then descends from the
//! root.
//!
//! Knowing the next leaf early is worth more than the saved descent: the scan can prefetch it.

use std::cell::Cell;
use std::ops::Bound;

use super::scan::{Direction, Step};
use super::{Stamp, Tree, TreeName};
use crate::buffer_pool::ReadPage;
use crate::error::StoreError;
use crate::node::{FIRST_SLOT, Node};
use crate::page::{LINE_WORDS, Page, PageId, WORDS};

/// The position at which a scan continues after a step; see [`Tree::scan_leaf`].
#[derive(Clone, Copy, Debug)]
pub struct Position {
    tree: TreeName,
    parent: Stamp,
    /// The position of the leaf among the parent's children.
    child: usize,
}

/// The way to a leaf from the node above it.
#[derive(Clone, Copy)]
pub(super) struct Branch<'a> {
    parent: ReadPage<'a>,
    child: usize,
}

impl<'a> Branch<'a> {
    /// Returns the way to the leaf after this one, if it has the same parent.
    pub(super) fn next(self, direction: Direction) -> Option<Self> {
        let child = match direction {
            Direction::Forward => self.child + 1,
            Direction::Reverse => self.child.checked_sub(1)?,
        };
        (child <= self.node().len()).then_some(Self { child, ..self })
    }

    fn node(self) -> Node<'a> {
        Node(self.parent.page())
    }

    fn leaf(self) -> PageId {
        self.node().child_at(self.child)
    }
}

/// Leaves that are loaded at the same time as the one that a scan needs next.
const NEXT: usize = 15;

/// A page, usually the next leaf of a scan, and the progress of prefetching its records.
pub(super) struct Ahead<'a> {
    page: Page<'a>,
    at: usize,
    part: usize,
}

impl Ahead<'_> {
    /// Prefetches the next part.
    #[inline]
    pub(super) fn prefetch(&mut self) {
        if self.at < WORDS {
            self.page.prefetch(self.at, self.part);
            self.at += self.part;
        }
    }
}

/// A leaf that was opened for a scan.
pub(super) struct Reached<'a> {
    pub(super) leaf: ReadPage<'a>,
    /// `None` for a leaf that is the root.
    pub(super) branch: Option<Branch<'a>>,
    /// Whether the leaf was found at a position instead of by a descent.
    pub(super) is_near: bool,
}

impl Tree {
    /// Opens the leaf in which a scan from a bound begins. Returns `None` if a page on the way
    /// changed.
    pub(super) fn try_reach(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Option<Reached<'_>>, StoreError> {
        let branch = Cell::new(None);
        let leaf = self.try_descend(&|parent, node: Node<'_>| {
            let child = child_towards(node, from, direction);
            branch.set(Some((parent, child)));
            node.child_at(child)
        })?;
        let branch = branch.get().map(|(parent, child)| Branch { parent, child });
        let is_near = false;
        Ok(leaf.map(|leaf| Reached {
            leaf,
            branch,
            is_near,
        }))
    }

    /// Opens the leaf at a position. Returns `None` if its parent changed.
    pub(super) fn try_reach_near(
        &self,
        position: Position,
    ) -> Result<Option<Reached<'_>>, StoreError> {
        let Position {
            tree,
            parent,
            child,
        } = position;
        let is_same = |page: &ReadPage<'_>| {
            let is_unchanged = page.version() == parent.version;
            tree == self.name && (is_unchanged || braid_rt::mutant!("follow_a_changed_parent"))
        };
        let Some(parent) = self.pool.read_resident(parent.page).filter(is_same) else {
            return Ok(None);
        };
        let branch = Branch { parent, child };
        let leaf = self.open_child(&parent, branch.leaf())?;
        // A damaged parent may refer to a page that is not a leaf.
        let leaf = leaf.filter(|leaf| Node(leaf.page()).is_leaf());
        Ok(leaf.map(|leaf| Reached {
            leaf,
            branch: Some(branch),
            is_near: true,
        }))
    }

    /// Adds the leaves after a position to those that are missing, if that is why it could not be reached: a
    /// scan that has come so far will probably need them, too.
    #[cold]
    pub(super) fn with_next_leaves(
        &self,
        error: StoreError,
        position: Position,
        step: &Step<'_>,
    ) -> StoreError {
        let Some(parent) = self.pool.read_resident(position.parent.page) else {
            return error;
        };
        let node = Node(parent.page());
        let last = child_towards(node, step.to, step.direction.opposite());
        let next = position.child + 1;
        let children: Vec<PageId> = match step.direction {
            Direction::Forward => (next..=last).map(|i| node.child_at(i)).take(NEXT).collect(),
            Direction::Reverse => (last..position.child)
                .rev()
                .map(|i| node.child_at(i))
                .take(NEXT)
                .collect(),
        };
        let is_same = parent.version() == position.parent.version && parent.validate();
        if is_same && !braid_rt::mutant!("store_load_leaves_one_by_one") {
            self.pool.with_next(error, &children)
        } else {
            error
        }
    }

    pub(super) fn position(&self, branch: Branch<'_>) -> Position {
        Position {
            tree: self.name,
            parent: Stamp::of(&branch.parent),
            child: branch.child,
        }
    }

    /// Begins to prefetch the leaf to which a way leads, if it is in memory, in several parts. Its
    /// fill is not known yet and is assumed to be that of another leaf.
    pub(super) fn ahead<'a>(
        &'a self,
        branch: Branch<'a>,
        like: Node<'_>,
        parts: usize,
    ) -> Option<Ahead<'a>> {
        let page = self.pool.read_resident(branch.leaf())?.page();
        page.prefetch(0, FIRST_SLOT + like.len());
        let heap = like.heap_start().min(WORDS);
        let part = (WORDS - heap).div_ceil(parts.max(1));
        Some(Ahead {
            page,
            at: heap / LINE_WORDS * LINE_WORDS,
            part: part.next_multiple_of(LINE_WORDS),
        })
    }
}

/// The position of the child of an inner node in which a scan from a bound begins.
#[inline]
pub(super) fn child_towards(node: Node<'_>, from: Bound<&[u8]>, direction: Direction) -> usize {
    match (from, direction) {
        (Bound::Unbounded, Direction::Forward) => 0,
        (Bound::Unbounded, Direction::Reverse) => node.len(),
        // Keys before a separator are in the child to its left.
        (Bound::Excluded(key), Direction::Reverse) => {
            node.search(key).unwrap_or_else(|above| above)
        }
        (Bound::Included(key) | Bound::Excluded(key), _) => node.child_position(key),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use braid_io::MemoryDevice;
    use bytes::Bytes;

    use super::*;
    use crate::store::{Store, StoreOptions};
    use crate::tree::Change;

    /// Leaves of some eight records each.
    const VALUE: [u8; 900] = [7; 900];

    fn put(tree: &Tree, key: u32) {
        let put = Change::Put {
            version: 1,
            value: &VALUE,
        };
        tree.modify(&key.to_be_bytes(), |_| (put, ())).unwrap();
    }

    /// A store with two trees; the first has keys 0, 10, 20 and so on.
    fn trees(pool_bytes: usize, keys: u32) -> (Store, Tree, Tree) {
        let store = Store::create(
            Arc::new(MemoryDevice::new()),
            StoreOptions::of_pool(pool_bytes),
        )
        .unwrap();
        let (tree, other) = (store.tree(1).unwrap(), store.tree(2).unwrap());
        (0..keys).for_each(|i| put(&tree, i * 10));
        (store, tree, other)
    }

    fn near(tree: &Tree, position: Position) -> Option<PageId> {
        let reached = tree.try_reach_near(position).unwrap();
        reached.map(|reached| reached.leaf.id)
    }

    /// Returns the end of the first step of a scan of all keys.
    fn first_step(tree: &Tree, direction: Direction) -> (Bound<Bytes>, Position) {
        let all = Bound::Unbounded;
        let scan = tree.scan_leaf(None, all, all, direction, 100).unwrap();
        (scan.next.unwrap(), scan.position.unwrap())
    }

    #[test]
    fn only_the_first_leaf_of_a_parent_takes_a_descent() {
        // Three levels.
        let keys = if cfg!(miri) { 100 } else { 10_000 };
        let (_store, tree, _) = trees(64 << 20, keys);
        for direction in [Direction::Forward, Direction::Reverse] {
            let (mut found, mut steps, mut descents) = (0, 0, 0);
            let (mut from, mut position) = (Bound::Unbounded, None);
            loop {
                let start = from.as_ref().map(|key: &Bytes| &key[..]);
                let reached = tree.try_reach(start, direction).unwrap().unwrap();
                match position.and_then(|position| near(&tree, position)) {
                    Some(leaf) => assert_eq!(leaf, reached.leaf.id),
                    None => descents += 1,
                }
                let scan = tree
                    .scan_leaf(position, start, Bound::Unbounded, direction, 5)
                    .unwrap();
                (found, steps) = (found + scan.len() as u32, steps + 1);
                match scan.next {
                    Some(next) => (from, position) = (next, scan.position),
                    None => break,
                }
            }
            assert_eq!(found, keys);
            assert!(steps > keys / 10 && descents <= 1 + steps / 100);
        }
    }

    #[test]
    fn a_changed_parent_is_not_followed() {
        for direction in [Direction::Forward, Direction::Reverse] {
            let (_store, tree, other) = trees(64 << 20, 50);
            let (from, position) = first_step(&tree, direction);
            let (Bound::Included(key) | Bound::Excluded(key)) = &from else {
                panic!("a step ends at a key");
            };
            let key = u32::from_be_bytes(key[..].try_into().unwrap());
            // A change of a leaf does not change its parent.
            tree.modify(&20u32.to_be_bytes(), |_| (Change::Remove, ()))
                .unwrap();
            assert!(near(&tree, position).is_some());
            assert!(
                near(&other, position).is_none(),
                "that is another tree's leaf"
            );
            // The next leaf is split.
            let before = tree.pool.version(position.parent.page);
            for i in 1..10 {
                put(&tree, key - 10 + i);
                put(&tree, key + i);
            }
            assert_ne!(tree.pool.version(position.parent.page), before);
            assert!(near(&tree, position).is_none());
            // The step then descends from the root.
            let next = |position| {
                let from = from.as_ref().map(|key| &key[..]);
                tree.scan_leaf(position, from, Bound::Unbounded, direction, 100)
                    .unwrap()
            };
            let (scan, wanted) = (next(Some(position)), next(None));
            assert!(scan.records().eq(wanted.records()) && !scan.is_empty());
        }
    }
}
