//! The free space of the data file.

use std::sync::Arc;

use super::room::Room;
use super::spares::Spares;
use super::{BLOCKS_MAX, block_of};
use crate::number_set::NumberSet;

/// The first block that is not a superblock.
pub(crate) const FIRST_BLOCK: u64 = 2;

/// The free blocks below the end, and the end. Nothing of it is stored: it follows from the page
/// map.
#[derive(Debug)]
pub(crate) struct Space {
    /// The free blocks that are not spares.
    free: NumberSet,
    /// Free blocks that are kept for their last owners as long as other blocks suffice.
    spares: Spares,
    end: u64,
    /// Whether freed blocks stay unused from now on.
    frozen: bool,
    /// After a failed sync, the blocks that were taken since.
    taken_since: Option<NumberSet>,
    pins: Vec<Pin>,
    /// Blocks that become free once no pin holds them.
    held: NumberSet,
    /// The accounting of room, updated for each block that is taken or freed.
    room: Arc<Room>,
}

/// Blocks that must keep their contents although nothing new refers to them: those of a checkpoint
/// that is being copied.
#[derive(Debug)]
struct Pin {
    number: u64,
    blocks: NumberSet,
}

impl Space {
    /// Creates the free space: all blocks below the last one in `used`, except those in `used`.
    pub(crate) fn new(used: &NumberSet, room: Arc<Room>) -> Self {
        let end = used.last().map_or(FIRST_BLOCK, |last| last + 1);
        let mut free = used.complement(end);
        for superblock in 0..FIRST_BLOCK {
            free.remove(superblock);
        }
        let space = Self {
            free,
            spares: Spares::default(),
            end,
            frozen: false,
            taken_since: None,
            pins: Vec::new(),
            held: NumberSet::default(),
            room,
        };
        // Until the file's length is read, none of its blocks is known to exist.
        space
            .room
            .begin(space.free.len().cast_signed() - space.end.cast_signed());
        space
    }

    /// Takes the lowest free block, so that the file's tail becomes free, and a spare only if the
    /// file is known to have no other block, with its `extent` of blocks. Returns `None` if the file
    /// has its greatest length.
    pub(crate) fn allocate(&mut self, extent: u64) -> Option<u64> {
        let mut block = self.free.pop_first();
        if block.is_none() && self.end >= extent && !braid_rt::mutant!("never_take_other_spares") {
            block = self.spares.take_any();
            if block.is_some() {
                braid_rt::coverage_point("store: a spare is taken for another page");
            }
        }
        let block = match block {
            Some(block) => block,
            None if self.end >= BLOCKS_MAX => return None,
            None => {
                self.end += 1;
                self.end - 1
            }
        };
        self.note_taken(block);
        Some(block)
    }

    /// Takes the lowest free block that is not a spare, if it lies before `block`.
    pub(crate) fn allocate_below(&mut self, block: u64) -> Option<u64> {
        self.free.first().filter(|&lowest| lowest < block)?;
        let lowest = self.free.pop_first()?;
        self.note_taken(lowest);
        Some(lowest)
    }

    /// Takes the spare of an identity.
    pub(crate) fn take_spare(&mut self, identity: u64) -> Option<u64> {
        let block = self.spares.take(identity)?;
        self.note_taken(block);
        Some(block)
    }

    fn note_taken(&mut self, block: u64) {
        if let Some(taken) = &mut self.taken_since {
            taken.insert(block);
        }
        self.room.take(1);
    }

    /// The number of blocks by which a file of `extent` blocks would have to be longer, so that
    /// `count` blocks can be taken without another identity's spare; 0 if there are no spares.
    pub(crate) fn short_of(&self, count: usize, extent: u64) -> u64 {
        if self.spares.len() == 0 {
            return 0;
        }
        let others = self.free.len() + extent.saturating_sub(self.end);
        (count as u64).saturating_sub(others)
    }

