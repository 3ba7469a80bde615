//! Releasing segments, and deleting those that are not used again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_io::Device;

use super::SegmentPool;
use crate::LogError;
use crate::format::BLOCK;
use crate::format::segment::{Segment, segment_name};
use crate::options::LogOptions;
use crate::segments::quota::Quota;

/// Bytes of a released file that are freed at once. A file system that tells the device about the
/// blocks that it frees keeps the device busy meanwhile, and flushes wait.
const PIECE: u64 = 1 << 20;

/// Bytes that [`SegmentPool::delete_some`] frees at once.
fn piece() -> u64 {
    if braid_rt::simulation::is_on() {
        // Its segments are short.
        2 * BLOCK as u64
    } else {
        PIECE
    }
}

impl SegmentPool {
    /// Releases the segments before `sequence`, which are no longer needed, for recycling, or for
    /// deletion if the options say so. Returns whether there were any.
    pub(crate) fn release(&self, sequence: u64, options: &LogOptions) -> bool {
        let mut state = self.holds.list.of(self.state.lock());
        let mut released = 0;
        let sequence = if braid_rt::mutant!("cut_off_needed_log") {
            sequence.saturating_add(1)
        } else {
            sequence
        };
        // I6: the segment being written is never released, even if the caller asks for it.
        while state.files.live.len() > 1 && state.files.live[0].sequence < sequence {
            if let Some(segment) = state.files.live.pop_front() {
                released += 1;
                self.live_bytes.fetch_sub(segment.len, Ordering::Relaxed);
                if options.discard {
                    state.files.retired.push(segment)
                } else {
                    state.files.free.push(segment)
                }
            }
        }
        self.released.fetch_add(released as u64, Ordering::Relaxed);
        state.is_stunted &= released == 0;
        // The bytes needed between two checkpoints will be needed again; further segments are
        // deleted.
        let kept = options.preallocated_by_lane();
        while state.files.free.len() > released.max(1) {
            // The shortest one first.
            let free = state.files.free.iter().enumerate();
            let Some((at, len)) = free
                .map(|(at, file)| (at, file.len))
                .min_by_key(|&(_, len)| len)
            else {
                break;
            };
            if state.files.usable_bytes() < kept + len {
                break;
            }
            let segment = state.files.free.swap_remove(at);
            state.files.retired.push(segment);
        }
        self.note_len(&state);
        released > 0
    }

    /// Deletes the segments that [`SegmentPool::release`] marked for deletion. Returns their number.
    ///
    /// # Errors
    /// Errors of the device; the next call deletes the remaining segments.
    pub(crate) fn delete_retired(
        &self,
        device: &dyn Device,
        discard: bool,
        quota: &Quota,
    ) -> Result<usize, LogError> {
        self.delete_while(device, discard, quota, || true)
    }

    /// As [`SegmentPool::delete_retired`], while `wanted` returns true.
    fn delete_while(
        &self,
        device: &dyn Device,
        discard: bool,
        quota: &Quota,
        wanted: impl Fn() -> bool,
    ) -> Result<usize, LogError> {
        // A thread that needs the room waits for one that is deleting files.
        let _deletion = self.deletion.lock();
        let mut deleted = 0;
        while wanted() {
            let Some(segment) = self.state.lock().pop_retired() else {
                break;
            };
            self.delete(device, segment, discard, quota)?;
            deleted += 1;
        }
        Ok(deleted)
    }

