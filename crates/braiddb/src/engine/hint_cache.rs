//! Leaf hints: repeated accesses to a key skip the tree descent.

use braid_store::{LeafHint, Tree};

/// Number of leaf hints for keys. Keys whose hashes collide replace each other's hint.
const KEYS: usize = 128;

/// Number of leaf hints for writes, by table; also of the tables that a context keeps from one
/// transaction to the next.
pub(crate) const TABLES: usize = 16;

/// Writes of a transaction whose records are located before it commits: hints of many more would
/// replace each other, and the leaves might leave the processor's caches again.
pub(crate) const LOCATED_MAX: usize = KEYS / 2;

/// Names the hint of a write, to find it again without comparing the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HintTag(u64);

impl HintTag {
    /// No write's.
    pub(crate) const NONE: Self = Self(0);
}

/// A leaf hint of a key, in a cache line of its own.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct KeyHint {
    leaf: LeafHint,
    /// The write for whose key the hint is; unknown after any other use.
    tag: HintTag,
}

/// Leaf hints of a context. Hints outlive the context's transactions: a hint may be wrong.
#[derive(Debug)]
pub(crate) struct HintCache {
    keys: Box<[KeyHint; KEYS]>,
    /// The leaf of the last write, by table.
    writes: Box<[LeafHint; TABLES]>,
    /// The leaf of the last read, by table.
    reads: Box<[LeafHint; TABLES]>,
    /// Number of levels above the leaves, by table: a hint, too.
    levels: [u8; TABLES],
    /// The newest tag.
    newest: HintTag,
}

impl Default for HintCache {
    fn default() -> Self {
        Self {
            keys: Box::new([KeyHint::default(); KEYS]),
            writes: Box::new([LeafHint::default(); TABLES]),
            reads: Box::new([LeafHint::default(); TABLES]),
            levels: [0; TABLES],
            newest: HintTag::NONE,
        }
    }
}

impl HintCache {
    /// Returns the leaf hint of a key that is about to be read. `table` is the context's index of the
    /// table. If the last two reads of the table were in one leaf, a key without a hint of its own is
    /// expected there.
    #[inline]
    pub(crate) fn of_read(
        &mut self,
        hash: u64,
        key: &[u8],
        table: u32,
        tree: &Tree,
    ) -> &mut LeafHint {
        let near = &self.reads[table as usize % TABLES];
        let hint = &mut self.keys[index(hash)];
        hint.tag = HintTag::NONE;
        if near.is_of_many() && !hint.leaf.is_of(tree, key) {
            hint.leaf = *near;
        }
        &mut hint.leaf
    }

    /// Records that the hint of a key led to its read.
    #[inline]
    pub(crate) fn note_read(&mut self, hash: u64, table: u32) {
        let found = &self.keys[index(hash)].leaf;
        self.reads[table as usize % TABLES].follow_read(found);
    }

    /// Returns the leaf hint of a key with this hash.
    #[inline]
    pub(crate) fn of_key(&mut self, hash: u64) -> &mut LeafHint {
        let hint = &mut self.keys[index(hash)];
        // The caller may make it another key's.
        hint.tag = HintTag::NONE;
        &mut hint.leaf
    }

    /// Begins to bring the leaf of a key that is about to be changed into the processor's caches.
    /// Waits for nothing. Returns the tag by which the write finds the hint again.
    #[inline]
    pub(crate) fn approach(&mut self, hash: u64, key: &[u8], table: u32, tree: &Tree) -> HintTag {
        let table = table as usize % TABLES;
        let hint = &mut self.keys[index(hash)];
        if !hint.leaf.is_of(tree, key) {
            if self.writes[table].is_of_many() {
                return HintTag::NONE;
            }
            if !tree.approach(&mut hint.leaf, key, self.levels[table]) {
                return HintTag::NONE;
            }
        }
        self.newest.0 += 1;
        hint.tag = self.newest;
        self.newest
    }

