//! Beginning to commit: log space, a strand, and a commit slot.

use std::sync::Arc;

use crate::LogError;
use crate::commit::parts::{Fragment, Parts};
use crate::commit::pending::{More, PendingCommit};
use crate::commit::stream::{LARGE_BYTES, Large, Stream, payload_len};
use crate::commit::ticket::StrandHandle;
use crate::flush::reservation::Reservation;
use crate::log::Log;
use crate::protocol::gsn::DEPENDENCIES_MAX;

impl Log {
    /// Begins to commit a transaction whose log record is the concatenation of `payload`: reserves
    /// log space, takes the thread's commit slot, and waits while the log is quiesced. The payload
    /// of a large commit is written here, before the commit has a sequence number and anybody waits
    /// for it. A thread with a pending commit must finish it before it enters again. If there is no
    /// log space, waits for a checkpoint that is running or can be
    /// [requested](Log::wait_for_checkpoints).
    ///
    /// # Errors
    /// [`LogError::OutOfSpace`], [`LogError::Poisoned`] or [`LogError::Closed`], before anything
    /// was assigned; [`LogError::Io`] if preparing the space failed.
    //
    // Inlined, because a pending commit is too large to be returned cheaply.
    #[inline(always)]
    pub fn enter(&self, payload: &[&[u8]]) -> Result<PendingCommit<'_>, LogError> {
        self.core().commit_slots.prefetch();
        let thread = braid_rt::thread::committer();
        let strand_handles = &self.0.strand_handles;
        let strand_handle = &strand_handles[thread % strand_handles.len()];
        self.enter_strand(strand_handle, thread, payload)
    }

    /// As [`Log::enter`], for a transaction that lies in a [side lane](crate::LogOptions::side_lanes). If
    /// the lane has no log, the transaction lies in the lane of the thread's strand.
    ///
    /// # Errors
    /// As [`Log::enter`].
    #[cold]
    pub fn enter_in(&self, side: usize, payload: &[&[u8]]) -> Result<PendingCommit<'_>, LogError> {
        let thread = braid_rt::thread::committer();
        let pending = self.enter_strand(self.strand_in(Some(side), thread), thread, payload)?;
        if self.has_side_lane(side) {
            return Ok(pending);
        }
        // Looked at in the commit slot: until the commit has left it, the lane keeps its log.
        drop(pending);
        self.enter(payload)
    }

    /// As [`Log::enter`], for a transaction with a fragment in each of several lanes, at least one.
    /// It assigns as many numbers as the fragments have. The caller appends the bytes of all of
    /// them, in any order of the fragments.
    ///
    /// # Errors
    /// As [`Log::enter`].
    #[cold]
    pub fn enter_fragments(&self, fragments: Vec<Fragment>) -> Result<PendingCommit<'_>, LogError> {
        if let [whole] = &fragments[..] {
            return match whole.side {
                None => self.enter(&[&whole.payload]),
                Some(side) => self.enter_in(side, &[&whole.payload]),
            };
        }
        let thread = braid_rt::thread::committer();
        let dependencies = self.dependencies_bytes();
        let strand_of = |side| self.strand_in(side, thread);
        let parts = Parts::reserve(fragments, dependencies, strand_of)?;
        let home = parts.home();
        let Some(slot) = self.core().commit_slots.enter(self.slot_hint(home, thread)) else {
            return Err(LogError::Closed);
        };
        let is_whole = parts.has_absent().then(|| parts.payload());
        let more = Some(Box::new(More::Parts(parts)));
        let pending = PendingCommit::new(home, slot, Reservation::NONE, more);
        match is_whole {
            None => Ok(pending),
            // As in `enter_in`.
            Some(payload) => {
                drop(pending);
                self.enter(&[&payload])
            }
        }
    }

    /// Returns the strand of a thread in a side lane, or in the other lanes.
    fn strand_in(&self, side: Option<usize>, thread: usize) -> &Arc<StrandHandle> {
        let Some(side) = side else {
            let strand_handles = &self.0.strand_handles;
            return &strand_handles[thread % strand_handles.len()];
        };
        let strands = self.core().options.side_strands();
        &self.0.side_handles[side * strands + thread % strands]
    }

    /// Whether a [side lane](crate::LogOptions::side_lanes) has log.
    pub fn has_side_lane(&self, side: usize) -> bool {
        let core = self.core();
        let lane = core.lanes.get(core.options.lanes + side);
        lane.is_some_and(|lane| !lane.is_absent())
    }

    /// Gives up the log of a side lane: makes everything durable that it has, and from then on no commit
    /// writes to the lane. The caller lets no new commits into it, since this waits until it has nothing
    /// to flush, and removes the lane's files once a checkpoint with a later position is durable.
    ///
    /// # Errors
    /// [`LogError::Poisoned`].
    ///
    /// # Panics
    /// If the log has no such side lane.
    pub fn retire_side_lane(&self, side: usize) -> Result<(), LogError> {
        let core = self.core();
        let lane = &core.lanes[core.options.lanes + side];
        loop {
            // Before commits are blocked, which would wait for it. Later ones are in other lanes.
            if !braid_rt::mutant!("retire_what_is_not_durable") {
                self.sync()?;
            }
            let is_retired = self.quiesce(|_| {
                if braid_rt::mutant!("retire_under_the_commit_gate") {
                    let _ = self.sync();
                }
                let is_durable = !core.is_dirty(lane) && !lane.is_flushing();
                let retires = is_durable || braid_rt::mutant!("retire_what_is_not_durable");
                if retires {
                    lane.retire(&core.quota);
                }
                retires
            });
            if is_retired {
                return Ok(());
            }
        }
    }

    /// Reserves space in a strand, and enters a commit slot.
    #[inline(always)]
    fn enter_strand<'a>(
        &'a self,
        strand_handle: &'a Arc<StrandHandle>,
        thread: usize,
        payload: &[&[u8]],
    ) -> Result<PendingCommit<'a>, LogError> {
        let core = self.core();
        let bytes = payload_len(payload) + self.dependencies_bytes();
        let lane = &core.lanes[strand_handle.lane];
        let mut reservation = core.reserve(lane, bytes)?;
        let mut more = None;
        if bytes
            > core.strands[strand_handle.strand]
                .whole_record_bytes()
                .min(LARGE_BYTES)
        {
            // After the reservation, which may wait for a checkpoint.
            let written = Large::hold(core).and_then(|large| {
                let stream = Stream::write(strand_handle, payload, &mut reservation)?;
                let _large = large;
                Ok(More::Large { stream, _large })
            });
            let written =
                written.inspect_err(|_| core.unreserve(strand_handle.lane, reservation))?;
            more = Some(Box::new(written));
        }
        let hint = self.slot_hint(strand_handle, thread);
        let Some(slot) = core.commit_slots.enter(hint) else {
            braid_rt::coverage_point("log: a commit comes after close");
            core.unreserve(strand_handle.lane, reservation);
            return Err(LogError::Closed);
        };
        Ok(PendingCommit::new(strand_handle, slot, reservation, more))
    }

    /// Returns the most bytes of dependencies that a log record names.
    #[inline(always)]
    fn dependencies_bytes(&self) -> usize {
        match self.core().acknowledgement.lanes() {
            Some(_) => DEPENDENCIES_MAX * size_of::<u64>(),
            None => 0,
        }
    }

    /// Returns the number that spreads commits over the slots.
    #[inline(always)]
    fn slot_hint(&self, strand_handle: &StrandHandle, thread: usize) -> usize {
        // In memory, each thread flushes its own strand and reads the state of the others.
        if self.core().is_memory {
            strand_handle.strand.get()
        } else {
            thread
        }
    }
}
