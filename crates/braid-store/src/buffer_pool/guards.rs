//! The pool's guards: a page opened for optimistic reading, or latched for a change.
//!
//! The user of a guard needs no knowledge of frames, state words and epochs.

use braid_rt::{Mark, to_usize};

use super::latch;
use super::state::{self, NONE, frame_of};
use super::{ABSENT, Pool, UNWRITTEN};
use crate::error::StoreError;
use crate::node::{KIND_INNER, Node};
use crate::page::{Page, PageId};
use crate::sync::AtomicU64;

/// An optimistic read of a page. Bytes read through it are valid only if [`ReadPage::validate`]
/// returns true afterwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPage<'a> {
    pub(super) pool: &'a Pool,
    pub(super) state: &'a AtomicU64,
    pub(crate) id: PageId,
    pub(super) word: u64,
}

impl<'a> ReadPage<'a> {
    #[inline]
    pub(crate) fn page(&self) -> Page<'a> {
        self.pool.page(self.word)
    }

    pub(crate) fn version(&self) -> u64 {
        self.word
    }

    /// Prefetches what a change of the page uses outside of the page.
    #[inline]
    pub(crate) fn prefetch_change(&self) {
        self.pool.prefetch_latch_and_frame(self.state, self.word);
    }

    /// Whether a change of the page needs an image of it for the open checkpoint.
    pub(crate) fn awaits_image(&self) -> bool {
        state::pooled(self.word).is_some_and(|frame| self.pool.awaits_image(frame))
    }

    /// Whether the page can be changed where it is. Otherwise the next access loads it.
    pub(crate) fn is_changeable(&self) -> bool {
        let is_in_place = state::is_in_place(self.word);
        if is_in_place {
            Pool::ask_for_copy(self);
        }
        !is_in_place
    }

    /// Whether the page is unchanged since it was opened.
    #[inline]
    pub(crate) fn validate(&self) -> bool {
        state::is_unchanged(self.state, self.word)
            && (!state::is_in_place(self.word) || self.pool.is_intact(self))
    }

    /// Acquires the exclusive latch if the page is unchanged. A page that is read in place counts as
    /// changed: the next access finds it in the pool.
    #[inline]
    pub(crate) fn upgrade(self) -> Option<WritePage<'a>> {
        if state::is_in_place(self.word) && !braid_rt::mutant!("change_in_place") {
            Pool::ask_for_copy(&self);
            return None;
        }
        if !state::upgrade(self.state, self.word) {
            return None;
        }
        Some(WritePage {
            pool: self.pool,
            state: self.state,
            id: self.id,
            word: self.word,
            changed: false,
            _mark: mark_inner(self.page()),
        })
    }
}

/// The exclusive latch of a page; dropping it releases the latch.
#[derive(Debug)]
pub(crate) struct WritePage<'a> {
    pub(super) pool: &'a Pool,
    pub(super) state: &'a AtomicU64,
    pub(crate) id: PageId,
    pub(super) word: u64,
    pub(super) changed: bool,
    /// Readers of all leaves below an inner node wait for its latch.
    pub(super) _mark: Mark,
}

/// Marks the thread as the holder of the latch of a page, if that is an inner node.
#[inline]
fn mark_inner(page: Page<'_>) -> Mark {
    if cfg!(debug_assertions) && Node(page).kind() == KIND_INNER {
        Mark::new("the latch of an inner node")
    } else {
        Mark::none()
    }
}

impl<'a> WritePage<'a> {
    /// The page, to be read.
    #[inline]
    pub(crate) fn page(&self) -> Page<'a> {
        let frame = to_usize(frame_of(self.word));
        match self.pool.frames.get(frame) {
            Some(page) => page,
            None => self.pool.page_to_change(frame),
        }
    }

    /// The page, to be changed.
    // Every change of a record calls it.
    #[inline(always)]
    pub(crate) fn page_mut(&mut self) -> Result<Page<'a>, StoreError> {
        if !self.changed {
            self.pool.prepare_change(self.id, self.word)?;
            self.changed = true;
        }
        Ok(self.page())
    }

    /// As [`WritePage::page_mut`], for a caller that must not wait for the medium: an image that an
    /// open checkpoint needs is always copied, however many copies wait to be written.
    pub(crate) fn page_copied(&mut self) -> Page<'a> {
        if !self.changed {
            self.pool.prepare_change_by_copy(self.id, self.word);
            self.changed = true;
        }
        self.page()
    }

    /// Gives the page a new version, though nothing in it changes.
    pub(crate) fn outdate(&mut self) {
        self.word = state::next_version(self.word);
    }

    /// The version that the page had when it was latched.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        state::without_mark(self.word)
    }

    /// Clears a page that was just allocated.
    pub(super) fn zeroed(self) -> Self {
        self.page().clear_from(0);
        self.page().set_word(1, self.id);
        self
    }

    /// The version that the page will have once this latch is released.
    #[inline]
    pub(crate) fn version_after(&self) -> u64 {
        let word = if self.changed {
            state::next_version(self.word)
        } else {
            self.word
        };
        state::without_mark(word)
    }

    /// Frees the page and its id.
    pub(crate) fn free(mut self) {
        // An open checkpoint may need the image.
        self.page_copied();
        let pool = self.pool;
        {
            let mut checkpoint = pool.checkpoint.lock();
            if pool.address(self.id) != UNWRITTEN {
                pool.set_address(&mut checkpoint, self.id, ABSENT);
            } else {
                pool.file.addresses.set(self.id, ABSENT);
            }
        }
        let frame = pool.evict_frame(to_usize(frame_of(self.word)));
        self.word = state::with_frame(self.word, NONE);
        let id = self.id;
        drop(self);
        pool.recycle(id, Some(frame));
    }
}

impl Drop for WritePage<'_> {
    #[inline]
    fn drop(&mut self) {
        latch::release(self.state, self.version_after());
    }
}
