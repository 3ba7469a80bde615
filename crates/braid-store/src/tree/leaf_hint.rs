//! Leaf hints: repeated accesses to a key skip the tree descent.
//!
//! A transaction accesses most keys several times: it prefetches them, reads them, and changes them
//! in its commit. While the version of the leaf is unchanged, a key keeps its place: an access
//! takes no descent and no search. And an inserted key often belongs to the leaf of the previously
//! inserted one.

use braid_rt::narrow;

use super::{LEVELS_MAX, SEARCHED, SHORT_KEY_MAX, Stamp, ToKey, Tree, TreeName};
use crate::buffer_pool::{ReadPage, WritePage};
use crate::node::{KIND_INNER, Node};
use crate::page::{head8, head8_after};

/// Bytes of a key that a hint records. A longer key is compared with the one at its place: hints of
/// such keys skip the descent and the search, but read the record.
const NAME_MAX: usize = 16;

/// The place where a key was found, or is missing; see [`Tree::read_at`]. A hint: it is harmless if
/// it belongs to another key or tree, if its leaf changed since, or if it is empty, which is the
/// default.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeafHint {
    /// Names the tree. No tree has page 0.
    tree: TreeName,
    leaf: Stamp,
    /// The key, if it was not just inserted.
    name: Option<Name>,
    is_there: bool,
    /// Whether `slot` is known. If not, the leaf was not read yet, and may be no leaf.
    is_located: bool,
    slot: u32,
    /// Whether the last two changed keys were in this leaf, as the next one may be.
    is_of_many: bool,
}

/// A key, or the length and the beginning of a key that is longer than [`NAME_MAX`].
#[derive(Clone, Copy, Debug)]
struct Name {
    len: u16,
    bytes: [u64; 2],
}

