//! Spares: free blocks that are kept for the page, map leaf or root block whose earlier contents
//! they have, so that the next write there can leave out the bytes that are already right; see
//! [`super::lines`].
//!
//! A spare is a free block. It is only taken last: the accounting of room counts it, and a file
//! without other blocks hands it to anyone.

use std::collections::BTreeMap;

use crate::number_set::NumberSet;

/// The spares of a file, at most one for each identity.
#[derive(Debug, Default)]
pub(super) struct Spares {
    kept: bool,
    /// A tree, because a hash table stops all evictions while it grows.
    by_identity: BTreeMap<u64, u64>,
    /// The blocks in `by_identity`, without those that another identity has taken since.
    blocks: NumberSet,
}

impl Spares {
    pub(super) fn keep(&mut self, keep: bool) {
        self.kept = keep;
    }

    pub(super) fn are_kept(&self) -> bool {
        self.kept
    }

    pub(super) fn len(&self) -> u64 {
        self.blocks.len()
    }

    pub(super) fn contains(&self, block: u64) -> bool {
        self.blocks.contains(block)
    }

    /// Whether an identity has a spare.
    pub(super) fn has(&self, identity: u64) -> bool {
        let block = self.by_identity.get(&identity);
        block.is_some_and(|block| self.blocks.contains(*block))
    }

    /// Adds a block that is in no set of free blocks, for an identity without a spare.
    pub(super) fn add(&mut self, identity: u64, block: u64) {
        self.by_identity.insert(identity, block);
        self.blocks.insert(block);
    }

    /// Takes the spare of an identity. The identity may name a block that was taken and is the spare
    /// of another one by now: as for every spare, its contents are durable.
    pub(super) fn take(&mut self, identity: u64) -> Option<u64> {
        let block = self.by_identity.remove(&identity)?;
        let is_there = if braid_rt::mutant!("take_spares_twice") {
            self.blocks.contains(block)
        } else {
            self.blocks.remove(block)
        };
        is_there.then_some(block)
    }

    /// Takes the lowest spare, whichever identity has it.
    pub(super) fn take_any(&mut self) -> Option<u64> {
        self.blocks.pop_first()
    }

    /// Removes all spares; returns their blocks.
    pub(super) fn clear(&mut self) -> NumberSet {
        self.by_identity.clear();
        std::mem::take(&mut self.blocks)
    }
}
