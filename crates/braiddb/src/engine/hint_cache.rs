//! Leaf hints: repeated accesses to a key skip the tree descent.

use braid_store::{LeafHint, Tree};

/// Number of leaf hints for keys. Keys whose hashes collide replace each other's hint.
const KEYS: usize = 128;

/// Number of leaf hints for writes, by table.
const TABLES: usize = 16;

/// Writes of a transaction whose records are located before it commits: hints of many more would
/// replace each other, and the leaves might leave the processor's caches again.
pub(crate) const LOCATED_MAX: usize = KEYS / 2;

/// Leaf hints of a context. Hints outlive the context's transactions: a hint may be wrong.
#[derive(Debug)]
pub(crate) struct HintCache {
    keys: Box<[LeafHint; KEYS]>,
    /// The leaf of the last write, by table.
    writes: Box<[LeafHint; TABLES]>,
    /// Number of levels above the leaves, by table: a hint, too.
    levels: [u8; TABLES],
}

impl Default for HintCache {
    fn default() -> Self {
        Self {
            keys: Box::new([LeafHint::default(); KEYS]),
            writes: Box::new([LeafHint::default(); TABLES]),
            levels: [0; TABLES],
        }
    }
}

impl HintCache {
    /// Returns the leaf hint of a key with this hash.
    #[inline]
    pub(crate) fn of_key(&mut self, hash: u64) -> &mut LeafHint {
        &mut self.keys[index(hash)]
    }

    /// Begins to bring the leaf of a key that is about to be changed into the processor's caches.
    /// Waits for nothing.
    #[inline]
    pub(crate) fn approach(&mut self, hash: u64, key: &[u8], table: u32, tree: &Tree) {
        let table = table as usize % TABLES;
        let hint = &mut self.keys[index(hash)];
        if !hint.is_of(tree, key) && !self.writes[table].is_of_many() {
            tree.approach(hint, key, self.levels[table]);
        }
    }

    /// Finds the place of a key whose leaf was approached, and begins to fetch its record.
    #[inline]
    pub(crate) fn locate(&mut self, hash: u64, key: &[u8], table: u32, tree: &Tree) {
        let levels = &mut self.levels[table as usize % TABLES];
        tree.locate(&mut self.keys[index(hash)], key, levels);
    }

    /// Returns the leaf hint for a write of a key: the key's own hint if there is one, otherwise
    /// the hint of the previous write to the table. `table` is the context's index of the table.
    #[inline]
    pub(crate) fn of_write(
        &mut self,
        hash: u64,
        key: &[u8],
        table: u32,
        tree: &Tree,
    ) -> &mut LeafHint {
        let own = index(hash);
        if self.keys[own].is_of(tree, key) {
            return &mut self.keys[own];
        }
        &mut self.writes[table as usize % TABLES]
    }
}

/// Returns the index of the leaf hint for a key with this hash.
#[inline]
fn index(hash: u64) -> usize {
    // The low bits select the bucket of the lock table.
    (hash >> 32) as usize % KEYS
}