impl Name {
    #[inline]
    fn of(key: &[u8]) -> Option<Self> {
        (key.len() <= SHORT_KEY_MAX).then(|| Name {
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

    /// Whether the hint is for this key in this tree, or, if the key is longer than 16 bytes, for one
    /// with its length and beginning.
    #[inline]
    pub fn is_of(&self, tree: &Tree, key: &[u8]) -> bool {
        self.tree == tree.name && self.has_key(key)
    }

    /// Whether the last two changed keys were in this leaf, as the next one may be.
    #[inline]
    pub fn is_of_many(&self) -> bool {
        self.is_of_many
    }

    /// Makes this hint, which is for a table's last key, one for the leaf of `found`, in which
    /// another key of the table was found.
    #[inline]
    pub fn follow_read(&mut self, found: &LeafHint) {
        // The read of a long key leaves the hint as it was. It may be that of an approach, whose page
        // may be no leaf.
        if !found.is_located && !braid_rt::mutant!("follow_an_approach") {
            *self = LeafHint::default();
            return;
        }
        self.is_of_many = self.leaf.page == found.leaf.page;
        self.name = None;
        self.tree = found.tree;
        self.leaf = found.leaf;
    }

    /// Whether the hint records the place of its key, and not only its leaf.
    #[inline]
    pub(super) fn is_exact(&self) -> bool {
        self.is_located && !self.is_of_many
    }

    #[inline]
    fn has_key(&self, key: &[u8]) -> bool {
        // The first bytes first: hints are mostly compared with another key.
        self.name.is_some_and(|name| {
            usize::from(name.len) == key.len()
                && name.bytes[0] == head8(key)
                && name.bytes[1] == head8_after(key, 8)
        })
    }

    #[inline]
    fn place(&self) -> Slot {
        let slot = self.slot as usize;
        if self.is_there { Ok(slot) } else { Err(slot) }
    }

    #[inline]
    fn set_place(&mut self, place: Slot) {
        self.is_located = true;
        self.is_there = place.is_ok();
        self.slot = narrow(place.unwrap_or_else(|slot| slot));
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
        self.tree = tree.name;
        self.leaf = Stamp {
            page,
            version: leaf.version_after(),
        };
    }

    /// Updates the hint of the changed key itself, as [`LeafHint::follow`]. Other keys are not expected
    /// in its leaf: the hint of the table's last change is for them.
    #[inline]
    pub(super) fn follow_own(&mut self, tree: &Tree, leaf: &WritePage<'_>, in_place: bool) {
        self.follow(tree, leaf, in_place);
        self.is_of_many = false;
    }
}

impl Tree {
    /// Returns the hint for a key in a leaf that is read.
    #[inline]
    pub(super) fn leaf_hint(&self, leaf: &ReadPage<'_>, key: &[u8], place: Slot) -> LeafHint {
        LeafHint {
            tree: self.name,
            leaf: Stamp::of(leaf),
            name: Name::of(key),
            is_there: place.is_ok(),
            is_located: true,
            slot: narrow(place.unwrap_or_else(|slot| slot)),
            is_of_many: false,
        }
    }

    /// Like [`Tree::recall`], for a hint that [is of](LeafHint::is_of) this key and tree: comparing
    /// them again would take as long as finding the leaf.
    #[inline(always)]
    pub(super) fn recall_own(&self, hint: &LeafHint, key: &[u8]) -> Option<(ReadPage<'_>, Slot)> {
        if key.len() > NAME_MAX {
            return self.recall_long(hint, key);
        }
        debug_assert!(hint.is_of(self, key), "the caller knows whose hint it is");
        let leaf = self.read_hinted(hint)?;
        if hint.is_located {
            return Some((leaf, hint.place()));
        }
        let node = Node(leaf.page());
        node.is_leaf().then(|| {
            node.prefetch_search();
            (leaf, node.search(key))
        })
    }

    /// Returns the place that a hint records for a key of which it knows only the beginning; `None` if
    /// another key is there, or the key was missing: what is between its neighbours is not compared.
    /// Keys with the same beginning take each other's hint for their own, so the caller cannot know
    /// whose it is.
    #[inline(always)]
    fn recall_long(&self, hint: &LeafHint, key: &[u8]) -> Option<(ReadPage<'_>, Slot)> {
        if !(hint.is_located && hint.is_of(self, key)) {
            return None;
        }
        let slot = hint.place().ok()?;
        let leaf = self.read_hinted(hint)?;
        let is_there = Node(leaf.page()).has_key_at(slot, key, NAME_MAX);
        let is_believed = is_there || braid_rt::mutant!("believe_the_beginning_of_a_key");
        is_believed.then_some((leaf, Ok(slot)))
    }

    /// Returns the place that a hint records; `None` if the leaf changed since, or the hint is for
    /// another key.
    #[inline(always)]
    pub(super) fn recall(&self, hint: &LeafHint, key: &[u8]) -> Option<(ReadPage<'_>, Slot)> {
        if hint.tree != self.name {
            return None;
        }
        if hint.has_key(key) {
            return self.recall_own(hint, key);
        }
        self.recall_near(hint, key)
    }

    /// Returns the place of a key in the leaf of a hint for other keys, if it is likely there.
    #[inline(always)]
    pub(super) fn recall_near(&self, hint: &LeafHint, key: &[u8]) -> Option<(ReadPage<'_>, Slot)> {
        if !hint.is_of_many || hint.tree != self.name {
            return None;
        }
        let leaf = self.read_hinted(hint)?;
        let node = Node(leaf.page());
        node.is_between_fences(key)
            .then(|| (leaf, node.search(key)))
    }

    /// Returns the leaf of a hint, if it is in memory and did not change since.
    #[inline(always)]
    fn read_hinted(&self, hint: &LeafHint) -> Option<ReadPage<'_>> {
        let leaf = self.pool.read_resident(hint.leaf.page)?;
        let is_unchanged = leaf.version() == hint.leaf.version;
        (is_unchanged || braid_rt::mutant!("recall_a_changed_leaf")).then_some(leaf)
    }

    /// Finds the place of a key that is about to be locked and read, and begins to fetch its record.
    /// Tries `hint` first, then sets it. A hint: errors are left to the read.
    #[inline]
    pub fn seek(&self, hint: &mut LeafHint, key: &[u8]) {
        if key.len() > NAME_MAX {
            return;
        }
        let (leaf, place) = match self.recall(hint, key) {
            Some(found) => found,
            None => match self.try_descend(&ToKey(key)) {
                Ok(Some(leaf)) => (leaf, Node(leaf.page()).search(key)),
                _ => return,
            },
        };
        if let Ok(slot) = place {
            Node(leaf.page()).prefetch_record(slot);
        }
        *hint = self.leaf_hint(&leaf, key, place);
    }

    /// Descends to the leaf of a key, if all nodes above it are in memory, and begins to bring the
    /// leaf into the processor's caches. Waits for neither. Sets `hint` to the leaf, and returns
    /// whether it did.
    ///
    /// `levels` is the number of levels above the leaves, as [`Tree::locate`] learned it: the leaf
    /// itself would have to be read to recognize it.
    #[inline]
    pub fn approach(&self, hint: &mut LeafHint, key: &[u8], levels: u8) -> bool {
        if key.len() > NAME_MAX {
            return false;
        }
        let Some(leaf) = self.find_above(key, levels) else {
            return false;
        };
        leaf.page().prefetch(0, SEARCHED);
        leaf.prefetch_change();
        *hint = LeafHint {
            is_located: false,
            ..self.leaf_hint(&leaf, key, Err(0))
        };
        true
    }

    /// Returns the node that is this number of levels below the root, on the way to a key.
    #[inline]
    fn find_above(&self, key: &[u8], levels: u8) -> Option<ReadPage<'_>> {
        let mut page = self.pool.read_resident(self.root)?;
        for _ in 0..levels {
            let node = Node(page.page());
            if node.kind() != KIND_INNER {
                break;
            }
            let child = self.pool.read_resident(node.child_of(key))?;
            // As in `open_child`: otherwise the child may be any page.
            page.validate().then_some(())?;
            page = child;
        }
        Some(page)
    }

    /// Finds the place of a key in the leaf to which [`Tree::approach`] led, and begins to bring its
    /// record into the processor's caches. Corrects `levels` if that was no leaf. The hint [is
    /// of](LeafHint::is_of) this key and tree.
    #[inline]
    pub fn locate(&self, hint: &mut LeafHint, key: &[u8], levels: &mut u8) {
        if hint.is_located {
            // The key was read, or prefetched, which took only the record.
            self.pool.prefetch_change(hint.leaf.page, hint.leaf.version);
            return;
        }
        match self.recall_own(hint, key) {
            Some((leaf, place)) => {
                if let Ok(slot) = place {
                    Node(leaf.page()).prefetch_record_for_write(slot);
                }
                hint.set_place(place);
            }
            None => *levels = self.count_levels(key, *levels),
        }
    }

    /// Counts the levels above the leaf of a key; `otherwise` if that would take I/O.
    #[cold]
    fn count_levels(&self, key: &[u8], otherwise: u8) -> u8 {
        for levels in 0..LEVELS_MAX {
            let levels = narrow(levels);
            match self.find_above(key, levels) {
                Some(page) if Node(page.page()).is_leaf() => return levels,
                Some(_) => {}
                None => break,
            }
        }
        otherwise
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
        let options = StoreOptions::of_pool(1 << 20);
        let store = Store::create(Arc::new(MemoryDevice::new()), options).unwrap();
        let (tree, other) = (store.tree(1).unwrap(), store.tree(2).unwrap());
        (0..50).for_each(|i| put(&tree, &mut LeafHint::default(), i * 10, &[7; 500]));
        (store, tree, other)
    }

    /// Page ids, and so roots, of two stores may be equal, and so may the versions of the pages.
    #[test]
    fn a_hint_of_one_store_is_none_for_another() {
        let tree_of = |number| {
            let options = StoreOptions {
                number,
                ..StoreOptions::of_pool(1 << 20)
            };
            let store = Store::create(Arc::new(MemoryDevice::new()), options).unwrap();
            let tree = store.tree(1).unwrap();
            put(&tree, &mut LeafHint::default(), 20, &[7; 500]);
            (store, tree)
        };
        let ((_one, tree), (_other, other)) = (tree_of(0), tree_of(1));
        assert_eq!(tree.root, other.root);
        let mut hint = LeafHint::default();
        read(&tree, &mut hint, 20);
        assert!(is_known(&tree, &hint, 20));
        assert!(!is_known(&other, &hint, 20));
    }

    #[test]
    fn a_key_that_was_read_is_known_until_its_leaf_changes() {
        let (_store, tree, other) = trees();
        let mut hint = LeafHint::default();
        assert!(!is_known(&tree, &hint, 20));
        for key in [20_u32, 25] {
            read(&tree, &mut hint, key);
            assert!(is_known(&tree, &hint, key));
            assert!(!is_known(&tree, &hint, 30), "that is another key");
            assert!(!is_known(&other, &hint, key), "that is another tree");
            put(&tree, &mut LeafHint::default(), 30, &[8; 500]);
            assert!(!is_known(&tree, &hint, key));
        }
        tree.prefetch(&[&20_u32.to_be_bytes()], |_, found| hint = found)
            .unwrap();
        assert!(is_known(&tree, &hint, 20));
        // A change in place keeps the hint valid.
        put(&tree, &mut hint, 20, &[8; 500]);
        assert!(is_known(&tree, &hint, 20));
        // Unless the record may have moved.
        put(&tree, &mut hint, 20, &[8; 520]);
        assert!(hint.name.is_none());
    }

    /// The hint records 16 bytes of a key.
    #[test]
    fn keys_with_the_same_beginning_have_hints_of_their_own() {
        let (_store, tree, _) = trees();
        let key = |last: u8| [&[1; 24][..], &[last]].concat();
        let [one, two, missing] = [1, 2, 3].map(key);
        for key in [&one, &two] {
            let put = Change::Put {
                version: 1,
                value: &key[24..],
            };
            let mut hint = LeafHint::default();
            tree.modify_at(&mut hint, key, |_| (put, ())).unwrap();
        }
        let mut hint = LeafHint::default();
        let mut read = |key: &[u8]| {
            let value = tree.read_at(&mut hint, key, |_| true, |value| value.to_bytes());
            let is_recalled = tree.recall(&hint, key).is_some();
            let others = [&one, &two, &missing].map(|key| tree.recall(&hint, key).is_some());
            let known = others.iter().filter(|is_known| **is_known).count();
            (
                value.unwrap().and_then(|(_, value)| value),
                is_recalled,
                known,
            )
        };
        for _ in 0..2 {
            assert_eq!(read(&one), (Some(one[24..].to_vec().into()), true, 1));
            assert_eq!(read(&two), (Some(two[24..].to_vec().into()), true, 1));
            assert_eq!(read(&missing), (None, false, 0));
        }
        // A write whose hint is for the other key.
        read(&one);
        let put = Change::Put {
            version: 2,
            value: &[7],
        };
        let (mut hint_of_one, mut near) = (hint, LeafHint::default());
        let mut write = |key: &[u8]| {
            tree.modify_near(&mut hint_of_one, Some(&mut near), key, |_| (put, ()))
                .unwrap();
        };
        let value = |key: &[u8]| tree.get(key, |_| true).unwrap().unwrap().value.unwrap();
        write(&two);
        assert_eq!((&value(&one)[..], &value(&two)[..]), (&[1][..], &[7][..]));
        // A write that takes the hint for its own although another key has used it.
        write(&one);
        assert_eq!((&value(&one)[..], &value(&two)[..]), (&[7][..], &[7][..]));
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
    /// Approaches and locates a key. Returns whether its place is known.
    fn locate(tree: &Tree, hint: &mut LeafHint, key: u32, levels: &mut u8) -> bool {
        let key = key.to_be_bytes();
        *hint = LeafHint::default();
        assert!(tree.approach(hint, &key, *levels));
        tree.locate(hint, &key, levels);
        hint.is_of(tree, &key) && hint.is_located
    }

    /// An approach that does not know the levels of the tree leads to the root.
    #[test]
    fn a_page_that_may_be_no_leaf_is_not_followed() {
        let (_store, tree, _) = trees();
        let (mut hint, mut last) = (LeafHint::default(), LeafHint::default());
        assert!(tree.approach(&mut hint, &20_u32.to_be_bytes(), 0));
        (0..2).for_each(|_| last.follow_read(&hint));
        assert!(!is_known(&tree, &last, 20));
        read(&tree, &mut hint, 20);
        (0..2).for_each(|_| last.follow_read(&hint));
        assert!(is_known(&tree, &last, 20));
    }

    #[test]
    fn a_leaf_that_was_approached_is_known_until_it_changes() {
        let (_store, tree, other) = trees();
        let (mut hint, mut levels) = (LeafHint::default(), 0);
        assert!(!locate(&tree, &mut hint, 20, &mut levels), "the root");
        assert_eq!(levels, 1, "corrected");
        for key in [20_u32, 25] {
            assert!(tree.approach(&mut hint, &key.to_be_bytes(), levels));
            assert!(hint.is_of(&tree, &key.to_be_bytes()) && !hint.is_located);
            assert!(is_known(&tree, &hint, key), "after a search of the leaf");
            assert!(!is_known(&other, &hint, key), "that is another tree");
            assert!(
                !hint.is_of(&tree, &30_u32.to_be_bytes()),
                "that is another key"
            );
            tree.locate(&mut hint, &key.to_be_bytes(), &mut levels);
            assert!(hint.is_located);
            let place = tree.recall(&hint, &key.to_be_bytes()).unwrap().1;
            assert_eq!(place.is_ok(), key == 20);
            let descended = Node(tree.descend(&key.to_be_bytes()).unwrap().page());
            assert_eq!(place, descended.search(&key.to_be_bytes()));
            assert!(tree.approach(&mut hint, &key.to_be_bytes(), levels));
            put(&tree, &mut LeafHint::default(), 30, &[8; 500]);
            tree.locate(&mut hint, &key.to_be_bytes(), &mut levels);
            assert!(!hint.is_located && !is_known(&tree, &hint, key));
            assert_eq!(levels, 1);
        }
    }

    #[test]
    fn an_approach_stops_at_a_leaf() {
        let (_store, tree, other) = trees();
        let (mut hint, mut levels) = (LeafHint::default(), 7);
        assert!(locate(&tree, &mut hint, 20, &mut levels));
        put(&other, &mut LeafHint::default(), 20, &[7; 500]);
        assert!(locate(&other, &mut hint, 20, &mut levels), "the root");
    }

    #[test]
    fn the_leaf_of_a_key_of_more_than_sixteen_bytes_is_not_approached() {
        let (_store, tree, _) = trees();
        let mut hint = LeafHint::default();
        assert!(!tree.approach(&mut hint, &[1; 17], 1));
        assert_eq!(hint.tree, TreeName::default());
    }
}
