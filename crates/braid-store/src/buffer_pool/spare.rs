//! Frames that a thread takes before it needs them.

use braid_rt::narrow;

use super::{Pool, WritePage};
use crate::error::StoreError;

/// Frames for pages that a thread will allocate while it holds latches: to find a frame, it may have
/// to write the page in it. Dropping it frees the rest.
#[derive(Debug)]
pub(crate) struct SpareFrames<'a> {
    pool: &'a Pool,
    frames: Vec<usize>,
}

impl<'a> SpareFrames<'a> {
    pub(crate) fn new(pool: &'a Pool) -> Self {
        let frames = Vec::new();
        Self { pool, frames }
    }

    /// Takes frames until there are `count`.
    pub(crate) fn fill(&mut self, count: usize) -> Result<(), StoreError> {
        while self.frames.len() < count {
            self.frames.push(self.pool.take_frame()?);
        }
        Ok(())
    }

    /// Allocates a zeroed page, latched, in one of the frames.
    ///
    /// # Panics
    /// If there is no frame.
    pub(crate) fn allocate(&mut self) -> Result<WritePage<'a>, StoreError> {
        let frame = self.frames.pop().expect("a frame was taken before");
        Ok(self.pool.allocate_in(frame)?.zeroed())
    }
}

impl Drop for SpareFrames<'_> {
    fn drop(&mut self) {
        let mut free = self.pool.free_frames.lock();
        free.extend(self.frames.drain(..).map(|frame| narrow::<u32>(frame)));
    }
}
