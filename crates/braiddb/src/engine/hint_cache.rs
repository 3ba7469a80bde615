//! Leaf hints: repeated accesses to a key skip the tree descent.

use braid_store::{LeafHint, Tree};

/// Of so many keys, more or less: those whose hashes collide take each other's place.
const KEYS: usize = 128;

/// Of so many tables.
const TABLES: usize = 16;

/// The hint cache of a context. They outlive its transactions: as hints they can be wrong.
#[derive(Debug)]
pub(crate) struct HintCache {
    keys: Box<[LeafHint; KEYS]>,
    /// Where the last write went, by table.
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
    /// That of a key with this hash.
    #[inline]
    pub(crate) fn of_key(&mut self, hash: u64) -> &mut LeafHint {
        &mut self.keys[index(hash)]
    }

    /// That of a key which is going to be written: its own if the transaction came by it, or else that of the write
    /// before it to the table, which the context has at this index.
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

/// Where the leaf hint of a key with this hash is.
#[inline]
fn index(hash: u64) -> usize {
    // The low bits choose the stripe.
    (hash >> 32) as usize % KEYS
}
