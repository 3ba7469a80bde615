//! Going down for several keys at once.
//!
//! A descent waits for memory, or for the medium, at each level, and finds out only there what it needs next. Descents
//! to different keys don't wait for each other: taken level by level together, their waits overlap (group
//! prefetching, Chen et al. 2007 §4, here for a tree).

use super::{LEVELS_MAX, LeafHint, SEARCHED, Tree};
use crate::buffer_pool::ReadPage;
use crate::node::{KIND_INNER, KIND_LEAF, Node};
use crate::page::PageId;

/// Keys that [`Tree::prefetch`] goes for together: about as many lines as a core can wait for at a time.
pub const TOGETHER: usize = 16;

/// A descent.
#[derive(Clone, Copy)]
struct Way<'a, 'k> {
    key: &'k [u8],
    page: ReadPage<'a>,
    /// Where it leads to next.
    child: PageId,
}

impl<'a> Way<'a, '_> {
    fn node(&self) -> Node<'a> {
        Node(self.page.page())
    }

    /// Looks which child is next; says whether there is one.
    #[inline]
    fn find_child(&mut self) -> bool {
        let node = self.node();
        self.child = node.child_of(self.key);
        node.kind() == KIND_INNER && self.page.validate()
    }
}

impl Tree {
    /// Brings what reading or changing these keys looks at into memory, and into the processor's caches, all at the
    /// same time; tells where they are. A hint: what fails or changes meanwhile is left to who comes for it.
    #[inline]
    pub fn prefetch(&self, keys: &[&[u8]], mut found: impl FnMut(&[u8], LeafHint)) {
        keys.chunks(TOGETHER)
            .for_each(|keys| self.prefetch_together(keys, &mut found));
    }

    #[inline]
    fn prefetch_together(&self, keys: &[&[u8]], found: &mut impl FnMut(&[u8], LeafHint)) {
        let Ok(Some(root)) = self.pool.read(self.root) else {
            return;
        };
        let way = |key| Way {
            key,
            page: root,
            child: 0,
        };
        let mut ways: [_; TOGETHER] =
            std::array::from_fn(|i| way(keys.get(i).copied().unwrap_or_default()));
        let mut ways = &mut ways[..keys.len()];
        for _ in 0..LEVELS_MAX {
            if ways.iter().any(|way| way.node().kind() == KIND_LEAF) {
                break;
            }
            ways = keep(ways, Way::find_child);
            self.read_children(ways);
            ways = keep(ways, |way| {
                let Some(page) = self.pool.read_if_there(way.child) else {
                    return false;
                };
                // As in `open_child`: else what was opened may be anything.
                if !way.page.validate() {
                    return false;
                }
                way.page = page;
                page.page().prefetch(0, SEARCHED);
                true
            });
        }
        // In a damaged tree not all have come equally far.
        for way in ways.iter().filter(|way| way.node().is_leaf()) {
            let place = way.node().search(way.key);
            if let Ok(i) = place {
                way.node().prefetch_record(i);
            }
            // If the leaf was changed meanwhile, its version tells who recalls it.
            found(way.key, self.leaf_hint(&way.page, way.key, place));
        }
    }

    /// Has those of the children read that are not in memory.
    fn read_children(&self, ways: &[Way<'_, '_>]) {
        let mut missing = [0; TOGETHER];
        let mut count = 0;
        for way in ways {
            if self.pool.is_missing(way.child) && !missing[..count].contains(&way.child) {
                missing[count] = way.child;
                count += 1;
            }
        }
        if count > 0 {
            self.pool.read_batch(&missing[..count]);
        }
    }
}

/// Keeps the ways that `goes_on` says yes to.
#[inline]
fn keep<'w, 'a, 'k>(
    ways: &'w mut [Way<'a, 'k>],
    mut goes_on: impl FnMut(&mut Way<'a, 'k>) -> bool,
) -> &'w mut [Way<'a, 'k>] {
    let mut kept = 0;
    for i in 0..ways.len() {
        if goes_on(&mut ways[i]) {
            ways.swap(kept, i);
            kept += 1;
        }
    }
    &mut ways[..kept]
}
