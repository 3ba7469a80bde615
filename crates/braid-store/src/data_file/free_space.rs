//! The free space of the data file.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use braid_rt::to_usize;

use super::block_of;
use super::room::Room;

/// The first block that is not a superblock.
pub(crate) const FIRST_BLOCK: u64 = 2;

/// Blocks that one call of [`Space::trim_some`] drops at most, because other threads wait for the
/// lock meanwhile.
const TRIM_STEP: usize = 64;

/// The free blocks below the end, and the end. Nothing of it is stored: it follows from the page
/// map.
#[derive(Debug)]
pub(crate) struct Space {
    free: BTreeSet<u64>,
    end: u64,
    /// Whether freed blocks stay unused from now on.
    frozen: bool,
    /// After a failed sync, the blocks that were taken since.
    taken_since: Option<HashSet<u64>>,
    pins: Vec<Pin>,
    /// Blocks that become free once no pin holds them.
    held: Vec<u64>,
    /// The accounting of room, updated for each block that is taken or freed.
    room: Arc<Room>,
}

/// Blocks that must keep their contents although nothing new refers to them: those of a checkpoint
/// that is being copied.
#[derive(Debug)]
struct Pin {
    number: u64,
    /// One bit per block.
    blocks: Vec<u64>,
}

impl Pin {
    fn holds(&self, block: u64) -> bool {
        let word = self.blocks.get((block / 64) as usize);
        word.is_some_and(|word| word >> (block % 64) & 1 != 0)
    }
}

impl Space {
    /// Creates the free space: all blocks except those in `used`.
    pub(crate) fn new(used: impl Iterator<Item = u64>, room: Arc<Room>) -> Self {
        let mut space = Self {
            free: BTreeSet::new(),
            end: FIRST_BLOCK,
            frozen: false,
            taken_since: None,
            pins: Vec::new(),
            held: Vec::new(),
            room,
        };
        let mut used: Vec<u64> = used.collect();
        used.sort_unstable();
        for block in used {
            space.free.extend(space.end..block);
            space.end = space.end.max(block + 1);
        }
        // Until the file's length is read, none of its blocks is known to exist.
        space
            .room
            .begin((space.free.len() as u64).cast_signed() - space.end.cast_signed());
        space
    }