    /// Finds the place of a key whose leaf was approached, and begins to fetch its record.
    #[inline]
    pub(crate) fn locate(&mut self, tag: HintTag, hash: u64, key: &[u8], table: u32, tree: &Tree) {
        let hint = &mut self.keys[index(hash)];
        if hint.tag == tag && tag != HintTag::NONE {
            let levels = &mut self.levels[table as usize % TABLES];
            tree.locate(&mut hint.leaf, key, levels);
        }
    }

    /// Returns the leaf hints for a write of a key: the key's own if there is one, and that of the
    /// previous write to the table. Without its own, the latter is the first, and the only one.
    /// `table` is the context's index of the table.
    #[inline]
    pub(crate) fn of_write(
        &mut self,
        tag: HintTag,
        hash: u64,
        key: &[u8],
        table: u32,
        tree: &Tree,
    ) -> (&mut LeafHint, Option<&mut LeafHint>) {
        let own = &mut self.keys[index(hash)];
        let near = &mut self.writes[table as usize % TABLES];
        let is_own = own.tag == tag && tag != HintTag::NONE;
        if is_own || own.leaf.is_of(tree, key) {
            return (&mut own.leaf, Some(near));
        }
        (near, None)
    }
}

/// Returns the index of the leaf hint for a key with this hash.
#[inline]
fn index(hash: u64) -> usize {
    // The low bits select the bucket of the lock table.
    (hash >> 32) as usize % KEYS
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use braid_io::MemoryDevice;
    use braid_store::{Store, StoreOptions};

    use super::*;

    #[test]
    fn a_write_finds_its_own_hint_until_another_use_of_it() {
        let options = StoreOptions::of_pool(1 << 20);
        let store = Store::create(Arc::new(MemoryDevice::new()), options).unwrap();
        let tree = store.tree(1).unwrap();
        let mut hints = HintCache::default();
        let (hash, other_hash, key, other) = (7 << 32, 8 << 32, b"key", b"other");
        let tag = hints.approach(hash, key, 0, &tree);
        assert_ne!(tag, HintTag::NONE);
        assert!(hints.of_write(tag, hash, key, 0, &tree).1.is_some());
        // The key has a hint, even if the write does not know it.
        assert!(
            hints
                .of_write(HintTag::NONE, hash, key, 0, &tree)
                .1
                .is_some()
        );
        assert!(
            hints
                .of_write(HintTag::NONE, other_hash, other, 0, &tree)
                .1
                .is_none()
        );
        // A key with the same place in the cache replaces the hint.
        let newer = hints.approach(hash, other, 0, &tree);
        assert_ne!(newer, tag);
        assert!(hints.of_write(tag, hash, key, 0, &tree).1.is_none());
        assert!(hints.of_write(newer, hash, other, 0, &tree).1.is_some());
        // A reader may use it for any key.
        *hints.of_key(hash) = LeafHint::default();
        assert!(hints.of_write(newer, hash, other, 0, &tree).1.is_none());
    }
    #[test]
    fn a_key_is_expected_in_the_leaf_of_the_last_two_reads() {
        let options = StoreOptions::of_pool(1 << 20);
        let store = Store::create(Arc::new(MemoryDevice::new()), options).unwrap();
        let tree = store.tree(1).unwrap();
        let mut hints = HintCache::default();
        // All in the root, which is a leaf.
        let mut is_expected = |hash: u64| {
            let (hash, key) = (hash << 32, hash.to_be_bytes());
            let hint = hints.of_read(hash, &key, 0, &tree);
            let is_expected = hint.is_of_many();
            let read = tree.read_at(hint, &key, |_| true, |_| ());
            assert_eq!(read.unwrap(), None);
            assert!(
                hint.is_of(&tree, &key),
                "the read has found the key's place"
            );
            hints.note_read(hash, 0);
            is_expected
        };
        assert_eq!([1, 2, 3].map(&mut is_expected), [false, false, true]);
        assert!(!is_expected(2), "it has a hint of its own");
        let other = store.tree(2).unwrap();
        let key = 4_u64.to_be_bytes();
        let hint = hints.of_read(4 << 32, &key, 0, &other);
        other.read_at(hint, &key, |_| true, |_| ()).unwrap();
        hints.note_read(4 << 32, 0);
        assert!(!hints.of_read(5 << 32, &key, 0, &other).is_of_many());
    }
}
