//! Leaf hints: repeated accesses to a key skip the tree descent.

use braid_store::{LeafHint, Tree};

/// Number of leaf hints for keys. Keys whose hashes collide replace each other's hint.
const KEYS: usize = 128;

/// Number of leaf hints for writes, by table.
const TABLES: usize = 16;

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
            levels: [0; TABLES],
            newest: HintTag::NONE,
        }
    }
}

impl HintCache {
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

    /// Returns the leaf hint for a write of a key, and whether it is the key's own: the key's own
    /// hint if there is one, otherwise the hint of the previous write to the table. `table` is the
    /// context's index of the table.
    #[inline]
    pub(crate) fn of_write(
        &mut self,
        tag: HintTag,
        hash: u64,
        key: &[u8],
        table: u32,
        tree: &Tree,
    ) -> (&mut LeafHint, bool) {
        let own = &mut self.keys[index(hash)];
        let is_own = own.tag == tag && tag != HintTag::NONE;
        if is_own || own.leaf.is_of(tree, key) {
            return (&mut own.leaf, true);
        }
        (&mut self.writes[table as usize % TABLES], false)
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
        assert!(hints.of_write(tag, hash, key, 0, &tree).1);
        // The key has a hint, even if the write does not know it.
        assert!(hints.of_write(HintTag::NONE, hash, key, 0, &tree).1);
        assert!(!hints.of_write(HintTag::NONE, other_hash, other, 0, &tree).1);
        // A key with the same place in the cache replaces the hint.
        let newer = hints.approach(hash, other, 0, &tree);
        assert_ne!(newer, tag);
        assert!(!hints.of_write(tag, hash, key, 0, &tree).1);
        assert!(hints.of_write(newer, hash, other, 0, &tree).1);
        // A reader may use it for any key.
        *hints.of_key(hash) = LeafHint::default();
        assert!(!hints.of_write(newer, hash, other, 0, &tree).1);
    }
}
