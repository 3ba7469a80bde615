//! Leaf hints: repeated accesses to a key skip the tree descent.
//!
//! A transaction accesses most keys several times: it prefetches them, reads them, and changes them
//! in its commit. While the version of the leaf is unchanged, a key keeps its place: an access
//! takes no descent and no search. And an inserted key often belongs to the leaf of the previously
//! inserted one.

use braid_rt::narrow;

use super::{Stamp, Tree};
use crate::buffer_pool::{ReadPage, WritePage};
use crate::node::Node;
use crate::page::{PageId, head8, head8_after};

/// Longest key whose place is recorded. For a longer key only its leaf is recorded: comparing the
/// key would read parts of the leaf that may be far from the value and from each other.
const NAME_MAX: usize = 16;

/// The place where a key was found, or is missing; see [`Tree::read_at`]. A hint: it is harmless if
/// it belongs to another key or tree, if its leaf changed since, or if it is empty, which is the
/// default.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeafHint {
    /// Names the tree. No tree has page 0.
    root: PageId,
    leaf: Stamp,
    /// The key, if it is short and was not just inserted.
    name: Option<Name>,
    is_there: bool,
    slot: u32,
    /// Whether the last two changed keys were in this leaf, as the next one may be.
    is_of_many: bool,
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    len: u8,
    bytes: [u64; 2],
}

impl Name {
    #[inline]
    fn of(key: &[u8]) -> Option<Self> {
        (key.len() <= NAME_MAX).then(|| Name {
            len: narrow(key.len()),
            bytes: [head8(key), head8_after(key, 8)],
        })
    }
}

/// The place in a leaf where a key is (`Ok`) or belongs (`Err`).
pub(super) type Slot = Result<usize, usize>;

impl LeafHint {
    /// Returns the leaf's stamp when the hint was recorded.
    #[inline]
    pub fn stamp(&self) -> Stamp {
        self.leaf
    }

    /// Whether the hint is for this key in this tree.
    #[inline]
    pub fn is_of(&self, tree: &Tree, key: &[u8]) -> bool {
        self.root == tree.root && self.has_key(key)
    }

    #[inline]
    fn has_key(&self, key: &[u8]) -> bool {
        self.name.is_some() && self.name == Name::of(key)
    }

    #[inline]
    fn place(&self) -> Slot {
        let slot = self.slot as usize;
        if self.is_there { Ok(slot) } else { Err(slot) }
    }

    /// Updates the hint after a change of the leaf. `in_place`: all keys keep their places.
    #[inline]
    pub(super) fn follow(&mut self, tree: &Tree, leaf: &WritePage<'_>, in_place: bool) {
        let page = leaf.id;
        let is_current = self.leaf.page == page && self.leaf.version == leaf.version();
        if !(in_place && is_current || braid_rt::mutant!("keep_a_moved_key")) {
            self.name = None;
        }
        self.is_of_many = self.leaf.page == page;
        self.root = tree.root;
        self.leaf = Stamp {
            page,
            version: leaf.version_after(),
        };
    }
}

impl Tree {
    /// Returns the hint for a key in a leaf that is read.
    #[inline]
    pub(super) fn leaf_hint(&self, leaf: &ReadPage<'_>, key: &[u8], place: Slot) -> LeafHint {
        LeafHint {
            root: self.root,
            leaf: Stamp::of(leaf),
            name: Name::of(key),
            is_there: place.is_ok(),
            slot: narrow(place.unwrap_or_else(|slot| slot)),
            is_of_many: false,
        }
    }

    /// Returns the place that a hint records; `None` if the leaf changed since, or the hint is for
    /// another key.
    #[inline(always)]
    pub(super) fn recall(&self, hint: &LeafHint, key: &[u8]) -> Option<(ReadPage<'_>, Slot)> {
        if hint.root != self.root {
            return None;
        }
        let has_key = hint.has_key(key);
        if !has_key && !hint.is_of_many {
            return None;
        }
        let leaf = self.pool.read_resident(hint.leaf.page)?;
        if leaf.version() != hint.leaf.version && !braid_rt::mutant!("recall_a_changed_leaf") {
            return None;
        }
        if has_key {
            return Some((leaf, hint.place()));
        }
        let node = Node(leaf.page());
        let is_here = node.is_between_fences(key);
        is_here.then(|| (leaf, node.search(key)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use braid_io::MemoryDevice;

    use super::*;
    use crate::store::{Store, StoreOptions};
    use crate::tree::Change;

    fn put(tree: &Tree, hint: &mut LeafHint, key: u32, value: &[u8]) {
        let put = Change::Put { version: 1, value };
        tree.modify_at(hint, &key.to_be_bytes(), |_| (put, ()))
            .unwrap();
    }

    fn read(tree: &Tree, hint: &mut LeafHint, key: u32) {
        let key = key.to_be_bytes();
        tree.read_at(hint, &key, |_| true, |_| ()).unwrap();
    }

    fn is_known(tree: &Tree, hint: &LeafHint, key: u32) -> bool {
        tree.recall(hint, &key.to_be_bytes()).is_some()
    }

    /// A store with two trees; the first has keys 0, 10, 20 and so on.
    fn trees() -> (Store, Tree, Tree) {
        let options = StoreOptions {
            pool_bytes: 1 << 20,
        };
        let store = Store::create(Arc::new(MemoryDevice::new()), options).unwrap();
        let (tree, other) = (store.tree(1).unwrap(), store.tree(2).unwrap());
        (0..50).for_each(|i| put(&tree, &mut LeafHint::default(), i * 10, &[7; 500]));
        (store, tree, other)
    }

    #[test]
    fn a_key_that_was_read_is_known_until_its_leaf_changes() {
        let (_store, tree, other) = trees();
        let mut hint = LeafHint::default();
        assert!(!is_known(&tree, &hint, 20));
        for key in [20, 25] {
            read(&tree, &mut hint, key);
            assert!(is_known(&tree, &hint, key));
            assert!(!is_known(&tree, &hint, 30), "that is another key");
            assert!(!is_known(&other, &hint, key), "that is another tree");
            put(&tree, &mut LeafHint::default(), 30, &[8; 500]);
            assert!(!is_known(&tree, &hint, key));
        }
        tree.prefetch(&[&20_u32.to_be_bytes()], |_, found| hint = found);
        assert!(is_known(&tree, &hint, 20));
        // A change in place keeps the hint valid.
        put(&tree, &mut hint, 20, &[8; 500]);
        assert!(is_known(&tree, &hint, 20));
        // Unless the record may have moved.
        put(&tree, &mut hint, 20, &[8; 520]);
        assert!(hint.name.is_none());
    }

    #[test]
    fn a_leaf_that_is_written_again_and_again_is_known() {
        let (_store, tree, _) = trees();
        let mut hint = LeafHint::default();
        put(&tree, &mut hint, 21, &[7; 10]);
        assert!(!is_known(&tree, &hint, 22), "it was only one");
        put(&tree, &mut hint, 22, &[7; 10]);
        assert!(is_known(&tree, &hint, 23));
        assert!(!is_known(&tree, &hint, 490), "that is in another leaf");
        put(&tree, &mut hint, 490, &[7; 10]);
        assert!(!is_known(&tree, &hint, 491));
    }
}
