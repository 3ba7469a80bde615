//! Detached pages: pages of large values to which no tree refers any more, but a reader may.
//!
//! Detached pages can be read, evicted and loaded like others, but no checkpoint with a later epoch
//! switch contains them. So they do not survive a crash, since a block to which no page map refers
//! is free, and a checkpoint writes no part of a value that was replaced before its epoch switch.
//!
//! Detaching is part of the modifying call that removes the value from its tree, so an epoch switch
//! sees both or neither. Freeing the pages is not: no later checkpoint can tell the difference. A
//! checkpoint that is open already may still need a page's image, if the page was detached after
//! its epoch switch; then the page is freed after its image is written.

use super::state::{self, NONE};
use super::{ABSENT, OpenCheckpoint, Pool, UNWRITTEN, latch};
use crate::page::PageId;

impl OpenCheckpoint {
    /// Whether the open checkpoint contains a detached page, so whether the page was detached after
    /// its epoch switch.
    pub(crate) fn has_detached(&self, id: PageId) -> bool {
        // `Pool::detach` records the block address as of the epoch switch for pages that existed
        // then.
        self.frozen
            .get(&id)
            .is_some_and(|&address| address != ABSENT)
    }
}

impl Pool {
    /// Whether an existing page is detached, so no tree refers to it.
    pub(crate) fn is_detached(&self, id: PageId) -> bool {
        self.file.addresses.is_detached(id)
    }

    /// Removes pages to which no tree refers any more from all later checkpoints. Part of a
    /// modifying call.
    pub(crate) fn detach(&self, pages: &[PageId]) {
        self.detach_locked(pages, &mut self.checkpoint.lock());
    }

    /// As [`Pool::detach`], for background work.
    pub(crate) fn detach_many(&self, pages: &[PageId]) {
        self.detach_locked(pages, &mut self.lock_checkpoint());
    }

    fn detach_locked(&self, pages: &[PageId], checkpoint: &mut Option<OpenCheckpoint>) {
        for &id in pages {
            let before = self.file.addresses.detach(id);
            if let Some(open) = checkpoint.as_mut()
                && !open.addresses.contains_key(&id)
            {
                open.frozen.entry(id).or_insert(before.attached());
            }
        }
    }

    /// Frees pages to which no tree refers and that have no readers any more. Part of a modifying
    /// call.
    pub(crate) fn discard(&self, pages: &[PageId]) {
        self.detach(pages);
        pages.iter().for_each(|&id| self.free_detached(id));
    }

    /// Frees a detached page and its id, immediately, or once the open checkpoint has its image or
    /// ends.
    pub(crate) fn free_detached(&self, id: PageId) {
        if !self.is_detached(id) {
            return;
        }
        let (state, word) = self.latch_anywhere(id);
        let frame = state::pooled(word);
        let mut checkpoint = self.checkpoint.lock();
        if let Some(open) = checkpoint.as_mut()
            && frame.is_some_and(|frame| self.awaits_image(frame))
            && open.has_detached(id)
            && !braid_rt::mutant!("free_pages_of_a_checkpoint")
        {
            braid_rt::coverage_point("store: a freed page waits for the checkpoint");
            open.to_free.insert(id);
            drop(checkpoint);
            latch::release(state, word);
            return;
        }
        if self.address(id) == UNWRITTEN {
            self.file.addresses.set(id, ABSENT);
        } else {
            self.set_address(&mut checkpoint, id, ABSENT);
        }
        drop(checkpoint);
        let evicted = frame.map(|frame| self.evict_frame(frame));
        state::moved(state, word, NONE);
        self.recycle(id, evicted);
    }
}
