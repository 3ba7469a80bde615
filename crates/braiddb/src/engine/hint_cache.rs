//! Leaf hints: repeated accesses to a key skip the tree descent.

use braid_store::{LeafHint, Tree};

/// Number of leaf hints for keys. Keys whose hashes collide replace each other's hint.
const KEYS: usize = 128;

/// Number of leaf hints for writes, by table.
const TABLES: usize = 16;

/// Leaf hints of a context. Hints outlive the context's transactions: a hint may be wrong.
#[derive(Debug)]
pub(crate) struct HintCache {
    keys: Box<[LeafHint; KEYS]>,
    /// The leaf of the last write, by table.
    writes: Box<[LeafHint; TABLES]>,
}

impl Default for HintCache {
    fn default() -> Self {
        Self {
            keys: Box::new([LeafHint::default(); KEYS]),
            writes: Box::new([LeafHint::default(); TABLES]),
        }
    }
}

impl HintCache {
    /// Returns the leaf hint of a key with this hash.
    #[inline]
    pub(crate) fn of_key(&mut self, hash: u64) -> &mut LeafHint {
        &mut self.keys[index(hash)]
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
    // The low bits select the stripe.
    (hash >> 32) as usize % KEYS
}
