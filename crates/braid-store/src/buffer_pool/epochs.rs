//! Epochs: they let a checkpoint find the pages as of its epoch switch while other threads change
//! them.
//!
//! The *epoch* counts checkpoint epoch switches. A frame's `dirty` is 0 if its page equals its
//! image on the medium, otherwise the epoch of the first change since. With a checkpoint of the
//! epoch switch to epoch `E` open:
//!
//! | `dirty` | means | a writer first | the evictor |
//! |---|---|---|---|
//! | 0 | clean | sets `E` | drops the page |
//! | `E` | changed after the epoch switch | nothing | writes it to a new block address, keeps the old one for the checkpoint |
//! | `< E` | belongs to the checkpoint | copies the page, sets `E` | writes it: that is the checkpoint's image too |
//! | `< E`, captured | its image is being written | sets `E` | leaves it alone |
//!
//! Pages to which no tree refers any more do not change, and belong to the checkpoint only if they
//! were removed from their tree after the epoch switch; see [`super::detached`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_io::AlignedBuf;
use braid_rt::thread::Backoff;
use braid_rt::{Held, MutexGuard, to_usize};

use super::latch;
use super::state::{self, NONE, frame_of};
use super::{ABSENT, FrameInfo, Pool, UNWRITTEN};
use crate::error::StoreError;
use crate::page::PageId;
use crate::sync::AtomicU64;

/// The state that an open checkpoint collects. The collections are ordered, so that a part of the
/// pages can be looked up, and a simulation repeated.
#[derive(Debug)]
pub(crate) struct OpenCheckpoint {
    /// Block addresses of images written for it.
    pub(crate) addresses: BTreeMap<PageId, u64>,
    /// Block addresses, as of the epoch switch, of pages whose address changed since without an
    /// image for the checkpoint.
    pub(crate) frozen: BTreeMap<PageId, u64>,
    /// Images that writers copied before they changed the page.
    pub(crate) copies: BTreeMap<PageId, AlignedBuf>,
    /// Detached pages that only this checkpoint needs, for their images.
    pub(crate) to_free: BTreeSet<PageId>,
    /// See [`Checkpoint::wake_for_copies`](crate::Checkpoint::wake_for_copies).
    pub(crate) wake: Option<Wake>,
}

/// A function that ends the pause of a checkpoint.
#[derive(Clone)]
pub(crate) struct Wake(pub(crate) Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wake")
    }
}

/// What became of the image that an open checkpoint may need.
enum Kept {
    Copied,
    /// No checkpoint is open.
    NotNeeded,
    /// Too many copies wait.
    Refused,
}

impl OpenCheckpoint {
    pub(crate) fn new() -> Self {
        Self {
            addresses: BTreeMap::new(),
            frozen: BTreeMap::new(),
            copies: BTreeMap::new(),
            to_free: BTreeSet::new(),
            wake: None,
        }
    }
}

impl Pool {
    /// Locks the state of the open checkpoint for background work, and measures for how long.
    pub(crate) fn lock_checkpoint(&self) -> Held<'_, MutexGuard<'_, Option<OpenCheckpoint>>> {
        self.file.holds.checkpoint.of(self.checkpoint.lock())
    }

    /// Makes a page with an assigned id exist; for an open checkpoint it does not exist.
    pub(crate) fn appear(&self, id: PageId, address: u64) {
        if address != UNWRITTEN && !braid_rt::mutant!("load_tables_unannounced") {
            // It is on the medium, and not in memory.
            self.expect_waits();
        }
        let mut checkpoint = self.checkpoint.lock();
        if let Some(open) = checkpoint.as_mut() {
            open.frozen.entry(id).or_insert(ABSENT);
        }
        self.file.addresses.set(id, address);
    }

