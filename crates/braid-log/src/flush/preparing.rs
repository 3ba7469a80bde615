//! The work of the thread that prepares segments ahead of need and deletes released ones.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::LogError;
use crate::flush::core::Core;
use crate::flush::lane::Lane;

impl Core {
    /// Prepares segments ahead of need, and then deletes released ones, with pauses. Ignores errors: a
    /// commit that needs the space reports them.
    pub(crate) fn prepare_ahead(&self) {
        if !self.is_begun() {
            return;
        }
        loop {
            self.present()
                .for_each(|lane| self.prepare_lane_ahead(lane));
            if !self.delete_until_needed() {
                return;
            }
        }
    }

    fn present(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter(|lane| !lane.is_absent())
    }

    fn prepare_lane_ahead(&self, lane: &Lane) {
        let wanted = || !self.is_comfortable(lane);
        if wanted() {
            let _ = self.prepare_with(lane, 0, || {
                let (device, options) = (&*self.device, &self.options);
                let pool = &lane.pool;
                let pause = |left, begun| self.pause_preparing(lane, left, begun);
                pool.prepare_ahead_while(device, options, &self.quota, wanted, &pause)
            });
        }
    }

    /// Deletes the segments that are to be deleted, piece by piece, with a pause for commits after each.
    /// Returns whether it has stopped, after a piece, because a lane needs the next segment.
    fn delete_until_needed(&self) -> bool {
        for lane in self.present() {
            let mut begun = braid_rt::now();
            while let Ok(true) = self.delete_some(lane) {
                self.pause_deleting(begun);
                if self.present().any(|lane| !self.is_comfortable(lane)) {
                    return true;
                }
                begun = braid_rt::now();
            }
        }
        false
    }

    fn delete_some(&self, lane: &Lane) -> Result<bool, LogError> {
        let discard = self.options.discard;
        lane.pool.delete_some(&*self.device, discard, &self.quota)
    }

    /// Leaves the device to commits after a piece of a segment, whose deletion began at `begun`.
    fn pause_deleting(&self, begun: Instant) {
        let is_stopping = self.stopping.load(Ordering::SeqCst);
        if !is_stopping && !braid_rt::mutant!("delete_segments_without_pauses") {
            self.pacer.pause(begun, self.commit_progress());
        }
    }

    /// Deletes the segments that are to be deleted, for a log without a thread that does it. Does not
    /// pause once a commit waits for a checkpoint.
    ///
    /// # Errors
    /// Errors of the device; the next call deletes the rest.
    pub(crate) fn delete_released(&self) -> Result<(), LogError> {
        for lane in &self.lanes {
            let mut begun = braid_rt::now();
            while self.delete_some(lane)? {
                if !self.backpressure.has_waiting_commits() {
                    self.pause_deleting(begun);
                }
                begun = braid_rt::now();
            }
        }
        Ok(())
    }

    /// Leaves the device to commits between two pieces of a file that is made ahead of need, unless
    /// commits may need the file before its other `left` bytes are written.
    fn pause_preparing(&self, lane: &Lane, left: u64, begun: Instant) {
        let is_stopping = self.stopping.load(Ordering::SeqCst);
        // This thread prepares the segments of all lanes.
        let mut others = self.lanes.iter().filter(|other| other.index != lane.index);
        if !is_stopping
            && self.has_time_to_prepare(lane, left)
            && others.all(|other| self.is_comfortable(other))
        {
            braid_rt::sleep(self.pacer.pause_after_needed(begun));
        }
    }

    /// Whether commits can use as many bytes as are `left` of a file before they need it.
    pub(super) fn has_time_to_prepare(&self, lane: &Lane, left: u64) -> bool {
        if lane.log_space.is_grown() {
            self.room(lane) >= self.needed(lane, left)
        } else {
            lane.pool.ready() > 0
        }
    }
}
