//! Sources of frames: unused frames, released frames, then frames of pages that are not used again
//! and again (see [`heat`](super::heat)).

use std::sync::atomic::Ordering;

use braid_rt::narrow;

use super::Pool;
use super::heat::Heat;
use super::latch;
use super::state;
use crate::error::StoreError;
use crate::page::PageId;

impl Pool {
    pub(crate) fn take_frame(&self) -> Result<usize, StoreError> {
        if let Some(frame) = self.free_frame() {
            return Ok(frame);
        }
        match self.unused_frame() {
            Some(frame) => Ok(frame),
            None => self.evict(),
        }
    }

    /// Takes a frame that was released.
    fn free_frame(&self) -> Option<usize> {
        let mut free = self.free_frames.lock();
        let frame = free.pop()?;
        if free.len() < self.frames_low() && !self.has_unused_frames(self.frames_low()) {
            self.expect_waits();
        }
        Some(frame as usize)
    }

    /// Takes a frame that was never used.
    pub(crate) fn unused_frame(&self) -> Option<usize> {
        if !self.has_unused_frames(self.frames_low()) {
            self.expect_waits();
        }
        if !self.has_unused_frames(1) {
            return None;
        }
        let frame = self.next_frame.fetch_add(1, Ordering::Relaxed);
        (frame < self.frames.count()).then_some(frame)
    }

    /// Whether there are probably at least `count` frames that were never used.
    pub(crate) fn has_unused_frames(&self, count: usize) -> bool {
        self.next_frame
            .load(Ordering::Relaxed)
            .saturating_add(count)
            <= self.frames.count()
    }

    /// Frees a frame. Only tries to acquire latches, so a caller's own latches can't block it
    /// forever.
    fn evict(&self) -> Result<usize, StoreError> {
        let mut last_error = None;
        let (mut step, mut steps) = (0, 8 * self.frames.count());
        self.cool();
        while step < steps {
            step += 1;
            let frame = self.hand.fetch_add(1, Ordering::Relaxed) % self.frames.count();
            let info = &self.info[frame];
            let id = info.page.load(Ordering::Relaxed);
            let is_used = |state| state::was_used(state, frame as u64);
            if self.is_kept(frame, step, || self.state(id).is_some_and(is_used)) {
                continue;
            }
            if let Some(frame) = self.free_frame() {
                return Ok(frame);
            }
            let Some(state) = self.state(id).filter(|_| id != 0) else {
                continue;
            };
            let Some(word) = state::pick(state, frame as u64) else {
                self.note_visit(frame, state);
                continue;
            };
            let dirty = info.dirty.load(Ordering::Relaxed) != 0;
            let pinned = dirty && info.captured.load(Ordering::Relaxed);
            // A page whose image a failed sync may have lost is only in memory.
            let clean = !dirty && !self.file.is_in_doubt(id, self.address(id));
            // If a page could not be written, another would fail too: from then on, only clean
            // pages are evicted.
            let evicted = if clean {
                true
            } else if pinned || last_error.is_some() {
                false
            } else {
                match self.write_for_room(id, frame) {
                    Ok(()) => true,
                    Err(error) => {
                        last_error = Some(error);
                        // Four rounds: two past the hot pages, one to mark them, and one to find the marks.
                        steps = steps.min(step + 4 * self.frames.count() + 1);
                        false
                    }
                }
            };
            if evicted {
                self.counters.evictions.fetch_add(1, Ordering::Relaxed);
                self.expect_waits();
                self.set_heat(frame, Heat::Cold);
                state::moved(state, word, self.evicted_now());
                if !clean {
                    self.arrivals.notify(id);
                }
                return Ok(frame);
            }
            latch::release(state, word);
            if step > 2 * self.frames.count() && step % 64 == 0 {
                // Other threads hold the rest briefly.
                braid_rt::thread::yield_now();
            }
        }
        Err(last_error.unwrap_or(StoreError::PoolExhausted))
    }

    /// Writes a latched dirty page to a new block address.
    pub(super) fn write_out(&self, id: PageId, frame: usize) -> Result<(), StoreError> {
        let mut buf = self.file.buffer();
        self.frames.page(frame).copy_to(&mut buf);
        let address = self.file.write_page(id, &mut buf)?;
        self.counters
            .eviction_writes
            .fetch_add(1, Ordering::Relaxed);
        let mut checkpoint = self.checkpoint.lock();
        let info = &self.info[frame];
        let of_checkpoint = info.dirty.load(Ordering::Relaxed) < self.epoch.load(Ordering::Acquire);
        if of_checkpoint
            && let Some(open) = checkpoint.as_mut()
            && (!self.is_detached(id) || open.has_detached(id))
        {
            open.addresses.insert(id, address);
        }
        self.set_address(&mut checkpoint, id, address);
        // A clean page is written if its image is in doubt.
        if info.dirty.swap(0, Ordering::Relaxed) != 0 {
            self.file.room.add(1);
        }
        Ok(())
    }

    /// Evicts a latched page from its frame, which the caller must then release.
    pub(crate) fn evict_frame(&self, frame: usize) -> u32 {
        let info = &self.info[frame];
        let is_captured = info.captured.swap(false, Ordering::Relaxed);
        // The block of an image that is being written is in use.
        if info.dirty.swap(0, Ordering::Relaxed) != 0 && !is_captured {
            self.file.room.add(1);
        }
        info.page.store(0, Ordering::Relaxed);
        self.set_heat(frame, Heat::Cold);
        // `Pool::new` checks the number of frames.
        narrow(frame)
    }
}
