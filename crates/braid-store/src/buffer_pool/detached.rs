//! Detached pages: those of large values that no tree refers to any more, but a reader may.
//!
//! Detached pages can be read, evicted and loaded like others, but no checkpoint contains them whose epoch switch
//! comes later. So a crash leaves nothing of them, since what no page map refers to is free, and a checkpoint writes
//! nothing of a value that was replaced before its epoch switch.
//!
//! Detaching is part of the modifying call that takes the value out of its tree, so an epoch switch sees both or
//! neither. Freeing the pages is not: no later checkpoint can tell the difference. A checkpoint that is open
//! already may still need a page's image, if the page was detached after its epoch switch; then the page is freed
//! after its image is written.

use std::sync::atomic::Ordering;

use braid_rt::to_usize;

use super::state::{self, NONE, frame_of};
use super::{ABSENT, DETACHED, OpenCheckpoint, Pool, UNWRITTEN, latch};
use crate::page::PageId;

impl OpenCheckpoint {
    /// Whether a page belongs to the checkpoint that was detached, before its epoch switch or
    /// after.
    pub(crate) fn has_detached(&self, id: PageId) -> bool {
        // `Pool::detach` notes a block address as of the epoch switch for those that existed then.
        self.frozen
            .get(&id)
            .is_some_and(|&address| address != ABSENT)
    }
}

impl Pool {
    /// Whether no tree leads to a page that exists.
    pub(crate) fn is_detached(&self, id: PageId) -> bool {
        let address = self.addresses.get(id);
        // Relaxed: who asks for the sake of a checkpoint has seen its epoch switch, and what came
        // before that.
        address.is_some_and(|address| address.load(Ordering::Relaxed) & DETACHED != 0)
    }

    /// Where a page lies that belongs to a tree.
    pub(crate) fn attached_address(&self, id: PageId) -> u64 {
        if self.is_detached(id) && !braid_rt::mutant!("checkpoint_the_detached") {
            return ABSENT;
        }
        self.address(id)
    }

    /// Takes pages to which no tree leads any more out of all checkpoints to come. Part of a modifying call.
    pub(crate) fn detach(&self, pages: &[PageId]) {
        let mut checkpoint = self.checkpoint.lock();
        for &id in pages {
            let address = self.addresses.get_or_make(id);
            let at = address.load(Ordering::Relaxed);
            if let Some(open) = checkpoint.as_mut()
                && !open.addresses.contains_key(&id)
            {
                open.frozen.entry(id).or_insert(at);
            }
            // Release: as all that changes block addresses.
            address.store(at | DETACHED, Ordering::Release);
        }
    }

    /// Frees pages to which no tree leads and that nobody reads any more. Part of a modifying call.
    pub(crate) fn discard(&self, pages: &[PageId]) {
        self.detach(pages);
        pages.iter().for_each(|&id| self.free_detached(id));
    }

    /// Gives a detached page and its id back, now or when the open checkpoint has its image or is over.
    pub(crate) fn free_detached(&self, id: PageId) {
        if !self.is_detached(id) {
            return;
        }
        let (state, word) = self.latch_anywhere(id);
        let frame = frame_of(word);
        let mut checkpoint = self.checkpoint.lock();
        if let Some(open) = checkpoint.as_mut()
            && frame != NONE
            && self.awaits_image(to_usize(frame))
            && open.has_detached(id)
            && !braid_rt::mutant!("free_what_a_checkpoint_needs")
        {
            braid_rt::coverage_point("store: a freed page waits for the checkpoint");
            open.to_free.insert(id);
            drop(checkpoint);
            latch::release(state, word);
            return;
        }
        if self.address(id) == UNWRITTEN {
            let address = self.addresses.get_or_make(id);
            address.store(ABSENT, Ordering::Release);
        } else {
            self.set_address(&mut checkpoint, id, ABSENT);
        }
        drop(checkpoint);
        let evicted = (frame != NONE).then(|| self.evict_frame(to_usize(frame)));
        state::moved(state, word, NONE);
        self.recycle(id, evicted);
    }
}
