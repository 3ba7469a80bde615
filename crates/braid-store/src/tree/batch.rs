//! Descents for several keys at once.
//!
//! A descent waits for memory, or for the medium, at each level, and knows only then what it needs
//! next. Descents to different keys are independent: taken together level by level, their waits
//! overlap (group prefetching, Chen et al. 2007 §4, here for a tree).

use super::{LEVELS_MAX, LeafHint, SEARCHED, SHORT_KEY_MAX, Tree, overflow};
use crate::buffer_pool::ReadPage;
use crate::error::{StoreError, collect_missing};
use crate::node::{KIND_INNER, KIND_LEAF, Node, value_page};
use crate::page::{PageId, WORDS};

/// Keys that [`Tree::prefetch`] handles together: about as many cache lines as a core can wait for
/// at once.
pub const TOGETHER: usize = 16;

/// Words from which on a leaf is not underfull without one of its tombstones, however long that is.
const FULL_WORDS: usize = WORDS / 2;

const _: () = assert!(FULL_WORDS - WORDS / 4 > SHORT_KEY_MAX / 8 + 16);

/// A descent.
#[derive(Clone, Copy)]
struct Way<'a, 'k> {
    key: &'k [u8],
    page: ReadPage<'a>,
    /// The next child.
    child: PageId,
}

impl<'a> Way<'a, '_> {
    fn node(&self) -> Node<'a> {
        Node(self.page.page())
    }

    /// Finds the next child. Returns whether there is one.
    #[inline]
    fn find_child(&mut self) -> bool {
        let node = self.node();
        self.child = node.child_of(self.key);
        node.kind() == KIND_INNER && self.page.validate()
    }
}

impl Tree {
    /// Loads the pages that reading or changing these keys needs into memory and into the
    /// processor's caches, all at the same time. Calls `found` with the place of each key. A hint:
    /// errors and concurrent changes are left to the later accesses.
    ///
    /// # Errors
    /// [`StoreError::NotInMemory`] if the calling thread refuses to load pages.
    #[inline]
    pub fn prefetch(
        &self,
        keys: &[&[u8]],
        mut found: impl FnMut(&[u8], LeafHint),
    ) -> Result<(), StoreError> {
        let parts = keys.chunks(TOGETHER);
        collect_missing(parts.map(|keys| self.prefetch_together(keys, &mut found)))
    }

    #[inline]
    fn prefetch_together(
        &self,
        keys: &[&[u8]],
        found: &mut impl FnMut(&[u8], LeafHint),
    ) -> Result<(), StoreError> {
        let root = match self.pool.read(self.root) {
            Ok(Some(root)) => root,
            Err(error @ StoreError::NotInMemory(_)) => return Err(error),
            _ => return Ok(()),
        };
        let way = |key| Way {
            key,
            page: root,
            child: 0,
        };
        let mut ways: [_; TOGETHER] =
            std::array::from_fn(|i| way(keys.get(i).copied().unwrap_or_default()));
        let mut ways = &mut ways[..keys.len()];
        for level in 0..LEVELS_MAX {
            // All ways begin at the root.
            if level > 0 {
                ways.iter().for_each(|way| way.node().prefetch_search());
            }
            if ways.iter().any(|way| way.node().kind() == KIND_LEAF) {
                break;
            }
            ways = keep(ways, Way::find_child);
            self.read_children(ways)?;
            ways = keep(ways, |way| {
                let Some(page) = self.pool.read_if_there(way.child) else {
                    return false;
                };
                // As in `open_child`: otherwise the opened page may be any page.
                if !way.page.validate() {
                    return false;
                }
                way.page = page;
                page.page().prefetch(0, SEARCHED);
                true
            });
        }
        // In a damaged tree, the descents may be at different levels.
        for way in ways.iter().filter(|way| way.node().is_leaf()) {
            let place = way.node().search(way.key);
            if let Ok(i) = place {
                way.node().prefetch_record(i);
            }
            // If the leaf changed meanwhile, its version reveals that when the hint is used.
            found(way.key, self.leaf_hint(&way.page, way.key, place));
        }
        Ok(())
    }

    /// Returns whether the leaf of a key is in memory, to be changed. A hint: the leaf may be
    /// evicted, or change, at any time. `false` for keys that the tree's nodes cannot hold, and for a
    /// leaf that is read in place, which the next access loads.
    pub fn is_in_memory(&self, key: &[u8]) -> bool {
        self.leaf_in_memory(key).is_some()
    }

