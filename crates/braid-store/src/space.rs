//! Which blocks of the data file are free.

use std::collections::BTreeSet;

/// The first block that is not a superblock.
pub(crate) const FIRST_BLOCK: u64 = 2;

/// The free blocks below the end, and the end. Nothing of it is stored: it follows from the page map.
#[derive(Debug)]
pub(crate) struct Space {
    free: BTreeSet<u64>,
    end: u64,
    /// No block comes free any more.
    frozen: bool,
}

impl Space {
    /// All blocks free but those that `used` says.
    pub(crate) fn new(used: impl Iterator<Item = u64>) -> Self {
        let mut space = Self {
            free: BTreeSet::new(),
            end: FIRST_BLOCK,
            frozen: false,
        };
        let mut used: Vec<u64> = used.collect();
        used.sort_unstable();
        for block in used {
            space.free.extend(space.end..block);
            space.end = space.end.max(block + 1);
        }
        space
    }

    /// Takes the lowest free block, so that the file's tail comes free.
    pub(crate) fn allocate(&mut self) -> u64 {
        self.free.pop_first().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        })
    }

    /// From now on blocks are taken, but none comes free: it is not known any more which of them the
    /// medium's newest superblock leads to.
    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
    }

    pub(crate) fn free(&mut self, block: u64) {
        assert!(
            (FIRST_BLOCK..self.end).contains(&block),
            "a block that was allocated: {block}"
        );
        if !self.frozen {
            assert!(self.free.insert(block), "block {block} is freed once");
        }
    }

    /// Drops the free blocks at the end; returns the file's length in blocks.
    pub(crate) fn trim(&mut self) -> u64 {
        while self.end > FIRST_BLOCK && self.free.last() == Some(&(self.end - 1)) {
            self.free.pop_last();
            self.end -= 1;
        }
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
        let mut space = Space::new([5, 3].into_iter());
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
        let mut space = Space::new([2, 4].into_iter());
        space.freeze();
        space.free(2);
        assert_eq!((space.allocate(), space.allocate()), (3, 5));
    }

    #[test]
    #[should_panic(expected = "freed once")]
    fn freeing_twice_is_a_bug() {
        let mut space = Space::new([5].into_iter());
        space.free(5);
        space.free(5);
    }
}
