//! Reading pages in place: in persistent memory, a page that is not changed needs no copy in the pool.
//!
//! The state word of such a page leads to its block in the mapped data file. Readers load from there
//! as they load from a frame, and validate in the same way. Before a page is changed, it is copied
//! into a frame, so that frames hold the changed pages alone.
//!
//! - I12: a page is read in place only in its current block, to which the newest superblock led when
//!   its state word did. So no later sync can lose the block's contents, and the block is written
//!   only after it was freed. That needs the latch of the page; the word leads elsewhere once the
//!   latch is released. A reader that sees anything that was written afterwards finds a changed word.
//!
//! The first load of a page verifies its checksum, as every load into a frame does. The word that
//! leads to the block is the memory of that.
//!
//! Memory order: the latch of the page is acquired before its block is freed, the lock of the free
//! space orders that before the block is taken, and the fence in `DataFile::write_images` orders all
//! of it before the first store into the block. It pairs with the fence in [`latch::look_again`].

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use braid_rt::thread::Backoff;
use braid_rt::to_usize;

use super::frames::Frames;
use super::guards::ReadPage;
use super::state::{self, COPY, IN_PLACE, IN_PLACE_MAX, NONE};
use super::{Pool, latch};
use crate::data_file::{DataFile, block_of};
use crate::error::StoreError;
use crate::page::{PAGE_SIZE, Page, PageId};

/// Adds the blocks of a file in memory to the frames of its pool.
pub(super) fn add_blocks(frames: &mut Frames, file: &DataFile) {
    if let Some(words) = file.words() {
        // SAFETY: the pool owns the frames and the file, and never replaces the file, so the words
        // exist while the frames are used.
        unsafe { frames.add_blocks(words) };
    }
}

/// The bytes of a block in the file.
fn bytes_of(block: u64) -> Range<u64> {
    let page = PAGE_SIZE as u64;
    block * page..(block + 1) * page
}

impl Pool {
    /// Whether pages are read in place.
    pub(super) fn reads_in_place(&self) -> bool {
        self.frames.blocks() > 0 && self.reads_in_place.load(Ordering::Relaxed)
    }

    /// Opens a page in place, if it can be read there. The caller holds the page's latch. Returns the
    /// number that the page then has instead of a frame's.
    pub(super) fn open_in_place(
        &self,
        id: PageId,
        address: u64,
        word: u64,
    ) -> Result<Option<u64>, StoreError> {
        // SeqCst: pairs with the fence in `read_in_place`. Either this thread sees the end of reads
        // in place, or the other one sees the latch.
        fence(Ordering::SeqCst);
        let block = block_of(address);
        let is_possible = self.reads_in_place()
            && block < IN_PLACE_MAX.min(self.frames.blocks() as u64)
            && state::frame_of(word) != COPY
            && (self.file.durable_address(id) == address
                || braid_rt::mutant!("read_unsynced_in_place"));
        if !is_possible || self.file.check_words(bytes_of(block)).is_err() {
            return Ok(None);
        }
        if !braid_rt::mutant!("read_in_place_unverified") {
            let mut buf = self.file.buffer();
            self.file.read_page(id, address, &mut buf)?;
            self.check_page(id, &buf)?;
        }
        braid_rt::coverage_point("store: a page is read in place");
        self.counters.reads_in_place.fetch_add(1, Ordering::Relaxed);
        Ok(Some(IN_PLACE + block))
    }

    /// The page with a state word, in the pool or in place.
    #[inline]
    pub(super) fn page(&self, word: u64) -> Page<'_> {
        let frame = to_usize(state::frame_of(word));
        match self.frames.get(frame) {
            Some(page) => page,
            None => self.page_in_place(frame),
        }
    }

    #[inline(never)]
    fn page_in_place(&self, frame: usize) -> Page<'_> {
        self.frames.block(frame.wrapping_sub(to_usize(IN_PLACE)))
    }

    /// The page in a place that is no frame, which a thread is about to change.
    #[cold]
    pub(super) fn page_to_change(&self, frame: usize) -> Page<'_> {
        let is_wanted = braid_rt::mutant!("change_in_place");
        assert!(is_wanted, "I12: a page that changes is in a frame");
        self.page_in_place(frame)
    }

    /// Checks that a page that is read in place is read in its current block (I12).
    pub(crate) fn check_place(&self, id: PageId) {
        let word = self.state(id).map_or(0, latch::open);
        if let Some(block) = state::block_in_place(word)
            && !state::is_latched(word)
        {
            let current = block_of(self.address(id));
            assert_eq!(block, current, "I12: page {id} is read in its block");
        }
    }

    /// Whether the medium still has a page that was read in place with `page`.
    #[inline(never)]
    pub(super) fn is_intact(&self, page: &ReadPage<'_>) -> bool {
        let Some(block) = state::block_in_place(page.word) else {
            return false;
        };
        if self.file.check_words(bytes_of(block)).is_ok()
            || braid_rt::mutant!("overlook_lost_words")
        {
            return true;
        }
        // The next load reports the error.
        state::leave_place(page.state, page.word, NONE);
        false
    }

    /// Lets the next access of a page that is read in place load it into the pool, where it can be
    /// changed.
    #[cold]
    #[inline(never)]
    pub(super) fn ask_for_copy(page: &ReadPage<'_>) {
        braid_rt::coverage_point("store: a page that is read in place is copied");
        state::leave_place(page.state, page.word, COPY);
    }

    /// Sets whether pages are read in place. If not, none is read there when this returns.
    pub(crate) fn read_in_place(&self, on: bool) {
        self.reads_in_place.store(on, Ordering::Relaxed);
        if on || self.frames.blocks() == 0 {
            return;
        }
        // SeqCst: see `open_in_place`.
        fence(Ordering::SeqCst);
        if braid_rt::mutant!("leave_readers_in_place") {
            return;
        }
        for id in 1..self.page_ids() {
            let Some(state) = self.state(id) else {
                continue;
            };
            let mut backoff = Backoff::default();
            loop {
                let word = latch::open(state);
                if state::is_latched(word) {
                    self.arrivals.wait(id, state, &mut backoff);
                } else if state::block_in_place(word).is_some() {
                    state::leave_place(state, word, NONE);
                } else {
                    break;
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