    /// Moves a page's block address; frees the old one unless a checkpoint, durable or open, refers
    /// to it.
    pub(crate) fn set_address(
        &self,
        checkpoint: &mut Option<OpenCheckpoint>,
        id: PageId,
        address: u64,
    ) {
        let before = self.file.addresses.set(id, address);
        let old = before.address;
        let mut kept = old == ABSENT || old == UNWRITTEN || before.durable == old;
        if let Some(open) = checkpoint.as_mut() {
            if !open.addresses.contains_key(&id) {
                // A page that was detached after the epoch switch already has its entry.
                open.frozen.entry(id).or_insert(before.attached());
            }
            kept |= open.addresses.get(&id) == Some(&old);
            // The end of the checkpoint frees this block, even if the image lies elsewhere: a page
            // that was detached after the epoch switch, and whose image was written afterwards, has
            // both.
            kept |= open.frozen.get(&id) == Some(&old)
                && !(open.addresses.contains_key(&id) && braid_rt::mutant!("free_frozen_blocks"));
        }
        if kept && address != ABSENT {
            return;
        }
        let mut space = self.file.space.lock();
        if address == ABSENT {
            space.forget_spare(id);
            if !kept {
                space.free(old);
            }
        } else {
            space.free_as_spare(id, old);
        }
    }

    /// Prefetches what a change of a page uses outside of the page: the latch, and the state of its
    /// frame. `word` is the page's state word, or was it at some time.
    #[inline]
    pub(crate) fn prefetch_change(&self, id: PageId, word: u64) {
        if let Some(state) = self.state(id) {
            self.prefetch_latch_and_frame(state, word);
        }
    }

    /// As [`Pool::prefetch_change`], of a page with this state.
    #[inline]
    pub(super) fn prefetch_latch_and_frame(&self, state: &AtomicU64, word: u64) {
        braid_rt::prefetch_for_write(state);
        let frame = to_usize(frame_of(word));
        braid_rt::prefetch(self.info.as_ptr().wrapping_add(frame));
    }

    /// Prepares the first change of a latched page since the epoch switch: keeps the image that an
    /// open checkpoint needs, and marks the page dirty.
    #[inline]
    pub(super) fn prepare_change(&self, id: PageId, word: u64) -> Result<(), StoreError> {
        let frame = to_usize(frame_of(word));
        let epoch = self.epoch.load(Ordering::Acquire);
        let Some(info) = self.info.get(frame) else {
            self.page_to_change(frame);
            return Ok(());
        };
        let dirty = info.dirty.load(Ordering::Relaxed);
        if dirty == epoch {
            return Ok(());
        }
        if !self.prepare_first_change(id, frame, epoch, self.copies_max) {
            return self.write_and_prepare(id, frame, epoch);
        }
        Ok(())
    }

    /// Prepares a change although too many copies wait for the checkpoint: this writer writes its copy
    /// itself, which also slows it down to the speed of the medium.
    #[cold]
    #[inline(never)]
    fn write_and_prepare(&self, id: PageId, frame: usize, epoch: u64) -> Result<(), StoreError> {
        self.write_for_room(id, frame)?;
        self.prepare_first_change(id, frame, epoch, usize::MAX);
        Ok(())
    }

    /// [`Pool::prepare_change`] that always copies an image which the checkpoint needs.
    pub(super) fn prepare_change_by_copy(&self, id: PageId, word: u64) {
        let frame = to_usize(frame_of(word));
        let epoch = self.epoch.load(Ordering::Acquire);
        if self.info[frame].dirty.load(Ordering::Relaxed) != epoch {
            self.prepare_first_change(id, frame, epoch, usize::MAX);
        }
    }

    /// Prepares the first change since the epoch switch, unless that needs a copy and `copies_max`
    /// wait already. Returns whether the change is prepared.
    #[cold]
    fn prepare_first_change(
        &self,
        id: PageId,
        frame: usize,
        epoch: u64,
        copies_max: usize,
    ) -> bool {
        let info = &self.info[frame];
        let dirty = info.dirty.load(Ordering::Relaxed);
        // The page needs its own block, unless it was already dirty before the epoch switch of an
        // abandoned checkpoint.
        let mut is_new = true;
        if dirty != 0 && !info.captured.load(Ordering::Relaxed) {
            match self.keep_image(id, frame, copies_max) {
                Kept::Copied => {}
                Kept::NotNeeded => is_new = false,
                Kept::Refused => return false,
            }
        }
        if is_new && !braid_rt::mutant!("forget_dirty_pages") {
            self.file.room.take(1);
        }
        info.captured.store(false, Ordering::Relaxed);
        info.dirty.store(epoch, Ordering::Relaxed);
        true
    }