    /// Frees a piece of a segment that is to be deleted: cuts off its end, or deletes it if little is
    /// left. Returns whether there may be more. Between two pieces, the caller leaves the device to
    /// commits, and other threads may delete the rest.
    ///
    /// # Errors
    /// Errors of the device; the next call tries again.
    pub(crate) fn delete_some(
        &self,
        device: &dyn Device,
        discard: bool,
        quota: &Quota,
    ) -> Result<bool, LogError> {
        let _deletion = self.deletion.lock();
        let Some(mut segment) = self.state.lock().pop_retired() else {
            return Ok(false);
        };
        let left = if braid_rt::mutant!("delete_segments_at_once") {
            0
        } else {
            segment.len.saturating_sub(piece())
        };
        // A reader of the log that still has the file would miss what is cut off. Nobody gets the file
        // from here on.
        let is_read = Arc::get_mut(&mut segment.file).is_none()
            && !braid_rt::mutant!("cut_segments_under_readers");
        if left == 0 || is_read || Self::cut(&segment, left, discard).is_err() {
            self.delete(device, segment, discard, quota)?;
            return Ok(true);
        }
        braid_rt::coverage_point("log: a piece of a released segment is cut off");
        if !braid_rt::mutant!("count_what_was_cut_off") {
            quota.shorten(segment.len - left);
        }
        segment.len = left;
        self.state.lock().files.retired.push(segment);
        Ok(true)
    }

    /// Cuts off the end of a segment that is to be deleted. A crash may leave any length, which an
    /// opening takes for that of any other released segment; see [`SegmentPool::sync_unused`].
    fn cut(segment: &Segment, left: u64, discard: bool) -> io::Result<()> {
        if discard {
            segment.file.punch_hole(left..segment.len)?;
        }
        segment.file.set_len(left)
    }

    /// Deletes segments whose numbers the next segments take. The caller has the turn.
    pub(super) fn delete_unpublished(
        &self,
        device: &dyn Device,
        quota: &Quota,
    ) -> Result<(), LogError> {
        loop {
            let Some(segment) = self.state.lock().pop_unpublished() else {
                return Ok(());
            };
            self.delete(device, segment, false, quota)?;
        }
    }

    /// Forgets all files: the caller removes them, and the lane writes no more.
    pub(crate) fn forget(&self, quota: &Quota) {
        let _ahead = self.ahead.lock();
        let _turn = self.turns.take();
        let files = std::mem::take(&mut self.state.lock().files);
        files.all().for_each(|file| quota.release(file.len));
        self.ready.store(0, Ordering::Release);
        self.ready_room.store(0, Ordering::Release);
        self.live_bytes.store(0, Ordering::Relaxed);
    }

    /// Deletes the released segments, also those kept for recycling. Returns whether it deleted any.
    pub(crate) fn give_up_free(&self, device: &dyn Device, discard: bool, quota: &Quota) -> bool {
        {
            let files = &mut self.state.lock().files;
            files.retired.append(&mut files.free);
        }
        // The next call deletes what cannot be deleted now.
        self.delete_retired(device, discard, quota)
            .is_ok_and(|deleted| deleted > 0)
    }

    fn delete(
        &self,
        device: &dyn Device,
        segment: Segment,
        discard: bool,
        quota: &Quota,
    ) -> Result<(), LogError> {
        let name = segment_name(self.lane, segment.sequence);
        let punch = if discard {
            segment.file.punch_hole(0..segment.len)
        } else {
            Ok(())
        };
        match punch.and_then(|()| device.remove(&name)) {
            Ok(()) => {
                quota.release(segment.len);
                Ok(())
            }
            Err(error) => {
                self.state.lock().files.retired.push(segment);
                Err(LogError::io(format!("cannot delete {name}"), error))
            }
        }
    }

    /// Deletes segments that are to be deleted, as long as they leave the limit no room for a file of
    /// `len` bytes: they count against it.
    pub(super) fn make_quota(
        &self,
        device: &dyn Device,
        len: u64,
        options: &LogOptions,
        quota: &Quota,
    ) -> Result<(), LogError> {
        if braid_rt::mutant!("count_retired_segments") {
            return Ok(());
        }
        let lacks_room = || !quota.has_room(len, options);
        self.delete_while(device, options.discard, quota, lacks_room)
            .map(drop)
    }
}
