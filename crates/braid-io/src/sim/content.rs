//! The bytes of one simulated file: the contents that a read sees, and those that a crash leaves.

use std::ops::Range;

use super::BLOCK;
use super::blocks::{Blocks, Part};

/// The time of an event for each block; 0 for none.
#[derive(Clone, Debug, Default)]
pub(super) struct Times(Vec<u64>);

impl Times {
    pub(super) fn get(&self, block: usize) -> u64 {
        self.0.get(block).copied().unwrap_or_default()
    }

    pub(super) fn set(&mut self, blocks: Range<usize>, time: u64) {
        if blocks.end > self.0.len() {
            self.0.resize(blocks.end, 0);
        }
        if blocks.start < blocks.end {
            self.0[blocks].fill(time);
        }
    }

    /// Forgets all blocks from `blocks` on.
    pub(super) fn truncate(&mut self, blocks: usize) {
        self.0.truncate(blocks);
    }

    /// Returns the blocks with an event, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let times = self.0.iter().copied().enumerate();
        times.filter(|(_, time)| *time > 0)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// Whether it is a file of the log, which may be on another medium.
    pub(super) is_log: bool,
    /// The contents that certainly survive a crash.
    pub(super) durable: Blocks,
    /// The contents that a read sees.
    pub(super) current: Blocks,
    /// Blocks in which the two may differ (after the end of `durable`, from zeroes), with the time
    /// of their last write.
    pub(super) dirty: Times,
    /// The times of the contents of `durable`, and of its length, as far as overlapping syncs need
    /// them.
    pub(super) synced: Times,
    synced_len: u64,
    /// Counts changes.
    pub(super) clock: u64,
    /// The last change made by earlier processes, which were killed.
    inherited: u64,
}

/// The data that a sync makes durable: the length, and the blocks with their bytes.
pub(super) struct Unsynced {
    clock: u64,
    len: usize,
    blocks: Vec<(usize, u64, Part)>,
}

impl Content {
    /// Creates the content of a medium without unsynced changes.
    pub(super) fn of(bytes: Blocks, is_log: bool) -> Self {
        Content {
            is_log,
            durable: bytes.clone(),
            current: bytes,
            ..Content::default()
        }
    }

    pub(super) fn mark(&mut self, range: Range<usize>) {
        self.clock += 1;
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        self.dirty.set(blocks, self.clock);
    }

    /// Records that a range of the contents is durable. Blocks of which it is only a part become
    /// durable as a whole.
    pub(super) fn settle(&mut self, range: Range<usize>) {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let is_whole = |block: usize| {
            let whole = block * BLOCK..(block + 1) * BLOCK;
            range.start <= whole.start && whole.end <= range.end
        };
        for block in blocks {
            if !is_whole(block) {
                if self.durable.len() < self.block(block).end {
                    continue;
                }
                self.durable.put_part(block, self.current.part(block));
            }
            self.dirty.set(block..block + 1, 0);
            self.synced.set(block..block + 1, self.clock);
        }
    }

    pub(super) fn grow(&mut self, len: usize) {
        let old = self.current.len();
        if len > old {
            self.current.set_len(len);
            // Bytes that were truncated before are still on the medium.
            self.mark(old..len.min(self.durable.len()).max(old));
        }
    }

    pub(super) fn block(&self, block: usize) -> Range<usize> {
        let end = self.current.len();
        (block * BLOCK).min(end)..((block + 1) * BLOCK).min(end)
    }

    pub(super) fn unsynced(&self) -> Unsynced {
        let part = |(block, at)| (block, at, self.current.part(block));
        Unsynced {
            clock: self.clock,
            len: self.current.len(),
            blocks: self.dirty.iter().map(part).collect(),
        }
    }

    /// Ends a sync. Another one that began later may have ended before.
    pub(super) fn sync(&mut self, unsynced: Unsynced) {
        if unsynced.clock >= self.synced_len {
            self.synced_len = unsynced.clock;
            self.durable.set_len(unsynced.len);
        }
        for (block, at, part) in unsynced.blocks {
            if at <= self.synced.get(block) {
                continue;
            }
            self.synced.set(block..block + 1, at);
            self.durable.put_part(block, part);
            if self.dirty.get(block) == at {
                self.dirty.set(block..block + 1, 0);
            }
        }
    }

    /// Marks all changes so far as inherited: their process was killed, and another one opens the
    /// file.
    pub(super) fn inherit(&mut self) {
        self.inherited = self.clock;
    }

    /// Whether a killed process made the change at `time`.
    pub(super) fn is_inherited(&self, time: u64) -> bool {
        time <= self.inherited
    }

    /// Loses all unsynced changes.
    pub(super) fn forget_unsynced(&mut self) {
        self.current.clone_from(&self.durable);
        self.dirty.truncate(0);
    }
}