    /// Loads the pages of a key's large value, if the key's leaf is in memory: a change that replaces or
    /// removes the value has to find them. Subtracts their number from `left`; loads none if there are more.
    /// A hint, like [`Tree::prefetch`].
    ///
    /// # Errors
    /// [`StoreError::NotInMemory`] if the calling thread refuses to load pages.
    pub fn load_large_value(&self, key: &[u8], left: &mut usize) -> Result<(), StoreError> {
        let Some((leaf, first, len)) = self.large_value_in_memory(key) else {
            return Ok(());
        };
        let pages = len.div_ceil(value_page::BYTES);
        if pages > *left {
            return Ok(());
        }
        *left -= pages;
        match overflow::pages(&self.pool, first, len, leaf) {
            Err(error @ StoreError::NotInMemory(_)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the leaf of a key, and the first page and the length of its value, if that has pages of its own.
    fn large_value_in_memory(&self, key: &[u8]) -> Option<(PageId, PageId, usize)> {
        let leaf = self.leaf_in_memory(key)?;
        let node = Node(leaf.page());
        let record = node.leaf_record(node.search(key).ok()?);
        if !record.is_overflow() {
            return None;
        }
        let stored = node.stored_value(&record);
        let found = (leaf.id, value_page::reference(&stored), record.value_len);
        leaf.validate().then_some(found)
    }

    /// Returns whether a tombstone can be removed without a load: its leaf is in memory, and so are the
    /// neighbours with which the leaf may have to be merged then. A hint, like [`Tree::is_in_memory`].
    pub fn is_in_memory_to_remove(&self, key: &[u8]) -> bool {
        let Some((leaf, parent)) = self.way_in_memory(key) else {
            return false;
        };
        let stays_full = Node(leaf.page()).used_words() >= FULL_WORDS;
        if stays_full || braid_rt::mutant!("store_merge_with_missing_neighbours") {
            return true;
        }
        parent.is_none_or(|parent| {
            let node = Node(parent.page());
            let position = node.child_position(key);
            let neighbours = [position.checked_sub(1), Some(position + 1)];
            let mut neighbours = neighbours
                .into_iter()
                .flatten()
                .filter(|&i| i <= node.len());
            neighbours.all(|i| self.pool.read_resident(node.child_at(i)).is_some())
        })
    }

    fn leaf_in_memory(&self, key: &[u8]) -> Option<ReadPage<'_>> {
        Some(self.way_in_memory(key)?.0)
    }

    /// Returns the leaf of a key, and the node above it, if all of the way is in memory.
    fn way_in_memory(&self, key: &[u8]) -> Option<(ReadPage<'_>, Option<ReadPage<'_>>)> {
        if key.len() > SHORT_KEY_MAX {
            return None;
        }
        let mut above = None;
        let mut page = self.pool.read_resident(self.root)?;
        for _ in 0..LEVELS_MAX {
            let node = Node(page.page());
            if node.is_leaf() {
                return page.is_changeable().then_some((page, above));
            }
            let child = (node.kind() == KIND_INNER).then(|| node.child_of(key))?;
            // As in `open_child`: otherwise the child may be any page.
            let parent = page.validate().then_some(page)?;
            page = self.pool.read_resident(child)?;
            parent.validate().then_some(())?;
            above = Some(parent);
        }
        None
    }

    /// Reads the children that are not in memory.
    fn read_children(&self, ways: &[Way<'_, '_>]) -> Result<(), StoreError> {
        let mut missing = [0; TOGETHER];
        let mut count = 0;
        for way in ways {
            if self.pool.is_missing(way.child) && !missing[..count].contains(&way.child) {
                missing[count] = way.child;
                count += 1;
            }
        }
        match count {
            0 => Ok(()),
            _ => self.pool.read_batch(&missing[..count]),
        }
    }
}

/// Keeps the ways for which `continues` returns true.
#[inline]
fn keep<'w, 'a, 'k>(
    ways: &'w mut [Way<'a, 'k>],
    mut continues: impl FnMut(&mut Way<'a, 'k>) -> bool,
) -> &'w mut [Way<'a, 'k>] {
    let mut kept = 0;
    for i in 0..ways.len() {
        if continues(&mut ways[i]) {
            // Nearly always, all ways continue, and stay where they are.
            if kept < i {
                ways.swap(kept, i);
            }
            kept += 1;
        }
    }
    &mut ways[..kept]
}