    /// Copies the image of a latched page for the open checkpoint, if there is one and fewer than
    /// `copies_max` copies wait.
    fn keep_image(&self, id: PageId, frame: usize, copies_max: usize) -> Kept {
        match self.checkpoint.lock().as_ref() {
            None => return Kept::NotNeeded,
            Some(open) if open.copies.len() >= copies_max => return Kept::Refused,
            Some(_) => {}
        }
        // Without the lock, so that many threads copy at once. The latch keeps the image unchanged,
        // and the checkpoint, which visits the page, open unless it is abandoned.
        let mut copy = self.file.buffer();
        self.frames.page(frame).copy_to(&mut copy);
        let mut checkpoint = self.checkpoint.lock();
        let Some(open) = checkpoint.as_mut() else {
            return Kept::NotNeeded;
        };
        open.copies.insert(id, copy);
        let copies = open.copies.len();
        let wake = (copies == self.copies_many())
            .then(|| open.wake.clone())
            .flatten();
        drop(checkpoint);
        if copies >= self.copies_many() {
            self.expect_waits();
        }
        self.counters.copies.fetch_add(1, Ordering::Relaxed);
        if let Some(wake) = wake {
            (wake.0)();
        }
        Kept::Copied
    }

    /// The number of copies from which on the checkpoint should not pause.
    fn copies_many(&self) -> usize {
        self.copies_max / 4
    }

    /// Whether so many copies wait for the open checkpoint that it should not pause.
    pub(crate) fn has_many_copies(&self) -> bool {
        let checkpoint = self.checkpoint.lock();
        let waiting = checkpoint.as_ref().map_or(0, |open| open.copies.len());
        waiting >= self.copies_many()
    }

    /// Pages in frames that belong to the open checkpoint.
    pub(crate) fn dirty_before(&self, epoch: u64) -> impl Iterator<Item = PageId> {
        let is_old = move |info: &&FrameInfo| {
            let dirty = info.dirty.load(Ordering::Relaxed);
            dirty != 0 && dirty < epoch
        };
        self.info
            .iter()
            .filter(is_old)
            .map(|info| info.page.load(Ordering::Relaxed))
    }

    /// Latches a page only if it is in memory.
    fn latch_resident(&self, id: PageId) -> Option<(&AtomicU64, u64)> {
        let state = self.state(id)?;
        let mut backoff = Backoff::default();
        loop {
            let word = state.load(Ordering::Relaxed);
            if state::is_latched(word) {
                self.arrivals.wait(id, state, &mut backoff);
                continue;
            }
            state::pooled(word)?;
            if state::take(state, word).is_some() {
                return Some((state, word));
            }
        }
    }

    /// Whether a latched page in memory was changed before the epoch switch and its image is
    /// neither written nor being written.
    pub(crate) fn awaits_image(&self, frame: usize) -> bool {
        let info = &self.info[frame];
        let dirty = info.dirty.load(Ordering::Relaxed);
        let epoch = self.epoch.load(Ordering::Acquire);
        dirty != 0 && dirty < epoch && !info.captured.load(Ordering::Relaxed)
    }

    /// Captures the image of a page for the checkpoint, if the page still awaits that.
    pub(crate) fn capture(&self, id: PageId, out: &mut [u8]) -> bool {
        let Some((state, word)) = self.latch_resident(id) else {
            return false;
        };
        let frame = to_usize(frame_of(word));
        let info = &self.info[frame];
        let has_detached = || {
            let checkpoint = self.checkpoint.lock();
            checkpoint
                .as_ref()
                .is_some_and(|open| open.has_detached(id))
        };
        let waits = self.awaits_image(frame) && (!self.is_detached(id) || has_detached());
        if waits {
            self.frames.page(frame).copy_to(out);
            info.captured.store(true, Ordering::Relaxed);
        }
        // The page is unchanged, and so is its version.
        latch::release(state, word);
        waits
    }