    /// From now on, blocks can be taken, but not freed: it is unknown which of them the medium's
    /// newest superblock refers to.
    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
        // After a failed sync it is unknown which bytes of a spare are durable.
        if !braid_rt::mutant!("keep_spares_in_doubt") {
            self.release_spares();
        }
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
        taken.is_some_and(|taken| taken.contains(block_of(address)))
    }

    /// Frees the block of a block address.
    pub(crate) fn free(&mut self, address: u64) {
        let block = block_of(address);
        assert!(
            (FIRST_BLOCK..self.end).contains(&block),
            "a block that was allocated: {block}"
        );
        if self.is_held(block) && !braid_rt::mutant!("ignore_pins") {
            self.held.insert(block);
        } else if !self.frozen {
            let is_new = !self.spares.contains(block) && self.free.insert(block);
            assert!(is_new, "block {block} is freed once");
            self.room.add(1);
        }
    }

    /// Frees the block of a block address, and keeps it for the identity whose contents it has. All
    /// writes to the block have succeeded, so its contents are durable once the next sync succeeds
    /// (I11). A block that a pin holds gets no owner, and neither does a second one.
    pub(crate) fn free_as_spare(&mut self, identity: u64, address: u64) {
        let block = block_of(address);
        let is_held = self.is_held(block) && !braid_rt::mutant!("spare_pinned_blocks");
        if !self.spares.are_kept() || self.frozen || is_held || self.spares.has(identity) {
            return self.free(address);
        }
        assert!(
            (FIRST_BLOCK..self.end).contains(&block) && !self.is_free(block),
            "block {block} is freed once"
        );
        self.spares.add(identity, block);
        self.room.add(1);
    }

    /// Whether a pin holds a block.
    fn is_held(&self, block: u64) -> bool {
        self.pins.iter().any(|pin| pin.blocks.contains(block))
    }

    /// Gives up the spare of an identity that no longer exists.
    pub(crate) fn forget_spare(&mut self, identity: u64) {
        if let Some(block) = self.spares.take(identity)
            && !braid_rt::mutant!("leak_spares")
        {
            assert!(self.free.insert(block), "block {block} is freed once");
        }
    }

    /// Gives up all spares.
    pub(crate) fn release_spares(&mut self) {
        self.free.union(&self.spares.clear());
    }

    /// Sets whether blocks become spares from now on.
    pub(crate) fn keep_spares(&mut self, keep: bool) {
        self.spares.keep(keep);
        if !keep {
            self.release_spares();
        }
    }

    /// The number of spares, which are free blocks, too.
    #[cfg(test)]
    pub(crate) fn spare_blocks(&self) -> u64 {
        self.spares.len()
    }

    /// Whether blocks become spares.
    pub(crate) fn keeps_spares(&self) -> bool {
        self.spares.are_kept()
    }

    /// Keeps used blocks from being reused, even if they are freed, until [`Space::unpin`] with the
    /// number that this returns.
    pub(crate) fn pin(&mut self, blocks: NumberSet) -> u64 {
        let number = self.pins.last().map_or(0, |pin| pin.number + 1);
        self.pins.push(Pin { number, blocks });
        number
    }

    /// Keeps all blocks of a file of `end` blocks from being reused, including the free ones, until
    /// [`Space::unpin`]: another process may read blocks that no page map of this one refers to.
    pub(crate) fn pin_all(&mut self, end: u64) -> u64 {
        self.release_spares();
        if self.end < end {
            self.free.insert_range(self.end..end);
            self.end = end;
        }
        self.room.take(self.free.len());
        let free = std::mem::take(&mut self.free);
        self.held.union(&free);
        let mut all = NumberSet::default();
        all.insert_range(FIRST_BLOCK..self.end);
        self.pin(all)
    }

    pub(crate) fn unpin(&mut self, number: u64) {
        self.pins.retain(|pin| pin.number != number);
        let mut pinned = NumberSet::default();
        for pin in &self.pins {
            pinned.union(&pin.blocks);
        }
        let freed = self.held.difference(&pinned, self.end);
        self.held = self.held.difference(&freed, self.end);
        if !self.frozen {
            let before = self.free.len();
            self.free.union(&freed);
            let added = self.free.len() - before;
            assert_eq!(added, freed.len(), "blocks are freed once");
            self.room.add(added);
        }
    }

    /// Whether blocks are held that are neither used nor free.
    pub(crate) fn is_pinned(&self) -> bool {
        !self.pins.is_empty()
    }

    /// Drops some free blocks at the end: those of a chunk of the set, or of consecutive chunks.
    /// Returns whether there may be more.
    pub(crate) fn trim_some(&mut self) -> bool {
        let last = self.free.last();
        if last.is_none_or(|last| last + 1 != self.end) {
            return false;
        }
        self.end = self.free.pop_run(self.end - 1);
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
        block >= self.end || self.free.contains(block) || self.spares.contains(block)
    }

    pub(crate) fn free_blocks(&self) -> u64 {
        self.free.len() + self.spares.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set<const N: usize>(numbers: [u64; N]) -> NumberSet {
        let mut set = NumberSet::default();
        set.extend(numbers);
        set
    }

    fn space<const N: usize>(used: [u64; N]) -> Space {
        Space::new(&set(used), Arc::default())
    }

    /// Takes a block of a space that is not full.
    fn take(space: &mut Space) -> u64 {
        space.allocate(0).unwrap()
    }

    #[test]
    fn a_file_ends_at_the_greatest_block() {
        let mut space = space([BLOCKS_MAX - 3, 1 << 37]);
        assert_eq!(space.free_blocks(), BLOCKS_MAX - 4 - FIRST_BLOCK);
        assert_eq!(take(&mut space), 2);
        space.free(2);
        // Only the end is left.
        let first = space.pin_all(0);
        assert_eq!(take(&mut space), BLOCKS_MAX - 2);
        assert_eq!(take(&mut space), BLOCKS_MAX - 1);
        assert_eq!(space.allocate(0), None);
        space.free(BLOCKS_MAX - 2);
        assert_eq!(take(&mut space), BLOCKS_MAX - 2);
        assert!(space.is_pinned() && first == 0);
    }

    #[test]
    fn a_long_free_tail_is_trimmed_at_once() {
        let mut space = space([2, BLOCKS_MAX - 1]);
        space.free(BLOCKS_MAX - 1);
        assert_eq!((space.trim(), space.free_blocks()), (3, 0));
    }

    #[test]
    fn blocks_are_reused_lowest_first_and_the_tail_is_trimmed() {
        let mut space = space([5, 3]);
        assert_eq!(take(&mut space), 2);
        assert_eq!(take(&mut space), 4);
        assert_eq!(take(&mut space), 6);
        space.free(6);
        space.free(5);
        space.free(2);
        assert_eq!(space.trim(), 5);
        assert_eq!(space.free_blocks(), 1);
        assert_eq!(take(&mut space), 2);
    }

    #[test]
    fn blocks_for_moved_pages_lie_before_them() {
        let mut space = space([2, 4, 5, 7]);
        assert_eq!(space.allocate_below(7), Some(3));
        assert_eq!(space.allocate_below(6), None);
        assert_eq!(space.allocate_below(7), Some(6));
        assert_eq!((space.allocate_below(1_000), take(&mut space)), (None, 8));
    }

    #[test]
    fn frozen_space_gives_nothing_back() {
        let mut space = space([2, 4]);
        space.freeze();
        space.free(2);
        assert_eq!((take(&mut space), take(&mut space)), (3, 5));
    }

    #[test]
    fn pinned_blocks_come_free_with_their_last_pin() {
        let mut space = space([2, 3, 200]);
        let free = space.free_blocks();
        let first = space.pin(set([2, 200]));
        let second = space.pin(set([2]));
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
        let mut space = space([2, 5]);
        let pin = space.pin_all(8);
        assert_eq!((space.free_blocks(), take(&mut space)), (0, 8));
        space.free(5);
        space.free(8);
        assert_eq!(take(&mut space), 8, "it was no part of the file");
        space.unpin(pin);
        assert_eq!(take(&mut space), 3);
        assert!(space.is_free(5) && space.is_free(7) && !space.is_free(2));
    }

    #[test]
    fn spares_are_kept_for_their_owners_and_taken_last() {
        let mut space = space([2, 3, 4, 5]);
        space.free_as_spare(70, 2);
        assert_eq!(space.take_spare(70), None, "not asked for");
        space.keep_spares(true);
        for (identity, block) in [(73, 3), (74, 4), (74, 5)] {
            space.free_as_spare(identity, block);
        }
        assert_eq!((space.free_blocks(), space.spare_blocks()), (4, 2));
        assert_eq!((take(&mut space), take(&mut space)), (2, 5), "no spares");
        assert_eq!((space.short_of(3, 7), space.short_of(3, 9)), (2, 0));
        // Block 6 exists.
        assert_eq!(space.allocate(7), Some(6));
        assert_eq!(space.allocate(7), Some(3), "the lowest spare");
        assert_eq!(
            (space.take_spare(73), space.take_spare(74)),
            (None, Some(4))
        );
        assert_eq!(space.take_spare(74), None);
        assert_eq!(space.short_of(3, 0), 0);
        space.free_as_spare(74, 4);
        space.forget_spare(74);
        assert_eq!((space.spare_blocks(), take(&mut space)), (0, 4));
    }

    #[test]
    fn pinned_blocks_and_blocks_in_doubt_are_no_spares() {
        let mut space = space([2, 3, 4]);
        space.keep_spares(true);
        let pin = space.pin(set([2]));
        space.free_as_spare(72, 2);
        assert_eq!((space.take_spare(72), space.is_free(2)), (None, false));
        space.unpin(pin);
        assert!(space.is_free(2));
        space.free_as_spare(73, 3);
        space.lose_unsynced();
        assert_eq!(space.take_spare(73), None);
        space.free_as_spare(74, 4);
        assert_eq!(space.take_spare(74), None);
        assert_eq!((take(&mut space), take(&mut space)), (2, 3));
    }

    #[test]
    #[should_panic(expected = "freed once")]
    fn freeing_twice_is_a_bug() {
        let mut space = space([5]);
        space.free(5);
        space.free(5);
    }
}
