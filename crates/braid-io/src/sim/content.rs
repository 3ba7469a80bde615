//! The bytes of one simulated file: what a read sees, and what a crash leaves.

use std::collections::BTreeMap;
use std::ops::Range;

use super::BLOCK;
use super::blocks::{Blocks, Part};

#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// What a crash leaves for sure.
    pub(super) durable: Blocks,
    /// What a read sees.
    pub(super) current: Blocks,
    /// Blocks in which the two may differ (behind the end of `durable`, from zeroes), and when they were
    /// written last.
    pub(super) dirty: BTreeMap<usize, u64>,
    /// How current the blocks of `durable`, and its length, are, as far as it matters for syncs that overlap.
    pub(super) synced: BTreeMap<usize, u64>,
    synced_len: u64,
    /// Counts changes.
    pub(super) clock: u64,
}

/// What a sync has to make durable: the length, and the blocks with their bytes.
pub(super) struct Unsynced {
    clock: u64,
    len: usize,
    blocks: Vec<(usize, u64, Part)>,
}

impl Content {
    /// What a medium holds, and nothing else.
    pub(super) fn of(bytes: Blocks) -> Self {
        Content {
            durable: bytes.clone(),
            current: bytes,
            ..Content::default()
        }
    }

    pub(super) fn mark(&mut self, range: Range<usize>) {
        self.clock += 1;
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        self.dirty.extend(blocks.map(|block| (block, self.clock)));
    }

    pub(super) fn grow(&mut self, len: usize) {
        let old = self.current.len();
        if len > old {
            self.current.set_len(len);
            // What was cut off before is still on the medium.
            self.mark(old..len.min(self.durable.len()).max(old));
        }
    }

    pub(super) fn block(&self, block: usize) -> Range<usize> {
        let end = self.current.len();
        (block * BLOCK).min(end)..((block + 1) * BLOCK).min(end)
    }

    pub(super) fn unsynced(&self) -> Unsynced {
        let part = |(&block, &at): (&usize, &u64)| (block, at, self.current.part(block));
        Unsynced {
            clock: self.clock,
            len: self.current.len(),
            blocks: self.dirty.iter().map(part).collect(),
        }
    }

    /// A sync ends. Another one that began later may have ended before.
    pub(super) fn sync(&mut self, unsynced: Unsynced) {
        if unsynced.clock >= self.synced_len {
            self.synced_len = unsynced.clock;
            self.durable.set_len(unsynced.len);
        }
        for (block, at, part) in unsynced.blocks {
            let synced = self.synced.entry(block).or_default();
            if at <= *synced {
                continue;
            }
            *synced = at;
            self.durable.put_part(block, part);
            if self.dirty.get(&block) == Some(&at) {
                self.dirty.remove(&block);
            }
        }
    }

    /// Loses what was not synced.
    pub(super) fn forget_unsynced(&mut self) {
        self.current.clone_from(&self.durable);
        self.dirty.clear();
    }
}