    /// Takes the lowest free block, so that the file's tail becomes free.
    pub(crate) fn allocate(&mut self) -> u64 {
        let block = self.free.pop_first().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        });
        if let Some(taken) = &mut self.taken_since {
            taken.insert(block);
        }
        self.room.take(1);
        block
    }

    /// From now on, blocks can be taken, but not freed: it is unknown which of them the medium's
    /// newest superblock refers to.
    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
    }

    /// A sync failed: every earlier write that was not synced may be lost.
    pub(crate) fn lose_unsynced(&mut self) {
        self.freeze();
        self.taken_since.get_or_insert_default();
    }

    /// Whether the block of a block address was taken after the failed sync, which may have lost
    /// earlier writes.
    pub(crate) fn is_taken_since(&self, address: u64) -> bool {
        let taken = self.taken_since.as_ref();
        taken.is_some_and(|taken| taken.contains(&block_of(address)))
    }

    /// Frees the block of a block address.
    pub(crate) fn free(&mut self, address: u64) {
        let block = block_of(address);
        assert!(
            (FIRST_BLOCK..self.end).contains(&block),
            "a block that was allocated: {block}"
        );
        if self.pins.iter().any(|pin| pin.holds(block)) && !braid_rt::mutant!("ignore_pins") {
            self.held.push(block);
        } else if !self.frozen {
            assert!(self.free.insert(block), "block {block} is freed once");
            self.room.add(1);
        }
    }

    /// Keeps used blocks from being reused, even if they are freed, until [`Space::unpin`] with the
    /// number that this returns.
    pub(crate) fn pin(&mut self, blocks: impl Iterator<Item = u64>) -> u64 {
        let mut bits = vec![0; to_usize(self.end.div_ceil(64))];
        blocks.for_each(|block| bits[(block / 64) as usize] |= 1 << (block % 64));
        let number = self.pins.last().map_or(0, |pin| pin.number + 1);
        self.pins.push(Pin {
            number,
            blocks: bits,
        });
        number
    }

    /// Keeps all blocks of a file of `end` blocks from being reused, including the free ones, until
    /// [`Space::unpin`]: another process may read blocks that no page map of this one refers to.
    pub(crate) fn pin_all(&mut self, end: u64) -> u64 {
        self.free.extend(self.end..end);
        self.end = self.end.max(end);
        let free = std::mem::take(&mut self.free);
        self.room.take(free.len() as u64);
        self.held.extend(free);
        self.pin(FIRST_BLOCK..self.end)
    }

    pub(crate) fn unpin(&mut self, number: u64) {
        self.pins.retain(|pin| pin.number != number);
        for block in std::mem::take(&mut self.held) {
            self.free(block);
        }
    }

    /// Whether blocks are held that are neither used nor free.
    pub(crate) fn is_pinned(&self) -> bool {
        !self.pins.is_empty()
    }

    /// Drops some free blocks at the end. Returns whether there may be more.
    pub(crate) fn trim_some(&mut self) -> bool {
        for _ in 0..TRIM_STEP {
            if self.end == FIRST_BLOCK || self.free.last() != Some(&(self.end - 1)) {
                return false;
            }
            self.free.pop_last();
            self.end -= 1;
        }
        true
    }

    /// Drops the free blocks at the end; returns the file's length in blocks.
    pub(crate) fn trim(&mut self) -> u64 {
        while self.trim_some() {}
        self.end
    }

    /// The file's length in blocks.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn is_free(&self, block: u64) -> bool {
        block >= self.end || self.free.contains(&block)
    }

    pub(crate) fn free_blocks(&self) -> u64 {
        self.free.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_reused_lowest_first_and_the_tail_is_trimmed() {
        let mut space = Space::new([5, 3].into_iter(), Arc::default());
        assert_eq!(space.allocate(), 2);
        assert_eq!(space.allocate(), 4);
        assert_eq!(space.allocate(), 6);
        space.free(6);
        space.free(5);
        space.free(2);
        assert_eq!(space.trim(), 5);
        assert_eq!(space.free_blocks(), 1);
        assert_eq!(space.allocate(), 2);
    }

    #[test]
    fn frozen_space_gives_nothing_back() {
        let mut space = Space::new([2, 4].into_iter(), Arc::default());
        space.freeze();
        space.free(2);
        assert_eq!((space.allocate(), space.allocate()), (3, 5));
    }

    #[test]
    fn pinned_blocks_come_free_with_their_last_pin() {
        let mut space = Space::new([2, 3, 200].into_iter(), Arc::default());
        let free = space.free_blocks();
        let first = space.pin([2, 200].into_iter());
        let second = space.pin([2].into_iter());
        for block in [2, 3, 200] {
            space.free(block);
        }
        assert_eq!(space.free_blocks(), free + 1, "only 3 is nobody's");
        assert_eq!(space.trim(), 201, "the tail is pinned");
        space.unpin(first);
        assert!(space.is_free(200) && !space.is_free(2) && space.is_pinned());
        space.unpin(second);
        assert!(space.is_free(2) && !space.is_pinned());
        assert_eq!(space.trim(), FIRST_BLOCK);
    }

    #[test]
    fn pinning_all_blocks_leaves_only_new_ones() {
        let mut space = Space::new([2, 5].into_iter(), Arc::default());
        let pin = space.pin_all(8);
        assert_eq!((space.free_blocks(), space.allocate()), (0, 8));
        space.free(5);
        space.free(8);
        assert_eq!(space.allocate(), 8, "it was no part of the file");
        space.unpin(pin);
        assert_eq!(space.allocate(), 3);
        assert!(space.is_free(5) && space.is_free(7) && !space.is_free(2));
    }

    #[test]
    #[should_panic(expected = "freed once")]
    fn freeing_twice_is_a_bug() {
        let mut space = Space::new([5].into_iter(), Arc::default());
        space.free(5);
        space.free(5);
    }
}