    /// Ends the capture of a page whose image was written (`Some` address), or could not be
    /// written.
    pub(crate) fn captured_written(&self, id: PageId, epoch: u64, address: Option<u64>) {
        let resident = self.latch_resident(id);
        let mut checkpoint = self.lock_checkpoint();
        let (mut is_free, mut is_over) = (false, true);
        if let (Some(address), Some(open)) = (address, checkpoint.as_mut()) {
            open.addresses.insert(id, address);
            is_free = open.to_free.remove(&id);
        }
        if let Some((state, word)) = resident {
            let info = &self.info[to_usize(frame_of(word))];
            let dirty = info.dirty.load(Ordering::Relaxed);
            if dirty != 0 && dirty < epoch && info.captured.load(Ordering::Relaxed) {
                info.captured.store(false, Ordering::Relaxed);
                match address {
                    Some(address) => {
                        info.dirty.store(0, Ordering::Relaxed);
                        self.set_address(&mut checkpoint, id, address);
                    }
                    None => is_over = false,
                }
            }
            latch::release(state, word);
        }
        drop(checkpoint);
        // The image has its block, or the checkpoint no longer needs it.
        if is_over {
            self.file.room.add(1);
        }
        if is_free {
            self.free_detached(id);
        }
    }

    /// Whether a page is in memory and its image for the open checkpoint is not written. A hint:
    /// others may change that at any time.
    pub(crate) fn may_await_image(&self, id: PageId) -> bool {
        let word = self.state(id).map(|state| state.load(Ordering::Relaxed));
        let frame = word.and_then(state::pooled);
        frame.is_some_and(|frame| self.awaits_image(frame))
    }

    /// Gives a page in memory the block of its image for the open checkpoint, if it has changed since the
    /// epoch switch. The contents of its other block are obsolete: otherwise, blocks of pages that change
    /// all the time would stay in use until the next checkpoint, wherever they lie in the file. Returns
    /// the block address that the page had. The caller holds the checkpoint's lock, under which an
    /// evictor gives the page another one.
    pub(crate) fn adopt_image(&self, id: PageId, address: u64) -> Option<u64> {
        let word = self.state(id).map(|state| state.load(Ordering::Relaxed));
        let frame = word.and_then(state::pooled);
        let is_changed = frame.is_some_and(|frame| {
            let info = &self.info[frame];
            info.page.load(Ordering::Relaxed) == id
                && info.dirty.load(Ordering::Relaxed) == self.epoch.load(Ordering::Acquire)
        });
        let current = self.address(id);
        let adopts = is_changed
            && ![ABSENT, UNWRITTEN].contains(&address)
            && ![ABSENT, UNWRITTEN, address].contains(&current)
            && !self.is_detached(id)
            && !braid_rt::mutant!("keep_blocks_of_changed_pages");
        adopts.then(|| self.file.addresses.set(id, address).address)
    }

    /// Moves a page's image for the open checkpoint, and the page, from one block address to another,
    /// unless the image is still to be written, or is elsewhere. Transactions may have changed the page
    /// since the epoch switch. Returns whether it moved.
    pub(crate) fn relocate(&self, id: PageId, from: u64, to: u64) -> bool {
        // The latch keeps a load from reading the block address while the block is being freed.
        let (state, word) = self.latch_anywhere(id);
        let mut checkpoint = self.lock_checkpoint();
        let frame = state::pooled(word);
        // It gets another block address anyway.
        let awaits_image = frame.is_some_and(|frame| {
            self.awaits_image(frame)
                || braid_rt::mutant!("leave_changed_pages_at_the_end")
                    && self.info[frame].dirty.load(Ordering::Relaxed) != 0
        });
        let untouched = !awaits_image
            && !self.is_detached(id)
            && self.address(id) == from
            && checkpoint.as_ref().is_some_and(|open| {
                !open.copies.contains_key(&id)
                    && !open.addresses.contains_key(&id)
                    && !open.frozen.contains_key(&id)
            });
        if untouched {
            if frame.is_some_and(|frame| self.info[frame].dirty.load(Ordering::Relaxed) != 0) {
                braid_rt::coverage_point("store: the image of a changed page moves");
            }
            if let Some(open) = checkpoint.as_mut() {
                open.addresses.insert(id, to);
            }
            self.set_address(&mut checkpoint, id, to);
        }
        if untouched && frame.is_none() && !braid_rt::mutant!("stay_in_a_moved_block") {
            // A page that is read in place is not there any more.
            state::moved(state, word, NONE);
        } else {
            latch::release(state, word);
        }
        untouched
    }
}
