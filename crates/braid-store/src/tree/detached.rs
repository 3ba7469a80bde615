//! Large values that no tree leads to any more, but somebody may still read.
//!
//! When a large value is replaced, its chain of pages is not copied for those who still need the old value: it
//! stays where it is. From then on its pages are *detached*: they can be read, put out of memory and loaded
//! like others, but no checkpoint has them whose flip comes after. So a crash leaves nothing of them, since
//! what no page map names is free, and a checkpoint writes nothing of a value that was replaced
//! before its epoch switch.
//!
//! Detaching is part of the modifying call that takes the value out of its tree, so an epoch switch
//! sees both or neither. Giving the pages back is not: no checkpoint to come can tell the
//! difference. One that is open already may still need a page's image, if the page was detached
//! since its epoch switch; then the page waits until that is written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_rt::to_usize;
use bytes::Bytes;

use super::overflow;
use crate::buffer_pool::state::{self, NONE, frame_of};
use crate::buffer_pool::{ABSENT, DETACHED, OpenCheckpoint, Pool, UNWRITTEN};
use crate::error::StoreError;
use crate::page::PageId;
use crate::store::Store;

/// A large value that was taken out of its tree and can still be read, until it is given to
/// [`Store::free_detached`]. One that is dropped instead takes space until the store is opened anew.
#[derive(Clone, Debug)]
pub struct DetachedValue(Arc<Chain>);

#[derive(Debug)]
struct Chain {
    /// In the order of the value's parts.
    pages: Box<[PageId]>,
    len: usize,
}

impl DetachedValue {
    /// The value of `len` bytes in these pages.
    pub(crate) fn new(pages: Vec<PageId>, len: usize) -> Self {
        let pages = pages.into();
        Self(Arc::new(Chain { pages, len }))
    }

    pub(crate) fn pages(&self) -> &[PageId] {
        &self.0.pages
    }

    /// The value's length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a large value is not empty")]
    pub fn len(&self) -> usize {
        self.0.len
    }
}

impl Store {
    /// Reads a value that nobody has freed.
    ///
    /// # Errors
    /// What reading pages can fail with.
    pub fn read_detached(&self, value: &DetachedValue) -> Result<Bytes, StoreError> {
        braid_rt::coverage_point("store: a replaced large value is read");
        let first = value.pages()[0];
        let mut out = Vec::new();
        match overflow::read(&self.inner.pool, first, value.len(), &mut out)? {
            true => Ok(out.into()),
            false => {
                let what = "the pages of a value that was replaced do not fit together";
                Err(StoreError::damaged_page(first, what))
            }
        }
    }

    /// Gives the pages of a value back that nobody reads any more. Reads nothing from the medium. No modifying
    /// call: a checkpoint may switch the epoch meanwhile.
    pub fn free_detached(&self, value: DetachedValue) {
        for &id in value.pages() {
            self.inner.pool.free_detached(id);
        }
    }
}

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
            crate::buffer_pool::latch::release(state, word);
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
